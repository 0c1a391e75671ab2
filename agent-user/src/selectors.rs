//! Which cgroups are agents: the selectors of the configuration against the cgroup tree.
//!
//! The outermost match wins and nothing below it is looked at, so that an agent cannot become another one by
//! making a cgroup with a fitting name inside its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_abi::MAX_CGROUP_LEVEL;
use anyhow::{Context, Result};
use globset::{GlobBuilder, GlobMatcher};

use crate::config::AgentSelector;

/// The compiled selectors.
#[derive(Debug)]
pub struct Selectors {
    selectors: Vec<Selector>,
}

#[derive(Debug)]
struct Selector {
    name: String,
    rule: Rule,
    labels: Arc<BTreeMap<String, String>>,
}

#[derive(Debug)]
enum Rule {
    /// One matcher per path component.
    Path(Vec<GlobMatcher>),
    Unit(GlobMatcher),
}

/// A cgroup that is an agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Below the cgroup v2 root, with a leading slash.
    pub path: String,
    pub name: String,
    /// Those of the entry that has found it.
    pub labels: Arc<BTreeMap<String, String>>,
}

/// What a walk over the tree saw.
#[derive(Debug, Default)]
pub struct Walk {
    pub found: Vec<Found>,
    /// Directories in which a new match could appear.
    pub watched: Vec<PathBuf>,
}

/// What the selectors say of one cgroup that lies in no agent's.
enum Look {
    Agent(Found),
    /// Agents may lie below it.
    Above,
    Outside,
}

impl Selectors {
    pub fn compile(selectors: &[AgentSelector]) -> Result<Selectors> {
        let compiled = selectors.iter().map(|selector| {
            let rule = match (&selector.cgroup, &selector.systemd) {
                (Some(path), _) => {
                    let parts = path.split('/').filter(|part| !part.is_empty());
                    Rule::Path(parts.map(glob).collect::<Result<_>>()?)
                }
                (None, unit) => Rule::Unit(glob(unit.as_deref().unwrap_or_default())?),
            };
            Ok(Selector { name: selector.name.clone(), rule, labels: Arc::new(selector.labels.clone()) })
        });
        Ok(Selectors { selectors: compiled.collect::<Result<_>>()? })
    }

    /// Walks the tree as far as a match is possible. Cgroups that vanish meanwhile are skipped.
    pub fn walk(&self, root: &Path) -> Walk {
        let mut walk = Walk::default();
        self.visit(root, &mut Vec::new(), &mut walk);
        walk
    }

    /// The agent whose cgroup this path is or lies in, as a walk would find it, whether it exists or not.
    pub fn agent_of(&self, path: &str) -> Option<Found> {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        for length in 0..=parts.len() {
            match self.look(&parts[..length]) {
                Look::Agent(found) => return Some(found),
                Look::Above => {}
                Look::Outside => return None,
            }
        }
        None
    }

    fn visit(&self, dir: &Path, parts: &mut Vec<String>, walk: &mut Walk) {
        match self.look(parts) {
            Look::Agent(found) => return walk.found.push(found),
            Look::Above => {}
            Look::Outside => return,
        }
        walk.watched.push(dir.to_owned());
        let Ok(children) = std::fs::read_dir(dir) else { return };
        for child in children.flatten() {
            if child.file_type().is_ok_and(|kind| kind.is_dir()) {
                parts.push(child.file_name().to_string_lossy().into_owned());
                self.visit(&child.path(), parts, walk);
                parts.pop();
            }
        }
    }

    /// The labels of an agent that no entry has found: of the one with just this name.
    pub fn labels_of(&self, name: &str) -> Arc<BTreeMap<String, String>> {
        let named = self.selectors.iter().find(|selector| selector.name == name);
        named.map(|selector| Arc::clone(&selector.labels)).unwrap_or_default()
    }

    fn look(&self, parts: &[String]) -> Look {
        if !parts.is_empty()
            && let Some((name, labels)) = self.matches(parts)
        {
            return Look::Agent(Found { path: format!("/{}", parts.join("/")), name, labels });
        }
        let is_above = parts.len() < MAX_CGROUP_LEVEL as usize && self.may_match_below(parts);
        if is_above { Look::Above } else { Look::Outside }
    }

