//! An operator's stop: whom it is for and how far it goes. Carrying it out is [`crate::orders`]' job.

use std::fmt;
use std::sync::Arc;

use globset::{Glob, GlobMatcher};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a stop goes; each level includes the one before.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Calls are refused by the daemon, and those in flight are answered.
    #[default]
    Refuse,
    /// The agent's whole network is cut in the kernel.
    Isolate,
}

impl Level {
    /// All levels, as metric label values.
    pub const ALL: [Level; 2] = [Level::Refuse, Level::Isolate];

    pub fn label(self) -> &'static str {
        match self {
            Level::Refuse => "refuse",
            Level::Isolate => "isolate",
        }
    }
}

/// Whom a stop is for.
#[derive(Clone, Debug)]
pub struct Selector {
    pattern: String,
    matcher: GlobMatcher,
}

impl Selector {
    /// Agents whose name matches a glob. Errors name the glob.
    pub fn agent(pattern: &str) -> Result<Selector, String> {
        let glob = Glob::new(pattern).map_err(|error| format!("agent={pattern}: {}", error.kind()))?;
        Ok(Selector { pattern: pattern.to_owned(), matcher: glob.compile_matcher() })
    }

    pub fn matches(&self, agent: &str) -> bool {
        self.matcher.is_match(agent)
    }

    /// The glob as the operator wrote it.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent={}", self.pattern)
    }
}

/// Who gave an order, as the kernel says: peer credentials of the control socket, never a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    pub uid: u32,
    pub pid: i32,
    /// Login name of `uid` on this host; the number where it has none.
    pub user: String,
}

/// A stop in force.
#[derive(Clone, Debug)]
pub struct Stop {
    /// `stp-` and a number that is never used again on this host.
    pub id: Arc<str>,
    pub selector: Selector,
    pub level: Level,
    pub reason: Arc<str>,
    pub by: Operator,
    /// When the order reached the daemon.
    pub issued_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_globs_match_whole_names() {
        let selector = Selector::agent("payments/*").unwrap();
        assert!(selector.matches("payments/bot-1"));
        assert!(!selector.matches("payments"));
        assert!(!selector.matches("x-payments/bot-1"));
    }

    #[test]
    fn bad_glob_is_named() {
        assert!(Selector::agent("a[").unwrap_err().contains("agent=a["));
    }
}
