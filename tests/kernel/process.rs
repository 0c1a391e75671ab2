//! What is told of a process, and that one may end at any moment.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use agent_tests::cgroup::{Cgroup, enter};
use interlock::kernel::sock_diag::Queues;
use interlock::kernel::{cgroup, process};

use crate::lab::{Lab, bare_probe, until};

fn made() -> Cgroup {
    Cgroup::create(&cgroup::root().expect("cgroup v2 is mounted"))
}

/// A process that sleeps; `sh` has become it.
fn sleeper(script: &str, variables: &[(&str, &str)]) -> Child {
    let script = format!("{script} exec sleep 60");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env_clear().envs(variables.iter().copied()).stdin(Stdio::null());
    let child = command.spawn().expect("a shell");
    until("the shell to become another program", || {
        (process::of_pid(child.id()).ok()?.comm == "sleep").then_some(())
    });
    child
}

fn end(mut child: Child) {
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn processes_of_a_cgroup_are_told_with_those_below() {
    let cgroup = made();
    let (above, below) = (bare_probe(), bare_probe());
    enter(cgroup.dir(), above.pid());
    enter(&cgroup.child("a/b"), below.pid());
    let found = process::in_cgroup(cgroup.dir(), 100).expect("processes");
    assert_eq!(found.total, 2);
    let pids: Vec<u32> = found.list.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [above.pid(), below.pid()]);
    for process in &found.list {
        assert_eq!(process.comm, "agent-probe");
        assert_eq!(process.exe.as_deref(), Some(Path::new(env!("CARGO_BIN_EXE_agent-probe"))));
        assert_eq!(process.uid, 0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
        let started = u64::try_from(process.started.as_second()).expect("after 1970");
        assert!((now - 60..=now).contains(&started), "{started} at {now}");
    }
    let few = process::in_cgroup(cgroup.dir(), 1).expect("processes");
    assert_eq!((few.list.len(), few.total), (1, 2));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn process_that_has_ended_is_gone_for_every_question() {
    let child = sleeper("", &[]);
    let pid = child.id();
    end(child);
    let errors = [
        process::of_pid(pid).map(drop),
        process::sockets(pid).map(drop),
        process::start_ticks(pid).map(drop),
        process::login(pid).map(drop),
    ];
    for answer in errors {
        assert!(process::is_gone(&answer.expect_err("it has ended")));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn processes_that_come_and_go_break_no_list() {
    let cgroup = made();
    let dir = cgroup.dir().display();
    let script = format!("echo $$ > {dir}/cgroup.procs; while :; do sleep 0.001 & wait; done");
    let mut shells: Vec<Child> =
        (0..4).map(|_| Command::new("sh").args(["-c", &script]).spawn().expect("a shell")).collect();
    until("the shells", || (cgroup::procs(cgroup.dir()).ok()?.len() >= 4).then_some(()));
    for _ in 0..200 {
        for found in process::in_cgroup(cgroup.dir(), 100).expect("processes").list {
            for answer in [process::sockets(found.pid).map(drop), process::start_ticks(found.pid).map(drop)] {
                assert!(
                    answer.as_ref().is_ok_and(|()| true)
                        || answer.is_err_and(|error| process::is_gone(&error))
                );
            }
        }
    }
    cgroup::kill(cgroup.dir()).expect("kill");
    shells.iter_mut().for_each(|shell| drop(shell.wait()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn dead_process_that_nobody_waited_for_is_no_panic() {
    let mut child = sleeper("", &[]);
    child.kill().expect("it runs");
    let dead = until("a dead process", || process::of_pid(child.id()).ok().filter(|dead| dead.exe.is_none()));
    assert_eq!(dead.comm, "sleep");
    assert!(
        process::sockets(child.id()).map_or_else(|error| process::is_gone(&error), |found| found.is_empty())
    );
    child.wait().expect("it ends");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn login_is_the_kernels_word() {
    if !Path::new("/proc/self/loginuid").exists() {
        let child = sleeper("", &[]);
        assert_eq!(process::login_uid(child.id()).expect("it runs"), None);
        return end(child);
    }
    let none = sleeper("echo 4294967295 > /proc/self/loginuid;", &[]);
    assert_eq!(process::login(none.id()).expect("it runs"), None);
    end(none);
    for (uid, name) in [("0", "root"), ("3999999999", "3999999999")] {
        let child = sleeper(&format!("echo {uid} > /proc/self/loginuid;"), &[]);
        assert_eq!(process::login(child.id()).expect("it runs").as_deref(), Some(name));
        end(child);
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn destroyed_sockets_are_told_process_by_process() {
    let lab = Lab::new();
    let (mut first, mut second) = (lab.agent(), lab.agent());
    lab.connected(&mut first, "192.0.2.7:80");
    let handle = lab.connected(&mut second, "192.0.2.7:80");
    let other = lab.connected(&mut second, "192.0.2.8:80");
    lab.isolate();
    second.must(&format!("send {handle} secret"));
    second.must(&format!("send {other} ab"));
    let shares = |destroyed: &interlock::kernel::sock_diag::Destroyed,
                  inodes: &[std::collections::HashSet<u64>]| {
        inodes.iter().map(|inodes| destroyed.held_by(inodes)).collect::<Vec<_>>()
    };
    let inodes: Vec<_> =
        [first.pid(), second.pid()].map(|pid| process::sockets(pid).expect("it runs")).into();
    let destroyed = lab.destroy();
    let expect = [Queues { sockets: 1, unread: 0, unsent: 0 }, Queues { sockets: 2, unread: 0, unsent: 8 }];
    assert_eq!(shares(&destroyed, &inodes), expect);
}
