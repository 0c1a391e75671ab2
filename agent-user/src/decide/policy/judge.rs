//! What the rules say of one message. All that can concern it are looked at; of those that refuse it the first enforced
//! one is the reason.

use std::sync::Arc;

use super::super::scope::Scope;
use super::super::subject::{Party, Subject};
use super::super::{Refusal, Verdict};
use super::Policy;
use super::file::{Mode, Phase};
use super::rule::{Effect, Rule, subject_methods};

/// The rules with `allow_only` of one mode that concern a message.
#[derive(Default)]
struct Allowing<'a> {
    rules: Vec<&'a Rule>,
    is_allowed: bool,
}

impl Policy {
    /// Judges a message by the rules of `scope`.
    pub fn judge(&self, scope: &Scope, subject: &Subject<'_>) -> Verdict {
        if scope.is_empty() {
            return Verdict::default();
        }
        let mut candidates = self.candidates(subject);
        candidates.intersect(scope);
        self.judge_by(&candidates, subject)
    }

    /// Judges what carries no message that could be read: by the rules that look at nothing in one.
    pub fn judge_unread(&self, scope: &Scope, subject: &Subject<'_>) -> Verdict {
        let mut candidates = self.of_connection.clone();
        candidates.intersect(scope);
        self.judge_by(&candidates, subject)
    }

    /// The rules that can concern a message of any agent and server.
    fn candidates(&self, subject: &Subject<'_>) -> Scope {
        let messages = &self.phases[match subject.phase {
            Phase::Request => 0,
            Phase::Response => 1,
            Phase::List => 2,
        }];
        let mut found = messages.any.clone();
        for name in [subject.name, subject.of_tool].into_iter().flatten() {
            messages.by_tool.find(name, &mut found);
        }
        let [method, other] = subject_methods(subject);
        for method in [method, other.filter(|_| other != method)].into_iter().flatten() {
            messages.by_method.find(method, &mut found);
        }
        found
    }

    /// The rules that can concern a message, found by looking at every one.
    pub(super) fn concerned(&self, subject: &Subject<'_>) -> Scope {
        let mut found = Scope::with_rules(self.rules.len());
        let concerned = self.rules.iter().enumerate().filter(|(_, rule)| rule.is_in_scope_of(subject));
        concerned.for_each(|(index, _)| found.insert(index));
        found
    }

    pub(super) fn judge_by(&self, candidates: &Scope, subject: &Subject<'_>) -> Verdict {
        let mut verdict = Verdict::default();
        let mut allowing = [Allowing::default(), Allowing::default()];
        for rule in candidates.rules().map(|index| &self.rules[index]) {
            if !rule.concerns(subject) {
                continue;
            }
            match &rule.effect {
                Effect::AllowOnly => {
                    let allowing = &mut allowing[usize::from(rule.mode == Mode::Observe)];
                    allowing.is_allowed |= rule.allows(subject);
                    allowing.rules.push(rule);
                }
                Effect::Stop(tripwire) => {
                    verdict.tripwires.push(Arc::clone(tripwire));
                    // One that counts fires when its number is full, which only the counts know.
                    if tripwire.after.is_none() {
                        verdict.deny(rule);
                    }
                }
                // A person decides on what the agent asks for, and only once.
                Effect::Approve(_) if subject.continues || subject.from == Party::Server => {}
                Effect::Approve(_) if !rule.asks_about(subject) => {}
                Effect::Approve(approval) => {
                    verdict.fired.push(Arc::clone(&rule.id));
                    match rule.mode {
                        Mode::Observe => verdict.would_deny = true,
                        Mode::Enforce => verdict.approvals.push(Arc::clone(approval)),
                    }
                }
                Effect::Deny | Effect::Hide => verdict.deny(rule),
            }
        }
        for allowing in allowing.iter().filter(|allowing| !allowing.is_allowed) {
            allowing.rules.iter().for_each(|rule| verdict.deny(rule));
        }
        verdict
    }
}

impl Verdict {
    fn deny(&mut self, rule: &Rule) {
        self.fired.push(Arc::clone(&rule.id));
        match rule.mode {
            Mode::Observe => self.would_deny = true,
            Mode::Enforce if self.refusal.is_none() => {
                let (id, reason) = (Arc::clone(&rule.id), Arc::clone(&rule.reason));
                self.refusal = Some(Refusal::Rule { id, reason });
            }
            Mode::Enforce => {}
        }
    }
}
