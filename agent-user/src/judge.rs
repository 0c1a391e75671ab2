//! From one request's bytes to its verdict: decode, register in the ledger, read the rules, decide, record.
//!
//! The order is the product's promise: a call is in the ledger *before* the rules are read for it (see
//! [`crate::ledger`]), and a refusal is on disk before its answer leaves.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::config::Arguments;
use crate::decide::policy::Bias;
use crate::decide::scope::Scope;
use crate::decide::{Guard, Refusal, Rules, Subject, Verdict, decide};
use crate::decode::{Kind, Message, Payload, RequestHead, decode, mcp};
use crate::forward::refuse::Refused;
use crate::ledger::{Call, Conn};
use crate::parts::Parts;
use crate::record::entry::{Cancel, Decision, Entry};

/// What becomes of one request.
#[derive(Debug)]
pub struct Judged {
    /// Why it is refused, and each of its calls with it.
    pub refused: Option<(Refusal, Vec<Refused>)>,
    /// It carries JSON-RPC messages.
    pub has_calls: bool,
    /// They came as a batch, and are answered as one.
    pub batch: bool,
}

/// The server as the agent names it, and which rules can fire for it. Computed again only when the rules or the
/// name change.
#[derive(Debug, Default)]
pub struct Target {
    generation: u64,
    host: Vec<u8>,
    pub server: Arc<str>,
    scope: Scope,
}

/// Longest name of a server that is kept.
const MAX_SERVER: usize = 256;

impl Target {
    fn update(&mut self, rules: &Rules, conn: &Conn, host: &[u8]) {
        if self.generation == rules.generation && self.host == host {
            return;
        }
        let destination = conn.destination.to_string();
        let address = conn.destination.ip().to_string();
        // Names are compared as servers compare them: without case and without the dot of the DNS root.
        let named = String::from_utf8_lossy(host).to_ascii_lowercase();
        let port = named.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let (name, port) = port.map_or((&*named, None), |(name, port)| (name, Some(port)));
        let name = name.strip_suffix('.').unwrap_or(name);
        let server = match port {
            _ if name.is_empty() => destination.clone(),
            Some(port) => format!("{name}:{port}"),
            None => name.to_owned(),
        };
        self.scope = rules.policy.scope(&conn.identity.agent.name, &[&server, name, &destination, &address]);
        if *self.server != *server {
            self.server = server.into();
        }
        (self.generation, self.host) = (rules.generation, host.to_owned());
    }
}

/// The server that a request names. Where the target carries an authority servers go by that and not by `Host`
/// (RFC 9112 section 3.2.2), so the two must agree.
fn authority<'a>(head: &RequestHead, bytes: &'a [u8]) -> Result<&'a [u8], Guard> {
    let host = head.host.map(|host| host.of(bytes));
    if host.is_some_and(|host| host.len() > MAX_SERVER || !host.iter().all(u8::is_ascii_graphic)) {
        return Err(Guard::Undecodable("host"));
    }
    let target = head.target.of(bytes);
    let Some(start) = memchr::memmem::find(target, b"://").filter(|_| !target.starts_with(b"/")) else {
        return Ok(host.unwrap_or_default());
    };
    let named =
        target[start + 3..].split(|byte| matches!(byte, b'/' | b'?' | b'#')).next().unwrap_or_default();
    if host.is_some_and(|host| host.eq_ignore_ascii_case(named)) {
        return Ok(named);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SERVER)]).into_owned();
    Err(Guard::HeaderMismatch {
        header: "host",
        header_value: text(host.unwrap_or_default()),
        body_value: text(named),
    })
}

/// One message of a request, ready to be judged.
struct Prepared<'a> {
    call: Option<mcp::Call<'a>>,
    rpc_id: Option<&'a str>,
    revision: Option<&'static str>,
    decision: String,
    verdict: Verdict,
}

