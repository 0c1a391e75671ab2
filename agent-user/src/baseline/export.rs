//! What is trusted as a file that people review: written.

use std::net::SocketAddr;
use std::sync::Arc;

use serde::Serialize;
use serde_saphyr::LitStr;

use super::document::VERSION;
use super::known::Known;
use super::place::Place;
use crate::fingerprint::{Fingerprint, Surface};

/// Something that is trusted.
#[derive(Debug)]
pub(super) struct Trustee {
    place: Arc<Place>,
    surface: Surface,
    name: Arc<str>,
    pub(super) fingerprint: Fingerprint,
    pub(super) text: Option<Arc<str>>,
}

#[derive(Serialize)]
struct File<'a> {
    version: u32,
    servers: Vec<Server<'a>>,
}

#[derive(Serialize)]
struct Server<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a str>,
    items: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    surface: Surface,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Text<'a>>,
    digests: Fingerprint,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Text<'a> {
    Block(LitStr<'a>),
    Quoted(&'a str),
}

impl Known {
    /// All that is trusted, by place and name, without texts.
    pub(super) fn trustees(&self) -> Vec<Trustee> {
        let mut trustees = Vec::new();
        for list in self.lists.values() {
            for (name, item) in &list.items {
                let Some(trust) = &item.trust else { continue };
                trustees.push(Trustee {
                    place: list.place.clone(),
                    surface: list.surface,
                    name: name.clone(),
                    fingerprint: *trust.trusted(&item.seen).fingerprint,
                    text: None,
                });
            }
        }
        trustees.sort_by(|one, other| {
            (&one.place, one.surface, &one.name).cmp(&(&other.place, other.surface, &other.name))
        });
        trustees
    }
}

/// The file. `trustees` are in the order of their places.
pub(super) fn write(trustees: &[Trustee]) -> Result<String, String> {
    let same_server = |one: &Trustee, other: &Trustee| one.place.endpoint == other.place.endpoint;
    let servers = trustees.chunk_by(same_server).map(|trustees| {
        let endpoint = &trustees[0].place.endpoint;
        Server {
            server: &endpoint.server,
            path: &endpoint.path,
            address: endpoint.address,
            agent: endpoint.agent.as_deref(),
            items: trustees.iter().map(Item::new).collect(),
        }
    });
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&File { version: VERSION, servers: servers.collect() }, options)
        .map_err(|error| error.to_string())
}

impl<'a> Item<'a> {
    fn new(trustee: &'a Trustee) -> Item<'a> {
        Item {
            surface: trustee.surface,
            name: &trustee.name,
            revision: trustee.place.revision.as_deref(),
            principal: trustee.place.principal.as_deref(),
            text: trustee.text.as_deref().map(Text::new),
            digests: trustee.fingerprint,
        }
    }
}

impl<'a> Text<'a> {
    /// As it is, where YAML can say that: not every letter may be in a block.
    fn new(text: &'a str) -> Text<'a> {
        let plain = |letter: char| {
            letter == '\n' || matches!(letter, ' '..='~' | '\u{a1}'..='\u{2027}' | '\u{2030}'..='\u{d7ff}')
        };
        let block = text.chars().all(plain) && text.starts_with(['{', '"', '[']);
        if block { Text::Block(LitStr(text)) } else { Text::Quoted(text) }
    }
}
