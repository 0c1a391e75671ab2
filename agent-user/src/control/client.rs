//! The other end of the control socket, or of the endpoint for remote operators, for the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use super::SOCKET;
use super::reach::Remote;

/// Talks to a daemon.
#[derive(Debug)]
pub struct Client {
    daemon: Daemon,
}

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
        self.send(Method::GET, path, Vec::new())
    }

    pub fn post<T: Serialize>(&self, path: &str, order: &T) -> Result<Value> {
        self.send(Method::POST, path, serde_json::to_vec(order)?)
    }

    fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let stream = self.connect().await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("host", "interlock")
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(body)))?;
            let response = sender.send_request(request).await.map_err(|error| self.explain(error.into()))?;
            let status = response.status();
            let bytes = response.into_body().collect().await?.to_bytes();
            if status.is_success() {
                return serde_json::from_slice(&bytes).context("the daemon's answer is not JSON");
            }
            match serde_json::from_slice::<Value>(&bytes) {
                Ok(value) => Err(anyhow!("{}", value["error"].as_str().unwrap_or("refused"))),
                Err(_) => bail!("status {status}: {}", String::from_utf8_lossy(&bytes)),
            }
        })
    }

    async fn connect(&self) -> Result<Box<dyn Stream>> {
        match &self.daemon {
            Daemon::Local(socket) => {
                let stream = UnixStream::connect(socket).await.with_context(|| {
                    format!(
                        "{}: no daemon answers (is `interlock run` up? set --runtime-dir if it runs elsewhere)",
                        socket.display()
                    )
                })?;
                Ok(Box::new(stream))
            }
            Daemon::Remote(remote) => Ok(Box::new(remote.connect().await?)),
        }
    }

    /// What the end of a connection without an answer means.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match &self.daemon {
            Daemon::Local(_) => error.context("the daemon closed the connection"),
            // In TLS 1.3 a refused certificate shows only now.
            Daemon::Remote(remote) => remote.explain(error),
        }
    }
}
