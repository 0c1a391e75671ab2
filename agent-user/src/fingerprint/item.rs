//! What the members of a definition are for: which digest they count into, and which of them may be left out.

use super::canonical::{canonical, members, object, with_core};
use super::place::Place;
use super::{Hints, Surface, string};

/// A definition in canonical form, by parts. The texts are what digests are of.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) definition: String,
    pub(super) core: String,
    pub(super) hints: Hints,
    pub(super) annotations: String,
    pub(super) display: String,
    pub(super) meta: String,
    pub(super) ui: String,
    /// All of it.
    pub(super) whole: String,
}

/// What a member of a definition counts into.
pub(super) enum Role {
    /// `definition` and `core`.
    Core(Place),
    /// `definition`; servers say it in some revisions of the protocol only.
    Definition(Place),
    Display,
    Annotations,
    Meta,
    /// `provider` of an agent card: its `url` is display.
    Provider,
    /// Signatures: they change with every signing.
    Nothing,
}

pub(super) fn role(surface: Surface, name: &str) -> Role {
    use Surface::{AgentCard, Prompt, ResourceTemplate, Server, Tool};
    match (surface, name) {
        (Tool, "inputSchema") => Role::Core(Place::RootSchema),
        (Tool, "outputSchema") => Role::Definition(Place::RootSchema),
        (Tool, "execution") => Role::Definition(Place::Execution),
        // Clients may give it to models "to provide context" (MCP 2025-11-25, `Implementation`).
        (Server, "description") => Role::Definition(Place::Plain),
        // Both are known by names in there.
        (Prompt, "arguments") | (AgentCard, "skills") => Role::Core(Place::Set),
        (Tool | Prompt | ResourceTemplate | Server, "title" | "icons")
        | (Server, "websiteUrl")
        | (AgentCard, "iconUrl" | "documentationUrl") => Role::Display,
        (Tool | ResourceTemplate, "annotations") => Role::Annotations,
        (Tool | Prompt | ResourceTemplate, "_meta") => Role::Meta,
        (AgentCard, "provider") => Role::Provider,
        (AgentCard, "signatures") => Role::Nothing,
        _ => Role::Core(Place::Plain),
    }
}

/// Whether `null` for a member equals none: SDKs write what is optional so.
fn is_optional(surface: Surface, name: &str) -> bool {
    let names: &[&str] = match surface {
        Surface::Tool => {
            &["title", "description", "outputSchema", "annotations", "icons", "execution", "_meta"]
        }
        Surface::Prompt => &["title", "description", "arguments", "icons", "_meta"],
        Surface::ResourceTemplate => &["title", "description", "mimeType", "annotations", "icons", "_meta"],
        Surface::Server => &["title", "description", "icons", "websiteUrl"],
        Surface::AgentCard => &["provider", "iconUrl", "documentationUrl"],
        Surface::Instructions => &[],
    };
    names.contains(&name)
}

/// Names and values in canonical form.
type Members = Vec<(String, String)>;

/// Takes a definition apart. Text that is no object, or not valid, is a definition as a whole.
pub(super) fn parts(surface: Surface, text: &str) -> Parts {
    let mut parts = Sorted::default();
    match members(text).filter(|_| surface != Surface::Instructions) {
        Some(found) => known(&found).for_each(|member| parts.add(surface, member)),
        None => {
            let whole = canonical(text, Place::Plain);
            return Parts { definition: whole.clone(), core: whole.clone(), whole, ..parts.together() };
        }
    }
    parts.together()
}

/// A member of an object.
#[derive(Clone, Copy)]
struct Member<'a> {
    /// In canonical form.
    name: &'a str,
    /// The name to know it by. A name that is there twice, which never gets here from the wire, is not known.
    known: &'a str,
    /// As it is spelled.
    value: &'a str,
}

