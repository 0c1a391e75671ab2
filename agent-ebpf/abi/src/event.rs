//! What the kernel side tells the daemon: one ring buffer entry per refusal, and counters that never drop.

/// One refusal in the kernel, as it travels through the `EVENTS` ring buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at_ns: u64,
    /// `SO_NETNS_COOKIE` of the network namespace of the socket.
    pub netns: u64,
    /// Destination (v4-mapped for IPv4); zero for a refused socket type.
    pub addr: [u8; 16],
    /// Destination port, host byte order.
    pub port: u32,
    /// `IPPROTO_*` of the socket.
    pub protocol: u32,
    /// Number of the agent; 0 when a stranger ran into a guarded port.
    pub agent: u32,
    /// Process that ran into it.
    pub tgid: u32,
    /// Its real user.
    pub uid: u32,
    /// A [`crate::Reason`] as its number.
    pub reason: u32,
}

/// Index into the per-CPU `COUNTERS` array.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// TCP connects sent to the daemon.
    Redirected = 0,
    /// Sockets, connects, binds and datagrams refused, for any reason.
    Refused = 1,
    /// Of these, refused because the agent is isolated.
    RefusedStopped = 2,
    /// Packets of isolated agents dropped on their way out.
    PacketsDropped = 3,
    /// Events that found the ring buffer full.
    EventsLost = 4,
    /// SYNs dropped because their original destination could not be handed over. The sender tries again.
    OriginsLost = 5,
    /// Connects let through because the daemon is gone and the operator chose `fail: open`.
    FailedOpen = 6,
    /// Datagrams that passed as DNS or under `quic: allow`.
    DatagramsPassed = 7,
}

impl Counter {
    /// Entries of the `COUNTERS` array.
    pub const COUNT: u32 = 8;
}

const _: () = assert!(size_of::<Event>() == 56);
