//! What goes on with a call that a person has approved of is not asked about again: its later rounds, and its task.

use agent_tests::agent::{Agent, call};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Daemon, Era, RawAgent, Sdk, Server, World, mcp};
use serde_json::{Value, json};

use super::{RULES, approve, asked, decide, refusal};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn later_rounds_of_a_call_are_not_asked_about() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = RawServer::start(&world, |request, reply| {
        let params = &request.json()["params"];
        let is_answered = !params["inputResponses"].is_null();
        let question = json!({"resultType": "input_required", "requestState": "st/1", "inputRequests": {}});
        let done = json!({"resultType": "complete", "content": [{"type": "text", "text": "done"}]});
        reply.result(request, if is_answered { &done } else { &question })
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let round = |id: u32, amount: u32, more: &str| {
        let text = String::from_utf8(mcp::modern_call(
            id,
            "wire_transfer",
            "wire_transfer",
            json!({"amount": amount}),
        ))
        .expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let body = body.replacen("\"params\":{", &format!("\"params\":{{{more}"), 1);
        let fields = head.lines().filter(|line| !line.starts_with("content-length"));
        let head: String = fields.map(|line| format!("{line}\r\n")).collect();
        format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    let answer = r#""inputResponses":{"ok":{}},"requestState":"st/1","#;
    agent.send(&conn, &round(1, 5, "")).expect("send");
    let (first, _) = asked(&daemon);
    approve(&daemon, &first);
    assert!(agent.message(&mut conn).expect("a question").text().contains("input_required"));
    agent.send(&conn, &round(2, 5, answer)).expect("send");
    assert!(agent.message(&mut conn).expect("nobody is asked").text().contains("done"));
    let goes_on = |record: &Value| record["continues"] == true && record["rpc_id"] == "2";
    assert_eq!(daemon.records().wait("decision", "the second round", goes_on)["verdict"], "allow");

    // The same answer again, another amount, and another state.
    let forged = [(5, answer), (6, answer), (5, r#""inputResponses":{},"requestState":"st/2","#)];
    for (amount, more) in forged {
        agent.send(&conn, &round(7, amount, more)).expect("send");
        let (id, _) = asked(&daemon);
        decide(daemon.cli(), "refuse", &id);
        refusal(&mut agent, &mut conn);
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_task_is_asked_about_once() {
    let world = World::new();
    let any = RULES.replace("match: {method: tools/call, tool: [wire_transfer]}", "match: {agent: coder}");
    let daemon = Daemon::start(&world, &any);
    let server = RawServer::start(&world, |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        let task = json!({"taskId": "t-1", "status": "working", "ttl": null});
        let begins = request.json()["method"] == "tools/call";
        reply.result(request, &if begins { json!({"task": task}) } else { task })
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::initialize("2025-11-25")).expect("send");
    agent.message(&mut conn).expect("sessions need no approval");
    let mut ask = |id: u32, method: &str, params: Value| {
        agent.send(&conn, &mcp::legacy(&mcp::request(id, method, params))).expect("send");
        if method == "tools/call" {
            approve(&daemon, &asked(&daemon).0);
        }
        agent.message(&mut conn).expect("an answer").text()
    };
    assert!(ask(1, "tools/call", json!({"name": "research", "task": {}})).contains("t-1"));
    assert!(ask(2, "tasks/get", json!({"taskId": "t-1"})).contains("working"));
    agent.send(&conn, &mcp::legacy(&mcp::request(3, "tasks/get", json!({"taskId": "t-2"})))).expect("send");
    let (_, unknown) = asked(&daemon);
    assert_eq!(unknown["calls"][0]["tool"], "t-2", "a task of which nothing is known: {unknown}");
}

/// One test per client and server of 2026-07-28: the server asks in the middle of the call.
macro_rules! rounds {
    ($($name:ident: $client:ident => $server:ident;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            questions_of_servers_need_no_second_approval(Sdk::$client, Sdk::$server);
        }
    )*};
}

rounds! {
    approval_holds_for_the_rounds_of_py2: Py2 => Ts2;
    approval_holds_for_the_rounds_of_ts2: Ts2 => Py2;
    approval_holds_for_the_rounds_of_rmcp: Rmcp => Py2;
}

fn questions_of_servers_need_no_second_approval(client: Sdk, server: Sdk) {
    let world = World::new();
    let daemon = Daemon::start(&world, &RULES.replace("wire_transfer", "ask"));
    let server = Server::start(&world, server);
    let script = json!([call("ask", json!({}))]);
    let agent = Agent::start(&world, "coder", client, Era::Auto, &server.url(), &script);
    assert_eq!(agent.connected(), "2026-07-28");
    approve(&daemon, &asked(&daemon).0);
    let step = agent.step();
    assert!(step.ok && !step.is_error && step.text == "accept", "{step:?}");
    assert_eq!(daemon.records().of("approval").len(), 2, "asked and approved, once");
    daemon.records().wait("decision", "the next round", |record| record["continues"] == true);
}
