//! What an agent did in the last 60 seconds, for rules that ask for it; for nobody else anything is kept.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::decide::limit::{Span, Window};
use crate::decide::subject::Recent;

const WITHIN: Duration = Duration::from_secs(60);

/// Counts of one agent. What is up to a second older than the 60 may still be among them. The lock is held for moments,
/// by messages of this agent.
#[derive(Debug)]
pub struct Deeds {
    begun: Instant,
    windows: Mutex<Windows>,
}

#[derive(Debug, Default)]
struct Windows {
    calls: Window,
    denials: Window,
}

impl Deeds {
    /// Nothing was done yet.
    pub fn new(begun: Instant) -> Deeds {
        Deeds { begun, windows: Mutex::default() }
    }

    /// A request was let through.
    pub fn note_call(&self, now: Instant) {
        self.windows().calls.add(Span::new(WITHIN), self.micros(now), 1);
    }

    /// A message was refused by a rule, a guard or a default.
    pub fn note_denial(&self, now: Instant) {
        self.windows().denials.add(Span::new(WITHIN), self.micros(now), 1);
    }

    /// What was noted in the last 60 seconds.
    pub fn recent(&self, now: Instant) -> Recent {
        let (span, at, mut windows) = (Span::new(WITHIN), self.micros(now), self.windows());
        Recent { calls: windows.calls.used(span, at), denials: windows.denials.used(span, at) }
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn micros(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.begun).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_minute_is_recent() {
        let begun = Instant::now();
        let (deeds, at) = (Deeds::new(begun), |ms: u64| begun + Duration::from_millis(ms));
        assert_eq!(deeds.recent(at(0)), Recent::default());
        deeds.note_call(at(500));
        deeds.note_call(at(30_000));
        deeds.note_denial(at(30_000));
        let check =
            |ms, calls, denials| assert_eq!(deeds.recent(at(ms)), Recent { calls, denials }, "{ms} ms");
        check(60_500, 2, 1);
        check(61_500, 1, 1);
        check(91_000, 0, 0);
    }
}
