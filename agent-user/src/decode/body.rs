//! Where an HTTP/1 body ends, and which of its bytes are content.
//!
//! Incremental: every byte is given once, and the caller keeps the raw bytes itself, so `consumed` counts the
//! framing too. What a lenient peer could frame differently is refused (RFC 9112, section 7.1).

use std::ops::Range;

use super::{Framing, Malformed};

/// Reads one body; make a new one for each message.
#[derive(Clone, Debug)]
pub struct Body {
    state: State,
}

/// What [`Body::advance`] made of its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advance {
    /// How many bytes of the input belong to the body so far, framing included.
    pub consumed: usize,
    /// The content among them, as a range of the input; may be empty.
    pub data: Range<usize>,
    /// The body ends with the last consumed byte.
    pub done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Done,
    UntilClose,
    Length(u64),
    /// In the hexadecimal digits, of which there were `digits`.
    Size {
        size: u64,
        digits: u8,
    },
    /// Spaces after the size: only an extension may follow.
    Padding {
        size: u64,
        seen: usize,
    },
    Extension {
        size: u64,
        seen: usize,
    },
    SizeLf(u64),
    Chunk(u64),
    ChunkCr,
    ChunkLf,
    /// At the start of a trailer line, or of the empty line that ends the body.
    TrailerStart(usize),
    Trailer(usize),
    TrailerLf(usize),
    EndLf,
}

impl Body {
    /// A body framed as its head says.
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Empty | Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => SIZE,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state }
    }

    /// Takes the next bytes, up to the end of one piece of content. Call again with the rest while bytes are left and
    /// it is not `done`; nothing is consumed once it is.
    pub fn advance(&mut self, input: &[u8]) -> Result<Advance, Malformed> {
        let mut at = 0;
        loop {
            match self.state {
                State::Done => return Ok(Advance { consumed: at, data: at..at, done: true }),
                State::UntilClose => {
                    return Ok(Advance { consumed: input.len(), data: at..input.len(), done: false });
                }
                State::Length(left) | State::Chunk(left) => {
                    let room = input.len() - at;
                    let take = usize::try_from(left).map_or(room, |left| left.min(room));
                    let rest = left - take as u64;
                    self.state = match (self.state, rest) {
                        (State::Length(_), 0) => State::Done,
                        (State::Length(_), _) => State::Length(rest),
                        (_, 0) => State::ChunkCr,
                        _ => State::Chunk(rest),
                    };
                    let done = self.state == State::Done;
                    return Ok(Advance { consumed: at + take, data: at..at + take, done });
                }
                framing => {
                    let Some(&byte) = input.get(at) else {
                        return Ok(Advance { consumed: at, data: at..at, done: false });
                    };
                    self.state = framing.step(byte)?;
                    at += 1;
                }
            }
        }
    }

    /// The whole body was read.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }
}

