//! Holding agents in the kernel: the programs attached, every agent's cgroup known, every state as the stops say. The
//! daemon begins with it; `interlock hold` does nothing else, so that at boot no agent runs before it is held.
//!
//! Bias: what is not known holds. A state or an order that cannot be read, and a stop that is found in force in the
//! kernel while nobody knows who ordered it, become stops that a person must release.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use agent_abi::{AgentState, MODE_HELD, MODE_RUN, Settings};
use anyhow::{Context, Result, bail};
use tracing::{info, warn};

use crate::agents::{Agents, Tree};
use crate::config::{Config, Fail, STALE_AFTER};
use crate::daemon::attach_points;
use crate::decide::policy::{Bias, Policy};
use crate::decide::stop::{Level, Selector, Stop};
use crate::gate::Gate;
use crate::kernel::{self, Kernel, Offline, cgroup};
use crate::kubernetes::{ByUid, Directory};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::reload;
use crate::selectors::Selectors;
use crate::spool::{Left, Spool, closed_stop, everybody};
use crate::state::{InUse, State};

/// Cgroup of a process of ours that was started in the root cgroup.
const OWN_CGROUP: &str = "interlock";
/// How long a unit waits for a daemon, or for other units, to hold its cgroup.
const OWN_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Agents, held.
pub struct Hold {
    pub kernel: Arc<Kernel>,
    pub gate: Arc<Gate>,
    pub agents: Arc<Agents>,
}

impl Hold {
    /// Takes hold, over whatever an earlier daemon has left, without a gap. Stops are in the gate and agents' states in
    /// the kernel before the first connection can be accepted.
    pub fn take(
        config: &Config,
        policy: Policy,
        selectors: Selectors,
        directory: Option<Arc<Directory>>,
        state: &Arc<State>,
        log: &Arc<Log>,
        metrics: &Arc<Metrics>,
    ) -> Result<Hold> {
        let root = cgroup::root()?;
        cgroup::leave_root(OWN_CGROUP)?;
        if config.attach.is_empty() {
            // The programs sit on what is there now: what `interlock exec` makes must lie below it.
            make_cgroup(&root, &config.exec_cgroup)?;
        }
        let kernel = Arc::new(Kernel::attach(&kernel::Options {
            pin_dir: config.pin_dir.clone(),
            attach: attach_points(config, &root)?,
            settings: settings(config, &policy),
        })?);
        let gate = Arc::new(Gate::watching(policy, state.stops()?, Spool::new(&config.state_dir)));
        metrics.policy_generation.set(1);
        if let Some(fault) = state.fault() {
            let stop = closed_stop(everybody(), Level::Isolate, "interlock cannot read its state");
            close(&gate, stop, fault.to_owned());
        }
        keep_found(&kernel, &gate, &state.agent_names().into_iter().collect())?;
        let agents = Arc::new(Agents::new(
            Arc::clone(&kernel),
            Arc::clone(state),
            Arc::clone(&gate),
            Arc::clone(metrics),
            Arc::clone(log),
            Tree {
                root,
                exec_cgroup: config.exec_cgroup.clone(),
                selectors,
                directory,
                unclassified: config.kubernetes.unclassified,
            },
        ));
        // Those of an earlier daemon lead nowhere.
        for cookie in kernel.listeners()?.into_keys() {
            kernel.remove_listener(cookie)?;
        }
        agents.apply_to_everybody()?;
        agents.take_over()?;
        kernel.retire_other_versions()?;
        Ok(Hold { kernel, gate, agents })
    }
}

