//! What a destroyed socket was: its ends, whose it was, and the bytes that were still in its queues. This is all
//! that is left of it as evidence, so it is read from the very listing by which it is destroyed.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What became of the sockets in a scope. The counts are exact, the list is bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    pub tcp: u32,
    pub udp: u32,
    /// Found again in the last pass: not final.
    pub left: u32,
    /// Sum of [`Socket::unread`] over every TCP socket destroyed, listed or not.
    pub unread: u64,
    /// Sum of [`Socket::unsent`], likewise.
    pub unsent: u64,
    /// The first [`LISTED`] of them.
    pub sockets: Vec<Socket>,
}

/// Longest list of destroyed sockets: an agent may have a million.
pub const LISTED: usize = 1024;

/// A destroyed socket, as it was a moment before (`struct inet_diag_msg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    pub protocol: Protocol,
    /// The socket's own end; v4-mapped addresses as IPv4.
    pub local: SocketAddr,
    /// The other end as the kernel sees it: of a redirected connection that is the daemon.
    pub remote: SocketAddr,
    /// As in `socket:[INODE]` of `/proc/PID/fd`; 0: no process holds it any more.
    pub inode: u64,
    /// The user who made it, as a number of the initial user namespace.
    pub uid: u32,
    /// TCP: bytes that came in and were never read. UDP: memory of the datagrams in the queue, more than their bytes.
    pub unread: u32,
    /// TCP: bytes written that were not sent, or sent and not acknowledged, so that it is unknown whether the peer
    /// has them. UDP: memory of the datagrams on their way out.
    pub unsent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    pub const fn label(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        }
    }
}

/// A part of what was destroyed, e.g. one process's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// How many sockets.
    pub sockets: u32,
    /// Bytes left in the queues of the TCP sockets among them, as in [`Socket`].
    pub unread: u64,
    pub unsent: u64,
}

impl Destroyed {
    /// Adds what was destroyed elsewhere, such as in another network namespace.
    pub fn merge(&mut self, other: Destroyed) {
        self.tcp = self.tcp.saturating_add(other.tcp);
        self.udp = self.udp.saturating_add(other.udp);
        self.left = self.left.saturating_add(other.left);
        self.unread = self.unread.saturating_add(other.unread);
        self.unsent = self.unsent.saturating_add(other.unsent);
        let room = LISTED.saturating_sub(self.sockets.len());
        self.sockets.extend(other.sockets.into_iter().take(room));
    }

    /// How many were destroyed.
    pub fn total(&self) -> u32 {
        self.tcp.saturating_add(self.udp)
    }

    /// The share of a process that held these inodes ([`super::process::sockets`]), of those that are listed.
    /// A socket that several processes hold is in the share of each.
    pub fn held_by(&self, inodes: &HashSet<u64>) -> Queues {
        let mut queues = Queues::default();
        for socket in self.sockets.iter().filter(|socket| inodes.contains(&socket.inode)) {
            queues.sockets += 1;
            if socket.protocol == Protocol::Tcp {
                queues.unread += u64::from(socket.unread);
                queues.unsent += u64::from(socket.unsent);
            }
        }
        queues
    }

    pub(super) fn add(&mut self, socket: Socket) {
        match socket.protocol {
            Protocol::Tcp => {
                self.tcp = self.tcp.saturating_add(1);
                self.unread = self.unread.saturating_add(socket.unread.into());
                self.unsent = self.unsent.saturating_add(socket.unsent.into());
            }
            Protocol::Udp => self.udp = self.udp.saturating_add(1),
        }
        if self.sockets.len() < LISTED {
            self.sockets.push(socket);
        }
    }
}

impl Socket {
    /// Reads a `struct inet_diag_msg`.
    pub(super) fn parse(protocol: Protocol, message: &[u8; MESSAGE]) -> Socket {
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| message[at + i]));
        let address = |addr: usize, port: usize| {
            let bytes: [u8; 16] = std::array::from_fn(|i| message[addr + i]);
            let ip = match message[0] {
                AF_INET => IpAddr::from(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])),
                _ => IpAddr::from(Ipv6Addr::from(bytes)).to_canonical(),
            };
            SocketAddr::new(ip, u16::from_be_bytes([message[port], message[port + 1]]))
        };
        let (state, unread, unsent) = (message[1], word(56), word(60));
        let (unread, unsent) = match protocol {
            Protocol::Tcp => payload(state, unread, unsent),
            Protocol::Udp => (unread, unsent),
        };
        Socket {
            protocol,
            local: address(8, 4),
            remote: address(24, 6),
            inode: word(68).into(),
            uid: word(64),
            unread,
            unsent,
        }
    }
}

