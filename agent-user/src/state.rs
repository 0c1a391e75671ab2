//! What must outlive the daemon: the numbers of agents, the stops in force, and where agents were held. One JSON file, replaced whole, so
//! that a crash leaves the old one or the new one.
//!
//! A file that cannot be read is a fault, not an empty state: to go on without the stops it held would release them.
//! With a fault the daemon holds everybody, knows nobody by name and saves nothing, until a person has repaired it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{error, warn};

use crate::decide::stop::{Escalation, Level, Operator, Selector, Stop, Terms};

const FILE: &str = "state.json";
const VERSION: u32 = 2;
/// Where agents' numbers begin while those in the file are not known: none of them may be another agent's.
const UNKNOWN_FROM: u32 = 1 << 31;
/// How many cgroups are remembered: `interlock hold` makes all of them at boot.
const CGROUPS: usize = 256;

/// The durable state and where it lives.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    content: Mutex<Content>,
    /// The last stop number given out, saved or not.
    last_stop: AtomicU64,
    /// Why nothing can be read or saved.
    fault: Option<String>,
    /// Something is not on disk that should be.
    unsaved: AtomicBool,
    /// Keeps a second daemon off the directory.
    _lock: Option<Flock<File>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    /// The last stop number given out. Numbers are never used again.
    last_stop: u64,
    /// The last agent number given out. Numbers are never used again: pinned maps and sockets may still hold them.
    last_agent: u32,
    agents: BTreeMap<String, u32>,
    stops: Vec<SavedStop>,
    /// Where agents were held, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cgroups: Vec<String>,
}

/// A stop as files keep it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedStop {
    id: String,
    scope: Terms,
    level: Level,
    reason: String,
    by: Operator,
    issued_at: Timestamp,
    #[serde(default)]
    escalations: Vec<Escalation>,
}

