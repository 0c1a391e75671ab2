//! Orders of operators: what they look at, what they say, and why it is not done.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::Event;
use super::place::Place;

use crate::decide::stop::Operator;
use crate::fingerprint::{Fingerprint, Standing, State, Surface};

/// Which items to list. What is left out is any.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// As agents name it, or its address, with or without port.
    pub server: Option<String>,
    pub surface: Option<Surface>,
    pub name: Option<String>,
    pub state: Option<State>,
}

/// An item, for operators.
#[derive(Clone, Debug)]
pub struct Summary {
    /// `tool-` and 12 hexadecimal digits. It is another one when the item shows anything else.
    pub id: String,
    pub place: Arc<Place>,
    pub surface: Surface,
    pub name: Arc<str>,
    pub standing: Standing,
    /// Since when it shows what it shows.
    pub since: Timestamp,
    /// What it looks like that was gone when it came.
    pub renamed_from: Option<Arc<str>>,
}

/// An item with all that is kept of it.
#[derive(Clone, Debug)]
pub struct Review {
    pub summary: Summary,
    pub seen: Kept,
    pub trusted: Option<Kept>,
    /// Oldest first.
    pub history: Vec<Event>,
}

/// A definition as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub fingerprint: Fingerprint,
    /// Canonical. `None`: it was too long to be kept, or there was no room.
    pub text: Option<String>,
    /// How long it is, in bytes.
    pub bytes: u64,
    pub smells: Value,
}

/// Who gives an order, why and when.
#[derive(Clone, Debug)]
pub struct Order {
    pub by: Operator,
    pub reason: String,
    pub at: Timestamp,
}

/// Why an order was not carried out. Nothing of it has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing has this id.
    Unknown { id: String },
    /// What had this id shows something else by now.
    Changed { id: String, now: String },
    /// Documents say what is trusted there: these.
    Authority(Arc<str>),
    /// A file to import is not good. The text says where and what to do.
    File(String),
    /// The store cannot be read. The text names it and the remedy.
    Fault(String),
    /// It could not be saved.
    Unsaved(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unknown { id } => {
                write!(f, "{id}: nothing has this id (list again: what shows something else has another one)")
            }
            Refusal::Changed { id, now } => {
                write!(f, "{id}: it has changed since, and is {now} now (look at that first)")
            }
            Refusal::Authority(by) => {
                write!(f, "what is trusted there is said by {by}, and by nobody's order (change that)")
            }
            Refusal::File(error) | Refusal::Fault(error) => f.write_str(error),
            Refusal::Unsaved(error) => write!(f, "not done, because it could not be saved: {error}"),
        }
    }
}

impl std::error::Error for Refusal {}
