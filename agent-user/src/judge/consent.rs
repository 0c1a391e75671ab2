//! A request that needs a person's approval is judged again once there is one, or there will be none: by the rules and
//! stops of that moment. This is what is kept of it meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::message::Prepared;
use crate::approvals::{Asked, Outcome, Parked};
use crate::baseline::Place;
use crate::decide::policy::Approval;
use crate::decide::stop::Operator;
use crate::decide::unapproved::{Unapproved, Why};
use crate::decide::{Refusal, Verdict};
use crate::fingerprint::Surface;
use crate::ledger::{Conn, Scene};

/// What persons have said of a request so far. An approval is for the rules it was asked for, at the message it was asked
/// for, and for no other.
#[derive(Debug, Default)]
pub struct Consent {
    /// By message.
    pub(super) kept: Vec<Kept>,
    approved: Vec<Wanted>,
    /// What may have changed was waited for: it is not waited for again.
    has_waited: bool,
    /// What was asked for last, and who has decided.
    pub(super) approval: Option<Arc<str>>,
    pub(super) by: Option<Operator>,
    /// There will be no approval.
    refused: Option<(Vec<Wanted>, Why)>,
}

/// What a message keeps when it is judged again.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) decision: String,
    pub(super) continues: bool,
}

/// An approval that is needed, and the message that needs it.
#[derive(Clone, Debug)]
struct Wanted {
    message: usize,
    rule: Arc<Approval>,
}

/// Lists that have to be seen before a request is judged.
#[derive(Debug)]
pub struct Wait {
    pub lists: Vec<(Place, Surface)>,
    /// How long that may take.
    pub within: Duration,
}

/// A question for a person.
#[derive(Debug)]
pub struct Question {
    /// Everything that would be sent.
    pub calls: Vec<Asked>,
    /// How long the answer may take.
    pub within: Duration,
    /// JSON text of the token under which the agent wants to hear of progress meanwhile, if it does.
    pub progress_token: Option<Box<str>>,
    wanted: Vec<Wanted>,
}

impl Consent {
    /// Nobody was asked yet.
    pub(super) fn is_new(&self) -> bool {
        self.kept.is_empty()
    }

