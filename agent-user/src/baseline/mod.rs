//! What servers have shown to agents, what of it is trusted, and what has changed.
//!
//! In memory, where calls ask ([`Baseline::standing`]), and on disk for the next daemon. What is observed is in force in
//! memory at once; [`Baseline::saved`] says when it is on disk. A store that cannot be read is a fault, not an empty one:
//! to begin anew would trust whatever comes.

mod authority;
mod change;
mod document;
mod export;
mod file;
mod id;
mod index;
mod kin;
mod known;
mod list;
mod observe;
mod order;
mod orders;
mod pages;
mod pending;
mod place;
mod rename;
mod room;
mod siblings;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod walk;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use jiff::Timestamp;
use tokio::sync::{Notify, oneshot};
use tracing::error;

pub use self::authority::Authority;
pub use self::change::{Change, Event, What};
pub use self::document::Document;
pub(crate) use self::document::{MAX_ITEMS, MAX_SERVERS};
pub use self::export::Wanted;
pub use self::order::{Filter, Kept, Order, Refusal, Review, Summary};
pub use self::pending::MAX_TEXT;
pub use self::place::{Endpoint, Page, Place, Shown};

use self::id::Key;
use self::known::Known;
use self::observe::Sight;
use self::orders::Wish;
use self::store::{Content, Store};
use self::writer::{Ask, Shared, Writer};
use crate::fingerprint::{MAX_NAME, Standing, Standings, State, Surface};

/// What a server says of itself, which all that is asked of it has to do with.
const OF_SERVER: [Surface; 3] = [Surface::Instructions, Surface::Server, Surface::AgentCard];

/// What servers have shown.
#[derive(Debug)]
pub struct Baseline {
    shared: Arc<Shared>,
    has_blocks: Arc<AtomicBool>,
    /// Told whenever a list may have been settled.
    settled: Notify,
    /// Why the store cannot be read.
    fault: Option<String>,
    writer: Option<JoinHandle<()>>,
}

/// What is trusted without being asked.
#[derive(Debug)]
pub struct Options {
    /// Trusts what a server shows first. Otherwise it is [`State::New`] until it is approved.
    pub trust_first_use: bool,
    /// Documents that say what is trusted.
    pub authority: Option<Authority>,
}

impl Baseline {
    /// Opens the store in the state directory, or makes one. What cannot be read is a [`Baseline::fault`].
    ///
    /// # Errors
    /// Another daemon uses it.
    pub fn open(dir: &Path, options: Options) -> anyhow::Result<Baseline> {
        Baseline::begin(file::open(dir)?, options)
    }

    /// Begins with what a store held.
    fn begin(opened: Result<(Store, Content), String>, options: Options) -> anyhow::Result<Baseline> {
        let Options { trust_first_use, authority } = options;
        let (store, content, fault) = match opened {
            Ok((store, content)) => (Some(store), content, None),
            Err(fault) => {
                error!(fault, "what servers have shown is not known: nothing that they show is trusted");
                (None, Content { key: Key([0; 32]), lists: Vec::new() }, Some(fault))
            }
        };
        let mut known = Known::new(content.key, trust_first_use, authority.map(Arc::new));
        known.restore(content.lists);
        let has_blocks = Arc::clone(&known.has_blocks);
        let shared = Arc::new(Shared::new(known));
        let thread = |store| {
            let writer = Writer::new(shared.clone(), store);
            thread::Builder::new().name("baseline".to_owned()).spawn(|| writer.run())
        };
        let writer = store.map(thread).transpose()?;
        Ok(Baseline { shared, has_blocks, settled: Notify::new(), fault, writer })
    }