/// `interlock hold`: takes hold and ends; what is pinned stays. Returns how many cgroups are held.
///
/// # Errors
/// Agents may run free; or they are all held isolated, because the state cannot be read, which the error says then.
pub fn run(config: &Config) -> Result<usize> {
    let selectors = Selectors::compile(config)?;
    // Rules are for the daemon to read; until it does, nothing passes that they could speak of.
    let policy = config.rules.as_deref().map(reload::load).transpose().unwrap_or_else(|error| {
        warn!(error = format!("{error:#}"), "rules not read; the daemon will not start with them");
        None
    });
    let state = Arc::new(State::load(&config.state_dir)?);
    let directory = config.has_pods().then(|| Arc::new(Directory::load(&config.state_dir)));
    let root = cgroup::root()?;
    let expected = expected(config, &selectors, &state.cgroups());
    for path in config.attach.iter().chain(&expected) {
        // It is missed below; the others are to be held all the same.
        if let Err(error) = make_cgroup(&root, path) {
            warn!(cgroup = path, error = format!("{error:#}"), "not made");
        }
    }
    let metrics = Arc::new(Metrics::new()?);
    let (log, writer) = Log::nowhere(Arc::clone(&metrics))?;
    let policy = policy.map(|loaded| loaded.policy).unwrap_or_default();
    let hold = Hold::take(config, policy, selectors, directory, &state, &log, &metrics)?;
    drop(writer);
    let held: HashSet<String> = hold.agents.held().into_iter().map(|(path, _)| path).collect();
    let rules = hold.gate.rules();
    info!(cgroups = held.len(), stops = rules.stops.len(), "held; a daemon can take over");
    if let Some(fault) = state.fault() {
        bail!("everybody is held isolated: {fault} (repair that, then start the daemon)");
    }
    if let Some(fault) = hold.gate.take_left().into_iter().find_map(|left| left.fault) {
        bail!("held more than was ordered: {fault}");
    }
    let free: Vec<String> = expected.into_iter().filter(|path| !held.contains(path)).collect();
    if !free.is_empty() {
        bail!("not held, so that who starts there before the daemon runs free: {}", free.join(", "));
    }
    Ok(held.len())
}

/// `interlock hold --own`, which a unit runs before anything of its own: returns the agent in whose cgroup this process
/// is once that is held, by the daemon or, where none runs, by this process.
///
/// # Errors
/// It is no agent's, or whoever starts in it may run free.
pub fn own(config: &Config) -> Result<String> {
    let own = cgroup::of_pid(std::process::id())?;
    let found = Selectors::compile(config)?.agent_of(&own.to_string_lossy(), &ByUid::new());
    let found = found.with_context(|| format!("cgroup {}: no agent's, as `agents:` says", own.display()))?;
    let id = cgroup::id(&cgroup::root()?.join(found.path.trim_start_matches('/')))?;
    let is_held =
        || Offline::open(&config.pin_dir).and_then(|kernel| kernel.held()).map(|held| held.contains_key(&id));
    let deadline = Instant::now() + OWN_WITHIN;
    while !is_held().unwrap_or(false) {
        match run(config) {
            // A daemon will see this cgroup in a moment; another unit's hold leaves it to us.
            Err(error) if error.is::<InUse>() && Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            held => _ = held?,
        }
    }
    Ok(found.name)
}

/// The cgroups in which agents will start: those that a selector names, and those in which an agent was held before and
/// that are an agent's still.
fn expected(config: &Config, selectors: &Selectors, remembered: &[String]) -> BTreeSet<String> {
    let named = config.agents.iter().filter_map(|agent| agent.cgroup.as_deref());
    let named =
        named.filter(|path| !is_glob(path)).filter_map(|path| selectors.agent_of(path, &ByUid::new()));
    let remembered = remembered.iter().filter_map(|path| {
        // One that lies in an agent's now is held with it.
        selectors.agent_of(path, &ByUid::new()).filter(|found| found.path == *path)
    });
    named.chain(remembered).map(|found| found.path).collect()
}

fn settings(config: &Config, policy: &Policy) -> Settings {
    Settings {
        stale_after_ns: u64::try_from(STALE_AFTER.as_nanos()).unwrap_or(u64::MAX),
        fail_open: (config.fail == Fail::Open).into(),
        udp_allowed: (policy.quic() == Bias::Allow).into(),
        ..Settings::default()
    }
}

