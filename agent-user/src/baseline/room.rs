//! Room for what is new. Whoever has brought the most gives, and of theirs what was used longest ago; never what is
//! blocked or drifted, or what an operator has approved.

use std::collections::HashSet;
use std::sync::Arc;

use super::known::Known;

/// Lists and items of all.
pub(super) const MOST: usize = 65_536;
/// Items of one list. When there are more, what is gone from it makes room; what is there does not, so that a server
/// cannot have itself forgotten by showing a lot.
pub(super) const PER_LIST: usize = 8_192;
/// How many are forgotten at once at least, where so many are needed.
const STRIDE: usize = 64;

impl Known {
    /// Makes room for items of a list; for how many there is some.
    pub(super) fn make_room_in(&mut self, number: u32, wanted: usize) -> usize {
        let Some(list) = self.lists.get(&number) else { return 0 };
        let surplus = (list.items.len() + wanted).saturating_sub(PER_LIST);
        if surplus > 0 {
            let gone = list
                .items
                .iter()
                .filter(|(name, item)| !item.present && item.may_go(self.judge(list, name, item).0));
            let mut gone: Vec<(u64, Arc<str>)> = gone.map(|(name, item)| (item.used, name.clone())).collect();
            gone.sort_unstable();
            gone.truncate(surplus);
            gone.iter().for_each(|(_, name)| self.forget(number, name));
        }
        let free = self.lists.get(&number).map_or(0, |list| PER_LIST.saturating_sub(list.items.len()));
        self.make_room(wanted.min(free))
    }

    /// Makes room for lists and items; for how many there is some.
    pub(super) fn make_room(&mut self, wanted: usize) -> usize {
        let mut barren = HashSet::new();
        while let surplus = (self.size + wanted).saturating_sub(MOST)
            && surplus > 0
        {
            let rich = self.owners.iter().filter(|(owner, _)| !barren.contains(*owner));
            let mut rich: Vec<(usize, Arc<str>)> =
                rich.map(|(owner, count)| (*count, owner.clone())).collect();
            rich.sort_unstable();
            let Some((most, owner)) = rich.pop() else { break };
            let next = rich.last().map_or(0, |(count, _)| *count);
            if self.forget_oldest(&owner, surplus.min((most - next).max(STRIDE))) == 0 {
                barren.insert(owner);
            }
        }
        MOST.saturating_sub(self.size).min(wanted)
    }

    /// Forgets so many lists and items that count on somebody; how many could go.
    fn forget_oldest(&mut self, owner: &Arc<str>, wanted: usize) -> usize {
        let mut old: Vec<(u64, u32, Option<Arc<str>>)> = Vec::new();
        for list in self.lists.values().filter(|list| list.owner == *owner) {
            if list.items.is_empty() {
                old.push((list.used, list.number, None));
            }
            for (name, item) in &list.items {
                if item.may_go(self.judge(list, name, item).0) {
                    old.push((list.used(item), list.number, Some(name.clone())));
                }
            }
        }
        old.sort_unstable();
        old.truncate(wanted);
        for (_, number, name) in &old {
            match name {
                Some(name) => self.forget(*number, name),
                None => self.remove(*number),
            }
        }
        old.len()
    }

    /// Forgets an item.
    fn forget(&mut self, number: u32, name: &Arc<str>) {
        let Some(list) = self.lists.get_mut(&number) else { return };
        if list.items.remove(name).is_none() {
            return;
        }
        list.pages.forget();
        list.lossy = true;
        let owner = list.owner.clone();
        self.pending.list(number);
        self.pending.item(number, name, None);
        self.uncount(&owner, 1);
        self.evicted += 1;
    }
}
