//! Server-sent events: where one ends, what it carries, and how it is written anew (WHATWG HTML, section 9.2.6).
//!
//! Lines end in LF, CRLF or CR, also mixed. Nothing that a client could act on waits for what comes after it: an event
//! that ends in CR is given out at once, an LF that then follows is given out alone (some clients wait for it), and so
//! is a comment before the first field of an event (servers keep connections alive with them). Both count as events
//! without data. Never an error: what is not a field is skipped.

use std::borrow::Cow;
use std::fmt;

use memchr::{memchr, memchr2};

/// Finds the ends of events in a stream, each byte seen once.
#[derive(Clone, Debug)]
pub struct Events {
    limit: usize,
    /// Bytes of the current event that were seen.
    seen: usize,
    /// The current line has no byte yet.
    blank: bool,
    /// The current line begins with a colon.
    comment: bool,
    /// The current line is the first of its event.
    first: bool,
    /// The last byte was a CR, so an LF belongs to it.
    after_cr: bool,
    /// How many bytes of a byte order mark the stream began with; `None` once past it.
    mark: Option<usize>,
}

/// An event is longer than the limit. Bytes seen so far are lost to inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oversized;

/// What one event carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `data` lines, joined by LF.
    pub data: Cow<'a, [u8]>,
    /// The data is not empty, so a client dispatches the event. False for comments and priming events.
    pub has_data: bool,
    /// The last `event` field.
    pub event_type: Option<&'a [u8]>,
    /// There is an `id` field.
    pub id: bool,
}

impl Events {
    /// A scanner at the start of a stream, whose events have at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, seen: 0, blank: true, comment: false, first: true, after_cr: false, mark: Some(0) }
    }

    /// Another bound, for the current event too.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Takes bytes that it has **not** seen yet. `Some(n)`: the current event ends after `data[..n]`; call again with
    /// `data[n..]`. `None`: all of `data` was seen and the event goes on. An error takes nothing.
    pub fn next_end(&mut self, data: &[u8]) -> Result<Option<usize>, Oversized> {
        let mut next = self.clone();
        let end = next.scan(data);
        next.seen = next.seen.saturating_add(end.unwrap_or(data.len()));
        if next.seen > self.limit {
            return Err(Oversized);
        }
        if end.is_some() {
            next.seen = 0;
        }
        *self = next;
        Ok(end)
    }

    /// Bytes of an event that has begun and not ended.
    pub fn pending(&self) -> usize {
        self.seen
    }

    fn scan(&mut self, data: &[u8]) -> Option<usize> {
        let mut at = self.skip_mark(data);
        if self.after_cr && at < data.len() {
            self.after_cr = false;
            if data.get(at) == Some(&b'\n') {
                at += 1;
                if self.seen == 0 {
                    return Some(at);
                }
            }
        }
        while let Some(rest) = data.get(at..).filter(|rest| !rest.is_empty()) {
            if self.blank {
                self.comment = rest.first() == Some(&b':');
            }
            let Some(line) = memchr2(b'\r', b'\n', rest) else {
                self.blank = false;
                return None;
            };
            let ended = self.blank && line == 0 || self.first && self.comment;
            self.blank = true;
            self.first = ended;
            at += line + 1;
            if rest.get(line) == Some(&b'\r') {
                match data.get(at) {
                    Some(b'\n') => at += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            if ended {
                return Some(at);
            }
        }
        None
    }

    /// A byte order mark at the start of the stream is not part of the first line.
    fn skip_mark(&mut self, data: &[u8]) -> usize {
        let Some(matched) = self.mark else { return 0 };
        let rest = BOM.get(matched..).unwrap_or_default();
        let same = data.iter().zip(rest).take_while(|(a, b)| a == b).count();
        if same < rest.len() && same == data.len() {
            self.mark = Some(matched + same);
        } else {
            self.mark = None;
            self.blank = matched + same == 0 || same == rest.len();
        }
        same
    }
}

/// Reads the fields of one event, as [`Events`] cut it.
pub fn fields(event: &[u8]) -> Event<'_> {
    let mut found =
        Event { data: Cow::Borrowed(b"".as_slice()), has_data: false, event_type: None, id: false };
    let mut is_first = true;
    for line in lines(event) {
        match line.name {
            b"data" if std::mem::take(&mut is_first) => found.data = Cow::Borrowed(line.value),
            b"data" => {
                let joined = found.data.to_mut();
                joined.push(b'\n');
                joined.extend_from_slice(line.value);
            }
            b"event" => found.event_type = Some(line.value),
            b"id" => found.id = true,
            _ => {}
        }
    }
    found.has_data = !found.data.is_empty();
    found
}

