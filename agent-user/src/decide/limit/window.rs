//! What was counted within a span of time that moves along, in bounded memory: a ring of slices.
//!
//! It errs on one side only. A slice counts until all of it is out of the window, so within no span of the window's
//! length, wherever it begins, is more let through than was allowed; but what was counted may go on counting for one
//! more slice, a 60th of the window.

use std::collections::VecDeque;
use std::time::Duration;

/// Slices of a window.
const SLICES: u64 = 60;

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Microseconds of a slice; at least one.
    slice: u64,
}

/// What was counted: at most 61 slices with something in them, of 16 bytes each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Numbers of slices, ascending, and what each has.
    slices: VecDeque<(u64, u64)>,
    total: u64,
}

impl Span {
    pub fn new(within: Duration) -> Span {
        let micros = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
        Span { slice: micros.div_ceil(SLICES).max(1) }
    }

    /// As [`Span::slice_us`] has told.
    pub fn of_slice(micros: u64) -> Span {
        Span { slice: micros.max(1) }
    }

    /// Microseconds of a slice.
    pub fn slice_us(self) -> u64 {
        self.slice
    }

    /// The time the window takes, at least what it was made of.
    pub fn length(self) -> Duration {
        Duration::from_micros(self.slice.saturating_mul(SLICES))
    }

    fn number(self, at: u64) -> u64 {
        at / self.slice
    }

    /// The moment at which a slice counts no more.
    fn end_of(self, number: u64) -> u64 {
        number.saturating_add(SLICES + 1).saturating_mul(self.slice)
    }
}

/// Moments are microseconds since whatever moment the caller likes, but always the same one.
impl Window {
    /// What counts now.
    pub fn used(&mut self, span: Span, now: u64) -> u64 {
        while let Some((number, amount)) = self.slices.front().copied()
            && span.end_of(number) <= now
        {
            self.slices.pop_front();
            self.total = self.total.saturating_sub(amount);
        }
        self.total
    }

    /// Counts something. Returns the number of the slice it is in.
    pub fn add(&mut self, span: Span, now: u64, amount: u64) -> u64 {
        self.used(span, now);
        let number = span.number(now);
        self.total = self.total.saturating_add(amount);
        match self.slices.back_mut() {
            // Whoever read the clock earlier, and comes later, counts with those before it.
            Some((last, sum)) if *last >= number => {
                *sum = sum.saturating_add(amount);
                *last
            }
            _ => {
                self.slices.push_back((number, amount));
                number
            }
        }
    }

    /// Takes back what was counted in a slice, unless it counts no more.
    pub fn take_back(&mut self, number: u64, amount: u64) {
        let Ok(index) = self.slices.binary_search_by_key(&number, |(number, _)| *number) else { return };
        let Some((_, sum)) = self.slices.get_mut(index) else { return };
        let amount = amount.min(*sum);
        *sum -= amount;
        self.total = self.total.saturating_sub(amount);
        if *sum == 0 {
            self.slices.remove(index);
        }
    }

    /// When no more than `left` of what counts now will count.
    pub fn falls_to(&self, span: Span, left: u64) -> Option<u64> {
        let mut total = self.total;
        self.slices.iter().find_map(|(number, amount)| {
            total = total.saturating_sub(*amount);
            (total <= left).then(|| span.end_of(*number))
        })
    }

    /// Nothing counts any more.
    pub fn is_over(&self, span: Span, now: u64) -> bool {
        self.slices.back().is_none_or(|(number, _)| span.end_of(*number) <= now)
    }

    /// Numbers of slices, ascending, and what each has.
    pub fn slices(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.slices.iter().copied()
    }

