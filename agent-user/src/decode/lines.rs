//! Newline-delimited JSON (MCP, transports, stdio): one message in each line.
//!
//! On a connection that is not known to carry MCP anything may come: other JSON without line ends (Fluentd), with other ends
//! (GELF), or no JSON at all. There a [piece](Piece) need not be a line, so that nothing waits for an end that never comes;
//! but no JSON value is ever cut in two.

use super::{Limits, Oversized, Payload, Undecodable, decode, mcp};

/// What was found at the start of what has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A line, or what is left of one, with its end.
    Line,
    /// A JSON value, and no end of its line yet.
    Value,
    /// Bytes in which no JSON value begins, and no end of their line.
    Other,
    /// A part of a line over the limit, which is not looked at.
    Unread,
}

/// Cuts what comes into pieces. Does not keep the bytes: it is shown the same again, with more behind, until they are taken.
#[derive(Debug)]
pub struct Lines {
    limit: usize,
    /// So far there is no end of a line.
    looked: usize,
    /// As far as values were followed.
    scanned: usize,
    scan: Scan,
    /// Something of the line was taken.
    begun: bool,
    /// The line is taken as a whole.
    held: bool,
    /// The line is over the limit, and not looked at.
    unread: bool,
}

/// Where in a line it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scan {
    /// Before any value.
    Blank,
    /// Neither in a value nor in white space.
    Other,
    /// In a value, so many levels deep.
    Value { depth: usize, string: bool, escaped: bool },
    /// Behind a value that ends there.
    After(usize),
}

impl Lines {
    /// For lines of at most `limit` bytes, without their ends.
    pub fn new(limit: usize) -> Lines {
        Lines { limit, looked: 0, scanned: 0, scan: Scan::Blank, begun: false, held: false, unread: false }
    }

    /// The piece at the start of `bytes`, and its length. `whole`: only lines.
    pub fn next(&mut self, bytes: &[u8], whole: bool) -> Result<Option<(Piece, usize)>, Oversized> {
        let found = memchr::memchr(b'\n', &bytes[self.looked..]).map(|at| self.looked + at);
        if self.unread {
            self.unread = found.is_none();
            let len = found.map_or(bytes.len(), |end| end + 1);
            return Ok((len > 0).then_some((Piece::Unread, len)));
        }
        if let Some(end) = found {
            return if end > self.limit { Err(Oversized) } else { Ok(Some((Piece::Line, end + 1))) };
        }
        self.looked = bytes.len();
        let piece = if whole || self.held { None } else { self.scan(bytes) };
        if piece.is_none() && bytes.len() > self.limit {
            return Err(Oversized);
        }
        Ok(piece)
    }

    /// A piece was taken: what follows is shown next.
    pub fn take(&mut self, (piece, len): (Piece, usize)) {
        if piece == Piece::Line || piece == Piece::Unread && !self.unread {
            *self = Lines::new(self.limit);
            return;
        }
        self.looked = self.looked.saturating_sub(len);
        self.scanned = 0;
        self.scan = Scan::Blank;
        self.begun = true;
    }

    /// What has begun is taken as a line, however long that takes to end.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// The line is over the limit, and is taken in parts as they come.
    pub fn pass_unread(&mut self) {
        self.unread = true;
        self.looked = 0;
    }

    /// What comes next is the rest of a line.
    pub fn begin_within(&mut self) {
        self.begun = true;
    }

    fn scan(&mut self, bytes: &[u8]) -> Option<(Piece, usize)> {
        while let Some(byte) = bytes.get(self.scanned) {
            self.scan = match (self.scan, byte) {
                (Scan::Blank, b' ' | b'\t' | b'\r') => Scan::Blank,
                (Scan::After(end), b' ' | b'\t' | b'\r') => Scan::After(end),
                (Scan::After(end), _) => return Some((Piece::Value, end)),
                (Scan::Other, b'{' | b'[') => return Some((Piece::Other, self.scanned)),
                (Scan::Blank, b'{' | b'[') => Scan::Value { depth: 1, string: false, escaped: false },
                (Scan::Blank | Scan::Other, _) => Scan::Other,
                (Scan::Value { depth, string: true, escaped }, byte) => Scan::Value {
                    depth,
                    string: escaped || *byte != b'"',
                    escaped: !escaped && *byte == b'\\',
                },
                (Scan::Value { depth, .. }, b'"') => Scan::Value { depth, string: true, escaped: false },
                (Scan::Value { depth, .. }, b'{' | b'[') => {
                    Scan::Value { depth: depth + 1, string: false, escaped: false }
                }
                (Scan::Value { depth: 1, .. }, b'}' | b']') => Scan::After(self.scanned + 1),
                (Scan::Value { depth, .. }, b'}' | b']') => {
                    Scan::Value { depth: depth - 1, string: false, escaped: false }
                }
                (value @ Scan::Value { .. }, _) => value,
            };
            self.scanned += 1;
        }
        match self.scan {
            Scan::After(end) => Some((Piece::Value, end)),
            Scan::Other => Some((Piece::Other, self.scanned)),
            Scan::Blank | Scan::Value { .. } => None,
        }
    }
}

