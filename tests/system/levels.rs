//! How far a stop goes: each level does what it says, says what it did, and is undone by its release.

use std::fs;
use std::path::Path;

use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::{NO_RULES, REASON};

fn server(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? { Ok(()) } else { reply.result(request, &json!({"content": []})) }
    })
}

fn is(cgroup: &Path, event: &str) -> bool {
    fs::read_to_string(cgroup.join("cgroup.events"))
        .is_ok_and(|events| events.lines().any(|line| line == event))
}

fn effect(answer: &Value) -> &Value {
    &answer["agents"][0]
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn freeze_halts_every_process_and_release_lets_them_go_on() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let pid = agent.process().pid();
    let conn = agent.open(server.address()).expect("a connection");
    let cgroup = world.agent_cgroup("coder");

    let (id, answer) = daemon.cli().stop(&["agent=coder"], "freeze");
    assert!(is(&cgroup, "frozen 1"));
    let done = effect(&answer.json);
    assert_eq!(done["cgroups"][0]["frozen"], true, "{done}");
    let process = &done["process_list"][0];
    assert_eq!((&process["pid"], &process["done"]), (&json!(pid), &json!("frozen")), "{done}");
    assert_eq!((&done["isolated"], &done["connections"]), (&json!(true), &json!(1)), "{done}");

    // Another instance that comes later is frozen too.
    let second = world.agent_cgroup("coder-2");
    let _later = world.start_agent("coder-2", &["sleep".to_owned(), "60".to_owned()]);
    wait_for("the latecomer to freeze", || {
        (is(&second, "frozen 1") && is(&second, "populated 1")).then_some(())
    });
    let exec = daemon.cli().command(&["exec", "--agent", "coder", "--", "true"]);
    assert!(!world.start_operator("exec", &exec).wait().success(), "no command is started to be frozen");

    // A connection at rest is cut after the answer.
    daemon.records().wait("connection", "of the agent that is cut", |record| record["pid"] == pid);
    assert_eq!(daemon.cli().release(&id).code, 0);
    wait_for("the thaw", || (is(&cgroup, "frozen 0") && is(&second, "frozen 0")).then_some(()));
    assert!(
        agent.send(&conn, b"x").and_then(|()| agent.send(&conn, b"x")).is_err(),
        "its connection was cut"
    );
    let mut conn = agent.open(server.address()).expect("it goes on where it was");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
    assert!(agent.message(&mut conn).is_ok());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn kill_ends_every_process_and_those_that_come() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let mut agent = RawAgent::start(&world, "coder");
    let pid = agent.process().pid();
    let cgroup = world.agent_cgroup("coder");
    wait_for("the agent in its cgroup", || is(&cgroup, "populated 1").then_some(()));
    let (id, answer) = daemon.cli().stop(&["agent=coder"], "kill");
    let done = effect(&answer.json);
    assert_eq!(done["cgroups"][0]["populated"], false, "{done}");
    assert_eq!(
        (&done["process_list"][0]["pid"], &done["process_list"][0]["done"]),
        (&json!(pid), &json!("killed"))
    );
    assert!(!agent.process().is_running() && is(&cgroup, "populated 0"));

    let mut respawned = world.start_agent("coder", &["sleep".to_owned(), "60".to_owned()]);
    assert!(!respawned.wait().success(), "killed as well");
    let halt = daemon.records().wait("halt", "on record", |_| true);
    assert_eq!((&halt["stop"], &halt["level"]), (&json!(id), &json!("kill")), "{halt}");
    assert_eq!(daemon.cli().release(&id).code, 0);
    assert!(RawAgent::start(&world, "coder").process().is_running(), "after the release it starts as before");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_goes_further_in_place() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
    assert!(agent.message(&mut conn).expect("an answer").text().contains(REASON));

    let raise = |level: &str| {
        daemon.cli().run(&["escalate", &id, "--level", level, "--reason", "worse than it looked"])
    };
    let answer = raise("isolate");
    assert_eq!((answer.code, &answer.json["stop"]["id"]), (0, &json!(id)), "{answer:?}");
    assert!(agent.open(server.address()).is_err(), "isolated now");
    assert!(
        raise("refuse").json["error"].as_str().is_some_and(|error| error.contains("release")),
        "never back"
    );
    assert_eq!(raise("freeze").code, 0);
    assert!(is(&world.agent_cgroup("coder"), "frozen 1"));

    daemon.crash();
    daemon.restart(&world);
    let receipt = daemon.cli().run(&["stops", "show", &id]).json;
    assert_eq!(receipt["stop"]["level"], "freeze", "{receipt}");
    let raised: Vec<&Value> = receipt["stop"]["escalations"].as_array().into_iter().flatten().collect();
    assert_eq!(
        (raised.len(), &raised[1]["from"], &raised[1]["to"]),
        (2, &json!("isolate"), &json!("freeze"))
    );
    assert_eq!(raised[0]["reason"], "worse than it looked");
    assert_eq!(receipt["from_records"], true, "{receipt}");
    let earlier: Vec<&Value> =
        receipt["earlier"].as_array().into_iter().flatten().map(|order| &order["to_level"]).collect();
    assert_eq!(earlier, ["refuse", "isolate"], "each order with what it came to: {receipt}");
    assert_eq!(receipt["agents"][0]["cgroups"][0]["frozen"], true, "what the last daemon did: {receipt}");

    assert_eq!(daemon.cli().release(&id).code, 0);
    wait_for("the thaw", || is(&world.agent_cgroup("coder"), "frozen 0").then_some(()));
    let mut conn = agent.open(server.address()).expect("released");
    agent.send(&conn, &mcp::legacy(&mcp::call(2, "echo", json!({})))).expect("send");
    assert!(agent.message(&mut conn).is_ok());
    let released = daemon.cli().run(&["stops", "show", &id]).json;
    assert_eq!(released["released"]["reason"], "the test is over", "{released}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_receipt_counts_what_has_run_into_the_stop_since() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    for n in 1..=3 {
        agent.send(&conn, &mcp::legacy(&mcp::call(n, "echo", json!({})))).expect("send");
        agent.message(&mut conn).expect("an answer");
    }
    assert_eq!(daemon.cli().run(&["stops", "show", &id]).json["refused"]["proxy"], 3);
    daemon.cli().run(&["escalate", &id, "--level", "isolate", "--reason", "x"]);
    for _ in 0..2 {
        assert!(agent.open(server.address()).is_err());
    }
    wait_for("the kernel's events", || {
        (daemon.cli().run(&["stops", "show", &id]).json["refused"] == json!({"proxy": 3, "kernel": 2}))
            .then_some(())
    });
}
