//! The headers of one head, read once: what frames the body, what it is, and what MCP says in them.

use super::Malformed;
use super::coding::Codings;
use super::head::{Framing, Span, Version};
use super::sentinel;

/// What `Content-Type` says. A hint only: servers differ in how they match it, so anything that names JSON is `Json`
/// (a server that looks for the substring would take it as such).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Media {
    /// No header.
    #[default]
    None,
    /// Names JSON in any way.
    Json,
    /// `text/event-stream`.
    EventStream,
    /// Anything else.
    Other,
}

/// Headers of MCP and the bearer token. They are claims: the body decides, see [`mismatch`](super::mcp::mismatch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct McpHeaders {
    /// `MCP-Protocol-Version`
    pub protocol_version: Option<Span>,
    /// `Mcp-Session-Id`
    pub session_id: Option<Span>,
    /// `Mcp-Method`
    pub method: Option<Span>,
    /// `Mcp-Name`, maybe in base64 (MCP 2026-07-28)
    pub name: Option<Span>,
    /// `Authorization`, with its scheme
    pub authorization: Option<Span>,
    /// The first of these headers, or of `Mcp-Param-*`, that occurs twice; its span is that of the first.
    pub repeated: Option<&'static str>,
    /// The first `Mcp-Param-*` whose base64 is not quite one ([`sentinel::is_broken`]).
    pub broken_param: Option<Span>,
}

/// What was read of the headers.
pub(super) struct Fields {
    /// `None`: neither `Content-Length` nor `Transfer-Encoding`.
    pub(super) framing: Option<Framing>,
    pub(super) media: Media,
    pub(super) codings: Codings,
    /// `Content-Type` names a charset other than UTF-8 (or its subset ASCII).
    pub(super) foreign_charset: bool,
    pub(super) expect_continue: bool,
    pub(super) upgrade: bool,
    pub(super) keep_alive: bool,
    pub(super) host: Option<Span>,
    pub(super) mcp: McpHeaders,
}

/// What the headers stand in.
#[derive(Clone, Copy)]
pub(super) struct Syntax<'a> {
    pub(super) head: &'a [u8],
    pub(super) version: Version,
}

impl Syntax<'_> {
    /// Whether a tab stands between a header's colon and its value, or after that.
    fn has_tab_around(self, header: &httparse::Header<'_>) -> bool {
        let at = Span::within(self.head, header.value).range();
        let colon = Span::within(self.head, header.name.as_bytes()).range().end;
        let before = self.head.get(colon..at.start).unwrap_or_default();
        let after = self.head.get(at.end..).unwrap_or_default();
        before.contains(&b'\t') || after.iter().take_while(|byte| **byte != b'\r').any(|byte| *byte == b'\t')
    }
}

impl Fields {
    /// Reads `headers`, which are slices of the head.
    pub(super) fn read(headers: &[httparse::Header<'_>], of: Syntax<'_>) -> Result<Self, Malformed> {
        let mut fields = Self {
            framing: None,
            media: Media::None,
            codings: Codings::default(),
            foreign_charset: false,
            expect_continue: false,
            upgrade: false,
            keep_alive: of.version == Version::Http11,
            host: None,
            mcp: McpHeaders::default(),
        };
        let mut closes = false;
        for (index, header) in headers.iter().enumerate() {
            let value = header.value;
            let span = Span::within(of.head, value);
            let name = name_of(header.name);
            if name.decides() && of.has_tab_around(header) {
                return Err(Malformed::TabAroundValue);
            }
            match name {
                Name::ContentLength => fields.length(value)?,
                Name::TransferEncoding => fields.transfer_encoding(value, of.version)?,
                Name::ContentType => fields.content_type(value),
                Name::ContentEncoding => fields.codings.read(value),
                Name::Host if fields.host.is_some() => return Err(Malformed::RepeatedHost),
                Name::Host => fields.host = Some(span),
                Name::Expect => {
                    // HTTP/1.0 has no interim answers (RFC 9110, section 10.1.1).
                    let is_known = value.eq_ignore_ascii_case(b"100-continue");
                    fields.expect_continue |= is_known && of.version == Version::Http11;
                }
                Name::Upgrade => fields.upgrade = true,
                Name::Connection => {
                    closes |= has_token(value, b"close");
                    fields.keep_alive |= has_token(value, b"keep-alive");
                }
                Name::Mirror(name) => fields.mirror(name, span),
                Name::McpParam => {
                    let earlier = headers.get(..index).unwrap_or_default();
                    if earlier.iter().any(|other| other.name.eq_ignore_ascii_case(header.name)) {
                        fields.mcp.repeated = fields.mcp.repeated.or(Some("mcp-param-*"));
                    }
                    if sentinel::is_broken(value) {
                        fields.mcp.broken_param = fields.mcp.broken_param.or(Some(span));
                    }
                }
                Name::Other => {}
            }
        }
        fields.keep_alive &= !closes;
        Ok(fields)
    }

    fn length(&mut self, value: &[u8]) -> Result<(), Malformed> {
        if value.contains(&b',') {
            return Err(Malformed::LengthList);
        }
        let digits = Some(value).filter(|value| !value.is_empty() && value.iter().all(u8::is_ascii_digit));
        let length = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        let length = length.filter(|length| *length <= LONGEST).ok_or(Malformed::LengthInvalid)?;
        match self.framing {
            None => self.framing = Some(Framing::Length(length)),
            Some(Framing::Length(other)) if other == length => {}
            Some(Framing::Length(_)) => return Err(Malformed::LengthConflict),
            Some(_) => return Err(Malformed::LengthAndChunked),
        }
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8], version: Version) -> Result<(), Malformed> {
        match self.framing {
            Some(Framing::Length(_)) => return Err(Malformed::LengthAndChunked),
            Some(_) => return Err(Malformed::TransferEncoding),
            None if !value.eq_ignore_ascii_case(b"chunked") => return Err(Malformed::TransferEncoding),
            None if version == Version::Http10 => return Err(Malformed::ChunkedHttp10),
            None => self.framing = Some(Framing::Chunked),
        }
        Ok(())
    }

