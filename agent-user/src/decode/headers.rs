//! Any header of a request by its name. [`RequestHead`] keeps only those that the relay needs itself; the others are
//! looked for here, and only when somebody asks.

use super::RequestHead;

/// The headers of one request, not yet looked at. The default has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    head: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Those of a head that was read from the start of `bytes`, and so has no line that two parsers end differently.
    pub fn of(head: &RequestHead, bytes: &'a [u8]) -> Self {
        Self { head: bytes.get(..head.len).unwrap_or_default() }
    }

    /// The values of a header in the order in which they stand, without the white space around them (RFC 9112,
    /// section 5). Names are compared without case (RFC 9110, section 5.1).
    pub fn all(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        lines(self.head).skip(1).filter_map(move |line| {
            let (found, value) = line.split_at_checked(memchr::memchr(b':', line)?)?;
            found
                .eq_ignore_ascii_case(name.as_bytes())
                .then(|| value.get(1..).unwrap_or_default().trim_ascii())
        })
    }

    /// The value of a header that stands there once. Of several, some readers take the first, some the last, and some
    /// join them.
    pub fn only(self, name: &str) -> Option<&'a [u8]> {
        let mut values = self.all(name);
        values.next().filter(|_| values.next().is_none())
    }
}

/// The lines of a head, each with its end.
pub(super) fn lines(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (line, after) = rest.split_at_checked(memchr::memchr(b'\n', rest)? + 1)?;
        rest = after;
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::parse_request;

    const HEAD: &str = "POST /a:b HTTP/1.1\r\nHost: a:80\r\nX-Flow:\t one \r\nx-twice: 1\r\nX-TWICE: 1\r\nempty:\r\n\
                        Last: a:b\r\n\r\n";

    #[test]
    fn headers_are_found_by_name() {
        // What follows the head is content, whatever it looks like.
        let bytes = format!("{HEAD}x-body: 1\r\n");
        let head = parse_request(bytes.as_bytes(), 1 << 16).unwrap().unwrap();
        let headers = Headers::of(&head, bytes.as_bytes());
        let check = |name, expect: Option<&str>| {
            assert_eq!(headers.only(name), expect.map(str::as_bytes), "{name}");
        };
        check("x-flow", Some("one"));
        check("X-FLOW", Some("one"));
        check("host", Some("a:80"));
        check("empty", Some(""));
        check("last", Some("a:b"));
        for none in ["x-twice", "x-flo", "x-flow2", "x-body", "", "POST /a"] {
            check(none, None);
        }
        assert_eq!(headers.all("x-twice").count(), 2);
    }

    #[test]
    fn bytes_that_are_shorter_than_their_head_have_no_headers() {
        let head = parse_request(HEAD.as_bytes(), 1 << 16).unwrap().unwrap();
        for cut in 0..HEAD.len() {
            assert_eq!(Headers::of(&head, &HEAD.as_bytes()[..cut]).all("x-flow").count(), 0);
        }
    }
}
