//! Carrying out orders: what one would change is written first, and changes what is known once it is on disk.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use globset::GlobBuilder;

use super::change::{Change, Event, What};
use super::document::{Document, Entry};
use super::id;
use super::index::Index;
use super::kin::Tie;
use super::known::Known;
use super::list::{Block, How, Item, List, Other, Trust};
use super::order::{Filter, Order, Refusal, Summary};
use super::pending::{ItemKey, Pending, Text};
use super::rename::Looks;
use super::store::{Batch, SavedList};
use crate::fingerprint::{Classes, Fingerprint, Standing};

/// On whom counts what was never shown.
const IMPORTED: &str = "";

/// What an operator wants.
#[derive(Debug)]
pub(super) enum Wish {
    Approve(String),
    Block(String),
    Import(Arc<Document>),
}

/// What an order does, item by item.
#[derive(Debug)]
pub(super) struct Plan {
    what: What,
    order: Order,
    deeds: Vec<(ItemKey, Deed)>,
    texts: Vec<(Fingerprint, Arc<str>)>,
}

/// What an order does to an item.
#[derive(Clone, Debug)]
enum Deed {
    /// This is trusted.
    Trust(Box<Fingerprint>),
    /// A document says what is trusted; that it is blocked ends.
    Unblock,
    Block(Block),
}

impl Known {
    /// The items that a filter asks for.
    pub(super) fn summaries(&self, filter: &Filter) -> Vec<Summary> {
        let mut summaries: Vec<Summary> =
            self.asked(filter).map(|(list, name, item)| self.summary(list, name, item)).collect();
        summaries.sort_by(|one, other| {
            (&one.place, one.surface, &one.name).cmp(&(&other.place, other.surface, &other.name))
        });
        summaries
    }

    /// The same, in no order.
    pub(super) fn asked(&self, filter: &Filter) -> impl Iterator<Item = (&List, &Arc<str>, &Item)> {
        let (servers, names) =
            (matcher(filter.server.as_deref(), true), matcher(filter.name.as_deref(), false));
        let Filter { surface, state, .. } = *filter;
        let is_about = move |list: &&List| {
            surface.is_none_or(|surface| surface == list.surface)
                && list.place.endpoint.names().iter().any(|name| servers(name))
        };
        let items = self
            .lists
            .values()
            .filter(is_about)
            .flat_map(|list| list.items.iter().map(move |(name, item)| (list, name, &**item)));
        let named = items.filter(move |(_, name, _)| names(name));
        named.filter(move |(list, name, item)| {
            state.is_none_or(|state| state == self.judge(list, name, item).0)
        })
    }

    pub(super) fn summary(&self, list: &List, name: &Arc<str>, item: &Item) -> Summary {
        let (state, classes) = self.judge(list, name, item);
        Summary {
            id: id::write(item.id),
            place: list.place.clone(),
            surface: list.surface,
            name: name.clone(),
            standing: Standing { state, classes, unsure: list.doubted.is_some() },
            since: item.since,
            renamed_from: item.renamed_from.clone(),
        }
    }

    /// The item with an id.
    pub(super) fn find_id(&self, text: &str) -> Result<(&List, &Arc<str>, &Item), Refusal> {
        let unknown = || Refusal::Unknown { id: text.to_owned() };
        let id = id::read(text).ok_or_else(unknown)?;
        let mut changed = None;
        for list in self.lists.values() {
            for (name, item) in &list.items {
                if item.id == id {
                    return Ok((list, name, item));
                }
                if item.was == id {
                    changed = Some(Refusal::Changed { id: text.to_owned(), now: id::write(item.id) });
                }
            }
        }
        Err(changed.unwrap_or_else(unknown))
    }

    /// What an order would do. What it is about is not forgotten until it is done.
    pub(super) fn plan(&mut self, wish: &Wish, order: Order) -> Result<Plan, Refusal> {
        let (what, deeds, texts) = match wish {
            Wish::Approve(id) => (What::Approved, self.approvals(id)?, Vec::new()),
            Wish::Block(id) => (What::Blocked, self.blocks_of(id)?, Vec::new()),
            Wish::Import(document) => {
                let entries = document.sections.iter().flat_map(|section| &section.entries);
                let texts = entries.filter_map(|entry| Some((entry.fingerprint, entry.text.clone()?)));
                (What::Imported, self.imports(document)?, texts.collect())
            }
        };
        for ((list, name), _) in &deeds {
            let item = self.lists.get_mut(list).and_then(|list| list.items.get_mut(name));
            if let Some(item) = item {
                item.ordered = true;
            }
        }
        Ok(Plan { what, order, deeds, texts })
    }

