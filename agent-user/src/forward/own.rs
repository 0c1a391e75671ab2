//! The daemon's own endpoint for remote operators, where no agent may be taken: its connections would come from us, and
//! a stolen certificate would make it an operator.
//!
//! Two looks. Before the dial, whether the destination is an address of the daemon's network namespace at that moment;
//! and when somebody has come, whether it came from a socket of our own, by whatever route or translation of addresses.
//! Not recognised: what leaves this host and returns from another address (SNAT, a proxy elsewhere).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use tokio::net::TcpStream;

use crate::kernel::netns::{Identity, Netns};
use crate::ledger::Conn;

/// Where the endpoint is, if there is one.
#[derive(Debug)]
pub struct OwnEndpoint {
    /// As bound, and in which namespace.
    bound: Option<(SocketAddr, Identity)>,
    sources: Arc<Sources>,
}

/// Our sockets to servers, by their own address, and for whom they are.
#[derive(Debug, Default)]
struct Sources(Mutex<HashMap<SocketAddr, Arc<Conn>>>);

/// A connection to a server, remembered until this is dropped.
#[derive(Debug)]
pub struct Source {
    address: SocketAddr,
    sources: Arc<Sources>,
}

impl Sources {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Conn>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.sources.lock().remove(&self.address);
    }
}

impl OwnEndpoint {
    /// The endpoint bound to `address` in the daemon's own namespace.
    ///
    /// # Errors
    /// The daemon's own namespace cannot be opened.
    pub fn new(address: Option<SocketAddr>) -> std::io::Result<OwnEndpoint> {
        let bound = address.map(|address| Ok::<_, std::io::Error>((address, Netns::current()?.identity())));
        Ok(OwnEndpoint { bound: bound.transpose()?, sources: Arc::default() })
    }

    /// Whether a connection from a namespace to `destination` would arrive at it. Call it in the daemon's namespace.
    pub fn is_at(&self, from: &Netns, destination: SocketAddr) -> bool {
        self.bound.is_some_and(|(bound, home)| {
            leads_to(bound, destination, from.identity() == home, is_of_this_host)
        })
    }
}

impl OwnEndpoint {
    /// Remembers that a connection, made from a namespace, is an agent's. Before a byte of the agent's is sent on it.
    pub fn remember(&self, from: &Netns, stream: &TcpStream, conn: &Arc<Conn>) -> Option<Source> {
        let (_, home) = self.bound?;
        let address = canonical(stream.local_addr().ok()?);
        if address.ip().is_loopback() && from.identity() != home {
            // It stays there; the same address at home is somebody else's.
            return None;
        }
        self.sources.lock().insert(address, Arc::clone(conn));
        Some(Source { address, sources: Arc::clone(&self.sources) })
    }

    /// Whose connection it is that has come from `address`, if it is one of ours.
    pub fn carries(&self, address: SocketAddr) -> Option<Arc<Conn>> {
        self.sources.lock().get(&canonical(address)).cloned()
    }
}

/// The same address without the form that IPv4 has on an IPv6 socket.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn leads_to(bound: SocketAddr, to: SocketAddr, at_home: bool, is_ours: impl Fn(IpAddr) -> bool) -> bool {
    if bound.port() != to.port() {
        return false;
    }
    let (bound, to) = (bound.ip().to_canonical(), to.ip().to_canonical());
    // `0.0.0.0` takes IPv4 alone, `[::]` both.
    let takes = bound.is_ipv6() || to.is_ipv4();
    if to.is_loopback() || to.is_unspecified() {
        // Another namespace has a loopback of its own. To connect to no address is to connect to loopback.
        let loops = bound.is_unspecified() && takes || bound.is_loopback() && to.is_unspecified();
        return at_home && (loops || bound == to);
    }
    if bound.is_unspecified() { takes && is_ours(to) } else { bound == to }
}

/// Whether an interface of this namespace has the address. If that cannot be told, it has.
fn is_of_this_host(ip: IpAddr) -> bool {
    let has = |address: &SockaddrStorage| match ip {
        IpAddr::V4(ip) => address.as_sockaddr_in().is_some_and(|address| address.ip() == ip),
        IpAddr::V6(ip) => address.as_sockaddr_in6().is_some_and(|address| address.ip() == ip),
    };
    getifaddrs().map_or(true, |mut interfaces| {
        interfaces.any(|interface| interface.address.as_ref().is_some_and(has))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a connection to `to` arrives at an endpoint bound to `bound`, from its own namespace and from another, on
    /// a host with the addresses 10.0.0.5 and fd00::5.
    #[track_caller]
    fn check(bound: &str, to: &str, expect: (bool, bool)) {
        let ours = |ip: IpAddr| ["10.0.0.5", "fd00::5"].iter().any(|own| own.parse::<IpAddr>() == Ok(ip));
        let leads = |at_home| leads_to(bound.parse().unwrap(), to.parse().unwrap(), at_home, ours);
        assert_eq!((leads(true), leads(false)), expect, "{to} at {bound}");
    }

    #[test]
    fn every_address_of_the_host_leads_to_a_wildcard() {
        for bound in ["0.0.0.0:9465", "[::]:9465"] {
            check(bound, "10.0.0.5:9465", (true, true));
            check(bound, "[::ffff:10.0.0.5]:9465", (true, true));
            check(bound, "127.0.0.1:9465", (true, false));
            check(bound, "127.8.8.8:9465", (true, false));
            check(bound, "0.0.0.0:9465", (true, false));
            check(bound, "10.0.0.6:9465", (false, false));
            check(bound, "10.0.0.5:9464", (false, false));
        }
        check("[::]:9465", "[fd00::5]:9465", (true, true));
        check("[::]:9465", "[::1]:9465", (true, false));
        check("[::]:9465", "[::]:9465", (true, false));
        check("0.0.0.0:9465", "[fd00::5]:9465", (false, false));
        check("0.0.0.0:9465", "[::1]:9465", (false, false));
    }

    #[test]
    fn only_its_own_address_leads_to_one_that_is_bound_to_one() {
        check("10.0.0.5:9465", "10.0.0.5:9465", (true, true));
        check("10.0.0.5:9465", "[::ffff:10.0.0.5]:9465", (true, true));
        check("10.0.0.5:9465", "127.0.0.1:9465", (false, false));
        check("10.0.0.5:9465", "0.0.0.0:9465", (false, false));
        check("127.0.0.1:9465", "127.0.0.1:9465", (true, false));
        check("127.0.0.1:9465", "0.0.0.0:9465", (true, false));
        check("127.0.0.1:9465", "127.0.0.2:9465", (false, false));
        check("[::1]:9465", "[::1]:9465", (true, false));
        check("[fd00::5]:9465", "[fd00::5]:9465", (true, true));
    }

    #[test]
    fn loopback_is_an_address_of_this_host_and_a_test_net_is_not() {
        assert!(is_of_this_host("127.0.0.1".parse().unwrap()));
        assert!(!is_of_this_host("192.0.2.1".parse().unwrap()));
    }
}
