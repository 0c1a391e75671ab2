//! Reading a request of an agent: whole, where it could be a JSON-RPC message, and only its head where it cannot.
//!
//! The first byte of the content decides, out of its codings, not its media type: a type is a claim, and servers exist
//! that ignore it.

use crate::decode::coding::{Decoder, Fault};
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
    /// Perhaps JSON, in a form that is not undone or not read alike by everybody; the label says which.
    Unreadable(&'static str),
}

/// Reads on from a head that is complete at the start of the agent's buffer. `continued`: the agent was told to go on.
pub async fn read(
    agent: &mut Side,
    head: &RequestHead,
    limits: &Limits,
    continued: &mut bool,
) -> Result<Reading, End> {
    let mut waits = Waits { agent, expects: head.expect_continue, continued };
    let mut opening = Opening::new(head, limits);
    let opening = loop {
        match opening.advance(waits.buffer()).map_err(End::Malformed)? {
            Some(found) => break found,
            // A coding can have much that is no content, such as a name in its header.
            None if opening.at - head.len > limits.message => return Ok(Reading::Oversized),
            None => {
                waits.made(opening.held())?;
                waits.more(0).await?;
            }
        }
    };
    let (raw, start) = match opening {
        Found::Nothing(len) => return Ok(Reading::Whole { len, content: Content::InPlace(len..len) }),
        Found::Start { raw, content: Ok(start) } => (raw, start),
        Found::Start { raw, content: Err(fault) } => {
            let may_be_json = looks_like_json(raw) || head.media != Media::Other;
            return Ok(if may_be_json { Reading::of(fault) } else { Reading::Head });
        }
    };
    let is_json = head.media == Media::Json || looks_like_json(start);
    // Servers that ignore a coding read what is under it.
    if !is_json && !looks_like_json(raw) {
        return Ok(Reading::Head);
    }
    if head.foreign_charset {
        return Ok(Reading::Unreadable("charset"));
    }
    let mut hold = Hold::new(head.framing, head.len, limits.message);
    let content = loop {
        match hold.advance(waits.buffer()).map_err(End::Malformed)? {
            Held::Done(content) => break content,
            Held::Oversized => return Ok(Reading::Oversized),
            Held::More(expected) => {
                waits.made(hold.joined())?;
                waits.more(expected).await?;
            }
        }
    };
    let content = content.undone(head.codings, waits.buffer(), limits);
    waits.made(content.as_ref().map_or(0, Content::held))?;
    Ok(match content {
        Ok(content) if is_json => Reading::Whole { len: hold.at, content },
        Ok(_) => Reading::Head,
        Err(fault) => Reading::of(fault),
    })
}

impl Reading {
    fn of(fault: Fault) -> Reading {
        match fault {
            Fault::Oversized => Reading::Oversized,
            fault => Reading::Unreadable(fault.label()),
        }
    }
}

/// Enough of a content to tell whether any server could read it as JSON: up to four bytes after white space, and 0xff for
/// those that nobody needs.
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
    raw: Beginning,
    /// Out of its codings, if it has any.
    decoded: Option<(Result<Decoder, Fault>, Beginning)>,
}

/// The first bytes of a content after white space.
#[derive(Default)]
struct Beginning {
    space: usize,
    bytes: Vec<u8>,
}

enum Found {
    Start {
        /// As it came.
        raw: Start,
        /// Out of its codings.
        content: Result<Start, Fault>,
    },
    /// No content but white space; the message ends here.
    Nothing(usize),
}

impl Opening {
    fn new(head: &RequestHead, limits: &Limits) -> Opening {
        let decoder = || (Decoder::new(head.codings, limits.message), Beginning::default());
        Opening {
            body: Body::new(head.framing),
            at: head.len,
            raw: Beginning::default(),
            decoded: (!head.codings.is_identity()).then(decoder),
        }
    }

