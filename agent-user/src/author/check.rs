//! Rules that are valid, and yet cannot be what their author meant.

use std::collections::{BTreeSet, HashSet};

use globset::Glob;
use serde::Serialize;

use super::case::Case;
use crate::decide::condition::Condition;
use crate::decide::policy::{Action, Globs, Match, Mode, Phase, PolicyFile, RuleFile, place};

/// Something to look at again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    pub rule: String,
    /// From 1, as is the column.
    pub line: u64,
    pub column: u64,
    pub text: String,
}

/// Names that were seen lately.
#[derive(Debug, Default)]
pub struct Seen {
    agents: HashSet<String>,
    namespaces: HashSet<String>,
    servers: HashSet<String>,
    methods: HashSet<String>,
    tools: HashSet<String>,
}

/// A field of `match` that is given.
type Given<'a> = (&'static str, &'a Globs);

impl Seen {
    /// Collects the names in some decisions.
    pub fn of(cases: impl Iterator<Item = Case>) -> Seen {
        let mut seen = Seen::default();
        for case in cases {
            let subject = case.subject();
            seen.agents.insert(subject.agent.name.to_owned());
            seen.namespaces.insert(subject.agent.namespace().to_owned());
            seen.servers.extend(subject.servers.iter().cloned());
            seen.methods.extend(subject.method.map(ToOwned::to_owned));
            seen.tools.extend(subject.name.map(ToOwned::to_owned));
        }
        seen
    }

    fn names(&self, field: &str) -> Option<&HashSet<String>> {
        match field {
            "agent" => Some(&self.agents),
            "namespace" => Some(&self.namespaces),
            "server" => Some(&self.servers),
            "method" => Some(&self.methods),
            "tool" => Some(&self.tools),
            _ => None,
        }
    }
}

/// Looks at the rules of a good file. `text` is what it was read from, `seen` what the last records name.
pub fn check(file: &PolicyFile, text: &str, seen: Option<&Seen>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for (position, rule) in file.rules.iter().enumerate() {
        let mut warn = |field: &str, warning: String| {
            let (line, column) = place(text, position, field).unwrap_or_default();
            warnings.push(Warning { rule: rule.id.clone(), line, column, text: warning });
        };
        if let Some(warning) = never(rule) {
            warn("match", warning);
        }
        for (method, almost) in misspelt(rule) {
            warn("match", format!("match.method: {method:?} is no method of MCP; did you mean {almost:?}?"));
        }
        if let Some(constant) = constant(rule) {
            let what = match (constant, rule.action) {
                (true, _) => "so the rule is the same without it",
                (false, Action::AllowOnly) => "so the rule allows nothing",
                (false, _) => "so the rule never matches",
            };
            warn("when", format!("the condition is always {constant}, {what}"));
        }
        if let Some(other) = file.rules.iter().find(|other| shadows(other, rule)) {
            warn("id", format!("it changes nothing: {:?} refuses all that it matches", other.id));
        }
        for (field, glob) in seen.into_iter().flat_map(|seen| unseen(rule, seen)) {
            warn("match", format!("match.{field}: {glob:?} matches nothing in the records"));
        }
    }
    warnings
}

/// Why no message can match.
fn never(rule: &RuleFile) -> Option<String> {
    let phase = rule.phase.unwrap_or_default();
    let listed = phase == Phase::List || rule.action == Action::Hide;
    let never =
        |globs: &Globs, why: &str| Some(format!("it never matches: {} {why}", globs.patterns().join(", ")));
    let are_all =
        |globs: &Globs, known: &[&str]| globs.patterns().iter().all(|glob| known.contains(&glob.as_str()));
    let are_none = |globs: &Globs, known: &[&str]| {
        !globs.patterns().iter().any(|glob| known.iter().any(|method| covers(glob, method)))
    };
    if let Some(server) = &rule.matches.server
        && server.patterns().iter().all(|glob| glob.contains('/') && !glob.contains(['[', '{', '\\']))
    {
        return never(server, "has a `/`; a server is a host or an address, with or without a port");
    }
    match &rule.matches.method {
        Some(methods) if rule.matches.tool.is_some() && !listed && are_none(methods, &NAMING) => {
            never(methods, "names no tool, prompt, resource or task")
        }
        Some(methods) if phase == Phase::Response && are_all(methods, &AGENTS_OWN) => {
            never(methods, "has no response")
        }
        Some(methods) if phase == Phase::Request && are_all(methods, &SERVERS_OWN) => {
            never(methods, "comes from servers: give it `phase: response`")
        }
        Some(methods) if phase == Phase::List && are_none(methods, &LISTED) => never(methods, "has no list"),
        _ => None,
    }
}

