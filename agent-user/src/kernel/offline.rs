//! The stop without a daemon: what is pinned is enough to isolate agents and to cut their sockets, when the daemon is
//! dead or does not answer. Loads nothing, attaches nothing, and takes no lock that a hung daemon could hold.
//!
//! It acts on the kernel only: no stop is recorded here, and no call answered. A daemon that lives goes on with
//! what it knows, so whoever uses this also tells the next one, or releases by the same means.

use std::collections::HashSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use agent_abi::{AgentState, MODE_ISOLATED};
use anyhow::ensure;

use super::link;
use super::maps::Maps;
use super::sock_diag::Destroyed;
use super::{cgroup, version_dir};

/// The pinned kernel side. Everything of [`Maps`] can be called on it.
#[derive(Debug)]
pub struct Offline {
    maps: Maps,
    links: PathBuf,
}

/// A held cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCgroup {
    /// Its folder.
    pub dir: PathBuf,
    pub cgroup_id: u64,
    /// Number of its agent.
    pub agent: u32,
}

impl Offline {
    /// Opens what a daemon of this ABI version has pinned below a folder.
    ///
    /// # Errors
    /// Nothing is pinned there, or it is of another layout.
    pub fn open(pin_dir: &Path) -> anyhow::Result<Offline> {
        Ok(Offline { maps: Maps::open(pin_dir)?, links: version_dir(pin_dir).join("links") })
    }

    /// Cuts every agent's network, those that are enrolled later included, until [`Maps::set_everybody`] with `None`.
    /// `errno` is what their calls fail with; 0 is `EPERM`. Live sockets are silent from here on and end with
    /// [`Offline::destroy_held`].
    ///
    /// # Errors
    /// Where no hook is attached any more nobody obeys: it is written all the same, and takes force when a daemon
    /// attaches.
    pub fn isolate_everybody(&self, errno: u32) -> anyhow::Result<()> {
        self.maps.set_everybody(Some(AgentState { mode: MODE_ISOLATED, errno }))?;
        self.ensure_obeyed()
    }

    /// Cuts one agent's network, by its number. A daemon that lives writes over it at its next order for that agent.
    ///
    /// # Errors
    /// As for [`Offline::isolate_everybody`].
    pub fn isolate(&self, agent: u32, errno: u32) -> anyhow::Result<()> {
        self.maps.set_state(agent, AgentState { mode: MODE_ISOLATED, errno })?;
        self.ensure_obeyed()
    }

    /// Every held cgroup that still exists, by path.
    pub fn held_cgroups(&self) -> anyhow::Result<Vec<HeldCgroup>> {
        let mut held = Vec::new();
        for (cgroup_id, agent) in self.maps.held()? {
            match cgroup::path_of(cgroup_id) {
                Ok(dir) => held.push(HeldCgroup { dir, cgroup_id, agent }),
                Err(error) if cgroup::is_gone(&error) => {}
                Err(error) => return Err(error.context(format!("find held cgroup {cgroup_id}"))),
            }
        }
        held.sort_by(|a, b| a.dir.cmp(&b.dir));
        Ok(held)
    }

    /// Destroys the live sockets of all held cgroups (see [`Maps::destroy_below`]). Isolate first, or they are made
    /// anew.
    pub fn destroy_held(&self) -> anyhow::Result<Destroyed> {
        let held = self.held_cgroups()?;
        let agents = held.iter().map(|cgroup| cgroup.agent).chain(self.maps.states()?.into_keys());
        let agents: HashSet<u32> = agents.collect();
        let dirs: Vec<PathBuf> = held.into_iter().map(|cgroup| cgroup.dir).collect();
        self.maps.destroy_below(&dirs, &agents)
    }

    fn ensure_obeyed(&self) -> anyhow::Result<()> {
        ensure!(
            link::is_attached_somewhere(&self.links, "connect4")?,
            "{}: no hook is attached, so nobody obeys yet (start the daemon)",
            self.links.display()
        );
        Ok(())
    }
}

impl Deref for Offline {
    type Target = Maps;

    fn deref(&self) -> &Maps {
        &self.maps
    }
}
