//! What a stop does in the kernel.

use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;

use agent_abi::{AgentState, MODE_ISOLATED, MODE_RUN, Reason};
use agent_tests::cgroup::enter;

use crate::lab::{AGENT, Lab, until};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn isolated_agent_gets_eperm_and_the_daemon_an_event() {
    let mut lab = Lab::new();
    lab.watch();
    let mut agent = lab.agent();
    lab.isolate();
    for (domain, to) in [("2", "192.0.2.7:80"), ("10", "[2001:db8::1]:80"), ("10", "[::ffff:192.0.2.7]:80")] {
        let handle = agent.must(&format!("socket {domain} 1 0"));
        assert_eq!(agent.ask(&format!("connect {handle} {to}")), "err EPERM");
        let (reason, event) = lab.event();
        assert_eq!((reason, event.agent, event.port), (Reason::Stopped, AGENT, 80));
    }
    let handle = agent.must("socket 2 2 0");
    assert_eq!(agent.ask(&format!("sendto {handle} 127.0.0.1:53 x")), "err EPERM");
    assert_eq!(lab.event().0, Reason::Stopped);
    let counters = lab.kernel.counters().expect("counters");
    assert_eq!((counters.refused, counters.refused_stopped), (4, 4));
    lab.set_mode(MODE_RUN);
    lab.connected(&mut agent, "192.0.2.7:80");
    assert!(lab.accept4().1.is_some(), "released");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn operator_chooses_the_errno() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let errno = libc::EHOSTDOWN.cast_unsigned();
    lab.kernel.set_state(AGENT, AgentState { mode: MODE_ISOLATED, errno }).expect("set_state");
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:80")), "err EHOSTDOWN");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_without_a_state_is_held_as_if_isolated() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.kernel.forget_state(AGENT).expect("forget_state");
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:80")), "err EPERM");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn live_connection_of_an_isolated_agent_is_silent_then_destroyed() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.7:80");
    let (mut stream, _) = lab.accept4();
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    lab.isolate();
    agent.must(&format!("send {handle} secret"));
    let mut heard = [0; 16];
    let error = stream.read(&mut heard).expect_err("nothing arrives");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    assert!(lab.kernel.counters().expect("counters").packets_dropped > 0);

    let destroyed = lab.destroy();
    assert_eq!((destroyed.tcp, destroyed.left), (1, 0));
    assert_eq!(agent.ask(&format!("recv {handle}")), "err ECONNABORTED");
    // The reset got out, and the queued bytes did not.
    let error = stream.read(&mut heard).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    lab.set_mode(MODE_RUN);
    assert!(stream.read(&mut heard).is_ok_and(|length| length == 0), "nothing was kept for later");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn bytes_dropped_without_destroy_would_have_been_kept() {
    // Why a stop destroys: this is what a drop alone does.
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.7:80");
    let (mut stream, _) = lab.accept4();
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
    lab.isolate();
    agent.must(&format!("send {handle} secret"));
    lab.set_mode(MODE_RUN);
    let mut heard = [0; 6];
    stream.read_exact(&mut heard).expect("the retransmission");
    assert_eq!(&heard, b"secret");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn destroy_cuts_connected_udp_and_spares_listeners_and_strangers() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let mut stranger = lab.stranger();
    let listening = agent.must("socket 2 1 0");
    agent.must(&format!("bind {listening} 127.0.0.1:0"));
    agent.must(&format!("listen {listening}"));
    let udp = agent.must("socket 2 2 0");
    agent.must(&format!("connect {udp} 127.0.0.1:53"));
    let port = lab.ports().port4;
    let other = lab.connected(&mut stranger, &format!("127.0.0.1:{port}"));
    let (mut stream, _) = lab.accept4();
    let destroyed = lab.destroy();
    assert_eq!((destroyed.tcp, destroyed.udp, destroyed.left), (0, 1, 0));
    stream.write_all(b"still").expect("the stranger's connection lives");
    assert_eq!(stranger.must(&format!("recv {other}")), "still");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn destroy_finds_a_socket_that_was_made_elsewhere() {
    let lab = Lab::new();
    let mut process = lab.stranger();
    let handle = process.must("socket 2 1 0");
    enter(lab.agent_dir(), process.pid());
    process.must(&format!("connect {handle} 192.0.2.7:80"));
    let _accepted = lab.accept4();
    let destroyed = lab.destroy();
    assert_eq!((destroyed.tcp, destroyed.left), (1, 0));
    assert_eq!(process.ask(&format!("recv {handle}")), "err ECONNABORTED");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn inbound_connection_of_an_isolated_agent_is_cut_too() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let listening = agent.must("socket 2 1 0");
    agent.must(&format!("bind {listening} 127.0.0.1:0"));
    agent.must(&format!("listen {listening}"));
    let address = agent.must(&format!("local {listening}"));
    lab.isolate();
    let mut stranger = lab.stranger();
    stranger.tell(&format!("hammer {address} 1"));
    let before = lab.kernel.counters().expect("counters").packets_dropped;
    until("a dropped SYN-ACK", || (lab.kernel.counters().ok()?.packets_dropped > before).then_some(()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_needs_no_daemon() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let maps = interlock::kernel::Maps::open(lab.pins()).expect("the pins open");
    maps.set_state(AGENT, AgentState { mode: MODE_ISOLATED, errno: 0 }).expect("set_state");
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:80")), "err EPERM");
    assert_eq!(maps.states().expect("states").get(&AGENT).map(|state| state.mode), Some(MODE_ISOLATED));
}
