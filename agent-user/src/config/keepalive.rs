//! `keepalive:`, how a peer that is gone without a word is found.

use std::time::Duration;

use anyhow::{Result, bail};
use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::forward::side;

/// How a peer that is gone without a word is found, on both sides of a connection: by probes of TCP, which a peer's kernel
/// answers however long the peer is quiet. Nothing else ends a connection on which nothing is said.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Keepalive {
    /// Nothing has come for so long: a probe is sent. From 1 s to 9 h.
    #[schemars(with = "String")]
    pub idle: SignedDuration,
    /// The next one, without an answer. From 1 s to 9 h.
    #[schemars(with = "String")]
    pub every: SignedDuration,
    /// So many without an answer: the peer is gone, and the other side is closed. Up to 127.
    pub probes: u32,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive { idle: SignedDuration::from_secs(60), every: SignedDuration::from_secs(15), probes: 4 }
    }
}

impl Keepalive {
    /// Refuses what the kernel would not take.
    pub(super) fn check(&self) -> Result<()> {
        for (name, time) in [("idle", self.idle), ("every", self.every)] {
            if time < SignedDuration::from_secs(1)
                || time > SignedDuration::from_secs(32_767)
                || time.subsec_nanos() != 0
            {
                bail!("keepalive: {name} {time:#} must be whole seconds from 1s to 32767s");
            }
        }
        if !(1..=127).contains(&self.probes) {
            bail!("keepalive: probes {} must be between 1 and 127", self.probes);
        }
        Ok(())
    }

    /// What sockets need to know.
    pub fn of_sockets(&self) -> side::Keepalive {
        let time = |time: SignedDuration| Duration::try_from(time).unwrap_or_default();
        side::Keepalive { idle: time(self.idle), every: time(self.every), probes: self.probes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_would_not_take_is_refused() {
        let check = |text: &str| {
            serde_saphyr::from_str::<Keepalive>(text).unwrap().check().map_err(|error| error.to_string())
        };
        assert_eq!(check("{idle: 1s, every: 32767s, probes: 127}"), Ok(()));
        for (text, expect) in [
            ("{idle: 0s}", "keepalive: idle 0s must be"),
            ("{idle: 1500ms}", "whole seconds"),
            ("{every: 10h}", "keepalive: every 10h must be"),
            ("{probes: 0}", "probes 0 must be between 1 and 127"),
            ("{probes: 128}", "probes 128"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
        let given = Keepalive::default();
        given.check().unwrap();
        assert_eq!(given.of_sockets(), side::Keepalive::default());
    }
}