    /// Why the store cannot be read, with the remedy.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Learns a page of a list, which `witness`, an agent, is shown. It is in force when this returns. `items` is not
    /// asked where the page is as it was last and nothing about its list has changed since.
    pub fn observe<'a>(
        &self,
        place: &Place,
        page: &Page,
        items: impl FnOnce() -> Vec<Shown<'a>>,
        witness: &str,
        now: Timestamp,
    ) -> Vec<Change> {
        if self.fault.is_some() {
            return Vec::new();
        }
        let sight = Sight { place, page, witness, now };
        let repeated = self.shared.known().repeat(sight);
        let changes = repeated.unwrap_or_else(|| {
            let items = observe::merge(items());
            self.shared.known().observe(sight, &items)
        });
        self.settled.notify_waiters();
        if !self.shared.known().pending.is_empty() {
            self.shared.wake();
        }
        changes
    }

    /// The server says that a list of it has changed: nothing about it is sure until a walk that begins after this has
    /// seen it whole.
    pub fn doubt(&self, endpoint: &Endpoint, surface: Surface) {
        self.shared.known().doubt(endpoint, surface);
    }

    /// Waits until nothing about a list is unsure.
    pub async fn settled(&self, place: &Place, surface: Surface) {
        loop {
            let told = self.settled.notified();
            if self.shared.known().is_settled(place, surface) {
                return;
            }
            told.await;
        }
    }

    /// How far what a message uses can be trusted, and what its server says of itself. With a [`Baseline::fault`] nothing
    /// can.
    pub fn standings(&self, place: &Place, used: Option<(Surface, &str)>) -> Standings {
        let mut standings = Standings::default();
        let all = used.into_iter().chain(OF_SERVER.map(|surface| (surface, "")));
        let mut known = self.shared.known();
        standings.by = known.governed_by(place);
        let unseen = known.unseen(standings.by.is_some());
        for (surface, name) in all {
            let in_state = |state| Standing { state, ..Standing::default() };
            let standing = match self.fault {
                Some(_) => in_state(State::Unreadable),
                // What has no name that could be kept can never have been trusted.
                None if name.len() > MAX_NAME => in_state(State::New),
                None => known.standing(place, surface, name).unwrap_or_else(|| {
                    // A server need not say anything of itself.
                    in_state(if OF_SERVER.contains(&surface) { State::Unseen } else { unseen })
                }),
            };
            standings.set(surface, standing);
        }
        standings
    }

    /// Whether an operator has blocked anything.
    pub fn has_blocked(&self) -> bool {
        self.fault.is_some() || self.has_blocks.load(Ordering::Relaxed)
    }

    /// Replaces the documents that say what is trusted. It is in force when this returns.
    pub fn set_authority(&self, authority: Option<Authority>) {
        let authority = authority.map(Arc::new);
        // What takes time is found out while calls go on.
        let endpoints = self.shared.known().endpoints();
        let over = |authority: &Arc<Authority>| {
            endpoints.into_iter().map(|endpoint| (endpoint.clone(), authority.over(&endpoint))).collect()
        };
        let over = authority.as_ref().map(over).unwrap_or_default();
        self.shared.known().set_authority(authority, &over);
        self.shared.wake();
    }

    /// Waits until all changes so far are on disk.
    ///
    /// # Errors
    /// They could not be written. They are in force, and will be written once they can be.
    pub async fn saved(&self) -> Result<(), String> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let goal = self.shared.known().pending.generation;
        let mut progress = self.shared.progress.subscribe();
        let tries = progress.borrow().tries;
        if progress.borrow().saved < goal {
            self.shared.wake();
        }
        let tried = progress
            .wait_for(|now| now.saved >= goal || (now.tries > tries && now.failed >= goal))
            .await
            .map_err(|_| "the daemon ends".to_owned())?;
        if tried.saved >= goal { Ok(()) } else { Err(tried.error.as_deref().unwrap_or_default().to_owned()) }
    }

    /// Something is not on disk that should be, because writing has failed.
    pub fn is_unsaved(&self) -> bool {
        self.shared.progress.borrow().error.is_some()
    }

    /// How many items are in which state.
    pub fn counts(&self) -> Vec<(State, usize)> {
        self.shared.known().counts()
    }

    /// The same, if anything has changed since this was asked last.
    pub fn changed_counts(&self) -> Option<Vec<(State, usize)>> {
        let mut known = self.shared.known();
        let generation = known.pending.generation;
        (known.counted.replace(generation) != Some(generation)).then(|| known.counts())
    }

    /// How many items were forgotten to make room, since the daemon began.
    pub fn evicted(&self) -> u64 {
        self.shared.known().evicted
    }

    /// The items that a filter asks for, by place and name.
    pub fn list(&self, filter: &Filter) -> Vec<Summary> {
        self.shared.known().summaries(filter)
    }

    /// An item with both texts and its history.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn show(&self, id: &str) -> Result<Review, Refusal> {
        self.ask(|reply| Ask::Show(id.to_owned(), reply)).await
    }

    /// Trusts what an item shows, wherever its endpoint shows exactly this. It is on disk when this returns. Where documents
    /// say what is trusted, it only ends that the item is blocked.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn approve(&self, id: &str, order: Order) -> Result<Vec<Change>, Refusal> {
        self.ask(|reply| Ask::Order(Wish::Approve(id.to_owned()), order, reply)).await
    }

    /// Trusts an item in no form, for all revisions and principals of its endpoint and wherever it may be the same
    /// server. It is on disk when this returns.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn block(&self, id: &str, order: Order) -> Result<Vec<Change>, Refusal> {
        self.ask(|reply| Ask::Order(Wish::Block(id.to_owned()), order, reply)).await
    }

    /// What is trusted, or else shown, as a document for review, for [`Baseline::import`] and [`Authority`].
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn export(&self, wanted: Wanted) -> Result<String, Refusal> {
        self.ask(|reply| Ask::Export(wanted, reply)).await
    }

    /// Approves what a file says, all of it or nothing.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn import(&self, text: &str, order: Order) -> Result<Vec<Change>, Refusal> {
        let document = Document::of_file(text).map(Arc::new).map_err(Refusal::File)?;
        self.ask(|reply| Ask::Order(Wish::Import(document), order, reply)).await
    }

    async fn ask<T>(
        &self,
        ask: impl FnOnce(oneshot::Sender<Result<T, Refusal>>) -> Ask,
    ) -> Result<T, Refusal> {
        if let Some(fault) = &self.fault {
            return Err(Refusal::Fault(fault.clone()));
        }
        let (reply, answer) = oneshot::channel();
        self.shared.ask(ask(reply))?;
        answer.await.unwrap_or_else(|_| Err(Refusal::Unsaved("the daemon ends".to_owned())))
    }
}

impl Drop for Baseline {
    /// Waits until what can be written is.
    fn drop(&mut self) {
        self.shared.end();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
