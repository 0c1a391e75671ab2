//! What each stop found in flight, and what became of it. Connections write here, orders and reviewers read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Notify;

use crate::decide::stop::Stop;
use crate::fate::Fate;
use crate::ledger::{Call, Conn};
use crate::record::entry::{Entry, StopEffect};
use crate::record::log::Log;
use crate::record::metrics::Metrics;

/// One call a stop ran into.
#[derive(Clone, Debug, Serialize)]
pub struct Caught {
    pub agent: Arc<str>,
    pub conn: u64,
    #[serde(flatten)]
    pub call: Call,
    pub fate: Fate,
    /// When the fate became known.
    pub fate_at: Timestamp,
    /// The fate may still change: the server has the call and we are listening.
    pub open: bool,
    /// Of a late answer, which never reaches the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
}

/// What is kept of an answer that came after the stop.
#[derive(Clone, Debug, Serialize)]
pub struct Late {
    pub bytes: usize,
    /// SHA-256 of the JSON-RPC message.
    pub digest: String,
    /// It says that the call failed.
    pub is_error: bool,
}

/// The calls caught by every stop in force.
#[derive(Debug)]
pub struct Book {
    stops: Mutex<Stops>,
    changed: Notify,
    log: Arc<Log>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Stops {
    calls: BTreeMap<Arc<str>, Vec<Caught>>,
    /// Released, but perhaps still being answered or followed; oldest first.
    released: VecDeque<Arc<str>>,
}

/// Released stops whose calls are kept in memory.
const RELEASED: usize = 16;

impl Book {
    pub fn new(log: Arc<Log>, metrics: Arc<Metrics>) -> Book {
        Book { stops: Mutex::default(), changed: Notify::new(), log, metrics }
    }

    fn stops(&self) -> MutexGuard<'_, Stops> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files the calls a stop found on a connection. `open`: their fate may still become known.
    pub fn file(&self, stop: &Stop, conn: &Conn, calls: &[Call], fate: Fate, open: bool) {
        let agent = &conn.identity.agent.name;
        let caught = calls.iter().map(|call| Caught {
            agent: Arc::clone(agent),
            conn: conn.id,
            call: call.clone(),
            fate,
            fate_at: Timestamp::now(),
            open,
            late: None,
        });
        self.stops().calls.entry(Arc::clone(&stop.id)).or_default().extend(caught);
        for call in calls {
            self.metrics.stop_call(fate);
            self.record(stop, agent, conn.id, call, fate, None);
        }
    }

    /// The fate of a caught call became known. It is recorded whether or not the stop is still in force.
    pub fn settle(&self, stop: &Stop, conn: &Conn, call: &Call, fate: Fate, late: Option<Late>) {
        self.record(stop, &conn.identity.agent.name, conn.id, call, fate, late.as_ref());
        let mut stops = self.stops();
        let caught = stops.calls.get_mut(&stop.id).and_then(|calls| {
            calls
                .iter_mut()
                .find(|caught| caught.open && caught.conn == conn.id && caught.call.decision == call.decision)
        });
        if let Some(caught) = caught {
            if caught.fate != fate {
                self.metrics.stop_call(fate);
            }
            (caught.fate, caught.fate_at, caught.open, caught.late) = (fate, Timestamp::now(), false, late);
        }
        drop(stops);
        self.changed.notify_waiters();
    }

    /// What a stop has caught so far.
    pub fn caught(&self, stop: &str) -> Vec<Caught> {
        self.stops().calls.get(stop).cloned().unwrap_or_default()
    }

    /// Waits until no fate of a stop is open. Cancel it to give up.
    pub async fn settled(&self, stop: &str) {
        loop {
            let changed = self.changed.notified();
            if !self.stops().calls.get(stop).is_some_and(|calls| calls.iter().any(|caught| caught.open)) {
                return;
            }
            changed.await;
        }
    }

    /// A stop was released: what it caught is kept for a while, for whoever still waits for it. The records keep it.
    pub fn release(&self, stop: &Arc<str>) {
        let mut stops = self.stops();
        stops.released.push_back(Arc::clone(stop));
        if stops.released.len() > RELEASED
            && let Some(oldest) = stops.released.pop_front()
        {
            stops.calls.remove(&oldest);
        }
    }

    fn record(&self, stop: &Stop, agent: &str, conn: u64, call: &Call, fate: Fate, late: Option<&Late>) {
        self.log.record(&Entry::StopEffect(StopEffect {
            stop: &stop.id,
            agent,
            conn,
            call,
            fate,
            bytes: late.map(|late| late.bytes),
            digest: late.map(|late| &*late.digest),
            is_error: late.map(|late| late.is_error),
        }));
    }
}