    /// Just what was reviewed, wherever the endpoint shows that.
    fn approvals(&self, id: &str) -> Result<Vec<(ItemKey, Deed)>, Refusal> {
        let (list, name, item) = self.find_id(id)?;
        if let Some(by) = &list.governed.by {
            let blocked = item.block != Block::No;
            return blocked
                .then(|| vec![((list.number, name.clone()), Deed::Unblock)])
                .ok_or_else(|| Refusal::Authority(by.clone()));
        }
        let deed = Deed::Trust(Box::new(item.seen));
        let lists = self.kin.of_endpoint(&list.place.endpoint, list.surface);
        let same = lists.filter_map(|number| self.lists.get(&number)).filter(|other| {
            let shows = |other: &Item| other.seen == item.seen && other.block == Block::No;
            other.number == list.number || other.items.get(name).is_some_and(|other| shows(other))
        });
        Ok(same.map(|other| ((other.number, name.clone()), deed.clone())).collect())
    }

    /// A name, wherever it may be the same server's.
    fn blocks_of(&self, id: &str) -> Result<Vec<(ItemKey, Deed)>, Refusal> {
        let (list, name, _) = self.find_id(id)?;
        let mut lists: Vec<u32> = self.kin.of_server(&list.place.endpoint, list.surface).collect();
        lists.sort_unstable();
        lists.dedup();
        lists.retain(|number| self.lists.get(number).is_some_and(|list| list.items.contains_key(name)));
        let block = |number: u32| if number == list.number { Block::Ordered } else { Block::Kin };
        Ok(lists.into_iter().map(|number| ((number, name.clone()), Deed::Block(block(number)))).collect())
    }

    /// What a file says, in the lists that it is about; those that were never seen are made.
    fn imports(&mut self, document: &Arc<Document>) -> Result<Vec<(ItemKey, Deed)>, Refusal> {
        let sections = &document.sections;
        let index = Index::new(vec![Arc::clone(document)]);
        let mut about: Vec<Vec<u32>> = vec![Vec::new(); sections.len()];
        for list in self.lists.values() {
            let found = index.find(&list.place.endpoint).about;
            found.into_iter().for_each(|section| about[section as usize].push(list.number));
        }
        let mut deeds: Vec<(ItemKey, Deed)> = Vec::new();
        for (section, mut about) in sections.iter().zip(about) {
            about.sort_unstable();
            for entry in &section.entries {
                let is_of = |number: &u32| self.lists.get(number).is_some_and(|list| entry.is_of(list));
                let mut lists: Vec<u32> = about.iter().copied().filter(is_of).collect();
                if lists.is_empty() {
                    let place = entry.place.as_ref().ok_or_else(|| entry.unseen())?;
                    let number = self.enlist(place, entry.surface, IMPORTED).ok_or_else(no_room)?;
                    about.push(number);
                    lists.push(number);
                }
                let governed = lists.iter().filter_map(|number| self.lists.get(number)?.governed.by.clone());
                if let Some(by) = { governed }.next() {
                    return Err(Refusal::Authority(by));
                }
                let deed = Deed::Trust(Box::new(entry.fingerprint));
                deeds.extend(lists.into_iter().map(|number| ((number, entry.name.clone()), deed.clone())));
            }
        }
        let known =
            |(list, name): &ItemKey| self.lists.get(list).is_some_and(|list| list.items.contains_key(name));
        let new = deeds.iter().filter(|(key, _)| !known(key)).count();
        if self.make_room(new) < new { Err(no_room()) } else { Ok(deeds) }
    }

    /// What is to be written: what has changed, and what an order does. What was taken of the former is given, too.
    pub(super) fn batch(&mut self, plan: Option<&Plan>) -> (Pending, Batch) {
        let pending = self.pending.take();
        let mut batch = Batch { texts: pending.texts.clone(), ..Batch::default() };
        for number in pending.lists() {
            batch.lists.push((number, self.lists.get(&number).map(SavedList::new)));
        }
        for (key, events) in pending.items() {
            let item = self.lists.get(&key.0).and_then(|list| list.items.get(&key.1));
            batch.items.insert(key.clone(), (item.map(|item| (**item).clone()), events.clone()));
        }
        if pending.sweeps {
            let items = self
                .lists
                .values()
                .flat_map(|list| list.items.keys().map(|name| (list.number, name.clone())));
            batch.keep = Some((self.lists.keys().copied().collect(), items.collect()));
        }
        let Some(plan) = plan else { return (pending, batch) };
        for (fingerprint, text) in &plan.texts {
            let kept =
                Text { text: Some(text.clone()), bytes: text.len() as u64, smells: serde_json::Value::Null };
            batch.texts.entry(id::digest(fingerprint)).or_insert(kept);
        }
        for (key, deed) in &plan.deeds {
            let Some(list) = self.lists.get(&key.0) else { continue };
            let known = list.items.get(&key.1).map(|item| (**item).clone());
            let Some(mut item) = known.or_else(|| self.made(list, &key.1, deed, plan)) else { continue };
            deed.carry_out(&mut item);
            let event = plan.event(&item, self.judge(list, &key.1, &item).1);
            if let Some((_, keep)) = &mut batch.keep {
                keep.insert(key.clone());
            }
            let (written, events) = batch.items.entry(key.clone()).or_default();
            *written = Some(item);
            events.push(event);
        }
        (pending, batch)
    }

