//! What a connection speaks, from its first bytes.
//!
//! Decides as soon as the bytes allow one answer only, and never looks past [`BOUND`]. A server that speaks first
//! gives nothing to sniff: the caller must not wait for the agent alone.

/// The protocol that a first flight begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniff {
    /// The bytes fit more than one answer.
    NeedMore,
    /// An HTTP/1 request line begins: a method of RFC 9110 (or PATCH) and a space.
    Http1,
    /// HTTP/2 with prior knowledge (RFC 9113, section 3.4).
    Http2Preface,
    /// A TLS handshake record (RFC 8446, section 5.1).
    Tls,
    /// JSON, or white space before it: messages may be lines (MCP, stdio framing over TCP), unless they are something else.
    Lines,
    /// Anything else.
    Opaque,
}

/// No more bytes than these are needed for an answer.
pub const BOUND: usize = PREFACE.len();

/// Reads the first bytes that a client sent.
pub fn sniff(bytes: &[u8]) -> Sniff {
    let bytes = bytes.get(..BOUND).unwrap_or(bytes);
    match bytes {
        [0x16, 0x03, ..] => return Sniff::Tls,
        [] | [0x16] => return Sniff::NeedMore,
        // No other protocol begins with white space, and some readers skip a byte order mark.
        [b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n', ..] | [0xef, 0xbb, 0xbf, ..] => return Sniff::Lines,
        [0xef] | [0xef, 0xbb] => return Sniff::NeedMore,
        _ => {}
    }
    if bytes == PREFACE {
        return Sniff::Http2Preface;
    }
    if METHODS.iter().any(|method| bytes.starts_with(method)) {
        return Sniff::Http1;
    }
    if PREFACE.starts_with(bytes) || METHODS.iter().any(|method| method.starts_with(bytes)) {
        return Sniff::NeedMore;
    }
    Sniff::Opaque
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const METHODS: [&[u8]; 9] =
    [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE "];

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &[u8], expect: Sniff) {
        assert_eq!(sniff(input), expect, "{}", input.escape_ascii());
    }

    #[test]
    fn first_bytes_name_the_protocol() {
        check(b"POST /mcp HTTP/1.1\r\n", Sniff::Http1);
        check(b"GET ", Sniff::Http1);
        check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0", Sniff::Http2Preface);
        check(b"\x16\x03\x01", Sniff::Tls);
        check(b"\x16\x02\x01", Sniff::Opaque);
        check(b"SSH-2.0-x", Sniff::Opaque);
        check(b"get / ", Sniff::Opaque);
        check(b"\r\nGET /", Sniff::Lines);
        for json in ["{", "[", " {", "\t[", "\n", "\u{feff}{"] {
            check(json.as_bytes(), Sniff::Lines);
        }
        check("\u{fefe}{".as_bytes(), Sniff::Opaque);
        check(b"PRI * HTTP/2.0\r\n\r\nXX", Sniff::Opaque);
        check(b"BREW / HTTP/1.1", Sniff::Opaque);
    }

    #[test]
    fn fitting_prefixes_need_more() {
        for whole in METHODS.iter().chain([&PREFACE, &b"\x16\x03".as_slice(), &b"\xef\xbb\xbf".as_slice()]) {
            for len in 0..whole.len() {
                check(&whole[..len], Sniff::NeedMore);
            }
        }
    }
}
