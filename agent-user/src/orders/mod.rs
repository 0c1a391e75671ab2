//! Carrying out an operator's orders: stop, escalate and release, exactly and answered.
//!
//! A stop is in force once it is published to every connection, written to the kernel, and every connection it
//! concerns has acted on it. From then on no new call in its scope reaches a server.

mod adopt;
mod by_rule;
mod drill;
pub(crate) mod enforce;
pub mod receipt;
mod release;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::agents::CarryingOut;
use crate::decide::stop::{Escalation, Level, Operator, Selector, Stop};
use crate::forward::task_cancel;
use crate::ledger::Conn;
use crate::parts::Parts;
use crate::record::entry::{Entry, StopEntry};
use crate::spool::{Left, Spool};
use crate::state::State;

use self::receipt::{AskedView, Effect, Receipt, Refusals, Report, StopView, open_fates};

/// Longest time a connection may take to act on a stop before the answer says that it has not.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);

/// Time for the answer to the operator, before what can wait goes on.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_millis(50);

/// Takes orders one at a time.
#[derive(Debug)]
pub struct Orders {
    parts: Arc<Parts>,
    state: Arc<State>,
    spool: Spool,
    /// A release needs a second person.
    require_two: bool,
    turn: Mutex<Turn>,
    /// By stop: the first of two persons who asked for its release.
    asked: std::sync::Mutex<HashMap<Arc<str>, AskedView>>,
}

/// What the one who carries out an order knows of those before.
#[derive(Debug, Default)]
struct Turn {
    /// Stops that were ordered here under a ticket, oldest first.
    tickets: VecDeque<(String, Arc<str>)>,
    /// Orders that were taken up from the spool, and wait there for the state to be saved.
    unsaved: Vec<Left>,
}

/// Tickets that are remembered: long enough for an order that its operator had carried out without us meanwhile.
const TICKETS: usize = 1024;

/// An order to stop.
#[derive(Debug)]
pub struct Order {
    /// The id of the stop; `None` gives it a new one.
    pub id: Option<Arc<str>>,
    pub selector: Selector,
    pub level: Level,
    pub reason: String,
    pub by: Operator,
}

/// A stop in force, with what it has caught.
#[derive(Clone, Debug, Serialize)]
pub struct InForce {
    pub stop: StopView,
    /// Agents known now that it is for.
    pub agents: Vec<Arc<str>>,
    /// Calls it caught; `None` for a stop that is older than this daemon, whose calls are in the records.
    pub calls: Option<usize>,
    /// Of these, how many have a fate that is not known.
    pub open: usize,
    pub refused: Refusals,
    /// Who asked for its release; a second person must too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_asked: Option<AskedView>,
}

