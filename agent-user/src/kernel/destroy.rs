//! Cutting the sockets of agents wherever they are: in every network namespace that a process of theirs is in. The
//! daemon and the command line without one do it by the same function.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use anyhow::Context as _;

use super::cgroup;
use super::maps::Maps;
use super::netns::Netns;
use super::sock_diag::{self, Destroyed, Scope, Stored};

impl Maps {
    /// Cuts the live sockets of these cgroups and agents in the current network namespace; call it inside
    /// [`Netns::within`]. Beyond the cgroups it finds, by their tag, sockets that were made elsewhere.
    pub fn destroy(&self, cgroup_ids: &HashSet<u64>, agents: &HashSet<u32>) -> io::Result<Destroyed> {
        let stored = Stored::Tags(self.tags_fd(), agents);
        sock_diag::destroy(&Scope { cgroup_ids, stored })
    }

    /// Cuts those live sockets of these cgroups that were not redirected, because they are older than their agent.
    pub fn destroy_old(&self, cgroup_ids: &HashSet<u64>) -> io::Result<Destroyed> {
        let stored = Stored::Origins(self.origins_fd());
        sock_diag::destroy(&Scope { cgroup_ids, stored })
    }

    /// As [`Maps::destroy`], for all below these cgroup folders and in every network namespace that a process there is
    /// in, and in our own. A folder that is gone holds nobody.
    ///
    /// # Errors
    /// The first thing that went wrong, after every namespace was tried.
    pub fn destroy_below(&self, dirs: &[PathBuf], agents: &HashSet<u32>) -> anyhow::Result<Destroyed> {
        everywhere(dirs, |cgroup_ids| self.destroy(cgroup_ids, agents))
    }

    /// As [`Maps::destroy_below`], but not the connections that were redirected: for whoever has their other end and
    /// closes that. Of thousands of sockets these are nearly all.
    ///
    /// # Errors
    /// As for [`Maps::destroy_below`].
    pub fn destroy_direct_below(&self, dirs: &[PathBuf], agents: &HashSet<u32>) -> anyhow::Result<Destroyed> {
        let stored = Stored::Direct { tags: self.tags_fd(), agents, origins: self.origins_fd() };
        everywhere(dirs, |cgroup_ids| sock_diag::destroy(&Scope { cgroup_ids, stored }))
    }

    /// As [`Maps::destroy_old`], likewise.
    ///
    /// # Errors
    /// As for [`Maps::destroy_below`].
    pub fn destroy_old_below(&self, dirs: &[PathBuf]) -> anyhow::Result<Destroyed> {
        everywhere(dirs, |cgroup_ids| self.destroy_old(cgroup_ids))
    }

    /// As [`Maps::destroy_old_below`], and the sockets with these inodes, which processes there brought with them.
    ///
    /// # Errors
    /// As for [`Maps::destroy_below`].
    pub fn destroy_kept_below(&self, dirs: &[PathBuf], inodes: &HashSet<u64>) -> anyhow::Result<Destroyed> {
        let stored = Stored::Kept(self.origins_fd(), inodes);
        everywhere(dirs, |cgroup_ids| sock_diag::destroy(&Scope { cgroup_ids, stored }))
    }
}

fn everywhere(
    dirs: &[PathBuf],
    destroy: impl Fn(&HashSet<u64>) -> io::Result<Destroyed>,
) -> anyhow::Result<Destroyed> {
    let mut cgroup_ids = HashSet::new();
    let mut namespaces = vec![Netns::current().context("open our own network namespace")?];
    for dir in dirs {
        cgroup_ids.extend(cgroup::subtree_ids(dir).unwrap_or_default());
        for pid in cgroup::procs(dir).unwrap_or_default() {
            // A process that has just ended has no sockets.
            let Ok(netns) = Netns::of_pid(pid) else { continue };
            if namespaces.iter().all(|known| known.identity() != netns.identity()) {
                namespaces.push(netns);
            }
        }
    }
    let (mut destroyed, mut failed) = (Destroyed::default(), None);
    for netns in &namespaces {
        match netns.within(|| destroy(&cgroup_ids)).flatten() {
            Ok(found) => destroyed.merge(found),
            // One namespace that cannot be entered must not spare the others.
            Err(error) => failed = failed.or(Some((error, netns.identity().inode))),
        }
    }
    match failed {
        None => Ok(destroyed),
        Some((error, inode)) => Err(error).with_context(|| format!("destroy sockets in net:[{inode}]")),
    }
}
