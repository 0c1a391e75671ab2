//! What has changed, as it is told, and as it is kept.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::list::List;
use super::place::Place;

use crate::decide::stop::Operator;
use crate::fingerprint::{Class, Classes, Digest, State, Surface};

/// A change of what a server shows, or of what is thought of it.
#[derive(Clone, Debug)]
pub struct Change {
    pub place: Arc<Place>,
    pub surface: Surface,
    /// Empty for what has no name, and for [`What::Reordered`].
    pub name: Arc<str>,
    /// As operators name it now; empty for [`What::Reordered`].
    pub id: String,
    pub what: What,
    /// What is thought of it now.
    pub state: State,
    /// In what it differs from what is trusted, or, where nothing is, from what it was.
    pub classes: Classes,
    /// Of the definition it shows now; of none for [`What::Reordered`].
    pub digest: Option<Digest>,
    /// Of the definition it showed before.
    pub before: Option<Digest>,
    /// It looks like this one, which has just gone from the same list. A hint, no reason to trust.
    pub renamed_from: Option<Arc<str>>,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Shown for the first time.
    First,
    /// Shown for the first time, in a list that was known.
    Added,
    /// It is not what is trusted, or is that no longer in another way than before.
    Drifted,
    /// It is another one than before, and neither was trusted.
    Changed,
    /// It is back: what is trusted, or in its list.
    Returned,
    /// It is gone from a list that was seen whole.
    Removed,
    /// The list is the same but for its order. Told once until the order stays.
    Reordered,
    /// An operator trusts it.
    Approved,
    /// An operator trusts it in no form.
    Blocked,
    /// A file that an operator has read in says what is trusted.
    Imported,
}

impl What {
    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            What::First => "first",
            What::Added => "added",
            What::Drifted => "drifted",
            What::Changed => "changed",
            What::Returned => "returned",
            What::Removed => "removed",
            What::Reordered => "reordered",
            What::Approved => "approved",
            What::Blocked => "blocked",
            What::Imported => "imported",
        }
    }
}

impl Change {
    pub(super) fn reordered(list: &List) -> Change {
        Change {
            place: list.place.clone(),
            surface: list.surface,
            name: "".into(),
            id: String::new(),
            what: What::Reordered,
            state: State::Trusted,
            classes: Classes::from_iter([Class::Order]),
            digest: None,
            before: None,
            renamed_from: None,
        }
    }

    /// Whether it must be on disk before the agent gets the list ([`super::Baseline::saved`]).
    pub fn must_be_saved(&self) -> bool {
        matches!(self.state, State::Drifted | State::Blocked)
    }
}

/// What has happened to an item, in its history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    pub at: Timestamp,
    pub what: What,
    #[serde(default)]
    pub classes: Classes,
    /// Of the definition it showed then.
    pub digest: Digest,
    /// The agent that it was shown to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Who ordered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Operator>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
