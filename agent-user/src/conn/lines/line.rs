//! What an agent says in one line, on its way: on the ledger as a part of its connection.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::yield_now;

use crate::decide::Refusal;
use crate::decide::stop::Stop;
use crate::decode::{RawId, Said, find};
use crate::forward::channel::catch;
use crate::forward::refuse::{self, Refused};
use crate::judge::{
    Asking, Carrier, Consent, Judged, Target, judge_messages, judge_undecodable, judge_unread,
};
use crate::ledger::{Conn, Entry, Phase};

use super::super::stop::met_meanwhile;
use super::Shared;

/// A line, and those that follow it once it has left.
pub(super) struct Line {
    pub(super) shared: Shared,
    part: Entry,
    target: Target,
    /// When its first byte was there.
    pub(super) since: Instant,
}

/// The server takes no more.
pub(super) struct Gone;

impl Line {
    pub(super) fn new(shared: Shared) -> Line {
        let part = shared.parts.ledger.open_part(&shared.conn);
        Line { shared, part, target: Target::default(), since: Instant::now() }
    }

    pub(super) fn part(&self) -> &Arc<Conn> {
        self.part.conn()
    }

    /// Judges what it says. `None`: it has met a stop, which has answered it.
    pub(super) async fn judge(
        &mut self,
        said: &Said<'_>,
        line: &[u8],
        consent: &mut Consent,
    ) -> Option<Judged> {
        let Line { shared, part, target, since } = self;
        let (parts, conn) = (&shared.parts, part.conn());
        let asking = Asking { carrier: Carrier::Line, since: *since, channel: Some(&shared.channel) };
        let judging = async {
            match said {
                Said::Messages(payload) => {
                    judge_messages(parts, conn, target, &asking, (payload, line), consent).await
                }
                Said::Undecodable(fault) => judge_undecodable(parts, conn, target, &asking, fault).await,
                Said::Blank | Said::Other | Said::NeedMore => {
                    judge_unread(parts, conn, target, &asking, None).await
                }
            }
        };
        let judged = tokio::select! {
            biased;
            stop = parts.gate.stopped(&parts.ledger, conn) => Err(stop),
            judged = judging => Ok(judged),
        };
        match judged {
            Ok(judged) => Some(judged),
            Err(stop) => {
                self.meets(&stop);
                None
            }
        }
    }

    /// Does what was judged.
    pub(super) async fn act(&mut self, judged: Judged, line: &[u8]) -> Result<(), Gone> {
        match judged {
            Judged::Allowed { replaced, .. } => {
                let replaced = replaced.map(|replaced| replaced.content);
                return self.deliver(replaced.as_deref().unwrap_or(line)).await;
            }
            Judged::Refused { calls, batch } => {
                self.part().end();
                let mut texts = refuse::responses(&calls);
                if batch && !texts.is_empty() {
                    texts = vec![format!("[{}]", texts.join(","))];
                }
                self.shared.channel.say(&texts).await;
            }
            Judged::RefusedUnread { refusal, decision } => {
                self.refuse_unread(&refusal, &decision, line).await
            }
            // Whoever judges asks until there is nothing left to ask.
            Judged::Asks(_) | Judged::Waits(_) => drop(self.part().end()),
        }
        Ok(())
    }

    /// Answers what could not be read, under the id that its sender has given it, where all readers find the same.
    pub(super) async fn refuse_unread(&self, refusal: &Refusal, decision: &str, line: &[u8]) {
        self.part().end();
        let text = String::from_utf8_lossy(line);
        let is_free = |id: &&str| is_id(id) && !self.shared.conn.is_awaited(RawId::of(id));
        let id = find::member(text.trim(), "id").ok().flatten().filter(is_free);
        self.shared.channel.say(&[refuse::unread(refusal, decision, id)]).await;
    }

    /// Sends it, and hands its calls over to the connection.
    async fn deliver(&mut self, line: &[u8]) -> Result<(), Gone> {
        let (parts, part) = (&self.shared.parts, self.part.conn());
        let mut left = 0;
        let sending = async {
            let mut turn = self.shared.server.turn().await;
            part.set_phase(Phase::Sending);
            let sent = turn.send(line, &mut left).await;
            drop(turn);
            part.set_phase(Phase::Sent);
            while !parts.gate.hand_over(part) {
                // The stop that it meets is on its way here, unless it is released again.
                yield_now().await;
            }
            sent
        };
        let sent = tokio::select! {
            biased;
            stop = parts.gate.stopped(&parts.ledger, part) => Err(stop),
            sent = sending => Ok(sent),
        };
        match sent {
            Ok(sent) => {
                self.has_left();
                sent.map_err(|_| Gone)
            }
            Err(stop) => {
                if left >= line.trim_ascii_end().len() {
                    // Its end will follow.
                    part.set_phase(Phase::Sent);
                }
                self.meets(&stop);
                Ok(())
            }
        }
    }

    /// What it says that is no call has no answer. The server has heard what its agent has cancelled by that.
    fn has_left(&self) {
        let cancels = self.part().end().iter().any(|call| &*call.method == "notifications/cancelled");
        if !cancels {
            return;
        }
        for call in self.shared.conn.retire_cancelled() {
            self.shared.record_unanswered(&call, None);
        }
    }

    /// Sends what is no message, in pieces of any size.
    pub(super) async fn pass(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let (parts, part) = (&self.shared.parts, self.part.conn());
        let mut left = 0;
        let sending = async { self.shared.server.turn().await.pass(bytes, &mut left).await };
        let sent = tokio::select! {
            biased;
            stop = parts.gate.stopped(&parts.ledger, part) => Err(stop),
            sent = sending => Ok(sent),
        };
        match sent {
            Ok(sent) => {
                part.end();
                sent.map_err(|_| Gone)
            }
            Err(stop) => {
                self.meets(&stop);
                Ok(())
            }
        }
    }

    /// A stop ends what it is doing: fates are filed, and its agent is told.
    pub(super) fn meets(&self, stop: &Arc<Stop>) {
        let Shared { parts, channel, .. } = &self.shared;
        let part = self.part();
        if part.phase() == Phase::Sent {
            part.leave_to_stream();
            catch(parts, channel);
        }
        let (scene, mut refusal) = (part.scene(), part.refusal_by(stop));
        let (phase, calls) = part.stop();
        let met = met_meanwhile(parts, part, &refusal, &scene, &calls);
        let stop = met.as_ref().unwrap_or(stop);
        if met.is_some() {
            refusal = Refusal::Stop(Arc::clone(stop));
        }
        if part.cut_by().is_none() {
            parts.book.file(stop, part, &calls, phase.fate(), false);
        }
        channel.say_later(&refuse::responses(&Refused::all(&calls, &refusal)));
        parts.ledger.acted(part);
    }
}

/// Whether it may stand as an id in an answer.
fn is_id(text: &str) -> bool {
    text.len() <= 256
        && serde_json::from_str::<serde_json::Value>(text).is_ok_and(|id| id.is_string() || id.is_number())
}
