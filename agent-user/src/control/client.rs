//! The other end of the control socket, for the command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::Value;
use tokio::net::UnixStream;

use super::SOCKET;

/// Talks to the daemon behind a runtime directory.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    pub fn new(runtime_dir: &Path) -> Client {
        Client { socket: runtime_dir.join(SOCKET) }
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        self.send(Method::GET, path, Vec::new())
    }

    pub fn post<T: Serialize>(&self, path: &str, order: &T) -> Result<Value> {
        self.send(Method::POST, path, serde_json::to_vec(order)?)
    }

    fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async {
            let stream = UnixStream::connect(&self.socket).await.with_context(|| {
                format!(
                    "{}: no daemon answers (is `interlock run` up? set --runtime-dir if it runs elsewhere)",
                    self.socket.display()
                )
            })?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("host", "interlock")
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(body)))?;
            let response = sender.send_request(request).await.context("the daemon closed the connection")?;
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
}
