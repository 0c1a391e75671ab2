//! Calls that are made on one connection and answered on another: over HTTP+SSE (MCP 2024-11-05) an agent POSTs them,
//! and a stream that it keeps open has the answers.
//!
//! Before the rules are read for a call, its answer is *expected* on the stream. Until all of it has left, the connection
//! that sends it is the one that knows how far it has come, and that ends it when a stop comes; then it is *handed over*
//! ([`crate::gate::Gate::hand_over`]) and in flight on the stream, until its answer passes there. Whoever takes a call off
//! the stream sees to what becomes of it, and nobody else does.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Call, Conn, Permit, Permits, Phase, State, furthest};
use crate::decide::stop::Stop;
use crate::decide::{Refusal, Rules};
use crate::decode::RawId;
use crate::session::Session;

/// Calls that are over, and by which one more answer would be known.
const MOST_PAST: usize = 64;

/// What a stream knows of the calls that are answered on it, besides those in flight.
#[derive(Debug, Default)]
pub(super) struct Posted {
    /// Not all of them has left yet. They may be answered all the same.
    expected: Vec<Call>,
    /// Over, the last one first: answered, or cancelled by their agent, as the server has heard. Some servers answer twice, in
    /// the stream and to the POST, and some what is cancelled.
    past: VecDeque<Call>,
    /// Caught by a stop. What the server answers is evidence.
    late: Vec<(Call, Arc<Stop>)>,
    /// The stream is open.
    open: bool,
}

/// On a connection that POSTs.
#[derive(Debug)]
pub(super) struct PostsTo {
    stream: Arc<Conn>,
    /// Decisions of the calls that are the stream's by now.
    handed: Vec<Box<str>>,
}

/// Why a call cannot be answered on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unexpected {
    /// The stream has ended.
    Ended,
    /// Another one with its id has no answer yet.
    Repeated,
    /// There are as many without an answer as there may be.
    Crowded,
}

/// Calls that one stop, or one rule, has caught on a stream.
#[derive(Debug)]
pub struct CaughtThere {
    pub stop: Arc<Stop>,
    pub refusal: Refusal,
    pub calls: Vec<Call>,
}

impl Posted {
    fn is_over(&mut self, call: Call) {
        self.past.push_front(call);
        self.past.truncate(MOST_PAST);
    }
}

impl State {
    /// What the connection is doing, as a stop sees it: of a call that is answered in a stream all has left.
    pub(super) fn phase(&self) -> Phase {
        match self.phase {
            Phase::Open if !self.calls.is_empty() => Phase::Sent,
            phase => phase,
        }
    }

    /// Where its calls are answered, if that is elsewhere.
    pub(super) fn stream(&self) -> Option<Arc<Conn>> {
        self.posts_to.as_ref().map(|posts_to| Arc::clone(&posts_to.stream))
    }

    fn live(&mut self) -> Option<&mut Posted> {
        self.posted.as_deref_mut().filter(|posted| posted.open)
    }

    /// Takes a call off the stream, and what limits have counted of it.
    fn take(&mut self, decision: &str) -> Option<(Call, Permits)> {
        let calls = [Some(&mut self.calls), self.posted.as_mut().map(|posted| &mut posted.expected)];
        let call = calls.into_iter().flatten().find_map(|calls| {
            let index = calls.iter().position(|call| *call.decision == *decision)?;
            Some(calls.swap_remove(index))
        })?;
        let permits = self.permits.extract_if(.., |(of, _)| **of == *decision).collect();
        Some((call, permits))
    }

    /// A call of this id that is not in flight, as far as an answer to it could come in the stream.
    pub(super) fn posted(&self, id: RawId<'_>) -> Option<&Call> {
        let posted = self.posted.as_ref()?;
        posted.expected.iter().chain(&posted.past).find(|call| call.has_id(id))
    }

    /// A call is over.
    pub(super) fn note_past(&mut self, call: &Call) {
        if let Some(posted) = &mut self.posted {
            posted.is_over(call.clone());
        }
    }

    /// Takes off a call that is answered in the stream before anybody noticed that it has left.
    pub(super) fn finish_expected(&mut self, id: RawId<'_>) -> Option<Call> {
        let expected = &mut self.posted.as_mut()?.expected;
        let index = expected.iter().position(|call| call.has_id(id))?;
        Some(expected.swap_remove(index))
    }

    /// The stream has ended. What stops have caught is left to those who follow it.
    pub(super) fn end_posted(&mut self) {
        if let Some(posted) = &mut self.posted {
            let late = std::mem::take(&mut posted.late);
            **posted = Posted { late, ..Posted::default() };
        }
    }
}

impl PostsTo {
    /// Of calls that end where they were sent, those that have not ended on the stream.
    pub(super) fn take_back(self, calls: &mut Vec<Call>) {
        calls.retain(|call| call.rpc_id.is_none() || self.stream.gives_back(call));
    }
}

