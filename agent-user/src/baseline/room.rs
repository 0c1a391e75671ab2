//! Room for what is new. Whoever has brought the most gives, and of theirs what was used longest ago; never what is
//! blocked or drifted, or what an operator has approved.

use std::collections::HashSet;
use std::sync::Arc;

use super::known::Known;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Lists and items of all.
    pub(super) all: usize,
    /// Items of one list. When there are more, what is gone from it makes room; what is there does not, so that a server
    /// cannot have itself forgotten by showing a lot.
    pub(super) list: usize,
}

pub(super) const BOUNDS: Bounds = Bounds { all: 65_536, list: 8_192 };
/// Of all that is kept, the part that is forgotten at once at least, so that not each that comes new looks at all.
const STRIDE: usize = 1_024;

impl Known {
    /// Makes room for items of a list; for how many there is some.
    pub(super) fn make_room_in(&mut self, number: u32, wanted: usize) -> usize {
        let Some(list) = self.lists.get(&number) else { return 0 };
        let surplus = (list.items.len() + wanted).saturating_sub(self.bounds.list);
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
        let free =
            self.lists.get(&number).map_or(0, |list| self.bounds.list.saturating_sub(list.items.len()));
        self.make_room(wanted.min(free))
    }

    /// Makes room for lists and items; for how many there is some.
    pub(super) fn make_room(&mut self, wanted: usize) -> usize {
        let mut barren = HashSet::new();
        while let surplus = (self.size + wanted).saturating_sub(self.bounds.all)
            && surplus > 0
        {
            let rich = self.owners.iter().filter(|(owner, _)| !barren.contains(*owner));
            let mut rich: Vec<(usize, Arc<str>)> =
                rich.map(|(owner, count)| (*count, owner.clone())).collect();
            rich.sort_unstable();
            let Some((most, owner)) = rich.pop() else { break };
            let next = rich.last().map_or(0, |(count, _)| *count);
            let stride = (self.bounds.all / STRIDE).max(1);
            if self.forget_oldest(&owner, surplus.max(stride).min((most - next).max(stride))) == 0 {
                barren.insert(owner);
            }
        }
        self.bounds.all.saturating_sub(self.size).min(wanted)
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
        self.kin.drop_item(&list.place, list.surface, number, name);
        list.pages.forget();
        list.lossy = true;
        let owner = list.owner.clone();
        self.pending.list(number);
        self.pending.item(number, name, None);
        self.uncount(&owner, 1);
        self.evicted += 1;
        self.tidy_pending();
    }
}
