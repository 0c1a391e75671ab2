//! The daemon: every part is built once, here, in the order in which each depends on the one before. What is held
//! in the kernel is held before anything that could fail later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_abi::Settings;
use anyhow::{Context, Result};
use tracing::warn;

use crate::accept::Listeners;
use crate::agents::Agents;
use crate::book::Book;
use crate::config::{Config, Fail, STALE_AFTER};
use crate::control::remote::Endpoint;
use crate::control::{self, Control};
use crate::daemon::{Daemon, attach_points, listen_for_agents};
use crate::decide::policy::{Bias, Policy};
use crate::decode::Limits;
use crate::forward::own::OwnEndpoint;
use crate::gate::Gate;
use crate::kernel::{self, Kernel, cgroup};
use crate::ledger::Ledger;
use crate::orders::Orders;
use crate::parts::{Ids, Parts};
use crate::record::entry::{self, Entry};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::reload::{self, Reloader};
use crate::selectors::Selectors;
use crate::state::State;
use crate::tasks::Tasks;
use crate::workflow::Extractors;

/// How often the daemon tells the kernel that it lives.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Cgroup of a daemon that was started in the root cgroup.
const OWN_CGROUP: &str = "interlock";

/// Runs the daemon until it is told to end.
pub fn run(config: &Config) -> Result<()> {
    let selectors = Selectors::compile(&config.agents)?;
    let (policy, rules_text) = config.rules.as_deref().map(reload::load).transpose()?.unwrap_or_default();
    raise_file_limit();
    let state = Arc::new(State::load(&config.state_dir)?);
    let stops = state.stops()?;
    let socket = control::bind(&config.runtime_dir)?;
    let metrics_socket = std::net::TcpListener::bind(config.metrics_addr)
        .with_context(|| format!("metrics_addr {}: bind", config.metrics_addr))?;
    metrics_socket.set_nonblocking(true)?;
    let (remote, remote_socket) = config.remote.as_ref().map(Endpoint::open).transpose()?.unzip();
    let remote_addr = remote.as_ref().map(|remote| remote.address());

    let root = cgroup::root()?;
    cgroup::leave_root(OWN_CGROUP)?;
    if config.attach.is_empty() {
        // The programs sit on what is there now: what `interlock exec` makes must lie below it.
        std::fs::create_dir_all(root.join(config.exec_cgroup.trim_start_matches('/')))
            .with_context(|| format!("create cgroup {}", config.exec_cgroup))?;
    }
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
        Arc::clone(&log),
        root,
        config.exec_cgroup.clone(),
    ));
    let parts = Arc::new(Parts {
        book: Arc::new(Book::new(Arc::clone(&log), Arc::clone(&metrics))),
        ledger: Arc::new(Ledger::default()),
        decisions: Ids::new(),
        limits: limits(config),
        workflow: Arc::new(Extractors::compile(&config.workflow)),
        arguments: config.records.arguments,
        evidence_window: Duration::try_from(config.evidence_window).unwrap_or_default(),
        own_endpoint: OwnEndpoint::new(remote_addr)?,
        watched: config.watched()?,
        tasks: Tasks::default(),
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
    // Those of an earlier daemon lead nowhere.
    for cookie in parts.kernel.listeners()?.into_keys() {
        parts.kernel.remove_listener(cookie)?;
    }
    // Stops are in the gate and agents' states in the kernel before the first connection can be accepted.
    parts.agents.apply_to_everybody()?;
    parts.agents.take_over(&selectors)?;
    parts.kernel.retire_other_versions()?;
    listen_for_agents(&parts, &listeners);

    let reloader =
        config.rules.clone().map(|path| Arc::new(Reloader::new(path, rules_text, Arc::clone(&parts))));
    let orders = Arc::new(Orders::new(Arc::clone(&parts), state, config.require_two));
    orders.count_active();
    let control = Control {
        parts: Arc::clone(&parts),
        orders,
        listeners: Arc::clone(&listeners),
        reloader: reloader.clone(),
        records: config.records.path.clone(),
        pin_dir: config.pin_dir.clone(),
        metrics_addr: metrics_socket.local_addr()?,
        remote_addr,
        started: Instant::now(),
    };
    let control = Arc::new(control);
    start_server("control", control::serve(Arc::clone(&control), socket, metrics_socket))?;
    if let (Some(remote), Some(socket)) = (remote.clone(), remote_socket) {
        start_server("remote", control::remote::serve(control, remote, socket))?;
    }
    start_heartbeat(Arc::clone(&parts.kernel))?;
    let daemon = Daemon { config: config.clone(), parts, listeners, selectors, reloader, remote };
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

/// Connections, pins and records need descriptors: take as many as the system gives.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!(%error, "limit of open files not raised");
    }
}

/// A thread of its own tells the kernel that the daemon lives: with `fail: open` agents pass while it does not, so
/// nothing an agent does may hold it up.
fn start_heartbeat(kernel: Arc<Kernel>) -> Result<()> {
    std::thread::Builder::new().name("heartbeat".into()).spawn(move || {
        loop {
            if let Err(error) = kernel.beat() {
                warn!(error = format!("{error:#}"), "heartbeat not written");
            }
            std::thread::sleep(BEAT_EVERY);
        }
    })?;
    Ok(())
}

/// Each way in for orders has a thread and runtime of its own.
fn start_server(name: &str, server: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = std::thread::Builder::new().name(name.into());
    let name = name.to_owned();
    thread.spawn(move || {
        if let Err(error) = runtime.block_on(server) {
            // Without it nobody could give orders: better to end, and hold the agents, than to run on.
            tracing::error!(server = name, error = format!("{error:#}"), "control server ended");
            std::process::abort();
        }
    })?;
    Ok(())
}
