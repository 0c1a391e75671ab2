//! One HTTP request and its answer: read, judge, refuse or forward.

use std::time::Instant;

use bytes::Buf;

use crate::decide::policy::{Bias, Defaults};
use crate::decide::{Guard, Refusal};
use crate::decode::{Body, Framing, Method, RequestHead, ResponseHead, Version, a2a, parse_request};
use crate::forward::answer::{Answered, Asked, Begun, Relay};
use crate::forward::channel::Open;
use crate::forward::reframe::Stream;
use crate::forward::refuse::Refused;
use crate::forward::request::{Reading, read};
use crate::forward::{End, refuse};
use crate::judge::{Asking, Carrier, Judged, Replaced, judge_unread, refuse_bytes};
use crate::ledger::Phase;
use crate::record::metrics::Class;

use super::sending::{Progress, Request, give_back, with_content};
use super::{Connection, Spoke, between};

/// Memory for the head of a request that a connection keeps while it is idle.
const KEPT_HEAD: usize = 4096;

impl Connection {
    /// HTTP/1.1: one exchange after the other until one side closes.
    pub(super) async fn http(&mut self) -> Result<End, End> {
        match self.exchanges().await {
            Err(End::Full(full)) if self.begun == Begun::Nothing => {
                self.refuse_bytes("503 Service Unavailable", Guard::Full(full)).await?;
                Err(End::Full(full))
            }
            result => result,
        }
    }

    async fn exchanges(&mut self) -> Result<End, End> {
        if self.class.is_none() {
            self.classify(Class::Http);
        }
        loop {
            let answered = if self.channel.is_some() {
                self.go_on().await?
            } else {
                self.rest();
                let (head, since) = self.next_head().await?;
                self.exchange(&head, since).await?
            };
            match answered {
                Answered::KeepAlive => {}
                Answered::ServerCloses => return Ok(End::ServerClosed),
                Answered::AgentCloses => return Ok(End::AgentClosed),
                Answered::Early => {
                    self.agent.linger().await;
                    return Ok(End::ServerClosed);
                }
                Answered::Tunnel => return Ok(self.tunnel_to()),
                Answered::Upgraded => {
                    self.classify(Class::Opaque);
                    return self.tunnel().await;
                }
            }
        }
    }

    /// Between two exchanges nothing is in progress and no memory is held.
    fn rest(&mut self) {
        self.begun = Begun::Nothing;
        self.stream = Stream::default();
        self.progress = Progress::default();
        self.posting = None;
        self.conn.end();
        give_back(&mut self.agent.reader);
        if self.request.capacity() > KEPT_HEAD {
            self.request = Vec::new();
        }
        match &mut self.server {
            // Bytes that answer no question must not become the answer to the next one.
            Some(server) if !server.reader.buffer.is_empty() => self.leave_server(),
            Some(server) => give_back(&mut server.reader),
            None => {}
        }
    }

    /// Has done with the server's connection; another is made when it is needed.
    pub(super) fn leave_server(&mut self) {
        self.to_server += self.server.take().map_or(0, |server| server.writer.written());
    }

    /// Waits for the head of the next request, and notes when its first byte was there.
    async fn next_head(&mut self) -> Result<(RequestHead, Instant), End> {
        let mut since = Instant::now();
        loop {
            let limit = self.parts.limits.header;
            match parse_request(&self.agent.reader.buffer, limit) {
                Ok(Some(head)) => return Ok((head, since)),
                Ok(None) => {}
                Err(malformed) => {
                    self.refuse_bytes("400 Bad Request", Guard::Undecodable(malformed.label())).await?;
                    return Err(End::Malformed(malformed));
                }
            }
            let first = self.agent.reader.buffer.is_empty();
            match between(&mut self.agent.reader, self.server.as_mut()).await? {
                Spoke::Agent if first => since = Instant::now(),
                Spoke::Agent => {}
                // An answer to no question, such as a timeout's.
                Spoke::Server => return Err(End::ServerClosed),
            }
        }
    }

