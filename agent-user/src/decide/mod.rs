//! Whether a message may go on: one immutable snapshot of policy and stops, read without a lock.
//!
//! Nothing here does IO or reads a clock. Bias: a stop beats every rule, a deny beats an allow, and what no rule
//! mentions is allowed unless [`policy::Defaults`] says otherwise.

pub mod condition;
pub mod drift;
pub mod limit;
pub mod policy;
pub mod redact;
pub mod scope;
pub mod stop;
pub mod subject;
pub mod tripwire;
pub mod unapproved;

use std::sync::Arc;

use serde::Serialize;

use crate::decode::{Kind, Message, ResultMembers, mcp};
use crate::room::Full;
use drift::Drifted;
use limit::Exceeded;
use policy::{Approval, Defaults, Known, Limited, Mode, Policy, Redact};
use redact::Found;
use scope::Scope;
use stop::{Facts, Level, Stop, Whom};
use subject::Subject;
use tripwire::Tripwire;
use unapproved::Unapproved;

/// Everything a verdict depends on, published as one value. A message is judged by exactly one snapshot.
#[derive(Debug)]
pub struct Rules {
    /// Grows by one with every published change of policy or stops.
    pub generation: u64,
    pub policy: Arc<Policy>,
    /// Stops in force, oldest first.
    pub stops: Vec<Arc<Stop>>,
}

/// What of a snapshot can concern one agent talking to one server: the part of matching that does not change from call
/// to call.
#[derive(Debug, Default)]
pub struct Reach {
    pub scope: Scope,
    /// What was found within that scope for the messages before.
    known: Known,
    /// What to do where no rule can say.
    pub defaults: Defaults,
    /// Some rule is about answers or lists.
    pub answers: bool,
    stops: Vec<Arc<Stop>>,
}

impl Rules {
    /// What can concern this agent, in this namespace, at a server of these names.
    pub fn reach<'a>(&self, agent: impl Into<Whom<'a>>, namespace: &str, servers: &[String]) -> Reach {
        let agent = agent.into();
        let concerned = self.stops.iter().filter(|stop| stop.selector.matches_server(agent, servers));
        let scope = self.policy.scope(agent.name, namespace, servers);
        Reach {
            answers: self.policy.judges_answers(&scope),
            scope,
            known: Known::default(),
            defaults: self.policy.defaults_of(agent.name),
            stops: concerned.cloned().collect(),
        }
    }

    /// The stop in force for this: the one that goes furthest, and of these the oldest.
    pub fn stop_for(&self, facts: &Facts<'_>) -> Option<&Arc<Stop>> {
        furthest(self.stops.iter().filter(|stop| stop.selector.matches(facts)))
    }

    /// The stop in force for everything this agent does.
    pub fn stop_of_agent<'a>(&self, agent: impl Into<Whom<'a>>) -> Option<&Arc<Stop>> {
        let agent = agent.into();
        let whole = |stop: &&Arc<Stop>| stop.selector.is_whole_agents() && stop.selector.matches_agent(agent);
        furthest(self.stops.iter().filter(whole))
    }

    /// How far the kernel holds an agent for the stops in force; a stop of a part of what it does counts as
    /// [`Level::Refuse`], so that the daemon's death does not lift it.
    pub fn hold_of_agent<'a>(&self, agent: impl Into<Whom<'a>>) -> Option<Level> {
        let agent = agent.into();
        let concerned = self.stops.iter().filter(|stop| stop.selector.matches_agent(agent));
        concerned.map(|stop| stop.level).max()
    }

    /// How far the kernel holds every agent, known or not.
    pub fn hold_of_everybody(&self) -> Option<Level> {
        let concerned = self.stops.iter().filter(|stop| stop.selector.is_any_agent());
        concerned.map(|stop| stop.level).max()
    }
}

impl Reach {
    /// What the policy says of a message. `rules` are those that this was made of.
    pub fn judge(&self, rules: &Rules, subject: &Subject<'_>) -> Verdict {
        rules.policy.judge_next(&self.scope, &self.known, subject)
    }

    /// Whether a server's message is to be looked at: some rule may be about it, or later calls and rules go by what it shows.
    pub fn concerns(&self, message: &Message<'_>) -> bool {
        let result = message.result.as_ref();
        let (asks, shows) = match &message.kind {
            Kind::Request { .. } => (true, false),
            Kind::Operation { .. } => (false, false),
            Kind::Notification { method } => (false, method.ends_with("/list_changed")),
            Kind::Response { .. } => (mcp::asks_for_input(message), result.is_some_and(ResultMembers::shows)),
        };
        self.answers || shows || asks && !self.scope.is_empty()
    }
}

/// Of several stops the one that goes furthest, and of these the first.
pub fn furthest<'a>(stops: impl Iterator<Item = &'a Arc<Stop>>) -> Option<&'a Arc<Stop>> {
    stops.reduce(|first, stop| if stop.level > first.level { stop } else { first })
}

