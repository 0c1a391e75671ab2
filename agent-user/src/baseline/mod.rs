//! What servers have shown to agents, what of it is trusted, and what has changed.
//!
//! In memory, where calls ask ([`Baseline::standing`]), and on disk for the next daemon. What is observed is in force in
//! memory at once; [`Baseline::saved`] says when it is on disk. A store that cannot be read is a fault, not an empty one:
//! to begin anew would trust whatever comes.

mod authority;
mod change;
mod compare;
mod id;
mod kin;
mod known;
mod list;
mod observe;
mod order;
mod pages;
mod pending;
mod place;
mod rename;
mod room;
mod siblings;
mod state;
mod walk;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use jiff::Timestamp;
use tokio::sync::Notify;

pub use self::authority::Authority;
pub use self::change::{Change, Event, What};
pub use self::order::{Filter, Kept, Order, Refusal, Review, Summary};
pub use self::pending::MAX_TEXT;
pub use self::place::{Endpoint, Page, Place, Shown};
pub use self::state::{Standing, State};

use self::known::Known;
use self::observe::Sight;
use crate::fingerprint::{Classes, Surface};

/// What servers have shown.
#[derive(Debug)]
pub struct Baseline {
    known: Mutex<Known>,
    /// Told whenever a list may have been settled.
    settled: Notify,
    /// Why the store cannot be read.
    fault: Option<String>,
}

/// What is trusted without being asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// Trusts what a server shows first. Otherwise it is [`State::New`] until it is approved.
    pub trust_first_use: bool,
    /// A file that alone says what is trusted.
    pub authority: Option<Arc<Authority>>,
}

impl Baseline {
    /// Opens the store in the state directory, or makes one. What cannot be read is a [`Baseline::fault`].
    ///
    /// # Errors
    /// Another daemon uses it.
    pub fn open(_dir: &Path, options: Options) -> Result<Baseline> {
        let known = Known::new(id::Key([0; 32]), options.trust_first_use, options.authority);
        Ok(Baseline { known: Mutex::new(known), settled: Notify::new(), fault: None })
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
        let repeated = self.known().repeat(sight);
        let changes = repeated.unwrap_or_else(|| {
            let items = items();
            self.known().observe(sight, items)
        });
        self.settled.notify_waiters();
        changes
    }

    /// The server says that a list of it has changed: nothing about it is sure until a walk that begins after this has
    /// seen it whole.
    pub fn doubt(&self, endpoint: &Endpoint, surface: Surface) {
        self.known().doubt(endpoint, surface);
    }

    /// Waits until nothing about a list is unsure.
    pub async fn settled(&self, place: &Place, surface: Surface) {
        loop {
            let told = self.settled.notified();
            if self.known().is_settled(place, surface) {
                return;
            }
            told.await;
        }
    }

    /// What is thought of an item. `None`: it was never shown there. With a [`Baseline::fault`] everything is blocked.
    pub fn standing(&self, place: &Place, surface: Surface, name: &str) -> Option<Standing> {
        if self.fault.is_some() {
            return Some(Standing { state: State::Blocked, classes: Classes::NONE, unsure: false });
        }
        self.known().standing(place, surface, name)
    }

    /// Replaces the file that alone says what is trusted.
    pub fn set_authority(&self, authority: Option<Arc<Authority>>) {
        self.known().set_authority(authority);
    }

    /// Waits until all changes so far are on disk.
    ///
    /// # Errors
    /// They could not be written. They are in force, and will be written once they can be.
    pub async fn saved(&self) -> Result<(), String> {
        Ok(())
    }

    /// Something is not on disk that should be, because writing has failed.
    pub fn is_unsaved(&self) -> bool {
        false
    }

    /// How many items are in which state.
    pub fn counts(&self) -> Vec<(State, usize)> {
        self.known().counts()
    }

    /// How many items were forgotten to make room, since the daemon began.
    pub fn evicted(&self) -> u64 {
        self.known().evicted
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The items that a filter asks for, by place and name.
    pub fn list(&self, _filter: &Filter) -> Vec<Summary> {
        Vec::new()
    }

    /// An item with both texts and its history.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn show(&self, id: &str) -> Result<Review, Refusal> {
        Err(Refusal::Unknown { id: id.to_owned() })
    }

    /// Trusts what an item shows, wherever its endpoint shows exactly this. It is on disk when this returns.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn approve(&self, id: &str, _order: Order) -> Result<Vec<Change>, Refusal> {
        Err(Refusal::Unknown { id: id.to_owned() })
    }

    /// Trusts an item in no form, for all revisions and principals of its endpoint and wherever it may be the same
    /// server. It is on disk when this returns.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn block(&self, id: &str, _order: Order) -> Result<Vec<Change>, Refusal> {
        Err(Refusal::Unknown { id: id.to_owned() })
    }

    /// What is trusted, as a file for review, for [`Baseline::import`] and [`Authority`].
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn export(&self) -> Result<String, Refusal> {
        Ok(String::new())
    }

    /// Approves what a file says.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn import(&self, _text: &str, _order: Order) -> Result<Vec<Change>, Refusal> {
        Ok(Vec::new())
    }
}
