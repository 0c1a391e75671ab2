//! Pods among the cgroups: what the kernel side is told of those that are no agents or not known yet, and what agents are
//! told of their own.
//!
//! With `unclassified: hold` the cgroup with all pods in it is guarded in the kernel: whoever is in it gets no connection,
//! until the cgroup of its pod is held as an agent's or spared. So a pod is held from its first connect, also one that
//! starts while the daemon is away.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tracing::{info, warn};

use super::{Agents, Held, Unheld};
use crate::config::Unclassified;
use crate::identity::{Agent, OwnPod};
use crate::kernel::cgroup;
use crate::kubernetes::ByUid;
use crate::selectors::Walk;

/// What the kernel side was told.
#[derive(Debug, Default)]
pub(super) struct OfPods {
    /// Cgroups that are guarded or spared, by path, with their ids.
    told: Mutex<BTreeMap<String, (u64, Told)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Guarded,
    Spared,
}

impl Agents {
    /// What interlock is in itself is no agent: it could not even ask the API server.
    pub(super) fn leave_out_own_pod(&self, walk: &mut Walk) {
        if self.tree.directory.is_none() {
            return;
        }
        let own = cgroup::of_pid(std::process::id()).unwrap_or_default();
        let Some((_, path)) = self.tree.selectors.pod_of(&own.to_string_lossy()) else { return };
        walk.found.retain(|found| found.path != path);
        walk.spared.push(path);
    }

    /// Brings what the kernel side knows of pods that are no agents in line. Those that are must be held by now.
    pub(super) fn guard_pods(&self, held: &BTreeMap<String, Held>, walk: &Walk) -> Vec<Unheld> {
        let Some(directory) = &self.tree.directory else { return Vec::new() };
        let spared = walk.spared.iter().filter(|path| !held.contains_key(*path));
        let mut wanted: BTreeMap<&String, Told> = spared.map(|path| (path, Told::Spared)).collect();
        // Before all pods are known those that are no agents would be held as well.
        if self.tree.unclassified == Unclassified::Hold && directory.is_complete() {
            wanted.extend(walk.pods.iter().map(|path| (path, Told::Guarded)));
        }
        let mut told = self.pods.told.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failed = Vec::new();
        // Pods below a guarded cgroup first, or their connects would fail for a moment.
        let order = [Told::Spared, Told::Guarded];
        for (path, wants) in
            order.iter().flat_map(|kind| wanted.iter().filter(move |(_, wants)| *wants == kind))
        {
            if let Err(error) = self.tell(&mut told, path, *wants) {
                failed.push(Unheld { path: (*path).clone(), agent: "(pods)".to_owned(), error });
            }
        }
        told.retain(|path, (id, _)| {
            let is_wanted = wanted.contains_key(path);
            let is_agents = held.values().any(|held| held.id == *id);
            if !is_wanted
                && !is_agents
                && let Err(error) = self.kernel.let_go(*id)
            {
                warn!(cgroup = path, error = format!("{error:#}"), "stale entry in the kernel");
            }
            is_wanted
        });
        failed
    }

    fn tell(&self, told: &mut BTreeMap<String, (u64, Told)>, path: &str, wants: Told) -> Result<()> {
        let dir = self.dir(path);
        let id = match cgroup::id(&dir) {
            // It has gone since the walk, and everybody in it.
            Err(error) if cgroup::is_gone(&error) => return Ok(()),
            id => id?,
        };
        let before = told.get(path).copied();
        if before == Some((id, wants)) {
            return Ok(());
        }
        match wants {
            Told::Guarded => {
                self.kernel.guard(&dir, id)?;
                info!(cgroup = path, "pods that are not known yet are held");
            }
            Told::Spared => self.kernel.spare(&dir, id)?,
        }
        told.insert(path.to_owned(), (id, wants));
        match before {
            Some((old, _)) if old != id => self.kernel.let_go(old),
            _ => Ok(()),
        }
    }

    /// Whether a cgroup that nothing is known of is nobody's. While nothing is known of any pod it may be an agent's.
    pub(super) fn is_told(&self) -> bool {
        self.tree.directory.as_ref().is_none_or(|directory| directory.is_complete())
    }

    /// Lets go of what an earlier daemon has guarded or spared and this one does not.
    pub(super) fn forget_old_guards(&self) -> Result<()> {
        let told = self.pods.told.lock().unwrap_or_else(PoisonError::into_inner);
        for id in self.kernel.not_held()?.into_keys() {
            if told.values().all(|(own, _)| *own != id) {
                self.kernel.let_go(id)?;
            }
        }
        Ok(())
    }

    /// Tells agents which pods they are, as those are now.
    pub(super) fn tell_pods(&self, held: &BTreeMap<String, Held>, pods: &ByUid) {
        let mut by_agent: BTreeMap<u32, Vec<OwnPod>> = BTreeMap::new();
        for (path, held) in held {
            let own = self.tree.selectors.pod_of(path).filter(|(_, cgroup)| cgroup == path);
            if let Some(pod) = own.and_then(|(uid, _)| pods.get(&uid)) {
                let own = OwnPod { cgroup: path.clone(), pod: Arc::clone(pod) };
                by_agent.entry(held.agent.number).or_default().push(own);
            }
        }
        for agent in self.by_number.load().values() {
            let mut own = by_agent.remove(&agent.number).unwrap_or_default();
            let known = agent.pods.load();
            let place = |own: &OwnPod| known.iter().position(|known| known.cgroup == own.cgroup);
            own.sort_by_key(|own| place(own).unwrap_or(usize::MAX));
            let is_same = |(own, known): (&OwnPod, &OwnPod)| {
                own.cgroup == known.cgroup && Arc::ptr_eq(&own.pod, &known.pod)
            };
            if own.len() == known.len() && own.iter().zip(known.iter()).all(is_same) {
                continue;
            }
            if let Err(error) = self.set_pods(agent, own) {
                warn!(agent = &*agent.name, error = format!("{error:#}"), "kernel state not written");
            }
        }
    }

    /// An agent is this pod, too. Call it before its first connection can be accepted: rules and stops go by it.
    pub(super) fn add_pod(&self, agent: &Agent, own: OwnPod) -> Result<()> {
        let known = agent.pods.load();
        let others = known.iter().filter(|known| known.cgroup != own.cgroup).cloned();
        self.set_pods(agent, others.chain([own.clone()]).collect())
    }

    /// An agent is these pods from now on, and has the labels of the last.
    fn set_pods(&self, agent: &Agent, own: Vec<OwnPod>) -> Result<()> {
        let labels = own.last().map(|own| Arc::clone(&own.pod.labels));
        agent.pods.store(Arc::new(own));
        let Some(labels) = labels.filter(|labels| **labels != **agent.labels.load()) else { return Ok(()) };
        agent.labels.store(labels);
        // Which stops are for it was found out once per connection and generation.
        self.gate.renew();
        self.apply_stops(agent)
    }
}
