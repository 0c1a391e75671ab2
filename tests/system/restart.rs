//! The daemon dies and comes back (K8, ztunnel#521): what it held stays held, and no call slips through in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
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
