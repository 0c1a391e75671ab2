//! Bytes to meaning: the name in a TLS hello, HTTP/1 framing, server-sent events, lines, JSON-RPC, MCP and A2A.
//!
//! Pure: no IO, no clock, no locks; every input may be hostile and none may panic. Need-more is not an error. What
//! two parsers could read differently is an error with a name, and what the caller does with it is policy.
//!
//! In the order in which bytes pass: [`mod@sniff`], [`hello`], [`head`], [`Authority`], [`body`], [`coding`], [`sse`],
//! [`mod@lines`], [`jsonrpc`], [`mcp`], [`operation`]. What only some configurations look for: [`headers`], [`find`],
//! [`trace`], [`a2a`]. For a content that was edited: [`rewrite_head`].

pub mod a2a;
pub mod body;
pub mod coding;
mod fields;
pub mod find;
pub mod head;
pub mod headers;
pub mod hello;
mod json;
pub mod jsonrpc;
pub mod lines;
mod malformed;
pub mod mcp;
pub mod members;
#[cfg(test)]
mod mutate;
mod names;
pub mod operation;
mod protocol;
#[cfg(test)]
mod replay;
mod rewrite;
pub mod sentinel;
pub mod sniff;
pub mod sse;
mod strings;
mod target;
pub mod trace;
mod undecodable;

pub use body::{Advance, Body};
pub use coding::Codings;
pub use fields::{McpHeaders, Media};
pub use head::{Framing, Method, RequestHead, ResponseHead, Span, Version};
pub use head::{parse_request, parse_response};
pub use headers::Headers;
pub use hello::{Hello, Named};
pub use json::DEEPEST;
pub(crate) use json::{Scanner, Stop};
pub use jsonrpc::{IdKind, Kind, Message, Payload, RawId, decode};
pub use lines::{Lines, Piece, Said, said};
pub use malformed::Malformed;
pub use mcp::{Call, Claims, Mismatch, ResultFacts, Revision};
pub use members::{Meta, Params, ResultMembers};
pub use protocol::Protocol;
pub use rewrite::{replace_values, rewrite_head};
pub use sniff::{Sniff, sniff};
pub use sse::{Event, Events, Oversized};
pub(crate) use strings::{unescape, unescape_one};
pub use target::Authority;
pub use undecodable::Undecodable;

/// The bounds on what is held to be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one JSON message in a body.
    pub message: usize,
    /// Bytes of one server-sent event.
    pub event: usize,
    /// Bytes of one HTTP/1 head.
    pub header: usize,
    /// Bytes of an id, a method, or the name of what is used.
    pub name: usize,
    /// Levels of nesting in JSON, at most [`DEEPEST`].
    pub depth: usize,
}

impl Default for Limits {
    /// What servers and clients use: 4 MiB bodies (Python and TypeScript SDK), 16 MiB events (Rust SDK).
    fn default() -> Self {
        Self { message: 4 << 20, event: 16 << 20, header: 64 << 10, name: 16 << 10, depth: 128 }
    }
}