    fn advance(&mut self, buffer: &[u8]) -> Result<Option<Found>, Malformed> {
        loop {
            let step = self.body.advance(&buffer[self.at..])?;
            let data = &buffer[self.at..][step.data];
            self.at += step.consumed;
            self.raw.take(data);
            let is_whole = match &mut self.decoded {
                None => self.raw.is_whole(),
                Some((decoder, beginning)) => {
                    if let Err(fault) = decode_start(decoder, beginning, data) {
                        *decoder = Err(fault);
                    }
                    self.raw.is_whole() && (decoder.is_err() || beginning.is_whole())
                }
            };
            if is_whole || step.done {
                return Ok(Some(self.found()));
            }
            if step.consumed == 0 {
                return Ok(None);
            }
        }
    }

    /// Bytes that are held to undo the codings.
    fn held(&self) -> usize {
        match &self.decoded {
            Some((Ok(decoder), _)) => decoder.held(),
            _ => 0,
        }
    }

    fn found(&self) -> Found {
        let raw = self.raw.start();
        match &self.decoded {
            _ if self.raw.bytes.is_empty() => Found::Nothing(self.at),
            None => Found::Start { raw, content: Ok(raw) },
            Some((Ok(_), beginning)) => Found::Start { raw, content: Ok(beginning.start()) },
            Some((Err(fault), _)) => Found::Start { raw, content: Err(*fault) },
        }
    }
}

fn decode_start(
    decoder: &mut Result<Decoder, Fault>,
    beginning: &mut Beginning,
    data: &[u8],
) -> Result<(), Fault> {
    let Ok(decoder) = decoder else { return Ok(()) };
    decoder.push(data);
    let mut content = Vec::new();
    while decoder.has_more() && !beginning.is_whole() {
        decoder.step(&mut content)?;
        beginning.take(&content);
        content.clear();
    }
    Ok(())
}

impl Beginning {
    fn take(&mut self, content: &[u8]) {
        for byte in content {
            if self.bytes.is_empty() && byte.is_ascii_whitespace() && self.space < MAX_LEADING_SPACE {
                self.space += 1;
            } else if !self.is_whole() {
                self.bytes.push(*byte);
            } else {
                break;
            }
        }
    }

    /// Whether more bytes would tell more: an agent may say nothing else before it has an answer.
    fn is_whole(&self) -> bool {
        let needed = match self.bytes.first() {
            Some(0) | None => 4,
            Some(0xef) => 3,
            Some(0xfe | 0xff) => 2,
            Some(_) => 1,
        };
        self.bytes.len() == needed
    }

    fn start(&self) -> Start {
        let mut start = [0xff; 4];
        start[..self.bytes.len()].copy_from_slice(&self.bytes);
        start
    }
}

/// An agent whose request is still on its way.
struct Waits<'a> {
    agent: &'a mut Side,
    /// It waits for `100 Continue`.
    expects: bool,
    /// It has had one.
    continued: &'a mut bool,
}

