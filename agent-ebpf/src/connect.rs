//! The hooks that run inside an agent's own system calls: which sockets it may have, where its connections go,
//! which datagrams leave, and whose address `getpeername` shows.
//!
//! All but `sock_create` sit on the depth-1 cgroups, high enough that a socket made outside an agent's cgroup, or
//! carried out of it, still meets them, and below the root, so that they run before a CNI's own hooks there.

use core::ffi::c_void;
use core::ptr::{read_volatile, write_volatile};

use agent_abi::{
    Attempt, Counter, FAMILY_V4, FAMILY_V6, Origin, Reason, Verdict, decide_connect, decide_datagram,
    decide_socket, is_guarded_port, map_v4, unmap_v4,
};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_ktime_get_ns, bpf_setsockopt,
};
use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr};
use aya_ebpf::programs::{SockAddrContext, SockContext};

use crate::maps::{ORIGINS, count, listener, settings, state};
use crate::owner::{caller, current, owner};
use crate::refuse::{Refused, refuse};

const PASS: i32 = 1;
const IPPROTO_TCP: u32 = 6;
const SOL_SOCKET: i32 = 1;
const SO_BINDTOIFINDEX: i32 = 62;
/// 127.0.0.1 in network byte order.
const LOOPBACK_V4: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
/// The last word of `::1` in network byte order.
const LOOPBACK_V6: u32 = u32::from_ne_bytes([0, 0, 0, 1]);
/// The third word of `::ffff:0:0/96` in network byte order.
const MAPPED_PREFIX: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// Tags an agent's sockets at birth and refuses those whose connections nobody could read.
#[cgroup_sock(sock_create)]
pub(crate) fn sock_create(ctx: SockContext) -> i32 {
    // SAFETY: the context of this hook is the socket.
    let agent = unsafe { owner(ctx.as_ptr()) };
    if agent == 0 {
        return PASS;
    }
    // SAFETY: fields of a valid context.
    let (family, kind, protocol) = unsafe { ((*ctx.sock).family, (*ctx.sock).type_, (*ctx.sock).protocol) };
    match decide_socket(family, kind, protocol) {
        None => PASS,
        Some(reason) => {
            // SAFETY: a valid context.
            let netns = unsafe { bpf_get_netns_cookie(ctx.as_ptr()) };
            refuse(&ctx, reason, 0, &Refused { agent, netns, addr: [0; 16], port: 0, protocol })
        }
    }
}

#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4(ctx: SockAddrContext) -> i32 {
    connect(&ctx, address4(&ctx), FAMILY_V4)
}

#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6(ctx: SockAddrContext) -> i32 {
    connect(&ctx, address6(&ctx), FAMILY_V6)
}

#[cgroup_sock_addr(sendmsg4)]
pub(crate) fn sendmsg4(ctx: SockAddrContext) -> i32 {
    datagram(&ctx, address4(&ctx))
}

#[cgroup_sock_addr(sendmsg6)]
pub(crate) fn sendmsg6(ctx: SockAddrContext) -> i32 {
    datagram(&ctx, address6(&ctx))
}

#[cgroup_sock_addr(bind4)]
pub(crate) fn bind4(ctx: SockAddrContext) -> i32 {
    bind(&ctx, address4(&ctx))
}

#[cgroup_sock_addr(bind6)]
pub(crate) fn bind6(ctx: SockAddrContext) -> i32 {
    bind(&ctx, address6(&ctx))
}

/// Shows an agent the peer it asked for. Every path returns a literal 1: the verifier allows nothing else here.
#[cgroup_sock_addr(getpeername4)]
pub(crate) fn getpeername4(ctx: SockAddrContext) -> i32 {
    if let Some(origin) = origin(&ctx)
        && let Some(v4) = unmap_v4(&origin.addr)
    {
        // SAFETY: fields of a valid context that this hook may write.
        unsafe {
            write_volatile(&raw mut (*ctx.sock_addr).user_ip4, u32::from_ne_bytes(v4));
            write_volatile(&raw mut (*ctx.sock_addr).user_port, port_to_be(origin.port));
        }
    }
    1
}

