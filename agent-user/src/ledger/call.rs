//! What a call asked for, and what the exchange it is in is part of.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::decide::stop::{Facts, Whom};
use crate::decode::RawId;
use crate::fingerprint::{Digest, Surface};
use crate::room::Taken;
use crate::rounds::Round;
use crate::session::Session;

/// What a call asked for, as its record and a stop's answer name it.
#[derive(Clone, Debug, Serialize)]
pub struct Call {
    pub method: Box<str>,
    /// Tool, prompt, resource or task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Box<str>>,
    /// The tool whose call began the task that this call is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_tool: Option<Box<str>>,
    /// The JSON-RPC id exactly as the agent sent it; `None` for notifications and responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_id: Option<Box<str>>,
    pub server: Arc<str>,
    /// Digest of its session (see [`crate::session`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    /// The decision that let it through.
    pub decision: Box<str>,
    pub since: Timestamp,
    /// It is about a task of which nothing is known here: any tool may be behind it.
    #[serde(skip)]
    pub of_unknown: bool,
    /// Where in a list it goes on, if it lists anything: the cursor it gives back.
    #[serde(skip)]
    pub cursor: Option<Digest>,
    /// What tells the next round of it, if it may have one.
    #[serde(skip)]
    pub round: Option<Round>,
    /// It is an operation of A2A's HTTP+JSON binding, and answered by the whole answer.
    #[serde(skip)]
    pub is_operation: bool,
    /// What its texts take of the room for messages, where they are kept for long or are large.
    #[serde(skip)]
    pub held: Option<Arc<Taken>>,
    /// When the agent itself asked to cancel it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_cancelled_at: Option<Timestamp>,
}

/// What a call of this method uses of what servers list. `of_tool` is the tool behind the task or the interface that it is
/// about.
pub fn used<'a>(method: &str, name: Option<&'a str>, of_tool: Option<&'a str>) -> Option<(Surface, &'a str)> {
    match (method, of_tool) {
        (_, Some(tool)) => Some((Surface::Tool, tool)),
        ("tools/call", None) => Some((Surface::Tool, name.unwrap_or_default())),
        ("prompts/get", None) => Some((Surface::Prompt, name.unwrap_or_default())),
        _ => None,
    }
}

/// A destination with and without its port.
pub fn addresses(destination: SocketAddr) -> [String; 2] {
    [destination.to_string(), destination.ip().to_string()]
}

impl Call {
    /// Bytes of its own, about.
    pub fn size(&self) -> usize {
        let texts = [&self.tool, &self.of_tool, &self.rpc_id];
        let texts = texts.into_iter().flatten().map(|text| text.len()).sum::<usize>();
        size_of::<Call>() + self.method.len() + self.decision.len() + texts
    }

    /// Why it got no answer: the agent's own wish comes before what the server then did.
    pub fn cause(&self, cause: Option<&'static str>) -> Option<&'static str> {
        if self.agent_cancelled_at.is_some() { Some("agent_cancelled") } else { cause }
    }

    /// Whether a peer may mean it by this id.
    pub fn has_id(&self, id: RawId<'_>) -> bool {
        self.rpc_id.as_deref().is_some_and(|raw| id.matches(raw))
    }

    /// The agent asks to cancel it.
    pub(super) fn cancel(&mut self) {
        self.agent_cancelled_at = Some(Timestamp::now());
    }

    /// What it uses of what servers list.
    pub fn used(&self) -> Option<(Surface, &str)> {
        used(&self.method, self.tool.as_deref(), self.of_tool.as_deref())
    }

    /// What is known of a call in the exchange of this scene.
    pub fn facts<'a>(&'a self, scene: &'a Scene, agent: impl Into<Whom<'a>>) -> Facts<'a> {
        let facts = scene.facts(agent);
        let tools = [self.tool.as_deref(), self.of_tool.as_deref()];
        Facts { tools, is_tool_unknown: self.of_unknown, workflow: self.workflow.as_deref(), ..facts }
    }
}

/// What an exchange is part of: what a stop looks at beside its agent and its calls.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// The server as the agent names it.
    pub server: Arc<str>,
    /// Path of the request's target, without query.
    pub path: Arc<str>,
    /// Every name and address of it, in lower case.
    pub servers: Arc<[String]>,
    pub session: Option<Session>,
    /// Another one it may be part of: an agent cannot leave a session by what it says of itself.
    pub other_session: Option<Session>,
    pub workflow: Option<Arc<str>>,
    /// The revision of the protocol, as far as its requests say: servers list other things for another one.
    pub revision: Option<&'static str>,
    /// For whom they list them (see [`crate::user::LastPrincipal`]).
    pub principal: Option<Arc<str>>,
}

impl Scene {
    /// Of a connection that has said nothing yet.
    pub fn of_connection(destination: SocketAddr, workflow: Option<Arc<str>>) -> Scene {
        let servers = addresses(destination);
        Scene { server: servers[0].as_str().into(), servers: servers.into(), workflow, ..Scene::default() }
    }

    /// What is known of an exchange of `agent` without calls.
    pub fn facts<'a>(&'a self, agent: impl Into<Whom<'a>>) -> Facts<'a> {
        Facts {
            agent: agent.into(),
            workflow: self.workflow.as_deref(),
            session: self.session,
            other_session: self.other_session,
            servers: &self.servers,
            tools: [None; 2],
            is_tool_unknown: false,
        }
    }
}
