//! What servers show to models goes to the baseline ([`crate::baseline`]) before agents get it, and what has changed
//! into the records. Later calls are judged by how far what they use can be trusted.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use tokio::task::block_in_place;
use tracing::warn;

use super::subject;
use crate::baseline::{Change, Endpoint, Page, Place, Shown, What};
use crate::decide::Refusal;
use crate::decide::policy::Phase;
use crate::decide::stop::{Level, Operator, Selector, Stop};
use crate::decide::subject::Subject;
use crate::decode::find::{self, Ambiguous};
use crate::decode::{Message, mcp};
use crate::fingerprint::{Digest, Names, Surface, canonical_text, fingerprint, name_of, smells};
use crate::ledger::{Call, Conn, Scene};
use crate::parts::Parts;
use crate::record::entry::{Entry, SurfaceEntry};

/// Member of `_meta` in which a server says who it is (MCP 2026-07-28).
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// Items of a page that are looked at: one more than are kept of a list, so that it is known to have more.
const MOST_ITEMS: usize = 8_193;
/// Bytes of a page from which on others have their turn elsewhere while it is looked at.
const MUCH: usize = 64 << 10;

/// In place of the cursor of a page that nobody has asked for. It is the digest of none that anybody could find.
const NOBODYS: Digest = Digest([0; 32]);

/// What tells a cursor of a list from others: the value of `cursor` or `nextCursor`. `null` is none.
pub(super) fn cursor(value: &str) -> Option<Digest> {
    (value != "null").then(|| Digest::of(find::text(value).unwrap_or(Cow::Borrowed(value)).as_bytes()))
}

/// Where an exchange takes place, and for whom.
pub(super) fn place(conn: &Conn, scene: &Scene, revision: Option<&str>) -> Place {
    let agent = conn.is_apart().then_some(&*conn.identity.agent.name);
    Place {
        endpoint: Endpoint::new(&scene.server, &scene.path, conn.destination, agent),
        revision: revision.map(Into::into),
        principal: scene.principal.as_deref().map(Into::into),
    }
}

/// What a server has said that its clients should list again.
pub(super) fn doubted(method: &str) -> Option<&'static [Surface]> {
    match method {
        "notifications/tools/list_changed" => Some(&[Surface::Tool]),
        "notifications/prompts/list_changed" => Some(&[Surface::Prompt]),
        "notifications/resources/list_changed" => Some(&[Surface::ResourceTemplate]),
        _ => None,
    }
}

/// Takes notice of the agent card of a server (A2A).
pub async fn notice_card(parts: &Parts, conn: &Conn, card: &str) {
    let scene = conn.scene();
    let watching = Watching { parts, conn, scene: &scene };
    let part = Part { surface: Surface::AgentCard, items: vec![card], text: card };
    let page = Page {
        surface: part.surface,
        digest: Digest::of(card.as_bytes()),
        asked: None,
        next: None,
        public: false,
        walker: watching.walker(),
    };
    watching.observe(&place(conn, &scene, None), page, &part).await;
}

/// Looks at what servers show on a connection.
#[derive(Clone, Copy)]
pub(super) struct Watching<'a> {
    pub(super) parts: &'a Parts,
    pub(super) conn: &'a Conn,
    pub(super) scene: &'a Scene,
}

/// A call in flight.
struct Flying {
    conn: Arc<Conn>,
    scene: Scene,
    call: Call,
}

/// A list, or something that is none, as part of an answer.
struct Part<'a> {
    surface: Surface,
    /// JSON text of its items.
    items: Vec<&'a str>,
    /// JSON text of all of it.
    text: &'a str,
}

