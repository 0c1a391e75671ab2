//! The HTTPS endpoint for operators on other machines: the orders of the control socket, for whoever has a certificate
//! of the configured CA. It runs on a runtime of its own, so that whoever knocks here does not hold up local orders.
//!
//! A peer without such a certificate gets nothing but a TLS alert; everything it can make us hold or wait for is bounded.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use arc_swap::ArcSwap;
use axum::body::{Body, to_bytes};
use axum::extract::connect_info::ConnectInfo;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tracing::{debug, error, info, warn};

use super::crowd::Crowd;
use super::{Control, Peer, admit, certificate, orders, problem, tls};
use crate::config::Remote;
use crate::conn::intrusion;
use crate::forward::own::canonical;
use crate::record::metrics::Metrics;

/// Handshakes at a time, and how many of them from one address.
const HANDSHAKES: (usize, usize) = (64, 8);
/// Connections of operators at a time.
const CONNECTIONS: usize = 64;
/// Time for a handshake, for the head of a request, and for its body.
const WITHIN: Duration = Duration::from_secs(5);
/// Longest head of a request; hyper's least is 8 KiB.
const HEAD: usize = 16 * 1024;
/// Longest body of a request. Orders are short.
const BODY: usize = 64 * 1024;
/// How long, and how much, a refused peer is listened to, so that it reads our alert before the end of the connection.
const LINGER: (Duration, u64) = (Duration::from_secs(1), 64 * 1024);
/// Pause after a failed accept: the usual cause is a limit that needs time to clear.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// At most one failure is logged in this time; all are counted.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The endpoint, bound and with its certificates read.
#[derive(Debug)]
pub struct Endpoint {
    files: Remote,
    address: SocketAddr,
    tls: ArcSwap<ServerConfig>,
}

impl Endpoint {
    /// Reads the certificates and binds the port.
    pub fn open(config: &Remote) -> Result<(Arc<Endpoint>, TcpListener)> {
        let tls = ArcSwap::new(tls::server(config).context("remote")?);
        let bind = || -> std::io::Result<_> {
            let listener = TcpListener::bind(config.listen)?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) =
            bind().with_context(|| format!("remote: listen {}: bind", config.listen))?;
        Ok((Arc::new(Endpoint { files: config.clone(), address, tls }), listener))
    }

    /// As bound: the configured port may be 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Reads the certificates again, for handshakes from now on. If one cannot be used, those read last stay.
    pub fn reload(&self) {
        match tls::server(&self.files) {
            Ok(tls) => {
                self.tls.store(tls);
                info!("certificates of the remote endpoint reloaded");
            }
            Err(fault) => {
                error!(
                    error = format!("{fault:#}"),
                    "certificates not reloaded; the last good ones are in force"
                );
            }
        }
    }
}

/// Serves operators until the process ends.
pub async fn serve(control: Arc<Control>, endpoint: Arc<Endpoint>, listener: TcpListener) -> Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let metrics = Arc::clone(&control.parts.metrics);
    let router = orders()
        .layer(middleware::from_fn_with_state(Arc::clone(&control), admit))
        .layer(middleware::from_fn(read_whole))
        .with_state(Arc::clone(&control));
    let server = Arc::new(Server {
        control,
        endpoint,
        router,
        failures: Failures { metrics, logged: Mutex::default() },
        handshakes: Crowd::new(HANDSHAKES.0, HANDSHAKES.1),
        connections: Semaphore::new(CONNECTIONS),
    });
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                tokio::spawn(Arc::clone(&server).take(stream, canonical(from)));
            }
            Err(error) => {
                server.failures.count(Failure::Accept, None, &error.to_string());
                sleep(AFTER_FAILURE).await;
            }
        }
    }
}

struct Server {
    control: Arc<Control>,
    endpoint: Arc<Endpoint>,
    router: Router,
    failures: Failures,
    handshakes: Crowd,
    connections: Semaphore,
}

