//! The daemon's life between start and end: it looks for agents, listens where they are, takes up new rules, counts
//! what the kernel refused, and says that it lives.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use agent_abi::{Event, Reason, UNCLASSIFIED};
use anyhow::{Context as _, Result};
use notify::{RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{info, warn};

use crate::accept::Listeners;
use crate::agents::Unheld;
use crate::config::Config;
use crate::control::remote::Endpoint;
use crate::fleet::held::{Content, Held};
use crate::kernel::netns::Netns;
use crate::kernel::{Exec, Execs, Kernel, cgroup};
use crate::kubernetes::Directory;
use crate::ledger::Phase;
use crate::parts::Parts;
use crate::record::entry::{self, Entry};
use crate::reload::{self, Reloader};

/// How often agents are looked for besides on every change of the cgroup tree: processes move without one.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often one look begins again because there was more to watch, or to cover.
const LOOKS: usize = 8;
/// How often what changes rarely, and unseen, is looked after.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// How long changes of rules are collected before they are looked at.
const SETTLE: Duration = Duration::from_millis(50);
/// How long calls in flight may take to end when the daemon is told to.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// The parts the daemon's life needs.
pub struct Daemon {
    pub config: Config,
    pub parts: Arc<Parts>,
    pub listeners: Arc<Listeners>,
    pub reloader: Arc<Reloader>,
    pub remote: Option<Arc<Endpoint>>,
    /// The pods of this node, if any may be an agent.
    pub directory: Option<Arc<Directory>>,
}

impl Daemon {
    /// Lives until a signal ends it.
    pub async fn run(self) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut tend = interval(TEND_EVERY);
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = self.parts.kernel.events()?;
        // Before the look at all processes, so that none is missed.
        let mut execs = None;
        if self.parts.agents.has_executables() {
            execs = Some(Execs::open().context("agents with `executable` cannot be found")?);
            self.take_in(Exec::Lost);
        }
        let kernel_log = self.parts.kernel.take_log()?;
        tokio::spawn(kernel_log.forward());
        let rules_changed = self.reloader.path().and_then(|path| {
            reload::watch(path)
                .inspect_err(|error| warn!(error = format!("{error:#}"), "rules reload on SIGHUP only"))
                .ok()
        });
        let (_rules_watcher, mut rules_changed) = rules_changed.unzip();
        let tells_of_pods = |path: &PathBuf| path.ends_with(cgroup::EVENTS);
        let (mut tree_watcher, mut tree_changed) =
            reload::watcher(move |event| !event.kind.is_modify() || event.paths.iter().any(tells_of_pods))?;
        let mut watched: Vec<PathBuf> = Vec::new();
        let (mut rules_due, mut policies_due, mut baselines_due) = (None, None, None);
        info!(agents = self.config.agents.len(), "running");
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    if let Some(remote) = &self.remote {
                        remote.reload();
                    }
                    self.reloader.reload();
                }
                // A writer may take several steps, and many policies come at once when the watch begins.
                () = changed(rules_changed.as_mut()) => {
                    rules_due.get_or_insert_with(settled);
                }
                () = told(self.reloader.policies()) => {
                    policies_due.get_or_insert_with(settled);
                }
                () = at(rules_due) => {
                    rules_due = None;
                    self.reloader.reload_if_changed();
                }
                () = at(policies_due) => {
                    policies_due = None;
                    self.reloader.join();
                }
                () = told(self.parts.trust.objects()) => {
                    baselines_due.get_or_insert_with(settled);
                }
                () = at(baselines_due) => {
                    baselines_due = None;
                    self.parts.trust.join(&self.parts);
                }
                event = events.next() => self.report(&event?),
                exec = next(execs.as_mut()) => self.take_in(exec?),
                _ = tend.tick() => self.tend(),
                _ = look.tick() => self.look(&mut tree_watcher, &mut watched),
                _ = tree_changed.recv() => self.look(&mut tree_watcher, &mut watched),
                () = pods_changed(self.directory.as_deref()) => self.look(&mut tree_watcher, &mut watched),
            }
        }
        self.drain().await;
        Ok(())
    }

    /// Covers new cgroups below the root, leaves namespaces without agents, saves what limits have counted and what of pods
    /// is not on disk, counts what servers show, and sees changes of the keys of tokens, of the file that says what is trusted, and of the rules that no
    /// watch reports, such as behind a symbolic link.
    fn tend(&self) {
        self.reloader.reload_if_changed();
        self.parts.users.reload_if_changed();
        self.parts.trust.reload_if_changed(&self.parts);
        self.parts.metrics.count_surfaces(&self.parts.baseline);
        let (counts, now) = (&self.parts.counts, Instant::now());
        if counts.is_due(now) {
            let counts = Arc::clone(counts);
            tokio::task::spawn_blocking(move || counts.save(now));
        }
        self.reloader.policies().cloned().into_iter().for_each(save);
        self.parts.trust.objects().cloned().into_iter().for_each(save);
        if let Some(directory) = self.directory.clone() {
            tokio::task::spawn_blocking(move || {
                if let Err(error) = directory.save() {
                    warn!(
                        error = format!("{error:#}"),
                        "a daemon that starts without the API server knows old pods"
                    );
                }
            });
        }
        self.listeners.retire_unused();
        self.cover(Kernel::sync_attach);
    }

    /// Puts the hooks on the cgroups below the root, unless the configuration names others.
    fn cover(&self, attach: impl FnOnce(&Kernel, &[PathBuf]) -> Result<()>) {
        if self.config.attach.is_empty()
            && let Err(error) = cgroup::root()
                .and_then(|root| attach_points(&self.config, &root))
                .and_then(|dirs| attach(&self.parts.kernel, &dirs))
        {
            warn!(error = format!("{error:#}"), "new cgroups below the root are not covered");
        }
    }

    /// Finds new agents, lets go of those that went, and listens where they are.
    fn look(&self, watcher: &mut notify::RecommendedWatcher, watched: &mut Vec<PathBuf>) {
        for look in 1..=LOOKS {
            // An agent may be the first thing in a slice that did not exist a moment ago.
            self.cover(Kernel::attach_new);
            let (walk, unheld) = self.parts.agents.refresh();
            let mut again = !unheld.is_empty();
            for dir in walk.watched.iter().filter(|dir| !watched.contains(dir)) {
                // One that vanished is found by the next look. What was made in a folder before its watch was set is
                // reported by nobody.
                again |= watcher.watch(dir, RecursiveMode::NonRecursive).is_ok();
            }
            *watched = walk.watched;
            if look == LOOKS || !again {
                unheld.iter().for_each(Unheld::warn);
                break;
            }
        }
        listen_for_agents(&self.parts, &self.listeners);
    }

    /// Holds who has begun to execute what makes it an agent, and listens where it is.
    fn take_in(&self, exec: Exec) {
        let unheld = match exec {
            Exec::Of(pid) => match self.parts.agents.take_in(pid) {
                Ok(false) => return,
                taken => taken.err().into_iter().collect(),
            },
            Exec::Lost => self.parts.agents.take_in_all(),
        };
        unheld.iter().for_each(Unheld::warn);
        listen_for_agents(&self.parts, &self.listeners);
    }

    /// Counts and records what the kernel refused, and listens in a namespace that turned out to need it.
    fn report(&self, event: &Event) {
        let reason = Reason::from_number(event.reason);
        if reason == Some(Reason::NetnsUnknown)
            && let Ok(netns) = Netns::of_pid(event.tgid)
            && let Err(error) = self.listeners.ensure(netns)
        {
            warn!(
                pid = event.tgid,
                error = format!("{error:#}"),
                "no listener for an agent's network namespace"
            );
        }
        let agent = self.parts.agents.by_number(event.agent);
        let rules = self.parts.gate.rules();
        let stop = agent
            .as_ref()
            .filter(|_| reason == Some(Reason::Stopped))
            .and_then(|agent| agent.as_whom(|whom| rules.stop_of_agent(whom)));
        if let Some(agent) = &agent
            && reason == Some(Reason::Stopped)
        {
            agent.metrics.stop_refusals_kernel.inc();
        }
        if let Some(stop) = stop {
            stop.refused.kernel.fetch_add(1, Ordering::Relaxed);
        }
        self.parts.log.record(&Entry::Kernel(entry::Kernel {
            agent: agent.as_ref().map(|agent| &*agent.name),
            pid: event.tgid,
            uid: event.uid,
            reason: if event.agent == UNCLASSIFIED { "unclassified" } else { reason_label(reason) },
            stop: stop.map(|stop| &*stop.id),
            destination: entry::address(event.addr, event.port),
            protocol: event.protocol,
            netns: event.netns,
        }));
    }

    /// Takes no new connections and lets calls in flight end.
    async fn drain(&self) {
        info!("ending; agents stay held in the kernel");
        self.listeners.close();
        // Nobody is asked any more; the agents that wait are told.
        self.parts.approvals.close();
        let busy = || !self.parts.ledger.open_conns(|conn| conn.phase() != Phase::Idle).is_empty();
        let deadline = Instant::now() + DRAIN_WITHIN;
        while busy() && Instant::now() < deadline {
            sleep(Duration::from_millis(20)).await;
        }
        self.parts.log.record(&Entry::Daemon(entry::Daemon {
            event: "ended",
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
        }));
    }
}

