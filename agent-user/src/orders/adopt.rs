//! Taking up what was done while this daemon did not answer: orders that the command line carried out by itself, and
//! left in the spool. They become stops like any other, with their operator and their time.

use std::time::{Duration, Instant};

use tokio::sync::MutexGuard;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::receipt::Report;
use super::{Orders, Turn};
use crate::spool::{self, Left};

/// How often a daemon that runs looks into the spool.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How many looks pass before what could not be saved is tried again.
const SAVE_EVERY: u32 = 4;

impl Orders {
    /// Takes up what is left in the spool, and saves what could not be saved, as long as the daemon lives.
    pub async fn watch(&self) {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for round in 1_u32.. {
            look.tick().await;
            // In force from here on; who has the turn may be waiting for a disk. Any reader may have found it before.
            self.parts.gate.look();
            if self.parts.gate.has_left() {
                drop(self.take_turn().await);
            }
            if round.is_multiple_of(SAVE_EVERY) && self.state.is_unsaved() {
                self.save_again().await;
            }
        }
    }

    /// Waits until no other order is being carried out, and takes up what was ordered elsewhere before.
    pub(super) async fn take_turn(&self) -> MutexGuard<'_, Turn> {
        let mut turn = self.turn.lock().await;
        self.parts.gate.look();
        for left in self.parts.gate.take_left() {
            self.adopt(&mut turn, left).await;
        }
        turn
    }

    /// Takes up what was left before this daemon began. Its orders are in force already.
    pub async fn take_up(&self) {
        drop(self.take_turn().await);
    }

    async fn adopt(&self, turn: &mut Turn, left: Left) {
        let issued = Instant::now();
        let ticket = turn.tickets.iter().find(|(ticket, _)| **ticket == *left.stop.id);
        if let Some((ticket, stop)) = ticket {
            // We did carry it out, only too late for who had ordered it.
            info!(ticket, stop = &**stop, "an order was left that is a stop already");
            self.publish(|stops| stops.retain(|other| other.id != left.stop.id));
            let agents = &self.parts.agents;
            let concerned = agents.matching(&left.stop.selector);
            let applied = agents.apply_to_everybody();
            let applied = applied.and_then(|()| concerned.iter().try_for_each(|one| agents.apply_stops(one)));
            if let Err(error) = applied {
                warn!(error = format!("{error:#}"), "the kernel holds agents to more than their stops say");
            }
            self.forget(&left);
            return;
        }
        // The command line may have come to write more since the file was found.
        let report = match &left.fault {
            None => self.spool.report_of(&left).unwrap_or(Report { offline: true, ..Report::default() }),
            Some(fault) => Report { note: Some(fault.clone()), ..Report::default() },
        };
        warn!(
            stop = &*left.stop.id,
            by = left.stop.by.user,
            "taking up an order that was given without this daemon"
        );
        self.parts.metrics.stops.with_label_values(&[left.stop.level.label()]).inc();
        let _begun = self.begin(&left.stop);
        if self.carry_out(&left.stop, issued, Some(report)).await {
            self.forget(&left);
        } else {
            turn.unsaved.push(left);
        }
    }

    /// The state has been saved: what waited for that needs its file no more.
    pub(super) fn saved(&self, turn: &mut Turn) {
        for left in std::mem::take(&mut turn.unsaved) {
            self.forget(&left);
        }
    }

    async fn save_again(&self) {
        let mut turn = self.take_turn().await;
        if self.state.save_stops(&self.parts.gate.rules().stops).is_ok() {
            info!("state saved; what was ordered meanwhile will survive a restart");
            self.saved(&mut turn);
        }
    }

    fn forget(&self, left: &Left) {
        if let Err(error) = self.spool.done(left) {
            spool::warn_stays(left, &error);
        }
    }
}
