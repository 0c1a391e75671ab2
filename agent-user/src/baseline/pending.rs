//! What is to be written, until it is. Bounded by what memory holds: an item is written as it is when its turn comes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::change::Event;
use crate::fingerprint::{Digest, Fingerprint};

/// Texts that wait to be written, in bytes. When there are more (the disk is full), further ones are not kept.
const MOST_TEXT: usize = 32 << 20;
/// Longest text of an item that is kept. Of longer ones there are digests only.
pub const MAX_TEXT: usize = 64 << 10;
/// Events that are kept of one item: the first, and the last ones.
pub(super) const MOST_EVENTS: usize = 32;
/// Of these, how many wait to be written.
const MOST_WAITING: usize = 4;

/// By list and name.
pub(super) type ItemKey = (u32, Arc<str>);

/// What is to be written.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Items that have changed or were forgotten, and what has happened to them.
    items: HashMap<ItemKey, Vec<Event>>,
    lists: HashSet<u32>,
    /// By digest of the fingerprint.
    pub(super) texts: HashMap<Digest, Text>,
    size: usize,
    /// Some of what is on disk was forgotten, and is not named here.
    pub(super) sweeps: bool,
    /// Counts what was added.
    pub(super) generation: u64,
}

/// A text as it is kept.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Text {
    /// `None`: too long, or there was no room.
    pub(super) text: Option<Arc<str>>,
    /// How long it is, in bytes.
    pub(super) bytes: u64,
    pub(super) smells: Value,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.lists.is_empty()
    }

    /// A list has changed.
    pub(super) fn list(&mut self, list: u32) {
        self.lists.insert(list);
        self.generation += 1;
    }

    /// An item has changed.
    pub(super) fn item(&mut self, list: u32, name: &Arc<str>, event: Option<Event>) {
        let events = self.items.entry((list, name.clone())).or_default();
        events.extend(event);
        self.generation += 1;
        trim(events, MOST_WAITING);
    }

    /// What an item says that has this fingerprint.
    pub(super) fn text(&mut self, fingerprint: &Fingerprint, text: &str, smells: &Value) {
        let key = super::id::digest(fingerprint);
        if self.texts.contains_key(&key) {
            return;
        }
        let fits = |size: usize| self.size + size <= MOST_TEXT;
        let empty = size_of::<Text>() + smells.to_string().len();
        let full = text.len() + empty;
        let (kept, size) = if text.len() <= MAX_TEXT && fits(full) { (true, full) } else { (false, empty) };
        if fits(size) {
            self.size += size;
            let (text, bytes) = (kept.then(|| text.into()), text.len() as u64);
            self.texts.insert(key, Text { text, bytes, smells: smells.clone() });
        }
    }

    /// Lists and items.
    pub(super) fn len(&self) -> usize {
        self.lists.len() + self.items.len()
    }

    /// Goes on with what is there alone.
    pub(super) fn sweep(&mut self, has_list: impl Fn(u32) -> bool, has_item: impl Fn(&ItemKey) -> bool) {
        self.lists.retain(|list| has_list(*list));
        self.items.retain(|key, _| has_item(key));
        self.sweeps = true;
    }

    pub(super) fn lists(&self) -> impl Iterator<Item = u32> {
        self.lists.iter().copied()
    }

    pub(super) fn items(&self) -> impl Iterator<Item = (&ItemKey, &Vec<Event>)> {
        self.items.iter()
    }

    /// What has happened to an item.
    pub(super) fn events(&self, key: &ItemKey) -> &[Event] {
        self.items.get(key).map_or(&[], |events| events)
    }

    /// All of it.
    pub(super) fn take(&mut self) -> Pending {
        let rest = Pending { generation: self.generation, ..Pending::default() };
        std::mem::replace(self, rest)
    }

    /// Takes back what could not be written.
    pub(super) fn put_back(&mut self, mut before: Pending) {
        for (key, events) in std::mem::take(&mut self.items) {
            let all = before.items.entry(key).or_default();
            all.extend(events);
            trim(all, MOST_WAITING);
        }
        self.items = before.items;
        self.lists.extend(before.lists);
        self.sweeps |= before.sweeps;
        for (key, text) in before.texts {
            self.size += text.text.as_ref().map_or(0, |text| text.len()) + size_of::<Text>();
            self.texts.insert(key, text);
        }
    }
}

/// Forgets the oldest but the first.
pub(super) fn trim(events: &mut Vec<Event>, most: usize) {
    if events.len() > most {
        events.drain(1..=events.len() - most);
    }
}
