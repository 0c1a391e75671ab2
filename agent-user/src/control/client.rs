//! The other end of the control socket, or of the endpoint for remote operators, for the command line.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::SOCKET;
use super::reach::Remote;

/// Talks to a daemon.
#[derive(Debug)]
pub struct Client {
    daemon: Daemon,
}

/// When an order has not been answered for so long, the daemon is asked whether it lives.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// Time for it to say so.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);

/// The daemon is dead, or hangs: it will not answer. In words.
#[derive(Debug)]
pub struct NoAnswer(String);

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoAnswer {}

#[derive(Debug)]
enum Daemon {
    /// That of this host, by its socket.
    Local(PathBuf),
    Remote(Box<Remote>),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Client {
    /// The daemon behind a runtime directory.
    pub fn new(runtime_dir: &Path) -> Client {
        Client { daemon: Daemon::Local(runtime_dir.join(SOCKET)) }
    }

    /// A daemon on another machine.
    pub fn remote(remote: Remote) -> Client {
        Client { daemon: Daemon::Remote(Box::new(remote)) }
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        run(self.send(Method::GET, path, Vec::new()))
    }

    pub fn post<T: Serialize>(&self, path: &str, order: &T) -> Result<Value> {
        run(self.send(Method::POST, path, serde_json::to_vec(order)?))
    }

    /// As [`Client::post`], for an order that must not wait for a daemon of this host that hangs. An order may take as
    /// long as it takes; but a daemon that lives answers other questions meanwhile.
    ///
    /// # Errors
    /// [`NoAnswer`] where there is no daemon on this host, or none that answers.
    pub fn post_watched<T: Serialize>(&self, path: &str, order: &T) -> Result<Value> {
        let body = serde_json::to_vec(order)?;
        run(async {
            tokio::select! {
                answer = self.send(Method::POST, path, body) => answer,
                silence = self.silence() => Err(silence),
            }
        })
    }

    /// Ends when the daemon of this host does not answer any more.
    async fn silence(&self) -> anyhow::Error {
        let Daemon::Local(socket) = &self.daemon else { return std::future::pending().await };
        loop {
            sleep(ASK_AFTER).await;
            let alive = timeout(ALIVE_WITHIN, self.send(Method::GET, "/v1/stops", Vec::new())).await;
            if alive.is_err() {
                return NoAnswer(format!("{}: the daemon hangs", socket.display())).into();
            }
        }
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value> {
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "interlock")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let lost = |error: hyper::Error| self.explain(error.into());
        let response = sender.send_request(request).await.map_err(lost)?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(lost)?.to_bytes();
        if status.is_success() {
            return serde_json::from_slice(&bytes).context("the daemon's answer is not JSON");
        }
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) => Err(anyhow!("{}", value["error"].as_str().unwrap_or("refused"))),
            Err(_) => Err(anyhow!("status {status}: {}", String::from_utf8_lossy(&bytes))),
        }
    }

    async fn connect(&self) -> Result<Box<dyn Stream>> {
        match &self.daemon {
            Daemon::Local(socket) => {
                let stream = UnixStream::connect(socket).await.map_err(|error| {
                    let is_denied = error.kind() == ErrorKind::PermissionDenied;
                    let why = format!(
                        "{}: no daemon answers (is `interlock run` up? set --runtime-dir if it runs elsewhere)",
                        socket.display()
                    );
                    let error = anyhow::Error::from(error);
                    // Whoever may not ask may not act without asking either.
                    if is_denied { error.context(why) } else { error.context(NoAnswer(why)) }
                })?;
                Ok(Box::new(stream))
            }
            Daemon::Remote(remote) => Ok(Box::new(remote.connect().await?)),
        }
    }

    /// What the end of a connection without an answer means.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.daemon {
            Daemon::Local(_) => error.context(NoAnswer("the daemon closed the connection".to_owned())),
            // In TLS 1.3 a refused certificate shows only now.
            Daemon::Remote(remote) => remote.explain(error),
        }
    }
}

fn run(asked: impl Future<Output = Result<Value>>) -> Result<Value> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(asked)
}
