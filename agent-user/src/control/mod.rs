//! The operator's side: HTTP/JSON over a unix socket that only root can open, on a runtime of its own so that
//! orders are taken however busy the data path is.
//!
//! Who gives an order is what the kernel says of the socket's peer, and a peer inside an agent's cgroup is refused
//! whatever its uid. A peer whose cgroup cannot be told is refused too. Operators on other machines come through
//! [`remote`], where it is allowed.

mod approvals;
mod certificate;
pub mod client;
mod crowd;
mod health;
pub mod reach;
pub mod remote;
mod tls;
mod tools;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Path as UrlPath, Request, State as Shared};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use axum::{Extension, Json, Router};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::net::unix::UCred;
use tracing::warn;

use crate::accept::Listeners;
use crate::decide::stop::{Level, Operator, Selector, Terms};
use crate::kernel::netns::Netns;
use crate::kernel::{cgroup, process};
use crate::kubernetes::Directory;
use crate::orders::{Order, Orders};
use crate::parts::Parts;
use crate::record::entry::{Entry, Intrusion};
use crate::record::recall::recall;
use crate::reload::Reloader;
use crate::state::State;

pub use self::approvals::DecideOrder;
pub use self::tools::{ImportOrder, ToolsOrder};

/// Name of the socket in the runtime directory.
pub const SOCKET: &str = "control.sock";

/// What the control server works with.
pub struct Control {
    pub parts: Arc<Parts>,
    pub orders: Arc<Orders>,
    pub listeners: Arc<Listeners>,
    pub reloader: Arc<Reloader>,
    pub records: PathBuf,
    pub pin_dir: PathBuf,
    pub state: Arc<State>,
    /// As bound: the configured port may be 0.
    pub metrics_addr: SocketAddr,
    /// Where remote operators are served, as bound.
    pub remote_addr: Option<SocketAddr>,
    pub started: Instant,
    /// The pods of this node, if any may be an agent.
    pub directory: Option<Arc<Directory>>,
}

/// An order to stop.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopOrder {
    pub scope: Terms,
    pub level: Level,
    pub reason: String,
    pub wait: SignedDuration,
    /// Only say what it would cut.
    #[serde(default)]
    pub dry_run: bool,
    /// The id under which the operator carries it out if nobody answers.
    #[serde(default)]
    pub ticket: Option<String>,
}

/// An order to make a stop go further.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EscalateOrder {
    pub level: Level,
    pub reason: String,
    pub wait: SignedDuration,
}

/// An order to release.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseOrder {
    pub reason: String,
}

/// A request for a cgroup in which a command runs as an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecOrder {
    pub agent: String,
}

/// Who is behind a connection, and for a local process in which cgroup, as of the moment it was accepted: later its process may be gone and
/// its number another's.
#[derive(Clone)]
struct Peer(Result<(Operator, Option<String>), String>);

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Peer {
        let credentials = stream.io().peer_cred().context("peer credentials");
        let peer = credentials.and_then(|credentials| identify(&credentials));
        Peer(peer.map(|(operator, cgroup)| (operator, Some(cgroup))).map_err(|error| format!("{error:#}")))
    }
}

type App = Arc<Control>;

/// Binds the control socket with mode 0600, replacing what a dead daemon left.
pub fn bind(runtime_dir: &Path) -> Result<std::os::unix::net::UnixListener> {
    std::fs::create_dir_all(runtime_dir).with_context(|| format!("create {}", runtime_dir.display()))?;
    let path = runtime_dir.join(SOCKET);
    if std::os::unix::net::UnixStream::connect(&path).is_ok() {
        anyhow::bail!("{}: another daemon answers here; give this one its own runtime_dir", path.display());
    }
    if let Err(error) = std::fs::remove_file(&path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).with_context(|| format!("remove {}", path.display()));
    }
    // The umask makes the socket private from its first moment.
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o177));
    let socket = std::os::unix::net::UnixListener::bind(&path);
    nix::sys::stat::umask(before);
    let socket = socket.with_context(|| format!("bind {}", path.display()))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Serves orders and health until the process ends.
pub async fn serve(
    control: Arc<Control>,
    socket: std::os::unix::net::UnixListener,
    metrics: std::net::TcpListener,
) -> Result<()> {
    let local = orders()
        // In the caller's network namespace, so only here.
        .route("/v1/exec", post(exec))
        .layer(middleware::from_fn_with_state(Arc::clone(&control), admit))
        .with_state(Arc::clone(&control))
        .into_make_service_with_connect_info::<Peer>();
    let socket = UnixListener::from_std(socket)?;
    let metrics = tokio::net::TcpListener::from_std(metrics)?;
    let health = health::router(control);
    tokio::try_join!(axum::serve(socket, local), axum::serve(metrics, health))?;
    Ok(())
}

