//! What is known, in memory: lists of places, and how they are found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::authority::{Authority, Governed};
use super::id::Key;
use super::kin::{Kin, Tie};
use super::list::{Item, List};
use super::pending::Pending;
use super::place::{Endpoint, Place};
use super::room::{BOUNDS, Bounds};
use super::state::{Facts, Trusted};
use crate::fingerprint::{Classes, Standing, State, Surface};

/// Lists that may be the same server's, and are looked at for a call.
const MOST_KIN: usize = 256;
/// What is thought of an item, the worst first.
const RANKS: [State; 5] = [State::Blocked, State::New, State::Drifted, State::Removed, State::Trusted];

/// What is thought of something that is both.
fn worse(one: Standing, other: Standing) -> Standing {
    let rank = |standing: &Standing| RANKS.iter().position(|state| *state == standing.state);
    let state = if rank(&other) < rank(&one) { other.state } else { one.state };
    Standing { state, classes: one.classes.or(other.classes), unsure: false }
}

/// Everything that is known. All of it changes under one lock, which is held for moments.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) lists: HashMap<u32, List>,
    /// Lists by place and surface; 0 is none.
    find: HashMap<Arc<Place>, [u32; Surface::ALL.len()]>,
    pub(super) kin: Kin,
    /// Names that an operator has blocked, with what else may be the same server.
    pub(super) blocks: HashSet<(Tie, Surface, Arc<str>)>,
    /// There are any; read without the lock.
    pub(super) has_blocks: Arc<AtomicBool>,
    /// How many lists and items count on whom.
    pub(super) owners: HashMap<Arc<str>, usize>,
    /// Lists and items.
    pub(super) size: usize,
    pub(super) evicted: u64,
    pub(super) bounds: Bounds,
    /// Counts uses.
    pub(super) clock: u64,
    last_list: u32,
    pub(super) key: Key,
    pub(super) trust_first_use: bool,
    pub(super) authority: Option<Arc<Authority>>,
    pub(super) pending: Pending,
    /// The generation of what was counted last.
    pub(super) counted: Option<u64>,
}

impl Known {
    /// What a store held.
    pub(super) fn restore(&mut self, lists: Vec<List>) {
        for list in lists {
            let number = list.number;
            self.insert(list);
            self.look_for_drift(number);
        }
        self.find_blocks();
    }

    pub(super) fn new(key: Key, trust_first_use: bool, authority: Option<Arc<Authority>>) -> Known {
        Known {
            lists: HashMap::new(),
            find: HashMap::new(),
            kin: Kin::default(),
            blocks: HashSet::new(),
            has_blocks: Arc::default(),
            owners: HashMap::new(),
            size: 0,
            evicted: 0,
            bounds: BOUNDS,
            clock: 0,
            last_list: 0,
            key,
            trust_first_use,
            authority,
            pending: Pending::default(),
            counted: None,
        }
    }

    pub(super) fn list_number(&self, place: &Place, surface: Surface) -> Option<u32> {
        let number = *self.find.get(place)?.get(surface as usize)?;
        (number != 0).then_some(number)
    }

    /// The list of a place, which is made if it is not there. `None`: there is no room for it.
    pub(super) fn enlist(&mut self, place: &Place, surface: Surface, witness: &str) -> Option<u32> {
        if let Some(number) = self.list_number(place, surface) {
            return Some(number);
        }
        if !place.fits() || self.make_room(1) == 0 {
            return None;
        }
        let number = self.last_list.checked_add(1)?;
        let place = self
            .find
            .get_key_value(place)
            .map_or_else(|| Arc::new(place.clone()), |(place, _)| place.clone());
        let owner =
            self.owners.get_key_value(witness).map_or_else(|| witness.into(), |(owner, _)| owner.clone());
        self.insert(List::new(number, place, surface, owner));
        self.pending.list(number);
        Some(number)
    }

    pub(super) fn insert(&mut self, mut list: List) {
        self.last_list = self.last_list.max(list.number);
        self.find.entry(list.place.clone()).or_default()[list.surface as usize] = list.number;
        self.kin.insert(&list.place, list.surface, list.number);
        for name in list.items.keys() {
            self.kin.add_item(&list.place, list.surface, list.number, name);
        }
        let size = list.items.len() + 1;
        self.size += size;
        *self.owners.entry(list.owner.clone()).or_default() += size;
        list.governed = self.over(&list.place.endpoint);
        self.lists.insert(list.number, list);
    }

    /// Forgets a list, with its items.
    pub(super) fn remove(&mut self, number: u32) {
        let Some(list) = self.lists.remove(&number) else { return };
        if let Some(numbers) = self.find.get_mut(&list.place) {
            numbers[list.surface as usize] = 0;
            if numbers.iter().all(|number| *number == 0) {
                self.find.remove(&list.place);
            }
        }
        self.kin.remove(&list.place, list.surface, number);
        for name in list.items.keys() {
            self.kin.drop_item(&list.place, list.surface, number, name);
        }
        self.uncount(&list.owner, list.items.len() + 1);
        self.pending.list(number);
        self.tidy_pending();
    }

