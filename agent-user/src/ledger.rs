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

use crate::decide::stop::{Facts, Level, Stop};
use crate::decide::{Rules, furthest};
use crate::decode::RawId;
use crate::fate::Fate;
use crate::identity::Identity;
use crate::session::Session;

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
    /// Digest of its session (see [`crate::session`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    /// The decision that let it through.
    pub decision: Box<str>,
    pub since: Timestamp,
}

impl Call {
    /// What is known of a call in the exchange of this scene.
    pub fn facts<'a>(&'a self, scene: &'a Scene, agent: &'a str) -> Facts<'a> {
        let facts = scene.facts(agent);
        Facts { tool: self.tool.as_deref(), workflow: self.workflow.as_deref(), ..facts }
    }
}

/// What an exchange is part of: what a stop looks at beside its agent and its calls.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// The server as the agent names it.
    pub server: Arc<str>,
    /// Every name and address of it, in lower case.
    pub servers: Arc<[String]>,
    pub session: Option<Session>,
    pub workflow: Option<Arc<str>>,
}

impl Scene {
    /// Of a connection that has said nothing yet.
    pub fn of_connection(destination: SocketAddr, workflow: Option<Arc<str>>) -> Scene {
        let servers = [destination.to_string(), destination.ip().to_string()];
        Scene { server: servers[0].as_str().into(), servers: servers.into(), session: None, workflow }
    }

    /// What is known of an exchange of `agent` without calls.
    pub fn facts<'a>(&'a self, agent: &'a str) -> Facts<'a> {
        Facts {
            agent,
            workflow: self.workflow.as_deref(),
            session: self.session,
            servers: &self.servers,
            tool: None,
        }
    }
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
    scene: Scene,
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

    /// Where it goes, with and without the port.
    pub fn addresses(&self) -> [String; 2] {
        [self.destination.to_string(), self.destination.ip().to_string()]
    }

    /// Registers calls, before the rules are read for them.
    pub fn begin(&self, scene: Scene, calls: Vec<Call>) {
        let mut state = self.state();
        state.phase = Phase::Held;
        state.scene = scene;
        state.calls = calls;
    }

    /// The stop that ends what this connection is doing. Between messages a `refuse` stop ends nothing: the next message
    /// runs into it; and an answer that was decided before the stop may arrive.
    pub fn met_by(&self, rules: &Rules) -> Option<Arc<Stop>> {
        let state = self.state();
        let agent = &*self.identity.agent.name;
        let ends = |stop: &&Arc<Stop>| {
            (stop.level > Level::Refuse || !matches!(state.phase, Phase::Idle | Phase::Answering))
                && state.is_met_by(stop, agent)
        };
        furthest(rules.stops.iter().filter(ends)).cloned()
    }

    /// What the connection is doing now, for whoever wants to see it.
    pub fn view(&self) -> (Phase, Scene, Vec<Call>) {
        let state = self.state();
        (state.phase, state.scene.clone(), state.calls.clone())
    }

    /// Whether a stop would end something on this connection, or refuse what comes next on it.
    pub fn is_concerned_by(&self, stop: &Stop) -> bool {
        self.state().is_met_by(stop, &self.identity.agent.name)
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

impl State {
    fn is_met_by(&self, stop: &Stop, agent: &str) -> bool {
        if self.calls.is_empty() {
            return stop.selector.matches(&self.scene.facts(agent));
        }
        self.calls.iter().any(|call| stop.selector.matches(&call.facts(&self.scene, agent)))
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

    /// Opens a connection; `scene` is what is known of it before it says anything. It stays listed until the returned
    /// entry is dropped.
    pub fn open(self: &Arc<Self>, identity: Identity, destination: SocketAddr, scene: Scene) -> Entry {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let state = State { phase: Phase::Idle, scene, calls: Vec::new(), acted: 0 };
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
