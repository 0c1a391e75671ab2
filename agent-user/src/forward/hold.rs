//! Holding one message, a request or an answer, until it is whole.

use std::ops::Range;

use crate::decide::Guard;
use crate::decode::coding::{Fault, undo};
use crate::decode::{Body, Codings, Framing, Limits, Malformed};

/// Where the content of a message lies.
#[derive(Debug)]
pub enum Content {
    /// In the buffer.
    InPlace(Range<usize>),
    /// Taken out of its chunks, or of its codings.
    Joined(Vec<u8>),
}

impl Content {
    /// The content's bytes.
    pub fn of<'a>(&'a self, buffer: &'a [u8]) -> &'a [u8] {
        match self {
            Content::InPlace(range) => &buffer[range.clone()],
            Content::Joined(bytes) => bytes,
        }
    }

    /// Bytes that it holds beside the buffer.
    pub fn held(&self) -> usize {
        match self {
            Content::InPlace(_) => 0,
            Content::Joined(bytes) => bytes.capacity(),
        }
    }

    /// The content out of its codings. What could be read in another way as well, or is over its limit, is not.
    pub fn undone(self, codings: Codings, buffer: &[u8], limits: &Limits) -> Result<Content, Fault> {
        if codings.is_identity() {
            return Ok(self);
        }
        undo(codings, self.of(buffer), limits).map(Content::Joined)
    }
}

/// Why a content that cannot be taken out of its codings is refused. `limit` is what it may have.
pub fn guard(fault: Fault, limit: usize) -> Guard {
    match fault {
        Fault::Oversized => Guard::Oversized { limit },
        fault => Guard::Undecodable(fault.label()),
    }
}

/// Collects one bounded message, request or answer, as it arrives in a buffer.
#[derive(Debug)]
pub struct Hold {
    body: Body,
    framing: Framing,
    limit: usize,
    start: usize,
    /// Bytes of the buffer that belong to the message so far, its head included.
    pub at: usize,
    /// The content of a chunked message; otherwise it lies in the buffer in one piece.
    joined: Vec<u8>,
}

/// What [`Hold::advance`] found.
#[derive(Debug)]
pub enum Held {
    /// The message is complete.
    Done(Content),
    /// More bytes are needed, this many if that is known.
    More(usize),
    Oversized,
}

impl Hold {
    /// A message whose body begins at `start`.
    pub fn new(framing: Framing, start: usize, limit: usize) -> Hold {
        Hold { body: Body::new(framing), framing, limit, start, at: start, joined: Vec::new() }
    }

    /// Takes what the buffer has gained.
    pub fn advance(&mut self, buffer: &[u8]) -> Result<Held, Malformed> {
        let chunked = self.framing == Framing::Chunked;
        while !self.body.is_done() {
            let step = self.body.advance(&buffer[self.at..])?;
            if chunked {
                self.joined.extend_from_slice(&buffer[self.at..][step.data]);
            }
            self.at += step.consumed;
            if step.consumed == 0 {
                break;
            }
        }
        let raw = self.at - self.start;
        let expected = match self.framing {
            Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX).saturating_sub(raw),
            _ => 0,
        };
        // The framing of tiny chunks is larger than what they carry: it is bounded too.
        let (content, overhead) =
            if chunked { (self.joined.len(), raw) } else { (raw.saturating_add(expected), 0) };
        Ok(if content > self.limit || overhead > self.limit.saturating_mul(8) {
            Held::Oversized
        } else if self.body.is_done() {
            Held::Done(self.content())
        } else {
            Held::More(expected)
        })
    }

    /// Bytes that are held beside the buffer.
    pub fn joined(&self) -> usize {
        self.joined.capacity()
    }

    /// The content so far: all of it, when the message ends with the connection.
    pub fn content(&mut self) -> Content {
        match self.framing {
            Framing::Chunked => Content::Joined(std::mem::take(&mut self.joined)),
            _ => Content::InPlace(self.start..self.at),
        }
    }
}
