//! Rules that stop an agent: at the first message they match, or after so many denials within so much time. The time
//! comes in from the caller.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::policy::Mode;
use super::stop::Level;

/// A rule with `action: stop`.
#[derive(Debug)]
pub struct Tripwire {
    /// Id of the rule.
    pub rule: Arc<str>,
    pub mode: Mode,
    /// `None`: the first message it matches is refused, and trips it.
    pub after: Option<After>,
    /// How far its stop goes.
    pub level: Level,
    pub reason: Arc<str>,
}

/// How many denials trip a rule.
#[derive(Clone, Copy, Debug)]
pub struct After {
    pub denials: usize,
    /// Between the first of them and the last.
    pub within: Duration,
}

/// What agents were denied lately, as far as a rule counts it.
#[derive(Debug, Default)]
pub struct Counts {
    /// By agent and rule.
    windows: HashMap<(Arc<str>, Arc<str>), Window>,
}

#[derive(Debug, Default)]
struct Window {
    /// The last ones, no more of them than trip the rule.
    denials: VecDeque<Instant>,
    within: Duration,
    /// The stop is ordered, and not made yet.
    ordered: bool,
}

impl Counts {
    /// Counts a denial. True: with it the number is full, and no stop is ordered yet.
    pub fn deny(&mut self, agent: &Arc<str>, rule: &Arc<str>, after: After, now: Instant) -> bool {
        let key = (Arc::clone(agent), Arc::clone(rule));
        if !self.windows.contains_key(&key) {
            // Agents come and go: what has run out is not kept.
            self.windows.retain(|_, window| window.ordered || !window.has_run_out(now));
        }
        let window = self.windows.entry(key).or_default();
        if window.ordered {
            return false;
        }
        window.within = after.within;
        window.denials.push_back(now);
        let is_old = |at: &Instant| now.duration_since(*at) > after.within;
        while window.denials.len() > after.denials || window.denials.front().is_some_and(is_old) {
            window.denials.pop_front();
        }
        window.denials.len() >= after.denials
    }

    /// Notes that the stop is being ordered. False: it was already.
    pub fn order(&mut self, agent: &Arc<str>, rule: &Arc<str>) -> bool {
        let window = self.windows.entry((Arc::clone(agent), Arc::clone(rule))).or_default();
        !std::mem::replace(&mut window.ordered, true)
    }

    /// The order did not get through: the next denial gives it again.
    pub fn take_back(&mut self, agent: &Arc<str>, rule: &Arc<str>) {
        if let Some(window) = self.windows.get_mut(&(Arc::clone(agent), Arc::clone(rule))) {
            window.ordered = false;
        }
    }

    /// The order was carried out: the count starts again.
    pub fn forget(&mut self, agent: &Arc<str>, rule: &Arc<str>) {
        self.windows.remove(&(Arc::clone(agent), Arc::clone(rule)));
    }
}

impl Window {
    fn has_run_out(&self, now: Instant) -> bool {
        self.denials.back().is_none_or(|last| now.duration_since(*last) > self.within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: After = After { denials: 3, within: Duration::from_secs(60) };

    struct Test {
        counts: Counts,
        begun: Instant,
        agent: Arc<str>,
        rule: Arc<str>,
    }

    impl Test {
        fn new() -> Test {
            Test { counts: Counts::default(), begun: Instant::now(), agent: "coder".into(), rule: "r".into() }
        }

        fn deny(&mut self, at_ms: u64) -> bool {
            self.counts.deny(&self.agent, &self.rule, AFTER, self.begun + Duration::from_millis(at_ms))
        }
    }

    #[test]
    fn the_window_ends_with_its_last_moment() {
        let mut test = Test::new();
        assert_eq!([0, 1, 60_000].map(|at| test.deny(at)), [false, false, true]);
        let mut test = Test::new();
        assert_eq!([0, 1, 60_001].map(|at| test.deny(at)), [false; 3], "the first is too old by 1 ms");
        assert!(test.deny(60_001), "the others are not");
    }

    #[test]
    fn the_window_slides() {
        let mut test = Test::new();
        assert_eq!(
            [0, 50_000, 61_000, 120_000, 122_000, 123_000].map(|at| test.deny(at)),
            [false, false, false, false, false, true]
        );
    }

    #[test]
    fn agents_and_rules_are_counted_apart() {
        let mut test = Test::new();
        test.deny(0);
        test.deny(0);
        test.agent = "sibling".into();
        assert!(!test.deny(0));
        (test.agent, test.rule) = ("coder".into(), "other".into());
        assert!(!test.deny(0));
        test.rule = "r".into();
        assert!(test.deny(0));
    }

    #[test]
    fn an_order_is_given_once_and_then_the_count_starts_again() {
        let mut test = Test::new();
        assert_eq!([0, 1, 2].map(|at| test.deny(at)), [false, false, true]);
        let (agent, rule) = (Arc::clone(&test.agent), Arc::clone(&test.rule));
        assert!(test.counts.order(&agent, &rule) && !test.counts.order(&agent, &rule));
        assert!(!test.deny(3), "while the stop is being made nothing counts");
        test.counts.forget(&agent, &rule);
        assert_eq!([4, 5, 6].map(|at| test.deny(at)), [false, false, true]);
    }

    #[test]
    fn an_order_that_did_not_get_through_is_given_again() {
        let mut test = Test::new();
        assert_eq!([0, 1, 2].map(|at| test.deny(at)), [false, false, true]);
        let (agent, rule) = (Arc::clone(&test.agent), Arc::clone(&test.rule));
        assert!(test.counts.order(&agent, &rule));
        test.counts.take_back(&agent, &rule);
        assert!(test.deny(3) && test.counts.order(&agent, &rule));
    }

    #[test]
    fn memory_is_bounded() {
        let mut test = Test::new();
        for at in 0..1000 {
            test.deny(at);
        }
        assert_eq!(
            test.counts.windows.values().map(|window| window.denials.len()).sum::<usize>(),
            AFTER.denials
        );
        test.agent = "sibling".into();
        test.deny(120_000);
        assert_eq!(test.counts.windows.len(), 1, "what has run out is forgotten");
    }
}