impl State {
    /// Reads the state, or begins an empty one where there is no file. What cannot be read is a [`State::fault`].
    ///
    /// # Errors
    /// Another daemon uses it.
    pub fn load(dir: &Path) -> Result<State> {
        let path = dir.join(FILE);
        let made = fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()));
        let (lock, content) = match made.and_then(|()| lock(dir)) {
            Ok(lock) => (Some(lock), read(&path)),
            Err(error) if error.is::<InUse>() => return Err(error),
            Err(error) => (None, Err(error)),
        };
        let (content, fault) = match content {
            Ok(content) => (content, None),
            Err(fault) => {
                let fault = format!("{fault:#}");
                error!(fault, "state not read: everybody is held isolated until it is repaired");
                // Later than any number that was given out, and than any that will be.
                let last_stop = u64::try_from(Timestamp::now().as_second()).unwrap_or(u64::MAX / 2);
                (Content { last_stop, last_agent: UNKNOWN_FROM, ..Content::new() }, Some(fault))
            }
        };
        let last_stop = AtomicU64::new(content.last_stop);
        let unsaved = AtomicBool::new(false);
        Ok(State { path, content: Mutex::new(content), last_stop, fault, unsaved, _lock: lock })
    }

    /// The numbers of agents by name, as saved, for whoever is not the daemon. None where nothing was ever saved.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn saved_agents(dir: &Path) -> Result<BTreeMap<String, u32>> {
        Ok(read(&dir.join(FILE))?.agents)
    }

    /// Why the state cannot be read, with the remedy.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The stops that were in force when the state was saved.
    pub fn stops(&self) -> Result<Vec<Arc<Stop>>> {
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        content.stops.iter().map(|saved| saved.restore().map(Arc::new)).collect()
    }

    /// The number of an agent; a new name gets a new number. Where that cannot be saved it holds all the same, and is
    /// saved with whatever is next: an agent must not run free because a disk is full, and no number the kernel knows
    /// is given out twice (see [`State::reserve_numbers`]).
    pub fn agent_number(&self, name: &str) -> u32 {
        let new = |content: &mut Content| {
            let next = content.last_agent + 1;
            let number = *content.agents.entry(name.to_owned()).or_insert(next);
            content.last_agent = content.last_agent.max(number);
            number
        };
        let known = self.content.lock().unwrap_or_else(PoisonError::into_inner).agents.get(name).copied();
        known.unwrap_or_else(|| {
            self.update(new).unwrap_or_else(|error| {
                warn!(agent = name, error = format!("{error:#}"), "an agent's number is not saved yet");
                new(&mut self.content.lock().unwrap_or_else(PoisonError::into_inner))
            })
        })
    }

    /// Something is not on disk that should be, and [`State::save_stops`] may mend that.
    pub fn is_unsaved(&self) -> bool {
        self.unsaved.load(Ordering::Relaxed)
    }

    /// Every agent that ever was, by number.
    pub fn agent_names(&self) -> HashMap<u32, String> {
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        content.agents.iter().map(|(name, number)| (*number, name.clone())).collect()
    }

    /// Gives out no agent number up to `used`: the kernel knows somebody by them.
    pub fn reserve_numbers(&self, used: u32) {
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        content.last_agent = content.last_agent.max(used);
    }

    /// The cgroups that are remembered, by path below the cgroup root.
    pub fn cgroups(&self) -> Vec<String> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner).cgroups.clone()
    }

    /// Remembers where agents are held. Where that makes too many, the oldest are forgotten, those that `keep` asks
    /// for last. Writes once if any is new, and not at all otherwise; what cannot be saved is saved with whatever is
    /// next.
    pub fn remember_cgroups(&self, seen: &[String], keep: impl Fn(&str) -> bool) {
        let remember = |content: &mut Content| {
            let cgroups = &mut content.cgroups;
            let known: HashSet<String> = cgroups.iter().cloned().collect();
            cgroups.extend(seen.iter().filter(|path| !known.contains(*path)).cloned());
            let mut surplus = cgroups.len().saturating_sub(CGROUPS);
            cgroups.retain(|path| {
                let goes = surplus > 0 && known.contains(path) && !keep(path);
                surplus -= usize::from(goes);
                !goes
            });
            cgroups.drain(..surplus);
        };
        let known = self.cgroups();
        if seen.iter().all(|path| known.contains(path)) {
            return;
        }
        if let Err(error) = self.update(remember) {
            warn!(error = format!("{error:#}"), "where agents are held is not saved yet");
            remember(&mut self.content.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// A stop id that no stop has had. It becomes durable with the stop: an order must not wait for the disk before
    /// it takes force.
    pub fn next_stop_id(&self) -> String {
        format!("stp-{}", self.last_stop.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Saves the set of stops in force.
    pub fn save_stops(&self, stops: &[Arc<Stop>]) -> Result<()> {
        let last_stop = self.last_stop.load(Ordering::Relaxed);
        self.update(|content| {
            content.stops = stops.iter().map(|stop| SavedStop::from(&**stop)).collect();
            content.last_stop = last_stop;
        })
    }

    /// Writes a changed content, and keeps it only once it is on disk.
    fn update<T>(&self, change: impl FnOnce(&mut Content) -> T) -> Result<T> {
        if let Some(fault) = &self.fault {
            bail!("{fault} (repair that, then restart the daemon)");
        }
        let mut content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = content.clone();
        let value = change(&mut changed);
        let bytes = serde_json::to_vec(&changed)?;
        let written = replace(&self.path, &bytes);
        self.unsaved.store(written.is_err(), Ordering::Relaxed);
        written.with_context(|| format!("write {}", self.path.display()))?;
        *content = changed;
        Ok(value)
    }
}

impl Content {
    fn new() -> Content {
        Content {
            version: VERSION,
            last_stop: 0,
            last_agent: 0,
            agents: BTreeMap::new(),
            stops: Vec::new(),
            cgroups: Vec::new(),
        }
    }
}

impl SavedStop {
    /// The stop itself. Errors name what is wrong with it.
    pub fn restore(&self) -> Result<Stop> {
        Ok(Stop {
            id: self.id.as_str().into(),
            selector: Selector::compile(self.scope.clone()).map_err(anyhow::Error::msg)?,
            level: self.level,
            reason: self.reason.as_str().into(),
            by: self.by.clone(),
            issued_at: self.issued_at,
            escalations: self.escalations.clone(),
            refused: Arc::default(),
        })
    }
}

impl From<&Stop> for SavedStop {
    fn from(stop: &Stop) -> SavedStop {
        SavedStop {
            id: stop.id.to_string(),
            scope: stop.selector.terms().clone(),
            level: stop.level,
            reason: stop.reason.to_string(),
            by: stop.by.clone(),
            issued_at: stop.issued_at,
            escalations: stop.escalations.clone(),
        }
    }
}

/// Reads a state file; one that is not there is empty. Errors carry the remedy.
fn read(path: &Path) -> Result<Content> {
    let remedy =
        || format!("state {}: restore it, or remove it to start without the stops it holds", path.display());
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Content::new()),
        bytes => bytes.with_context(remedy)?,
    };
    let mut value: Value = serde_json::from_slice(&bytes).with_context(remedy)?;
    match value["version"].as_u64() {
        Some(1) => upgrade_from_1(&mut value),
        Some(version) if version != u64::from(VERSION) => {
            bail!(
                "state {}: version {version} is not known; run the interlock that wrote it",
                path.display()
            );
        }
        _ => {}
    }
    let content: Content = serde_json::from_value(value).with_context(remedy)?;
    for stop in &content.stops {
        stop.restore().with_context(remedy)?;
    }
    Ok(content)
}

/// Version 1 knew stops of agents only.
fn upgrade_from_1(state: &mut Value) {
    state["version"] = VERSION.into();
    for stop in state["stops"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if let Some(agent) = stop.remove("agent") {
            stop.insert("scope".to_owned(), json!({"agent": agent}));
        }
    }
}

fn lock(dir: &Path) -> Result<Flock<File>> {
    let path = dir.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => anyhow::Error::new(InUse(path)),
        errno => anyhow!("lock {}: {errno}", path.display()),
    })
}