    fn matches(&self, parts: &[String]) -> Option<(String, Arc<BTreeMap<String, String>>)> {
        let last = parts.last()?;
        let selector = self.selectors.iter().find(|selector| match &selector.rule {
            Rule::Path(globs) => {
                globs.len() == parts.len() && globs.iter().zip(parts).all(|(glob, part)| glob.is_match(part))
            }
            Rule::Unit(glob) => glob.is_match(last),
        })?;
        let unit = last.rsplit_once('.').map_or(last.as_str(), |(unit, _)| unit);
        let name = selector.name.replace("{unit}", unit).replace("{cgroup}", last);
        Some((name, Arc::clone(&selector.labels)))
    }

    fn may_match_below(&self, parts: &[String]) -> bool {
        self.selectors.iter().any(|selector| match &selector.rule {
            Rule::Path(globs) => {
                globs.len() > parts.len() && globs.iter().zip(parts).all(|(glob, part)| glob.is_match(part))
            }
            // Units live below slices, and users' units below their manager's service.
            Rule::Unit(_) => {
                parts.last().is_none_or(|part| part.ends_with(".slice") || part.starts_with("user@"))
            }
        })
    }
}

fn glob(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    Ok(glob.with_context(|| format!("agents: glob {pattern:?}"))?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(yaml: &str, dirs: &[&str], expect: &[(&str, &str)]) {
        let selectors: Vec<AgentSelector> = serde_saphyr::from_str(yaml).unwrap();
        let root = tempfile::tempdir().unwrap();
        for dir in dirs {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let selectors = Selectors::compile(&selectors).unwrap();
        let mut found = selectors.walk(root.path()).found;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        for dir in dirs {
            let known = selectors.agent_of(dir);
            let walked = |found: &Found| format!("/{dir}/").starts_with(&format!("{}/", found.path));
            assert_eq!(known.as_ref(), found.iter().find(|found| walked(found)), "{dir}");
        }
        let found: Vec<(&str, &str)> = found.iter().map(|found| (&*found.path, &*found.name)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_star_stays_within_one_part() {
        check(
            "[{name: coder, cgroup: '/agents.slice/coder*'}]",
            &["agents.slice/coder-1", "agents.slice/other", "agents.slice/deep/coder-2", "coder-3"],
            &[("/agents.slice/coder-1", "coder")],
        );
    }

    #[test]
    fn units_are_found_below_slices_and_name_their_agent() {
        check(
            "[{name: '{unit}', systemd: 'claude-*.service'}]",
            &[
                "system.slice/claude-a.service",
                "user.slice/user-1.slice/user@1.service/app.slice/claude-b.service",
            ],
            &[
                ("/system.slice/claude-a.service", "claude-a"),
                ("/user.slice/user-1.slice/user@1.service/app.slice/claude-b.service", "claude-b"),
            ],
        );
    }

    #[test]
    fn nothing_inside_an_agent_is_another_agent() {
        check(
            "[{name: a, cgroup: '/s/a'}, {name: b, cgroup: '/s/*/b'}]",
            &["s/a/b", "s/c/b"],
            &[("/s/a", "a"), ("/s/c/b", "b")],
        );
    }

    #[test]
    fn an_agent_has_the_labels_of_what_has_found_it() {
        let yaml = "[{name: '{unit}', systemd: 'a-*.service', labels: {of: a}}, \
                     {name: '{unit}', systemd: 'b-*.service', labels: {of: b}}, \
                     {name: c, cgroup: '/c', labels: {of: c}}, {name: d, cgroup: '/d'}]";
        let selectors: Vec<AgentSelector> = serde_saphyr::from_str(yaml).unwrap();
        let selectors = Selectors::compile(&selectors).unwrap();
        let root = tempfile::tempdir().unwrap();
        for dir in ["s.slice/a-1.service", "s.slice/b-1.service", "c", "d"] {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let of = |labels: &BTreeMap<String, String>| labels.get("of").cloned().unwrap_or_default();
        let mut found: Vec<_> = selectors.walk(root.path()).found;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<_> = found.iter().map(|found| (&*found.name, of(&found.labels))).collect();
        let expect =
            [("a-1", "a"), ("b-1", "b"), ("c", "c"), ("d", "")].map(|(name, of)| (name, of.to_owned()));
        assert_eq!(found, expect);
        let named = ["c", "d", "a-1", "{unit}x"].map(|name| of(&selectors.labels_of(name)));
        assert_eq!(named, ["c", "", "", ""]);
    }
}