/// Whether a lenient reader might find a message in a line that is no JSON: it has an object with names that messages have,
/// or with names that cannot be told.
fn may_be_message(line: &[u8]) -> bool {
    let has = |text: &[u8]| line.windows(text.len()).any(|window| window.eq_ignore_ascii_case(text));
    line.contains(&b'{') && [&b"jsonrpc"[..], b"method", b"\\u", b"\\x"].iter().any(|text| has(text))
}

/// What a piece says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the large variant is the usual one, and is moved once")]
pub enum Said<'a> {
    /// Nothing.
    Blank,
    /// One message, or a batch.
    Messages(Payload<'a>),
    /// No message to any reader.
    Other,
    /// What two readers could take for different things.
    Undecodable(Undecodable),
    /// Perhaps a message of MCP, in a line that has not ended.
    NeedMore,
}

/// Reads a piece. `is_mcp`: nothing but messages is to be expected.
pub fn said<'a>(lines: &Lines, piece: Piece, bytes: &'a [u8], limits: &Limits, is_mcp: bool) -> Said<'a> {
    if matches!(piece, Piece::Other | Piece::Unread) {
        return Said::Other;
    }
    match decode(bytes, limits) {
        Ok(Payload::NotJsonRpc) => Said::Other,
        Ok(messages) if !is_mcp && !messages.messages().iter().any(mcp::asks) => Said::Messages(messages),
        Ok(_) if piece == Piece::Value => Said::NeedMore,
        // Some readers take the line for one message, others for several.
        Ok(_) if lines.begun => Said::Undecodable(Undecodable::Trailing),
        Ok(messages) => Said::Messages(messages),
        Err(Undecodable::Empty) => Said::Blank,
        Err(_) if !is_mcp && !may_be_message(bytes) => Said::Other,
        Err(_) if piece == Piece::Value => Said::NeedMore,
        Err(fault) => Said::Undecodable(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64;

    /// The pieces of what comes in the given parts.
    fn pieces(parts: &[&[u8]], whole: bool) -> Vec<(Piece, String)> {
        let (mut lines, mut held, mut pieces) = (Lines::new(LIMIT), Vec::new(), Vec::new());
        for part in parts {
            held.extend_from_slice(part);
            while let Some((piece, len)) = lines.next(&held, whole).unwrap() {
                lines.take((piece, len));
                pieces.push((piece, String::from_utf8(held.drain(..len).collect()).unwrap()));
            }
        }
        pieces
    }

    fn text(pieces: &[(Piece, String)]) -> String {
        pieces.iter().map(|(_, text)| &**text).collect()
    }

    #[test]
    fn lines_come_whole_at_every_cut() {
        let input = b"{\"a\":\"}\"}\r\n\n[1,\n{}\n";
        let expect = ["{\"a\":\"}\"}\r\n", "\n", "[1,\n", "{}\n"];
        for cut in 0..input.len() {
            let found = pieces(&[&input[..cut], &input[cut..]], true);
            assert!(found.iter().map(|(_, text)| &**text).eq(expect), "{cut}: {found:?}");
            assert!(found.iter().all(|(piece, _)| *piece == Piece::Line));
        }
    }

    #[test]
    fn values_need_no_end_of_a_line_and_are_never_cut() {
        let input = br#"{"a":"\\\"}"}[{"b":[]}] x{"c":1}"#;
        for cut in 0..=input.len() {
            let found = pieces(&[&input[..cut], &input[cut..]], false);
            assert_eq!(text(&found).as_bytes(), input, "{cut}");
            let values: Vec<&str> = found
                .iter()
                .filter(|(piece, _)| *piece == Piece::Value)
                .map(|(_, text)| text.trim_start())
                .collect();
            assert_eq!(values, [r#"{"a":"\\\"}"}"#, r#"[{"b":[]}]"#, r#"{"c":1}"#], "{cut}");
        }
    }

    #[test]
    fn ends_that_are_no_line_ends_pass() {
        let found = pieces(&[b"{\"a\":1}\0{\"b\":2}\0"], false);
        let kinds: Vec<Piece> = found.iter().map(|(piece, _)| *piece).collect();
        assert_eq!(kinds, [Piece::Value, Piece::Other, Piece::Value, Piece::Other]);
    }

    #[test]
    fn what_is_held_comes_with_its_line() {
        let mut lines = Lines::new(LIMIT);
        assert_eq!(lines.next(b"{} ", false), Ok(Some((Piece::Value, 2))));
        lines.hold();
        assert_eq!(lines.next(b"{} {}", false), Ok(None));
        assert_eq!(lines.next(b"{} {}\n{}", false), Ok(Some((Piece::Line, 6))));
        lines.take((Piece::Line, 6));
        assert_eq!(lines.next(b"{}", false), Ok(Some((Piece::Value, 2))), "the next one is not");
        lines.take((Piece::Value, 2));
        assert!(lines.begun);
    }

    #[test]
    fn lines_have_a_bound() {
        let long = [b'['; LIMIT + 1];
        assert_eq!(Lines::new(LIMIT).next(&long[..LIMIT], true), Ok(None));
        for whole in [true, false] {
            assert_eq!(Lines::new(LIMIT).next(&long, whole), Err(Oversized));
            let ended = [&long[..], b"\n"].concat();
            assert_eq!(Lines::new(LIMIT).next(&ended, whole), Err(Oversized));
            assert_eq!(Lines::new(LIMIT).next(&ended[1..], whole), Ok(Some((Piece::Line, LIMIT + 1))));
        }
    }

    #[test]
    fn what_is_over_the_bound_can_be_passed() {
        let mut lines = Lines::new(LIMIT);
        let mut held = vec![b'['; LIMIT + 1];
        assert_eq!(lines.next(&held, true), Err(Oversized));
        lines.pass_unread();
        let first = lines.next(&held, true).unwrap().unwrap();
        assert_eq!(first, (Piece::Unread, LIMIT + 1));
        lines.take(first);
        held = b"]\n{}\n".to_vec();
        let last = lines.next(&held, true).unwrap().unwrap();
        assert_eq!(last, (Piece::Unread, 2));
        lines.take(last);
        assert_eq!(lines.next(&held[2..], true), Ok(Some((Piece::Line, 3))), "the next one is looked at");
    }

    #[test]
    fn a_piece_says_what_any_reader_may_take_it_for() {
        let check = |piece, text: &str, is_mcp, expect: fn(&Said<'_>) -> bool| {
            let said = said(&Lines::new(LIMIT), piece, text.as_bytes(), &Limits::default(), is_mcp);
            assert!(expect(&said), "{text}: {said:?}");
        };
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#;
        let other = r#"{"jsonrpc":"2.0","id":1,"method":"blockchain.headers.subscribe"}"#;
        let twice = r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call"}"#;
        for is_mcp in [false, true] {
            check(Piece::Line, call, is_mcp, |said| matches!(said, Said::Messages(_)));
            check(Piece::Line, &format!("{call}\0"), is_mcp, |said| matches!(said, Said::Undecodable(_)));
            check(Piece::Line, &format!("{call}{call}"), is_mcp, |said| matches!(said, Said::Undecodable(_)));
            check(Piece::Line, twice, is_mcp, |said| matches!(said, Said::Undecodable(_)));
            check(Piece::Line, r#"{"level":"info"}"#, is_mcp, |said| *said == Said::Other);
            check(Piece::Line, " \r\n", is_mcp, |said| *said == Said::Blank);
            check(Piece::Value, call, is_mcp, |said| *said == Said::NeedMore);
            check(Piece::Other, call, is_mcp, |said| *said == Said::Other);
        }
        check(Piece::Value, other, false, |said| matches!(said, Said::Messages(_)));
        check(Piece::Value, twice, false, |said| *said == Said::NeedMore);
        check(Piece::Line, "[INFO] it begins", false, |said| *said == Said::Other);
        check(Piece::Line, "[INFO] it begins", true, |said| matches!(said, Said::Undecodable(_)));
    }

    #[test]
    fn a_message_behind_something_else_in_its_line_is_none() {
        let mut lines = Lines::new(LIMIT);
        lines.take((Piece::Value, 2));
        let said = said(&lines, Piece::Line, br#"{"method":"ping","id":1}"#, &Limits::default(), false);
        assert_eq!(said, Said::Undecodable(Undecodable::Trailing));
    }

    #[test]
    fn lenient_readers_are_reckoned_with() {
        for line in ["{'jsonrpc':'2.0',}", "{METHOD:1}", r#"{"\u006dethod":1,}"#, "\u{feff}{\"method\":1}"] {
            assert!(may_be_message(line.as_bytes()), "{line}");
        }
        for line in ["[INFO] method", "{a:1}", "[12:00] {x}", ""] {
            assert!(!may_be_message(line.as_bytes()), "{line}");
        }
    }
}
