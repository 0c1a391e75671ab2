//! Rules of the API server: what it told of last of each `ClusterAgentPolicy` and `AgentPolicy`. Kept on disk, so that a
//! daemon that starts while no API server answers goes by them.
//!
//! A policy that cannot be taken changes nothing: of that object the last good rules stay in force.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;
use tracing::warn;

use super::resources::MAX_RULES;
use crate::decide::policy::{Author, Globs, Policy, PolicyFile, RuleFile};
use crate::state;

/// Below `state_dir`.
const FILE: &str = "policies.json";
const VERSION: u32 = 1;

/// Which object; those for the whole cluster come first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    /// `None`: it is a `ClusterAgentPolicy`.
    pub namespace: Option<String>,
    pub name: String,
}

impl fmt::Display for Name {
    /// Ids of its rules begin like this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "AgentPolicy/{namespace}/{}", self.name),
            None => write!(f, "ClusterAgentPolicy/{}", self.name),
        }
    }
}

/// Reads the rules of an object. The error names the rule and the remedy.
pub fn compile(of: &Name, rules: &[Value]) -> Result<Vec<RuleFile>, String> {
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
    Ok(compiled)
}

fn compile_one(of: &Name, rule: &Value) -> Result<RuleFile, String> {
    let mut rule = RuleFile::deserialize(rule).map_err(|error| error.to_string())?;
    let is_of_id = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if !(1..=63).contains(&rule.id.len()) || !rule.id.chars().all(is_of_id) {
        return Err("`id`: give 1 to 63 letters, digits, `.`, `_` or `-`".to_owned());
    }
    rule.id = format!("{of}/{}", rule.id);
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

/// The policies that nodes go by.
#[derive(Debug)]
pub struct Policies {
    all: Mutex<All>,
    changed: Notify,
    file: PathBuf,
}

#[derive(Debug, Default)]
struct All {
    held: BTreeMap<Name, Held>,
    is_unsaved: bool,
}

/// What is known of one object.
#[derive(Debug, Default)]
struct Held {
    /// The last good rules, as the object has them.
    written: Vec<Value>,
    rules: Vec<RuleFile>,
    fault: Option<Fault>,
}

/// What an object says now cannot be taken.
#[derive(Debug)]
struct Fault {
    written: Vec<Value>,
    error: String,
    is_told: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    policies: Vec<Saved>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    #[serde(flatten)]
    name: Name,
    rules: Vec<Value>,
}

impl Policies {
    /// With what an earlier daemon knew. A file that cannot be read is one that is not there: the API server tells all
    /// again.
    pub fn load(state_dir: &Path) -> Policies {
        let file = state_dir.join(FILE);
        let saved = read(&file).unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "rules of the API server do not hold until it tells of them");
            Vec::new()
        });
        let mut all = All::default();
        for Saved { name, rules } in saved {
            all.set(name, rules);
        }
        Policies { all: Mutex::new(all), changed: Notify::new(), file }
    }

    /// The rules in force, in order.
    pub fn rules(&self) -> Vec<RuleFile> {
        self.all().held.values().flat_map(|held| held.rules.iter().cloned()).collect()
    }

    /// How many objects have rules in force.
    pub fn count(&self) -> usize {
        self.all().held.values().filter(|held| !held.rules.is_empty()).count()
    }

    /// What is wrong, by object.
    pub fn faults(&self) -> BTreeMap<String, String> {
        let all = self.all();
        let faults = all.held.iter().filter_map(|(name, held)| Some((name, held.fault.as_ref()?)));
        faults.map(|(name, fault)| (name.to_string(), fault.error.clone())).collect()
    }

    /// What is wrong, each fault once.
    pub fn new_faults(&self) -> Vec<String> {
        let mut all = self.all();
        let faults = all.held.iter_mut().filter_map(|(name, held)| Some((name, held.fault.as_mut()?)));
        let new = |(name, fault): (&Name, &mut Fault)| {
            let is_told = std::mem::replace(&mut fault.is_told, true);
            (!is_told).then(|| format!("{name}: {}", fault.error))
        };
        faults.filter_map(new).collect()
    }

    /// Waits for the next change. Changes since the last call count.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// An object says this.
    pub(super) fn set(&self, name: Name, rules: Vec<Value>) {
        self.change(|all| all.set(name, rules));
    }

    /// These are all objects that are for the cluster, or all that are for namespaces.
    pub(super) fn set_all(&self, namespaced: bool, objects: BTreeMap<Name, Vec<Value>>) {
        self.change(|all| {
            let before = all.held.len();
            all.held.retain(|name, _| name.namespace.is_some() != namespaced || objects.contains_key(name));
            let mut is_changed = before != all.held.len();
            for (name, rules) in objects {
                is_changed |= all.set(name, rules);
            }
            is_changed
        });
    }

    pub(super) fn delete(&self, name: &Name) {
        self.change(|all| all.held.remove(name).is_some());
    }

    fn change(&self, change: impl FnOnce(&mut All) -> bool) {
        let mut all = self.all();
        if !change(&mut all) {
            return;
        }
        all.is_unsaved = true;
        // On disk before they are in force: a daemon that starts the moment after goes by the same.
        if let Err(error) = self.write(&mut all) {
            warn!(error = format!("{error:#}"), "rules of the API server are in force and not saved yet");
        }
        drop(all);
        self.changed.notify_one();
    }

    /// Writes to disk what could not be written when it changed.
    pub fn save(&self) -> Result<()> {
        // Held while it is written, so that nothing newer is written over.
        self.write(&mut self.all())
    }

    fn write(&self, all: &mut All) -> Result<()> {
        if !all.is_unsaved {
            return Ok(());
        }
        let good = all.held.iter().filter(|(_, held)| !held.written.is_empty());
        let policies = good.map(|(name, held)| Saved { name: name.clone(), rules: held.written.clone() });
        let content = Content { version: VERSION, policies: policies.collect() };
        let bytes = serde_json::to_vec(&content)?;
        state::replace(&self.file, &bytes).with_context(|| format!("write {}", self.file.display()))?;
        all.is_unsaved = false;
        Ok(())
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Whether that changes anything.
    fn set(&mut self, name: Name, written: Vec<Value>) -> bool {
        let compiled = compile(&name, &written);
        let held = self.held.entry(name).or_default();
        match compiled {
            Ok(_) if held.fault.is_none() && held.written == written => return false,
            Ok(rules) => *held = Held { written, rules, fault: None },
            Err(_) if held.fault.as_ref().is_some_and(|fault| fault.written == written) => return false,
            Err(error) => held.fault = Some(Fault { written, error, is_told: false }),
        }
        true
    }
}

