//! The store on disk: what is in `baseline.redb`, read when the daemon begins and written in transactions.
//!
//! Values are JSON. Texts are kept once, however many show them, and counted: most principals see the same.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable, Table, TableDefinition, WriteTransaction,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::change::Event;
use super::id::{self, Key};
use super::list::{Item, List};
use super::pending::{ItemKey, MOST_EVENTS, Text, trim};
use super::place::Place;
use crate::fingerprint::{Digest, Surface};

const VERSION: &[u8] = b"1";
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const LISTS: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("lists");
const ITEMS: TableDefinition<'_, (u32, &str), &[u8]> = TableDefinition::new("items");
const HISTORY: TableDefinition<'_, (u32, &str), &[u8]> = TableDefinition::new("history");
/// By digest of the fingerprint.
const TEXTS: TableDefinition<'_, &[u8; 32], &[u8]> = TableDefinition::new("texts");
/// How many items show or trust a text.
const USES: TableDefinition<'_, &[u8; 32], u32> = TableDefinition::new("uses");

type ItemTable<'a> = Table<'a, (u32, &'static str), &'static [u8]>;
type Result<T> = std::result::Result<T, Fault>;

/// What went wrong, of whatever kind.
pub(super) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// Opens the database, again after every fault.
pub(super) type Open = Box<dyn Fn() -> std::result::Result<Database, DatabaseError> + Send>;

/// The database and the way to it.
pub(super) struct Store {
    open: Open,
    /// Closed after a fault.
    database: Option<Database>,
}

/// What is written at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Lists as they are now; `None` is forgotten.
    pub(super) lists: Vec<(u32, Option<SavedList>)>,
    /// Items as they are now, and what has happened to them.
    pub(super) items: HashMap<ItemKey, (Option<Item>, Vec<Event>)>,
    pub(super) texts: HashMap<Digest, Text>,
    /// Set where only these lists and items are to be there afterwards.
    pub(super) keep: Option<(HashSet<u32>, HashSet<ItemKey>)>,
}

/// What is read when the daemon begins.
pub(super) struct Content {
    pub(super) key: Key,
    pub(super) lists: Vec<List>,
}

/// A list as it is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedList {
    place: Arc<Place>,
    surface: Surface,
    owner: Arc<str>,
    whole: bool,
    lossy: bool,
    public: bool,
}

impl Store {
    /// Opens a store.
    pub(super) fn new(open: Open) -> std::result::Result<Store, DatabaseError> {
        let database = open()?;
        Ok(Store { open, database: Some(database) })
    }

    /// Writes what a new store has.
    pub(super) fn initialize(database: &Database, key: &Key) -> Result<()> {
        let transaction = begin(database)?;
        {
            let mut meta = transaction.open_table(META)?;
            meta.insert("version", VERSION)?;
            meta.insert("key", &key.0[..])?;
            transaction.open_table(LISTS)?;
            transaction.open_table(ITEMS)?;
            transaction.open_table(HISTORY)?;
            transaction.open_table(TEXTS)?;
            transaction.open_table(USES)?;
        }
        Ok(transaction.commit()?)
    }

    /// Reads everything but texts and histories.
    pub(super) fn read(&mut self) -> Result<Content> {
        let transaction = self.database()?.begin_read()?;
        let meta = transaction.open_table(META)?;
        let version = meta.get("version")?.ok_or("it has no version")?;
        if version.value() != VERSION {
            let version = String::from_utf8_lossy(version.value()).into_owned();
            return Err(format!("its version is {version}; this interlock reads version 1").into());
        }
        let key = meta.get("key")?.ok_or("it has no key")?;
        let key = Key(key.value().try_into().map_err(|_| "its key is broken")?);
        let mut lists = HashMap::new();
        for entry in transaction.open_table(LISTS)?.iter()? {
            let (number, list) = entry?;
            let number = number.value();
            let list: SavedList = parse(list.value(), || format!("list {number}"))?;
            lists.insert(number, list.restore(number));
        }
        for entry in transaction.open_table(ITEMS)?.iter()? {
            let (item_key, item) = entry?;
            let (number, name) = item_key.value();
            let mut item: Item = parse(item.value(), || format!("item {name:?} of list {number}"))?;
            let list = lists
                .get_mut(&number)
                .ok_or_else(|| format!("item {name:?} is of list {number}, which is not there"))?;
            item.id = key.id(&list.place, list.surface, name, &item.seen);
            list.items.insert(name.into(), Box::new(item));
        }
        Ok(Content { key, lists: lists.into_values().collect() })
    }

    /// Writes a batch, whole or not at all.
    pub(super) fn write(&mut self, batch: &Batch) -> Result<()> {
        let written = self.database().and_then(|database| write(database, batch));
        if written.is_err() {
            self.database = None;
        }
        written
    }

    /// A text, where it is kept.
    pub(super) fn text(&mut self, digest: Digest) -> Result<Option<Text>> {
        let texts = self.database()?.begin_read()?.open_table(TEXTS)?;
        texts.get(&digest.0)?.map(|text| parse(text.value(), || format!("text {digest}"))).transpose()
    }

    /// What has happened to an item.
    pub(super) fn history(&mut self, (list, name): &ItemKey) -> Result<Vec<Event>> {
        let histories = self.database()?.begin_read()?.open_table(HISTORY)?;
        let history = histories.get((*list, &**name))?;
        let history = history.map(|history| parse(history.value(), || format!("history of {name:?}")));
        Ok(history.transpose()?.unwrap_or_default())
    }

    fn database(&mut self) -> Result<&Database> {
        if self.database.is_none() {
            self.database = Some((self.open)()?);
        }
        self.database.as_ref().ok_or_else(|| "it is closed".into())
    }
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.items.is_empty() && self.keep.is_none()
    }
}

