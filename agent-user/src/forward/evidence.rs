//! What becomes of a call that had left when its agent was stopped.
//!
//! The server is told in the protocol of the call: `notifications/cancelled` up to MCP 2025-11-25, where closing a
//! connection says nothing; closing it in MCP 2026-07-28, where that is the cancel. Where it may still answer we
//! read on for a while: the late answer is evidence, and never reaches the agent. Its size and digest are those of the
//! JSON text, out of any coding.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use jiff::Timestamp;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use crate::book::Late;
use crate::channels::Listed;
use crate::decide::stop::Stop;
use crate::decode::{
    Framing, Kind, Media, Message, Method, Payload, ResponseHead, decode, find, mcp, parse_response, sse,
};
use crate::fate::Fate;
use crate::fingerprint::Digest;
use crate::forward::answer::Begun;
use crate::forward::cancel::{self, Client};
use crate::forward::hold::{Held, Hold};
use crate::forward::inspect::settle;
use crate::forward::reframe::Stream;
use crate::forward::side::{Reader, Side};
use crate::forward::task_cancel;
use crate::kernel::netns::Netns;
use crate::ledger::{Call, Conn, Scene};
use crate::orders::ANSWERED_WITHIN;
use crate::parts::Parts;
use crate::record::entry::{Cancel, Entry};
use crate::tasks::{Learnt, Task};

/// Longest wait for a stop to come into force before servers are told.
pub(super) const IN_FORCE_WITHIN: Duration = Duration::from_secs(2);
/// How long a server may take to close its side, where closing is the cancel.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// An exchange that a stop has ended for the agent, but not for us.
#[derive(Debug)]
pub struct Evidence {
    pub parts: Arc<Parts>,
    pub conn: Arc<Conn>,
    pub netns: Arc<Netns>,
    pub stop: Arc<Stop>,
    /// Of the exchange; the connection may be in another one by now.
    pub scene: Scene,
    pub calls: Vec<Call>,
    pub server: Side,
    /// How far the answer had begun.
    pub begun: Begun,
    /// What it has brought, if it is a stream.
    pub stream: Stream,
    /// The head of the request, for the headers a cancel must repeat.
    pub request: Vec<u8>,
    /// What was read is a stream in which other calls are answered: those that were caught before are evidence, too.
    pub channel: Option<Listed>,
}

impl Evidence {
    /// Tells the server and learns the fate of every call.
    pub async fn follow(mut self) {
        // The stop comes into force first, and its operator gets the answer: what is told here can wait that long.
        let _ = timeout(IN_FORCE_WITHIN, self.parts.ledger.settled()).await;
        sleep(ANSWERED_WITHIN).await;
        if self.closing_cancels() {
            for call in &self.calls {
                record_cancel(&self.parts, &self.conn, &self.stop, call, "close", None);
            }
            // Half of it, so that what the server does in turn is heard. One that is gone has closed already.
            let _ = self.server.writer.finish().await;
            let heard = timeout(CLOSE_WITHIN, self.listen()).await;
            let fate = if heard == Ok(Heard::End) { Fate::Closed } else { Fate::Sent };
            self.settle_rest(|_| fate);
            return;
        }
        let told = tokio::spawn(self.teller().tell(&self.calls));
        match timeout(self.parts.evidence_window, self.listen()).await {
            Ok(Heard::End) if !self.calls.is_empty() => {
                let taken = told.await.unwrap_or_default();
                self.settle_rest(
                    |call| {
                        if taken.contains(&call.decision) { Fate::Closed } else { Fate::Lost }
                    },
                );
            }
            // It may have answered, or may still: we do not know.
            _ => self.settle_rest(|_| Fate::Sent),
        }
    }

    fn settle_rest(&mut self, fate: impl Fn(&Call) -> Fate) {
        for call in std::mem::take(&mut self.calls) {
            self.settle(&call, fate(&call), None);
        }
    }

    /// Closing the connection is the cancel, and the operator does not want to watch instead.
    fn closing_cancels(&self) -> bool {
        let modern = Some(mcp::Revision::V2026_07_28.as_str());
        !self.calls.is_empty()
            && self.calls.iter().all(|call| call.revision == modern)
            && !self.scene.servers.iter().any(|server| self.parts.watched.is_match(server))
    }

    fn settle(&self, call: &Call, fate: Fate, late: Option<Late>) {
        self.parts.book.settle(&self.stop, &self.conn, call, None, fate, late);
    }

    /// Reads until every call has its answer or no more can be learnt.
    async fn listen(&mut self) -> Heard {
        match self.begun {
            Begun::Partial => return Heard::Unreadable,
            Begun::Stream => {}
            Begun::Nothing => match self.head().await {
                Ok(head) if head.media == Media::EventStream => {
                    let limit = self.parts.limits.event;
                    let Ok(decoder) = Stream::decoder(head.codings, limit) else { return Heard::Unreadable };
                    self.stream = Stream::new(head.framing, false, limit);
                    self.stream.decode_with(decoder);
                }
                Ok(head) => return self.one(&head).await,
                Err(heard) => return heard,
            },
        }
        self.events().await
    }

