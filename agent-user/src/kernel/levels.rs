//! At which cgroup levels agents lie. The kernel side skips all others, so that whoever is no agent pays for few
//! look-ups, or none.

use std::collections::BTreeMap;

/// Held cgroups by id, each with its depth below the root. A cgroup cannot move to another level.
#[derive(Debug, Default)]
pub(super) struct Levels(BTreeMap<u64, usize>);

impl Levels {
    pub(super) fn add(&mut self, cgroup_id: u64, depth: usize) {
        self.0.insert(cgroup_id, depth);
    }

    pub(super) fn remove(&mut self, cgroup_id: u64) {
        self.0.remove(&cgroup_id);
    }

    /// The word for [`agent_abi::Settings::skipped_levels`].
    pub(super) fn skipped(&self) -> u32 {
        !self.0.values().fold(0, |looked, depth| looked | 1 << depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_looked_at_while_one_agent_is_there() {
        let mut levels = Levels::default();
        assert_eq!(levels.skipped(), u32::MAX);
        for (cgroup_id, depth) in [(10, 2), (11, 2), (12, 8), (10, 2)] {
            levels.add(cgroup_id, depth);
        }
        assert_eq!(!levels.skipped(), 1 << 2 | 1 << 8);
        levels.remove(10);
        assert_eq!(!levels.skipped(), 1 << 2 | 1 << 8);
        levels.remove(11);
        levels.remove(99);
        assert_eq!(!levels.skipped(), 1 << 8);
    }
}