/// What becomes of a message.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Why the message is refused; `None` lets it through.
    pub refusal: Option<Refusal>,
    /// Ids of all rules that fired, enforced or observed.
    pub fired: Vec<Arc<str>>,
    /// A rule in `mode: observe` would have refused it.
    pub would_deny: bool,
    /// Rules with `action: stop` that the message matches; once it is counted, those that it trips.
    pub tripwires: Vec<Arc<Tripwire>>,
    /// Enforced rules that ask for a person's approval.
    pub approvals: Vec<Arc<Approval>>,
    /// Enforced rules that hold it until the list of what it uses was seen.
    pub waits: Vec<Drifted>,
    /// Rules that count it, if it is let through.
    pub limits: Vec<Arc<Limited>>,
    /// Rules that take something out of it, if there is anything to take out.
    pub redactions: Vec<Arc<Redact>>,
    /// Rules whose condition could not be computed.
    pub failed: Vec<Failed>,
    /// What was taken out of it.
    pub redacted: Found,
    /// A rule in `mode: observe` would have taken something out.
    pub would_edit: bool,
}

/// The condition of a rule could not be computed for a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// Id of the rule.
    pub rule: Arc<str>,
    pub error: String,
}

impl Verdict {
    /// Of something that was refused without being read.
    pub fn of_unread(refusal: &Refusal) -> Verdict {
        Verdict { refusal: Some(refusal.clone()), fired: vec![refusal.rule().into()], ..Verdict::default() }
    }

    /// A guard has something against it, too.
    pub fn refuse(&mut self, guard: Guard) {
        self.fired.push(guard.rule().into());
        self.refusal.get_or_insert(Refusal::Guard(guard));
    }

    /// What it waited for has not come.
    pub fn refuse_unsure(&mut self) {
        if let Some(drifted) = self.waits.drain(..).next() {
            self.refusal.get_or_insert_with(|| Refusal::Drift(Arc::new(drifted)));
        }
    }

    /// The value of the `verdict` field of records and metrics.
    pub fn label(&self) -> &'static str {
        match (&self.refusal, self.would_deny) {
            (Some(_), _) => "deny",
            (None, true) => "would_deny",
            (None, false) if self.redacted.total() > 0 => "edit",
            (None, false) if self.would_edit => "would_edit",
            (None, false) => "allow",
        }
    }

    /// Of a counted message: ids of the rules in `mode: observe` that would have stopped the agent.
    pub fn would_stop(&self) -> Vec<&str> {
        let observed = self.tripwires.iter().filter(|tripwire| tripwire.mode == Mode::Observe);
        observed.map(|tripwire| &*tripwire.rule).collect()
    }
}

/// Why a message is refused.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// An operator's stop.
    Stop(Arc<Stop>),
    /// A rule of the policy: its id and the reason its author gave.
    Rule { id: Arc<str>, reason: Arc<str> },
    /// A rule that lets only so much through.
    Limit { reason: Arc<str>, exceeded: Arc<Exceeded> },
    /// A built-in guard, or a `defaults:` entry set to deny.
    Guard(Guard),
    /// What it uses is not what was trusted.
    Drift(Arc<Drifted>),
    /// A rule asks for a person's approval, and there is none.
    Unapproved(Arc<Unapproved>),
}

