//! What becomes of what a server says, one JSON text at a time: the content of an answer, the data of an event, or a line.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use tracing::debug;

use crate::channels::Channel;
use crate::decide::policy::Bias;
use crate::decide::stop::Stop;
use crate::decide::{Guard, Reach, Refusal, Rules};
use crate::decode::{Kind, Message, Payload, RawId, Undecodable, a2a, decode, mcp, operation};
use crate::forward::channel::catch;
use crate::forward::{evidence, refuse};
use crate::judge::{Answer, Answering};
use crate::kernel::netns::Netns;
use crate::ledger::{Call, Conn};
use crate::parts::Parts;
use crate::record::entry::{CallResult, Entry};
use crate::tasks::{Learnt, Task};

/// What becomes of something that a server says: the content of a JSON answer, or the data of an event.
#[derive(Clone, Debug)]
pub enum Edit {
    /// It is forwarded as it came.
    Pass,
    /// This JSON text is forwarded in its place.
    Replace(Vec<u8>),
    /// It does not reach the agent, and this is why. Of an event the id stays; in place of an answer its calls are refused.
    Drop {
        refusal: Refusal,
        /// It is on record already.
        recorded: bool,
    },
}

/// What it is decided by.
#[derive(Clone, Copy, Debug)]
pub struct Inspecting<'a> {
    pub parts: &'a Arc<Parts>,
    pub conn: &'a Arc<Conn>,
    pub netns: &'a Arc<Netns>,
    /// What can concern what the server says.
    pub reach: &'a Reach,
    /// It is said where calls of other exchanges are answered.
    pub channel: Option<&'a Arc<Channel>>,
    /// The head of the request: a task that the answer begins is cancelled with its headers.
    pub request: &'a [u8],
    /// When the request was let through.
    pub since: Instant,
    /// It answers an operation of A2A's HTTP+JSON binding.
    pub is_operation: bool,
    /// What comes is MCP. Anything else may carry whatever it likes.
    pub is_mcp: bool,
}

/// What stops keep from the agent of a stream.
#[derive(Debug, Default)]
struct Withheld {
    /// Some calls in it were caught.
    late: bool,
    /// The stop that holds for all of it.
    stopped: Option<Refusal>,
}

impl Withheld {
    fn is_nothing(&self) -> bool {
        !self.late && self.stopped.is_none()
    }
}