/// Judges a whole request. `since` is when its first byte was there.
pub async fn judge(
    parts: &Parts,
    conn: &Conn,
    target: &mut Target,
    head: &RequestHead,
    bytes: &[u8],
    content: &[u8],
    since: Instant,
) -> Judged {
    let started = Instant::now();
    let claims = head.mcp.claims(bytes);
    if claims.protocol_version.is_some() || head.mcp.session_id.is_some() {
        conn.mark_mcp();
    }
    let payload = if content.is_empty() { Ok(Payload::NotJsonRpc) } else { decode(content, &parts.limits) };
    let (messages, batch) = match &payload {
        Ok(Payload::Single(message)) => (std::slice::from_ref(message), false),
        Ok(Payload::Batch(messages)) => (&**messages, true),
        Ok(Payload::NotJsonRpc) => return plain(parts, conn, None),
        Err(fault) => {
            let denied = parts.gate.rules().policy.defaults.undecodable == Bias::Deny;
            return plain(parts, conn, denied.then_some(Guard::Undecodable(fault.label())));
        }
    };
    let host = match authority(head, bytes) {
        Ok(host) => host,
        Err(guard) => return plain(parts, conn, Some(guard)),
    };
    let mut prepared: Vec<Prepared<'_>> =
        messages.iter().map(|message| prepare(parts, message, &claims)).collect();
    if prepared.iter().any(|message| message.call.as_ref().is_none_or(|call| call.is_mcp)) {
        conn.mark_mcp();
    }

    target.update(&parts.gate.rules(), conn, host);
    conn.begin(prepared.iter().map(|message| message.to_call(&target.server)).collect());
    // From here on a stop finds the calls; so it is now that the rules are read.
    let rules = Arc::clone(&parts.gate.rules());
    target.update(&rules, conn, host);
    for message in &mut prepared {
        message.judge(&rules, conn, &target.scope, &claims);
    }
    if batch && prepared.iter().any(|message| message.verdict.refusal.is_some()) {
        for message in &mut prepared {
            message.verdict.refusal.get_or_insert(Refusal::Guard(Guard::Batch));
        }
    }
    parts.metrics.decision_seconds.observe(started.elapsed().as_secs_f64());
    parts.metrics.held_seconds.observe(since.elapsed().as_secs_f64());
    let refusal = prepared.iter().find_map(|message| message.verdict.refusal.clone());
    for (index, message) in prepared.iter().enumerate() {
        let last = index + 1 == prepared.len();
        message.record(parts, conn, &target.server, rules.generation, since, refusal.is_some() && last).await;
    }
    let refused = refusal.map(|first| {
        let refused = prepared.iter().map(|message| Refused {
            call: message.to_call(&target.server),
            refusal: message.verdict.refusal.clone().unwrap_or_else(|| first.clone()),
        });
        let refused = refused.collect();
        (first, refused)
    });
    Judged { refused, has_calls: true, batch }
}

/// A request without JSON-RPC that could be judged: only stops apply, and what was found wrong with it.
fn plain(parts: &Parts, conn: &Conn, guard: Option<Guard>) -> Judged {
    conn.begin(Vec::new());
    let rules = parts.gate.rules();
    let stop = rules.stop_for(&conn.identity.agent.name).map(|stop| Refusal::Stop(Arc::clone(stop)));
    let refusal = stop.or(guard.map(Refusal::Guard));
    Judged { refused: refusal.map(|refusal| (refusal, Vec::new())), has_calls: false, batch: false }
}

/// Judges a request whose content is not looked at: a stream, a download, a tunnel.
pub fn judge_unread(parts: &Parts, conn: &Conn) -> Judged {
    plain(parts, conn, None)
}

fn prepare<'a>(parts: &Parts, message: &'a Message<'a>, claims: &mcp::Claims<'_>) -> Prepared<'a> {
    let call = mcp::call(message);
    let rpc_id = match &message.kind {
        Kind::Request { id, .. } => Some(id.raw),
        _ => None,
    };
    let revision =
        call.as_ref().filter(|call| call.is_mcp).and_then(|call| mcp::revision(call, claims, None));
    Prepared {
        call,
        rpc_id,
        revision: revision.map(mcp::Revision::as_str),
        decision: parts.decisions.next(),
        verdict: Verdict::default(),
    }
}

impl Prepared<'_> {
    fn method(&self) -> &str {
        self.call.as_ref().map_or("response", |call| &call.method)
    }

    fn to_call(&self, server: &Arc<str>) -> Call {
        Call {
            method: self.method().into(),
            tool: self.call.as_ref().and_then(|call| call.name.as_deref()).map(Into::into),
            rpc_id: self.rpc_id.map(Into::into),
            server: Arc::clone(server),
            revision: self.revision,
            decision: self.decision.as_str().into(),
            since: Timestamp::now(),
        }
    }

    fn judge(&mut self, rules: &Rules, conn: &Conn, scope: &Scope, claims: &mcp::Claims<'_>) {
        let subject = Subject {
            method: self.call.as_ref().map(|call| &*call.method),
            name: self.call.as_ref().and_then(|call| call.name.as_deref()),
        };
        self.verdict = decide(rules, &conn.identity.agent.name, scope, &subject);
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
        server: &str,
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
            if refusal.stop_id().is_some() {
                agent.metrics.stop_refusals_proxy.inc();
            }
        }
        let arguments = self.call.as_ref().and_then(|call| call.arguments);
        let entry = Entry::Decision(Decision {
            decision: &self.decision,
            conn: conn.id,
            who: (&conn.identity).into(),
            server,
            destination: conn.destination,
            protocol: if is_mcp { "mcp" } else { "jsonrpc" },
            revision: self.revision,
            method: self.method(),
            tool: self.call.as_ref().and_then(|call| call.name.as_deref()),
            rpc_id: self.rpc_id,
            verdict: self.verdict.label(),
            rules: &self.verdict.fired,
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
        let cancelled = self.call.as_ref().and_then(|call| call.cancelled_request_id);
        if let Some(id) = cancelled {
            parts.log.record(&Entry::Cancel(Cancel {
                agent: &agent.name,
                server,
                cause: "agent_cancelled",
                rpc_id: id.raw,
                stop: None,
                via: "notifications/cancelled",
                outcome: None,
            }));
        }
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
