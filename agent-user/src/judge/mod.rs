//! From one request's bytes to its verdict: decode, register in the ledger, read the rules, decide, record.
//!
//! The order is the product's promise: a call is in the ledger *before* the rules are read for it (see
//! [`crate::gate`]), and a refusal is on disk before its answer leaves.

mod target;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::config::Arguments;
use crate::decide::policy::Bias;
use crate::decide::stop::Facts;
use crate::decide::subject::Subject;
use crate::decide::{Guard, Reach, Refusal, Rules, Verdict, decide};
use crate::decode::{Headers, Kind, Message, Payload, RequestHead, decode, mcp};
use crate::forward::refuse::Refused;
use crate::ledger::{Call, Conn, Scene};
use crate::parts::{Parts, count_stop};
use crate::record::entry::{Cancel, Decision, Entry};

pub use self::target::Target;
use self::target::authority;

/// What becomes of one request.
#[derive(Debug)]
pub struct Judged {
    /// Why it is refused, and each of its calls with it.
    pub refused: Option<(Refusal, Vec<Refused>)>,
    /// It carries JSON-RPC messages.
    pub has_calls: bool,
    /// They came as a batch, and are answered as one.
    pub batch: bool,
    /// The JSON text that leaves in place of the agent's. Its headers stay, but for those that frame or digest the content:
    /// what MCP 2026-07-28 has them say of it must still be true.
    pub replaced: Option<Vec<u8>>,
}

/// A request that was read, and where its head is.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    pub head: &'a RequestHead,
    /// The bytes of the head.
    pub bytes: &'a [u8],
    /// When its first byte was there.
    pub since: Instant,
}

/// One message of a request, ready to be judged.
struct Prepared<'a> {
    call: Option<mcp::Call<'a>>,
    rpc_id: Option<&'a str>,
    workflow: Option<Arc<str>>,
    /// The tool behind the task it is about.
    of_tool: Option<Box<str>>,
    of_unknown: bool,
    revision: Option<&'static str>,
    decision: String,
    verdict: Verdict,
}

/// Judges a whole request.
pub async fn judge(
    parts: &Parts,
    conn: &Conn,
    target: &mut Target,
    asking: &Asking<'_>,
    content: &[u8],
) -> Judged {
    let started = Instant::now();
    let Asking { head, bytes, since } = *asking;
    let claims = head.mcp.claims(bytes);
    if claims.protocol_version.is_some() || head.mcp.session_id.is_some() {
        conn.mark_mcp();
    }
    let payload = if content.is_empty() { Ok(Payload::NotJsonRpc) } else { decode(content, &parts.limits) };
    let (messages, batch) = match &payload {
        Ok(Payload::Single(message)) => (std::slice::from_ref(message), false),
        Ok(Payload::Batch(messages)) => (&**messages, true),
        Ok(Payload::NotJsonRpc) => return judge_unread(parts, conn, target, asking, None),
        Err(fault) => {
            let denied = parts.gate.rules().policy.defaults.undecodable == Bias::Deny;
            let guard = denied.then_some(Guard::Undecodable(fault.label()));
            return judge_unread(parts, conn, target, asking, guard);
        }
    };
    let host = match authority(head, bytes) {
        Ok(host) => host,
        Err(guard) => return judge_unread(parts, conn, target, asking, Some(guard)),
    };
    let mut prepared: Vec<Prepared<'_>> =
        messages.iter().map(|message| prepare(parts, conn, asking, message, &claims)).collect();
    let is_mcp = prepared.iter().any(|message| message.call.as_ref().is_none_or(|call| call.is_mcp));
    if is_mcp {
        conn.mark_mcp();
    }

    target.update(&parts.gate.rules(), conn, host);
    let workflow = prepared.first().and_then(|message| message.workflow.clone());
    let modern = Some(mcp::Revision::V2026_07_28.as_str());
    let is_modern = prepared.iter().all(|message| message.revision == modern);
    let scene = target.scene(conn, head, bytes, (is_mcp, is_modern), workflow);
    let to_calls = |prepared: &[Prepared<'_>]| -> Vec<Call> {
        prepared.iter().map(|message| message.to_call(&scene)).collect()
    };
    let rules = parts.gate.begin(conn, scene.clone(), to_calls(&prepared));
    target.update(&rules, conn, host);
    let cut_by = conn.cut_by();
    for message in &mut prepared {
        message.judge(&rules, conn, &target.reach, &scene, &claims);
        if let Some(stop) = &cut_by {
            message.verdict.refusal = Some(Refusal::Stop(Arc::clone(stop)));
        }
    }
    if batch && prepared.iter().any(|message| message.verdict.refusal.is_some()) {
        for message in &mut prepared {
            message.verdict.refusal.get_or_insert(Refusal::Guard(Guard::Batch));
        }
    }
    let now = Instant::now();
    for message in &mut prepared {
        parts.tripwires.count(&conn.identity.agent.name, &mut message.verdict, now);
    }
    parts.metrics.decision_seconds.observe(started.elapsed().as_secs_f64());
    parts.metrics.held_seconds.observe(since.elapsed().as_secs_f64());
    let refusal = prepared.iter().find_map(|message| message.verdict.refusal.clone());
    for (index, message) in prepared.iter().enumerate() {
        let last = index + 1 == prepared.len();
        let durable = refusal.is_some() && last;
        message.record(parts, conn, &scene, rules.generation, since, durable).await;
    }
    // Not before the refusal is on record: its stop must not answer the message in its place.
    for message in &prepared {
        parts.tripwires.order(&conn.identity.agent.name, &message.verdict);
    }
    let refused = refusal.map(|first| {
        let refused = prepared.iter().map(|message| Refused {
            call: message.to_call(&scene),
            refusal: message.verdict.refusal.clone().unwrap_or_else(|| first.clone()),
        });
        let refused = refused.collect();
        (first, refused)
    });
    Judged { refused, has_calls: true, batch, replaced: None }
}

