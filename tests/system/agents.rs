//! Who is an agent, and from which moment on: no connection of one is let through unheld.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use agent_tests::agent::{Agent, call};
use agent_tests::app::interlock;
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, Era, RawAgent, Sdk, Server, World, mcp, wait_for};
use serde_json::json;

use crate::NO_TRANSFERS;

/// Whether the call was refused in protocol; nothing when it got nowhere.
pub(crate) fn refused(agent: &mut RawAgent, server: SocketAddr, tool: &str) -> Option<bool> {
    let mut conn = agent.open(server).ok()?;
    agent.send(&conn, &mcp::legacy(&mcp::call(1, tool, json!({})))).ok()?;
    let messages = agent.message(&mut conn).ok()?.messages();
    Some(mcp::refusal(mcp::of_id(&messages, 1)).is_some())
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_in_a_network_namespace_not_seen_before_is_never_let_through() {
    let world = World::bare();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    let mut agent = RawAgent::start(&world, "coder");
    let first = refused(&mut agent, server.address(), "wire_transfer");
    assert_ne!(first, Some(false), "refused by the kernel, or in protocol");
    wait_for("its calls to be judged", || {
        (refused(&mut agent, server.address(), "wire_transfer")?
            && !refused(&mut agent, server.address(), "echo")?)
        .then_some(())
    });
    assert!(!server.saw("wire_transfer"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn cgroup_made_while_the_daemon_runs_is_held() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    world.agent_cgroup("coder-9");
    daemon.holds(&format!("{}/agents/coder-9", world.cgroup()));
    let mut agent = RawAgent::start(&world, "coder-9");
    assert_eq!(refused(&mut agent, server.address(), "wire_transfer"), Some(true));
    assert_eq!(refused(&mut agent, server.address(), "echo"), Some(false));
    assert_eq!(daemon.records().decision("wire_transfer", "deny")["agent"], "coder");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn whoever_is_no_agent_is_left_alone() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    let mut other = RawAgent::start(&world, "nobody");
    assert_eq!(refused(&mut other, server.address(), "wire_transfer"), Some(false));
    assert!(daemon.records().of("decision").is_empty());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn exec_holds_a_command_from_its_first_connection() {
    let world = World::bare();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = Server::start(&world, Sdk::Rmcp);
    let script =
        json!([call("echo", json!({"text": "hi"})), call("wire_transfer", json!({"amount": 5000})),]);
    let client = Agent::command(Sdk::Rmcp, Era::Auto, &server.url(), &script);
    let client: Vec<&str> = client.iter().map(String::as_str).collect();
    let command = daemon.cli().command(&[&["exec", "--agent", "worker", "--"], &client[..]].concat());
    let worker = Agent::of(world.start_operator_there("worker", &command));
    worker.connected();
    let steps = worker.rest();
    assert!(steps[0].ok && steps[0].text == "hi", "{steps:?}");
    assert!(steps[1].is_error && steps[1].text.contains("no-transfers"), "{steps:?}");
    assert!(server.started("wire_transfer").is_empty());
    assert_eq!(daemon.records().decision("wire_transfer", "deny")["agent"], "worker");
}

/// As below a user's own manager: nothing keeps an agent there that runs as this user.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_cgroup_that_a_user_can_leave_is_warned_of() {
    let world = World::new();
    std::os::unix::fs::chown(world.make_cgroup("agents"), Some(1000), None).expect("give it to a user");
    let mut daemon = Daemon::start(&world, NO_TRANSFERS);
    let said = daemon.process().stderr();
    assert!(said.contains("can move the agent out") && said.contains("/agents/coder"), "{said}");
}

// === K4: istio#48876 ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connection_older_than_the_agent_is_cut_and_recorded() {
    let world = World::new();
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("nobody holds it yet");
    let call = mcp::legacy(&mcp::call(1, "wire_transfer", json!({})));
    agent.send(&conn, &call).expect("send");
    agent.message(&mut conn).expect("an answer, past everybody");

    let daemon = Daemon::start(&world, NO_TRANSFERS);
    daemon.records().wait("agent", "sockets that were cut", |record| {
        record["agent"] == "coder" && record["sockets_cut"].as_u64() >= Some(1)
    });
    let again = agent.send(&conn, &call).and_then(|()| agent.message(&mut conn));
    assert!(again.is_err(), "the old connection is gone");
    assert_eq!(refused(&mut agent, server.address(), "wire_transfer"), Some(true), "and a new one is held");
}

/// As in a pod of a host with nothing but cgroup v2.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn daemon_in_a_cgroup_namespace_of_its_own_sees_the_hosts_cgroups() {
    let world = World::new();
    let wrapper = world.path("in-namespace");
    std::fs::write(&wrapper, format!("#!/bin/sh\nexec unshare --cgroup {} \"$@\"\n", interlock()))
        .expect("write");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("make it a program");
    let mut daemon = Daemon::start(&world, NO_TRANSFERS);
    daemon.stop();
    daemon.restart_as(&world, &wrapper.display().to_string());
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    let mut agent = RawAgent::start(&world, "coder");
    assert_eq!(refused(&mut agent, server.address(), "wire_transfer"), Some(true));
    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    let order = daemon.cli().command(&["release", &id, "--reason", "let me go"]);
    assert!(!world.start_agent("coder", &order).wait().success(), "who asks is known by its cgroup");
    assert_eq!(daemon.cli().release(&id).code, 0);
}
