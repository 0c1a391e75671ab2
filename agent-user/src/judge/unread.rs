//! What carries no message that could be judged: a stream, a download, a tunnel, or bytes that nobody can read. Stops apply
//! to it, rules that look at nothing in a message, and what was found wrong with it.

use std::time::Instant;

use super::{Asking, Judged, Target, subject};
use crate::decide::policy::Bias;
use crate::decide::scope::Scope;
use crate::decide::subject::Subject;
use crate::decide::{Guard, Refusal, Rules};
use crate::ledger::{Conn, Scene};
use crate::parts::{Parts, count_stop};

/// Judges a request without JSON-RPC that could be judged.
pub async fn judge_unread(
    parts: &Parts,
    conn: &Conn,
    target: &mut Target,
    asking: &Asking<'_>,
    guard: Option<Guard>,
) -> Judged {
    let (host, guard) = match asking.carrier.authority() {
        Ok(host) => (host, guard),
        // Where the names of the server contradict each other the address remains.
        Err(contradiction) => (&b""[..], guard.or(Some(contradiction))),
    };
    target.update(&parts.gate.rules(), conn, host);
    let workflow = parts.workflow.of_message(asking.carrier.headers(), None, &conn.identity.workflow);
    let scene = target.scene(conn, &asking.carrier, (conn.is_mcp(), false), workflow);
    let rules = parts.gate.begin(conn, scene.clone(), Vec::new());
    target.update(&rules, conn, host);
    let unread = Unread { parts, conn, rules: &rules, scope: &target.reach.scope, scene: &scene };
    match unread.judge(guard, asking.carrier.label()).await {
        Some((refusal, decision)) => Judged::RefusedUnread { refusal, decision },
        None => Judged::Allowed { has_calls: false, batch: false, replaced: None },
    }
}

/// Judges a connection that is not HTTP. Its scene is on the ledger already.
/// The refusal, if there is one, and the id of its decision.
pub async fn judge_opaque(parts: &Parts, conn: &Conn, label: &str) -> Option<(Refusal, String)> {
    let rules = parts.gate.rules().clone();
    let scene = conn.scene();
    let reach =
        conn.identity.agent.as_whom(|agent| rules.reach(agent, conn.identity.namespace(), &scene.servers));
    let guard = (reach.defaults.opaque == Bias::Deny).then_some(Guard::Opaque);
    let unread = Unread { parts, conn, rules: &rules, scope: &reach.scope, scene: &scene };
    unread.judge(guard, label).await
}

/// Whether a connection would be refused whatever it says. Nothing is recorded: it has said nothing yet.
pub fn is_refused(parts: &Parts, conn: &Conn, scene: &Scene) -> bool {
    let rules = parts.gate.rules();
    let scope = rules.policy.scope(&conn.identity.agent.name, conn.identity.namespace(), &scene.servers);
    let unread = Unread { parts, conn, rules: &rules, scope: &scope, scene };
    unread.stop().is_some() || rules.policy.judge_unread(&scope, &subject(conn, scene)).refusal.is_some()
}

/// Refuses bytes of an agent that are no request, and returns the id of the decision.
pub async fn refuse_bytes(parts: &Parts, conn: &Conn, guard: Guard, label: &str) -> (Refusal, String) {
    let rules = parts.gate.rules().clone();
    let scene = conn.scene();
    let scope = rules.policy.scope(&conn.identity.agent.name, conn.identity.namespace(), &scene.servers);
    let unread = Unread { parts, conn, rules: &rules, scope: &scope, scene: &scene };
    let refusal = Refusal::Guard(guard.clone());
    unread.judge(Some(guard), label).await.unwrap_or((refusal, String::new()))
}

struct Unread<'a> {
    parts: &'a Parts,
    conn: &'a Conn,
    rules: &'a Rules,
    scope: &'a Scope,
    scene: &'a Scene,
}

impl Unread<'_> {
    fn stop(&self) -> Option<Refusal> {
        let stop = || {
            self.conn.identity.agent.as_whom(|agent| self.rules.stop_for(&self.scene.facts(agent)).cloned())
        };
        self.conn.cut_by().or_else(stop).map(Refusal::Stop)
    }

    /// The refusal, if there is one, and the id of its decision; whatever rule has fired is on record.
    async fn judge(&self, guard: Option<Guard>, label: &str) -> Option<(Refusal, String)> {
        let agent = &self.conn.identity.agent;
        let now = Instant::now();
        let deeds = self.rules.policy.reads.recent.then_some(&agent.deeds);
        let recent = deeds.map(|deeds| deeds.recent(now)).unwrap_or_default();
        let subject = Subject { recent, ..subject(self.conn, self.scene) };
        let mut verdict = self.rules.policy.judge_unread(self.scope, &subject);
        for failed in &verdict.failed {
            self.parts.metrics.condition_failed(&failed.rule);
        }
        if let Some(guard) = guard {
            verdict.refuse(guard);
        }
        if let Some(stop) = self.stop() {
            verdict.fired.push(stop.rule().into());
            verdict.refusal = Some(stop);
        }
        self.parts.tripwires.count(&agent.name, &mut verdict, now);
        if verdict.fired.is_empty() {
            return None;
        }
        if let Some(refusal) = &verdict.refusal {
            count_stop(agent, refusal);
            if let Some(deeds) = deeds.filter(|_| refusal.is_denial()) {
                deeds.note_denial(now);
            }
        }
        let decision = self.parts.record_unread(self.conn, label, self.scene, &verdict).await;
        self.parts.tripwires.order(&agent.name, &verdict);
        verdict.refusal.map(|refusal| (refusal, decision))
    }
}
