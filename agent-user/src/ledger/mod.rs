//! Every open connection of every agent, and what each has in flight.
//!
//! How it and the rules are read and written makes stops exact: see [`crate::gate`].

mod call;
mod list;
mod posted;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, Weak};

use crate::decide::stop::{Level, Stop, Whom};
use crate::decide::{Refusal, Rules, furthest};
use crate::decode::RawId;
use crate::forward::connect::Tunnel;
use crate::forward::lines::ToServer;
use crate::identity::Identity;
use crate::limits::Permit;
pub use crate::phase::Phase;
use crate::session::Session;
use crate::sync::{Mutex, MutexGuard, Notify};

pub use self::call::{Call, Scene, addresses, used};
pub use self::list::{Brought, Entry, Ledger};
pub use self::posted::{CaughtThere, Unexpected};
use self::posted::{Posted, PostsTo};

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
    a2a: AtomicBool,
    /// The tunnel that it goes through, where its destination is a proxy.
    tunnel: OnceLock<Arc<Tunnel>>,
    /// Its messages are lines, and so its server is told on it.
    lines: OnceLock<Weak<ToServer>>,
    /// It is what its agent says in a connection of lines, which has an entry of its own.
    part: bool,
    /// Its destination means something only where the agent is.
    apart: AtomicBool,
    /// The agent has closed its side.
    agent_left: AtomicBool,
    state: Mutex<State>,
}

/// What limits have counted, by the decision on its call.
type Permits = Vec<(Box<str>, Permit)>;

#[derive(Debug)]
struct State {
    phase: Phase,
    scene: Scene,
    calls: Vec<Call>,
    /// What limits have counted of them, by decision. Slots of calls in flight are given back when these have ended.
    permits: Permits,
    /// The turn of the stop that waits for it to act.
    awaited: Option<u64>,
    /// A stop has cut it while it was at rest. It obeys even if the stop is released before it gets to know.
    cut_by: Option<Arc<Stop>>,
    /// A rule has called off what is in flight, and nothing else.
    called_off: Vec<CalledOff>,
    /// It is a stream in which calls of other connections are answered.
    posted: Option<Box<Posted>>,
    /// Its calls are answered in such a stream.
    posts_to: Option<Box<PostsTo>>,
}

/// What a rule has called off.
#[derive(Clone, Debug)]
struct CalledOff {
    /// Of the call.
    decision: Box<str>,
    /// In force for this exchange alone.
    stop: Arc<Stop>,
    refusal: Refusal,
}

