//! What servers have said of their tools in lists that agents asked for: hints, and which resource is a tool's interface.
//! It is the server's word, and kept for the agent that it was given to alone: another one may talk to a server of its own
//! under the same name.
//!
//! In memory only: after a restart a tool is not known until it is listed again.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use url::Url;

use crate::decide::subject::Annotations;
use crate::decode::find;
use crate::fingerprint::Digest;

/// Tools and lists that are kept of one agent.
const PER_AGENT: usize = 8_192;
/// Tools and lists that are kept of all.
const MOST: usize = 65_536;
/// Pages of a list that need not be read again.
const MOST_PAGES: usize = 16;
/// Longest name that is kept: of longer ones nothing is known.
const MAX_NAME: usize = 256;
/// Longest URI of an interface that is kept.
const MAX_URI: usize = 1024;

/// The tools of all servers. The lock is held for moments, by lists and by calls whose rules ask for hints.
#[derive(Debug, Default)]
pub struct Catalogue {
    known: Mutex<Known>,
}

/// Who has asked whom.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Number of the agent.
    pub agent: u32,
    /// The server as the agent names it: host, or `host:port`.
    pub server: &'a str,
    /// Where the connection really goes.
    pub address: SocketAddr,
}

#[derive(Debug, Default)]
struct Known {
    agents: HashMap<u32, OfAgent>,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug, Default)]
struct OfAgent {
    /// By digest of the server's name and address, which may be of any length.
    lists: HashMap<Digest, List>,
    /// Tools and lists.
    size: usize,
}

#[derive(Debug, Default)]
struct List {
    tools: HashMap<Box<str>, Told>,
    /// Which tools have a resource for their interface, by its URI as [`comparable`] has it.
    interfaces: HashMap<Box<str>, BTreeSet<Box<str>>>,
    /// Digests of the pages that were read last: as long as nothing else comes they say nothing new.
    pages: Vec<Digest>,
    /// When it was used last, in uses.
    used: u64,
}

/// What was said of one tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    annotations: Annotations,
    interface: Option<Box<str>>,
}

impl Catalogue {
    /// Learns what the result of a `tools/list` says; `tools` is the JSON text of its member of that name, which the
    /// decoder has found valid. A tool is what it was called last; those of other pages stay.
    pub fn learn(&self, place: Place<'_>, tools: &str) {
        let page = Digest::of(tools.as_bytes());
        if self.known().is_known(place, page) {
            return;
        }
        let tools = read(tools);
        self.known().learn(place, page, tools);
    }

    /// What the server has said of a tool.
    pub fn annotations(&self, place: Place<'_>, tool: &str) -> Annotations {
        let mut known = self.known();
        let told = known.list(place).and_then(|list| list.tools.get(tool));
        told.map(|told| told.annotations).unwrap_or_default()
    }

    /// The tools whose interface is this resource: one with scheme `ui`, in the definition of a tool (MCP Apps, SEP-1865).
    pub fn tools_of_interface(&self, place: Place<'_>, uri: &str) -> Vec<Box<str>> {
        let Some(uri) = comparable(uri) else { return Vec::new() };
        let mut known = self.known();
        let tools = known.list(place).and_then(|list| list.interfaces.get(&*uri));
        tools.into_iter().flatten().cloned().collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        hash.update(format!("{} {}\0", self.address.ip().to_canonical(), self.address.port()));
        hash.update(self.server.to_ascii_lowercase());
        Digest(hash.finalize().into())
    }
}

impl Known {
    /// What is known of a place, which is used now.
    fn list(&mut self, place: Place<'_>) -> Option<&mut List> {
        self.clock += 1;
        let list = self.agents.get_mut(&place.agent)?.lists.get_mut(&place.digest())?;
        list.used = self.clock;
        Some(list)
    }

    /// Whether a page says nothing that is not known.
    fn is_known(&mut self, place: Place<'_>, page: Digest) -> bool {
        self.list(place).is_some_and(|list| list.pages.contains(&page))
    }