impl SavedList {
    pub(super) fn new(list: &List) -> SavedList {
        SavedList {
            place: list.place.clone(),
            surface: list.surface,
            owner: list.owner.clone(),
            whole: list.whole,
            lossy: list.lossy,
            public: list.public,
        }
    }

    fn restore(self, number: u32) -> List {
        let mut list = List::new(number, self.place, self.surface, self.owner);
        (list.whole, list.lossy, list.public) = (self.whole, self.lossy, self.public);
        list
    }
}

/// Begins a transaction. What servers say is in it, so it must not rest on checksums that they could forge.
fn begin(database: &Database) -> Result<WriteTransaction> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

fn write(database: &Database, batch: &Batch) -> Result<()> {
    let transaction = begin(database)?;
    write_lists(&transaction, batch)?;
    let mut uses = write_items(&transaction, batch)?;
    if let Some((lists, items)) = &batch.keep {
        sweep(&transaction, lists, items, &mut uses)?;
    }
    write_texts(&transaction, batch, &uses)?;
    Ok(transaction.commit()?)
}

fn write_lists(transaction: &WriteTransaction, batch: &Batch) -> Result<()> {
    let mut lists = transaction.open_table(LISTS)?;
    for (number, list) in &batch.lists {
        match list {
            Some(list) => lists.insert(number, &serde_json::to_vec(list)?[..])?,
            None => lists.remove(number)?,
        };
    }
    Ok(())
}

/// How many more, or less, items show or trust a text.
fn write_items(transaction: &WriteTransaction, batch: &Batch) -> Result<HashMap<Digest, i64>> {
    let mut items = transaction.open_table(ITEMS)?;
    let mut histories = transaction.open_table(HISTORY)?;
    let mut uses: HashMap<Digest, i64> = HashMap::new();
    for ((list, name), (item, events)) in &batch.items {
        let key = (*list, &**name);
        let before = match item {
            Some(item) => items.insert(key, &serde_json::to_vec(item)?[..])?,
            None => items.remove(key)?,
        };
        let before: Option<Item> =
            before.map(|before| parse(before.value(), || format!("item {name:?}"))).transpose()?;
        item.iter().flat_map(texts_of).for_each(|text| *uses.entry(text).or_default() += 1);
        before.iter().flat_map(texts_of).for_each(|text| *uses.entry(text).or_default() -= 1);
        match item {
            None => drop(histories.remove(key)?),
            Some(_) if !events.is_empty() => add_events(&mut histories, key, events)?,
            Some(_) => {}
        }
    }
    Ok(uses)
}

/// Removes what is not to be kept.
fn sweep(
    transaction: &WriteTransaction,
    lists: &HashSet<u32>,
    keep: &HashSet<ItemKey>,
    uses: &mut HashMap<Digest, i64>,
) -> Result<()> {
    transaction.open_table(LISTS)?.retain(|number, _| lists.contains(&number))?;
    let mut items = transaction.open_table(ITEMS)?;
    let mut histories = transaction.open_table(HISTORY)?;
    let mut gone: Vec<(u32, String)> = Vec::new();
    for entry in items.iter()? {
        let (key, item) = entry?;
        let (list, name) = key.value();
        if !keep.contains(&(list, name.into())) {
            let item: Item = parse(item.value(), || format!("item {name:?}"))?;
            texts_of(&item).for_each(|text| *uses.entry(text).or_default() -= 1);
            gone.push((list, name.to_owned()));
        }
    }
    for (list, name) in &gone {
        items.remove((*list, name.as_str()))?;
        histories.remove((*list, name.as_str()))?;
    }
    Ok(())
}

fn add_events(histories: &mut ItemTable<'_>, key: (u32, &str), events: &[Event]) -> Result<()> {
    let before =
        histories.get(key)?.map(|history| parse(history.value(), || format!("history of {:?}", key.1)));
    let mut history: Vec<Event> = before.transpose()?.unwrap_or_default();
    history.extend_from_slice(events);
    trim(&mut history, MOST_EVENTS);
    histories.insert(key, &serde_json::to_vec(&history)?[..])?;
    Ok(())
}

/// Writes texts that are used and not there yet, and removes those that are used no longer.
fn write_texts(transaction: &WriteTransaction, batch: &Batch, uses: &HashMap<Digest, i64>) -> Result<()> {
    let mut counts = transaction.open_table(USES)?;
    let mut texts = transaction.open_table(TEXTS)?;
    for (digest, change) in uses {
        let count = counts.get(&digest.0)?.map_or(0, |count| count.value());
        let count = u32::try_from((i64::from(count) + change).max(0))?;
        match count {
            0 => {
                counts.remove(&digest.0)?;
                texts.remove(&digest.0)?;
            }
            _ => drop(counts.insert(&digest.0, count)?),
        }
    }
    for (digest, text) in &batch.texts {
        if counts.get(&digest.0)?.is_some() && texts.get(&digest.0)?.is_none() {
            texts.insert(&digest.0, &serde_json::to_vec(text)?[..])?;
        }
    }
    Ok(())
}

/// What it shows, and what is trusted instead.
fn texts_of(item: &Item) -> impl Iterator<Item = Digest> {
    let other = item.trust.as_ref().and_then(|trust| trust.other.as_ref());
    [Some(&item.seen), other.map(|other| &other.fingerprint)].into_iter().flatten().map(id::digest)
}

fn parse<T: DeserializeOwned>(json: &[u8], subject: impl Fn() -> String) -> Result<T> {
    serde_json::from_slice(json).map_err(|error| format!("{}: {error}", subject()).into())
}
