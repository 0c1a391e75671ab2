//! The shared maps, typed, opened by their pins: so that a stop needs neither the daemon nor the kernel object.
//!
//! Every access is one system call and takes no lock. Writes keep the order in which the kernel side reads: the
//! state of an agent before its cgroups, because a cgroup without a state is held as if isolated.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use agent_abi::{
    ABI_VERSION, AgentState, Counter, EVERYBODY, FlowKey, Listener, MODE_RUN, Origin, Settings, Tag, is_agent,
};
use anyhow::{Context as _, bail, ensure};

use super::syn;
use super::sys::{self, Plain};

/// Sums of the kernel side's counters since the maps were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub redirected: u64,
    pub refused: u64,
    pub refused_stopped: u64,
    pub packets_dropped: u64,
    pub events_lost: u64,
    pub origins_lost: u64,
    pub failed_open: u64,
    pub datagrams_passed: u64,
}

/// Every map that outlives the daemon.
#[derive(Debug)]
pub struct Maps {
    agents: Table<u64, u32>,
    states: Table<u32, AgentState>,
    listeners: Table<u64, Listener>,
    settings: Table<u32, Settings>,
    flows: Table<FlowKey, Origin>,
    origins: OwnedFd,
    tags: OwnedFd,
    counters: OwnedFd,
    processors: usize,
}

impl Maps {
    /// Opens the pinned maps of a running or dead daemon.
    pub fn open(pin_dir: &Path) -> anyhow::Result<Maps> {
        let dir = maps_dir(pin_dir);
        if !dir.is_dir() {
            bail!("{}: no pinned maps (is the daemon of this ABI version set up here?)", dir.display());
        }
        for spec in &SPECS {
            check(&dir.join(spec.name), spec)?;
        }
        let open = |name: &str| {
            let path = dir.join(name);
            sys::open_pin(&path).with_context(|| format!("open map {}", path.display()))
        };
        Ok(Maps {
            agents: Table::new(open("AGENTS")?),
            states: Table::new(open("STATES")?),
            listeners: Table::new(open("LISTENERS")?),
            settings: Table::new(open("SETTINGS")?),
            flows: Table::new(open("FLOWS")?),
            origins: open("ORIGINS")?,
            tags: open("TAGS")?,
            counters: open("COUNTERS")?,
            processors: possible_processors()?,
        })
    }

    /// Stops or releases an agent in the kernel: one map write. Where [`Maps::everybody`] is stricter, that holds.
    pub fn set_state(&self, agent: u32, state: AgentState) -> anyhow::Result<()> {
        ensure_own(agent)?;
        self.states.set(&agent, &state).with_context(|| format!("write state of agent {agent}"))
    }

    /// Forgets an agent. Sockets that still carry its tag are held as if isolated from here on.
    pub fn forget_state(&self, agent: u32) -> anyhow::Result<()> {
        ensure_own(agent)?;
        self.states.remove(&agent).with_context(|| format!("remove state of agent {agent}"))
    }

    /// The own state of every agent the kernel side knows, without [`Maps::everybody`].
    pub fn states(&self) -> anyhow::Result<BTreeMap<u32, AgentState>> {
        let states = self.states.entries().context("read agent states")?;
        Ok(states.into_iter().filter(|(agent, _)| *agent != EVERYBODY).collect())
    }

    /// Holds every agent to at least this state, known or not, enrolled before or later: one map write, in force
    /// when it returns, and as pinned as all else here. `None` gives each agent its own state back.
    pub fn set_everybody(&self, state: Option<AgentState>) -> anyhow::Result<()> {
        // Overwritten and not removed: what has an entry finds room for it in a full map.
        self.states.set(&EVERYBODY, &state.unwrap_or(AgentState::RUN)).context("write the state of everybody")
    }

    /// What holds for every agent; `None` while nothing does.
    pub fn everybody(&self) -> anyhow::Result<Option<AgentState>> {
        let state = self.states.find(&EVERYBODY).context("read the state of everybody")?;
        Ok(state.filter(|state| state.mode != MODE_RUN))
    }

    /// Makes room for [`Maps::set_everybody`] while there is some; what is there already stays.
    pub(super) fn reserve_everybody(&self) -> anyhow::Result<()> {
        self.states.add(&EVERYBODY, &AgentState::RUN).context("write the state of everybody")
    }

    /// Every held cgroup and its agent.
    pub fn held(&self) -> anyhow::Result<BTreeMap<u64, u32>> {
        let known = self.known()?;
        Ok(known.into_iter().filter(|(_, number)| is_agent(*number)).collect())
    }

