//! HTTP/1 heads: the few facts that the relay needs, read once and without allocation.
//!
//! "Too short" is `None`, never an error. Strict where two parsers could disagree about where a message ends
//! ([`Malformed`]): the head is checked line by line before `httparse`, which is more lenient, reads it.

use std::ops::Range;

use super::coding::Codings;
use super::fields::{Fields, Syntax};
use super::operation::operation;
use super::{Malformed, McpHeaders, Media, target};

/// Headers that one head may have.
pub const MAX_HEADERS: usize = 100;

/// Bytes `start..end` of the head they were read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    end: u32,
}

/// A request method (RFC 9110, section 9), case-sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET
    Get,
    /// POST
    Post,
    /// DELETE
    Delete,
    /// HEAD
    Head,
    /// CONNECT
    Connect,
    /// OPTIONS
    Options,
    /// Any other token.
    Other,
}

/// HTTP/1.0 or HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// How long the body is (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    Empty,
    /// `Content-Length`.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Up to the end of the connection; responses only.
    UntilClose,
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Bytes of the head, the empty line included.
    pub len: usize,
    /// The method.
    pub method: Method,
    /// The request target as sent.
    pub target: Span,
    /// The server that the target names, where it does.
    pub authority: Option<Span>,
    /// The version.
    pub version: Version,
    /// How the body ends.
    pub framing: Framing,
    /// What the body is said to be.
    pub media: Media,
    /// How the body is coded.
    pub codings: Codings,
    /// `Content-Type` names a charset other than UTF-8: the content is other text than its bytes look like.
    pub foreign_charset: bool,
    /// The agent waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// There is an `Upgrade` header, whether or not `Connection` names it.
    pub upgrade: bool,
    /// The connection stays open after this exchange, as far as the agent is concerned.
    pub keep_alive: bool,
    /// The `Host` header.
    pub host: Option<Span>,
    /// The headers of MCP.
    pub mcp: McpHeaders,
    /// What it asks for in A2A's HTTP+JSON binding, if it is that.
    pub operation: Option<&'static str>,
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Bytes of the head, the empty line included.
    pub len: usize,
    /// The status code.
    pub status: u16,
    /// The version.
    pub version: Version,
    /// How the body ends.
    pub framing: Framing,
    /// What follows the head is not HTTP: a 101, or a 2xx to CONNECT.
    pub tunnel: bool,
    /// What the body is said to be.
    pub media: Media,
    /// How the body is coded.
    pub codings: Codings,
    /// The connection stays open after this exchange, as far as the server is concerned.
    pub keep_alive: bool,
}

/// Reads a request head from the start of `input`; `None` needs more bytes.
pub fn parse_request(input: &[u8], limit: usize) -> Result<Option<RequestHead>, Malformed> {
    if input.first().is_some_and(|byte| !is_token(*byte)) {
        return Err(Malformed::LeadingGarbage);
    }
    let Some(head) = whole_head(input, limit)? else { return Ok(None) };
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(head).map_err(malformed)?;
    let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version) else {
        return Err(Malformed::Syntax);
    };
    let (method, version) = (Method::of(method), Version::of(version));
    let fields = Fields::read(request.headers, Syntax { head, version })?;
    let authority = target::read(method, target.as_bytes())?;
    target::host(fields.host, head)?;
    let framing = fields.framing.unwrap_or(Framing::Empty);
    if method == Method::Connect && !matches!(framing, Framing::Empty | Framing::Length(0)) {
        return Err(Malformed::TunnelBody);
    }
    let mut request = RequestHead {
        len: head.len(),
        method,
        target: Span::within(head, target.as_bytes()),
        authority: authority.map(|authority| Span::within(head, authority)),
        version,
        framing,
        media: fields.media,
        codings: fields.codings,
        foreign_charset: fields.foreign_charset,
        expect_continue: fields.expect_continue,
        upgrade: fields.upgrade,
        keep_alive: fields.keep_alive,
        host: fields.host,
        mcp: fields.mcp,
        operation: None,
    };
    request.operation = operation(&request, head);
    Ok(Some(request))
}

