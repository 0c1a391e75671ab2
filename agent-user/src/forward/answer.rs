//! Relaying what a server answers to one request.
//!
//! The answer to an MCP call is held until it is whole, one JSON body or one event of a stream at a time, so that
//! nothing undecided reaches the agent; [`Inspecting`] decides it. Everything else is copied as it comes. How far the
//! agent's answer has begun is kept where a stop finds it ([`Begun`], [`Stream`]).

use std::sync::Arc;
use std::time::Instant;

use bytes::Buf;

use crate::channels::Channel;
use crate::decide::policy::Bias;
use crate::decide::{Guard, Refusal, Rules};
use crate::decode::{Body, Framing, Media, Method, ResponseHead, a2a, parse_response, rewrite_head};
use crate::forward::End;
use crate::forward::channel::Open;
use crate::forward::hold::{self, Content, Held, Hold};
use crate::forward::inspect::{Edit, Inspecting};
use crate::forward::reframe::Stream;
use crate::forward::side::{Reader, Writer};
use crate::judge::{Target, notice_card};
use crate::kernel::netns::Netns;
use crate::ledger::{Conn, Phase};
use crate::parts::Parts;
use crate::record::metrics::Class;

/// How far the answer to the agent has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begun {
    /// Nothing was sent: a whole answer can still be given.
    #[default]
    Nothing,
    /// A stream of events, between two of them: what its [`Stream`] holds for the agent can be sent, more be added, and the
    /// stream be ended.
    Stream,
    /// Something that cannot be completed by anyone but the server.
    Partial,
}

/// What is known of the request when its answer arrives.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub method: Method,
    /// It carried JSON-RPC requests or notifications.
    pub has_calls: bool,
    /// We have answered `100 Continue` ourselves.
    pub continued: bool,
    /// The agent lets the connection live on.
    pub keep_alive: bool,
    /// The agent reads chunks: it speaks HTTP/1.1.
    pub chunked: bool,
    /// It asked for a protocol other than HTTP, or for a tunnel.
    pub may_tunnel: bool,
    /// The agent has the beginning of a stream already, in which the answer goes on.
    pub opened: bool,
    /// It asked for an operation of A2A's HTTP+JSON binding.
    pub is_operation: bool,
    /// It asked for the agent card of an A2A server.
    pub card: bool,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The connection is good for another request.
    KeepAlive,
    /// The server ends the connection after this answer.
    ServerCloses,
    /// The agent wanted no more than this answer.
    AgentCloses,
    /// The answer has come before the request had left whole; the agent may still be sending it.
    Early,
    /// What follows is not HTTP.
    Upgraded,
    /// What follows is what the agent has to say to a server that it reaches through a proxy.
    Tunnel,
}

/// Everything an answer needs, borrowed from the connection.
#[derive(Debug)]
pub struct Relay<'a> {
    pub parts: &'a Arc<Parts>,
    pub conn: &'a Arc<Conn>,
    pub server: &'a mut Reader,
    pub agent: &'a mut Writer,
    pub begun: &'a mut Begun,
    pub stream: &'a mut Stream,
    /// What can concern an answer of the server.
    pub target: &'a mut Target,
    pub asked: Asked,
    /// The head of the request: a task that the answer begins is cancelled with its headers.
    pub request: &'a [u8],
    pub netns: &'a Arc<Netns>,
    /// When the request was let through.
    pub since: Instant,
    /// What the connection counts as.
    pub class: &'a mut Option<Class>,
    /// It is a stream in which calls of other connections are answered.
    pub channel: &'a mut Option<Open>,
    /// Nothing has come in the stream yet.
    pub is_fresh: bool,
    /// Its calls are answered in such a stream.
    pub posting: Option<&'a Arc<Channel>>,
}

