//! How far what a server shows can be trusted.

use serde::{Deserialize, Serialize};

use super::Classes;

/// What became of one thing that a server has shown.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No list has shown it.
    #[default]
    #[value(skip)]
    Unseen,
    /// It was shown, and nobody has said yet that it is good.
    New,
    Trusted,
    /// It is not what was trusted.
    Drifted,
    /// An operator has said that it must not be used.
    Blocked,
    /// Its list is known whole, and it is not there any more.
    Removed,
    /// What is known of it cannot be read.
    #[value(skip)]
    Unreadable,
}

/// Its state, and what there is to say about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Standing {
    pub state: State,
    /// In what it differs from what was trusted.
    #[serde(default, skip_serializing_if = "Classes::is_empty")]
    pub classes: Classes,
    /// The server has said that its list has changed, and it was not seen whole since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
}

impl State {
    /// Those that something which was shown can be in.
    pub const SHOWN: [State; 5] =
        [State::New, State::Trusted, State::Drifted, State::Blocked, State::Removed];

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            State::Unseen => "unseen",
            State::New => "new",
            State::Trusted => "trusted",
            State::Drifted => "drifted",
            State::Blocked => "blocked",
            State::Removed => "removed",
            State::Unreadable => "unreadable",
        }
    }
}
