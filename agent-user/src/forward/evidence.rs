//! What becomes of a call that had left when its agent was stopped.
//!
//! The server is told in the protocol of the call: `notifications/cancelled` up to MCP 2025-11-25, where closing a
//! connection says nothing; closing it in MCP 2026-07-28, where that is the cancel. Where it may still answer we
//! read on for a while: the late answer is evidence, and never reaches the agent.

use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use jiff::Timestamp;
use serde_json::json;
use tokio::time::timeout;

use crate::book::Late;
use crate::decide::stop::Stop;
use crate::decode::head::MAX_HEADERS;
use crate::decode::{
    Body, Coding, Events, Framing, Kind, Media, Method, Payload, RequestHead, decode, mcp, parse_request,
    parse_response, sse,
};
use crate::fate::Fate;
use crate::forward::answer::{Begun, Seam};
use crate::forward::dial::dial;
use crate::forward::request::{Held, Hold};
use crate::forward::side::{Reader, Side};
use crate::judge::digest;
use crate::kernel::netns::Netns;
use crate::ledger::{Call, Conn};
use crate::parts::Parts;
use crate::record::entry::{Cancel, Entry};

/// How long a server may take to acknowledge a cancel.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// An exchange that a stop has ended for the agent, but not for us.
#[derive(Debug)]
pub struct Evidence {
    pub parts: Arc<Parts>,
    pub conn: Arc<Conn>,
    pub netns: Arc<Netns>,
    pub stop: Arc<Stop>,
    pub calls: Vec<Call>,
    pub server: Side,
    /// How far the answer had begun.
    pub begun: Begun,
    /// The head of the request, for the headers a cancel must repeat.
    pub request: Vec<u8>,
}

impl Evidence {
    /// Tells the server and learns the fate of every call.
    pub async fn follow(mut self) {
        if self.calls.iter().all(|call| call.revision == Some(mcp::Revision::V2026_07_28.as_str())) {
            for call in &self.calls {
                record_cancel(&self.parts, &self.conn, &self.stop, call, "close", None);
                self.settle(call, Fate::Lost, None);
            }
            // Dropping the server's connection is the cancel.
            return;
        }
        tokio::spawn(self.tell());
        let heard = timeout(self.parts.evidence_window, self.listen()).await;
        let fate = match heard {
            Ok(Heard::End) => Fate::Lost,
            // It may have answered, or may still: we do not know.
            Ok(Heard::Unreadable) | Err(_) => Fate::Sent,
        };
        for call in std::mem::take(&mut self.calls) {
            self.settle(&call, fate, None);
        }
    }

    fn settle(&self, call: &Call, fate: Fate, late: Option<Late>) {
        self.parts.book.settle(&self.stop, &self.conn, call, fate, late);
    }

    /// Reads until every call has its answer or no more can be learnt.
    async fn listen(&mut self) -> Heard {
        let seam = match self.begun {
            Begun::Nothing => None,
            Begun::Stream(seam) => Some(seam),
            Begun::Partial => return Heard::Unreadable,
        };
        let framing = match seam {
            None => match self.head().await {
                Ok((Media::EventStream, framing)) => framing,
                Ok((_, framing)) => return self.one(framing).await,
                Err(heard) => return heard,
            },
            Some(Seam::Close) => Framing::UntilClose,
            Some(Seam::Chunk) => Framing::Chunked,
            Some(Seam::ChunkEnd) => {
                while self.server.reader.buffer.len() < 2 {
                    if !more(&mut self.server.reader).await {
                        return Heard::End;
                    }
                }
                self.server.reader.buffer.advance(2);
                Framing::Chunked
            }
        };
        self.events(framing).await
    }

