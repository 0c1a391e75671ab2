//! Workflows and sessions are found in what agents send anyway, each call on its own, and a stop goes by them.
//!
//! Expects of the wiring: `workflow` and `session` in decision records, `stop workflow=GLOB` and `stop session=…`.

use std::io;

use agent_tests::agent::{Agent, call, wait_line};
use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, Era, RawAgent, Sdk, Server, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::NO_RULES;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER_PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
const OTHER_TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
/// The start of the SHA-256 of `session-1`, the id that the scripted server gives.
const SESSION: &str = "s-84097828fc31";

const EXTRACTORS: &str = "workflow: [{header: x-workflow-id}, {meta: workflow}, {traceparent: true}, \
                          {baggage: workflow.id}, {context_id: true}, {env: WORKFLOW_ID}]\n";

fn server(world: &World) -> RawServer {
    RawServer::start(world, |request: &Message, reply: &mut Reply<'_>| -> io::Result<()> {
        if handshake(request, reply)? {
            return Ok(());
        }
        let body =
            json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": {"content": []}}).to_string();
        reply.write(&http::response("application/json", &[], body.as_bytes()))
    })
}

fn body(id: u32, meta: Value) -> String {
    mcp::request(id, "tools/call", json!({"name": "echo", "arguments": {}, "_meta": meta})).to_string()
}

/// The decision about the call with this id.
fn decision(daemon: &Daemon, id: u32) -> Value {
    let id = id.to_string();
    wait_for("the decision on record", || {
        let decisions = daemon.records().of("decision");
        decisions.into_iter().find(|decision| decision["rpc_id"] == *id)
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn each_call_of_a_connection_has_its_own_workflow() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, EXTRACTORS);
    let server = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let a2a = json!({"jsonrpc": "2.0", "id": 9, "method": "SendMessage",
                     "params": {"message": {"messageId": "m", "contextId": "c-1", "parts": []}}});
    type Headers = &'static [(&'static str, &'static str)];
    let cases: [(Headers, String, Option<&str>); 9] = [
        (
            &[("X-Workflow-Id", "h-1"), ("traceparent", PARENT)],
            body(1, json!({"workflow": "m"})),
            Some("h-1"),
        ),
        (&[("traceparent", PARENT)], body(2, json!({"workflow": 7})), Some("7")),
        (&[("traceparent", PARENT)], body(3, json!({})), Some(TRACE)),
        (&[("traceparent", PARENT)], body(4, json!({"traceparent": OTHER_PARENT})), Some(OTHER_TRACE)),
        (&[("baggage", "user=u"), ("baggage", "workflow.id=b%201")], body(5, json!({})), Some("b 1")),
        (&[], body(6, json!({"baggage": "workflow.id=b2;ttl=1"})), Some("b2")),
        (&[], body(7, json!({})), None),
        (&[("x-workflow-id", "1"), ("x-workflow-id", "2")], body(8, json!({})), None),
        (&[], a2a.to_string(), Some("c-1")),
    ];
    for (id, (headers, body, expect)) in (1..).zip(cases) {
        let sent = [headers, &[mcp::SESSION]].concat();
        agent.send(&conn, &http::post(&body, &sent)).expect("send");
        agent.message(&mut conn).expect("an answer");
        let decision = decision(&daemon, id);
        assert_eq!(decision["workflow"].as_str(), expect, "{body}: {decision}");
        assert_eq!(decision["session"], SESSION, "{decision}");
    }
    assert!(
        !daemon.records().of("decision").iter().any(|decision| decision.to_string().contains("session-1"))
    );
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_of_a_workflow_leaves_the_others_of_its_connection() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, EXTRACTORS);
    let server = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    daemon.cli().stop(&["workflow=bad-*"], "refuse");
    let mut ask = |id, workflow: &str| {
        agent.send(&conn, &http::post(&body(id, json!({"workflow": workflow})), &[])).expect("send");
        let answer = agent.message(&mut conn).expect("an answer");
        mcp::refusal(mcp::of_id(&answer.messages(), id)).is_some()
    };
    assert!(ask(1, "bad-1") && !ask(2, "good") && ask(3, "bad-2"));
    assert!(!server.saw("bad-"), "no byte of a refused call leaves");
    let process = decision(&daemon, 2)["session"].as_str().expect("a session").to_owned();
    assert!(process.starts_with("p-") && process.len() == 14, "{process}");

    // A session is stopped by its id, which is shown nowhere.
    let (_, answer) = daemon.cli().stop(&["session=session-1"], "refuse");
    assert!(!format!("{answer:?}").contains("session=session-1"), "{answer:?}");
    agent.send(&conn, &mcp::legacy(&mcp::call(4, "echo", json!({})))).expect("send");
    let answer = agent.message(&mut conn).expect("an answer");
    assert!(mcp::refusal(mcp::of_id(&answer.messages(), 4)).is_some(), "{}", answer.text());
    assert_eq!(decision(&daemon, 4)["session"], SESSION);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn the_environment_of_an_sdk_client_is_its_workflow() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, EXTRACTORS);
    let server = Server::start(&world, Sdk::Py2);
    let script =
        json!([call("echo", json!({"text": "one"})), wait_line(), call("echo", json!({"text": "two"}))]);
    let start = |flow: &str| {
        let mut command = vec!["env".to_owned(), format!("WORKFLOW_ID={flow}")];
        command.extend(Agent::command(Sdk::Py2, Era::Auto, &server.url(), &script));
        Agent::of(world.start_agent("coder", &command))
    };
    let (mut nightly, mut weekly) = (start("nightly"), start("weekly"));
    nightly.connected();
    weekly.connected();
    assert!(nightly.step().ok && weekly.step().ok);
    daemon.cli().stop(&["workflow=nightly"], "refuse");
    nightly.go();
    weekly.go();
    assert!(nightly.step().ok && weekly.step().ok, "the lines from the test");
    assert!(nightly.step().is_error, "the same agent, but the workflow that is stopped");
    assert!(weekly.step().ok, "the same agent in another workflow goes on");
    let flows: Vec<Value> =
        daemon.records().of("decision").iter().map(|decision| decision["workflow"].clone()).collect();
    assert!(flows.contains(&json!("nightly")) && flows.contains(&json!("weekly")), "{flows:?}");
}
