//! The agents of this host: who they are, which cgroups are theirs, and that the kernel holds each of them.

mod executables;
mod holding;
mod pods;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent_abi::{AgentState, MODE_HELD, MODE_ISOLATED};
use anyhow::{Context, Result, bail};
use arc_swap::ArcSwap;
use tracing::{info, warn};

use self::pods::OfPods;
use crate::config::Unclassified;
use crate::decide::stop::{Level, Selector};
use crate::gate::Gate;
use crate::identity::Agent;
use crate::kernel::{Kernel, Maps, cgroup};
use crate::kubernetes::{ByUid, Directory};
use crate::record::entry::{Entry, Halt};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::selectors::{Selectors, Walk};
use crate::state::State;

/// A cgroup that is an agent's and is not held.
#[derive(Debug)]
pub struct Unheld {
    path: String,
    agent: String,
    error: anyhow::Error,
}

impl Unheld {
    /// Says so, loudly: what the agent does now is seen by nobody.
    pub fn warn(&self) {
        warn!(cgroup = self.path, agent = self.agent, error = format!("{:#}", self.error), "agent not held");
    }
}

type Labels = Arc<BTreeMap<String, String>>;

/// Time for the command of `interlock exec` to enter its cgroup.
const ENTER_WITHIN: Duration = Duration::from_secs(10);

/// The directory of agents.
pub struct Agents {
    kernel: Arc<Kernel>,
    state: Arc<State>,
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
    log: Arc<Log>,
    tree: Tree,
    /// Read once per connection, without a lock.
    by_number: ArcSwap<HashMap<u32, Arc<Agent>>>,
    held: Mutex<BTreeMap<String, Held>>,
    /// Held while states are read from the stops and written to the kernel, so that no older one is written last.
    applying: Mutex<()>,
    /// An order is being carried out, which halts what is there: that has not come later.
    carrying_out: AtomicBool,
    pods: OfPods,
}

/// Where agents are found, and which.
#[derive(Debug)]
pub struct Tree {
    /// The cgroup v2 mount.
    pub root: PathBuf,
    /// Below the root; its children are made by `interlock exec`.
    pub exec_cgroup: String,
    pub selectors: Selectors,
    /// The pods of this node, if any may be an agent.
    pub directory: Option<Arc<Directory>>,
    pub unclassified: Unclassified,
}

/// An order is carried out until this is dropped.
#[derive(Debug)]
pub struct CarryingOut<'a>(&'a AtomicBool);

impl Drop for CarryingOut<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// A cgroup the kernel holds.
#[derive(Clone, Debug)]
pub struct Held {
    /// The kernel's id of the cgroup: its inode.
    pub id: u64,
    pub agent: Arc<Agent>,
    /// When `interlock exec` made it; such a cgroup is removed when its last process has gone.
    made: Option<Instant>,
    /// The processes that came after a stop and were halted last.
    halted: Vec<u32>,
}

impl Agents {
    pub fn new(
        kernel: Arc<Kernel>,
        state: Arc<State>,
        gate: Arc<Gate>,
        metrics: Arc<Metrics>,
        log: Arc<Log>,
        tree: Tree,
    ) -> Agents {
        let by_number = ArcSwap::from_pointee(HashMap::new());
        Agents {
            kernel,
            state,
            gate,
            metrics,
            log,
            tree,
            by_number,
            held: Mutex::default(),
            applying: Mutex::default(),
            carrying_out: AtomicBool::new(false),
            pods: OfPods::default(),
        }
    }

