//! Waiting for a condition, with a deadline; nothing in the tests sleeps for a fixed time.

use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Long enough for a loaded machine of two cores; a test that passes never waits for it.
pub const DEADLINE: Duration = Duration::from_secs(20);

const POLL: Duration = Duration::from_millis(10);

/// Asks `ready` until it has an answer, and panics with `what` when it has none before the deadline.
pub fn wait_for<T>(what: &str, ready: impl FnMut() -> Option<T>) -> T {
    within(DEADLINE, ready).unwrap_or_else(|| panic!("waited {DEADLINE:?} for {what}"))
}

/// Asks `ready` until it has an answer or the time is over.
pub fn within<T>(time: Duration, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + time;
    loop {
        if let Some(answer) = ready() {
            return Some(answer);
        }
        if Instant::now() >= until {
            return None;
        }
        thread::sleep(POLL);
    }
}

/// Now on the clock that the peers' logs use.
pub fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("there is a monotonic clock");
    now.tv_sec() * 1_000_000_000 + now.tv_nsec()
}
