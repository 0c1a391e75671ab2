//! Relaying a stream of server-sent events, each as soon as it is whole and decided.

use std::ops::Range;

use tracing::debug;

use crate::decide::policy::Bias;
use crate::decide::{Guard, Refusal};
use crate::decode::{Body, Events, Framing, ResponseHead, decode, sse};
use crate::forward::End;
use crate::forward::answer::{Begun, Relay, Seam};
use crate::ledger::Phase;

/// Framing that an event of any size may have around it.
const OVERHEAD: usize = 64 * 1024;

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
    /// The current event is over its limit and leaves unread, as the operator chose.
    passing: bool,
}

impl Stream {
    /// Adds content to the current event, in as few pieces as it came.
    fn add(&mut self, data: Range<usize>) {
        match self.pieces.last_mut() {
            Some(last) if last.end == data.start => last.end = data.end,
            _ => self.pieces.push(data),
        }
    }

    /// The decided bytes have left the buffer.
    fn forwarded(&mut self) {
        for piece in &mut self.pieces {
            *piece = piece.start - self.decided..piece.end - self.decided;
        }
        self.at -= self.decided;
        self.decided = 0;
    }
}

impl Relay<'_> {
    /// Relays a stream of events, each as soon as it is whole and decided.
    pub(super) async fn stream(&mut self, head: &ResponseHead) -> Result<(), End> {
        *self.begun = Begun::Partial;
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
            passing: false,
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
                    self.oversized(stream).await?;
                    continue;
                };
                let Some(end) = end else {
                    stream.add(data.clone());
                    break;
                };
                stream.add(data.start..data.start + end);
                data.start += end;
                if std::mem::take(&mut stream.passing) {
                    stream.events = Events::new(self.parts.limits.event);
                } else {
                    self.event(&stream.pieces, head.status).await;
                }
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
            if stream.at - stream.decided > self.parts.limits.event + self.parts.limits.event / 8 + OVERHEAD {
                // Mostly chunk framing: it is held as long as the event is, and so it is bounded too.
                self.oversized(stream).await?;
            }
            if stream.passing {
                stream.pieces.clear();
                stream.decided = stream.at;
                *self.begun = Begun::Partial;
            }
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
    async fn event(&mut self, pieces: &[Range<usize>], status: u16) {
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
        if !mcp || self.parts.defaults_of(self.conn).undecodable == Bias::Allow {
            return;
        }
        debug!(conn = self.conn.id, label, "event withheld");
        self.parts.record_guard(self.conn, "event", &Refusal::Guard(Guard::Undecodable(label))).await;
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
        if self.parts.defaults_of(self.conn).oversized == Bias::Allow {
            stream.passing = true;
            stream.events = Events::new(usize::MAX);
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
        self.parts.record_guard(self.conn, "event", &refusal).await;
        if let Some(end) = self.begun.ending(&calls, &refusal) {
            self.agent.send(&end).await.map_err(End::agent)?;
        }
        Err(End::Refused)
    }
}