/// A daemon has the directory already.
#[derive(Debug)]
pub struct InUse(PathBuf);

impl std::fmt::Display for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: another daemon uses this state_dir; give this one its own", self.0.display())
    }
}

impl std::error::Error for InUse {}

/// Replaces a file so that it is whole at every moment and durable on return.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(id: &str) -> Arc<Stop> {
        let terms = Terms { agent: Some("coder*".into()), ..Terms::default() };
        Arc::new(Stop {
            id: id.into(),
            selector: Selector::compile(terms).unwrap(),
            level: Level::Isolate,
            reason: "odd transfers".into(),
            by: Operator { uid: Some(0), pid: Some(1), user: "root".into(), ..Operator::default() },
            issued_at: Timestamp::now(),
            escalations: Vec::new(),
            refused: Arc::default(),
        })
    }

    #[test]
    fn stops_and_numbers_survive() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::load(dir.path()).unwrap();
        assert_eq!(state.agent_number("a"), 1);
        assert_eq!(state.agent_number("b"), 2);
        let id = state.next_stop_id();
        state.save_stops(&[stop(&id)]).unwrap();

        drop(state);
        let state = State::load(dir.path()).unwrap();
        assert_eq!(state.agent_number("b"), 2);
        let stops = state.stops().unwrap();
        assert_eq!((&*stops[0].id, stops[0].level), ("stp-1", Level::Isolate));
        assert!(stops[0].selector.matches_agent("coder-7"));
        assert_eq!(state.next_stop_id(), "stp-2");
    }

    #[test]
    fn stop_that_could_not_be_dropped_stays_and_an_agent_has_its_number_anyhow() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::load(dir.path()).unwrap();
        state.save_stops(&[stop("stp-1")]).unwrap();
        // A directory where the new file should go: every write fails.
        fs::create_dir(dir.path().join("state.new")).unwrap();
        state.save_stops(&[]).unwrap_err();
        assert_eq!((state.agent_number("a"), state.agent_number("b"), state.agent_number("a")), (1, 2, 1));
        assert!(state.is_unsaved());
        fs::remove_dir(dir.path().join("state.new")).unwrap();
        assert_eq!(state.agent_number("c"), 3);
        assert!(!state.is_unsaved());
        drop(state);
        let state = State::load(dir.path()).unwrap();
        assert_eq!(state.stops().unwrap().len(), 1, "the stop that was not released");
        assert_eq!(state.agent_number("b"), 2, "saved with the next one");
    }

    #[test]
    fn stops_of_an_older_version_are_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let old = json!({"version": 1, "last_stop": 4, "last_agent": 0, "agents": {}, "stops": [{
            "id": "stp-4", "agent": "coder*", "level": "isolate", "reason": "odd",
            "by": {"uid": 0, "pid": 1, "user": "root"}, "issued_at": "2026-11-29T16:09:23Z",
        }]});
        fs::write(dir.path().join(FILE), old.to_string()).unwrap();
        let stops = State::load(dir.path()).unwrap().stops().unwrap();
        assert!(stops[0].selector.matches_agent("coder-7") && stops[0].selector.is_whole_agents());
    }

    #[test]
    fn cgroups_survive_and_those_that_are_known_cost_no_write() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        let before = json!({"version": 2, "last_stop": 0, "last_agent": 0, "agents": {}, "stops": []});
        fs::write(&file, before.to_string()).unwrap();
        let paths = ["/a/x".to_owned(), "/a/y".to_owned()];
        let state = State::load(dir.path()).unwrap();
        assert_eq!((state.fault(), state.cgroups().len()), (None, 0), "a file without cgroups is good");
        state.remember_cgroups(&paths, |_| false);
        drop(state);
        let state = State::load(dir.path()).unwrap();
        assert_eq!(state.cgroups(), paths);
        fs::remove_file(&file).unwrap();
        state.remember_cgroups(&paths[1..], |_| false);
        assert!(!file.exists());
    }

    #[test]
    fn too_many_cgroups_push_out_the_oldest_that_nobody_needs() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::load(dir.path()).unwrap();
        let paths: Vec<String> = (0..CGROUPS + 3).map(|n| format!("/agents/{n}")).collect();
        state.remember_cgroups(&paths[..CGROUPS], |_| false);
        state.remember_cgroups(&paths[CGROUPS..CGROUPS + 2], |path| {
            path == "/agents/0" || path == "/agents/2"
        });
        let known = state.cgroups();
        assert_eq!(known.len(), CGROUPS);
        assert_eq!((&*known[0], &*known[1], &*known[2]), ("/agents/0", "/agents/2", "/agents/4"));
        state.remember_cgroups(&paths[CGROUPS + 2..], |_| true);
        assert_eq!(
            (&*state.cgroups()[0], state.cgroups().len()),
            ("/agents/2", CGROUPS),
            "bounded all the same"
        );
        assert_eq!(state.cgroups().last(), paths.last());
    }

    #[test]
    fn numbers_the_kernel_knows_are_not_given_out() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::load(dir.path()).unwrap();
        state.reserve_numbers(7);
        assert_eq!(state.agent_number("a"), 8);
    }

    #[test]
    fn a_second_daemon_is_kept_off() {
        let dir = tempfile::tempdir().unwrap();
        let _first = State::load(dir.path()).unwrap();
        assert!(format!("{:#}", State::load(dir.path()).unwrap_err()).contains("another daemon"));
    }

    #[test]
    fn unreadable_state_is_a_fault_with_a_remedy_and_is_left_as_it_is() {
        for text in ["{", r#"{"version": 9}"#] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(FILE), text).unwrap();
            let state = State::load(dir.path()).unwrap();
            let fault = state.fault().unwrap();
            assert!(fault.contains("restore it") || fault.contains("that wrote it"), "{fault}");
            assert!(state.agent_number("a") > UNKNOWN_FROM, "nobody else's number");
            let error = format!("{:#}", state.save_stops(&[]).unwrap_err());
            assert!(error.contains("then restart"), "{error}");
            assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), text);
        }
    }
}