/// The event with another JSON text for its data, in one line where the first was; all its other lines stay.
pub fn with_data(event: &[u8], json: &[u8]) -> Vec<u8> {
    rewrite(event, json, |_| true)
}

/// What is left of an event whose data is withheld. Nothing, but for one with an id: an agent that resumes the stream must
/// not get it again, so that the id stays, with empty data (priming in MCP 2025-11-25).
pub fn without_data(event: &[u8]) -> Vec<u8> {
    if fields(event).id { rewrite(event, b"", |name| name != b"event") } else { Vec::new() }
}

fn rewrite(event: &[u8], json: &[u8], stays: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut rewritten = Vec::with_capacity(event.len() + json.len());
    let mut is_first = true;
    for line in lines(event) {
        if line.name != b"data" {
            if stays(line.name) {
                rewritten.extend_from_slice(line.text);
                rewritten.extend_from_slice(line.end);
            }
        } else if std::mem::take(&mut is_first) {
            rewritten.extend_from_slice(b"data: ");
            // The end of a line in JSON is white space, and would end the field.
            rewritten
                .extend(json.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
            rewritten.extend_from_slice(line.end);
        }
    }
    rewritten
}

/// A line of an event.
struct Line<'a> {
    text: &'a [u8],
    /// CR, LF, or both.
    end: &'a [u8],
    name: &'a [u8],
    value: &'a [u8],
}

/// A byte order mark in front is skipped in any event: a client that strips it there sees the field, and we must see at
/// least what a client sees.
fn lines(event: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let mut rest = event.strip_prefix(BOM).unwrap_or(event);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (text, after) = rest.split_at(memchr2(b'\r', b'\n', rest).unwrap_or(rest.len()));
        let end = if after.starts_with(b"\r\n") { 2 } else { after.len().min(1) };
        let (end, after) = after.split_at(end);
        rest = after;
        let (name, value) = match memchr(b':', text.get(..LONGEST_FIELD).unwrap_or(text)) {
            Some(colon) => (&text[..colon], &text[colon + 1..]),
            None => (text, b"".as_slice()),
        };
        Some(Line { text, end, name, value: value.strip_prefix(b" ").unwrap_or(value) })
    })
}

impl Oversized {
    /// The metric and record value.
    pub fn label(self) -> &'static str {
        "event_oversized"
    }
}

impl fmt::Display for Oversized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl std::error::Error for Oversized {}

const BOM: &[u8] = b"\xef\xbb\xbf";
/// No field that we read has its colon later than this.
const LONGEST_FIELD: usize = "event:".len();

#[cfg(test)]
mod tests {
    use super::*;

    /// The events of `input` given in writes cut at `cuts`: the data of each.
    fn split(input: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
        let mut events = Events::new(1 << 20);
        let (mut current, mut out, mut forwarded) = (Vec::new(), Vec::new(), 0);
        let bounds: Vec<usize> = [0].into_iter().chain(cuts.iter().copied()).chain([input.len()]).collect();
        for pair in bounds.windows(2) {
            let mut part = &input[pair[0]..pair[1]];
            while let Some(end) = events.next_end(part).unwrap() {
                current.extend_from_slice(&part[..end]);
                forwarded += current.len();
                out.push(fields(&current).data.into_owned());
                current.clear();
                part = &part[end..];
            }
            current.extend_from_slice(part);
        }
        assert_eq!(events.pending(), current.len());
        assert_eq!(forwarded + current.len(), input.len());
        out.retain(|data| !data.is_empty());
        out
    }

    #[track_caller]
    fn check(input: &[u8], expect: &[&str]) {
        for a in 0..=input.len() {
            for b in a..=input.len() {
                let got = split(input, &[a, b]);
                let got: Vec<_> = got.iter().map(|data| String::from_utf8_lossy(data)).collect();
                assert_eq!(got, expect, "cut at {a} and {b}");
            }
        }
    }