impl Orders {
    pub fn new(parts: Arc<Parts>, state: Arc<State>, spool: Spool, require_two: bool) -> Orders {
        Orders {
            parts,
            state,
            spool,
            require_two,
            turn: Mutex::default(),
            asked: std::sync::Mutex::default(),
        }
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<Arc<str>, AskedView>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops what an order selects. `wait` bounds how long fates that are not known yet are waited for.
    pub async fn stop(&self, order: Order, wait: Duration) -> Result<Receipt> {
        self.stop_once(None, order, wait).await
    }

    /// As [`Orders::stop`]. A ticket is the id under which the operator will carry the same order out without us, if
    /// we do not answer: of the two only one becomes a stop.
    pub async fn stop_once(&self, ticket: Option<String>, order: Order, wait: Duration) -> Result<Receipt> {
        let (issued, issued_at) = (Instant::now(), Timestamp::now());
        order.selector.permits(order.level).map_err(anyhow::Error::msg)?;
        let mut turn = self.take_turn().await;
        if let Some(ticket) = &ticket
            && self.parts.gate.rules().stops.iter().any(|stop| *stop.id == **ticket)
        {
            drop(turn);
            return self.receipt(ticket).context("the stop was released meanwhile");
        }
        let stop = Arc::new(Stop {
            id: order.id.unwrap_or_else(|| self.state.next_stop_id().into()),
            selector: order.selector,
            level: order.level,
            reason: order.reason.into(),
            by: order.by,
            issued_at,
            escalations: Vec::new(),
            refused: Arc::default(),
        });
        if let Some(ticket) = ticket {
            turn.tickets.push_back((ticket, Arc::clone(&stop.id)));
            let old = turn.tickets.len().saturating_sub(TICKETS);
            turn.tickets.drain(..old);
        }
        let _begun = self.begin(&stop);
        self.publish(|stops| stops.push(Arc::clone(&stop)));
        self.carry_out(&stop, issued, None).await;
        drop(turn);
        self.parts.metrics.stops.with_label_values(&[stop.level.label()]).inc();
        self.answer(&stop, wait).await
    }

    /// Makes a stop in force go further, in place.
    pub async fn escalate(
        &self,
        id: &str,
        level: Level,
        reason: &str,
        by: Operator,
        wait: Duration,
    ) -> Result<Receipt> {
        let (issued, at) = (Instant::now(), Timestamp::now());
        anyhow::ensure!(!reason.trim().is_empty(), "give a reason; the record of the stop will show it");
        let turn = self.take_turn().await;
        let stop = self.find(id)?;
        anyhow::ensure!(
            level > stop.level,
            "stop {id} is at level {} already; release it to go back",
            stop.level.label()
        );
        stop.selector.permits(level).map_err(anyhow::Error::msg)?;
        let mut further = Stop::clone(&stop);
        let escalation = Escalation { from: stop.level, to: level, reason: reason.to_owned(), by, at };
        further.level = level;
        further.escalations.push(escalation);
        let stop = Arc::new(further);
        // Whoever asked for its release asked for that of a lesser stop.
        self.asked().remove(&stop.id);
        let _begun = self.begin(&stop);
        self.publish(|stops| {
            stops.iter_mut().filter(|other| other.id == stop.id).for_each(|other| *other = Arc::clone(&stop));
        });
        self.carry_out(&stop, issued, None).await;
        drop(turn);
        self.answer(&stop, wait).await
    }

    /// Call it before a stop is published, and keep what it gives until that is carried out.
    fn begin(&self, stop: &Stop) -> CarryingOut<'_> {
        self.parts.book.open(&stop.id);
        self.parts.agents.carry_out()
    }

    /// Sees to it that a stop that was published is carried out; `offline` is what the command line has done about it
    /// before. Says whether it is saved.
    async fn carry_out(&self, stop: &Arc<Stop>, issued: Instant, offline: Option<Report>) -> bool {
        let mut problems = Vec::new();
        if let Err(error) = self.parts.agents.apply_to_everybody() {
            problems.push(format!("agents that come later are not held in the kernel: {error:#}"));
        }
        let agents = self.parts.agents.matching(&stop.selector);
        let mut effects: Vec<Effect> =
            agents.iter().map(|agent| enforce::begin(&self.parts.agents, agent, stop)).collect();
        let brought = self.parts.ledger.bring(stop);
        for conn in brought.conns().filter(|conn| !conn.is_part()) {
            if let Some(effect) = effects.iter_mut().find(|effect| effect.agent == conn.identity.agent.name) {
                effect.connections += 1;
            }
        }
        let settled = timeout(SETTLE_WITHIN, self.parts.ledger.settled()).await;
        if settled.is_err() {
            let left = self.parts.ledger.unsettled();
            problems.push(format!(
                "{left} connections have not acted on the stop within {} s",
                SETTLE_WITHIN.as_secs()
            ));
        }
        // Every answer that was let through by now has told of the task it began.
        task_cancel::cancel_all(&self.parts, stop);
        for (effect, agent) in effects.iter_mut().zip(&agents) {
            effect.tasks_unknown = self.parts.tasks.unfollowed(agent.number);
        }
        if stop.level >= Level::Isolate {
            enforce::enforce(&self.parts.agents, &agents, &mut effects, stop.level).await;
        }
        problems.extend(
            effects
                .iter()
                .filter_map(|effect| effect.error.as_ref().map(|error| format!("{}: {error}", effect.agent))),
        );
        let in_force = problems.is_empty();
        let in_force_at = Timestamp::now();
        self.parts.metrics.stop_in_force.observe(issued.elapsed().as_secs_f64());
        self.count_active();

        let saved = self.state.save_stops(&self.parts.gate.rules().stops);
        if let Err(error) = &saved {
            problems.push(format!(
                "the stop holds but is not saved; that is tried again every second: {error:#}"
            ));
        }
        let durable = saved.is_ok();
        let report = Report {
            to_level: stop.level,
            in_force,
            in_force_at: in_force.then_some(in_force_at),
            durable,
            problems,
            agents: effects,
            ..Report::default()
        };
        let report = match offline {
            Some(offline) => report.after(offline),
            None => report,
        };
        let view = StopView::from(&**stop);
        let entry = Entry::Stop(StopEntry { stop: &stop.id, view: &view, report: &report });
        self.parts.log.record_durably(&entry).await;
        info!(stop = &*stop.id, scope = %stop.selector, level = stop.level.label(), in_force, "stopped");
        self.parts.book.report(stop, report);
        tokio::spawn(end_all(brought.cut));
        durable
    }