    /// The cgroups that the kernel side knows and that are no agent's: of these, [`NOBODY`] and [`UNCLASSIFIED`].
    pub fn not_held(&self) -> anyhow::Result<BTreeMap<u64, u32>> {
        let known = self.known()?;
        Ok(known.into_iter().filter(|(_, number)| !is_agent(*number)).collect())
    }

    /// Every cgroup that the kernel side knows.
    pub(super) fn known(&self) -> anyhow::Result<BTreeMap<u64, u32>> {
        Ok(self.agents.entries().context("read known cgroups")?.into_iter().collect())
    }

    /// Tells the kernel side where the daemon listens in a network namespace.
    pub fn set_listener(&self, netns_cookie: u64, listener: Listener) -> anyhow::Result<()> {
        self.listeners.set(&netns_cookie, &listener).context("write listener")
    }

    /// From here on agents in that namespace are refused.
    pub fn remove_listener(&self, netns_cookie: u64) -> anyhow::Result<()> {
        self.listeners.remove(&netns_cookie).context("remove listener")
    }

    /// Every network namespace (by cookie) with listeners.
    pub fn listeners(&self) -> anyhow::Result<BTreeMap<u64, Listener>> {
        Ok(self.listeners.entries().context("read listeners")?.into_iter().collect())
    }

    /// The settings in force; `None` before a daemon wrote any.
    pub fn settings(&self) -> anyhow::Result<Option<Settings>> {
        let settings = self.settings.find(&0).context("read settings")?;
        Ok(settings.filter(|settings| settings.abi_version != 0))
    }

    /// Takes up the agents and states that an earlier version of the layout has pinned, so that its end lets nobody
    /// go. What is here already stays.
    pub(super) fn inherit(&self, pin_dir: &Path) -> anyhow::Result<()> {
        for dir in (1..ABI_VERSION).rev().map(|version| pin_dir.join(format!("v{version}/maps"))) {
            if !dir.is_dir() {
                continue;
            }
            for name in ["AGENTS", "STATES"] {
                let spec = SPECS.iter().find(|spec| spec.name == name).context("a map of every version")?;
                check(&dir.join(name), spec)?;
            }
            let open = |name: &str| sys::open_pin(&dir.join(name)).with_context(|| format!("open {name}"));
            let (agents, states) = (Table::new(open("AGENTS")?), Table::new(open("STATES")?));
            for (agent, state) in states.entries().context("read earlier states")? {
                self.states.add(&agent, &state).context("take up a state")?;
            }
            for (cgroup_id, agent) in agents.entries().context("read earlier agents")? {
                self.agents.add(&cgroup_id, &agent).context("take up a cgroup")?;
            }
        }
        Ok(())
    }

    pub(super) fn set_settings(&self, settings: &Settings) -> anyhow::Result<()> {
        self.settings.set(&0, settings).context("write settings")
    }

    pub(super) fn set_agent(&self, cgroup_id: u64, agent: u32) -> anyhow::Result<()> {
        self.agents.set(&cgroup_id, &agent).with_context(|| format!("hold cgroup {cgroup_id}"))
    }

    pub(super) fn remove_agent(&self, cgroup_id: u64) -> anyhow::Result<()> {
        self.agents.remove(&cgroup_id).with_context(|| format!("let go of cgroup {cgroup_id}"))
    }

    /// Where a connection wanted to go that a listener with [`syn::keep`] has accepted. It is told once. `None`: it is no
    /// connection of an agent.
    pub fn take_origin(&self, socket: BorrowedFd<'_>) -> Option<Origin> {
        self.flows.take(&syn::key(socket)?).ok().flatten()
    }

    /// The agent whose tag a socket carries.
    pub fn tag(&self, socket: BorrowedFd<'_>) -> Option<u32> {
        let tag: Option<Tag> = sys::lookup(self.tags.as_fd(), &socket_key(socket)).ok().flatten();
        tag.map(|tag| tag.agent)
    }

    /// Connections that began and that the daemon has not accepted, be it that they are over.
    pub fn flows(&self) -> anyhow::Result<Vec<(FlowKey, Origin)>> {
        self.flows.entries().context("read flows")
    }

