//! Which cgroups are agents: the selectors of the configuration against the cgroup tree; and which programs.
//!
//! The outermost match wins and nothing below it is looked at, so that an agent cannot become another one by
//! making a cgroup with a fitting name inside its own.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_abi::MAX_CGROUP_LEVEL;
use anyhow::{Context, Result};
use globset::{GlobBuilder, GlobMatcher};

use crate::config::Config;
use crate::kernel::cgroup;
use crate::kubernetes::{ByUid, Kubelet, Place, Pod, Pods, Uid};

/// The compiled selectors.
#[derive(Debug)]
pub struct Selectors {
    selectors: Vec<Selector>,
    /// Where pods are, if any selector is about those.
    kubelet: Option<Kubelet>,
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
    Pods(Pods),
    Executable(GlobMatcher),
}

/// A cgroup that is an agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Below the cgroup v2 root, with a leading slash.
    pub path: String,
    pub name: String,
    /// Those of the entry that has found it, or of the pod.
    pub labels: Arc<BTreeMap<String, String>>,
    /// The pod whose cgroup it is.
    pub pod: Option<Arc<Pod>>,
}

/// What a walk over the tree saw.
#[derive(Debug, Default)]
pub struct Walk {
    pub found: Vec<Found>,
    /// Directories in which a new match could appear, and files that tell when a pod begins to run.
    pub watched: Vec<PathBuf>,
    /// The uppermost cgroups of the kubelet that have all its pods in them.
    pub pods: Vec<String>,
    /// Cgroups of pods that are no agents.
    pub spared: Vec<String>,
    /// Every pod that has a cgroup.
    pub uids: HashSet<Uid>,
}

/// What the selectors say of one cgroup that lies in no agent's.
enum Look {
    Agent(Found),
    /// A pod that is no agent as a whole.
    Spared,
    /// Agents may lie below it.
    Above,
    Outside,
}

impl Selectors {
    pub fn compile(config: &Config) -> Result<Selectors> {
        let compiled = config.agents.iter().map(|selector| {
            let rule = if let Some(path) = &selector.cgroup {
                let parts = path.split('/').filter(|part| !part.is_empty());
                Rule::Path(parts.map(glob).collect::<Result<_>>()?)
            } else if let Some(pods) = &selector.kubernetes {
                Rule::Pods(Pods::compile(pods)?)
            } else if let Some(path) = &selector.executable {
                Rule::Executable(glob(path)?)
            } else {
                Rule::Unit(glob(selector.systemd.as_deref().unwrap_or_default())?)
            };
            Ok(Selector { name: selector.name.clone(), rule, labels: Arc::new(selector.labels.clone()) })
        });
        let kubelet = config.has_pods().then(|| Kubelet::new(&config.kubernetes.cgroup_root));
        Ok(Selectors { selectors: compiled.collect::<Result<_>>()?, kubelet })
    }

    /// Walks the tree as far as a match is possible. Cgroups that vanish meanwhile are skipped.
    pub fn walk(&self, root: &Path, pods: &ByUid) -> Walk {
        let mut walk = Walk::default();
        self.visit(root, &mut Vec::new(), pods, &mut walk);
        walk
    }

    /// The agent whose cgroup this path is or lies in, as a walk would find it, whether it exists or not.
    pub fn agent_of(&self, path: &str, pods: &ByUid) -> Option<Found> {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        for length in 0..=parts.len() {
            match self.look(&parts[..length], pods) {
                Look::Agent(found) => return Some(found),
                Look::Above => {}
                Look::Spared if self.may_match_below(&parts[..length]) => {}
                Look::Spared | Look::Outside => return None,
            }
        }
        None
    }

    /// The pod in whose cgroup this path is, and that cgroup.
    pub fn pod_of(&self, path: &str) -> Option<(Uid, String)> {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        (1..=parts.len()).find_map(|length| match self.place(&parts[..length]) {
            Some(Place::Pod(uid)) => Some((uid, self::path(&parts[..length]))),
            _ => None,
        })
    }

