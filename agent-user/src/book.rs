//! What each stop found in flight, and what became of it. Connections write here, orders and reviewers read.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::Notify;

use crate::decide::stop::Stop;
use crate::fate::Fate;
use crate::ledger::{Call, Conn};
use crate::orders::receipt::{ReleaseView, Report};
use crate::record::entry::{Entry, StopEffect};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::tasks::Task;

/// One call a stop ran into.
#[derive(Clone, Debug, Serialize)]
pub struct Caught {
    pub agent: Arc<str>,
    pub conn: u64,
    #[serde(flatten)]
    pub call: Call,
    /// The call was answered with a task, which is what was caught.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Box<str>>,
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

/// What is known of one stop beyond its order.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Of the last order that was carried out.
    pub report: Option<Report>,
    pub calls: Vec<Caught>,
    pub released: Option<ReleaseView>,
    /// The stop itself, once it is released.
    pub stop: Option<Arc<Stop>>,
}

/// What every stop in force did and caught, and a few that were released.
#[derive(Debug)]
pub struct Book {
    stops: Mutex<Stops>,
    changed: Notify,
    log: Arc<Log>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Stops {
    pages: BTreeMap<Arc<str>, Page>,
    /// Released, but perhaps still being answered or followed; oldest first.
    released: VecDeque<Arc<str>>,
}

/// Released stops whose pages are kept in memory.
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
            task: None,
            fate,
            fate_at: Timestamp::now(),
            open,
            late: None,
        });
        self.stops().pages.entry(Arc::clone(&stop.id)).or_default().calls.extend(caught);
        for call in calls {
            self.metrics.stop_call(fate);
            self.record(stop, agent, conn.id, call, fate, None);
        }
    }

    /// Files a task whose call was answered before the stop came, and which its server goes on with.
    pub fn file_task(&self, stop: &Stop, task: &Task) {
        let caught = Caught {
            agent: Arc::clone(&task.conn.identity.agent.name),
            conn: task.conn.id,
            call: task.call.clone(),
            task: Some(task.id.clone()),
            fate: Fate::Sent,
            fate_at: Timestamp::now(),
            open: true,
            late: None,
        };
        self.stops().pages.entry(Arc::clone(&stop.id)).or_default().calls.push(caught);
        self.metrics.stop_call(Fate::Sent);
        self.record(stop, &task.conn.identity.agent.name, task.conn.id, &task.call, Fate::Sent, None);
    }

    /// The fate of a caught call became known. It is recorded whether or not the stop is still in force.
    pub fn settle(&self, stop: &Stop, conn: &Conn, call: &Call, fate: Fate, late: Option<Late>) {
        self.record(stop, &conn.identity.agent.name, conn.id, call, fate, late.as_ref());
        let mut stops = self.stops();
        let caught = stops.pages.get_mut(&stop.id).and_then(|page| {
            page.calls
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

    /// What carrying out a stop came to.
    pub fn report(&self, stop: &Stop, report: Report) {
        self.stops().pages.entry(Arc::clone(&stop.id)).or_default().report = Some(report);
    }

    /// What is known of a stop; `None` for one that this daemon has not carried out.
    pub fn page(&self, stop: &str) -> Option<Page> {
        self.stops().pages.get(stop).cloned()
    }

    /// Waits until no fate of a stop is open. Cancel it to give up.
    pub async fn settled(&self, stop: &str) {
        loop {
            let changed = self.changed.notified();
            let is_open = |page: &Page| page.calls.iter().any(|caught| caught.open);
            if !self.stops().pages.get(stop).is_some_and(is_open) {
                return;
            }
            changed.await;
        }
    }

    /// A stop was released: its page is kept for a while, for whoever still follows it. The records keep it.
    pub fn release(&self, stop: &Arc<Stop>, release: ReleaseView) {
        let mut stops = self.stops();
        let page = stops.pages.entry(Arc::clone(&stop.id)).or_default();
        (page.released, page.stop) = (Some(release), Some(Arc::clone(stop)));
        stops.released.push_back(Arc::clone(&stop.id));
        if stops.released.len() > RELEASED
            && let Some(oldest) = stops.released.pop_front()
        {
            stops.pages.remove(&oldest);
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
