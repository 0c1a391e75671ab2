//! Why rules decide on one message as they do.

use std::fmt::Write as _;

use serde::Serialize;

use super::case::Case;
use crate::decide::policy::{Action, Field, Policy, PolicyFile, STANDING};

/// How every rule looks at a message.
#[derive(Debug, Serialize)]
pub struct Explanation {
    pub verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub rules: Vec<Look>,
    /// What was decided at the time, where the message is one of the records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
}

/// How one rule looks at it.
#[derive(Debug, Serialize)]
pub struct Look {
    pub rule: String,
    pub action: &'static str,
    pub fires: bool,
    /// What it does without a word: a limit counts, and so does a stop `after` some denials; a redaction takes out what it
    /// finds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub does: Option<&'static str>,
    /// It is not about messages of this kind.
    pub other_phase: bool,
    pub fields: Vec<Looked>,
    /// Its condition, and what comes of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<(String, String)>,
}

/// One field of a rule.
#[derive(Debug, Serialize)]
pub struct Looked {
    pub field: &'static str,
    pub globs: Vec<String>,
    /// What the message has there.
    pub value: String,
    pub matches: bool,
}

/// Looks at a message with every rule.
pub fn explain(file: &PolicyFile, policy: &Policy, case: &Case) -> Explanation {
    let subject = case.subject();
    let verdict = policy.judge_by_all(&subject);
    let unknown = case.unknown();
    let look = |(position, rule): (usize, &crate::decide::policy::RuleFile)| {
        let fields = Field::ALL.into_iter().filter_map(|field| {
            let globs = field.globs(&rule.matches)?.patterns().to_vec();
            let (value, matches) = (field.value(&subject), policy.field_matches(position, field, &subject));
            Some(Looked { field: field.name(), globs, value, matches })
        });
        let fields: Vec<Looked> = fields.collect();
        let other_phase = !policy.is_of_phase(position, subject.phase);
        let when = rule.when.as_ref().filter(|_| !other_phase).map(|text| {
            let missing: Vec<&str> =
                unknown.iter().copied().filter(|name| policy.condition_uses(position, name)).collect();
            let outcome = match policy.condition(position, &subject) {
                _ if !missing.is_empty() => format!("not known: {} is not here", missing.join(", ")),
                Ok(holds) => holds.to_string(),
                Err(error) => format!("error: {error}"),
            };
            (text.clone(), outcome)
        });
        let fires = verdict.fired.iter().any(|id| **id == *rule.id);
        let does = if verdict.redactions.iter().any(|redact| *redact.rule == *rule.id) {
            Some("takes out what it finds")
        } else if verdict.limits.iter().any(|limited| *limited.limit.rule == *rule.id) {
            Some("counts it")
        } else if verdict
            .tripwires
            .iter()
            .any(|tripwire| *tripwire.rule == *rule.id && tripwire.after.is_some())
        {
            Some("counts it, if it is refused")
        } else if rule.action == Action::DenyDrift && unknown.contains(&STANDING) {
            Some("refuses it if it is not what was trusted")
        } else {
            None
        };
        Look { rule: rule.id.clone(), action: rule.action.name(), fires, does, other_phase, fields, when }
    };
    Explanation {
        rules: file.rules.iter().enumerate().map(look).collect(),
        verdict: if verdict.refusal.is_none() && !verdict.approvals.is_empty() {
            "ask"
        } else {
            verdict.label()
        },
        reason: verdict.refusal.as_ref().map(|refusal| format!("{} ({})", refusal.reason(), refusal.rule())),
        recorded: case.verdict.clone(),
    }
}

/// The explanation in words.
pub fn render(explanation: &Explanation) -> String {
    let mut text = String::new();
    for look in &explanation.rules {
        let what = match (look.fires, look.does, look.other_phase) {
            (true, ..) => "fires",
            (false, Some(does), _) => does,
            (false, None, true) => "is about messages of another phase",
            (false, None, false) => "does not fire",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} ({}) {what}", look.rule, look.action);
        for looked in look.fields.iter().filter(|_| !look.other_phase) {
            let sign = if looked.matches { "+" } else { "-" };
            let _ =
                writeln!(text, "  {sign} {} {}: {}", looked.field, looked.globs.join(" | "), looked.value);
        }
        if let Some((when, outcome)) = &look.when {
            let _ = writeln!(text, "  when {when}: {outcome}");
        }
    }
    let reason = explanation.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let _ = write!(text, "verdict: {}{reason}", explanation.verdict);
    if let Some(recorded) = &explanation.recorded {
        let _ = write!(text, " (decided at the time: {recorded})");
    }
    text
}
