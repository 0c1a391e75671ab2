//! The counts of rules with `action: limit`, of all agents.
//!
//! Messages that no such rule matches never come here. Those that one does take two locks, each for moments: that of
//! one part of the table, to find the count, and that of the count itself, which is what makes it exact. Nobody waits
//! for IO, nor holds one lock while taking another.
//!
//! Bias: what cannot be counted is refused. Memory is bounded, for each agent apart, so that no agent can have another
//! one's counts dropped; the daemon's restart is no new budget, see [`file`].

mod file;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::decide::limit::{Exceeded, Key, Kind, Limit, Span, Tag, Window};

pub use self::file::SAVE_EVERY;

/// Counts of one agent.
const PER_AGENT: usize = 16_384;
/// Counts of all of them.
const MOST: usize = 65_536;
/// Counts that an agent may have however many the others have.
const ASSURED: usize = 256;
/// Windows from this length on outlive the daemon.
const KEPT_FROM: Duration = Duration::from_secs(60 * 60);
/// With no room left, how often it is looked whether something has run out.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
const SHARDS: usize = 16;

/// All counts.
#[derive(Debug)]
pub struct Limits {
    shards: [Mutex<Shard>; SHARDS],
    owners: Mutex<Owners>,
    /// A moment, and the time then in microseconds since 1970: within the daemon's life a clock that is set changes
    /// nothing.
    begun: (Instant, u64),
    file: file::File,
    /// A count that outlives the daemon has changed since it was saved.
    changed: AtomicBool,
    full: AtomicU64,
}

type Shard = HashMap<Id, Arc<Entry>>;
type Id = (Tag, [u8; 16]);

#[derive(Debug, Default)]
struct Owners {
    counts: HashMap<Arc<str>, usize>,
    total: usize,
    swept: Option<Instant>,
}

/// One count. It stays in the table while a permit holds it.
#[derive(Debug)]
struct Entry {
    owner: Arc<str>,
    count: Mutex<Count>,
}

#[derive(Debug)]
enum Count {
    Within(Span, Window),
    InFlight(u64),
}

/// A message was let through, and is counted. Of a limit of what is in flight it is the slot, and to be kept until the
/// call has ended: dropping it gives the slot back. Of other limits dropping it changes nothing.
#[derive(Debug)]
#[must_use = "dropped, it gives the slot of a concurrent call back"]
pub struct Permit {
    entry: Arc<Entry>,
    /// Where in a window it is counted, and how much; `None`: as a slot.
    counted: Option<(u64, u64)>,
    /// What comes back counts, too.
    counts_answers: bool,
}

impl Permit {
    /// The message was not sent after all: it does not count.
    pub fn give_back(self) {
        if let Some((slice, amount)) = self.counted
            && let Count::Within(_, window) = &mut *self.entry.count()
        {
            window.take_back(slice, amount);
        }
    }

    /// It is a slot of a limit of what is in flight.
    pub fn is_slot(&self) -> bool {
        self.counted.is_none()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Count::InFlight(calls) = &mut *self.entry.count() {
            *calls = calls.saturating_sub(1);
        }
    }
}

impl Limits {
    fn new(file: file::File, begun: Instant) -> Limits {
        let micros = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
        Limits {
            shards: Default::default(),
            owners: Mutex::default(),
            begun: (begun, micros),
            file,
            changed: AtomicBool::new(false),
            full: AtomicU64::new(0),
        }
    }

    /// Counts a message that nothing else refuses, or says why it must not be let through. `amount` is what
    /// [`Limit::amount`] says of it.
    pub fn take(&self, limit: &Limit, key: &Key, amount: u64, now: Instant) -> Result<Permit, Exceeded> {
        let (max, span) = match limit.kind {
            Kind::Calls { max, within } | Kind::Bytes { max, within } => (max, Some(Span::new(within))),
            Kind::Concurrent { max } => (max, None),
        };
        if self.file.is_lost() && span.is_some_and(is_kept) {
            return Err(limit.lost());
        }
        let entry = self.entry(key, span, now).ok_or_else(|| {
            self.full.fetch_add(1, Ordering::Relaxed);
            limit.full()
        })?;
        let at = self.micros(now);
        let counted = match &mut *entry.count() {
            Count::Within(span, window) => {
                if window.used(*span, at).saturating_add(amount) > max {
                    let fits_at = max.checked_sub(amount).and_then(|left| window.falls_to(*span, left));
                    let wait = fits_at.map(|then| Duration::from_micros(then.saturating_sub(at)));
                    return Err(limit.exceeded(amount, wait));
                }
                self.note_change(*span);
                Some((window.add(*span, at, amount), amount))
            }
            Count::InFlight(calls) if *calls >= max => return Err(limit.exceeded(amount, None)),
            Count::InFlight(calls) => {
                *calls += 1;
                None
            }
        };
        Ok(Permit { entry, counted, counts_answers: matches!(limit.kind, Kind::Bytes { .. }) })
    }

