//! What rules look at: one message as decoded, and what is known of whoever sent it.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::policy::Phase;
use crate::fingerprint::Standings;
use crate::session::Session;

/// One message on its way. Texts are as decoded, never as escaped on the wire; what is not known is `None`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject<'a> {
    pub phase: Phase,
    pub from: Party,
    pub agent: Sender<'a>,
    /// Claims of the bearer token that came with the request.
    pub user: Option<&'a User>,
    /// The server as the agent names it: host, or `host:port`.
    pub server: &'a str,
    /// Every name and address of it, in lower case.
    pub servers: &'a [String],
    /// Where the connection really goes.
    pub address: Option<SocketAddr>,
    /// Digest of the session (see [`crate::session`]).
    pub session: Option<Session>,
    pub workflow: Option<&'a str>,
    /// `mcp`, `a2a`, or `jsonrpc` for what is neither.
    pub protocol: &'a str,
    pub revision: Option<&'a str>,
    /// The JSON-RPC method; of a response that of its request. `None`: nobody knows what it answers.
    pub method: Option<&'a str>,
    /// Tool, prompt, resource or task the method names; the name of an entry of a list.
    pub name: Option<&'a str>,
    /// The tool whose call began the task that this is about, or is continued by it (MCP tasks), or whose interface this is
    /// (MCP Apps).
    pub of_tool: Option<&'a str>,
    /// It goes on with a call that was let through before: it counts for nothing, and was approved then.
    pub continues: bool,
    /// JSON text of `params` of a request or notification.
    pub params: Option<&'a str>,
    /// JSON text of `params.arguments`.
    pub arguments: Option<&'a str>,
    /// What the server last said of the tool in a list.
    pub annotations: Annotations,
    /// How far what it uses, and what its server says of itself, can be trusted.
    pub standings: Standings,
    /// JSON text of `result` of a response.
    pub result: Option<&'a str>,
    /// JSON text of `error` of a response.
    pub error: Option<&'a str>,
    /// A response with an error, or the result of a tool with `isError: true`.
    pub is_error: bool,
    /// From the request until its response.
    pub took: Duration,
    /// JSON text of one entry of a list.
    pub item: Option<&'a str>,
    /// Bytes of the JSON text of the whole message.
    pub size: usize,
    pub now: Timestamp,
    pub recent: Recent,
}

/// Which side of the connection a message comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Party {
    #[default]
    Agent,
    Server,
}

/// The agent and its process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sender<'a> {
    pub name: &'a str,
    pub pid: u32,
    pub uid: u32,
    pub exe: Option<&'a str>,
    /// As the configuration gives them, or those of its pod.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Where it is in a cluster.
    pub pod: Option<&'a InPod>,
}

impl<'a> Sender<'a> {
    /// That of its pod, or the empty name.
    pub fn namespace(&self) -> &'a str {
        self.pod.map_or("", |pod| &pod.namespace)
    }
}

/// Where in a cluster a process is, as the API server last said. Records carry it as it is here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InPod {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub node: String,
    pub service_account: String,
    /// Empty where the process was gone.
    pub container_id: String,
    /// Empty there, and until the kubelet has told the API server of the container; so is its image.
    pub container: String,
    pub image: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Whom a bearer token speaks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// The token's signature was checked against the configured keys. Otherwise the claims are whatever the agent says.
    pub verified: bool,
    pub claims: Map<String, Value>,
}

/// Hints of a server about one of its tools, which it may have made up (MCP 2025-03-26 and later, `ToolAnnotations`).
/// Where it says nothing the defaults of the revision hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// A list with this tool in it was seen.
    pub known: bool,
    #[serde(rename = "readOnlyHint")]
    pub read_only: bool,
    #[serde(rename = "destructiveHint")]
    pub destructive: bool,
    #[serde(rename = "idempotentHint")]
    pub idempotent: bool,
    #[serde(rename = "openWorldHint")]
    pub open_world: bool,
}

impl Default for Annotations {
    fn default() -> Annotations {
        Annotations { known: false, read_only: false, destructive: true, idempotent: false, open_world: true }
    }
}

/// What the agent did in the last 60 seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// Requests that were let through.
    pub calls: u64,
    /// Messages that were refused by a rule, a guard or a default.
    pub denials: u64,
}
