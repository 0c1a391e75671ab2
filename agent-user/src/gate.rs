//! The one place where policy and stops are published. Readers take a snapshot without a lock; writers are
//! serialised and each makes a new generation.
//!
//! Exactness rests on one order: a connection *writes its call to the ledger, then reads the rules*
//! ([`Gate::begin`]); a stop *publishes the rules, then reads the ledger* ([`Ledger::bring`]). Both touch the same lock,
//! the connection's or that of the list, so one of them happens first: either the call meets the stop, or the stop
//! lists the call. `exact/` tries every interleaving of it.
//!
//! It also looks for orders that were carried out while this daemon did not run, and puts them in force. A daemon that
//! hung and continues must not decide one more message by what it knew before: whoever reads a snapshot after a pause
//! looks first.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::decide::Rules;
use crate::decide::policy::Policy;
use crate::decide::stop::Stop;
use crate::ledger::{Call, Conn, Ledger, Scene};
use crate::spool::{Left, Spool};
use crate::sync::{ArcSwap, Guard, Mutex};

/// After a pause of this length a reader looks for orders first. The command line acts on its own only once a daemon
/// has not answered for longer.
const PAUSE: Duration = Duration::from_secs(1);

/// Holds the snapshot in force.
#[derive(Debug)]
pub struct Gate {
    current: ArcSwap<Rules>,
    writer: Mutex<()>,
    watch: Option<Watch>,
}

/// The look-out for orders that others carried out.
#[derive(Debug)]
struct Watch {
    spool: Spool,
    began: Instant,
    /// When it was looked last, in milliseconds after `began`.
    looked: AtomicU64,
    found: std::sync::Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// Files that were read.
    seen: HashSet<OsString>,
    /// In force, and not taken up yet by [`crate::orders`].
    left: Vec<Left>,
}

impl Gate {
    pub fn new(policy: Policy, stops: Vec<Arc<Stop>>) -> Gate {
        let rules = Rules { generation: 1, policy: Arc::new(policy), stops };
        Gate { current: ArcSwap::from_pointee(rules), writer: Mutex::new(()), watch: None }
    }

    /// With the orders in a spool in force, those that come included.
    pub fn watching(policy: Policy, stops: Vec<Arc<Stop>>, spool: Spool) -> Gate {
        let watch = Watch {
            spool,
            began: Instant::now(),
            looked: AtomicU64::new(0),
            found: std::sync::Mutex::default(),
        };
        let gate = Gate { watch: Some(watch), ..Gate::new(policy, stops) };
        gate.look();
        gate
    }

    /// The snapshot in force now.
    pub fn rules(&self) -> Guard<Arc<Rules>> {
        if self.watch.as_ref().is_some_and(Watch::has_paused) {
            self.look();
        }
        self.current.load()
    }

    /// Registers what a connection is about to do, and reads the rules that judge it: a stop that they do not know yet
    /// finds it listed.
    pub fn begin(&self, conn: &Conn, scene: Scene, calls: Vec<Call>) -> Arc<Rules> {
        conn.begin(scene, calls);
        Arc::clone(&self.rules())
    }

    /// All of what a connection POSTs has left: what is answered in a stream is that one's to answer for from now on. False: a
    /// stop has met it first, which ends it on this connection. A stop that was published before looks at one connection
    /// after the other, and may have seen the stream without the calls: so the rules are read once more when both list them.
    pub fn hand_over(&self, conn: &Conn) -> bool {
        if !conn.lend() {
            return true;
        }
        if conn.met_by(&self.rules()).is_some() {
            conn.wake.notify_one();
            return false;
        }
        conn.leave_to_stream();
        true
    }

    /// Waits for a stop that ends what a connection is doing.
    pub async fn stopped(&self, ledger: &Ledger, conn: &Conn) -> Arc<Stop> {
        loop {
            conn.wake.notified().await;
            let rules = self.rules();
            if let Some(stop) = conn.met_by(&rules) {
                return stop;
            }
            ledger.acted(conn);
        }
    }

    /// Puts a new policy in force and returns its generation.
    pub fn set_policy(&self, policy: Policy) -> u64 {
        let policy = Arc::new(policy);
        self.publish(|rules| Rules { policy, stops: rules.stops.clone(), generation: 0 })
    }

