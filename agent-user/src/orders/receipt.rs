//! What an operator is told of a stop: from a receipt a third person can tell exactly what happened.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::book::Caught;
use crate::decide::stop::{Escalation, Level, Operator, Stop, Terms};
use crate::fate::Fate;

/// A stop as the operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct StopView {
    pub id: Arc<str>,
    /// Whom it is for, as the operator wrote it.
    pub scope: Terms,
    pub level: Level,
    pub reason: Arc<str>,
    pub by: Operator,
    pub issued_at: Timestamp,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub escalations: Vec<Escalation>,
}

impl From<&Stop> for StopView {
    fn from(stop: &Stop) -> StopView {
        StopView {
            id: Arc::clone(&stop.id),
            scope: stop.selector.terms().clone(),
            level: stop.level,
            reason: Arc::clone(&stop.reason),
            by: stop.by.clone(),
            issued_at: stop.issued_at,
            escalations: stop.escalations.clone(),
        }
    }
}

/// What carrying out an order came to, be it the one that made the stop or one that raised it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// How far it was ordered to go.
    pub to_level: Level,
    /// No new call in scope can reach a server.
    pub in_force: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force_at: Option<Timestamp>,
    /// The stop will survive a restart of the daemon.
    pub durable: bool,
    /// It was carried out by the command line, because no daemon answered. Which calls were in flight is not known then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub offline: bool,
    /// What an operator should know of it, and is no problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// What fell short, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    pub agents: Vec<Effect>,
}

impl Report {
    /// What came of an order that the command line had carried out before the daemon did.
    pub(super) fn after(self, offline: Report) -> Report {
        let mut agents = offline.agents;
        for effect in self.agents {
            match agents.iter_mut().find(|known| known.agent == effect.agent) {
                Some(known) => known.add(effect),
                None => agents.push(effect),
            }
        }
        let in_force_at = offline.in_force_at.filter(|_| offline.in_force).or(self.in_force_at);
        Report { offline: offline.offline, note: offline.note, in_force_at, agents, ..self }
    }

    /// How many tasks may still run of which nothing is known.
    pub fn tasks_unknown(&self) -> usize {
        let all: u64 = self.agents.iter().map(|effect| effect.tasks_unknown).sum();
        usize::try_from(all).unwrap_or(usize::MAX)
    }
}

/// What a stop did to one agent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Effect {
    pub agent: Arc<str>,
    /// Open connections in scope, idle ones included.
    pub connections: usize,
    /// Tasks that servers began for it and that are not followed, in scope or not: too many, or with an id too long. What
    /// became of them is not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub tasks_unknown: u64,
    /// How many processes were in its cgroups when the order came.
    pub processes: usize,
    /// The first [`LISTED`] of them, from level `isolate` on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub process_list: Vec<ProcessEffect>,
    /// Its network is cut in the kernel.
    pub isolated: bool,
    /// Sockets the kernel destroyed, beyond the connections above.
    pub sockets_destroyed: u32,
    /// Bytes left in the queues of the TCP sockets among them: read by nobody, and not known to have arrived.
    pub bytes_unread: u64,
    pub bytes_unsent: u64,
    /// The state of its cgroups afterwards, from level `freeze` on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<CgroupEffect>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Effect {
    /// Adds what was done in a second pass. What the first one found is not there any more.
    fn add(&mut self, second: Effect) {
        self.connections += second.connections;
        self.sockets_destroyed += second.sockets_destroyed;
        self.bytes_unread += second.bytes_unread;
        self.bytes_unsent += second.bytes_unsent;
        self.isolated |= second.isolated;
        if !second.cgroups.is_empty() {
            self.cgroups = second.cgroups;
        }
        self.error = second.error;
    }
}

/// Longest list of processes in a receipt; the counts are exact.
pub const LISTED: usize = 256;

/// One process of a stopped agent, as it was when the order came, and what was done to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProcessEffect {
    pub pid: u32,
    /// The name it gives itself.
    pub comm: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<PathBuf>,
    pub uid: u32,
    pub started: Timestamp,
    pub done: Done,
    /// Its share of the sockets destroyed; one that several processes hold is in the share of each.
    pub sockets_destroyed: u32,
    pub bytes_unread: u64,
    pub bytes_unsent: u64,
}

/// What was done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    /// It runs, without a network.
    Isolated,
    Frozen,
    Killed,
    /// The kernel did not say in time that it was done.
    Unconfirmed,
}

/// `cgroup.events` of a stopped agent's cgroup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CgroupEffect {
    /// Below the cgroup v2 root.
    pub path: String,
    pub populated: bool,
    pub frozen: bool,
}

/// What has run into a stop since it is in force, or since the daemon began.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Refusals {
    /// Messages and connections that the daemon refused.
    pub proxy: u64,
    /// Connects and datagrams that the kernel refused.
    pub kernel: u64,
}

impl From<&Stop> for Refusals {
    fn from(stop: &Stop) -> Refusals {
        Refusals {
            proxy: stop.refused.proxy.load(Ordering::Relaxed),
            kernel: stop.refused.kernel.load(Ordering::Relaxed),
        }
    }
}

/// A release that the first of two persons has asked for.
#[derive(Clone, Debug, Serialize)]
pub struct AskedView {
    pub by: Operator,
    pub reason: String,
    pub at: Timestamp,
}

/// How a stop ended.
#[derive(Clone, Debug, Serialize)]
pub struct ReleaseView {
    pub by: Operator,
    pub reason: String,
    pub at: Timestamp,
    /// Who asked for it first, where the configuration asks for two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<Operator>,
}

/// All that is known of a stop.
#[derive(Clone, Debug, Serialize)]
pub struct Receipt {
    pub stop: StopView,
    /// Of the last order; `None` for a stop that is older than this daemon, whose records tell.
    #[serde(flatten)]
    pub report: Option<Report>,
    /// Of the orders before it, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Report>,
    /// Every call that was in flight, with its fate.
    pub calls: Vec<Caught>,
    /// Fates that are not known.
    pub open: usize,
    pub refused: Refusals,
    /// It holds until a second person asks too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_asked: Option<AskedView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<ReleaseView>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How many fates are not known, and may become so or not.
pub fn open_fates(calls: &[Caught]) -> usize {
    calls.iter().filter(|caught| caught.open || caught.fate == Fate::Sent).count()
}
