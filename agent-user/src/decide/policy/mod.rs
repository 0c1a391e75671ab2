//! The rules an operator writes, checked once when loaded and indexed so that a rule that cannot match costs a
//! call nothing.
//!
//! The file's shape is the contract of `interlock config schema`; unknown fields, unknown actions and duplicate
//! ids are errors that name the rule and the remedy.

mod file;
mod index;

use std::collections::HashSet;
use std::sync::Arc;

use globset::GlobSet;

use super::scope::Scope;
use super::stop::Level;
use super::subject::Subject;
use super::tripwire::Tripwire;
use super::{Refusal, Verdict};

use self::index::{Index, IndexBuilder, compile_globs, compile_server_globs};

pub use self::file::{Action, Bias, Defaults, Denials, Globs, Match, Mode, Phase, PolicyFile, RuleFile};

/// A checked, indexed policy.
#[derive(Debug)]
pub struct Policy {
    pub defaults: Defaults,
    rules: Vec<Rule>,
    /// Rules that name tools, by tool.
    by_tool: Index,
    /// Rules that name no tool but methods, by method.
    by_method: Index,
    /// Rules that name neither.
    unconditional: Vec<usize>,
}

#[derive(Debug)]
struct Rule {
    id: Arc<str>,
    mode: Mode,
    reason: Arc<str>,
    agent: Option<GlobSet>,
    server: Option<GlobSet>,
    method: Option<GlobSet>,
    /// With `action: stop`.
    tripwire: Option<Arc<Tripwire>>,
}

impl Default for Policy {
    /// No rules, the safe defaults.
    fn default() -> Policy {
        Policy {
            defaults: Defaults::default(),
            rules: Vec::new(),
            by_tool: Index::default(),
            by_method: Index::default(),
            unconditional: Vec::new(),
        }
    }
}

