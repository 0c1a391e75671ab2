//! What a stop does to agents beyond their calls: in the kernel, to their sockets, to their processes.

use std::sync::Arc;

use crate::agents::Agents;
use crate::decide::stop::{Level, Stop};
use crate::identity::Agent;
use crate::kernel::cgroup;

use super::receipt::Effect;

/// The kernel's part of an order: one map write per agent, from which on connects fail and packets stay.
pub(super) fn begin(agents: &Agents, agent: &Agent, stop: &Stop) -> Effect {
    let applied = agents.apply_stops(agent);
    let dirs = agents.dirs_of(agent.number);
    let processes = dirs.iter().map(|dir| cgroup::procs(dir).map_or(0, |procs| procs.len())).sum();
    Effect {
        agent: Arc::clone(&agent.name),
        connections: 0,
        processes,
        isolated: stop.level >= Level::Isolate && applied.is_ok(),
        sockets_destroyed: 0,
        error: applied.err().map(|error| format!("kernel state not written: {error:#}")),
    }
}

/// Cuts what lives besides our connections: sockets that were there before, inbound ones, UDP.
pub(super) async fn destroy_sockets(agents: &Arc<Agents>, concerned: &[Arc<Agent>], effects: &mut [Effect]) {
    for (agent, effect) in concerned.iter().zip(effects) {
        let (agents, agent) = (Arc::clone(agents), Arc::clone(agent));
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
