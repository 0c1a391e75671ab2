//! What the rules say of one message. All that can concern it are looked at; of those that refuse it the first enforced
//! one is the reason.

use std::sync::Arc;

use super::super::condition::Inputs;
use super::super::drift::{DriftRule, Drifted, Fault};
use super::super::scope::Scope;
use super::super::subject::{Party, Subject};
use super::super::{Failed, Refusal, Verdict};
use super::Policy;
use super::defaults::Bias;
use super::file::{Author, Mode, Phase};
use super::index::Candidates;
use super::known::Known;
use super::rule::{Effect, Field, Rule, subject_methods};

/// The rules with `allow_only` that concern a message, of one mode and of one side: what a namespace allows itself is not
/// thereby allowed by the cluster.
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
        self.judge_by(&self.candidates(subject).within(scope), subject)
    }

    /// Judges a message as [`Policy::judge`] does, with what is known of those before it. `known` is this policy's and this
    /// scope's alone.
    pub fn judge_next(&self, scope: &Scope, known: &Known, subject: &Subject<'_>) -> Verdict {
        if scope.is_empty() {
            return Verdict::default();
        }
        let candidates = known.rules(subject, || self.candidates(subject).within(scope));
        self.judge_by(&candidates, subject)
    }

    /// Judges what carries no message that could be read: by the rules that look at nothing in one.
    pub fn judge_unread(&self, scope: &Scope, subject: &Subject<'_>) -> Verdict {
        self.judge_by(&Candidates::with(&self.of_connection).within(scope), subject)
    }

    /// The rules that can concern a message of any agent and server.
    fn candidates(&self, subject: &Subject<'_>) -> Candidates<'_> {
        let messages = &self.phases[match subject.phase {
            Phase::Request => 0,
            Phase::Response => 1,
            Phase::List => 2,
        }];
        let mut found = Candidates::with(&messages.any);
        for name in [subject.name, subject.of_tool].into_iter().flatten() {
            messages.by_tool.find(name, &mut found);
        }
        let [method, other] = subject_methods(subject);
        for method in [method, other.filter(|_| other != method)].into_iter().flatten() {
            messages.by_method.find(method, &mut found);
        }
        found
    }

    /// Whether what these rules say of a message depends on one of these variables.
    pub fn depends_on(&self, scope: &Scope, subject: &Subject<'_>, variables: &[&str]) -> bool {
        let candidates = self.candidates(subject).within(scope);
        let mut concerned = candidates.into_iter().filter(|rule| self.rules[*rule].concerns(subject));
        concerned.any(|rule| variables.iter().any(|name| self.rules[rule].depends_on(name)))
    }

    /// Whether one field of a rule, by its position, matches.
    pub fn field_matches(&self, rule: usize, field: Field, subject: &Subject<'_>) -> bool {
        self.rules[rule].field(field, subject)
    }

    /// Whether a rule is about messages of this phase.
    pub fn is_of_phase(&self, rule: usize, phase: Phase) -> bool {
        self.rules[rule].is_of(phase)
    }

    /// The condition of a rule; one without any holds.
    pub fn condition(&self, rule: usize, subject: &Subject<'_>) -> Result<bool, String> {
        self.rules[rule].holds(&Inputs::new(subject))
    }

    /// Whether the condition of a rule looks at a variable.
    pub fn condition_uses(&self, rule: usize, variable: &str) -> bool {
        self.rules[rule].when.as_ref().is_some_and(|when| when.uses(variable))
    }

    /// Judges a message by looking at every rule, for whoever wants to see that the index has missed none.
    pub fn judge_by_all(&self, subject: &Subject<'_>) -> Verdict {
        let in_scope = |rule: &usize| self.rules[*rule].is_in_scope_of(subject);
        self.judge_by(&(0..self.rules.len()).filter(in_scope).collect::<Vec<_>>(), subject)
    }

    fn judge_by(&self, candidates: &[usize], subject: &Subject<'_>) -> Verdict {
        if candidates.is_empty() {
            return Verdict::default();
        }
        let inputs = Inputs::new(subject);
        let mut verdict = Verdict::default();
        let mut allowing: [Allowing<'_>; 4] = Default::default();
        for rule in candidates.iter().map(|index| &self.rules[*index]) {
            if !rule.concerns(subject) {
                continue;
            }
            // Of what it does not allow anyway its condition says nothing.
            let is_other = matches!(rule.effect, Effect::AllowOnly) && !rule.allows(subject);
            let holds = match if is_other { Ok(false) } else { rule.holds(&inputs) } {
                Ok(holds) => holds,
                Err(error) => {
                    verdict.failed.push(Failed { rule: Arc::clone(&rule.id), error });
                    if rule.on_error == Bias::Deny {
                        verdict.deny(rule);
                        continue;
                    }
                    // As if the rule were not there: what it alone allows is allowed, too.
                    matches!(rule.effect, Effect::AllowOnly)
                }
            };
            match &rule.effect {
                Effect::AllowOnly => {
                    let of_namespace = usize::from(rule.author == Author::Namespace);
                    let allowing = &mut allowing[usize::from(rule.mode == Mode::Observe) * 2 + of_namespace];
                    allowing.is_allowed |= holds;
                    allowing.rules.push(rule);
                }
                effect if holds => verdict.apply(rule, effect, subject),
                _ => {}
            }
        }
        for allowing in allowing.iter().filter(|allowing| !allowing.is_allowed) {
            allowing.rules.iter().for_each(|rule| verdict.deny(rule));
        }
        verdict
    }
}

impl Verdict {
    /// A rule is about the message.
    fn apply(&mut self, rule: &Rule, effect: &Effect, subject: &Subject<'_>) {
        // A person decides on what the agent asks for, and only once; so it is counted, too.
        let is_counted = !subject.continues && subject.from == Party::Agent;
        match effect {
            Effect::Deny | Effect::Hide | Effect::AllowOnly => self.deny(rule),
            Effect::Redact(redact) => self.redactions.push(Arc::clone(redact)),
            Effect::Limit(limit) if is_counted => self.limits.push(Arc::clone(limit)),
            Effect::Approve(approval) if is_counted && rule.asks_about(subject) => {
                self.fired.push(Arc::clone(&rule.id));
                match rule.mode {
                    Mode::Observe => self.would_deny = true,
                    Mode::Enforce => self.approvals.push(Arc::clone(approval)),
                }
            }
            Effect::Limit(_) | Effect::Approve(_) => {}
            Effect::Drift(drift) => self.look_for_drift(drift, subject),
            Effect::Stop(tripwire) => {
                self.tripwires.push(Arc::clone(tripwire));
                // One that counts fires when its number is full, which only the counts know.
                if tripwire.after.is_none() {
                    self.deny(rule);
                }
            }
        }
    }

    /// Refuses what is not what was trusted, or has it wait.
    fn look_for_drift(&mut self, rule: &Arc<DriftRule>, subject: &Subject<'_>) {
        let Some((surface, fault)) = rule.fault(&subject.standings) else { return };
        if fault == Fault::Unsure && subject.phase == Phase::Response {
            // It may be the answer that has changed the list.
            return;
        }
        self.fired.push(Arc::clone(&rule.rule));
        let drifted = || Drifted { rule: Arc::clone(rule), surface, fault, by: subject.standings.by.clone() };
        match rule.mode {
            Mode::Observe => self.would_deny = true,
            Mode::Enforce if fault == Fault::Unsure && rule.waits() => {
                self.waits.push(drifted());
            }
            Mode::Enforce => {
                self.refusal.get_or_insert_with(|| Refusal::Drift(Arc::new(drifted())));
            }
        }
    }

    fn deny(&mut self, rule: &Rule) {
        self.fired.push(Arc::clone(&rule.id));
        match rule.mode {
            Mode::Observe => self.would_deny = true,
            Mode::Enforce if self.refusal.is_none() => {
                let failed = self.failed.iter().find(|failed| failed.rule == rule.id);
                let reason = match failed {
                    Some(failed) => {
                        format!("{} (its condition failed: {})", rule.reason, failed.error).into()
                    }
                    None => Arc::clone(&rule.reason),
                };
                self.refusal = Some(Refusal::Rule { id: Arc::clone(&rule.id), reason });
            }
            Mode::Enforce => {}
        }
    }
}
