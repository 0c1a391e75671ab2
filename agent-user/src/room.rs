//! What may be had at a time, by all agents together and by each of them: open connections, and bytes of messages that are
//! held (`limits:` in the configuration). Two counters; nobody waits, and what does not fit is refused.
//!
//! The bytes are those of buffers as they are allocated, so that what is counted is what the daemon has. Each side of a
//! connection has [`FREE`] bytes of its own, so that small messages neither count nor are refused: an agent that fills the
//! room of all keeps others from what is large, and from nothing else.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that each side of a connection holds without being counted.
pub const FREE: usize = 32 * 1024;
/// Counting is done in steps of so many bytes.
const STEP: usize = 16 * 1024;

/// Room for all agents, and for each.
#[derive(Debug)]
pub struct Room {
    used: AtomicUsize,
    most: usize,
    per_agent: usize,
    what: What,
}

/// What there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Connections,
    Memory,
}

/// There is no room, and whose it is that is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    pub what: What,
    pub of_agent: bool,
    pub most: usize,
}

/// Some of the room; given back when dropped.
#[derive(Debug)]
pub struct Taken {
    room: Arc<Room>,
    by_agent: Arc<AtomicUsize>,
    amount: usize,
}

impl Room {
    /// So much for all, and for each agent.
    pub fn new(what: What, most: usize, per_agent: usize) -> Room {
        Room { used: AtomicUsize::new(0), most, per_agent, what }
    }

    /// Takes some of it for the agent that counts its own in `by_agent`.
    pub fn take(self: &Arc<Self>, by_agent: &Arc<AtomicUsize>, amount: usize) -> Result<Taken, Full> {
        let mut taken = Taken { room: Arc::clone(self), by_agent: Arc::clone(by_agent), amount: 0 };
        taken.set(amount)?;
        Ok(taken)
    }

    /// How much is taken.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn full(&self, of_agent: bool) -> Full {
        let most = if of_agent { self.per_agent } else { self.most };
        Full { what: self.what, of_agent, most }
    }
}

impl Taken {
    /// Takes more, or gives back some. Where there is no room it stays as it is.
    fn set(&mut self, amount: usize) -> Result<(), Full> {
        let Some(more) = amount.checked_sub(self.amount) else {
            let less = self.amount - amount;
            self.room.used.fetch_sub(less, Ordering::Relaxed);
            self.by_agent.fetch_sub(less, Ordering::Relaxed);
            self.amount = amount;
            return Ok(());
        };
        add(&self.by_agent, more, self.room.per_agent).ok_or_else(|| self.room.full(true))?;
        if add(&self.room.used, more, self.room.most).is_none() {
            self.by_agent.fetch_sub(more, Ordering::Relaxed);
            return Err(self.room.full(false));
        }
        self.amount = amount;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.amount, Ordering::Relaxed);
        self.by_agent.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicUsize, more: usize, most: usize) -> Option<()> {
    let added = |used: usize| used.checked_add(more).filter(|sum| *sum <= most);
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).ok().map(drop)
}

/// What one side of a connection holds. The default is counted nowhere.
#[derive(Debug, Default)]
pub struct Share {
    taken: Option<Taken>,
    /// The largest that its buffer has been since it was given back.
    buffer: usize,
    /// What was made of the bytes in it.
    made: usize,
}

impl Share {
    /// Nothing yet.
    pub fn new(taken: Taken) -> Share {
        Share { taken: Some(taken), ..Share::default() }
    }

    /// The buffer has this capacity. What is used up at its front is still allocated, and so it never shrinks here.
    pub fn buffer_has(&mut self, capacity: usize) -> Result<(), Full> {
        if capacity <= self.buffer {
            return Ok(());
        }
        self.buffer = capacity;
        self.count()
    }

    /// The buffer was given back, but for so many bytes.
    pub fn buffer_is_back(&mut self, capacity: usize) {
        self.buffer = capacity;
        // Less is never refused.
        let _ = self.count();
    }

    /// So much has the buffer been.
    pub fn buffer(&self) -> usize {
        self.buffer
    }

    /// So much was made of what came: decoded, joined or edited.
    pub fn made(&mut self, bytes: usize) -> Result<(), Full> {
        if bytes == self.made {
            return Ok(());
        }
        self.made = bytes;
        self.count()
    }

    fn count(&mut self) -> Result<(), Full> {
        let Some(taken) = &mut self.taken else { return Ok(()) };
        let held = self.buffer.saturating_add(self.made);
        let counted = if held <= FREE { 0 } else { held.next_multiple_of(STEP) };
        if counted == taken.amount { Ok(()) } else { taken.set(counted) }
    }
}

impl Full {
    /// The metric and record value.
    pub fn label(self) -> &'static str {
        match (self.what, self.of_agent) {
            (What::Connections, false) => "connections_full",
            (What::Connections, true) => "agent_connections_full",
            (What::Memory, false) => "memory_full",
            (What::Memory, true) => "agent_memory_full",
        }
    }
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.of_agent { "of this agent" } else { "of all agents" };
        match self.what {
            What::Connections => write!(f, "the limit of {} open connections {whose} is reached", self.most),
            What::Memory => write!(f, "messages {whose} hold the limit of {} bytes of memory", self.most),
        }
    }
}

impl std::error::Error for Full {}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(most: usize, per_agent: usize) -> Arc<Room> {
        Arc::new(Room::new(What::Memory, most, per_agent))
    }

    #[test]
    fn each_agent_has_its_own_bound_and_all_have_one() {
        let (room, [one, other]) =
            (room(10, 6), [const { 0 }; 2].map(|none| Arc::new(AtomicUsize::new(none))));
        let taken = room.take(&one, 6).unwrap();
        assert_eq!(room.take(&one, 1).unwrap_err().label(), "agent_memory_full");
        let _others = room.take(&other, 4).unwrap();
        assert_eq!(room.take(&other, 1).unwrap_err().label(), "memory_full");
        assert_eq!(other.load(Ordering::Relaxed), 4, "what was not given is not counted");
        drop(taken);
        assert_eq!(room.used(), 4);
        room.take(&other, 2).unwrap();
    }

    #[test]
    fn small_messages_are_not_counted_and_large_ones_by_what_is_allocated() {
        let (room, agent) = (room(1 << 20, 1 << 20), Arc::default());
        let mut share = Share::new(room.take(&agent, 0).unwrap());
        share.buffer_has(FREE).unwrap();
        assert_eq!(room.used(), 0);
        share.made(1).unwrap();
        assert_eq!(room.used(), FREE + STEP);
        share.buffer_has(10).unwrap();
        assert_eq!(room.used(), FREE + STEP, "its front is still allocated");
        share.made(1 << 20).unwrap_err();
        share.made(0).unwrap();
        share.buffer_is_back(0);
        assert_eq!(room.used(), 0);
    }
}
