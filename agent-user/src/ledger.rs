//! Every open connection of every agent, and what each has in flight.
//!
//! Exactness rests on one order: a connection *writes its call here, then reads the rules*; a stop *publishes the
//! rules, then reads here*. Both touch the same per-connection lock, so one of them happens first: either the
//! call meets the stop, or the stop lists the call.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Notify;

use crate::decode::RawId;
use crate::fate::Fate;
use crate::identity::Identity;

/// What a call asked for, as its record and a stop's answer name it.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    pub method: Box<str>,
    /// Tool, prompt, resource or task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Box<str>>,
    /// The JSON-RPC id exactly as the agent sent it; `None` for notifications and responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_id: Option<Box<str>>,
    pub server: Arc<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    /// The decision that let it through.
    pub decision: Box<str>,
    pub since: Timestamp,
}

/// How far the exchange on a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing in flight, nothing half done.
    Idle,
    /// Something without calls flows: a stream, a tunnel, plain HTTP.
    Open,
    /// Read and registered; no byte has left.
    Held,
    /// Some bytes have left for the server, perhaps all but the last.
    Sending,
    /// All bytes have left; the server has not answered.
    Sent,
    /// The answer is decided and on its way to the agent.
    Answering,
}

/// One open connection of an agent.
#[derive(Debug)]
pub struct Conn {
    pub id: u64,
    pub identity: Identity,
    /// Where the agent wanted to go.
    pub destination: SocketAddr,
    /// Rung when a stop may concern this connection.
    pub wake: Notify,
    /// An MCP message or header was seen on it.
    mcp: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    calls: Vec<Call>,
    /// Generation of the last stop this connection has acted on.
    acted: u64,
}

impl Conn {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this connection is known to carry MCP.
    pub fn is_mcp(&self) -> bool {
        self.mcp.load(Ordering::Relaxed)
    }

    pub fn mark_mcp(&self) {
        self.mcp.store(true, Ordering::Relaxed);
    }

    /// Registers calls, before the rules are read for them.
    pub fn begin(&self, calls: Vec<Call>) {
        let mut state = self.state();
        state.phase = Phase::Held;
        state.calls = calls;
    }

    pub fn set_phase(&self, phase: Phase) {
        self.state().phase = phase;
    }

    pub fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Takes one answered call off the ledger. The exchange goes on while others are open.
    pub fn finish(&self, id: RawId<'_>) -> Option<Call> {
        let mut state = self.state();
        let index =
            state.calls.iter().position(|call| call.rpc_id.as_deref().is_some_and(|raw| id.matches(raw)))?;
        Some(state.calls.swap_remove(index))
    }

    /// Ends the exchange and hands back the calls that got no answer.
    pub fn end(&self) -> Vec<Call> {
        let mut state = self.state();
        state.phase = Phase::Idle;
        std::mem::take(&mut state.calls)
    }

    /// Ends the exchange because of a stop and tells how far it had come.
    pub fn stop(&self) -> (Phase, Vec<Call>) {
        let mut state = self.state();
        (std::mem::replace(&mut state.phase, Phase::Idle), std::mem::take(&mut state.calls))
    }
}

impl Phase {
    /// What becomes of the calls of an exchange that a stop ends in this phase.
    pub fn fate(self) -> Fate {
        match self {
            Phase::Idle | Phase::Open | Phase::Held => Fate::Refused,
            Phase::Sending => Fate::Cut,
            Phase::Sent | Phase::Answering => Fate::Sent,
        }
    }
}

/// The open connections of all agents.
#[derive(Debug, Default)]
pub struct Ledger {
    conns: Mutex<HashMap<u64, Arc<Conn>>>,
    next: AtomicU64,
    acted: Notify,
}

impl Ledger {
    fn conns(&self) -> MutexGuard<'_, HashMap<u64, Arc<Conn>>> {
        self.conns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a connection. It stays listed until the returned entry is dropped.
    pub fn open(self: &Arc<Self>, identity: Identity, destination: SocketAddr) -> Entry {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let state = State { phase: Phase::Idle, calls: Vec::new(), acted: 0 };
        let conn = Arc::new(Conn {
            id,
            identity,
            destination,
            wake: Notify::new(),
            mcp: AtomicBool::new(false),
            state: Mutex::new(state),
        });
        self.conns().insert(id, Arc::clone(&conn));
        Entry { ledger: Arc::clone(self), conn }
    }

    /// All open connections of agents that `concerns` accepts.
    pub fn open_conns(&self, concerns: impl Fn(&Conn) -> bool) -> Vec<Arc<Conn>> {
        self.conns().values().filter(|conn| concerns(conn)).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.conns().len()
    }

    pub fn is_empty(&self) -> bool {
        self.conns().is_empty()
    }

    /// Waits until each of these connections has acted on `generation`, or is gone. Cancel it to give up.
    pub async fn settled(&self, conns: &[Arc<Conn>], generation: u64) {
        for conn in conns {
            loop {
                // Registered before looking, so that no notification falls between the two.
                let acted = self.acted.notified();
                if conn.state().acted >= generation {
                    break;
                }
                acted.await;
            }
        }
    }

    /// How many of these connections have not acted on `generation`.
    pub fn unsettled(&self, conns: &[Arc<Conn>], generation: u64) -> usize {
        conns.iter().filter(|conn| conn.state().acted < generation).count()
    }

    /// The connection has acted on every stop up to `generation`.
    pub fn acted(&self, conn: &Conn, generation: u64) {
        conn.state().acted = generation;
        self.acted.notify_waiters();
    }
}

/// Keeps a connection listed.
#[derive(Debug)]
pub struct Entry {
    ledger: Arc<Ledger>,
    conn: Arc<Conn>,
}

impl Entry {
    pub fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.ledger.conns().remove(&self.conn.id);
        self.ledger.acted(&self.conn, u64::MAX);
    }
}