    fn visit(&self, dir: &Path, parts: &mut Vec<String>, pods: &ByUid, walk: &mut Walk) {
        match self.place(parts) {
            Some(Place::Pod(uid)) => _ = walk.uids.insert(uid),
            Some(Place::Pods) if self.place(&parts[..parts.len() - 1]) != Some(Place::Pods) => {
                walk.pods.push(path(parts));
            }
            _ => {}
        }
        match self.look(parts, pods) {
            Look::Agent(found) => {
                // Its network namespace is known once its first process is there.
                walk.watched.extend(found.pod.is_some().then(|| dir.join(cgroup::EVENTS)));
                return walk.found.push(found);
            }
            Look::Spared => {
                walk.spared.push(path(parts));
                if !self.may_match_below(parts) {
                    return;
                }
            }
            Look::Above => {}
            Look::Outside => return,
        }
        walk.watched.push(dir.to_owned());
        let Ok(children) = std::fs::read_dir(dir) else { return };
        for child in children.flatten() {
            if child.file_type().is_ok_and(|kind| kind.is_dir()) {
                parts.push(child.file_name().to_string_lossy().into_owned());
                self.visit(&child.path(), parts, pods, walk);
                parts.pop();
            }
        }
    }

    /// The labels of an agent that no entry has found: of the one with just this name.
    pub fn labels_of(&self, name: &str) -> Arc<BTreeMap<String, String>> {
        let named = self.selectors.iter().find(|selector| selector.name == name);
        named.map(|selector| Arc::clone(&selector.labels)).unwrap_or_default()
    }

    /// Whether any program makes an agent of who executes it.
    pub fn has_executables(&self) -> bool {
        self.selectors.iter().any(|selector| matches!(selector.rule, Rule::Executable(_)))
    }

    /// The name and the labels of the agent that a process is for the program it executes.
    pub fn by_program(&self, program: &Path) -> Option<(String, Arc<BTreeMap<String, String>>)> {
        let selector = self.selectors.iter().find(|selector| match &selector.rule {
            Rule::Executable(glob) => glob.is_match(program),
            Rule::Path(_) | Rule::Unit(_) | Rule::Pods(_) => false,
        })?;
        let file = program.file_name().unwrap_or_default().to_string_lossy();
        Some((selector.name.replace("{executable}", &file), Arc::clone(&selector.labels)))
    }

    fn look(&self, parts: &[String], pods: &ByUid) -> Look {
        if !parts.is_empty()
            && let Some(found) = self.matches(parts)
        {
            return Look::Agent(found);
        }
        let place = self.place(parts);
        if let Some(Place::Pod(uid)) = &place
            && let Some(pod) = pods.get(uid)
        {
            return self.of_pod(parts, pod).map_or(Look::Spared, Look::Agent);
        }
        let is_above = parts.len() < MAX_CGROUP_LEVEL as usize
            && (matches!(place, Some(Place::Above | Place::Pods)) || self.may_match_below(parts));
        if is_above { Look::Above } else { Look::Outside }
    }

    fn place(&self, parts: &[String]) -> Option<Place> {
        self.kubelet.as_ref()?.place(parts)
    }

    fn of_pod(&self, parts: &[String], pod: &Arc<Pod>) -> Option<Found> {
        let selector = self.selectors.iter().find(|selector| match &selector.rule {
            Rule::Pods(pods) => pods.matches(pod),
            Rule::Path(_) | Rule::Unit(_) | Rule::Executable(_) => false,
        })?;
        Some(Found {
            path: path(parts),
            name: pod.name_by(&selector.name),
            labels: Arc::clone(&pod.labels),
            pod: Some(Arc::clone(pod)),
        })
    }

    fn matches(&self, parts: &[String]) -> Option<Found> {
        let last = parts.last()?;
        let selector = self.selectors.iter().find(|selector| match &selector.rule {
            Rule::Path(globs) => {
                globs.len() == parts.len() && globs.iter().zip(parts).all(|(glob, part)| glob.is_match(part))
            }
            Rule::Unit(glob) => glob.is_match(last),
            Rule::Pods(_) | Rule::Executable(_) => false,
        })?;
        let unit = last.rsplit_once('.').map_or(last.as_str(), |(unit, _)| unit);
        let name = selector.name.replace("{unit}", unit).replace("{cgroup}", last);
        Some(Found { path: path(parts), name, labels: Arc::clone(&selector.labels), pod: None })
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
            Rule::Pods(_) | Rule::Executable(_) => false,
        })
    }
}

/// Below the cgroup v2 root.
fn path(parts: &[String]) -> String {
    format!("/{}", parts.join("/"))
}

