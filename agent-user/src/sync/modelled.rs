//! What loom has no stand-in for, with the promises of the originals and no more.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Mutex, MutexGuard};

/// A shared pointer that is replaced: `arc_swap::ArcSwap`. A load may give an older value than the last one stored,
/// unless something else orders the two.
#[derive(Debug)]
pub struct ArcSwap<T> {
    current: AtomicUsize,
    /// Every value there ever was. Loom does not see this lock, which orders nothing.
    values: std::sync::Mutex<Vec<Arc<T>>>,
}

/// What a load gives.
pub type Guard<T> = T;

impl<T> ArcSwap<T> {
    pub fn from_pointee(value: T) -> ArcSwap<T> {
        ArcSwap { current: AtomicUsize::new(0), values: std::sync::Mutex::new(vec![Arc::new(value)]) }
    }

    fn values(&self) -> std::sync::MutexGuard<'_, Vec<Arc<T>>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn load(&self) -> Guard<Arc<T>> {
        let current = self.current.load(Ordering::Acquire);
        Arc::clone(&self.values()[current])
    }

    pub fn store(&self, value: Arc<T>) {
        let index = {
            let mut values = self.values();
            values.push(value);
            values.len() - 1
        };
        self.current.store(index, Ordering::Release);
    }
}

/// `tokio::sync::Notify`, fair to those who wait.
#[derive(Debug)]
pub struct Notify {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    permit: bool,
    /// How often all were notified.
    rounds: usize,
    waiting: VecDeque<Waker>,
}

impl Notify {
    pub fn new() -> Notify {
        Notify { state: Mutex::new(State::default()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes one that waits, or the next that will.
    pub fn notify_one(&self) {
        let woken = {
            let mut state = self.state();
            state.permit = true;
            state.waiting.pop_front()
        };
        if let Some(waker) = woken {
            waker.wake();
        }
    }

    /// Wakes all that wait.
    pub fn notify_waiters(&self) {
        let woken = {
            let mut state = self.state();
            state.rounds += 1;
            std::mem::take(&mut state.waiting)
        };
        woken.into_iter().for_each(Waker::wake);
    }

    /// Waits from now on, not only from the first poll.
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, since: self.state().rounds }
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

/// Waits for a notification.
#[derive(Debug)]
pub struct Notified<'a> {
    notify: &'a Notify,
    since: usize,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.notify.state();
        if state.rounds > self.since || std::mem::take(&mut state.permit) {
            return Poll::Ready(());
        }
        // A task polls again for other reasons, too.
        if !state.waiting.iter().any(|waiting| waiting.will_wake(context.waker())) {
            state.waiting.push_back(context.waker().clone());
        }
        Poll::Pending
    }
}
