//! What a stop does to agents beyond their calls: in the kernel, to their sockets, to their processes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use super::receipt::{CgroupEffect, Done, Effect, LISTED, ProcessEffect};
use crate::agents::Agents;
use crate::decide::stop::{Level, Stop};
use crate::identity::Agent;
use crate::kernel::process::{self, Process};
use crate::kernel::{cgroup, sock_diag};

/// Time for the kernel to say that a cgroup is frozen, or empty.
const DONE_WITHIN: Duration = Duration::from_secs(1);
/// Time to look up which sockets each process holds. Evidence must not hold the stop up.
const LOOK_WITHIN: Duration = Duration::from_millis(20);

/// The kernel's part of an order: one map write per agent, from which on connects fail and packets stay.
pub(super) fn begin(agents: &Agents, agent: &Agent, stop: &Stop) -> Effect {
    let applied = agents.apply_stops(agent);
    let cgroups = agents.cgroups_of(agent.number);
    let processes = cgroups.iter().map(|(_, dir)| cgroup::procs(dir).map_or(0, |procs| procs.len())).sum();
    Effect {
        agent: Arc::clone(&agent.name),
        processes,
        isolated: stop.level >= Level::Isolate && applied.is_ok(),
        error: applied.err().map(|error| format!("kernel state not written: {error:#}")),
        ..Effect::default()
    }
}

/// From level `isolate` on: cuts what lives besides our connections, then freezes and kills. All agents at a time.
pub(super) async fn enforce(
    agents: &Arc<Agents>,
    concerned: &[Arc<Agent>],
    effects: &mut [Effect],
    level: Level,
) {
    let mut tasks = JoinSet::new();
    for (index, agent) in concerned.iter().enumerate() {
        let (agents, agent) = (Arc::clone(agents), Arc::clone(agent));
        let mut effect = effects[index].clone();
        tasks.spawn_blocking(move || {
            let target = Target { number: agent.number, cgroups: agents.cgroups_of(agent.number) };
            // The daemon ends the agent's connections to it from its own side.
            let destroy =
                |dirs: &[PathBuf], numbers: &HashSet<u32>| agents.maps().destroy_direct_below(dirs, numbers);
            if let Err(error) = enforce_on(&target, level, &mut effect, destroy) {
                effect.error = Some(format!("{error:#}"));
            }
            (index, effect)
        });
    }
    while let Some(done) = tasks.join_next().await {
        match done {
            Ok((index, effect)) => effects[index] = effect,
            // Nobody knows whose it was: all of them are in doubt.
            Err(error) => effects.iter_mut().for_each(|effect| effect.error = Some(error.to_string())),
        }
    }
}

/// An agent that is stopped, as the kernel knows it.
#[derive(Debug, Default)]
pub(crate) struct Target {
    pub(crate) number: u32,
    /// Paths below the cgroup root, and their directories.
    pub(crate) cgroups: Vec<(String, PathBuf)>,
}

/// Cuts what an agent has open, in every network namespace its processes are in, then freezes or kills it. Needs no
/// daemon; `destroy` says which of the sockets of these cgroups and agents it cuts.
pub(crate) fn enforce_on(
    target: &Target,
    level: Level,
    effect: &mut Effect,
    destroy: impl FnOnce(&[PathBuf], &HashSet<u32>) -> Result<sock_diag::Destroyed>,
) -> Result<()> {
    let processes = processes(target);
    let dirs: Vec<PathBuf> = target.cgroups.iter().map(|(_, dir)| dir.clone()).collect();
    let destroyed = destroy(&dirs, &HashSet::from([target.number])).context("sockets not destroyed");
    // A destroyed socket is its process's until that closes it.
    let nothing = sock_diag::Destroyed::default();
    let shares = shares(&processes, destroyed.as_ref().unwrap_or(&nothing));
    let mut not_halted = Vec::new();
    for (path, dir) in target.cgroups.iter().filter(|_| level >= Level::Freeze) {
        let state = halt(dir, level).with_context(|| format!("{} cgroup {path}", level.label()));
        match state {
            Ok(events) => effect.cgroups.push(CgroupEffect {
                path: path.clone(),
                populated: events.populated,
                frozen: events.frozen,
            }),
            Err(error) => not_halted.push(format!("{error:#}")),
        }
    }
    let done = match level {
        Level::Refuse | Level::Isolate => Done::Isolated,
        _ if !not_halted.is_empty() => Done::Unconfirmed,
        Level::Freeze => Done::Frozen,
        Level::Kill => Done::Killed,
    };
    if let Ok(destroyed) = &destroyed {
        effect.sockets_destroyed = destroyed.total();
        (effect.bytes_unread, effect.bytes_unsent) = (destroyed.unread, destroyed.unsent);
    }
    effect.process_list =
        processes.into_iter().zip(shares).map(|(process, share)| told(process, done, share)).collect();
    let destroyed = destroyed?;
    ensure!(not_halted.is_empty(), "{}", not_halted.join("; "));
    ensure!(destroyed.left == 0, "{} sockets could not be destroyed", destroyed.left);
    Ok(())
}

/// Freezes or kills what is in a cgroup, and waits until the kernel says that it is done. A cgroup that is gone holds
/// nobody.
fn halt(dir: &Path, level: Level) -> Result<cgroup::Events> {
    let ordered = if level == Level::Kill { cgroup::kill(dir) } else { cgroup::set_frozen(dir, true) };
    match ordered {
        Err(error) if cgroup::is_gone(&error) => return Ok(cgroup::Events::default()),
        ordered => ordered?,
    }
    if level == Level::Kill {
        let events = cgroup::wait(dir, DONE_WITHIN, |events| !events.populated)?;
        ensure!(!events.populated, "not empty after {} s", DONE_WITHIN.as_secs());
        return Ok(events);
    }
    let events = cgroup::wait(dir, DONE_WITHIN, |events| events.frozen)?;
    ensure!(events.frozen || !events.populated, "not frozen after {} s", DONE_WITHIN.as_secs());
    Ok(events)
}

/// The first processes of an agent.
fn processes(target: &Target) -> Vec<Process> {
    let mut processes = Vec::new();
    for (_, dir) in &target.cgroups {
        // A cgroup that has just gone has no processes.
        processes.extend(process::in_cgroup(dir, LISTED - processes.len()).unwrap_or_default().list);
    }
    processes
}

/// What of the destroyed sockets each process held, as far as there was time to look.
fn shares(processes: &[Process], destroyed: &sock_diag::Destroyed) -> Vec<sock_diag::Queues> {
    let until = Instant::now() + LOOK_WITHIN;
    let share = |process: &Process| {
        if destroyed.total() == 0 || Instant::now() > until {
            return sock_diag::Queues::default();
        }
        process::sockets(process.pid).map(|sockets| destroyed.held_by(&sockets)).unwrap_or_default()
    };
    processes.iter().map(share).collect()
}

fn told(process: Process, done: Done, share: sock_diag::Queues) -> ProcessEffect {
    ProcessEffect {
        pid: process.pid,
        comm: process.comm,
        exe: process.exe,
        uid: process.uid,
        started: process.started,
        done,
        sockets_destroyed: share.sockets,
        bytes_unread: share.unread,
        bytes_unsent: share.unsent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_that_is_gone_holds_nobody_up() {
        for level in [Level::Freeze, Level::Kill] {
            let events = halt(std::path::Path::new("/nowhere/cgroup"), level).unwrap();
            assert!(!events.populated, "{level:?}");
        }
    }
}
