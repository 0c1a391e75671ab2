//! From a server to its agent, piece by piece.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use bytes::Buf;
use tokio::sync::{mpsc, oneshot};

use crate::decide::policy::Bias;
use crate::decide::{Guard, Refusal, Rules};
use crate::decode::{Kind, Lines, Payload, Piece, Said, said};
use crate::forward::End;
use crate::forward::inspect::{Edit, Inspecting};
use crate::forward::own::Source;
use crate::forward::refuse::{self, Refused};
use crate::forward::side::{Reader, Writer};
use crate::judge::Target;
use crate::ledger::Conn;

use super::Shared;

/// Bytes that are decided before they leave together.
const TOGETHER: usize = 64 * 1024;

/// What a server says, and how far that has come.
pub(super) struct Down<'a> {
    pub(super) shared: Shared,
    /// The server's side, once that is reached.
    pub(super) reader: Option<Reader>,
    dialed: Option<oneshot::Receiver<(Reader, Option<Source>)>>,
    /// Tells that the server's connection is an agent's, should it lead to ourselves.
    _source: Option<Source>,
    writer: &'a mut Writer,
    /// What others say to the agent.
    pub(super) said: mpsc::Receiver<Vec<u8>>,
    pub(super) lines: Lines,
    target: Target,
    /// What leaves now, and how much of it has left.
    leaving: Vec<u8>,
    left: usize,
    /// A part of the server's line is among it.
    is_within: bool,
}

