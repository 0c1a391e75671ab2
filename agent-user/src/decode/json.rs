//! A strict JSON scanner that skips values instead of building them (RFC 8259).
//!
//! One pass: the caller names the members it wants as they go by. Every object is checked for members that occur
//! twice, names compared after unescaping. What is a fault only in JSON-RPC (a duplicate, half a surrogate pair) is
//! kept in `fault` while scanning goes on, so that other JSON is still told from it.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Undecodable;
use super::strings::{special, unescape, unescape_one};

/// A cursor over one text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// Levels that may still be opened.
    depth: usize,
    /// Member names of the objects that are open, those of the innermost last.
    names: Vec<&'a str>,
    /// Some name had an escape, so names are no longer equal just when their texts are.
    escaped_names: bool,
    /// The last string had an escape.
    escaped: bool,
    /// The first fault that only matters if this is JSON-RPC.
    pub(crate) fault: Option<Undecodable>,
    /// Values may hold half a surrogate pair: text that we do not read, as JavaScript makes it by cutting strings.
    pub(crate) lenient: bool,
}

/// Why scanning stops. One byte, since every value returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Not JSON.
    Json,
    /// Nested deeper than the limit.
    Depth,
    /// Too many messages in a batch.
    BatchTooLong,
}

impl<'a> Scanner<'a> {
    /// A cursor at the first value of `bytes`.
    pub(crate) fn new(bytes: &'a [u8], depth: usize) -> Result<Self, Undecodable> {
        if bytes.starts_with(b"\xef\xbb\xbf") {
            return Err(Undecodable::Bom);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| Undecodable::Utf8)?;
        let depth = depth.min(DEEPEST);
        let mut scanner = Self {
            text,
            at: 0,
            depth,
            names: Vec::new(),
            escaped_names: false,
            escaped: false,
            fault: None,
            lenient: false,
        };
        scanner.space();
        if scanner.at_end() { Err(Undecodable::Empty) } else { Ok(scanner) }
    }

    /// Nothing is left; call after [`Self::space`].
    pub(crate) fn at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// The byte at the cursor.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Skips white space; false if there is none.
    pub(crate) fn space(&mut self) -> bool {
        let start = self.at;
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
        self.at > start
    }

    /// Skips a value and gives its text.
    pub(crate) fn value(&mut self) -> Result<&'a str, Stop> {
        Ok(self.spanned(Self::skip)?.0)
    }

    /// Runs `scan`, and gives the text that it consumed too.
    pub(crate) fn spanned<T>(
        &mut self,
        scan: impl FnOnce(&mut Self) -> Result<T, Stop>,
    ) -> Result<(&'a str, T), Stop> {
        let start = self.at;
        let found = scan(self)?;
        Ok((self.text.get(start..self.at).ok_or(Stop::Json)?, found))
    }

    /// Skips a value.
    pub(crate) fn skip(&mut self) -> Result<(), Stop> {
        match self.peek() {
            Some(b'"') => self.string(self.lenient).map(|_| ()),
            Some(b'{') => self.object(|scanner, _| scanner.skip()),
            Some(b'[') => self.array(Self::skip),
            Some(b't') => self.literal("true"),
            Some(b'f') => self.literal("false"),
            Some(b'n') => self.literal("null"),
            _ => self.number(),
        }
    }

    /// Walks an object. `member` is called with each name, still escaped, at its value, which it must consume.
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &'a str) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        self.open()?;
        let base = self.names.len();
        let mut more = self.peek() != Some(b'}');
        while more {
            if self.peek() != Some(b'"') {
                return Err(Stop::Json);
            }
            let name = self.string(false)?;
            self.names.push(name);
            self.escaped_names |= self.escaped;
            self.space();
            if self.peek() != Some(b':') {
                return Err(Stop::Json);
            }
            self.at += 1;
            self.space();
            member(self, name)?;
            more = self.separator(b'}')?;
        }
        self.close();
        self.find_duplicate(base);
        self.names.truncate(base);
        Ok(())
    }

    /// Walks an array. `element` is called at each value and must consume it.
    pub(crate) fn array(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        self.open()?;
        let mut more = self.peek() != Some(b']');
        while more {
            element(self)?;
            more = self.separator(b']')?;
        }
        self.close();
        Ok(())
    }

    /// Keeps the first fault.
    pub(crate) fn blame(&mut self, fault: Undecodable) {
        self.fault.get_or_insert(fault);
    }

    fn open(&mut self) -> Result<(), Stop> {
        self.depth = self.depth.checked_sub(1).ok_or(Stop::Depth)?;
        self.at += 1;
        self.space();
        Ok(())
    }

    fn close(&mut self) {
        self.depth += 1;
        self.at += 1;
    }

    /// At a comma moves to the next item; false at `end`.
    fn separator(&mut self, end: u8) -> Result<bool, Stop> {
        self.space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.space();
                Ok(true)
            }
            Some(byte) if byte == end => Ok(false),
            _ => Err(Stop::Json),
        }
    }

    /// Skips a string, and gives what is between its quotes; `escaped` says whether that has escapes.
    fn string(&mut self, lenient: bool) -> Result<&'a str, Stop> {
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let mut at = start;
        self.escaped = false;
        loop {
            at = special(bytes, at);
            match bytes.get(at) {
                Some(b'"') => {
                    self.at = at + 1;
                    return self.text.get(start..at).ok_or(Stop::Json);
                }
                Some(b'\\') => {
                    self.escaped = true;
                    if let Some(b'"' | b'\\' | b'/' | b'n' | b't' | b'r' | b'b' | b'f') = bytes.get(at + 1) {
                        at += 2;
                        continue;
                    }
                    let (escape, len) =
                        unescape_one(bytes.get(at..).unwrap_or_default()).ok_or(Stop::Json)?;
                    if escape.is_none() && !lenient {
                        self.blame(Undecodable::LoneSurrogate);
                    }
                    at += len;
                }
                _ => return Err(Stop::Json),
            }
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), Stop> {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        if !rest.starts_with(word.as_bytes()) {
            return Err(Stop::Json);
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Stop> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Stop> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start { Err(Stop::Json) } else { Ok(()) }
    }

    /// Looks for equal names from `base` on: by pairs in a small object, by hash in a large one.
    fn find_duplicate(&mut self, base: usize) {
        let names = self.names.get(base..).unwrap_or_default();
        let duplicate = if names.len() <= 16 && !self.escaped_names {
            let mut rest = names;
            let mut found = None;
            while let Some((name, others)) = rest.split_first() {
                if others.iter().any(|other| same(other, name)) {
                    found = Some(Cow::Borrowed(*name));
                }
                rest = others;
            }
            found
        } else {
            let mut seen = HashSet::with_capacity(names.len());
            names.iter().map(|name| unescape(name)).find(|name| !seen.insert(name.clone()))
        };
        if let Some(name) = duplicate {
            let evidence = Undecodable::evidence(&name);
            self.blame(Undecodable::DuplicateMember(evidence));
        }
    }
}

