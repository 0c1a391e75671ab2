//! One agent connection, from accept to record. Read this first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_abi::Origin;
use bytes::Buf;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::decide::policy::Bias;
use crate::decide::stop::{Level, Stop};
use crate::decide::{Guard, Refusal};
use crate::decode::{Body, Framing, RequestHead, Sniff, parse_request, sniff};
use crate::forward::answer::{Answered, Asked, Begun, Relay, Seam};
use crate::forward::dial::dial;
use crate::forward::evidence::Evidence;
use crate::forward::refuse::Refused;
use crate::forward::request::{Content, Reading, read};
use crate::forward::side::{Reader, Side, Writer};
use crate::forward::tunnel::tunnel;
use crate::forward::{End, refuse};
use crate::identity::Identity;
use crate::judge::{Judged, Target, judge, judge_unread};
use crate::kernel::netns::Netns;
use crate::ledger::{Conn, Fate, Phase};
use crate::parts::Parts;
use crate::record::entry::{self, Entry};
use crate::record::metrics::Class;

/// Bytes that an agent may send ahead while an answer is on its way.
const READ_AHEAD: usize = 64 * 1024;
/// How long an agent that is stopped may take to accept the answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(100);

/// Carries one connection of an agent until it ends, and records it.
pub async fn run(stream: TcpStream, origin: Origin, netns: Arc<Netns>, parts: Arc<Parts>) {
    let Some(agent) = parts.agents.by_number(origin.agent) else { return };
    let identity = Identity::resolve(agent, &origin);
    let listed = parts.ledger.open(identity, entry::address(origin.addr, origin.port));
    let conn = Arc::clone(listed.conn());
    let mut connection = Connection::new(stream, netns, Arc::clone(&parts), Arc::clone(&conn));
    let end = loop {
        tokio::select! {
            biased;
            (stop, generation) = stopped(&parts, &conn) => {
                if let Some(end) = connection.stop(&stop, generation).await {
                    break end;
                }
            }
            end = connection.serve() => break end,
        }
    };
    connection.close(end);
}

/// Waits for a stop that ends what this connection is doing. Between messages a `refuse` stop ends nothing: the
/// next message runs into it. An answer that was decided before the stop may arrive.
async fn stopped(parts: &Parts, conn: &Conn) -> (Arc<Stop>, u64) {
    loop {
        conn.wake.notified().await;
        let rules = parts.gate.rules();
        let concerned = rules.stop_for(&conn.identity.agent.name).filter(|stop| {
            stop.level > Level::Refuse || !matches!(conn.phase(), Phase::Idle | Phase::Answering)
        });
        if let Some(stop) = concerned {
            return (Arc::clone(stop), rules.generation);
        }
        parts.ledger.acted(conn, rules.generation);
    }
}

struct Connection {
    parts: Arc<Parts>,
    conn: Arc<Conn>,
    netns: Arc<Netns>,
    agent: Side,
    /// Dialed at the start, or before the first message that may go there.
    server: Option<Side>,
    target: Target,
    /// How far the answer in progress has begun.
    begun: Begun,
    /// The calls in flight came as a batch.
    batch: bool,
    /// Head of the request in progress; a stop may have to repeat its headers.
    request: Vec<u8>,
    /// Bytes of the request in progress that are still in the agent's buffer; `None` while more are to come.
    unsent: Option<usize>,
    class: Option<Class>,
    /// Bytes sent to servers that this connection has done with.
    to_server: u64,
    opened: Instant,
    end: Option<End>,
}

impl Connection {
    fn new(stream: TcpStream, netns: Arc<Netns>, parts: Arc<Parts>, conn: Arc<Conn>) -> Connection {
        Connection {
            parts,
            conn,
            netns,
            agent: Side::new(stream),
            server: None,
            target: Target::default(),
            begun: Begun::Nothing,
            batch: false,
            request: Vec::new(),
            unsent: None,
            class: None,
            to_server: 0,
            opened: Instant::now(),
            end: None,
        }
    }