/// As `getpeername4`. Not one generic hook: an `AF_INET6` socket may become `AF_INET` after connect
/// (`IPV6_ADDRFORM`), and both then read the same origin.
#[cgroup_sock_addr(getpeername6)]
pub(crate) fn getpeername6(ctx: SockAddrContext) -> i32 {
    if let Some(origin) = origin(&ctx) {
        let addr = words(&origin.addr);
        // SAFETY: fields of a valid context that this hook may write.
        unsafe {
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[0], addr[0]);
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[1], addr[1]);
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[2], addr[2]);
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[3], addr[3]);
            write_volatile(&raw mut (*ctx.sock_addr).user_port, port_to_be(origin.port));
        }
    }
    1
}

#[inline(always)]
fn connect(ctx: &SockAddrContext, addr: [u8; 16], family: u32) -> i32 {
    // SAFETY: the socket of a valid context; never null in this hook.
    let agent = unsafe { owner(socket(ctx)) };
    if agent == 0 {
        return PASS;
    }
    let attempt = attempt(ctx, agent, addr);
    let refused = |reason| refuse(ctx, reason, attempt.state.errno, &describe(ctx, agent, &attempt));
    match decide_connect(&attempt) {
        Verdict::Pass => {
            if attempt.protocol != IPPROTO_TCP {
                count(Counter::DatagramsPassed);
            }
            PASS
        }
        Verdict::FailOpen => {
            // SAFETY: as above. A reused socket must not show the peer of its last life.
            unsafe { ORIGINS.delete(socket(ctx)) };
            count(Counter::FailedOpen);
            PASS
        }
        Verdict::Refuse(reason) => refused(reason),
        Verdict::Redirect(port) => {
            if !unbind_device(ctx) {
                return refused(Reason::NetnsUnknown);
            }
            let (tgid, uid) = caller();
            let origin = Origin {
                addr,
                port: attempt.port,
                family,
                agent,
                tgid,
                uid,
                _pad: 0,
                // SAFETY: a valid context.
                cookie: unsafe { bpf_get_socket_cookie(ctx.as_ptr()) },
                netns: netns(ctx),
            };
            // SAFETY: as above.
            if !unsafe { ORIGINS.set(socket(ctx), &origin) } {
                return refused(Reason::NoRoom);
            }
            rewrite(ctx, &addr, family, port);
            count(Counter::Redirected);
            PASS
        }
    }
}

#[inline(always)]
fn datagram(ctx: &SockAddrContext, addr: [u8; 16]) -> i32 {
    // SAFETY: the socket of a valid context; never null in this hook.
    let agent = unsafe { owner(socket(ctx)) };
    if agent == 0 {
        return PASS;
    }
    let attempt = attempt(ctx, agent, addr);
    match decide_datagram(&attempt) {
        Verdict::Refuse(reason) => refuse(ctx, reason, attempt.state.errno, &describe(ctx, agent, &attempt)),
        _ => {
            count(Counter::DatagramsPassed);
            PASS
        }
    }
}

/// Keeps the daemon's ports free for it while it is away: whoever took one would be handed every connection of
/// the agents in that namespace.
#[inline(always)]
fn bind(ctx: &SockAddrContext, addr: [u8; 16]) -> i32 {
    let (protocol, port) = (protocol(ctx), port(ctx));
    if protocol != IPPROTO_TCP || port == 0 {
        return PASS;
    }
    let netns = netns(ctx);
    if !is_guarded_port(port, listener(netns)) {
        return PASS;
    }
    let agent = current();
    // SAFETY: the helper takes nothing.
    let cgroup = unsafe { bpf_get_current_cgroup_id() };
    if agent == 0 && cgroup == settings().daemon_cgroup {
        return PASS;
    }
    refuse(ctx, Reason::PortGuarded, 0, &Refused { agent, netns, addr, port, protocol })
}

#[inline(always)]
fn origin(ctx: &SockAddrContext) -> Option<&'static Origin> {
    // SAFETY: the socket of a valid context; never null in this hook.
    unsafe { ORIGINS.get(socket(ctx)) }.map(|origin| &*origin)
}

// A socket bound to a device would send its SYN for 127.0.0.1 out of that device, and time out.
#[inline(always)]
fn unbind_device(ctx: &SockAddrContext) -> bool {
    // SAFETY: the socket of a valid context; never null in this hook.
    if unsafe { (*(*ctx.sock_addr).__bindgen_anon_1.sk).bound_dev_if } == 0 {
        return true;
    }
    let mut nowhere = 0i32;
    // SAFETY: a valid context and four bytes of stack.
    let result =
        unsafe { bpf_setsockopt(ctx.as_ptr(), SOL_SOCKET, SO_BINDTOIFINDEX, (&raw mut nowhere).cast(), 4) };
    result == 0
}

