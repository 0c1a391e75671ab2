//! Carrying out an operator's orders: stop and release, exactly and answered.
//!
//! A stop is in force once it is published to every connection, written to the kernel, and every connection it
//! concerns has acted on it. From then on no new call in its scope reaches a server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::info;

use crate::book::Caught;
use crate::decide::stop::{Level, Operator, Selector, Stop};
use crate::fate::Fate;
use crate::identity::Agent;
use crate::kernel::cgroup;
use crate::ledger::Conn;
use crate::parts::Parts;
use crate::record::entry::{Entry, Release, StopEntry};
use crate::state::State;

/// Longest time a connection may take to act on a stop before the answer says that it has not.
const SETTLE_WITHIN: Duration = Duration::from_secs(2);

/// Takes orders one at a time.
#[derive(Debug)]
pub struct Orders {
    parts: Arc<Parts>,
    state: Arc<State>,
    started: Timestamp,
    turn: Mutex<()>,
}

/// A stop as the operator sees it.
#[derive(Clone, Debug, Serialize)]
pub struct StopView {
    pub id: Arc<str>,
    pub scope: Scope,
    pub level: Level,
    pub reason: Arc<str>,
    pub by: Operator,
    pub issued_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_force_at: Option<Timestamp>,
}

/// Whom a stop is for, as the operator wrote it.
#[derive(Clone, Debug, Serialize)]
pub struct Scope {
    pub agent: String,
}

/// What a stop did to one agent.
#[derive(Clone, Debug, Serialize)]
pub struct Effect {
    pub agent: Arc<str>,
    /// Connections that were open, idle ones included.
    pub connections: usize,
    /// Processes in the agent's cgroups.
    pub processes: usize,
    /// Its network is cut in the kernel.
    pub isolated: bool,
    /// Sockets the kernel destroyed, beyond the connections above.
    pub sockets_destroyed: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The answer to `interlock stop`.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    pub stop: StopView,
    /// No new call in scope can reach a server.
    pub in_force: bool,
    /// The stop will survive a restart of the daemon.
    pub durable: bool,
    /// What fell short, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    pub agents: Vec<Effect>,
    /// Every call that was in flight, with its fate.
    pub calls: Vec<Caught>,
    /// Fates that may still become known.
    pub open: usize,
}

/// A stop in force, with what it has caught.
#[derive(Clone, Debug, Serialize)]
pub struct InForce {
    pub stop: StopView,
    /// Agents known now that it is for.
    pub agents: Vec<Arc<str>>,
    /// What it caught; `None` for a stop that is older than this daemon, whose calls are in the records.
    pub calls: Option<Vec<Caught>>,
}

impl From<&Stop> for StopView {
    fn from(stop: &Stop) -> StopView {
        StopView {
            id: Arc::clone(&stop.id),
            scope: Scope { agent: stop.selector.pattern().to_owned() },
            level: stop.level,
            reason: Arc::clone(&stop.reason),
            by: stop.by.clone(),
            issued_at: stop.issued_at,
            in_force_at: None,
        }
    }
}

impl Orders {
    pub fn new(parts: Arc<Parts>, state: Arc<State>) -> Orders {
        Orders { parts, state, started: Timestamp::now(), turn: Mutex::new(()) }
    }

    /// Stops agents. `wait` bounds how long fates that are not known yet are waited for.
    pub async fn stop(
        &self,
        selector: Selector,
        level: Level,
        reason: &str,
        by: Operator,
        wait: Duration,
    ) -> Result<Answer> {
        let (issued, issued_at) = (Instant::now(), Timestamp::now());
        let turn = self.turn.lock().await;
        let id = self.state.next_stop_id();
        let stop = Arc::new(Stop { id: id.into(), selector, level, reason: reason.into(), by, issued_at });
        let mut stops = self.parts.gate.rules().stops.clone();
        stops.push(Arc::clone(&stop));
        let generation = self.publish(stops.clone());

        let mut problems = Vec::new();
        let agents = self.parts.agents.matching(&stop.selector);
        let mut effects: Vec<Effect> = agents.iter().map(|agent| self.begin(agent, &stop)).collect();
        let conns = self.wake(&stop);
        for effect in &mut effects {
            effect.connections = conns.iter().filter(|conn| conn.identity.agent.name == effect.agent).count();
        }
        let settled = timeout(SETTLE_WITHIN, self.parts.ledger.settled(&conns, generation)).await;
        if settled.is_err() {
            let left = self.parts.ledger.unsettled(&conns, generation);
            problems.push(format!(
                "{left} connections have not acted on the stop within {} s",
                SETTLE_WITHIN.as_secs()
            ));
        }
        if level >= Level::Isolate {
            self.destroy(&agents, &mut effects).await;
        }
        problems.extend(
            effects
                .iter()
                .filter_map(|effect| effect.error.as_ref().map(|error| format!("{}: {error}", effect.agent))),
        );
        let in_force = problems.is_empty();
        let in_force_at = Timestamp::now();
        self.parts.metrics.stop_in_force.observe(issued.elapsed().as_secs_f64());
        self.parts.metrics.stops.with_label_values(&[level.label()]).inc();
        self.count_active();

        let saved = self.state.save_stops(&stops);
        if let Err(error) = &saved {
            problems.push(format!("the stop holds but will not survive a restart: {error:#}"));
        }
        let names: Vec<String> = agents.iter().map(|agent| agent.name.to_string()).collect();
        self.parts
            .log
            .record_durably(&Entry::Stop(StopEntry {
                stop: &stop.id,
                scope: stop.selector.to_string(),
                level,
                reason,
                by: &stop.by,
                issued_at,
                in_force_at,
                agents: &names,
            }))
            .await;
        info!(stop = &*stop.id, scope = %stop.selector, level = level.label(), in_force, "stopped");
        drop(turn);

        // Elapsing is an answer too: the fates are then open.
        let _ = timeout(wait, self.parts.book.settled(&stop.id)).await;
        let calls = self.parts.book.caught(&stop.id);
        let open = calls.iter().filter(|caught| caught.open || caught.fate == Fate::Sent).count();
        let view = StopView { in_force_at: in_force.then_some(in_force_at), ..StopView::from(&*stop) };
        Ok(Answer { stop: view, in_force, durable: saved.is_ok(), problems, agents: effects, calls, open })
    }