/// The kernel's queue lengths are differences of sequence numbers, in which a SYN and a FIN count as a byte each.
fn payload(state: u8, unread: u32, unsent: u32) -> (u32, u32) {
    let has_fin = matches!(state, TCP_CLOSE_WAIT | TCP_LAST_ACK | TCP_CLOSING);
    let sends_syn_or_fin =
        matches!(state, TCP_SYN_SENT | TCP_SYN_RECV | TCP_FIN_WAIT1 | TCP_LAST_ACK | TCP_CLOSING);
    (unread.saturating_sub(has_fin.into()), unsent.saturating_sub(sends_syn_or_fin.into()))
}

/// Size of a `struct inet_diag_msg`: four bytes (the first is the family, the second the state), the ends and the
/// cookie (48), `expires`, `rqueue`, `wqueue`, `uid`, `inode`.
pub(super) const MESSAGE: usize = 72;

const AF_INET: u8 = 2;

// include/net/tcp_states.h
const TCP_SYN_SENT: u8 = 2;
const TCP_SYN_RECV: u8 = 3;
const TCP_FIN_WAIT1: u8 = 4;
const TCP_CLOSE_WAIT: u8 = 8;
const TCP_LAST_ACK: u8 = 9;
const TCP_CLOSING: u8 = 11;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(family: u8, state: u8) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        (message[0], message[1]) = (family, state);
        message[4..8].copy_from_slice(&[0x1f, 0x90, 0x00, 0x50]);
        message[8..12].copy_from_slice(&[10, 0, 0, 1]);
        message[24..28].copy_from_slice(&[192, 0, 2, 7]);
        for (at, value) in [(56, 11u32), (60, 22), (64, 1000), (68, 4711)] {
            message[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        message
    }

    #[test]
    fn message_gives_ends_inode_and_queues() {
        let socket = Socket::parse(Protocol::Tcp, &message(AF_INET, 1));
        assert_eq!(socket.local.to_string(), "10.0.0.1:8080");
        assert_eq!(socket.remote.to_string(), "192.0.2.7:80");
        assert_eq!((socket.inode, socket.uid, socket.unread, socket.unsent), (4711, 1000, 11, 22));
    }

    #[test]
    fn mapped_addresses_show_as_ipv4() {
        let mut message = message(10, 1);
        message[8..24].copy_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
        message[24..40].copy_from_slice(&Ipv6Addr::LOCALHOST.octets());
        let socket = Socket::parse(Protocol::Udp, &message);
        assert_eq!(
            (socket.local.to_string(), socket.remote.to_string()),
            ("127.0.0.1:8080".into(), "[::1]:80".into())
        );
    }

    #[test]
    fn syn_and_fin_are_no_bytes() {
        assert_eq!(payload(1, 5, 7), (5, 7));
        assert_eq!(payload(TCP_SYN_SENT, 0, 1), (0, 0));
        assert_eq!(payload(TCP_FIN_WAIT1, 5, 8), (5, 7));
        assert_eq!(payload(TCP_CLOSE_WAIT, 6, 7), (5, 7));
        assert_eq!(payload(TCP_CLOSE_WAIT, 0, 7), (0, 7), "the end was read, too");
        assert_eq!(payload(TCP_LAST_ACK, 6, 8), (5, 7));
    }

    #[test]
    fn list_is_bounded_and_counts_are_not() {
        let mut destroyed = Destroyed::default();
        let tcp = Socket::parse(Protocol::Tcp, &message(AF_INET, 1));
        for _ in 0..LISTED + 10 {
            destroyed.add(tcp);
        }
        destroyed.add(Socket { protocol: Protocol::Udp, ..tcp });
        assert_eq!((destroyed.tcp, destroyed.udp, destroyed.sockets.len()), (1034, 1, LISTED));
        assert_eq!((destroyed.total(), destroyed.sockets.len(), destroyed.unread), (1035, LISTED, 1034 * 11));
        destroyed.merge(destroyed.clone());
        assert_eq!((destroyed.total(), destroyed.sockets.len(), destroyed.unsent), (2070, LISTED, 2068 * 22));
    }

    #[test]
    fn share_of_a_process_is_what_it_holds() {
        let one = Socket::parse(Protocol::Tcp, &message(AF_INET, 1));
        let mut destroyed = Destroyed::default();
        destroyed.add(one);
        destroyed.add(Socket { inode: 5, protocol: Protocol::Udp, ..one });
        destroyed.add(Socket { inode: 6, ..one });
        let share = destroyed.held_by(&HashSet::from([4711, 5, 99]));
        assert_eq!(share, Queues { sockets: 2, unread: 11, unsent: 22 });
    }
}
