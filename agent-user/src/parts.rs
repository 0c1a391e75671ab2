//! What every connection shares, built once by [`crate::app`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use globset::GlobSet;
use jiff::Timestamp;

use crate::agents::Agents;
use crate::approvals::Approvals;
use crate::baseline::Baseline;
use crate::book::Book;
use crate::catalogue::Catalogue;
use crate::config::Arguments;
use crate::decide::policy::Defaults;
use crate::decide::{Refusal, Verdict};
use crate::decode::Limits;
use crate::forward::own::OwnEndpoint;
use crate::forward::side::Keepalive;
use crate::gate::Gate;
use crate::identity::Agent;
use crate::kernel::Kernel;
use crate::ledger::{Conn, Ledger, Scene};
use crate::limits::Limits as Counts;
use crate::record::entry::{Decision, Entry};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::room::Room;
use crate::rounds::Rounds;
use crate::tasks::Tasks;
use crate::tripwires::Tripwires;
use crate::trust::Trust;
use crate::user::Users;
use crate::workflow::Extractors;

/// The parts of the daemon that connections use.
pub struct Parts {
    pub kernel: Arc<Kernel>,
    pub agents: Arc<Agents>,
    pub gate: Arc<Gate>,
    pub ledger: Arc<Ledger>,
    pub book: Arc<Book>,
    pub tripwires: Tripwires,
    pub log: Arc<Log>,
    pub metrics: Arc<Metrics>,
    pub decisions: Ids,
    pub limits: Limits,
    /// Calls of one stream that may be without an answer (HTTP+SSE, and lines).
    pub unanswered: usize,
    /// How peers that are gone are found.
    pub keepalive: Keepalive,
    /// Bytes of messages that are held.
    pub memory: Arc<Room>,
    pub workflow: Arc<Extractors>,
    pub arguments: Arguments,
    pub evidence_window: Duration,
    /// Where no agent may be taken.
    pub own_endpoint: OwnEndpoint,
    /// Servers that a stop watches instead of cancelling by closing.
    pub watched: GlobSet,
    pub tasks: Tasks,
    /// Counts of rules with `action: limit`.
    pub counts: Arc<Counts>,
    /// Whom bearer tokens speak for.
    pub users: Users,
    /// What servers say of their tools.
    pub catalogue: Catalogue,
    /// What servers show to models, and what of it is trusted.
    pub baseline: Baseline,
    /// The documents that say what is trusted.
    pub trust: Trust,
    /// Calls that a server has asked something about in the middle of.
    pub rounds: Rounds,
    pub approvals: Arc<Approvals>,
}

impl Parts {
    /// What to do for the agent of a connection where no rule can say.
    pub fn defaults_of(&self, conn: &Conn) -> Defaults {
        self.gate.rules().policy.defaults_of(&conn.identity.agent.name)
    }

    /// Records a server's message that was refused without being read, durably. Returns the decision id.
    pub async fn record_guard(&self, conn: &Conn, method: &str, refusal: &Refusal) -> String {
        self.record_unread(conn, method, &conn.scene(), &Verdict::of_unread(refusal)).await
    }

    /// Records what was judged without being read, durably. Returns the decision id.
    pub async fn record_unread(&self, conn: &Conn, method: &str, scene: &Scene, verdict: &Verdict) -> String {
        let decision = self.decisions.next();
        let refusal = verdict.refusal.as_ref();
        if let Some(refusal) = refusal {
            self.metrics.denied(&conn.identity.agent.name, refusal.rule(), refusal.label());
        }
        let entry = Entry::Decision(Decision {
            session: scene.session,
            workflow: scene.workflow.as_deref(),
            protocol: if conn.is_mcp() { "mcp" } else { "http" },
            method,
            verdict: verdict.label(),
            rules: &verdict.fired,
            would_stop: verdict.would_stop(),
            failed: &verdict.failed,
            reason: refusal.map(Refusal::reason),
            stop: refusal.and_then(Refusal::stop_id),
            generation: self.gate.rules().generation,
            ..Decision::new(&decision, conn, &scene.server)
        });
        self.log.record_durably(&entry).await;
        decision
    }
}

/// Counts what has run into a stop.
pub fn count_stop(agent: &Agent, refusal: &Refusal) {
    if let Refusal::Stop(stop) = refusal {
        agent.metrics.stop_refusals_proxy.inc();
        stop.refused.proxy.fetch_add(1, Ordering::Relaxed);
    }
}

/// Ids of decisions and approvals: unique on this host, because no two daemons start in the same millisecond on one state
/// directory; in the same second they do, when one is killed and started again.
#[derive(Debug)]
pub struct Ids {
    kind: &'static str,
    started: i64,
    next: AtomicU64,
}

impl Ids {
    /// Ids that begin with `kind`.
    pub fn new(kind: &'static str) -> Ids {
        Ids { kind, started: Timestamp::now().as_millisecond(), next: AtomicU64::new(1) }
    }

    pub fn next(&self) -> String {
        format!("{}-{:x}-{:x}", self.kind, self.started, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}