/// `found` is in the order of names.
fn known<'a>(found: &'a [(String, &'a str)]) -> impl Iterator<Item = Member<'a>> {
    let name = |index: usize| found.get(index).map(|(name, _)| name);
    found.iter().enumerate().map(move |(index, (own, value))| {
        let twice = name(index.wrapping_sub(1)) == Some(own) || name(index + 1) == Some(own);
        Member { name: own, known: if twice { "" } else { string::inner(own) }, value }
    })
}

/// Members by what they count into.
#[derive(Default)]
struct Sorted {
    definition: Members,
    core: Members,
    hints: Hints,
    annotations: Option<String>,
    display: Members,
    meta: Option<String>,
    ui: Members,
    whole: Members,
}

impl Sorted {
    fn add(&mut self, surface: Surface, member: Member<'_>) {
        let Member { name, known, value } = member;
        if value == "null" && is_optional(surface, known) {
            return;
        }
        let (place, in_core) = match role(surface, known) {
            Role::Core(place) => (place, true),
            Role::Definition(place) => (place, false),
            Role::Display => {
                let text = canonical(value, Place::Plain);
                self.display.push((name.to_owned(), text.clone()));
                return self.whole.push((name.to_owned(), text));
            }
            Role::Annotations => return self.annotations(surface, name, value),
            Role::Meta => return self.meta(name, value),
            Role::Provider => return self.provider(name, value),
            Role::Nothing => return,
        };
        let (text, core) = with_core(value, place);
        if place.equals_none(&text) {
            return;
        }
        if in_core {
            self.core.push((name.to_owned(), core.unwrap_or_else(|| text.clone())));
        }
        self.definition.push((name.to_owned(), text.clone()));
        self.whole.push((name.to_owned(), text));
    }

    fn annotations(&mut self, surface: Surface, name: &str, value: &str) {
        let Some(found) = members(value) else {
            let text = canonical(value, Place::Plain);
            self.annotations = Some(text.clone());
            return self.whole.push((name.to_owned(), text));
        };
        let mut said = [None; 4];
        let (mut others, mut whole) = (Members::new(), Members::new());
        for Member { name, known, value } in known(&found) {
            let hint = Hints::NAMES.iter().position(|hint| surface == Surface::Tool && *hint == known);
            let is_title = surface == Surface::Tool && known == "title";
            match (hint.and_then(|hint| said.get_mut(hint)), value) {
                (Some(_), "null") => continue,
                (None, "null") if is_title => continue,
                (Some(said), "true" | "false") => {
                    *said = Some(value == "true");
                    continue;
                }
                // No boolean: it must not hide.
                _ => {}
            }
            let text = canonical(value, Place::Plain);
            whole.push((name.to_owned(), text.clone()));
            // The time of the last change is no change of what it is about.
            if is_title || surface == Surface::ResourceTemplate && known == "lastModified" {
                self.display.push((format!("\"annotations.{known}\""), text));
            } else {
                others.push((name.to_owned(), text));
            }
        }
        if surface == Surface::Tool {
            self.hints = Hints::said(said);
            whole
                .extend(self.hints.unusual().map(|(name, value)| (format!("\"{name}\""), value.to_string())));
        }
        self.annotations = Some(joined(&others));
        if !whole.is_empty() {
            self.whole.push((name.to_owned(), joined(&whole)));
        }
    }

    fn meta(&mut self, name: &str, value: &str) {
        let text = canonical(value, Place::Plain);
        match members(&text) {
            Some(found) => {
                let is_ui = |name: &str| matches!(name, "\"ui\"" | "\"ui/resourceUri\"");
                let found = found.into_iter().map(|(name, value)| (name, value.to_owned()));
                let (ui, others): (Members, Members) = found.partition(|(name, _)| is_ui(name));
                self.ui = ui;
                self.meta = Some(joined(&others));
            }
            None => self.meta = Some(text.clone()),
        }
        if text != "{}" {
            self.whole.push((name.to_owned(), text));
        }
    }

    fn provider(&mut self, name: &str, value: &str) {
        let whole = canonical(value, Place::Plain);
        let mut text = whole.clone();
        if let Some(found) = members(&whole) {
            let (url, others): (Vec<_>, Vec<_>) = known(&found).partition(|member| member.known == "url");
            text = object(others.iter().map(|member| (member.name, member.value)));
            let url = url.iter().map(|url| ("\"provider.url\"".to_owned(), url.value.to_owned()));
            self.display.extend(url);
        }
        self.definition.push((name.to_owned(), text.clone()));
        self.core.push((name.to_owned(), text));
        self.whole.push((name.to_owned(), whole));
    }

    fn together(self) -> Parts {
        let or_empty = |text: Option<String>| text.unwrap_or_else(|| "{}".to_owned());
        Parts {
            definition: joined(&self.definition),
            core: joined(&self.core),
            hints: self.hints,
            annotations: or_empty(self.annotations),
            display: joined(&self.display),
            meta: or_empty(self.meta),
            ui: joined(&self.ui),
            whole: joined(&self.whole),
        }
    }
}

fn joined(members: &Members) -> String {
    object(members.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}
