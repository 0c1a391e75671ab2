//! The daemon: every part is built once, here and in [`crate::hold`], in the order in which each depends on the one
//! before. What is held in the kernel is held before anything that could fail later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tracing::warn;

use crate::accept::Listeners;
use crate::approvals::Approvals;
use crate::baseline::{self, Baseline};
use crate::book::Book;
use crate::catalogue::Catalogue;
use crate::config::Config;
use crate::control::remote::Endpoint;
use crate::control::{self, Control};
use crate::daemon::{Daemon, listen_for_agents};
use crate::decide::limit::Limit;
use crate::fleet::baselines::Baselines;
use crate::fleet::follow::follow;
use crate::fleet::node::Follower;
use crate::fleet::policies::Policies;
use crate::forward::own::OwnEndpoint;
use crate::hold::Hold;
use crate::kernel::{Kernel, allocator, cgroup};
use crate::kubernetes::{self, Directory};
use crate::ledger::Ledger;
use crate::limits::Limits as Counts;
use crate::orders::Orders;
use crate::parts::{Ids, Parts};
use crate::place::Places;
use crate::record::entry::{self, Entry};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::reload::{self, Loaded, Reloader};
use crate::room::{Room, What};
use crate::rounds::Rounds;
use crate::selectors::Selectors;
use crate::spool::Spool;
use crate::state::State;
use crate::tasks::Tasks;
use crate::tripwires::Tripwires;
use crate::trust::Trust;
use crate::user::Users;
use crate::workflow::Extractors;

/// How often the daemon tells the kernel that it lives.
const BEAT_EVERY: Duration = Duration::from_secs(1);

