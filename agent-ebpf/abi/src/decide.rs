//! The decisions of the kernel side, free of any kernel helper, so that host tests prove them.

use crate::agent::{AgentState, Listener, MODE_HELD, MODE_RUN, Settings};
use crate::errno;
use crate::origin::{is_loopback, is_unspecified, unmap_v4};

const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const DNS_PORT: u32 = 53;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;

/// Why the kernel side refused something. The number travels in [`crate::Event::reason`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The agent is isolated by a stop, or its state is unknown.
    Stopped = 1,
    /// No listener of the daemon in the agent's network namespace (or none for this address family).
    NetnsUnknown = 2,
    /// A transport the daemon cannot read: MPTCP, SCTP, raw and ping sockets, UDP-Lite.
    Transport = 3,
    /// UDP other than DNS.
    Datagram = 4,
    /// A connect to the daemon's own port.
    OwnPort = 5,
    /// The kernel had no room to remember where the connection wants to go.
    NoRoom = 6,
    /// A bind to the daemon's own port.
    PortGuarded = 7,
}

impl Reason {
    /// The `errno` the caller gets. `stop_errno` is [`AgentState::errno`].
    #[inline(always)]
    pub const fn errno(self, stop_errno: u32) -> u32 {
        match self {
            Reason::Stopped => {
                if stop_errno == 0 {
                    errno::EPERM
                } else {
                    stop_errno
                }
            }
            Reason::NetnsUnknown => errno::ENETUNREACH,
            // Clients fall back to plain TCP on this one (MPTCP: RFC 8684 leaves it to the caller).
            Reason::Transport => errno::EPROTONOSUPPORT,
            Reason::Datagram => errno::EPERM,
            Reason::OwnPort => errno::EACCES,
            Reason::NoRoom => errno::ECONNREFUSED,
            Reason::PortGuarded => errno::EADDRINUSE,
        }
    }

    /// The reason behind [`crate::Event::reason`].
    pub const fn from_number(number: u32) -> Option<Reason> {
        match number {
            1 => Some(Reason::Stopped),
            2 => Some(Reason::NetnsUnknown),
            3 => Some(Reason::Transport),
            4 => Some(Reason::Datagram),
            5 => Some(Reason::OwnPort),
            6 => Some(Reason::NoRoom),
            7 => Some(Reason::PortGuarded),
            _ => None,
        }
    }
}

/// What becomes of a connect or datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Leave it alone.
    Pass,
    /// Let it through although it should be held: the daemon is gone and the operator chose `fail: open`.
    FailOpen,
    /// Send it to this port of the daemon on the loopback address of its family, host byte order.
    Redirect(u32),
    /// Refuse it.
    Refuse(Reason),
}

/// A connect or datagram of an agent.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// `IPPROTO_*` of the socket.
    pub protocol: u32,
    /// Destination, v4-mapped for IPv4.
    pub addr: [u8; 16],
    /// Destination port, host byte order.
    pub port: u32,
    /// State of the agent.
    pub state: AgentState,
    /// The daemon's ports in this network namespace; all zero where it has none.
    pub listener: Listener,
    pub settings: Settings,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub now_ns: u64,
}

/// What becomes of a `connect` (TCP or UDP).
#[inline(always)]
pub fn decide_connect(attempt: &Attempt) -> Verdict {
    if !is_running(attempt.state) {
        return Verdict::Refuse(Reason::Stopped);
    }
    if attempt.protocol == IPPROTO_UDP {
        return datagram(attempt.protocol, attempt.port, &attempt.settings);
    }
    if attempt.protocol != IPPROTO_TCP {
        return Verdict::Refuse(Reason::Transport);
    }
    if is_own_port(&attempt.addr, attempt.port, attempt.listener) {
        return Verdict::Refuse(Reason::OwnPort);
    }
    if daemon_is_gone(attempt) {
        return Verdict::FailOpen;
    }
    let port =
        if unmap_v4(&attempt.addr).is_some() { attempt.listener.port4 } else { attempt.listener.port6 };
    if port == 0 { Verdict::Refuse(Reason::NetnsUnknown) } else { Verdict::Redirect(port) }
}

/// What becomes of a `sendto`/`sendmsg` on a socket that is not connected.
#[inline(always)]
pub fn decide_datagram(attempt: &Attempt) -> Verdict {
    if !is_running(attempt.state) {
        return Verdict::Refuse(Reason::Stopped);
    }
    datagram(attempt.protocol, attempt.port, &attempt.settings)
}

/// Whether an agent may have a socket of this kind at all.
#[inline(always)]
pub fn decide_socket(family: u32, kind: u32, protocol: u32) -> Option<Reason> {
    if family != AF_INET && family != AF_INET6 {
        return None;
    }
    match (kind, protocol) {
        (SOCK_STREAM, 0 | IPPROTO_TCP) | (SOCK_DGRAM, 0 | IPPROTO_UDP) => None,
        _ => Some(Reason::Transport),
    }
}

