//! One run: an operator and connections, which do as the product does around gate and ledger, or make a mistake.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::Poll;

use jiff::Timestamp;
use loom::future::block_on;

use super::seen::{End, Seen};
use super::{BYTES, Mistake, Order, Plan, TOOL};
use crate::decide::policy::Policy;
use crate::decide::stop::{Facts, Level, Stop};
use crate::decide::subject::Subject;
use crate::decide::{Rules, decide};
use crate::gate::Gate;
use crate::identity::{Agent, Identity};
use crate::ledger::{Call, Conn, Ledger, Phase, Scene};
use crate::workflow::OfProcess;

/// One run.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) gate: Gate,
    pub(super) ledger: Arc<Ledger>,
    /// Loom does not see this lock: it orders nothing, and tells what really came first.
    seen: std::sync::Mutex<Seen>,
}

impl World {
    pub(super) fn new(plan: Plan) -> World {
        World {
            plan,
            gate: Gate::new(Policy::default(), Vec::new()),
            ledger: Arc::default(),
            seen: std::sync::Mutex::default(),
        }
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operator: as `Orders` do it, one order after the other.
    pub(super) fn operate(&self) {
        let mut cut = Vec::new();
        for order in &self.plan.orders {
            match order {
                Order::Stop(stop) => cut.extend(self.stop(stop)),
                Order::Release => {
                    self.seen().released();
                    self.gate.change_stops(Vec::clear);
                }
            }
        }
        // Nobody waits for connections that were cut at rest; some get to know when the stop is released already.
        cut.iter().for_each(|conn| conn.wake.notify_one());
    }

    /// Answers the connections it has cut at rest.
    fn stop(&self, stop: &Arc<Stop>) -> Vec<Arc<Conn>> {
        let publish = || self.gate.change_stops(|stops| stops.push(Arc::clone(stop)));
        let brought = if self.plan.mistake == Some(Mistake::BroughtBeforePublished) {
            let brought = self.ledger.bring(stop);
            publish();
            brought
        } else {
            publish();
            self.ledger.bring(stop)
        };
        if self.plan.mistake != Some(Mistake::AnswerBeforeAct) {
            block_on(self.ledger.settled());
        }
        self.seen().answered(stop);
        brought.cut
    }

    /// A connection, as `conn::run` serves it.
    pub(super) fn serve(&self, agent: &Arc<Agent>) {
        let scene = Scene::of_connection(server(), None);
        let listed = self.ledger.open(identity(agent), server(), scene.clone());
        let conn = listed.conn();
        let mut left = self.plan.calls;
        block_on(async {
            loop {
                tokio::select! {
                    biased;
                    stop = self.gate.stopped(&self.ledger, conn) => {
                        let (phase, calls) = conn.stop();
                        // What was begun after a cut has run into the stop by itself.
                        let end = if conn.cut_by().is_none() { End::Caught(phase.fate()) } else { End::Refused };
                        calls.iter().for_each(|call| self.seen().ended(id(call), end));
                        self.ledger.acted(conn);
                        if stop.level > Level::Refuse {
                            break;
                        }
                    }
                    () = self.exchanges(conn, &scene, &mut left) => break,
                }
            }
        });
    }

    async fn exchanges(&self, conn: &Conn, scene: &Scene, left: &mut usize) {
        while *left > 0 {
            *left -= 1;
            let call = self.seen().call(&conn.identity.agent.name);
            self.exchange(conn, scene, call).await;
            conn.end();
        }
    }

    /// One call: judged as `judge` does it, sent as `Connection::forward` does it.
    async fn exchange(&self, conn: &Conn, scene: &Scene, call: usize) {
        let listed = vec![to_call(call)];
        let rules = if self.plan.mistake == Some(Mistake::RulesBeforeCall) {
            let rules = Arc::clone(&self.gate.rules());
            conn.begin(scene.clone(), listed);
            rules
        } else {
            self.gate.begin(conn, scene.clone(), listed)
        };
        if conn.cut_by().is_some() || is_refused(&rules, &conn.identity.agent.name, scene) {
            // Its record is on the way to the disk.
            rest().await;
            conn.end();
            self.seen().ended(call, End::Refused);
            return;
        }
        // The server is being dialed.
        rest().await;
        conn.set_phase(if self.plan.mistake == Some(Mistake::SentTooEarly) {
            Phase::Sent
        } else {
            Phase::Sending
        });
        for _ in 1..BYTES {
            self.seen().byte(call);
            // The server's socket is full.
            rest().await;
        }
        self.seen().byte(call);
        conn.set_phase(Phase::Sent);
        // The server answers.
        rest().await;
        conn.set_phase(Phase::Answering);
        self.seen().ended(call, End::Answered);
    }
}

pub(super) fn is_refused(rules: &Rules, agent: &str, scene: &Scene) -> bool {
    let reach = rules.reach(agent, "", &scene.servers);
    let subject = Subject { method: Some("tools/call"), name: Some(TOOL), ..Subject::default() };
    let facts = Facts { tools: [Some(TOOL), None], ..scene.facts(agent) };
    decide(rules, &reach, &facts, &subject).refusal.is_some()
}

pub(super) fn server() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 80))
}

pub(super) fn identity(agent: &Arc<Agent>) -> Identity {
    Identity {
        agent: Arc::clone(agent),
        pid: 0,
        uid: 0,
        exe: None,
        labels: std::sync::Arc::default(),
        pod: None,
        process: None,
        workflow: OfProcess::default(),
    }
}

/// Where a task waits, others run, and it is polled again.
pub(super) async fn rest() {
    let mut rested = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut rested, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pub(super) fn to_call(number: usize) -> Call {
    Call {
        method: "tools/call".into(),
        tool: Some(TOOL.into()),
        of_tool: None,
        is_operation: false,
        of_unknown: false,
        cursor: None,
        round: None,
        rpc_id: Some(number.to_string().into()),
        server: "".into(),
        session: None,
        workflow: None,
        revision: None,
        decision: number.to_string().into(),
        since: Timestamp::UNIX_EPOCH,
        agent_cancelled_at: None,
        held: None,
    }
}

pub(super) fn id(call: &Call) -> usize {
    call.decision.parse().unwrap()
}
