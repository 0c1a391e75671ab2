//! Rules while the daemon runs: what an operator writes meets the next call, on connections that are already open.

use std::fs;
use std::path::Path;
use std::time::Duration;

use agent_tests::agent::RawConn;
use agent_tests::http;
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::records::rules;
use agent_tests::wait::within;
use agent_tests::{Daemon, RawAgent, World, mcp};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{NO_RULES, NO_TRANSFERS};

/// The promise is one second; the rest is for a loaded machine.
const IN_FORCE: Duration = Duration::from_secs(2);

fn bank(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? { Ok(()) } else { reply.result(request, &json!({"content": []})) }
    })
}

/// Calls a tool on an open connection; answers the refusal, if it is one.
fn call(agent: &mut RawAgent, conn: &mut RawConn, tool: &str) -> Option<String> {
    agent
        .send(conn, &mcp::legacy(&mcp::call(1, tool, json!({"amount": 1}))))
        .expect("the connection stays open");
    let messages = agent.message(conn).expect("an answer on the same connection").messages();
    mcp::refusal(mcp::of_id(&messages, 1))
}

/// Replaces a file in one step, as careful tools do.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    fs::write(&next, text).expect("write beside it");
    fs::rename(next, path).expect("put it in place");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn changed_file_meets_the_next_call_on_an_open_connection() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    assert_eq!(call(&mut agent, &mut conn, "wire_transfer"), None);

    replace(daemon.rules(), NO_TRANSFERS);
    let refusal =
        within(IN_FORCE, || call(&mut agent, &mut conn, "wire_transfer")).expect("the new rule in force");
    assert!(refusal.contains("no-transfers"), "{refusal}");
    assert_eq!(call(&mut agent, &mut conn, "echo"), None);

    fs::write(daemon.rules(), NO_RULES).expect("write in place, as an editor may");
    within(IN_FORCE, || call(&mut agent, &mut conn, "wire_transfer").is_none().then_some(()))
        .expect("no rule any more");
    assert_eq!(server.connections(), 1, "all of it on one connection");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn sighup_reads_the_rules_again() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_TRANSFERS);
    let before = daemon.metrics().value("interlock_policy_reloads_total", &[]);
    daemon.process().signal(Signal::SIGHUP);
    daemon.metrics().wait("interlock_policy_reloads_total", &[], before + 1.0);
    assert!(daemon.process().is_running());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn bad_file_keeps_the_last_good_rules_and_shows_in_status() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let before = daemon.metrics().value("interlock_policy_reloads_total", &[]);

    replace(daemon.rules(), "version: 1\nrules:\n  - {id: x, acton: deny}\n");
    daemon.metrics().wait("interlock_policy_reloads_total", &[], before + 1.0);
    let refusal = call(&mut agent, &mut conn, "wire_transfer").expect("the last good rules are in force");
    assert!(refusal.contains("no-transfers"), "{refusal}");
    let status = daemon.cli().run(&["status"]).json.to_string();
    assert!(status.contains("acton"), "status names what is wrong: {status}");

    replace(daemon.rules(), NO_RULES);
    within(IN_FORCE, || call(&mut agent, &mut conn, "wire_transfer").is_none().then_some(()))
        .expect("mended");
    let status = daemon.cli().run(&["status"]).json.to_string();
    assert!(!status.contains("acton"), "what is mended is no longer shown: {status}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn observed_rule_is_recorded_and_never_applied() {
    let world = World::new();
    let observe = NO_TRANSFERS.replace("phase: request", "phase: request\n    mode: observe");
    let daemon = Daemon::start(&world, &observe);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");

    assert_eq!(call(&mut agent, &mut conn, "wire_transfer"), None);
    assert!(server.saw("wire_transfer"));
    let decision = daemon.records().decision("wire_transfer", "would_deny");
    assert_eq!(rules(&decision), ["no-transfers"]);
    assert_eq!(daemon.metrics().value("interlock_denials_total", &[]), 0.0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_sees_the_peer_it_asked_for() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |_, reply| reply.write(&http::response("text/plain", &[], b"hi")));
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    assert_eq!(agent.peer(&conn).expect("a peer"), server.address());
    agent.send(&conn, b"GET / HTTP/1.1\r\nhost: bank.test\r\n\r\n").expect("send");
    assert_eq!(agent.message(&mut conn).expect("an answer").text(), "hi", "what is no MCP flows through");
}
