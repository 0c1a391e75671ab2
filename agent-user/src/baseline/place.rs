//! Where something is shown, for whom, and what a page of it says.

use std::borrow::Cow;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::id;
use crate::fingerprint::{Digest, Fingerprint, Hints, Surface};
use crate::judge::server_names;

/// Where something is shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// As the agent names it, in lower case: host, or `host:port`.
    pub server: Box<str>,
    /// Path of the target of its requests, without query: behind one name there may be several servers.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub path: Box<str>,
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

/// Longest part of a place, in bytes. Agents name servers and revisions as they like.
const MAX_PART: usize = 256;

impl Place {
    /// Is short enough to be kept. Of one that is not nothing is known.
    pub(super) fn fits(&self) -> bool {
        let Endpoint { server, path, agent, .. } = &self.endpoint;
        let parts =
            [Some(server), Some(path), agent.as_ref(), self.revision.as_ref(), self.principal.as_ref()];
        parts.into_iter().flatten().all(|part| part.len() <= MAX_PART)
    }
}

/// In place of what is too long to be kept its digest.
fn short(text: &str) -> Box<str> {
    if text.len() > MAX_PART { Digest::of(text.as_bytes()).to_string().into() } else { text.into() }
}

impl Endpoint {
    /// With names and addresses as they are compared.
    pub fn new(server: &str, path: &str, address: SocketAddr, agent: Option<&str>) -> Endpoint {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let server = short(&server.to_ascii_lowercase());
        Endpoint { server, path: short(path), address, agent: agent.map(short) }
    }

    /// All its names: see [`server_names`].
    pub(super) fn names(&self) -> Vec<String> {
        server_names(&self.server, Some(self.address))
    }
}

impl<'a> Shown<'a> {
    /// One item that is all of these, whatever their order.
    pub(super) fn join(mut all: Vec<Shown<'a>>) -> Option<Shown<'a>> {
        all.sort_by_key(|item| id::digest(&item.fingerprint));
        all.dedup_by_key(|item| item.fingerprint);
        let fingerprint = join(all.iter().map(|item| item.fingerprint))?;
        let length: usize = all.iter().map(|item| item.text.len() + 1).sum();
        let mut all = all.into_iter();
        let first = all.next()?;
        let mut text = first.text;
        for item in all {
            // Of what is too long to be kept only the length counts.
            let item =
                if length <= super::MAX_TEXT + 1 { item.text } else { " ".repeat(item.text.len()).into() };
            text.to_mut().push('\n');
            text.to_mut().push_str(&item);
        }
        Some(Shown { fingerprint, text, ..first })
    }
}

/// Of several definitions of one name: another one than each of them, and as unsafe as any. The order matters.
pub(super) fn join(all: impl Iterator<Item = Fingerprint>) -> Option<Fingerprint> {
    let both = |one: Digest, two: Digest| match one == two {
        true => one,
        false => Digest::of([one.0, two.0].as_flattened()),
    };
    all.reduce(|one, two| Fingerprint {
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
    })
}
