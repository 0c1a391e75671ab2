//! What servers show to models, reduced to digests: whether two definitions are the same for a model, and in what they
//! differ.
//!
//! Nothing here does IO, reads a clock or keeps anything: see [`crate::baseline`] for what is trusted.

mod classes;
mod digest;

pub use self::classes::{Class, Classes};
pub use self::digest::Digest;

use serde::{Deserialize, Serialize};

/// A kind of thing that servers show to models, and that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

/// The four hints of a tool's annotations, which are the server's word (MCP, `ToolAnnotations`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}
