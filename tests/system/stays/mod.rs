//! A stop stays (S2, S3, K8). Here: ordered with the daemon dead or hung, and through restarts, reloads and respawns.

mod boot;
mod disk;

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use agent_tests::app::interlock;
use agent_tests::cli::Cli;
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
use interlock::kernel::Kernel;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{NO_RULES, NO_TRANSFERS};

fn bank(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| reply.result(request, &json!({"content": []})))
}

/// One call on a connection of its own; says whether it was refused in protocol.
fn call(agent: &mut RawAgent, server: SocketAddr) -> io::Result<bool> {
    let mut conn = agent.open(server)?;
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({}))))?;
    let messages = agent.message(&mut conn)?.messages();
    agent.close(conn)?;
    Ok(mcp::refusal(mcp::of_id(&messages, 1)).is_some())
}

/// What the kernel says to an agent that is isolated; without a daemon alone it would say another thing.
#[track_caller]
fn assert_isolated(agent: &mut RawAgent, server: SocketAddr, when: &str) {
    let error = agent.open(server).map(drop).expect_err(when);
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{when}: {error}");
}

fn stops(cli: &Cli) -> Vec<Value> {
    cli.run(&["stops"]).json["stops"].as_array().expect("a list").clone()
}

fn orders(world: &World) -> Vec<PathBuf> {
    let entries = fs::read_dir(world.path("state/orders")).into_iter().flatten();
    entries.map(|entry| entry.expect("readable").path()).collect()
}

/// Stops every thread of a daemon, and waits until all have.
fn hang(daemon: &mut Daemon) {
    daemon.process().signal(Signal::SIGSTOP);
    let tasks = format!("/proc/{}/task", daemon.process().pid());
    wait_for("every thread to stop", || {
        let mut threads = fs::read_dir(&tasks).expect("it lives").flatten();
        let has_stopped = |stat: io::Result<String>| stat.is_ok_and(|stat| stat.contains(") T "));
        threads.all(|thread| has_stopped(fs::read_to_string(thread.path().join("stat")))).then_some(())
    });
}

