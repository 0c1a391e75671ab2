//! The thread that writes: whatever has changed meanwhile in one transaction, and orders one by one. It alone has the
//! store, so operators ask it, too, for what memory does not hold.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tracing::{error, info};

use super::change::Change;
use super::export::{self, Wanted};
use super::file::FILE;
use super::id;
use super::known::Known;
use super::order::{Kept, Order, Refusal, Review};
use super::orders::{Plan, Wish};
use super::store::{Fault, Store};
use crate::fingerprint::Fingerprint;

/// Orders and questions that wait. Further ones are refused.
const MOST_ASKS: usize = 64;
/// When to try again what could not be written.
const AGAIN: Duration = Duration::from_secs(5);

/// What is shared with the thread.
#[derive(Debug)]
pub(super) struct Shared {
    known: Mutex<Known>,
    queue: Mutex<Queue>,
    told: Condvar,
    pub(super) progress: watch::Sender<Progress>,
}

#[derive(Debug, Default)]
struct Queue {
    asks: VecDeque<Ask>,
    /// Something is to be written.
    work: bool,
    end: bool,
}

/// What an operator asks.
#[derive(Debug)]
pub(super) enum Ask {
    Show(String, oneshot::Sender<Result<Review, Refusal>>),
    Export(Wanted, oneshot::Sender<Result<String, Refusal>>),
    Order(Wish, Order, oneshot::Sender<Result<Vec<Change>, Refusal>>),
}

/// How far writing has come, by [`super::pending::Pending::generation`].
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    pub(super) saved: u64,
    /// The last that could not be written.
    pub(super) failed: u64,
    /// How often writing was tried.
    pub(super) tries: u64,
    pub(super) error: Option<Arc<str>>,
}

/// The thread's own.
pub(super) struct Writer {
    shared: Arc<Shared>,
    store: Store,
}

fn fault(error: Fault) -> Refusal {
    Refusal::Fault(format!("{FILE}: {error} (see to its disk, and try again)"))
}

impl Shared {
    pub(super) fn new(known: Known) -> Shared {
        Shared {
            known: Mutex::new(known),
            queue: Mutex::default(),
            told: Condvar::new(),
            progress: watch::Sender::new(Progress::default()),
        }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is to be written.
    pub(super) fn wake(&self) {
        self.queue().work = true;
        self.told.notify_one();
    }

    pub(super) fn ask(&self, ask: Ask) -> Result<(), Refusal> {
        let mut queue = self.queue();
        if queue.asks.len() >= MOST_ASKS {
            return Err(Refusal::Unsaved(format!("{MOST_ASKS} orders wait already (try again)")));
        }
        queue.asks.push_back(ask);
        self.told.notify_one();
        Ok(())
    }

    /// Ends the thread once it has written what there is, if it can.
    pub(super) fn end(&self) {
        self.queue().end = true;
        self.told.notify_one();
    }
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, store: Store) -> Writer {
        Writer { shared, store }
    }

    /// Writes until it is told to end.
    pub(super) fn run(mut self) {
        loop {
            let (asks, end) = self.wait();
            let _ = self.write(None);
            for ask in asks {
                match ask {
                    Ask::Show(id, reply) => drop(reply.send(self.show(&id))),
                    Ask::Export(wanted, reply) => drop(reply.send(self.export(&wanted))),
                    Ask::Order(wish, order, reply) => drop(reply.send(self.carry_out(&wish, order))),
                }
            }
            if end {
                return;
            }
        }
    }

    /// Waits for something to do.
    fn wait(&self) -> (VecDeque<Ask>, bool) {
        let mut queue = self.shared.queue();
        let unsaved = self.shared.progress.borrow().error.is_some();
        let idle = |queue: &mut Queue| !queue.work && !queue.end && queue.asks.is_empty();
        queue = match unsaved {
            true => {
                self.shared
                    .told
                    .wait_timeout_while(queue, AGAIN, idle)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
            false => self.shared.told.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner),
        };
        queue.work = false;
        (std::mem::take(&mut queue.asks), queue.end)
    }

