//! Content codings (RFC 9110, section 8.4): what a message says of its coding, and undoing it.
//!
//! [`undo`] is for a content that is there as a whole, [`Decoder`] for one that comes in pieces. What may not be read alike
//! by everybody is a [`Fault`].

mod chain;
mod fault;
mod format;
#[cfg(test)]
mod tests;

use super::{Limits, Undecodable, decode};

pub use chain::{Decoder, STEP};
pub use fault::Fault;

/// Codings that one content may have, one in the other.
pub const MAX_CODINGS: usize = 3;

/// A coding that can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `gzip`, or `x-gzip` (RFC 1952); of one member or several.
    Gzip,
    /// `deflate`: with the wrapping of zlib (RFC 1950) or, as some servers send it, without (RFC 1951).
    Deflate,
    /// `br` (RFC 7932).
    Brotli,
    /// `zstd` (RFC 8878, RFC 9659); of one frame or several.
    Zstd,
}

/// What `Content-Encoding` says: the codings in the order in which they were applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codings {
    known: [Option<Coding>; MAX_CODINGS],
    /// There is one that nobody here can undo, or there are too many.
    unknown: bool,
}

impl Codings {
    /// Reads one header; several are one list (RFC 9110, section 5.3).
    pub(super) fn read(&mut self, value: &[u8]) {
        for name in value.split(|byte| *byte == b',') {
            let name = name.trim_ascii();
            if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                continue;
            }
            match (Coding::of(name), self.known.iter_mut().find(|known| known.is_none())) {
                (Some(coding), Some(free)) => *free = Some(coding),
                _ => self.unknown = true,
            }
        }
    }

    /// The content is as it is.
    pub fn is_identity(self) -> bool {
        self == Codings::default()
    }
}

impl Coding {
    fn of(name: &[u8]) -> Option<Coding> {
        const NAMES: [(&str, Coding); 5] = [
            ("gzip", Coding::Gzip),
            ("x-gzip", Coding::Gzip),
            ("deflate", Coding::Deflate),
            ("br", Coding::Brotli),
            ("zstd", Coding::Zstd),
        ];
        NAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|(_, coding)| *coding)
    }
}

/// Undoes the codings of a whole content, which has at most [`Limits::message`] bytes then, and in no coding more.
pub fn undo(codings: Codings, coded: &[u8], limits: &Limits) -> Result<Vec<u8>, Fault> {
    let mut decoder = Decoder::new(codings, limits.message)?;
    if is_json(coded, limits) {
        return Err(Fault::Ambiguous);
    }
    let mut content = Vec::new();
    for piece in coded.chunks(STEP) {
        decoder.push(piece);
        while decoder.has_more() {
            decoder.step(&mut content)?;
        }
    }
    decoder.finish()?;
    Ok(content)
}

/// Whether whoever ignores `Content-Encoding`, as many servers do, would read a message: there are texts that are JSON
/// and a coding of another text as well. Some readers take any bytes for a string's, so those that are no UTF-8 do not
/// count.
fn is_json(coded: &[u8], limits: &Limits) -> bool {
    let begins = matches!(coded.first(), Some(b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n' | 0xef));
    begins && decode(String::from_utf8_lossy(coded).as_bytes(), limits) != Err(Undecodable::Json)
}

/// Whether a request wants no answer without a coding, given the values of its `Accept-Encoding` (RFC 9110, section
/// 12.5.3).
pub fn refuses_identity<'a>(values: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut identity, mut any) = (None, None);
    for item in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let mut parts = item.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().unwrap_or_default();
        let refused = parts.any(is_zero);
        if name.eq_ignore_ascii_case(b"identity") {
            identity = Some(refused);
        } else if name == b"*" {
            any = Some(refused);
        }
    }
    identity.or(any).unwrap_or(false)
}

/// Whether a parameter is a weight of zero (RFC 9110, section 12.4.2).
fn is_zero(parameter: &[u8]) -> bool {
    match parameter.split_at_checked(2) {
        Some((b"q=" | b"Q=", weight)) => {
            weight.first() == Some(&b'0') && weight.iter().all(|byte| matches!(byte, b'0' | b'.'))
        }
        _ => false,
    }
}
