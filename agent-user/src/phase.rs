//! How far an exchange has come, and what that means for its calls when a stop ends it.

use crate::fate::Fate;

/// How far the exchange on a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing in flight, nothing half done.
    Idle,
    /// Something without calls flows: a stream, a tunnel, plain HTTP.
    Open,
    /// Read and registered; no byte has left.
    Held,
    /// Some bytes have left for the server, perhaps all but the last.
    Sending,
    /// All bytes have left; the server has not answered.
    Sent,
    /// The answer is decided and on its way to the agent.
    Answering,
}

impl Phase {
    /// What becomes of the calls of an exchange that a stop ends in this phase.
    pub fn fate(self) -> Fate {
        match self {
            Phase::Idle | Phase::Open | Phase::Held => Fate::Refused,
            Phase::Sending => Fate::Cut,
            Phase::Sent | Phase::Answering => Fate::Sent,
        }
    }
}
