//! What is known, in memory: lists of places, and how they are found.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::authority::Authority;
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
const RANKS: [State; 5] = [State::Blocked, State::Drifted, State::New, State::Removed, State::Trusted];

/// Everything that is known. All of it changes under one lock, which is held for moments.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) lists: HashMap<u32, List>,
    /// Lists by place and surface; 0 is none.
    find: HashMap<Arc<Place>, [u32; Surface::ALL.len()]>,
    pub(super) kin: Kin,
    /// Names that an operator has blocked, with what else may be the same server.
    pub(super) blocks: HashSet<(Tie, Surface, Arc<str>)>,
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
}

impl Known {
    /// What a store held.
    pub(super) fn restore(&mut self, lists: Vec<List>) {
        lists.into_iter().for_each(|list| self.insert(list));
        self.find_blocks();
    }

    pub(super) fn new(key: Key, trust_first_use: bool, authority: Option<Arc<Authority>>) -> Known {
        Known {
            lists: HashMap::new(),
            find: HashMap::new(),
            kin: Kin::default(),
            blocks: HashSet::new(),
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
        let size = list.items.len() + 1;
        self.size += size;
        *self.owners.entry(list.owner.clone()).or_default() += size;
        list.sections =
            self.authority.as_ref().map(|authority| authority.sections(&list.place)).unwrap_or_default();
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

    /// What is thought of an item. Another revision may be shown first what this one will be, too: what has drifted for it
    /// has drifted here. What is not known here is the worst that it is for another revision, principal or name of the same
    /// server. `None`: it was never shown.
    pub(super) fn standing(&mut self, place: &Place, surface: Surface, name: &str) -> Option<Standing> {
        let own = self.list_number(place, surface).filter(|number| self.use_item(*number, name));
        let endpoint = &place.endpoint;
        let others = self.kin.of_server(endpoint, surface).filter(|number| Some(*number) != own);
        let of = |number: u32| {
            let list = self.lists.get(&number)?;
            Some((list, self.standing_in(list, name)?))
        };
        let others = others.take(MOST_KIN).filter_map(of);
        match own.and_then(of) {
            Some((list, own)) if own.state == State::Trusted => {
                let is_same = |other: &List| {
                    let principal = other.place.principal == place.principal;
                    other.place.endpoint == *endpoint && (principal || other.public || list.public)
                };
                let drifted = others.filter(|(other, _)| is_same(other)).map(|(_, other)| other);
                let drifted = drifted.filter(|other| other.state == State::Drifted);
                let classes = drifted.map(|other| other.classes).reduce(Classes::or);
                Some(classes.map_or(own, |classes| Standing {
                    state: State::Drifted,
                    classes: own.classes.or(classes),
                    ..own
                }))
            }
            Some((_, own)) => Some(own),
            None => {
                let rank = |standing: &Standing| RANKS.iter().position(|state| *state == standing.state);
                // What goes by the same name says more than what is at the same address.
                let key = |(list, other): &(&List, Standing)| {
                    (list.place.endpoint.server != endpoint.server, rank(other))
                };
                others.min_by_key(key).map(|(_, other)| other)
            }
        }
    }

    /// Notes that an item is asked for, if it is there.
    fn use_item(&mut self, number: u32, name: &str) -> bool {
        self.clock += 1;
        let item = self.lists.get_mut(&number).and_then(|list| list.items.get_mut(name));
        item.map(|item| item.used = self.clock).is_some()
    }

    fn standing_in(&self, list: &List, name: &str) -> Option<Standing> {
        let (state, classes) = self.judge(list, name, list.items.get(name)?);
        Some(Standing { state, classes, unsure: list.doubted.is_some() })
    }

    /// What is thought of something that nobody was shown.
    pub(super) fn unseen(&self) -> State {
        let trusts = self.trust_first_use && self.authority.is_none();
        if trusts { State::Unseen } else { State::New }
    }

    /// What is thought of an item: by the file that says what is trusted, where there is one.
    pub(super) fn judge(&self, list: &List, name: &str, item: &Item) -> (State, Classes) {
        Facts { trusted: self.trusted(list, name, item), ..item.facts() }.judge()
    }

    /// What of an item is trusted.
    pub(super) fn trusted<'a>(&'a self, list: &List, name: &str, item: &'a Item) -> Option<Trusted<'a>> {
        match &self.authority {
            Some(authority) => authority.trusted(list, name, &item.seen),
            None => item.facts().trusted,
        }
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

    pub(super) fn set_authority(&mut self, authority: Option<Arc<Authority>>) {
        for list in self.lists.values_mut() {
            list.sections =
                authority.as_ref().map(|authority| authority.sections(&list.place)).unwrap_or_default();
            list.pages.forget();
        }
        self.authority = authority;
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
