//! Ways around, and that they are closed.

use std::os::fd::AsRawFd as _;

use agent_abi::{Reason, Settings};
use agent_tests::cgroup::enter;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::lab::{AGENT, Lab, bare_probe};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn fast_open_meets_the_same_hook() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = agent.must("socket 2 1 0");
    agent.must(&format!("fastopen {handle} 192.0.2.7:443 early"));
    assert_eq!(lab.accept4().1.map(|origin| origin.port), Some(443));
    lab.isolate();
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("fastopen {handle} 192.0.2.7:443 early")), "err EPERM");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn io_uring_meets_the_same_hook() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = agent.must("socket 2 1 0");
    agent.must(&format!("uring {handle} 192.0.2.7:443"));
    let origin = lab.accept4().1.expect("an origin");
    assert_eq!((origin.port, origin.tgid), (443, agent.pid()));
    lab.isolate();
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("uring {handle} 192.0.2.7:443")), "err EPERM");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn unreadable_transports_do_not_exist_for_agents() {
    let mut lab = Lab::new();
    lab.watch();
    let mut agent = lab.agent();
    let mut stranger = lab.stranger();
    // MPTCP, raw TCP, ICMP by raw and by ping socket, UDP-Lite.
    for kind in ["2 1 262", "10 1 262", "2 3 6", "2 3 1", "2 3 255", "2 2 136"] {
        if kind == "2 2 136" && stranger.ask(&format!("socket {kind}")) == "err EPROTONOSUPPORT" {
            // Linux 7.3 has no UDP-Lite, for nobody.
            continue;
        }
        assert_eq!(agent.ask(&format!("socket {kind}")), "err EPROTONOSUPPORT", "{kind}");
        let (reason, event) = lab.event();
        assert_eq!((reason, event.agent), (Reason::Transport, AGENT), "{kind}");
    }
    stranger.must("socket 2 3 1");
    agent.must("socket 1 1 0");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn udp_is_refused_but_for_dns() {
    let mut lab = Lab::new();
    lab.watch();
    let mut agent = lab.agent();
    let handle = agent.must("socket 2 2 0");
    assert_eq!(agent.ask(&format!("sendto {handle} 127.0.0.1:443 x")), "err EPERM");
    assert_eq!(lab.event().0, Reason::Datagram);
    assert_eq!(agent.ask(&format!("connect {handle} 127.0.0.1:443")), "err EPERM");
    agent.must(&format!("sendto {handle} 127.0.0.1:53 x"));
    // A v4-mapped sendto on an IPv6 socket runs the IPv4 hook.
    let handle = agent.must("socket 10 2 0");
    assert_eq!(agent.ask(&format!("sendto {handle} [::ffff:127.0.0.1]:443 x")), "err EPERM");
    assert_eq!(agent.ask(&format!("sendto {handle} [::1]:443 x")), "err EPERM");
    agent.must(&format!("sendto {handle} [::1]:53 x"));
    lab.kernel.set_settings(Settings { udp_allowed: 1, ..Settings::default() }).expect("set_settings");
    agent.must(&format!("sendto {handle} [::1]:443 x"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn udp_socket_older_than_enrolment_obeys_too() {
    let lab = Lab::new();
    lab.let_go();
    let mut agent = lab.agent();
    let quic = agent.must("socket 2 2 0");
    agent.must(&format!("connect {quic} 127.0.0.1:443"));
    let dns = agent.must("socket 2 2 0");
    agent.must(&format!("connect {dns} 127.0.0.1:53"));
    let ping = agent.must("socket 2 3 1");
    lab.hold();
    assert_eq!(agent.ask(&format!("send {quic} x")), "err EPERM");
    agent.must(&format!("send {dns} x"));
    assert_eq!(agent.ask(&format!("sendto {ping} 127.0.0.1:0 12345678")), "err EPERM");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn daemons_own_port_is_refused() {
    let mut lab = Lab::new();
    lab.watch();
    let mut agent = lab.agent();
    let ports = lab.ports();
    for to in [format!("127.0.0.1:{}", ports.port4), format!("0.0.0.0:{}", ports.port4)] {
        let handle = agent.must("socket 2 1 0");
        assert_eq!(agent.ask(&format!("connect {handle} {to}")), "err EACCES");
        assert_eq!(lab.event().0, Reason::OwnPort);
    }
    let handle = agent.must("socket 10 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} [::1]:{}", ports.port6)), "err EACCES");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn daemons_port_stays_free_for_it() {
    let mut lab = Lab::new();
    lab.watch();
    let listener = agent_abi::Listener { port4: 4040, port6: 4041 };
    lab.kernel.set_listener(lab.space.cookie().expect("a cookie"), listener).expect("set_listener");
    for mut probe in [lab.agent(), lab.stranger()] {
        let handle = probe.must("socket 2 1 0");
        assert_eq!(probe.ask(&format!("bind {handle} 0.0.0.0:4040")), "err EADDRINUSE");
        assert_eq!(lab.event().0, Reason::PortGuarded);
        let handle = probe.must("socket 10 1 0");
        assert_eq!(probe.ask(&format!("bind {handle} [::]:4041")), "err EADDRINUSE");
        assert_eq!(lab.event().0, Reason::PortGuarded);
        probe.must(&format!("bind {handle} [::]:4042"));
    }
    let bound = lab.space.within(|| std::net::TcpListener::bind("127.0.0.1:4040")).expect("setns");
    assert!(bound.is_ok(), "the daemon itself may");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn socket_handed_in_leads_nowhere() {
    let lab = Lab::new();
    // Made by this process, in a cgroup with hooks but without agents, and left open for the child.
    lab.kernel.sync_attach(&[lab.branch().to_owned(), lab.home().to_owned()]).expect("sync");
    let made = lab.space.within(|| socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None));
    let made = made.expect("setns").expect("a socket");
    fcntl(&made, FcntlArg::F_SETFD(FdFlag::empty())).expect("it may be inherited");
    let mut agent = bare_probe();
    enter(lab.agent_dir(), agent.pid());
    let handle = agent.must(&format!("adopt {}", made.as_raw_fd()));
    agent.must(&format!("connect {handle} 192.0.2.7:80"));
    assert_eq!(lab.accept4().1, None, "as with one that it brings along");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn socket_made_beside_and_used_inside_leads_nowhere() {
    let lab = Lab::new();
    let mut process = lab.stranger();
    let handle = process.must("socket 2 1 0");
    enter(lab.agent_dir(), process.pid());
    process.must(&format!("connect {handle} 192.0.2.7:80"));
    // Redirected, but what tells its destination sits on agents' cgroups only: the daemon closes it.
    assert_eq!(lab.accept4().1, None);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn socket_made_inside_and_carried_out_is_held() {
    let lab = Lab::new();
    let mut process = lab.agent();
    let handle = process.must("socket 2 1 0");
    enter(&lab.branch().join("outside-again").tap_create(), process.pid());
    process.must(&format!("connect {handle} 192.0.2.7:80"));
    assert_eq!(lab.accept4().1.map(|origin| origin.agent), Some(AGENT));
    let fresh = process.must("socket 2 1 0");
    assert_eq!(
        process.ask(&format!("connect {fresh} 192.0.2.7:80")),
        "err ENETUNREACH",
        "no longer an agent"
    );
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn cgroup_nested_by_the_agent_is_held() {
    let lab = Lab::new();
    let mut agent = lab.probe(&lab.agent_dir().join("a/b/c").tap_create());
    lab.connected(&mut agent, "192.0.2.7:80");
    assert_eq!(lab.accept4().1.map(|origin| origin.agent), Some(AGENT));
}

/// Makes a folder and gives it back.
trait TapCreate {
    fn tap_create(self) -> Self;
}

impl TapCreate for std::path::PathBuf {
    fn tap_create(self) -> Self {
        std::fs::create_dir_all(&self).expect("root may make cgroups");
        self
    }
}
