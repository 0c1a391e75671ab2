//! How the daemon learns where an accepted connection wanted to go, and what becomes of what it never accepts.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::Duration;

use agent_abi::{AgentState, FlowKey, Listener, Origin};
use agent_tests::probe::Probe;
use interlock::kernel::{cgroup, syn};
use socket2::{Domain, Socket, Type};

use crate::lab::{AGENT, Lab, until};
use crate::raw::RawMap;

/// As many entries as `FLOWS` has.
const FULL: u32 = 262_144;

fn flows(lab: &Lab) -> usize {
    lab.kernel.flow_keys().expect("flows").len()
}

/// Three looks, as the daemon takes them.
fn forget(lab: &Lab) -> [usize; 3] {
    [(); 3].map(|()| lab.kernel.forget_stale().expect("forget"))
}

/// A listener of the daemon that takes no second connection before the first is accepted, and the agents sent there.
fn narrow_listener(lab: &Lab) -> Socket {
    let listener = lab.space.within(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().expect("an address").into()).expect("bind");
        syn::keep(socket.as_fd()).expect("SYNs are kept");
        socket.listen(0).expect("listen");
        socket
    });
    let listener = listener.expect("setns");
    let port = listener.local_addr().expect("bound").as_socket().expect("an address").port();
    listen_at(lab, port);
    listener
}

fn listen_at(lab: &Lab, port: u16) {
    let listener = Listener { port4: port.into(), port6: port.into() };
    lab.kernel.set_listener(lab.space.cookie().expect("a cookie"), listener).expect("set_listener");
}

