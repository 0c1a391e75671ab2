//! Lines that two readers would read differently, and peers that do not play by the rules.

use std::time::Duration;

use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use super::{Session, answers, received, result, serves, silent, wait};
use crate::{NO_RULES, NO_TRANSFERS};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn lines_that_can_be_read_in_two_ways_are_refused_under_their_id_and_others_go_on() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, _says) = serves(&world, answers);
    let mut session = Session::open(&world, "coder", &server);
    session.passes(1, "echo");
    let hostile: [(&[u8], Value, &str); 11] = [
        (br#"{"jsonrpc":"2.0","id":2,"method":"ping","method":"tools/call","params":{"name":"evil"}}"#, json!(2), "duplicate_member"),
        (br#"{"jsonrpc":"2.0","id":2,"id":3,"method":"tools/call","params":{"name":"evil"}}"#, Value::Null, "duplicate_member"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"tools/call\",\"params\":{\"name\":\"evil\xff\"}}", json!("a"), "invalid_utf8"),
        (b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"evil\"}}", Value::Null, "byte_order_mark"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\"}{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"evil\"}}", json!(2), "trailing_bytes"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"evil\"}}\0", json!(2), ""),
        (b"{\"jsonrpc\":\"2.0\",\"id\":2,\r\"method\":\"tools/call\",\"params\":{\"name\":\"evil\",}}", json!(2), "invalid_json"),
        (b"evil words", Value::Null, "invalid_json"),
        (br#"{"jsonrpc":"2.0","id":2,"Method":"tools/call","method":"ping","params":{"name":"evil"}}"#, json!(2), "case_variant_member"),
        (br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"\ud800evil"}}"#, json!(2), "lone_surrogate"),
        (br#"{"jsonrpc":"2.0","id":1.0e0,"result":{},"method":"evil"}"#, json!(1.0), "jsonrpc_shape"),
    ];
    for (line, id, label) in &hostile {
        session.send(line);
        session.send(b"\n");
        let answer = session.next();
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(said.contains("unambiguously") && said.contains(label), "{}: {answer}", line.escape_ascii());
        assert_eq!(answer["id"], *id, "{}: {answer}", line.escape_ascii());
    }
    session.passes(4, "echo");
    assert!(!server.saw("evil"));
    let denied = |record: &Value| record["rules"] == json!(["default:undecodable"]);
    daemon.records().wait("decision", "a refusal", denied);
    assert_eq!(daemon.records().of("decision").iter().filter(|record| denied(record)).count(), hostile.len());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_id_that_waits_for_its_answer_cannot_be_used_again() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "look");
    wait(&server, "the first", |message| message["id"] == 1);
    session.call(1, "list");
    let answer = session.next();
    assert!(
        answer["id"].is_null()
            && answer["error"]["message"].as_str().is_some_and(|text| text.contains("repeated_id")),
        "{answer}"
    );
    says.line(&result(&json!(1), &json!("looked")));
    assert_eq!(session.next(), result(&json!(1), &json!("looked")));
    session.call(1, "list");
    wait(&server, "the second", |message| message["params"]["name"] == "list");
    assert_eq!(received(&server).len(), 2);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn lines_over_the_limit_end_the_connection_with_the_reason() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, "limits: {message: 64KiB, unanswered: 2}\n");
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "a");
    session.call(2, "b");
    session.call(3, "c");
    assert!(session.refused(3).contains("2 calls of the same session"));
    wait(&server, "the second", |message| message["id"] == 2);
    session.line(&mcp::call(4, "long", json!({"text": "x".repeat(64 << 10)})));
    let answer = session.next();
    assert_eq!(answer["error"]["data"]["rule"], "default:oversized", "{answer}");
    assert_eq!(session.agent.to_end(&mut session.conn).expect("an orderly end"), b"");
    assert!(!server.saw("long"));
    daemon.records().wait("connection", "its record", |record| record["cause"] == "refused");

    let mut session = Session::open(&world, "sibling", &server);
    session.call(1, "a");
    wait(&server, "it", |message| message["id"] == 1);
    says.line(&result(&json!(1), &json!("x".repeat(64 << 10))));
    let refused = session.refused(1);
    assert!(refused.contains("larger than the limit"), "{refused}");
    session.agent.to_end(&mut session.conn).expect("the end");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn lines_over_the_limit_pass_unread_where_that_is_chosen() {
    let world = World::new();
    let rules =
        "version: 1\ndefaults: {oversized: allow}\nrules:\n  - {id: no, action: deny, match: {tool: evil}}\n";
    let _daemon = Daemon::start_with(&world, rules, "limits: {message: 64KiB}\n");
    let (server, _says) = serves(&world, answers);
    let mut session = Session::open(&world, "coder", &server);
    session.line(&mcp::call(1, "long", json!({"text": "x".repeat(300 << 10)})));
    assert_eq!(session.next(), result(&json!(1), &json!("long")));
    session.call(2, "evil");
    assert!(mcp::refusal(&session.next()).is_some());
    session.passes(3, "echo");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answers_that_nobody_can_read_or_has_asked_for_do_not_pass() {
    let world = World::new();
    let rules =
        "version: 1\nrules:\n  - {id: in, action: deny, phase: response, match: {tool: evil}, reason: no}\n";
    let _daemon = Daemon::start(&world, rules);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "evil");
    session.call(2, "good");
    wait(&server, "both", |message| message["id"] == 2);
    says.say(b"{\"jsonrpc\":\"2.0\",\"id\":2,\"id\":1,\"result\":{\"x\":\"smuggled\"}}\n");
    says.say(b"{\"jsonrpc\":\"2.0\",\"id\":9,\"result\":{\"x\":\"smuggled\"}}\n");
    says.say(b"smuggled\n");
    says.line(&result(&json!(2), &json!("fine")));
    assert_eq!(session.next(), result(&json!(2), &json!("fine")), "and nothing before it");
    says.line(&result(&json!(1), &json!("smuggled")));
    assert_eq!(session.refused(1).matches("no (rule in").count(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_agent_that_does_not_read_holds_up_its_server_and_nobody_else() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::talks(&world, |talk| {
        talk.read_to("flood")?;
        let line = format!(
            "{}\n",
            json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x".repeat(1000)}})
        );
        loop {
            talk.write(line.as_bytes())?;
            talk.count(line.len());
        }
    });
    let (other, _says) = serves(&world, answers);
    let mut agent = RawAgent::start(&world, "coder");
    let conn = agent.open(server.address()).expect("a connection");
    let before = rss(&mut daemon);
    agent.send(&conn, format!("{}\n", mcp::call(1, "flood", json!({}))).as_bytes()).expect("send");
    let mut sibling = Session::open(&world, "sibling", &other);
    let mut last = 0;
    let stalled = agent_tests::wait_for("the server to be held up", || {
        std::thread::sleep(Duration::from_millis(300));
        let counted = server.counted();
        let is_stalled = counted > 0 && counted == last;
        last = counted;
        is_stalled.then_some(counted)
    });
    for id in 1..=20 {
        sibling.passes(id, "echo");
    }
    let grown = rss(&mut daemon).saturating_sub(before);
    assert!(grown < 4096, "{grown} KiB more, with {stalled} bytes written");
    let (_, stopped) = daemon.cli().stop(&["agent=coder"], "refuse");
    assert_eq!(stopped.json["calls"].as_array().map(Vec::len), Some(1), "{stopped:?}");
}

/// KiB that a process has in memory.
fn rss(daemon: &mut Daemon) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", daemon.process().pid())).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}