/// Judges a request without JSON-RPC that could be judged, such as a stream, a download or a tunnel: only stops apply,
/// and what was found wrong with it.
pub fn judge_unread(
    parts: &Parts,
    conn: &Conn,
    target: &mut Target,
    asking: &Asking<'_>,
    guard: Option<Guard>,
) -> Judged {
    // Where the names of the server contradict each other the address remains.
    let host = authority(asking.head, asking.bytes).unwrap_or_default();
    target.update(&parts.gate.rules(), conn, host);
    let headers = Headers::of(asking.head, asking.bytes);
    let workflow = parts.workflow.of_message(headers, None, &conn.identity.workflow);
    let scene = target.scene(conn, asking.head, asking.bytes, (conn.is_mcp(), false), workflow);
    let rules = parts.gate.begin(conn, scene.clone(), Vec::new());
    let stop = || rules.stop_for(&scene.facts(&conn.identity.agent.name)).cloned();
    let refusal = conn.cut_by().or_else(stop).map(Refusal::Stop).or(guard.map(Refusal::Guard));
    let refused = refusal.map(|refusal| (refusal, Vec::new()));
    Judged { refused, has_calls: false, batch: false, replaced: None }
}

fn prepare<'a>(
    parts: &Parts,
    conn: &Conn,
    asking: &Asking<'_>,
    message: &'a Message<'a>,
    claims: &mcp::Claims<'_>,
) -> Prepared<'a> {
    let call = mcp::call(message);
    let headers = Headers::of(asking.head, asking.bytes);
    let rpc_id = match &message.kind {
        Kind::Request { id, .. } => Some(id.raw),
        _ => None,
    };
    let revision =
        call.as_ref().filter(|call| call.is_mcp).and_then(|call| mcp::revision(call, claims, None));
    let about_task = call.as_ref().filter(|call| call.method.starts_with("tasks/"));
    let task = about_task.filter(|call| call.is_mcp).and_then(|call| call.name.as_deref());
    let of_tool = task.and_then(|task| parts.tasks.tool(conn, task));
    let of_unknown = task.is_some() && of_tool.is_none();
    Prepared {
        call,
        rpc_id,
        of_unknown,
        of_tool,
        workflow: parts.workflow.of_message(headers, Some(message), &conn.identity.workflow),
        revision: revision.map(mcp::Revision::as_str),
        decision: parts.decisions.next(),
        verdict: Verdict::default(),
    }
}

