//! What is trusted as a document that people review, a file or an object of the API server: read and checked.
//!
//! Fingerprints are recomputed from texts; digests beside a text must agree with it.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::list::List;
use super::place::{Endpoint, Place, join};
use crate::decide::policy::Globs;
use crate::fingerprint::{Fingerprint, Surface, fingerprint};

pub(super) const VERSION: u32 = 1;
/// Most servers of an object, and most items of a server in one.
pub(crate) const MAX_SERVERS: usize = 1_000;
pub(crate) const MAX_ITEMS: usize = 8_192;

/// The file, as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Spanned<u32>,
    #[serde(default)]
    servers: Vec<Spanned<Server<Spanned<Item>>>>,
}

/// What some servers show.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server<I> {
    /// Globs over the server's names, as those of rules: host, `host:port`, address, `address:port`.
    server: Globs,
    /// Path of its endpoint; any where it is left out.
    path: Option<Box<str>>,
    /// Where it really is, if it matters.
    address: Option<SocketAddr>,
    /// The agent to which the address means something.
    agent: Option<Box<str>>,
    #[serde(default = "Vec::new")]
    items: Vec<I>,
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

/// A document that was read.
#[derive(Debug)]
pub struct Document {
    /// As operators and agents are told.
    pub(super) name: Arc<str>,
    pub(super) sections: Vec<Section>,
    /// Of all sections, and the section of each.
    pub(super) globs: GlobSet,
    pub(super) of_glob: Vec<u32>,
}

/// What a document says of some servers.
#[derive(Debug)]
pub(super) struct Section {
    /// Names of servers, without globs. In lower case: names of hosts have no case (RFC 4343).
    pub(super) names: Vec<Box<str>>,
    globs: Vec<Glob>,
    path: Option<Box<str>>,
    pub(super) address: Option<SocketAddr>,
    agent: Option<Box<str>>,
    pub(super) entries: Vec<Entry>,
    /// Where in `entries` names are.
    of_name: HashMap<Surface, HashMap<Arc<str>, Vec<usize>>>,
}

/// What a document says of an item.
#[derive(Debug)]
pub(super) struct Entry {
    /// Where that is, if the document names one place.
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

/// A mistake in what is said of some servers.
struct Slip {
    /// Which item it is in.
    item: Option<usize>,
    error: String,
}

impl Document {
    /// Reads a file such as [`super::Baseline::export`] writes.
    ///
    /// # Errors
    /// `LINE:COLUMN: ` and what is wrong there, with the remedy.
    pub fn of_file(text: &str) -> Result<Document, String> {
        // It may be as long as what is kept.
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! { max_nodes: 4 << 20, max_events: 8 << 20, max_total_scalar_bytes: 1 << 30 },
        };
        let file: File = serde_saphyr::from_str_with_options(text, options).map_err(|error| said(&error))?;
        if file.version.value != VERSION {
            let error = format!(
                "version {} is not known; this interlock reads version {VERSION}",
                file.version.value
            );
            return Err(at(&file.version, &error));
        }
        let section = |server: &Spanned<Server<Spanned<Item>>>| {
            let lines = server.value.items.iter().map(|item| item.referenced.line());
            let items: Vec<&Item> = server.value.items.iter().map(|item| &item.value).collect();
            Section::new(&server.value, &items, lines).map_err(|slip| match slip.item {
                Some(item) => at(&server.value.items[item], &slip.error),
                None => at(server, &slip.error),
            })
        };
        Document::new("the baseline file".into(), file.servers.iter().map(section).collect::<Result<_, _>>()?)
    }

    /// Reads the `servers` of a `ToolBaseline`.
    ///
    /// # Errors
    /// What is wrong, of which server and item, with the remedy.
    pub fn of_object(name: &str, servers: &[Value]) -> Result<Document, String> {
        if servers.len() > MAX_SERVERS {
            return Err(format!(
                "{} servers: an object has at most {MAX_SERVERS}; make several",
                servers.len()
            ));
        }
        let section = |(position, server): (usize, &Value)| {
            let in_server = |error: String| format!("server {}: {error}", position + 1);
            let server =
                Server::<Value>::deserialize(server).map_err(|error| in_server(error.to_string()))?;
            let patterns = server.server.patterns().join(", ");
            let in_server = |error: String| format!("server {} ({patterns}): {error}", position + 1);
            server.check_object().map_err(in_server)?;
            let in_item = |item: usize, error: String| {
                let of = server.items.get(item).map(|item| &item["name"]).and_then(Value::as_str);
                in_server(format!("item {} ({}): {error}", item + 1, of.unwrap_or_default()))
            };
            let items = server.items.iter().enumerate().map(|(position, item)| {
                Item::deserialize(item).map_err(|error| in_item(position, error.to_string()))
            });
            let items: Vec<Item> = items.collect::<Result<_, _>>()?;
            let items: Vec<&Item> = items.iter().collect();
            Section::new(&server, &items, std::iter::repeat(0)).map_err(|slip| match slip.item {
                Some(item) => in_item(item, slip.error),
                None => in_server(slip.error),
            })
        };
        let sections = servers.iter().enumerate().map(section).collect::<Result<_, _>>()?;
        Document::new(format!("ToolBaseline {name}").into(), sections)
    }