// === The daemon is dead, or hangs ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn all_are_stopped_with_the_daemon_dead_and_the_next_one_knows() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    assert!(!call(&mut agent, server.address()).expect("works"));
    daemon.crash();
    let (id, answer) = daemon.cli().stop(&["--all"], "isolate");
    assert_eq!(answer.code, 0, "{answer:?}");
    assert_eq!((&answer.json["offline"], &answer.json["durable"]), (&json!(true), &json!(true)));
    let coder = answer.json["agents"].as_array().expect("agents").iter().find(|one| one["agent"] == "coder");
    assert_eq!(coder.expect("by name")["processes"], 1, "{answer:?}");
    assert_isolated(&mut agent, server.address(), "while the daemon is dead");

    daemon.restart(&world);
    assert_isolated(&mut agent, server.address(), "after it is back");
    let known = stops(daemon.cli());
    assert_eq!(known[0]["stop"], answer.json["stop"], "with its operator and its time");
    let shown = daemon.cli().run(&["stops", "show", &id]).json;
    assert_eq!((&shown["offline"], &shown["in_force_at"]), (&json!(true), &answer.json["in_force_at"]));
    daemon.records().wait("stop", "the order", |record| record["stop"] == *id && record["offline"] == true);
    assert_eq!(orders(&world), [] as [PathBuf; 0], "taken up");

    assert_eq!(daemon.cli().release(&id).code, 0);
    assert!(!call(&mut agent, server.address()).expect("runs again"));
    daemon.crash();
    daemon.restart(&world);
    assert!(!call(&mut agent, server.address()).expect("and stays released"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn daemon_that_hung_takes_the_stop_up_before_it_decides_anything() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let kept = agent.open(server.address()).expect("a connection");
    hang(&mut daemon);
    // It waits in the daemon's socket for the moment in which that goes on.
    agent.send(&kept, &mcp::legacy(&mcp::call(7, "waiting", json!({})))).expect("send");
    let began = Instant::now();
    let (id, answer) = daemon.cli().stop(&["--all"], "isolate");
    assert!(began.elapsed() < Duration::from_secs(10), "it does not wait for a daemon that hangs");
    assert_eq!((answer.code, &answer.json["offline"]), (0, &json!(true)), "{answer:?}");
    assert_isolated(&mut agent, server.address(), "while it hangs");
    assert!(!server.saw("waiting"), "it hangs");

    daemon.process().signal(Signal::SIGCONT);
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        assert_isolated(&mut agent, server.address(), "at no moment after it goes on");
    }
    let known = stops(daemon.cli());
    assert_eq!(known.len(), 1, "the order that it found in its socket is the same one: {known:?}");
    assert_eq!(known[0]["stop"]["id"], *id);
    assert!(!server.saw("waiting"), "no call slips through");
    assert_eq!(orders(&world), [] as [PathBuf; 0]);
    assert_eq!(daemon.cli().release(&id).code, 0);
    assert!(!call(&mut agent, server.address()).expect("runs again"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn one_agent_is_stopped_offline_by_its_name() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let (mut agent, mut sibling) = (RawAgent::start(&world, "coder"), RawAgent::start(&world, "sibling"));
    daemon.crash();
    let (id, answer) = daemon.cli().stop(&["agent=cod*"], "refuse");
    assert!(answer.json["note"].as_str().is_some_and(|note| note.contains("isolate")), "{answer:?}");
    assert_eq!(answer.json["agents"].as_array().map(Vec::len), Some(1), "{answer:?}");
    assert_isolated(&mut agent, server.address(), "refuse is as much while nobody can answer");
    let error = sibling.open(server.address()).map(drop).expect_err("no daemon");
    assert_ne!(error.kind(), ErrorKind::PermissionDenied, "but not stopped");

    daemon.restart(&world);
    assert!(call(&mut agent, server.address()).expect("answered"), "refused in its protocol");
    assert!(!call(&mut sibling, server.address()).expect("works"));
    assert_eq!(daemon.cli().release(&id).code, 0);
    assert!(!call(&mut agent, server.address()).expect("runs again"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn all_are_killed_with_the_daemon_dead() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let mut agent = RawAgent::start(&world, "coder");
    daemon.crash();
    let (id, answer) = daemon.cli().stop(&["--all"], "kill");
    assert!(!agent.process().wait().success());
    assert!(answer.json["agents"].to_string().contains("\"killed\""), "{answer:?}");
    daemon.restart(&world);
    assert!(!RawAgent::start(&world, "coder").process().wait().success(), "and whatever comes later");
    assert_eq!(stops(daemon.cli())[0]["stop"]["id"], *id);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_only_a_daemon_can_do_is_not_claimed() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    daemon.crash();
    let answer = daemon.cli().run(&["stop", "tool=pay_*", "--reason", "x"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.json["error"].as_str().is_some_and(|error| error.contains("--all")), "{answer:?}");
    // Without pins nobody obeys, which is not called a stop; the order waits all the same.
    Kernel::detach_all(&world.pin_dir()).expect("detach");
    let answer = daemon.cli().run(&["stop", "--all", "--reason", "x", "--level", "isolate"]);
    assert_eq!(
        (answer.code, &answer.json["in_force"], &answer.json["durable"]),
        (1, &json!(false), &json!(true))
    );
    daemon.restart(&world);
    let server = bank(&world);
    assert_isolated(
        &mut RawAgent::start(&world, "coder"),
        server.address(),
        "it takes force with the daemon",
    );
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn nobody_orders_from_an_agents_cgroup_when_the_daemon_is_dead_either() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    daemon.crash();
    let command = daemon.cli().command(&["stop", "agent=sibling", "--reason", "a rival"]);
    let mut inside = world.start_agent("coder", &command);
    assert_eq!(inside.wait().code(), Some(1));
    assert_eq!(orders(&world), [] as [PathBuf; 0], "{}", inside.stderr());
    daemon.restart(&world);
    assert_eq!(stops(daemon.cli()), [] as [Value; 0]);
    assert!(!call(&mut RawAgent::start(&world, "sibling"), server.address()).expect("works"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn order_that_cannot_be_read_holds_everybody_until_a_person_says_otherwise() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    fs::create_dir_all(world.path("state/orders")).expect("a folder");
    fs::write(world.path("state/orders/stp\n\u{1b}[2J"), "{").expect("a file");
    let known = wait_for("the stop", || stops(daemon.cli()).pop());
    let id = known["stop"]["id"].as_str().expect("an id");
    assert!(id.starts_with("stp-held-") && known["stop"]["scope"] == json!({"all": true}), "{known}");
    assert_isolated(&mut agent, server.address(), "held");
    daemon.crash();
    daemon.restart(&world);
    assert_eq!(stops(daemon.cli()).len(), 1, "it was saved, and the file set aside");
    assert_isolated(&mut agent, server.address(), "after a restart");
    assert_eq!(daemon.cli().release(id).code, 0);
    assert!(!call(&mut agent, server.address()).expect("runs again"));
}

// === Restart, respawn, reload ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_holds_over_a_restart_with_another_program() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    daemon.cli().stop(&["agent=coder"], "isolate");
    let upgraded = world.path("interlock-next");
    fs::copy(interlock(), &upgraded).expect("copy");
    daemon.stop();
    assert_isolated(&mut agent, server.address(), "between the two");
    daemon.restart_as(&world, &upgraded.display().to_string());
    assert_isolated(&mut agent, server.address(), "under the next");
    assert_eq!(stops(daemon.cli()).len(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn respawned_agent_in_a_cgroup_made_anew_is_stopped() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    daemon.cli().stop(&["agent=coder"], "isolate");
    agent.process().signal(Signal::SIGKILL);
    agent.process().wait();
    assert_isolated(&mut RawAgent::start(&world, "coder"), server.address(), "a new process");
    assert_isolated(&mut RawAgent::start(&world, "coder/forked"), server.address(), "in a cgroup below");
    let dir = world.agent_cgroup("coder");
    wait_for("its processes to leave", || {
        let _ = fs::remove_dir(dir.join("forked"));
        fs::remove_dir(&dir).is_ok().then_some(())
    });
    // As a supervisor does: the same unit, a new cgroup.
    world.agent_cgroup("coder");
    let path = format!("{}/agents/coder", world.cgroup());
    wait_for("the new cgroup to be held", || {
        let held = daemon.records().of("agent");
        (held.iter().filter(|record| record["cgroup"] == *path).count() >= 2).then_some(())
    });
    assert_isolated(&mut RawAgent::start(&world, "coder"), server.address(), "the unit started again");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_in_the_moment_of_a_reload_holds() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(daemon.process().pid()).expect("a pid"));
    let done = Arc::new(AtomicBool::new(false));
    let reloading = thread::spawn({
        let (done, rules) = (done.clone(), daemon.rules().to_owned());
        move || {
            let mut reloads = 0;
            for text in [NO_RULES, NO_TRANSFERS].iter().cycle() {
                fs::write(&rules, text).expect("write the rules");
                nix::sys::signal::kill(pid, Signal::SIGHUP).expect("it runs");
                reloads += 1;
                if done.load(Ordering::Relaxed) {
                    return reloads;
                }
                thread::sleep(Duration::from_millis(1));
            }
            unreachable!("a cycle has no end")
        }
    });
    for round in 0..30 {
        let level = if round % 2 == 0 { "refuse" } else { "isolate" };
        let (id, _) = daemon.cli().stop(&["agent=coder"], level);
        for _ in 0..5 {
            match call(&mut agent, server.address()) {
                Ok(refused) => assert!(refused && level == "refuse", "round {round}"),
                Err(error) => assert_eq!((error.kind(), level), (ErrorKind::PermissionDenied, "isolate")),
            }
        }
        assert_eq!(daemon.cli().release(&id).code, 0);
        assert!(!call(&mut agent, server.address()).expect("released"), "round {round}");
    }
    done.store(true, Ordering::Relaxed);
    assert!(reloading.join().expect("it wrote") > 30);
}