    async fn head(&mut self) -> Result<ResponseHead, Heard> {
        loop {
            match parse_response(&self.server.reader.buffer, self.parts.limits.header, Method::Post) {
                Ok(Some(head)) => {
                    self.server.reader.buffer.advance(head.len);
                    if head.status >= 200 {
                        return if head.tunnel { Err(Heard::Unreadable) } else { Ok(head) };
                    }
                }
                Ok(None) if more(&mut self.server.reader).await? => {}
                Ok(None) => return Err(Heard::End),
                Err(_) => return Err(Heard::Unreadable),
            }
        }
    }

    async fn one(&mut self, head: &ResponseHead) -> Heard {
        let limits = self.parts.limits;
        let mut hold = Hold::new(head.framing, 0, limits.message);
        loop {
            let content = match hold.advance(&self.server.reader.buffer) {
                Ok(Held::Done(content)) => content,
                Ok(Held::More(_)) => {
                    if self.server.reader.made(hold.joined()).is_err() {
                        return Heard::Unreadable;
                    }
                    match more(&mut self.server.reader).await {
                        Ok(true) => continue,
                        Ok(false) if head.framing == Framing::UntilClose => hold.content(),
                        Ok(false) => return Heard::End,
                        Err(heard) => return heard,
                    }
                }
                Ok(Held::Oversized) | Err(_) => return Heard::Unreadable,
            };
            let Ok(content) = content.undone(head.codings, &self.server.reader.buffer, &limits) else {
                return Heard::Unreadable;
            };
            let bytes = content.of(&self.server.reader.buffer).to_vec();
            return self.take(&bytes);
        }
    }

    /// Reads on from the middle of a stream.
    async fn events(&mut self) -> Heard {
        while !self.calls.is_empty() || self.channel.is_some() && self.conn.has_late() {
            match self.stream.has_event() {
                Ok(true) => {
                    let event = sse::fields(self.stream.event());
                    let data = event.has_data.then(|| event.data.into_owned());
                    self.stream.skip();
                    if let Some(data) = data {
                        self.take(&data);
                    }
                }
                Ok(false) if self.stream.is_done() => break,
                Ok(false) => {
                    if self.stream.has_more() {
                        yield_now().await;
                    } else if self.server.reader.buffer.is_empty() {
                        match more(&mut self.server.reader).await {
                            Ok(true) => {}
                            Ok(false) => break,
                            Err(heard) => return heard,
                        }
                    }
                    let Ok(taken) = self.stream.take(&self.server.reader.buffer) else {
                        return Heard::Unreadable;
                    };
                    self.server.reader.buffer.advance(taken);
                    if self.server.reader.made(self.stream.held()).is_err() {
                        return Heard::Unreadable;
                    }
                }
                Err(_) => return Heard::Unreadable,
            }
        }
        Heard::End
    }

    /// Takes a late message: whoever it answers has finished after the stop.
    fn take(&mut self, bytes: &[u8]) -> Heard {
        let Ok(payload) = decode(bytes, &self.parts.limits) else { return Heard::Unreadable };
        let messages = match &payload {
            Payload::Single(message) => std::slice::from_ref(message),
            Payload::Batch(messages) => messages,
            Payload::NotJsonRpc => return Heard::Unreadable,
        };
        for message in messages {
            let Kind::Response { id: Some(id), .. } = &message.kind else { continue };
            let Some(index) = self.calls.iter().position(|call| call.has_id(*id)) else {
                if self.channel.is_some()
                    && let Some((call, stop)) = self.conn.finish_late(*id)
                {
                    settle(&self.parts, &self.conn, &stop, &call, message, bytes);
                }
                continue;
            };
            let call = self.calls.swap_remove(index);
            let (fate, late) = of_answer(message, bytes);
            self.settle(&call, fate, Some(late));
            self.cancel_task(message, &call);
        }
        Heard::End
    }

    /// A late answer may say that the work has only begun: then the task is cancelled as any other.
    fn cancel_task(&self, message: &Message<'_>, call: &Call) {
        let begin = |id, call: &Call| {
            Some(Task {
                id,
                call: call.clone(),
                scene: self.scene.clone(),
                conn: Arc::clone(&self.conn),
                netns: Arc::clone(&self.netns),
                request: self.request.clone(),
                held: self.parts.memory.take(&self.conn.identity.agent.memory, self.request.len()).ok()?,
            })
        };
        if let Learnt::Begun(task) = self.parts.tasks.learn(&self.conn, message, Some(call), begin) {
            task_cancel::cancel_late(&self.parts, &self.stop, &task);
        }
    }

