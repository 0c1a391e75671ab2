//! A stream of events between two framings: its content is taken out of the server's, and out of its codings, held event by event until each is
//! decided, and leaves in one of ours. So it can be edited, and between two events is where the agent's side always is.
//!
//! Does no IO; what a stop needs, to end the one side and to read on from the other, is all here. Chunk extensions and
//! trailers are dropped (RFC 9112, sections 7.1.1 and 7.1.2).

use crate::decide::Refusal;
use crate::decode::coding::{Decoder, Fault, STEP};
use crate::decode::{Body, Codings, Events, Framing, Malformed, Oversized, sse};
use crate::forward::refuse::{self, Refused};
use crate::ledger::Call;

/// Room for the head of a chunk of any size, which is known only when the chunk is whole.
const ROOM: usize = 18;
/// Memory that is kept between two events.
const KEPT: usize = 64 * 1024;

/// A stream on its way, and how far it has come.
#[derive(Debug)]
pub struct Stream {
    body: Body,
    /// For a content that is coded.
    decoder: Option<Decoder>,
    events: Events,
    limit: usize,
    /// The agent gets chunks; otherwise the stream ends with its connection.
    chunked: bool,
    /// Content behind [`ROOM`]: first what is decided, then an event, then what nobody has looked at.
    held: Vec<u8>,
    decided: usize,
    /// Where the event ends, or as far as it was looked at.
    seen: usize,
    /// The event is whole.
    whole: bool,
    /// The event is over the limit and leaves unread.
    passing: bool,
    /// What leaves now.
    leaving: Vec<u8>,
    /// How much of it has left.
    left: usize,
    /// Nothing can follow.
    finished: bool,
    /// It is ours alone: nothing of the server's has come.
    waiting: bool,
    /// How often the agent was told of progress in it by us.
    told: u32,
}

/// Why no more can be taken from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Its framing.
    Framing(Malformed),
    /// Its coding.
    Coding(Fault),
}

impl Default for Stream {
    /// One that is over before it has begun.
    fn default() -> Stream {
        Stream::new(Framing::Empty, false, 0)
    }
}

impl Stream {
    /// A stream in the server's framing, with events of at most `limit` bytes.
    pub fn new(framing: Framing, chunked: bool, limit: usize) -> Stream {
        Stream {
            body: Body::new(framing),
            decoder: None,
            events: Events::new(limit),
            limit,
            chunked,
            held: vec![0; ROOM],
            decided: ROOM,
            seen: ROOM,
            whole: false,
            passing: false,
            leaving: Vec::new(),
            left: 0,
            finished: false,
            waiting: false,
            told: 0,
        }
    }

    /// A stream of ours, in chunks, which waits for what the server will say.
    pub fn open(limit: usize) -> Stream {
        Stream { waiting: true, ..Stream::new(Framing::Empty, true, limit) }
    }

    /// A number for the agent to see that it is not forgotten; it only grows.
    pub fn next_progress(&mut self) -> u32 {
        self.told = self.told.saturating_add(1);
        self.told
    }

    /// What undoes the codings of a stream with events of at most `limit` bytes; `None` where there are none. No coding
    /// between them may give much more for one event.
    pub fn decoder(codings: Codings, limit: usize) -> Result<Option<Decoder>, Fault> {
        if codings.is_identity() {
            return Ok(None);
        }
        // That an event is over its limit is seen one step later.
        Decoder::new(codings, limit.saturating_add(STEP)).map(Some)
    }

    /// What the server says is coded, if there is something to undo it.
    pub fn decode_with(&mut self, decoder: Option<Decoder>) {
        self.decoder = decoder;
    }

    /// What the server says goes on in it, in this framing.
    pub fn go_on(&mut self, framing: Framing) {
        self.body = Body::new(framing);
        self.waiting = false;
    }

    /// Nothing of the server's has come in it.
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Takes the next bytes from the server up to the end of the stream, and tells how many those were; of a coded stream
    /// none, while it [has more](Stream::has_more). What comes before a fault is taken.
    pub fn take(&mut self, input: &[u8]) -> Result<usize, Broken> {
        let (mut at, mut framing) = (0, Ok(()));
        let is_hungry = !self.has_more();
        while is_hungry && at < input.len() && !self.body.is_done() {
            match self.body.advance(&input[at..]) {
                Ok(step) => {
                    let content = &input[at..][step.data];
                    match &mut self.decoder {
                        Some(decoder) => decoder.push(content),
                        None => self.held.extend_from_slice(content),
                    }
                    at += step.consumed;
                }
                Err(malformed) => {
                    framing = Err(malformed);
                    break;
                }
            }
        }
        if let Some(decoder) = &mut self.decoder {
            decoder.step(&mut self.held).map_err(Broken::Coding)?;
        }
        framing.map(|()| at).map_err(Broken::Framing)
    }

    /// There is more in what was taken, for [`Stream::take`] to decode.
    pub fn has_more(&self) -> bool {
        self.decoder.as_ref().is_some_and(Decoder::has_more)
    }

    /// The server has ended the stream in order.
    pub fn is_done(&self) -> bool {
        self.body.is_done() && !self.has_more()
    }

