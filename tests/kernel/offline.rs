//! The command line's stop, with no daemon to ask.

use std::collections::HashSet;
use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use agent_abi::{AgentState, MODE_ISOLATED, MODE_RUN};
use agent_tests::netns::Netns;
use agent_tests::probe::Probe;
use interlock::kernel::{HeldCgroup, Kernel, Offline, cgroup};

use crate::lab::{AGENT, Lab};

#[track_caller]
fn tries(agent: &mut Probe) -> String {
    let handle = agent.must("socket 2 1 0");
    agent.ask(&format!("connect {handle} 192.0.2.7:80")).trim_end().to_owned()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn everybody_is_isolated_and_cut_with_the_daemon_dead() {
    let lab = Lab::new();
    let nested = lab.agent_dir().join("nested");
    std::fs::create_dir(&nested).expect("root may make cgroups");
    let (mut agent, mut below) = (lab.agent(), lab.probe(&nested));
    let (first, second) =
        (lab.connected(&mut agent, "192.0.2.7:80"), lab.connected(&mut below, "192.0.2.7:80"));
    let mut streams = [lab.accept4().0, lab.accept4().0];
    let (pins, id, dir) = (lab.pins().to_owned(), lab.agent_id(), lab.agent_dir().to_owned());
    drop(lab.kernel);

    let offline = Offline::open(&pins).expect("the pins open");
    offline.isolate_everybody(0).expect("isolate");
    assert_eq!(tries(&mut agent), "err EPERM");
    assert_eq!(offline.held_cgroups().expect("held"), [HeldCgroup { dir, cgroup_id: id, agent: AGENT }]);
    agent.must(&format!("send {first} secret"));
    let destroyed = offline.destroy_held().expect("destroy");
    assert_eq!((destroyed.tcp, destroyed.left, destroyed.unsent), (2, 0, 6), "in the agent's own namespace");
    assert_eq!(agent.ask(&format!("recv {first}")), "err ECONNABORTED");
    assert_eq!(below.ask(&format!("recv {second}")), "err ECONNABORTED");
    for stream in &mut streams {
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
        assert_eq!(stream.read(&mut [0; 16]).expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    }
    offline.set_everybody(None).expect("release");
    assert_eq!(tries(&mut agent), "ok");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn one_agent_is_isolated_and_the_other_runs_on() {
    let lab = Lab::new();
    let other = lab.branch().join("other");
    std::fs::create_dir(&other).expect("root may make cgroups");
    lab.kernel.set_state(AGENT + 1, AgentState::RUN).expect("set_state");
    lab.kernel.hold(&other, cgroup::id(&other).expect("it is there"), AGENT + 1).expect("hold");
    let (mut agent, mut runs) = (lab.agent(), lab.probe(&other));
    let offline = Offline::open(lab.pins()).expect("the pins open");
    offline.isolate(AGENT, libc::EHOSTDOWN.cast_unsigned()).expect("isolate");
    assert_eq!(tries(&mut agent), "err EHOSTDOWN");
    assert_eq!(tries(&mut runs), "ok");
    assert_eq!(offline.states().expect("states")[&AGENT].mode, MODE_ISOLATED);
    assert_eq!(offline.states().expect("states")[&(AGENT + 1)].mode, MODE_RUN);
    assert_eq!(offline.held_cgroups().expect("held").len(), 2);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn sockets_are_cut_in_every_namespace_of_an_agent() {
    let lab = Lab::new();
    let mut agents = vec![lab.agent()];
    lab.connected(&mut agents[0], "192.0.2.7:80");
    let stream = lab.accept4();
    // Two more namespaces, where nobody listens; what connects is UDP to a name server.
    let spaces = [Netns::create(), Netns::create()];
    for space in &spaces {
        let mut agent = lab.agent();
        agent.must(&format!("netns {}", space.path().display()));
        let handle = agent.must("socket 2 2 0");
        agent.must(&format!("connect {handle} 127.0.0.1:53"));
        agents.push(agent);
    }
    lab.isolate();
    let dirs = [lab.agent_dir().to_owned(), lab.branch().join("gone")];
    let destroyed = lab.kernel.destroy_below(&dirs, &HashSet::from([AGENT])).expect("destroy");
    assert_eq!((destroyed.tcp, destroyed.udp, destroyed.left), (1, 2, 0));
    drop(stream);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn removed_cgroup_is_not_listed() {
    let lab = Lab::new();
    std::fs::remove_dir(lab.agent_dir()).expect("nobody is inside");
    let offline = Offline::open(lab.pins()).expect("the pins open");
    assert_eq!(offline.held_cgroups().expect("held"), []);
    assert_eq!(offline.destroy_held().expect("destroy").total(), 0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_that_nobody_would_obey_is_not_called_one() {
    let lab = Lab::new();
    let offline = Offline::open(lab.pins()).expect("the pins open");
    let options = lab.options();
    drop(lab.kernel);
    let links = options.pin_dir.join(format!("v{}/links", agent_abi::ABI_VERSION));
    for entry in std::fs::read_dir(&links).expect("links") {
        std::fs::remove_file(entry.expect("readable").path()).expect("root may unpin");
    }
    let error = offline.isolate_everybody(0).expect_err("no hook is left");
    assert!(error.to_string().contains("nobody obeys yet"), "{error:#}");
    // Written all the same: the next daemon begins with it.
    let next = Kernel::attach(&options).expect("attach again");
    assert_eq!(next.everybody().expect("everybody").map(|state| state.mode), Some(MODE_ISOLATED));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn folder_without_pins_says_so() {
    let error = Offline::open(std::path::Path::new("/sys/fs/bpf/itest-nothing")).expect_err("nothing there");
    assert!(error.to_string().contains("no pinned maps"), "{error:#}");
}
