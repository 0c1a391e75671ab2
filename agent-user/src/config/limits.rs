//! `limits:`, the bounds of what is held in memory. What an operator may want to set is here; the README has what one
//! connection and the daemon hold at most.

use anyhow::{Result, bail};
use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::decode::{self, DEEPEST};

/// Connections where nothing is said, if there are descriptors for them.
const CONNECTIONS: usize = 20_000;
/// Descriptors for what is no agent's connection: pins, listeners, orders, records, and the connections on which stops
/// tell servers. Of few descriptors a quarter.
const OTHER_FILES: usize = 1_000;
/// Descriptors of one connection: one for each side.
const FILES_EACH: usize = 2;

/// The bounds of what is held in memory. Sizes are written as `64KiB` or `4MiB`, or as a number of bytes.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// One JSON message, request or answer, in bytes; without its codings, if it has any, and with them. Above it
    /// `defaults.oversized` of the rules applies (reason `oversized`). Its chunks may have eight times as much.
    #[schemars(with = "String")]
    pub message: ByteSize,
    /// One server-sent event, in bytes, without codings. Above it `defaults.oversized` applies (reason `oversized`).
    #[schemars(with = "String")]
    pub event: ByteSize,
    /// The head of one HTTP message, in bytes. A longer one is refused (reason `head_too_long`).
    #[schemars(with = "String")]
    pub header: ByteSize,
    /// The id, the method, or the name of a tool, prompt, resource or task in one JSON-RPC message, in bytes. With a longer
    /// one `defaults.undecodable` applies (reason `name_too_long`).
    #[schemars(with = "String")]
    pub name: ByteSize,
    /// Levels of nesting in one JSON message, up to 512. Deeper, `defaults.undecodable` applies (reason `too_deep`).
    pub depth: usize,
    /// Calls of one session over HTTP+SSE, or in lines on one connection, that may wait for their answers. Further ones are refused (reason `unanswered`).
    pub unanswered: usize,
    /// Messages and events of all agents that are held, in bytes, beyond 32 KiB for each side of a connection. What does not
    /// fit is refused (reason `memory_full`).
    #[schemars(with = "String")]
    pub memory: ByteSize,
    /// The same of one agent (reason `agent_memory_full`).
    #[schemars(with = "String")]
    pub memory_per_agent: ByteSize,
    /// Open connections of all agents. Further ones are closed at once (reason `connections_full`); those that are open go on.
    /// Absent: 20,000, or as many as there are descriptors for, two for each.
    pub connections: Option<usize>,
    /// The same of one agent (reason `agent_connections_full`). Absent: half of all.
    pub connections_per_agent: Option<usize>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message: ByteSize::mib(4),
            event: ByteSize::mib(16),
            header: ByteSize::kib(64),
            name: ByteSize::kib(16),
            depth: 128,
            unanswered: 1000,
            memory: ByteSize::mib(512),
            memory_per_agent: ByteSize::mib(256),
            connections: None,
            connections_per_agent: None,
        }
    }
}

impl Limits {
    /// Refuses values with which nothing could pass.
    pub(super) fn check(&self) -> Result<()> {
        for (name, size, least) in [
            ("message", self.message, ByteSize::kib(1)),
            ("event", self.event, ByteSize::kib(1)),
            ("header", self.header, ByteSize::kib(1)),
            ("name", self.name, ByteSize::b(64)),
        ] {
            if size < least {
                bail!("limits: {name} {size} is too little for any client; give it {least} or more");
            }
        }
        if self.depth == 0 || self.depth > DEEPEST {
            bail!("limits: depth {} must be between 1 and {DEEPEST}", self.depth);
        }
        if self.unanswered == 0 {
            bail!("limits: unanswered 0 lets no call through; give it 1 or more");
        }
        if self.memory_per_agent > self.memory {
            let (memory, per_agent) = (self.memory, self.memory_per_agent);
            bail!(
                "limits: memory_per_agent {per_agent} is more than memory {memory}, which all agents share"
            );
        }
        for (name, size) in [("message", self.message), ("event", self.event)] {
            // Read, and what is made of it.
            let least = size.as_u64().saturating_mul(4);
            if self.memory_per_agent.as_u64() < least {
                bail!(
                    "limits: memory_per_agent {} cannot hold one {name} of {size}; give it {} or more, or {name} less",
                    self.memory_per_agent,
                    ByteSize::b(least)
                );
            }
        }
        if self.connections == Some(0) || self.connections_per_agent == Some(0) {
            bail!("limits: 0 connections let no agent through; give it 1 or more, or use a stop");
        }
        if let (Some(all), Some(one)) = (self.connections, self.connections_per_agent)
            && one > all
        {
            bail!(
                "limits: connections_per_agent {one} is more than connections {all}, which all agents share"
            );
        }
        Ok(())
    }

    /// What decoders need to know.
    pub fn decode(&self) -> decode::Limits {
        decode::Limits {
            message: bytes(self.message),
            event: bytes(self.event),
            header: bytes(self.header),
            name: bytes(self.name),
            depth: self.depth,
        }
    }

    /// Bytes of messages, of all agents and of each.
    pub fn memory(&self) -> (usize, usize) {
        (bytes(self.memory), bytes(self.memory_per_agent))
    }

    /// Connections of all agents and of each, in a process that may have so many open files.
    pub fn connections(&self, files: usize) -> (usize, usize) {
        let fit = ((files - OTHER_FILES.min(files / 4)) / FILES_EACH).max(1);
        let all = self.connections.unwrap_or(CONNECTIONS).min(fit);
        (all, self.connections_per_agent.unwrap_or(all.div_ceil(2)).min(all))
    }
}

fn bytes(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let limits: Limits = serde_saphyr::from_str(text).unwrap();
        let error = limits.check().unwrap_err().to_string();
        assert!(error.starts_with("limits: ") && error.contains(expect), "{error}");
    }

    #[test]
    fn defaults_hold_together() {
        let limits = Limits::default();
        limits.check().unwrap();
        assert_eq!(limits.decode(), decode::Limits::default());
    }

    #[test]
    fn values_with_which_nothing_could_pass_are_refused() {
        check("{message: 0}", "message 0 B is too little");
        check("{event: 12}", "event 12 B");
        check("{header: 100}", "1.0 KiB or more");
        check("{name: 1}", "64 B or more");
        check("{depth: 0}", "between 1 and 512");
        check("{depth: 513}", "between 1 and 512");
        check("{unanswered: 0}", "unanswered 0");
        check("{connections: 0}", "0 connections");
        check("{connections_per_agent: 0}", "0 connections");
        check("{connections: 10, connections_per_agent: 11}", "11 is more than connections 10");
        check("{memory: 100MiB, memory_per_agent: 200MiB}", "more than memory 100.0 MiB");
        check(
            "{memory_per_agent: 20MiB, event: 1MiB, message: 6MiB}",
            "one message of 6.0 MiB; give it 24.0 MiB",
        );
        check("{memory_per_agent: 32MiB}", "one event of 16.0 MiB");
    }

    #[test]
    fn there_are_no_more_connections_than_descriptors() {
        let limits = Limits::default();
        assert_eq!(limits.connections(1 << 20), (20_000, 10_000));
        assert_eq!(limits.connections(20_000), (9_500, 4_750));
        assert_eq!(limits.connections(1024), (384, 192));
        assert_eq!(limits.connections(0), (1, 1));
        let limits = Limits { connections: Some(30_000), connections_per_agent: Some(30_000), ..limits };
        assert_eq!(limits.connections(20_000), (9_500, 9_500));
    }
}
