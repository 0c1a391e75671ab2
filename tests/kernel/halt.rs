//! Freezing and killing cgroups. Needs no hooks, only cgroups of the test's own.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent_tests::cgroup::{Cgroup, enter};
use interlock::kernel::cgroup::{self, Events};

use crate::lab::bare_probe;

const SOON: Duration = Duration::from_secs(5);

fn made() -> Cgroup {
    Cgroup::create(&cgroup::root().expect("cgroup v2 is mounted"))
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn frozen_cgroup_runs_nothing_until_it_is_thawed() {
    let cgroup = made();
    let nested = cgroup.child("a/b");
    let (mut above, mut below) = (bare_probe(), bare_probe());
    enter(cgroup.dir(), above.pid());
    enter(&nested, below.pid());
    assert_eq!(cgroup::events(cgroup.dir()).expect("events"), Events { populated: true, frozen: false });
    cgroup::set_frozen(cgroup.dir(), true).expect("freeze");
    let events = cgroup::wait(cgroup.dir(), SOON, |events| events.frozen).expect("wait");
    assert_eq!(events, Events { populated: true, frozen: true });
    assert!(cgroup::events(&nested).expect("events").frozen, "what is below is frozen with it");
    for probe in [&mut above, &mut below] {
        probe.tell("socket 2 1 0");
        assert!(!probe.answers_within(Duration::from_millis(200)));
    }
    cgroup::set_frozen(cgroup.dir(), false).expect("thaw");
    let events = cgroup::wait(cgroup.dir(), SOON, |events| !events.frozen).expect("wait");
    assert_eq!(events, Events { populated: true, frozen: false });
    for probe in [&mut above, &mut below] {
        assert!(probe.answer().starts_with("ok"));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn cgroup_made_in_a_frozen_one_is_frozen() {
    let cgroup = made();
    cgroup::set_frozen(cgroup.dir(), true).expect("freeze");
    let mut probe = bare_probe();
    enter(&cgroup.child("later"), probe.pid());
    let events = cgroup::wait(cgroup.dir(), SOON, |events| events.populated && events.frozen).expect("wait");
    assert!(events.frozen);
    probe.tell("socket 2 1 0");
    assert!(!probe.answers_within(Duration::from_millis(200)));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn kill_ends_everything_below_and_what_is_frozen() {
    let cgroup = made();
    let mut children: Vec<Child> = ["", "a", "a/b/c"].map(|name| sleeper(&cgroup.child(name))).into();
    cgroup::set_frozen(&cgroup.dir().join("a"), true).expect("freeze");
    cgroup::kill(cgroup.dir()).expect("kill");
    let events = cgroup::wait(cgroup.dir(), SOON, |events| !events.populated).expect("wait");
    assert!(!events.populated);
    assert!(cgroup::procs(cgroup.dir()).expect("procs").is_empty());
    for child in &mut children {
        let status = child.wait().expect("it has ended");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn kill_outruns_processes_that_fork_all_the_time() {
    let cgroup = made();
    // At most 12 shells with one child each; a child that is killed is replaced at once.
    let mut shells: Vec<Child> =
        (0..12).map(|_| inside(cgroup.dir(), "while :; do sh -c 'sleep 0.005; exit' & wait; done")).collect();
    cgroup::wait(cgroup.dir(), SOON, |events| events.populated).expect("wait");
    std::thread::sleep(Duration::from_millis(100));
    assert!(cgroup::procs(cgroup.dir()).expect("procs").len() >= 12);
    cgroup::kill(cgroup.dir()).expect("kill");
    let events = cgroup::wait(cgroup.dir(), SOON, |events| !events.populated).expect("wait");
    assert!(!events.populated, "{:?}", cgroup::procs(cgroup.dir()));
    for shell in &mut shells {
        shell.wait().expect("it has ended");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn waiting_is_bounded_and_wakes_with_the_change() {
    let cgroup = made();
    let mut child = sleeper(cgroup.dir());
    let started = Instant::now();
    let events = cgroup::wait(cgroup.dir(), Duration::from_millis(80), |events| events.frozen).expect("wait");
    assert!(!events.frozen && events.populated);
    assert!(started.elapsed() >= Duration::from_millis(80) && started.elapsed() < Duration::from_secs(2));
    let dir = cgroup.dir().to_owned();
    let waiter = std::thread::spawn(move || {
        let started = Instant::now();
        let events = cgroup::wait(&dir, SOON, |events| !events.populated).expect("wait");
        (events.populated, started.elapsed())
    });
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let (populated, took) = waiter.join().expect("the waiter ends");
    assert!(!populated && took < Duration::from_millis(400), "{took:?}: less than it takes to look again");
    assert_eq!(cgroup::wait(Path::new("/nowhere"), SOON, |_| false).expect("wait"), Events::default());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn neither_the_root_nor_what_holds_this_process_is_frozen_or_killed() {
    let root = cgroup::root().expect("cgroup v2 is mounted");
    let error = cgroup::set_frozen(&root, true).expect_err("the root");
    assert!(error.to_string().contains("root"), "{error:#}");
    cgroup::kill(&root).expect_err("the root");
    let lab = crate::lab::Lab::new();
    let error = cgroup::kill(lab.home()).expect_err("we are inside");
    assert!(error.to_string().contains("this process is inside"), "{error:#}");
    cgroup::set_frozen(lab.home(), true).expect_err("we are inside");
}

fn sleeper(dir: &Path) -> Child {
    inside(dir, "exec sleep 60")
}

/// A shell that enters the cgroup before it does anything else.
fn inside(dir: &Path, script: &str) -> Child {
    let enter = format!("echo $$ > {}/cgroup.procs && {script}", dir.display());
    let mut child = Command::new("sh").args(["-c", &enter]).stdin(Stdio::null()).spawn().expect("a shell");
    crate::lab::until("the shell in its cgroup", || {
        assert!(child.try_wait().expect("ours").is_none(), "the shell has ended");
        cgroup::procs(dir).ok()?.contains(&child.id()).then_some(())
    });
    child
}
