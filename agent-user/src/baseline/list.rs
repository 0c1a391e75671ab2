//! A list of one place, and what is kept of its items in memory: digests, no texts.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::authority::Governed;
use super::pages::Pages;
use super::place::Place;
use super::rename::Looks;
use super::state::{Facts, Trusted};
use super::walk::Walks;
use crate::fingerprint::{Fingerprint, State, Surface};

/// What one place shows of one surface.
#[derive(Debug)]
pub(super) struct List {
    pub(super) number: u32,
    pub(super) place: Arc<Place>,
    pub(super) surface: Surface,
    /// The agent that it was first shown to, on whom it counts.
    pub(super) owner: Arc<str>,
    pub(super) items: HashMap<Arc<str>, Box<Item>>,
    /// It was once seen whole.
    pub(super) whole: bool,
    /// Items of it were forgotten: what comes newly may be one of these, with another definition.
    pub(super) lossy: bool,
    /// The server said last that it is for everybody.
    pub(super) public: bool,
    /// When it was used last, in uses.
    pub(super) used: u64,
    /// When the server said that it has changed, in uses, unless it was seen whole since.
    pub(super) doubted: Option<u64>,
    pub(super) walks: Walks,
    pub(super) pages: Pages,
    /// The last order of the whole list.
    pub(super) order: Option<u64>,
    /// That its order does not stay was told.
    pub(super) shuffled: bool,
    /// Who says what is trusted there.
    pub(super) governed: Governed,
}

/// An item of a list, in memory and as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Item {
    /// What it showed last.
    pub(super) seen: Fingerprint,
    pub(super) trust: Option<Trust>,
    /// See [`super::id`].
    #[serde(skip)]
    pub(super) id: u64,
    /// The id before that.
    #[serde(skip)]
    pub(super) was: u64,
    /// What renames are found by.
    pub(super) looks: Looks,
    /// When it was asked for last, in uses.
    #[serde(skip)]
    pub(super) used: u64,
    pub(super) since: Timestamp,
    pub(super) renamed_from: Option<Arc<str>>,
    /// The walks that have come past it; see [`Walks`].
    #[serde(skip)]
    pub(super) walked: u16,
    pub(super) present: bool,
    pub(super) block: Block,
    /// It came to a list that was known.
    pub(super) added: bool,
    /// The agents that were shown what is not trusted, and not again what is; with an empty name in it more than are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) drifted_to: Vec<Arc<str>>,
    /// An order about it is on its way to the disk.
    #[serde(skip)]
    pub(super) ordered: bool,
}

/// What of an item is trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trust {
    pub(super) how: How,
    /// `None`: what it shows.
    pub(super) other: Option<Box<Other>>,
}

/// What is trusted, where that is not what is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Other {
    pub(super) fingerprint: Fingerprint,
    /// It was shown in the same revision of the protocol.
    pub(super) same_revision: bool,
}

/// Agents that are kept of those that were shown what is not trusted.
const MOST_AGENTS: usize = 8;

/// Why something is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum How {
    /// It was the first that was seen.
    FirstUse,
    /// It is trusted elsewhere.
    Inherited,
    /// An operator said so.
    Approved,
}

/// Whether an item is trusted in no form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Block {
    No,
    /// An operator has blocked it.
    Ordered,
    /// It may be the same server's as one that an operator has blocked.
    Kin,
}

impl List {
    pub(super) fn new(number: u32, place: Arc<Place>, surface: Surface, owner: Arc<str>) -> List {
        List {
            number,
            place,
            surface,
            owner,
            items: HashMap::new(),
            whole: false,
            lossy: false,
            public: false,
            used: 0,
            doubted: None,
            walks: Walks::default(),
            pages: Pages::default(),
            order: None,
            shuffled: false,
            governed: Governed::default(),
        }
    }

    /// What comes newly was not there before, or cannot be told from what was.
    pub(super) fn is_known(&self) -> bool {
        self.whole || self.lossy
    }

    /// When an item was used last: what is there is used with its list.
    pub(super) fn used(&self, item: &Item) -> u64 {
        if item.present { item.used.max(self.used) } else { item.used }
    }
}

impl Item {
    /// An item that shows something and of which nothing is thought yet.
    pub(super) fn new(seen: Fingerprint, now: Timestamp) -> Item {
        Item {
            seen,
            trust: None,
            id: 0,
            was: 0,
            looks: Looks::default(),
            used: 0,
            since: now,
            renamed_from: None,
            walked: 0,
            present: true,
            block: Block::No,
            added: false,
            drifted_to: Vec::new(),
            ordered: false,
        }
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts {
            seen: &self.seen,
            trusted: self.trust.as_ref().map(|trust| trust.trusted(&self.seen)),
            present: self.present,
            blocked: self.block != Block::No,
            added: self.added,
        }
    }

    /// May be forgotten to make room.
    pub(super) fn may_go(&self, state: State) -> bool {
        let approved = self.trust.as_ref().is_some_and(|trust| trust.how == How::Approved);
        !approved
            && !self.ordered
            && self.block == Block::No
            && state != State::Drifted
            && !self.is_drifted_but_gone()
    }

    fn is_drifted_but_gone(&self) -> bool {
        !self.present && self.trust.as_ref().is_some_and(|trust| trust.other.is_some())
    }

    /// An agent was shown what is not trusted.
    pub(super) fn drifts_to(&mut self, agent: &str) {
        if self.drifted_to.iter().any(|known| **known == *agent) {
            return;
        }
        match self.drifted_to.len() {
            0..MOST_AGENTS => self.drifted_to.push(agent.into()),
            MOST_AGENTS => self.drifted_to.push("".into()),
            _ => {}
        }
    }

    /// Shows something else from now on; what is trusted stays.
    pub(super) fn show(&mut self, seen: Fingerprint) {
        if let Some(trust) = &mut self.trust {
            match &trust.other {
                None => {
                    let other = Other { fingerprint: self.seen, same_revision: true };
                    trust.other = (self.seen != seen).then(|| Box::new(other));
                }
                Some(other) if other.fingerprint == seen => trust.other = None,
                Some(_) => {}
            }
        }
        self.seen = seen;
    }
}

impl Trust {
    /// Of what is shown.
    pub(super) fn of_seen(how: How) -> Trust {
        Trust { how, other: None }
    }

    pub(super) fn trusted<'a>(&'a self, seen: &'a Fingerprint) -> Trusted<'a> {
        let reviewed = self.how == How::Approved;
        match &self.other {
            None => Trusted { fingerprint: seen, same_revision: true, reviewed, text: None },
            Some(other) => Trusted {
                fingerprint: &other.fingerprint,
                same_revision: other.same_revision,
                reviewed,
                text: None,
            },
        }
    }
}
