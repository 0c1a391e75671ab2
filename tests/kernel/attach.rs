//! Attaching, staying attached, and letting go.

use std::collections::BTreeMap;
use std::fs;

use interlock::kernel::{Kernel, cgroup};

use crate::lab::{AGENT, Lab, until};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn pins_hold_when_the_daemon_is_gone() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    // The daemon's descriptors go; what is left is what is pinned.
    let Lab { kernel, listener4, .. } = &lab;
    assert!(kernel.health().iter().all(|link| link.attached));
    lab.isolate();
    let pins = lab.pins().to_owned();
    let links: Vec<_> = fs::read_dir(pins.join("v1/links")).expect("links").collect();
    assert_eq!(links.len(), 12, "ten hooks, the daemon's establish, the agent's egress");
    let _ = listener4;
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:80")), "err EPERM");
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
    assert!(swaps >= 3 && count.parse::<u32>().expect("a count") > 100, "{swaps} swaps, {answer}");
    assert_eq!(lab.kernel.held().expect("held"), BTreeMap::from([(lab.agent_id(), AGENT)]));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn removed_cgroup_shows_as_detached_and_is_forgotten_by_the_next_daemon() {
    let lab = Lab::new();
    let id = lab.agent_id();
    fs::remove_dir(lab.agent_dir()).expect("nobody is inside");
    let health = until("the link to die", || {
        let dead: Vec<_> = lab.kernel.health().into_iter().filter(|link| !link.attached).collect();
        (!dead.is_empty()).then_some(dead)
    });
    assert_eq!(health.len(), 1);
    assert_eq!(health[0].name, "egress");
    let next = Kernel::attach(&lab.options()).expect("attach again");
    assert!(!next.held().expect("held").contains_key(&id));
    assert!(next.health().iter().all(|link| link.attached));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn attach_points_follow_the_list() {
    let lab = Lab::new();
    let other = agent_tests::cgroup::Cgroup::create(&cgroup::root().expect("cgroup v2 is mounted"));
    lab.kernel.sync_attach(&[lab.branch().to_owned(), other.dir().to_owned()]).expect("sync");
    assert_eq!(lab.kernel.health().len(), 22);
    lab.kernel.sync_attach(&[lab.branch().to_owned()]).expect("sync");
    assert_eq!(lab.kernel.health().len(), 12);
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
    assert_eq!(lab.kernel.health().len(), 12);
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
    let Lab { kernel, .. } = &lab;
    kernel.sync_attach(&[]).expect("sync");
    lab.let_go();
    let handle = agent.must("socket 2 1 0");
    assert_eq!(agent.ask(&format!("connect {handle} 192.0.2.7:80")), "err ENETUNREACH", "no route there");
}
