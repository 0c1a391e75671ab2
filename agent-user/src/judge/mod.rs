//! From one request's bytes to its verdict: decode, register in the ledger, read the rules, decide, record.
//!
//! The order is the product's promise: a call is in the ledger *before* the rules are read for it (see
//! [`crate::gate`]), and a refusal is on disk before its answer leaves.

mod answer;
mod carrier;
mod consent;
mod message;
mod redact;
mod shown;
mod target;
mod unread;

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use crate::catalogue::Place;
use crate::channels::Channel;
use crate::decide::policy::Bias;
use crate::decide::redact::splice_all;
use crate::decide::subject::Subject;
use crate::decide::{Guard, Refusal};
use crate::decode::{Payload, Protocol, Undecodable, decode, mcp, operation};
use crate::forward::refuse::Refused;
use crate::ledger::{Call, Conn, Scene, Unexpected};
use crate::parts::Parts;
use crate::room::Full;

use self::message::{JudgedBy, Prepared};

pub use self::answer::{Answer, Answering};
pub use self::carrier::Carrier;
pub use self::consent::{Consent, Question, Wait};
pub use self::shown::notice_card;
pub use self::target::{Target, names, server_names};
pub use self::unread::{is_refused, judge_opaque, judge_unread, refuse_bytes};

/// Bytes of calls in flight that a connection has without being counted.
const UNCOUNTED: usize = 4096;
/// Calls that wait for an answer in one stream without being counted.
const UNCOUNTED_CALLS: usize = 16;

/// What becomes of one request.
#[derive(Debug)]
pub enum Judged {
    /// It goes on.
    Allowed {
        /// It carries JSON-RPC messages.
        has_calls: bool,
        /// They came as a batch, and are answered as one.
        batch: bool,
        /// What leaves in place of what the agent has sent.
        replaced: Option<Replaced>,
    },
    /// Its calls are refused, each for a reason of its own.
    Refused { calls: Vec<Refused>, batch: bool },
    /// It carries none that could be judged, and is refused as a whole.
    RefusedUnread {
        refusal: Refusal,
        /// The id of the decision.
        decision: String,
    },
    /// A person must approve of it first. Nothing is decided or on record; its calls are on the ledger.
    Asks(Box<Question>),
    /// What it uses may have changed: it waits for lists. Nothing is decided or on record.
    Waits(Box<Wait>),
}

/// A request after something was taken out of it.
#[derive(Debug)]
pub struct Replaced {
    /// The head, which frames the old content yet, and says of it what MCP 2026-07-28 has it say.
    pub head: Vec<u8>,
    pub content: Vec<u8>,
}

/// A request that was read, but for its content.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    pub carrier: Carrier<'a>,
    /// When its first byte was there.
    pub since: Instant,
    /// The stream in which it is answered, if that is not its own answer.
    pub channel: Option<&'a Arc<Channel>>,
}

/// Judges a whole request. `consent` is what persons have said of it so far.
pub async fn judge(
    parts: &Parts,
    conn: &Conn,
    target: &mut Target,
    asking: &Asking<'_>,
    content: &[u8],
    consent: &mut Consent,
) -> Judged {
    if asking.carrier.is_of_mcp() {
        conn.mark_mcp();
    }
    let payload = if content.is_empty() { Ok(Payload::NotJsonRpc) } else { decode(content, &parts.limits) };
    let payload = match (asking.carrier.operation(), payload) {
        (None, payload) => payload,
        (Some(_), Ok(Payload::Single(_) | Payload::Batch(_))) => Err(Undecodable::TwoBindings),
        (Some(operation), _) => operation::asked(operation, content, &parts.limits).map(Payload::Single),
    };
    match &payload {
        Ok(Payload::NotJsonRpc) => judge_unread(parts, conn, target, asking, None).await,
        Ok(payload) => judge_messages(parts, conn, target, asking, (payload, content), consent).await,
        Err(fault) => judge_undecodable(parts, conn, target, asking, fault).await,
    }
}

/// Judges a request that cannot be decoded.
pub async fn judge_undecodable(
    parts: &Parts,
    conn: &Conn,
    target: &mut Target,
    asking: &Asking<'_>,
    fault: &Undecodable,
) -> Judged {
    let denied = parts.defaults_of(conn).undecodable == Bias::Deny;
    let guard = denied.then_some(Guard::Undecodable(fault.label()));
    judge_unread(parts, conn, target, asking, guard).await
}

