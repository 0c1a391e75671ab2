//! One keep-alive connection of bench-load, a legal MCP client of 2025-11-25 or 2026-07-28.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::reply::{Failure, Input, Reply, read_reply};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shape {
    Small,
    #[value(name = "64k")]
    Kib64,
    #[value(name = "1m")]
    Mib1,
    Sse20,
    Slow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Revision {
    #[value(name = "2025-11-25")]
    Legacy,
    #[value(name = "2026-07-28")]
    Modern,
}

pub(crate) struct Client {
    server: SocketAddr,
    shape: Shape,
    /// Header lines up to the value of Content-Length.
    head: String,
    /// The body after the id.
    tail: String,
    request: Vec<u8>,
    stream: Option<TcpStream>,
    input: Input,
}

impl Client {
    pub(crate) fn new(
        server: SocketAddr,
        shape: Shape,
        tool: Option<&str>,
        revision: Revision,
        ms: u64,
    ) -> Self {
        let tool = tool.unwrap_or(shape.tool());
        let (headers, meta) = match revision {
            Revision::Legacy => ("MCP-Protocol-Version: 2025-11-25\r\n".to_owned(), r#"{"progressToken":1}"#),
            Revision::Modern => (
                format!("MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {tool}\r\n"),
                MODERN_META,
            ),
        };
        let arguments = if ms > 0 { format!(r#"{{"ms":{ms}}}"#) } else { r#"{"text":"ping"}"#.to_owned() };
        Self {
            server,
            shape,
            head: format!(
                "POST /mcp HTTP/1.1\r\nHost: {server}\r\nUser-Agent: bench-load/1\r\n\
                 Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n{headers}\
                 Content-Length: "
            ),
            tail: format!(
                r#","method":"tools/call","params":{{"name":"{tool}","arguments":{arguments},"_meta":{meta}}}}}"#
            ),
            request: Vec::new(),
            stream: None,
            input: Input::default(),
        }
    }

    pub(crate) fn close(&mut self) {
        self.stream = None;
    }

    pub(crate) async fn call(&mut self, id: u64) -> Result<Reply, Failure> {
        let result = self.exchange(id).await;
        if result.is_err() {
            self.close();
        }
        let reply = result?;
        if !reply.refused && !self.shape.answers(&reply) {
            return Err(Failure::Wrong);
        }
        Ok(reply)
    }

    async fn exchange(&mut self, id: u64) -> Result<Reply, Failure> {
        let stream = match self.stream.take() {
            Some(stream) => self.stream.insert(stream),
            None => {
                self.input.clear();
                let stream =
                    TcpStream::connect(self.server).await.map_err(|error| Failure::Connect(error.kind()))?;
                stream.set_nodelay(true)?;
                self.stream.insert(stream)
            }
        };
        let id = id.to_string();
        let length = OPEN.len() + id.len() + self.tail.len();
        self.request.clear();
        for part in [&*self.head, &length.to_string(), "\r\n\r\n", OPEN, &id, &self.tail] {
            self.request.extend_from_slice(part.as_bytes());
        }
        stream.write_all(&self.request).await?;
        let (reply, close) = read_reply(stream, &mut self.input).await?;
        if close {
            self.stream = None;
        }
        Ok(reply)
    }
}

impl Shape {
    pub(crate) const fn tool(self) -> &'static str {
        match self {
            Self::Small => "echo",
            Self::Kib64 => "blob64k",
            Self::Mib1 => "blob1m",
            Self::Sse20 => "events20",
            Self::Slow => "slow",
        }
    }

    fn answers(self, reply: &Reply) -> bool {
        match self {
            Self::Small | Self::Slow => reply.bytes > 0,
            Self::Kib64 => reply.bytes > 1 << 16,
            Self::Mib1 => reply.bytes > 1 << 20,
            Self::Sse20 => reply.events == 20,
        }
    }
}

const OPEN: &str = r#"{"jsonrpc":"2.0","id":"#;
const MODERN_META: &str = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"bench-load","version":"1"},"progressToken":1}"#;
