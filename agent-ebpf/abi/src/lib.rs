//! What the kernel side and the user side of interlock agree on: the layout of every shared map and ring
//! buffer entry, and the decisions the kernel takes, as pure functions that host tests call too.
//!
//! Everything here is `repr(C)`, made of integers only and free of implicit padding, because the bytes cross
//! between two compilers and outlive both programs in pinned maps. A change of layout or meaning bumps
//! [`ABI_VERSION`], which is part of the pin path, so that a new daemon never reads an old map.
#![no_std]

mod agent;
mod decide;
mod event;
mod origin;

pub use agent::{
    AgentState, EVERYBODY, Listener, MODE_HELD, MODE_ISOLATED, MODE_RUN, NOBODY, Settings, Tag, UNCLASSIFIED,
    is_agent,
};
pub use decide::{
    Attempt, Packet, Reason, Verdict, decide_connect, decide_datagram, decide_packet, decide_socket,
    is_guarded_port, is_own_port,
};
pub use event::{Counter, Event};
pub use origin::{FAMILY_V4, FAMILY_V6, FlowKey, Origin, is_loopback, is_unspecified, map_v4, unmap_v4};

/// Version of every layout in this crate, and of what its keys mean. Part of the pin path (`<pin_dir>/v4`).
/// 2: [`EVERYBODY`], which programs of version 1 would not look at. 3: connections are handed over by their SYN, and
/// [`Settings::skipped_levels`]. 4: [`NOBODY`] and [`UNCLASSIFIED`].
pub const ABI_VERSION: u32 = 4;

/// Cgroup levels below the root that the kernel side looks at to find the agent of a process. An agent's
/// cgroup must not lie deeper; what an agent nests below its own cgroup may.
pub const MAX_CGROUP_LEVEL: u32 = 8;

/// `errno` values the kernel side answers with (`asm-generic/errno-base.h`, `asm-generic/errno.h`).
pub mod errno {
    pub const EPERM: u32 = 1;
    pub const EACCES: u32 = 13;
    pub const EPROTONOSUPPORT: u32 = 93;
    pub const EADDRINUSE: u32 = 98;
    pub const ENETUNREACH: u32 = 101;
    pub const ECONNREFUSED: u32 = 111;
}