impl<'a> Down<'a> {
    pub(super) fn new(
        shared: Shared,
        writer: &'a mut Writer,
        dialed: oneshot::Receiver<(Reader, Option<Source>)>,
        said: mpsc::Receiver<Vec<u8>>,
    ) -> Down<'a> {
        Down {
            lines: Lines::new(shared.parts.limits.message),
            shared,
            reader: None,
            dialed: Some(dialed),
            _source: None,
            writer,
            said,
            target: Target::default(),
            leaving: Vec::new(),
            left: 0,
            is_within: false,
        }
    }

    /// Goes on until the connection has to end.
    pub(super) async fn run(&mut self) -> End {
        match self.relay().await {
            Ok(()) if self.shared.conn.has_agent_left() => End::AgentClosed,
            Ok(()) => End::ServerClosed,
            Err(End::Full(full)) => self.refuse_rest(Guard::Full(full)).await,
            Err(end) => end,
        }
    }

    async fn relay(&mut self) -> Result<(), End> {
        loop {
            self.flush().await.map_err(End::agent)?;
            if self.decide().await? {
                continue;
            }
            if !self.more().await? {
                break;
            }
        }
        // Some readers take it for a line.
        let rest = self.reader.as_ref().map_or(0, |reader| reader.buffer.len());
        if rest > 0 {
            self.piece(Piece::Line, rest).await?;
        }
        self.say_rest().await.map_err(End::agent)
    }

    /// Decides what is there; false: there was nothing.
    async fn decide(&mut self) -> Result<bool, End> {
        loop {
            let is_mcp = self.shared.conn.is_mcp();
            let Some(reader) = &mut self.reader else { return Ok(false) };
            match self.lines.next(&reader.buffer, is_mcp) {
                Ok(None) => return Ok(!self.leaving.is_empty()),
                Ok(Some((piece, len))) => {
                    if !self.piece(piece, len).await? {
                        self.lines.hold();
                        return Ok(!self.leaving.is_empty());
                    }
                    if self.leaving.len() >= TOGETHER {
                        return Ok(true);
                    }
                }
                Err(_) if self.shared.parts.defaults_of(&self.shared.conn).oversized == Bias::Allow => {
                    self.lines.pass_unread();
                }
                Err(_) => {
                    let limit = self.shared.parts.limits.message;
                    return Err(self.refuse_rest(Guard::Oversized { limit }).await);
                }
            }
        }
    }

    /// Waits for more; false: the server has closed.
    async fn more(&mut self) -> Result<bool, End> {
        let Down { reader, dialed, said, .. } = self;
        if let Some(reader) = reader {
            // Nothing is always within the bounds.
            let _ = reader.made(0);
            if reader.buffer.is_empty() {
                reader.rest();
            }
            tokio::select! {
                Some(text) = said.recv() => self.say(&text),
                read = reader.fill() => return Ok(read.map_err(End::server)? > 0),
            }
            return Ok(true);
        }
        let reached = async {
            match dialed {
                Some(dialed) => dialed.await.ok(),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(text) = said.recv() => self.say(&text),
            reached = reached => {
                let Some((reader, source)) = reached else { return Ok(false) };
                (self.reader, self._source, self.dialed) = (Some(reader), source, None);
            }
        }
        Ok(true)
    }

    /// Something of ours, between two lines.
    fn say(&mut self, text: &[u8]) {
        if std::mem::take(&mut self.is_within) {
            self.leaving.push(b'\n');
        }
        self.leaving.extend_from_slice(text);
    }

    /// Decides one piece; false: more of it has to come first. What it answers is off the ledger then, and among what leaves:
    /// between the two nothing is waited for. When cancelled, nothing is decided.
    async fn piece(&mut self, piece: Piece, len: usize) -> Result<bool, End> {
        let Down { shared, reader: Some(reader), lines, target, leaving, is_within, .. } = self else {
            return Ok(false);
        };
        let bytes = &reader.buffer[..len];
        let said = said(lines, piece, bytes, &shared.parts.limits, shared.conn.is_mcp());
        if said == Said::NeedMore {
            return Ok(false);
        }
        match edit(shared, target, &said, bytes).await {
            None => {}
            Some(Edit::Pass) => leaving.extend_from_slice(bytes),
            Some(Edit::Replace(json)) => {
                leaving.extend_from_slice(json.trim_ascii_end());
                leaving.push(b'\n');
            }
            Some(Edit::Drop { recorded: true, .. }) => {}
            Some(Edit::Drop { refusal, recorded: false }) => {
                shared.parts.record_guard(&shared.conn, "line", &refusal).await;
            }
        }
        *is_within = leaving.last().map_or(*is_within, |last| *last != b'\n');
        lines.take((piece, len));
        drop(said);
        reader.buffer.advance(len);
        reader.made(leaving.capacity()).map_err(End::server)?;
        Ok(true)
    }

    /// Ends the connection where the server cannot be read on: its calls are answered.
    async fn refuse_rest(&mut self, guard: Guard) -> End {
        let refusal = Refusal::Guard(guard);
        let Shared { parts, conn, channel, .. } = &self.shared;
        let calls = conn.end();
        for call in &calls {
            self.shared.record_unanswered(call, Some(refusal.label()));
        }
        parts.record_guard(conn, "line", &refusal).await;
        let told = channel.framed(&refuse::responses(&Refused::all(&calls, &refusal)));
        self.say(&told);
        match self.flush().await {
            Ok(()) => End::Refused,
            Err(error) => End::agent(error),
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.writer.send_rest(&self.leaving, &mut self.left).await?;
        self.leaving.clear();
        self.leaving.shrink_to(TOGETHER);
        self.left = 0;
        Ok(())
    }

    /// What is decided, and what others have said, leaves before the end.
    pub(super) async fn say_rest(&mut self) -> io::Result<()> {
        while let Ok(text) = self.said.try_recv() {
            self.say(&text);
        }
        self.flush().await
    }
}

/// What becomes of what a piece says; `None`: it is not for the agent.
async fn edit(shared: &Shared, target: &mut Target, said: &Said<'_>, bytes: &[u8]) -> Option<Edit> {
    let Shared { parts, conn, netns, channel, server } = shared;
    let rules = Arc::clone(&parts.gate.rules());
    target.follow(&rules, conn);
    let inspecting = Inspecting {
        parts,
        conn,
        netns,
        reach: target.reach(),
        channel: Some(channel),
        request: b"",
        since: Instant::now(),
        is_mcp: conn.is_mcp(),
        is_operation: false,
    };
    Some(match said {
        Said::Messages(messages) => {
            if let Payload::Single(message) = messages
                && let Kind::Response { id: Some(id), .. } = &message.kind
                && server.takes(*id, message.raw)
            {
                return None;
            }
            inspecting.edit_messages(&rules, messages, bytes.trim_ascii_end(), None).await
        }
        Said::Undecodable(fault) => inspecting.undecodable(fault),
        Said::Blank | Said::Other | Said::NeedMore => or_stopped(conn, &rules),
    })
}

/// What is no message passes, unless a stop holds for all of it.
fn or_stopped(conn: &Conn, rules: &Rules) -> Edit {
    if rules.stops.is_empty() {
        return Edit::Pass;
    }
    let scene = conn.scene();
    let stop = conn.identity.agent.as_whom(|agent| rules.stop_for(&scene.facts(agent)).cloned());
    stop.map_or(Edit::Pass, |stop| Edit::Drop { refusal: Refusal::Stop(stop), recorded: false })
}
