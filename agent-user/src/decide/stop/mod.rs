//! Stops: whom they are for, how far they go, who ordered them. Carrying them out is [`crate::orders`]' job.

mod selector;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use selector::{Facts, Labels, Selector, Terms, Whom};

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
    /// The agent's cgroups are frozen: its processes run no more, and lose nothing.
    Freeze,
    /// Every process in the agent's cgroups is killed, and every one that comes later.
    Kill,
}

impl Level {
    /// All levels, as metric label values.
    pub const ALL: [Level; 4] = [Level::Refuse, Level::Isolate, Level::Freeze, Level::Kill];

    pub fn label(self) -> &'static str {
        match self {
            Level::Refuse => "refuse",
            Level::Isolate => "isolate",
            Level::Freeze => "freeze",
            Level::Kill => "kill",
        }
    }
}

/// What a stop's id begins with when the command line gave it.
pub const OFFLINE: &str = "stp-off-";

/// Who gave an order, as the kernel or a client certificate says, never a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// Peer credentials of the control socket; `None` for whoever is not a local process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Login name of `uid` on this host (the number where it has none), the subject of a client certificate, or
    /// `rule:ID` for a stop that a rule has made.
    pub user: String,
    /// Who logged in before any `sudo` (`/proc/PID/loginuid`), where the host keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// What a remote operator has shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

/// How the author of a rule's stop begins.
const RULE: &str = "rule:";

impl Operator {
    /// The author of a stop that a rule has made.
    pub fn rule(id: &str) -> Operator {
        Operator { user: format!("{RULE}{id}"), ..Operator::default() }
    }

    /// The name to show to others: who has logged in says more than a uid that many share.
    pub fn name(&self) -> &str {
        self.login.as_deref().unwrap_or(&self.user)
    }

    /// No person, but a rule. A person comes with credentials, whatever the name.
    pub fn is_rule(&self) -> bool {
        self.uid.is_none() && self.certificate.is_none() && self.user.starts_with(RULE)
    }
}

/// Which client certificate an order came with, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// SHA-256 of the certificate, as `sha256:` and hex digits.
    pub sha256: String,
    /// The number its CA gave it, in hex.
    pub serial: String,
    /// Address and port of the peer.
    pub from: String,
}

/// A stop in force.
#[derive(Clone, Debug)]
pub struct Stop {
    /// `stp-` and a number that is never used again on this host; `stp-off-`, when and by which process for a stop that
    /// the command line carried out with no daemon to ask; `stp-held-` and when for one that nobody ordered.
    pub id: Arc<str>,
    pub selector: Selector,
    pub level: Level,
    pub reason: Arc<str>,
    pub by: Operator,
    /// When the order reached the daemon.
    pub issued_at: Timestamp,
    /// What was ordered since, oldest first.
    pub escalations: Vec<Escalation>,
    /// What has run into it since this daemon began, or since the stop did.
    pub refused: Arc<Refused>,
}

impl Stop {
    /// A stop that is not in force, to see what one like it would meet.
    pub fn drill(selector: Selector, level: Level) -> Stop {
        Stop {
            id: "drill".into(),
            selector,
            level,
            reason: "".into(),
            by: Operator::default(),
            issued_at: Timestamp::UNIX_EPOCH,
            escalations: Vec::new(),
            refused: Arc::default(),
        }
    }
}

/// How much has run into a stop.
#[derive(Debug, Default)]
pub struct Refused {
    /// Messages and connections, by the daemon.
    pub proxy: AtomicU64,
    /// Connects and datagrams, by the kernel.
    pub kernel: AtomicU64,
}

/// A stop made to go further, in place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Escalation {
    pub from: Level,
    pub to: Level,
    pub reason: String,
    pub by: Operator,
    pub at: Timestamp,
}
