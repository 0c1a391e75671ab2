//! Reading a request of an agent: whole, where it could be a JSON-RPC message, and only its head where it cannot.
//!
//! The first byte of the content decides, not its media type: a type is a claim, and servers exist that ignore it.

use crate::decode::{Body, Limits, Malformed, Media, RequestHead};
use crate::forward::End;
use crate::forward::hold::{Content, Held, Hold};
use crate::forward::refuse::CONTINUE;
use crate::forward::side::Side;

/// White space before a content that is skipped; more of it is taken for the content, and held.
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
    /// Perhaps JSON, in a form that is not undone; the label says which.
    Unreadable(&'static str),
}

/// Reads on from a head that is complete at the start of the agent's buffer.
pub async fn read(agent: &mut Side, head: &RequestHead, limits: &Limits) -> Result<Reading, End> {
    let mut asked = !head.expect_continue;
    let mut opening = Opening::new(head);
    let opening = loop {
        match opening.advance(&agent.reader.buffer).map_err(End::Malformed)? {
            Some(found) => break found,
            None => more(agent, &mut asked, 0).await?,
        }
    };
    let start = match opening {
        Found::Nothing(len) => return Ok(Reading::Whole { len, content: Content::InPlace(len..len) }),
        Found::Start(start) => start,
    };
    let is_json = head.media == Media::Json || looks_like_json(start);
    if !head.codings.is_identity() {
        return Ok(if is_json || head.media != Media::Other {
            Reading::Unreadable("content_coding")
        } else {
            Reading::Head
        });
    }
    if !is_json {
        return Ok(Reading::Head);
    }
    if head.foreign_charset {
        return Ok(Reading::Unreadable("charset"));
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

/// Enough of a content to tell whether any server could read it as JSON: its first four bytes after white space.
type Start = [u8; 4];

/// Whether some server reads such a content as JSON: in UTF-8, with a byte order mark, or in UTF-16 or UTF-32, which
/// servers guess from where the zero bytes are. All but plain UTF-8 is then found undecodable.
fn looks_like_json(start: Start) -> bool {
    let opens = |byte: u8| matches!(byte, b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n');
    match start {
        [0, 0, 0, byte] | [0, byte, ..] if opens(byte) => true,
        [0xef, 0xbb, 0xbf, _] | [0xfe, 0xff, ..] | [0xff, 0xfe, ..] | [0, 0, 0xfe, 0xff] => true,
        [byte, ..] => opens(byte),
    }
}

/// Looks for the first bytes of a content, each byte of the buffer once.
struct Opening {
    body: Body,
    at: usize,
    space: usize,
    start: Vec<u8>,
}

enum Found {
    Start(Start),
    /// No content but white space; the message ends here.
    Nothing(usize),
}

impl Opening {
    fn new(head: &RequestHead) -> Opening {
        Opening { body: Body::new(head.framing), at: head.len, space: 0, start: Vec::new() }
    }

    fn advance(&mut self, buffer: &[u8]) -> Result<Option<Found>, Malformed> {
        loop {
            let step = self.body.advance(&buffer[self.at..])?;
            for byte in &buffer[self.at..][step.data] {
                if self.start.is_empty() && byte.is_ascii_whitespace() && self.space < MAX_LEADING_SPACE {
                    self.space += 1;
                } else if self.start.len() < 4 {
                    self.start.push(*byte);
                }
            }
            self.at += step.consumed;
            if self.start.len() == 4 || step.done {
                let mut start = [0xff; 4];
                start[..self.start.len()].copy_from_slice(&self.start);
                return Ok(Some(if self.start.is_empty() {
                    Found::Nothing(self.at)
                } else {
                    Found::Start(start)
                }));
            }
            if step.consumed == 0 {
                return Ok(None);
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(content: &[u8], expect: bool) {
        let text = [
            b"POST / HTTP/1.1\r\nContent-Length: ",
            content.len().to_string().as_bytes(),
            b"\r\n\r\n",
            content,
        ]
        .concat();
        let head = crate::decode::parse_request(&text, 4096).unwrap().unwrap();
        // Byte by byte: what was looked at is not looked at again, and nothing changes.
        let mut opening = Opening::new(&head);
        let found = (head.len..=text.len()).find_map(|end| opening.advance(&text[..end]).unwrap());
        let Some(Found::Start(start)) = found else { panic!("no content found") };
        assert_eq!(looks_like_json(start), expect, "{content:?}");
    }

    #[test]
    fn json_is_seen_in_every_encoding_a_server_might_guess() {
        for text in ["{\"a\":1}", "[{}]", "  \r\n{\"a\":1}"] {
            let utf16: Vec<u16> = text.encode_utf16().collect();
            let bytes =
                |order: fn(u16) -> [u8; 2]| utf16.iter().flat_map(|unit| order(*unit)).collect::<Vec<u8>>();
            check(text.as_bytes(), true);
            check(&[b"\xef\xbb\xbf", text.as_bytes()].concat(), true);
            check(&bytes(u16::to_le_bytes), true);
            check(&bytes(u16::to_be_bytes), true);
            check(&[&[0xfe, 0xff][..], &bytes(u16::to_be_bytes)].concat(), true);
            check(&[&[0xff, 0xfe][..], &bytes(u16::to_le_bytes)].concat(), true);
            check(&text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect::<Vec<u8>>(), true);
        }
        check(&[b' '; 300], true);
    }

    #[test]
    fn other_content_is_not_held() {
        check(b"a=1&b=2", false);
        check(b"\x00\x00\x00\x18ftypmp42", false);
        check(b"\xff\xd8\xff\xe0", false);
        check(b"x", false);
    }
}