    async fn head(&mut self) -> Result<(Media, Framing), Heard> {
        loop {
            match parse_response(&self.server.reader.buffer, self.parts.limits.header, Method::Post) {
                Ok(Some(head)) => {
                    self.server.reader.buffer.advance(head.len);
                    if head.status >= 200 {
                        let readable = head.coding == Coding::Identity && !head.tunnel;
                        return if readable {
                            Ok((head.media, head.framing))
                        } else {
                            Err(Heard::Unreadable)
                        };
                    }
                }
                Ok(None) if more(&mut self.server.reader).await => {}
                Ok(None) => return Err(Heard::End),
                Err(_) => return Err(Heard::Unreadable),
            }
        }
    }

    async fn one(&mut self, framing: Framing) -> Heard {
        let mut hold = Hold::new(framing, 0, self.parts.limits.message);
        loop {
            let content = match hold.advance(&self.server.reader.buffer) {
                Ok(Held::Done(content)) => content,
                Ok(Held::More(_)) if more(&mut self.server.reader).await => continue,
                Ok(Held::More(_)) if framing == Framing::UntilClose => hold.content(),
                Ok(Held::More(_)) => return Heard::End,
                Ok(Held::Oversized) | Err(_) => return Heard::Unreadable,
            };
            let bytes = content.of(&self.server.reader.buffer).to_vec();
            return self.take(&bytes);
        }
    }

    async fn events(&mut self, framing: Framing) -> Heard {
        let (mut body, mut events) = (Body::new(framing), Events::new(self.parts.limits.event));
        let mut event = Vec::new();
        while !self.calls.is_empty() && !body.is_done() {
            let buffer = &self.server.reader.buffer;
            let Ok(step) = body.advance(buffer) else { return Heard::Unreadable };
            let mut data = buffer[step.data].to_vec();
            self.server.reader.buffer.advance(step.consumed);
            if step.consumed == 0 && !more(&mut self.server.reader).await {
                return Heard::End;
            }
            while !data.is_empty() {
                let Ok(end) = events.next_end(&data) else { return Heard::Unreadable };
                let rest = data.split_off(end.unwrap_or(data.len()));
                event.append(&mut data);
                data = rest;
                if end.is_some() {
                    let whole = std::mem::take(&mut event);
                    let event = sse::fields(&whole);
                    if event.has_data {
                        self.take(&event.data);
                    }
                }
            }
        }
        Heard::End
    }

    /// Takes a late message: whoever it answers has finished after the stop.
    fn take(&mut self, bytes: &[u8]) -> Heard {
        let Ok(payload) = decode(bytes, &self.parts.limits) else { return Heard::Unreadable };
        let messages = match &payload {
            Payload::Single(message) => std::slice::from_ref(message),
            Payload::Batch(messages) => messages,
            Payload::NotJsonRpc => return Heard::Unreadable,
        };
        for message in messages {
            let Kind::Response { id: Some(id), .. } = &message.kind else { continue };
            let asked = |call: &Call| call.rpc_id.as_deref().is_some_and(|raw| id.matches(raw));
            let Some(index) = self.calls.iter().position(asked) else { continue };
            let call = self.calls.swap_remove(index);
            let is_error = mcp::result_facts(message).is_some_and(|facts| facts.is_error);
            let fate = if says_cancelled(message.error) { Fate::Cancelled } else { Fate::FinishedAfterStop };
            self.settle(&call, fate, Some(Late { bytes: bytes.len(), digest: digest(bytes), is_error }));
        }
        Heard::End
    }

    /// A task that tells the server to cancel these calls, one after the other.
    fn tell(&self) -> impl Future<Output = ()> + use<> {
        let (parts, conn, netns) = (Arc::clone(&self.parts), Arc::clone(&self.conn), Arc::clone(&self.netns));
        let (stop, request) = (Arc::clone(&self.stop), self.request.clone());
        // Other protocols do not know the notification, and MCP forbids it for `initialize`.
        let is_cancelable =
            |call: &&Call| call.revision.is_some() && call.rpc_id.is_some() && &*call.method != "initialize";
        let calls: Vec<Call> = self.calls.iter().filter(is_cancelable).cloned().collect();
        async move {
            for call in calls {
                // The semaphore is never closed.
                let Ok(_permit) = parts.cancels.acquire().await else { return };
                let posted = post_cancel(&parts, &conn, &netns, &stop, &call, &request);
                let outcome = match timeout(CANCEL_WITHIN, posted).await {
                    Ok(Ok(status)) => format!("status {status}"),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => format!("no answer within {} s", CANCEL_WITHIN.as_secs()),
                };
                record_cancel(&parts, &conn, &stop, &call, "notifications/cancelled", Some(outcome));
            }
        }
    }
}

