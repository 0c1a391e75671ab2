//! Hands the original destination of a connection from the agent's socket to the daemon's `accept`: written before
//! the SYN leaves, under what the SYN says. The daemon's listener keeps the SYN with what it accepts.
//!
//! The bias is to lose a destination rather than to confuse two: the daemon closes what has none.

use core::ffi::c_void;

use agent_abi::{Counter, FlowKey, Origin, is_loopback, map_v4};
use aya_ebpf::bindings::BPF_ANY;
use aya_ebpf::programs::SkBuffContext;

use crate::egress::{IPPROTO_TCP, load, transport};
use crate::maps::{FLOWS, ORIGINS, count};

const TCP_FLAG_SYN: u8 = 0x02;
const TCP_FLAG_ACK: u8 = 0x10;

/// Says where a connection wants to go, before its SYN leaves. False: the SYN must not leave; it comes again in a
/// second. Writes what it wrote before when the SYN comes again.
#[inline(always)]
pub(crate) fn announce(ctx: &SkBuffContext, socket: *mut c_void) -> bool {
    // SAFETY: the caller has checked the socket for null.
    let Some(origin) = (unsafe { ORIGINS.get(socket) }) else {
        // Older than its agent, or let through while the daemon is away.
        return true;
    };
    let origin: &Origin = origin;
    let is_announced = match key(ctx, origin.netns) {
        Some(key) => FLOWS.insert(key, origin, BPF_ANY.into()).is_ok(),
        None => false,
    };
    if !is_announced {
        count(Counter::OriginsLost);
    }
    is_announced
}

/// `None`: not a SYN to a loopback address, which would go around the daemon, or not one that can be read.
#[inline(always)]
fn key(ctx: &SkBuffContext, netns: u64) -> Option<FlowKey> {
    let (start, _) = transport(ctx, IPPROTO_TCP)?;
    let (from, to) = if load::<1>(ctx, 0)?[0] >> 4 == 6 {
        (load(ctx, 8)?, load(ctx, 24)?)
    } else {
        (map_v4(load(ctx, 12)?), map_v4(load(ctx, 16)?))
    };
    let flags = load::<1>(ctx, start + 13)?[0];
    if flags & (TCP_FLAG_SYN | TCP_FLAG_ACK) != TCP_FLAG_SYN || !is_loopback(&to) {
        return None;
    }
    Some(FlowKey {
        netns,
        agent_addr: from,
        agent_port: u16::from_be_bytes(load(ctx, start)?).into(),
        listen_port: u16::from_be_bytes(load(ctx, start + 2)?).into(),
        isn: u32::from_be_bytes(load(ctx, start + 4)?),
        _pad: 0,
    })
}
