//! Rules as objects of the API server: for all agents of a cluster, or for those of one namespace, beside those of the file.

use agent_tests::api_server::{ApiServer, pod};
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::NO_RULES;
use crate::pods::{
    agent_labels, call_until_answered, enter, for_cluster, knows_and_holds, server, start, uid,
};

/// A pod in the namespace of the agents, and one elsewhere, both agents.
const BOTH: &str = "{name: \"{namespace}/{pod}\", kubernetes: {labels: {interlock.dev/agent: \"true\"}}}";

fn deny(id: &str, tool: &str) -> Value {
    json!({"id": id, "action": "deny", "match": {"tool": tool}, "reason": format!("{id} says no")})
}

/// What a call of a tool comes back with.
fn call(agent: &mut RawAgent, server: &RawServer, tool: &str) -> String {
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, tool, json!({})))).expect("send");
    agent.message(&mut conn).expect("an answer").text().to_owned()
}

/// Calls until the answer has this in it.
#[track_caller]
fn comes_to(agent: &mut RawAgent, server: &RawServer, tool: &str, expect: &str) {
    wait_for(expect, || call(agent, server, tool).contains(expect).then_some(()));
}

fn faults(daemon: &Daemon) -> Value {
    daemon.cli().run(&["status"]).json["policy"]["faults"].take()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn policies_hold_beside_the_file_and_where_they_are_meant_to() {
    let world = World::new();
    let mut api = ApiServer::start(&world);
    api.set(&pod(&uid(1), "agents", "coder-0", agent_labels()));
    api.set(&pod(&uid(2), "labs", "tester-0", agent_labels()));
    api.set_policy(None, "all", &json!([deny("wire", "wire")]));
    api.set_policy(Some("agents"), "team", &json!([deny("exec", "exec"), deny("rm", "rm")]));
    let rules = "version: 1\nrules:\n  - {id: own, action: deny, match: {tool: own}, reason: own says no}\n";
    let mut daemon = start(&world, BOTH, rules, "hold");
    knows_and_holds(&world, &daemon, 2);
    let server = server(&world);
    let (mut coder, mut tester) = (enter(&world, &uid(1)), enter(&world, &uid(2)));
    call_until_answered(&mut coder, &server);
    call_until_answered(&mut tester, &server);
    comes_to(&mut coder, &server, "exec", "exec says no");
    for (tool, here, there) in [
        ("own", "own says no", "own says no"),
        ("wire", "wire says no", "wire says no"),
        ("exec", "exec says no", "content"),
    ] {
        assert!(call(&mut coder, &server, tool).contains(here), "{tool}");
        assert!(call(&mut tester, &server, tool).contains(there), "{tool}");
    }
    let denied = daemon.records().decision("exec", "deny");
    assert_eq!(denied["rules"], json!(["AgentPolicy/agents/team/exec"]));

    // A changed object is in force on connections that are open; a bad one changes nothing, and says so.
    let mut open = coder.open(server.address()).expect("a connection");
    api.set_policy(Some("agents"), "team", &json!([deny("exec", "exec"), deny("echo", "echo")]));
    wait_for("the rule on the open connection", || {
        coder.send(&open, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
        coder.message(&mut open).expect("an answer").text().contains("echo says no").then_some(())
    });
    assert!(call(&mut coder, &server, "rm").contains("content"), "gone with the change");
    api.set_policy(Some("agents"), "team", &json!([{"id": "exec", "action": "deny", "whn": "true"}]));
    wait_for("the fault", || faults(&daemon)["AgentPolicy/agents/team"].is_string().then_some(()));
    assert!(call(&mut coder, &server, "echo").contains("echo says no"));
    daemon.records().wait("policy", "of the fault", |record| {
        record["error"]
            .as_str()
            .is_some_and(|error| error.contains("AgentPolicy/agents/team") && error.contains("whn"))
    });

    // They hold while nobody is there to tell of them.
    api.go_away();
    daemon.crash();
    daemon.restart(&world);
    // It may not listen in the agent's network namespace yet.
    call_until_answered(&mut coder, &server);
    for (tool, expect) in [("exec", "exec says no"), ("wire", "wire says no"), ("own", "own says no")] {
        comes_to(&mut coder, &server, tool, expect);
    }
    api.delete_policy("all");
    api.resume();
    comes_to(&mut coder, &server, "wire", "content");
    assert!(call(&mut coder, &server, "exec").contains("exec says no"), "the last good rules of the other");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_namespace_cannot_allow_itself_what_the_cluster_does_not() {
    let world = World::new();
    let api = ApiServer::start(&world);
    api.set(&pod(&uid(1), "agents", "coder-0", agent_labels()));
    let only = |tools: &[&str], reason: &str| json!([{"id": "only", "action": "allow_only", "match": {"tool": tools}, "reason": reason}]);
    api.set_policy(None, "few", &only(&["echo", "look"], "not in the cluster"));
    api.set_policy(Some("agents"), "many", &only(&["echo", "rm"], "not in the namespace"));
    let daemon = start(&world, BOTH, NO_RULES, "hold");
    knows_and_holds(&world, &daemon, 1);
    let server = server(&world);
    let mut coder = enter(&world, &uid(1));
    call_until_answered(&mut coder, &server);
    comes_to(&mut coder, &server, "look", "not in the namespace");
    comes_to(&mut coder, &server, "rm", "not in the cluster");
    assert!(call(&mut coder, &server, "echo").contains("content"));
    // What another policy of the same side allows is allowed.
    api.set_policy(None, "more", &only(&["rm"], "not in the cluster"));
    comes_to(&mut coder, &server, "rm", "content");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn controller_says_whether_nodes_take_a_policy() {
    let world = World::new();
    let api = ApiServer::start(&world);
    api.set_nodes(1);
    api.set_policy(None, "good", &json!([deny("a", "a"), deny("b", "b")]));
    api.set_policy(
        Some("agents"),
        "bad",
        &json!([{"id": "a", "action": "deny", "match": {"namespace": "other"}}]),
    );
    let _controller = world.start_operator("fleet", &for_cluster(&world, &["fleet"]));
    let status = |name: &str, generation: u64| {
        wait_for(name, || {
            let status = api.policies().remove(name).expect("it is there");
            (status["observedGeneration"] == generation).then_some(status)
        })
    };
    let good = status("good", 1);
    assert_eq!((&good["accepted"], &good["rules"], &good["message"]), (&json!(true), &json!(2), &json!("")));
    let bad = status("bad", 1);
    let message = bad["message"].as_str().expect("a message");
    assert!(
        bad["accepted"] == false && message.contains("rule 1 (a)") && message.contains("leave it out"),
        "{bad}"
    );
    api.set_policy(Some("agents"), "bad", &json!([deny("a", "a")]));
    assert_eq!(status("bad", 2)["accepted"], true);
}