/// The cgroups the kernel programs sit on.
pub fn attach_points(config: &Config, root: &std::path::Path) -> Result<Vec<PathBuf>> {
    if config.attach.is_empty() {
        return cgroup::children(root);
    }
    let dirs = config.attach.iter().map(|path| {
        let dir = root.join(path.trim_start_matches('/'));
        anyhow::ensure!(dir.is_dir(), "attach: cgroup {path} does not exist below {}", root.display());
        Ok(dir)
    });
    dirs.collect()
}

/// Listens in every network namespace in which a process of an agent is, and in our own.
pub fn listen_for_agents(parts: &Parts, listeners: &Listeners) {
    let ensure = |netns: std::io::Result<Netns>| {
        // A process that ended meanwhile needs no listener.
        let Ok(netns) = netns else { return };
        if let Err(error) = listeners.ensure(netns) {
            warn!(error = format!("{error:#}"), "an agent's connections will be refused");
        }
    };
    ensure(Netns::current());
    for (path, _) in parts.agents.held() {
        for pid in cgroup::procs(&parts.agents.dir(&path)).unwrap_or_default() {
            ensure(Netns::of_pid(pid));
        }
    }
}

async fn pods_changed(directory: Option<&Directory>) {
    match directory {
        Some(directory) => directory.changed().await,
        None => std::future::pending().await,
    }
}