    /// What to wait for until it is known whether what these messages use has changed.
    pub(super) fn wait(&mut self, prepared: &[Prepared<'_>], conn: &Conn, scene: &Scene) -> Option<Wait> {
        let waits = prepared.iter().flat_map(|message| &message.verdict.waits);
        let within = waits.map(|drifted| drifted.rule.wait).min()?;
        if std::mem::replace(&mut self.has_waited, true) {
            return None;
        }
        self.kept = prepared.iter().map(Prepared::keep).collect();
        let lists = prepared.iter().flat_map(|message| message.unsure(conn, scene)).collect();
        Some(Wait { lists, within })
    }

    /// Applies what was said to the verdict on one message. What the rules or a stop have against it comes first.
    pub(super) fn apply(&self, message: usize, verdict: &mut Verdict) {
        verdict.approvals.retain(|rule| !self.approved.iter().any(|given| given.is(message, rule)));
        let Some((wanted, why)) = &self.refused else { return };
        let Some(wanted) = wanted.iter().find(|wanted| wanted.message == message) else { return };
        if verdict.refusal.is_none() {
            let rule = Arc::clone(&wanted.rule);
            if !verdict.fired.contains(&rule.rule) {
                verdict.fired.push(Arc::clone(&rule.rule));
            }
            let unapproved = Unapproved { rule, approval: self.approval.clone(), why: why.clone() };
            verdict.refusal = Some(Refusal::Unapproved(Arc::new(unapproved)));
        }
    }

    /// What a person must be asked before these messages may go on. `listens`: the agent takes an answer as a stream.
    pub(super) fn question(&mut self, prepared: &[Prepared<'_>], listens: bool) -> Option<Question> {
        let wants = |(message, prepared): (usize, &Prepared<'_>)| {
            let rules = prepared.verdict.approvals.clone().into_iter();
            rules.map(move |rule| Wanted { message, rule }).collect::<Vec<_>>()
        };
        let wanted: Vec<Wanted> = prepared.iter().enumerate().flat_map(wants).collect();
        let within = wanted.iter().map(|wanted| wanted.rule.timeout).min()?;
        self.kept = prepared.iter().map(Prepared::keep).collect();
        let mut room = crate::approvals::Text::ROOM;
        let calls = prepared.iter().map(|message| message.asked(&mut room)).collect();
        let progress_token = match prepared {
            [only] if listens => only.progress_token().map(Into::into),
            _ => None,
        };
        Some(Question { calls, within, progress_token, wanted })
    }

    /// Nobody can be asked.
    pub fn is_not_asked(&mut self, question: Question, why: &'static str) {
        self.refused = Some((question.wanted, Why::NotAsked(why)));
    }

    /// What became of a question.
    pub fn is_answered(&mut self, question: Question, parked: &Parked, outcome: Outcome) {
        self.approval = Some(Arc::clone(&parked.question.approval));
        let why = match outcome {
            Outcome::Approved { by, .. } => {
                self.by = Some(by);
                self.approved.extend(question.wanted);
                return;
            }
            Outcome::Refused { by, reason } => {
                let name = by.name().to_owned();
                self.by = Some(by);
                Why::Refused { by: name, reason: reason.into() }
            }
            Outcome::TimedOut => Why::TimedOut { after: question.within },
            Outcome::Withdrawn(cause) => Why::Withdrawn(cause),
        };
        self.refused = Some((question.wanted, why));
    }
}

impl Wanted {
    /// Whether it is the approval that a rule asks for at a message, as the person was shown it.
    fn is(&self, message: usize, rule: &Approval) -> bool {
        self.message == message && self.rule.rule == rule.rule && self.rule.reason == rule.reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(id: &str, reason: &str) -> Arc<Approval> {
        Arc::new(Approval { rule: id.into(), reason: reason.into(), timeout: Duration::from_secs(1) })
    }

    fn verdict(rules: &[&Arc<Approval>]) -> Verdict {
        Verdict { approvals: rules.iter().map(|rule| Arc::clone(rule)).collect(), ..Verdict::default() }
    }

    fn wanted(message: usize, rule: &Arc<Approval>) -> Wanted {
        Wanted { message, rule: Arc::clone(rule) }
    }

    #[test]
    fn an_approval_is_for_its_rule_at_its_message() {
        let (money, mail) = (rule("money", "it is much"), rule("mail", "it is far"));
        let consent = Consent { approved: vec![wanted(1, &money)], ..Consent::default() };
        let left = |message, rules: &[&Arc<Approval>]| {
            let mut verdict = verdict(rules);
            consent.apply(message, &mut verdict);
            assert!(verdict.refusal.is_none());
            verdict.approvals.len()
        };
        assert_eq!(left(1, &[&money]), 0);
        assert_eq!(left(1, &[&rule("money", "it is much")]), 0, "the rules were read again");
        assert_eq!(left(1, &[&rule("money", "it is stolen")]), 1, "another reason than the person was shown");
        assert_eq!(left(1, &[&money, &mail]), 1);
        assert_eq!(left(0, &[&money]), 1);
    }

    #[test]
    fn what_a_person_refused_is_refused_whatever_the_rules_say_now() {
        let money = rule("money", "it is much");
        let why = Why::Refused { by: "alice".into(), reason: "no".into() };
        let approval = Some(Arc::from("apr-1"));
        let consent =
            Consent { refused: Some((vec![wanted(0, &money)], why)), approval, ..Consent::default() };
        let mut gone = verdict(&[]);
        consent.apply(0, &mut gone);
        let refusal = gone.refusal.unwrap();
        assert_eq!((refusal.rule(), refusal.label()), ("money", "approval_refused"));
        assert_eq!(refusal.reason(), "it is much: alice has refused its approval apr-1: no");
        assert_eq!(gone.fired, ["money".into()]);

        let (id, reason) = ("deny".into(), "".into());
        let mut denied = Verdict { refusal: Some(Refusal::Rule { id, reason }), ..verdict(&[&money]) };
        consent.apply(0, &mut denied);
        assert_eq!(denied.refusal.unwrap().rule(), "deny");
        let mut other = verdict(&[]);
        consent.apply(1, &mut other);
        assert!(other.refusal.is_none());
    }
}