    #[test]
    fn every_cut_gives_the_same_events() {
        check(b"data: a\n\ndata: b\n\n", &["a", "b"]);
        check(b"data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]);
        check(b"data: a\r\rdata: b\r\r", &["a", "b"]);
        check(b"data: a\r\n\rdata: b\n\r\n", &["a", "b"]);
        check(b"data: a\r\n\n", &["a"]);
        check(b"data: a\n\r\r\ndata: b\n\n", &["a", "b"]);
        check(b"\xef\xbb\xbfdata: a\n\n", &["a"]);
        check(b"\xef\xbb\xbf\n\ndata: a\n\n", &["a"]);
        check(b": keep-alive\n\nid: 1\nretry: 5\ndata:\n\ndata: a\n\n", &["a"]);
        check(b"event: message\nid: 7\ndata: a\ndata:b\ndata\n\n", &["a\nb\n"]);
        check(b"data: unfinished\n", &[]);
        check(b"data:  a\nDATA: b\ndatax: c\n\n", &[" a"]);
    }

    #[test]
    fn event_past_the_limit_is_oversized() {
        let mut events = Events::new(10);
        assert_eq!(events.next_end(b"data: a\n\n"), Ok(Some(9)));
        assert_eq!(events.next_end(b"data: aaa"), Ok(None));
        assert_eq!(events.next_end(b"\n\n"), Err(Oversized));
        events.set_limit(11);
        assert_eq!(events.next_end(b"\n\n"), Ok(Some(2)), "the error took nothing");
    }

    /// Where the parts of a stream end, given byte by byte.
    #[track_caller]
    fn check_ends(stream: &str, expect: &[&str]) {
        let mut events = Events::new(100);
        let mut parts = vec![String::new()];
        for byte in stream.chars() {
            parts.last_mut().unwrap().push(byte);
            if events.next_end(byte.to_string().as_bytes()).unwrap().is_some() {
                parts.push(String::new());
            }
        }
        assert_eq!(parts, expect);
    }

    #[test]
    fn comments_between_events_do_not_wait() {
        check_ends(": ping\n: x\n\ndata: a\n", &[": ping\n", ": x\n", "\n", "data: a\n"]);
        check_ends("data: a\n\n: ping\rid", &["data: a\n\n", ": ping\r", "id"]);
        check_ends(": ping\r\ndata: a\r\n\r\n", &[": ping\r", "\n", "data: a\r\n\r", "\n", ""]);
        check_ends("data: a\n: b\n\n:", &["data: a\n: b\n\n", ":"]);
        check_ends("\u{feff}: ping\n", &["\u{feff}: ping\n", ""]);
        check_ends("x\u{feff}: ping\n", &["x\u{feff}: ping\n"]);
    }

    #[test]
    fn an_event_is_written_anew_line_by_line() {
        #[track_caller]
        fn check(event: &str, replaced: &str, dropped: &str) {
            let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            assert_eq!(text(with_data(event.as_bytes(), b"{\"a\":\r\n1}")), replaced);
            assert_eq!(text(without_data(event.as_bytes())), dropped);
        }
        check("data: x\n\n", "data: {\"a\":  1}\n\n", "");
        check(
            "event: message\r\nid: 7\r\ndata: x\r\n: c\r\ndata:y\r\nretry: 5\r\n\r\n",
            "event: message\r\nid: 7\r\ndata: {\"a\":  1}\r\n: c\r\nretry: 5\r\n\r\n",
            "id: 7\r\ndata: \r\n: c\r\nretry: 5\r\n\r\n",
        );
        check("data\rdata: x\rid\r\r", "data: {\"a\":  1}\rid\r\r", "data: \rid\r\r");
        check("\u{feff}data: x\nevent: y\n\n", "data: {\"a\":  1}\nevent: y\n\n", "");
    }

    #[test]
    fn fields_are_read() {
        let event = fields(b"event: endpoint\r\ndata: /messages?id=1\r\n\r\n");
        assert_eq!(event.event_type, Some(b"endpoint".as_slice()));
        assert!(event.has_data && !event.id && matches!(event.data, Cow::Borrowed(b"/messages?id=1")));
        let priming = fields(b"\nid: s7-0\nretry: 1500\ndata:\n\n");
        assert!(priming.id && !priming.has_data);
        assert!(!fields(b": comment\n\n").has_data);
    }
}