/// Refusals that need no rule.
#[derive(Clone, Debug)]
pub enum Guard {
    /// The bytes are no message both sides would read alike; the label says what is wrong with them.
    Undecodable(&'static str),
    /// A message or event over its bound.
    Oversized { limit: usize },
    /// An `Mcp-*` header contradicts the body (MCP 2026-07-28, streamable HTTP).
    HeaderMismatch { header: &'static str, header_value: String, body_value: String },
    /// Another element of the same batch was refused, so none was sent.
    Batch,
    /// A connection whose content cannot be read.
    Opaque,
    /// A message of a protocol revision that is not known, as it states it.
    UnknownRevision(String),
    /// A call of a tool that no list has shown.
    UnseenTool,
    /// What it uses was blocked by an operator.
    Blocked,
    /// Too many calls that are answered in the same stream have no answer yet (HTTP+SSE, and lines).
    Unanswered { limit: usize },
    /// There is no memory for it within the bounds of the configuration.
    Full(Full),
}

impl Refusal {
    /// The rule id shown to agents, operators and metrics.
    pub fn rule(&self) -> &str {
        match self {
            Refusal::Stop(_) => "stop",
            Refusal::Rule { id, .. } => id,
            Refusal::Limit { exceeded, .. } => &exceeded.rule,
            Refusal::Guard(guard) => guard.rule(),
            Refusal::Drift(drifted) => &drifted.rule.rule,
            Refusal::Unapproved(unapproved) => &unapproved.rule.rule,
        }
    }

    /// The id of the operator's stop behind it, if there is one.
    pub fn stop_id(&self) -> Option<&str> {
        match self {
            Refusal::Stop(stop) => Some(&stop.id),
            _ => None,
        }
    }

    /// What a person was asked under, if it is for want of an approval.
    pub fn approval_id(&self) -> Option<&str> {
        match self {
            Refusal::Unapproved(unapproved) => unapproved.approval.as_deref(),
            _ => None,
        }
    }

    /// Whether it is a denial of its own: by a rule, a guard or a default, not by a stop, for the sake of another call, or
    /// because the agent does not wait for it.
    pub fn is_denial(&self) -> bool {
        match self {
            Refusal::Stop(_) | Refusal::Guard(Guard::Batch) => false,
            Refusal::Unapproved(unapproved) => unapproved.is_denial(),
            Refusal::Rule { .. } | Refusal::Limit { .. } | Refusal::Guard(_) | Refusal::Drift(_) => true,
        }
    }

    /// Whether a header of MCP contradicts the body, for which the protocol has an answer of its own.
    pub fn is_mcp_header_mismatch(&self) -> bool {
        matches!(self, Refusal::Guard(Guard::HeaderMismatch { header, .. }) if header.starts_with("mcp-"))
    }

    /// A bounded label for metrics: never a text that an agent or a server chose.
    pub fn label(&self) -> &'static str {
        match self {
            Refusal::Stop(_) => "stop",
            Refusal::Rule { .. } => "rule",
            Refusal::Limit { exceeded, .. } => exceeded.label,
            Refusal::Drift(drifted) => drifted.label(),
            Refusal::Unapproved(unapproved) => unapproved.label(),
            Refusal::Guard(Guard::Undecodable(label)) => label,
            Refusal::Guard(Guard::Oversized { .. }) => "oversized",
            Refusal::Guard(Guard::HeaderMismatch { .. }) => "header_mismatch",
            Refusal::Guard(Guard::Batch) => "batch",
            Refusal::Guard(Guard::Opaque) => "opaque",
            Refusal::Guard(Guard::UnknownRevision(_)) => "unknown_revision",
            Refusal::Guard(Guard::UnseenTool) => "unseen_tool",
            Refusal::Guard(Guard::Blocked) => "blocked",
            Refusal::Guard(Guard::Unanswered { .. }) => "unanswered",
            Refusal::Guard(Guard::Full(full)) => full.label(),
        }
    }

    /// The reason in words, for the agent and the record.
    pub fn reason(&self) -> String {
        match self {
            Refusal::Stop(stop) => stop.reason.to_string(),
            Refusal::Rule { reason, .. } => reason.to_string(),
            Refusal::Limit { reason, exceeded } => format!("{reason}: {}", exceeded.reason),
            Refusal::Drift(drifted) => drifted.to_string(),
            Refusal::Unapproved(unapproved) => unapproved.reason(),
            Refusal::Guard(Guard::Undecodable(label)) => {
                format!("the message cannot be read unambiguously: {label}")
            }
            Refusal::Guard(Guard::Oversized { limit }) => {
                format!("the message is larger than the limit of {limit} bytes")
            }
            Refusal::Guard(Guard::HeaderMismatch { header, header_value, body_value }) => {
                format!("header {header} says {header_value:?} but the body says {body_value:?}")
            }
            Refusal::Guard(Guard::Batch) => {
                "another call of the same batch was refused, so none was sent".to_owned()
            }
            Refusal::Guard(Guard::Opaque) => "the connection cannot be read".to_owned(),
            Refusal::Guard(Guard::UnseenTool) => {
                "no list of this server has shown this agent the tool; list the tools first".to_owned()
            }
            Refusal::Guard(Guard::Blocked) => "an operator has blocked it".to_owned(),
            Refusal::Guard(Guard::Unanswered { limit }) => {
                format!("{limit} calls of the same session wait for their answers")
            }
            Refusal::Guard(Guard::Full(full)) => full.to_string(),
            Refusal::Guard(Guard::UnknownRevision(stated)) => {
                format!("protocol revision {stated:?} is not known here")
            }
        }
    }
}

impl Guard {
    /// The stable id of the guard, in place of a rule id.
    pub fn rule(&self) -> &'static str {
        match self {
            Guard::Undecodable(_) => "default:undecodable",
            Guard::Oversized { .. } => "default:oversized",
            Guard::HeaderMismatch { .. } => "guard:header-mismatch",
            Guard::Batch => "guard:batch",
            Guard::Opaque => "default:opaque",
            Guard::UnknownRevision(_) => "default:unknown_revision",
            Guard::UnseenTool => "default:unseen_tool",
            Guard::Blocked => "guard:blocked",
            Guard::Unanswered { .. } => "guard:unanswered",
            Guard::Full(_) => "guard:full",
        }
    }
}

/// Judges one message against one snapshot. `reach` is what the snapshot says about its agent and server, computed
/// once per connection and generation; `facts` are those of the same agent and server.
pub fn decide(rules: &Rules, reach: &Reach, facts: &Facts<'_>, subject: &Subject<'_>) -> Verdict {
    let mut verdict = reach.judge(rules, subject);
    let stops = reach.stops.iter().filter(|stop| stop.selector.matches(facts));
    if let Some(stop) = furthest(stops) {
        verdict.refusal = Some(Refusal::Stop(Arc::clone(stop)));
    }
    verdict
}