    fn teller(&self) -> Teller {
        Teller {
            parts: Arc::clone(&self.parts),
            conn: Arc::clone(&self.conn),
            netns: Arc::clone(&self.netns),
            stop: Arc::clone(&self.stop),
            request: self.request.clone(),
        }
    }
}

/// Tells a server that a stop wants calls cancelled.
pub(super) struct Teller {
    pub(super) parts: Arc<Parts>,
    pub(super) conn: Arc<Conn>,
    pub(super) netns: Arc<Netns>,
    pub(super) stop: Arc<Stop>,
    /// The head of a request of its client.
    pub(super) request: Vec<u8>,
}

impl Teller {
    /// One call after the other. Gives the decisions of those whose cancel the server took.
    pub(super) fn tell(self, calls: &[Call]) -> impl Future<Output = Vec<Box<str>>> + use<> {
        // Other protocols do not know the notification, MCP 2026-07-28 drops it over HTTP, and it is forbidden for `initialize`.
        let is_line = self.conn.lines().is_some();
        let is_cancelable = |call: &&Call| {
            call.revision.is_some_and(|revision| is_line || revision != mcp::Revision::V2026_07_28.as_str())
                && call.rpc_id.is_some()
                && &*call.method != "initialize"
        };
        let calls: Vec<Call> = calls.iter().filter(is_cancelable).cloned().collect();
        let Teller { parts, conn, netns, stop, request } = self;
        async move {
            let mut taken = Vec::new();
            let reason = format!("stopped by an operator at {}: {}", Timestamp::now(), stop.reason);
            for call in calls {
                // The semaphore is never closed.
                let _turn = conn.identity.agent.cancels.acquire().await;
                let Some(message) = cancel::cancelled(call.rpc_id.as_deref().unwrap_or_default(), &reason)
                else {
                    continue;
                };
                let client = Client { request: &request, conn: &conn, netns: &netns, limits: &parts.limits };
                let outcome = match client.post(&message, None).await {
                    Ok(reply) => {
                        let is_taken = reply.status.is_some_and(|status| status < 300);
                        taken.extend(is_taken.then(|| call.decision.clone()));
                        reply.outcome()
                    }
                    Err(error) => error.to_string(),
                };
                record_cancel(&parts, &conn, &stop, &call, "notifications/cancelled", Some(outcome));
            }
            taken
        }
    }
}

/// What an answer that comes after the stop tells of its call.
pub(super) fn of_answer(message: &Message<'_>, json: &[u8]) -> (Fate, Late) {
    let is_error = mcp::result_facts(message).is_some_and(|facts| facts.is_error);
    let fate = if says_cancelled(message.error) { Fate::Cancelled } else { Fate::FinishedAfterStop };
    (fate, Late { bytes: json.len(), digest: Digest::of(json).to_string(), is_error })
}

/// Why no more was heard of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    /// Its answer has come, or its connection has ended.
    End,
    /// What it says cannot be read.
    Unreadable,
}

/// Whether a JSON-RPC error tells that the call was cancelled. No code is set aside for it in MCP, so its message counts
/// (SDKs say "Request cancelled"), and only the whole of it: others may quote what the agent has sent.
fn says_cancelled(error: Option<&str>) -> bool {
    let message = error.and_then(|error| find::text(find::member(error, "message").ok()??));
    let message = message
        .map(|message| message.trim_end_matches('.').to_ascii_lowercase().replace("canceled", "cancelled"));
    message.is_some_and(|message| CANCELLED.contains(&&*message))
}

const CANCELLED: [&str; 5] = [
    "cancelled",
    "request cancelled",
    "request was cancelled",
    "the request was cancelled",
    "operation cancelled",
];

/// Reads on; false at the end. Where there is no room for more, that is no end.
async fn more(reader: &mut Reader) -> Result<bool, Heard> {
    match reader.fill().await {
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(Heard::Unreadable),
        read => Ok(read.is_ok_and(|read| read > 0)),
    }
}

pub(super) fn record_cancel(
    parts: &Parts,
    conn: &Conn,
    stop: &Stop,
    call: &Call,
    via: &'static str,
    outcome: Option<String>,
) {
    parts.log.record(&Entry::Cancel(Cancel {
        agent: &conn.identity.agent.name,
        server: &call.server,
        cause: "operator_stop",
        rpc_id: call.rpc_id.as_deref().unwrap_or_default(),
        task: None,
        stop: Some(&stop.id),
        via,
        outcome,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: &str, expect: bool) {
        let error = format!(r#"{{"code":-32602,"message":"{message}","data":"cancelled"}}"#);
        assert_eq!(says_cancelled(Some(&error)), expect, "{message}");
    }

    #[test]
    fn only_an_error_that_says_so_is_a_cancel() {
        check("Request cancelled", true);
        check("The request was canceled.", true);
        check("Unknown tool: cancel_order", false);
        check("the transfer could not be cancelled", false);
        assert!(!says_cancelled(None));
    }
}
