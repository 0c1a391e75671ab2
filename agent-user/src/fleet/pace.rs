//! How often the status of a stop is written. Each status is told to every node: written each second while thousands of answers
//! come in, it would be told more often than the stop itself by far.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::resources::AgentStopStatus;

/// After how long the next status of a stop may be written, at first and at most; it doubles with each.
const FIRST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(8);

/// When what was written, by uid of the stop.
#[derive(Debug, Default)]
pub(super) struct Pace {
    written: HashMap<String, Written>,
}

#[derive(Debug)]
struct Written {
    at: Instant,
    /// The next one comes no sooner, unless it is the last.
    next: Duration,
}

impl Pace {
    /// Whether it is time to write this: one that says that every node has it in force and no fate is open is not kept waiting.
    pub(super) fn is_due(&self, uid: &str, status: &AgentStopStatus, now: Instant) -> bool {
        let is_last = status.nodes_in_force >= status.nodes && status.open == 0;
        is_last || self.written.get(uid).is_none_or(|last| now - last.at >= last.next)
    }

    /// It was written.
    pub(super) fn written(&mut self, uid: &str, now: Instant) {
        let next = self.written.get(uid).map_or(FIRST, |last| (last.next * 2).min(MOST));
        self.written.insert(uid.to_owned(), Written { at: now, next });
    }

    /// Forgets the stops that are no more.
    pub(super) fn keep_only(&mut self, is_there: impl Fn(&str) -> bool) {
        self.written.retain(|uid, _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_come_ever_less_often_and_the_last_at_once() {
        let mut pace = Pace::default();
        let status = |nodes_in_force, open| AgentStopStatus {
            nodes: 3,
            nodes_in_force,
            open,
            ..AgentStopStatus::default()
        };
        let start = Instant::now();
        let mut written = Vec::new();
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            if pace.is_due("a", &status(1, 0), now) {
                pace.written("a", now);
                written.push(second);
            }
        }
        assert_eq!(written, [0, 1, 3, 7, 15, 23, 31, 39, 47, 55]);
        let now = start + Duration::from_secs(60);
        assert!(!pace.is_due("a", &status(3, 1), now), "a fate is open");
        assert!(pace.is_due("a", &status(3, 0), now));
        assert!(pace.is_due("b", &status(1, 0), now), "another stop");
        pace.keep_only(|uid| uid != "a");
        assert!(pace.is_due("a", &status(1, 0), now), "forgotten");
    }
}