    /// What [`Window::slices`] has told. A clock that was set back since must not make it count for longer than from
    /// now on.
    pub fn restore(span: Span, now: u64, slices: &[(u64, u64)]) -> Window {
        let mut slices = slices.to_vec();
        slices.sort_unstable();
        let mut window = Window::default();
        for (number, amount) in slices {
            window.add(span, number.saturating_mul(span.slice).min(now), amount);
        }
        window.used(span, now);
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slices of one second.
    const SPAN: Span = Span { slice: 1_000_000 };
    const S: u64 = 1_000_000;

    #[test]
    fn what_was_counted_counts_for_the_window_and_less_than_a_slice_more() {
        assert_eq!(Span::new(Duration::from_secs(60)), SPAN);
        let check = |at: u64, now: u64, expect: u64| {
            let mut window = Window::default();
            window.add(SPAN, at, 1);
            assert_eq!(window.used(SPAN, now), expect, "{at} at {now}");
            assert_eq!(window.is_over(SPAN, now), expect == 0);
        };
        check(0, 60 * S, 1);
        check(0, 61 * S - 1, 1);
        check(0, 61 * S, 0);
        check(S - 1, 61 * S - 1, 1);
        check(S - 1, 61 * S, 0);
        check(S, 61 * S, 1);
    }

    #[test]
    fn windows_shorter_than_their_slices_could_be_are_longer() {
        for micros in [0, 1, 59, 60, 61, 119, 7_777] {
            assert!(Span::new(Duration::from_micros(micros)).length() >= Duration::from_micros(micros));
        }
        assert!(Span::new(Duration::MAX).length() > Duration::from_secs(1 << 40));
    }

    #[test]
    fn it_is_told_when_there_will_be_room() {
        let mut window = Window::default();
        for (at, amount) in [(0, 2), (5 * S, 3), (9 * S, 4)] {
            window.add(SPAN, at, amount);
        }
        let check = |left, expect| assert_eq!(window.falls_to(SPAN, left), expect, "{left}");
        check(8, Some(61 * S));
        check(7, Some(61 * S));
        check(6, Some(66 * S));
        check(0, Some(70 * S));
        assert_eq!(Window::default().falls_to(SPAN, 0), None);
    }

    #[test]
    fn what_is_taken_back_never_counted() {
        let mut window = Window::default();
        let first = window.add(SPAN, 0, 2);
        let second = window.add(SPAN, 3 * S, 1);
        window.take_back(second, 1);
        assert_eq!((window.used(SPAN, 3 * S), window.slices().len()), (2, 1));
        window.take_back(first, 1);
        window.take_back(first, 9);
        window.take_back(7, 9);
        assert_eq!(window, Window::default());
    }

    #[test]
    fn a_clock_that_goes_back_makes_nothing_run_out_early() {
        let mut window = Window::default();
        window.add(SPAN, 10 * S, 1);
        assert_eq!(window.add(SPAN, 3 * S, 1), 10);
        assert_eq!(window.used(SPAN, 71 * S - 1), 2);
        // Over a restart it may be set back by far.
        let saved: Vec<_> = window.slices().collect();
        let mut window = Window::restore(SPAN, 2 * S, &saved);
        assert_eq!((window.used(SPAN, 63 * S - 1), window.used(SPAN, 63 * S)), (2, 0));
    }

    /// Against a plain list of everything that was let through.
    #[test]
    fn no_span_of_the_window_has_more_than_the_bound_and_room_is_not_held_back_for_long() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            // xorshift64
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for round in 0..200_u64 {
            let span = Span::new(Duration::from_micros(1 + random(5_000)));
            let length = u64::try_from(span.length().as_micros()).unwrap();
            let (bound, pace) = (1 + random(40), 1 + random(length / 4 + 1));
            let (mut window, mut now, mut passed) = (Window::default(), random(1 << 40), Vec::new());
            for _ in 0..400 {
                now += random(pace);
                let counted = |age: u64| {
                    passed.iter().filter(|(at, _)| *at + age >= now).map(|(_, amount)| amount).sum::<u64>()
                };
                let amount = 1 + random(3);
                let fits = window.used(span, now) + amount <= bound;
                assert!(!fits || counted(length) + amount <= bound, "round {round}: too many");
                assert!(fits || counted(length + span.slice_us()) + amount > bound, "round {round}: too few");
                if fits {
                    let number = window.add(span, now, amount);
                    if random(4) == 0 {
                        window.take_back(number, amount);
                    } else {
                        passed.push((now, amount));
                    }
                } else if let Some(then) = window.falls_to(span, bound.saturating_sub(amount)) {
                    assert!(window.clone().used(span, then) + amount <= bound || amount > bound);
                    assert!(window.clone().used(span, then - 1) + amount > bound);
                }
                assert!(window.slices().len() <= 61 && window.slices.capacity() <= 64);
                let saved: Vec<_> = window.slices().collect();
                assert_eq!(Window::restore(span, now, &saved).used(span, now), window.used(span, now));
            }
        }
    }
}
