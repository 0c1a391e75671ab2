//! The daemon: every part is built once, here, in the order in which each depends on the one before. What is held
//! in the kernel is held before anything that could fail later.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_abi::{Event, Reason, Settings};
use anyhow::{Context, Result};
use notify::{RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::accept::Listeners;
use crate::agents::Agents;
use crate::book::Book;
use crate::config::{Config, Fail, STALE_AFTER};
use crate::control::{self, Control};
use crate::decide::policy::{Bias, Policy};
use crate::decode::Limits;
use crate::gate::Gate;
use crate::kernel::netns::Netns;
use crate::kernel::{self, Kernel, cgroup};
use crate::ledger::{Ledger, Phase};
use crate::orders::Orders;
use crate::parts::{Ids, Parts};
use crate::record::entry::{self, Entry};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::reload::{self, Reloader};
use crate::selectors::Selectors;
use crate::state::State;

/// How often agents are looked for besides on every change of the cgroup tree: processes move without one.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the daemon tells the kernel that it lives.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How long calls in flight may take to end when the daemon is told to.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// Cgroup of a daemon that was started in the root cgroup.
const OWN_CGROUP: &str = "interlock";

/// Runs the daemon until it is told to end.
pub fn run(config: &Config) -> Result<()> {
    let selectors = Selectors::compile(&config.agents)?;
    let policy = config.rules.as_deref().map(reload::load).transpose()?.unwrap_or_default();
    raise_file_limit();
    let state = Arc::new(State::load(&config.state_dir)?);
    let stops = state.stops()?;
    let socket = control::bind(&config.runtime_dir)?;
    let metrics_socket = std::net::TcpListener::bind(config.metrics_addr)
        .with_context(|| format!("metrics_addr {}: bind", config.metrics_addr))?;
    metrics_socket.set_nonblocking(true)?;

    let root = cgroup::root()?;
    cgroup::leave_root(OWN_CGROUP)?;
    std::fs::create_dir_all(root.join(config.exec_cgroup.trim_start_matches('/')))
        .with_context(|| format!("create cgroup {}", config.exec_cgroup))?;
    let attach = attach_points(config, &root)?;
    let kernel = Arc::new(Kernel::attach(&kernel::Options {
        pin_dir: config.pin_dir.clone(),
        attach,
        settings: settings(config, &policy),
    })?);

    let metrics = Arc::new(Metrics::new()?);
    let (log, log_writer) = Log::open(&config.records.path, Arc::clone(&metrics))?;
    let gate = Arc::new(Gate::new(policy, stops));
    metrics.policy_generation.set(1);
    let agents = Arc::new(Agents::new(
        Arc::clone(&kernel),
        Arc::clone(&state),
        Arc::clone(&gate),
        Arc::clone(&metrics),
        root,
        config.exec_cgroup.clone(),
    ));
    let parts = Arc::new(Parts {
        book: Arc::new(Book::new(Arc::clone(&log), Arc::clone(&metrics))),
        ledger: Arc::new(Ledger::default()),
        decisions: Ids::new(),
        limits: limits(config),
        arguments: config.records.arguments,
        evidence_window: Duration::try_from(config.evidence_window).unwrap_or_default(),
        kernel,
        agents,
        gate,
        log,
        metrics,
    });
    parts.log.record(&Entry::Daemon(entry::Daemon {
        event: "started",
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
    }));

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("relay").build()?;
    let limit = config.limits.connections;
    let listeners = Arc::new(Listeners::new(Arc::clone(&parts), limit, runtime.handle().clone()));
    // Stops are in the gate and agents' states in the kernel before the first connection can be accepted.
    parts.agents.take_over(&selectors)?;
    parts.kernel.retire_other_versions()?;
    listen_for_agents(&parts, &listeners);

    let reloader = config.rules.clone().map(|path| Arc::new(Reloader::new(path, Arc::clone(&parts))));
    let orders = Arc::new(Orders::new(Arc::clone(&parts), state));
    orders.count_active();
    let control = Control {
        parts: Arc::clone(&parts),
        orders,
        listeners: Arc::clone(&listeners),
        reloader: reloader.clone(),
        records: config.records.path.clone(),
        started: Instant::now(),
    };
    start_control(control, socket, metrics_socket)?;
    let daemon = Daemon { config: config.clone(), parts, listeners, selectors, reloader };
    runtime.block_on(daemon.run())?;
    // Whatever is still open is dropped here, and recorded.
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(log_writer);
    Ok(())
}

fn settings(config: &Config, policy: &Policy) -> Settings {
    Settings {
        stale_after_ns: u64::try_from(STALE_AFTER.as_nanos()).unwrap_or(u64::MAX),
        fail_open: (config.fail == Fail::Open).into(),
        udp_allowed: (policy.defaults.quic == Bias::Allow).into(),
        ..Settings::default()
    }
}

fn limits(config: &Config) -> Limits {
    let size = |size: bytesize::ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
    Limits {
        message: size(config.limits.message),
        event: size(config.limits.event),
        header: size(config.limits.header),
        depth: config.limits.depth,
    }
}

/// The cgroups the kernel programs sit on.
fn attach_points(config: &Config, root: &std::path::Path) -> Result<Vec<PathBuf>> {
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

/// Connections, pins and records need descriptors: take as many as the system gives.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "limit of open files not raised");
    }
}

