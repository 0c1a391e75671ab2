//! What rules say of what servers send: results, lists, notifications, and requests of their own, which MCP 2026-07-28
//! puts into a result (`inputRequests`).
//!
//! Only what some rule fired on is recorded here: that a call was answered is on record anyway.

use std::borrow::Cow;
use std::time::Instant;

use jiff::Timestamp;

use super::redact::{keep_opaque, redact};
use super::shown::{self, Watching};
use super::{place, subject};
use crate::decide::policy::{Bias, Phase};
use crate::decide::redact::splice;
use crate::decide::subject::{Annotations, Party, Subject};
use crate::decide::{Guard, Reach, Refusal, Rules, Verdict};
use crate::decode::find::{self, Ambiguous};
use crate::decode::{Kind, Message, Protocol, mcp};
use crate::fingerprint::Standings;
use crate::forward::refuse::{self, Refused};
use crate::ledger::{Call, Conn, Scene};
use crate::parts::Parts;
use crate::record::entry::{Decision, Entry};

/// Names of hidden entries that a record holds.
const MOST_NAMES: usize = 100;

/// What becomes of one message of a server.
#[derive(Clone, Debug)]
pub enum Answer {
    Pass,
    /// This JSON text goes in its place.
    Replace(String),
    /// The agent does not get it, and this is why.
    Drop(Refusal),
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
        let params = message.params.as_ref().map(|params| params.raw);
        let (mut judgement, part) = match &message.kind {
            Kind::Request { method, .. } => (self.asked(method, params, message.raw.len()), params),
            // No server asks for one.
            Kind::Operation { .. } => return Answer::Pass,
            Kind::Notification { method } => {
                if let Some(surfaces) = shown::doubted(method) {
                    self.watching().doubt(surfaces);
                }
                let subject =
                    Subject { method: Some(method), params, ..self.subject(Phase::Response, message) };
                (self.judgement(&subject, method, None), params)
            }
            Kind::Response { id, .. } => match self.conn.call(*id) {
                Some(call) => return self.response(message, &call).await,
                // Rules about a call would not apply to its answer.
                None if self.is_unasked() => return self.refuse_unasked(id.map(|id| id.raw)).await,
                // Such as one that is sent again after a connection was lost.
                None => {
                    if self.watching().notice(message, None).await.is_err() {
                        return Answer::Drop(Refusal::Guard(Guard::Undecodable("duplicate_member")));
                    }
                    let subject = self.subject(Phase::Response, message);
                    (self.judgement(&subject, "response", None), answered(message))
                }
            },
        };
        let edited = part.and_then(|part| judgement.redact(message.raw, part));
        let rpc_id = message.id().map(|id| id.raw);
        self.finish(&mut judgement, None, rpc_id).await;
        match (judgement.verdict.refusal, edited) {
            (Some(refusal), _) => Answer::Drop(refusal),
            (None, Some(text)) => Answer::Replace(text),
            (None, None) => Answer::Pass,
        }
    }

    /// What answers a call that was not seen, in a stream in which all calls are seen: some server takes them in another form.
    fn is_unasked(&self) -> bool {
        self.reach.answers && self.reach.defaults.undecodable == Bias::Deny && self.conn.answers_posts()
    }

    async fn refuse_unasked(&self, rpc_id: Option<&str>) -> Answer {
        let refusal = Refusal::Guard(Guard::Undecodable("unasked"));
        let mut judgement = Judgement::new(Phase::Response, "response", None, Verdict::of_unread(&refusal));
        self.finish(&mut judgement, None, rpc_id).await;
        Answer::Drop(refusal)
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
            standings: self.standings(call),
            protocol: self.protocol(Some(call)),
            ..self.subject(Phase::Response, message)
        };
        let mut judgement = self.judgement(&subject, &call.method, call.tool.as_deref());
        let edited = answered(message).and_then(|part| judgement.redact(message.raw, part));
        self.finish(&mut judgement, Some(call), call.rpc_id.as_deref()).await;
        let mut refusal = judgement.verdict.refusal;
        match asked_inside(message) {
            Ok(requests) => {
                for (method, params) in requests {
                    let mut asked = self.asked(&method, params, message.raw.len());
                    self.finish(&mut asked, Some(call), None).await;
                    refusal = refusal.or(asked.verdict.refusal);
                }
            }
            Err(fault) => refusal = refusal.or(Some(self.blame(fault, call).await)),
        }
        if let Some(refusal) = refusal {
            return refuse(call, refusal);
        }
        if let Err(fault) = self.watching().notice(message, Some(call)).await {
            return refuse(call, self.blame(fault, call).await);
        }
        if &*call.method == "tools/list"
            && let Some(tools) = mcp::result_facts(message).and_then(|facts| facts.tools)
        {
            self.parts.catalogue.learn(place(self.conn, self.scene), tools);
        }
        match (listed(&call.method).filter(|_| self.reach.answers), edited) {
            (Some(kind), edited) => self.list(kind, message, edited, call, &subject).await,
            (None, Some(text)) => Answer::Replace(text),
            (None, None) => Answer::Pass,
        }
    }

    /// Takes the hidden entries out of a list, and out of the others what rules say. `edited` is the message so far.
    async fn list(
        &self,
        kind: Listed,
        message: &Message<'_>,
        edited: Option<String>,
        call: &Call,
        subject: &Subject<'_>,
    ) -> Answer {
        let text = edited.as_deref().unwrap_or(message.raw);
        let entries = match entries(text, kind) {
            Ok(entries) => entries,
            Err(fault) => return refuse(call, self.blame(fault, call).await),
        };
        let mut judgement = Judgement::new(Phase::List, &call.method, None, Verdict::default());
        let mut kept = Vec::new();
        for entry in entries.into_iter().flat_map(find::elements) {
            let name = match find::member(entry, kind.name) {
                Ok(name) => name.and_then(find::text),
                Err(fault) => return refuse(call, self.blame(fault, call).await),
            };
            let subject = Subject {
                phase: Phase::List,
                name: name.as_deref(),
                item: Some(entry),
                annotations: self.annotations(call, name.as_deref()),
                ..*subject
            };
            let mut verdict = self.rules.policy.judge(&self.reach.scope, &subject);
            if verdict.refusal.is_some() {
                judgement.hidden.push(name.unwrap_or_default().into_owned());
            } else {
                kept.push(match redact(&mut verdict, entry) {
                    Some(edited) => Cow::Owned(edited.text),
                    None => Cow::Borrowed(entry),
                });
            }
            judgement.add(verdict);
        }
        self.finish(&mut judgement, Some(call), call.rpc_id.as_deref()).await;
        let is_same =
            judgement.hidden.is_empty() && kept.iter().all(|entry| matches!(entry, Cow::Borrowed(_)));
        let list = format!("[{}]", kept.join(","));
        let listed = entries.filter(|_| !is_same).and_then(|entries| splice(text, entries, &list));
        listed.or(edited).map_or(Answer::Pass, Answer::Replace)
    }

    fn watching(&self) -> Watching<'_> {
        Watching { parts: self.parts, conn: self.conn, scene: self.scene }
    }

    /// How far what a call has used can be trusted by now.
    fn standings(&self, call: &Call) -> Standings {
        if !self.rules.policy.reads.standing || !self.reach.answers {
            return Standings::default();
        }
        self.parts.baseline.standings(&shown::place(self.conn, self.scene, call.revision), call.used())
    }

    /// A result that clients may read in two ways is none.
    async fn blame(&self, _: Ambiguous, call: &Call) -> Refusal {
        let refusal = Refusal::Guard(Guard::Undecodable("duplicate_member"));
        let mut judgement =
            Judgement::new(Phase::Response, &call.method, call.tool.as_deref(), Verdict::of_unread(&refusal));
        self.finish(&mut judgement, Some(call), call.rpc_id.as_deref()).await;
        refusal
    }

    fn annotations(&self, call: &Call, name: Option<&str>) -> Annotations {
        let reads = self.rules.policy.reads.annotations && &*call.method == "tools/list";
        let name = name.filter(|_| reads);
        name.map(|name| self.parts.catalogue.annotations(place(self.conn, self.scene), name))
            .unwrap_or_default()
    }

    /// A request of the server.
    fn asked<'m>(&self, method: &'m str, params: Option<&str>, size: usize) -> Judgement<'m> {
        let subject = Subject {
            from: Party::Server,
            method: Some(method),
            params,
            size,
            protocol: self.protocol(None),
            ..subject(self.conn, self.scene)
        };
        self.judgement(&subject, method, None)
    }

    fn judgement<'m>(&self, subject: &Subject<'_>, method: &'m str, name: Option<&'m str>) -> Judgement<'m> {
        Judgement::new(subject.phase, method, name, self.reach.judge(self.rules, subject))
    }

    fn subject<'a>(&'a self, phase: Phase, message: &'a Message<'a>) -> Subject<'a> {
        Subject {
            phase,
            from: Party::Server,
            protocol: self.protocol(None),
            result: message.result.as_ref().map(|result| result.raw),
            error: message.error,
            is_error: mcp::result_facts(message).is_some_and(|facts| facts.is_error),
            size: message.raw.len(),
            ..subject(self.conn, self.scene)
        }
    }

    /// What a server says is of the protocol of the call, if it answers one, or else of the connection.
    fn protocol(&self, call: Option<&Call>) -> &'static str {
        let other = call.filter(|call| !mcp::is_mcp_method(&call.method));
        let of_call = other.map(|call| Protocol::of_other(&call.method)).filter(|of| *of == Protocol::A2a);
        let of_conn = if self.conn.is_mcp() { Protocol::Mcp } else { Protocol::JsonRpc };
        of_call.unwrap_or(of_conn).label()
    }

    /// Counts and records what has fired.
    async fn finish(&self, judgement: &mut Judgement<'_>, call: Option<&Call>, rpc_id: Option<&str>) {
        for failed in &judgement.verdict.failed {
            self.parts.metrics.condition_failed(&failed.rule);
        }
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
                protocol: self.protocol(call),
                revision: call.and_then(|call| call.revision),
                method: judgement.method,
                tool: judgement.name,
                rpc_id,
                verdict: if judgement.hidden.is_empty() { verdict.label() } else { "edit" },
                rules: &verdict.fired,
                hidden: &judgement.hidden,
                redacted: verdict.redacted,
                failed: &verdict.failed,
                reason: refusal.map(Refusal::reason),
                generation: self.rules.generation,
                ..Decision::new(&decision, self.conn, &self.scene.server)
            });
            self.parts.log.record_durably(&entry).await;
        }
        self.parts.tripwires.order(agent, &judgement.verdict);
    }
}

