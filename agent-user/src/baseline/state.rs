//! What is thought of an item, from what is known of it. Pure.

use std::sync::Arc;

use crate::fingerprint::{Class, Classes, Fingerprint, State, compare};

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
    /// A person has said so, or a document that one has reviewed.
    pub(super) reviewed: bool,
    /// Where a document has it.
    pub(super) text: Option<&'a Arc<str>>,
}

impl Facts<'_> {
    pub(super) fn judge(&self) -> (State, Classes) {
        let mut classes = self
            .trusted
            .map_or(Classes::NONE, |trusted| compare(trusted.fingerprint, self.seen, trusted.same_revision));
        let has_drifted = !classes.is_empty();
        if self.added && self.trusted.is_none_or(|trusted| !trusted.reviewed) {
            classes.insert(Class::Added);
        }
        if !self.present {
            classes.insert(Class::Removed);
        }
        let state = match self.trusted {
            _ if self.blocked => State::Blocked,
            _ if !self.present => State::Removed,
            None => State::New,
            Some(_) if has_drifted => State::Drifted,
            Some(_) => State::Trusted,
        };
        (state, classes)
    }
}
