//! What would have been decided on the messages of a records file by other rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::case::Case;
use crate::decide::policy::{Phase, Policy};

/// Decisions named as examples for each change.
const EXAMPLES: usize = 5;

/// What would have been different.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Decisions that were looked at.
    pub decisions: usize,
    /// Of these, those that would have been the same.
    pub same: usize,
    /// Those that rules have nothing to do with: stops, guards and defaults.
    pub not_by_rules: usize,
    /// Those that depend on what is not in the records.
    pub unknown: Changed,
    /// Those that meet limits, which are not counted again: each is taken as if it was within them.
    pub limits: usize,
    /// Those of which something would be taken out, or was: only whether they pass is compared.
    pub redactions: usize,
    /// By the change, such as `allow -> deny`.
    pub changed: BTreeMap<String, Changed>,
}

/// Decisions of one change.
#[derive(Debug, Default, Serialize)]
pub struct Changed {
    pub count: usize,
    pub examples: Vec<Example>,
}

#[derive(Debug, Serialize)]
pub struct Example {
    pub decision: String,
    pub agent: String,
    pub server: String,
    pub method: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The rules that would have fired.
    pub rules: Vec<String>,
}

/// Decides once more.
pub fn replay(cases: impl Iterator<Item = Case>, policy: &Policy) -> Report {
    let mut report = Report::default();
    for case in cases {
        report.decisions += 1;
        let is_by_rules =
            !case.rules.iter().any(|rule| rule.starts_with("default:") || rule.starts_with("guard:"));
        if case.stop.is_some() || !is_by_rules {
            report.not_by_rules += 1;
            continue;
        }
        let subject = case.subject();
        let scope = policy.scope(subject.agent.name, subject.agent.namespace(), subject.servers);
        let verdict = policy.judge(&scope, &subject);
        let rules: Vec<String> = verdict.fired.iter().map(|rule| rule.to_string()).collect();
        let recorded = case.verdict.as_deref().unwrap_or("allow");
        let is_limited =
            verdict.limits.iter().any(|limited| case.rules.iter().any(|rule| **rule == *limited.limit.rule));
        report.limits += usize::from(!verdict.limits.is_empty());
        report.redactions += usize::from(!verdict.redactions.is_empty() || recorded.ends_with("edit"));
        // The entries of a list are not in the records, and what was over a limit may be so again.
        let is_unknown = case.phase == Phase::List
            || (is_limited || !verdict.waits.is_empty()) && verdict.refusal.is_none();
        if is_unknown || policy.depends_on(&scope, &subject, &case.unknown()) {
            report.unknown.add(&case, rules);
            continue;
        }
        let before = match recorded {
            _ if case.approval.is_some() => "ask",
            "edit" | "would_edit" => "allow",
            other => other,
        };
        let after = match verdict.label() {
            "allow" if !verdict.approvals.is_empty() => "ask",
            other => other,
        };
        if before == after {
            report.same += 1;
        } else {
            report.changed.entry(format!("{before} -> {after}")).or_default().add(&case, rules);
        }
    }
    report
}

impl Changed {
    fn add(&mut self, case: &Case, rules: Vec<String>) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            let subject = case.subject();
            self.examples.push(Example {
                decision: case.decision.clone().unwrap_or_default(),
                agent: subject.agent.name.to_owned(),
                server: subject.server.to_owned(),
                method: subject.method.unwrap_or_default().to_owned(),
                tool: subject.name.map(ToOwned::to_owned),
                rules,
            });
        }
    }
}

/// The report in words.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "{} decisions: {} the same, {} not by rules (stops, guards, defaults)\n",
        report.decisions, report.same, report.not_by_rules
    );
    let unknown = (
        "depend on what is not in the records (`records.arguments: full` keeps arguments and hints)",
        &report.unknown,
    );
    let changed = report.changed.iter().map(|(change, changed)| (change.as_str(), changed));
    for (change, changed) in changed.chain(std::iter::once(unknown)).filter(|(_, changed)| changed.count > 0)
    {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{} {change}", changed.count);
        for example in &changed.examples {
            let Example { decision, agent, server, method, tool, rules } = example;
            let tool = tool.as_deref().unwrap_or_default();
            let _ = writeln!(text, "  {decision} {agent} {server} {method} {tool} [{}]", rules.join(", "));
        }
    }
    let not_replayed = [
        (report.limits, "limits, and are taken as within them"),
        (report.redactions, "redactions, and only whether they pass is compared"),
    ];
    for (count, what) in not_replayed.into_iter().filter(|(count, _)| *count > 0) {
        let _ = writeln!(text, "{count} meet {what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_with_examples() {
        let file = serde_saphyr::from_str(
            "version: 1
rules:
  - {id: wire, action: deny, match: {tool: wire}}
  - {id: big, action: deny, match: {tool: pay}, when: 'args.amount > 10'}",
        );
        let policy = Policy::compile(file.unwrap()).unwrap();
        let case = |tool: &str, rest: &str| {
            let text = format!(
                r#"{{"decision":"d-{tool}","agent":"coder","server":"bank:80","method":"tools/call","tool":"{tool}",{rest}}}"#
            );
            Case::parse(&text).unwrap()
        };
        let cases = [
            case("wire", r#""verdict":"allow""#),
            case("wire", r#""verdict":"deny","rules":["old"]"#),
            case("wire", r#""verdict":"deny","stop":"stp-1","rules":[]"#),
            case("wire", r#""verdict":"deny","rules":["guard:header-mismatch"]"#),
            case("read", r#""verdict":"deny","rules":["old"]"#),
            case("read", r#""verdict":"allow""#),
            case("pay", r#""verdict":"allow","arguments_digest":"sha256:0""#),
            case("pay", r#""verdict":"allow","arguments_digest":"sha256:0","arguments":{"amount":11}"#),
        ];
        let report = replay(cases.into_iter(), &policy);
        assert_eq!((report.decisions, report.same, report.not_by_rules, report.unknown.count), (8, 2, 2, 1));
        let changed: Vec<_> =
            report.changed.iter().map(|(change, changed)| (&**change, changed.count)).collect();
        assert_eq!(changed, [("allow -> deny", 2), ("deny -> allow", 1)]);
        assert_eq!(report.changed["allow -> deny"].examples[1].rules, ["big"]);
        assert!(render(&report).contains("d-wire coder bank:80 tools/call wire [wire]"));
    }
}