/// What every operator may ask for, wherever it is.
fn orders() -> Router<App> {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/agents", get(agents))
        .route("/v1/stops", get(stops).post(stop))
        .route("/v1/stops/{id}", get(receipt))
        .route("/v1/stops/{id}/escalate", post(escalate))
        .route("/v1/stops/{id}/release", post(release))
        .merge(approvals::routes())
        .merge(tools::routes())
}

/// Lets nobody in from an agent's cgroup.
async fn admit(
    Shared(control): Shared<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let order = format!("{} {}", request.method(), request.uri().path());
    match peer.0 {
        Ok((operator, cgroup)) => {
            let agent = cgroup.as_deref().and_then(|cgroup| control.parts.agents.of_cgroup(cgroup));
            let (Some(agent), Some(cgroup)) = (agent, cgroup) else {
                request.extensions_mut().insert(operator);
                return next.run(request).await;
            };
            warn!(agent = &*agent.name, order, "order from an agent's cgroup refused");
            control.parts.metrics.control_refused();
            let entry = Entry::Intrusion(Intrusion {
                agent: &agent.name,
                order: &order,
                by: &operator,
                cgroup: &cgroup,
            });
            control.parts.log.record_durably(&entry).await;
            problem(
                StatusCode::FORBIDDEN,
                format!("orders from inside an agent's cgroup ({cgroup}) are refused"),
            )
        }
        Err(error) => problem(StatusCode::FORBIDDEN, format!("cannot tell who is asking: {error}")),
    }
}

/// Who is behind the socket, and in which cgroup.
fn identify(credentials: &UCred) -> Result<(Operator, String)> {
    let pid = credentials.pid().filter(|pid| *pid > 0).context("the peer has no process id here")?;
    let cgroup = cgroup::of_pid(u32::try_from(pid)?)?.to_string_lossy().into_owned();
    let uid = credentials.uid();
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    let user = user.map_or_else(|| uid.to_string(), |user| user.name);
    let login = process::login(u32::try_from(pid)?).context("read who has logged in")?;
    Ok((Operator { uid: Some(uid), pid: Some(pid), user, login, certificate: None }, cgroup))
}

fn problem(status: StatusCode, error: String) -> Response {
    (status, Json(json!({"error": error}))).into_response()
}

async fn stop(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    Json(order): Json<StopOrder>,
) -> Response {
    let selector = match Selector::compile(order.scope).and_then(|selector| {
        selector.permits(order.level)?;
        Ok(selector)
    }) {
        Ok(selector) => selector,
        Err(error) => return problem(StatusCode::BAD_REQUEST, error),
    };
    if order.dry_run {
        let drill = control.orders.drill(selector, order.level);
        return respond(drill.map_err(anyhow::Error::msg), StatusCode::BAD_REQUEST);
    }
    if order.reason.trim().is_empty() {
        return problem(StatusCode::BAD_REQUEST, "give a reason; whoever is stopped will be shown it".into());
    }
    let wait = Duration::try_from(order.wait).unwrap_or_default();
    let ticket = order.ticket;
    let order = Order { id: None, selector, level: order.level, reason: order.reason, by };
    let stopped = async move { control.orders.stop_once(ticket, order, wait).await };
    carry_out(stopped, StatusCode::INTERNAL_SERVER_ERROR).await
}

async fn escalate(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    UrlPath(id): UrlPath<String>,
    Json(order): Json<EscalateOrder>,
) -> Response {
    let wait = Duration::try_from(order.wait).unwrap_or_default();
    let escalated = async move { control.orders.escalate(&id, order.level, &order.reason, by, wait).await };
    carry_out(escalated, StatusCode::CONFLICT).await
}

/// Carries an order out in a task of its own: an operator who hangs up must not leave it half done.
async fn carry_out<T: Serialize + Send + 'static>(
    order: impl Future<Output = Result<T>> + Send + 'static,
    status: StatusCode,
) -> Response {
    let answer = tokio::spawn(order).await;
    respond(answer.map_err(anyhow::Error::from).flatten(), status)
}

/// All that is known of one stop.
async fn receipt(Shared(control): Shared<App>, UrlPath(id): UrlPath<String>) -> Response {
    if let Some(mut receipt) = control.orders.receipt(&id)
        && let Some(report) = &mut receipt.report
    {
        // It was when the order was carried out; asked for now is how things are now.
        report.in_force &= receipt.released.is_none();
        return Json(receipt).into_response();
    }
    // Carried out by an earlier daemon, or released long ago.
    let found = tokio::task::spawn_blocking(move || {
        let unknown = || format!("no stop {id:?} is known here; `interlock stops` lists those in force");
        recall(&control.records, &id)?.with_context(unknown)
    });
    respond(found.await.map_err(anyhow::Error::from).flatten(), StatusCode::NOT_FOUND)
}

async fn release(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    UrlPath(id): UrlPath<String>,
    Json(order): Json<ReleaseOrder>,
) -> Response {
    carry_out(async move { control.orders.release(&id, &order.reason, by).await }, StatusCode::CONFLICT).await
}

