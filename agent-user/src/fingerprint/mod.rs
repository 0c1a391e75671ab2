//! What servers show to models, reduced to digests: whether two definitions are the same for a model, and in what they
//! differ.
//!
//! Nothing here does IO, reads a clock or keeps anything: see [`crate::baseline`] for what is trusted.

mod canonical;
mod classes;
mod compare;
mod digest;
mod hints;
mod item;
mod number;
mod patch;
mod place;
mod smells;
mod standing;
mod standings;
mod string;
mod visible;
mod words;

pub use self::classes::{Class, Classes};
pub use self::compare::compare;
pub use self::digest::Digest;
pub use self::hints::Hints;
pub use self::patch::patch;
pub use self::smells::{Label, Names, Smell, smells};
pub use self::standing::{Standing, State};
pub use self::standings::Standings;
pub use self::visible::visible;
pub use self::words::changes;

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decode::find;

/// A kind of thing that servers show to models, and that is watched.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Surface {
    /// An entry of `tools/list`.
    Tool,
    /// An entry of `prompts/list`.
    Prompt,
    /// An entry of `resources/templates/list`.
    ResourceTemplate,
    /// `instructions` of an `initialize` or `server/discover` result. It has no name.
    Instructions,
    /// `serverInfo` of these results (in `_meta` since MCP 2026-07-28). It has no name: a server that calls itself
    /// something else has changed.
    Server,
    /// The agent card of A2A. It has no name.
    AgentCard,
}

impl Surface {
    pub const ALL: [Surface; 6] = [
        Surface::Tool,
        Surface::Prompt,
        Surface::ResourceTemplate,
        Surface::Instructions,
        Surface::Server,
        Surface::AgentCard,
    ];

    /// As it is written.
    pub fn label(self) -> &'static str {
        match self {
            Surface::Tool => "tool",
            Surface::Prompt => "prompt",
            Surface::ResourceTemplate => "resource_template",
            Surface::Instructions => "instructions",
            Surface::Server => "server",
            Surface::AgentCard => "agent_card",
        }
    }
}

/// The digests of one definition. README says how to recompute them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// What a model goes by.
    pub definition: Digest,
    /// Of that, what does not depend on the revision of the protocol.
    pub core: Digest,
    /// The hints of a tool, defaults filled in.
    pub hints: Hints,
    /// What else the annotations say.
    pub annotations: Digest,
    /// What only people see: titles and icons.
    pub display: Digest,
    /// `_meta`, but for `ui`.
    pub meta: Digest,
    /// `_meta.ui` (MCP Apps): the page that is shown for the tool.
    pub ui: Digest,
}

/// The longest name, in bytes, that something is known by.
pub const MAX_NAME: usize = 256;

/// The digests of a definition: JSON text that the decoder has found valid. Of other text it is one, too, but says no
/// more than that it is not another text.
///
/// Each digest is of `interlock.v1.`, the surface, `.`, the part, a line feed, and the part in canonical form; both by
/// the names that they have here.
pub fn fingerprint(surface: Surface, text: &str) -> Fingerprint {
    let parts = item::parts(surface, text);
    let digest = |part: &str, text: &str| {
        Digest::of(format!("interlock.v1.{}.{part}\n{text}", surface.label()).as_bytes())
    };
    Fingerprint {
        definition: digest("definition", &parts.definition),
        core: digest("core", &parts.core),
        hints: parts.hints,
        annotations: digest("annotations", &parts.annotations),
        display: digest("display", &parts.display),
        meta: digest("meta", &parts.meta),
        ui: digest("ui", &parts.ui),
    }
}

/// A definition in canonical form: one text for all that have the same fingerprint. Nothing is left out but what equals
/// none, and the signatures of an agent card.
pub fn canonical_text(surface: Surface, text: &str) -> String {
    item::parts(surface, text).whole
}

/// The name that something is known by, for a resource template its `uriTemplate`; empty where there is one of a kind.
/// `None` if it has no name, one of more than 256 bytes, or one that decoders could take for another.
pub fn name_of(surface: Surface, text: &str) -> Option<Cow<'_, str>> {
    let member = match surface {
        Surface::Tool | Surface::Prompt => "name",
        Surface::ResourceTemplate => "uriTemplate",
        Surface::Instructions | Surface::Server | Surface::AgentCard => return Some(Cow::Borrowed("")),
    };
    let value = find::member(text, member).ok()??;
    find::text(value).filter(|name| name.len() <= MAX_NAME && !string::is_torn(value))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
