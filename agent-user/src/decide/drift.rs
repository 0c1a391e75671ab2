//! Rules with `action: deny_drift`: whether what a call uses is still what was trusted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::Deserialize;

use super::policy::Mode;
use crate::fingerprint::{Class, Classes, Standing, Standings, State, Surface};

/// What calls name.
const NAMED: [Surface; 3] = [Surface::Tool, Surface::Prompt, Surface::ResourceTemplate];
/// How long a call waits for a list where the rule does not say.
const WAIT: SignedDuration = SignedDuration::from_secs(5);
const MAX_WAIT: SignedDuration = SignedDuration::from_mins(10);

/// `drift` of a rule with `action: deny_drift`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DriftFile {
    /// The classes of change for which a call is refused: `definition` and `annotations_less_safe` where it is left out.
    /// What is new and nobody has said to be good, and what an operator has blocked, is refused anyway.
    pub classes: Option<Vec<Class>>,
    /// What else of its server must be what was trusted: of `instructions`, `server` (its name and version) and
    /// `agent_card`; instructions and agent card where it is left out.
    pub also: Option<Vec<Surface>>,
    /// What becomes of a call while its server says that its list has changed, and the list was not seen since. `wait`
    /// where it is left out.
    pub unsure: Unsure,
    /// With `unsure: wait`: how long, before the call is refused; `5s` where it is left out.
    #[schemars(with = "Option<String>")]
    pub wait: Option<SignedDuration>,
    /// What becomes of a call that had left when the change was found.
    pub in_flight: InFlight,
}

/// What becomes of calls while it is not known whether anything has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unsure {
    /// It waits until the list was seen, and is refused if that takes too long.
    #[default]
    Wait,
    Refuse,
    Allow,
}

/// What becomes of calls that had left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum InFlight {
    /// The answer reaches the agent.
    #[default]
    Finish,
    /// It is ended at once, as by a stop, and the agent gets a refusal.
    Cut,
}

/// A rule with `action: deny_drift`.
#[derive(Debug)]
pub struct DriftRule {
    /// Id of the rule.
    pub rule: Arc<str>,
    pub mode: Mode,
    pub reason: Arc<str>,
    classes: Classes,
    /// Whose standing counts.
    surfaces: Vec<Surface>,
    unsure: Unsure,
    /// How long a call waits.
    pub wait: Duration,
    pub in_flight: InFlight,
}

/// What a rule has against a call.
#[derive(Clone, Debug)]
pub struct Drifted {
    pub rule: Arc<DriftRule>,
    /// What is not to be trusted.
    pub surface: Surface,
    pub fault: Fault,
    /// The documents that say what is trusted there, if any do.
    pub by: Option<Arc<str>>,
}

/// Why it is not to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    New,
    /// It is not what was trusted, in these classes of those that the rule names.
    Changed(Classes),
    Blocked,
    /// Its server says that its list has changed.
    Unsure,
    /// What was trusted cannot be read.
    Unreadable,
}

impl DriftFile {
    /// Errors name the field and the remedy.
    pub(super) fn compile(
        &self,
        rule: &Arc<str>,
        mode: Mode,
        reason: &Arc<str>,
    ) -> Result<DriftRule, String> {
        if self.wait.is_some() && self.unsure != Unsure::Wait {
            return Err("`drift.wait` goes with `unsure: wait`; leave it out".to_owned());
        }
        let wait = self.wait.unwrap_or(WAIT);
        if wait <= SignedDuration::ZERO || wait > MAX_WAIT {
            return Err(format!("drift.wait: {wait:#}: give more than nothing and no more than 10m"));
        }
        let classes = match &self.classes {
            None => Classes::from_iter([Class::Definition, Class::AnnotationsLessSafe]),
            Some(classes) if classes.is_empty() => {
                return Err("`drift.classes` is empty; name some, or leave it out".to_owned());
            }
            Some(classes) if classes.contains(&Class::Order) => {
                return Err(
                    "drift.classes: order: no call depends on the order of a list; leave it out".to_owned()
                );
            }
            Some(classes) => classes.iter().copied().collect(),
        };
        let also = self.also.as_deref().unwrap_or(&[Surface::Instructions, Surface::AgentCard]);
        if let Some(named) = also.iter().find(|surface| NAMED.contains(surface)) {
            let named = named.label();
            return Err(format!("drift.also: {named}: what a call names counts anyway; leave it out"));
        }
        Ok(DriftRule {
            rule: Arc::clone(rule),
            reason: Arc::clone(reason),
            mode,
            classes,
            surfaces: NAMED.iter().chain(also).copied().collect(),
            unsure: self.unsure,
            wait: wait.unsigned_abs(),
            in_flight: self.in_flight,
        })
    }
}

impl DriftRule {
    /// What it has against a message that has to do with things of these standings.
    pub(super) fn fault(&self, standings: &Standings) -> Option<(Surface, Fault)> {
        let faults = self.surfaces.iter().map(|surface| (*surface, self.fault_of(standings.of(*surface))));
        // What is wrong for certain comes before what may be.
        let faults = faults.filter_map(|(surface, fault)| Some((surface, fault?)));
        faults.min_by_key(|(_, fault)| *fault == Fault::Unsure)
    }

    fn fault_of(&self, standing: Standing) -> Option<Fault> {
        let changed = standing.classes.and(self.classes);
        match standing.state {
            State::Unreadable => Some(Fault::Unreadable),
            State::Blocked => Some(Fault::Blocked),
            State::New => Some(Fault::New),
            _ if !changed.is_empty() => Some(Fault::Changed(changed)),
            _ if standing.unsure && self.unsure != Unsure::Allow => Some(Fault::Unsure),
            State::Unseen | State::Trusted | State::Drifted | State::Removed => None,
        }
    }

