//! Relaying what a server answers to one request.
//!
//! The answer to an MCP call is held until it is whole, one JSON body or one event of a stream at a time, so that
//! nothing undecided reaches the agent. Everything else is copied as it comes. How far the agent's answer has
//! begun is kept where a stop finds it ([`Begun`]).

use std::ops::Range;
use std::time::Instant;

use bytes::Buf;
use tracing::debug;

use crate::decide::policy::Bias;
use crate::decide::{Guard, Refusal};
use crate::decode::{
    Body, Coding, Events, Framing, Kind, Media, Method, Payload, ResponseHead, decode, mcp, parse_response,
    sse,
};
use crate::forward::End;
use crate::forward::refuse::{self, Refused};
use crate::forward::request::{Held, Hold};
use crate::forward::side::{Reader, Writer};
use crate::ledger::{Call, Conn, Phase};
use crate::parts::Parts;
use crate::record::entry::{CallResult, Entry};

/// How far the answer to the agent has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begun {
    /// Nothing was sent: a whole answer can still be given.
    #[default]
    Nothing,
    /// A stream of events, whole ones so far: another can be added, and the stream can be ended.
    Stream(Seam),
    /// Something that cannot be completed by anyone but the server.
    Partial,
}

/// What must be written between the last event and one of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seam {
    /// Chunked, between two chunks.
    Chunk,
    /// Chunked, with the CRLF of the last chunk not written yet.
    ChunkEnd,
    /// Not chunked; the stream ends with the connection.
    Close,
}

/// What is known of the request when its answer arrives.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub method: Method,
    /// It carried JSON-RPC requests or notifications.
    pub has_calls: bool,
    /// We have answered `100 Continue` ourselves.
    pub continued: bool,
    /// The agent lets the connection live on.
    pub keep_alive: bool,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The connection is good for another request.
    KeepAlive,
    Close,
    /// What follows is not HTTP.
    Tunnel,
}

/// Everything an answer needs, borrowed from the connection.
#[derive(Debug)]
pub struct Relay<'a> {
    pub parts: &'a Parts,
    pub conn: &'a Conn,
    pub server: &'a mut Reader,
    pub agent: &'a mut Writer,
    pub begun: &'a mut Begun,
    pub asked: Asked,
    /// When the request was let through.
    pub since: Instant,
}