async fn exec(
    Shared(control): Shared<App>,
    Extension(by): Extension<Operator>,
    Json(order): Json<ExecOrder>,
) -> Response {
    let made = prepare_exec(&control, &order.agent, &by);
    respond(made.map(|dir| json!({"cgroup": dir})), StatusCode::BAD_REQUEST)
}

/// The command will run in the caller's network namespace: it must be listened to before the command can connect.
fn prepare_exec(control: &Control, agent: &str, by: &Operator) -> Result<PathBuf> {
    let pid = by.pid.context("only a local process can start an agent")?;
    let netns = Netns::of_pid(u32::try_from(pid)?).context("open the caller's network namespace")?;
    control.listeners.ensure(netns)?;
    control.parts.agents.make_cgroup(agent)
}

fn respond<T: Serialize>(result: Result<T>, status: StatusCode) -> Response {
    match result {
        Ok(value) => Json(value).into_response(),
        Err(error) => problem(status, format!("{error:#}")),
    }
}

async fn stops(Shared(control): Shared<App>) -> Json<Value> {
    Json(json!({"stops": control.orders.in_force()}))
}

async fn agents(Shared(control): Shared<App>) -> Json<Value> {
    let parts = &control.parts;
    let mut agents: std::collections::BTreeMap<String, Value> = std::collections::BTreeMap::new();
    for (path, held) in parts.agents.held() {
        let dir = parts.agents.dir(&path);
        let processes = cgroup::procs(&dir).map_or(0, |procs| procs.len());
        let is_its =
            |conn: &crate::ledger::Conn| conn.identity.agent.number == held.agent.number && !conn.is_part();
        let conns = parts.ledger.open_conns(is_its);
        let inspected = conns.iter().filter(|conn| conn.is_mcp() || conn.is_a2a()).count();
        let rules = parts.gate.rules();
        let stop = held.agent.as_whom(|whom| rules.stop_of_agent(whom)).map(|stop| stop.id.to_string());
        let agent = agents.entry(held.agent.name.to_string()).or_insert_with(|| {
            json!({
                "agent": &*held.agent.name,
                "number": held.agent.number,
                "labels": **held.agent.labels.load(),
                "cgroups": [],
                "connections": {"open": conns.len(), "inspected": inspected},
                "stop": stop,
            })
        });
        if let Some(cgroups) = agent["cgroups"].as_array_mut() {
            cgroups.push(json!({"path": path, "processes": processes}));
        }
    }
    Json(json!({"agents": agents.into_values().collect::<Vec<_>>()}))
}

async fn status(Shared(control): Shared<App>) -> Json<Value> {
    let parts = &control.parts;
    let rules = parts.gate.rules();
    let links = parts.kernel.health();
    let counters = parts.kernel.counters().ok();
    Json(json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_s": control.started.elapsed().as_secs(),
        "now": Timestamp::now(),
        "generation": rules.generation,
        "policy": {
            "path": control.reloader.path(),
            "rules": rules.policy.len(),
            "last_reload": control.reloader.path().map(|_| control.reloader.outcome()),
            "policies": control.reloader.policies().map(|policies| policies.count()),
            "faults": control.reloader.policies().map(|policies| policies.faults()),
        },
        "kernel": {
            "attached": health::is_attached(&links),
            "links": links.iter().map(|link| json!({
                "name": link.name, "cgroup": link.cgroup, "attached": link.attached,
            })).collect::<Vec<_>>(),
            "counters": counters.map(|counters| json!({
                "redirected": counters.redirected,
                "refused": counters.refused,
                "refused_stopped": counters.refused_stopped,
                "packets_dropped": counters.packets_dropped,
                "events_lost": counters.events_lost,
                "origins_lost": counters.origins_lost,
                "failed_open": counters.failed_open,
                "datagrams_passed": counters.datagrams_passed,
            })),
        },
        "agents": parts.agents.held().len(),
        "kubernetes": control.directory.as_ref().map(|directory| json!({
            "pods": directory.pods().len(),
            "complete": directory.is_complete(),
            "fault": directory.fault(),
        })),
        "namespaces": control.listeners.cookies(),
        "connections": parts.ledger.len(),
        "stops": rules.stops.len(),
        "approvals": parts.approvals.len(),
        "metrics_addr": control.metrics_addr,
        "remote_addr": control.remote_addr,
        "pin_dir": control.pin_dir,
        "state": {"fault": control.state.fault(), "saved": !control.state.is_unsaved()},
        "baseline": {
            "fault": parts.baseline.fault(),
            "saved": !parts.baseline.is_unsaved(),
            "evicted": parts.baseline.evicted(),
            "file": parts.trust.file_error(),
            "objects": parts.trust.objects().map(|objects| objects.count()),
            "objects_unreadable": parts.trust.objects().and_then(|objects| objects.unreadable()),
            "faults": parts.trust.objects().map(|objects| objects.faults()),
        },
        "limits": {"fault": parts.counts.fault(), "refused_for_room": parts.counts.refused_for_room()},
        "records": {"path": control.records, "dropped": parts.metrics.records_dropped.get()},
    }))
}
