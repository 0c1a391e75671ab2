//! The one place where policy and stops are published. Readers take a snapshot without a lock; writers are
//! serialised and each makes a new generation.
//!
//! Exactness rests on one order: a connection *writes its call to the ledger, then reads the rules*
//! ([`Gate::begin`]); a stop *publishes the rules, then reads the ledger* ([`Ledger::bring`]). Both touch the same lock,
//! the connection's or that of the list, so one of them happens first: either the call meets the stop, or the stop
//! lists the call. `exact/` tries every interleaving of it.

use std::sync::{Arc, PoisonError};

use crate::decide::Rules;
use crate::decide::policy::Policy;
use crate::decide::stop::Stop;
use crate::ledger::{Call, Conn, Ledger, Scene};
use crate::sync::{ArcSwap, Guard, Mutex};

/// Holds the snapshot in force.
#[derive(Debug)]
pub struct Gate {
    current: ArcSwap<Rules>,
    writer: Mutex<()>,
}

impl Gate {
    pub fn new(policy: Policy, stops: Vec<Arc<Stop>>) -> Gate {
        let rules = Rules { generation: 1, policy: Arc::new(policy), stops };
        Gate { current: ArcSwap::from_pointee(rules), writer: Mutex::new(()) }
    }

    /// The snapshot in force now.
    pub fn rules(&self) -> Guard<Arc<Rules>> {
        self.current.load()
    }

    /// Registers what a connection is about to do, and reads the rules that judge it: a stop that they do not know yet
    /// finds it listed.
    pub fn begin(&self, conn: &Conn, scene: Scene, calls: Vec<Call>) -> Arc<Rules> {
        conn.begin(scene, calls);
        Arc::clone(&self.rules())
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

    /// Puts a new set of stops in force and returns its generation.
    pub fn set_stops(&self, stops: Vec<Arc<Stop>>) -> u64 {
        self.publish(|rules| Rules { policy: Arc::clone(&rules.policy), stops, generation: 0 })
    }

    fn publish(&self, change: impl FnOnce(&Rules) -> Rules) -> u64 {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.current.load();
        let generation = current.generation + 1;
        self.current.store(Arc::new(Rules { generation, ..change(&current) }));
        generation
    }
}