impl Conn {
    fn new(id: u64, identity: Identity, destination: SocketAddr, scene: Scene) -> Conn {
        let state = State {
            phase: Phase::Idle,
            scene,
            calls: Vec::new(),
            permits: Vec::new(),
            awaited: None,
            cut_by: None,
            called_off: Vec::new(),
            posted: None,
            posts_to: None,
        };
        Conn {
            id,
            identity,
            destination,
            wake: Notify::new(),
            mcp: AtomicBool::new(false),
            a2a: AtomicBool::new(false),
            tunnel: OnceLock::new(),
            lines: OnceLock::new(),
            part: false,
            apart: AtomicBool::new(false),
            agent_left: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

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

    /// Whether this connection is known to carry A2A.
    pub fn is_a2a(&self) -> bool {
        self.a2a.load(Ordering::Relaxed)
    }

    pub fn mark_a2a(&self) {
        self.a2a.store(true, Ordering::Relaxed);
    }

    /// The tunnel that it goes through, where its destination is a proxy.
    pub fn tunnel(&self) -> Option<&Tunnel> {
        self.tunnel.get().map(|tunnel| &**tunnel)
    }

    /// It goes through a tunnel; nothing was said in it yet.
    pub fn enter(&self, tunnel: Arc<Tunnel>) {
        // It does so once.
        let _ = self.tunnel.set(tunnel);
    }

    /// How its server is told something, if its messages are lines.
    pub fn lines(&self) -> Option<&Weak<ToServer>> {
        self.lines.get()
    }

    /// Its messages are lines.
    pub fn speaks_lines(&self, server: Weak<ToServer>) {
        // It does so once.
        let _ = self.lines.set(server);
    }

    /// Whether it is no connection of its own.
    pub fn is_part(&self) -> bool {
        self.part
    }

    /// Whether its destination is in the agent's own network namespace: another agent that goes to the same address goes to
    /// another server.
    pub fn is_apart(&self) -> bool {
        self.apart.load(Ordering::Relaxed)
    }

    pub fn mark_apart(&self) {
        self.apart.store(true, Ordering::Relaxed);
    }

    pub fn has_agent_left(&self) -> bool {
        self.agent_left.load(Ordering::Relaxed)
    }

    pub fn mark_agent_left(&self) {
        self.agent_left.store(true, Ordering::Relaxed);
    }

    /// Registers calls, before the rules are read for them: by [`crate::gate::Gate::begin`].
    pub(crate) fn begin(&self, scene: Scene, calls: Vec<Call>) {
        let mut state = self.state();
        state.phase = Phase::Held;
        state.called_off.clear();
        state.end_posted();
        state.scene = scene;
        let mut before = std::mem::replace(&mut state.calls, calls);
        let posts_to = state.posts_to.take();
        drop(state);
        if let Some(posts_to) = posts_to {
            posts_to.take_back(&mut before);
        }
    }

    /// Registers that it carries what cannot be read, before the rules are read for it.
    pub fn open(&self, scene: Scene) {
        self.begin(scene, Vec::new());
        self.set_phase(Phase::Open);
    }

    /// The stop that ends what this connection is doing. Between messages a `refuse` stop ends nothing: the next message
    /// runs into it; and an answer that was decided before the stop may arrive.
    pub fn met_by(&self, rules: &Rules) -> Option<Arc<Stop>> {
        let state = self.state();
        if state.cut_by.is_some() {
            return state.cut_by.clone();
        }
        let called_off = state.called_off.last().map(|called_off| &called_off.stop);
        self.identity.agent.as_whom(|agent| {
            let ends = |stop: &&Arc<Stop>| {
                (stop.level > Level::Refuse || !state.is_at_rest()) && state.is_met_by(stop, agent)
            };
            furthest(rules.stops.iter().filter(ends)).or(called_off).cloned()
        })
    }

    /// Ends the exchange in which a call is that has left, as a stop would, for this refusal.
    pub fn call_off(&self, decision: &str, stop: Arc<Stop>, refusal: Refusal) {
        let mut state = self.state();
        let has_left = matches!(state.phase(), Phase::Sending | Phase::Sent);
        if has_left && state.calls.iter().any(|call| &*call.decision == decision) {
            state.called_off.push(CalledOff { decision: decision.into(), stop, refusal });
            self.wake.notify_one();
        }
    }

    /// What the agent is told when a stop ends its exchange.
    pub fn refusal_by(&self, stop: &Arc<Stop>) -> Refusal {
        let state = self.state();
        let called_off = state.called_off.iter().find(|called_off| Arc::ptr_eq(&called_off.stop, stop));
        called_off.map_or_else(|| Refusal::Stop(Arc::clone(stop)), |called_off| called_off.refusal.clone())
    }

    /// The stop that has cut it while it was at rest.
    pub fn cut_by(&self) -> Option<Arc<Stop>> {
        self.state().cut_by.clone()
    }

    /// What a stop, which is published by now, has to do here.
    fn meet(&self, stop: &Arc<Stop>, turn: u64) -> Meeting {
        let mut state = self.state();
        if !self.identity.agent.as_whom(|agent| state.is_met_by(stop, agent)) {
            return Meeting::Unconcerned;
        }
        if !state.is_at_rest() {
            state.awaited = Some(turn);
            return Meeting::Acts;
        }
        // Whatever it reads next is registered first, and then meets the stop: nothing is to be waited for.
        if stop.level > Level::Refuse {
            state.cut_by.get_or_insert_with(|| Arc::clone(stop));
            return Meeting::Cut;
        }
        Meeting::Rests
    }

    /// What its exchange is part of.
    pub fn scene(&self) -> Scene {
        self.state().scene.clone()
    }

    /// What the connection is doing now, for whoever wants to see it.
    pub fn view(&self) -> (Phase, Scene, Vec<Call>) {
        let state = self.state();
        (state.phase(), state.scene.clone(), state.calls.clone())
    }

    /// Whether a stop would end something on this connection, or refuse what comes next on it.
    pub fn is_concerned_by(&self, stop: &Stop) -> bool {
        self.identity.agent.as_whom(|agent| self.state().is_met_by(stop, agent))
    }

    pub fn set_phase(&self, phase: Phase) {
        self.state().phase = phase;
    }

    pub fn phase(&self) -> Phase {
        self.state().phase()
    }

    /// Notes that the agent itself wants one of the calls cancelled.
    fn cancelled_by_agent(&self, session: Option<Session>, id: RawId<'_>) -> bool {
        let mut state = self.state();
        let call = state.calls.iter_mut().find(|call| call.session == session && call.has_id(id));
        call.map(Call::cancel).is_some()
    }

    /// The call of this id, which stays on the ledger. Without one an operation of A2A is meant.
    pub fn call(&self, id: Option<RawId<'_>>) -> Option<Call> {
        let state = self.state();
        let Some(id) = id else { return state.calls.iter().find(|call| call.is_operation).cloned() };
        let call = state.calls.iter().find(|call| call.has_id(id)).or_else(|| state.posted(id)).cloned();
        let stream = state.stream();
        drop(state);
        call.or_else(|| stream?.call(Some(id)))
    }

    /// Keeps what limits have counted of a call for as long as it is in flight.
    pub fn keep(&self, decision: &str, mut permits: Vec<Permit>) {
        let stream = self.state().stream();
        if let Some(stream) = stream {
            permits = stream.keep_posted(decision, permits);
        }
        self.state().permits.extend(permits.into_iter().map(|permit| (decision.into(), permit)));
    }

    /// Takes one answered call off the ledger, and with it what limits have counted of it. The exchange goes on while
    /// others are open.
    pub fn finish(&self, id: RawId<'_>) -> Option<(Call, Vec<Permit>)> {
        let mut state = self.state();
        let call = match state.calls.iter().position(|call| call.has_id(id)) {
            Some(index) => state.calls.swap_remove(index),
            None => state.finish_expected(id)?,
        };
        state.note_past(&call);
        let (permits, rest) = std::mem::take(&mut state.permits)
            .into_iter()
            .partition(|(decision, _)| *decision == call.decision);
        state.permits = rest;
        let permits: Permits = permits;
        Some((call, permits.into_iter().map(|(_, permit)| permit).collect()))
    }

    /// Ends the exchange and hands back the calls that got no answer.
    pub fn end(&self) -> Vec<Call> {
        self.stop().1
    }

    /// Ends the exchange because of a stop and tells how far it had come.
    pub fn stop(&self) -> (Phase, Vec<Call>) {
        let mut state = self.state();
        state.called_off.clear();
        state.permits.clear();
        state.end_posted();
        let (phase, mut calls) = (state.phase(), std::mem::take(&mut state.calls));
        state.phase = Phase::Idle;
        let posts_to = state.posts_to.take();
        drop(state);
        if let Some(posts_to) = posts_to {
            posts_to.take_back(&mut calls);
        }
        (phase, calls)
    }
}

/// What a stop has to do on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    Unconcerned,
    /// In scope, and at rest: its next message will meet the stop.
    Rests,
    /// In scope, at rest, and marked: it ends as soon as it gets to know.
    Cut,
    /// Something is in progress that has to end first.
    Acts,
}

impl State {
    /// Nothing is in flight but perhaps an answer that was decided.
    fn is_at_rest(&self) -> bool {
        self.calls.is_empty() && matches!(self.phase, Phase::Idle | Phase::Answering)
    }

    fn is_met_by(&self, stop: &Stop, agent: Whom<'_>) -> bool {
        if self.calls.is_empty() {
            return stop.selector.matches(&self.scene.facts(agent));
        }
        self.calls.iter().any(|call| stop.selector.matches(&call.facts(&self.scene, agent)))
    }
}