impl Inspecting<'_> {
    /// Decides one JSON text: the content of an answer, or the data of an event. What it answers is off the ledger then,
    /// and so the caller must not wait before the agent's side has it.
    pub async fn edit(&self, rules: &Rules, json: &[u8], status: Option<u16>) -> Edit {
        let limits = &self.parts.limits;
        let decoded = if self.is_operation {
            let is_error = status.is_some_and(|status| status >= 400);
            operation::answered(json, is_error, limits).map(Payload::Single)
        } else {
            decode(json, limits)
        };
        match decoded {
            Ok(payload) => self.edit_messages(rules, &payload, json, status).await,
            Err(_) if !self.is_mcp => Edit::Pass,
            Err(fault) => self.undecodable(&fault),
        }
    }

    /// The same for one that was decoded.
    pub async fn edit_messages(
        &self,
        rules: &Rules,
        payload: &Payload<'_>,
        json: &[u8],
        status: Option<u16>,
    ) -> Edit {
        let mut edit = self.judge(rules, payload, json).await;
        while payload.messages().iter().any(|message| self.is_caught(message)) {
            edit = self.judge(rules, payload, json).await;
        }
        self.finish(payload, json.len(), status);
        edit
    }

    /// Of one that cannot be decoded.
    pub fn undecodable(&self, fault: &Undecodable) -> Edit {
        if self.parts.defaults_of(self.conn).undecodable == Bias::Allow {
            return Edit::Pass;
        }
        let refusal = Refusal::Guard(Guard::Undecodable(fault.label()));
        Edit::Drop { refusal, recorded: false }
    }

    /// A stop has caught the call that it answers, meanwhile.
    fn is_caught(&self, message: &Message<'_>) -> bool {
        let Kind::Response { id: Some(id), .. } = &message.kind else { return false };
        self.channel.is_some() && self.conn.is_late(*id)
    }

    /// What rules say of it.
    async fn judge(&self, rules: &Rules, payload: &Payload<'_>, json: &[u8]) -> Edit {
        let messages = match payload {
            Payload::Single(message) => std::slice::from_ref(message),
            Payload::Batch(messages) => messages,
            Payload::NotJsonRpc => return Edit::Pass,
        };
        let reach = self.reach;
        let held = self.held(rules);
        if held.is_nothing() && messages.iter().all(|message| !reach.concerns(message)) {
            return Edit::Pass;
        }
        let scene = self.conn.scene();
        let answering = Answering { parts: self.parts, conn: self.conn, rules, reach, scene: &scene };
        let (mut kept, mut dropped, mut edited) = (Vec::new(), None, false);
        for (index, message) in messages.iter().enumerate() {
            // Clients differ on which of two answers to one call they take.
            let is_answer = matches!(message.kind, Kind::Response { id: Some(_), .. });
            let is_again = |before: &Message<'_>| is_answer && before.id() == message.id();
            let answer = match self.held_back(&held, message, json).await {
                Some(refusal) => Answer::Drop(refusal),
                None if messages[..index].iter().any(is_again) => {
                    Answer::Drop(Refusal::Guard(Guard::Undecodable("repeated_id")))
                }
                None => answering.judge(message).await,
            };
            edited |= !matches!(answer, Answer::Pass);
            match answer {
                Answer::Pass => kept.push(Cow::Borrowed(message.raw)),
                Answer::Replace(text) => kept.push(Cow::Owned(text)),
                Answer::Drop(refusal) => {
                    // Whoever asks waits for an answer.
                    if let Kind::Request { id, .. } = &message.kind {
                        self.answer_server(id.raw, &refuse::error(&refusal)).await;
                    }
                    dropped = Some(refusal);
                }
            }
        }
        match (payload, dropped) {
            _ if !edited => Edit::Pass,
            (_, Some(refusal)) if kept.is_empty() => Edit::Drop { refusal, recorded: true },
            (Payload::Batch(_), _) => Edit::Replace(format!("[{}]", kept.join(",")).into_bytes()),
            _ => Edit::Replace(kept.concat().into_bytes()),
        }
    }

    /// The head of a request by which the server knows its client, to POST to it.
    pub(super) fn client(&self) -> &[u8] {
        self.channel.map_or(self.request, |channel| &channel.request)
    }

    /// What stops keep from the agent of the next thing that the server says.
    fn held(&self, rules: &Rules) -> Withheld {
        let Some(channel) = self.channel else { return Withheld::default() };
        let mut stopped = None;
        if !rules.stops.is_empty() {
            let scene = self.conn.scene();
            let agent = &self.conn.identity.agent;
            stopped = agent.as_whom(|agent| rules.stop_for(&scene.facts(agent)).cloned()).map(Refusal::Stop);
        }
        if stopped.is_some() {
            // It may not have come here yet. What it would list must not be answered before.
            catch(self.parts, channel);
        }
        Withheld { late: self.conn.has_late(), stopped }
    }

    /// Why the agent does not get a message. What comes for a call that a stop has caught is evidence.
    async fn held_back(&self, held: &Withheld, message: &Message<'_>, json: &[u8]) -> Option<Refusal> {
        if held.late
            && let Kind::Response { id: Some(id), .. } = &message.kind
            && let Some((call, stop)) = self.conn.finish_late(*id)
        {
            settle(self.parts, self.conn, &stop, &call, message, json);
            return Some(Refusal::Stop(stop));
        }
        let refusal = held.stopped.clone()?;
        self.parts.record_guard(self.conn, "event", &refusal).await;
        Some(refusal)
    }

    /// Takes notice of what a handshake has agreed on.
    fn agree(&self, message: &Message<'_>, call: &Call) {
        let Some(channel) = self.channel.filter(|_| &*call.method == "initialize") else { return };
        if let Some(revision) = mcp::result_facts(message).and_then(|facts| facts.revision) {
            channel.agree(revision);
        }
    }

    /// Takes the calls off the ledger that a payload answers.
    fn finish(&self, payload: &Payload<'_>, bytes: usize, status: Option<u16>) {
        for message in payload.messages() {
            let Kind::Response { id: Some(id), is_error } = &message.kind else {
                self.learn(message, None);
                continue;
            };
            if !is_error && self.goes_on(*id) {
                continue;
            }
            let Some((call, permits)) = self.conn.finish(*id) else { continue };
            let (now, size) = (Instant::now(), message.raw.len() as u64);
            permits.iter().for_each(|permit| self.parts.counts.add_answer(permit, size, now));
            self.learn(message, Some(&call));
            self.agree(message, &call);
            let is_error = mcp::result_facts(message).is_some_and(|facts| facts.is_error);
            self.record(&call, if is_error { "error" } else { "result" }, None, status, bytes);
        }
    }

    /// More will answer the call of this id: it is over with its stream.
    fn goes_on(&self, id: RawId<'_>) -> bool {
        let is_streamed = |call: Call| a2a::is_streamed(&call.method);
        self.conn.is_a2a() && self.conn.call(Some(id)).is_some_and(is_streamed)
    }

    /// Takes notice of tasks that begin or end.
    fn learn(&self, message: &Message<'_>, call: Option<&Call>) {
        let begin = |id, call: &Call| {
            let scene = self.conn.scene();
            let (netns, request) = (Arc::clone(self.netns), self.client().to_vec());
            let held = self.parts.memory.take(&self.conn.identity.agent.memory, request.len()).ok()?;
            Some(Task { id, call: call.clone(), scene, conn: Arc::clone(self.conn), netns, request, held })
        };
        if let Some(round) = call.and_then(|call| call.round) {
            self.parts.rounds.learn(self.conn.identity.agent.number, round, message);
        }
        if let Learnt::Unfollowed = self.parts.tasks.learn(self.conn, message, call, begin) {
            debug!(agent = &*self.conn.identity.agent.name, "a task that a stop will know nothing of");
        }
    }

    pub(super) fn record(
        &self,
        call: &Call,
        outcome: &'static str,
        cause: Option<&'static str>,
        status: Option<u16>,
        bytes: usize,
    ) {
        // An answer that comes after its agent has gone is known, but to nobody else.
        let left = self.conn.has_agent_left().then_some("agent_closed");
        let took = match self.channel {
            Some(_) => Timestamp::now().duration_since(call.since).unsigned_abs(),
            None => self.since.elapsed(),
        };
        self.parts.log.record(&Entry::Result(CallResult {
            conn: self.conn.id,
            agent: &self.conn.identity.agent.name,
            call,
            outcome,
            cause: if outcome == "none" { call.cause(left.or(cause)) } else { cause.or(left) },
            status,
            bytes,
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        }));
    }
}

/// Files what a late answer tells of a call: it never reaches the agent.
pub fn settle(parts: &Parts, conn: &Conn, stop: &Stop, call: &Call, message: &Message<'_>, json: &[u8]) {
    let (fate, late) = evidence::of_answer(message, json);
    parts.book.settle(stop, conn, call, None, fate, Some(late));
}
