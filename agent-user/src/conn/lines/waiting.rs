//! A line that waits, for a person or for a list, while others of its connection go on.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::decide::stop::Stop;
use crate::decode::{Lines, Piece, said};
use crate::judge::{Consent, Judged, Question, Wait};
use crate::room::Taken;

use super::super::park::{tell_in, unpark, words};
use super::line::Line;

pub(super) struct Waiting {
    pub(super) line: Line,
    pub(super) text: Vec<u8>,
    pub(super) consent: Consent,
    /// Why nobody waits for it any more.
    pub(super) over: watch::Receiver<Option<&'static str>>,
    /// What its text takes of the room for messages.
    pub(super) _held: Taken,
}

impl Waiting {
    /// Waits, and judges it again by the rules of that moment, until it leaves, is refused, or meets a stop.
    pub(super) async fn run(mut self, mut judged: Judged) {
        loop {
            let met = match judged {
                Judged::Asks(question) => self.ask(*question).await,
                Judged::Waits(wait) => self.wait_for(&wait).await,
                judged => {
                    // If the server is gone, the connection ends.
                    let _ = self.line.act(judged, &self.text).await;
                    return;
                }
            };
            if let Some(stop) = met {
                return self.line.meets(&stop);
            }
            let limits = self.line.shared.parts.limits;
            let said = said(&Lines::new(limits.message), Piece::Line, &self.text, &limits, true);
            let Some(again) = self.line.judge(&said, &self.text, &mut self.consent).await else { return };
            judged = again;
        }
    }

    /// Waits for lists that tell whether what it uses has changed.
    async fn wait_for(&mut self, wait: &Wait) -> Option<Arc<Stop>> {
        let parts = &self.line.shared.parts;
        let listed = async {
            for (place, surface) in &wait.lists {
                parts.baseline.settled(place, *surface).await;
            }
        };
        tokio::select! {
            biased;
            stop = parts.gate.stopped(&parts.ledger, self.line.part()) => Some(stop),
            _ = timeout(wait.within, listed) => None,
            _ = is_over(&mut self.over) => None,
        }
    }

    /// Asks a person.
    async fn ask(&mut self, mut question: Question) -> Option<Arc<Stop>> {
        let parts = &self.line.shared.parts;
        let part = self.line.part();
        let (scene, calls) = (part.scene(), std::mem::take(&mut question.calls));
        let mut parked = match parts.approvals.park(part, &scene, calls, question.within) {
            Ok(parked) => parked,
            Err(why) => {
                self.consent.is_not_asked(question, why);
                return None;
            }
        };
        let message = words(&parked.question);
        let telling = tell_in(&self.line.shared.channel, question.progress_token.take(), &message);
        let outcome = tokio::select! {
            biased;
            stop = parts.gate.stopped(&parts.ledger, part) => Err(stop),
            outcome = parked.outcome() => Ok(outcome),
            () = telling => {
                parked.withdraw("agent_closed", None);
                Ok(parked.outcome().await)
            }
            cause = is_over(&mut self.over) => {
                parked.withdraw(cause, None);
                Ok(parked.outcome().await)
            }
        };
        match outcome {
            Ok(outcome) => {
                self.consent.is_answered(question, &parked, outcome);
                None
            }
            Err(stop) => {
                unpark(parts, part, &parked, &stop);
                Some(stop)
            }
        }
    }
}

async fn is_over(over: &mut watch::Receiver<Option<&'static str>>) -> &'static str {
    // Who would tell is there as long as the connection is.
    over.wait_for(Option::is_some).await.ok().and_then(|cause| *cause).unwrap_or("drain")
}