    fn new(name: Arc<str>, sections: Vec<Section>) -> Result<Document, String> {
        let (mut globs, mut of_glob) = (GlobSetBuilder::new(), Vec::new());
        for (number, section) in (0..).zip(&sections) {
            for glob in &section.globs {
                globs.add(glob.clone());
                of_glob.push(number);
            }
        }
        let globs = globs.build().map_err(|error| format!("server: too many globs together: {error}"))?;
        Ok(Document { name, sections, globs, of_glob })
    }

    /// How many items it says something of.
    pub fn entries(&self) -> usize {
        self.sections.iter().map(|section| section.entries.len()).sum()
    }
}

impl<I> Server<I> {
    /// What an object may not say, though a file may.
    fn check_object(&self) -> Result<(), String> {
        if self.items.len() > MAX_ITEMS {
            return Err(format!("{} items: a server has at most {MAX_ITEMS}", self.items.len()));
        }
        // It is about all that has this name or this address: see [`super::index`].
        let glob = self.server.patterns().iter().find(|pattern| literal(pattern).is_none());
        match (self.address, glob) {
            (Some(address), Some(glob)) => Err(format!(
                "glob {glob:?} beside an `address`: name the server without one, or leave `address` out and give {address} as \
                 `server`"
            )),
            _ => Ok(()),
        }
    }
}

impl Section {
    fn new<I>(
        server: &Server<I>,
        items: &[&Item],
        lines: impl Iterator<Item = u64>,
    ) -> Result<Section, Slip> {
        let Server { server: patterns, path, address, agent, .. } = server;
        let (names, globs) = compile(patterns).map_err(|error| Slip { item: None, error })?;
        let endpoint = match (patterns.patterns(), address) {
            ([name], Some(address)) => literal(name).map(|name| {
                Endpoint::new(&name, path.as_deref().unwrap_or_default(), *address, agent.as_deref())
            }),
            _ => None,
        };
        let mut seen = HashSet::new();
        let mut of_name: HashMap<Surface, HashMap<Arc<str>, Vec<usize>>> = HashMap::new();
        let mut entries = Vec::with_capacity(items.len());
        for (position, (item, line)) in items.iter().zip(lines).enumerate() {
            let slip = |error| Slip { item: Some(position), error };
            let entry = Entry::new(item, endpoint.as_ref(), line).map_err(slip)?;
            if !seen.insert((item.surface, &item.name, &item.revision, &item.principal)) {
                let (surface, name) = (item.surface.label(), &item.name);
                return Err(slip(format!("{surface} {name:?} is there twice; leave one out")));
            }
            let of_surface = of_name.entry(entry.surface).or_default();
            of_surface.entry(entry.name.clone()).or_default().push(position);
            entries.push(entry);
        }
        let (path, agent) = (path.clone(), agent.clone());
        Ok(Section { names, globs, path, address: *address, agent, entries, of_name })
    }

    /// Whether it is about an endpoint with a name that it is about.
    pub(super) fn is_about(&self, endpoint: &Endpoint) -> bool {
        self.path.as_ref().is_none_or(|asked| *asked == endpoint.path)
            && self.address.is_none_or(|asked| asked == endpoint.address)
            && self.is_of_agent(endpoint)
    }

    /// Whether an address means the same to it as to the agent of an endpoint.
    pub(super) fn is_of_agent(&self, endpoint: &Endpoint) -> bool {
        self.agent.is_none() || self.agent == endpoint.agent
    }

    /// What it says of a name.
    pub(super) fn of_name(&self, surface: Surface, name: &str) -> impl Iterator<Item = &Entry> {
        let indexes = self.of_name.get(&surface).and_then(|names| names.get(name)).into_iter().flatten();
        indexes.filter_map(|index| self.entries.get(*index))
    }
}

impl Entry {
    fn new(item: &Item, endpoint: Option<&Endpoint>, line: u64) -> Result<Entry, String> {
        let Item { surface, name, revision, principal, text, digests } = item;
        let computed = text.as_deref().and_then(|text| fingerprint_of(*surface, text));
        let fingerprint = match (computed, digests) {
            (Some(computed), Some(digests)) if computed != *digests => {
                return Err(
                    "`text` and `digests` do not agree; leave `digests` out to trust the text".to_owned()
                );
            }
            (Some(computed), _) => computed,
            (None, Some(digests)) => *digests,
            (None, None) => return Err("neither `text` nor `digests`; give one of them".to_owned()),
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
            line,
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

/// Names, and globs that match several.
fn compile(globs: &Globs) -> Result<(Vec<Box<str>>, Vec<Glob>), String> {
    let (mut names, mut compiled) = (Vec::new(), Vec::new());
    for pattern in globs.patterns() {
        if pattern.is_empty() {
            return Err("server: an empty glob matches nothing; name a server".to_owned());
        }
        let lower = pattern.to_ascii_lowercase();
        match literal(&lower) {
            Some(name) => names.push(name.into()),
            None => {
                let glob = Glob::new(&lower);
                compiled.push(glob.map_err(|error| format!("server: glob {pattern:?}: {}", error.kind()))?);
            }
        }
    }
    Ok((names, compiled))
}

/// The one name that a glob matches, if it is that of one: [`globset::escape`] puts what means more than itself in brackets.
pub(super) fn literal(pattern: &str) -> Option<String> {
    let mut name = String::with_capacity(pattern.len());
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '[' => {
                name.push(letters.next().filter(|escaped| !"!^".contains(*escaped))?);
                letters.next().filter(|end| *end == ']')?;
            }
            '*' | '?' | ']' | '{' | '}' | '\\' => return None,
            letter => name.push(letter),
        }
    }
    Some(name)
}
