//! What is thought of an item, from what is known of it. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fingerprint::compare;
use crate::fingerprint::{Class, Classes, Fingerprint};

/// What is thought of an item.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nobody has said that it can be trusted. With [`Class::Added`]: it came to a list that was known.
    New,
    /// It is what was trusted.
    Trusted,
    /// It is not what was trusted.
    Drifted,
    /// An operator trusts it in no form.
    Blocked,
    /// It is gone from a list that was seen whole.
    Removed,
}

impl State {
    pub const ALL: [State; 5] = [State::New, State::Trusted, State::Drifted, State::Blocked, State::Removed];

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            State::New => "new",
            State::Trusted => "trusted",
            State::Drifted => "drifted",
            State::Blocked => "blocked",
            State::Removed => "removed",
        }
    }
}

/// What is thought of an item at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub state: State,
    /// In what it differs from what is trusted; [`Class::Added`] and [`Class::Removed`] are said here, too.
    pub classes: Classes,
    /// The server has said that its list has changed, and it was not seen whole since.
    pub unsure: bool,
}

/// What is known of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// What it showed last.
    pub(super) seen: &'a Fingerprint,
    pub(super) trusted: Option<Trusted<'a>>,
    pub(super) present: bool,
    pub(super) blocked: bool,
    /// It came to a list that was known.
    pub(super) added: bool,
}

/// What an item is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trusted<'a> {
    pub(super) fingerprint: &'a Fingerprint,
    /// It was shown in the same revision of the protocol.
    pub(super) same_revision: bool,
}

impl Facts<'_> {
    pub(super) fn judge(&self) -> (State, Classes) {
        let mut classes = match self.trusted {
            Some(trusted) => compare(trusted.fingerprint, self.seen, trusted.same_revision),
            None if self.added => Classes::from_iter([Class::Added]),
            None => Classes::NONE,
        };
        if !self.present {
            classes.insert(Class::Removed);
        }
        let state = match self.trusted {
            _ if self.blocked => State::Blocked,
            _ if !self.present => State::Removed,
            None => State::New,
            Some(_) if classes.is_empty() => State::Trusted,
            Some(_) => State::Drifted,
        };
        (state, classes)
    }
}