impl Relay<'_> {
    /// Relays one answer from head to end. Where nothing of a broken one has left yet, the agent is told.
    pub async fn run(mut self) -> Result<Answered, End> {
        match self.relay().await {
            Err(End::Malformed(fault)) if *self.begun == Begun::Nothing || self.stream.is_waiting() => {
                Err(self.refuse(&Refusal::Guard(Guard::Undecodable(fault.label())), None).await)
            }
            result => self.or_full(result).await,
        }
    }

    async fn relay(&mut self) -> Result<Answered, End> {
        let head = self.head().await?;
        if head.tunnel {
            return self.open_tunnel(&head).await;
        }
        let is_empty = matches!(head.framing, Framing::Empty | Framing::Length(0));
        self.is_posted(&head, !is_empty && head.media != Media::Other);
        match head.media {
            _ if self.asked.opened => self.go_on(&head).await?,
            _ if is_empty => self.pass(&head).await?,
            _ if self.asked.card && (200..300).contains(&head.status) => self.card(&head).await?,
            Media::EventStream if head.codings.is_identity() || self.is_mcp() => self.stream(&head).await?,
            _ if !self.asked.has_calls => self.pass(&head).await?,
            Media::Json => self.hold(&head).await?,
            _ => self.pass(&head).await?,
        }
        Ok(self.answered(&head))
    }

    pub(super) fn answered(&self, head: &ResponseHead) -> Answered {
        match (head.keep_alive && head.framing != Framing::UntilClose, self.asked.keep_alive) {
            (true, true) => Answered::KeepAlive,
            (false, _) => Answered::ServerCloses,
            (true, false) => Answered::AgentCloses,
        }
    }

    /// What follows is not of this protocol, and the agent has asked for that. In a tunnel it is judged as it comes; what
    /// cannot be read is let through where opaque connections are.
    async fn open_tunnel(&mut self, head: &ResponseHead) -> Result<Answered, End> {
        if !self.asked.may_tunnel {
            let refusal = Refusal::Guard(Guard::Undecodable("unsolicited_upgrade"));
            return Err(self.refuse(&refusal, Some(head.status)).await);
        }
        let is_tunnel = self.asked.method == Method::Connect && head.status != 101;
        if !is_tunnel && self.parts.defaults_of(self.conn).opaque == Bias::Deny {
            return Err(self.refuse(&Refusal::Guard(Guard::Opaque), Some(head.status)).await);
        }
        self.close_calls("none", Some("upgraded"), Some(head.status), 0);
        *self.begun = Begun::Partial;
        self.forward(head.len).await?;
        Ok(if is_tunnel { Answered::Tunnel } else { Answered::Upgraded })
    }

    /// Reads the final head, passing interim ones on (RFC 9110 section 15.2).
    async fn head(&mut self) -> Result<ResponseHead, End> {
        loop {
            let limit = self.parts.limits.header;
            match parse_response(&self.server.buffer, limit, self.asked.method).map_err(End::Malformed)? {
                None => self.more(0).await?,
                Some(head) if head.status < 200 && !head.tunnel => {
                    // The agent has had its 100 from us, or a head already.
                    if head.status == 100 && self.asked.continued || self.asked.opened {
                        self.server.buffer.advance(head.len);
                    } else {
                        *self.begun = Begun::Partial;
                        self.forward(head.len).await?;
                        *self.begun = Begun::Nothing;
                    }
                }
                Some(head) => return Ok(head),
            }
        }
    }

    pub(super) async fn more(&mut self, expected: usize) -> Result<(), End> {
        match self.server.fill_for(expected).await.map_err(End::server)? {
            0 => Err(End::ServerClosed),
            _ => Ok(()),
        }
    }

    /// Sends the first `len` bytes of the server's buffer on.
    pub(super) async fn forward(&mut self, len: usize) -> Result<(), End> {
        self.agent.send(&self.server.buffer[..len]).await.map_err(End::agent)?;
        self.server.buffer.advance(len);
        Ok(())
    }

    /// Copies an answer as it comes.
    pub(super) async fn pass(&mut self, head: &ResponseHead) -> Result<(), End> {
        let outcome = if head.status == 202 { "accepted" } else { "none" };
        let mut body = Body::new(head.framing);
        let (mut at, mut bytes) = (head.len, 0);
        *self.begun = Begun::Partial;
        loop {
            while at < self.server.buffer.len() && !body.is_done() {
                at += body.advance(&self.server.buffer[at..]).map_err(End::Malformed)?.consumed;
            }
            if at > 0 {
                self.forward(at).await?;
                bytes += at;
                at = 0;
            }
            let ended = body.is_done()
                || match self.more(0).await {
                    Err(End::ServerClosed) if head.framing == Framing::UntilClose => true,
                    result => {
                        result?;
                        false
                    }
                };
            if ended {
                self.close_calls(outcome, None, Some(head.status), bytes - head.len);
                return Ok(());
            }
        }
    }

    /// Holds a JSON answer until it is whole and decided.
    async fn hold(&mut self, head: &ResponseHead) -> Result<(), End> {
        let (content, len) = match self.whole(head).await? {
            Ok(whole) => whole,
            Err(guard) => return self.or_refuse(guard, head).await,
        };
        let rules = self.rules();
        let edit = self.edit(&rules, content.of(&self.server.buffer), head.status).await;
        if let Edit::Drop { refusal, .. } = edit {
            return Err(self.refuse(&refusal, Some(head.status)).await);
        }
        // Calls the server left unanswered stay unanswered.
        self.close_calls("none", None, Some(head.status), content.of(&self.server.buffer).len());
        self.conn.set_phase(Phase::Answering);
        *self.begun = Begun::Partial;
        let Edit::Replace(json) = edit else { return self.forward(len).await };
        self.server.made(json.capacity()).map_err(End::server)?;
        let framing = Framing::Length(json.len() as u64);
        let replaced = [rewrite_head(&self.server.buffer[..head.len], framing), json].concat();
        self.agent.send(&replaced).await.map_err(End::agent)?;
        self.server.buffer.advance(len);
        Ok(())
    }

    /// Holds an agent card until it was looked at.
    async fn card(&mut self, head: &ResponseHead) -> Result<(), End> {
        let (content, len) = match self.whole(head).await? {
            Ok(whole) => whole,
            Err(guard) => return self.or_refuse(guard, head).await,
        };
        match std::str::from_utf8(content.of(&self.server.buffer)) {
            Ok(card) => notice_card(self.parts, self.conn, card).await,
            Err(_) => return self.or_refuse(Guard::Undecodable("utf8"), head).await,
        }
        *self.begun = Begun::Partial;
        self.forward(len).await
    }

    /// Waits until a JSON answer is whole: its content without codings, and its length with the head; or why it cannot be
    /// read.
    pub(super) async fn whole(
        &mut self,
        head: &ResponseHead,
    ) -> Result<Result<(Content, usize), Guard>, End> {
        let limits = self.parts.limits;
        let mut held = Hold::new(head.framing, head.len, limits.message);
        let content = loop {
            match held.advance(&self.server.buffer).map_err(End::Malformed)? {
                Held::Done(content) => break content,
                Held::More(expected) => {
                    self.server.made(held.joined()).map_err(End::server)?;
                    match self.more(expected).await {
                        Err(End::ServerClosed) if head.framing == Framing::UntilClose => {
                            break held.content();
                        }
                        result => result?,
                    }
                }
                Held::Oversized => return Ok(Err(Guard::Oversized { limit: limits.message })),
            }
        };
        let content = content.undone(head.codings, &self.server.buffer, &limits);
        self.server.made(content.as_ref().map_or(0, Content::held)).map_err(End::server)?;
        Ok(content.map(|content| (content, held.at)).map_err(|fault| hold::guard(fault, limits.message)))
    }

    /// Decides one JSON text: the content of an answer, or the data of an event.
    pub(super) async fn edit(&self, rules: &Rules, json: &[u8], status: u16) -> Edit {
        self.inspecting().edit(rules, json, Some(status)).await
    }

    pub(super) fn inspecting(&self) -> Inspecting<'_> {
        Inspecting {
            parts: self.parts,
            conn: self.conn,
            netns: self.netns,
            reach: self.target.reach(),
            channel: self.channel.as_ref().map(|open| &open.listed.channel),
            request: self.request,
            since: self.since,
            is_operation: self.asked.is_operation && self.asked.has_calls,
            is_mcp: self.is_mcp(),
        }
    }

    /// The rules of this moment, by which the next message is judged.
    pub(super) fn rules(&mut self) -> Arc<Rules> {
        let rules = Arc::clone(&self.parts.gate.rules());
        self.target.follow(&rules, self.conn);
        rules
    }

    /// What comes is MCP. Anything else may carry whatever it likes.
    pub(super) fn is_mcp(&self) -> bool {
        self.asked.has_calls || self.conn.is_mcp()
    }

    /// Ends the calls that are still open, all for one reason.
    pub(super) fn close_calls(
        &self,
        outcome: &'static str,
        cause: Option<&'static str>,
        status: Option<u16>,
        bytes: usize,
    ) {
        for call in self.conn.end() {
            // Whatever came was its answer.
            let is_answered = call.is_operation || a2a::is_streamed(&call.method);
            let (outcome, cause) = match status {
                Some(status) if is_answered => (if status < 400 { "result" } else { "error" }, None),
                _ => (outcome, cause),
            };
            self.inspecting().record(&call, outcome, cause, status, bytes);
        }
        self.conn.set_phase(Phase::Open);
    }
}