/// The stream.
impl Conn {
    /// What is POSTed on other connections is answered in the stream that this one has open from now on. It is part of this
    /// session, like what is POSTed.
    pub fn open_posted(&self, session: Option<Session>) {
        let mut state = self.state();
        state.posted.get_or_insert_default().open = true;
        state.scene.session = state.scene.session.or(session);
        state.scene.other_session = session;
    }

    /// Whether answers to calls of other connections come in its stream.
    pub fn answers_posts(&self) -> bool {
        self.state().live().is_some()
    }

    /// Gives a call back to the connection that sends it; false: it has ended here.
    fn gives_back(&self, call: &Call) -> bool {
        let mut state = self.state();
        state.live().is_none() || state.take(&call.decision).is_some()
    }

    /// Keeps what limits have counted of a call until it is answered here; gives it back where it will not be.
    pub(super) fn keep_posted(&self, decision: &str, permits: Vec<Permit>) -> Vec<Permit> {
        let mut state = self.state();
        if state.live().is_none() {
            return permits;
        }
        state.permits.extend(permits.into_iter().map(|permit| (decision.into(), permit)));
        Vec::new()
    }

    /// Catches what is in flight in the stream and meets a stop, or was called off; `file` is told of each call before its
    /// answer can come.
    pub fn catch_posted(&self, rules: &Rules, mut file: impl FnMut(&Arc<Stop>, &Call)) -> Vec<CaughtThere> {
        let mut state = self.state();
        let state = &mut *state;
        let called_off = std::mem::take(&mut state.called_off);
        let mut caught: Vec<CaughtThere> = Vec::new();
        let mut kept = Vec::new();
        for call in std::mem::take(&mut state.calls) {
            let stop = self.identity.agent.as_whom(|agent| {
                let facts = call.facts(&state.scene, agent);
                furthest(rules.stops.iter().filter(|stop| stop.selector.matches(&facts))).cloned()
            });
            let by_rule = called_off.iter().find(|called_off| called_off.decision == call.decision);
            let met = stop.map(|stop| (Refusal::Stop(Arc::clone(&stop)), stop));
            let met = met.or(by_rule.map(|called| (called.refusal.clone(), Arc::clone(&called.stop))));
            let Some((refusal, stop)) = met else {
                kept.push(call);
                continue;
            };
            file(&stop, &call);
            state.permits.retain(|(of, _)| *of != call.decision);
            if let Some(posted) = &mut state.posted {
                posted.late.push((call.clone(), Arc::clone(&stop)));
            }
            match caught.iter_mut().find(|caught| Arc::ptr_eq(&caught.stop, &stop)) {
                Some(caught) => caught.calls.push(call),
                None => caught.push(CaughtThere { stop, refusal, calls: vec![call] }),
            }
        }
        state.calls = kept;
        caught
    }

    /// Some answer that comes in the stream would be evidence.
    pub fn has_late(&self) -> bool {
        self.state().posted.as_ref().is_some_and(|posted| !posted.late.is_empty())
    }

    /// Takes the call that a stop has caught, and that is answered now.
    pub fn finish_late(&self, id: RawId<'_>) -> Option<(Call, Arc<Stop>)> {
        self.take_late(|call| call.has_id(id))
    }

    /// Whether an answer to a call of this id is to come here.
    pub fn is_awaited(&self, id: RawId<'_>) -> bool {
        let state = self.state();
        let posted = state
            .posted
            .iter()
            .flat_map(|posted| posted.expected.iter().chain(posted.late.iter().map(|(call, _)| call)));
        state.calls.iter().chain(posted).any(|call| call.has_id(id))
    }

    /// Whether a stop has caught the call of this id.
    pub fn is_late(&self, id: RawId<'_>) -> bool {
        self.state().posted.as_ref().is_some_and(|posted| posted.late.iter().any(|(call, _)| call.has_id(id)))
    }

    /// Takes a call that a stop has caught, if nobody has: no more will be learnt of it.
    pub fn give_up_late(&self, decision: &str) -> bool {
        self.take_late(|call| *call.decision == *decision).is_some()
    }

    fn take_late(&self, is: impl Fn(&Call) -> bool) -> Option<(Call, Arc<Stop>)> {
        let mut state = self.state();
        let late = &mut state.posted.as_mut()?.late;
        let index = late.iter().position(|(call, _)| is(call))?;
        Some(late.swap_remove(index))
    }

    /// How many calls wait for an answer here.
    pub fn unanswered(&self) -> usize {
        let state = self.state();
        state.calls.len()
            + state.posted.as_ref().map_or(0, |posted| posted.expected.len() + posted.late.len())
    }

