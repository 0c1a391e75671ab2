//! Whether it matters in which pieces a stream of HTTP/1 messages comes.

use interlock::decode::{Body, Malformed, Method, parse_request, parse_response};

const LIMIT: usize = 4096;

/// A stream that is read as it comes.
#[derive(Default)]
struct Stream {
    /// Responses, to requests of this method.
    answers: Option<Method>,
    pending: Vec<u8>,
    body: Option<Body>,
    seen: Vec<String>,
    content: Vec<u8>,
    fault: Option<Malformed>,
}

impl Stream {
    fn push(&mut self, piece: &[u8]) {
        self.pending.extend_from_slice(piece);
        while self.fault.is_none() {
            match self.step() {
                Ok(true) => {}
                Ok(false) => return,
                Err(fault) => self.fault = Some(fault),
            }
        }
    }

    /// Reads what there is of one part; false where more is needed.
    fn step(&mut self) -> Result<bool, Malformed> {
        let consumed = match &mut self.body {
            None => {
                let (len, framing, said) = match self.answers {
                    None => match parse_request(&self.pending, LIMIT)? {
                        Some(head) => (head.len, head.framing, format!("{head:?}")),
                        None => return Ok(false),
                    },
                    Some(method) => match parse_response(&self.pending, LIMIT, method)? {
                        Some(head) => (head.len, head.framing, format!("{head:?}")),
                        None => return Ok(false),
                    },
                };
                self.seen.push(said);
                self.body = Some(Body::new(framing));
                len
            }
            Some(body) => {
                let step = body.advance(&self.pending)?;
                assert!(step.data.end <= step.consumed && step.consumed <= self.pending.len());
                self.content.extend_from_slice(&self.pending[step.data]);
                if step.done {
                    self.seen.push(self.content.escape_ascii().to_string());
                    self.content.clear();
                    self.body = None;
                } else if step.consumed == 0 {
                    return Ok(false);
                }
                step.consumed
            }
        };
        self.pending.drain(..consumed);
        Ok(true)
    }

    /// All that was read. Content of a message that was then refused came before its fault, or not.
    fn end(self) -> (Vec<String>, Option<Malformed>, Vec<u8>) {
        let content = if self.fault.is_none() { self.content } else { Vec::new() };
        (self.seen, self.fault, content)
    }
}

/// Reads a stream whole, byte by byte, and in two pieces each.
pub(crate) fn same_in_every_split(text: &str, answers: Option<Method>) {
    let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut stream = Stream { answers, ..Stream::default() };
        pieces.for_each(|piece| stream.push(piece));
        stream.end()
    };
    let bytes = text.as_bytes();
    let whole = read(&mut [bytes].into_iter());
    assert_eq!(read(&mut bytes.chunks(1)), whole, "byte by byte");
    for cut in 1..bytes.len() {
        let (left, right) = bytes.split_at(cut);
        assert_eq!(read(&mut [left, right].into_iter()), whole, "cut at {cut}");
    }
}
