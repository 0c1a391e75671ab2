//! A drill: what a stop would cut now, without cutting it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::Orders;
use crate::decide::stop::{Level, Selector, Stop, Terms};
use crate::kernel::cgroup;
use crate::ledger::{Call, Conn, Phase};
use crate::session::Session;

/// What a stop would find.
#[derive(Clone, Debug, Serialize)]
pub struct Drill {
    /// Always true; tells a drill's answer from a stop's.
    pub dry_run: bool,
    pub scope: Terms,
    pub level: Level,
    pub agents: Vec<AgentDrill>,
}

/// What it would find of one agent.
#[derive(Clone, Debug, Serialize)]
pub struct AgentDrill {
    pub agent: Arc<str>,
    /// A stop that is in force for all it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<Arc<str>>,
    pub cgroups: Vec<String>,
    /// Numbers of its processes.
    pub processes: Vec<u32>,
    pub sessions: Vec<Session>,
    /// Connections in scope with nothing in flight; the next call on them would be refused.
    pub idle_connections: usize,
    /// Streams, tunnels and plain transfers in scope.
    pub streams: Vec<Stream>,
    pub calls: Vec<CallDrill>,
    /// What servers go on with though the call was answered.
    pub tasks: Vec<TaskDrill>,
}

/// A task in scope; its server would be told to cancel it.
#[derive(Clone, Debug, Serialize)]
pub struct TaskDrill {
    pub task: Box<str>,
    #[serde(flatten)]
    pub call: Call,
}

/// Something without calls that flows.
#[derive(Clone, Debug, Serialize)]
pub struct Stream {
    pub conn: u64,
    pub server: Arc<str>,
    pub session: Option<Session>,
}

/// A call in scope, or one that would end with it.
#[derive(Clone, Debug, Serialize)]
pub struct CallDrill {
    pub conn: u64,
    #[serde(flatten)]
    pub call: Call,
    /// `refused`, `cut` or `sent`, if the stop came now.
    pub would_be: &'static str,
    /// Not in scope itself: it is in the same batch as one that is, and ends with it.
    pub is_sibling: bool,
}

impl Orders {
    /// What a stop with this selector would cut now.
    pub fn drill(&self, selector: Selector, level: Level) -> Result<Drill, String> {
        selector.permits(level)?;
        let stop = Stop::drill(selector, level);
        let rules = self.parts.gate.rules();
        let mut conns: BTreeMap<Arc<str>, Vec<Arc<Conn>>> = BTreeMap::new();
        for conn in self.parts.ledger.open_conns(|conn| conn.is_concerned_by(&stop)) {
            conns.entry(Arc::clone(&conn.identity.agent.name)).or_default().push(conn);
        }
        let held = self.parts.agents.held();
        let tasks = self.parts.tasks.matching(&stop.selector);
        let agents = self.parts.agents.matching(&stop.selector).into_iter().map(|agent| {
            let cgroups: Vec<String> = held
                .iter()
                .filter(|(_, held)| held.agent.number == agent.number)
                .map(|(path, _)| path.clone())
                .collect();
            let processes = cgroups
                .iter()
                .flat_map(|path| cgroup::procs(&self.parts.agents.dir(path)).unwrap_or_default())
                .collect();
            let mut drill = AgentDrill {
                agent: Arc::clone(&agent.name),
                stopped_by: agent.as_whom(|whom| rules.stop_of_agent(whom)).map(|stop| Arc::clone(&stop.id)),
                cgroups,
                processes,
                sessions: Vec::new(),
                idle_connections: 0,
                streams: Vec::new(),
                calls: Vec::new(),
                tasks: tasks
                    .iter()
                    .filter(|task| task.conn.identity.agent.number == agent.number)
                    .map(|task| TaskDrill { task: task.id.clone(), call: task.call.clone() })
                    .collect(),
            };
            for conn in conns.remove(&agent.name).unwrap_or_default() {
                drill.add(&conn, &stop);
            }
            drill
        });
        Ok(Drill { dry_run: true, scope: stop.selector.terms().clone(), level, agents: agents.collect() })
    }
}

impl AgentDrill {
    fn add(&mut self, conn: &Conn, stop: &Stop) {
        let (phase, scene, mut calls) = conn.view();
        let is_in_scope = |call: &Call| {
            conn.identity.agent.as_whom(|agent| stop.selector.matches(&call.facts(&scene, agent)))
        };
        if conn.answers_posts() {
            // Each of them is an exchange of its own.
            calls.retain(is_in_scope);
        }
        if let Some(session) = scene.session
            && !self.sessions.contains(&session)
        {
            self.sessions.push(session);
        }
        match phase {
            Phase::Idle | Phase::Open if conn.is_part() => {}
            Phase::Idle | Phase::Answering => self.idle_connections += 1,
            _ if calls.is_empty() => {
                self.streams.push(Stream { conn: conn.id, server: scene.server, session: scene.session })
            }
            _ => self.calls.extend(calls.into_iter().map(|call| CallDrill {
                conn: conn.id,
                is_sibling: !is_in_scope(&call),
                would_be: phase.fate().label(),
                call,
            })),
        }
    }
}
