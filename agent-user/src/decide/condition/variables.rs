//! The variables a condition may use: the documented list, from which names and types are checked.

use serde::{Serialize, Serializer};

use super::inputs::phase_name;
use super::kind::Kind;
use crate::decide::policy::Phase;

/// A variable, or a field of one (`agent.name`), as `interlock config schema --cel` shows it.
#[derive(Debug, Serialize)]
pub struct Variable {
    pub name: &'static str,
    /// Its type, in the words of CEL.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Where it is known.
    #[serde(serialize_with = "phase_names")]
    pub phases: &'static [Phase],
    pub doc: &'static str,
    #[serde(skip)]
    pub(super) input: Input,
}

/// What a variable stands for in [`super::Inputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    AgentName,
    AgentPid,
    AgentUid,
    AgentExe,
    AgentNamespace,
    AgentPod,
    AgentServiceAccount,
    AgentContainer,
    AgentImage,
    AgentNode,
    AgentAnnotations,
    AgentLabels,
    UserVerified,
    UserClaims,
    ServerName,
    ServerHost,
    ServerPort,
    ServerAddress,
    Session,
    Workflow,
    Protocol,
    Revision,
    Method,
    Tool,
    From,
    Phase,
    Size,
    Now,
    Known,
    ReadOnly,
    Destructive,
    Idempotent,
    OpenWorld,
    RecentCalls,
    RecentDenials,
    Args,
    Params,
    Result,
    Error,
    IsError,
    Took,
    Item,
}

/// All of them, in the order in which they are documented.
pub fn variables() -> &'static [Variable] {
    VARIABLES
}

impl Variable {
    /// The name of the whole it belongs to: `agent` of `agent.name`, and of others the name itself.
    pub fn root(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(root, _)| root)
    }

    pub(super) fn is_field_of(&self, root: &str) -> bool {
        self.name.split_once('.').is_some_and(|(of, _)| of == root)
    }

    pub(super) fn typed(&self) -> Kind {
        match self.kind {
            "string" => Kind::String,
            "int" => Kind::Int,
            "bool" => Kind::Bool,
            "timestamp" => Kind::Timestamp,
            "duration" => Kind::Duration,
            "map(string, string)" => Kind::map_to(Kind::String),
            "map(string, dyn)" => Kind::map_to(Kind::Dyn),
            _ => Kind::Dyn,
        }
    }
}

fn phase_names<S: Serializer>(phases: &&[Phase], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(phases.iter().copied().map(phase_name))
}

const ALL: &[Phase] = &[Phase::Request, Phase::Response, Phase::List];
const REQUEST: &[Phase] = &[Phase::Request];
const RESPONSE: &[Phase] = &[Phase::Response];
const LIST: &[Phase] = &[Phase::List];

const fn variable(
    name: &'static str,
    kind: &'static str,
    phases: &'static [Phase],
    input: Input,
    doc: &'static str,
) -> Variable {
    Variable { name, kind, phases, doc, input }
}