    /// What an operator is told of an order just carried out. Fates that are not known by then are open.
    async fn answer(&self, stop: &Stop, wait: Duration) -> Result<Receipt> {
        // Elapsing is an answer too.
        let _ = timeout(wait, self.parts.book.settled(&stop.id)).await;
        self.receipt(&stop.id).context("the stop was released meanwhile, and forgotten")
    }

    /// All that is known of a stop, in force or released not long ago.
    pub fn receipt(&self, id: &str) -> Option<Receipt> {
        let page = self.parts.book.page(id);
        let rules = self.parts.gate.rules();
        let stop = rules.stops.iter().find(|stop| &*stop.id == id).cloned();
        let stop = stop.or_else(|| page.as_ref().and_then(|page| page.stop.clone()))?;
        let mut page = page.unwrap_or_default();
        let report = page.reports.pop();
        Some(Receipt {
            stop: StopView::from(&*stop),
            open: open_fates(&page.calls) + report.as_ref().map_or(0, Report::tasks_unknown),
            report,
            earlier: page.reports,
            calls: page.calls,
            refused: Refusals::from(&*stop),
            release_asked: self.asked().get(id).cloned(),
            released: page.released,
        })
    }

    /// How many agents known now a stop in force is for.
    pub fn agents_of(&self, id: &str) -> usize {
        self.find(id).map_or(0, |stop| self.parts.agents.matching(&stop.selector).len())
    }

    /// Changes the set of stops in force.
    fn publish(&self, change: impl FnOnce(&mut Vec<Arc<Stop>>)) {
        let generation = self.parts.gate.change_stops(change);
        self.parts.metrics.policy_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
    }

    /// The stop of this id among those in force.
    fn find(&self, id: &str) -> Result<Arc<Stop>> {
        let rules = self.parts.gate.rules();
        let stop = rules.stops.iter().find(|stop| &*stop.id == id).cloned();
        stop.with_context(|| format!("no stop {id:?} is in force; `interlock stops` lists those that are"))
    }

    /// Every stop in force.
    pub fn in_force(&self) -> Vec<InForce> {
        let rules = self.parts.gate.rules();
        let view = |stop: &Arc<Stop>| {
            let page = self.parts.book.page(&stop.id);
            let agents = self.parts.agents.matching(&stop.selector);
            InForce {
                stop: StopView::from(&**stop),
                agents: agents.iter().map(|agent| Arc::clone(&agent.name)).collect(),
                calls: page.as_ref().map(|page| page.calls.len()),
                open: page.as_ref().map_or(0, |page| open_fates(&page.calls)),
                refused: Refusals::from(&**stop),
                release_asked: self.asked().get(&stop.id).cloned(),
            }
        };
        rules.stops.iter().map(view).collect()
    }

    /// Sets the gauge of active stops from the stops in force.
    pub fn count_active(&self) {
        let rules = self.parts.gate.rules();
        for level in Level::ALL {
            let count = rules.stops.iter().filter(|stop| stop.level == level).count();
            self.parts
                .metrics
                .stops_active
                .with_label_values(&[level.label()])
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

/// Ends connections that a stop has cut at rest. They take no part in anything any more, so they can wait until the
/// operator has the answer, and go a few at a time: thousands at once would hold up all others.
async fn end_all(conns: Vec<Arc<Conn>>) {
    sleep(2 * ANSWERED_WITHIN).await;
    for few in conns.chunks(64) {
        few.iter().for_each(|conn| conn.wake.notify_one());
        sleep(Duration::from_millis(2)).await;
    }
}