    /// Notes that the agent itself wants a call cancelled that is answered here.
    pub fn cancelled_there(&self, id: RawId<'_>) -> bool {
        let mut state = self.state();
        let State { calls, posted, .. } = &mut *state;
        let expected = posted.iter_mut().flat_map(|posted| &mut posted.expected);
        let call = calls.iter_mut().chain(expected).find(|call| call.has_id(id));
        call.map(Call::cancel).is_some()
    }

    /// The server has heard of what the agent has cancelled: calls that need not be answered any more.
    pub fn retire_cancelled(&self) -> Vec<Call> {
        let mut state = self.state();
        let State { calls, posted, permits, .. } = &mut *state;
        let Some(posted) = posted else { return Vec::new() };
        let retired: Vec<Call> = calls.extract_if(.., |call| call.agent_cancelled_at.is_some()).collect();
        permits.retain(|(of, _)| retired.iter().all(|call| call.decision != *of));
        retired.iter().for_each(|call| posted.is_over(call.clone()));
        retired
    }
}

/// The connection that POSTs.
impl Conn {
    /// What it is about to do is answered in a stream. Call it when that is registered, and before any of it leaves.
    pub fn post_to(&self, stream: &Arc<Conn>, most: usize) -> Result<(), Unexpected> {
        let asked = |call: &&Call| call.rpc_id.is_some();
        let calls: Vec<Call> = self.state().calls.iter().filter(asked).cloned().collect();
        stream.expect(&calls, most)?;
        self.state().posts_to = Some(Box::new(PostsTo { stream: Arc::clone(stream), handed: Vec::new() }));
        Ok(())
    }

    fn expect(&self, calls: &[Call], most: usize) -> Result<(), Unexpected> {
        let mut state = self.state();
        let State { calls: in_flight, posted, .. } = &mut *state;
        let posted = posted.as_deref_mut().filter(|posted| posted.open).ok_or(Unexpected::Ended)?;
        // It may be judged again, after a person was asked.
        posted.expected.retain(|known| calls.iter().all(|call| call.decision != known.decision));
        let late = posted.late.iter().map(|(call, _)| call);
        let known = in_flight.iter().chain(&posted.expected).chain(late);
        let is_known = |id: RawId<'_>| known.clone().any(|call| call.has_id(id));
        let is_repeated = |(index, call): (usize, &Call)| {
            let id = call.rpc_id.as_deref().map(RawId::of);
            id.is_some_and(|id| is_known(id) || calls[..index].iter().any(|before| before.has_id(id)))
        };
        if calls.iter().enumerate().any(is_repeated) {
            return Err(Unexpected::Repeated);
        }
        if in_flight.len() + posted.expected.len() + calls.len() > most {
            return Err(Unexpected::Crowded);
        }
        posted.expected.extend(calls.iter().cloned());
        Ok(())
    }

    /// All of its calls has left: lists them on the stream as well. False: there are none, or none that would be answered
    /// there. For [`crate::gate::Gate::hand_over`].
    pub(crate) fn lend(&self) -> bool {
        let (stream, calls) = {
            let state = self.state();
            let Some(posts_to) = &state.posts_to else { return false };
            let decisions = state.calls.iter().filter(|call| call.rpc_id.is_some());
            (Arc::clone(&posts_to.stream), decisions.map(|call| call.decision.clone()).collect::<Vec<_>>())
        };
        let mut state = stream.state();
        let State { calls: in_flight, posted, .. } = &mut *state;
        let Some(posted) = posted.as_deref_mut().filter(|posted| posted.open) else { return false };
        in_flight.extend(posted.expected.extract_if(.., |call| calls.contains(&call.decision)));
        !calls.is_empty()
    }

    /// They are the stream's alone.
    pub(crate) fn leave_to_stream(&self) {
        let mut state = self.state();
        let State { calls, posts_to, .. } = &mut *state;
        let Some(posts_to) = posts_to else { return };
        let left = calls.extract_if(.., |call| call.rpc_id.is_some());
        posts_to.handed.extend(left.map(|call| call.decision));
    }

    /// The server has answered here, and not in the stream: whatever has no answer there yet ends here.
    pub fn take_back(&self) {
        let Some((stream, mut decisions)) = self.state().posts_to.take().map(|to| (to.stream, to.handed))
        else {
            return;
        };
        let own: Vec<Box<str>> = self.state().calls.iter().map(|call| call.decision.clone()).collect();
        decisions.extend(own.iter().cloned());
        for decision in decisions {
            let taken = {
                let mut there = stream.state();
                there.take(&decision).inspect(|(call, _)| there.note_past(call))
            };
            let Some((call, permits)) = taken else { continue };
            let mut state = self.state();
            state.permits.extend(permits);
            if !own.contains(&decision) {
                state.calls.push(call);
            }
        }
    }
}
