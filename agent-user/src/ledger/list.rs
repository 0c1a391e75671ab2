//! The list of open connections, and how a stop is brought to those that it concerns.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use super::{Conn, Meeting, Scene};
use crate::decide::stop::Stop;
use crate::decode::RawId;
use crate::identity::Identity;
use crate::session::Session;
use crate::sync::{Mutex, MutexGuard, Notify};

/// The open connections of all agents.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By number: in the order in which they were opened.
    conns: Mutex<BTreeMap<u64, Arc<Conn>>>,
    next: AtomicU64,
    settling: Mutex<Settling>,
    settled: Notify,
}

/// How far the stop that was brought last has come. Orders are taken one at a time.
#[derive(Debug, Default)]
struct Settling {
    /// Tells it from the ones before, which may have been given up.
    turn: u64,
    /// Connections that have yet to act on it.
    left: usize,
}

impl Ledger {
    fn conns(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Conn>>> {
        self.conns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a connection.
    pub fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Opens a connection; `scene` is what is known of it before it says anything. It stays listed until the returned
    /// entry is dropped.
    pub fn open(self: &Arc<Self>, identity: Identity, destination: SocketAddr, scene: Scene) -> Entry {
        let id = self.next_id();
        self.list(id, Conn::new(id, identity, destination, scene))
    }

    /// Opens an entry for what an agent says in a connection whose answers come in any order: it is judged, and sent, as on a
    /// connection of its own, and known by the number of that one.
    pub fn open_part(self: &Arc<Self>, whole: &Conn) -> Entry {
        let conn = Conn::new(whole.id, whole.identity.clone(), whole.destination, whole.scene());
        let mcp = AtomicBool::new(whole.is_mcp());
        let apart = AtomicBool::new(whole.is_apart());
        let (tunnel, lines) = (whole.tunnel.clone(), whole.lines.clone());
        self.list(self.next_id(), Conn { part: true, mcp, apart, tunnel, lines, ..conn })
    }

    fn list(self: &Arc<Self>, key: u64, conn: Conn) -> Entry {
        let conn = Arc::new(conn);
        self.conns().insert(key, Arc::clone(&conn));
        Entry { ledger: Arc::clone(self), key, conn }
    }

    /// All open connections of agents that `concerns` accepts.
    pub fn open_conns(&self, concerns: impl Fn(&Conn) -> bool) -> Vec<Arc<Conn>> {
        self.conns().values().filter(|conn| concerns(conn)).cloned().collect()
    }

    /// Notes that the agent behind `asking` wants its call of this session and id, at the same server, cancelled. False: no
    /// such call is in flight.
    pub fn cancelled_by_agent(&self, asking: &Conn, session: Option<Session>, id: RawId<'_>) -> bool {
        let same = |conn: &Conn| {
            conn.identity.agent.number == asking.identity.agent.number
                && conn.destination == asking.destination
        };
        let conns = self.open_conns(same);
        conns.iter().any(|conn| conn.cancelled_by_agent(session, id))
    }

    pub fn len(&self) -> usize {
        self.conns().values().filter(|conn| !conn.part).count()
    }

    pub fn is_empty(&self) -> bool {
        self.conns().is_empty()
    }

    /// Brings a stop, which is published by now, to every connection it concerns.
    pub fn bring(&self, stop: &Arc<Stop>) -> Brought {
        let mut brought = Brought::default();
        let agents = |conn: &Conn| conn.identity.agent.as_whom(|agent| stop.selector.matches_agent(agent));
        let turn = {
            let mut settling = self.settling();
            // One more than there are, so that it does not end before all are counted.
            *settling = Settling { turn: settling.turn + 1, left: 1 };
            settling.turn
        };
        for conn in self.open_conns(agents) {
            match conn.meet(stop, turn) {
                Meeting::Unconcerned => {}
                Meeting::Rests => brought.resting.push(conn),
                Meeting::Cut => brought.cut.push(conn),
                Meeting::Acts => {
                    self.settling().left += 1;
                    conn.wake.notify_one();
                    brought.acting.push(conn);
                }
            }
        }
        self.acted_on(turn);
        brought
    }

    /// Waits until each connection of the stop that was brought last has acted on it, or is gone. Cancel it to give up.
    pub async fn settled(&self) {
        loop {
            // Registered before looking, so that no notification falls between the two.
            let settled = self.settled.notified();
            if self.unsettled() == 0 {
                return;
            }
            settled.await;
        }
    }

    /// How many connections the stop that was brought last still waits for.
    pub fn unsettled(&self) -> usize {
        self.settling().left
    }

    /// The connection has acted on every stop so far.
    pub fn acted(&self, conn: &Conn) {
        let awaited = conn.state().awaited.take();
        if let Some(turn) = awaited {
            self.acted_on(turn);
        }
    }

    fn acted_on(&self, turn: u64) {
        let mut settling = self.settling();
        if settling.turn == turn {
            settling.left -= 1;
            if settling.left == 0 {
                self.settled.notify_waiters();
            }
        }
    }

    fn settling(&self) -> MutexGuard<'_, Settling> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections that a stop concerns.
#[derive(Debug, Default)]
pub struct Brought {
    /// Will have its next message refused.
    pub resting: Vec<Arc<Conn>>,
    /// Are marked, and end when they are woken.
    pub cut: Vec<Arc<Conn>>,
    /// Have been woken to end what they do.
    pub acting: Vec<Arc<Conn>>,
}

impl Brought {
    /// All of them.
    pub fn conns(&self) -> impl Iterator<Item = &Arc<Conn>> {
        self.resting.iter().chain(&self.cut).chain(&self.acting)
    }
}

/// Keeps a connection listed.
#[derive(Debug)]
pub struct Entry {
    ledger: Arc<Ledger>,
    key: u64,
    conn: Arc<Conn>,
}

impl Entry {
    pub fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.ledger.conns().remove(&self.key);
        self.ledger.acted(&self.conn);
    }
}
