//! What is trusted as a file that people review: read and checked.
//!
//! Fingerprints are recomputed from texts; digests beside a text must agree with it.

use std::net::SocketAddr;
use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Deserialize;
use serde_saphyr::Spanned;

use super::list::List;
use super::place::{Endpoint, Place, join};
use crate::decide::policy::Globs;
use crate::fingerprint::{Fingerprint, Surface, fingerprint};

pub(super) const VERSION: u32 = 1;

/// The file, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Spanned<u32>,
    #[serde(default)]
    servers: Vec<Spanned<Server>>,
}

/// What some servers show.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    /// Globs over the server's names, as those of rules: host, `host:port`, address, `address:port`.
    server: Globs,
    /// Path of its endpoint; any where it is left out.
    path: Option<Box<str>>,
    /// Where it really is, if it matters.
    address: Option<SocketAddr>,
    /// The agent to which the address means something.
    agent: Option<Box<str>>,
    #[serde(default)]
    items: Vec<Spanned<Item>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    surface: Surface,
    #[serde(default)]
    name: Arc<str>,
    /// Any where it is left out.
    revision: Option<Box<str>>,
    principal: Option<Box<str>>,
    /// The definition, in JSON.
    text: Option<Arc<str>>,
    digests: Option<Fingerprint>,
}

/// What a file says of some servers.
#[derive(Debug)]
pub(super) struct Section {
    servers: GlobSet,
    path: Option<Box<str>>,
    address: Option<SocketAddr>,
    agent: Option<Box<str>>,
    pub(super) entries: Vec<Entry>,
}

/// What a file says of an item.
#[derive(Debug)]
pub(super) struct Entry {
    /// Where that is, if the file names one place.
    pub(super) place: Option<Place>,
    pub(super) surface: Surface,
    pub(super) name: Arc<str>,
    pub(super) revision: Option<Box<str>>,
    pub(super) principal: Option<Box<str>>,
    pub(super) fingerprint: Fingerprint,
    pub(super) text: Option<Arc<str>>,
    /// Line of the file, from 1.
    pub(super) line: u64,
}

/// Reads and checks a file.
///
/// # Errors
/// `LINE:COLUMN: ` and what is wrong there, with the remedy.
pub(super) fn parse(text: &str) -> Result<Vec<Section>, String> {
    // It may be as long as what is kept.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: 4 << 20, max_events: 8 << 20, max_total_scalar_bytes: 1 << 30 },
    };
    let file: File = serde_saphyr::from_str_with_options(text, options).map_err(|error| said(&error))?;
    if file.version.value != VERSION {
        let error =
            format!("version {} is not known; this interlock reads version {VERSION}", file.version.value);
        return Err(at(&file.version, &error));
    }
    file.servers.iter().map(Section::new).collect()
}

impl Section {
    fn new(server: &Spanned<Server>) -> Result<Section, String> {
        let Server { server: globs, path, address, agent, items } = &server.value;
        let servers = compile(globs).map_err(|error| at(server, &error))?;
        let endpoint = match (globs.patterns(), address) {
            ([name], Some(address)) if is_literal(name) => {
                Some(Endpoint::new(name, path.as_deref().unwrap_or_default(), *address, agent.as_deref()))
            }
            _ => None,
        };
        let entries = items.iter().map(|item| Entry::new(item, endpoint.as_ref()));
        let entries: Vec<Entry> = entries.collect::<Result<_, String>>()?;
        let (path, agent) = (path.clone(), agent.clone());
        let section = Section { servers, path, address: *address, agent, entries };
        section.check(items)?;
        Ok(section)
    }

    /// No item may be there twice.
    fn check(&self, items: &[Spanned<Item>]) -> Result<(), String> {
        let mut seen = std::collections::HashSet::new();
        for (entry, item) in self.entries.iter().zip(items) {
            if !seen.insert((entry.surface, &entry.name, &entry.revision, &entry.principal)) {
                let error =
                    format!("{} {:?} is there twice; leave one out", entry.surface.label(), entry.name);
                return Err(at(item, &error));
            }
        }
        Ok(())
    }

    /// Whether it is about a place.
    pub(super) fn is_about(&self, place: &Place) -> bool {
        let Endpoint { path, address, agent, .. } = &place.endpoint;
        self.path.as_ref().is_none_or(|asked| asked == path)
            && self.address.is_none_or(|asked| asked == *address)
            && (self.agent.is_none() || self.agent == *agent)
            && place.endpoint.names().iter().any(|name| self.servers.is_match(name))
    }
}

impl Entry {
    fn new(item: &Spanned<Item>, endpoint: Option<&Endpoint>) -> Result<Entry, String> {
        let Item { surface, name, revision, principal, text, digests } = &item.value;
        let computed = text.as_deref().and_then(|text| fingerprint_of(*surface, text));
        let fingerprint = match (computed, digests) {
            (Some(computed), Some(digests)) if computed != *digests => {
                let error =
                    "`text` and `digests` do not agree; leave `digests` out to trust the text".to_owned();
                return Err(at(item, &error));
            }
            (Some(computed), _) => computed,
            (None, Some(digests)) => *digests,
            (None, None) => return Err(at(item, "neither `text` nor `digests`; give one of them")),
        };
        let place = endpoint.map(|endpoint| Place {
            endpoint: endpoint.clone(),
            revision: revision.clone(),
            principal: principal.clone(),
        });
        Ok(Entry {
            place,
            surface: *surface,
            name: name.clone(),
            revision: revision.clone(),
            principal: principal.clone(),
            fingerprint,
            text: text.clone(),
            line: item.referenced.line(),
        })
    }

    /// Whether it is about a list of a place that its section is about.
    pub(super) fn is_of(&self, list: &List) -> bool {
        let fits = |asked: &Option<Box<str>>, is: &Option<Box<str>>| asked.is_none() || asked == is;
        self.surface == list.surface
            && fits(&self.revision, &list.place.revision)
            && fits(&self.principal, &list.place.principal)
    }
}

/// Of a text as it is kept: one line for each definition of the name.
pub(super) fn fingerprint_of(surface: Surface, text: &str) -> Option<Fingerprint> {
    join(text.lines().map(|line| fingerprint(surface, line)))
}

/// As `LINE:COLUMN: ERROR`, for whoever knows the file to put its name before it.
fn at<T>(place: &Spanned<T>, error: &str) -> String {
    format!("{}:{}: {error}", place.referenced.line(), place.referenced.column())
}

fn said(error: &serde_saphyr::Error) -> String {
    let said = error.to_string();
    let Some(at) = error.location() else { return said };
    let (line, column) = (at.line(), at.column());
    let prefix = format!("error: line {line} column {column}: ");
    format!("{line}:{column}: {}", said.strip_prefix(&prefix).unwrap_or(&said))
}

/// Names of hosts have no case (RFC 4343).
fn compile(globs: &Globs) -> Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for pattern in globs.patterns() {
        if pattern.is_empty() {
            return Err("server: an empty glob matches nothing; name a server".to_owned());
        }
        let glob = Glob::new(&pattern.to_ascii_lowercase());
        set.add(glob.map_err(|error| format!("server: glob {pattern:?}: {}", error.kind()))?);
    }
    set.build().map_err(|error| format!("server: {error}"))
}

fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', ']', '{', '}', '\\', '!'])
}
