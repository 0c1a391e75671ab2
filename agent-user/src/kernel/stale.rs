//! What has been there for too long.

use std::collections::HashSet;
use std::hash::Hash;

/// What was there at the last two looks. Looks and no clock: after a pause of the whole daemon everything seems old at
/// the first look, and what waits for the daemon must not be taken for stale then.
#[derive(Debug)]
pub(super) struct Stale<K> {
    last: HashSet<K>,
    before: HashSet<K>,
}

impl<K> Default for Stale<K> {
    fn default() -> Self {
        Stale { last: HashSet::new(), before: HashSet::new() }
    }
}

impl<K: Copy + Eq + Hash> Stale<K> {
    /// Of what is there now, what was there at both looks before, too.
    pub(super) fn next(&mut self, now: Vec<K>) -> Vec<K> {
        let stale =
            now.iter().filter(|key| self.before.contains(key) && self.last.contains(key)).copied().collect();
        self.before = std::mem::replace(&mut self.last, now.into_iter().collect());
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_for_three_looks_is_stale() {
        let mut stale = Stale::default();
        assert_eq!(stale.next(vec![1, 2, 3]), [] as [i32; 0]);
        assert_eq!(stale.next(vec![1, 3, 4]), [] as [i32; 0]);
        assert_eq!(stale.next(vec![1, 2, 4]), [1]);
        // 2 was away in between.
        assert_eq!(stale.next(vec![2, 4]), [4]);
        assert_eq!(stale.next(vec![2]), [2]);
    }
}
