//! The daemon dies and comes back (K8, ztunnel#521): what it held stays held, and no call slips through in between.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use agent_tests::app::interlock;
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
use interlock::config::STALE_AFTER;
use serde_json::json;

use crate::{NO_RULES, NO_TRANSFERS};

fn bank(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| reply.result(request, &json!({"content": []})))
}

/// One call on a connection of its own; answers whether it was refused in protocol, or nothing when it got nowhere.
fn call(agent: &mut RawAgent, server: std::net::SocketAddr, tool: &str) -> Option<bool> {
    let mut conn = agent.open(server).ok()?;
    agent.send(&conn, &mcp::legacy(&mcp::call(1, tool, json!({})))).ok()?;
    let messages = agent.message(&mut conn).ok()?.messages();
    agent.close(conn).ok()?;
    Some(mcp::refusal(mcp::of_id(&messages, 1)).is_some())
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn no_call_slips_through_while_the_daemon_crashes_and_restarts() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = bank(&world);
    let (done, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let trying = thread::spawn({
        let (mut agent, address) = (RawAgent::start(&world, "coder"), server.address());
        let (done, refused) = (done.clone(), refused.clone());
        move || {
            while !done.load(Ordering::Relaxed) {
                match call(&mut agent, address, "wire_transfer") {
                    Some(true) => refused.fetch_add(1, Ordering::Relaxed),
                    Some(false) => panic!("a call was let through"),
                    None => 0, // no daemon: refused by the kernel
                };
            }
        }
    });
    let mut probe = RawAgent::start(&world, "coder");
    for round in 0..3 {
        let before = refused.load(Ordering::Relaxed);
        wait_for("the loop to be refused in protocol", || {
            (refused.load(Ordering::Relaxed) > before + 5).then_some(())
        });
        daemon.crash();
        assert!(probe.open(server.address()).is_err(), "round {round}: held while there is no daemon");
        daemon.restart(&world);
        wait_for("allowed calls to work again", || {
            (call(&mut probe, server.address(), "echo") == Some(false)).then_some(())
        });
    }
    done.store(true, Ordering::Relaxed);
    trying.join().expect("every call was refused or got nowhere");
    assert!(!server.saw("wire_transfer"), "no byte of a refused call");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_holds_while_the_daemon_is_dead_and_after() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut sibling = RawAgent::start(&world, "sibling");
    assert_eq!(call(&mut agent, server.address(), "echo"), Some(false));
    let (id, _) = daemon.cli().stop(&["agent=coder"], "isolate");
    let before = server.connections();

    daemon.crash();
    assert!(agent.open(server.address()).is_err(), "while the daemon is dead");
    daemon.restart(&world);
    assert!(agent.open(server.address()).is_err(), "after it is back");
    assert!(daemon.cli().run(&["stops"]).json.to_string().contains(&id));
    assert_eq!(call(&mut sibling, server.address(), "echo"), Some(false), "it stops nobody else");
    assert_eq!(server.connections(), before + 1);

    assert_eq!(daemon.cli().release(&id).code, 0);
    assert_eq!(call(&mut agent, server.address(), "echo"), Some(false));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn refuse_level_stop_survives_a_clean_restart() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    daemon.cli().stop(&["agent=coder"], "refuse");
    daemon.stop();
    daemon.restart(&world);
    assert_eq!(call(&mut agent, server.address(), "echo"), Some(true));
    assert!(!server.saw("echo"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn fail_open_lets_agents_pass_once_the_daemon_is_gone_but_no_stopped_one() {
    let world = World::new();
    let mut daemon = Daemon::start_with(&world, NO_TRANSFERS, "fail: open\n");
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut sibling = RawAgent::start(&world, "sibling");
    daemon.cli().stop(&["agent=coder"], "refuse");
    assert_eq!(call(&mut sibling, server.address(), "wire_transfer"), Some(true), "while there is a daemon");

    daemon.crash();
    let crashed = Instant::now();
    wait_for("an agent to pass unread", || {
        let stopped = agent.open(server.address()).map(drop).expect_err("a stop is no call for fail: open");
        assert_eq!(stopped.kind(), ErrorKind::ConnectionRefused);
        (call(&mut sibling, server.address(), "wire_transfer") == Some(false)).then_some(())
    });
    // The last heartbeat may be a second old when the daemon dies.
    assert!(crashed.elapsed() > STALE_AFTER.saturating_sub(Duration::from_secs(2)), "not at once");
    for _ in 0..3 {
        let stopped = agent.open(server.address()).map(drop).expect_err("nor afterwards");
        assert_eq!(stopped.kind(), ErrorKind::ConnectionRefused);
    }

    daemon.restart(&world);
    assert_eq!(call(&mut sibling, server.address(), "wire_transfer"), Some(true), "held again");
    assert_eq!(call(&mut agent, server.address(), "echo"), Some(true), "and the stop is in force");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn second_daemon_on_the_same_state_is_refused_and_harms_nothing() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let (id, _) = daemon.cli().stop(&["agent=sibling"], "refuse");

    // Everything else is its own, so that nothing but the state can be in the way.
    let config = fs::read_to_string(world.path("config.yaml")).expect("read the configuration");
    let own = |line: &str| match line.split_once(':').map(|(key, _)| key) {
        Some("runtime_dir") => format!("runtime_dir: {}\n", world.path("run-2").display()),
        Some("pin_dir") => format!("pin_dir: {}\n", world.pin_dir().join("second").display()),
        _ => format!("{line}\n"),
    };
    let second = world.path("second.yaml");
    fs::write(&second, config.lines().map(own).collect::<String>()).expect("write another");
    let command = [interlock(), "run".to_owned(), "--config".to_owned(), second.display().to_string()];
    let mut second = world.start_operator("second", &command);
    assert!(!second.wait().success());
    assert!(second.stderr().contains("another daemon"), "{}", second.stderr());

    assert_eq!(call(&mut agent, server.address(), "echo"), Some(false));
    assert_eq!(call(&mut agent, server.address(), "wire_transfer"), Some(true));
    assert!(daemon.cli().run(&["stops"]).json.to_string().contains(&id));
}
