//! Which lists may be the same server's: of the same endpoint, of the same name at another address, and at the same
//! address under another name. An address that means something to one agent alone is compared with its own ones.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use super::place::{Endpoint, Place};
use crate::fingerprint::Surface;

/// What lists have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Tie {
    Endpoint(Endpoint),
    Server(Option<Box<str>>, Box<str>),
    Address(Option<Box<str>>, SocketAddr),
}

/// Lists by number.
#[derive(Debug, Default)]
pub(super) struct Kin {
    ties: HashMap<(Tie, Surface), BTreeSet<u32>>,
    /// Of those at an address, the ones that have an item of a name, the oldest first.
    names: HashMap<(Tie, Surface), HashMap<Arc<str>, Vec<u32>>>,
    /// Of those at an address, the ones with something in them that has drifted.
    drifting: HashMap<(Tie, Surface), BTreeSet<u32>>,
}

impl Tie {
    /// What an endpoint shares with others that may be the same server.
    pub(super) fn of_kin(endpoint: &Endpoint) -> [Tie; 2] {
        [Tie::Server(endpoint.agent.clone(), endpoint.server.clone()), Tie::at(endpoint)]
    }

    /// What it shares with all that are at its address.
    fn at(endpoint: &Endpoint) -> Tie {
        Tie::Address(endpoint.agent.clone(), endpoint.address)
    }

    fn of(endpoint: &Endpoint) -> [Tie; 3] {
        let [server, address] = Tie::of_kin(endpoint);
        [Tie::Endpoint(endpoint.clone()), server, address]
    }
}

impl Kin {
    pub(super) fn insert(&mut self, place: &Place, surface: Surface, list: u32) {
        for tie in Tie::of(&place.endpoint) {
            self.ties.entry((tie, surface)).or_default().insert(list);
        }
    }

    /// Whether a list has something in it that has drifted.
    pub(super) fn set_drifting(&mut self, place: &Place, surface: Surface, list: u32, drifts: bool) {
        let address = Tie::at(&place.endpoint);
        let key = (address, surface);
        if drifts {
            self.drifting.entry(key).or_default().insert(list);
        } else if let Some(lists) = self.drifting.get_mut(&key) {
            lists.remove(&list);
            if lists.is_empty() {
                self.drifting.remove(&key);
            }
        }
    }

    pub(super) fn remove(&mut self, place: &Place, surface: Surface, list: u32) {
        self.set_drifting(place, surface, list, false);
        for tie in Tie::of(&place.endpoint) {
            let key = (tie, surface);
            if let Some(lists) = self.ties.get_mut(&key) {
                lists.remove(&list);
                if lists.is_empty() {
                    self.ties.remove(&key);
                }
            }
        }
    }

    /// Items that lists have.
    #[cfg(test)]
    pub(super) fn items(&self) -> usize {
        self.names.values().flat_map(HashMap::values).map(Vec::len).sum()
    }

    /// The lists of one endpoint, the oldest first.
    pub(super) fn of_endpoint(&self, endpoint: &Endpoint, surface: Surface) -> impl Iterator<Item = u32> {
        self.ties.get(&(Tie::Endpoint(endpoint.clone()), surface)).into_iter().flatten().copied()
    }

    /// A list has an item of this name from now on.
    pub(super) fn add_item(&mut self, place: &Place, surface: Surface, list: u32, name: &Arc<str>) {
        let address = Tie::at(&place.endpoint);
        let lists = self.names.entry((address, surface)).or_default().entry(name.clone()).or_default();
        if let Err(at) = lists.binary_search(&list) {
            lists.insert(at, list);
        }
    }

    /// A list has no item of this name any more.
    pub(super) fn drop_item(&mut self, place: &Place, surface: Surface, list: u32, name: &Arc<str>) {
        let address = Tie::at(&place.endpoint);
        let key = (address, surface);
        let Some(names) = self.names.get_mut(&key) else { return };
        if let Some(lists) = names.get_mut(name) {
            lists.retain(|other| *other != list);
            if lists.is_empty() {
                names.remove(name);
            }
        }
        if names.is_empty() {
            self.names.remove(&key);
        }
    }

    /// The lists at the address of an endpoint, under whatever name of it, that have an item of this name, the oldest first.
    pub(super) fn with_item(
        &self,
        endpoint: &Endpoint,
        surface: Surface,
        name: &str,
    ) -> impl Iterator<Item = u32> {
        let address = Tie::at(endpoint);
        let lists = self.names.get(&(address, surface)).and_then(|names| names.get(name));
        lists.into_iter().flatten().copied()
    }

    /// Of these, the ones with something in them that has drifted.
    pub(super) fn drifting_at(&self, endpoint: &Endpoint, surface: Surface) -> impl Iterator<Item = u32> {
        let drifting = Some(&self.drifting).filter(|drifting| !drifting.is_empty());
        let lists = drifting.and_then(|drifting| drifting.get(&(Tie::at(endpoint), surface)));
        lists.into_iter().flatten().copied()
    }

    /// All that may be the same server's: first those of the endpoint itself, in each part the oldest first. What is of
    /// the endpoint comes more than once.
    pub(super) fn of_server(&self, endpoint: &Endpoint, surface: Surface) -> impl Iterator<Item = u32> {
        Tie::of(endpoint)
            .into_iter()
            .flat_map(move |tie| self.ties.get(&(tie, surface)).into_iter().flatten().copied())
    }
}