impl<'a> Judgement<'a> {
    fn new(phase: Phase, method: &'a str, name: Option<&'a str>, verdict: Verdict) -> Judgement<'a> {
        Judgement { phase, method, name, verdict, hidden: Vec::new() }
    }

    /// The message after rules have taken something out of one part of it.
    fn redact(&mut self, message: &str, part: &str) -> Option<String> {
        splice(message, part, &keep_opaque(part, redact(&mut self.verdict, part)?.text))
    }

    /// What was found at one entry of a list.
    fn add(&mut self, entry: Verdict) {
        let verdict = &mut self.verdict;
        verdict.would_deny |= entry.would_deny;
        verdict.would_edit |= entry.would_edit;
        verdict.redacted.add(&entry.redacted);
        let new = entry.failed.into_iter().filter(|failed| !verdict.failed.contains(failed));
        verdict.failed.extend(new.collect::<Vec<_>>());
        for rule in entry.fired {
            if !verdict.fired.contains(&rule) {
                verdict.fired.push(rule);
            }
        }
    }
}

/// The call is refused in place of its answer.
fn refuse(call: &Call, refusal: Refusal) -> Answer {
    if call.is_operation {
        // The status is part of what it gets.
        return Answer::Drop(refusal);
    }
    let refused = Refused { call: call.clone(), refusal };
    refuse::response(&refused).map_or(Answer::Drop(refused.refusal), Answer::Replace)
}

/// The part of a response that rules take something out of.
fn answered<'a>(message: &Message<'a>) -> Option<&'a str> {
    message.result.as_ref().map(|result| result.raw).or(message.error)
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
fn asked_inside<'a>(message: &Message<'a>) -> Result<Vec<(String, Option<&'a str>)>, Ambiguous> {
    let result = message.result.as_ref().filter(|_| mcp::asks_for_input(message));
    let requests = result.map(|result| find::member(result.raw, "inputRequests")).transpose()?.flatten();
    let ask = |(_, request)| {
        let method = find::member(request, "method")?.and_then(find::text).unwrap_or_default().into_owned();
        Ok((method, find::member(request, "params")?))
    };
    requests.into_iter().flat_map(find::members).map(ask).collect()
}

/// The entries of a list, in the text of a response.
fn entries(response: &str, kind: Listed) -> Result<Option<&str>, Ambiguous> {
    let result = find::member(response, "result")?;
    Ok(result.map(|result| find::member(result, kind.member)).transpose()?.flatten())
}