    fn learn(&mut self, place: Place<'_>, page: Digest, tools: HashMap<Box<str>, Told>) {
        self.clock += 1;
        let used = self.clock;
        let agent = self.agents.entry(place.agent).or_default();
        let digest = place.digest();
        let list = agent.lists.entry(digest).or_insert_with(|| {
            agent.size += 1;
            List::default()
        });
        list.used = used;
        let mut is_new = false;
        for (name, told) in tools {
            // The list itself takes one place: what is behind is as unknown as if it was not listed.
            if list.tools.len() + 1 >= PER_AGENT && !list.tools.contains_key(&name) {
                continue;
            }
            let before = list.tell(name, told);
            is_new |= before == Some(false);
            agent.size += usize::from(before.is_none());
        }
        if is_new || list.pages.len() == MOST_PAGES {
            list.pages.clear();
        }
        list.pages.push(page);
        while agent.size > PER_AGENT {
            agent.forget_oldest();
        }
        while self.agents.values().map(|agent| agent.size).sum::<usize>() > MOST {
            // Whoever has the most makes room, so that nobody loses what is known by what another one asks for.
            let Some(largest) = self.agents.values_mut().max_by_key(|agent| agent.size) else { break };
            largest.forget_oldest();
        }
    }
}

impl List {
    /// Whether this was said of the tool before; `None` if nothing was.
    fn tell(&mut self, name: Box<str>, told: Told) -> Option<bool> {
        let before = self.tools.get(&name);
        let is_same = before.map(|before| *before == told);
        if is_same == Some(true) {
            return is_same;
        }
        if let Some(uri) = before.and_then(|before| before.interface.as_ref())
            && let Some(tools) = self.interfaces.get_mut(uri)
        {
            tools.remove(&name);
            if tools.is_empty() {
                self.interfaces.remove(uri);
            }
        }
        if let Some(uri) = &told.interface {
            self.interfaces.entry(uri.clone()).or_default().insert(name.clone());
        }
        self.tools.insert(name, told);
        is_same
    }
}

impl OfAgent {
    fn forget_oldest(&mut self) {
        let oldest = self.lists.iter().min_by_key(|(_, list)| list.used).map(|(digest, _)| *digest);
        match oldest.and_then(|digest| self.lists.remove(&digest)) {
            Some(list) => self.size = self.size.saturating_sub(list.tools.len() + 1),
            None => self.size = 0,
        }
    }
}

/// The tools of a list.
fn read(tools: &str) -> HashMap<Box<str>, Told> {
    let mut list: HashMap<Box<str>, Told> = HashMap::new();
    // What is no array of values has no tools.
    for tool in serde_json::from_str::<Vec<&RawValue>>(tools).unwrap_or_default() {
        let name = find::member(tool.get(), "name").ok().flatten().and_then(find::text);
        let Some(name) = name.filter(|name| name.len() <= MAX_NAME) else { continue };
        let annotations = annotations(tool.get());
        let interface = interface(tool.get());
        let told = list.entry((*name).into()).or_insert_with(|| Told { annotations, interface: None });
        // Readers would differ on which is meant: it is the one that may do more.
        told.annotations.read_only &= annotations.read_only;
        told.annotations.destructive |= annotations.destructive;
        told.annotations.idempotent &= annotations.idempotent;
        told.annotations.open_world |= annotations.open_world;
        told.interface = told.interface.take().or(interface);
    }
    list
}

/// The resource that is a tool's interface: `_meta.ui.resourceUri`, or `ui/resourceUri` in `_meta` as it was called before
/// (MCP Apps, SEP-1865).
fn interface(tool: &str) -> Option<Box<str>> {
    let member = |object, name| find::member(object, name).ok().flatten();
    let meta = member(tool, "_meta")?;
    let uri = member(meta, "ui").and_then(|ui| member(ui, "resourceUri"));
    comparable(&find::text(uri.or_else(|| member(meta, "ui/resourceUri"))?)?)
}

/// A URI of an interface as it is compared: servers take some spellings for the same. `None` for that of anything else.
fn comparable(uri: &str) -> Option<Box<str>> {
    let is_interface = uri.get(..3).is_some_and(|scheme| scheme.eq_ignore_ascii_case("ui:"));
    let is_short = uri.len() <= MAX_URI;
    let parsed = Url::parse(uri).ok().filter(|_| is_interface && is_short)?;
    Some(parsed.as_str().to_ascii_lowercase().into())
}

