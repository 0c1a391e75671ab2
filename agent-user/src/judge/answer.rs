//! What rules say of what servers send: results, lists, notifications, and requests of their own, which MCP 2026-07-28
//! puts into a result (`inputRequests`).
//!
//! Only what some rule fired on is recorded here: that a call was answered is on record anyway.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::subject;
use crate::decide::policy::Phase;
use crate::decide::subject::{Party, Subject};
use crate::decide::{Reach, Refusal, Rules, Verdict};
use crate::decode::{Kind, Message, find, mcp};
use crate::forward::refuse::{self, Refused};
use crate::ledger::{Call, Conn, Scene};
use crate::parts::Parts;
use crate::record::entry::{Decision, Entry};

/// Names of hidden entries that a record holds.
const MOST_NAMES: usize = 100;

/// What becomes of one message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Pass,
    /// This JSON text goes in its place.
    Replace(String),
    /// The agent does not get it, and nobody waits for it.
    Drop,
    /// The agent does not get it, and its server gets this error for its id.
    Refuse {
        id: String,
        error: String,
    },
}

/// A server's message on its way to the agent.
#[derive(Clone, Copy)]
pub struct Answering<'a> {
    pub parts: &'a Parts,
    pub conn: &'a Conn,
    pub rules: &'a Rules,
    pub reach: &'a Reach,
    pub scene: &'a Scene,
}

/// What the rules say of one message, and what to record of it.
struct Judgement<'a> {
    phase: Phase,
    method: &'a str,
    name: Option<&'a str>,
    verdict: Verdict,
    hidden: Vec<String>,
}

