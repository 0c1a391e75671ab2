//! The words for what became of a call that a stop ran into.

use serde::Serialize;

/// What became of a call that a stop ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Not one byte reached the server.
    Refused,
    /// Part of it reached the server, which cannot have read it as a message.
    Cut,
    /// All of it reached the server; whether it was carried out is not known (yet).
    Sent,
    /// The server answered after the stop; the answer was kept from the agent.
    FinishedAfterStop,
    /// The server said it cancelled the call, or its task.
    Cancelled,
    /// The server said that the task cannot be cancelled, or is over.
    NotCancelable,
    /// Told to cancel, the server took the cancel and ended the exchange without an answer.
    Closed,
    /// Its connection ended without an answer, and the server had not taken a cancel.
    Lost,
}

impl Fate {
    /// All fates, as metric label values.
    pub const ALL: [Fate; 8] = [
        Fate::Refused,
        Fate::Cut,
        Fate::Sent,
        Fate::FinishedAfterStop,
        Fate::Cancelled,
        Fate::NotCancelable,
        Fate::Closed,
        Fate::Lost,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Fate::Refused => "refused",
            Fate::Cut => "cut",
            Fate::Sent => "sent",
            Fate::FinishedAfterStop => "finished_after_stop",
            Fate::Cancelled => "cancelled",
            Fate::NotCancelable => "not_cancelable",
            Fate::Closed => "closed",
            Fate::Lost => "lost",
        }
    }
}
