//! One message of a request: what is known of it, its verdict, and its record.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::consent::{Consent, Kept};
use super::redact::{Edited, redact};
use super::{Asking, place, shown, subject};
use crate::approvals::{Asked, RuleAsked, Text};
use crate::baseline::Place;
use crate::channels::Channel;
use crate::config::Arguments;
use crate::decide::limit::Key;
use crate::decide::policy::{Approval, Bias, Limited, Mode, Phase};
use crate::decide::stop::Facts;
use crate::decide::subject::{Annotations, Recent, Subject, User};
use crate::decide::{Guard, Reach, Refusal, Rules, Verdict, decide};
use crate::decode::{IdKind, Kind, Message, Protocol, mcp};
use crate::fingerprint::{Digest, Standings, Surface};
use crate::ledger::{Call, Conn, Scene, used};
use crate::limits::Permit;
use crate::parts::{Parts, count_stop};
use crate::record::entry::{Cancel, Decision, Entry};
use crate::rounds::Round;

/// Longest progress token that is given back again and again.
const MAX_TOKEN: usize = 1024;

/// What the messages of a request are judged by.
#[derive(Clone, Copy)]
pub(super) struct JudgedBy<'a> {
    pub(super) parts: &'a Parts,
    pub(super) conn: &'a Conn,
    pub(super) scene: &'a Scene,
    /// Where it is answered, if that is elsewhere.
    pub(super) channel: Option<&'a Arc<Channel>>,
    pub(super) rules: &'a Rules,
    pub(super) reach: &'a Reach,
    pub(super) claims: &'a mcp::Claims<'a>,
    /// Whom its bearer token speaks for, if some rule asks.
    pub(super) user: Option<&'a User>,
    /// What the agent did lately, if some rule asks.
    pub(super) recent: Recent,
    /// When the first byte of its request was there.
    pub(super) since: Instant,
}