    /// Call it before the order is published. Orders are carried out one at a time.
    pub fn carry_out(&self) -> CarryingOut<'_> {
        self.carrying_out.store(true, Ordering::SeqCst);
        CarryingOut(&self.carrying_out)
    }

    fn held_now(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent behind a number the kernel reported.
    pub fn by_number(&self, number: u32) -> Option<Arc<Agent>> {
        self.by_number.load().get(&number).cloned()
    }

    /// The agents known now whose names a stop is for.
    pub fn matching(&self, selector: &Selector) -> Vec<Arc<Agent>> {
        let mut agents: Vec<_> = self
            .by_number
            .load()
            .values()
            .filter(|agent| agent.as_whom(|whom| selector.matches_agent(whom)))
            .cloned()
            .collect();
        agents.sort_by(|a, b| a.name.cmp(&b.name));
        agents
    }

    /// Every cgroup held, by path below the cgroup root.
    pub fn held(&self) -> Vec<(String, Held)> {
        self.held_now().iter().map(|(path, held)| (path.clone(), held.clone())).collect()
    }

    /// The absolute directory of a cgroup path.
    pub fn dir(&self, path: &str) -> PathBuf {
        self.tree.root.join(path.trim_start_matches('/'))
    }

    /// The cgroups of an agent: their paths below the root, and their directories.
    pub fn cgroups_of(&self, number: u32) -> Vec<(String, PathBuf)> {
        let held = self.held_now();
        let own = held.iter().filter(|(_, held)| held.agent.number == number);
        own.map(|(path, _)| (path.clone(), self.dir(path))).collect()
    }

    /// The agent in whose cgroup a process is. Also `Some` for cgroups nested below an agent's.
    pub fn of_cgroup(&self, path: &str) -> Option<Arc<Agent>> {
        let held = self.held_now();
        let inside = |agent: &str| {
            path.strip_prefix(agent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        held.iter().find(|(agent, _)| inside(agent)).map(|(_, held)| Arc::clone(&held.agent))
    }

    /// Makes the kernel's state of an agent what the stops in force say.
    pub fn apply_stops(&self, agent: &Agent) -> Result<()> {
        let hold = || state(agent.as_whom(|whom| self.gate.rules().hold_of_agent(whom)));
        self.apply(hold, |state| self.kernel.set_state(agent.number, state.unwrap_or(AgentState::RUN)))
    }

    /// Makes what the kernel holds every agent to, known or not, what the stops in force say.
    pub fn apply_to_everybody(&self) -> Result<()> {
        let hold = || state(self.gate.rules().hold_of_everybody());
        self.apply(hold, |state| self.kernel.set_everybody(state))
    }

    /// Writes a state to the kernel. The command line writes there too when we do not answer, and leaves its order
    /// before it writes for the last time: so whoever writes over it sees the order before or after.
    fn apply(
        &self,
        hold: impl Fn() -> Option<AgentState>,
        write: impl Fn(Option<AgentState>) -> Result<()>,
    ) -> Result<()> {
        let _applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = hold();
        if wanted.is_some_and(|state| state.mode == MODE_ISOLATED) {
            return write(wanted);
        }
        self.gate.look();
        let wanted = hold();
        write(wanted)?;
        self.gate.look();
        let now = hold();
        if now == wanted { Ok(()) } else { write(now) }
    }

    /// The kernel side's maps.
    pub fn maps(&self) -> &Maps {
        &self.kernel
    }

    /// Lets the processes of an agent go on after a stop of this level, unless another one keeps them frozen.
    pub fn thaw(&self, agent: &Agent, released: Level) -> Result<()> {
        let is_frozen = |level: Option<Level>| level >= Some(Level::Freeze);
        if !is_frozen(Some(released))
            || is_frozen(agent.as_whom(|whom| self.gate.rules().hold_of_agent(whom)))
        {
            return Ok(());
        }
        let thaw = |(_, dir): &(String, PathBuf)| match cgroup::set_frozen(dir, false) {
            Err(error) if !cgroup::is_gone(&error) => Err(error),
            _ => Ok(()),
        };
        // One that fails must not leave the others frozen.
        let thawed: Vec<_> = self.cgroups_of(agent.number).iter().map(thaw).collect();
        thawed.into_iter().collect()
    }

    /// Freezes or kills what is in a cgroup though its agent is stopped at that level: a process that came later.
    fn halt_latecomers(&self, path: &str, held: &mut Held) -> Result<()> {
        let rules = self.gate.rules();
        let Some(stop) =
            held.agent.as_whom(|whom| rules.stop_of_agent(whom)).filter(|stop| stop.level >= Level::Freeze)
        else {
            held.halted.clear();
            return Ok(());
        };
        if self.carrying_out.load(Ordering::SeqCst) {
            return Ok(());
        }
        let dir = self.dir(path);
        let events = match cgroup::events(&dir) {
            Err(error) if cgroup::is_gone(&error) => return Ok(()),
            events => events?,
        };
        if !events.populated || (stop.level == Level::Freeze && events.frozen) {
            return Ok(());
        }
        let pids = cgroup::procs(&dir)?;
        if stop.level == Level::Kill {
            cgroup::kill(&dir)?
        } else {
            cgroup::set_frozen(&dir, true)?
        }
        // One that takes its time is seen again at every look.
        if held.halted == pids {
            return Ok(());
        }
        warn!(
            stop = &*stop.id,
            cgroup = path,
            ?pids,
            level = stop.level.label(),
            "stopped a process that came later"
        );
        self.log.record(&Entry::Halt(Halt {
            stop: &stop.id,
            agent: &held.agent.name,
            cgroup: path,
            level: stop.level,
            pids: &pids,
        }));
        held.halted = pids;
        Ok(())
    }

    /// The agent of this name, known to the kernel from now on in the state its stops ask for.
    fn named(&self, name: &str, labels: &Labels) -> Result<Arc<Agent>> {
        let known = self.by_number.load();
        if let Some(agent) = known.values().find(|agent| &*agent.name == name) {
            return Ok(Arc::clone(agent));
        }
        let number = self.state.agent_number(name);
        let agent = Agent::new(number, name, self.metrics.agent(name));
        let agent = Arc::new(Agent { labels: ArcSwap::new(Arc::clone(labels)), ..agent });
        let mut agents = HashMap::clone(&known);
        agents.insert(number, Arc::clone(&agent));
        self.by_number.store(Arc::new(agents));
        // After it is listed: a stop that comes now either sees it or is seen here.
        self.apply_stops(&agent)?;
        Ok(agent)
    }

    /// Brings what is held in line with the cgroup tree. Called whenever the tree may have changed. Returns what could
    /// not be held beside what was seen: a cgroup may be younger than the hooks above it.
    pub fn refresh(&self) -> (Walk, Vec<Unheld>) {
        let pods = self.tree.directory.as_ref().map(|directory| directory.pods()).unwrap_or_default();
        let mut walk = self.tree.selectors.walk(&self.tree.root, &pods);
        self.leave_out_own_pod(&mut walk);
        let (mut unheld, mut new) = (Vec::new(), Vec::new());
        let mut held = self.held_now();
        for found in &walk.found {
            let was_new =
                self.hold(&mut held, &found.path, (&found.name, &found.labels, found.pod.as_ref()), None);
            // Also one that was gone again before it was held: it may come back. The kubelet makes pods' cgroups itself.
            if !matches!(was_new, Ok(false)) && found.pod.is_none() {
                new.push(found.path.clone());
            }
            if let Err(error) = was_new {
                // The cgroup may have vanished between the walk and the look at it.
                if self.dir(&found.path).exists() {
                    unheld.push(Unheld { path: found.path.clone(), agent: found.name.clone(), error });
                }
            }
        }
        held.retain(|path, held| {
            let dir = self.dir(path);
            let settled = held.made.is_some_and(|made| made.elapsed() > ENTER_WITHIN);
            if settled && !cgroup::events(&dir).is_ok_and(|events| events.populated) {
                // Fails when a process has just entered it, which then shows as populated.
                let _ = std::fs::remove_dir(&dir);
            }
            if cgroup::id(&dir).is_ok_and(|id| id == held.id) {
                if let Err(error) = self.halt_latecomers(path, held) {
                    warn!(cgroup = path, error = format!("{error:#}"), "a stopped agent's processes go on");
                }
                return true;
            }
            info!(agent = &*held.agent.name, cgroup = path, "gone");
            if let Err(error) = self.kernel.let_go(held.id) {
                warn!(cgroup = path, error = format!("{error:#}"), "stale entry in the kernel");
            }
            false
        });
        self.tell_pods(&held, &pods);
        unheld.extend(self.guard_pods(&held, &walk));
        drop(held);
        if let Some(directory) = &self.tree.directory {
            directory.keep(&walk.uids);
        }
        self.remember(new, &pods);
        (walk, unheld)
    }

    /// Lets the state remember cgroups, for [`crate::hold`] to make when the host has booted.
    fn remember(&self, mut new: Vec<String>, pods: &ByUid) {
        if new.is_empty() {
            return;
        }
        // What root makes below a cgroup that a user's manager runs, that manager could put nobody into.
        new.retain(|path| holding::is_below_roots(&self.dir(path)));
        let rules = self.gate.rules();
        let is_stopped = |name: &str| rules.stop_of_agent(name).is_some();
        self.state.remember_cgroups(&new, |path| {
            self.tree.selectors.agent_of(path, pods).is_some_and(|found| is_stopped(&found.name))
                || cgroup::events(&self.dir(path)).is_ok_and(|events| events.populated)
        });
    }

    /// Takes up what an earlier daemon left: cgroups it made for agents that still run, and entries of cgroups
    /// that are gone. An agent whose name was lost with the state goes on under the name of its cgroup.
    pub fn take_over(&self) -> Result<()> {
        let known: HashMap<u64, u32> = self.kernel.held()?.into_iter().collect();
        let used = known.values().copied().chain(self.kernel.states()?.into_keys());
        self.state.reserve_numbers(used.max().unwrap_or(0));
        let names: HashMap<u32, String> = self.state.agent_names();
        let made = cgroup::children(&self.dir(&self.tree.exec_cgroup)).unwrap_or_default();
        for dir in made.into_iter().chain(self.made_for_programs()) {
            let Some(number) = cgroup::id(&dir).ok().and_then(|id| known.get(&id)) else { continue };
            let file = file_name(&dir);
            let lost = || {
                warn!(
                    cgroup = file,
                    "an agent's name was lost with the state; it is held under its cgroup's"
                );
                file.rsplit_once('.').map_or(file.as_str(), |(stem, _)| stem).to_owned()
            };
            let name = names.get(number).cloned().unwrap_or_else(lost);
            let path = format!("/{}", dir.strip_prefix(&self.tree.root).unwrap_or(&dir).display());
            let labels = self.tree.selectors.labels_of(&name);
            self.hold(&mut self.held_now(), &path, (&name, &labels, None), Some(Instant::now()))?;
        }
        for unheld in self.refresh().1 {
            unheld.warn();
        }
        let live: Vec<u64> = self.held_now().values().map(|held| held.id).collect();
        // Until the API server tells who they are, agents and guards of pods stay as they were.
        if !self.is_told() {
            return Ok(());
        }
        for id in known.into_keys().filter(|id| !live.contains(id)) {
            self.kernel.let_go(id)?;
        }
        self.forget_old_guards()
    }

    /// Makes a cgroup for a command that will run as agent `name`, held before the command can enter it. Returns
    /// its directory.
    pub fn make_cgroup(&self, name: &str) -> Result<PathBuf> {
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            bail!("agent name {name:?}: give 1 to 128 printable characters");
        }
        let rules = self.gate.rules();
        if let Some(stop) = rules.stop_of_agent(name).filter(|stop| stop.level >= Level::Freeze) {
            bail!("agent {name:?} is stopped ({}, level {}): release it first", stop.id, stop.level.label());
        }
        let mut held = self.held_now();
        let stem = name.replace('/', "_");
        for n in 1.. {
            let path = format!("{}/{stem}.{n}", self.tree.exec_cgroup);
            let dir = self.dir(&path);
            if held.contains_key(&path) || dir.exists() {
                continue;
            }
            std::fs::create_dir_all(&dir).with_context(|| format!("create cgroup {path}"))?;
            let labels = self.tree.selectors.labels_of(name);
            self.hold(&mut held, &path, (name, &labels, None), Some(Instant::now()))?;
            return Ok(dir);
        }
        bail!("no free cgroup name for agent {name:?}")
    }
}

/// What the kernel holds an agent to for a stop of this level.
fn state(level: Option<Level>) -> Option<AgentState> {
    let mode = match level? {
        Level::Refuse => MODE_HELD,
        Level::Isolate | Level::Freeze | Level::Kill => MODE_ISOLATED,
    };
    Some(AgentState { mode, errno: 0 })
}

fn file_name(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