/// Notifications of agents.
const AGENTS_OWN: [&str; 2] = ["notifications/initialized", "notifications/roots/list_changed"];
/// Notifications of servers.
const SERVERS_OWN: [&str; 6] = [
    "notifications/message",
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/elicitation/complete",
];
/// Methods by which rules know an entry of a list.
const LISTED: [&str; 7] = [
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
];
/// Others that a rule may name.
const OTHERS: [&str; 12] = [
    "initialize",
    "ping",
    "server/discover",
    "logging/setLevel",
    "completion/complete",
    "sampling/createMessage",
    "elicitation/create",
    "roots/list",
    "tasks/list",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/tasks/status",
];

/// Methods that are not known, and the known ones that they are almost.
fn misspelt(rule: &RuleFile) -> Vec<(&str, &'static str)> {
    let known = || NAMING.into_iter().chain(AGENTS_OWN).chain(SERVERS_OWN).chain(LISTED).chain(OTHERS);
    let almost = |glob: &str| {
        let distance = |known: &&'static str| strsim::damerau_levenshtein(glob, known);
        let is_unknown = known().all(|known| known != glob) && is_literal(glob);
        known().filter(|known| is_unknown && distance(known) <= 2).min_by_key(distance)
    };
    let methods = rule.matches.method.as_ref().map(Globs::patterns).unwrap_or_default();
    methods.iter().filter_map(|glob| Some((glob.as_str(), almost(glob)?))).collect()
}

/// Methods that name something.
const NAMING: [&str; 9] = [
    "tools/call",
    "prompts/get",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "tasks/result",
];

fn constant(rule: &RuleFile) -> Option<bool> {
    Condition::compile(rule.when.as_deref()?, rule.phase.unwrap_or_default()).ok()?.constant()
}

/// Whether one rule refuses whatever another one matches.
fn shadows(by: &RuleFile, rule: &RuleFile) -> bool {
    let refuses = by.action == Action::Deny && by.mode == Mode::Enforce && by.when.is_none();
    let is_about_less = by.id != rule.id
        && by.phase.unwrap_or_default() == rule.phase.unwrap_or_default()
        && !matches!(rule.action, Action::AllowOnly | Action::Hide | Action::Stop)
        // Of two that are the same the later one is to blame.
        && (given(&by.matches) != given(&rule.matches) || rule.when.is_some() || rule.action != Action::Deny || by.id < rule.id);
    refuses && is_about_less && {
        let others = given(&rule.matches);
        given(&by.matches).iter().all(|(field, globs)| {
            let other = others.iter().find(|(other, _)| other == field);
            other.is_some_and(|(_, other)| {
                let is_covered = |glob: &String| globs.patterns().iter().any(|by| covers(by, glob));
                other.patterns().iter().all(is_covered)
            })
        })
    }
}

/// Whether a glob matches whatever another one does, as far as can be told without trying.
fn covers(glob: &str, other: &str) -> bool {
    glob == other
        || glob == "*"
        || is_literal(other) && Glob::new(glob).is_ok_and(|glob| glob.compile_matcher().is_match(other))
}

fn is_literal(glob: &str) -> bool {
    !glob.contains(['*', '?', '[', '{', '\\'])
}

fn given(matches: &Match) -> Vec<Given<'_>> {
    let fields = [
        ("agent", &matches.agent),
        ("namespace", &matches.namespace),
        ("server", &matches.server),
        ("method", &matches.method),
        ("tool", &matches.tool),
        ("workflow", &matches.workflow),
        ("session", &matches.session),
    ];
    fields.into_iter().filter_map(|(name, globs)| Some((name, globs.as_ref()?))).collect()
}