    /// What was forgotten while nothing could be written must not pile up: what is not there any more is found on disk
    /// then.
    pub(super) fn tidy_pending(&mut self) {
        if self.pending.len() > 2 * self.bounds.all {
            let lists = &self.lists;
            self.pending.sweep(
                |list| lists.contains_key(&list),
                |(list, name)| lists.get(list).is_some_and(|list| list.items.contains_key(name)),
            );
        }
    }

    pub(super) fn count(&mut self, owner: &Arc<str>) {
        self.size += 1;
        *self.owners.entry(owner.clone()).or_default() += 1;
    }

    pub(super) fn uncount(&mut self, owner: &Arc<str>, size: usize) {
        self.size -= size;
        if let Some(count) = self.owners.get_mut(owner) {
            *count -= size;
            if *count == 0 {
                self.owners.remove(owner);
            }
        }
    }

    /// What is thought of an item. Another revision, or another name of the same server, may be shown first what this one
    /// will be, too: what has drifted for it has drifted here. What is not known here is the worst that it is for anybody
    /// at the same address. `None`: it was never shown.
    pub(super) fn standing(&mut self, place: &Place, surface: Surface, name: &str) -> Option<Standing> {
        let number = self.list_number(place, surface);
        let own = number.filter(|number| self.use_item(*number, name));
        let Some((list, item)) = own.and_then(|number| self.item_in(number, name)) else {
            let others = self.kin.with_item(&place.endpoint, surface, name).take(MOST_KIN);
            let others = others.filter_map(|number| self.item_in(number, name));
            // What a server says of itself is not what its neighbours behind the same address say.
            let is_its =
                |list: &List| !name.is_empty() || list.place.endpoint.server == place.endpoint.server;
            let others = others.filter(|(list, _)| is_its(list));
            let others: Vec<_> = others.collect();
            let theirs = others.iter().map(|(list, item)| self.standing_in(list, name, item));
            // Nor is it here what is trusted there, where a document says what is here.
            let here = self.over(&place.endpoint);
            let of_here = others.iter().filter(|_| here.by.is_some()).map(|(_, item)| {
                let trusted = self.trusted_by(&here, (place, surface), name, item);
                let (state, classes) = Facts { trusted, ..item.facts() }.judge();
                Standing { state, classes, unsure: false }
            });
            let worst = theirs.chain(of_here).reduce(worse);
            let is_lossy = number.and_then(|number| self.lists.get(&number)).is_some_and(|list| list.lossy);
            let forgotten = is_lossy.then(|| Standing { state: State::New, ..Standing::default() });
            return worst.or(forgotten).map(|worst| Standing { unsure: false, ..worst });
        };
        let own = self.standing_in(list, name, item);
        if !matches!(own.state, State::Trusted | State::Drifted | State::Removed) {
            return Some(own);
        }
        let others = self.kin.drifting_at(&place.endpoint, surface).filter(|number| *number != list.number);
        let others = others.take(MOST_KIN).filter_map(|number| self.item_in(number, name));
        let trusted = self.trusted(list, name, item).map(|trusted| *trusted.fingerprint);
        let is_same = |(other, item): &(&List, &Item)| {
            let principal = other.place.principal == place.principal || other.public || list.public;
            let trusts_the_same = || {
                let theirs = self.trusted(other, name, item).map(|trusted| *trusted.fingerprint);
                theirs.is_some() && theirs == trusted
            };
            principal && (other.place.endpoint == place.endpoint || trusts_the_same())
        };
        let others = others.filter(is_same).map(|(other, item)| self.standing_in(other, name, item));
        let drifted = others.filter(|other| other.state == State::Drifted);
        let classes = drifted.map(|other| other.classes).reduce(Classes::or);
        Some(classes.map_or(own, |classes| Standing {
            state: State::Drifted,
            classes: own.classes.or(classes),
            ..own
        }))
    }

    /// Notes that an item is asked for, if it is there.
    fn use_item(&mut self, number: u32, name: &str) -> bool {
        self.clock += 1;
        let item = self.lists.get_mut(&number).and_then(|list| list.items.get_mut(name));
        item.map(|item| item.used = self.clock).is_some()
    }

    fn item_in(&self, number: u32, name: &str) -> Option<(&List, &Item)> {
        let list = self.lists.get(&number)?;
        Some((list, list.items.get(name)?))
    }

    fn standing_in(&self, list: &List, name: &str, item: &Item) -> Standing {
        let (state, classes) = self.judge(list, name, item);
        Standing { state, classes, unsure: list.doubted.is_some() }
    }

    /// What is thought of something that nobody was shown, where so much is governed.
    pub(super) fn unseen(&self, is_governed: bool) -> State {
        if self.trust_first_use && !is_governed { State::Unseen } else { State::New }
    }

