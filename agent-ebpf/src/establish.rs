//! Hands the original destination from the agent's socket to the one that the daemon accepts, before the daemon
//! can see it: written before the SYN leaves, taken under the child's lock before `accept` returns.
//!
//! The bias is to lose a destination rather than to confuse two: the daemon closes what has none.

use core::ffi::c_void;
use core::ptr::read_volatile;

use agent_abi::{Counter, FlowKey, Origin, is_loopback, map_v4};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{
    BPF_ANY, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG,
    BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_TCP_CLOSE,
};
use aya_ebpf::helpers::generated::bpf_get_netns_cookie;
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;

use crate::connect::{MAPPED_PREFIX, bytes};
use crate::maps::{FLOWS, ORIGINS, count};

const AF_INET: u32 = 2;

// Not named after its section (`sockops`): the linker takes them for one symbol.
#[sock_ops]
pub(crate) fn establish(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => announce(&ctx),
        BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => hand_over(&ctx),
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == BPF_TCP_CLOSE => withdraw(&ctx),
        _ => {}
    }
    1
}

/// The agent's side, before its SYN: say where the connection wants to go.
#[inline(always)]
fn announce(ctx: &SockOpsContext) {
    let Some(socket) = socket(ctx) else { return };
    let (local, remote) = addresses(ctx);
    if !is_loopback(&remote) {
        return;
    }
    let key = key(ctx, local, ctx.local_port(), remote_port(ctx));
    // SAFETY: checked for null above.
    let Some(origin) = (unsafe { ORIGINS.get(socket) }) else {
        // Somebody else's connection: what was left under its key is not about it.
        let _ = FLOWS.remove(key);
        return;
    };
    let origin: &Origin = origin;
    if FLOWS.insert(key, origin, BPF_ANY.into()).is_err() {
        count(Counter::OriginsLost);
        return;
    }
    // A refused connect never reaches `hand_over`; the close takes its entry back.
    let _ = ctx.set_cb_flags((ctx.cb_flags() | BPF_SOCK_OPS_STATE_CB_FLAG) as i32);
}

/// The daemon's side, before `accept` returns: take the destination over.
#[inline(always)]
fn hand_over(ctx: &SockOpsContext) {
    let Some(socket) = socket(ctx) else { return };
    let (local, remote) = addresses(ctx);
    if !is_loopback(&local) {
        return;
    }
    let key = key(ctx, remote, remote_port(ctx), ctx.local_port());
    // SAFETY: only this handshake uses the entry until it is removed below.
    let Some(origin) = (unsafe { FLOWS.get(key) }) else { return };
    // SAFETY: checked for null above.
    if !unsafe { ORIGINS.set(socket, origin) } {
        count(Counter::OriginsLost);
    }
    let _ = FLOWS.remove(key);
}

/// The agent's side at its end: take back what nobody accepted.
#[inline(always)]
fn withdraw(ctx: &SockOpsContext) {
    let Some(socket) = socket(ctx) else { return };
    let (local, _) = addresses(ctx);
    let key = key(ctx, local, ctx.local_port(), remote_port(ctx));
    // SAFETY: checked for null above.
    let Some(origin) = (unsafe { ORIGINS.get(socket) }) else { return };
    // SAFETY: one word is read at once.
    let Some(flow) = (unsafe { FLOWS.get(key) }) else { return };
    if flow.cookie == origin.cookie {
        let _ = FLOWS.remove(key);
    }
}

#[inline(always)]
fn key(ctx: &SockOpsContext, agent_addr: [u8; 16], agent_port: u32, listen_port: u32) -> FlowKey {
    // SAFETY: a valid context.
    FlowKey { netns: unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }, agent_addr, agent_port, listen_port }
}

/// Local and remote address; IPv4 in v4-mapped form, whichever family the socket has.
///
/// Every field is read, needed or not: branches that read one field each get their loads merged into one through
/// a moved context pointer, which the verifier refuses. (Loads wider than a field are refused here, too.)
#[inline(always)]
fn addresses(ctx: &SockOpsContext) -> ([u8; 16], [u8; 16]) {
    let ops = ctx.ops;
    // SAFETY: fields of a valid context.
    let (local4, remote4, local6, remote6) = unsafe {
        (
            read_volatile(&raw const (*ops).local_ip4),
            read_volatile(&raw const (*ops).remote_ip4),
            [
                read_volatile(&raw const (*ops).local_ip6[0]),
                read_volatile(&raw const (*ops).local_ip6[1]),
                read_volatile(&raw const (*ops).local_ip6[2]),
                read_volatile(&raw const (*ops).local_ip6[3]),
            ],
            [
                read_volatile(&raw const (*ops).remote_ip6[0]),
                read_volatile(&raw const (*ops).remote_ip6[1]),
                read_volatile(&raw const (*ops).remote_ip6[2]),
                read_volatile(&raw const (*ops).remote_ip6[3]),
            ],
        )
    };
    let is_mapped = remote6[0] == 0 && remote6[1] == 0 && remote6[2] == MAPPED_PREFIX;
    if ctx.family() == AF_INET || is_mapped {
        (map_v4(local4.to_ne_bytes()), map_v4(remote4.to_ne_bytes()))
    } else {
        (bytes(local6), bytes(remote6))
    }
}

#[inline(always)]
fn remote_port(ctx: &SockOpsContext) -> u32 {
    // Network byte order over all four bytes, unlike `local_port`.
    u32::from_be(ctx.remote_port())
}

#[inline(always)]
fn socket(ctx: &SockOpsContext) -> Option<*mut c_void> {
    // SAFETY: a field of a valid context.
    let socket = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if socket.is_null() { None } else { Some(socket.cast()) }
}
