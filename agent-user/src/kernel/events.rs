//! What the kernel side reports: refusals, and its own log. Both are ring buffers behind a tokio readiness fd.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use agent_abi::Event;
use anyhow::Context as _;
use aya::maps::{Map, MapData, RingBuf};
use aya_log::EbpfLogger;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::maps::maps_dir;

/// Refusals in the order in which they happened. What the ring buffer could not hold is in
/// [`super::Counters::events_lost`].
pub struct Events {
    ring: AsyncFd<RingBuf<MapData>>,
}

impl Events {
    pub(super) fn open(pin_dir: &Path) -> anyhow::Result<Events> {
        let path = maps_dir(pin_dir).join("EVENTS");
        let subject = || format!("open map {}", path.display());
        let map = MapData::from_pin(&path).with_context(subject)?;
        let ring = RingBuf::try_from(Map::RingBuf(map)).with_context(subject)?;
        Ok(Events { ring: watch(ring).context("watch the event ring buffer")? })
    }

    /// The next refusal. Cancel safe.
    pub async fn next(&mut self) -> io::Result<Event> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            if let Some(event) = ready.get_inner_mut().next().and_then(|item| decode(&item)) {
                return Ok(event);
            }
            ready.clear_ready();
            // The ring may have filled between the look and the clear.
            if let Some(event) = ready.get_inner_mut().next().and_then(|item| decode(&item)) {
                return Ok(event);
            }
        }
    }
}

/// The log of the programs.
pub struct KernelLog {
    logger: AsyncFd<EbpfLogger<&'static dyn log::Log>>,
}

impl KernelLog {
    pub(super) fn new(logger: EbpfLogger<&'static dyn log::Log>) -> anyhow::Result<KernelLog> {
        Ok(KernelLog { logger: watch(logger).context("watch the kernel log")? })
    }

    /// Forwards until the runtime ends.
    pub async fn forward(mut self) -> io::Result<()> {
        loop {
            let mut ready = self.logger.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

/// Of a ring buffer or a socket.
pub(super) fn watch<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: ring buffers and sockets own their descriptor, never change it, and are moved in here.
    unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) }
        .map_err(|error| error.into_parts().1)
}

fn decode(bytes: &[u8]) -> Option<Event> {
    if bytes.len() < size_of::<Event>() {
        return None;
    }
    // SAFETY: long enough, and an `Event` is integers without padding, valid in every bit pattern.
    Some(unsafe { bytes.as_ptr().cast::<Event>().read_unaligned() })
}