/// Judges the messages of a request, and the text in which they are.
pub async fn judge_messages(
    parts: &Parts,
    conn: &Conn,
    target: &mut Target,
    asking: &Asking<'_>,
    (payload, content): (&Payload<'_>, &[u8]),
    consent: &mut Consent,
) -> Judged {
    let started = Instant::now();
    let Asking { carrier, since, channel } = *asking;
    let claims = carrier.claims();
    let (messages, batch) = (payload.messages(), matches!(payload, Payload::Batch(_)));
    let host = match carrier.authority() {
        Ok(host) => host,
        Err(guard) => return judge_unread(parts, conn, target, asking, Some(guard)).await,
    };
    let mut prepared: Vec<Prepared<'_>> =
        messages.iter().map(|message| Prepared::new(parts, conn, asking, message, &claims)).collect();
    let is_long = |message: &Prepared<'_>| {
        let name = message.call.as_ref().and_then(|call| call.name.as_deref());
        name.is_some_and(|name| name.len() > parts.limits.name)
    };
    if prepared.iter().any(is_long) {
        return judge_undecodable(parts, conn, target, asking, &Undecodable::NameTooLong).await;
    }
    let is_mcp = prepared.iter().any(|message| message.call.as_ref().is_none_or(|call| call.is_mcp));
    if is_mcp {
        conn.mark_mcp();
    }
    if prepared.iter().any(|message| message.protocol() == Protocol::A2a) {
        conn.mark_a2a();
    }

    target.update(&parts.gate.rules(), conn, host);
    let workflow = prepared.first().and_then(|message| message.workflow.clone());
    let modern = Some(mcp::Revision::V2026_07_28.as_str());
    let is_modern = prepared.iter().all(|message| message.revision == modern);
    let mut scene = target.scene(conn, &carrier, (is_mcp, is_modern), workflow);
    if let Some(channel) = channel {
        scene.path = Arc::clone(&channel.path);
        if matches!(carrier, Carrier::Line) {
            scene.revision = Some(channel.revision().as_str());
        }
    }
    for (index, message) in prepared.iter_mut().enumerate() {
        message.place(parts, conn, &scene, consent.kept.get(index));
    }
    let mut calls: Vec<Call> = prepared.iter().map(|message| message.to_call(&scene)).collect();
    let before = channel.map_or(0, |channel| channel.conn.unanswered());
    let full = keep(parts, conn, &mut calls, before >= UNCOUNTED_CALLS).err();
    let rules = parts.gate.begin(conn, scene.clone(), calls);
    let expected = channel.map_or(Ok(()), |channel| conn.post_to(&channel.conn, parts.unanswered));
    if expected == Err(Unexpected::Repeated) {
        return judge_unread(parts, conn, target, asking, Some(Guard::Undecodable("repeated_id"))).await;
    }
    target.update(&rules, conn, host);
    let reads = rules.policy.reads;
    let user = if reads.user { parts.users.of_request(carrier.headers(), &mut target.token) } else { None };
    let deeds = reads.recent.then_some(&conn.identity.agent.deeds);
    let by = JudgedBy {
        parts,
        conn,
        scene: &scene,
        channel,
        rules: &rules,
        reach: &target.reach,
        claims: &claims,
        user: user.as_deref(),
        recent: deeds.map(|deeds| deeds.recent(started)).unwrap_or_default(),
        since,
    };
    let cut_by = conn.cut_by();
    for (index, message) in prepared.iter_mut().enumerate() {
        message.judge(&by);
        if expected == Err(Unexpected::Crowded) {
            message.verdict.refuse(Guard::Unanswered { limit: parts.unanswered });
        }
        if let Some(full) = full {
            message.verdict.refuse(Guard::Full(full));
        }
        if let Some(stop) = &cut_by {
            message.verdict.refusal = Some(Refusal::Stop(Arc::clone(stop)));
        }
        consent.apply(index, &mut message.verdict);
    }
    if consent.is_new() {
        parts.metrics.decision_seconds.observe(started.elapsed().as_secs_f64());
        parts.metrics.held_seconds.observe(since.elapsed().as_secs_f64());
    }
    let is_open = prepared.iter().all(|message| message.verdict.refusal.is_none());
    if is_open && let Some(wait) = consent.wait(&prepared, conn, &scene) {
        return Judged::Waits(Box::new(wait));
    }
    if is_open
        && prepared.iter().all(|message| message.verdict.waits.is_empty())
        && let Some(question) =
            consent.question(&prepared, !batch && (channel.is_some() || carrier.takes_events()))
    {
        return Judged::Asks(Box::new(question));
    }
    prepared.iter_mut().for_each(|message| message.verdict.refuse_unsure());
    let now = Instant::now();
    prepared.iter_mut().for_each(|message| message.count(&by, now));
    if batch && prepared.iter().any(|message| message.verdict.refusal.is_some()) {
        for message in &mut prepared {
            message.verdict.refusal.get_or_insert(Refusal::Guard(Guard::Batch));
        }
    }
    for message in &mut prepared {
        parts.tripwires.count(&conn.identity.agent.name, &mut message.verdict, now);
    }
    let refusal = prepared.iter().find_map(|message| message.verdict.refusal.clone());
    for message in &mut prepared {
        match &refusal {
            Some(_) => message.uncount(),
            None => message.redact(),
        }
        match (deeds, &message.verdict.refusal) {
            (Some(deeds), Some(refusal)) if refusal.is_denial() => deeds.note_denial(now),
            (Some(deeds), None) if message.call.is_some() => deeds.note_call(now),
            _ => {}
        }
    }
    for (index, message) in prepared.iter().enumerate() {
        let last = index + 1 == prepared.len();
        let durable = (refusal.is_some() || consent.approval.is_some()) && last;
        message.record(&by, consent, durable).await;
    }
    // Not before the refusal is on record: its stop must not answer the message in its place.
    for message in &prepared {
        parts.tripwires.order(&conn.identity.agent.name, &message.verdict);
    }
    let Some(first) = refusal else {
        prepared.iter_mut().for_each(|message| message.keep_permits(conn));
        return match replace(&prepared, carrier.head(), content) {
            Ok(replaced) => Judged::Allowed { has_calls: true, batch, replaced },
            Err(guard) => judge_unread(parts, conn, target, asking, Some(guard)).await,
        };
    };
    let refused = prepared.iter().map(|message| Refused {
        call: message.to_call(&scene),
        refusal: message.verdict.refusal.clone().unwrap_or_else(|| first.clone()),
    });
    Judged::Refused { calls: refused.collect(), batch }
}

