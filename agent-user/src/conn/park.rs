//! A request that a person must approve of: it is parked, with not one byte of it sent, and judged again by the rules of
//! the moment in which somebody has decided.

use std::sync::Arc;
use std::time::Instant;

use crate::approvals::{Outcome, Parked};
use crate::decide::stop::Stop;
use crate::decide::{Refusal, Verdict};
use crate::decode::RequestHead;
use crate::forward::request::Content;
use crate::forward::side::Reader;
use crate::judge::{Asking, Consent, Judged, Question, judge};
use crate::record::entry::{Decision, Entry};

use super::Connection;

impl Connection {
    /// Judges a request that was read whole, and asks a person as often as rules want it.
    pub(super) async fn judge(&mut self, head: &RequestHead, content: &Content, since: Instant) -> Judged {
        let mut consent = Consent::default();
        loop {
            let buffer = &self.agent.reader.buffer;
            let asking = Asking { head, bytes: &buffer[..head.len], since };
            let (parts, content) = (&self.parts, content.of(buffer));
            match judge(parts, &self.conn, &mut self.target, &asking, content, &mut consent).await {
                Judged::Asks(question) => self.ask(*question, &mut consent).await,
                judged => return judged,
            }
        }
    }

    /// Asks a person, and waits. The calls are on the ledger: a stop ends the wait, and answers them.
    async fn ask(&mut self, mut question: Question, consent: &mut Consent) {
        // Servers close what is idle long before a person has decided.
        self.leave_server();
        let (scene, calls) = (self.conn.scene(), std::mem::take(&mut question.calls));
        let Ok(parked) = self.parts.approvals.park(&self.conn, &scene, calls, question.within) else {
            return consent.is_not_asked(question);
        };
        // Where a stop, and the end of the connection, find it.
        let parked = self.parked.insert(parked);
        let outcome = wait(parked, &self.agent.reader).await;
        consent.is_answered(question, parked, outcome);
        self.parked = None;
    }

    /// A stop has ended the wait: that is the decision on what was parked.
    pub(super) fn unpark(&self, parked: &Parked, stop: &Arc<Stop>) {
        parked.withdraw("operator_stop", Some(&stop.id));
        let (question, agent) = (&parked.question, &self.conn.identity.agent);
        let refusal = Refusal::Stop(Arc::clone(stop));
        for call in &question.calls {
            let fired: Vec<Arc<str>> = call.rules.iter().map(|asked| Arc::clone(&asked.rule)).collect();
            let verdict = Verdict { refusal: Some(refusal.clone()), ..Verdict::default() };
            agent.metrics.count(&verdict, call.protocol == "mcp");
            self.parts.metrics.denied(&agent.name, refusal.rule(), refusal.label());
            self.parts.log.record(&Entry::Decision(Decision {
                session: question.session,
                workflow: question.workflow.as_deref(),
                protocol: call.protocol,
                revision: call.revision,
                method: &call.method,
                tool: call.tool.as_deref(),
                rpc_id: call.rpc_id.as_deref(),
                verdict: verdict.label(),
                rules: &fired,
                reason: Some(refusal.reason()),
                stop: refusal.stop_id(),
                approval: Some(&question.approval),
                generation: self.parts.gate.rules().generation,
                arguments_digest: call.arguments_digest.clone(),
                ..Decision::new(&call.decision, &self.conn, &question.server)
            }));
        }
    }
}

/// Waits for the outcome, or for the agent to leave.
async fn wait(parked: &mut Parked, agent: &Reader) -> Outcome {
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
    }
    parked.withdraw("agent_closed", None);
    parked.outcome().await
}
