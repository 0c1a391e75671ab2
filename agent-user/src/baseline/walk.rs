//! Walks from page to page of a list. Only one that came from the first page to the last has seen it whole.
//!
//! An item remembers by a bit which of the walks in progress have come past it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use super::place::Page;
use crate::fingerprint::Digest;

/// Walks in progress of one list. When there are more, the one that stands still longest is given up.
const MOST: u32 = u16::BITS;
/// New names that a walk remembers, to look for renamed ones. Further ones are not looked at.
const MOST_NEW: usize = 64;

/// The walks in progress of a list.
#[derive(Debug, Default)]
pub(super) struct Walks(Vec<Walk>);

/// A walk in progress.
#[derive(Debug)]
pub(super) struct Walk {
    walker: u64,
    /// Cursor of the page that comes next.
    next: Digest,
    pub(super) step: Step,
}

/// Where a walk stands after a page.
#[derive(Debug)]
pub(super) struct Step {
    /// Its bit in [`super::list::Item::walked`].
    pub(super) bit: u16,
    /// When it began, and when it came to its last page, in uses.
    pub(super) began: u64,
    used: u64,
    /// Of all names, in order.
    order: DefaultHasher,
    /// Names that were not in the list before.
    pub(super) new: Vec<Arc<str>>,
}

impl Walks {
    /// The walk that this page belongs to. `None`: to none that began at the first page. A walk that is `fresh` has
    /// a bit that may be set in items from an earlier one.
    pub(super) fn step(&mut self, page: &Page, now: u64) -> Option<(Step, bool)> {
        let known = self
            .0
            .iter()
            .position(|walk| walk.walker == page.walker && page.asked.is_none_or(|asked| asked == walk.next));
        let known = known.map(|index| self.0.swap_remove(index));
        if page.asked.is_some() {
            return known.map(|walk| (Step { used: now, ..walk.step }, false));
        }
        if self.0.len() >= MOST as usize
            && let Some(oldest) = (0..self.0.len()).min_by_key(|index| self.0[*index].step.used)
        {
            self.0.swap_remove(oldest);
        }
        let taken = self.0.iter().fold(0, |taken, walk| taken | walk.step.bit);
        let bit = (0..MOST).map(|shift| 1 << shift).find(|bit| taken & bit == 0)?;
        Some((Step { bit, began: now, used: now, order: DefaultHasher::new(), new: Vec::new() }, true))
    }

    /// Goes on to the page with this cursor.
    pub(super) fn go_on(&mut self, walker: u64, next: Digest, step: Step) {
        self.0.push(Walk { walker, next, step });
    }
}

impl Step {
    pub(super) fn pass(&mut self, name: &str) {
        name.hash(&mut self.order);
    }

    pub(super) fn found(&mut self, name: &Arc<str>) {
        if self.new.len() < MOST_NEW {
            self.new.push(name.clone());
        }
    }

    /// Of what it has passed.
    pub(super) fn order(&self) -> u64 {
        self.order.finish()
    }
}