/// What the kernel holds agents to and no stop explains is kept, as a stop: its order was lost, because no disk took it
/// or whoever gave it was killed, and only a person can say that it is over.
fn keep_found(kernel: &Kernel, gate: &Gate, names: &BTreeMap<u32, String>) -> Result<()> {
    let keep = |selector: Selector, level: Option<Level>, known: Option<Level>| {
        if level > known {
            let fault = format!("agents are held and nothing says why: {selector}");
            let stop = closed_stop(selector, level.unwrap_or_default(), "found in force in the kernel");
            close(gate, stop, fault);
        }
    };
    let everybody_is = kernel.everybody()?.unwrap_or(AgentState::RUN);
    keep(everybody(), level(everybody_is), known(gate, |stop| stop.selector.is_any_agent()));
    let frozen = frozen(kernel)?;
    for (number, state) in kernel.states()? {
        let Some(name) = names.get(&number) else { continue };
        let selector = Selector::of_agent(name).map_err(anyhow::Error::msg)?;
        let is_frozen = level(state) == Some(Level::Isolate) && frozen.contains(&number);
        let level = if is_frozen { Some(Level::Freeze) } else { level(state) };
        keep(selector, level, known(gate, |stop| stop.selector.matches_name(name)));
    }
    Ok(())
}

/// Numbers of agents that are frozen. Nobody thaws them but the release of a stop of that level.
fn frozen(kernel: &Kernel) -> Result<HashSet<u32>> {
    let is_frozen = |id: u64| {
        let events = cgroup::path_of(id).and_then(|dir| cgroup::events(&dir));
        events.is_ok_and(|events| events.populated && events.frozen)
    };
    Ok(kernel.held()?.into_iter().filter(|(id, _)| is_frozen(*id)).map(|(_, agent)| agent).collect())
}

/// How far the stops go that concern somebody. One that was left is in the kernel as far as the kernel goes.
fn known(gate: &Gate, concerns: impl Fn(&Stop) -> bool) -> Option<Level> {
    let rules = gate.rules();
    let concerned = rules.stops.iter().filter(|stop| concerns(stop));
    concerned.map(|stop| if gate.is_left(stop) { Level::Kill } else { stop.level }).max()
}

fn level(state: AgentState) -> Option<Level> {
    match state.mode {
        MODE_RUN => None,
        MODE_HELD => Some(Level::Refuse),
        _ => Some(Level::Isolate),
    }
}

fn close(gate: &Gate, stop: Arc<Stop>, fault: String) {
    warn!(stop = &*stop.id, fault, "held until a person releases it");
    gate.close(Left { file: OsString::new(), stop, report: None, fault: Some(fault) });
}

fn make_cgroup(root: &Path, path: &str) -> Result<()> {
    std::fs::create_dir_all(root.join(path.trim_start_matches('/')))
        .with_context(|| format!("create cgroup {path}"))
}

fn is_glob(path: &str) -> bool {
    path.contains(['*', '?', '[', ']', '{', '}', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_held_before_is_expected_while_it_is_selected() {
        let yaml = "{version: 1, agents: [{name: a, cgroup: '/named/a/'}, {name: '{unit}', systemd: 'claude-*.service'}, \
                    {name: b, cgroup: '/agents.slice/b*'}]}";
        let config: Config = serde_saphyr::from_str(yaml).unwrap();
        let selectors = Selectors::compile(&config).unwrap();
        let remembered = [
            "/system.slice/claude-x.service",
            "/agents.slice/b1",
            "/agents.slice/c1",
            "/agents.slice/b2/inside",
            "/other/claude-x.service",
        ];
        let expected = expected(&config, &selectors, &remembered.map(str::to_owned));
        let wanted = ["/agents.slice/b1", "/named/a", "/system.slice/claude-x.service"];
        assert_eq!(expected.into_iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn only_plain_paths_name_a_cgroup() {
        assert!(!is_glob("/agents.slice/claude-a.service"));
        for path in ["/agents.slice/*", "/a/b?", "/a/{b,c}", "/a/[bc]"] {
            assert!(is_glob(path), "{path}");
        }
    }
}
