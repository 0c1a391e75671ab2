//! How our own decoders read a stream, as the relay uses them.

use interlock::decode::{Body, Framing, Malformed, Method, parse_request, parse_response};

use crate::reading::{End, Message, Reading, name};

const LIMIT: usize = 64 << 10;

/// A stream that is being read.
struct Stream<'a> {
    bytes: &'a [u8],
    at: usize,
    reading: Reading,
}

impl<'a> Stream<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, reading: Reading::new(Vec::new(), End::Clean) }
    }

    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Takes the content that follows a head of this length; false where the stream ends in it.
    fn content(&mut self, head: usize, framing: Framing) -> Result<Option<Vec<u8>>, Malformed> {
        let (mut body, mut content, mut at) = (Body::new(framing), Vec::new(), self.at + head);
        while at < self.bytes.len() && !body.is_done() {
            let step = body.advance(&self.bytes[at..])?;
            content.extend_from_slice(&self.bytes[at..][step.data]);
            at += step.consumed;
        }
        // What has come of a body may have left.
        self.reading.passed = at;
        if body.is_done() || framing == Framing::UntilClose {
            self.at = at;
            self.reading.ends.push(at);
            return Ok(Some(content));
        }
        Ok(None)
    }

    /// The reading, at an end like that.
    fn end(mut self, end: End) -> Reading {
        if end != End::Cut {
            self.reading.passed = self.at;
        }
        self.reading.end = end;
        self.reading
    }
}

/// The requests in a stream.
pub(crate) fn requests(bytes: &[u8]) -> Reading {
    let mut stream = Stream::new(bytes);
    while !stream.rest().is_empty() {
        let (begin, rest) = (stream.at, stream.rest());
        let head = match parse_request(rest, LIMIT) {
            Ok(Some(head)) => head,
            // No part of a head leaves.
            Ok(None) => return stream.end(End::Cut),
            Err(fault) => return stream.end(End::Refused(fault.label().to_owned())),
        };
        let content = match stream.content(head.len, head.framing) {
            Ok(Some(content)) => content,
            Ok(None) => return stream.end(End::Cut),
            Err(fault) => return stream.end(End::Refused(fault.label().to_owned())),
        };
        if !head.is_of_one_server(rest) {
            stream.at = begin;
            stream.reading.ends.pop();
            return stream.end(End::Refused("header_mismatch".to_owned()));
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let method = text(rest.split(|byte| *byte == b' ').next().unwrap_or_default());
        let target = text(head.target.of(rest));
        let path = text(head.path(rest));
        let query = target.split_once('?').map(|(_, query)| format!("?{query}")).unwrap_or_default();
        let server = head.authority.or(head.host).map(|server| text(server.of(rest))).unwrap_or_default();
        stream.reading.messages.push(Message {
            what: format!("{method} {path}{query}"),
            server: name(&server),
            content,
        });
        if !head.keep_alive {
            break;
        }
    }
    stream.end(End::Clean)
}

/// The responses in a stream, all to requests of this method.
pub(crate) fn responses(method: &str, bytes: &[u8]) -> Reading {
    let asked = if method == "HEAD" { Method::Head } else { Method::Get };
    let mut stream = Stream::new(bytes);
    let mut begin = 0;
    while !stream.rest().is_empty() {
        let fault = |mut stream: Stream<'_>, fault: Malformed| {
            // Interim answers before it were no answer.
            stream.at = begin;
            stream.end(End::Refused(fault.label().to_owned()))
        };
        let head = match parse_response(stream.rest(), LIMIT, asked) {
            Ok(Some(head)) => head,
            Ok(None) => return stream.end(End::Cut),
            Err(malformed) => return fault(stream, malformed),
        };
        if head.status < 200 {
            stream.at += head.len;
            if head.tunnel {
                stream.at = begin;
                return stream.end(End::Refused("unsolicited_upgrade".to_owned()));
            }
            continue;
        }
        let content = match stream.content(head.len, head.framing) {
            Ok(Some(content)) => content,
            Ok(None) => return stream.end(End::Cut),
            Err(malformed) => return fault(stream, malformed),
        };
        begin = stream.at;
        stream.reading.messages.push(Message {
            what: head.status.to_string(),
            server: String::new(),
            content,
        });
        if !head.keep_alive {
            break;
        }
    }
    stream.end(End::Clean)
}
