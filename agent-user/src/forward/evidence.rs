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
use crate::decode::{
    Body, Events, Framing, Kind, Media, Method, Payload, RequestHead, decode, mcp, parse_request,
    parse_response, sse,
};
use crate::forward::answer::{Begun, Seam};
use crate::forward::dial::dial;
use crate::forward::request::{Held, Hold};
use crate::forward::side::{Reader, Side};
use crate::judge::digest;
use crate::kernel::netns::Netns;
use crate::ledger::{Call, Conn, Fate};
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
                self.record_cancel(call, "close", None);
                self.settle(call.rpc_id.as_deref(), Fate::Lost, None);
            }
            // Dropping the server's connection is the cancel.
            return;
        }
        let told: Vec<_> = self.calls.iter().map(|call| self.cancel(call)).collect();
        for call in told {
            tokio::spawn(call);
        }
        let window = self.parts.evidence_window;
        let ended = timeout(window, self.listen()).await;
        // A connection that ended can answer no more; one that is still quiet might.
        let fate = if ended.is_ok() { Fate::Lost } else { Fate::Sent };
        for call in std::mem::take(&mut self.calls) {
            self.settle(call.rpc_id.as_deref(), fate, None);
        }
    }

    fn settle(&self, rpc_id: Option<&str>, fate: Fate, late: Option<Late>) {
        if let Some(rpc_id) = rpc_id {
            self.parts.book.settle(&self.stop, &self.conn, rpc_id, fate, late);
        }
    }

    fn record_cancel(&self, call: &Call, via: &'static str, outcome: Option<String>) {
        record_cancel(&self.parts, &self.conn, &self.stop, call, via, outcome);
    }

    /// Reads until every call has its answer or the connection ends.
    async fn listen(&mut self) {
        let seam = match self.begun {
            Begun::Nothing => None,
            Begun::Stream(seam) => Some(seam),
            Begun::Partial => return,
        };
        let framing = match seam {
            None => match self.head().await {
                Some((Media::EventStream, framing)) => framing,
                Some((_, framing)) => return self.one(framing).await,
                None => return,
            },
            Some(Seam::Close) => Framing::UntilClose,
            Some(Seam::Chunk) => Framing::Chunked,
            Some(Seam::ChunkEnd) => {
                while self.server.reader.buffer.len() < 2 {
                    if !more(&mut self.server.reader).await {
                        return;
                    }
                }
                self.server.reader.buffer.advance(2);
                Framing::Chunked
            }
        };
        self.events(framing).await;
    }

    async fn head(&mut self) -> Option<(Media, Framing)> {
        loop {
            match parse_response(&self.server.reader.buffer, self.parts.limits.header, Method::Post).ok()? {
                Some(head) => {
                    self.server.reader.buffer.advance(head.len);
                    if head.status >= 200 {
                        return Some((head.media, head.framing));
                    }
                }
                None if more(&mut self.server.reader).await => {}
                None => return None,
            }
        }
    }

    async fn one(&mut self, framing: Framing) {
        let mut hold = Hold::new(framing, 0, self.parts.limits.message);
        loop {
            let content = match hold.advance(&self.server.reader.buffer) {
                Ok(Held::Done(content)) => content,
                Ok(Held::More(_)) => {
                    if more(&mut self.server.reader).await {
                        continue;
                    }
                    if framing != Framing::UntilClose {
                        return;
                    }
                    hold.content()
                }
                _ => return,
            };
            let bytes = content.of(&self.server.reader.buffer).to_vec();
            return self.take(&bytes);
        }
    }

    async fn events(&mut self, framing: Framing) {
        let (mut body, mut events) = (Body::new(framing), Events::new(self.parts.limits.event));
        let mut event = Vec::new();
        while !self.calls.is_empty() && !body.is_done() {
            let buffer = &self.server.reader.buffer;
            let Ok(step) = body.advance(buffer) else { return };
            let mut data = buffer[step.data].to_vec();
            self.server.reader.buffer.advance(step.consumed);
            if step.consumed == 0 && !more(&mut self.server.reader).await {
                return;
            }
            while !data.is_empty() {
                let Ok(end) = events.next_end(&data) else { return };
                let rest = data.split_off(end.unwrap_or(data.len()));
                event.append(&mut data);
                data = rest;
                if end.is_some() {
                    let whole = std::mem::take(&mut event);
                    self.take(&sse::fields(&whole).data);
                }
            }
        }
    }

    /// Takes a late message: whoever it answers has finished after the stop.
    fn take(&mut self, bytes: &[u8]) {
        let Ok(payload) = decode(bytes, &self.parts.limits) else { return };
        let messages = match &payload {
            Payload::Single(message) => std::slice::from_ref(message),
            Payload::Batch(messages) => messages,
            Payload::NotJsonRpc => return,
        };
        for message in messages {
            let Kind::Response { id: Some(id), is_error } = &message.kind else { continue };
            let Some(index) =
                self.calls.iter().position(|call| call.rpc_id.as_deref().is_some_and(|raw| id.matches(raw)))
            else {
                continue;
            };
            let call = self.calls.swap_remove(index);
            // A JSON-RPC error in answer to a cancelled call is how servers say that they cancelled it.
            let fate = if *is_error { Fate::Cancelled } else { Fate::FinishedAfterStop };
            let late = Late { bytes: bytes.len(), digest: digest(bytes) };
            self.settle(call.rpc_id.as_deref(), fate, Some(late));
        }
    }

    /// A task that tells the server to cancel one call, on a connection of its own with the headers of the call.
    fn cancel(&self, call: &Call) -> impl Future<Output = ()> + use<> {
        let (parts, conn, netns) = (Arc::clone(&self.parts), Arc::clone(&self.conn), Arc::clone(&self.netns));
        let (stop, call, request) = (Arc::clone(&self.stop), call.clone(), self.request.clone());
        async move {
            let outcome = match timeout(
                CANCEL_WITHIN,
                post_cancel(&parts, &conn, &netns, &stop, &call, &request),
            )
            .await
            {
                Ok(Ok(status)) => format!("status {status}"),
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {} s", CANCEL_WITHIN.as_secs()),
            };
            record_cancel(&parts, &conn, &stop, &call, "notifications/cancelled", Some(outcome));
        }
    }
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

/// `notifications/cancelled` (MCP 2025-11-25, utilities/cancellation) for a call, with its session, version and
/// authorization.
fn cancel_message(request: &[u8], head: &RequestHead, call: &Call, stop: &Stop) -> Option<Vec<u8>> {
    let id: &serde_json::value::RawValue = serde_json::from_str(call.rpc_id.as_deref()?).ok()?;
    let reason = json!(format!("stopped by an operator at {}: {}", Timestamp::now(), stop.reason));
    let body = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{},"reason":{reason}}}}}"#,
        id.get()
    );
    let mut message = b"POST ".to_vec();
    message.extend_from_slice(head.target.of(request));
    message.extend_from_slice(b" HTTP/1.1\r\n");
    let copied = [
        ("Host", head.host),
        ("Mcp-Session-Id", head.mcp.session_id),
        ("MCP-Protocol-Version", head.mcp.protocol_version),
        ("Authorization", head.mcp.authorization),
    ];
    for (name, span) in copied {
        if let Some(span) = span {
            message.extend_from_slice(name.as_bytes());
            message.extend_from_slice(b": ");
            message.extend_from_slice(span.of(request));
            message.extend_from_slice(b"\r\n");
        }
    }
    let rest = format!(
        "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    message.extend_from_slice(rest.as_bytes());
    Some(message)
}
