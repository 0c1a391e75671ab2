//! The schema of the records, version 1. One JSON object per line; fields are only ever added.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::approvals::Question;
use crate::baseline::{Change, Place, What};
use crate::book::Caught;
use crate::decide::Failed;
use crate::decide::policy::Phase;
use crate::decide::redact::Found;
use crate::decide::stop::{Level, Operator};
use crate::decide::subject::{Annotations, InPod, Party};
use crate::fingerprint::{Classes, Digest, Standings, State, Surface};
use crate::identity::Identity;
use crate::ledger::{Call, Conn};
use crate::orders::receipt::{Report, StopView};
use crate::session::Session;

/// Version of the schema.
pub const SCHEMA: u32 = 1;

/// A socket address as the kernel side writes it: v4-mapped, port in host order.
pub fn address(addr: [u8; 16], port: u32) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(addr).to_canonical(), u16::try_from(port).unwrap_or(0))
}

/// One line of the records.
#[derive(Debug, Serialize)]
pub struct Line<'a> {
    pub schema: u32,
    pub at: Timestamp,
    #[serde(flatten)]
    pub entry: &'a Entry<'a>,
}

/// What happened.
#[expect(
    clippy::large_enum_variant,
    reason = "written where it is made; the largest is by far the most frequent"
)]
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry<'a> {
    /// A message of an agent was judged.
    Decision(Decision<'a>),
    /// A call that was let through came to its end.
    Result(CallResult<'a>),
    /// A stop was ordered and is in force.
    Stop(StopEntry<'a>),
    /// What a stop did to one call, or learned of it later.
    StopEffect(StopEffect<'a>),
    /// A process that came later was frozen or killed for a stop.
    Halt(Halt<'a>),
    /// A stop was released, or its release was asked for.
    Release(Release<'a>),
    /// A person was asked for an approval, or it came to an outcome.
    Approval(Approval<'a>),
    /// A cancel on the wire: the agent's own, or the one a stop sent.
    Cancel(Cancel<'a>),
    /// A server's request that did not reach its agent was answered in the agent's place.
    Reply(Reply<'a>),
    /// Something that a server shows to models came, changed or went, or an operator has decided on it.
    Surface(SurfaceEntry<'a>),
    /// The rules changed, or a change was refused.
    Policy(PolicyEntry<'a>),
    /// A connection ended.
    Connection(Connection<'a>),
    /// The kernel side refused something.
    Kernel(Kernel<'a>),
    /// A cgroup is held as an agent's from now on.
    Agent(AgentHeld<'a>),
    /// The daemon started or ended.
    Daemon(Daemon<'a>),
    /// An order came from an agent's own cgroup, or an agent tried to reach the endpoint for remote operators. Refused.
    Intrusion(Intrusion<'a>),
}

impl Entry<'_> {
    /// The value of `kind`, as a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            Entry::Decision(_) => "decision",
            Entry::Result(_) => "result",
            Entry::Stop(_) => "stop",
            Entry::StopEffect(_) => "stop_effect",
            Entry::Halt(_) => "halt",
            Entry::Release(_) => "release",
            Entry::Approval(_) => "approval",
            Entry::Cancel(_) => "cancel",
            Entry::Reply(_) => "reply",
            Entry::Surface(_) => "surface",
            Entry::Policy(_) => "policy",
            Entry::Connection(_) => "connection",
            Entry::Kernel(_) => "kernel",
            Entry::Agent(_) => "agent",
            Entry::Daemon(_) => "daemon",
            Entry::Intrusion(_) => "intrusion",
        }
    }
}

/// Who was behind it.
#[derive(Debug, Serialize)]
pub struct Who<'a> {
    pub agent: &'a str,
    pub pid: u32,
    pub uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exe: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<&'a InPod>,
}

impl<'a> From<&'a Identity> for Who<'a> {
    fn from(identity: &'a Identity) -> Who<'a> {
        Who {
            agent: &identity.agent.name,
            pid: identity.pid,
            uid: identity.uid,
            exe: identity.exe.as_deref(),
            pod: identity.pod.as_ref(),
        }
    }
}

#[derive(Debug, Serialize)]
pub struct Decision<'a> {
    /// Unique on this host; also in the answer to the agent.
    pub decision: &'a str,
    pub conn: u64,
    #[serde(flatten)]
    pub who: Who<'a>,
    /// Of the agent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: &'a BTreeMap<String, String>,
    pub server: &'a str,
    pub destination: SocketAddr,
    /// Digest of the session, or of process and server where there is none (see [`crate::session`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<&'a str>,
    pub protocol: &'static str,
    /// Left out: `request`.
    #[serde(skip_serializing_if = "is_default")]
    pub phase: Phase,
    /// Left out: the agent.
    #[serde(skip_serializing_if = "is_default")]
    pub from: Party,
    /// The decision that let the call through which this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    pub method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_id: Option<&'a str>,
    /// allow | deny | would_deny | edit | would_edit
    pub verdict: &'static str,
    /// Every rule that fired.
    pub rules: &'a [Arc<str>],
    /// Of these, the rules in `mode: observe` that would have stopped the agent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub would_stop: Vec<&'a str>,
    /// How much rules have taken out of it.
    #[serde(skip_serializing_if = "is_default")]
    pub redacted: Found,
    /// Rules whose condition could not be computed, and why.
    #[serde(skip_serializing_if = "<[Failed]>::is_empty")]
    pub failed: &'a [Failed],
    /// Entries that were taken out of a list.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub hidden: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<&'a str>,
    /// What a person was asked under last, and who has decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'a Operator>,
    /// It goes on with a call that was let through before.
    #[serde(skip_serializing_if = "is_default")]
    pub continues: bool,
    pub generation: u64,
    /// SHA-256 of the arguments as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<&'a serde_json::value::RawValue>,
    /// With `records.arguments: full`: what the server had said of the tool that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Annotations>,
    /// What the message has to do with, and is not simply trusted; where rules ask for that, or an operator has blocked
    /// anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standings>,
    /// From the first byte of the request until it was decided, microseconds.
    pub held_us: u64,
}

impl<'a> Decision<'a> {
    /// Of something on a connection that nothing else is known of.
    pub fn new(decision: &'a str, conn: &'a Conn, server: &'a str) -> Decision<'a> {
        Decision {
            decision,
            conn: conn.id,
            who: (&conn.identity).into(),
            labels: &conn.identity.labels,
            server,
            destination: conn.destination,
            session: None,
            workflow: None,
            protocol: "http",
            phase: Phase::Request,
            from: Party::Agent,
            of: None,
            revision: None,
            method: "",
            tool: None,
            rpc_id: None,
            verdict: "allow",
            rules: &[],
            would_stop: Vec::new(),
            redacted: Found::default(),
            failed: &[],
            hidden: &[],
            reason: None,
            stop: None,
            approval: None,
            by: None,
            continues: false,
            generation: 0,
            arguments_digest: None,
            arguments: None,
            annotations: None,
            standing: None,
            held_us: 0,
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Debug, Serialize)]
pub struct CallResult<'a> {
    pub conn: u64,
    pub agent: &'a str,
    #[serde(flatten)]
    pub call: &'a Call,
    /// result | error | accepted | none
    pub outcome: &'static str,
    /// Why there is no result: agent_cancelled | agent_closed | server_closed | network_error | drain | undecodable |
    /// oversized. With a result `agent_closed`: the agent had closed its side before the answer came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    pub bytes: usize,
    /// From the decision until the answer was decided, microseconds.
    pub took_us: u64,
}

#[derive(Debug, Serialize)]
pub struct StopEntry<'a> {
    pub stop: &'a str,
    #[serde(flatten)]
    pub view: &'a StopView,
    #[serde(flatten)]
    pub report: &'a Report,
}

#[derive(Debug, Serialize)]
pub struct StopEffect<'a> {
    pub stop: &'a str,
    #[serde(flatten)]
    pub caught: &'a Caught,
}

#[derive(Debug, Serialize)]
pub struct Halt<'a> {
    pub stop: &'a str,
    pub agent: &'a str,
    pub cgroup: &'a str,
    pub level: Level,
    pub pids: &'a [u32],
}

#[derive(Debug, Serialize)]
pub struct Release<'a> {
    pub stop: &'a str,
    pub scope: String,
    pub reason: &'a str,
    pub by: &'a Operator,
    /// Who asked for it first, where the configuration asks for two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<&'a Operator>,
    /// False: a second person must order it too; the stop holds.
    pub released: bool,
}

#[derive(Debug, Serialize)]
pub struct Approval<'a> {
    /// asked | approved | refused | timed_out | withdrawn
    pub outcome: &'static str,
    #[serde(flatten)]
    pub question: &'a Question,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'a Operator>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// Why it was withdrawn: agent_closed | agent_cancelled | operator_stop | drain
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<&'a str>,
}

impl<'a> Approval<'a> {
    pub fn new(outcome: &'static str, question: &'a Question) -> Approval<'a> {
        Approval { outcome, question, by: None, reason: None, cause: None, stop: None }
    }
}

#[derive(Debug, Serialize)]
pub struct Cancel<'a> {
    pub agent: &'a str,
    pub server: &'a str,
    /// agent_cancelled | operator_stop
    pub cause: &'static str,
    pub rpc_id: &'a str,
    /// The task that is cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<&'a str>,
    /// How the cancel was given: `notifications/cancelled`, `tasks/cancel`, or `close` where closing is the cancel (MCP
    /// 2026-07-28).
    pub via: &'static str,
    /// HTTP status the server gave, or what went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Reply<'a> {
    pub conn: u64,
    pub agent: &'a str,
    pub server: &'a str,
    /// The id of the server's request.
    pub rpc_id: &'a str,
    /// HTTP status the server gave, or what went wrong.
    pub outcome: String,
}

#[derive(Debug, Serialize)]
pub struct SurfaceEntry<'a> {
    /// first | added | drifted | changed | returned | removed | reordered | approved | blocked | imported
    pub change: What,
    pub surface: Surface,
    /// Left out where there is only one.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'a str,
    /// As operators name it now.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub id: &'a str,
    #[serde(flatten)]
    pub place: &'a Place,
    /// What is thought of it now.
    pub state: State,
    #[serde(skip_serializing_if = "Classes::is_empty")]
    pub classes: Classes,
    /// Of the definition it shows now (README says how it is computed).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub definition: Option<Digest>,
    /// Of the definition it showed before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Digest>,
    /// It looks like this one, which has just gone from the same list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renamed_from: Option<&'a str>,
    /// To whom it was shown.
    #[serde(rename = "shown_to", skip_serializing_if = "Option::is_none")]
    pub agent: Option<&'a str>,
    /// Decisions of calls that use it, and had left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'a Operator>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
}

impl<'a> SurfaceEntry<'a> {
    pub fn new(change: &'a Change) -> SurfaceEntry<'a> {
        SurfaceEntry {
            change: change.what,
            surface: change.surface,
            name: &change.name,
            id: &change.id,
            place: &change.place,
            state: change.state,
            classes: change.classes,
            definition: change.digest,
            before: change.before,
            renamed_from: change.renamed_from.as_deref(),
            agent: None,
            in_flight: Vec::new(),
            by: None,
            reason: None,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct PolicyEntry<'a> {
    pub generation: u64,
    pub rules: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
}

#[derive(Debug, Serialize)]
pub struct Connection<'a> {
    pub conn: u64,
    #[serde(flatten)]
    pub who: Who<'a>,
    pub destination: SocketAddr,
    pub class: &'static str,
    /// The server at the end of a tunnel, where the destination is a proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<&'a str>,
    /// The server that a TLS client has named (RFC 6066 section 3).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_name: Option<&'a str>,
    /// agent_closed | server_closed | network_error | operator_stop | drain | refused | tunnel: goes on in one
    pub cause: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub bytes_to_server: u64,
    pub bytes_to_agent: u64,
    pub lasted_ms: u64,
}

#[derive(Debug, Serialize)]
pub struct Kernel<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<&'a str>,
    pub pid: u32,
    pub uid: u32,
    /// stopped | netns_unknown | transport | datagram | own_port | no_room
    pub reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<&'a str>,
    pub destination: SocketAddr,
    pub protocol: u32,
    pub netns: u64,
}

#[derive(Debug, Serialize)]
pub struct AgentHeld<'a> {
    pub agent: &'a str,
    pub cgroup: &'a str,
    /// Connections and datagram sockets that were there before, and were cut.
    pub sockets_cut: u32,
}

#[derive(Debug, Serialize)]
pub struct Daemon<'a> {
    pub event: &'static str,
    pub version: &'a str,
    pub pid: u32,
}

#[derive(Debug, Serialize)]
pub struct Intrusion<'a> {
    pub agent: &'a str,
    pub order: &'a str,
    pub by: &'a Operator,
    pub cgroup: &'a str,
}