    fn content_type(&mut self, value: &[u8]) {
        let media = if contains(value, b"json") {
            Media::Json
        } else if contains(value, b"event-stream") {
            Media::EventStream
        } else {
            Media::Other
        };
        self.foreign_charset |= has_foreign_charset(value);
        // Of several headers the one that we look into counts.
        if matches!((self.media, media), (Media::None | Media::Other, _) | (_, Media::Json)) {
            self.media = media;
        }
    }

    fn mirror(&mut self, name: &'static str, span: Span) {
        let slot = match name {
            "mcp-protocol-version" => &mut self.mcp.protocol_version,
            "mcp-session-id" => &mut self.mcp.session_id,
            "mcp-method" => &mut self.mcp.method,
            "mcp-name" => &mut self.mcp.name,
            _ => &mut self.mcp.authorization,
        };
        if slot.is_none() {
            *slot = Some(span);
        } else {
            self.mcp.repeated = self.mcp.repeated.or(Some(name));
        }
    }
}

/// The headers that matter here.
enum Name {
    ContentLength,
    TransferEncoding,
    ContentType,
    ContentEncoding,
    Host,
    Expect,
    Upgrade,
    Connection,
    /// One that must not occur twice, because it says what the body says too, or who sends it.
    Mirror(&'static str),
    McpParam,
    Other,
}

impl Name {
    /// Whether readers that trim its value differently see another message, or another server.
    fn decides(&self) -> bool {
        matches!(self, Self::ContentLength | Self::TransferEncoding | Self::Host)
    }
}

fn name_of(name: &str) -> Name {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        4 if is("host") => Name::Host,
        6 if is("expect") => Name::Expect,
        7 if is("upgrade") => Name::Upgrade,
        8 if is("mcp-name") => Name::Mirror("mcp-name"),
        10 if is("connection") => Name::Connection,
        10 if is("mcp-method") => Name::Mirror("mcp-method"),
        12 if is("content-type") => Name::ContentType,
        13 if is("authorization") => Name::Mirror("authorization"),
        14 if is("content-length") => Name::ContentLength,
        14 if is("mcp-session-id") => Name::Mirror("mcp-session-id"),
        16 if is("content-encoding") => Name::ContentEncoding,
        17 if is("transfer-encoding") => Name::TransferEncoding,
        20 if is("mcp-protocol-version") => Name::Mirror("mcp-protocol-version"),
        _ if name.get(..PARAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(PARAM)) => Name::McpParam,
        _ => Name::Other,
    }
}

/// A text in another charset is other characters than its bytes look like: UTF-7 hides letters in ASCII.
fn has_foreign_charset(content_type: &[u8]) -> bool {
    content_type.split(|byte| *byte == b';').skip(1).any(|parameter| {
        let mut parts = parameter.splitn(2, |byte| *byte == b'=');
        let (Some(name), Some(value)) = (parts.next(), parts.next()) else { return false };
        let value = value.trim_ascii();
        let value = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        name.trim_ascii().eq_ignore_ascii_case(b"charset")
            && ![&b"utf-8"[..], b"utf8", b"us-ascii", b"ascii"]
                .iter()
                .any(|known| value.eq_ignore_ascii_case(known))
    })
}

/// Whether a comma-separated list has `token`.
fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}

/// Whether `value` has `part` (lower case) in any case. Only header values up to the head's limit come here.
fn contains(value: &[u8], part: &[u8]) -> bool {
    value.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}

const PARAM: &str = "mcp-param-";
/// The longest body: with one more byte it is negative to readers with signed lengths.
const LONGEST: u64 = i64::MAX.unsigned_abs();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charsets_other_than_utf8_are_seen() {
        for known in [
            "application/json",
            "application/json; charset=utf-8",
            "a/json;x=1; Charset=\"UTF8\"",
            "a; charset=us-ascii",
        ] {
            assert!(!has_foreign_charset(known.as_bytes()), "{known}");
        }
        for foreign in [
            "application/json; charset=utf-16be",
            "a/json;charset=\"utf-7\"",
            "a;b=c;CHARSET=latin1",
            "a; charset=",
        ] {
            assert!(has_foreign_charset(foreign.as_bytes()), "{foreign}");
        }
    }
}