/// Reads a response head from the start of `input`; `None` needs more bytes. `request` is the method it answers.
pub fn parse_response(
    input: &[u8],
    limit: usize,
    request: Method,
) -> Result<Option<ResponseHead>, Malformed> {
    let start = input.get(..NAME.len()).unwrap_or(input);
    if !NAME.starts_with(start) {
        return Err(Malformed::LeadingGarbage);
    }
    let Some(head) = whole_head(input, limit)? else { return Ok(None) };
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    response.parse(head).map_err(malformed)?;
    let (Some(status), Some(version)) = (response.code, response.version) else {
        return Err(Malformed::Syntax);
    };
    let version = Version::of(version);
    let fields = Fields::read(response.headers, Syntax { head, version })?;
    let tunnel = status == 101 || request == Method::Connect && (200..300).contains(&status);
    let bodiless = request == Method::Head || matches!(status, 100..=199 | 204 | 304);
    let framing =
        if tunnel || bodiless { Framing::Empty } else { fields.framing.unwrap_or(Framing::UntilClose) };
    Ok(Some(ResponseHead {
        len: head.len(),
        status,
        version,
        framing,
        tunnel,
        media: fields.media,
        codings: fields.codings,
        keep_alive: fields.keep_alive && framing != Framing::UntilClose && !tunnel,
    }))
}

/// The bytes up to and including the empty line, each line of them checked.
fn whole_head(input: &[u8], limit: usize) -> Result<Option<&[u8]>, Malformed> {
    let bounded = input.get(..limit).unwrap_or(input);
    let mut start = 0;
    for lf in memchr::memchr_iter(b'\n', bounded) {
        let line = bounded.get(start..lf).unwrap_or_default();
        let Some((b'\r', line)) = line.split_last() else { return Err(Malformed::BareLf) };
        if memchr::memchr(b'\r', line).is_some() {
            return Err(Malformed::BareCr);
        }
        match line.first() {
            None => return Ok(bounded.get(..=lf)),
            Some(b' ' | b'\t') => return Err(Malformed::ObsFold),
            Some(_) if start == 0 => {}
            Some(_) => {
                let colon = memchr::memchr(b':', line).unwrap_or(0);
                if line.get(..colon).is_some_and(|name| name.ends_with(b" ") || name.ends_with(b"\t")) {
                    return Err(Malformed::SpaceBeforeColon);
                }
            }
        }
        start = lf + 1;
    }
    if input.len() >= limit { Err(Malformed::HeadTooLong) } else { Ok(None) }
}

fn malformed(error: httparse::Error) -> Malformed {
    match error {
        httparse::Error::TooManyHeaders => Malformed::TooManyHeaders,
        httparse::Error::Version => Malformed::Version,
        _ => Malformed::Syntax,
    }
}

/// A byte of a token (RFC 9110, section 5.6.2).
pub fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

impl Span {
    /// The bytes, given the same head again. Empty if that head is shorter.
    pub fn of(self, head: &[u8]) -> &[u8] {
        head.get(self.range()).unwrap_or_default()
    }

    /// As a range of the head.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Where `part` lies in `head`; both come from the same buffer.
    pub(super) fn within(head: &[u8], part: &[u8]) -> Self {
        let start = (part.as_ptr() as usize).wrapping_sub(head.as_ptr() as usize);
        let span = |at: usize| u32::try_from(at).ok();
        match (span(start), span(start.wrapping_add(part.len()))) {
            (Some(start), Some(end)) => Self { start, end },
            _ => Self::default(),
        }
    }
}

impl Method {
    fn of(name: &str) -> Self {
        match name {
            "GET" => Self::Get,
            "POST" => Self::Post,
            "DELETE" => Self::Delete,
            "HEAD" => Self::Head,
            "CONNECT" => Self::Connect,
            "OPTIONS" => Self::Options,
            _ => Self::Other,
        }
    }
}

impl Version {
    fn of(minor: u8) -> Self {
        if minor == 0 { Self::Http10 } else { Self::Http11 }
    }
}