/// A packet on its way out of an agent's cgroup.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// `AF_*`, `SOCK_*` and `IPPROTO_*` of the socket that sends it.
    pub family: u32,
    pub kind: u32,
    pub protocol: u32,
    /// Destination port of a datagram, host byte order.
    pub port: u32,
    /// A TCP reset that carries no payload.
    pub bare_reset: bool,
    /// State of the agent.
    pub state: AgentState,
    pub settings: Settings,
}

/// Whether a packet may leave. This is the second line: it holds for sockets that are older than the agent's
/// enrolment, or that were connected before a stop. A reset passes even then, so that the other end learns of it.
#[inline(always)]
pub fn decide_packet(packet: &Packet) -> Option<Reason> {
    if !is_running(packet.state) {
        let passes = packet.bare_reset && packet.kind == SOCK_STREAM && packet.protocol == IPPROTO_TCP;
        return if passes { None } else { Some(Reason::Stopped) };
    }
    if packet.protocol == IPPROTO_UDP && packet.kind == SOCK_DGRAM {
        return match datagram(packet.protocol, packet.port, &packet.settings) {
            Verdict::Refuse(reason) => Some(reason),
            _ => None,
        };
    }
    decide_socket(packet.family, packet.kind, packet.protocol)
}

/// Whether a bind takes a port on which the daemon listens. Any address counts: a wildcard bind covers loopback.
#[inline(always)]
pub fn is_guarded_port(port: u32, listener: Listener) -> bool {
    port != 0 && (port == listener.port4 || port == listener.port6)
}

/// Whether a destination is one of the daemon's own listeners, under any loopback or wildcard address.
#[inline(always)]
pub fn is_own_port(addr: &[u8; 16], port: u32, listener: Listener) -> bool {
    is_guarded_port(port, listener) && (is_loopback(addr) || is_unspecified(addr))
}

#[inline(always)]
fn is_running(state: AgentState) -> bool {
    state.mode == MODE_RUN || state.mode == MODE_HELD
}

#[inline(always)]
fn daemon_is_gone(attempt: &Attempt) -> bool {
    let settings = &attempt.settings;
    attempt.state.mode == MODE_RUN
        && settings.fail_open == 1
        && attempt.now_ns.saturating_sub(settings.heartbeat_ns) > settings.stale_after_ns
}

