//! Where a redirected connection wanted to go, on its way from the agent's socket to the daemon's.

/// [`Origin::family`] of an `AF_INET` socket.
pub const FAMILY_V4: u32 = 4;
/// [`Origin::family`] of an `AF_INET6` socket, whose destination may still be IPv4 (v4-mapped).
pub const FAMILY_V6: u32 = 6;

/// The original destination of a redirected connection and who asked for it. Socket storage of the agent's socket
/// (`ORIGINS`), then value of `FLOWS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Destination address; IPv4 in its v4-mapped form (`::ffff:a.b.c.d`).
    pub addr: [u8; 16],
    /// Destination port, host byte order.
    pub port: u32,
    /// Which hook saw the call: [`FAMILY_V4`] or [`FAMILY_V6`].
    pub family: u32,
    /// Number of the agent.
    pub agent: u32,
    /// Process (thread group) that called `connect`; 0 for a kernel thread.
    pub tgid: u32,
    /// Its real user, as the host sees it.
    pub uid: u32,
    pub _pad: u32,
    /// `SO_COOKIE` of the agent's socket.
    pub cookie: u64,
    /// `SO_NETNS_COOKIE` of the agent's network namespace.
    pub netns: u64,
}

/// Key of `FLOWS`: a connection to the daemon's loopback listener as its SYN names it, and nothing else ever. The
/// source address is part of it: sockets bound to different addresses may share a source port, and must not swap
/// destinations. So is the first sequence number: a connection that is over may still wait to be accepted when another
/// one has the same ends.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowKey {
    /// `SO_NETNS_COOKIE` of the network namespace of both ends.
    pub netns: u64,
    /// The agent's source address; IPv4 in its v4-mapped form.
    pub agent_addr: [u8; 16],
    /// The agent's source port, host byte order.
    pub agent_port: u32,
    /// The daemon's listening port, host byte order.
    pub listen_port: u32,
    /// The sequence number of the SYN, host byte order.
    pub isn: u32,
    pub _pad: u32,
}

/// The v4-mapped IPv6 form of an IPv4 address (RFC 4291 section 2.5.5.2).
#[inline(always)]
pub const fn map_v4(v4: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, v4[0], v4[1], v4[2], v4[3]]
}

/// The IPv4 address inside a v4-mapped one.
#[inline(always)]
pub fn unmap_v4(addr: &[u8; 16]) -> Option<[u8; 4]> {
    let mut i = 0;
    while i < 10 {
        if addr[i] != 0 {
            return None;
        }
        i += 1;
    }
    if addr[10] != 0xff || addr[11] != 0xff {
        return None;
    }
    Some([addr[12], addr[13], addr[14], addr[15]])
}

/// `127.0.0.0/8` in v4-mapped form, or `::1`.
#[inline(always)]
pub fn is_loopback(addr: &[u8; 16]) -> bool {
    match unmap_v4(addr) {
        Some(v4) => v4[0] == 127,
        None => is_zero_until(addr, 15) && addr[15] == 1,
    }
}

/// `0.0.0.0` or `::`, which Linux connects to the loopback address.
#[inline(always)]
pub fn is_unspecified(addr: &[u8; 16]) -> bool {
    match unmap_v4(addr) {
        Some(v4) => v4[0] == 0 && v4[1] == 0 && v4[2] == 0 && v4[3] == 0,
        None => is_zero_until(addr, 16),
    }
}

// A loop instead of a slice comparison: the 5.15 verifier rejects what `[u8] == [u8]` compiles to.
#[inline(always)]
fn is_zero_until(addr: &[u8; 16], end: usize) -> bool {
    let mut i = 0;
    while i < end {
        if addr[i] != 0 {
            return false;
        }
        i += 1;
    }
    true
}

const _: () = assert!(size_of::<Origin>() == 56);
const _: () = assert!(size_of::<FlowKey>() == 40);

#[cfg(test)]
mod tests {
    use super::*;

    const fn v6(last: u8) -> [u8; 16] {
        let mut addr = [0; 16];
        addr[15] = last;
        addr
    }

    #[test]
    fn mapped_addresses_round_trip() {
        assert_eq!(unmap_v4(&map_v4([10, 1, 2, 3])), Some([10, 1, 2, 3]));
        assert_eq!(unmap_v4(&v6(1)), None);
    }

    #[test]
    fn loopback_is_seen_in_both_families() {
        assert!(is_loopback(&map_v4([127, 9, 9, 9])));
        assert!(is_loopback(&v6(1)));
        assert!(!is_loopback(&map_v4([128, 0, 0, 1])));
        assert!(!is_loopback(&v6(2)));
    }

    #[test]
    fn unspecified_is_seen_in_both_families() {
        assert!(is_unspecified(&map_v4([0, 0, 0, 0])));
        assert!(is_unspecified(&v6(0)));
        assert!(!is_unspecified(&v6(1)));
    }
}
