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

impl Caught {
    fn new(conn: &Conn, call: &Call, task: Option<Box<str>>, fate: Fate, open: bool) -> Caught {
        Caught {
            agent: Arc::clone(&conn.identity.agent.name),
            conn: conn.id,
            call: call.clone(),
            task,
            fate,
            fate_at: Timestamp::now(),
            open,
            late: None,
        }
    }
}

/// What is kept of an answer that came after the stop.
#[derive(Clone, Debug, Serialize)]
pub struct Late {
    /// Of the JSON text that brought it, out of any content coding.
    pub bytes: usize,
    /// SHA-256 of that text.
    pub digest: String,
    /// It says that the call failed.
    pub is_error: bool,
}

/// What is known of one stop beyond its order.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Of every order that was carried out, oldest first.
    pub reports: Vec<Report>,
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
        for call in calls {
            self.add(stop, Caught::new(conn, call, None, fate, open));
        }
    }

    /// Files a task whose call was answered before the stop came, and which its server goes on with.
    pub fn file_task(&self, stop: &Stop, task: &Task) {
        self.add(stop, Caught::new(&task.conn, &task.call, Some(task.id.clone()), Fate::Sent, true));
    }

    fn add(&self, stop: &Stop, caught: Caught) {
        self.metrics.stop_call(caught.fate);
        self.log.record(&Entry::StopEffect(StopEffect { stop: &stop.id, caught: &caught }));
        // One that was released long ago has no page any more, and gets none.
        if let Some(page) = self.stops().pages.get_mut(&stop.id) {
            page.calls.push(caught);
        }
    }

    /// The fate of a caught call, or of its task, became known. It is recorded whether or not the stop is still in force.
    pub fn settle(
        &self,
        stop: &Stop,
        conn: &Conn,
        call: &Call,
        task: Option<&str>,
        fate: Fate,
        late: Option<Late>,
    ) {
        let mut settled = Caught::new(conn, call, task.map(Into::into), fate, false);
        settled.late = late;
        self.log.record(&Entry::StopEffect(StopEffect { stop: &stop.id, caught: &settled }));
        let mut stops = self.stops();
        let page = stops.pages.get_mut(&stop.id);
        let is_same = |caught: &&mut Caught| {
            caught.open && caught.call.decision == call.decision && caught.task == settled.task
        };
        if let Some(caught) = page.and_then(|page| page.calls.iter_mut().find(is_same)) {
            if caught.fate != fate {
                self.metrics.stop_call(fate);
            }
            *caught = settled;
        }
        drop(stops);
        self.changed.notify_waiters();
    }

    /// Begins the page of a stop that is to be carried out.
    pub fn open(&self, stop: &Arc<str>) {
        self.stops().pages.entry(Arc::clone(stop)).or_default();
    }

    /// What carrying out a stop came to.
    pub fn report(&self, stop: &Stop, report: Report) {
        self.stops().pages.entry(Arc::clone(&stop.id)).or_default().reports.push(report);
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
}
