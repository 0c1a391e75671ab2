//! Servers in a few letters, and what is said of them.

mod backend;
mod crash;
mod disk;
mod document;
mod killed;
mod model;
mod objects;
mod orders;
mod room;
mod siblings;
mod states;
mod walks;

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::change::Change;
use super::id::Key;
use super::known::Known;
use super::observe::Sight;
use super::observe::merge;
use super::orders::Wish;
use super::{Authority, Document, Endpoint, Options, Order, Page, Place, Refusal, Shown};
use crate::decide::stop::Operator;
use crate::fingerprint::{Digest, Surface, fingerprint};

const FIRST_USE: Options = Options { trust_first_use: true, authority: None };

/// `server`, `server/path`, `server@1.2.3.4`, with `#revision`, `!principal` and `%agent` behind.
fn place(text: &str) -> Place {
    let part = |mark: char| {
        let (_, part) = text.split_once(mark)?;
        Some(part.split(['@', '#', '!', '%']).next().unwrap_or_default())
    };
    let server = text.split(['@', '#', '!', '%']).next().unwrap_or_default();
    let (server, path) = server.find('/').map_or((server, ""), |at| server.split_at(at));
    let address = format!("{}:80", part('@').unwrap_or("10.0.0.1")).parse().unwrap();
    Place {
        endpoint: Endpoint::new(server, path, address, part('%')),
        revision: Some(part('#').unwrap_or("2025-06-18").into()),
        principal: part('!').map(Into::into),
    }
}

/// `name=description`, with `/title` behind, or `?` for a tool that says it only reads.
fn tool(text: &str) -> Value {
    let (name, says) = text.split_once('=').unwrap();
    let (says, title) = says.split_once('/').map_or((says, None), |(says, title)| (says, Some(title)));
    let (says, reads) = says.strip_suffix('?').map_or((says, false), |says| (says, true));
    let mut tool = json!({"name": name, "description": says, "inputSchema": {"type": "object"}});
    if let Some(title) = title {
        tool["title"] = title.into();
    }
    if reads {
        tool["annotations"] = json!({"readOnlyHint": true, "destructiveHint": false});
    }
    tool
}

/// Tools as [`tool`], with spaces between.
fn shown(items: &str) -> Vec<Shown<'static>> {
    let shown = |item: &str| {
        let tool = tool(item);
        let text = tool.to_string();
        let name = tool["name"].as_str().unwrap().to_owned().into();
        Shown { name, fingerprint: fingerprint(Surface::Tool, &text), text: text.into(), smells: Value::Null }
    };
    items.split_whitespace().map(shown).collect()
}

/// A page that is a whole list.
fn whole(items: &str) -> Page {
    let digest = Digest::of(items.as_bytes());
    Page { surface: Surface::Tool, digest, asked: None, next: None, public: false, walker: 0 }
}

/// A page from one cursor to another.
fn part(asked: &str, next: &str, items: &str) -> Page {
    let cursor = |name: &str| (!name.is_empty()).then(|| Digest::of(name.as_bytes()));
    Page { asked: cursor(asked), next: cursor(next), ..whole(items) }
}

fn say(changes: &[Change]) -> String {
    let say = |change: &Change| {
        let (what, state) = (change.what.label(), change.state.label());
        let renamed = change.renamed_from.as_ref().map(|old| format!(" was {old}")).unwrap_or_default();
        format!("{what} {} {state} [{}]{renamed}", change.name, change.classes)
    };
    changes.iter().map(say).collect::<Vec<_>>().join("; ")
}

fn order(reason: &str) -> Order {
    let by = Operator { uid: Some(1000), user: "eve".to_owned(), ..Operator::default() };
    Order { by, reason: reason.to_owned(), at: Timestamp::UNIX_EPOCH }
}

/// What is known, without a store.
struct World {
    known: Known,
}

impl World {
    fn new(trust_first_use: bool) -> World {
        World { known: Known::new(Key([7; 32]), trust_first_use, None) }
    }

    /// Has a file and objects say what is trusted: `name` and `servers`.
    fn govern(&mut self, file: Option<&str>, objects: &[(&str, Value)]) {
        let file = file.map(|file| Arc::new(Document::of_file(file).unwrap()));
        let object = |(name, servers): &(&str, Value)| {
            Arc::new(Document::of_object(name, servers.as_array().unwrap()).unwrap())
        };
        let authority = Authority::new(file, objects.iter().map(object).collect(), None);
        self.known.set_authority(authority.map(Arc::new), &HashMap::new());
    }

    fn page(&mut self, at: &str, page: Page, items: &str) -> String {
        self.page_to("ann", at, page, items)
    }

    fn page_to(&mut self, witness: &str, at: &str, page: Page, items: &str) -> String {
        let place = place(at);
        let sight = Sight { place: &place, page: &page, witness, now: Timestamp::UNIX_EPOCH };
        let repeated = self.known.repeat(sight);
        say(&repeated.unwrap_or_else(|| self.known.observe(sight, &merge(shown(items)))))
    }

    /// A whole list.
    fn show(&mut self, at: &str, items: &str) -> String {
        self.page(at, whole(items), items)
    }

    /// A whole list, to another agent.
    fn show_to(&mut self, agent: &str, at: &str, items: &str) -> String {
        self.page_to(agent, at, whole(items), items)
    }

    /// State and classes; `?` behind what is unsure.
    fn standing(&mut self, at: &str, name: &str) -> String {
        let Some(standing) = self.known.standing(&place(at), Surface::Tool, name) else {
            return "-".to_owned();
        };
        let unsure = if standing.unsure { "?" } else { "" };
        format!("{}{unsure} [{}]", standing.state.label(), standing.classes)
    }

    fn id(&self, at: &str, name: &str) -> String {
        let place = place(at);
        let found =
            self.known.summaries(&super::Filter { name: Some(name.to_owned()), ..Default::default() });
        found.into_iter().find(|found| *found.place == place).unwrap().id
    }

    fn order(&mut self, wish: Wish) -> Result<String, Refusal> {
        let plan = self.known.plan(&wish, order("tried"))?;
        Ok(say(&self.known.carry_out(&plan)))
    }

    fn approve(&mut self, at: &str, name: &str) -> String {
        let id = self.id(at, name);
        self.order(Wish::Approve(id)).unwrap()
    }

    fn block(&mut self, at: &str, name: &str) -> String {
        let id = self.id(at, name);
        self.order(Wish::Block(id)).unwrap()
    }
}