impl Answering<'_> {
    /// Judges one message. The call that it answers is still on the ledger.
    pub async fn judge(&self, message: &Message<'_>) -> Answer {
        match &message.kind {
            Kind::Request { id, method } => {
                let params = message.params.as_ref().map(|params| params.raw);
                let mut judgement = self.asked(method, params, message.raw.len());
                self.finish(&mut judgement, None, Some(id.raw)).await;
                match &judgement.verdict.refusal {
                    Some(refusal) => Answer::Refuse { id: id.raw.to_owned(), error: refuse::error(refusal) },
                    None => Answer::Pass,
                }
            }
            Kind::Notification { method } => {
                let params = message.params.as_ref().map(|params| params.raw);
                let subject =
                    Subject { method: Some(method), params, ..self.subject(Phase::Response, message) };
                let mut judgement = self.judgement(&subject, method, None);
                self.finish(&mut judgement, None, None).await;
                if judgement.verdict.refusal.is_some() { Answer::Drop } else { Answer::Pass }
            }
            Kind::Response { id, .. } => {
                let call = id.and_then(|id| self.conn.call(id));
                match call {
                    Some(call) => self.response(message, &call).await,
                    None => self.stray(message).await,
                }
            }
        }
    }

    /// The answer to a call.
    async fn response(&self, message: &Message<'_>, call: &Call) -> Answer {
        let took = Timestamp::now().duration_since(call.since).unsigned_abs();
        let subject = Subject {
            method: Some(&call.method),
            name: call.tool.as_deref(),
            of_tool: call.of_tool.as_deref(),
            workflow: call.workflow.as_deref(),
            session: call.session,
            revision: call.revision,
            took,
            ..self.subject(Phase::Response, message)
        };
        let mut judgement = self.judgement(&subject, &call.method, call.tool.as_deref());
        self.finish(&mut judgement, Some(call), call.rpc_id.as_deref()).await;
        let mut refusal = judgement.verdict.refusal;
        for (method, params) in asked_inside(message) {
            let mut asked = self.asked(&method, params, message.raw.len());
            self.finish(&mut asked, Some(call), None).await;
            refusal = refusal.or(asked.verdict.refusal);
        }
        if let Some(refusal) = refusal {
            let refused = Refused { call: call.clone(), refusal };
            return refuse::response(&refused).map_or(Answer::Drop, Answer::Replace);
        }
        self.list(message, call, &subject).await
    }

    /// Takes the hidden entries out of a list.
    async fn list(&self, message: &Message<'_>, call: &Call, subject: &Subject<'_>) -> Answer {
        let list = listed(&call.method).zip(message.result.as_ref());
        let list = list.and_then(|(kind, result)| Some((kind, find::member(result.raw, kind.member).ok()??)));
        let Some((kind, entries)) = list else { return Answer::Pass };
        let mut judgement = Judgement {
            phase: Phase::List,
            method: &call.method,
            name: None,
            verdict: Verdict::default(),
            hidden: Vec::new(),
        };
        let mut kept = Vec::new();
        for entry in find::elements(entries) {
            let name = find::member(entry, kind.name).ok().flatten().and_then(find::text);
            let subject =
                Subject { phase: Phase::List, name: name.as_deref(), item: Some(entry), ..*subject };
            let verdict = self.rules.policy.judge(&self.reach.scope, &subject);
            if verdict.refusal.is_none() {
                kept.push(entry);
            } else {
                judgement.hidden.push(name.unwrap_or_default().into_owned());
            }
            judgement.verdict.would_deny |= verdict.would_deny;
            for rule in verdict.fired {
                if !judgement.verdict.fired.contains(&rule) {
                    judgement.verdict.fired.push(rule);
                }
            }
        }
        self.finish(&mut judgement, Some(call), call.rpc_id.as_deref()).await;
        if judgement.hidden.is_empty() {
            return Answer::Pass;
        }
        let list = format!("[{}]", kept.join(","));
        find::splice(message.raw, entries, &list).map_or(Answer::Drop, Answer::Replace)
    }

    /// A response to nothing that is in flight here, such as one that is sent again after a connection was lost.
    async fn stray(&self, message: &Message<'_>) -> Answer {
        let subject = self.subject(Phase::Response, message);
        let mut judgement = self.judgement(&subject, "response", None);
        self.finish(&mut judgement, None, None).await;
        if judgement.verdict.refusal.is_some() { Answer::Drop } else { Answer::Pass }
    }

    /// A request of the server.
    fn asked<'m>(&self, method: &'m str, params: Option<&str>, size: usize) -> Judgement<'m> {
        let subject = Subject {
            from: Party::Server,
            method: Some(method),
            params,
            size,
            protocol: self.protocol(),
            ..subject(self.conn, self.scene)
        };
        self.judgement(&subject, method, None)
    }

    fn judgement<'m>(&self, subject: &Subject<'_>, method: &'m str, name: Option<&'m str>) -> Judgement<'m> {
        let verdict = self.rules.policy.judge(&self.reach.scope, subject);
        Judgement { phase: subject.phase, method, name, verdict, hidden: Vec::new() }
    }

    fn subject<'a>(&'a self, phase: Phase, message: &'a Message<'a>) -> Subject<'a> {
        Subject {
            phase,
            from: Party::Server,
            protocol: self.protocol(),
            result: message.result.as_ref().map(|result| result.raw),
            error: message.error,
            is_error: mcp::result_facts(message).is_some_and(|facts| facts.is_error),
            size: message.raw.len(),
            ..subject(self.conn, self.scene)
        }
    }

    fn protocol(&self) -> &'static str {
        if self.conn.is_mcp() { "mcp" } else { "jsonrpc" }
    }

    /// Counts and records what has fired.
    async fn finish(&self, judgement: &mut Judgement<'_>, call: Option<&Call>, rpc_id: Option<&str>) {
        if judgement.verdict.fired.is_empty() && judgement.verdict.tripwires.is_empty() {
            return;
        }
        let agent = &self.conn.identity.agent.name;
        self.parts.tripwires.count(agent, &mut judgement.verdict, Instant::now());
        let verdict = &judgement.verdict;
        let refusal = verdict.refusal.as_ref();
        if let Some(refusal) = refusal {
            self.parts.metrics.denied(agent, refusal.rule(), refusal.label());
        }
        if !verdict.fired.is_empty() {
            let decision = self.parts.decisions.next();
            judgement.hidden.truncate(MOST_NAMES);
            let entry = Entry::Decision(Decision {
                phase: judgement.phase,
                from: Party::Server,
                of: call.map(|call| &*call.decision),
                session: self.scene.session,
                workflow: self.scene.workflow.as_deref(),
                protocol: self.protocol(),
                revision: call.and_then(|call| call.revision),
                method: judgement.method,
                tool: judgement.name,
                rpc_id,
                verdict: if judgement.hidden.is_empty() { verdict.label() } else { "edit" },
                rules: &verdict.fired,
                hidden: &judgement.hidden,
                reason: refusal.map(Refusal::reason),
                generation: self.rules.generation,
                ..Decision::new(&decision, self.conn, &self.scene.server)
            });
            self.parts.log.record_durably(&entry).await;
        }
        self.parts.tripwires.order(agent, &judgement.verdict);
    }
}

/// A list of MCP: where its entries are, and which member names one.
#[derive(Clone, Copy)]
struct Listed {
    member: &'static str,
    name: &'static str,
}

fn listed(method: &str) -> Option<Listed> {
    let (member, name) = match method {
        "tools/list" => ("tools", "name"),
        "prompts/list" => ("prompts", "name"),
        "resources/list" => ("resources", "uri"),
        "resources/templates/list" => ("resourceTemplates", "uriTemplate"),
        _ => return None,
    };
    Some(Listed { member, name })
}

/// The requests inside a result that asks for input (MCP 2026-07-28, multi round-trip requests): method and params.
fn asked_inside<'a>(message: &Message<'a>) -> Vec<(Arc<str>, Option<&'a str>)> {
    let result = message.result.as_ref().filter(|result| result.result_type == Some("\"input_required\""));
    let requests = result.and_then(|result| find::member(result.raw, "inputRequests").ok()?);
    let ask = |(_, request)| {
        let method = find::member(request, "method").ok()?.and_then(find::text)?;
        Some((Arc::from(&*method), find::member(request, "params").ok()?))
    };
    requests.into_iter().flat_map(find::members).filter_map(ask).collect()
}