    /// Everything that happens on the connection, unless a stop comes first; and what happens after one that has
    /// left the agent's side in order.
    async fn serve(&mut self) -> End {
        let result = async {
            if matches!(self.class, Some(Class::Http | Class::Mcp)) {
                return self.http().await;
            }
            // A stopped agent gets its answer from us alone.
            if self.stop_in_force().is_none() {
                self.dial().await?;
            }
            match self.first_bytes().await? {
                Sniff::Http1 => self.http().await,
                Sniff::Tls => self.opaque(Class::Tls).await,
                Sniff::Http2Preface | Sniff::Opaque | Sniff::NeedMore => self.opaque(Class::Opaque).await,
            }
        };
        result.await.unwrap_or_else(|end| end)
    }

    fn stop_in_force(&self) -> Option<Refusal> {
        let rules = self.parts.gate.rules();
        rules.stop_for(&self.conn.identity.agent.name).map(|stop| Refusal::Stop(Arc::clone(stop)))
    }

    async fn dial(&mut self) -> Result<(), End> {
        if self.server.is_none() {
            let stream = dial(&self.netns, self.conn.destination).await.map_err(End::Unreachable)?;
            self.server = Some(Side::new(stream));
        }
        Ok(())
    }

    /// Waits until the agent's bytes tell what it speaks. A server that speaks first is not HTTP.
    async fn first_bytes(&mut self) -> Result<Sniff, End> {
        loop {
            match sniff(&self.agent.reader.buffer) {
                Sniff::NeedMore => {}
                known => return Ok(known),
            }
            match between(&mut self.agent.reader, self.server.as_mut()).await? {
                Spoke::Agent => {}
                Spoke::Server => return Ok(Sniff::Opaque),
            }
        }
    }

    /// Copies what cannot be read, where that is allowed.
    async fn opaque(&mut self, class: Class) -> Result<End, End> {
        self.classify(class);
        // Listed before the stop is looked for, as with calls.
        self.conn.set_phase(Phase::Open);
        let denied = self.parts.gate.rules().policy.defaults.opaque == Bias::Deny;
        let refusal = self.stop_in_force().or(denied.then(|| Refusal::Guard(Guard::Opaque)));
        if let Some(refusal) = refusal {
            self.count_refusal(&refusal, class.label());
            return Err(End::Refused);
        }
        self.dial().await?;
        self.tunnel().await
    }

    async fn tunnel(&mut self) -> Result<End, End> {
        self.conn.set_phase(Phase::Open);
        self.begun = Begun::Partial;
        match self.server.as_mut() {
            Some(server) => Ok(tunnel(&mut self.agent, server).await),
            None => Err(End::ServerClosed),
        }
    }