const NAME: &[u8] = b"HTTP/1.";

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 10;

    fn request(head: &str) -> Result<RequestHead, Malformed> {
        let head = head.as_bytes();
        for cut in 0..head.len() {
            if let Ok(Some(early)) = parse_request(&head[..cut], LIMIT) {
                panic!("a head of {} bytes was read from {cut}", early.len);
            }
        }
        parse_request(head, LIMIT).map(|whole| whole.expect("the head is whole"))
    }

    #[track_caller]
    fn check_refused(lines: &str, expect: Malformed) {
        let head = format!("POST /mcp HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
        assert_eq!(request(&head), Err(expect), "{lines:?}");
        let head = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n");
        assert_eq!(parse_response(head.as_bytes(), LIMIT, Method::Post), Err(expect), "{lines:?}");
    }

    #[track_caller]
    fn check_framing(lines: &str, expect: Framing) {
        let head = format!("POST /mcp HTTP/1.1\r\n{lines}\r\n");
        assert_eq!(request(&head).unwrap().framing, expect, "{lines:?}");
    }

    #[track_caller]
    fn check_response(method: Method, head: &str, framing: Framing, keep_alive: bool, tunnel: bool) {
        let got = parse_response(head.as_bytes(), LIMIT, method).unwrap().unwrap();
        assert_eq!((got.framing, got.keep_alive, got.tunnel), (framing, keep_alive, tunnel), "{head:?}");
    }

    #[test]
    fn request_is_read() {
        let text = "POST /mcp?x=1 HTTP/1.1\r\nhost: tools.internal:80\r\nAccept: application/json, text/event-stream\r\n\
                    content-type: application/json; charset=utf-8\r\nContent-Length: 12\r\nExpect: 100-continue\r\n\
                    MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name:  wire \r\n\
                    Authorization: Bearer t\r\nMCP-Session-Id: s\r\nContent-Encoding: gzip\r\n\r\n";
        let head = request(text).unwrap();
        let of = |span: Option<Span>| span.map(|span| span.of(text.as_bytes()).escape_ascii().to_string());
        assert_eq!(head.len, text.len());
        assert_eq!(
            (head.method, head.version, head.framing),
            (Method::Post, Version::Http11, Framing::Length(12))
        );
        assert_eq!(head.media, Media::Json);
        assert!(!head.codings.is_identity());
        assert_eq!(head.target.of(text.as_bytes()), b"/mcp?x=1");
        assert!(head.expect_continue && head.keep_alive && !head.upgrade && !head.foreign_charset);
        assert_eq!(of(head.host).as_deref(), Some("tools.internal:80"));
        assert_eq!(of(head.mcp.protocol_version).as_deref(), Some("2026-07-28"));
        assert_eq!(of(head.mcp.method).as_deref(), Some("tools/call"));
        assert_eq!(of(head.mcp.name).as_deref(), Some("wire"));
        assert_eq!(of(head.mcp.authorization).as_deref(), Some("Bearer t"));
        assert_eq!(of(head.mcp.session_id).as_deref(), Some("s"));
        assert_eq!(head.mcp.repeated, None);
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        check_refused("Content-Length: 1\r\nTransfer-Encoding: chunked", Malformed::LengthAndChunked);
        check_refused("Content-Length: 1\r\nContent-Length: 2", Malformed::LengthConflict);
        check_refused("Content-Length: 1, 1", Malformed::LengthList);
        check_refused("Content-Length: +1", Malformed::LengthInvalid);
        check_refused("Content-Length:", Malformed::LengthInvalid);
        check_refused("Content-Length: 9223372036854775808", Malformed::LengthInvalid);
        check_refused("Content-Length: 18446744073709551616", Malformed::LengthInvalid);
        check_refused("Content-Length:\t1", Malformed::TabAroundValue);
        check_refused("Content-Length: 1 \t", Malformed::TabAroundValue);
        check_refused("Transfer-Encoding: \tchunked", Malformed::TabAroundValue);
        check_refused("Transfer-Encoding: chunked\t", Malformed::TabAroundValue);
        check_refused("Content-Length: 1\x0b", Malformed::Syntax);
        check_refused("Transfer-Encoding: gzip, chunked", Malformed::TransferEncoding);
        check_refused("Transfer-Encoding: xchunked", Malformed::TransferEncoding);
        check_refused("Transfer-Encoding: identity", Malformed::TransferEncoding);
        check_refused(
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            Malformed::TransferEncoding,
        );
        check_refused("A: b\nC: d", Malformed::BareLf);
        check_refused("A: b\rC: d", Malformed::BareCr);
        check_refused("A: b\r\r\nC: d", Malformed::BareCr);
        check_refused("A: b\r\n c", Malformed::ObsFold);
        check_refused("A: b\r\n\tc", Malformed::ObsFold);
        check_refused("Transfer-Encoding : chunked", Malformed::SpaceBeforeColon);
        check_refused("A\t: b", Malformed::SpaceBeforeColon);
        check_refused("no colon", Malformed::Syntax);
        check_refused("A: \0", Malformed::Syntax);
        check_refused("A: b\r\n".repeat(101).trim_end(), Malformed::TooManyHeaders);
        check_refused(&"A".repeat(LIMIT), Malformed::HeadTooLong);
    }

    #[test]
    fn start_lines_are_strict() {
        let check = |head: &str, expect| assert_eq!(request(head), Err(expect), "{head:?}");
        check("POST / HTTP/2.0\r\n\r\n", Malformed::Version);
        check("POST / HTTP/1.2\r\n\r\n", Malformed::Version);
        check("POST /\r\n\r\n", Malformed::Syntax);
        check("POST  / HTTP/1.1\r\n\r\n", Malformed::Syntax);
        check("POST / a HTTP/1.1\r\n\r\n", Malformed::Version);
        check("POST\t/ HTTP/1.1\r\n\r\n", Malformed::Syntax);
        check("POST / HTTP/1.1\r\n: a\r\n\r\n", Malformed::Syntax);
        check("\r\nPOST / HTTP/1.1\r\n\r\n", Malformed::LeadingGarbage);
        check(" POST / HTTP/1.1\r\n\r\n", Malformed::LeadingGarbage);
        check("CONNECT a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n", Malformed::TunnelBody);
        check("CONNECT a:1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed::TunnelBody);
        check("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed::ChunkedHttp10);
        check("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Malformed::RepeatedHost);
        let garbage = parse_response(b"\0HTTP/1.1 200 OK\r\n\r\n", LIMIT, Method::Get);
        assert_eq!(garbage, Err(Malformed::LeadingGarbage));
    }

    #[test]
    fn request_bodies_are_framed() {
        check_framing("", Framing::Empty);
        check_framing("Content-Length: 5\r\n", Framing::Length(5));
        check_framing("Content-Length: 5\r\ncontent-length: 5\r\n", Framing::Length(5));
        check_framing("Content-Length:005  \r\nX:\ta\t\r\n", Framing::Length(5));
        check_framing("Content-Length: 9223372036854775807\r\n", Framing::Length(i64::MAX.unsigned_abs()));
        check_framing("Transfer-Encoding: Chunked\r\n", Framing::Chunked);
    }

    #[test]
    fn response_bodies_are_framed_by_the_request_too() {
        let sized = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        check_response(Method::Post, sized, Framing::Length(5), true, false);
        check_response(Method::Head, sized, Framing::Empty, true, false);
        check_response(Method::Connect, sized, Framing::Empty, false, true);
        check_response(Method::Post, "HTTP/1.1 200 OK\r\n\r\n", Framing::UntilClose, false, false);
        check_response(
            Method::Post,
            "HTTP/1.1 202\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            Framing::Length(0),
            false,
            false,
        );
        check_response(
            Method::Post,
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
            Framing::Length(5),
            false,
            false,
        );
        check_response(
            Method::Get,
            "HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n",
            Framing::Empty,
            true,
            false,
        );
        check_response(Method::Get, "HTTP/1.1 204 X\r\n\r\n", Framing::Empty, true, false);
        check_response(Method::Post, "HTTP/1.1 100 Continue\r\n\r\n", Framing::Empty, true, false);
        check_response(Method::Get, "HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\n", Framing::Empty, false, true);
        check_response(
            Method::Get,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            Framing::Chunked,
            true,
            false,
        );
    }

    #[test]
    fn repeated_mcp_headers_are_named() {
        let check = |lines: &str, expect| {
            let head = request(&format!("POST / HTTP/1.1\r\n{lines}\r\n\r\n")).unwrap();
            assert_eq!(head.mcp.repeated, expect, "{lines:?}");
        };
        check("Mcp-Name: a\r\nmcp-name: a", Some("mcp-name"));
        check("Mcp-Method: a\r\nMcp-Method: b", Some("mcp-method"));
        check("MCP-Protocol-Version: a\r\nMcp-Protocol-Version: a", Some("mcp-protocol-version"));
        check("Mcp-Param-A: 1\r\nX: 2\r\nMCP-PARAM-a: 2", Some("mcp-param-*"));
        check("Mcp-Param-A: 1\r\nMcp-Param-B: 2", None);
        check("Authorization: a\r\nAuthorization: b", Some("authorization"));
    }

    #[test]
    fn json_in_any_place_counts_as_json() {
        let check = |value: &str, expect| {
            let head = request(&format!("POST / HTTP/1.1\r\nContent-Type: {value}\r\n\r\n")).unwrap();
            assert_eq!(head.media, expect, "{value:?}");
        };
        check("application/json", Media::Json);
        check("Application/A2A+JSON", Media::Json);
        check("text/plain; a=application/json", Media::Json);
        check("text/event-stream;charset=utf-8", Media::EventStream);
        check("text/plain", Media::Other);
        check("text/plain\r\nContent-Type: application/json", Media::Json);
    }
}
