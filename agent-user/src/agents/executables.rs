//! Agents known by the program they execute. Such a process is moved, with all that it has forked, into a cgroup of its own
//! right below the one it is in. That is held before the process enters it, and goes when the last process has left.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::{Agents, Unheld};
use crate::kernel::{cgroup, process};

/// What its cgroup is called: this, and the number of the process for which it was made.
const PREFIX: &str = "interlock-agent.";

/// Looks for what was forked meanwhile; each finds less, as what is moved forks into its new cgroup.
const LOOKS: u32 = 16;

impl Agents {
    /// Whether any program makes an agent of who executes it.
    pub fn has_executables(&self) -> bool {
        self.tree.selectors.has_executables()
    }

    /// Takes a process in, if what it executes makes it an agent and it is none yet. Returns whether it did.
    ///
    /// # Errors
    /// It is an agent and runs free.
    pub fn take_in(&self, pid: u32) -> Result<bool, Unheld> {
        let ours = std::process::id();
        let Ok(program) = process::program(pid) else { return Ok(false) };
        let Some((name, labels)) = self.tree.selectors.by_program(&program).filter(|_| pid != ours) else {
            return Ok(false);
        };
        let Ok(above) = cgroup::of_pid(pid) else { return Ok(false) };
        let above = above.to_string_lossy();
        if self.of_cgroup(&above).is_some() {
            return Ok(false);
        }
        let path = format!("{}/{PREFIX}{pid}", above.trim_end_matches('/'));
        let dir = self.dir(&path);
        let taken =
            std::fs::create_dir_all(&dir).with_context(|| format!("create cgroup {path}")).and_then(|()| {
                let who = (&*name, &labels, None);
                self.hold_and(&mut self.held_now(), &path, who, Some(Instant::now()), |dir| {
                    self.fill(dir, pid)
                })
            });
        match taken {
            // It has ended meanwhile, and its cgroup goes at the next look.
            Err(_) if process::program(pid).is_err() => Ok(false),
            taken => taken.map_err(|error| Unheld { path, agent: name, error }),
        }
    }

    /// The same for every process there is. Returns those that run free.
    pub fn take_in_all(&self) -> Vec<Unheld> {
        // Parents first, which take their children along.
        let mut pids: Vec<u32> = process::parents().unwrap_or_default().into_keys().collect();
        pids.sort_unstable();
        pids.into_iter().filter_map(|pid| self.take_in(pid).err()).collect()
    }

    /// Moves a process and what it has forked into a cgroup, and cuts the connections they bring along, which were never
    /// redirected. Returns how many.
    fn fill(&self, dir: &Path, pid: u32) -> Result<u32> {
        let (mut moved, mut left) = (HashSet::new(), vec![pid]);
        for _ in 0..LOOKS {
            for pid in left {
                // One that has ended meanwhile has nothing to be held.
                if let Err(error) = cgroup::enter(dir, pid)
                    && process::program(pid).is_ok()
                {
                    return Err(error);
                }
                moved.insert(pid);
            }
            let parents = process::parents().context("read /proc")?;
            left = parents.keys().copied().filter(|child| is_below(*child, &moved, &parents)).collect();
            if left.is_empty() {
                break;
            }
        }
        let inodes: HashSet<u64> =
            moved.iter().filter_map(|pid| process::sockets(*pid).ok()).flatten().collect();
        let cut = self.kernel.destroy_kept_below(&[dir.to_owned()], &inodes)?.total();
        ensure!(left.is_empty(), "it forks faster than it can be moved: {} processes run free", left.len());
        Ok(cut)
    }

    /// The cgroups that were made here by an earlier daemon.
    pub(super) fn made_for_programs(&self) -> Vec<PathBuf> {
        if !self.has_executables() {
            return Vec::new();
        }
        let is_made =
            |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        cgroup::subtree(&self.tree.root).unwrap_or_default().into_iter().filter(is_made).collect()
    }
}

/// Whether a process that was not moved was forked by one that was, or by what that has forked.
fn is_below(pid: u32, moved: &HashSet<u32>, parents: &HashMap<u32, u32>) -> bool {
    let mut above = parents.get(&pid);
    // No line of descent is longer than there are processes.
    for _ in 0..parents.len() {
        match above {
            Some(parent) if moved.contains(parent) => return !moved.contains(&pid),
            Some(parent) => above = parents.get(parent),
            None => break,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forked_belongs_to_it_and_nobody_else_does() {
        let parents = HashMap::from([(1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (30, 31), (31, 30)]);
        let below = |pid, moved: &[u32]| is_below(pid, &moved.iter().copied().collect(), &parents);
        assert!(below(11, &[10]) && below(12, &[10]), "children and theirs");
        assert!(!below(10, &[10]) && !below(11, &[10, 11]), "not who is there already");
        assert!(!below(20, &[10]) && !below(1, &[10]) && !below(30, &[10]));
    }
}
