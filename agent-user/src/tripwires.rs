//! Counts what rules with `action: stop` look for, and orders their stops. Whoever judges a message waits for none of
//! it: a stop is carried out by [`crate::orders`], in a task of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;
use tracing::warn;

use crate::decide::policy::Mode;
use crate::decide::tripwire::{Counts, Tripwire};
use crate::decide::{Refusal, Verdict};

/// Orders that may wait. There is one at a time per agent and rule.
const QUEUE: usize = 1024;

/// The tripwires of all agents. The lock is held for moments, by messages that were refused.
#[derive(Debug)]
pub struct Tripwires {
    counts: Mutex<Counts>,
    orders: mpsc::Sender<Tripped>,
}

/// An agent to be stopped by a rule.
#[derive(Debug)]
pub struct Tripped {
    pub agent: Arc<str>,
    pub tripwire: Arc<Tripwire>,
}

impl Tripwires {
    /// What is returned beside yields the orders.
    pub fn new() -> (Tripwires, mpsc::Receiver<Tripped>) {
        let (orders, ordered) = mpsc::channel(QUEUE);
        (Tripwires { counts: Mutex::default(), orders }, ordered)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message, and leaves in its verdict the rules that it trips. What a stop refused counts for nothing, and
    /// what was only in one batch with a refused call is no denial.
    pub fn count(&self, agent: &Arc<str>, verdict: &mut Verdict, now: Instant) {
        if verdict.tripwires.is_empty() {
            return;
        }
        match &verdict.refusal {
            Some(Refusal::Stop(_)) => verdict.tripwires.clear(),
            Some(refusal) if refusal.is_denial() => {
                let mut counts = self.counts();
                verdict.tripwires.retain(|tripwire| {
                    tripwire.after.is_none_or(|after| counts.deny(agent, &tripwire.rule, after, now))
                });
            }
            _ => verdict.tripwires.retain(|tripwire| tripwire.after.is_none()),
        }
        let full = verdict.tripwires.iter().filter(|tripwire| tripwire.after.is_some());
        verdict.fired.extend(full.map(|tripwire| Arc::clone(&tripwire.rule)));
    }

    /// Orders the stops of the rules that a counted message trips.
    pub fn order(&self, agent: &Arc<str>, verdict: &Verdict) {
        for tripwire in verdict.tripwires.iter().filter(|tripwire| tripwire.mode == Mode::Enforce) {
            let mut counts = self.counts();
            if !counts.order(agent, &tripwire.rule) {
                continue;
            }
            let order = Tripped { agent: Arc::clone(agent), tripwire: Arc::clone(tripwire) };
            if self.orders.try_send(order).is_err() {
                counts.take_back(agent, &tripwire.rule);
                warn!(
                    agent = &**agent,
                    rule = &*tripwire.rule,
                    "too many stops wait; the next denial orders this one again"
                );
            }
        }
    }

    /// The order was carried out: the count starts again.
    pub fn forget(&self, agent: &Arc<str>, rule: &Arc<str>) {
        self.counts().forget(agent, rule);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::decide::Guard;
    use crate::decide::stop::Level;
    use crate::decide::tripwire::After;

    fn tripwire(mode: Mode, denials: Option<usize>) -> Arc<Tripwire> {
        let after = denials.map(|denials| After { denials, within: Duration::from_secs(60) });
        Arc::new(Tripwire { rule: "r".into(), mode, after, level: Level::Refuse, reason: "".into() })
    }

    fn refused(tripwire: &Arc<Tripwire>, refusal: Option<Refusal>) -> Verdict {
        Verdict { refusal, tripwires: vec![Arc::clone(tripwire)], ..Verdict::default() }
    }

    fn denial() -> Option<Refusal> {
        Some(Refusal::Guard(Guard::Opaque))
    }

    /// Whether a message trips the rule.
    fn trips(tripwire: &Arc<Tripwire>, refusal: Option<Refusal>) -> bool {
        let (tripwires, mut orders) = Tripwires::new();
        let (agent, mut verdict) = ("coder".into(), refused(tripwire, refusal));
        tripwires.count(&agent, &mut verdict, Instant::now());
        tripwires.order(&agent, &verdict);
        orders.try_recv().is_ok()
    }

    #[test]
    fn only_what_is_denied_counts() {
        let counting = tripwire(Mode::Enforce, Some(1));
        assert!(trips(&counting, denial()));
        assert!(!trips(&counting, None));
        assert!(!trips(&counting, Some(Refusal::Guard(Guard::Batch))));
    }

    #[test]
    fn observed_rules_order_nothing() {
        assert!(trips(&tripwire(Mode::Enforce, None), denial()));
        assert!(!trips(&tripwire(Mode::Observe, None), None));
        assert!(!trips(&tripwire(Mode::Observe, Some(1)), denial()));
    }

    #[test]
    fn racing_messages_make_one_order() {
        let (tripwires, mut orders) = Tripwires::new();
        let (agent, tripwire): (Arc<str>, _) = ("coder".into(), tripwire(Mode::Enforce, Some(5)));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let mut verdict = refused(&tripwire, denial());
                        tripwires.count(&agent, &mut verdict, Instant::now());
                        tripwires.order(&agent, &verdict);
                    }
                });
            }
        });
        assert!(orders.try_recv().is_ok() && orders.try_recv().is_err());
    }

    #[test]
    fn a_full_queue_delays_an_order_and_loses_none() {
        let (tripwires, mut orders) = Tripwires::new();
        let tripwire = tripwire(Mode::Enforce, Some(1));
        let deny = |agent: usize| {
            let (agent, mut verdict) = (agent.to_string().into(), refused(&tripwire, denial()));
            tripwires.count(&agent, &mut verdict, Instant::now());
            tripwires.order(&agent, &verdict);
        };
        (0..=QUEUE).for_each(deny);
        assert_eq!(orders.len(), QUEUE);
        assert!(orders.try_recv().is_ok());
        deny(QUEUE);
        assert_eq!(orders.len(), QUEUE);
    }
}