/// Why no more was heard of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// Its answer has come, or its connection has ended.
    End,
    /// What it says cannot be read.
    Unreadable,
}

/// Whether a JSON-RPC error tells that the call was cancelled. No code is set aside for it, so its words count; SDKs
/// say "Request cancelled".
fn says_cancelled(error: Option<&str>) -> bool {
    error.is_some_and(|error| error.to_ascii_lowercase().contains("cancel"))
}

async fn more(reader: &mut Reader) -> bool {
    reader.fill().await.is_ok_and(|read| read > 0)
}

fn record_cancel(
    parts: &Parts,
    conn: &Conn,
    stop: &Stop,
    call: &Call,
    via: &'static str,
    outcome: Option<String>,
) {
    parts.log.record(&Entry::Cancel(Cancel {
        agent: &conn.identity.agent.name,
        server: &call.server,
        cause: "operator_stop",
        rpc_id: call.rpc_id.as_deref().unwrap_or_default(),
        stop: Some(&stop.id),
        via,
        outcome,
    }));
}

async fn post_cancel(
    parts: &Parts,
    conn: &Conn,
    netns: &Netns,
    stop: &Stop,
    call: &Call,
    request: &[u8],
) -> std::io::Result<u16> {
    let invalid = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let head = parse_request(request, parts.limits.header)
        .ok()
        .flatten()
        .ok_or_else(|| invalid("request head lost"))?;
    let message = cancel_message(request, &head, call, stop).ok_or_else(|| invalid("request id lost"))?;
    let mut side = Side::new(dial(netns, conn.destination).await?);
    side.writer.send(&message).await?;
    loop {
        if let Some(head) = parse_response(&side.reader.buffer, parts.limits.header, Method::Post)
            .map_err(|fault| invalid(fault.label()))?
        {
            return Ok(head.status);
        }
        if side.reader.fill().await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// `notifications/cancelled` (MCP 2025-11-25, utilities/cancellation) for a call, with the headers of the call: its
/// session, its version, and whatever the server knows its client by.
fn cancel_message(request: &[u8], head: &RequestHead, call: &Call, stop: &Stop) -> Option<Vec<u8>> {
    let id: &serde_json::value::RawValue = serde_json::from_str(call.rpc_id.as_deref()?).ok()?;
    let reason = json!(format!("stopped by an operator at {}: {}", Timestamp::now(), stop.reason));
    let body = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{},"reason":{reason}}}}}"#,
        id.get()
    );
    let mut message = [b"POST ", head.target.of(request), b" HTTP/1.1\r\n"].concat();
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(request).ok()?;
    for header in parsed.headers.iter().filter(|header| !belongs_to_body(header.name)) {
        message.extend_from_slice(&[header.name.as_bytes(), b": ", header.value, b"\r\n"].concat());
    }
    let rest = format!(
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    message.extend_from_slice(rest.as_bytes());
    Some(message)
}

/// Headers that say something about the request's own body, or about its connection.
fn belongs_to_body(header: &str) -> bool {
    let header = header.to_ascii_lowercase();
    header.starts_with("mcp-param-")
        || matches!(
            header.as_str(),
            "accept"
                | "connection"
                | "content-encoding"
                | "content-length"
                | "content-type"
                | "expect"
                | "keep-alive"
                | "mcp-method"
                | "mcp-name"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}
