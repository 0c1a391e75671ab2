//! What a stop does to one connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use tokio::time::timeout;

use crate::decide::stop::{Level, Stop};
use crate::decide::{Refusal, furthest};
use crate::fate::Fate;
use crate::forward::answer::Begun;
use crate::forward::channel::catch;
use crate::forward::evidence::Evidence;
use crate::forward::refuse::Refused;
use crate::forward::{End, refuse};
use crate::ledger::{Call, Conn, Phase, Scene};
use crate::parts::Parts;

use super::Connection;
use super::park::unpark;

/// How long an agent that is stopped may take to accept the answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(100);

impl Connection {
    /// A stop ends what is in flight: fates are filed, pending ids answered in their protocol, streams ended. Returns
    /// `None` where the agent's side is in order and may go on, to have its next message refused.
    pub(super) async fn stop(&mut self, stop: &Arc<Stop>) -> Option<End> {
        if let Some(open) = self.channel.as_ref().filter(|_| stop.level == Level::Refuse) {
            // In it the agent is told that its calls are refused.
            catch(&self.parts, &open.listed.channel);
            self.parts.ledger.acted(&self.conn);
            return None;
        }
        let posting = self.posting.take();
        if let Some(channel) = &posting
            && self.conn.phase() == Phase::Sent
        {
            // Its calls are answered in the stream, and ended there.
            self.conn.leave_to_stream();
            catch(&self.parts, channel);
        }
        let (scene, mut refusal) = (self.conn.scene(), self.conn.refusal_by(stop));
        let (phase, calls) = self.conn.stop();
        let met = met_meanwhile(&self.parts, &self.conn, &refusal, &scene, &calls);
        let stop = met.as_ref().unwrap_or(stop);
        if met.is_some() {
            refusal = Refusal::Stop(Arc::clone(stop));
        }
        let fate = phase.fate();
        let follows = fate == Fate::Sent && self.server.is_some();
        // What a connection has begun after it was cut at rest ran into the stop by itself, and is not caught by it.
        if self.conn.cut_by().is_none() {
            self.parts.book.file(stop, &self.conn, &calls, fate, follows);
        }
        if let Some(parked) = self.parked.take() {
            unpark(&self.parts, &self.conn, &parked, stop);
        }
        let goes_on = stop.level == Level::Refuse
            && match self.begun {
                Begun::Nothing => !calls.is_empty() || posting.is_some(),
                Begun::Stream => self.stream.is_chunked(),
                Begun::Partial => false,
            };
        let unsent = self.progress.unsent.filter(|_| goes_on);
        let close = unsent.is_none();
        let answer = match self.begun {
            Begun::Nothing if let Some(channel) = posting => {
                let refused = Refused::all(&calls, &refusal);
                let is_said = channel.say_later(&refuse::responses(&refused));
                Some(refuse::http(if is_said { &[] } else { &refused }, self.batch && !is_said, close))
            }
            Begun::Nothing if !calls.is_empty() => {
                Some(refuse::http(&Refused::all(&calls, &refusal), self.batch, close))
            }
            Begun::Nothing if phase != Phase::Idle => Some(refuse::plain("403 Forbidden", &refusal, "")),
            Begun::Stream => Some(self.stream.ending(&calls, &refusal)),
            Begun::Nothing | Begun::Partial => None,
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
        if let Some(mut server) = self.server.take() {
            self.to_server += server.writer.written();
            let channel = self.channel.take();
            let has_late = channel.is_some() && self.conn.has_late();
            if follows && !calls.is_empty() || has_late {
                if let Some(open) = &channel {
                    open.listed.forget();
                    self.request.clone_from(&open.listed.channel.request);
                }
                let evidence = Evidence {
                    parts: Arc::clone(&self.parts),
                    conn: Arc::clone(&self.conn),
                    netns: Arc::clone(&self.netns),
                    stop: Arc::clone(stop),
                    scene,
                    calls,
                    server,
                    // What the agent was told before is none of the server's answer.
                    begun: if self.stream.is_waiting() { Begun::Nothing } else { self.begun },
                    stream: std::mem::take(&mut self.stream),
                    request: std::mem::take(&mut self.request),
                    channel: channel.map(|open| open.listed),
                };
                tokio::spawn(evidence.follow());
            } else {
                server.reset_on_close();
            }
        }
        self.parts.ledger.acted(&self.conn);
        match unsent.filter(|_| answered) {
            Some(unsent) => {
                self.agent.reader.buffer.advance(unsent);
                None
            }
            None => Some(End::Stopped),
        }
    }
}

/// What a rule has called off may have been in the scope of a stop by then, which must not miss it.
pub(super) fn met_meanwhile(
    parts: &Parts,
    conn: &Conn,
    refusal: &Refusal,
    scene: &Scene,
    calls: &[Call],
) -> Option<Arc<Stop>> {
    if matches!(refusal, Refusal::Stop(_)) {
        return None;
    }
    let rules = parts.gate.rules();
    conn.identity.agent.as_whom(|agent| {
        let meets =
            |stop: &&Arc<Stop>| calls.iter().any(|call| stop.selector.matches(&call.facts(scene, agent)));
        furthest(rules.stops.iter().filter(meets)).cloned()
    })
}
