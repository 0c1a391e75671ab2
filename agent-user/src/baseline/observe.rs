//! What a page of a list changes in what is known.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::change::{Change, Event, What};
use super::id;
use super::known::Known;
use super::list::{Block, Item, List};
use super::place::{Page, Place, Shown};
use super::rename::{self, Looks};
use super::siblings::Siblings;
use super::walk::Step;
use crate::fingerprint::{Class, Classes, Fingerprint, State, compare};

/// Who sees a page, where and when.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub(super) place: &'a Place,
    pub(super) page: &'a Page,
    pub(super) witness: &'a str,
    pub(super) now: Timestamp,
}

impl Known {
    /// Takes a page that is as it was, in a list of which nothing has changed since. `None`: it is not.
    pub(super) fn repeat(&mut self, sight: Sight<'_>) -> Option<Vec<Change>> {
        let number = self.list_number(sight.place, sight.page.surface)?;
        let names = self.lists.get(&number)?.pages.find(sight.page)?;
        self.touch(number);
        self.with_list(number, |known, list| {
            let mut changes = Vec::new();
            let alone = sight.page.asked.is_none() && sight.page.next.is_none();
            if alone && list.whole {
                list.shuffled = false;
            } else {
                let step = list.step(sight.page, known.clock);
                known.pass(list, sight, step, &names, &mut changes);
            }
            changes
        })
    }