/// Globs that match no name that was seen.
fn unseen<'a>(rule: &'a RuleFile, seen: &Seen) -> BTreeSet<(&'static str, &'a str)> {
    let mut unseen = BTreeSet::new();
    for (field, globs) in given(&rule.matches) {
        let Some(names) = seen.names(field) else { continue };
        for glob in globs.patterns() {
            let pattern = if field == "server" { glob.to_ascii_lowercase() } else { glob.clone() };
            let matcher = Glob::new(&pattern).map(|glob| glob.compile_matcher());
            if matcher.is_ok_and(|matcher| !names.iter().any(|name| matcher.is_match(name))) {
                unseen.insert((field, glob.as_str()));
            }
        }
    }
    unseen
}

/// The warnings in words, one line each.
pub fn render(warnings: &[Warning], file: &str) -> String {
    let line = |warning: &Warning| {
        format!(
            "{file}:{}:{}: warning: rule {}: {}\n",
            warning.line, warning.column, warning.rule, warning.text
        )
    };
    warnings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_warnings(rules: &str, expect: &[(&str, &str)]) {
        let text = format!("version: 1\nrules:\n{rules}");
        let file: PolicyFile = serde_saphyr::from_str(&text).unwrap();
        let seen = r#"{"agent":"coder","server":"bank:80","method":"tools/call","tool":"wire"}"#;
        let seen = Seen::of(std::iter::once(Case::parse(seen).unwrap()));
        let warnings = check(&file, &text, Some(&seen));
        assert_eq!(warnings.len(), expect.len(), "{warnings:?}");
        for (warning, (rule, part)) in warnings.iter().zip(expect) {
            assert!(warning.rule == *rule && warning.text.contains(part) && warning.line > 2, "{warning:?}");
        }
    }

    #[test]
    fn rules_that_cannot_be_meant_are_named() {
        check_warnings("  - {id: a, action: deny, match: {agent: coder, tool: 'w*', server: BANK}}", &[]);
        check_warnings(
            "  - {id: a, action: deny, match: {method: tools/list, tool: wire}}",
            &[("a", "never matches"), ("a", "match.method: \"tools/list\" matches nothing")],
        );
        check_warnings("  - {id: a, action: hide, match: {method: tools/call, tool: wire}}", &[]);
        check_warnings(
            "  - {id: a, action: deny, when: '1 > 2'}",
            &[("a", "false, so the rule never matches")],
        );
        check_warnings("  - {id: a, action: allow_only, when: '1 > 2'}", &[("a", "allows nothing")]);
        check_warnings(
            "  - {id: a, action: deny, match: {server: 'http://*'}}",
            &[("a", "has a `/`"), ("a", "records")],
        );
        let unseen = ("a", "matches nothing in the records");
        let phase = |phase: &str, method: &str, expect: &[(&str, &str)]| {
            check_warnings(
                &format!(
                    "  - {{id: a, action: redact, redact: {{patterns: [keys]}}, phase: {phase}, match: {{method: '{method}'}}}}"
                ),
                expect,
            );
        };
        phase("response", "notifications/initialized", &[("a", "has no response"), unseen]);
        phase("request", "notifications/message", &[("a", "`phase: response`"), unseen]);
        phase("list", "ping", &[("a", "has no list"), unseen]);
        phase("request", "tool/call", &[("a", "did you mean \"tools/call\"?"), unseen]);
        for (name, method) in [
            ("response", "notifications/message"),
            ("request", "n*"),
            ("list", "tools/list"),
            ("request", "my/method"),
        ] {
            phase(name, method, &[unseen]);
        }
        for (name, method) in [("list", "tools/*"), ("response", "tools/call")] {
            phase(name, method, &[]);
        }
        check_warnings(
            "  - {id: a, action: deny, match: {agent: coder, tool: [wire, rob]}}",
            &[("a", "match.tool: \"rob\"")],
        );
    }

    #[test]
    fn a_rule_behind_a_wider_one_changes_nothing() {
        let wide = "  - {id: wide, action: deny, match: {tool: 'w*'}}\n";
        let narrow = "  - {id: narrow, action: deny, match: {tool: wire, agent: coder}, when: 'size > 9'}\n";
        check_warnings(&format!("{wide}{narrow}"), &[("narrow", "\"wide\" refuses")]);
        check_warnings(&format!("{narrow}{wide}"), &[("narrow", "\"wide\" refuses")]);
        check_warnings(&format!("{wide}{}", wide.replace("wide", "other")), &[("wide", "\"other\"")]);
        let observed = wide.replace("match", "mode: observe, match");
        check_warnings(&format!("{observed}{narrow}"), &[]);
    }
}