/// A message, ready to be judged.
pub(super) struct Prepared<'a> {
    message: &'a Message<'a>,
    pub(super) call: Option<mcp::Call<'a>>,
    rpc_id: Option<&'a str>,
    pub(super) workflow: Option<Arc<str>>,
    /// The tool behind the task or the interface it is about.
    of_tool: Option<Box<str>>,
    /// Other tools with the same interface.
    other_tools: Vec<Box<str>>,
    /// It goes on with the call that began a task.
    is_of_task: bool,
    of_unknown: bool,
    pub(super) revision: Option<&'static str>,
    /// Digest of the arguments.
    arguments: Option<Digest>,
    /// What it has in common with the other rounds of the same call.
    round: Option<Round>,
    kept: Kept,
    /// How far what it uses can be trusted, where that is asked for.
    standings: Option<Standings>,
    pub(super) verdict: Verdict,
    /// What limits have counted of it.
    permits: Vec<Permit>,
    /// Its text after something was taken out of it.
    edited: Option<Edited>,
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
        let headers = asking.carrier.headers();
        let rpc_id = match &message.kind {
            Kind::Request { id, .. } => Some(id.raw),
            _ => None,
        };
        let agreed = asking.channel.map(|channel| channel.revision());
        let revision =
            call.as_ref().filter(|call| call.is_mcp).and_then(|call| mcp::revision(call, claims, agreed));
        let about_task = call.as_ref().filter(|call| call.method.starts_with("tasks/"));
        let task = about_task.filter(|call| call.is_mcp).and_then(|call| call.name.as_deref());
        let of_tool = task.and_then(|task| parts.tasks.tool(conn, task));
        let (is_of_task, of_unknown) = (of_tool.is_some(), task.is_some() && of_tool.is_none());
        let arguments = call.as_ref().and_then(|call| call.arguments).map(|text| Digest::of(text.as_bytes()));
        Prepared {
            message,
            call,
            rpc_id,
            of_tool,
            other_tools: Vec::new(),
            is_of_task,
            of_unknown,
            workflow: parts.workflow.of_message(headers, Some(message), &conn.identity.workflow),
            revision: revision.map(mcp::Revision::as_str),
            arguments,
            round: None,
            kept: Kept { decision: String::new(), continues: false },
            standings: None,
            verdict: Verdict::default(),
            permits: Vec::new(),
            edited: None,
        }
    }

    /// Finds out whether it goes on with something, or takes that over from when it was judged first, and whose interface it
    /// asks for.
    pub(super) fn place(&mut self, parts: &Parts, conn: &Conn, scene: &Scene, kept: Option<&Kept>) {
        if let Some(uri) = self.call.as_ref().and_then(mcp::Call::resource) {
            self.other_tools = parts.catalogue.tools_of_interface(place(conn, scene), uri);
            self.of_tool = self.other_tools.pop();
        }
        let revision = self.revision.and_then(mcp::Revision::parse);
        let arguments = self.arguments;
        self.round = self.call.as_ref().and_then(|call| Round::of(conn, scene, call, revision, arguments));
        self.kept = kept.cloned().unwrap_or_else(|| Kept {
            decision: parts.decisions.next(),
            continues: self.is_of_task
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
            arguments_digest: self.arguments.map(|digest| digest.to_string()),
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
            cursor: self.message.params.as_ref().and_then(|params| params.cursor).and_then(shown::cursor),
            round: self.round,
            agent_cancelled_at: None,
            held: None,
            is_operation: matches!(self.message.kind, Kind::Operation { .. }),
        }
    }

    /// An interface that several tools have is refused where each of them is.
    pub(super) fn judge(&mut self, by: &JudgedBy<'_>) {
        self.judge_of_tool(by);
        while self.verdict.refusal.is_some()
            && let Some(tool) = self.other_tools.pop()
        {
            self.of_tool = Some(tool);
            self.judge_of_tool(by);
        }
    }

    fn judge_of_tool(&mut self, by: &JudgedBy<'_>) {
        self.standings = self.standings(by);
        let subject = self.subject(by);
        let verdict = by.conn.identity.agent.as_whom(|agent| {
            let facts = Facts {
                workflow: self.workflow.as_deref(),
                tools: [subject.name, subject.of_tool],
                is_tool_unknown: self.of_unknown,
                ..by.scene.facts(agent)
            };
            decide(by.rules, by.reach, &facts, &subject)
        });
        self.verdict = verdict;
        let denies = |bias| bias == Bias::Deny;
        if let Some(stated) =
            self.unknown_revision(by.claims).filter(|_| denies(by.reach.defaults.unknown_revision))
        {
            self.verdict.refuse(Guard::UnknownRevision(stated));
        }
        if denies(by.reach.defaults.unseen_tool) && self.is_tool_call() && !self.annotations(by).known {
            self.verdict.refuse(Guard::UnseenTool);
        }
        if self.standings.as_ref().is_some_and(Standings::is_blocked) {
            self.verdict.refuse(Guard::Blocked);
        }
        let mismatch =
            self.call.as_ref().filter(|call| call.is_mcp).and_then(|call| mcp::mismatch(by.claims, call));
        if let Some(mcp::Mismatch { header, header_value, body_value }) = mismatch {
            self.verdict.refuse(Guard::HeaderMismatch { header, header_value, body_value });
        }
    }

    fn subject<'s>(&'s self, by: &'s JudgedBy<'_>) -> Subject<'s> {
        let call = self.call.as_ref();
        let message = self.message;
        let reads_annotations = by.rules.policy.reads.annotations && self.is_tool_call();
        Subject {
            // What an agent answers to its server comes back, too.
            phase: if call.is_some() { Phase::Request } else { Phase::Response },
            user: by.user,
            recent: by.recent,
            standings: self.standings.clone().unwrap_or_default(),
            annotations: if reads_annotations { self.annotations(by) } else { Annotations::default() },
            workflow: self.workflow.as_deref(),
            protocol: self.protocol().label(),
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
            ..subject(by.conn, by.scene)
        }
    }

    fn is_tool_call(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.method == "tools/call")
    }

    fn annotations(&self, by: &JudgedBy<'_>) -> Annotations {
        let name = self.call.as_ref().and_then(|call| call.name.as_deref()).unwrap_or_default();
        by.parts.catalogue.annotations(place(by.conn, by.scene), name)
    }

    /// How far what it uses, and what its server says of itself, can be trusted, where rules or an operator ask for that.
    fn standings(&self, by: &JudgedBy<'_>) -> Option<Standings> {
        let baseline = &by.parts.baseline;
        let is_asked_for = by.rules.policy.reads.standing || baseline.has_blocked();
        let call = self.call.as_ref().filter(|_| is_asked_for)?;
        let used = used(&call.method, call.name.as_deref(), self.of_tool.as_deref());
        Some(baseline.standings(&self.shown_at(by.conn, by.scene), used))
    }

    /// Where what it uses is shown.
    fn shown_at(&self, conn: &Conn, scene: &Scene) -> Place {
        shown::place(conn, scene, self.revision)
    }

    /// What it uses may have changed: until that is known it is waited for.
    pub(super) fn unsure(&self, conn: &Conn, scene: &Scene) -> Vec<(Place, Surface)> {
        let waits = self.verdict.waits.iter();
        waits.map(|drifted| (self.shown_at(conn, scene), drifted.surface)).collect()
    }

    /// Counts it, if it is to be let through.
    pub(super) fn count(&mut self, by: &JudgedBy<'_>, now: Instant) {
        if self.verdict.refusal.is_some() || self.verdict.limits.is_empty() {
            return;
        }
        let limits = std::mem::take(&mut self.verdict.limits);
        let (subject, agent) = (self.subject(by), &by.conn.identity.agent.name);
        let wanted: Vec<(&Limited, Key, u64)> = limits
            .iter()
            .map(|limited| {
                (&**limited, limited.limit.key(agent, &subject), limited.limit.amount(subject.size))
            })
            .collect();
        let counts = &by.parts.counts;
        let (enforced, observed): (Vec<_>, Vec<_>) =
            wanted.iter().partition(|(limited, ..)| limited.mode == Mode::Enforce);
        let enforced = enforced.into_iter().map(|(limited, key, amount)| (&limited.limit, key, *amount));
        match counts.take_all(enforced, now) {
            Ok(permits) => self.permits = permits,
            Err(exceeded) => {
                let rule = limits.iter().find(|limited| limited.limit.rule == exceeded.rule);
                let reason = rule.map(|limited| Arc::clone(&limited.reason)).unwrap_or_default();
                self.verdict.fired.push(Arc::clone(&exceeded.rule));
                self.verdict.refusal = Some(Refusal::Limit { reason, exceeded: Arc::new(exceeded) });
            }
        }
        for (limited, key, amount) in observed {
            match counts.take(&limited.limit, key, *amount, now) {
                Ok(permit) => self.permits.push(permit),
                Err(exceeded) => {
                    self.verdict.fired.push(exceeded.rule);
                    self.verdict.would_deny = true;
                }
            }
        }
    }

    /// It does not leave after all.
    pub(super) fn uncount(&mut self) {
        self.permits.drain(..).for_each(Permit::give_back);
    }

    /// It leaves: what was counted is kept on the ledger until its answer is there.
    pub(super) fn keep_permits(&mut self, conn: &Conn) {
        if !self.permits.is_empty() {
            conn.keep(&self.kept.decision, std::mem::take(&mut self.permits));
        }
    }

    /// Takes out of it what rules say: of the arguments of a call, else of all it asks for or answers.
    pub(super) fn redact(&mut self) {
        if let Some(part) = self.redactable().filter(|_| !self.verdict.redactions.is_empty()) {
            self.edited = redact(&mut self.verdict, part);
        }
    }

    fn redactable(&self) -> Option<&'a str> {
        let params = self.message.params.as_ref();
        let result = self.message.result.as_ref().map(|result| result.raw).or(self.message.error);
        self.call.as_ref().and_then(|call| call.arguments).or(params.map(|params| params.raw)).or(result)
    }

    /// What goes in the place of which part of it, and the head that says the same.
    pub(super) fn edits(&self) -> Option<(&'a str, &Edited)> {
        self.redactable().zip(self.edited.as_ref())
    }

    /// The name of its revision, if it is one that is not known here.
    fn unknown_revision(&self, claims: &mcp::Claims<'_>) -> Option<String> {
        let call = self.call.as_ref().filter(|call| call.is_mcp && self.revision.is_none())?;
        let claimed = claims.protocol_version.map(String::from_utf8_lossy);
        let stated = call.stated_revision.as_deref().map(str::to_owned);
        stated.or(claimed.map(Into::into)).map(|stated| stated.chars().take(64).collect())
    }

    pub(super) fn protocol(&self) -> Protocol {
        let other = self.call.as_ref().filter(|call| !call.is_mcp);
        other.map_or(Protocol::Mcp, |call| Protocol::of_other(&call.method))
    }

    pub(super) async fn record(&self, by: &JudgedBy<'_>, consent: &Consent, durable: bool) {
        let JudgedBy { parts, conn, scene, since, .. } = *by;
        let refusal = self.verdict.refusal.as_ref();
        let agent = &conn.identity.agent;
        agent.metrics.count(&self.verdict, self.protocol());
        if let Some(refusal) = refusal {
            parts.metrics.denied(&agent.name, refusal.rule(), refusal.label());
            count_stop(agent, refusal);
        }
        for failed in &self.verdict.failed {
            parts.metrics.condition_failed(&failed.rule);
        }
        // What a rule keeps from servers is kept from the records, too.
        let arguments = self.call.as_ref().and_then(|call| call.arguments);
        let arguments = arguments.map(|text| self.edited.as_ref().map_or(text, |edited| &edited.text));
        let is_full = parts.arguments == Arguments::Full;
        let entry = Entry::Decision(Decision {
            session: scene.session,
            workflow: self.workflow.as_deref(),
            protocol: self.protocol().label(),
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
            redacted: self.verdict.redacted,
            failed: &self.verdict.failed,
            generation: by.rules.generation,
            arguments_digest: self.arguments.map(|digest| digest.to_string()),
            arguments: arguments
                .filter(|_| is_full)
                .and_then(|arguments| serde_json::from_str(arguments).ok()),
            standing: self.standings.clone(),
            annotations: (is_full && self.is_tool_call()).then(|| self.annotations(by)),
            held_us: u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX),
            ..Decision::new(&self.kept.decision, conn, &scene.server)
        });
        if durable {
            parts.log.record_durably(&entry).await;
        } else {
            parts.log.record(&entry);
        }
        if refusal.is_none() {
            self.record_cancel(by);
        }
    }

    /// Records that the agent itself asks for a cancel, which is no operator's stop.
    fn record_cancel(&self, by: &JudgedBy<'_>) {
        let JudgedBy { parts, conn, scene, channel, .. } = *by;
        let Some(call) = &self.call else { return };
        let (rpc_id, task, via) = match (call.cancelled_request_id, &*call.method) {
            (Some(id), _) => (id.raw, None, "notifications/cancelled"),
            (None, "tasks/cancel") => (self.rpc_id.unwrap_or_default(), call.name.as_deref(), "tasks/cancel"),
            (None, _) => return,
        };
        let agent = &conn.identity.agent;
        let outcome = call.cancelled_request_id.map(|id| {
            let in_flight = match channel {
                Some(channel) => channel.conn.cancelled_there(id),
                None => parts.ledger.cancelled_by_agent(conn, scene.session, id),
            };
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
