//! What a request says beside its content: over HTTP a lot, and on a connection of lines nothing.

use crate::decide::Guard;
use crate::decode::{Claims, Headers, RequestHead, Version};

/// What carries the messages of a request.
#[derive(Clone, Copy, Debug)]
pub enum Carrier<'a> {
    /// An HTTP request with this head, which has these bytes.
    Http(&'a RequestHead, &'a [u8]),
    /// One line among others.
    Line,
}

impl<'a> Carrier<'a> {
    /// How records call what it carries where that is no message.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Carrier::Http(..) => "http",
            Carrier::Line => "line",
        }
    }

    /// The operation of A2A's HTTP+JSON binding that it asks for, if it is that.
    pub(super) fn operation(&self) -> Option<&'static str> {
        match self {
            Carrier::Http(head, _) => head.operation,
            Carrier::Line => None,
        }
    }

    /// The bytes of the head.
    pub(super) fn head(&self) -> &'a [u8] {
        match self {
            Carrier::Http(_, bytes) => bytes,
            Carrier::Line => b"",
        }
    }

    pub(super) fn headers(&self) -> Headers<'a> {
        match self {
            Carrier::Http(head, bytes) => Headers::of(head, bytes),
            Carrier::Line => Headers::default(),
        }
    }

    /// What it claims of the messages.
    pub(super) fn claims(&self) -> Claims<'a> {
        match self {
            Carrier::Http(head, bytes) => head.mcp.claims(bytes),
            Carrier::Line => Claims::default(),
        }
    }

    /// Its headers are those of MCP.
    pub(super) fn is_of_mcp(&self) -> bool {
        self.claims().protocol_version.is_some() || self.session_id().is_some()
    }

    pub(super) fn session_id(&self) -> Option<&'a [u8]> {
        match self {
            Carrier::Http(head, bytes) => Some(head.mcp.session_id?.of(bytes)),
            Carrier::Line => None,
        }
    }

    /// Path of the target, without query.
    pub(super) fn path(&self) -> &'a [u8] {
        match self {
            Carrier::Http(head, bytes) => head.path(bytes),
            Carrier::Line => b"",
        }
    }

    /// The server that it names. Where the target carries an authority servers go by that and not by `Host`
    /// (RFC 9112 section 3.2.2), but not all of them do: the two must agree.
    pub(super) fn authority(&self) -> Result<&'a [u8], Guard> {
        let Carrier::Http(head, bytes) = self else { return Ok(b"") };
        let host = head.host.map(|host| host.of(bytes)).unwrap_or_default();
        let Some(named) = head.authority.map(|named| named.of(bytes)) else { return Ok(host) };
        if head.is_of_one_server(bytes) {
            return Ok(named);
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Err(Guard::HeaderMismatch { header: "host", header_value: text(host), body_value: text(named) })
    }

    /// Whether an agent takes an answer as a stream of events that ends before its connection does.
    pub(super) fn takes_events(&self) -> bool {
        let Carrier::Http(head, _) = self else { return false };
        let ranges = self.headers().all("accept").flat_map(|value| value.split(|byte| *byte == b','));
        let mut types =
            ranges.map(|range| range.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii());
        head.version == Version::Http11 && types.any(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
    }
}