impl Server {
    async fn take(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let Some(handshake) = self.handshakes.enter(from.ip()) else {
            return self.failures.count(Failure::Busy, Some(from), "too many handshakes at a time");
        };
        let stream = match timeout(WITHIN, self.shake_hands(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.failures.count(Failure::Tls, Some(from), &error.to_string()),
            Err(_) => return self.failures.count(Failure::Timeout, Some(from), "handshake not done in time"),
        };
        drop(handshake);
        let Ok(_connection) = self.connections.try_acquire() else {
            return self.failures.count(Failure::Busy, Some(from), "too many operators at a time");
        };
        // Only now: the handshake shows that what was dialed for an agent is remembered as such.
        let parts = &self.control.parts;
        if let Some(conn) = parts.own_endpoint.carries(from) {
            return intrusion::record(parts, &conn).await;
        }
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let operator = shown.ok_or_else(|| "no client certificate".to_owned());
        let operator = operator.and_then(|shown| certificate::operator(shown, from));
        match &operator {
            Ok(operator) => debug!(operator = operator.user, %from, "operator"),
            Err(error) => self.failures.count(Failure::Name, Some(from), error),
        }
        let peer = Peer(operator.map(|operator| (operator, None)));
        let router = self.router.clone().layer(Extension(ConnectInfo(peer)));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(WITHIN)
            // One request each: nothing is gained by holding a place.
            .keep_alive(false)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
            .await;
        if let Err(error) = served {
            debug!(%from, %error, "connection of an operator");
        }
    }

    async fn shake_hands(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.endpoint.tls.load_full());
        match acceptor.accept(stream).into_fallible().await {
            Ok(stream) => Ok(stream),
            Err((error, mut stream)) => {
                // In TLS 1.3 the peer may be sending its request already; closing now would reset the connection
                // before it has read why.
                let _ = stream.shutdown().await;
                let mut rest = stream.take(LINGER.1);
                let _ = timeout(LINGER.0, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
                Err(error)
            }
        }
    }
}

/// Takes the body in before the order begins, within bounds of size and time.
async fn read_whole(request: axum::extract::Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match timeout(WITHIN, to_bytes(body, BODY)).await {
        Ok(Ok(body)) => next.run(axum::extract::Request::from_parts(head, Body::from(body))).await,
        Ok(Err(error)) => problem(StatusCode::PAYLOAD_TOO_LARGE, format!("order not read: {error}")),
        Err(_) => problem(StatusCode::REQUEST_TIMEOUT, "the order did not come in time".into()),
    }
}

/// Why a peer got no further.
#[derive(Clone, Copy, Debug)]
pub enum Failure {
    Accept,
    /// No certificate, one that is not believed, or no TLS.
    Tls,
    Timeout,
    Busy,
    /// A believed certificate without a usable name.
    Name,
}

impl Failure {
    /// All of them, as metric label values.
    pub const ALL: [Failure; 5] =
        [Failure::Accept, Failure::Tls, Failure::Timeout, Failure::Busy, Failure::Name];

    pub fn label(self) -> &'static str {
        match self {
            Failure::Accept => "accept",
            Failure::Tls => "tls",
            Failure::Timeout => "timeout",
            Failure::Busy => "busy",
            Failure::Name => "name",
        }
    }
}

struct Failures {
    metrics: Arc<Metrics>,
    /// When one was logged last, and how many were not since.
    logged: Mutex<(Option<Instant>, u64)>,
}

impl Failures {
    fn count(&self, failure: Failure, from: Option<SocketAddr>, error: &str) {
        self.metrics.remote_failed(failure);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.0.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            logged.1 += 1;
            return;
        }
        let unlogged = std::mem::take(&mut logged.1);
        logged.0 = Some(Instant::now());
        drop(logged);
        let from = from.map(|from| from.to_string());
        warn!(reason = failure.label(), from, error, unlogged, "remote operator refused");
    }
}
