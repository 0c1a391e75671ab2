//! How the daemon learns where an accepted connection wanted to go, and what becomes of what it never accepts.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::Duration;

use agent_abi::{AgentState, FlowKey, Listener, Origin};
use agent_tests::probe::Probe;
use interlock::kernel::{cgroup, syn};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use crate::lab::{AGENT, Lab};
use crate::raw::RawMap;

/// As many entries as `FLOWS` has room for.
const ROOM: u32 = 65_536;

fn flows(lab: &Lab) -> usize {
    lab.kernel.flows().expect("flows").len()
}

/// As if so many connections had begun, on every processor: each lets go of its own entries first.
fn begin(lab: &Lab, count: u32) {
    let begin_on = |processor: u32| {
        let mut only = CpuSet::new();
        only.set(processor as usize).expect("a processor");
        sched_setaffinity(Pid::from_raw(0), &only).expect("it is there");
        let map = RawMap::open(lab.pins(), "FLOWS");
        for isn in 0..count {
            let key = FlowKey { isn, agent_port: processor, ..FlowKey::default() };
            map.set(&key, &Origin::default()).expect("there is always room");
        }
    };
    let all = sched_getaffinity(Pid::from_raw(0)).expect("it is there");
    let processors = (0..u32::BITS).filter(|processor| all.is_set(*processor as usize).unwrap_or(false));
    // On threads of their own, which stay where they are put.
    std::thread::scope(|scope| {
        processors.for_each(|processor| drop(scope.spawn(move || begin_on(processor))))
    });
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
    let key = lab.kernel.flows().expect("flows")[0].0;
    RawMap::open(lab.pins(), "FLOWS").remove(&key).expect("it is there");
    connect(&mut second, "192.0.2.2:2", "second");
    let (stream, origin) = lab.accept4();
    assert_eq!((heard(stream), origin), ("first".to_owned(), None));
    assert_eq!(lab.accept4().1.map(|origin| (origin.agent, origin.port)), Some((AGENT + 1, 2)));
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connections_find_their_way_after_ones_that_led_nowhere() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    // The daemon is known but gone: nobody listens on its ports.
    let closed = TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound").port();
    listen_at(&lab, closed);
    for _ in 0..20 {
        let handle = agent.must("socket 2 1 0");
        assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:443")), "err ECONNREFUSED");
        agent.must(&format!("close {handle}"));
    }
    assert_eq!(flows(&lab), 20);
    listen_at(&lab, lab.listener4.local_addr().expect("bound").port());
    // More of them than there is room for.
    begin(&lab, ROOM + 1);
    for port in 1..=20 {
        lab.connected(&mut agent, &format!("192.0.2.7:{port}"));
        assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(port));
    }
    assert_eq!(lab.kernel.counters().expect("counters").origins_lost, 0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connection_that_waited_for_too_many_others_leads_nowhere() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.connected(&mut agent, "192.0.2.7:1");
    begin(&lab, 2 * ROOM);
    assert!(flows(&lab) <= ROOM as usize);
    assert_eq!(lab.accept4().1, None);
    lab.connected(&mut agent, "192.0.2.7:2");
    // As many as one agent can have waiting, and more.
    begin(&lab, ROOM / 8);
    assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(2));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn syn_that_comes_again_is_the_same_connection() {
    let lab = Lab::new();
    let listener = narrow_listener(&lab);
    let mut agent = lab.agent();
    // One more than the backlog is taken; the SYN of the next one is lost.
    lab.connected(&mut agent, "192.0.2.7:1");
    let handle = agent.must("socket 2 1 0");
    agent.must(&format!("begin {handle} 192.0.2.7:2"));
    for port in [1, 2] {
        assert_eq!(flows(&lab), 3 - port);
        let stream = listener.accept().expect("a connection").0;
        let origin = lab.kernel.take_origin(stream.as_fd());
        assert_eq!(origin.map(|origin| origin.port as usize), Some(port));
    }
    lab.flows_are_empty();
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn socket_that_connects_anew_is_two_connections() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.1:1");
    agent.must(&format!("disconnect {handle}"));
    agent.must(&format!("connect {handle} 192.0.2.2:2"));
    for port in [1, 2] {
        assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(port));
    }
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
}