/// The API server has told of something.
async fn told<C: Content>(held: Option<&Arc<Held<C>>>) {
    match held {
        Some(held) => held.changed().await,
        None => std::future::pending().await,
    }
}

/// Has on disk what the API server has told of.
fn save<C: Content + Send + 'static>(held: Arc<Held<C>>) {
    tokio::task::spawn_blocking(move || {
        if let Err(error) = held.save() {
            warn!(error = format!("{error:#}"), "{} are not on disk", C::WHAT);
        }
    });
}

/// When what changes now is looked at; meanwhile agents are found and held.
fn settled() -> Instant {
    Instant::now() + SETTLE
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

async fn changed(changes: Option<&mut mpsc::Receiver<()>>) {
    let change = match changes {
        Some(changes) => changes.recv().await,
        None => None,
    };
    if change.is_none() {
        std::future::pending().await
    }
}

async fn next(execs: Option<&mut Execs>) -> std::io::Result<Exec> {
    match execs {
        Some(execs) => execs.next().await,
        None => std::future::pending().await,
    }
}

/// The value of `reason` in a kernel record.
fn reason_label(reason: Option<Reason>) -> &'static str {
    match reason {
        Some(Reason::Stopped) => "stopped",
        Some(Reason::NetnsUnknown) => "netns_unknown",
        Some(Reason::Transport) => "transport",
        Some(Reason::Datagram) => "datagram",
        Some(Reason::OwnPort) => "own_port",
        Some(Reason::NoRoom) => "no_room",
        Some(Reason::PortGuarded) => "port_guarded",
        None => "unknown",
    }
}