impl Prepared<'_> {
    fn method(&self) -> &str {
        self.call.as_ref().map_or("response", |call| &call.method)
    }

    fn to_call(&self, scene: &Scene) -> Call {
        Call {
            method: self.method().into(),
            tool: self.call.as_ref().and_then(|call| call.name.as_deref()).map(Into::into),
            rpc_id: self.rpc_id.map(Into::into),
            server: Arc::clone(&scene.server),
            session: scene.session,
            workflow: self.workflow.clone(),
            revision: self.revision,
            decision: self.decision.as_str().into(),
            since: Timestamp::now(),
            of_tool: self.of_tool.clone(),
            of_unknown: self.of_unknown,
            agent_cancelled_at: None,
        }
    }

    fn judge(&mut self, rules: &Rules, conn: &Conn, reach: &Reach, scene: &Scene, claims: &mcp::Claims<'_>) {
        let subject = Subject {
            method: self.call.as_ref().map(|call| &*call.method),
            name: self.call.as_ref().and_then(|call| call.name.as_deref()),
            ..Subject::default()
        };
        let facts = Facts {
            workflow: self.workflow.as_deref(),
            tool: self.of_tool.as_deref().or(subject.name),
            is_tool_unknown: self.of_unknown,
            ..scene.facts(&conn.identity.agent.name)
        };
        self.verdict = decide(rules, reach, &facts, &subject);
        let mismatch =
            self.call.as_ref().filter(|call| call.is_mcp).and_then(|call| mcp::mismatch(claims, call));
        if let Some(mcp::Mismatch { header, header_value, body_value }) = mismatch {
            let guard = Guard::HeaderMismatch { header, header_value, body_value };
            self.verdict.fired.push(guard.rule().into());
            self.verdict.refusal.get_or_insert(Refusal::Guard(guard));
        }
    }

    async fn record(
        &self,
        parts: &Parts,
        conn: &Conn,
        scene: &Scene,
        generation: u64,
        since: Instant,
        durable: bool,
    ) {
        let refusal = self.verdict.refusal.as_ref();
        let agent = &conn.identity.agent;
        let is_mcp = self.call.as_ref().is_none_or(|call| call.is_mcp);
        agent.metrics.count(&self.verdict, is_mcp);
        if let Some(refusal) = refusal {
            parts.metrics.denied(&agent.name, refusal.rule(), refusal.label());
            count_stop(agent, refusal);
        }
        let arguments = self.call.as_ref().and_then(|call| call.arguments);
        let entry = Entry::Decision(Decision {
            decision: &self.decision,
            conn: conn.id,
            who: (&conn.identity).into(),
            server: &scene.server,
            destination: conn.destination,
            session: scene.session,
            workflow: self.workflow.as_deref(),
            protocol: if is_mcp { "mcp" } else { "jsonrpc" },
            revision: self.revision,
            method: self.method(),
            tool: self.call.as_ref().and_then(|call| call.name.as_deref()),
            rpc_id: self.rpc_id,
            verdict: self.verdict.label(),
            rules: &self.verdict.fired,
            would_stop: self.verdict.would_stop(),
            reason: refusal.map(Refusal::reason),
            stop: refusal.and_then(Refusal::stop_id),
            generation,
            arguments_digest: arguments.map(|arguments| digest(arguments.as_bytes())),
            arguments: arguments
                .filter(|_| parts.arguments == Arguments::Full)
                .and_then(|arguments| serde_json::from_str(arguments).ok()),
            held_us: u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX),
        });
        if durable {
            parts.log.record_durably(&entry).await;
        } else {
            parts.log.record(&entry);
        }
        if refusal.is_none() {
            self.record_cancel(parts, conn, scene);
        }
    }

    /// Records that the agent itself asks for a cancel, which is no operator's stop.
    fn record_cancel(&self, parts: &Parts, conn: &Conn, scene: &Scene) {
        let Some(call) = &self.call else { return };
        let (rpc_id, task, via) = match (call.cancelled_request_id, &*call.method) {
            (Some(id), _) => (id.raw, None, "notifications/cancelled"),
            (None, "tasks/cancel") => (self.rpc_id.unwrap_or_default(), call.name.as_deref(), "tasks/cancel"),
            (None, _) => return,
        };
        let agent = &conn.identity.agent;
        let outcome = call.cancelled_request_id.map(|id| {
            let in_flight = parts.ledger.cancelled_by_agent(conn, scene.session, id);
            if in_flight { "in flight" } else { "not in flight" }.to_owned()
        });
        parts.log.record(&Entry::Cancel(Cancel {
            agent: &agent.name,
            server: &scene.server,
            cause: "agent_cancelled",
            rpc_id,
            task,
            stop: None,
            via,
            outcome,
        }));
    }
}

/// `sha256:` and the hexadecimal SHA-256 (FIPS 180-4) of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(7 + 64);
    text.push_str("sha256:");
    for byte in Sha256::digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