    /// Takes a page.
    pub(super) fn observe(&mut self, sight: Sight<'_>, items: &[Shown<'_>]) -> Vec<Change> {
        let Some(number) = self.enlist(sight.place, sight.page.surface, sight.witness) else {
            return Vec::new();
        };
        self.touch(number);
        let Some(list) = self.lists.get(&number) else { return Vec::new() };
        let wanted = items.iter().filter(|item| !list.items.contains_key(&*item.name)).count();
        let room = self.make_room_in(number, wanted);
        let changes = self.with_list(number, |known, list| known.take(list, sight, items, room));
        self.look_for_drift(number);
        changes.unwrap_or_default()
    }

    /// A list is used, and with it what is there.
    fn touch(&mut self, number: u32) {
        self.clock += 1;
        if let Some(list) = self.lists.get_mut(&number) {
            list.used = self.clock;
        }
    }

    /// Works on a list while the others can be looked at.
    fn with_list<T>(&mut self, number: u32, work: impl FnOnce(&mut Known, &mut List) -> T) -> Option<T> {
        let mut list = self.lists.remove(&number)?;
        let done = work(self, &mut list);
        self.lists.insert(number, list);
        Some(done)
    }

    fn take(
        &mut self,
        list: &mut List,
        sight: Sight<'_>,
        items: &[Shown<'_>],
        mut room: usize,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        if list.public != sight.page.public {
            list.public = sight.page.public;
            self.pending.list(list.number);
        }
        let mut step = list.step(sight.page, self.clock);
        let siblings = (room > 0).then(|| self.siblings(list));
        let mut names: Vec<Arc<str>> = Vec::with_capacity(items.len());
        for shown in items {
            let known = list.items.get_key_value(&*shown.name);
            let known = known.map(|(name, item)| (name.clone(), item.present));
            let (name, came, change) = match known {
                Some((name, present)) => {
                    let change = self.see_again(list, sight, &name, shown, step.as_ref());
                    (name, !present, change)
                }
                None if room == 0 => {
                    list.lossy = true;
                    continue;
                }
                None => {
                    room -= 1;
                    let (name, change) = self.see_first(list, sight, shown, siblings.as_ref());
                    (name, true, change)
                }
            };
            if came && let Some(step) = &mut step {
                step.found(&name);
            }
            changes.extend(change);
            names.push(name);
        }
        self.pass(list, sight, step, &names, &mut changes);
        if !changes.is_empty() {
            list.pages.forget();
        }
        // Who is shown what is not trusted has to be known.
        let has_drifted =
            names.iter().any(|name| list.items.get(name).is_some_and(|item| !item.drifted_to.is_empty()));
        if names.len() == items.len() && !has_drifted {
            list.pages.remember(sight.page, names.into());
        }
        changes
    }

    /// An item that is not known is shown.
    fn see_first(
        &mut self,
        list: &mut List,
        sight: Sight<'_>,
        shown: &Shown<'_>,
        siblings: Option<&Siblings>,
    ) -> (Arc<str>, Option<Change>) {
        let name: Arc<str> = (*shown.name).into();
        let seen = shown.fingerprint;
        let mut item = Item {
            trust: siblings
                .and_then(|siblings| self.first_trust((list, sight.witness), &name, &seen, siblings)),
            block: if self.is_blocked(list, &name) { Block::Kin } else { Block::No },
            id: self.key.id(&list.place, list.surface, &name, &seen),
            looks: Looks::of(&shown.text),
            used: self.clock,
            added: list.is_known(),
            ..Item::new(seen, sight.now)
        };
        if self.judge(list, &name, &item).0 == State::Drifted {
            item.drifts_to(sight.witness);
        }
        list.items.insert(name.clone(), Box::new(item));
        self.kin.add_item(&list.place, list.surface, list.number, &name);
        self.count(&list.owner);
        self.pending.text(&seen, &shown.text, &shown.smells);
        let what = if list.is_known() { What::Added } else { What::First };
        let change = self.tell(list, sight, &name, (what, Classes::NONE), None);
        (name, change)
    }

    /// An item that is known is shown.
    fn see_again(
        &mut self,
        list: &mut List,
        sight: Sight<'_>,
        name: &Arc<str>,
        shown: &Shown<'_>,
        step: Option<&Step>,
    ) -> Option<Change> {
        let before = list.items.get(name).map(|item| (**item).clone())?;
        if before.present && before.seen == shown.fingerprint {
            let item = list.items.get_mut(name).filter(|item| !item.drifted_to.is_empty())?;
            item.drifts_to(sight.witness);
            return None;
        }
        let (state_before, _) = self.judge(list, name, &before);
        let mut item = before.clone();
        item.present = true;
        if item.seen != shown.fingerprint {
            item.show(shown.fingerprint);
            item.was = item.id;
            item.id = self.key.id(&list.place, list.surface, name, &shown.fingerprint);
            item.looks = Looks::of(&shown.text);
            item.since = sight.now;
        }
        let (state, classes) = self.judge(list, name, &item);
        let twice = step.is_none_or(|step| before.present && before.walked & step.bit != 0);
        let is_back = state == State::Trusted && state_before == State::Drifted;
        if twice && is_back {
            // A name that comes twice in one list is the worse of both, and what nobody has asked for makes nothing good.
            return None;
        }
        if is_back && let Some(item) = list.items.get_mut(name) {
            item.drifted_to.retain(|agent| **agent != *sight.witness);
            if !item.drifted_to.is_empty() {
                // Others go by the other one still.
                return None;
            }
        }
        if state == State::Drifted {
            item.drifts_to(sight.witness);
        } else if is_back {
            item.drifted_to.clear();
        }
        list.items.insert(name.clone(), Box::new(item));
        self.pending.text(&shown.fingerprint, &shown.text, &shown.smells);
        let apart = compare(&before.seen, &shown.fingerprint, true);
        let told = match state {
            State::Trusted if before.present && state_before == State::Trusted => None,
            State::Trusted => Some((What::Returned, Classes::NONE)),
            State::Drifted => Some((What::Drifted, classes)),
            _ if before.present => Some((What::Changed, apart)),
            _ => Some((What::Returned, apart)),
        };
        let Some(told) = told else {
            self.pending.item(list.number, name, None);
            return None;
        };
        self.tell(list, sight, name, told, Some(&before.seen))
    }

    /// A page was passed: the walk goes on, or is at its end and has seen the list whole.
    fn pass(
        &mut self,
        list: &mut List,
        sight: Sight<'_>,
        step: Option<Step>,
        names: &[Arc<str>],
        changes: &mut Vec<Change>,
    ) {
        let Some(mut step) = step else { return };
        for name in names {
            if let Some(item) = list.items.get_mut(name).filter(|item| item.walked & step.bit == 0) {
                item.walked |= step.bit;
                step.pass(name);
            }
        }
        match sight.page.next {
            Some(next) => list.walks.go_on(sight.page.walker, next, step),
            None => self.commit(list, sight, &step, changes),
        }
    }

    /// The list was seen whole.
    fn commit(&mut self, list: &mut List, sight: Sight<'_>, step: &Step, changes: &mut Vec<Change>) {
        if list.doubted.is_some_and(|doubted| step.began < doubted) {
            // It began before the server said that it has changed: what it missed may be on a page that it saw before.
            return;
        }
        list.doubted = None;
        if !list.whole {
            list.whole = true;
            self.pending.list(list.number);
        }
        let gone = list.items.iter().filter(|(_, item)| item.present && item.walked & step.bit == 0);
        let mut gone: Vec<Arc<str>> = gone.map(|(name, _)| name.clone()).collect();
        gone.sort_unstable();
        for name in &gone {
            let Some(item) = list.items.get_mut(name) else { continue };
            item.present = false;
            item.used = self.clock;
            let removed = (What::Removed, Classes::from_iter([Class::Removed]));
            changes.extend(self.tell(list, sight, name, removed, None));
        }
        for (new, old) in rename::find(list, &gone, &step.new) {
            if let Some(item) = list.items.get_mut(&new) {
                item.renamed_from = Some(old.clone());
                self.pending.item(list.number, &new, None);
            }
            if let Some(change) = changes.iter_mut().find(|change| change.name == new) {
                change.renamed_from = Some(old);
            }
        }
        let (order, same_set) = (step.order(), gone.is_empty() && step.new.is_empty());
        let reordered = same_set && list.order.is_some_and(|before| before != order);
        if reordered && !list.shuffled {
            changes.push(Change::reordered(list));
        }
        list.shuffled = reordered || (list.shuffled && !same_set);
        list.order = Some(order);
    }

    /// What is told, and written, of a change.
    fn tell(
        &mut self,
        list: &List,
        sight: Sight<'_>,
        name: &Arc<str>,
        (what, classes): (What, Classes),
        before: Option<&Fingerprint>,
    ) -> Option<Change> {
        let item = list.items.get(name)?;
        let change = self.change(list, name, item, what);
        let classes = if classes.is_empty() { change.classes } else { classes };
        let event = Event {
            at: sight.now,
            what,
            classes,
            digest: item.seen.definition,
            agent: Some(sight.witness.to_owned()),
            by: None,
            reason: None,
        };
        self.pending.item(list.number, name, Some(event));
        Some(Change { classes, before: before.map(|before| before.definition), ..change })
    }

    /// What is told of an item as it is.
    pub(super) fn change(&self, list: &List, name: &Arc<str>, item: &Item, what: What) -> Change {
        let (state, classes) = self.judge(list, name, item);
        Change {
            place: list.place.clone(),
            surface: list.surface,
            name: name.clone(),
            id: id::write(item.id),
            what,
            state,
            classes,
            digest: Some(item.seen.definition),
            before: None,
            renamed_from: None,
        }
    }
}

impl List {
    /// The walk that a page belongs to.
    fn step(&mut self, page: &Page, now: u64) -> Option<Step> {
        let (step, fresh) = self.walks.step(page, now)?;
        if fresh {
            self.items.values_mut().for_each(|item| item.walked &= !step.bit);
        }
        Some(step)
    }
}

/// What has the same name is one item: readers would differ on which is meant, so it is all of them.
pub(super) fn merge<'a>(items: Vec<Shown<'a>>) -> Vec<Shown<'a>> {
    let mut merged: Vec<Vec<Shown<'a>>> = Vec::with_capacity(items.len());
    let mut places: HashMap<Cow<'a, str>, usize> = HashMap::with_capacity(items.len());
    for item in items {
        match places.get(&item.name) {
            None => {
                places.insert(item.name.clone(), merged.len());
                merged.push(vec![item]);
            }
            Some(place) => merged[*place].push(item),
        }
    }
    merged.into_iter().filter_map(Shown::join).collect()
}