impl Relay<'_> {
    /// Relays one answer from head to end.
    pub async fn run(mut self) -> Result<Answered, End> {
        let head = self.head().await?;
        if head.tunnel {
            self.forward(head.len).await?;
            return Ok(Answered::Tunnel);
        }
        let streams = head.media == Media::EventStream && head.coding == Coding::Identity;
        match head.media {
            _ if streams => self.stream(&head).await?,
            _ if !self.asked.has_calls
                || head.framing == Framing::Empty
                || head.framing == Framing::Length(0) =>
            {
                self.pass(&head).await?;
            }
            Media::Json | Media::EventStream if head.coding == Coding::Coded => {
                let guard = Guard::Undecodable("content_coding");
                self.or_refuse(guard, self.parts.gate.rules().policy.defaults.undecodable, &head).await?;
            }
            Media::Json => self.hold(&head).await?,
            _ => self.pass(&head).await?,
        }
        let keep = head.keep_alive && self.asked.keep_alive && head.framing != Framing::UntilClose;
        Ok(if keep { Answered::KeepAlive } else { Answered::Close })
    }

    /// Reads the final head, passing interim ones on (RFC 9110 section 15.2).
    async fn head(&mut self) -> Result<ResponseHead, End> {
        loop {
            let limit = self.parts.limits.header;
            match parse_response(&self.server.buffer, limit, self.asked.method).map_err(End::Malformed)? {
                None => self.more(0).await?,
                Some(head) if head.status < 200 && !head.tunnel => {
                    // The agent has had its 100 from us.
                    if head.status == 100 && self.asked.continued {
                        self.server.buffer.advance(head.len);
                    } else {
                        self.forward(head.len).await?;
                    }
                }
                Some(head) => return Ok(head),
            }
        }
    }

    async fn more(&mut self, expected: usize) -> Result<(), End> {
        match self.server.fill_for(expected).await.map_err(End::server)? {
            0 => Err(End::ServerClosed),
            _ => Ok(()),
        }
    }

    /// Sends the first `len` bytes of the server's buffer on.
    async fn forward(&mut self, len: usize) -> Result<(), End> {
        self.agent.send(&self.server.buffer[..len]).await.map_err(End::agent)?;
        self.server.buffer.advance(len);
        Ok(())
    }

    /// Copies an answer as it comes.
    async fn pass(&mut self, head: &ResponseHead) -> Result<(), End> {
        let outcome = if head.status == 202 { "accepted" } else { "none" };
        self.close_calls(outcome, None, Some(head.status), 0);
        let mut body = Body::new(head.framing);
        let mut at = head.len;
        *self.begun = Begun::Partial;
        loop {
            while at < self.server.buffer.len() && !body.is_done() {
                at += body.advance(&self.server.buffer[at..]).map_err(End::Malformed)?.consumed;
            }
            if at > 0 {
                self.forward(at).await?;
                at = 0;
            }
            if body.is_done() {
                return Ok(());
            }
            match self.more(0).await {
                Err(End::ServerClosed) if head.framing == Framing::UntilClose => return Ok(()),
                result => result?,
            }
        }
    }

    /// Holds a JSON answer until it is whole and decided.
    async fn hold(&mut self, head: &ResponseHead) -> Result<(), End> {
        let limit = self.parts.limits.message;
        let mut hold = Hold::new(head.framing, head.len, limit);
        let content = loop {
            match hold.advance(&self.server.buffer).map_err(End::Malformed)? {
                Held::Done(content) => break content,
                Held::More(expected) => match self.more(expected).await {
                    Err(End::ServerClosed) if head.framing == Framing::UntilClose => break hold.content(),
                    result => result?,
                },
                Held::Oversized => {
                    let bias = self.parts.gate.rules().policy.defaults.oversized;
                    return self.or_refuse(Guard::Oversized { limit }, bias, head).await;
                }
            }
        };
        let fault = {
            let bytes = content.of(&self.server.buffer);
            match decode(bytes, &self.parts.limits) {
                Ok(payload) => {
                    self.finish(&payload, bytes.len(), Some(head.status));
                    None
                }
                Err(fault) => Some(fault.label()),
            }
        };
        if let Some(label) = fault {
            let bias = self.parts.gate.rules().policy.defaults.undecodable;
            return self.or_refuse(Guard::Undecodable(label), bias, head).await;
        }
        // Calls the server left unanswered stay unanswered.
        self.close_calls("none", None, Some(head.status), content.of(&self.server.buffer).len());
        self.conn.set_phase(Phase::Answering);
        *self.begun = Begun::Partial;
        self.forward(hold.at).await
    }

    /// What becomes of an answer that cannot be decided: passed unread where the operator chose so, else replaced.
    async fn or_refuse(&mut self, guard: Guard, bias: Bias, head: &ResponseHead) -> Result<(), End> {
        if bias == Bias::Allow {
            return self.pass(head).await;
        }
        let refusal = Refusal::Guard(guard);
        let calls = self.conn.end();
        for call in &calls {
            self.record(call, "none", Some(refusal.label()), Some(head.status), 0);
        }
        self.parts.metrics.denied(&self.conn.identity.agent.name, refusal.rule(), refusal.label());
        let answer = refuse::http(&Refused::all(&calls, &refusal), calls.len() > 1, true);
        self.agent.send(&answer).await.map_err(End::agent)?;
        Err(End::Refused)
    }

    /// Relays a stream of events, each as soon as it is whole and decided.
    async fn stream(&mut self, head: &ResponseHead) -> Result<(), End> {
        self.forward(head.len).await?;
        if !self.asked.has_calls {
            self.conn.set_phase(Phase::Open);
        }
        let mut stream = Stream {
            body: Body::new(head.framing),
            events: Events::new(self.parts.limits.event),
            at: 0,
            decided: 0,
            pieces: Vec::new(),
        };
        *self.begun = match head.framing {
            Framing::Chunked => Begun::Stream(Seam::Chunk),
            Framing::UntilClose => Begun::Stream(Seam::Close),
            _ => Begun::Partial,
        };
        loop {
            self.advance(&mut stream, head).await?;
            if stream.decided > 0 {
                // Half an event on the wire cannot be followed by anything of ours.
                let begun = std::mem::replace(self.begun, Begun::Partial);
                self.forward(stream.decided).await?;
                *self.begun = begun;
                stream.forwarded();
            }
            if stream.body.is_done() {
                let rest = stream.at;
                self.forward(rest).await?;
                self.close_calls("none", Some("server_closed"), Some(head.status), 0);
                return Ok(());
            }
            match self.more(0).await {
                Err(End::ServerClosed) if head.framing == Framing::UntilClose => {
                    let rest = self.server.buffer.len();
                    self.forward(rest).await?;
                    self.close_calls("none", Some("server_closed"), Some(head.status), 0);
                    return Ok(());
                }
                result => result?,
            }
        }
    }

    /// Takes what the buffer has gained: finds whole events and decides them.
    async fn advance(&mut self, stream: &mut Stream, head: &ResponseHead) -> Result<(), End> {
        while stream.at < self.server.buffer.len() && !stream.body.is_done() {
            let step = stream.body.advance(&self.server.buffer[stream.at..]).map_err(End::Malformed)?;
            let mut data = stream.at + step.data.start..stream.at + step.data.end;
            while !data.is_empty() {
                let Ok(end) = stream.events.next_end(&self.server.buffer[data.clone()]) else {
                    return self.oversized(stream).await;
                };
                let Some(end) = end else {
                    stream.pieces.push(data.clone());
                    break;
                };
                stream.pieces.push(data.start..data.start + end);
                data.start += end;
                self.event(&stream.pieces, head.status);
                stream.pieces.clear();
                stream.decided = data.start;
                *self.begun = match (stream.body.ends_chunk(), head.framing) {
                    _ if !data.is_empty() => Begun::Partial,
                    (true, _) => Begun::Stream(Seam::ChunkEnd),
                    (false, Framing::UntilClose) => Begun::Stream(Seam::Close),
                    (false, _) => Begun::Partial,
                };
            }
            stream.at += step.consumed;
            // Chunk framing after the last whole event belongs to nobody: it can leave.
            if stream.pieces.is_empty() && stream.body.at_boundary() {
                stream.decided = stream.at;
                if head.framing == Framing::Chunked {
                    *self.begun = Begun::Stream(Seam::Chunk);
                }
            }
        }
        Ok(())
    }

    /// Decides one whole event. One that is refused is blanked in place, into a comment of the same length, so that
    /// the framing around it stays true.
    fn event(&mut self, pieces: &[Range<usize>], status: u16) {
        let fault = {
            let joined;
            let bytes = match pieces {
                [piece] => &self.server.buffer[piece.clone()],
                _ => {
                    joined = pieces
                        .iter()
                        .flat_map(|piece| &self.server.buffer[piece.clone()])
                        .copied()
                        .collect::<Vec<u8>>();
                    &joined
                }
            };
            let event = sse::fields(bytes);
            if !event.has_data {
                return;
            }
            match decode(&event.data, &self.parts.limits) {
                Ok(payload) => {
                    self.finish(&payload, event.data.len(), Some(status));
                    None
                }
                Err(fault) => Some(fault.label()),
            }
        };
        let Some(label) = fault else { return };
        // A stream without calls that is not MCP's may carry whatever it likes.
        let mcp = self.asked.has_calls || self.conn.is_mcp();
        if !mcp || self.parts.gate.rules().policy.defaults.undecodable == Bias::Allow {
            return;
        }
        debug!(conn = self.conn.id, label, "event withheld");
        self.parts.metrics.denied(&self.conn.identity.agent.name, "default:undecodable", label);
        self.parts.record_guard(self.conn, "event", &Refusal::Guard(Guard::Undecodable(label)));
        let total: usize = pieces.iter().map(Range::len).sum();
        for (position, index) in pieces.iter().flat_map(Clone::clone).enumerate() {
            self.server.buffer[index] = match position {
                0 => b':',
                _ if position + 2 >= total => b'\n',
                _ => b' ',
            };
        }
    }

    /// An event over its limit: passed unread where the operator chose so, else it ends the stream.
    async fn oversized(&mut self, stream: &mut Stream) -> Result<(), End> {
        let limit = self.parts.limits.event;
        if self.parts.gate.rules().policy.defaults.oversized == Bias::Allow {
            // What was seen of the event leaves; the rest is looked at as if it were another one.
            stream.events = Events::new(limit);
            stream.pieces.clear();
            stream.at = self.server.buffer.len();
            stream.decided = stream.at;
            *self.begun = Begun::Partial;
            return Ok(());
        }
        // Whole events before it have left or leave now.
        if stream.decided > 0 {
            self.forward(stream.decided).await?;
        }
        let refusal = Refusal::Guard(Guard::Oversized { limit });
        let calls = self.conn.end();
        for call in &calls {
            self.record(call, "none", Some(refusal.label()), None, 0);
        }
        self.parts.metrics.denied(&self.conn.identity.agent.name, refusal.rule(), refusal.label());
        if let Some(end) = self.begun.ending(&calls, &refusal) {
            self.agent.send(&end).await.map_err(End::agent)?;
        }
        Err(End::Refused)
    }

    /// Takes the calls off the ledger that a payload answers.
    fn finish(&self, payload: &Payload<'_>, bytes: usize, status: Option<u16>) {
        let messages = match payload {
            Payload::Single(message) => std::slice::from_ref(message),
            Payload::Batch(messages) => messages,
            Payload::NotJsonRpc => return,
        };
        for message in messages {
            let Kind::Response { id: Some(id), .. } = &message.kind else { continue };
            let Some(call) = self.conn.finish(id.raw) else { continue };
            let is_error = mcp::result_facts(message).is_some_and(|facts| facts.is_error);
            self.record(&call, if is_error { "error" } else { "result" }, None, status, bytes);
        }
    }

    /// Ends the calls that are still open, all for one reason.
    fn close_calls(
        &self,
        outcome: &'static str,
        cause: Option<&'static str>,
        status: Option<u16>,
        bytes: usize,
    ) {
        for call in self.conn.end() {
            self.record(&call, outcome, cause, status, bytes);
        }
        self.conn.set_phase(Phase::Open);
    }

    fn record(
        &self,
        call: &Call,
        outcome: &'static str,
        cause: Option<&'static str>,
        status: Option<u16>,
        bytes: usize,
    ) {
        self.parts.log.record(&Entry::Result(CallResult {
            conn: self.conn.id,
            agent: &self.conn.identity.agent.name,
            call,
            outcome,
            cause,
            status,
            bytes,
            took_us: u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX),
        }));
    }
}

