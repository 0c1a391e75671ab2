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
        trim(events);
    }

    /// What an item says that has this fingerprint.
    pub(super) fn text(&mut self, fingerprint: &Fingerprint, text: &str, smells: &Value) {
        let key = super::id::digest(fingerprint);
        if self.texts.contains_key(&key) {
            return;
        }
        let size = text.len() + size_of::<Text>();
        let kept = text.len() <= MAX_TEXT && self.size + size <= MOST_TEXT;
        self.size += if kept { size } else { size_of::<Text>() };
        let bytes = text.len() as u64;
        let smells = if kept { smells.clone() } else { Value::Null };
        self.texts.insert(key, Text { text: kept.then(|| text.into()), bytes, smells });
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
            trim(all);
        }
        self.items = before.items;
        self.lists.extend(before.lists);
        for (key, text) in before.texts {
            self.size += text.text.as_ref().map_or(0, |text| text.len()) + size_of::<Text>();
            self.texts.insert(key, text);
        }
    }
}

/// Forgets the oldest but the first.
pub(super) fn trim(events: &mut Vec<Event>) {
    if events.len() > MOST_EVENTS {
        events.drain(1..=events.len() - MOST_EVENTS);
    }
}
