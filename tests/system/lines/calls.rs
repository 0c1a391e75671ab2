//! Calls and their answers, in lines.

use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, World, mcp, wait_for};
use serde_json::{Value, json};

use super::{Session, answers, received, result, serves, silent, wait};
use crate::{NO_RULES, NO_TRANSFERS};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn lines_pass_byte_for_byte_and_are_on_record_as_calls() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    let call = "  {\"id\":1.50, \"params\":{\"name\":\"ech\\u006f\",\"arguments\":{\"n\":12345678901234567890}},\t\"method\":\"tools/call\" ,\"jsonrpc\":\"2.0\"} \r\n";
    session.send(call.as_bytes());
    let seen = wait_for("the line", || (server.bytes().len() >= call.len()).then(|| server.bytes()));
    assert_eq!(String::from_utf8_lossy(&seen), call);
    let answer = "{\"result\" : {\"content\":[ ],\"x\":1e400},\"id\":1.50,\"jsonrpc\":\"2.0\"}\r\n";
    says.say(answer.as_bytes());
    assert_eq!(String::from_utf8_lossy(&session.next_raw()), answer);

    let decision = daemon.records().decision("echo", "allow");
    assert_eq!(
        (&decision["protocol"], &decision["method"]),
        (&json!("mcp"), &json!("tools/call")),
        "{decision}"
    );
    assert_eq!(decision["revision"], "2024-11-05", "nothing was agreed on: {decision}");
    assert!(decision["session"].as_str().is_some_and(|session| session.starts_with("p-")), "{decision}");
    let outcome =
        daemon.records().wait("result", "its result", |record| record["decision"] == decision["decision"]);
    assert_eq!((&outcome["outcome"], &outcome["conn"]), (&json!("result"), &decision["conn"]), "{outcome}");
    assert_eq!(daemon.metrics().value("interlock_connections_open", &[("class", "mcp")]), 1.0);

    session.agent.close(session.conn).expect("close");
    let conn = daemon.records().wait("connection", "its record", |record| record["class"] == "mcp");
    assert_eq!((&conn["conn"], &conn["cause"]), (&decision["conn"], &json!("agent_closed")), "{conn}");
    assert_eq!(conn["bytes_to_server"], call.len());
    assert_eq!(conn["bytes_to_agent"], answer.len());
    assert_eq!(daemon.records().of("connection").len(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_refused_call_is_answered_and_no_byte_of_it_leaves() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, _says) = serves(&world, answers);
    let mut session = Session::open(&world, "coder", &server);
    session.passes(1, "echo");
    session.line(&mcp::call(2, "wire_transfer", json!({"amount": "4242"})));
    assert!(session.refused(2).contains("transfers need a person"));
    session.passes(3, "echo");
    assert!(!server.saw("wire_transfer") && !server.saw("4242"));
    let denied = daemon.records().decision("wire_transfer", "deny");
    assert_eq!(denied["rules"], json!(["no-transfers"]), "{denied}");
    // One that is refused before anything was allowed.
    let mut other = Session::open(&world, "sibling", &server);
    other.call(1, "wire_transfer");
    assert!(other.refused(1).contains("transfers need a person"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn many_calls_are_in_flight_and_are_answered_in_any_order() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    let tool = |id| if id % 3 == 0 { "wire_transfer" } else { "echo" };
    let lines: String =
        (1..=900).map(|id| format!("{}\n", mcp::call(id, tool(id), json!({"id": id})))).collect();
    session.agent.send_in(701, &session.conn, lines.as_bytes()).expect("send");
    let refused: Vec<u64> = (0..300)
        .map(|_| session.next())
        .map(|line| {
            assert!(mcp::refusal(&line).is_some(), "{line}");
            line["id"].as_u64().expect("an id")
        })
        .collect();
    assert!(refused.iter().copied().eq((1..=300).map(|n| n * 3)), "{refused:?}");
    wait(&server, "the last call", |message| message["id"] == 899);
    assert!(!server.saw("wire_transfer"));
    assert_eq!(received(&server).len(), 600);
    says.line(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "a log"}}));
    for id in (1..=900).rev().filter(|id| id % 3 != 0) {
        says.line(&result(&json!(id), &json!("later")));
    }
    assert_eq!(session.next()["method"], "notifications/message");
    for id in (1..=900).rev().filter(|id| id % 3 != 0) {
        assert_eq!(session.next(), result(&json!(id), &json!("later")));
    }
    let done = || daemon.records().of("result").iter().filter(|record| record["outcome"] == "result").count();
    wait_for("all results", || (done() == 600).then_some(()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_a_server_asks_is_judged_and_answered_where_it_is_refused() {
    let world = World::new();
    let rules = "
version: 1
rules:
  - {id: no-sampling, action: deny, phase: request, match: {method: sampling/createMessage}, reason: models cost money}
  - {id: no-logs, action: deny, phase: response, match: {method: notifications/message}}
";
    let _daemon = Daemon::start(&world, rules);
    let (server, says) = serves(&world, answers);
    let mut session = Session::open(&world, "coder", &server);
    session.passes(1, "echo");
    says.line(&json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}}));
    says.line(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "a secret"}}));
    says.line(&json!({"jsonrpc": "2.0", "id": 7, "method": "roots/list"}));
    let asked = session.next();
    assert_eq!(asked["method"], "roots/list", "and nothing before it: {asked}");
    let error = wait(&server, "an error", |message| message["id"] == "q");
    assert!(
        error["error"]["message"].as_str().is_some_and(|text| text.contains("models cost money")),
        "{error}"
    );
    session.line(&json!({"jsonrpc": "2.0", "id": 7, "result": {"roots": []}}));
    wait(&server, "the agent's answer", |message| message["id"] == 7 && message["result"].is_object());
    session.passes(2, "echo");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn the_handshake_says_which_revision_it_is_and_batches_are_judged_element_by_element() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, _says) = serves(&world, |message: &Value| {
        let version = &message["params"]["protocolVersion"];
        let info = json!({"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}});
        match message["method"].as_str() {
            Some("initialize") => Some(json!({"jsonrpc": "2.0", "id": message["id"], "result": info})),
            _ => answers(message),
        }
    });
    let mut session = Session::open(&world, "coder", &server);
    let client = json!({"name": "raw", "version": "1"});
    let params = json!({"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": client});
    session.line(&mcp::request(0, "initialize", params));
    assert_eq!(session.next()["result"]["protocolVersion"], "2025-03-26");
    session.line(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    session.passes(1, "echo");
    assert_eq!(daemon.records().decision("echo", "allow")["revision"], "2025-03-26");

    let batch = json!([mcp::call(2, "look", json!({})), mcp::call(3, "wire_transfer", json!({}))]);
    session.line(&batch);
    let answer = session.next();
    let answers = answer.as_array().expect("a batch");
    assert!(answers.len() == 2 && answers.iter().all(|answer| mcp::refusal(answer).is_some()), "{answer}");
    assert!(!server.saw("look") && !server.saw("wire_transfer"), "it is sent whole or not at all");
    let modern = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    session.line(&mcp::request(4, "tools/call", json!({"name": "modern", "arguments": {}, "_meta": modern})));
    assert_eq!(session.next(), result(&json!(4), &json!("modern")));
    assert_eq!(daemon.records().decision("modern", "allow")["revision"], "2026-07-28");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_agent_that_half_closes_gets_the_answers_it_has_asked_for() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::talks(&world, |talk| {
        talk.read_to("last")?;
        assert_eq!(talk.read()?, None, "the agent has said all");
        talk.write(
            format!("{}\n{}", result(&json!(2), &json!("two")), result(&json!(1), &json!("one"))).as_bytes(),
        )
    });
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "first");
    // Some readers take a line without an end for one.
    session.send(mcp::call(2, "last", json!({})).to_string().as_bytes());
    session.agent.finish(&session.conn).expect("finish");
    assert_eq!(session.next()["id"], 2);
    let last = session.agent.to_end(&mut session.conn).expect("the end");
    assert_eq!(serde_json::from_slice::<Value>(&last).expect("JSON"), result(&json!(1), &json!("one")));
    assert_eq!(daemon.records().decision("last", "allow")["rpc_id"], "2");
}