/// A stream of events on its way through the server's buffer.
struct Stream {
    body: Body,
    events: Events,
    /// Bytes of the buffer that were looked at.
    at: usize,
    /// Bytes of the buffer that may leave.
    decided: usize,
    /// Where in the buffer the content of the current, unfinished event lies.
    pieces: Vec<Range<usize>>,
}

impl Stream {
    /// The decided bytes have left the buffer.
    fn forwarded(&mut self) {
        for piece in &mut self.pieces {
            *piece = piece.start - self.decided..piece.end - self.decided;
        }
        self.at -= self.decided;
        self.decided = 0;
    }
}

impl Begun {
    /// The bytes that answer these calls and end what has begun; `None` where only a reset is left.
    pub fn ending(self, calls: &[Call], refusal: &Refusal) -> Option<Vec<u8>> {
        let events = refuse::events(&Refused::all(calls, refusal));
        match self {
            Begun::Nothing | Begun::Partial => None,
            Begun::Stream(Seam::Close) => Some(events),
            Begun::Stream(Seam::Chunk) => Some([&refuse::chunk(&events), refuse::LAST_CHUNK].concat()),
            Begun::Stream(Seam::ChunkEnd) => {
                Some([b"\r\n", &*refuse::chunk(&events), refuse::LAST_CHUNK].concat())
            }
        }
    }
}
