//! One message of a request: what is known of it, its verdict, and its record.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::consent::{Consent, Kept};
use super::{Asking, hex, sha256, subject};
use crate::approvals::{Asked, RuleAsked, Text};
use crate::config::Arguments;
use crate::decide::policy::{Approval, Bias, Phase};
use crate::decide::stop::Facts;
use crate::decide::subject::Subject;
use crate::decide::{Guard, Reach, Refusal, Rules, Verdict, decide};
use crate::decode::{Headers, IdKind, Kind, Message, mcp};
use crate::ledger::{Call, Conn, Scene};
use crate::parts::{Parts, count_stop};
use crate::record::entry::{Cancel, Decision, Entry};
use crate::rounds::Round;

/// Longest progress token that is given back again and again.
const MAX_TOKEN: usize = 1024;

/// What a message was judged by, for its record.
#[derive(Clone, Copy)]
pub(super) struct JudgedBy<'a> {
    pub(super) scene: &'a Scene,
    pub(super) generation: u64,
    /// When the first byte of its request was there.
    pub(super) since: Instant,
    pub(super) consent: &'a Consent,
}

/// A message, ready to be judged.
pub(super) struct Prepared<'a> {
    message: &'a Message<'a>,
    pub(super) call: Option<mcp::Call<'a>>,
    rpc_id: Option<&'a str>,
    pub(super) workflow: Option<Arc<str>>,
    /// The tool behind the task it is about.
    of_tool: Option<Box<str>>,
    of_unknown: bool,
    pub(super) revision: Option<&'static str>,
    /// Digest of the arguments.
    arguments: Option<[u8; 32]>,
    /// What it has in common with the other rounds of the same call.
    round: Option<Round>,
    kept: Kept,
    pub(super) verdict: Verdict,
}