    /// An order is on disk: it takes force.
    pub(super) fn carry_out(&mut self, plan: &Plan) -> Vec<Change> {
        let mut changes = Vec::new();
        for ((number, name), deed) in &plan.deeds {
            let Some(list) = self.lists.get(number) else { continue };
            let new = !list.items.contains_key(name);
            let made = new.then(|| self.made(list, name, deed, plan)).flatten();
            let owner = list.owner.clone();
            let Some(list) = self.lists.get_mut(number) else { continue };
            if let Some(made) = made {
                list.items.insert(name.clone(), Box::new(made));
                self.kin.add_item(&list.place, list.surface, *number, name);
            }
            list.pages.forget();
            let Some(item) = list.items.get_mut(name) else { continue };
            deed.carry_out(item);
            item.ordered = false;
            if new {
                self.count(&owner);
            }
            changes.extend(self.ordered(*number, name, plan.what));
            self.look_for_drift(*number);
        }
        self.find_blocks();
        changes
    }

    /// An order could not be written: nothing of it has happened.
    pub(super) fn give_up(&mut self, plan: &Plan) {
        for ((list, name), _) in &plan.deeds {
            if let Some(item) = self.lists.get_mut(list).and_then(|list| list.items.get_mut(name)) {
                item.ordered = false;
            }
        }
    }

    /// Collects the names that are blocked.
    pub(super) fn find_blocks(&mut self) {
        let mut blocks = HashSet::new();
        for list in self.lists.values() {
            for (name, _) in list.items.iter().filter(|(_, item)| item.block == Block::Ordered) {
                let ties = Tie::of_kin(&list.place.endpoint).into_iter();
                blocks.extend(ties.map(|tie| (tie, list.surface, name.clone())));
            }
        }
        self.has_blocks.store(!blocks.is_empty(), Ordering::Relaxed);
        self.blocks = blocks;
    }

    /// An item that was never shown, but is trusted.
    fn made(&self, list: &List, name: &Arc<str>, deed: &Deed, plan: &Plan) -> Option<Item> {
        let Deed::Trust(fingerprint) = deed else { return None };
        let text = plan.texts.iter().find(|(of, _)| of == &**fingerprint).map(|(_, text)| Looks::of(text));
        let id = self.key.id(&list.place, list.surface, name, fingerprint);
        Some(Item { looks: text.unwrap_or_default(), id, ..Item::new(**fingerprint, plan.order.at) })
    }

    fn ordered(&self, number: u32, name: &Arc<str>, what: What) -> Option<Change> {
        let list = self.lists.get(&number)?;
        let item = list.items.get(name)?;
        Some(Change { renamed_from: item.renamed_from.clone(), ..self.change(list, name, item, what) })
    }
}

impl Plan {
    fn event(&self, item: &Item, classes: Classes) -> Event {
        Event {
            at: self.order.at,
            what: self.what,
            classes,
            digest: item.seen.definition,
            agent: None,
            by: Some(self.order.by.clone()),
            reason: Some(self.order.reason.clone()),
        }
    }
}

impl Deed {
    fn carry_out(&self, item: &mut Item) {
        match self {
            Deed::Trust(fingerprint) => {
                let other = Other { fingerprint: **fingerprint, same_revision: true };
                let other = (item.seen != other.fingerprint).then(|| Box::new(other));
                item.trust = Some(Trust { how: How::Approved, other });
                item.drifted_to.clear();
                item.block = Block::No;
            }
            Deed::Unblock => item.block = Block::No,
            Deed::Block(block) if item.block != Block::Ordered => item.block = *block,
            Deed::Block(_) => {}
        }
    }
}

impl Entry {
    fn unseen(&self) -> Refusal {
        let (line, surface, name) = (self.line, self.surface.label(), &self.name);
        Refusal::File(format!(
            "{line}:1: {surface} {name:?} is of a server, revision or principal that was never seen (give the \
             server's `address`, and its name without globs)"
        ))
    }
}

fn no_room() -> Refusal {
    Refusal::File("there is no room for all that the file says (leave some of it out)".to_owned())
}

/// What a glob matches; what is none matches itself.
fn matcher(pattern: Option<&str>, any_case: bool) -> impl Fn(&str) -> bool {
    let pattern = pattern.map(str::to_owned);
    let glob = pattern.as_deref().and_then(|pattern| {
        GlobBuilder::new(pattern).case_insensitive(any_case).build().ok().map(|glob| glob.compile_matcher())
    });
    move |text| {
        let is_it = pattern.as_deref().is_none_or(|pattern| pattern == text);
        is_it || glob.as_ref().is_some_and(|glob| glob.is_match(text))
    }
}
