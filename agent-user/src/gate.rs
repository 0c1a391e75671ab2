//! The one place where policy and stops are published. Readers take a snapshot without a lock; writers are
//! serialised and each makes a new generation.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use crate::decide::Rules;
use crate::decide::policy::Policy;
use crate::decide::stop::Stop;

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