/// Runs the daemon until it is told to end. `rules` is the rules file, if there is one.
pub fn run(config: &Config, rules: Option<Loaded>) -> Result<()> {
    let selectors = Selectors::compile(config)?;
    let node = config.has_pods().then(|| config.kubernetes.node()).transpose()?;
    cgroup::leave_namespace()?;
    let users = Users::load(config.tokens.as_ref())?;
    let policies = node.is_some().then(|| Arc::new(Policies::load(&config.state_dir)));
    let baselines = node.is_some().then(|| Arc::new(Baselines::load(&config.state_dir)));
    let (trust, authority) =
        Trust::load(config.tools.baseline.as_deref(), baselines.clone()).context("tools: baseline")?;
    let rules = rules.unwrap_or_default();
    let policy = reload::join(&rules.file, policies.as_deref())?;
    allocator::give_large_buffers_back();
    let files = raise_file_limit();
    let state = Arc::new(State::load(&config.state_dir)?);
    let socket = control::bind(&config.runtime_dir)?;
    let metrics_socket = std::net::TcpListener::bind(config.metrics_addr)
        .with_context(|| format!("metrics_addr {}: bind", config.metrics_addr))?;
    metrics_socket.set_nonblocking(true)?;
    let (remote, remote_socket) = config.remote.as_ref().map(Endpoint::open).transpose()?.unzip();
    let remote_addr = remote.as_ref().map(|remote| remote.address());

    let metrics = Arc::new(Metrics::new()?);
    let records = Log::open(&config.records.path, Arc::clone(&metrics));
    let (log, log_writer) = match &records {
        Ok((log, _)) => (Arc::clone(log), None),
        // Agents are held before that ends us.
        Err(_) => Log::nowhere(Arc::clone(&metrics)).map(|(log, writer)| (log, Some(writer)))?,
    };
    let spool = Spool::new(&config.state_dir);
    let directory = node.is_some().then(|| Arc::new(Directory::load(&config.state_dir)));
    let Hold { kernel, gate, agents } =
        Hold::take(config, policy, selectors, directory.clone(), &state, &log, &metrics)?;
    drop(log_writer);
    let (log, log_writer) = records?;
    let (tripwires, tripped) = Tripwires::new();
    let trust_first_use = config.tools.trust_first_use;
    let baseline = Baseline::open(&config.state_dir, baseline::Options { trust_first_use, authority })?;
    let counts = Arc::new(Counts::load(&config.state_dir, Instant::now()));
    let tags: Vec<_> = gate.rules().policy.limits().map(Limit::tag).collect();
    counts.keep_only(&tags);
    let (memory, memory_per_agent) = config.limits.memory();
    let parts = Arc::new(Parts {
        tripwires,
        book: Arc::new(Book::new(Arc::clone(&log), Arc::clone(&metrics))),
        ledger: Arc::new(Ledger::default()),
        decisions: Ids::new("d"),
        limits: config.limits.decode(),
        keepalive: config.keepalive.of_sockets(),
        unanswered: config.limits.unanswered,
        memory: Arc::new(Room::new(What::Memory, memory, memory_per_agent)),
        workflow: Arc::new(Extractors::compile(&config.workflow)),
        arguments: config.records.arguments,
        evidence_window: Duration::try_from(config.evidence_window).unwrap_or_default(),
        own_endpoint: OwnEndpoint::new(remote_addr)?,
        watched: config.watched()?,
        tasks: Tasks::default(),
        counts: Arc::clone(&counts),
        users,
        catalogue: Catalogue::default(),
        baseline,
        trust,
        rounds: Rounds::default(),
        approvals: Arc::new(Approvals::new(Arc::clone(&log), Arc::clone(&metrics))),
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
    let (most, per_agent) = connections(config, files);
    let connections = Room::new(What::Connections, most, per_agent);
    let listeners = Arc::new(Listeners::new(Arc::clone(&parts), connections, runtime.handle().clone()));
    listen_for_agents(&parts, &listeners);

    let reloader = Reloader::new(config.rules.clone(), rules, policies.clone(), Arc::clone(&parts));
    let reloader = Arc::new(reloader);
    let orders = Arc::new(Orders::new(Arc::clone(&parts), Arc::clone(&state), spool, config.require_two));
    runtime.block_on(orders.take_up());
    orders.count_active();
    let places = Places { pin_dir: config.pin_dir.clone(), state_dir: config.state_dir.clone() };
    if let Err(error) = places.tell(&config.runtime_dir) {
        warn!(error = format!("{error:#}"), "without this daemon, `interlock stop` will need --config");
    }
    let control = Control {
        parts: Arc::clone(&parts),
        orders: Arc::clone(&orders),
        listeners: Arc::clone(&listeners),
        reloader: Arc::clone(&reloader),
        records: config.records.path.clone(),
        pin_dir: config.pin_dir.clone(),
        state,
        metrics_addr: metrics_socket.local_addr()?,
        remote_addr,
        started: Instant::now(),
        directory: directory.clone(),
    };
    let control = Arc::new(control);
    let serving = control::serve(Arc::clone(&control), socket, metrics_socket);
    let by_rules = Arc::clone(&control.orders).obey_rules(tripped);
    // What rules order is carried out where the orders of operators are.
    start_server("control", async {
        tokio::spawn(by_rules);
        serving.await
    })?;
    if let (Some(remote), Some(socket)) = (remote.clone(), remote_socket) {
        start_server("remote", control::remote::serve(control, remote, socket))?;
    }
    start_heartbeat(Arc::clone(&parts.kernel))?;
    if let (Some(node), Some(directory)) = (node, &directory) {
        let client = runtime.block_on(kubernetes::client(&config.kubernetes))?;
        let directory = Arc::clone(directory);
        let follower = Follower::new(client.clone(), node.clone(), Arc::clone(&orders));
        if let (Some(policies), Some(baselines)) = (policies, baselines) {
            runtime.spawn(follow(client.clone(), policies, baselines));
        }
        runtime.spawn(async move { kubernetes::watch(client, &node, directory).await });
        runtime.spawn(follower.run());
    }
    runtime.spawn(async move { orders.watch().await });
    let daemon = Daemon { config: config.clone(), parts, listeners, reloader, remote, directory };
    runtime.block_on(daemon.run())?;
    // Whatever is still open is dropped here, and recorded.
    runtime.shutdown_timeout(Duration::from_secs(1));
    counts.save(Instant::now());
    drop(log_writer);
    Ok(())
}

/// How many connections there may be, of all agents and of each.
fn connections(config: &Config, files: usize) -> (usize, usize) {
    let (most, per_agent) = config.limits.connections(files);
    if config.limits.connections.is_some_and(|wanted| wanted > most) {
        warn!(
            most,
            files, "limits: connections: there are no descriptors for so many; raise LimitNOFILE of the unit"
        );
    }
    (most, per_agent)
}

/// Connections, pins and records need descriptors: takes as many as the system gives, and tells how many that is.
fn raise_file_limit() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let given = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, hard)| {
        let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        if let Err(error) = raised {
            warn!(%error, "limit of open files not raised");
        }
        if raised.is_ok() { hard } else { soft }
    });
    given.map_or(1024, |files| usize::try_from(files).unwrap_or(usize::MAX))
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
