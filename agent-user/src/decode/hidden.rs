//! Messages of MCP in lines of something that did not begin like that: an agent may say anything first, and some servers
//! skip what they do not understand.
//!
//! Nothing is held for it. A line counts when it has ended, and that its end has not left is enough: so whoever is told
//! keeps the end.

use super::lines::{Lines, Piece, Said, said};
use super::{Limits, mcp};

/// Looks at bytes on their way.
#[derive(Debug)]
pub struct Hidden {
    limits: Limits,
    /// The line so far, as long as it may be a message.
    line: Vec<u8>,
    /// It cannot be one.
    skips: bool,
    found: bool,
}

impl Hidden {
    /// For lines of at most [`Limits::message`] bytes. What came before is no part of a line.
    pub fn new(limits: Limits) -> Hidden {
        Hidden { limits, line: Vec::new(), skips: false, found: false }
    }

    /// Looks at what comes next; whether a message of MCP ends there.
    pub fn look(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.add(&bytes[..end]);
            if !self.skips && self.is_message() {
                self.found = true;
                return true;
            }
            (self.line, self.skips) = (Vec::new(), false);
            bytes = &bytes[end + 1..];
        }
        self.add(bytes);
        false
    }

    /// A message was found.
    pub fn has_found(&self) -> bool {
        self.found
    }

    /// Bytes that are kept.
    pub fn held(&self) -> usize {
        self.line.capacity()
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.skips {
            return;
        }
        self.line.extend_from_slice(bytes);
        let text = self.line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.line).trim_ascii_start();
        let may_be = text.is_empty() || matches!(text[0], b'{' | b'[' | 0xef);
        if !may_be || self.line.len() > self.limits.message {
            (self.line, self.skips) = (Vec::new(), true);
        }
    }

    fn is_message(&self) -> bool {
        let text = self.line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.line);
        let lines = Lines::new(self.limits.message);
        match said(&lines, Piece::Line, text, &self.limits, false) {
            Said::Messages(messages) => messages.messages().iter().any(mcp::asks),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}"#;

    #[track_caller]
    fn check(text: &str, expect: bool) {
        for cut in 0..=text.len() {
            let mut hidden = Hidden::new(Limits { message: 100, ..Limits::default() });
            let (first, rest) = text.as_bytes().split_at(cut);
            assert_eq!(hidden.look(first) || hidden.look(rest), expect, "{text:?} at {cut}");
        }
    }

    #[test]
    fn messages_are_found_behind_anything() {
        for before in ["x\n", "SSH-2.0-x\r\n\0\x01\n", "x\n  \t", "x\n\n\r\n", "x\n{}\n[\n", "x\n\u{feff}"] {
            check(&format!("{before}{CALL}\r\nx"), true);
        }
        check(&format!("x\n[{CALL}]\n"), true);
    }

    #[test]
    fn what_is_no_line_of_its_own_is_none() {
        check(&format!("x {CALL}\n"), false);
        check(&format!("x\n{CALL}"), false);
        check("x\n{\"method\":\"GET\"}\n{\"log\":1}\n", false);
        check(&format!("x\n{}{CALL}\n", " ".repeat(100)), false);
    }
}