    /// HTTP/1.1: one exchange after the other until one side closes.
    async fn http(&mut self) -> Result<End, End> {
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

    fn count_refusal(&self, refusal: &Refusal, method: &str) -> String {
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

    fn classify(&mut self, class: Class) {
        match self.class.replace(class) {
            None => self.parts.metrics.connection_opened(class),
            Some(before) if before != class => self.parts.metrics.connection_changed(before, class),
            Some(_) => {}
        }
    }

    /// A stop ends what is in flight: fates are filed, pending ids answered in their protocol, streams ended. Returns
    /// `None` where the agent's side is in order and may go on, to have its next message refused.
    async fn stop(&mut self, stop: &Arc<Stop>, generation: u64) -> Option<End> {
        let (phase, calls) = self.conn.stop();
        let fate = phase.fate();
        let follows = fate == Fate::Sent && self.server.is_some();
        self.parts.book.file(stop, &self.conn, &calls, fate, follows);
        let refusal = Refusal::Stop(Arc::clone(stop));
        let goes_on = stop.level == Level::Refuse
            && match self.begun {
                Begun::Nothing => !calls.is_empty(),
                Begun::Stream(seam) => seam != Seam::Close,
                Begun::Partial => false,
            };
        let unsent = self.unsent.filter(|_| goes_on);
        let close = unsent.is_none();
        let answer = match self.begun {
            Begun::Nothing if !calls.is_empty() => {
                Some(refuse::http(&Refused::all(&calls, &refusal), self.batch, close))
            }
            Begun::Nothing if phase == Phase::Open => Some(refuse::plain("403 Forbidden", &refusal, "")),
            begun => begun.ending(&calls, &refusal),
        };
        let answered = match answer {
            Some(answer) => {
                let agent = &mut self.agent.writer;
                // An agent that does not read learns nothing; it is cut all the same.
                let answered = timeout(ANSWER_WITHIN, async {
                    agent.send(&answer).await?;
                    if close { agent.finish().await } else { Ok(()) }
                });
                matches!(answered.await, Ok(Ok(())))
            }
            None => false,
        };
        if !answered {
            self.agent.reset_on_close();
        }
        if let Some(server) = self.server.take() {
            self.to_server += server.writer.written();
            if follows && !calls.is_empty() {
                let evidence = Evidence {
                    parts: Arc::clone(&self.parts),
                    conn: Arc::clone(&self.conn),
                    netns: Arc::clone(&self.netns),
                    stop: Arc::clone(stop),
                    calls,
                    server,
                    begun: self.begun,
                    request: std::mem::take(&mut self.request),
                };
                tokio::spawn(evidence.follow());
            } else {
                server.reset_on_close();
            }
        }
        self.parts.ledger.acted(&self.conn, generation);
        match unsent.filter(|_| answered) {
            Some(unsent) => {
                self.agent.reader.buffer.advance(unsent);
                None
            }
            None => Some(End::Stopped),
        }
    }

    /// Notes why the connection ends; dropping it makes the record.
    fn close(mut self, end: End) {
        if matches!(end, End::Unreachable(_) | End::Network(_) | End::Refused) && self.begun == Begun::Nothing
        {
            // The agent must not take this for an orderly answer.
            if !matches!(end, End::Refused) || self.class != Some(Class::Http) {
                self.agent.reset_on_close();
            }
        }
        self.end = Some(end);
    }
}

impl Drop for Connection {
    /// Exactly one record and one count per connection, however it ends.
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or(End::Drain);
        let agent = &self.conn.identity.agent;
        let to_server = self.to_server + self.server.as_ref().map_or(0, |server| server.writer.written());
        let to_agent = self.agent.writer.written();
        agent.metrics.bytes_to_server.inc_by(to_server);
        agent.metrics.bytes_to_agent.inc_by(to_agent);
        let class = match self.class {
            Some(class) => {
                self.parts.metrics.connection_closed(&agent.name, class);
                class
            }
            None => {
                self.parts.metrics.connection_refused(&agent.name);
                Class::Refused
            }
        };
        for call in self.conn.end() {
            self.parts.log.record(&Entry::Result(entry::CallResult {
                conn: self.conn.id,
                agent: &agent.name,
                call: &call,
                outcome: "none",
                cause: Some(end.label()),
                status: None,
                bytes: 0,
                took_us: 0,
            }));
        }
        self.parts.log.record(&Entry::Connection(entry::Connection {
            conn: self.conn.id,
            who: (&self.conn.identity).into(),
            destination: self.conn.destination,
            class: class.label(),
            cause: end.label(),
            error: end.detail(),
            bytes_to_server: to_server,
            bytes_to_agent: to_agent,
            lasted_ms: u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX),
        }));
    }
}

enum Spoke {
    Agent,
    Server,
}

/// Waits for bytes of either side between messages. A closed side ends the wait.
async fn between(agent: &mut Reader, server: Option<&mut Side>) -> Result<Spoke, End> {
    let Some(server) = server else {
        return match agent.fill().await.map_err(End::agent)? {
            0 => Err(End::AgentClosed),
            _ => Ok(Spoke::Agent),
        };
    };
    tokio::select! {
        biased;
        read = agent.fill() => match read.map_err(End::agent)? {
            0 => Err(End::AgentClosed),
            _ => Ok(Spoke::Agent),
        },
        read = server.reader.fill() => match read.map_err(End::server)? {
            0 => Err(End::ServerClosed),
            _ => Ok(Spoke::Server),
        },
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
