//! `limit`: so much and not more, whatever way calls end.

use std::io::ErrorKind;

use agent_tests::raw_server::RawServer;
use agent_tests::records::rules;
use agent_tests::{Daemon, World, http, mcp, wait_for};
use serde_json::{Value, json};

use crate::rule_peers::{Caller, bank, calls_of, in_session, reload, serves};

const CALLS: &str = "
version: 1
rules:
  - {id: three, action: limit, match: {method: tools/call}, limit: {calls: 3, within: 1h, per: [agent, tool]}, reason: enough}
  - {id: no-bad, action: deny, match: {method: tools/call}, when: has(args.bad), reason: bad}
";

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn so_many_calls_of_one_tool_pass_and_refused_ones_do_not_count() {
    let world = World::new();
    let daemon = Daemon::start(&world, CALLS);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    for _ in 0..4 {
        assert!(coder.refused("pay", r#"{"bad":1}"#).contains("no-bad"));
    }
    for _ in 0..3 {
        assert_eq!(coder.call("pay", "{}"), None);
    }
    let refusal = coder.refused("pay", "{}");
    for part in
        ["enough", "3 calls within 1h for each agent and tool is used up", "retry after", "rule three"]
    {
        assert!(refusal.contains(part), "{part} in {refusal}");
    }
    coder.reopen();
    assert!(coder.refused("pay", "{}").contains("three"), "another connection");
    assert_eq!(coder.call("look", "{}"), None, "another tool");
    assert_eq!(Caller::start(&world, "sibling", &server).call("pay", "{}"), None, "another agent");
    assert_eq!(calls_of(&server, "pay"), 4);
    let is_limit = |record: &Value| rules(record) == ["three"];
    let denied = daemon.records().wait("decision", "over the limit", is_limit);
    assert_eq!((&denied["verdict"], &denied["tool"]), (&json!("deny"), &json!("pay")));
    let labels = [("rule", "three"), ("reason", "limit")];
    assert_eq!(daemon.metrics().value("interlock_denials_total", &labels), 2.0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_batch_counts_whole_or_not_at_all() {
    let world = World::new();
    let _daemon = Daemon::start(&world, CALLS);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let batch = |count: u32, args: &Value| {
        let calls: Value = (1..=count).map(|id| mcp::call(id, "pay", args.clone())).collect();
        in_session(&calls.to_string())
    };
    let refusals = |coder: &mut Caller, request: &[u8]| {
        let messages = coder.ask(request).messages();
        messages.iter().filter_map(mcp::refusal).collect::<Vec<_>>()
    };
    assert_eq!(refusals(&mut coder, &batch(4, &json!({}))).len(), 4, "none of four where three may pass");
    assert_eq!(refusals(&mut coder, &batch(2, &json!({"bad": 1}))).len(), 2);
    assert_eq!(calls_of(&server, "pay"), 0);
    assert_eq!(refusals(&mut coder, &batch(2, &json!({}))), [""; 0]);
    let said = refusals(&mut coder, &batch(2, &json!({})));
    assert!(said.iter().any(|said| said.contains("three")) && said.len() == 2, "{said:?}");
    assert_eq!(coder.call("pay", "{}"), None, "one is left");
    assert!(coder.refused("pay", "{}").contains("three"));
    assert_eq!(calls_of(&server, "pay"), 3);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_was_counted_outlives_a_reload_of_the_same_rule() {
    let world = World::new();
    let daemon = Daemon::start(&world, CALLS);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    for _ in 0..2 {
        assert_eq!(coder.call("pay", "{}"), None);
    }
    reload(&daemon, &format!("{CALLS}  - {{id: more, action: deny, match: {{tool: other}}}}\n"));
    assert!(coder.refused("other", "{}").contains("more"));
    assert_eq!(coder.call("pay", "{}"), None);
    assert!(coder.refused("pay", "{}").contains("three"));
    reload(&daemon, &CALLS.replace("calls: 3", "calls: 4"));
    for _ in 0..4 {
        assert_eq!(coder.call("pay", "{}"), None, "a limit that changed starts anew");
    }
    assert!(coder.refused("pay", "{}").contains("4 calls"));
    assert_eq!(calls_of(&server, "pay"), 7);
}

const TWO: &str = "
version: 1
rules:
  - {id: two, action: limit, match: {method: tools/call}, limit: {concurrent: 2}, reason: one thing at a time}
";

/// A server that answers a call of `slow` once somebody has asked for `done` with the same word, and others at once.
fn slow(world: &World) -> RawServer {
    serves(world, |request, reply| {
        let body = request.json();
        if body["params"]["name"] == "slow" {
            let until = body["params"]["arguments"]["until"].clone();
            reply.hold_for(|request| request.json()["params"]["until"] == until)?;
        }
        Ok(false)
    })
}

fn begin(world: &World, server: &RawServer, until: &str, begun: usize) -> Caller {
    let mut caller = Caller::start(world, "coder", server);
    caller.send(&mcp::legacy(&mcp::call(1, "slow", json!({"until": until}))));
    wait_for("the call at the server", || (calls_of(server, "slow") == begun).then_some(()));
    caller
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn slots_come_back_however_a_call_ends() {
    let world = World::new();
    let daemon = Daemon::start(&world, TWO);
    let server = slow(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let passes = |coder: &mut Caller, why: &str| {
        wait_for(why, || coder.call("quick", "{}").is_none().then_some(()));
    };
    let is_full = |coder: &mut Caller| {
        let refusal = coder.refused("quick", "{}");
        for part in ["two", "one thing at a time", "retry when one of them has ended"] {
            assert!(refusal.contains(part), "{refusal}");
        }
    };
    let mut first = begin(&world, &server, "a", 1);
    assert_eq!(coder.call("quick", "{}"), None, "one of two");
    let second = begin(&world, &server, "b", 2);
    is_full(&mut coder);
    assert!(coder.request("tools/list", json!({}))["result"].is_object(), "no call");
    assert_eq!(Caller::start(&world, "sibling", &server).call("quick", "{}"), None);
    let before = calls_of(&server, "quick");

    // It is answered.
    coder.request("done", json!({"until": "a"}));
    assert!(first.message().text().contains("ran slow"));
    passes(&mut coder, "the slot of an answered call");
    let third = begin(&world, &server, "c", 3);
    is_full(&mut coder);

    // The agent goes. That ends no call: its slot comes back once the server is done.
    drop((second.agent, second.conn));
    is_full(&mut coder);
    coder.request("done", json!({"until": "b"}));
    passes(&mut coder, "the slot of a call whose agent has gone");
    let fourth = begin(&world, &server, "d", 4);
    is_full(&mut coder);

    // A stop cuts both.
    let (stop, _) = daemon.cli().stop(&["agent=coder", "tool=slow"], "refuse");
    daemon.cli().release(&stop);
    passes(&mut coder, "the slots of calls that a stop has cut");
    let fifth = begin(&world, &server, "e", 5);
    passes(&mut coder, "both slots");
    drop((third, fourth, fifth));
    assert!(calls_of(&server, "quick") > before);
    for until in ["c", "d", "e"] {
        coder.request("done", json!({"until": until}));
    }
    assert_eq!(rules(&daemon.records().decision("quick", "deny")), ["two"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn slots_of_calls_that_no_server_answers_come_back() {
    let world = World::new();
    let _daemon = Daemon::start(&world, &TWO.replace("concurrent: 2", "concurrent: 1"));
    let server = serves(&world, |request, reply| match request.json()["params"]["name"].as_str() {
        Some("reset") => reply.reset().map(|()| true),
        Some("close") => Err(ErrorKind::ConnectionAborted.into()),
        Some("half") => {
            let event = [http::sse_head(), http::chunk(b": hi\n\n"), http::chunk(b"")].concat();
            reply.write(&event).map(|()| true)
        }
        Some("accepted") => reply.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").map(|()| true),
        Some("error") => {
            let error = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no"}});
            let error = error.to_string();
            reply.write(&http::response("application/json", &[], error.as_bytes())).map(|()| true)
        }
        _ => Ok(false),
    });
    let mut coder = Caller::start(&world, "coder", &server);
    for tool in ["reset", "close", "half", "accepted", "error"] {
        let mut caller = Caller::start(&world, "coder", &server);
        caller.send(&mcp::legacy(&mcp::call(1, tool, json!({}))));
        let _ = caller.agent.message(&mut caller.conn);
        wait_for(tool, || coder.call("quick", "{}").is_none().then_some(()));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn bytes_of_answers_count() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
rules:
  - {id: much, action: limit, match: {method: tools/call}, limit: {bytes: 10KiB, within: 1h}, reason: enough}
",
    );
    let server = serves(&world, |request, reply| {
        if request.json()["params"]["name"] != "big" {
            return Ok(false);
        }
        let text = "x".repeat(20 * 1024);
        reply.result(request, &json!({"content": [{"type": "text", "text": text}]})).map(|()| true)
    });
    let mut coder = Caller::start(&world, "coder", &server);
    assert!(coder.refused("pay", &json!({"x": "y".repeat(11 * 1024)}).to_string()).contains("now or later"));
    for _ in 0..5 {
        assert_eq!(coder.call("pay", "{}"), None);
    }
    assert_eq!(coder.call("big", "{}"), None, "an answer is let through");
    let refusal = coder.refused("pay", "{}");
    assert!(refusal.contains("10.0 KiB within 1h") && refusal.contains("retry after"), "{refusal}");
    assert_eq!((calls_of(&server, "pay"), server.saw("yyyy")), (5, false));

    // What is asked counts, too.
    let mut sibling = Caller::start(&world, "sibling", &server);
    let args = json!({"x": "z".repeat(4 * 1024)}).to_string();
    assert_eq!((sibling.call("pay", &args), sibling.call("pay", &args)), (None, None));
    assert!(sibling.refused("pay", &args).contains("much"));
    assert_eq!(sibling.call("pay", "{}"), None, "a smaller one has room");
    assert_eq!(rules(&daemon.records().decision("pay", "deny")), ["much"]);
}