    /// Writes what has changed, and what an order does.
    fn write(&mut self, plan: Option<&Plan>) -> Result<(), Arc<str>> {
        let (pending, batch) = self.shared.known().batch(plan);
        let generation = pending.generation;
        let written = if batch.is_empty() { Ok(()) } else { self.store.write(&batch) };
        let error: Option<Arc<str>> = written.err().map(|error| format!("{FILE}: {error}").into());
        if let Some(error) = &error {
            self.shared.known().pending.put_back(pending);
            error!(error = &**error, "what servers show is not saved");
        }
        self.shared.progress.send_modify(|progress| {
            progress.tries += 1;
            match &error {
                None => progress.saved = progress.saved.max(generation),
                Some(_) => progress.failed = generation,
            }
            if progress.error.is_some() && error.is_none() {
                info!("what servers show is saved again");
            }
            progress.error.clone_from(&error);
        });
        error.map_or(Ok(()), Err)
    }

    fn carry_out(&mut self, wish: &Wish, order: Order) -> Result<Vec<Change>, Refusal> {
        let plan = self.shared.known().plan(wish, order)?;
        match self.write(Some(&plan)) {
            Ok(()) => Ok(self.shared.known().carry_out(&plan)),
            Err(error) => {
                self.shared.known().give_up(&plan);
                Err(Refusal::Unsaved(error.to_string()))
            }
        }
    }

    fn show(&mut self, id: &str) -> Result<Review, Refusal> {
        let (summary, seen, trusted, key) = {
            let known = self.shared.known();
            let (list, name, item) = known.find_id(id)?;
            let trusted = known.trusted(list, name, item);
            let trusted = trusted.map(|trusted| (*trusted.fingerprint, trusted.text.cloned()));
            (known.summary(list, name, item), item.seen, trusted, (list.number, name.clone()))
        };
        let seen = self.kept(seen).map_err(fault)?;
        let document = |(trusted, text): (Fingerprint, Option<Arc<str>>)| {
            let kept = self.kept(trusted)?;
            // What was never shown here is known from the document alone.
            Ok(match (&kept.text, text) {
                (None, Some(text)) => {
                    Kept { bytes: text.len() as u64, text: Some(text.as_ref().to_owned()), ..kept }
                }
                _ => kept,
            })
        };
        let trusted = trusted.map(document).transpose().map_err(fault)?;
        let mut history = self.store.history(&key).map_err(fault)?;
        history.extend_from_slice(self.shared.known().pending.events(&key));
        Ok(Review { summary, seen, trusted, history })
    }

    fn export(&mut self, wanted: &Wanted) -> Result<String, Refusal> {
        let mut trustees = self.shared.known().trustees(wanted);
        for trustee in trustees.iter_mut().filter(|trustee| trustee.text.is_none()) {
            let kept = self.text(trustee.fingerprint).map_err(fault)?;
            trustee.text = kept.and_then(|kept| kept.text);
        }
        export::write(&trustees, wanted.as_object.as_deref()).map_err(Refusal::File)
    }

    fn kept(&mut self, fingerprint: Fingerprint) -> Result<Kept, Fault> {
        let kept = self.text(fingerprint)?;
        Ok(Kept {
            fingerprint,
            text: kept.as_ref().and_then(|kept| kept.text.as_deref()).map(str::to_owned),
            bytes: kept.as_ref().map_or(0, |kept| kept.bytes),
            smells: kept.map_or(serde_json::Value::Null, |kept| kept.smells),
        })
    }

    fn text(&mut self, fingerprint: Fingerprint) -> Result<Option<super::pending::Text>, Fault> {
        let digest = id::digest(&fingerprint);
        let waiting = self.shared.known().pending.texts.get(&digest).cloned();
        waiting.map_or_else(|| self.store.text(digest), |text| Ok(Some(text)))
    }
}
