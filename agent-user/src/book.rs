//! What each stop found in flight, and what became of it. Connections write here, orders and reviewers read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Notify;

use crate::decide::stop::Stop;
use crate::ledger::{Call, Conn, Fate};
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
}

/// The calls caught by every stop in force.
#[derive(Debug)]
pub struct Book {
    stops: Mutex<BTreeMap<Arc<str>, Vec<Caught>>>,
    changed: Notify,
    log: Arc<Log>,
    metrics: Arc<Metrics>,
}

impl Book {
    pub fn new(log: Arc<Log>, metrics: Arc<Metrics>) -> Book {
        Book { stops: Mutex::default(), changed: Notify::new(), log, metrics }
    }

    fn stops(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Vec<Caught>>> {
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
        self.stops().entry(Arc::clone(&stop.id)).or_default().extend(caught);
        for call in calls {
            self.metrics.stop_call(fate);
            self.record(stop, agent, conn.id, call, fate, None);
        }
    }

    /// The fate of a caught call became known.
    pub fn settle(&self, stop: &Stop, conn: &Conn, rpc_id: &str, fate: Fate, late: Option<Late>) {
        let mut stops = self.stops();
        let Some(caught) = stops.get_mut(&stop.id).and_then(|calls| {
            calls.iter_mut().find(|caught| {
                caught.open && caught.conn == conn.id && caught.call.rpc_id.as_deref() == Some(rpc_id)
            })
        }) else {
            return;
        };
        if caught.fate != fate {
            self.metrics.stop_call(fate);
        }
        (caught.fate, caught.fate_at, caught.open, caught.late) = (fate, Timestamp::now(), false, late);
        let caught = caught.clone();
        drop(stops);
        self.record(stop, &caught.agent, conn.id, &caught.call, fate, caught.late.as_ref());
        self.changed.notify_waiters();
    }

    /// What a stop has caught so far.
    pub fn caught(&self, stop: &str) -> Vec<Caught> {
        self.stops().get(stop).cloned().unwrap_or_default()
    }

    /// Waits until no fate of a stop is open. Cancel it to give up.
    pub async fn settled(&self, stop: &str) {
        loop {
            let changed = self.changed.notified();
            if !self.stops().get(stop).is_some_and(|calls| calls.iter().any(|caught| caught.open)) {
                return;
            }
            changed.await;
        }
    }

    /// Drops what a released stop had caught; the records keep it.
    pub fn forget(&self, stop: &str) {
        self.stops().remove(stop);
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
        }));
    }
}
