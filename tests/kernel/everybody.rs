//! The stop of all agents at once: one entry, with or without a daemon.

use std::io::Read as _;
use std::time::Duration;

use agent_abi::{AgentState, MODE_HELD, MODE_ISOLATED, MODE_RUN, Settings};
use agent_tests::probe::Probe;
use interlock::kernel::{Kernel, Maps, cgroup};

use crate::lab::{AGENT, Lab};

const ISOLATED: AgentState = AgentState { mode: MODE_ISOLATED, errno: 0 };

#[track_caller]
fn tries(agent: &mut Probe) -> String {
    let handle = agent.must("socket 2 1 0");
    let answer = agent.ask(&format!("connect {handle} 192.0.2.7:80"));
    agent.must(&format!("close {handle}"));
    answer.trim_end().to_owned()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn isolating_everybody_beats_a_running_state_and_clearing_gives_it_back() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    assert_eq!(lab.kernel.everybody().expect("everybody"), None);
    assert_eq!(tries(&mut agent), "ok");
    lab.kernel.set_everybody(Some(ISOLATED)).expect("set_everybody");
    assert_eq!(tries(&mut agent), "err EPERM");
    let udp = agent.must("socket 2 2 0");
    assert_eq!(agent.ask(&format!("sendto {udp} 127.0.0.1:53 x")), "err EPERM");
    assert_eq!(agent.ask(&format!("connect {udp} 127.0.0.1:53")), "err EPERM");
    assert_eq!(lab.kernel.everybody().expect("everybody"), Some(ISOLATED));
    let own = lab.kernel.states().expect("states");
    assert_eq!(own.keys().collect::<Vec<_>>(), [&AGENT], "everybody is no agent");
    assert_eq!(own[&AGENT].mode, MODE_RUN);
    lab.kernel.set_everybody(None).expect("set_everybody");
    assert_eq!(lab.kernel.everybody().expect("everybody"), None);
    assert_eq!(tries(&mut agent), "ok");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn own_stop_outlives_that_of_everybody() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.isolate();
    lab.kernel.set_everybody(Some(ISOLATED)).expect("set_everybody");
    lab.kernel.set_everybody(None).expect("set_everybody");
    assert_eq!(tries(&mut agent), "err EPERM");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn errno_is_that_of_the_entry_that_decides() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let everybody = AgentState { errno: libc::EHOSTDOWN.cast_unsigned(), ..ISOLATED };
    lab.kernel.set_everybody(Some(everybody)).expect("set_everybody");
    assert_eq!(tries(&mut agent), "err EHOSTDOWN");
    lab.isolate();
    assert_eq!(tries(&mut agent), "err EPERM", "equally strict: its own");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn packets_of_live_connections_stay() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.7:80");
    let (mut stream, _) = lab.accept4();
    stream.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
    lab.kernel.set_everybody(Some(ISOLATED)).expect("set_everybody");
    agent.must(&format!("send {handle} secret"));
    assert!(stream.read(&mut [0; 16]).is_err(), "nothing arrives");
    assert!(lab.kernel.counters().expect("counters").packets_dropped > 0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_enrolled_later_is_isolated_too() {
    let lab = Lab::new();
    lab.kernel.set_everybody(Some(ISOLATED)).expect("set_everybody");
    let late = lab.branch().join("late");
    std::fs::create_dir(&late).expect("root may make cgroups");
    lab.kernel.set_state(AGENT + 1, AgentState::RUN).expect("set_state");
    lab.kernel.hold(&late, cgroup::id(&late).expect("it is there"), AGENT + 1).expect("hold");
    assert_eq!(tries(&mut lab.probe(&late)), "err EPERM");
    // The agent that nests a cgroup in its own has not left it.
    let nested = lab.agent_dir().join("nested");
    std::fs::create_dir(&nested).expect("root may make cgroups");
    assert_eq!(tries(&mut lab.probe(&nested)), "err EPERM");
    assert_eq!(tries(&mut lab.stranger()), "err ENETUNREACH", "a stranger is not stopped");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn holds_with_no_daemon_and_into_the_next_one() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let (pins, options) = (lab.pins().to_owned(), lab.options());
    drop(lab.kernel);
    let maps = Maps::open(&pins).expect("the pins open");
    maps.set_everybody(Some(ISOLATED)).expect("set_everybody");
    assert_eq!(tries(&mut agent), "err EPERM");
    let next = Kernel::attach(&options).expect("attach again");
    assert_eq!(next.everybody().expect("everybody"), Some(ISOLATED));
    assert_eq!(tries(&mut agent), "err EPERM");
    next.set_everybody(None).expect("set_everybody");
    assert_eq!(tries(&mut agent), "ok");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn everybody_held_is_not_let_through_when_the_daemon_is_gone() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let open = Settings { fail_open: 1, stale_after_ns: 0, ..Settings::default() };
    lab.kernel.set_settings(open).expect("set_settings");
    assert_eq!(tries(&mut agent), "err ENETUNREACH", "open: as if no hook were there");
    lab.kernel.set_everybody(Some(AgentState { mode: MODE_HELD, errno: 0 })).expect("set_everybody");
    assert_eq!(tries(&mut agent), "ok", "redirected");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn number_of_everybody_is_nobodys_own() {
    let lab = Lab::new();
    let error = lab.kernel.set_state(agent_abi::EVERYBODY, AgentState::RUN).expect_err("reserved");
    assert!(error.to_string().contains("everybody"), "{error:#}");
    lab.kernel.forget_state(agent_abi::EVERYBODY).expect_err("reserved");
    let error = lab.kernel.hold(lab.agent_dir(), lab.agent_id(), agent_abi::EVERYBODY).expect_err("reserved");
    assert!(error.to_string().contains("begin at 1"), "{error:#}");
}
