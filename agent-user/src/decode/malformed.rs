//! Why HTTP/1 bytes are refused: one name per way in which two parsers could read them differently.

use std::fmt;

/// HTTP/1 bytes that we do not forward, because the other side might frame them differently (RFC 9112, section 11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// A line of the head or of the chunk framing ends in LF without CR.
    BareLf,
    /// A CR that no LF follows.
    BareCr,
    /// A header line that begins with a space or tab (RFC 9112, section 5.2).
    ObsFold,
    /// A space or tab between a header's name and its colon (RFC 9112, section 5.1).
    SpaceBeforeColon,
    /// The head did not end within the limit.
    HeadTooLong,
    /// More headers than [`MAX_HEADERS`](super::head::MAX_HEADERS).
    TooManyHeaders,
    /// An HTTP version other than 1.0 and 1.1.
    Version,
    /// Bytes before the start line that cannot begin one, an empty line included.
    LeadingGarbage,
    /// The start line or a header is not HTTP in some other way.
    Syntax,
    /// `Content-Length` together with `Transfer-Encoding`.
    LengthAndChunked,
    /// Two `Content-Length` headers that differ.
    LengthConflict,
    /// A `Content-Length` that is a list.
    LengthList,
    /// A `Content-Length` that is not a plain decimal number, or one that some readers take for negative: 2^63 or more.
    LengthInvalid,
    /// A `Transfer-Encoding` other than exactly one `chunked`.
    TransferEncoding,
    /// A chunked body in HTTP/1.0.
    ChunkedHttp10,
    /// A target of none of the four forms (RFC 9112, section 3.2), or not of the one that its method wants.
    Target,
    /// A CONNECT with a body: some readers take it for the first bytes in the tunnel.
    TunnelBody,
    /// A `Host` that is more than a name and a port.
    Host,
    /// A tab around the value of a header that frames the message or names its server: not all readers trim it.
    TabAroundValue,
    /// More than one `Host` (RFC 9112, section 3.2).
    RepeatedHost,
    /// A chunk size that is missing, not hexadecimal, or 2^63 or more.
    ChunkSize,
    /// Chunk extensions past their bound.
    ChunkExtension,
    /// A chunk's bytes are not followed by CRLF.
    ChunkEnd,
    /// Trailers past their bound.
    TrailerTooLong,
}

impl Malformed {
    /// The metric and record value.
    pub fn label(self) -> &'static str {
        match self {
            Self::BareLf => "bare_lf",
            Self::BareCr => "bare_cr",
            Self::ObsFold => "obs_fold",
            Self::SpaceBeforeColon => "space_before_colon",
            Self::HeadTooLong => "head_too_long",
            Self::TooManyHeaders => "too_many_headers",
            Self::Version => "http_version",
            Self::LeadingGarbage => "leading_garbage",
            Self::Syntax => "http_syntax",
            Self::LengthAndChunked => "length_and_chunked",
            Self::LengthConflict => "length_conflict",
            Self::LengthList => "length_list",
            Self::LengthInvalid => "length_invalid",
            Self::TransferEncoding => "transfer_encoding",
            Self::ChunkedHttp10 => "chunked_http10",
            Self::Target => "request_target",
            Self::TunnelBody => "tunnel_body",
            Self::Host => "host",
            Self::TabAroundValue => "tab_around_value",
            Self::RepeatedHost => "repeated_host",
            Self::ChunkSize => "chunk_size",
            Self::ChunkExtension => "chunk_extension",
            Self::ChunkEnd => "chunk_end",
            Self::TrailerTooLong => "trailer_too_long",
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl std::error::Error for Malformed {}
