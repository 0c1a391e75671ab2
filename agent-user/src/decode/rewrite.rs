//! The head of a message whose content, or the framing of it, is another one now. What was said of the old content
//! goes; all else stays byte for byte and in its order.

use super::Framing;
use super::headers::lines;

/// The head for a content framed like that, in no coding. `head` is a whole head that was parsed before: of a request or a response.
/// To be read up to the end of the connection, the head says that it is closed.
pub fn rewrite_head(head: &[u8], framing: Framing) -> Vec<u8> {
    let added = match framing {
        Framing::Empty => String::new(),
        Framing::Length(length) => format!("Content-Length: {length}\r\n"),
        Framing::Chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        Framing::UntilClose => "Connection: close\r\n".to_owned(),
    };
    let mut rewritten = Vec::with_capacity(head.len() + added.len());
    for (index, line) in lines(head).enumerate() {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        let is = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        let goes = is(&OF_CONTENT) || framing == Framing::UntilClose && is(&OF_CONNECTION);
        if index == 0 || !goes && line != b"\r\n" {
            rewritten.extend_from_slice(line);
        }
    }
    rewritten.extend_from_slice(added.as_bytes());
    rewritten.extend_from_slice(b"\r\n");
    rewritten
}

/// The head with other values of some headers: `value` is asked for each, given its name and what it says.
pub fn replace_values(head: &[u8], value: impl Fn(&[u8], &[u8]) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(head.len());
    for (index, line) in lines(head).enumerate() {
        let field = memchr::memchr(b':', line).filter(|_| index > 0).map(|colon| line.split_at(colon));
        match field.and_then(|(name, rest)| Some((name, value(name, rest[1..].trim_ascii())?))) {
            Some((name, value)) => replaced.extend([name, b": ", &value, b"\r\n"].into_iter().flatten()),
            None => replaced.extend_from_slice(line),
        }
    }
    replaced
}

/// What frames a content, or is true of its very bytes (RFC 9110, section 8; RFC 9530; RFC 3230).
const OF_CONTENT: [&str; 10] = [
    "content-length",
    "transfer-encoding",
    "content-encoding",
    "trailer",
    "etag",
    "digest",
    "content-digest",
    "repr-digest",
    "content-md5",
    "accept-ranges",
];
/// What speaks of the life of the connection (RFC 9112, section 9; RFC 2068, section 19.7.1).
const OF_CONNECTION: [&str; 2] = ["connection", "keep-alive"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Method, parse_request, parse_response};

    #[test]
    fn values_are_replaced_where_they_stand() {
        let head = b"POST /a:b HTTP/1.1\r\nHost: a\r\nMcp-Param-Key:  old \r\nX: old\r\n\r\n";
        let replaced = replace_values(head, |name, value| {
            (name.eq_ignore_ascii_case(b"mcp-param-key") && value == b"old").then(|| b"new".to_vec())
        });
        assert_eq!(replaced, b"POST /a:b HTTP/1.1\r\nHost: a\r\nMcp-Param-Key: new\r\nX: old\r\n\r\n");
    }

    #[track_caller]
    fn check(head: &str, framing: Framing, expect: &str) {
        let rewritten = rewrite_head(head.as_bytes(), framing);
        assert_eq!(String::from_utf8_lossy(&rewritten), expect);
        let read = match head.starts_with("HTTP/") {
            true => parse_response(&rewritten, 4096, Method::Post).unwrap().map(|head| head.framing),
            false => parse_request(&rewritten, 4096).unwrap().map(|head| head.framing),
        };
        assert_eq!(read, Some(framing), "a head that is whole, and says so");
    }

    #[test]
    fn what_was_true_of_the_old_content_goes_and_the_rest_stays() {
        check(
            "HTTP/1.1 200 OK\r\nX-A:  1 \r\ncontent-LENGTH: 5\r\nETag: \"x\"\r\nx-a: 2\r\nDigest: a\r\n\
             Content-Digest: b\r\nrepr-digest: c\r\nContent-MD5: d\r\nContent-Encoding: gzip\r\nAccept-Ranges: bytes\r\n\
             Vary: Accept-Encoding\r\nContent-Type: application/json\r\n\r\n",
            Framing::Length(17),
            "HTTP/1.1 200 OK\r\nX-A:  1 \r\nx-a: 2\r\nVary: Accept-Encoding\r\nContent-Type: application/json\r\n\
             Content-Length: 17\r\n\r\n",
        );
        check(
            "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\nConnection: keep-alive\r\n\r\n",
            Framing::Length(2),
            "HTTP/1.1 200\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\n",
        );
    }

    #[test]
    fn a_stream_gets_another_framing() {
        let head = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\nKeep-Alive: timeout=5\r\nA: b\r\n\r\n";
        check(
            head,
            Framing::Chunked,
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        check(head, Framing::UntilClose, "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn requests_keep_what_they_expect() {
        check(
            "POST /a?content-length:x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\
             Mcp-Name: x\r\n\r\n",
            Framing::Length(3),
            "POST /a?content-length:x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nMcp-Name: x\r\nContent-Length: 3\r\n\r\n",
        );
    }
}