    /// One request and its answer.
    async fn exchange(&mut self, head: &RequestHead, since: Instant) -> Result<Answered, End> {
        self.refuse_deeper(head).await?;
        let limits = self.parts.limits;
        let (len, judged) = match read(&mut self.agent, head, &limits, &mut self.progress.continued).await {
            Ok(Reading::Whole { len, content }) => {
                // An agent that wants one answer gets its end too, whoever answers.
                self.progress.unsent = head.keep_alive.then_some(len);
                let bytes = &self.agent.reader.buffer[..head.len];
                self.posting = self.conn.identity.agent.channels.of(&self.conn, &self.netns, head, bytes);
                (Some(len), self.judge(head, &content, since).await)
            }
            // Its server may not look at the content.
            Ok(Reading::Head) if head.operation.is_some() => {
                let guard = Guard::Undecodable("operation_content");
                self.unreadable(guard, |defaults| defaults.undecodable, "415 Unsupported Media Type").await?;
                (None, self.judge_unread(head, since).await)
            }
            Ok(Reading::Head) => (None, self.judge_unread(head, since).await),
            Ok(Reading::Oversized) => {
                let guard = Guard::Oversized { limit: limits.message };
                self.unreadable(guard, |defaults| defaults.oversized, "413 Content Too Large").await?;
                (None, self.judge_unread(head, since).await)
            }
            Ok(Reading::Unreadable(label)) => {
                let guard = Guard::Undecodable(label);
                self.unreadable(guard, |defaults| defaults.undecodable, "415 Unsupported Media Type").await?;
                (None, self.judge_unread(head, since).await)
            }
            Err(End::Malformed(malformed)) => {
                self.refuse_bytes("400 Bad Request", Guard::Undecodable(malformed.label())).await?;
                return Err(End::Malformed(malformed));
            }
            Err(end) => return Err(end),
        };
        if self.conn.is_mcp() {
            self.classify(Class::Mcp);
        } else if self.conn.is_a2a() {
            self.classify(Class::A2a);
        }
        match judged {
            Judged::Allowed { has_calls, batch, replaced } => {
                self.dial().await?;
                self.forward(head, len, (has_calls, batch), replaced).await
            }
            Judged::Refused { calls, batch } => self.refuse(head, len, &calls, batch).await,
            // `judge` has asked until there was nothing left to ask.
            Judged::Asks(_) | Judged::Waits(_) => Err(End::Refused),
            Judged::RefusedUnread { refusal, decision } => {
                self.conn.end();
                let ours = matches!(refusal, Refusal::Stop(_) | Refusal::Rule { .. } | Refusal::Limit { .. });
                let status = if ours { "403 Forbidden" } else { "400 Bad Request" };
                self.agent
                    .writer
                    .send(&refuse::plain(status, &refusal, &decision))
                    .await
                    .map_err(End::agent)?;
                Err(End::Refused)
            }
        }
    }

    async fn judge_unread(&mut self, head: &RequestHead, since: Instant) -> Judged {
        let carrier = Carrier::Http(head, &self.agent.reader.buffer[..head.len]);
        let asking = Asking { carrier, since, channel: None };
        judge_unread(&self.parts, &self.conn, &mut self.target, &asking, None).await
    }

    /// Answers a refused request; none of its bytes has left.
    async fn refuse(
        &mut self,
        head: &RequestHead,
        len: Option<usize>,
        refused: &[Refused],
        batch: bool,
    ) -> Result<Answered, End> {
        self.conn.end();
        let keep = head.keep_alive && len.is_some();
        let answer = match (self.begun, &self.posting) {
            // It was told that it has to wait.
            (Begun::Stream, _) => self.stream.ending_with(refused),
            (_, Some(channel)) if channel.say(&refuse::responses(refused)).await => {
                refuse::http(&[], false, !keep)
            }
            _ => refuse::http(refused, batch, !keep),
        };
        self.agent.writer.send(&answer).await.map_err(End::agent)?;
        self.agent.reader.buffer.advance(len.unwrap_or(0));
        if keep { Ok(Answered::KeepAlive) } else { Err(End::Refused) }
    }

    /// Applies a default to a request that cannot be read.
    async fn unreadable(
        &mut self,
        guard: Guard,
        bias: impl Fn(&Defaults) -> Bias,
        status: &str,
    ) -> Result<(), End> {
        if bias(&self.parts.defaults_of(&self.conn)) == Bias::Allow {
            return Ok(());
        }
        self.refuse_bytes(status, guard).await?;
        Err(End::Refused)
    }

