//! Where an agent's connections go, and what the agent sees of it.

use std::io::{Read as _, Write as _};
use std::net::Ipv6Addr;

use agent_abi::{FAMILY_V4, FAMILY_V6, Reason, map_v4};

use crate::lab::{AGENT, Lab, bare_probe};
use agent_tests::cgroup::enter;
use interlock::kernel::netns;

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn ipv4_connection_reaches_the_daemon_with_its_destination() {
    let lab = Lab::new();
    // As on a real host, the daemon lives below the same hooks as its agents.
    lab.kernel.sync_attach(&[lab.branch().to_owned(), lab.home().to_owned()]).expect("sync");
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.7:443");
    let (mut stream, origin) = lab.accept4();
    let origin = origin.expect("an origin");
    assert_eq!((origin.addr, origin.port), (map_v4([192, 0, 2, 7]), 443));
    assert_eq!((origin.agent, origin.tgid, origin.uid), (AGENT, agent.pid(), 0));
    assert_eq!(origin.family, FAMILY_V4);
    assert_eq!(origin.netns, lab.space.cookie().expect("a cookie"));
    assert_eq!(agent.must(&format!("peer {handle}")), "192.0.2.7:443");
    let peer = stream.peer_addr().expect("a peer");
    assert_eq!(agent.must(&format!("local {handle}")), peer.to_string(), "the daemon sees its real peer");
    agent.must(&format!("send {handle} hello"));
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).expect("bytes");
    assert_eq!(&heard, b"hello");
    stream.write_all(b"there").expect("bytes");
    assert_eq!(agent.must(&format!("recv {handle}")), "there");
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn ipv6_connection_reaches_the_daemon_with_its_destination() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "[2001:db8::7]:8443");
    let origin = lab.accept6().1.expect("an origin");
    let wanted: Ipv6Addr = "2001:db8::7".parse().expect("an address");
    assert_eq!((origin.addr, origin.port, origin.family), (wanted.octets(), 8443, FAMILY_V6));
    assert_eq!(agent.must(&format!("peer {handle}")), "[2001:db8::7]:8443");
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn v4_mapped_connection_goes_over_ipv4() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "[::ffff:192.0.2.7]:80");
    let origin = lab.accept4().1.expect("an origin");
    assert_eq!((origin.addr, origin.port, origin.family), (map_v4([192, 0, 2, 7]), 80, FAMILY_V6));
    assert_eq!(agent.must(&format!("peer {handle}")), "[::ffff:192.0.2.7]:80");
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn every_one_of_many_connections_has_its_own_destination() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    for port in 1000..1200 {
        let handle = lab.connected(&mut agent, &format!("198.51.100.1:{port}"));
        assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(port));
        agent.must(&format!("close {handle}"));
    }
    lab.flows_are_empty();
    assert_eq!(lab.kernel.counters().expect("counters").redirected, 200);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn same_source_port_on_two_addresses_keeps_two_destinations() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    for (source, to) in [("127.0.0.2:5001", "192.0.2.1:1"), ("127.0.0.3:5001", "192.0.2.2:2")] {
        let handle = agent.must("socket 2 1 0");
        agent.must(&format!("bind {handle} {source}"));
        agent.must(&format!("connect {handle} {to}"));
    }
    assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(1));
    assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(2));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn socket_bound_to_a_device_is_redirected_too() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = agent.must("socket 2 1 0");
    agent.must(&format!("device {handle} lo"));
    agent.must(&format!("connect {handle} 192.0.2.7:80"));
    assert!(lab.accept4().1.is_some());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn namespace_without_a_listener_is_refused_and_reported() {
    let mut lab = Lab::new();
    lab.watch();
    let elsewhere = agent_tests::netns::Netns::create();
    let mut agent = bare_probe();
    enter(lab.agent_dir(), agent.pid());
    agent.must(&format!("netns {}", elsewhere.path().display()));
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:443")), "err ENETUNREACH");
    let (reason, event) = lab.event();
    assert_eq!(reason, Reason::NetnsUnknown);
    assert_eq!((event.addr, event.port, event.protocol), (map_v4([192, 0, 2, 7]), 443, 6));
    assert_eq!((event.agent, event.tgid), (AGENT, agent.pid()));
    let space = netns::Netns::open(&elsewhere.path()).expect("the namespace opens");
    assert_eq!(event.netns, space.cookie().expect("a cookie"));
    assert!(event.at_ns > 0 && event.at_ns <= interlock::kernel::monotonic_ns());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stranger_is_left_alone() {
    let lab = Lab::new();
    let mut stranger = lab.stranger();
    let port = lab.ports().port4;
    lab.connected(&mut stranger, &format!("127.0.0.1:{port}"));
    assert_eq!(lab.accept4().1, None, "a direct connection has no origin");
    let handle = stranger.must("socket 2 1 0");
    assert_eq!(stranger.ask(&format!("connect {handle} 192.0.2.7:80")), "err ENETUNREACH", "no route there");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn reused_socket_shows_its_new_destination() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = agent.must("socket 2 1 0");
    agent.must(&format!("connect {handle} 192.0.2.1:1"));
    drop(lab.accept4());
    agent.must(&format!("disconnect {handle}"));
    agent.must(&format!("connect {handle} 192.0.2.2:2"));
    assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(2));
    assert_eq!(agent.must(&format!("peer {handle}")), "192.0.2.2:2");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stale_heartbeat_opens_only_under_fail_open() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let settings = agent_abi::Settings { fail_open: 1, stale_after_ns: 1, ..Default::default() };
    lab.kernel.set_settings(settings).expect("set_settings");
    let handle = agent.must("socket 2 1 0");
    assert_eq!(
        agent.ask(&format!("connect {handle} 192.0.2.7:80")),
        "err ENETUNREACH",
        "direct: no route there"
    );
    assert_eq!(lab.kernel.counters().expect("counters").failed_open, 1);
    lab.kernel.set_settings(agent_abi::Settings { fail_open: 0, ..settings }).expect("set_settings");
    lab.connected(&mut agent, "192.0.2.7:80");
    assert!(lab.accept4().1.is_some());
}