    /// Sums over all processors.
    pub fn counters(&self) -> anyhow::Result<Counters> {
        let read = |counter: Counter| -> anyhow::Result<u64> {
            let mut values = vec![0; self.processors];
            sys::lookup_per_cpu(self.counters.as_fd(), counter as u32, &mut values)
                .context("read counters")?;
            Ok(values.iter().sum())
        };
        Ok(Counters {
            redirected: read(Counter::Redirected)?,
            refused: read(Counter::Refused)?,
            refused_stopped: read(Counter::RefusedStopped)?,
            packets_dropped: read(Counter::PacketsDropped)?,
            events_lost: read(Counter::EventsLost)?,
            origins_lost: read(Counter::OriginsLost)?,
            failed_open: read(Counter::FailedOpen)?,
            datagrams_passed: read(Counter::DatagramsPassed)?,
        })
    }

    pub(super) fn tags_fd(&self) -> BorrowedFd<'_> {
        self.tags.as_fd()
    }

    pub(super) fn origins_fd(&self) -> BorrowedFd<'_> {
        self.origins.as_fd()
    }
}

/// A hash or array map of the shared layout.
#[derive(Debug)]
struct Table<K, V> {
    fd: OwnedFd,
    layout: PhantomData<(K, V)>,
}

impl<K: Plain, V: Plain> Table<K, V> {
    fn new(fd: OwnedFd) -> Self {
        Self { fd, layout: PhantomData }
    }

    fn find(&self, key: &K) -> io::Result<Option<V>> {
        sys::lookup(self.fd.as_fd(), key)
    }

    fn take(&self, key: &K) -> io::Result<Option<V>> {
        sys::take(self.fd.as_fd(), key)
    }

    fn set(&self, key: &K, value: &V) -> io::Result<()> {
        sys::update(self.fd.as_fd(), key, value)
    }

    fn add(&self, key: &K, value: &V) -> io::Result<()> {
        sys::insert(self.fd.as_fd(), key, value)
    }

    fn remove(&self, key: &K) -> io::Result<()> {
        sys::delete(self.fd.as_fd(), key)
    }

    fn entries(&self) -> io::Result<Vec<(K, V)>> {
        let mut entries = Vec::new();
        for key in sys::keys::<K>(self.fd.as_fd())? {
            if let Some(value) = self.find(&key)? {
                entries.push((key, value));
            }
        }
        Ok(entries)
    }
}

/// Layout of a pinned map. aya reopens a pin without a look at it.
pub(super) struct Spec {
    pub(super) name: &'static str,
    key: usize,
    value: usize,
}

/// Every pinned map. `agent-ebpf/src/maps.rs` is the other side.
pub(super) const SPECS: [Spec; 9] = [
    Spec { name: "AGENTS", key: 8, value: 4 },
    Spec { name: "STATES", key: 4, value: size_of::<AgentState>() },
    Spec { name: "LISTENERS", key: 8, value: size_of::<Listener>() },
    Spec { name: "SETTINGS", key: 4, value: size_of::<Settings>() },
    Spec { name: "TAGS", key: 4, value: size_of::<Tag>() },
    Spec { name: "ORIGINS", key: 4, value: size_of::<Origin>() },
    Spec { name: "FLOWS", key: size_of::<FlowKey>(), value: size_of::<Origin>() },
    Spec { name: "EVENTS", key: 0, value: 0 },
    Spec { name: "COUNTERS", key: 4, value: 8 },
];

pub(super) fn maps_dir(pin_dir: &Path) -> PathBuf {
    super::version_dir(pin_dir).join("maps")
}

/// Refuses a pinned map of another layout.
pub(super) fn check(path: &Path, spec: &Spec) -> anyhow::Result<()> {
    let map = sys::open_pin(path).with_context(|| format!("open map {}", path.display()))?;
    let info = sys::map_info(map.as_fd()).with_context(|| format!("read map {}", path.display()))?;
    let (key, value) = (info.key_size as usize, info.value_size as usize);
    if (key, value) != (spec.key, spec.value) {
        bail!(
            "map {}: keys of {key} and values of {value} bytes, expected {} and {} (left by another build; detach \
             it, then start again)",
            path.display(),
            spec.key,
            spec.value
        );
    }
    Ok(())
}

/// To hold a cgroup as [`EVERYBODY`] would make its processes nobody's.
fn ensure_own(agent: u32) -> anyhow::Result<()> {
    ensure!(agent != EVERYBODY, "agent {EVERYBODY} stands for everybody (agents' numbers begin at 1)");
    Ok(())
}

/// `sk_storage` maps are keyed by the descriptor number.
fn socket_key(socket: BorrowedFd<'_>) -> u32 {
    socket.as_raw_fd().cast_unsigned()
}

/// The kernel copies one slot for each *possible* processor, online or not.
fn possible_processors() -> anyhow::Result<usize> {
    let path = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    Ok(last.with_context(|| format!("{path}: not a list of processors"))? + 1)
}