    /// An event leaves unread, and its end has not come.
    pub fn is_passing(&self) -> bool {
        self.passing
    }

    pub fn is_chunked(&self) -> bool {
        self.chunked
    }

    /// Bytes that are not decided.
    pub fn undecided(&self) -> usize {
        self.held.len() - self.decided
    }

    /// Bytes that it holds, and what undoes its codings.
    pub fn held(&self) -> usize {
        self.held.capacity() + self.leaving.capacity() + self.decoder.as_ref().map_or(0, Decoder::held)
    }

    /// Looks for the end of an event. There is a whole one until it is decided: passed, replaced or dropped.
    pub fn has_event(&mut self) -> Result<bool, Oversized> {
        while !self.whole && self.seen < self.held.len() {
            let rest = &self.held[self.seen..];
            let end = self.events.next_end(rest)?;
            self.seen += end.unwrap_or(rest.len());
            self.whole = end.is_some();
            if self.passing {
                if std::mem::take(&mut self.whole) {
                    self.passing = false;
                    self.events.set_limit(self.limit);
                }
                self.pass();
            }
        }
        Ok(self.whole)
    }

    /// The whole event.
    pub fn event(&self) -> &[u8] {
        &self.held[self.decided..self.seen]
    }

    /// The event is forwarded as it came.
    pub fn pass(&mut self) {
        self.decided = self.seen;
        self.whole = false;
        if let Some(decoder) = &mut self.decoder {
            decoder.renew();
        }
    }

    /// The event is forwarded with other data.
    pub fn replace(&mut self, json: &[u8]) {
        self.put(&sse::with_data(self.event(), json));
    }

    /// The event's data is not forwarded.
    pub fn withhold(&mut self) {
        self.put(&sse::without_data(self.event()));
    }

    /// The event goes nowhere: there is no agent any more.
    pub fn skip(&mut self) {
        self.put(b"");
    }

    fn put(&mut self, event: &[u8]) {
        self.held.splice(self.decided..self.seen, event.iter().copied());
        self.seen = self.decided + event.len();
        self.pass();
    }

    /// The event is too long, and is forwarded unread.
    pub fn pass_unread(&mut self) {
        self.passing = true;
        self.events.set_limit(usize::MAX);
    }

    /// All of what is left is forwarded unread.
    pub fn pass_rest(&mut self) {
        self.seen = self.held.len();
        self.pass();
    }

    /// Something of ours, already framed, leaves before what is decided next.
    pub fn send(&mut self, framed: &[u8]) {
        self.leaving.extend_from_slice(framed);
    }

    /// An event of ours leaves after what is decided. Not while an event is [passing](Stream::is_passing).
    pub fn say(&mut self, event: &[u8]) {
        self.leaving();
        self.send(&if self.chunked { refuse::chunk(event) } else { event.to_vec() });
    }

    /// Frames what is decided. What leaves now, and how much of it has left, which the caller counts.
    pub fn leaving(&mut self) -> (&[u8], &mut usize) {
        if self.decided > ROOM {
            let rest = self.held.split_off(self.decided);
            let start = if self.chunked { frame(&mut self.held) } else { ROOM };
            if self.leaving.is_empty() {
                std::mem::swap(&mut self.leaving, &mut self.held);
                self.left = start;
            } else {
                self.leaving.extend_from_slice(&self.held[start..]);
            }
            self.held.clear();
            self.held.shrink_to(KEPT);
            self.held.resize(ROOM, 0);
            self.held.extend_from_slice(&rest);
            self.seen -= self.decided - ROOM;
            self.decided = ROOM;
        }
        (&self.leaving, &mut self.left)
    }

    /// All of it has left.
    pub fn sent(&mut self) {
        self.leaving.clear();
        self.leaving.shrink_to(KEPT);
        self.left = 0;
    }

    /// The end of the stream for the agent.
    pub fn finish(&mut self) {
        // Before it, what is decided.
        self.leaving();
        if self.chunked {
            self.send(refuse::LAST_CHUNK);
        }
        self.finished = true;
    }

    /// What has to be sent for the agent to have what is decided, answers to these calls, and the end. Not while an event
    /// is [passing](Stream::is_passing).
    pub fn ending(&mut self, calls: &[Call], refusal: &Refusal) -> Vec<u8> {
        self.ending_with(&Refused::all(calls, refusal))
    }

    /// As [`Stream::ending`], with calls that are refused each for a reason of its own.
    pub fn ending_with(&mut self, refused: &[Refused]) -> Vec<u8> {
        self.leaving();
        // The server may have ended it first, without the answers.
        if !self.finished {
            self.say(&refuse::events(refused));
            self.finish();
        }
        self.leaving[self.left..].to_vec()
    }
}

/// Makes what is held one chunk (RFC 9112, section 7.1), and tells where it begins.
fn frame(held: &mut Vec<u8>) -> usize {
    let head = format!("{:x}\r\n", held.len() - ROOM);
    let start = ROOM - head.len();
    held[start..ROOM].copy_from_slice(head.as_bytes());
    held.extend_from_slice(b"\r\n");
    start
}

#[cfg(test)]
mod tests;