    /// Counts a message, or all messages of a batch, under each of these limits, or under none.
    pub fn take_all<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a Limit, &'a Key, u64)>,
        now: Instant,
    ) -> Result<Vec<Permit>, Exceeded> {
        let mut permits = Vec::new();
        for (limit, key, amount) in wanted {
            match self.take(limit, key, amount, now) {
                Ok(permit) => permits.push(permit),
                Err(exceeded) => {
                    permits.into_iter().for_each(Permit::give_back);
                    return Err(exceeded);
                }
            }
        }
        Ok(permits)
    }

    /// Counts so many bytes that came back to a message, if its limit is one of bytes, whether there is room for them or not.
    pub fn add_answer(&self, permit: &Permit, bytes: u64, now: Instant) {
        if permit.counts_answers
            && let Count::Within(span, window) = &mut *permit.entry.count()
        {
            window.add(*span, self.micros(now), bytes);
            self.note_change(*span);
        }
    }

    /// Forgets what was counted for limits that are none of these: the rules have changed. What is in flight is
    /// counted on, its rule may come back.
    pub fn keep_only(&self, limits: &[Tag]) {
        self.sweep(|(tag, _), entry| {
            limits.contains(tag) || matches!(*entry.count(), Count::InFlight(calls) if calls > 0)
        });
    }

    /// How many messages were refused because there was no room to count them.
    pub fn refused_for_room(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// The count behind a key; a new one if there is room.
    fn entry(&self, key: &Key, span: Option<Span>, now: Instant) -> Option<Arc<Entry>> {
        let id = (key.tag, key.digest);
        if let Some(entry) = self.shard(&id).get(&id) {
            return Some(Arc::clone(entry));
        }
        if !self.owners().reserve(&key.owner) {
            self.sweep_if_due(now);
            if !self.owners().reserve(&key.owner) {
                return None;
            }
        }
        let count = match span {
            Some(span) => Count::Within(span, Window::default()),
            None => Count::InFlight(0),
        };
        let new = Arc::new(Entry { owner: Arc::clone(&key.owner), count: Mutex::new(count) });
        let entry = Arc::clone(self.shard(&id).entry(id).or_insert_with(|| Arc::clone(&new)));
        if !Arc::ptr_eq(&entry, &new) {
            // Another message of the same key was faster.
            self.owners().release(&key.owner, 1);
        }
        Some(entry)
    }

    fn sweep_if_due(&self, now: Instant) {
        {
            let mut owners = self.owners();
            if owners.swept.is_some_and(|last| now.saturating_duration_since(last) < SWEEP_EVERY) {
                return;
            }
            owners.swept = Some(now);
        }
        let at = self.micros(now);
        self.sweep(|_, entry| !entry.is_over(at));
    }

    /// Drops what is not to be kept, and not held by a permit: that is taken under the lock of the shard, so whoever
    /// has none by now will find none.
    fn sweep(&self, keep: impl Fn(&Id, &Entry) -> bool) {
        let mut dropped: HashMap<Arc<str>, usize> = HashMap::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|id, entry| {
                let keep = Arc::strong_count(entry) > 1 || keep(id, entry);
                if !keep {
                    *dropped.entry(Arc::clone(&entry.owner)).or_default() += 1;
                }
                keep
            });
        }
        let mut owners = self.owners();
        for (owner, count) in dropped {
            owners.release(&owner, count);
        }
    }

    fn note_change(&self, span: Span) {
        if is_kept(span) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    fn micros(&self, now: Instant) -> u64 {
        let (begun, at) = self.begun;
        let since = now.saturating_duration_since(begun).as_micros();
        at.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn shard(&self, id: &Id) -> MutexGuard<'_, Shard> {
        let (_, [first, ..]) = id;
        self.shards[usize::from(*first) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Limits {
    /// Those of a daemon that keeps nothing.
    fn default() -> Limits {
        Limits::new(file::File::default(), Instant::now())
    }
}

impl Owners {
    /// Takes room for one more count of this agent. False: there is none.
    fn reserve(&mut self, owner: &Arc<str>) -> bool {
        let own = self.counts.get(owner).copied().unwrap_or_default();
        if own >= ASSURED && (own >= PER_AGENT || self.total >= MOST) {
            return false;
        }
        self.add(owner);
        true
    }

    fn add(&mut self, owner: &Arc<str>) {
        *self.counts.entry(Arc::clone(owner)).or_default() += 1;
        self.total += 1;
    }

    fn release(&mut self, owner: &Arc<str>, counts: usize) {
        self.total = self.total.saturating_sub(counts);
        if let Some(own) = self.counts.get_mut(owner) {
            *own = own.saturating_sub(counts);
            if *own == 0 {
                self.counts.remove(owner);
            }
        }
    }
}

impl Entry {
    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self, at: u64) -> bool {
        match &*self.count() {
            Count::Within(span, window) => window.is_over(*span, at),
            Count::InFlight(calls) => *calls == 0,
        }
    }
}

fn is_kept(span: Span) -> bool {
    span.length() >= KEPT_FROM
}

#[cfg(test)]
mod tests;
