//! From an agent to its server, piece by piece.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::decide::policy::Bias;
use crate::decide::stop::Stop;
use crate::decide::{Guard, Refusal};
use crate::decode::{Lines, Piece, Said, mcp, said};
use crate::forward::End;
use crate::forward::own::Source;
use crate::forward::side::{Reader, Writer};
use crate::judge::{Consent, Judged, judge_opaque, refuse_bytes};
use crate::ledger::Phase;
use crate::record::metrics::Class;

use super::super::reach;
use super::Shared;
use super::line::{Gone, Line};
use super::waiting::Waiting;

/// What an agent says, and how far that has come.
pub(super) struct Up<'a> {
    shared: Shared,
    reader: &'a mut Reader,
    lines: Lines,
    line: Line,
    /// Lines that wait for a person, or for a list, while others go on.
    waiting: JoinSet<()>,
    /// Tells them why nobody waits for them any more.
    over: watch::Sender<Option<&'static str>>,
    /// Takes the server's side once that is reached.
    dialed: Option<oneshot::Sender<(Reader, Option<Source>)>>,
    /// Under these rules what is no message may pass.
    open_under: Option<u64>,
}

impl<'a> Up<'a> {
    pub(super) fn new(
        shared: Shared,
        reader: &'a mut Reader,
        dialed: oneshot::Sender<(Reader, Option<Source>)>,
    ) -> Up<'a> {
        Up {
            lines: Lines::new(shared.parts.limits.message),
            line: Line::new(shared.clone()),
            shared,
            reader,
            waiting: JoinSet::new(),
            over: watch::Sender::new(None),
            dialed: Some(dialed),
            open_under: None,
        }
    }

    /// The server is reached.
    pub(super) async fn is_connected(&mut self, reader: Reader, writer: Writer, source: Option<Source>) {
        self.shared.server.connect(writer).await;
        if let Some(dialed) = self.dialed.take() {
            // Who takes it is gone only when all ends.
            let _ = dialed.send((reader, source));
        }
    }

    /// Sees to it that the server is reached, for what is on its way; false: that has met a stop first.
    async fn connect(&mut self) -> Result<bool, End> {
        if self.dialed.is_none() {
            return Ok(true);
        }
        let Shared { parts, netns, conn, .. } = &self.shared;
        let reached = tokio::select! {
            biased;
            stop = parts.gate.stopped(&parts.ledger, self.line.part()) => Err(stop),
            reached = reach(parts, netns, conn) => Ok(reached),
        };
        match reached {
            Ok(reached) => {
                let (server, source) = reached?;
                self.is_connected(server.reader, server.writer, source).await;
                Ok(true)
            }
            Err(stop) => {
                self.line.meets(&stop);
                Ok(false)
            }
        }
    }

    /// Goes on until the connection has to end.
    pub(super) async fn run(&mut self, class: &mut Option<Class>) -> End {
        match self.relay(class).await {
            Ok(()) => std::future::pending().await,
            Err(End::Full(full)) => {
                self.refuse(Guard::Full(full), b"").await;
                End::Full(full)
            }
            Err(end) => end,
        }
    }

    async fn relay(&mut self, class: &mut Option<Class>) -> Result<(), End> {
        loop {
            while self.take(class).await? {}
            while self.waiting.try_join_next().is_some() {}
            // Nothing is always within the bounds.
            let _ = self.reader.made(0);
            self.reader.rest();
            let is_first = self.reader.buffer.is_empty();
            if self.reader.fill().await.map_err(End::agent)? == 0 {
                return self.end(class).await;
            }
            if is_first {
                self.line.since = Instant::now();
            }
        }
    }

    /// Takes the next piece; false: none is there yet.
    async fn take(&mut self, class: &mut Option<Class>) -> Result<bool, End> {
        let is_mcp = self.shared.conn.is_mcp();
        match self.lines.next(&self.reader.buffer, is_mcp) {
            Ok(None) => Ok(false),
            Ok(Some((piece, len))) => self.piece(piece, len, class).await,
            Err(_) => {
                if self.shared.parts.defaults_of(&self.shared.conn).oversized == Bias::Deny {
                    // Whose it is cannot be told, and whoever waits for its answer must not wait for ever.
                    let limit = self.shared.parts.limits.message;
                    self.refuse(Guard::Oversized { limit }, b"").await;
                    return Err(End::Refused);
                }
                self.lines.pass_unread();
                Ok(true)
            }
        }
    }

    async fn refuse(&self, guard: Guard, line: &[u8]) {
        let (refusal, decision) = refuse_bytes(&self.shared.parts, &self.shared.conn, guard, "line").await;
        self.line.refuse_unread(&refusal, &decision, line).await;
    }

    /// Does what one piece comes to; false: more of it has to come first.
    async fn piece(&mut self, piece: Piece, len: usize, class: &mut Option<Class>) -> Result<bool, End> {
        let limits = self.shared.parts.limits;
        let is_mcp = self.shared.conn.is_mcp();
        let held = self.reader.buffer.split_to(len);
        let said = said(&self.lines, piece, &held, &limits, is_mcp);
        if said == Said::NeedMore {
            self.lines.hold();
            drop(said);
            self.reader.give_back(held);
            return Ok(false);
        }
        self.lines.take((piece, len));
        match said {
            Said::Blank => self.blank(&held).await?,
            Said::Other => self.other(&held, piece).await?,
            said => self.message(&said, &held, class).await?,
        }
        self.line.since = Instant::now();
        Ok(true)
    }

    /// An empty line goes where anything may.
    async fn blank(&mut self, bytes: &[u8]) -> Result<(), End> {
        if self.dialed.is_some() {
            return Ok(());
        }
        self.line.part().open(self.shared.conn.scene());
        let stopped = self.shared.conn.identity.agent.as_whom(|agent| {
            self.shared.parts.gate.rules().stop_for(&self.shared.conn.scene().facts(agent)).is_some()
        });
        if stopped {
            self.line.part().end();
            return Ok(());
        }
        self.pass(bytes).await
    }

    /// What is no message to any reader passes as what cannot be read does.
    async fn other(&mut self, bytes: &[u8], piece: Piece) -> Result<(), End> {
        let conn = &self.shared.conn;
        self.line.part().open(conn.scene());
        let generation = self.shared.parts.gate.rules().generation;
        if self.open_under != Some(generation) {
            let refusal = match piece {
                Piece::Unread => match self.line.judge(&Said::Other, bytes, &mut Consent::default()).await {
                    None => return Ok(()),
                    Some(Judged::RefusedUnread { refusal, decision }) => Some((refusal, decision)),
                    Some(_) => None,
                },
                _ => judge_opaque(&self.shared.parts, self.line.part(), "opaque").await,
            };
            if let Some((refusal, decision)) = refusal {
                return self.refuse_other(&refusal, &decision, bytes).await;
            }
            self.open_under = (piece != Piece::Unread).then_some(generation);
        }
        if self.connect().await? { self.pass(bytes).await } else { Ok(()) }
    }

    /// Beside messages of MCP it alone is refused; without any, nothing could be told to its sender.
    async fn refuse_other(&mut self, refusal: &Refusal, decision: &str, bytes: &[u8]) -> Result<(), End> {
        if !self.shared.conn.is_mcp() {
            self.line.part().end();
            return Err(End::Refused);
        }
        self.line.refuse_unread(refusal, decision, bytes).await;
        Ok(())
    }

    async fn pass(&mut self, bytes: &[u8]) -> Result<(), End> {
        match self.line.pass(bytes).await {
            Ok(()) => Ok(()),
            Err(Gone) => std::future::pending().await,
        }
    }

    async fn message(&mut self, said: &Said<'_>, line: &[u8], class: &mut Option<Class>) -> Result<(), End> {
        if !self.shared.conn.is_mcp()
            && let Said::Messages(messages) = said
            && messages.messages().iter().any(mcp::asks)
        {
            // Before a stop can meet it: it must be told.
            self.shared.conn.mark_mcp();
            self.line.part().mark_mcp();
            self.shared.parts.metrics.classify(class, Class::Mcp);
        }
        let mut consent = Consent::default();
        let Some(judged) = self.line.judge(said, line, &mut consent).await else { return Ok(()) };
        match &judged {
            Judged::Asks(_) | Judged::Waits(_) => return self.wait(judged, line, consent).await,
            Judged::Allowed { replaced, .. } => {
                let edited = replaced.as_ref().map_or(0, |replaced| replaced.content.len());
                self.reader.made(edited).map_err(End::agent)?;
                if !self.connect().await? {
                    return Ok(());
                }
            }
            _ => {}
        }
        match self.line.act(judged, line).await {
            Ok(()) => Ok(()),
            // It may have answered what it got before: that is read to the end.
            Err(Gone) => std::future::pending().await,
        }
    }

    /// Lets a line wait, while others go on.
    async fn wait(&mut self, judged: Judged, line: &[u8], consent: Consent) -> Result<(), End> {
        if !self.connect().await? {
            return Ok(());
        }
        let parts = &self.shared.parts;
        let held = match parts.memory.take(&self.shared.conn.identity.agent.memory, line.len()) {
            Ok(held) => held,
            Err(full) => {
                self.refuse(Guard::Full(full), line).await;
                return Ok(());
            }
        };
        let next = Line::new(self.shared.clone());
        let waits = std::mem::replace(&mut self.line, next);
        let waiting =
            Waiting { line: waits, text: line.to_vec(), consent, over: self.over.subscribe(), _held: held };
        self.waiting.spawn(waiting.run(judged));
        Ok(())
    }

    /// The agent has said all it will say. What it has asked for by then is answered.
    async fn end(&mut self, class: &mut Option<Class>) -> Result<(), End> {
        let len = self.reader.buffer.len();
        if len > 0 {
            // Some readers take it for a line.
            self.piece(Piece::Line, len, class).await?;
        }
        self.give_up("agent_closed").await;
        self.shared.conn.mark_agent_left();
        if self.dialed.is_some() {
            return Err(End::AgentClosed);
        }
        // If it is gone, its end tells.
        let _ = self.shared.server.turn().await.finish().await;
        Ok(())
    }

    /// Nobody waits any more for what waits.
    pub(super) async fn give_up(&mut self, cause: &'static str) {
        self.over.send_replace(Some(cause));
        while self.waiting.join_next().await.is_some() {}
    }

    /// A stop has ended the connection: what is on its way ends, too.
    pub(super) async fn cut(&mut self, stop: &Arc<Stop>) {
        if self.line.part().phase() != Phase::Idle {
            self.line.meets(stop);
        }
        // The stop has found each of them, and ends it.
        let all = async { while self.waiting.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(super::ANSWER_WITHIN, all).await;
    }
}

impl Reader {
    /// Gives back what was taken off the start of the buffer.
    fn give_back(&mut self, mut taken: BytesMut) {
        taken.unsplit(std::mem::take(&mut self.buffer));
        self.buffer = taken;
    }
}
