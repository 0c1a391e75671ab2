//! The packet filter behind the hooks, attached to each agent's own cgroup so that nobody else's packets pay for
//! it. It holds for sockets that no hook has seen (older than the agent's enrolment) and for live connections of
//! an isolated agent: of those only resets leave, so that the other end learns what happened. A SYN leaves once
//! `handover` has said where its connection wants to go.
//!
//! A dropped packet is counted and not reported: a retransmitting socket would flood the ring buffer.

use core::ffi::c_void;

use agent_abi::{Counter, MAX_CGROUP_LEVEL, Packet, Tag, decide_packet, is_agent};
use aya_ebpf::bindings::BPF_TCP_SYN_SENT;
use aya_ebpf::helpers::generated::{bpf_sk_fullsock, bpf_skb_ancestor_cgroup_id};
use aya_ebpf::macros::cgroup_skb;
use aya_ebpf::programs::SkBuffContext;

use crate::handover::announce;
use crate::maps::{AGENTS, TAGS, count, settings, state};

const PASS: i32 = 1;
const DROP: i32 = 0;
pub(crate) const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const TCP_FLAG_RST: u8 = 0x04;
const IPV6_HEADER: usize = 40;

#[cgroup_skb(egress)]
pub(crate) fn egress(ctx: SkBuffContext) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: a field of a valid context.
    let socket = unsafe { (*skb).__bindgen_anon_2.sk };
    if socket.is_null() {
        return PASS;
    }
    // SAFETY: checked for null.
    let socket = unsafe { bpf_sk_fullsock(socket) };
    if socket.is_null() {
        return PASS;
    }
    let agent = owner(&ctx, socket.cast());
    if agent == 0 {
        return PASS;
    }
    // SAFETY: fields of a socket checked for null.
    let (family, kind, protocol) = unsafe { ((*socket).family, (*socket).type_, (*socket).protocol) };
    let mut packet = Packet {
        family,
        kind,
        protocol,
        port: 0,
        bare_reset: false,
        state: state(agent),
        settings: settings(),
    };
    if decide_packet(&packet).is_none() {
        // SAFETY: a field of a socket checked for null.
        let is_connecting = protocol == IPPROTO_TCP && unsafe { (*socket).state } == BPF_TCP_SYN_SENT;
        return if is_connecting && !announce(&ctx, socket.cast()) { DROP } else { PASS };
    }
    // Only what is about to be dropped is looked into.
    match protocol {
        IPPROTO_TCP => packet.bare_reset = is_bare_reset(&ctx).unwrap_or(false),
        IPPROTO_UDP => packet.port = udp_port(&ctx).unwrap_or(0),
        _ => {}
    }
    if decide_packet(&packet).is_none() {
        return PASS;
    }
    count(Counter::PacketsDropped);
    DROP
}

/// As `owner::owner`, but there is no current process here: the cgroup is the one the socket was made in.
#[inline(always)]
fn owner(ctx: &SkBuffContext, socket: *mut c_void) -> u32 {
    // SAFETY: the caller has checked the socket for null.
    if let Some(tag) = unsafe { TAGS.get(socket) } {
        return tag.agent;
    }
    let mut agent = 0;
    let mut level = 1;
    while level <= MAX_CGROUP_LEVEL {
        // SAFETY: a valid context and a plain number.
        let id = unsafe { bpf_skb_ancestor_cgroup_id(ctx.skb.skb, level as i32) };
        if id == 0 {
            break;
        }
        // SAFETY: the value is one word, copied at once.
        if let Some(found) = unsafe { AGENTS.get(id) } {
            agent = *found;
        }
        level += 1;
    }
    if is_agent(agent) {
        // SAFETY: as above.
        unsafe { TAGS.set(socket, &Tag { agent, _pad: 0 }) };
    }
    agent
}

/// Offset of the transport header and length of the whole packet. IPv6 with extension headers is `None`: neither
/// TCP nor UDP of an agent has a reason for them here.
#[inline(always)]
pub(crate) fn transport(ctx: &SkBuffContext, protocol: u32) -> Option<(usize, usize)> {
    let first = load::<1>(ctx, 0)?[0];
    if first >> 4 == 6 {
        if u32::from(load::<1>(ctx, 6)?[0]) != protocol {
            return None;
        }
        return Some((IPV6_HEADER, IPV6_HEADER + usize::from(u16::from_be_bytes(load(ctx, 4)?))));
    }
    Some((usize::from(first & 0x0f) * 4, usize::from(u16::from_be_bytes(load(ctx, 2)?))))
}

#[inline(always)]
fn is_bare_reset(ctx: &SkBuffContext) -> Option<bool> {
    let (start, length) = transport(ctx, IPPROTO_TCP)?;
    let [offset, flags] = load(ctx, start + 12)?;
    let header = usize::from(offset >> 4) * 4;
    Some(flags & TCP_FLAG_RST != 0 && start + header == length)
}

#[inline(always)]
fn udp_port(ctx: &SkBuffContext) -> Option<u32> {
    let (start, _) = transport(ctx, IPPROTO_UDP)?;
    Some(u32::from(u16::from_be_bytes(load(ctx, start + 2)?)))
}

#[inline(always)]
pub(crate) fn load<const N: usize>(ctx: &SkBuffContext, offset: usize) -> Option<[u8; N]> {
    ctx.load(offset).ok()
}