/// The control server has a thread and runtime of its own.
fn start_control(
    control: Control,
    socket: std::os::unix::net::UnixListener,
    metrics: std::net::TcpListener,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("control".into()).spawn(move || {
        if let Err(error) = runtime.block_on(control::serve(control, socket, metrics)) {
            // Without it nobody could give orders: better to end, and hold the agents, than to run on.
            tracing::error!(error = format!("{error:#}"), "control server ended");
            std::process::abort();
        }
    })?;
    Ok(())
}

/// Listens in every network namespace in which a process of an agent is, and in our own.
fn listen_for_agents(parts: &Parts, listeners: &Listeners) {
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

struct Daemon {
    config: Config,
    parts: Arc<Parts>,
    listeners: Arc<Listeners>,
    selectors: Selectors,
    reloader: Option<Arc<Reloader>>,
}

impl Daemon {
    async fn run(self) -> Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut beat = interval(BEAT_EVERY);
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut events = self.parts.kernel.events()?;
        let kernel_log = self.parts.kernel.take_log()?;
        tokio::spawn(kernel_log.forward());
        let rules_changed = self.reloader.as_ref().and_then(|reloader| {
            reload::watch(reloader.path())
                .inspect_err(|error| warn!(error = format!("{error:#}"), "rules reload on SIGHUP only"))
                .ok()
        });
        let (_rules_watcher, mut rules_changed) = rules_changed.unzip();
        let (mut tree_watcher, mut tree_changed) = reload::watcher(|event| !event.kind.is_modify())?;
        let mut watched: Vec<PathBuf> = Vec::new();
        info!(agents = self.config.agents.len(), "running");
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    if let Some(reloader) = &self.reloader {
                        reloader.reload();
                    }
                }
                () = changed(rules_changed.as_mut()) => {
                    // Let a writer finish: many write in several steps.
                    sleep(Duration::from_millis(50)).await;
                    if let Some(reloader) = &self.reloader {
                        reloader.reload_if_changed();
                    }
                }
                event = events.next() => self.report(&event?),
                _ = beat.tick() => self.beat(),
                _ = look.tick() => self.look(&mut tree_watcher, &mut watched),
                _ = tree_changed.recv() => self.look(&mut tree_watcher, &mut watched),
            }
        }
        self.drain().await;
        Ok(())
    }

    fn beat(&self) {
        if let Err(error) = self.parts.kernel.beat() {
            warn!(error = format!("{error:#}"), "heartbeat not written");
        }
        self.listeners.retire_unused();
        if self.config.attach.is_empty()
            && let Err(error) = cgroup::root()
                .and_then(|root| attach_points(&self.config, &root))
                .and_then(|attach| self.parts.kernel.sync_attach(&attach))
        {
            warn!(error = format!("{error:#}"), "new cgroups below the root are not covered");
        }
    }

    /// Finds new agents, lets go of those that went, and listens where they are.
    fn look(&self, watcher: &mut notify::RecommendedWatcher, watched: &mut Vec<PathBuf>) {
        let walk = self.parts.agents.refresh(&self.selectors);
        for dir in walk.watched.iter().filter(|dir| !watched.contains(dir)) {
            // One that vanished is found by the next look.
            let _ = watcher.watch(dir, RecursiveMode::NonRecursive);
        }
        *watched = walk.watched;
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
            .and_then(|agent| rules.stop_for(&agent.name));
        if let Some(agent) = &agent
            && reason == Some(Reason::Stopped)
        {
            agent.metrics.stop_refusals_kernel.inc();
        }
        self.parts.log.record(&Entry::Kernel(entry::Kernel {
            agent: agent.as_ref().map(|agent| &*agent.name),
            pid: event.tgid,
            uid: event.uid,
            reason: reason_label(reason),
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

async fn changed(changes: Option<&mut mpsc::Receiver<()>>) {
    let change = match changes {
        Some(changes) => changes.recv().await,
        None => None,
    };
    if change.is_none() {
        std::future::pending().await
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