impl Watching<'_> {
    /// Takes notice of what an answer shows. `call` is what it answers; without one, as when an answer is sent again after a
    /// connection was lost, it goes by what is in it.
    pub(super) async fn notice(&self, message: &Message<'_>, call: Option<&Call>) -> Result<(), Ambiguous> {
        let Some(result) = message.result.as_ref().map(|result| result.raw) else { return Ok(()) };
        let facts = mcp::result_facts(message);
        let parts = match call.map(|call| &*call.method) {
            Some(method) => parts_of(method, result)?,
            None => parts_by_shape(result)?,
        };
        if parts.is_empty() {
            return Ok(());
        }
        let in_force = facts.as_ref().and_then(|facts| facts.revision).map(mcp::Revision::as_str);
        let revision = call.map_or(self.scene.revision, |call| in_force.or(call.revision));
        let place = place(self.conn, self.scene, revision);
        let is_public = find::member(result, "cacheScope")?.and_then(find::text).as_deref() == Some("public");
        let next = facts.and_then(|facts| facts.next_cursor).and_then(cursor);
        for part in parts {
            let page = Page {
                surface: part.surface,
                digest: Digest::of(part.text.as_bytes()),
                // What nobody has asked for is never the whole of a list.
                asked: call.map_or(Some(NOBODYS), |call| call.cursor),
                next,
                public: is_public,
                walker: self.walker(),
            };
            self.observe(&place, page, &part).await;
        }
        Ok(())
    }

    /// The server has said that some of its lists have changed.
    pub(super) fn doubt(&self, surfaces: &[Surface]) {
        let endpoint = place(self.conn, self.scene, None).endpoint;
        surfaces.iter().for_each(|surface| self.parts.baseline.doubt(&endpoint, *surface));
    }

    async fn observe<'a>(&self, place: &Place, page: Page, part: &Part<'a>) {
        let baseline = &self.parts.baseline;
        let agent = &*self.conn.identity.agent.name;
        let items = || {
            let named: Vec<_> =
                part.items.iter().filter_map(|item| Some((name_of(part.surface, item)?, *item))).collect();
            let names = Names::of(named.iter().map(|(name, _)| &**name));
            let shown = |(name, item): &(Cow<'a, str>, &'a str)| {
                let text = canonical_text(part.surface, item);
                let smells = json!(smells(&text, name, &names));
                let fingerprint = fingerprint(part.surface, item);
                Shown { name: name.clone(), fingerprint, text: text.into(), smells }
            };
            named.iter().map(shown).collect()
        };
        let observe = || baseline.observe(place, &page, items, agent, Timestamp::now());
        let changes = if part.text.len() < MUCH { observe() } else { block_in_place(observe) };
        if changes.is_empty() {
            return;
        }
        // A change that stands in the way of calls must do so for the next daemon as well.
        if changes.iter().any(Change::must_be_saved)
            && let Err(error) = baseline.saved().await
        {
            warn!(error = %error, "what a server has changed is in force, and not on disk");
        }
        let drifted = |change: &&Change| change.what == What::Drifted;
        let in_flight = match changes.iter().find(drifted) {
            Some(_) => self.in_flight(&place.endpoint),
            None => Vec::new(),
        };
        for change in &changes {
            let used = (change.surface, &*change.name);
            let uses = |flying: &&Flying| drifted(&change) && flying.call.used() == Some(used);
            let calls: Vec<&Flying> = in_flight.iter().filter(uses).collect();
            self.record(change, &calls);
            calls.into_iter().for_each(|flying| self.call_off(flying, place));
        }
    }

    fn record(&self, change: &Change, calls: &[&Flying]) {
        if matches!(change.what, What::Drifted | What::Added | What::Removed | What::Reordered) {
            change.classes.iter().for_each(|class| self.parts.metrics.drifted(class));
        }
        self.parts.log.record(&Entry::Surface(SurfaceEntry {
            agent: Some(&self.conn.identity.agent.name),
            in_flight: calls.iter().map(|flying| &*flying.call.decision).collect(),
            ..SurfaceEntry::new(change)
        }));
    }

    /// The calls to an endpoint that are in flight, of all agents.
    fn in_flight(&self, endpoint: &Endpoint) -> Vec<Flying> {
        let is_there = |conn: &Conn| {
            conn.destination.ip().to_canonical() == endpoint.address.ip()
                && conn.destination.port() == endpoint.address.port()
                && (endpoint.agent.is_none() || endpoint.agent.as_deref() == Some(&*conn.identity.agent.name))
        };
        let conns = self.parts.ledger.open_conns(is_there);
        let calls = conns.into_iter().flat_map(|conn| {
            let (_, scene, calls) = conn.view();
            calls.into_iter().map(move |call| Flying { conn: Arc::clone(&conn), scene: scene.clone(), call })
        });
        calls.filter(|flying| flying.call.used().is_some()).collect()
    }

    /// Ends a call that has left, where a rule wants that for what it uses.
    fn call_off(&self, Flying { conn, scene, call }: &Flying, place: &Place) {
        let rules = self.parts.gate.rules();
        let agent = &*conn.identity.agent.name;
        let scope = rules.policy.scope(agent, conn.identity.namespace(), &scene.servers);
        let subject = Subject {
            phase: Phase::Response,
            method: Some(&call.method),
            name: call.tool.as_deref(),
            of_tool: call.of_tool.as_deref(),
            workflow: call.workflow.as_deref(),
            revision: call.revision,
            standings: self.parts.baseline.standings(place, call.used()),
            ..subject(conn, scene)
        };
        let Some(Refusal::Drift(drifted)) = rules.policy.judge(&scope, &subject).refusal else { return };
        let Ok(selector) = Selector::of_agent(agent) else { return };
        let stop = Stop {
            id: format!("drift-{}", call.decision).into(),
            reason: drifted.to_string().into(),
            by: Operator::rule(&drifted.rule.rule),
            issued_at: Timestamp::now(),
            ..Stop::drill(selector, Level::Refuse)
        };
        self.parts.metrics.denied(agent, &drifted.rule.rule, drifted.label());
        conn.call_off(&call.decision, Arc::new(stop), Refusal::Drift(drifted));
    }

    /// Tells apart who walks through a list.
    fn walker(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        (self.conn.identity.agent.number, self.scene.session).hash(&mut hash);
        hash.finish()
    }
}

