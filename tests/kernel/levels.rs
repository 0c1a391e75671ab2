//! Agents are looked for only at the cgroup levels at which there are any.

use std::path::PathBuf;

use agent_abi::{MAX_CGROUP_LEVEL, Settings};
use agent_tests::probe::Probe;
use interlock::kernel::{Kernel, cgroup};

use crate::lab::{AGENT, Lab};
use crate::raw::RawMap;

/// The levels that the kernel side looks at.
fn looked_at(kernel: &Kernel) -> Vec<u32> {
    let settings = kernel.settings().expect("settings").expect("a daemon wrote them");
    (1..=MAX_CGROUP_LEVEL).filter(|level| settings.skipped_levels & 1 << level == 0).collect()
}

/// A cgroup below the branch, at this level below the root.
fn at_level(lab: &Lab, level: u32) -> PathBuf {
    let mut dir = lab.branch().to_owned();
    dir.extend((1..level).map(|level| format!("below-{level}")));
    std::fs::create_dir_all(&dir).expect("root may make cgroups");
    dir
}

#[track_caller]
fn is_redirected(lab: &Lab, process: &mut Probe) -> bool {
    let handle = process.must("socket 2 1 0");
    match &*process.ask(&format!("connect {handle} 192.0.2.7:80")) {
        // There is no route there.
        "err ENETUNREACH" => false,
        _ => lab.accept4().1.is_some_and(|origin| origin.agent == AGENT),
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_is_found_at_every_level() {
    let lab = Lab::new();
    assert_eq!(looked_at(&lab.kernel), [2]);
    lab.let_go();
    assert_eq!(looked_at(&lab.kernel), [] as [u32; 0]);
    for level in 1..=MAX_CGROUP_LEVEL {
        let dir = at_level(&lab, level);
        // In the cgroup itself, and in one further down.
        let mut processes = [lab.probe(&dir), lab.probe(&at_level(&lab, level + 2))];
        assert!(processes.iter_mut().all(|process| !is_redirected(&lab, process)), "level {level}");
        let id = cgroup::id(&dir).expect("it is there");
        lab.kernel.hold(&dir, id, AGENT).expect("hold");
        assert_eq!(looked_at(&lab.kernel), [level]);
        assert!(processes.iter_mut().all(|process| is_redirected(&lab, process)), "level {level}");
        lab.kernel.let_go(id).expect("let go");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn level_is_looked_at_from_its_first_agent_to_its_last() {
    let lab = Lab::new();
    let (deep, beside) = (at_level(&lab, 4), at_level(&lab, 4).with_file_name("beside"));
    std::fs::create_dir(&beside).expect("root may make cgroups");
    let (mut first, mut second) = (lab.probe(&deep), lab.probe(&beside));
    let ids = [&deep, &beside].map(|dir| cgroup::id(dir).expect("it is there"));
    lab.kernel.hold(&deep, ids[0], AGENT).expect("hold");
    lab.kernel.hold(&beside, ids[1], AGENT).expect("hold");
    assert_eq!(looked_at(&lab.kernel), [2, 4]);
    // What else is written into the same entry changes nothing.
    lab.kernel.set_settings(Settings::default()).expect("set_settings");
    lab.kernel.beat().expect("beat");
    lab.kernel.let_go(ids[0]).expect("let go");
    assert_eq!(looked_at(&lab.kernel), [2, 4]);
    assert!(!is_redirected(&lab, &mut first) && is_redirected(&lab, &mut second));
    lab.kernel.let_go(ids[1]).expect("let go");
    assert_eq!(looked_at(&lab.kernel), [2]);
    assert!(!is_redirected(&lab, &mut second) && is_redirected(&lab, &mut lab.agent()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn next_daemon_looks_where_the_last_one_did() {
    let lab = Lab::new();
    let deep = at_level(&lab, 5);
    lab.kernel.hold(&deep, cgroup::id(&deep).expect("it is there"), AGENT).expect("hold");
    let mut process = lab.probe(&deep);
    assert_eq!(looked_at(&Kernel::attach(&lab.options()).expect("attach again")), [2, 5]);
    assert!(is_redirected(&lab, &mut process) && is_redirected(&lab, &mut lab.agent()));
    // One whose cgroup has gone needs no level.
    drop(process);
    crate::lab::until("the cgroup to be empty", || std::fs::remove_dir(&deep).ok());
    assert_eq!(looked_at(&Kernel::attach(&lab.options()).expect("attach again")), [2]);
    assert!(is_redirected(&lab, &mut lab.agent()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn word_that_nobody_wrote_looks_everywhere() {
    let lab = Lab::new();
    let settings = lab.kernel.settings().expect("settings").expect("a daemon wrote them");
    let raw = RawMap::open(lab.pins(), "SETTINGS");
    raw.set(&0u32, &Settings { skipped_levels: 1 << 2, ..settings }).expect("root may write");
    assert!(!is_redirected(&lab, &mut lab.agent()), "the word is obeyed");
    raw.set(&0u32, &Settings { skipped_levels: 0, ..settings }).expect("root may write");
    assert!(is_redirected(&lab, &mut lab.agent()));
}