    /// Ends a stop.
    pub async fn release(&self, id: &str, reason: &str, by: Operator) -> Result<StopView> {
        let _turn = self.turn.lock().await;
        let mut stops = self.parts.gate.rules().stops.clone();
        let index = stops
            .iter()
            .position(|stop| &*stop.id == id)
            .with_context(|| format!("no stop {id:?} is in force; `interlock stops` lists those that are"))?;
        let stop = stops.remove(index);
        // Durable first: a release that a crash undoes is safer than a stop that it undoes.
        self.state.save_stops(&stops).context("the stop still holds")?;
        self.parts
            .log
            .record_durably(&Entry::Release(Release {
                stop: &stop.id,
                scope: stop.selector.to_string(),
                reason,
                by: &by,
            }))
            .await;
        self.publish(stops);
        self.parts.book.release(&stop.id);
        self.count_active();
        info!(stop = id, scope = %stop.selector, "released");
        for agent in self.parts.agents.matching(&stop.selector) {
            let applied = self.parts.agents.apply_stops(&agent);
            applied.with_context(|| {
                format!("stop {id} is released, but the kernel still holds agent {} as stopped", agent.name)
            })?;
        }
        Ok(StopView::from(&*stop))
    }

    /// Puts a set of stops in force and returns its generation.
    fn publish(&self, stops: Vec<Arc<Stop>>) -> u64 {
        let generation = self.parts.gate.set_stops(stops);
        self.parts.metrics.policy_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        generation
    }

    /// Every stop in force.
    pub fn in_force(&self) -> Vec<InForce> {
        let rules = self.parts.gate.rules();
        rules
            .stops
            .iter()
            .map(|stop| InForce {
                stop: StopView::from(&**stop),
                agents: self
                    .parts
                    .agents
                    .matching(&stop.selector)
                    .iter()
                    .map(|agent| Arc::clone(&agent.name))
                    .collect(),
                calls: (stop.issued_at >= self.started).then(|| self.parts.book.caught(&stop.id)),
            })
            .collect()
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

    /// The kernel's part: one map write, from which on connects fail and packets stay.
    fn begin(&self, agent: &Agent, stop: &Stop) -> Effect {
        let applied = self.parts.agents.apply_stops(agent);
        let processes = self
            .parts
            .agents
            .dirs_of(agent.number)
            .iter()
            .map(|dir| cgroup::procs(dir).map_or(0, |procs| procs.len()))
            .sum();
        Effect {
            agent: Arc::clone(&agent.name),
            connections: 0,
            processes,
            isolated: stop.level >= Level::Isolate && applied.is_ok(),
            sockets_destroyed: 0,
            error: applied.err().map(|error| format!("kernel state not written: {error:#}")),
        }
    }

    /// The connections' part: each that is concerned is woken.
    fn wake(&self, stop: &Stop) -> Vec<Arc<Conn>> {
        let conns = self.parts.ledger.open_conns(|conn| stop.selector.matches(&conn.identity.agent.name));
        for conn in &conns {
            conn.wake.notify_one();
        }
        conns
    }

    /// Cuts what lives besides our connections: sockets that were there before, inbound ones, UDP.
    async fn destroy(&self, agents: &[Arc<Agent>], effects: &mut [Effect]) {
        for (agent, effect) in agents.iter().zip(effects) {
            let (agents, agent) = (Arc::clone(&self.parts.agents), Arc::clone(agent));
            let destroyed = tokio::task::spawn_blocking(move || agents.destroy_sockets(&agent)).await;
            match destroyed {
                Ok(Ok((destroyed, 0))) => effect.sockets_destroyed = destroyed,
                Ok(Ok((destroyed, left))) => {
                    effect.sockets_destroyed = destroyed;
                    effect.error = Some(format!("{left} sockets could not be destroyed"));
                }
                Ok(Err(error)) => effect.error = Some(format!("sockets not destroyed: {error:#}")),
                Err(error) => effect.error = Some(format!("sockets not destroyed: {error}")),
            }
        }
    }
}
