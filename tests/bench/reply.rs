//! Reads one HTTP/1.1 answer of an MCP server: says whether it is a refusal, how large it is and how many events it has,
//! and throws the bulk of it away. Reads exactly as much of HTTP/1.1 as a server may send here.

use std::fmt;
use std::io::{Error, ErrorKind};

use tokio::io::AsyncReadExt;

/// An answer that came whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The server never answered this: something on the way did, with an error or `isError`.
    pub(crate) refused: bool,
    /// Bytes of body, framing not counted.
    pub(crate) bytes: u64,
    /// `data:` lines, when it was an event stream.
    pub(crate) events: u32,
}

/// Why a call has no usable answer.
#[derive(Debug)]
pub(crate) enum Failure {
    Connect(ErrorKind),
    /// The connection ended or broke before the answer was whole.
    Broken(ErrorKind),
    Status(u16),
    /// Whole, but not what the shape answers.
    Wrong,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(kind) => write!(f, "connect: {kind}"),
            Self::Broken(kind) => write!(f, "broken: {kind}"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Wrong => write!(f, "not the answer asked for"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Broken(error.kind())
    }
}

/// Reads one answer; the flag says that the connection ends with it.
pub(crate) async fn read_reply(
    stream: &mut (impl AsyncReadExt + Unpin),
    input: &mut Input,
) -> Result<(Reply, bool), Failure> {
    let mut close = false;
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut headers);
        let parsed = head.parse(input.bytes()).map_err(|_| Failure::Broken(ErrorKind::InvalidData))?;
        let httparse::Status::Complete(size) = parsed else {
            input.fill(stream).await?;
            continue;
        };
        for header in head.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                length = std::str::from_utf8(header.value).ok().and_then(|v| v.parse().ok()).unwrap_or(0);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                chunked = true;
            } else if header.name.eq_ignore_ascii_case("connection") {
                close = header.value.eq_ignore_ascii_case(b"close");
            }
        }
        let status = head.code.unwrap_or(0);
        input.consume(size);
        if status != 200 {
            return Err(Failure::Status(status));
        }
        break;
    }
    let mut reply = Reply { refused: false, bytes: 0, events: 0 };
    if !chunked {
        read_part(stream, input, length, &mut reply).await?;
        return Ok((reply, close));
    }
    loop {
        let size = read_chunk_size(stream, input).await?;
        if size > 0 {
            read_part(stream, input, size, &mut reply).await?;
        }
        input.fill_to(stream, 2).await?;
        if !input.bytes().starts_with(b"\r\n") {
            return Err(Failure::Broken(ErrorKind::InvalidData));
        }
        input.consume(2);
        if size == 0 {
            return Ok((reply, close));
        }
    }
}

async fn read_chunk_size(
    stream: &mut (impl AsyncReadExt + Unpin),
    input: &mut Input,
) -> Result<usize, Failure> {
    loop {
        if let Some(end) = input.bytes().iter().take(32).position(|&byte| byte == b'\n') {
            let line = std::str::from_utf8(&input.bytes()[..end]).unwrap_or_default().trim_end();
            let size =
                usize::from_str_radix(line, 16).map_err(|_| Failure::Broken(ErrorKind::InvalidData))?;
            input.consume(end + 1);
            return Ok(size);
        }
        input.fill(stream).await?;
    }
}

/// Takes `size` bytes of body. A small part is looked at, a large one only counted.
async fn read_part(
    stream: &mut (impl AsyncReadExt + Unpin),
    input: &mut Input,
    size: usize,
    reply: &mut Reply,
) -> Result<(), Failure> {
    reply.bytes += size as u64;
    if size <= SMALL {
        input.fill_to(stream, size).await?;
        let part = &input.bytes()[..size];
        reply.refused |= REFUSALS.iter().any(|mark| memchr::memmem::find(part, mark).is_some());
        // Only an event stream has a line that starts so: a newline inside JSON text is escaped.
        let lines =
            memchr::memmem::find_iter(part, b"\ndata:").count() + usize::from(part.starts_with(b"data:"));
        reply.events += u32::try_from(lines).unwrap_or(u32::MAX);
        input.consume(size);
        return Ok(());
    }
    let mut left = size;
    loop {
        let here = input.bytes().len().min(left);
        input.consume(here);
        left -= here;
        if left == 0 {
            return Ok(());
        }
        input.fill(stream).await?;
    }
}

/// Bytes read and not yet used.
#[derive(Default)]
pub(crate) struct Input {
    buffer: Vec<u8>,
    start: usize,
}

impl Input {
    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.buffer.len() {
            self.clear();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.buffer.clear();
        self.start = 0;
    }

    async fn fill(&mut self, stream: &mut (impl AsyncReadExt + Unpin)) -> Result<(), Error> {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.reserve(READ);
        if stream.read_buf(&mut self.buffer).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    async fn fill_to(&mut self, stream: &mut (impl AsyncReadExt + Unpin), count: usize) -> Result<(), Error> {
        while self.bytes().len() < count {
            self.fill(stream).await?;
        }
        Ok(())
    }
}

/// Parts up to this size are searched for a refusal.
const SMALL: usize = 16 * 1024;
/// Room for one read.
const READ: usize = 16 * 1024;
const REFUSALS: [&[u8]; 2] = [br#""isError":true"#, br#""error":{"#];

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<(Reply, bool), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read_reply(&mut &bytes[..], &mut Input::default()))
    }

    #[test]
    fn answer_with_a_length() {
        let (reply, close) =
            read(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}").unwrap();
        assert_eq!((reply, close), (Reply { refused: false, bytes: 2, events: 0 }, true));
    }

    #[test]
    fn events_are_counted_across_chunks() {
        let stream = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
            19\r\nevent: message\ndata: {}\n\n\r\n23\r\ndata: {\"result\":{\"isError\":true}}\n\n\r\n0\r\n\r\n";
        let (reply, _) = read(stream).unwrap();
        assert_eq!(reply, Reply { refused: true, bytes: 0x19 + 0x23, events: 2 });
    }

    #[test]
    fn cut_answer_is_a_failure() {
        assert!(matches!(
            read(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"),
            Err(Failure::Broken(ErrorKind::UnexpectedEof))
        ));
        assert!(matches!(
            read(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
            Err(Failure::Status(404))
        ));
    }
}