/// The hints of a tool. One that is no boolean, or is there twice, is as if it was not there.
fn annotations(tool: &str) -> Annotations {
    let hints = find::member(tool, "annotations").ok().flatten().unwrap_or_default();
    let hint = |name| match find::member(hints, name) {
        Ok(Some("true")) => Some(true),
        Ok(Some("false")) => Some(false),
        _ => None,
    };
    let default = Annotations::default();
    let read_only = hint("readOnlyHint").unwrap_or(default.read_only);
    Annotations {
        known: true,
        read_only,
        // Its default is for tools that are not read-only; for others it means nothing.
        destructive: hint("destructiveHint").unwrap_or(default.destructive && !read_only),
        idempotent: hint("idempotentHint").unwrap_or(default.idempotent),
        open_world: hint("openWorldHint").unwrap_or(default.open_world),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(agent: u32, server: &str) -> Place<'_> {
        Place { agent, server, address: "10.0.0.1:80".parse().unwrap() }
    }

    /// Hints as letters: read-only, destructive, idempotent, open world; `-` for what is not known.
    fn hints(annotations: Annotations) -> String {
        let Annotations { known, read_only, destructive, idempotent, open_world } = annotations;
        let letters =
            [(read_only, 'r'), (destructive, 'd'), (idempotent, 'i'), (open_world, 'o'), (!known, '-')];
        letters.into_iter().filter_map(|(set, letter)| set.then_some(letter)).collect()
    }

    #[track_caller]
    fn check(tools: &str, expect: &str) {
        let catalogue = Catalogue::default();
        catalogue.learn(place(1, "s"), tools);
        assert_eq!(hints(catalogue.annotations(place(1, "s"), "t")), expect, "{tools}");
    }

    #[test]
    fn what_is_not_said_has_the_defaults_of_the_specification() {
        let with =
            |annotations: &str| format!(r#"[{{"name":"a"}},{{"name":"t","annotations":{annotations}}}]"#);
        check(r#"[{"name":"t"}]"#, "do");
        check(&with("{}"), "do");
        check(&with(r#"{"readOnlyHint":true}"#), "ro");
        check(&with(r#"{"readOnlyHint":true,"destructiveHint":true}"#), "rdo");
        check(&with(r#"{"readOnlyHint":false,"destructiveHint":false}"#), "o");
        check(&with(r#"{"idempotentHint":true,"openWorldHint":false}"#), "di");
        // Nothing that is a hint.
        for other in ["null", "7", "[true]", "\"readOnlyHint\"", r#"{"readonlyhint":true}"#] {
            check(&with(other), "do");
        }
        for value in ["\"true\"", "1", "null", "{}", "[true]"] {
            check(&with(&format!(r#"{{"readOnlyHint":{value},"openWorldHint":{value}}}"#)), "do");
        }
    }

    #[test]
    fn of_what_could_be_read_in_two_ways_the_less_harmless_one_is_meant() {
        let good = r#""annotations":{"readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}"#;
        check(&format!(r#"[{{"name":"t",{good}}}]"#), "ri");
        check(&format!(r#"[{{"name":"t",{good}}},{{"name":"t"}}]"#), "do");
        check(&format!(r#"[{{"name":"t"}},{{"name":"\u0074",{good}}}]"#), "do");
        check(&format!(r#"[{{"name":"t",{good},"annotations":{{}}}}]"#), "do");
        check(r#"[{"name":"t","annotations":{"readOnlyHint":true,"readOnlyHint":true}}]"#, "do");
        check(r#"[{"name":"t","annotations":{"readOnlyHint":true,"ReadOnlyHint":false}}]"#, "do");
        check(&format!(r#"[{{"name":"t","name":"u",{good}}}]"#), "do-");
    }

    #[test]
    fn what_is_no_list_teaches_nothing() {
        for tools in
            ["", "{}", "null", "[", r#"["t"]"#, r#"[{"Name":"t"}]"#, r#"[{"name":["t"]}]"#, "[{}]", "[[]]"]
        {
            check(tools, "do-");
        }
    }

    #[test]
    fn agents_servers_and_addresses_are_kept_apart() {
        let catalogue = Catalogue::default();
        let here = place(1, "bank.test");
        catalogue.learn(here, r#"[{"name":"t","annotations":{"readOnlyHint":true}}]"#);
        let known = |place| catalogue.annotations(place, "t").known;
        assert!(known(here) && known(place(1, "BANK.test")));
        let mapped = "[::ffff:10.0.0.1]:80".parse().unwrap();
        assert!(known(Place { address: mapped, ..here }));
        let elsewhere = "10.0.0.2:80".parse().unwrap();
        assert!(!known(place(2, "bank.test")) && !known(place(1, "shop.test")));
        assert!(!known(Place { address: elsewhere, ..here }));
        assert!(!catalogue.annotations(here, "T").known);
    }

    #[test]
    fn the_last_list_counts_and_pages_add_up() {
        let catalogue = Catalogue::default();
        let of = |tool| hints(catalogue.annotations(place(1, "s"), tool));
        catalogue.learn(place(1, "s"), r#"[{"name":"t"},{"name":"u"}]"#);
        catalogue.learn(place(1, "s"), r#"[{"name":"t","annotations":{"readOnlyHint":true}},{"name":"v"}]"#);
        assert_eq!([of("t"), of("u"), of("v")], ["ro", "do", "do"]);
    }

    #[test]
    fn interfaces_are_found_by_their_uri() {
        let catalogue = Catalogue::default();
        let here = place(1, "s");
        let of = |uri| catalogue.tools_of_interface(here, uri).join(" ");
        let tool = |name: &str, meta: &str| format!(r#"{{"name":"{name}","_meta":{meta}}}"#);
        let tools = [
            tool("a", r#"{"ui":{"resourceUri":"ui://x/a"}}"#),
            tool("b", r#"{"ui/resourceUri":"UI:\/\/X/./%61?q"}"#),
            tool("c", r#"{"ui":{"resourceUri":"ui://x/a"},"ui/resourceUri":"ui://x/old"}"#),
            tool("d", r#"{"ui":{"resourceUri":"https://x/a"}}"#),
            tool("e", r#"{"ui":{"resourceUri":7}}"#),
            tool("f", &format!(r#"{{"ui":{{"resourceUri":"ui://x/{}"}}}}"#, "f".repeat(MAX_URI))),
        ];
        catalogue.learn(here, &format!("[{}]", tools.join(",")));
        assert_eq!([of("ui://x/a"), of("UI://X/b/../A"), of("ui://x/%61?q")], ["a c", "a c", "b"]);
        assert_eq!([of("ui://x/old"), of("https://x/a"), of("ui://x/a#b"), of("ui")], [""; 4]);
        assert!(catalogue.tools_of_interface(place(2, "s"), "ui://x/a").is_empty());

        // What a tool was said to be last counts.
        catalogue.learn(here, &format!("[{}]", tool("a", r#"{"ui":{"resourceUri":"ui://x/b"}}"#)));
        assert_eq!([of("ui://x/a"), of("ui://x/b")], ["c", "a"]);
        catalogue.learn(here, r#"[{"name":"a"},{"name":"c"}]"#);
        assert_eq!([of("ui://x/a"), of("ui://x/b")], [""; 2]);
        assert_eq!(catalogue.known().list(here).map(|list| list.interfaces.len()), Some(1));
    }

    fn many(from: usize, tools: usize) -> String {
        let tools: Vec<String> = (from..from + tools).map(|n| format!(r#"{{"name":"t{n}"}}"#)).collect();
        format!("[{}]", tools.join(","))
    }

    fn sizes(catalogue: &Catalogue) -> (usize, usize) {
        let known = catalogue.known();
        let exact = |agent: &OfAgent| agent.lists.values().map(|list| list.tools.len() + 1).sum::<usize>();
        assert!(known.agents.values().all(|agent| agent.size == exact(agent)));
        let sizes = known.agents.values().map(|agent| agent.size);
        (sizes.clone().max().unwrap_or(0), sizes.sum())
    }

    #[test]
    fn the_list_that_was_used_longest_ago_makes_room() {
        let catalogue = Catalogue::default();
        let servers: Vec<String> = (0..5).map(|n| format!("s{n}")).collect();
        for server in &servers[..4] {
            catalogue.learn(place(1, server), &many(0, 2_000));
        }
        assert!(catalogue.annotations(place(1, "s0"), "t0").known);
        catalogue.learn(place(1, "s4"), &many(0, 2_000));
        let known = servers.iter().map(|server| catalogue.annotations(place(1, server), "t1999").known);
        assert_eq!(known.collect::<Vec<_>>(), [true, false, true, true, true]);
        catalogue.learn(place(1, "s5"), &many(0, PER_AGENT + 9));
        catalogue.learn(place(1, "s5"), &many(PER_AGENT + 9, 9));
        assert_eq!(sizes(&catalogue), (PER_AGENT, PER_AGENT));
        assert!(!catalogue.annotations(place(1, "s0"), "t0").known);
        let name = "n".repeat(MAX_NAME + 1);
        catalogue.learn(place(1, "s6"), &format!(r#"[{{"name":"{name}"}}]"#));
        assert!(!catalogue.annotations(place(1, "s6"), &name).known);
    }

    #[test]
    fn no_agent_takes_the_room_of_another() {
        let catalogue = Catalogue::default();
        catalogue.learn(place(0, "s"), &many(0, 100));
        for agent in 1..10 {
            for server in 0..9 {
                catalogue.learn(place(agent, &server.to_string()), &many(0, 1_000));
            }
            // Lists without tools take room, too.
            catalogue.learn(place(agent, "empty"), "[]");
        }
        let (most, all) = sizes(&catalogue);
        assert!(most <= PER_AGENT && all <= MOST && all > MOST - 2_000, "{most} {all}");
        assert!(catalogue.annotations(place(0, "s"), "t99").known);
    }
}