/// A list of MCP, and what its answer calls it.
struct List {
    method: &'static str,
    member: &'static str,
    surface: Surface,
}

const LISTS: [List; 3] = [
    List { method: "tools/list", member: "tools", surface: Surface::Tool },
    List { method: "prompts/list", member: "prompts", surface: Surface::Prompt },
    List {
        method: "resources/templates/list",
        member: "resourceTemplates",
        surface: Surface::ResourceTemplate,
    },
];

impl List {
    fn part<'a>(&self, result: &'a str) -> Result<Option<Part<'a>>, Ambiguous> {
        let list = find::member(result, self.member)?;
        let items = |text| find::elements(text).take(MOST_ITEMS).collect();
        Ok(list.map(|text| Part { surface: self.surface, items: items(text), text }))
    }
}

/// What an answer shows of which nobody knows what it answers.
fn parts_by_shape(result: &str) -> Result<Vec<Part<'_>>, Ambiguous> {
    let lists = LISTS.iter().filter_map(|list| list.part(result).transpose());
    let mut parts: Vec<Part<'_>> = lists.collect::<Result<_, _>>()?;
    for (method, member) in [("initialize", "protocolVersion"), ("server/discover", "supportedVersions")] {
        if find::member(result, member)?.is_some() {
            parts.extend(parts_of(method, result)?);
        }
    }
    Ok(parts)
}

/// What the answer to a request of this method shows.
fn parts_of<'a>(method: &str, result: &'a str) -> Result<Vec<Part<'a>>, Ambiguous> {
    if let Some(list) = LISTS.iter().find(|list| list.method == method) {
        return Ok(list.part(result)?.into_iter().collect());
    }
    let info = match method {
        "initialize" => find::member(result, "serverInfo")?,
        "server/discover" => {
            let meta = find::member(result, "_meta")?;
            meta.map(|meta| find::member(meta, SERVER_INFO)).transpose()?.flatten()
        }
        _ => return Ok(Vec::new()),
    };
    // What is not there any more is gone: an empty list.
    let part = |surface, text: Option<&'a str>| Part {
        surface,
        items: text.into_iter().collect(),
        text: text.unwrap_or_default(),
    };
    let instructions = find::member(result, "instructions")?;
    Ok(vec![part(Surface::Instructions, instructions), part(Surface::Server, info)])
}