static VARIABLES: &[Variable] = &[
    variable(
        "agent.name",
        "string",
        ALL,
        Input::AgentName,
        "name of the agent, as `match: {agent: …}` sees it",
    ),
    variable("agent.pid", "int", ALL, Input::AgentPid, "process that made the connection; 0: not known"),
    variable("agent.uid", "int", ALL, Input::AgentUid, "user it runs as"),
    variable("agent.exe", "string", ALL, Input::AgentExe, "path of its executable; \"\": not known"),
    variable(
        "agent.labels",
        "map(string, string)",
        ALL,
        Input::AgentLabels,
        "labels the configuration gives the agent, or those of its pod",
    ),
    variable(
        "agent.namespace",
        "string",
        ALL,
        Input::AgentNamespace,
        "namespace of its pod; \"\": it is in none",
    ),
    variable("agent.pod", "string", ALL, Input::AgentPod, "name of its pod"),
    variable(
        "agent.service_account",
        "string",
        ALL,
        Input::AgentServiceAccount,
        "service account of its pod",
    ),
    variable(
        "agent.container",
        "string",
        ALL,
        Input::AgentContainer,
        "name of the container it is in; \"\": not known yet",
    ),
    variable("agent.image", "string", ALL, Input::AgentImage, "image of that container; \"\": not known yet"),
    variable("agent.node", "string", ALL, Input::AgentNode, "node its pod is on"),
    variable(
        "agent.annotations",
        "map(string, string)",
        ALL,
        Input::AgentAnnotations,
        "annotations of its pod of up to 256 bytes",
    ),
    variable(
        "user.verified",
        "bool",
        ALL,
        Input::UserVerified,
        "the signature of the bearer token was checked; false without a token",
    ),
    variable(
        "user.claims",
        "map(string, dyn)",
        ALL,
        Input::UserClaims,
        "claims of the bearer token; unless verified, whatever the agent says; {} without a token",
    ),
    variable(
        "server.name",
        "string",
        ALL,
        Input::ServerName,
        "server as the agent names it: host, or host:port; of TLS the name in its hello",
    ),
    variable("server.host", "string", ALL, Input::ServerHost, "its host, in lower case, without the port"),
    variable(
        "server.port",
        "int",
        ALL,
        Input::ServerPort,
        "port the connection really goes to; 0: not known",
    ),
    variable(
        "server.address",
        "string",
        ALL,
        Input::ServerAddress,
        "IP address the connection really goes to; \"\": not known",
    ),
    variable(
        "session",
        "string",
        ALL,
        Input::Session,
        "digest of the session, as `interlock stop session=` takes it; \"\": not known",
    ),
    variable("workflow", "string", ALL, Input::Workflow, "id of the workflow; \"\": not known"),
    variable(
        "protocol",
        "string",
        ALL,
        Input::Protocol,
        "\"mcp\", \"a2a\", or \"jsonrpc\" for what is neither",
    ),
    variable(
        "revision",
        "string",
        ALL,
        Input::Revision,
        "revision of the protocol, such as \"2025-11-25\"; \"\": not known",
    ),
    variable(
        "method",
        "string",
        ALL,
        Input::Method,
        "JSON-RPC method; of a response that of its request; \"\": not known",
    ),
    variable("tool", "string", ALL, Input::Tool, "tool, prompt, resource or task that is named; \"\": none"),
    variable("from", "string", ALL, Input::From, "\"agent\" or \"server\": who sent the message"),
    variable("phase", "string", ALL, Input::Phase, "\"request\", \"response\" or \"list\""),
    variable("size", "int", ALL, Input::Size, "bytes of JSON of the whole message"),
    variable(
        "now",
        "timestamp",
        ALL,
        Input::Now,
        "when the message is decided: now.getHours(\"Europe/Berlin\")",
    ),
    variable("annotations.known", "bool", ALL, Input::Known, "the server has listed this tool"),
    variable(
        "annotations.readOnlyHint",
        "bool",
        ALL,
        Input::ReadOnly,
        "what the server says of the tool; it may say anything",
    ),
    variable(
        "annotations.destructiveHint",
        "bool",
        ALL,
        Input::Destructive,
        "likewise; true where it says nothing",
    ),
    variable("annotations.idempotentHint", "bool", ALL, Input::Idempotent, "likewise"),
    variable(
        "annotations.openWorldHint",
        "bool",
        ALL,
        Input::OpenWorld,
        "likewise; true where it says nothing",
    ),
    variable(
        "recent.calls",
        "int",
        ALL,
        Input::RecentCalls,
        "requests of the agent let through in the last 60 s",
    ),
    variable(
        "recent.denials",
        "int",
        ALL,
        Input::RecentDenials,
        "messages of the agent refused in the last 60 s",
    ),
    variable(
        "args",
        "dyn",
        REQUEST,
        Input::Args,
        "arguments of the call (`params.arguments`); {} without any",
    ),
    variable("params", "dyn", REQUEST, Input::Params, "`params` of the message; {} without any"),
    variable("result", "dyn", RESPONSE, Input::Result, "`result` of the response; null without one"),
    variable("error", "dyn", RESPONSE, Input::Error, "`error` of the response; null without one"),
    variable(
        "is_error",
        "bool",
        RESPONSE,
        Input::IsError,
        "it has an error, or is the result of a tool with `isError: true`",
    ),
    variable("took", "duration", RESPONSE, Input::Took, "from the request until the response"),
    variable("item", "dyn", LIST, Input::Item, "one entry of the list"),
];