// No port tells QUIC from other UDP, and the kernel side reads no application bytes: so UDP as a whole follows
// `defaults.quic`, and only DNS goes free.
#[inline(always)]
fn datagram(protocol: u32, port: u32, settings: &Settings) -> Verdict {
    if protocol != IPPROTO_UDP {
        return Verdict::Refuse(Reason::Transport);
    }
    if port == DNS_PORT || settings.udp_allowed == 1 {
        Verdict::Pass
    } else {
        Verdict::Refuse(Reason::Datagram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::MODE_ISOLATED;
    use crate::origin::map_v4;

    const LISTENER: Listener = Listener { port4: 4040, port6: 6060 };
    const RUN: AgentState = AgentState { mode: MODE_RUN, errno: 0 };

    fn tcp(addr: [u8; 16], port: u32) -> Attempt {
        Attempt {
            protocol: IPPROTO_TCP,
            addr,
            port,
            state: RUN,
            listener: LISTENER,
            settings: Settings::default(),
            now_ns: 0,
        }
    }

    fn v4(port: u32) -> Attempt {
        tcp(map_v4([10, 0, 0, 1]), port)
    }

    #[test]
    fn tcp_goes_to_the_listener_of_its_family() {
        assert_eq!(decide_connect(&v4(80)), Verdict::Redirect(4040));
        assert_eq!(decide_connect(&tcp([0x20; 16], 80)), Verdict::Redirect(6060));
    }

    #[test]
    fn isolated_agent_is_refused_with_the_chosen_errno() {
        for state in [
            AgentState::UNKNOWN,
            AgentState { mode: MODE_ISOLATED, errno: 0 },
            AgentState { mode: 7, errno: 0 },
        ] {
            let attempt = Attempt { state, ..v4(80) };
            assert_eq!(decide_connect(&attempt), Verdict::Refuse(Reason::Stopped));
            assert_eq!(
                decide_datagram(&Attempt { protocol: IPPROTO_UDP, ..attempt }),
                Verdict::Refuse(Reason::Stopped)
            );
        }
        assert_eq!(Reason::Stopped.errno(0), errno::EPERM);
        assert_eq!(Reason::Stopped.errno(errno::ECONNREFUSED), errno::ECONNREFUSED);
    }

    #[test]
    fn namespace_without_a_listener_is_refused() {
        let attempt = Attempt { listener: Listener::default(), ..v4(80) };
        assert_eq!(decide_connect(&attempt), Verdict::Refuse(Reason::NetnsUnknown));
        let v4_only = Attempt { listener: Listener { port4: 4040, port6: 0 }, ..tcp([0x20; 16], 80) };
        assert_eq!(decide_connect(&v4_only), Verdict::Refuse(Reason::NetnsUnknown));
    }

    #[test]
    fn own_port_is_refused_under_every_loopback_name() {
        for addr in [map_v4([127, 0, 0, 1]), map_v4([127, 8, 8, 8]), map_v4([0, 0, 0, 0]), [0; 16]] {
            assert_eq!(decide_connect(&tcp(addr, 4040)), Verdict::Refuse(Reason::OwnPort));
        }
        assert_eq!(decide_connect(&v4(4040)), Verdict::Redirect(4040), "the same port elsewhere is not ours");
    }

    #[test]
    fn stale_heartbeat_lets_through_only_where_chosen() {
        let stale = Settings { stale_after_ns: 5, ..Settings::default() };
        assert_eq!(
            decide_connect(&Attempt { settings: stale, now_ns: 9, ..v4(80) }),
            Verdict::Redirect(4040)
        );
        let open = Settings { fail_open: 1, ..stale };
        assert_eq!(decide_connect(&Attempt { settings: open, now_ns: 9, ..v4(80) }), Verdict::FailOpen);
        assert_eq!(decide_connect(&Attempt { settings: open, now_ns: 5, ..v4(80) }), Verdict::Redirect(4040));
        let stopped = Attempt { settings: open, now_ns: 9, state: AgentState::UNKNOWN, ..v4(80) };
        assert_eq!(decide_connect(&stopped), Verdict::Refuse(Reason::Stopped), "a stop outlives the daemon");
        let held =
            Attempt { settings: open, now_ns: 9, state: AgentState { mode: MODE_HELD, errno: 0 }, ..v4(80) };
        assert_eq!(decide_connect(&held), Verdict::Redirect(4040), "so does one that the daemon carries out");
    }

    #[test]
    fn udp_passes_for_dns_and_under_policy_only() {
        let quic = Attempt { protocol: IPPROTO_UDP, ..v4(443) };
        assert_eq!(decide_connect(&quic), Verdict::Refuse(Reason::Datagram));
        assert_eq!(decide_datagram(&quic), Verdict::Refuse(Reason::Datagram));
        assert_eq!(decide_datagram(&Attempt { port: 53, ..quic }), Verdict::Pass);
        let allowed = Settings { udp_allowed: 1, ..Settings::default() };
        assert_eq!(decide_datagram(&Attempt { settings: allowed, ..quic }), Verdict::Pass);
        assert_eq!(decide_datagram(&Attempt { protocol: 136, ..quic }), Verdict::Refuse(Reason::Transport));
    }

    #[test]
    fn only_plain_tcp_and_udp_sockets_exist_for_agents() {
        assert_eq!(decide_socket(AF_INET, SOCK_STREAM, 0), None);
        assert_eq!(decide_socket(AF_INET6, SOCK_DGRAM, IPPROTO_UDP), None);
        assert_eq!(decide_socket(1, SOCK_STREAM, 0), None, "unix sockets are not ours");
        for (kind, protocol) in
            [(SOCK_STREAM, 262), (SOCK_STREAM, 132), (SOCK_DGRAM, 1), (3, 255), (SOCK_DGRAM, 136)]
        {
            assert_eq!(decide_socket(AF_INET, kind, protocol), Some(Reason::Transport));
        }
    }

    #[test]
    fn isolated_agent_sends_nothing_but_bare_resets() {
        let tcp = Packet {
            family: AF_INET,
            kind: SOCK_STREAM,
            protocol: IPPROTO_TCP,
            port: 80,
            bare_reset: false,
            state: RUN,
            settings: Settings::default(),
        };
        assert_eq!(decide_packet(&tcp), None);
        let stopped = Packet { state: AgentState::UNKNOWN, ..tcp };
        assert_eq!(decide_packet(&stopped), Some(Reason::Stopped));
        assert_eq!(decide_packet(&Packet { bare_reset: true, ..stopped }), None);
        let forged = Packet { bare_reset: true, kind: 3, ..stopped };
        assert_eq!(decide_packet(&forged), Some(Reason::Stopped), "a raw socket may not forge one");
    }

    #[test]
    fn sockets_older_than_enrolment_obey_the_same_rules() {
        let quic = Packet {
            family: AF_INET6,
            kind: SOCK_DGRAM,
            protocol: IPPROTO_UDP,
            port: 443,
            bare_reset: false,
            state: RUN,
            settings: Settings::default(),
        };
        assert_eq!(decide_packet(&quic), Some(Reason::Datagram));
        assert_eq!(decide_packet(&Packet { port: 53, ..quic }), None);
        assert_eq!(decide_packet(&Packet { kind: 3, protocol: 1, ..quic }), Some(Reason::Transport));
    }

    #[test]
    fn reasons_survive_the_ring_buffer() {
        for reason in [
            Reason::Stopped,
            Reason::NetnsUnknown,
            Reason::Transport,
            Reason::Datagram,
            Reason::OwnPort,
            Reason::NoRoom,
            Reason::PortGuarded,
        ] {
            assert_eq!(Reason::from_number(reason as u32), Some(reason));
        }
    }
}
