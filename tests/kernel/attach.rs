//! Attaching, staying attached, and letting go.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_abi::{ABI_VERSION, AgentState, MODE_ISOLATED};
use interlock::kernel::{Kernel, Maps, cgroup};

use crate::lab::{AGENT, Lab, until};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn pins_hold_when_the_daemon_is_gone() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.7:80");
    let (mut stream, _) = lab.accept4();
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    let pins = lab.pins().to_owned();
    assert_eq!(
        fs::read_dir(version_dir(&pins).join("links")).expect("links").count(),
        10,
        "hooks, and those of the agent"
    );
    // Every descriptor of programs, links and maps goes; what is left is what is pinned.
    drop(lab.kernel);
    agent.must(&format!("send {handle} alive"));
    let mut heard = [0; 16];
    assert_eq!(stream.read(&mut heard).expect("bytes"), 5);
    let maps = Maps::open(&pins).expect("the pins open");
    maps.set_state(AGENT, AgentState { mode: MODE_ISOLATED, errno: 0 }).expect("set_state");
    let fresh = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {fresh} 192.0.2.7:80")), "err EPERM");
    agent.must(&format!("send {handle} silent"));
    assert!(stream.read(&mut heard).is_err(), "the packet filter is in force");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn next_daemon_takes_over_under_load_and_nothing_slips() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.isolate();
    agent.tell("hammer 127.0.0.1:9 1500");
    let mut swaps = 0;
    let started = std::time::Instant::now();
    while started.elapsed().as_millis() < 1400 {
        drop(Kernel::attach(&lab.options()).expect("attach again"));
        swaps += 1;
    }
    let answer = agent.answer();
    let (outcome, count) = answer.trim_start_matches("ok ").split_once('=').expect("one outcome");
    assert_eq!(outcome, "EPERM", "{answer}");
    assert!(swaps >= 2 && count.parse::<u32>().expect("a count") > 100, "{swaps} swaps, {answer}");
    assert_eq!(lab.kernel.held().expect("held"), BTreeMap::from([(lab.agent_id(), AGENT)]));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connections_keep_their_destination_while_programs_are_swapped() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    agent.tell("hammer 192.0.2.7:443 1000");
    let started = std::time::Instant::now();
    let mut accepted = 0;
    lab.listener4.set_nonblocking(true).expect("it is a socket");
    while started.elapsed().as_millis() < 1000 {
        drop(Kernel::attach(&lab.options()).expect("attach again"));
        while let Ok((stream, _)) = lab.listener4.accept() {
            assert_eq!(lab.kernel.take_origin(stream.as_fd()).map(|origin| origin.port), Some(443));
            accepted += 1;
        }
    }
    let answer = agent.answer();
    assert_eq!(answer.split(' ').count(), 2, "one outcome: {answer}");
    assert!(answer.starts_with("ok connected="), "{answer}");
    assert!(accepted > 20, "{accepted} of {answer}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn removed_cgroup_shows_as_detached_and_is_forgotten_by_the_next_daemon() {
    let lab = Lab::new();
    let id = lab.agent_id();
    fs::remove_dir(lab.agent_dir()).expect("nobody is inside");
    let health = until("the link to die", || {
        let dead: Vec<_> = lab.kernel.health().into_iter().filter(|link| !link.attached).collect();
        (dead.len() > 1).then_some(dead)
    });
    let mut names: Vec<&str> = health.iter().map(|link| &*link.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["egress", "sock_create"]);
    let next = Kernel::attach(&lab.options()).expect("attach again");
    assert!(!next.held().expect("held").contains_key(&id));
    assert!(next.health().iter().all(|link| link.attached));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn cgroup_below_no_hook_is_not_pretended_to_be_held() {
    let lab = Lab::new();
    let other = agent_tests::cgroup::Cgroup::create(&cgroup::root().expect("cgroup v2 is mounted"));
    let id = cgroup::id(other.dir()).expect("it is there");
    let error = lab.kernel.hold(other.dir(), id, AGENT).expect_err("no hook there");
    assert!(error.to_string().contains("no hooks"), "{error:#}");
    let error = lab.kernel.hold(lab.agent_dir(), id, AGENT).expect_err("another id");
    assert!(error.to_string().contains("is cgroup"), "{error:#}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn map_of_another_layout_is_refused() {
    let lab = Lab::new();
    let maps = version_dir(lab.pins()).join("maps");
    fs::rename(maps.join("STATES"), maps.join("AGENTS")).expect("bpffs renames");
    let error = Kernel::attach(&lab.options()).err().expect("a map of states is no map of agents");
    assert!(format!("{error:#}").contains("keys of 4 and values of 8 bytes, expected 8 and 4"), "{error:#}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn lost_pin_is_reported_and_put_back() {
    let lab = Lab::new();
    let links = version_dir(lab.pins()).join("links");
    let pin = fs::read_dir(&links).expect("links").next().expect("one").expect("readable").path();
    fs::remove_file(&pin).expect("root may unpin");
    assert_eq!(lab.kernel.health().iter().filter(|link| !link.attached).count(), 1);
    lab.kernel.sync_attach(&lab.options().attach).expect("sync");
    lab.let_go();
    lab.hold();
    assert!(lab.kernel.health().iter().all(|link| link.attached));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn attach_points_follow_the_list() {
    let lab = Lab::new();
    let other = agent_tests::cgroup::Cgroup::create(&cgroup::root().expect("cgroup v2 is mounted"));
    lab.kernel.sync_attach(&[lab.branch().to_owned(), other.dir().to_owned()]).expect("sync");
    assert_eq!(lab.kernel.health().len(), 18);
    lab.kernel.sync_attach(&[lab.branch().to_owned()]).expect("sync");
    assert_eq!(lab.kernel.health().len(), 10);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn enrolling_a_hundred_times_leaves_nothing() {
    let lab = Lab::new();
    for _ in 0..100 {
        lab.let_go();
        assert_eq!(lab.kernel.held().expect("held"), BTreeMap::new());
        lab.hold();
    }
    assert_eq!(lab.kernel.health().len(), 10);
    let mut agent = lab.agent();
    lab.connected(&mut agent, "192.0.2.7:80");
    assert!(lab.accept4().1.is_some());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn detach_lets_agents_run_free() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.isolate();
    Kernel::detach_all(lab.pins()).expect("detach_all");
    assert!(!lab.pins().exists());
    assert!(lab.kernel.health().iter().all(|link| !link.attached), "though the daemon holds them open");
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:80")), "err ENETUNREACH", "no route there");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agents_and_states_of_an_earlier_version_are_taken_up() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    lab.isolate();
    let (pins, options, id) = (lab.pins().to_owned(), lab.options(), lab.agent_id());
    drop(lab.kernel);
    fs::rename(version_dir(&pins), pins.join("v1")).expect("bpffs renames");
    let next = Kernel::attach(&options).expect("attach");
    next.retire_other_versions().expect("retire");
    assert!(!pins.join("v1").exists());
    assert_eq!(next.held().expect("held"), BTreeMap::from([(id, AGENT)]));
    assert_eq!(next.states().expect("states")[&AGENT].mode, MODE_ISOLATED);
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:80")), "err EPERM");
}

fn version_dir(pins: &Path) -> PathBuf {
    pins.join(format!("v{ABI_VERSION}"))
}