    /// Records and answers a refusal that belongs to no call.
    pub(super) async fn refuse_bytes(&mut self, status: &str, guard: Guard) -> Result<(), End> {
        let (refusal, decision) = refuse_bytes(&self.parts, &self.conn, guard, "http").await;
        self.agent.writer.send(&refuse::plain(status, &refusal, &decision)).await.map_err(End::agent)
    }

    /// Sends an allowed request and relays its answer. `len` is `None` while the body is still on its way.
    async fn forward(
        &mut self,
        head: &RequestHead,
        len: Option<usize>,
        (has_calls, batch): (bool, bool),
        replaced: Option<Replaced>,
    ) -> Result<Answered, End> {
        self.batch = batch;
        self.request.clear();
        self.request.extend_from_slice(&self.agent.reader.buffer[..head.len]);
        let asked = Asked {
            method: head.method,
            has_calls,
            continued: self.progress.continued,
            keep_alive: head.keep_alive,
            chunked: head.version == Version::Http11,
            may_tunnel: head.upgrade || head.method == Method::Connect,
            opened: self.begun == Begun::Stream,
            is_operation: head.operation.is_some(),
            card: head.method == Method::Get && a2a::is_card(head.target.of(&self.request)),
        };
        self.conn.set_phase(if has_calls { Phase::Sending } else { Phase::Open });
        let replaced = replaced.filter(|_| len.is_some());
        // Of the content as it came no more is needed.
        let edited = replaced.as_ref().map_or(0, |replaced| replaced.head.len() + replaced.content.len());
        self.agent.reader.made(edited).map_err(End::agent)?;
        let request = Request {
            ready: len.unwrap_or(head.len),
            replaced: replaced.map(|replaced| with_content(&replaced.head, &replaced.content)),
            rest: Body::new(if len.is_some() { Framing::Empty } else { head.framing }),
            has_calls,
        };
        self.relay(request, asked, Instant::now(), None).await
    }

    /// Goes on with a stream that a stop has left open.
    async fn go_on(&mut self) -> Result<Answered, End> {
        let Some(Open { head, asked, since, .. }) = &self.channel else { return Err(End::ServerClosed) };
        let (head, asked, since) = (head.clone(), *asked, *since);
        // The request has left long ago.
        let request = Request { ready: 0, replaced: None, rest: Body::new(Framing::Empty), has_calls: false };
        self.relay(request, asked, since, Some(&head)).await
    }

    /// Sends a request and relays its answer, or the rest of a stream whose head it has.
    async fn relay(
        &mut self,
        request: Request,
        asked: Asked,
        since: Instant,
        begun: Option<&ResponseHead>,
    ) -> Result<Answered, End> {
        let Some(server) = &mut self.server else { return Err(End::ServerClosed) };
        let relay = Relay {
            parts: &self.parts,
            conn: &self.conn,
            server: &mut server.reader,
            agent: &mut self.agent.writer,
            begun: &mut self.begun,
            stream: &mut self.stream,
            target: &mut self.target,
            asked,
            request: &self.request,
            netns: &self.netns,
            since,
            class: &mut self.class,
            channel: &mut self.channel,
            is_fresh: begun.is_none(),
            posting: self.posting.as_ref(),
        };
        let answering = async {
            match begun {
                Some(head) => relay.go_on_with(head).await,
                None => relay.run().await,
            }
        };
        let sending = request.send(
            &self.parts.gate,
            &self.conn,
            &mut self.agent.reader,
            &mut server.writer,
            &mut self.progress,
        );
        // The answer is read from the start: it may come before the request has ended.
        let result = tokio::select! {
            biased;
            end = sending => Err(end),
            result = answering => result,
        };
        // Nothing more is read of it.
        self.channel = None;
        match result {
            Err(End::ServerClosed) if self.progress.agent_ended => Err(End::AgentClosed),
            Ok(answered @ (Answered::Tunnel | Answered::Upgraded)) => Ok(answered),
            // An early answer leaves a body that nobody will read.
            Ok(_) if !self.progress.sent => Ok(Answered::Early),
            result => result,
        }
    }
}