#[inline(always)]
fn rewrite(ctx: &SockAddrContext, addr: &[u8; 16], family: u32, port: u32) {
    // SAFETY: fields of a valid context that this hook may write.
    unsafe {
        if family == FAMILY_V4 {
            write_volatile(&raw mut (*ctx.sock_addr).user_ip4, LOOPBACK_V4);
        } else {
            let (third, last) =
                if unmap_v4(addr).is_some() { (MAPPED_PREFIX, LOOPBACK_V4) } else { (0, LOOPBACK_V6) };
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[0], 0);
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[1], 0);
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[2], third);
            write_volatile(&raw mut (*ctx.sock_addr).user_ip6[3], last);
        }
        write_volatile(&raw mut (*ctx.sock_addr).user_port, port_to_be(port));
    }
}

#[inline(always)]
fn attempt(ctx: &SockAddrContext, agent: u32, addr: [u8; 16]) -> Attempt {
    Attempt {
        protocol: protocol(ctx),
        addr,
        port: port(ctx),
        state: state(agent),
        listener: listener(netns(ctx)),
        settings: settings(),
        // SAFETY: the helper takes nothing.
        now_ns: unsafe { bpf_ktime_get_ns() },
    }
}

#[inline(always)]
fn describe(ctx: &SockAddrContext, agent: u32, attempt: &Attempt) -> Refused {
    Refused { agent, netns: netns(ctx), addr: attempt.addr, port: attempt.port, protocol: attempt.protocol }
}

#[inline(always)]
fn socket(ctx: &SockAddrContext) -> *mut c_void {
    // SAFETY: a field of a valid context.
    unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk.cast() }
}

#[inline(always)]
fn netns(ctx: &SockAddrContext) -> u64 {
    // SAFETY: a valid context.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

#[inline(always)]
fn protocol(ctx: &SockAddrContext) -> u32 {
    // SAFETY: a field of a valid context.
    unsafe { read_volatile(&raw const (*ctx.sock_addr).protocol) }
}

#[inline(always)]
fn port(ctx: &SockAddrContext) -> u32 {
    // SAFETY: a field of a valid context.
    swap_port(unsafe { read_volatile(&raw const (*ctx.sock_addr).user_port) })
}

#[inline(always)]
fn port_to_be(port: u32) -> u32 {
    swap_port(port)
}

/// A port in the lower half, between host and network byte order.
#[inline(always)]
fn swap_port(port: u32) -> u32 {
    (port & 0xffff).swap_bytes() >> 16
}

#[inline(always)]
fn address4(ctx: &SockAddrContext) -> [u8; 16] {
    // SAFETY: a field of a valid context.
    map_v4(unsafe { read_volatile(&raw const (*ctx.sock_addr).user_ip4) }.to_ne_bytes())
}

// Word by word: the verifier refuses a moved context pointer, which is what an array copy compiles to.
#[inline(always)]
fn address6(ctx: &SockAddrContext) -> [u8; 16] {
    // SAFETY: fields of a valid context.
    let words = unsafe {
        [
            read_volatile(&raw const (*ctx.sock_addr).user_ip6[0]),
            read_volatile(&raw const (*ctx.sock_addr).user_ip6[1]),
            read_volatile(&raw const (*ctx.sock_addr).user_ip6[2]),
            read_volatile(&raw const (*ctx.sock_addr).user_ip6[3]),
        ]
    };
    bytes(words)
}

/// Four words in network byte order as the bytes of an address.
#[inline(always)]
fn bytes(words: [u32; 4]) -> [u8; 16] {
    let (a, b) = (words[0].to_ne_bytes(), words[1].to_ne_bytes());
    let (c, d) = (words[2].to_ne_bytes(), words[3].to_ne_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2], d[3]]
}

#[inline(always)]
fn words(addr: &[u8; 16]) -> [u32; 4] {
    [
        u32::from_ne_bytes([addr[0], addr[1], addr[2], addr[3]]),
        u32::from_ne_bytes([addr[4], addr[5], addr[6], addr[7]]),
        u32::from_ne_bytes([addr[8], addr[9], addr[10], addr[11]]),
        u32::from_ne_bytes([addr[12], addr[13], addr[14], addr[15]]),
    ]
}
