//! Why bytes that should be JSON-RPC are not decoded: one name per cause.

use std::fmt;

/// Bytes that do not mean one thing to every JSON parser, or mean no JSON-RPC message (wire-level tricks first).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// Nothing but white space.
    Empty,
    /// A byte order mark in front: some parsers skip it, some fail (RFC 8259, section 8.1).
    Bom,
    /// Not UTF-8.
    Utf8,
    /// Not JSON (RFC 8259).
    Json,
    /// Nested deeper than the limit.
    Depth,
    /// A JSON-RPC message beside other documents, or followed by other bytes.
    Trailing,
    /// An object of the message has this member twice: parsers differ in which one counts.
    DuplicateMember(Box<str>),
    /// A member that only parsers which ignore case take for one that we read.
    CaseVariant(Box<str>),
    /// An escape of half a surrogate pair, where we must read the text.
    LoneSurrogate,
    /// JSON-RPC members that make neither one request, nor one notification, nor one response.
    Shape,
    /// JSON-RPC where the target asks for an operation of A2A's HTTP+JSON binding: servers differ in what counts.
    TwoBindings,
    /// A batch with an element that is no JSON-RPC message.
    BatchElement,
    /// A batch of more than [`MAX_BATCH`](super::jsonrpc::MAX_BATCH) messages.
    BatchTooLong,
    /// An id, a method, or the name of what is used, over its bound.
    NameTooLong,
    /// Two requests of a batch with one id: whose answer is whose?
    DuplicateId,
}

impl Undecodable {
    /// The metric and record value.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Bom => "byte_order_mark",
            Self::Utf8 => "invalid_utf8",
            Self::Json => "invalid_json",
            Self::Depth => "too_deep",
            Self::Trailing => "trailing_bytes",
            Self::DuplicateMember(_) => "duplicate_member",
            Self::CaseVariant(_) => "case_variant_member",
            Self::LoneSurrogate => "lone_surrogate",
            Self::Shape => "jsonrpc_shape",
            Self::TwoBindings => "two_bindings",
            Self::BatchElement => "batch_element",
            Self::BatchTooLong => "batch_too_long",
            Self::NameTooLong => "name_too_long",
            Self::DuplicateId => "duplicate_id",
        }
    }

    /// A member's name as evidence: at most 64 characters of it.
    pub(super) fn evidence(name: &str) -> Box<str> {
        name.chars().take(64).collect()
    }
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateMember(name) | Self::CaseVariant(name) => write!(f, "{} {name:?}", self.label()),
            _ => f.write_str(self.label()),
        }
    }
}

impl std::error::Error for Undecodable {}