    /// A call waits until what is not known is.
    pub(super) fn waits(&self) -> bool {
        self.unsure == Unsure::Wait
    }
}

impl Drifted {
    /// A bounded label for metrics.
    pub fn label(&self) -> &'static str {
        match self.fault {
            Fault::New => "drift_new",
            Fault::Changed(_) => "drift",
            Fault::Blocked => "drift_blocked",
            Fault::Unsure => "drift_unsure",
            Fault::Unreadable => "drift_unreadable",
        }
    }
}

impl fmt::Display for Drifted {
    /// The reason in words, for the agent and the record.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.surface {
            Surface::Tool => "the tool",
            Surface::Prompt => "the prompt",
            Surface::ResourceTemplate => "the resource template",
            Surface::Instructions => "what the server instructs models to do",
            Surface::Server => "what the server calls itself",
            Surface::AgentCard => "the agent card of the server",
        };
        write!(f, "{}: {what} ", self.rule.reason)?;
        match (self.fault, &self.by) {
            (Fault::New, Some(by)) => write!(f, "is none of what {by} trusts"),
            (Fault::Changed(classes), Some(by)) => write!(f, "is not as {by} trusts it ({classes})"),
            (Fault::New, None) => f.write_str("is new, and nobody has approved of it yet"),
            (Fault::Changed(classes), None) => {
                write!(f, "has changed since it was trusted ({classes}), and nobody has approved of that")
            }
            (Fault::Blocked, _) => f.write_str("was blocked by an operator"),
            (Fault::Unsure, _) => {
                f.write_str("may have changed, as the server says, and was not listed since; list it again")
            }
            (Fault::Unreadable, _) => {
                f.write_str("cannot be compared with what was trusted, which cannot be read")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<DriftRule, String> {
        let file: DriftFile = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        file.compile(&"r".into(), Mode::Enforce, &"no".into())
    }

    fn standing(state: State, classes: &[Class]) -> Standing {
        Standing { state, classes: classes.iter().copied().collect(), unsure: false }
    }

    #[test]
    fn harmless_changes_do_not_refuse_unless_a_rule_says_so() {
        let display = standing(State::Drifted, &[Class::Display, Class::Meta, Class::AnnotationsSafer]);
        assert_eq!(rule("{}").unwrap().fault_of(display), None);
        let changed = rule("{classes: [meta, ui]}").unwrap().fault_of(display);
        assert_eq!(changed, Some(Fault::Changed(Classes::from_iter([Class::Meta]))));
        for class in [Class::Definition, Class::AnnotationsLessSafe] {
            let fault = rule("{}").unwrap().fault_of(standing(State::Drifted, &[class]));
            assert_eq!(fault, Some(Fault::Changed(Classes::from_iter([class]))));
        }
    }

    #[test]
    fn what_is_not_known_to_be_good_is_refused() {
        let rule = rule("{}").unwrap();
        assert_eq!(rule.fault_of(standing(State::New, &[])), Some(Fault::New));
        assert_eq!(rule.fault_of(standing(State::Blocked, &[])), Some(Fault::Blocked));
        assert_eq!(rule.fault_of(standing(State::Unreadable, &[])), Some(Fault::Unreadable));
        for fine in [State::Trusted, State::Removed, State::Unseen] {
            assert_eq!(rule.fault_of(standing(fine, &[])), None);
        }
    }

    #[test]
    fn what_is_unsure_is_refused_unless_the_rule_allows_it() {
        let unsure = Standing { unsure: true, ..standing(State::Trusted, &[]) };
        assert_eq!(rule("{}").unwrap().fault_of(unsure), Some(Fault::Unsure));
        assert!(rule("{}").unwrap().waits() && !rule("{unsure: refuse}").unwrap().waits());
        assert_eq!(rule("{unsure: allow}").unwrap().fault_of(unsure), None);
        let drifted = Standing { unsure: true, ..standing(State::Drifted, &[Class::Definition]) };
        assert!(matches!(rule("{unsure: allow}").unwrap().fault_of(drifted), Some(Fault::Changed(_))));
    }

    #[test]
    fn what_the_server_says_of_itself_counts_as_the_rule_says() {
        let of = |surface, state| {
            let mut standings = Standings::default();
            standings.set(Surface::Tool, standing(State::Trusted, &[]));
            standings.set(surface, standing(state, &[Class::Definition]));
            standings
        };
        let changed = Fault::Changed(Classes::from_iter([Class::Definition]));
        let instructions = of(Surface::Instructions, State::Drifted);
        let rule = rule("{}").unwrap();
        assert_eq!(rule.fault(&instructions), Some((Surface::Instructions, changed)));
        assert_eq!(rule.fault(&of(Surface::Server, State::Drifted)), None);
        let server = super::tests::rule("{also: [server]}").unwrap();
        assert_eq!(server.fault(&of(Surface::Server, State::Drifted)), Some((Surface::Server, changed)));
        assert_eq!(server.fault(&instructions), None);
        let mut both = instructions;
        both.set(Surface::Tool, Standing { unsure: true, ..standing(State::Trusted, &[]) });
        assert_eq!(rule.fault(&both), Some((Surface::Instructions, changed)), "what is certain comes first");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, error) in [
            ("{classes: []}", "`drift.classes` is empty"),
            ("{classes: [colour]}", "colour"),
            ("{classes: [order]}", "drift.classes: order"),
            ("{also: [tool]}", "drift.also: tool"),
            ("{wait: 0s}", "drift.wait"),
            ("{wait: 11m}", "no more than 10m"),
            ("{unsure: refuse, wait: 1s}", "goes with `unsure: wait`"),
        ] {
            let fault = rule(text).unwrap_err();
            assert!(fault.contains(error), "{text}: {fault}");
        }
    }
}
