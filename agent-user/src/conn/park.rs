//! A request that a person must approve of: it is parked, with not one byte of it sent, and judged again by the rules of
//! the moment in which somebody has decided.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::approvals::{self, Outcome, Parked};
use crate::channels::Channel;
use crate::decide::stop::Stop;
use crate::decide::{Refusal, Verdict};
use crate::decode::RequestHead;
use crate::forward::answer::Begun;
use crate::forward::hold::Content;
use crate::forward::reframe::Stream;
use crate::forward::refuse;
use crate::forward::side::{Reader, Writer};
use crate::judge::{Asking, Carrier, Consent, Judged, Question, Wait, judge};
use crate::ledger::Conn;
use crate::parts::Parts;
use crate::record::entry::{Decision, Entry};

use super::Connection;

/// How often an agent is told that its call waits.
const TELL_EVERY: Duration = Duration::from_secs(3);

impl Connection {
    /// Judges a request that was read whole, and asks a person as often as rules want it.
    pub(super) async fn judge(&mut self, head: &RequestHead, content: &Content, since: Instant) -> Judged {
        let mut consent = Consent::default();
        loop {
            let buffer = &self.agent.reader.buffer;
            let channel = self.posting.as_ref();
            let asking = Asking { carrier: Carrier::Http(head, &buffer[..head.len]), since, channel };
            let (parts, content) = (&self.parts, content.of(buffer));
            match judge(parts, &self.conn, &mut self.target, &asking, content, &mut consent).await {
                Judged::Asks(question) => self.ask(*question, &mut consent).await,
                Judged::Waits(wait) => self.wait_for(&wait).await,
                judged => return judged,
            }
        }
    }

    /// Waits for lists that tell whether what a request uses has changed. A stop ends the wait; so does the agent that leaves.
    async fn wait_for(&mut self, wait: &Wait) {
        self.leave_server();
        let listed = async {
            for (place, surface) in &wait.lists {
                self.parts.baseline.settled(place, *surface).await;
            }
        };
        tokio::select! {
            _ = timeout(wait.within, listed) => {}
            Ok(()) = self.agent.reader.hangup() => {}
        }
    }

    /// Asks a person, and waits. The calls are on the ledger: a stop ends the wait, and answers them.
    async fn ask(&mut self, mut question: Question, consent: &mut Consent) {
        // Servers close what is idle long before a person has decided.
        self.leave_server();
        let (scene, calls) = (self.conn.scene(), std::mem::take(&mut question.calls));
        let parked = match self.parts.approvals.park(&self.conn, &scene, calls, question.within) {
            Ok(parked) => parked,
            Err(why) => return consent.is_not_asked(question, why),
        };
        // Where a stop, and the end of the connection, find it.
        let parked = self.parked.insert(parked);
        let telling = Telling {
            agent: &mut self.agent.writer,
            stream: &mut self.stream,
            begun: &mut self.begun,
            limit: self.parts.limits.event,
        };
        let token = question.progress_token.take();
        let message = words(&parked.question);
        let told = async {
            match &self.posting {
                Some(channel) => tell_in(channel, token, &message).await,
                None => telling.tell(token, &message).await,
            }
        };
        let outcome = wait(parked, &self.agent.reader, told).await;
        consent.is_answered(question, parked, outcome);
        self.parked = None;
    }
}

/// A stop has ended the wait: that is the decision on what was parked.
pub(super) fn unpark(parts: &Parts, conn: &Conn, parked: &Parked, stop: &Arc<Stop>) {
    parked.withdraw("operator_stop", Some(&stop.id));
    let (question, agent) = (&parked.question, &conn.identity.agent);
    let refusal = Refusal::Stop(Arc::clone(stop));
    for call in &question.calls {
        let fired: Vec<Arc<str>> = call.rules.iter().map(|asked| Arc::clone(&asked.rule)).collect();
        let verdict = Verdict { refusal: Some(refusal.clone()), ..Verdict::default() };
        agent.metrics.count(&verdict, call.protocol);
        parts.metrics.denied(&agent.name, refusal.rule(), refusal.label());
        parts.log.record(&Entry::Decision(Decision {
            session: question.session,
            workflow: question.workflow.as_deref(),
            protocol: call.protocol.label(),
            revision: call.revision,
            method: &call.method,
            tool: call.tool.as_deref(),
            rpc_id: call.rpc_id.as_deref(),
            verdict: verdict.label(),
            rules: &fired,
            reason: Some(refusal.reason()),
            stop: refusal.stop_id(),
            approval: Some(&question.approval),
            generation: parts.gate.rules().generation,
            arguments_digest: call.arguments_digest.clone(),
            ..Decision::new(&call.decision, conn, &question.server)
        }));
    }
}

/// Waits for the outcome, or for the agent to leave, which `told` sees, too.
async fn wait(parked: &mut Parked, agent: &Reader, told: impl Future<Output = ()>) -> Outcome {
    let left = async {
        if agent.hangup().await.is_err() {
            // Its time bounds the wait.
            std::future::pending().await
        }
    };
    tokio::select! {
        biased;
        outcome = parked.outcome() => return outcome,
        () = left => {}
        () = told => {}
    }
    parked.withdraw("agent_closed", None);
    parked.outcome().await
}

/// Tells an agent that its call waits, in a stream in which the answer will follow.
struct Telling<'a> {
    agent: &'a mut Writer,
    stream: &'a mut Stream,
    begun: &'a mut Begun,
    limit: usize,
}

impl Telling<'_> {
    /// Goes on as long as the agent takes it; for ever where it wants to hear nothing. Cancelling loses nothing: the stream
    /// knows how much of it has left.
    async fn tell(self, token: Option<Box<str>>, message: &str) {
        let Some(token) = token else { return std::future::pending().await };
        if *self.begun == Begun::Nothing {
            *self.stream = Stream::open(self.limit);
            self.stream.send(refuse::STREAM);
            *self.begun = Begun::Stream;
        }
        loop {
            let progress = refuse::progress(&token, self.stream.next_progress(), message);
            self.stream.send(&refuse::chunk(&refuse::event(progress.as_bytes())));
            let (bytes, left) = self.stream.leaving();
            if self.agent.send_rest(bytes, left).await.is_err() {
                return;
            }
            self.stream.sent();
            sleep(TELL_EVERY).await;
        }
    }
}

/// The same in the stream in which the call is answered. Returns when that has ended: its agent has left.
pub(super) async fn tell_in(channel: &Channel, token: Option<Box<str>>, message: &str) {
    let Some(token) = token else { return channel.ended().await };
    loop {
        let progress = refuse::progress(&token, channel.next_progress(), message);
        if !channel.say(&[progress]).await {
            return;
        }
        sleep(TELL_EVERY).await;
    }
}

/// What a call waits for.
pub(super) fn words(question: &approvals::Question) -> String {
    let mut rules: Vec<&str> =
        question.calls.iter().flat_map(|call| &call.rules).map(|asked| &*asked.rule).collect();
    rules.dedup();
    format!("waiting for approval {} (rule {})", question.approval, rules.join(", "))
}
