//! Rules that take something out of lines, hold them, or go by what servers show.

use agent_tests::{Daemon, World, mcp, wait_for};
use serde_json::{Value, json};

use super::{Session, answers, received, result, serves, silent, wait};
use crate::REASON;
use crate::drift::NO_DRIFT;

const KEY: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn secrets_are_taken_out_both_ways_and_the_rest_stays_byte_for_byte() {
    let world = World::new();
    let rules = "
version: 1
rules:
  - {id: none-out, action: redact, phase: request, match: {method: tools/call}, redact: {patterns: [keys]}}
  - {id: none-in, action: redact, phase: response, match: {method: tools/call}, redact: {patterns: [mail]}}
";
    let _daemon = Daemon::start(&world, rules);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    let call = |text: &str| {
        format!(
            "{{\"id\":1, \"method\":\"tools/call\",\"params\":{{\"name\":\"say\",\"arguments\":{{ \"text\":\"{text}\" }}}},\"jsonrpc\":\"2.0\"}}\r\n"
        )
    };
    session.send(call(&format!("use {KEY}")).as_bytes());
    let expected = call("use [redacted:key]");
    let seen = wait_for("the call", || server.bytes().ends_with(b"\n").then(|| server.bytes()));
    assert_eq!(String::from_utf8_lossy(&seen), expected);
    says.line(&result(&json!(1), &json!("ask ann@example.com")));
    assert_eq!(session.next(), result(&json!(1), &json!("ask [redacted:mail]")));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn hidden_tools_are_in_no_list_and_changed_ones_are_refused() {
    let world = World::new();
    let rules = format!("{NO_DRIFT}  - {{id: hidden, action: hide, match: {{tool: \"admin_*\"}}}}\n");
    let daemon = Daemon::start(&world, &rules);
    let shown = std::sync::Arc::new(std::sync::Mutex::new("moves money"));
    let shows = std::sync::Arc::clone(&shown);
    let (server, _says) = serves(&world, move |message: &Value| {
        let text = *shows.lock().expect("nobody panics here");
        let tool = |name: &str| json!({"name": name, "description": text, "inputSchema": {"type": "object"}});
        match message["method"].as_str() {
            Some("tools/list") => Some(
                json!({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": [tool("pay"), tool("admin_all")]}}),
            ),
            _ => answers(message),
        }
    });
    let mut session = Session::open(&world, "coder", &server);
    let list = |session: &mut Session, id: u32| {
        session.line(&mcp::request(id, "tools/list", json!({})));
        let listed = session.next();
        let tools = listed["result"]["tools"].as_array().expect("tools").clone();
        tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut session, 1), ["pay"]);
    session.call(2, "admin_all");
    assert!(mcp::refusal(&session.next()).is_some());
    session.passes(3, "pay");
    *shown.lock().expect("nobody panics here") = "moves all of the money";
    assert_eq!(list(&mut session, 4), ["pay"]);
    session.call(5, "pay");
    assert!(session.refused(5).contains("tools stay what they are"));
    daemon
        .records()
        .wait("surface", "the drift", |record| record["name"] == "pay" && record["change"] == "drifted");
    assert_eq!(received(&server).iter().filter(|message| message["params"]["name"] == "pay").count(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_call_waits_for_a_person_while_others_go_on() {
    let world = World::new();
    let rules = "
version: 1
rules:
  - {id: transfers, action: require_approval, match: {tool: wire_transfer}, timeout: 60s, reason: transfers need a person}
";
    let daemon = Daemon::start(&world, rules);
    let (server, _says) = serves(&world, answers);
    let mut session = Session::open(&world, "coder", &server);
    let params =
        json!({"name": "wire_transfer", "arguments": {"amount": 1}, "_meta": {"progressToken": "t"}});
    session.line(&mcp::request(1, "tools/call", params));
    let asked = |count: usize| {
        wait_for("requests for approvals", || {
            let waiting =
                daemon.cli().run(&["approvals"]).json["approvals"].as_array().cloned().unwrap_or_default();
            (waiting.len() == count).then_some(waiting)
        })
    };
    let first = asked(1);
    let told = session.next();
    assert_eq!(
        (&told["method"], &told["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("t"))
    );
    session.passes(2, "echo");
    session.call(3, "wire_transfer");
    session.call(4, "wire_transfer");
    asked(3);
    session.passes(5, "echo");
    assert!(!server.saw("wire_transfer"));
    let id = first[0]["approval"].as_str().expect("an id");
    assert_eq!(daemon.cli().run(&["approve", id, "--reason", REASON]).code, 0);
    let answer = loop {
        let next = session.next();
        if next["method"] != "notifications/progress" {
            break next;
        }
    };
    assert_eq!(answer, result(&json!(1), &json!("wire_transfer")));
    // Its own cancel, a stop, and its leaving end the wait.
    let params = json!({"requestId": 3});
    session.line(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
    assert!(session.refused(3).contains("transfers need a person"));
    let (stop, stopped) = daemon.cli().stop(&["agent=coder", "tool=wire_transfer"], "refuse");
    assert_eq!(stopped.json["calls"][0]["fate"], "refused", "{stopped:?}");
    assert!(session.refused(4).contains(REASON));
    assert_eq!(daemon.cli().release(&stop).code, 0);
    session.call(6, "wire_transfer");
    asked(1);
    session.agent.close(session.conn).expect("close");
    asked(0);
    let withdrawn = daemon.records().wait("approval", "the last", |record| {
        record["outcome"] == "withdrawn" && record["cause"] == "agent_closed"
    });
    assert_eq!(withdrawn["calls"][0]["rpc_id"], "6", "{withdrawn}");
    assert_eq!(
        received(&server).iter().filter(|message| message["params"]["name"] == "wire_transfer").count(),
        1
    );
    wait(&server, "the cancel", |message| message["method"] == "notifications/cancelled");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_is_asked_for_too_often_is_refused_and_slots_are_given_back() {
    let world = World::new();
    let rules = "
version: 1
rules:
  - {id: two, action: limit, match: {tool: slow}, limit: {concurrent: 2, per: agent}, reason: two at a time}
";
    let _daemon = Daemon::start(&world, rules);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "slow");
    session.call(2, "slow");
    session.call(3, "slow");
    assert!(session.refused(3).contains("two at a time"));
    wait(&server, "the second", |message| message["id"] == 2);
    says.line(&result(&json!(1), &json!("done")));
    assert_eq!(session.next()["id"], 1);
    session.call(4, "slow");
    wait(&server, "the fourth", |message| message["id"] == 4);
}
