//! What is answered in a stream is known by its call: results, lists, refusals in the order of events, and what nobody asked.

use agent_tests::records::rules;
use agent_tests::{Daemon, World, mcp, wait_for};
use serde_json::{Value, json};

use super::{ENDPOINT, Session, event, result, serves};
use crate::rule_peers::{calls_of, reload};
use crate::{NO_RULES, NO_TRANSFERS};

/// Rules that must know which call is answered.
const OF_CALLS: &str = "
version: 1
rules:
  - {id: no-secrets, action: deny, phase: response, match: {method: tools/call, tool: vault}, when: '!is_error', reason: not for agents}
  - {id: no-cards, action: redact, phase: response, match: {tool: account}, redact: {patterns: [cards]}}
  - {id: unseen, action: hide, match: {tool: pay}, reason: not for agents}
";

const CARD: &str = "4111 1111 1111 1111";

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn rules_about_answers_know_their_calls() {
    let world = World::new();
    let daemon = Daemon::start(&world, OF_CALLS);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    for (id, tool) in [(1, "vault"), (2, "account"), (3, "other")] {
        session.call(id, tool);
    }
    // In another order than they were asked.
    says.message(&result(3, CARD));
    says.message(&result(2, CARD));
    says.message(&result(1, "the combination"));
    assert_eq!(session.of_id(3), result(3, CARD));
    assert!(!session.of_id(2).to_string().contains(CARD));
    let refusal = session.of_id(1);
    assert!(mcp::refusal(&refusal).is_some_and(|text| text.contains("no-secrets")), "{refusal}");

    let answer = session.post(&mcp::request(4, "tools/list", json!({})).to_string());
    assert_eq!(answer.status(), 202);
    let tools = json!([{"name": "pay", "inputSchema": {}}, {"name": "look", "inputSchema": {}}]);
    says.message(&json!({"jsonrpc": "2.0", "id": 4, "result": {"tools": tools}}));
    let listed = session.of_id(4);
    assert_eq!(listed["result"]["tools"], json!([{"name": "look", "inputSchema": {}}]));
    assert!(session.refused(5, "pay").contains("unseen"));
    let _ = session.so_far(&listed.to_string());

    let decisions = daemon.records().of("decision");
    let vault = daemon.records().decision("vault", "allow");
    let denied = |record: &&Value| rules(record) == ["no-secrets"];
    assert_eq!(decisions.iter().find(denied).expect("the denial")["of"], vault["decision"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_call_is_in_flight_until_its_answer_passes_in_the_stream() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "echo");
    session.call(2, "slow");
    let drill = ["stop", "agent=coder", "--reason", "a drill", "--dry-run"];
    let in_flight = || {
        let drill = daemon.cli().run(&drill).json;
        let calls = drill["agents"][0]["calls"].as_array().expect("calls").clone();
        calls.iter().for_each(|call| assert_eq!(call["would_be"], "sent", "{call}"));
        let mut tools: Vec<String> = calls.iter().map(|call| call["tool"].to_string()).collect();
        tools.sort();
        tools
    };
    assert_eq!(in_flight(), ["\"echo\"", "\"slow\""]);
    let tool = ["stop", "agent=coder", "tool=slow", "--reason", "a drill", "--dry-run"];
    let drill = daemon.cli().run(&tool).json;
    assert_eq!(drill["agents"][0]["calls"].as_array().map(Vec::len), Some(1), "{drill}");
    std::thread::sleep(std::time::Duration::from_millis(50));
    says.message(&result(1, "hi"));
    assert_eq!(session.of_id(1), result(1, "hi"));
    assert_eq!(in_flight(), ["\"slow\""]);

    let record = daemon.records().wait("result", "its result", |record| record["tool"] == "echo");
    assert_eq!((&record["outcome"], &record["status"]), (&json!("result"), &json!(200)), "{record}");
    assert_eq!(record["bytes"], result(1, "hi").to_string().len(), "{record}");
    let took = record["took_us"].as_u64().expect("a time");
    assert!((50_000..10_000_000).contains(&took), "since the call, not the stream: {record}");
    let decision = daemon.records().decision("echo", "allow");
    assert_eq!(record["decision"], decision["decision"]);
    assert_ne!(record["conn"], decision["conn"], "it was answered elsewhere");
    assert_eq!(decision["revision"], "2024-11-05", "as long as nobody has agreed on another one");
    assert!(decision["session"].as_str().is_some_and(|session| session.starts_with("p-")), "{decision}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_refusal_is_never_in_the_middle_of_an_event() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "echo");
    let answer = event(&result(1, "Grüße").to_string());
    let (early, late) = answer.split_at(answer.len() / 2);
    says.say(early);
    let refusal = session.refused(2, "wire_transfer");
    assert!(refusal.contains("no-transfers"));
    says.say(late);
    session.of_id(1);
    let text = session.so_far("Grüße");
    assert!(text.ends_with(std::str::from_utf8(&answer).expect("text")), "byte for byte, and later: {text}");
    assert!(!server.saw("wire_transfer"), "no byte of it");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_batch_is_refused_call_by_call_and_what_cannot_be_read_in_its_own_answer() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, _says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    let batch = json!([mcp::call(1, "echo", json!({})), mcp::call(2, "wire_transfer", json!({}))]);
    let answer = session.post(&batch.to_string());
    assert_eq!((answer.status(), answer.text().as_str()), (202, ""), "{answer:?}");
    for (id, why) in [(1, "guard:batch"), (2, "no-transfers")] {
        let message = session.of_id(id);
        assert!(mcp::refusal(&message).is_some_and(|text| text.contains(why)), "{message}");
    }
    assert!(!server.saw("echo"));

    // A refused notification has nobody to answer.
    let notification = json!({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "wire_transfer"}});
    assert_eq!(session.post(&notification.to_string()).status(), 202);
    let answer = session.post(r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","method":"ping"}"#);
    assert_eq!(answer.status(), 400, "it has no id that could be trusted: {answer:?}");
    session.posts = session.agent.open(server.address()).expect("a connection");

    // Nobody could tell which of two calls is answered.
    session.call(4, "slow");
    let again = session.post(&mcp::call(4, "other", json!({})).to_string());
    assert_eq!(again.status(), 400, "{again:?}");
    assert!(again.text().contains("repeated_id"), "{again:?}");
    assert!(!server.saw("other") && !server.saw("wire_transfer"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_large_event_passes_byte_for_byte() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "big");
    let answer = event(&result(1, &"ü".repeat(512 * 1024)).to_string());
    answer.chunks(50_000).for_each(|piece| says.say(piece));
    says.end();
    let stream = session.agent.message(&mut session.stream).expect("the stream");
    assert!(stream.body.ends_with(&answer), "{} bytes", stream.body.len());
    let record = daemon.records().wait("result", "its result", |record| record["tool"] == "big");
    assert_eq!(record["bytes"], result(1, &"ü".repeat(512 * 1024)).to_string().len());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_answer_to_a_call_that_was_not_seen_is_withheld_where_rules_are_about_answers() {
    let world = World::new();
    let daemon = Daemon::start(&world, OF_CALLS);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    // The server takes it all the same.
    let hidden = session.post_to(&format!("{ENDPOINT}&b=2"), &mcp::call(1, "vault", json!({})).to_string());
    assert_eq!(hidden.status(), 202);
    says.message(&result(1, "the combination"));
    session.call(2, "other");
    says.message(&result(2, "seen"));
    session.of_id(2);
    assert!(!session.so_far("seen").contains("the combination"));
    let withheld = daemon.records().wait("decision", "withheld", |record| record["method"] == "response");
    assert_eq!((&withheld["verdict"], &withheld["rpc_id"]), (&json!("deny"), &json!("1")), "{withheld}");
    // Some servers answer twice: the call is known yet.
    says.message(&result(2, "again"));
    session.so_far("again");

    reload(&daemon, NO_RULES);
    says.message(&result(1, "without rules"));
    session.so_far("without rules");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_slot_is_taken_until_the_answer_or_a_cancel() {
    const TWO: &str = "
version: 1
rules:
  - {id: two, action: limit, match: {method: tools/call}, limit: {concurrent: 2}, reason: one thing at a time}
";
    let world = World::new();
    let daemon = Daemon::start(&world, TWO);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "slow");
    session.call(2, "slow");
    assert!(session.refused(3, "slow").contains("two"));
    says.message(&result(1, "done"));
    session.of_id(1);
    session.call(4, "slow");
    assert!(session.refused(5, "slow").contains("two"));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
    assert_eq!(session.post(&cancel.to_string()).status(), 202);
    session.call(6, "slow");
    let cancelled = |record: &Value| record["kind"] == "result" && record["rpc_id"] == "2";
    let record = wait_for("its result", || daemon.records().all().into_iter().find(cancelled));
    assert_eq!(
        (&record["outcome"], &record["cause"]),
        (&json!("none"), &json!("agent_cancelled")),
        "{record}"
    );
    assert_eq!(daemon.records().of("cancel")[0]["outcome"], "in flight");
    assert_eq!(calls_of(&server, "slow"), 4);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_post_that_the_server_refuses_is_over() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = agent_tests::raw_server::RawServer::start(&world, |request, reply| {
        if request.start.starts_with("GET ") {
            let first = format!("event: endpoint\ndata: {ENDPOINT}\n\n");
            reply.write(
                &[agent_tests::http::sse_head(), agent_tests::http::chunk(first.as_bytes())].concat(),
            )?;
            return reply.hold(|| false);
        }
        match request.json()["params"]["name"].as_str() {
            Some("bad") => reply.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
            // A server of another transport at the same place.
            Some("direct") => reply.result(request, &json!({"content": []})),
            _ => reply.write(super::ACCEPTED),
        }
    });
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    let answer = session.post(&mcp::call(1, "bad", json!({})).to_string());
    assert_eq!(answer.status(), 404);
    let answer = session.post(&mcp::call(2, "direct", json!({})).to_string());
    assert_eq!(answer.json(), json!({"jsonrpc": "2.0", "id": 2, "result": {"content": []}}));
    let record = |tool: &str| daemon.records().wait("result", tool, |record| record["tool"] == tool);
    assert_eq!((&record("bad")["outcome"], &record("bad")["status"]), (&json!("none"), &json!(404)));
    assert_eq!((&record("direct")["outcome"], &record("direct")["status"]), (&json!("result"), &json!(200)));
    session.call(3, "left");
    let drill = daemon.cli().run(&["stop", "agent=coder", "--reason", "a drill", "--dry-run"]).json;
    let calls = drill["agents"][0]["calls"].as_array().expect("calls");
    assert_eq!(calls.iter().map(|call| &call["tool"]).collect::<Vec<_>>(), ["left"], "{drill}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stream_that_ends_with_its_connection_is_answered_in_as_well() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, ENDPOINT);
    let mut agent = agent_tests::RawAgent::start(&world, "coder");
    let mut stream = agent.open(server.address()).expect("a connection");
    agent.send(&stream, b"GET /sse HTTP/1.0\r\nhost: bank.test\r\n\r\n").expect("send");
    agent.so_far(&mut stream, |message| message.text().contains("endpoint")).expect("the endpoint");
    let mut posts = agent.open(server.address()).expect("a connection");
    let call = mcp::call(1, "wire_transfer", json!({})).to_string();
    agent.send(&posts, &super::post_to(ENDPOINT, &call)).expect("send");
    assert_eq!(agent.message(&mut posts).expect("a receipt").status(), 202);
    agent.so_far(&mut stream, |message| message.text().contains("no-transfers")).expect("the refusal");
    says.end();
    let bytes = agent.to_end(&mut stream).expect("the end");
    let whole = agent_tests::http::Message::take(&mut bytes.clone(), true).expect("a stream");
    assert!(mcp::refusal(mcp::of_id(&whole.messages(), 1)).is_some(), "{}", whole.text());
}
