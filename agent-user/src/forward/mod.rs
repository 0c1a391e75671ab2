//! Moving bytes between an agent and its server.
//!
//! The content of what is allowed is forwarded byte for byte, unless it is edited; streams of events get a framing of
//! our own, and lose their codings. A request is held until it is decided; a refused one has put no byte on the server's connection. Only
//! [`refuse`] writes answers of our own to an agent, and only [`cancel`] messages of our own to a server.

pub mod answer;
pub mod cancel;
pub mod channel;
pub mod connect;
pub mod dial;
pub mod evidence;
pub mod hold;
pub mod inspect;
mod instead;
pub mod lines;
mod opened;
pub mod own;
pub mod reframe;
pub mod refuse;
pub mod reply;
pub mod request;
pub mod side;
mod stream;
pub mod task_cancel;
pub mod tunnel;

use std::io;
use std::sync::Arc;

use crate::decode::Malformed;
use crate::room::Full;

use self::connect::Tunnel;

/// Why a connection ended.
#[derive(Debug)]
pub enum End {
    /// The agent closed its side, or vanished.
    AgentClosed,
    /// The server closed its side.
    ServerClosed,
    /// The network between us and the agent, or us and the server, failed.
    Network(io::Error),
    /// The server could not be reached.
    Unreachable(io::Error),
    /// The agent, or the server, sent HTTP that two readers could understand differently.
    Malformed(Malformed),
    /// There is no memory for what is said.
    Full(Full),
    /// Refused by a rule or default that ends the connection.
    Refused,
    /// A stop cut it.
    Stopped,
    /// The daemon is shutting down.
    Drain,
    /// It goes on inside the tunnel of a proxy, as another connection.
    Tunnel(Arc<Tunnel>),
    /// It goes on as a connection of lines.
    Lines,
}

impl End {
    /// The value of `cause` in the record.
    pub fn label(&self) -> &'static str {
        match self {
            End::AgentClosed => "agent_closed",
            End::ServerClosed => "server_closed",
            End::Network(_) | End::Unreachable(_) => "network_error",
            End::Malformed(_) => "malformed",
            End::Full(full) => full.label(),
            End::Refused => "refused",
            End::Stopped => "operator_stop",
            End::Drain => "drain",
            End::Tunnel(_) => "tunnel",
            End::Lines => "lines",
        }
    }

    /// What went wrong, in words, where there is more to say than the label.
    pub fn detail(&self) -> Option<String> {
        match self {
            End::Network(error) => Some(error.to_string()),
            End::Unreachable(error) => Some(format!("server not reached: {error}")),
            End::Malformed(malformed) => Some(malformed.label().to_owned()),
            End::Full(full) => Some(full.to_string()),
            _ => None,
        }
    }

    /// An error while talking to the agent.
    pub fn agent(error: io::Error) -> End {
        if let Some(full) = End::full(&error) {
            return full;
        }
        let gone = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
        if gone { End::AgentClosed } else { End::Network(error) }
    }

    /// There was no room for what was read.
    fn full(error: &io::Error) -> Option<End> {
        error.get_ref()?.downcast_ref().copied().map(End::Full)
    }

    /// An error while talking to the server. A reset is no orderly end: what came before it may be cut short.
    pub fn server(error: io::Error) -> End {
        if let Some(full) = End::full(&error) {
            return full;
        }
        if error.kind() == io::ErrorKind::BrokenPipe { End::ServerClosed } else { End::Network(error) }
    }
}