/// Counts calls that stay on the ledger after their bytes have left: those of a stream can be many, those of a batch large.
fn keep(parts: &Parts, conn: &Conn, calls: &mut [Call], many: bool) -> Result<(), Full> {
    let size = calls.iter().map(Call::size).sum();
    if size <= UNCOUNTED && !many {
        return Ok(());
    }
    let taken = Arc::new(parts.memory.take(&conn.identity.agent.memory, size)?);
    calls.iter_mut().for_each(|call| call.held = Some(Arc::clone(&taken)));
    Ok(())
}

/// The request as it leaves, if rules have taken something out of it.
fn replace(prepared: &[Prepared<'_>], head: &[u8], content: &[u8]) -> Result<Option<Replaced>, Guard> {
    let edits: Vec<_> = prepared.iter().filter_map(Prepared::edits).collect();
    if edits.is_empty() {
        return Ok(None);
    }
    let head = edits.iter().fold(head.to_vec(), |head, (_, edited)| edited.head(&head));
    let parts: Vec<(&str, &str)> = edits.iter().map(|(part, edited)| (*part, &*edited.text)).collect();
    let content = std::str::from_utf8(content).ok().and_then(|content| splice_all(content, &parts));
    let content = content.ok_or(Guard::Undecodable("redaction"))?.into_bytes();
    Ok(Some(Replaced { head, content }))
}

/// Where a connection leads, for what is known of the tools there.
fn place<'a>(conn: &Conn, scene: &'a Scene) -> Place<'a> {
    Place { agent: conn.identity.agent.number, server: &scene.server, address: conn.destination }
}

/// What is known of everything on a connection.
fn subject<'a>(conn: &'a Conn, scene: &'a Scene) -> Subject<'a> {
    Subject {
        agent: (&conn.identity).into(),
        server: &scene.server,
        servers: &scene.servers,
        address: Some(conn.destination),
        session: scene.session,
        workflow: scene.workflow.as_deref(),
        now: Timestamp::now(),
        ..Subject::default()
    }
}
