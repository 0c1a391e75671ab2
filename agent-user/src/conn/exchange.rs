//! One HTTP request and its answer: read, judge, refuse or forward.

use std::time::Instant;

use bytes::Buf;

use crate::decide::policy::Bias;
use crate::decide::{Guard, Refusal};
use crate::decode::{Body, Framing, RequestHead, parse_request};
use crate::forward::answer::{Answered, Asked, Begun, Relay};
use crate::forward::refuse::Refused;
use crate::forward::request::{Content, Reading, read};
use crate::forward::side::{Reader, Writer};
use crate::forward::{End, refuse};
use crate::judge::{Judged, judge, judge_unread};
use crate::ledger::Phase;
use crate::record::metrics::Class;

use super::{Connection, Spoke, between};

/// Bytes that an agent may send ahead while an answer is on its way.
const READ_AHEAD: usize = 64 * 1024;

impl Connection {
    /// HTTP/1.1: one exchange after the other until one side closes.
    pub(super) async fn http(&mut self) -> Result<End, End> {
        if self.class.is_none() {
            self.classify(Class::Http);
        }
        loop {
            self.begun = Begun::Nothing;
            self.unsent = None;
            self.conn.end();
            self.agent.reader.rest();
            if let Some(server) = &mut self.server {
                server.reader.rest();
            }
            let (head, since) = self.next_head().await?;
            match self.exchange(&head, since).await? {
                Answered::KeepAlive => {}
                Answered::Close => return Ok(End::ServerClosed),
                Answered::Tunnel => return self.tunnel().await,
            }
        }
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
                    let refusal = Refusal::Guard(Guard::Undecodable(malformed.label()));
                    self.answer_plain("400 Bad Request", &refusal, "http").await?;
                    return Err(End::Malformed(malformed));
                }
            }
            let first = self.agent.reader.buffer.is_empty();
            match between(&mut self.agent.reader, self.server.as_mut()).await? {
                Spoke::Agent if first => since = Instant::now(),
                Spoke::Agent => {}
                // An answer to no question: whatever it is, it must not become the answer to the next one.
                Spoke::Server => return Err(End::ServerClosed),
            }
        }
    }

    /// One request and its answer.
    async fn exchange(&mut self, head: &RequestHead, since: Instant) -> Result<Answered, End> {
        let limits = self.parts.limits;
        let (len, judged) = match read(&mut self.agent, head, &limits).await {
            Ok(Reading::Whole { len, content }) => {
                self.unsent = Some(len);
                (Some(len), self.judge(head, &content, since).await)
            }
            Ok(Reading::Head) => (None, judge_unread(&self.parts, &self.conn)),
            Ok(Reading::Oversized) => {
                let guard = Guard::Oversized { limit: limits.message };
                self.unreadable(guard, |defaults| defaults.oversized, "413 Content Too Large").await?;
                (None, judge_unread(&self.parts, &self.conn))
            }
            Ok(Reading::Coded) => {
                let guard = Guard::Undecodable("content_coding");
                self.unreadable(guard, |defaults| defaults.undecodable, "415 Unsupported Media Type").await?;
                (None, judge_unread(&self.parts, &self.conn))
            }
            Err(End::Malformed(malformed)) => {
                let refusal = Refusal::Guard(Guard::Undecodable(malformed.label()));
                self.answer_plain("400 Bad Request", &refusal, "http").await?;
                return Err(End::Malformed(malformed));
            }
            Err(end) => return Err(end),
        };
        if self.conn.is_mcp() {
            self.classify(Class::Mcp);
        }
        if let Some((refusal, refused)) = &judged.refused {
            return self.refuse(head, len, refusal, refused, judged.batch).await;
        }
        self.dial().await?;
        self.forward(head, len, &judged).await
    }

    async fn judge(&mut self, head: &RequestHead, content: &Content, since: Instant) -> Judged {
        let buffer = &self.agent.reader.buffer;
        let (bytes, content) = (&buffer[..head.len], content.of(buffer));
        judge(&self.parts, &self.conn, &mut self.target, head, bytes, content, since).await
    }

    /// Answers a refused request; none of its bytes has left.
    async fn refuse(
        &mut self,
        head: &RequestHead,
        len: Option<usize>,
        refusal: &Refusal,
        refused: &[Refused],
        batch: bool,
    ) -> Result<Answered, End> {
        self.conn.end();
        if refused.is_empty() {
            let status = if refusal.stop_id().is_some() { "403 Forbidden" } else { "400 Bad Request" };
            self.answer_plain(status, refusal, "http").await?;
            return Ok(Answered::Close);
        }
        let keep = head.keep_alive && len.is_some();
        self.agent.writer.send(&refuse::http(refused, batch, !keep)).await.map_err(End::agent)?;
        self.agent.reader.buffer.advance(len.unwrap_or(0));
        Ok(if keep { Answered::KeepAlive } else { Answered::Close })
    }

    /// Applies a default to a request that cannot be read.
    async fn unreadable(
        &mut self,
        guard: Guard,
        bias: impl Fn(&crate::decide::policy::Defaults) -> Bias,
        status: &str,
    ) -> Result<(), End> {
        if bias(&self.parts.gate.rules().policy.defaults) == Bias::Allow {
            return Ok(());
        }
        self.answer_plain(status, &Refusal::Guard(guard), "http").await?;
        Err(End::Refused)
    }

    /// Records and answers a refusal that belongs to no call.
    async fn answer_plain(&mut self, status: &str, refusal: &Refusal, method: &str) -> Result<(), End> {
        let decision = self.count_refusal(refusal, method);
        self.agent.writer.send(&refuse::plain(status, refusal, &decision)).await.map_err(End::agent)
    }

    pub(super) fn count_refusal(&self, refusal: &Refusal, method: &str) -> String {
        if refusal.stop_id().is_some() {
            self.conn.identity.agent.metrics.stop_refusals_proxy.inc();
        }
        self.parts.record_guard(&self.conn, method, refusal)
    }

    /// Sends an allowed request and relays its answer. `len` is `None` while the body is still on its way.
    async fn forward(
        &mut self,
        head: &RequestHead,
        len: Option<usize>,
        judged: &Judged,
    ) -> Result<Answered, End> {
        self.batch = judged.batch;
        self.request.clear();
        self.request.extend_from_slice(&self.agent.reader.buffer[..head.len]);
        let Some(server) = &mut self.server else { return Err(End::ServerClosed) };
        let asked = Asked {
            method: head.method,
            has_calls: judged.has_calls,
            continued: head.expect_continue && len.is_some(),
            keep_alive: head.keep_alive,
        };
        let (now, done) = match len {
            Some(len) => (len, true),
            None => (head.len, false),
        };
        self.conn.set_phase(if judged.has_calls { Phase::Sending } else { Phase::Open });
        server.writer.send(&self.agent.reader.buffer[..now]).await.map_err(End::server)?;
        if judged.has_calls {
            self.conn.set_phase(Phase::Sent);
        }
        self.agent.reader.buffer.advance(now);
        self.unsent = len.map(|_| 0);
        if self.agent.reader.buffer.is_empty() {
            self.agent.reader.rest();
        }
        let relay = Relay {
            parts: &self.parts,
            conn: &self.conn,
            server: &mut server.reader,
            agent: &mut self.agent.writer,
            begun: &mut self.begun,
            asked,
            since: Instant::now(),
        };
        let mut agent_ended = false;
        let body = Body::new(if done { Framing::Empty } else { head.framing });
        let ahead = send_rest(body, &mut self.agent.reader, &mut server.writer, &mut agent_ended);
        let result = tokio::select! {
            result = relay.run() => result,
            end = ahead => Err(end),
        };
        match result {
            Err(End::ServerClosed) if agent_ended => Err(End::AgentClosed),
            // Early answers leave a body that nobody will read.
            Ok(Answered::KeepAlive) if !done => Ok(Answered::Close),
            result => result,
        }
    }
}

/// Sends the rest of a request's body, then watches the agent while the answer is on its way. Returns only when the
/// exchange cannot go on.
async fn send_rest(mut body: Body, agent: &mut Reader, server: &mut Writer, agent_ended: &mut bool) -> End {
    let result = async {
        while !body.is_done() {
            let mut at = 0;
            while at < agent.buffer.len() && !body.is_done() {
                at += body.advance(&agent.buffer[at..]).map_err(End::Malformed)?.consumed;
            }
            server.send(&agent.buffer[..at]).await.map_err(End::server)?;
            agent.buffer.advance(at);
            if !body.is_done() && agent.fill().await.map_err(End::agent)? == 0 {
                return Err(End::AgentClosed);
            }
        }
        // What comes now is the next request, or the news that the agent is gone.
        while agent.buffer.len() < READ_AHEAD {
            if agent.fill().await.map_err(End::agent)? == 0 {
                *agent_ended = true;
                // The server must learn of it: for MCP 2026-07-28 it is the cancel.
                return server.finish().await.map_err(End::server);
            }
        }
        Ok(())
    };
    match result.await {
        Ok(()) => std::future::pending().await,
        Err(end) => end,
    }
}