    /// Who says what is trusted at an endpoint.
    fn over(&self, endpoint: &Endpoint) -> Governed {
        self.authority.as_ref().map(|authority| authority.over(endpoint)).unwrap_or_default()
    }

    /// The documents that say what is trusted at a place, if any do.
    pub(super) fn governed_by(&self, place: &Place) -> Option<Arc<str>> {
        self.authority.as_ref()?;
        let numbers = self.find.get(place).into_iter().flatten();
        let known = numbers.filter(|number| **number != 0).find_map(|number| self.lists.get(number));
        known.map_or_else(|| self.over(&place.endpoint).by, |list| list.governed.by.clone())
    }

    /// What is thought of an item: by the documents that say what is trusted, where any do.
    pub(super) fn judge(&self, list: &List, name: &str, item: &Item) -> (State, Classes) {
        Facts { trusted: self.trusted(list, name, item), ..item.facts() }.judge()
    }

    /// What of an item is trusted.
    pub(super) fn trusted<'a>(&'a self, list: &List, name: &str, item: &'a Item) -> Option<Trusted<'a>> {
        match list.governed.by {
            Some(_) => self.trusted_by(&list.governed, (&list.place, list.surface), name, item),
            None => item.facts().trusted,
        }
    }

    /// What documents trust of an item.
    fn trusted_by<'a>(
        &'a self,
        governed: &Governed,
        at: (&Place, Surface),
        name: &str,
        item: &Item,
    ) -> Option<Trusted<'a>> {
        self.authority.as_ref()?.trusted(governed, at, name, &item.seen)
    }

    /// The server has said that a list of it has changed.
    pub(super) fn doubt(&mut self, endpoint: &Endpoint, surface: Surface) {
        self.clock += 1;
        for number in self.kin.of_endpoint(endpoint, surface) {
            if let Some(list) = self.lists.get_mut(&number) {
                list.doubted = Some(self.clock);
                list.pages.forget();
            }
        }
    }

    pub(super) fn is_settled(&self, place: &Place, surface: Surface) -> bool {
        let list = self.list_number(place, surface).and_then(|number| self.lists.get(&number));
        list.is_none_or(|list| list.doubted.is_none())
    }

    /// The endpoints of all lists.
    pub(super) fn endpoints(&self) -> HashSet<Endpoint> {
        self.lists.values().map(|list| list.place.endpoint.clone()).collect()
    }

    /// Goes by other documents from now on. `over` has what was found out about them beforehand, as much as there is.
    pub(super) fn set_authority(
        &mut self,
        authority: Option<Arc<Authority>>,
        over: &HashMap<Endpoint, Governed>,
    ) {
        let drifted = self.drifted_ones();
        self.authority = authority;
        let mut lists = std::mem::take(&mut self.lists);
        for list in lists.values_mut() {
            let endpoint = &list.place.endpoint;
            list.governed = over.get(endpoint).cloned().unwrap_or_else(|| self.over(endpoint));
            list.pages.forget();
        }
        self.lists = lists;
        self.counted = None;
        for (number, name) in drifted {
            let Some((list, item)) = self.item_in(number, &name) else { continue };
            if self.judge(list, &name, item).0 == State::Drifted {
                continue;
            }
            // Persons have said that it is good: as with an approval, nobody must be shown something else first.
            let item = self.lists.get_mut(&number).and_then(|list| list.items.get_mut(&name));
            item.into_iter().for_each(|item| item.drifted_to.clear());
            self.pending.item(number, &name, None);
        }
        let numbers: Vec<u32> = self.lists.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.look_for_drift(number));
    }

    /// Items that agents were shown in a form that is not trusted.
    fn drifted_ones(&self) -> Vec<(u32, Arc<str>)> {
        let items =
            self.lists.values().flat_map(|list| list.items.iter().map(move |item| (list.number, item)));
        let drifted = items.filter(|(_, (_, item))| !item.drifted_to.is_empty());
        drifted.map(|(number, (name, _))| (number, name.clone())).collect()
    }

    /// Notes whether a list has something in it that has drifted.
    pub(super) fn look_for_drift(&mut self, number: u32) {
        let Some(list) = self.lists.get(&number) else { return };
        let drifts = list.items.iter().any(|(name, item)| self.judge(list, name, item).0 == State::Drifted);
        self.kin.set_drifting(&list.place, list.surface, number, drifts);
    }

    pub(super) fn counts(&self) -> Vec<(State, usize)> {
        let mut counts = State::SHOWN.map(|state| (state, 0));
        for list in self.lists.values() {
            for (name, item) in &list.items {
                let (state, _) = self.judge(list, name, item);
                counts.iter_mut().filter(|(of, _)| *of == state).for_each(|(_, count)| *count += 1);
            }
        }
        counts.to_vec()
    }
}
