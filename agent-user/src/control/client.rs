//! The other end of the control socket, for the command line.

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
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

use super::SOCKET;

/// Talks to the daemon behind a runtime directory.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
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

impl Client {
    pub fn new(runtime_dir: &Path) -> Client {
        Client { socket: runtime_dir.join(SOCKET) }
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        run(self.send(Method::GET, path, Vec::new()))
    }

    pub fn post<T: Serialize>(&self, path: &str, order: &T) -> Result<Value> {
        run(self.send(Method::POST, path, serde_json::to_vec(order)?))
    }

    /// As [`Client::post`], for an order that must not wait for a daemon that hangs. An order may take as long as it
    /// takes; but a daemon that lives answers other questions meanwhile.
    ///
    /// # Errors
    /// [`NoAnswer`] where there is no daemon, or none that answers.
    pub fn post_watched<T: Serialize>(&self, path: &str, order: &T) -> Result<Value> {
        let body = serde_json::to_vec(order)?;
        run(async {
            tokio::select! {
                answer = self.send(Method::POST, path, body) => answer,
                silence = self.silence() => Err(silence),
            }
        })
    }

    /// Ends when the daemon does not answer any more.
    async fn silence(&self) -> anyhow::Error {
        loop {
            sleep(ASK_AFTER).await;
            let alive = timeout(ALIVE_WITHIN, self.send(Method::GET, "/v1/stops", Vec::new())).await;
            if alive.is_err() {
                return NoAnswer(format!("{}: the daemon hangs", self.socket.display())).into();
            }
        }
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| {
            let is_denied = error.kind() == ErrorKind::PermissionDenied;
            let why = format!(
                "{}: no daemon answers (is `interlock run` up? set --runtime-dir if it runs elsewhere)",
                self.socket.display()
            );
            let error = anyhow::Error::from(error);
            // Whoever may not ask may not act without asking either.
            if is_denied { error.context(why) } else { error.context(NoAnswer(why)) }
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "interlock")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let lost = |error| {
            anyhow::Error::from(error).context(NoAnswer("the daemon closed the connection".to_owned()))
        };
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
}

fn run(asked: impl Future<Output = Result<Value>>) -> Result<Value> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(asked)
}