#[track_caller]
fn heard(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
    // It ends with a reset or without.
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connection_that_is_over_before_it_is_accepted_keeps_its_destination() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    for close in ["close", "reset"] {
        let handle = lab.connected(&mut agent, "192.0.2.7:443");
        agent.must(&format!("send {handle} goodbye"));
        agent.must(&format!("{close} {handle}"));
        assert_eq!(flows(&lab), 1, "{close}");
        let (stream, origin) = lab.accept4();
        assert_eq!(origin.map(|origin| origin.port), Some(443), "{close}");
        assert_eq!(heard(stream), "goodbye", "{close}");
        lab.flows_are_empty();
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn destination_is_told_once() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.connected(&mut agent, "192.0.2.7:443");
    let (stream, origin) = lab.accept4();
    assert!(origin.is_some());
    assert_eq!(lab.kernel.take_origin(stream.as_fd()), None);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connections_of_the_same_ends_are_not_confused() {
    let lab = Lab::new();
    let other = lab.branch().join("other");
    std::fs::create_dir(&other).expect("root may make cgroups");
    lab.kernel.set_state(AGENT + 1, AgentState::RUN).expect("set_state");
    lab.kernel.hold(&other, cgroup::id(&other).expect("it is there"), AGENT + 1).expect("hold");
    let (mut first, mut second) = (lab.agent(), lab.probe(&other));
    let connect = |probe: &mut Probe, to: &str, text: &str| {
        let handle = probe.must("socket 2 1 0");
        probe.must(&format!("bind {handle} 127.0.0.1:5001"));
        probe.must(&format!("connect {handle} {to}"));
        probe.must(&format!("send {handle} {text}"));
        probe.must(&format!("reset {handle}"));
    };
    connect(&mut first, "192.0.2.1:1", "first");
    connect(&mut second, "192.0.2.2:2", "second");
    for (agent, port, text) in [(AGENT, 1, "first"), (AGENT + 1, 2, "second")] {
        let (stream, origin) = lab.accept4();
        assert_eq!(origin.map(|origin| (origin.agent, origin.port)), Some((agent, port)));
        assert_eq!(heard(stream), text);
    }
    // The first one's destination is forgotten: its connection must not take the second one's.
    connect(&mut first, "192.0.2.1:1", "first");
    assert_eq!(forget(&lab), [0, 0, 1]);
    connect(&mut second, "192.0.2.2:2", "second");
    let (stream, origin) = lab.accept4();
    assert_eq!((heard(stream), origin), ("first".to_owned(), None));
    assert_eq!(lab.accept4().1.map(|origin| (origin.agent, origin.port)), Some((AGENT + 1, 2)));
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn refused_connect_leaves_no_flow() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    // The daemon is known but gone: nobody listens on its ports.
    let closed =
        std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound").port();
    let listener = agent_abi::Listener { port4: closed.into(), port6: closed.into() };
    lab.kernel.set_listener(lab.space.cookie().expect("a cookie"), listener).expect("set_listener");
    for _ in 0..20 {
        let handle = agent.must("socket 2 1 0");
        assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:443")), "err ECONNREFUSED");
        agent.must(&format!("close {handle}"));
    }
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connect_that_is_given_up_leaves_no_flow() {
    let lab = Lab::new();
    let _listener = narrow_listener(&lab);
    let mut agent = lab.agent();
    // One more than the backlog is taken; the SYN of the next one is lost.
    lab.connected(&mut agent, "192.0.2.7:1");
    let handle = agent.must("socket 2 1 0");
    agent.must(&format!("begin {handle} 192.0.2.7:2"));
    // It was sent again.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(flows(&lab), 2);
    agent.must(&format!("close {handle}"));
    assert_eq!(flows(&lab), 1);
    assert_eq!(lab.kernel.counters().expect("counters").origins_lost, 0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn socket_that_connects_anew_leaves_no_flow() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.1:1");
    agent.must(&format!("disconnect {handle}"));
    agent.must(&format!("connect {handle} 192.0.2.2:2"));
    assert_eq!(flows(&lab), 1);
    assert_eq!(lab.accept4().1, None, "the agent has reset it");
    assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(2));
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_nobody_accepts_is_forgotten_and_leads_nowhere_then() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.connected(&mut agent, "192.0.2.7:443");
    assert_eq!(forget(&lab), [0, 0, 1]);
    assert_eq!(flows(&lab), 0);
    assert_eq!(lab.accept4().1, None);
    lab.connected(&mut agent, "192.0.2.7:443");
    assert!(lab.accept4().1.is_some());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn full_map_drops_the_syn_and_recovers() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let map = RawMap::open(lab.pins(), "FLOWS");
    let entry = |isn| map.set(&FlowKey { isn, ..FlowKey::default() }, &Origin::default());
    (0..FULL).for_each(|isn| entry(isn).expect("there is room"));
    assert!(entry(FULL).is_err(), "it is full");
    agent.tell("socket 2 1 0");
    let handle = agent.answer().trim_start_matches("ok ").to_owned();
    agent.tell(&format!("connect {handle} 192.0.2.7:443"));
    let lost = || lab.kernel.counters().expect("counters").origins_lost;
    until("the SYN to be dropped", || (lost() > 0).then_some(()));
    lab.listener4.set_nonblocking(true).expect("it is a socket");
    assert!(lab.listener4.accept().is_err(), "the SYN has not left");
    assert_eq!(forget(&lab), [0, 0, FULL as usize]);
    assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(443), "it was sent again");
    assert_eq!(agent.answer().trim_end(), "ok");
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn syn_that_would_go_around_the_daemon_does_not_leave() {
    let lab = Lab::new();
    let route = ["route", "add", "192.0.2.99/32", "dev", "lo"];
    let added = lab.space.within(|| Command::new("ip").args(route).status()).expect("setns");
    assert!(added.expect("run ip (iproute2)").success());
    let mut agent = lab.agent();
    let handle = agent.must("socket 2 1 0");
    agent.must(&format!("route {handle} 192.0.2.99"));
    agent.must(&format!("begin {handle} 192.0.2.7:80"));
    assert_eq!((flows(&lab), lab.kernel.counters().expect("counters").origins_lost), (0, 1));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connection_answered_by_a_syn_cookie_leads_nowhere() {
    let lab = Lab::new();
    let always = || std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2");
    lab.space.within(always).expect("setns").expect("it is the namespace's own");
    let mut agent = lab.agent();
    lab.connected(&mut agent, "192.0.2.7:443");
    assert_eq!(lab.accept4().1, None);
    assert_eq!(forget(&lab), [0, 0, 1]);
}
