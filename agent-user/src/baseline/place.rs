//! Where something is shown, for whom, and what a page of it says.

use std::borrow::Cow;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::fingerprint::{Digest, Fingerprint, Hints, Surface};

/// Where something is shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// As the agent names it, in lower case: host, or `host:port`.
    pub server: Box<str>,
    /// Where the connection really goes. An IPv4 address is written as one, not mapped to IPv6.
    pub address: SocketAddr,
    /// Set where the address means something to this agent alone: loopback of its own network namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Box<str>>,
}

/// Where and for whom. What differs by revision of the protocol or by authorization has not drifted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    pub endpoint: Endpoint,
    /// Of the protocol, as it is written on the wire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Box<str>>,
    /// Whose authorization was presented. `None`: nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Box<str>>,
}

/// One page of a list, or something that is no list (a page with neither cursor), without its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub surface: Surface,
    /// Of the page's text.
    pub digest: Digest,
    /// Of the cursor that was asked for. `None`: the first page.
    pub asked: Option<Digest>,
    /// Of the cursor of the page after it. `None`: the last page.
    pub next: Option<Digest>,
    /// The server says that it is for everybody (`cacheScope: public`, MCP 2026-07-28).
    pub public: bool,
    /// Who walks from page to page. Two that walk at the same time are two numbers.
    pub walker: u64,
}

/// An item of a page.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// Empty for what has no name.
    pub name: Cow<'a, str>,
    pub fingerprint: Fingerprint,
    /// Canonical text, for review. What is longer than [`super::MAX_TEXT`] is not kept.
    pub text: Cow<'a, str>,
    /// What looks like an attack in it, for review.
    pub smells: Value,
}

impl Endpoint {
    /// With names and addresses as they are compared.
    pub fn new(server: &str, address: SocketAddr, agent: Option<&str>) -> Endpoint {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        Endpoint { server: server.to_ascii_lowercase().into(), address, agent: agent.map(Into::into) }
    }
}

impl Shown<'_> {
    /// Becomes what it was and another one of the same name.
    pub(super) fn join(&mut self, other: &Shown<'_>) {
        if self.fingerprint == other.fingerprint {
            return;
        }
        let (one, two) = (self.fingerprint, other.fingerprint);
        let both = |one: Digest, two: Digest| {
            let mut both = [one.0, two.0];
            both.sort_unstable();
            Digest::of(both.as_flattened())
        };
        self.fingerprint = Fingerprint {
            definition: both(one.definition, two.definition),
            core: both(one.core, two.core),
            hints: Hints {
                read_only: one.hints.read_only && two.hints.read_only,
                destructive: one.hints.destructive || two.hints.destructive,
                idempotent: one.hints.idempotent && two.hints.idempotent,
                open_world: one.hints.open_world || two.hints.open_world,
            },
            annotations: both(one.annotations, two.annotations),
            display: both(one.display, two.display),
            meta: both(one.meta, two.meta),
            ui: both(one.ui, two.ui),
        };
        if self.text.len() <= super::MAX_TEXT {
            let text = self.text.to_mut();
            text.push('\n');
            text.push_str(&other.text);
        }
    }
}
