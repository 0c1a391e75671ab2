//! One keep-alive connection of bench-load, a legal MCP client of 2025-11-25 or 2026-07-28.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::reply::{Failure, Input, Reply, read_reply};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shape {
    Small,
    /// The tools of an endpoint.
    List,
    /// As many bytes as these.
    #[value(name = "25k")]
    Kib25,
    #[value(name = "64k")]
    Kib64,
    #[value(name = "1m")]
    Mib1,
    Sse20,
    Slow,
    Drip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Revision {
    #[value(name = "2025-11-25")]
    Legacy,
    #[value(name = "2026-07-28")]
    Modern,
}

/// Calls of one kind, whole but for the length and the id.
pub(crate) struct Form {
    shape: Shape,
    /// Header lines up to the value of Content-Length.
    head: String,
    /// The body after the id.
    tail: String,
}

impl Form {
    /// `host` is what the calls name as their server.
    pub(crate) fn new(host: &str, shape: Shape, tool: Option<&str>, revision: Revision, ms: u64) -> Self {
        let arguments = if ms > 0 { format!(r#"{{"ms":{ms}}}"#) } else { r#"{"text":"ping"}"#.to_owned() };
        let (method, name, params) = match tool.or(shape.tool()) {
            Some(tool) => (
                "tools/call",
                format!("Mcp-Name: {tool}\r\n"),
                format!(r#""name":"{tool}","arguments":{arguments},"#),
            ),
            None => ("tools/list", String::new(), String::new()),
        };
        let (headers, meta) = match revision {
            Revision::Legacy => ("MCP-Protocol-Version: 2025-11-25\r\n".to_owned(), r#"{"progressToken":1}"#),
            Revision::Modern => {
                (format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: {method}\r\n{name}"), MODERN_META)
            }
        };
        Self {
            shape,
            head: format!(
                "POST /mcp HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench-load/1\r\n\
                 Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n{headers}\
                 Content-Length: "
            ),
            tail: format!(r#","method":"{method}","params":{{{params}"_meta":{meta}}}}}"#),
        }
    }

    fn write(&self, id: u64, request: &mut Vec<u8>) {
        let id = id.to_string();
        let length = OPEN.len() + id.len() + self.tail.len();
        request.clear();
        for part in [&*self.head, &length.to_string(), "\r\n\r\n", OPEN, &id, &self.tail] {
            request.extend_from_slice(part.as_bytes());
        }
    }
}

/// A request that leaves in two pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// How much of it is the first piece, in 1/256.
    pub(crate) at: u8,
    pub(crate) pause: Duration,
}

pub(crate) struct Client {
    server: SocketAddr,
    request: Vec<u8>,
    stream: Option<TcpStream>,
    input: Input,
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self { server, request: Vec::new(), stream: None, input: Input::default() }
    }

    pub(crate) fn close(&mut self) {
        self.stream = None;
    }

    pub(crate) async fn call(
        &mut self,
        form: &Form,
        id: u64,
        split: Option<Split>,
    ) -> Result<Reply, Failure> {
        let result = self.exchange(form, id, split).await;
        if result.is_err() {
            self.close();
        }
        let reply = result?;
        if !reply.refused && !form.shape.answers(&reply) {
            return Err(Failure::Wrong);
        }
        Ok(reply)
    }

    /// Makes sure of a connection.
    pub(crate) async fn connect(&mut self) -> Result<&mut TcpStream, Failure> {
        // Taken out and put back: the borrow checker does not see that the other arm has none.
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                self.input.clear();
                let stream =
                    TcpStream::connect(self.server).await.map_err(|error| Failure::Connect(error.kind()))?;
                stream.set_nodelay(true)?;
                stream
            }
        };
        Ok(self.stream.insert(stream))
    }

    /// Resolves when a connection on which nothing is awaited has ended, or speaks out of turn.
    pub(crate) async fn ended(&self) {
        if let Some(stream) = &self.stream {
            drop(stream.peek(&mut [0]).await);
        }
    }

    async fn exchange(&mut self, form: &Form, id: u64, split: Option<Split>) -> Result<Reply, Failure> {
        form.write(id, &mut self.request);
        let request = std::mem::take(&mut self.request);
        let stream = self.connect().await?;
        match split {
            None => stream.write_all(&request).await?,
            Some(Split { at, pause }) => {
                let (first, second) = request.split_at(1 + (request.len() - 2) * usize::from(at) / 256);
                stream.write_all(first).await?;
                tokio::time::sleep(pause).await;
                stream.write_all(second).await?;
            }
        }
        self.request = request;
        let Some(stream) = &mut self.stream else { return Err(Failure::Connect(ErrorKind::NotConnected)) };
        let (reply, close) = read_reply(stream, &mut self.input).await?;
        if close {
            self.stream = None;
        }
        Ok(reply)
    }
}

impl Shape {
    /// What is called; nothing to list what there is.
    const fn tool(self) -> Option<&'static str> {
        match self {
            Self::List => None,
            Self::Small => Some("echo"),
            Self::Kib25 => Some("blob25k"),
            Self::Kib64 => Some("blob64k"),
            Self::Mib1 => Some("blob1m"),
            Self::Sse20 => Some("events20"),
            Self::Slow => Some("slow"),
            Self::Drip => Some("drip"),
        }
    }

    fn answers(self, reply: &Reply) -> bool {
        match self {
            Self::Small | Self::Slow => reply.bytes > 0,
            Self::List | Self::Kib25 => reply.bytes > 20_000,
            Self::Kib64 => reply.bytes > 1 << 16,
            Self::Mib1 => reply.bytes > 1 << 20,
            Self::Sse20 => reply.events == 20,
            Self::Drip => reply.events == 5,
        }
    }
}

const OPEN: &str = r#"{"jsonrpc":"2.0","id":"#;
const MODERN_META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench-load","version":"1"},"progressToken":1}"#;