    /// Makes a new generation of the same: what was found out with it may have changed.
    pub fn renew(&self) -> u64 {
        self.publish(|rules| Rules {
            policy: Arc::clone(&rules.policy),
            stops: rules.stops.clone(),
            generation: 0,
        })
    }

    /// Changes the set of stops and returns the generation in which that is in force.
    pub fn change_stops(&self, change: impl FnOnce(&mut Vec<Arc<Stop>>)) -> u64 {
        self.publish(|rules| {
            let mut stops = rules.stops.clone();
            change(&mut stops);
            Rules { policy: Arc::clone(&rules.policy), stops, generation: 0 }
        })
    }

    /// Looks for orders that others carried out, and puts what is new in force.
    pub fn look(&self) {
        let Some(watch) = &self.watch else { return };
        let mut found = watch.found.lock().unwrap_or_else(PoisonError::into_inner);
        let began = watch.now();
        let new = watch.spool.read(&found.seen);
        if !new.is_empty() {
            self.change_stops(|stops| {
                for left in &new {
                    // Its file may have outlived its way into the state.
                    if stops.iter().all(|stop| stop.id != left.stop.id) {
                        stops.push(Arc::clone(&left.stop));
                    }
                }
            });
        }
        watch.looked.store(began, Ordering::Release);
        found.seen.extend(new.iter().map(|left| left.file.clone()));
        found.left.extend(new);
    }

    /// Puts a stop in force that nobody ordered, for [`crate::orders`] to take up as if it had been left.
    pub fn close(&self, left: Left) {
        self.change_stops(|stops| stops.push(Arc::clone(&left.stop)));
        if let Some(watch) = &self.watch {
            watch.found.lock().unwrap_or_else(PoisonError::into_inner).left.push(left);
        }
    }

    /// The orders that [`Gate::look`] has found since the last call.
    pub fn take_left(&self) -> Vec<Left> {
        let Some(watch) = &self.watch else { return Vec::new() };
        std::mem::take(&mut watch.found.lock().unwrap_or_else(PoisonError::into_inner).left)
    }

    /// Whether any order waits for [`Gate::take_left`].
    pub fn has_left(&self) -> bool {
        self.is_any_left(|_| true)
    }

    /// Whether a stop is an order that was left, and was not taken up yet.
    pub fn is_left(&self, stop: &Stop) -> bool {
        self.is_any_left(|left| left.stop.id == stop.id && left.fault.is_none())
    }

    fn is_any_left(&self, is: impl Fn(&Left) -> bool) -> bool {
        let found =
            self.watch.as_ref().map(|watch| watch.found.lock().unwrap_or_else(PoisonError::into_inner));
        found.is_some_and(|found| found.left.iter().any(is))
    }

    fn publish(&self, change: impl FnOnce(&Rules) -> Rules) -> u64 {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.current.load();
        let generation = current.generation + 1;
        self.current.store(Arc::new(Rules { generation, ..change(&current) }));
        generation
    }
}

impl Watch {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn has_paused(&self) -> bool {
        u128::from(self.now().saturating_sub(self.looked.load(Ordering::Acquire))) > PAUSE.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::stop::Level;
    use crate::spool::everybody;

    #[test]
    fn order_that_was_left_is_in_force_for_the_first_reader_after_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::new(dir.path());
        let gate = Gate::watching(Policy::default(), Vec::new(), spool.clone());
        let stop = Stop { id: "stp-off-1".into(), ..Stop::drill(everybody(), Level::Kill) };
        spool.leave(&stop).unwrap();
        assert_eq!(gate.rules().stops.len(), 0, "a daemon that runs has somebody who looks");
        std::thread::sleep(PAUSE + Duration::from_millis(5));
        assert_eq!(gate.rules().stops.len(), 1);
        assert!(gate.has_left() && gate.is_left(&stop));
        assert_eq!(gate.take_left().len(), 1);
        gate.change_stops(Vec::clear);
        gate.look();
        assert!(!gate.has_left() && gate.rules().stops.is_empty(), "what was released does not come back");
    }
}
