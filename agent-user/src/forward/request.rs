//! Reading a request of an agent: whole, where it could be a JSON-RPC message, and only its head where it cannot.
//!
//! The first byte of the content decides, not its media type: a type is a claim, and servers exist that ignore it.

use std::ops::Range;

use crate::decode::{Body, Coding, Framing, Limits, Media, RequestHead};
use crate::forward::End;
use crate::forward::refuse::CONTINUE;
use crate::forward::side::Side;

/// White space that may precede a JSON text before we hold it without looking further.
const MAX_LEADING_SPACE: usize = 256;

/// How much of a request was read into the agent's buffer.
#[derive(Debug)]
pub enum Reading {
    /// All of it: `len` bytes with the head.
    Whole { len: usize, content: Content },
    /// The head, and of the body what came with it. The content is no JSON; there is nothing to decide.
    Head,
    /// A JSON text larger than the limit.
    Oversized,
    /// Perhaps JSON, under a content coding, which is not undone.
    Coded,
}

/// Where the content of a message lies.
#[derive(Debug)]
pub enum Content {
    /// In the buffer.
    InPlace(Range<usize>),
    /// Taken out of its chunks.
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
}

/// Reads on from a head that is complete at the start of the agent's buffer.
pub async fn read(agent: &mut Side, head: &RequestHead, limits: &Limits) -> Result<Reading, End> {
    let mut asked = !head.expect_continue;
    let first = loop {
        match peek(&agent.reader.buffer, head)? {
            Peek::More => more(agent, &mut asked, 0).await?,
            Peek::Content(first) => break first,
            Peek::Empty(len) => return Ok(Reading::Whole { len, content: Content::InPlace(len..len) }),
        }
    };
    let looks_like_json = matches!(first, b'{' | b'[' | b' ' | BOM);
    match head.coding {
        Coding::Coded if head.media != Media::Other || looks_like_json => return Ok(Reading::Coded),
        _ if !looks_like_json => return Ok(Reading::Head),
        _ => {}
    }
    let mut hold = Hold::new(head.framing, head.len, limits.message);
    loop {
        match hold.advance(&agent.reader.buffer).map_err(End::Malformed)? {
            Held::Done(content) => return Ok(Reading::Whole { len: hold.at, content }),
            Held::Oversized => return Ok(Reading::Oversized),
            Held::More(expected) => more(agent, &mut asked, expected).await?,
        }
    }
}

/// The first byte of the UTF-8 byte order mark, which some parsers skip.
const BOM: u8 = 0xef;

enum Peek {
    More,
    /// The first byte of the content that is not white space, or a space where there is too much of it.
    Content(u8),
    /// No content but white space; the message ends here.
    Empty(usize),
}

fn peek(buffer: &[u8], head: &RequestHead) -> Result<Peek, End> {
    let (mut body, mut at, mut space) = (Body::new(head.framing), head.len, 0);
    loop {
        let step = body.advance(&buffer[at..]).map_err(End::Malformed)?;
        let data = &buffer[at + step.data.start..at + step.data.end];
        if let Some(first) = data.iter().find(|byte| !byte.is_ascii_whitespace()) {
            return Ok(Peek::Content(*first));
        }
        space += data.len();
        at += step.consumed;
        match step {
            _ if space > MAX_LEADING_SPACE => return Ok(Peek::Content(b' ')),
            _ if step.done => return Ok(Peek::Empty(at)),
            _ if step.consumed == 0 => return Ok(Peek::More),
            _ => {}
        }
    }
}

async fn more(agent: &mut Side, asked: &mut bool, expected: usize) -> Result<(), End> {
    if !*asked {
        agent.writer.send(CONTINUE).await.map_err(End::agent)?;
        *asked = true;
    }
    match agent.reader.fill_for(expected).await.map_err(End::agent)? {
        0 => Err(End::AgentClosed),
        _ => Ok(()),
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
    pub fn advance(&mut self, buffer: &[u8]) -> Result<Held, crate::decode::Malformed> {
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

    /// The content so far: all of it, when the message ends with the connection.
    pub fn content(&mut self) -> Content {
        match self.framing {
            Framing::Chunked => Content::Joined(std::mem::take(&mut self.joined)),
            _ => Content::InPlace(self.start..self.at),
        }
    }
}
