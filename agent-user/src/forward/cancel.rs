//! Telling a server something in its client's place, mostly to cancel: in the protocol of the call, with the headers that
//! its client is known by: the session, the version, whatever authorizes it.

use std::io;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::decode::head::MAX_HEADERS;
use crate::decode::{
    Events, Framing, Limits, Media, Method, RequestHead, parse_request, parse_response, sentinel, sse,
};
use crate::forward::dial::dial;
use crate::forward::hold::{Held, Hold};
use crate::forward::side::{Keepalive, Side};
use crate::kernel::netns::Netns;
use crate::ledger::Conn;
use crate::room::Share;

/// How long a server may take to answer one message.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Longest answer to a message of ours.
const LONGEST: usize = 1 << 20;

/// A client of a server, as one of its requests shows it.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The head of that request.
    pub request: &'a [u8],
    /// Where that request was sent.
    pub conn: &'a Conn,
    pub netns: &'a Netns,
    pub limits: &'a Limits,
}

/// What a server answered.
#[derive(Debug)]
pub struct Reply {
    /// Of an answer over HTTP.
    pub status: Option<u16>,
    /// The JSON text of its body, of the last event of a stream, or of a line.
    pub text: String,
}

/// `notifications/cancelled` (MCP 2024-11-05 to 2025-11-25, utilities/cancellation) for the call of this id.
pub fn cancelled(rpc_id: &str, reason: &str) -> Option<String> {
    let id: &RawValue = serde_json::from_str(rpc_id).ok()?;
    let reason = json!(reason);
    Some(format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{},"reason":{reason}}}}}"#,
        id.get()
    ))
}

/// A request about a task (MCP 2025-11-25; tasks extension of 2026-07-28, where each request carries its envelope).
pub fn about_task(method: &str, task: &str, revision: Option<&str>, rpc_id: &str) -> String {
    let mut params = json!({"taskId": task});
    if revision == Some("2026-07-28") {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "interlock", "version": env!("CARGO_PKG_VERSION")},
            "io.modelcontextprotocol/clientCapabilities": {
                "extensions": {"io.modelcontextprotocol/tasks": {}},
            },
        });
    }
    json!({"jsonrpc": "2.0", "id": rpc_id, "method": method, "params": params}).to_string()
}

/// The error that answers a request of the server's.
pub fn error(rpc_id: &str, error: &Value) -> Option<String> {
    let id: &RawValue = serde_json::from_str(rpc_id).ok()?;
    Some(format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.get()))
}

impl Client<'_> {
    /// Sends one message: a line on its connection where that is one of lines, else on a connection of its own. `routing` is what `Mcp-Method` and `Mcp-Name` must say (MCP
    /// 2026-07-28).
    pub async fn post(&self, body: &str, routing: Option<(&str, &str)>) -> io::Result<Reply> {
        let posted = timeout(ANSWER_WITHIN, self.try_post(body, routing)).await;
        posted.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")))
    }

    async fn try_post(&self, body: &str, routing: Option<(&str, &str)>) -> io::Result<Reply> {
        if let Some(server) = self.conn.lines() {
            let server = server.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            let text = server.post(body, asks(body).as_deref()).await?;
            return Ok(Reply { status: None, text });
        }
        let head = parse_request(self.request, self.limits.header).ok().flatten();
        let message = head.and_then(|head| self.message(&head, body, routing));
        let message = message.ok_or_else(|| invalid("the head of the request is lost"))?;
        let stream = dial(self.netns, self.conn.destination).await?;
        let mut side = Side::new(stream, Share::default(), Keepalive::default());
        if let Some(tunnel) = self.conn.tunnel() {
            tunnel.dig(&mut side, self.limits.header).await?;
        }
        side.writer.send(&message).await?;
        read_reply(&mut side, self.limits).await
    }

    fn message(&self, head: &RequestHead, body: &str, routing: Option<(&str, &str)>) -> Option<Vec<u8>> {
        let mut message = [b"POST ", head.target.of(self.request), b" HTTP/1.1\r\n"].concat();
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        parsed.parse(self.request).ok()?;
        for header in parsed.headers.iter().filter(|header| !belongs_to_body(header.name)) {
            message.extend_from_slice(&[header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
        }
        if let Some((method, name)) = routing {
            let name = sentinel::encode(name);
            message.extend_from_slice(format!("Mcp-Method: {method}\r\nMcp-Name: {name}\r\n").as_bytes());
        }
        let rest = format!(
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        message.extend_from_slice(rest.as_bytes());
        Some(message)
    }
}

/// The id under which a message of ours wants to be answered.
fn asks(body: &str) -> Option<String> {
    let message: Value = serde_json::from_str(body).ok()?;
    message.get("method")?;
    message.get("id")?.as_str().map(str::to_owned)
}

/// Headers that say something about the request's own body, or about its connection.
fn belongs_to_body(header: &str) -> bool {
    let header = header.to_ascii_lowercase();
    header.starts_with("mcp-param-")
        || matches!(
            header.as_str(),
            "accept"
                | "accept-encoding"
                | "connection"
                | "content-encoding"
                | "content-length"
                | "content-type"
                | "expect"
                | "keep-alive"
                | "last-event-id"
                | "mcp-method"
                | "mcp-name"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}

async fn read_reply(side: &mut Side, limits: &Limits) -> io::Result<Reply> {
    let head = loop {
        let head = parse_response(&side.reader.buffer, limits.header, Method::Post);
        match head.map_err(|fault| invalid(fault.label()))? {
            Some(head) if head.status >= 200 => break head,
            Some(head) => drop(side.reader.buffer.split_to(head.len)),
            None => more(side).await?,
        }
    };
    let mut hold = Hold::new(head.framing, head.len, LONGEST);
    let content = loop {
        match hold.advance(&side.reader.buffer).map_err(|fault| invalid(fault.label()))? {
            Held::Done(content) => break content,
            Held::Oversized => return Err(invalid("its answer is too long")),
            Held::More(_) => match more(side).await {
                Err(_) if head.framing == Framing::UntilClose => break hold.content(),
                result => result?,
            },
        }
    };
    let limits = Limits { message: LONGEST, ..*limits };
    let content = content.undone(head.codings, &side.reader.buffer, &limits);
    let content = content.map_err(|fault| invalid(fault.label()))?;
    let bytes = content.of(&side.reader.buffer);
    let text = if head.media == Media::EventStream { last_event(bytes) } else { bytes.to_vec() };
    Ok(Reply { status: Some(head.status), text: String::from_utf8_lossy(&text).into_owned() })
}

async fn more(side: &mut Side) -> io::Result<()> {
    match side.reader.fill().await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// The data of the last event of a stream that holds a response.
fn last_event(mut bytes: &[u8]) -> Vec<u8> {
    let (mut events, mut last) = (Events::new(LONGEST), Vec::new());
    while let Ok(Some(end)) = events.next_end(bytes) {
        let event = sse::fields(&bytes[..end]);
        if event.has_data {
            last = event.data.to_vec();
        }
        bytes = &bytes[end..];
    }
    last
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl Reply {
    /// What it was, for a record.
    pub fn outcome(&self) -> String {
        self.status.map_or_else(|| "written".to_owned(), |status| format!("status {status}"))
    }

    /// The response in it, where it is JSON.
    pub fn response(&self) -> Option<Value> {
        serde_json::from_str(&self.text).ok()
    }
}