impl<'a> Prepared<'a> {
    pub(super) fn new(
        parts: &Parts,
        conn: &Conn,
        asking: &Asking<'_>,
        message: &'a Message<'a>,
        claims: &mcp::Claims<'_>,
    ) -> Prepared<'a> {
        let call = mcp::call(message);
        let headers = Headers::of(asking.head, asking.bytes);
        let rpc_id = match &message.kind {
            Kind::Request { id, .. } => Some(id.raw),
            _ => None,
        };
        let revision =
            call.as_ref().filter(|call| call.is_mcp).and_then(|call| mcp::revision(call, claims, None));
        let about_task = call.as_ref().filter(|call| call.method.starts_with("tasks/"));
        let task = about_task.filter(|call| call.is_mcp).and_then(|call| call.name.as_deref());
        let of_tool = task.and_then(|task| parts.tasks.tool(conn, task));
        let of_unknown = task.is_some() && of_tool.is_none();
        let arguments = call.as_ref().and_then(|call| call.arguments).map(|text| sha256(text.as_bytes()));
        Prepared {
            message,
            call,
            rpc_id,
            of_unknown,
            of_tool,
            workflow: parts.workflow.of_message(headers, Some(message), &conn.identity.workflow),
            revision: revision.map(mcp::Revision::as_str),
            arguments,
            round: None,
            kept: Kept { decision: String::new(), continues: false },
            verdict: Verdict::default(),
        }
    }

    /// Finds out whether it goes on with something, or takes that over from when it was judged first.
    pub(super) fn place(&mut self, parts: &Parts, conn: &Conn, scene: &Scene, kept: Option<&Kept>) {
        let revision = self.revision.and_then(mcp::Revision::parse);
        let arguments = self.arguments.as_ref();
        self.round = self.call.as_ref().and_then(|call| Round::of(conn, scene, call, revision, arguments));
        self.kept = kept.cloned().unwrap_or_else(|| Kept {
            decision: parts.decisions.next(),
            continues: self.of_tool.is_some()
                || self.round.is_some_and(|round| parts.rounds.goes_on(round, self.message)),
        });
    }

    pub(super) fn keep(&self) -> Kept {
        self.kept.clone()
    }

    /// JSON text of the token of a request whose sender wants to hear of progress. The answer to `initialize` comes with
    /// headers that matter, so nothing may be said before it.
    pub(super) fn progress_token(&self) -> Option<&'a str> {
        let call = self.call.as_ref().filter(|call| call.is_mcp && call.method != "initialize")?;
        self.rpc_id?;
        let token = call.progress_token?;
        let is_token = matches!(token.kind, IdKind::String | IdKind::Integer) && token.raw.len() <= MAX_TOKEN;
        is_token.then_some(token.raw)
    }

    /// What a person is shown of it. `room` is what may be shown yet.
    pub(super) fn asked(&self, room: &mut usize) -> Asked {
        let rule = |rule: &Arc<_>| {
            let Approval { rule, reason, .. } = &**rule;
            RuleAsked { rule: Arc::clone(rule), reason: Arc::clone(reason) }
        };
        let params = self.message.params.as_ref();
        // The answers to a server's questions are asked for, too.
        let is_round = params.is_some_and(|params| params.input_responses.or(params.request_state).is_some());
        let arguments = self.call.as_ref().and_then(|call| call.arguments).filter(|_| !is_round);
        let text = match (arguments, params) {
            (Some(arguments), _) => Some(("arguments", arguments)),
            (None, params) => params.map(|params| ("params", params.raw)),
        };
        Asked {
            decision: self.kept.decision.as_str().into(),
            protocol: self.protocol(),
            revision: self.revision,
            method: self.method().into(),
            tool: self.call.as_ref().and_then(|call| call.name.as_deref()).map(Into::into),
            rpc_id: self.rpc_id.map(Into::into),
            rules: self.verdict.approvals.iter().map(rule).collect(),
            arguments_digest: self.arguments.as_ref().map(hex),
            text: text.map(|(of, json)| Text::cut(of, json, room)),
        }
    }

    fn method(&self) -> &str {
        self.call.as_ref().map_or("response", |call| &call.method)
    }

    pub(super) fn to_call(&self, scene: &Scene) -> Call {
        Call {
            method: self.method().into(),
            tool: self.call.as_ref().and_then(|call| call.name.as_deref()).map(Into::into),
            rpc_id: self.rpc_id.map(Into::into),
            server: Arc::clone(&scene.server),
            session: scene.session,
            workflow: self.workflow.clone(),
            revision: self.revision,
            decision: self.kept.decision.as_str().into(),
            since: Timestamp::now(),
            of_tool: self.of_tool.clone(),
            of_unknown: self.of_unknown,
            round: self.round,
            agent_cancelled_at: None,
        }
    }

    pub(super) fn judge(
        &mut self,
        rules: &Rules,
        conn: &Conn,
        reach: &Reach,
        scene: &Scene,
        claims: &mcp::Claims<'_>,
    ) {
        let subject = self.subject(conn, scene);
        let facts = Facts {
            workflow: self.workflow.as_deref(),
            tool: self.of_tool.as_deref().or(subject.name),
            is_tool_unknown: self.of_unknown,
            ..scene.facts(&conn.identity.agent.name)
        };
        let verdict = decide(rules, reach, &facts, &subject);
        self.verdict = verdict;
        if let Some(stated) =
            self.unknown_revision(claims).filter(|_| reach.defaults.unknown_revision == Bias::Deny)
        {
            self.verdict.refuse(Guard::UnknownRevision(stated));
        }
        let mismatch =
            self.call.as_ref().filter(|call| call.is_mcp).and_then(|call| mcp::mismatch(claims, call));
        if let Some(mcp::Mismatch { header, header_value, body_value }) = mismatch {
            self.verdict.refuse(Guard::HeaderMismatch { header, header_value, body_value });
        }
    }

    fn subject<'s>(&'s self, conn: &'s Conn, scene: &'s Scene) -> Subject<'s> {
        let call = self.call.as_ref();
        let message = self.message;
        Subject {
            // What an agent answers to its server comes back, too.
            phase: if call.is_some() { Phase::Request } else { Phase::Response },
            workflow: self.workflow.as_deref(),
            protocol: self.protocol(),
            revision: self.revision,
            method: call.map(|call| &*call.method),
            name: call.and_then(|call| call.name.as_deref()),
            of_tool: self.of_tool.as_deref(),
            continues: self.kept.continues,
            params: message.params.as_ref().map(|params| params.raw),
            arguments: call.and_then(|call| call.arguments),
            result: message.result.as_ref().map(|result| result.raw),
            error: message.error,
            is_error: mcp::result_facts(message).is_some_and(|facts| facts.is_error),
            size: message.raw.len(),
            ..subject(conn, scene)
        }
    }

    /// The name of its revision, if it is one that is not known here.
    fn unknown_revision(&self, claims: &mcp::Claims<'_>) -> Option<String> {
        let call = self.call.as_ref().filter(|call| call.is_mcp && self.revision.is_none())?;
        let claimed = claims.protocol_version.map(String::from_utf8_lossy);
        let stated = call.stated_revision.as_deref().map(str::to_owned);
        stated.or(claimed.map(Into::into)).map(|stated| stated.chars().take(64).collect())
    }

    fn protocol(&self) -> &'static str {
        if self.call.as_ref().is_none_or(|call| call.is_mcp) { "mcp" } else { "jsonrpc" }
    }

    pub(super) async fn record(&self, parts: &Parts, conn: &Conn, judged: &JudgedBy<'_>, durable: bool) {
        let JudgedBy { scene, generation, since, consent } = *judged;
        let refusal = self.verdict.refusal.as_ref();
        let agent = &conn.identity.agent;
        let is_mcp = self.call.as_ref().is_none_or(|call| call.is_mcp);
        agent.metrics.count(&self.verdict, is_mcp);
        if let Some(refusal) = refusal {
            parts.metrics.denied(&agent.name, refusal.rule(), refusal.label());
            count_stop(agent, refusal);
        }
        let arguments = self.call.as_ref().and_then(|call| call.arguments);
        let entry = Entry::Decision(Decision {
            session: scene.session,
            workflow: self.workflow.as_deref(),
            protocol: self.protocol(),
            revision: self.revision,
            method: self.method(),
            tool: self.call.as_ref().and_then(|call| call.name.as_deref()),
            rpc_id: self.rpc_id,
            verdict: self.verdict.label(),
            rules: &self.verdict.fired,
            would_stop: self.verdict.would_stop(),
            reason: refusal.map(Refusal::reason),
            stop: refusal.and_then(Refusal::stop_id),
            approval: consent.approval.as_deref(),
            by: consent.by.as_ref(),
            continues: self.kept.continues,
            generation,
            arguments_digest: self.arguments.as_ref().map(hex),
            arguments: arguments
                .filter(|_| parts.arguments == Arguments::Full)
                .and_then(|arguments| serde_json::from_str(arguments).ok()),
            held_us: u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX),
            ..Decision::new(&self.kept.decision, conn, &scene.server)
        });
        if durable {
            parts.log.record_durably(&entry).await;
        } else {
            parts.log.record(&entry);
        }
        if refusal.is_none() {
            self.record_cancel(parts, conn, scene);
        }
    }

    /// Records that the agent itself asks for a cancel, which is no operator's stop.
    fn record_cancel(&self, parts: &Parts, conn: &Conn, scene: &Scene) {
        let Some(call) = &self.call else { return };
        let (rpc_id, task, via) = match (call.cancelled_request_id, &*call.method) {
            (Some(id), _) => (id.raw, None, "notifications/cancelled"),
            (None, "tasks/cancel") => (self.rpc_id.unwrap_or_default(), call.name.as_deref(), "tasks/cancel"),
            (None, _) => return,
        };
        let agent = &conn.identity.agent;
        let outcome = call.cancelled_request_id.map(|id| {
            let in_flight = parts.ledger.cancelled_by_agent(conn, scene.session, id);
            parts.approvals.cancelled_by_agent(conn, scene.session, id);
            if in_flight { "in flight" } else { "not in flight" }.to_owned()
        });
        parts.log.record(&Entry::Cancel(Cancel {
            agent: &agent.name,
            server: &scene.server,
            cause: "agent_cancelled",
            rpc_id,
            task,
            stop: None,
            via,
            outcome,
        }));
    }
}