impl Policy {
    /// Checks and compiles a rules file. The error names the rule, by id and position, and what to do.
    pub fn compile(file: PolicyFile) -> Result<Policy, String> {
        if file.version != 1 {
            return Err(format!("version {} is not known; this interlock reads version 1", file.version));
        }
        if file.defaults.unseen_tool == Bias::Deny {
            return Err("defaults: `unseen_tool: deny` needs a tool baseline, which this version does not keep; use `allow`".into());
        }
        let mut policy = Policy { defaults: file.defaults, ..Policy::default() };
        let mut ids = HashSet::new();
        let (mut tools, mut methods) = (IndexBuilder::default(), IndexBuilder::default());
        for (position, rule) in file.rules.into_iter().enumerate() {
            if rule.id.is_empty() {
                return Err(format!("rule {}: `id` is empty; give it a name", position + 1));
            }
            if !ids.insert(rule.id.clone()) {
                return Err(format!(
                    "rule {}: id {:?} is used twice; ids must be unique",
                    position + 1,
                    rule.id
                ));
            }
            let context = |error: String| format!("rule {} ({}): {error}", position + 1, rule.id);
            if rule.phase != Phase::Request {
                return Err(context("`phase`: only `request` for now".to_owned()));
            }
            let matches = &rule.matches;
            if let Some(globs) = &matches.tool {
                tools.add(position, globs, "tool").map_err(context)?;
            } else if let Some(globs) = &matches.method {
                methods.add(position, globs, "method").map_err(context)?;
            } else {
                policy.unconditional.push(position);
            }
            let reason: Arc<str> = rule.reason.as_deref().unwrap_or("not allowed by policy").into();
            policy.rules.push(Rule {
                tripwire: compile_tripwire(&rule, &reason).map_err(context)?,
                agent: compile_globs(&matches.agent, "agent").map_err(context)?,
                server: compile_server_globs(&matches.server).map_err(context)?,
                method: compile_globs(&matches.method, "method").map_err(context)?,
                mode: rule.mode,
                reason,
                id: rule.id.into(),
            });
        }
        policy.by_tool = tools.build()?;
        policy.by_method = methods.build()?;
        Ok(policy)
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules that can fire for this agent and any of these names of the server.
    pub fn scope(&self, agent: &str, server_names: &[String]) -> Scope {
        let mut scope = Scope::with_rules(self.rules.len());
        for (index, rule) in self.rules.iter().enumerate() {
            if rule.concerns(agent, server_names) {
                scope.insert(index);
            }
        }
        scope
    }

    /// The rules that count the refusal of what cannot be read: those that ask for no method and no name.
    pub fn tripwires_of_unread(&self, agent: &str, server_names: &[String]) -> Vec<Arc<Tripwire>> {
        let rules = self.unconditional.iter().map(|index| &self.rules[*index]);
        let counts = |rule: &&Rule| rule.tripwire.as_ref().is_some_and(|tripwire| tripwire.after.is_some());
        let rules = rules.filter(counts).filter(|rule| rule.concerns(agent, server_names));
        rules.filter_map(|rule| rule.tripwire.clone()).collect()
    }

    /// Judges a message by the rules of `scope`. All of them are looked at; the first enforced one is the reason.
    pub(super) fn judge(&self, scope: &Scope, subject: &Subject<'_>) -> Verdict {
        let mut verdict = Verdict::default();
        let Some(method) = subject.method else { return verdict };
        if scope.is_empty() {
            return verdict;
        }
        let mut candidates = self.unconditional.clone();
        if let Some(name) = subject.name {
            self.by_tool.find(name, &mut candidates);
        }
        self.by_method.find(method, &mut candidates);
        candidates.sort_unstable();
        candidates.dedup();
        for index in candidates {
            let rule = &self.rules[index];
            if !scope.contains(index) || rule.method.as_ref().is_some_and(|globs| !globs.is_match(method)) {
                continue;
            }
            if let Some(tripwire) = &rule.tripwire {
                verdict.tripwires.push(Arc::clone(tripwire));
                if tripwire.after.is_some() {
                    // It fires when its number is full, which only the counts know.
                    continue;
                }
            }
            verdict.fired.push(Arc::clone(&rule.id));
            match rule.mode {
                Mode::Observe => verdict.would_deny = true,
                Mode::Enforce if verdict.refusal.is_none() => {
                    let (id, reason) = (Arc::clone(&rule.id), Arc::clone(&rule.reason));
                    verdict.refusal = Some(Refusal::Rule { id, reason });
                }
                Mode::Enforce => {}
            }
        }
        verdict
    }
}

impl Rule {
    fn concerns(&self, agent: &str, server_names: &[String]) -> bool {
        let is_server = |globs: &GlobSet| server_names.iter().any(|name| globs.is_match(name));
        self.agent.as_ref().is_none_or(|globs| globs.is_match(agent))
            && self.server.as_ref().is_none_or(is_server)
    }
}

fn compile_tripwire(rule: &RuleFile, reason: &Arc<str>) -> Result<Option<Arc<Tripwire>>, String> {
    if rule.action == Action::Stop {
        let after = rule.after.map(Denials::check).transpose()?;
        return Ok(Some(Arc::new(Tripwire {
            rule: rule.id.as_str().into(),
            mode: rule.mode,
            after,
            level: rule.level.unwrap_or(Level::Refuse),
            reason: Arc::clone(reason),
        })));
    }
    let misplaced = [("after", rule.after.is_some()), ("level", rule.level.is_some())];
    match misplaced.into_iter().find(|(_, is_given)| *is_given) {
        Some((field, _)) => {
            Err(format!("`{field}` goes with `action: stop`; leave it out, or stop the agent"))
        }
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use globset::Glob;

    use super::*;

    fn policy(rules: &str) -> Policy {
        let file = serde_saphyr::from_str(&format!("version: 1\nrules:\n{rules}")).unwrap();
        Policy::compile(file).unwrap()
    }

    #[track_caller]
    fn check(rules: &str, agent: &str, method: &str, name: Option<&str>, expect: &[&str]) {
        let policy = policy(rules);
        let scope = policy.scope(agent, &["bank.internal", "10.0.0.7:443"].map(str::to_owned));
        let verdict = policy.judge(&scope, &Subject { method: Some(method), name, ..Subject::default() });
        let fired: Vec<&str> = verdict.fired.iter().map(|id| &**id).collect();
        assert_eq!(fired, expect);
        assert_eq!(verdict.refusal.is_some(), !expect.is_empty());
    }

    const CALL: &str = "tools/call";

    #[test]
    fn fields_are_anded_and_lists_are_ored() {
        let rules = r#"
  - {id: a, action: deny, match: {agent: "pay/*", server: "*.internal", method: tools/call, tool: [wire, "pay_*"]}}"#;
        check(rules, "pay/1", CALL, Some("wire"), &["a"]);
        check(rules, "pay/1", CALL, Some("pay_now"), &["a"]);
        check(rules, "pay/1", CALL, Some("read"), &[]);
        check(rules, "other", CALL, Some("wire"), &[]);
        check(rules, "pay/1", "prompts/get", Some("wire"), &[]);
        check(&rules.replace("*.internal", "*.example"), "pay/1", CALL, Some("wire"), &[]);
    }

    #[test]
    fn server_is_matched_by_name_and_by_address() {
        for server in ["bank.*", "BANK.internal", "10.0.0.7:443", "10.0.*"] {
            check(
                &format!("  - {{id: a, action: deny, match: {{server: '{server}'}}}}"),
                "x",
                "ping",
                None,
                &["a"],
            );
        }
    }

    #[test]
    fn every_rule_that_fires_is_listed() {
        let rules = "  - {id: a, action: deny}\n  - {id: b, action: deny, match: {method: 'tools/*'}}\n  - {id: c, action: deny, match: {tool: t}}";
        check(rules, "x", CALL, Some("t"), &["a", "b", "c"]);
        check(rules, "x", "ping", None, &["a"]);
    }

    #[test]
    fn observe_speaks_and_does_not_act() {
        let policy = policy("  - {id: a, action: deny, mode: observe}");
        let verdict = policy.judge(
            &policy.scope("x", &[]),
            &Subject { method: Some(CALL), name: Some("t"), ..Subject::default() },
        );
        assert!(verdict.refusal.is_none());
        assert_eq!(verdict.label(), "would_deny");
    }

    #[test]
    fn responses_meet_no_request_rule() {
        let policy = policy("  - {id: a, action: deny}");
        let verdict = policy
            .judge(&policy.scope("x", &[]), &Subject { method: None, name: None, ..Subject::default() });
        assert!(verdict.refusal.is_none() && verdict.fired.is_empty());
    }

    #[test]
    fn a_rule_that_stops_refuses_what_it_matches_unless_it_counts() {
        let policy = policy(
            "  - {id: now, action: stop, match: {tool: wire}, level: isolate}
  - {id: later, action: stop, after: {denials: 5, within: 60s}}
  - {id: seen, action: stop, mode: observe, match: {tool: read}}",
        );
        let judge = |name| {
            policy.judge(
                &policy.scope("x", &[]),
                &Subject { method: Some(CALL), name: Some(name), ..Subject::default() },
            )
        };
        let tripwires = |verdict: &Verdict| -> Vec<String> {
            verdict.tripwires.iter().map(|tripwire| tripwire.rule.to_string()).collect()
        };
        let verdict = judge("wire");
        assert!(matches!(&verdict.refusal, Some(Refusal::Rule { id, .. }) if &**id == "now"));
        assert_eq!((tripwires(&verdict), verdict.fired.len()), (vec!["now".into(), "later".into()], 1));
        assert_eq!(verdict.tripwires[0].level, Level::Isolate);
        let verdict = judge("read");
        assert_eq!(verdict.label(), "would_deny");
        assert_eq!(tripwires(&verdict), ["later", "seen"]);
        let verdict = judge("echo");
        assert!(verdict.refusal.is_none() && verdict.fired.is_empty());
        assert_eq!(tripwires(&verdict), ["later"]);
    }

    #[test]
    fn what_cannot_be_read_is_counted_by_rules_that_ask_for_nothing_in_it() {
        let policy = policy(
            "  - {id: any, action: stop, match: {agent: 'pay/*', server: bank}, after: {denials: 5, within: 60s}}
  - {id: call, action: stop, match: {method: 'tools/*'}, after: {denials: 5, within: 60s}}
  - {id: now, action: stop}
  - {id: deny, action: deny}",
        );
        let count = |agent, server: &str| policy.tripwires_of_unread(agent, &[server.to_owned()]).len();
        assert_eq!([count("pay/1", "bank"), count("x", "bank"), count("pay/1", "shop")], [1, 0, 0]);
    }

    #[track_caller]
    fn check_error(text: &str, expect: &str) {
        let error = match serde_saphyr::from_str::<PolicyFile>(text) {
            Ok(file) => Policy::compile(file).unwrap_err(),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        check_error("version: 2", "version 2 is not known");
        check_error("version: 1\nrules: [{id: a, action: deny, tol: x}]", "tol");
        check_error("version: 1\nrules: [{id: a, action: explode}]", "explode");
        check_error("version: 1\nrules: [{id: a, action: deny}, {id: a, action: deny}]", "used twice");
        check_error(
            "version: 1\nrules: [{id: a, action: deny, match: {tool: 'x['}}]",
            "rule 1 (a): match.tool",
        );
        check_error("version: 1\nrules: [{id: a, action: deny, match: {tool: ''}}]", "empty glob");
        check_error("version: 1\ndefaults: {opaque: maybe}", "maybe");
        let stop = |fields: &str| format!("version: 1\nrules: [{{id: a, action: stop, {fields}}}]");
        check_error(
            &stop("after: {denials: 0, within: 60s}"),
            "rule 1 (a): after.denials: 0: give 1 to 1000",
        );
        check_error(&stop("after: {denials: 5, within: 0s}"), "after.within: 0s: give more than nothing");
        check_error(&stop("after: {denials: 5, within: -1s}"), "no more than 24h");
        check_error(&stop("after: {denials: 5, within: 25h}"), "no more than 24h");
        check_error(&stop("after: {denials: 5}"), "within");
        check_error(&stop("after: {denials: 5, within: 60}"), "60");
        check_error(&stop("level: explode"), "explode");
        check_error(
            "version: 1\nrules: [{id: a, action: deny, level: kill}]",
            "`level` goes with `action: stop`",
        );
        check_error(
            "version: 1\nrules: [{id: a, action: deny, after: {denials: 1, within: 1s}}]",
            "`after` goes with `action: stop`",
        );
    }

    /// The index must never change a decision: compare with looking at every rule.
    #[test]
    fn index_agrees_with_every_rule_looked_at() {
        let globs = ["a", "b*", "*c", "a*c", "?", "*"];
        let names = ["a", "b", "bc", "ac", "abc", "zz", "x/a", "x/c"];
        let mut rules = String::new();
        for (i, tool) in globs.iter().enumerate() {
            for (j, method) in globs.iter().enumerate() {
                rules += &format!(
                    "  - {{id: r{i}{j}, action: deny, match: {{tool: '{tool}', method: '{method}'}}}}\n"
                );
            }
            rules += &format!("  - {{id: m{i}, action: deny, match: {{method: '{tool}'}}}}\n");
        }
        let policy = policy(&rules);
        let scope = policy.scope("x", &[]);
        let matches = |glob: &str, text: &str| Glob::new(glob).unwrap().compile_matcher().is_match(text);
        for method in names {
            for name in names {
                let verdict = policy
                    .judge(&scope, &Subject { method: Some(method), name: Some(name), ..Subject::default() });
                let fired: HashSet<String> = verdict.fired.iter().map(|id| id.to_string()).collect();
                let mut expect = HashSet::new();
                for (i, tool) in globs.iter().enumerate() {
                    for (j, glob) in globs.iter().enumerate() {
                        if matches(tool, name) && matches(glob, method) {
                            expect.insert(format!("r{i}{j}"));
                        }
                    }
                    if matches(tool, method) {
                        expect.insert(format!("m{i}"));
                    }
                }
                assert_eq!(fired, expect, "{method} {name}");
            }
        }
    }
}