impl Waits<'_> {
    fn buffer(&self) -> &[u8] {
        &self.agent.reader.buffer
    }

    /// So many bytes are held beside the buffer.
    fn made(&mut self, held: usize) -> Result<(), End> {
        self.agent.reader.made(held).map_err(End::agent)
    }

    async fn more(&mut self, expected: usize) -> Result<(), End> {
        if self.expects && !*self.continued {
            self.agent.writer.send(CONTINUE).await.map_err(End::agent)?;
            *self.continued = true;
        }
        match self.agent.reader.fill_for(expected).await.map_err(End::agent)? {
            0 => Err(End::AgentClosed),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::forward::side::Keepalive;
    use crate::room::Share;

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
        let mut opening = Opening::new(&head, &Limits::default());
        let found = (head.len..=text.len()).find_map(|end| opening.advance(&text[..end]).unwrap());
        let Some(Found::Start { content: Ok(start), .. }) = found else { panic!("no content found") };
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

    /// What is found of a content that names its coding, and how much of it was looked at.
    fn found(coding: &str, content: &[u8], pieces: usize) -> (Result<Start, Fault>, usize) {
        let length = content.len();
        let head =
            format!("POST / HTTP/1.1\r\nContent-Encoding: {coding}\r\nContent-Length: {length}\r\n\r\n");
        let text = [head.as_bytes(), content].concat();
        let head = crate::decode::parse_request(&text, 4096).unwrap().unwrap();
        let mut opening = Opening::new(&head, &Limits::default());
        let ends = (head.len..text.len()).step_by(pieces).chain([text.len()]);
        for end in ends {
            if let Some(Found::Start { content, .. }) = opening.advance(&text[..end]).unwrap() {
                return (content, opening.at - head.len);
            }
        }
        panic!("no content found");
    }

    #[test]
    fn the_first_bytes_are_looked_for_under_codings() {
        let mut writer = GzEncoder::new(Vec::new(), Compression::default());
        writer.write_all(b"  {\"a\":1}").unwrap();
        writer.flush().unwrap();
        let flushed = writer.get_ref().len();
        writer.write_all(&[b' '; 1000]).unwrap();
        let coded = writer.finish().unwrap();
        for pieces in [1, 2, 5, 1000] {
            let (start, at) = found("gzip", &coded, pieces);
            assert_eq!(start, Ok(*b"{\xff\xff\xff"));
            assert!(at < flushed + pieces, "{at} of {flushed}");
        }
        assert_eq!(found("gzip", b"{\"a\":1}", 1).0, Err(Fault::Corrupt));
        assert_eq!(found("x", &coded, 1), (Err(Fault::Unknown), 1));
        assert_eq!(found("gzip, gzip", &coded, 1).0, Err(Fault::Corrupt));
        assert_eq!(found("gzip", &coded[..12], 1), (Ok([0xff; 4]), 12));

        let mut writer = GzEncoder::new(Vec::new(), Compression::default());
        writer.write_all(&[b'{'; 5 << 20]).unwrap();
        assert_eq!(
            found("gzip", &writer.finish().unwrap(), usize::MAX).0,
            Ok(*b"{\xff\xff\xff"),
            "no more is decoded"
        );
    }

    #[tokio::test]
    async fn a_coding_without_content_is_not_held_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut side, mut far) =
            (Side::new(near.unwrap(), Share::default(), Keepalive::default()), far.unwrap().0);
        let head = b"POST / HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 9000\r\n\r\n";
        let name = [&b"\x1f\x8b\x08\x08\0\0\0\0\0\0"[..], &[b'a'; 2000]].concat();
        far.write_all(&[&head[..], &name].concat()).await.unwrap();
        far.shutdown().await.unwrap();
        side.reader.fill().await.unwrap();
        let parsed = crate::decode::parse_request(&side.reader.buffer, 4096).unwrap().unwrap();
        let limits = Limits { message: 1000, ..Limits::default() };
        let reading = read(&mut side, &parsed, &limits, &mut false).await;
        assert!(matches!(reading, Ok(Reading::Oversized)), "{reading:?}");
    }

    #[test]
    fn no_more_of_a_content_is_awaited_than_is_needed() {
        let check = |content: &[u8], needed: usize| {
            let mut beginning = Beginning::default();
            let whole = content.iter().position(|byte| {
                beginning.take(&[*byte]);
                beginning.is_whole()
            });
            assert_eq!(whole, Some(needed - 1), "{content:?}");
        };
        check(b"PK", 1);
        check(b" {\"a\"", 2);
        check(b"\xef\xbb\xbf{", 3);
        check(b"\xff\xfe{\0", 2);
        check(b"\0\0\0{", 4);
        check(b"\0{\0\"", 4);
    }

    #[test]
    fn other_content_is_not_held() {
        check(b"a=1&b=2", false);
        check(b"\x00\x00\x00\x18ftypmp42", false);
        check(b"\xff\xd8\xff\xe0", false);
        check(b"x", false);
    }
}