fn read(file: &Path) -> Result<Vec<Saved>> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.with_context(|| format!("read {}", file.display()))?,
    };
    let content: Content = serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
    ensure!(content.version == VERSION, "{}: version {} is not known", file.display(), content.version);
    Ok(content.policies)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn name(namespace: Option<&str>, name: &str) -> Name {
        Name { namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }

    fn deny(id: &str) -> Value {
        json!({"id": id, "action": "deny", "match": {"tool": "x"}})
    }

    fn ids(policies: &Policies) -> Vec<String> {
        policies.rules().into_iter().map(|rule| rule.id).collect()
    }

    #[track_caller]
    fn is_refused(of: &Name, rule: Value, why: &str) {
        let error = compile(of, &[deny("good"), rule]).expect_err("it is refused");
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
        assert!(compile(&name(None, "all"), &[elsewhere]).is_ok());
        let many: Vec<Value> = (0..=MAX_RULES).map(|n| deny(&n.to_string())).collect();
        assert!(compile(&of, &many).expect_err("too many").contains("at most 1000"));
    }

    #[test]
    fn what_cannot_be_taken_leaves_what_was_good() {
        let dir = tempfile::tempdir().unwrap();
        let policies = Policies::load(dir.path());
        let (team, all) = (name(Some("agents"), "team"), name(None, "all"));
        policies.set(team.clone(), vec![deny("a")]);
        policies.set(all.clone(), vec![deny("b")]);
        let good = ["ClusterAgentPolicy/all/b", "AgentPolicy/agents/team/a"];
        assert_eq!(ids(&policies), good);
        policies.set(team.clone(), vec![json!({"id": "a", "action": "deny", "x": 1})]);
        assert_eq!(ids(&policies), good);
        assert_eq!(policies.new_faults().len(), 1);
        assert!(policies.new_faults().is_empty() && policies.faults().len() == 1);
        assert_eq!(ids(&Policies::load(dir.path())), good, "the next daemon");
        policies.set(team.clone(), vec![deny("c")]);
        assert!(policies.faults().is_empty());
        policies.delete(&all);
        assert_eq!(ids(&policies), ["AgentPolicy/agents/team/c"]);
        // What was deleted while nobody listened.
        policies.set(all.clone(), vec![deny("b")]);
        policies.set_all(true, BTreeMap::new());
        assert_eq!(ids(&policies), ["ClusterAgentPolicy/all/b"]);
        policies.set_all(false, [(name(None, "new"), vec![deny("d")])].into());
        assert_eq!(ids(&Policies::load(dir.path())), ["ClusterAgentPolicy/new/d"]);
    }

    #[test]
    fn a_broken_file_is_none_at_all() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{}", r#"{"version": 2, "policies": []}"#] {
            fs::write(dir.path().join(FILE), text).unwrap();
            assert!(Policies::load(dir.path()).rules().is_empty(), "{text:?}");
        }
    }
}