impl State {
    /// One byte of chunk framing.
    fn step(self, byte: u8) -> Result<Self, Malformed> {
        Ok(match (self, byte) {
            (Self::Size { digits: 0, .. }, b'\r' | b'\n' | b';') => return Err(Malformed::ChunkSize),
            (Self::Size { size, .. }, b'\r') => Self::SizeLf(size),
            (Self::Size { size, .. }, b';') => Self::Extension { size, seen: 0 },
            (Self::Size { size, digits: 1.. }, b' ' | b'\t') => Self::Padding { size, seen: 0 },
            (Self::Size { size, digits }, _) => {
                let digit = char::from(byte).to_digit(16).filter(|_| digits < 16 && size >> 59 == 0);
                let digit =
                    digit.ok_or(if byte == b'\n' { Malformed::BareLf } else { Malformed::ChunkSize })?;
                Self::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (Self::Padding { size, .. }, b';') => Self::Extension { size, seen: 0 },
            (Self::Padding { size, seen: seen @ ..MAX_EXTENSION }, b' ' | b'\t') => {
                Self::Padding { size, seen: seen + 1 }
            }
            (Self::Padding { .. }, _) => return Err(Malformed::ChunkSize),
            (Self::Extension { size, .. }, b'\r') => Self::SizeLf(size),
            (Self::Extension { .. } | Self::Trailer(_) | Self::TrailerStart(_), b'\n') => {
                return Err(Malformed::BareLf);
            }
            (Self::Extension { seen: MAX_EXTENSION.., .. }, _) => return Err(Malformed::ChunkExtension),
            (Self::Extension { size, seen }, _) => Self::Extension { size, seen: seen + 1 },
            (Self::SizeLf(0), b'\n') => Self::TrailerStart(0),
            (Self::SizeLf(size), b'\n') => Self::Chunk(size),
            (Self::ChunkCr, b'\r') => Self::ChunkLf,
            (Self::ChunkLf, b'\n') => SIZE,
            (Self::ChunkCr | Self::ChunkLf, _) => return Err(Malformed::ChunkEnd),
            (Self::TrailerStart(_), b'\r') => Self::EndLf,
            (Self::Trailer(seen), b'\r') => Self::TrailerLf(seen),
            (Self::TrailerStart(MAX_TRAILERS..) | Self::Trailer(MAX_TRAILERS..), _) => {
                return Err(Malformed::TrailerTooLong);
            }
            (Self::TrailerStart(_), b' ' | b'\t') => return Err(Malformed::ObsFold),
            (Self::TrailerStart(seen) | Self::Trailer(seen), _) => Self::Trailer(seen + 1),
            (Self::TrailerLf(seen), b'\n') => Self::TrailerStart(seen),
            (Self::EndLf, b'\n') => Self::Done,
            (Self::SizeLf(_) | Self::TrailerLf(_) | Self::EndLf, _) => return Err(Malformed::BareCr),
            (Self::Done | Self::UntilClose | Self::Length(_) | Self::Chunk(_), _) => self,
        })
    }
}

const SIZE: State = State::Size { size: 0, digits: 0 };
/// Bytes of extensions on one chunk.
const MAX_EXTENSION: usize = 4 << 10;
/// Bytes of all trailers.
const MAX_TRAILERS: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `input` given in two writes cut at `cut`; returns the content, how much was consumed, whether it ended.
    fn decode(framing: Framing, input: &[u8], cut: usize) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let mut body = Body::new(framing);
        let mut content = Vec::new();
        let mut total = 0;
        for part in [&input[..cut], &input[cut..]] {
            let mut at = 0;
            while at < part.len() && !body.is_done() {
                let step = body.advance(&part[at..])?;
                content.extend_from_slice(&part[at..][step.data]);
                at += step.consumed;
            }
            total += at;
        }
        Ok((content, total, body.is_done()))
    }

    #[track_caller]
    fn check(framing: Framing, input: &str, expect: Result<(&str, usize, bool), Malformed>) {
        let expect = expect.map(|(content, total, done)| (content.as_bytes().to_vec(), total, done));
        for cut in 0..=input.len() {
            assert_eq!(decode(framing, input.as_bytes(), cut), expect, "cut at {cut}");
        }
    }

    #[test]
    fn every_cut_gives_the_same_content() {
        check(Framing::Empty, "GET", Ok(("", 0, true)));
        check(Framing::Length(0), "GET", Ok(("", 0, true)));
        check(Framing::Length(3), "abcGET", Ok(("abc", 3, true)));
        check(Framing::Length(9), "abc", Ok(("abc", 3, false)));
        check(Framing::UntilClose, "abc", Ok(("abc", 3, false)));
        check(Framing::Chunked, "3\r\nabc\r\n0\r\n\r\nGET", Ok(("abc", 13, true)));
        check(
            Framing::Chunked,
            "3;a=\"b\"\r\nabc\r\n0A \t;x\r\n0123456789\r\n00\r\n\r\n",
            Ok(("abc0123456789", 40, true)),
        );
        check(Framing::Chunked, "0\r\nA: b\r\nC: d\r\n\r\n", Ok(("", 17, true)));
        check(Framing::Chunked, "5\r\nab", Ok(("ab", 5, false)));
    }

    #[test]
    fn chunk_framing_that_peers_read_differently_is_refused() {
        check(Framing::Chunked, "\r\n", Err(Malformed::ChunkSize));
        check(Framing::Chunked, ";a\r\n", Err(Malformed::ChunkSize));
        check(Framing::Chunked, "0x3\r\nabc", Err(Malformed::ChunkSize));
        check(Framing::Chunked, "+3\r\nabc", Err(Malformed::ChunkSize));
        check(Framing::Chunked, " 3\r\nabc", Err(Malformed::ChunkSize));
        check(Framing::Chunked, "3 \r\nabc", Err(Malformed::ChunkSize));
        check(Framing::Chunked, "3\nabc", Err(Malformed::BareLf));
        check(Framing::Chunked, "3;a\nabc", Err(Malformed::BareLf));
        check(Framing::Chunked, "3\rabc", Err(Malformed::BareCr));
        check(Framing::Chunked, "3\r\nabcd\r\n", Err(Malformed::ChunkEnd));
        check(Framing::Chunked, "3\r\nabc\n0", Err(Malformed::ChunkEnd));
        check(Framing::Chunked, "00000000000000001\r\n", Err(Malformed::ChunkSize));
        check(Framing::Chunked, "7fffffffffffffff\r\n", Ok(("", 18, false)));
        check(Framing::Chunked, "8000000000000000\r\n", Err(Malformed::ChunkSize));
        check(Framing::Chunked, "0\r\nA: b\n\n", Err(Malformed::BareLf));
        check(Framing::Chunked, "0\r\n\n", Err(Malformed::BareLf));
        check(Framing::Chunked, "0\r\nA: b\r\n c\r\n\r\n", Err(Malformed::ObsFold));
        check(Framing::Chunked, &format!("1;{}\r\na", "x".repeat(5000)), Err(Malformed::ChunkExtension));
    }

    #[test]
    fn trailers_are_bounded() {
        let input = "0\r\n".to_owned() + &"A: b\r\n".repeat(8000);
        assert_eq!(decode(Framing::Chunked, input.as_bytes(), 9), Err(Malformed::TrailerTooLong));
    }
}
