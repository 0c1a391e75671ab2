//! One HTTP request and its answer: read, judge, refuse or forward.

use std::io;
use std::time::Instant;

use bytes::Buf;
use tokio::task::yield_now;

use crate::decide::policy::{Bias, Defaults};
use crate::decide::{Guard, Refusal};
use crate::decode::{
    Body, Framing, Method, RequestHead, ResponseHead, Version, a2a, parse_request, rewrite_head,
};
use crate::forward::answer::{Answered, Asked, Begun, Relay};
use crate::forward::channel::Open;
use crate::forward::reframe::Stream;
use crate::forward::refuse::Refused;
use crate::forward::request::{Reading, read};
use crate::forward::side::{Reader, Writer};
use crate::forward::{End, refuse};
use crate::gate::Gate;
use crate::judge::{Asking, Judged, Replaced, judge_unread, refuse_bytes};
use crate::ledger::{Conn, Phase};
use crate::record::metrics::Class;

use super::{Connection, Spoke, between};

/// Bytes that an agent may send ahead while an answer is on its way.
const READ_AHEAD: usize = 64 * 1024;
/// Memory for the head of a request that a connection keeps while it is idle.
const KEPT_HEAD: usize = 4096;

/// How far the sending of a request has come; kept where a stop finds it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes of the request that are still in the agent's buffer; `None` while more of it are to come, and where the agent's
    /// side ends with the answer.
    pub(super) unsent: Option<usize>,
    /// All of it has left.
    sent: bool,
    /// The agent has closed its side.
    agent_ended: bool,
}

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
                Answered::Tunnel => {
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
        let limits = self.parts.limits;
        let (len, judged) = match read(&mut self.agent, head, &limits).await {
            Ok(Reading::Whole { len, content }) => {
                // An agent that wants one answer gets its end too, whoever answers.
                self.progress.unsent = head.keep_alive.then_some(len);
                let bytes = &self.agent.reader.buffer[..head.len];
                self.posting = self.conn.identity.agent.channels.of(&self.conn, &self.netns, head, bytes);
                (Some(len), self.judge(head, &content, since).await)
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
        let asking = Asking { head, bytes: &self.agent.reader.buffer[..head.len], since, channel: None };
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
            (_, Some(channel)) if channel.say(refuse::events(refused)).await => {
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
    async fn refuse_bytes(&mut self, status: &str, guard: Guard) -> Result<(), End> {
        let (refusal, decision) = refuse_bytes(&self.parts, &self.conn, guard).await;
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
            continued: head.expect_continue && len.is_some(),
            keep_alive: head.keep_alive,
            chunked: head.version == Version::Http11,
            may_tunnel: head.upgrade || head.method == Method::Connect,
            opened: self.begun == Begun::Stream,
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
            // An early answer leaves a body that nobody will read.
            Ok(answered) if answered != Answered::Tunnel && !self.progress.sent => Ok(Answered::Early),
            result => result,
        }
    }
}

fn give_back(reader: &mut Reader) {
    // Nothing is always within the bounds.
    let _ = reader.made(0);
    reader.rest();
}

/// A request with this head and another content.
fn with_content(head: &[u8], content: &[u8]) -> Vec<u8> {
    [&rewrite_head(head, Framing::Length(content.len() as u64)), content].concat()
}

/// An allowed request on its way out.
struct Request {
    /// Bytes at the start of the agent's buffer that may leave at once.
    ready: usize,
    /// What leaves in their place, if the request was edited.
    replaced: Option<Vec<u8>>,
    /// What is still to come from the agent.
    rest: Body,
    has_calls: bool,
}

impl Request {
    /// Sends the request, then watches the agent while the answer is on its way. Returns only when the exchange cannot
    /// go on.
    async fn send(
        mut self,
        gate: &Gate,
        conn: &Conn,
        agent: &mut Reader,
        server: &mut Writer,
        progress: &mut Progress,
    ) -> End {
        let delivered = self.deliver(agent, server, progress).await;
        match delivered {
            Ok(()) => {}
            // A server that takes no more may have answered already: its answer is read to the end.
            Err(Undelivered::Server) => return std::future::pending().await,
            Err(Undelivered::Agent(end)) => return end,
        }
        progress.sent = true;
        if self.has_calls {
            conn.set_phase(Phase::Sent);
            while !gate.hand_over(conn) {
                // The stop that it meets is on its way here, unless it is released again.
                yield_now().await;
            }
        }
        // What comes now is the next request, or the news that the agent is gone.
        while agent.buffer.len() < READ_AHEAD {
            match agent.fill().await {
                Ok(0) => {
                    progress.agent_ended = true;
                    conn.mark_agent_left();
                    // The server must learn of it: for MCP 2026-07-28 it is the cancel. If it is gone, its answer's end tells.
                    let _ = server.finish().await;
                    break;
                }
                Ok(_) => {}
                // The next one can wait.
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => break,
                Err(error) => return End::agent(error),
            }
        }
        std::future::pending().await
    }

    async fn deliver(
        &mut self,
        agent: &mut Reader,
        server: &mut Writer,
        progress: &mut Progress,
    ) -> Result<(), Undelivered> {
        let ready = self.replaced.as_deref().unwrap_or(&agent.buffer[..self.ready]);
        server.send(ready).await.map_err(|_| Undelivered::Server)?;
        self.replaced = None;
        agent.buffer.advance(self.ready);
        give_back(agent);
        progress.unsent = progress.unsent.map(|_| 0);
        let mut body = self.rest.clone();
        while !body.is_done() {
            let mut at = 0;
            while at < agent.buffer.len() && !body.is_done() {
                let step = body.advance(&agent.buffer[at..]);
                at += step.map_err(|malformed| Undelivered::Agent(End::Malformed(malformed)))?.consumed;
            }
            server.send(&agent.buffer[..at]).await.map_err(|_| Undelivered::Server)?;
            agent.buffer.advance(at);
            if !body.is_done() {
                let read = agent.fill().await.map_err(|error| Undelivered::Agent(End::agent(error)))?;
                if read == 0 {
                    return Err(Undelivered::Agent(End::AgentClosed));
                }
            }
        }
        Ok(())
    }
}

/// Why a request did not leave whole.
enum Undelivered {
    /// The server takes no more of it.
    Server,
    /// The agent sends no more of it.
    Agent(End),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;
    use crate::forward::side::{Keepalive, Side};
    use crate::room::Share;

    const ASKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n[1,2,3]";
    const NEXT: &[u8] = b"GET / HTTP/1.1\r\n";

    async fn pair() -> (Side, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (Side::new(near.unwrap(), Share::default(), Keepalive::default()), far.unwrap().0)
    }

    /// An agent that has sent the request and the beginning of the next one, and its request edited to another content.
    async fn edited(content: &[u8]) -> (Side, TcpStream, Request, Progress) {
        let (mut agent, far) = pair().await;
        agent.reader.buffer.extend_from_slice(ASKED.as_bytes());
        agent.reader.buffer.extend_from_slice(NEXT);
        let head = &ASKED.as_bytes()[..ASKED.len() - "[1,2,3]".len()];
        let request = Request {
            ready: ASKED.len(),
            replaced: Some(with_content(head, content)),
            rest: Body::new(Framing::Empty),
            has_calls: true,
        };
        (agent, far, request, Progress { unsent: Some(ASKED.len()), ..Progress::default() })
    }

    #[tokio::test]
    async fn an_edited_request_leaves_in_place_of_the_agents() {
        let (mut agent, _far, mut request, mut progress) = edited(b"[1]").await;
        let (mut server, mut far) = pair().await;
        let delivered = request.deliver(&mut agent.reader, &mut server.writer, &mut progress).await;
        assert!(delivered.is_ok());
        server.writer.finish().await.unwrap();
        let mut seen = String::new();
        far.read_to_string(&mut seen).await.unwrap();
        assert_eq!(seen, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n[1]");
        assert_eq!(agent.reader.buffer, NEXT, "what follows is the next request");
        assert_eq!(progress.unsent, Some(0));
    }

    #[tokio::test]
    async fn an_edited_request_that_is_cut_short_leaves_the_agents_whole() {
        let (mut agent, _far, mut request, mut progress) = edited(&vec![b' '; 64 << 20]).await;
        let (mut server, _deaf) = pair().await;
        let sending = request.deliver(&mut agent.reader, &mut server.writer, &mut progress);
        assert!(timeout(Duration::from_millis(100), sending).await.is_err(), "nobody reads it");
        assert!(server.writer.written() > ASKED.len() as u64);
        assert_eq!(progress.unsent, Some(ASKED.len()), "this much is skipped to come to the next request");
        assert_eq!(&agent.reader.buffer[ASKED.len()..], NEXT);
    }
}