impl From<Stop> for Undecodable {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Json => Self::Json,
            Stop::Depth => Self::Depth,
            Stop::BatchTooLong => Self::BatchTooLong,
        }
    }
}

/// Equality that seldom has to look past the first byte.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.as_bytes().first() == b.as_bytes().first() && a == b
}

/// The scanner recurses, so its stack is bounded whatever the limits say.
pub const DEEPEST: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(input: &[u8]) -> Result<(), Undecodable> {
        let mut scanner = Scanner::new(input, 8)?;
        scanner.skip()?;
        scanner.space();
        match scanner.fault.take() {
            Some(fault) => Err(fault),
            None if !scanner.at_end() => Err(Undecodable::Json),
            None => Ok(()),
        }
    }

    #[track_caller]
    fn check(input: &str, expect: Result<(), Undecodable>) {
        assert_eq!(scan(input.as_bytes()), expect, "{input}");
        if expect.is_ok() || expect == Err(Undecodable::Json) {
            let reference = serde_json::from_str::<serde_json::Value>(input).is_ok();
            assert_eq!(expect.is_ok(), reference, "serde_json disagrees on {input}");
        }
    }

    #[test]
    fn only_json_is_accepted() {
        for good in [
            "0",
            "-0",
            "1.5e+3",
            "1E9",
            "true",
            "false",
            "null",
            "\"\"",
            "[]",
            "{}",
            " [1 , 2 ] ",
            r#"{"a":{"b":[{"c":"\u00e9\\\/\b\f\n\r\t\""}]}}"#,
            "\"\u{7f}é\u{1f600} long text, longer than a word\"",
            r#""\ud83d\ude00""#,
            r#"{"a":1,"A":1,"":1}"#,
        ] {
            check(good, Ok(()));
        }
        for bad in [
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "tru",
            "nul",
            "\"",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "[1,]",
            "[1",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{'a':1}",
            "[1 2]",
            "NaN",
            "Infinity",
            "}",
            "\"a\nb\"",
            "\"0123456789\u{1}\"",
            "\"\\",
        ] {
            check(bad, Err(Undecodable::Json));
        }
    }

    #[test]
    fn tricks_have_their_own_names() {
        let duplicate = |name: &str| Err(Undecodable::DuplicateMember(name.into()));
        check(r#"{"a":1,"b":2,"a":3}"#, duplicate("a"));
        check(r#"{"a":1,"\u0061":3}"#, duplicate("a"));
        check(r#"[{"x":{"n":1,"n":1}}]"#, duplicate("n"));
        check(r#""\ud83d""#, Err(Undecodable::LoneSurrogate));
        check(r#""\ud83d\ud83d""#, Err(Undecodable::LoneSurrogate));
        check(r#""\ude00\ud83d x""#, Err(Undecodable::LoneSurrogate));
        check("[[[[[[[[]]]]]]]]", Ok(()));
        check("[[[[[[[[[]]]]]]]]]", Err(Undecodable::Depth));
        assert_eq!(scan(b"\xef\xbb\xbf{}"), Err(Undecodable::Bom));
        assert_eq!(scan(b"\"\xff\""), Err(Undecodable::Utf8));
        assert_eq!(scan(b" \n"), Err(Undecodable::Empty));
    }

    #[test]
    fn large_objects_are_checked_for_duplicates_too() {
        let members: Vec<String> = (0..50_000).map(|n| format!("\"k{n}\":{n}")).collect();
        check(&format!("{{{}}}", members.join(",")), Ok(()));
        let fault = Err(Undecodable::DuplicateMember("k7".into()));
        assert_eq!(scan(format!("{{{},\"k7\":0}}", members.join(",")).as_bytes()), fault);
    }

    #[test]
    fn deepest_nesting_fits_a_small_stack() {
        let scan = || {
            let text = "[{\"a\":".repeat(2000);
            let mut scanner = Scanner::new(text.as_bytes(), usize::MAX).unwrap();
            assert_eq!(scanner.skip(), Err(Stop::Depth));
        };
        std::thread::Builder::new().stack_size(512 << 10).spawn(scan).unwrap().join().unwrap();
    }
}
