//! Rules of the API server: what it told of last of each `ClusterAgentPolicy` and `AgentPolicy`.

use serde::Deserialize as _;
use serde_json::Value;

use super::held::{Content, Held, Name};
use super::resources::MAX_RULES;
use crate::decide::policy::{Author, Globs, Policy, PolicyFile, RuleFile};

/// The policies that nodes go by.
pub type Policies = Held<Rules>;

/// The rules of one object. Their ids begin with it.
#[derive(Debug)]
pub struct Rules(Vec<RuleFile>);

impl Content for Rules {
    const FILE: &'static str = "policies.json";
    const MEMBERS: [&'static str; 2] = ["policies", "rules"];
    const WHAT: &'static str = "rules of the API server";

    fn kind(name: &Name) -> &'static str {
        if name.namespace.is_some() { "AgentPolicy" } else { "ClusterAgentPolicy" }
    }

    fn compile(of: &Name, rules: &[Value]) -> Result<Rules, String> {
        if rules.len() > MAX_RULES {
            return Err(format!("{} rules: a policy has at most {MAX_RULES}; make several", rules.len()));
        }
        let compiled = rules.iter().enumerate().map(|(position, rule)| {
            let id = rule["id"].as_str().unwrap_or_default();
            compile_one(of, rule).map_err(|error| format!("rule {} ({id}): {error}", position + 1))
        });
        let compiled: Vec<RuleFile> = compiled.collect::<Result<_, _>>()?;
        Policy::compile(PolicyFile { rules: compiled.clone(), ..PolicyFile::default() })
            .map_err(|fault| fault.to_string())?;
        Ok(Rules(compiled))
    }
}

impl Policies {
    /// The rules in force, in order.
    pub fn rules(&self) -> Vec<RuleFile> {
        self.each(|_, rules| rules.0.clone()).concat()
    }
}

fn compile_one(of: &Name, rule: &Value) -> Result<RuleFile, String> {
    let mut rule = RuleFile::deserialize(rule).map_err(|error| error.to_string())?;
    let is_of_id = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if !(1..=63).contains(&rule.id.len()) || !rule.id.chars().all(is_of_id) {
        return Err("`id`: give 1 to 63 letters, digits, `.`, `_` or `-`".to_owned());
    }
    rule.id = format!("{}/{}", Rules::id(of), rule.id);
    rule.author = Author::Cluster;
    if let Some(namespace) = &of.namespace {
        if rule.matches.namespace.is_some() {
            return Err("match.namespace: it is for its own namespace alone; leave it out".to_owned());
        }
        rule.matches.namespace = Some(Globs::One(namespace.clone()));
        rule.author = Author::Namespace;
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn name(namespace: Option<&str>, name: &str) -> Name {
        Name { namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }

    fn deny(id: &str) -> Value {
        json!({"id": id, "action": "deny", "match": {"tool": "x"}})
    }

    #[track_caller]
    fn is_refused(of: &Name, rule: Value, why: &str) {
        let error = Rules::compile(of, &[deny("good"), rule]).expect_err("it is refused");
        assert!(error.starts_with("rule 2 (") && error.contains(why), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        let of = name(Some("agents"), "team");
        is_refused(&of, json!({"id": "a", "action": "deny", "whn": "true"}), "unknown field `whn`");
        is_refused(&of, json!({"id": "a", "action": "deny", "when": "nobody.x"}), "when: ");
        is_refused(&of, json!({"id": "a/b", "action": "deny"}), "`id`");
        is_refused(&of, json!({"action": "deny"}), "missing field `id`");
        is_refused(&of, deny("good"), "used twice");
        let elsewhere = json!({"id": "a", "action": "deny", "match": {"namespace": "other"}});
        is_refused(&of, elsewhere.clone(), "its own namespace alone");
        assert!(Rules::compile(&name(None, "all"), &[elsewhere]).is_ok());
        let many: Vec<Value> = (0..=MAX_RULES).map(|n| deny(&n.to_string())).collect();
        assert!(Rules::compile(&of, &many).expect_err("too many").contains("at most 1000"));
    }

    #[test]
    fn rules_are_named_by_their_object_and_those_of_the_cluster_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let policies = Policies::load(dir.path());
        policies.set(name(Some("agents"), "team"), &[deny("a")]);
        policies.set(name(None, "all"), &[deny("b"), deny("c")]);
        let ids = |policies: &Policies| -> Vec<String> {
            policies.rules().into_iter().map(|rule| rule.id).collect()
        };
        let expect = ["ClusterAgentPolicy/all/b", "ClusterAgentPolicy/all/c", "AgentPolicy/agents/team/a"];
        assert_eq!(ids(&policies), expect);
        assert_eq!(ids(&Policies::load(dir.path())), expect);
    }

    /// Daemons of other versions read and write it.
    #[test]
    fn the_file_is_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let policies = Policies::load(dir.path());
        policies.set(name(Some("agents"), "team"), &[deny("a")]);
        let text = fs::read_to_string(dir.path().join(Rules::FILE)).unwrap();
        let expect = r#"{"version":1,"policies":[{"namespace":"agents","name":"team","rules":[{"action":"deny","id":"a","match":{"tool":"x"}}]}]}"#;
        assert_eq!(text, expect);
    }
}