fn glob(pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    Ok(glob.with_context(|| format!("agents: glob {pattern:?}"))?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(agents: &str) -> Selectors {
        let config: Config = serde_saphyr::from_str(&format!("{{version: 1, agents: {agents}}}")).unwrap();
        Selectors::compile(&config).unwrap()
    }

    #[track_caller]
    fn check(yaml: &str, dirs: &[&str], expect: &[(&str, &str)]) {
        let root = tempfile::tempdir().unwrap();
        for dir in dirs {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let selectors = compile(yaml);
        let pods = ByUid::new();
        let mut found = selectors.walk(root.path(), &pods).found;
        found.sort_by(|a, b| a.path.cmp(&b.path));
        for dir in dirs {
            let known = selectors.agent_of(dir, &pods);
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
        let selectors = compile(yaml);
        let root = tempfile::tempdir().unwrap();
        for dir in ["s.slice/a-1.service", "s.slice/b-1.service", "c", "d"] {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let of = |labels: &BTreeMap<String, String>| labels.get("of").cloned().unwrap_or_default();
        let mut found: Vec<_> = selectors.walk(root.path(), &ByUid::new()).found;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<_> = found.iter().map(|found| (&*found.name, of(&found.labels))).collect();
        let expect =
            [("a-1", "a"), ("b-1", "b"), ("c", "c"), ("d", "")].map(|(name, of)| (name, of.to_owned()));
        assert_eq!(found, expect);
        let named = ["c", "d", "a-1", "{unit}x"].map(|name| of(&selectors.labels_of(name)));
        assert_eq!(named, ["c", "", "", ""]);
    }

    #[test]
    fn programs_make_agents_by_their_paths() {
        let selectors = compile(
            "[{name: claude, executable: /opt/claude/bin/claude, labels: {of: c}}, {name: '{executable}', executable: '/srv/*/agent-?'}]",
        );
        let by = |path: &str| selectors.by_program(Path::new(path)).map(|(name, _)| name);
        assert_eq!(by("/opt/claude/bin/claude").as_deref(), Some("claude"));
        assert_eq!(by("/srv/one/agent-7").as_deref(), Some("agent-7"));
        for path in ["/opt/claude/bin/claude2", "/srv/one/two/agent-7", "/srv/agent-7"] {
            assert_eq!(by(path), None, "{path}");
        }
        assert!(selectors.has_executables() && !compile("[{name: a, cgroup: /a}]").has_executables());
        assert_eq!(selectors.agent_of("/srv/one/agent-7", &ByUid::new()), None, "a cgroup is no program");
    }

    #[test]
    fn pods_are_agents_as_their_namespaces_and_labels_say() {
        let root = tempfile::tempdir().unwrap();
        let uid = |n: u8| format!("5a1d0c1e-0000-4000-8000-0000000000{n:02x}");
        let dirs = [
            format!("kubepods/besteffort/pod{}/container", uid(1)),
            format!("kubepods/pod{}", uid(2)),
            format!("kubepods/burstable/pod{}", uid(3)),
            format!("kubepods/burstable/pod{}", uid(4)),
        ];
        for dir in &dirs {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let pod = |namespace: &str, name: &str, label: &str| {
            let labels = Arc::new([("interlock.dev/agent".to_owned(), label.to_owned())].into());
            Arc::new(Pod { namespace: namespace.into(), name: name.into(), labels, ..Pod::default() })
        };
        let pods: ByUid = [
            (1, pod("agents", "coder", "true")),
            (2, pod("agents", "other", "false")),
            (3, pod("system", "coder", "true")),
        ]
        .map(|(n, pod)| (Uid::parse(&uid(n)).unwrap(), pod))
        .into();
        let selectors = compile(
            "[{name: '{namespace}/{pod}', kubernetes: {namespaces: ['agent*'], labels: {interlock.dev/agent: 'true'}}}]",
        );
        let mut walk = selectors.walk(root.path(), &pods);
        let found: Vec<_> = walk.found.iter().map(|found| (&*found.path, &*found.name)).collect();
        assert_eq!(found, [(&*format!("/kubepods/besteffort/pod{}", uid(1)), "agents/coder")]);
        walk.spared.sort();
        assert_eq!(walk.spared, [format!("/{}", dirs[2]), format!("/{}", dirs[1])], "and not who is unknown");
        assert_eq!((walk.pods, walk.uids.len()), (vec!["/kubepods".to_owned()], 4));
        let inside = format!("/{}", dirs[0]);
        assert_eq!(
            selectors.agent_of(&inside, &pods).map(|found| found.name).as_deref(),
            Some("agents/coder")
        );
        assert_eq!(selectors.agent_of(&inside, &ByUid::new()), None);
    }
}
