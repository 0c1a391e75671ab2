//! A stop finds calls that are answered in a stream until they are answered, and tells the agent there (S1).

use agent_tests::{Daemon, World, mcp};
use serde_json::{Value, json};

use super::{ENDPOINT, Session, event, result, serves};
use crate::{NO_RULES, REASON};

fn fate_of(daemon: &Daemon, stop: &str, tool: &str) -> Value {
    let is_its = |record: &Value| record["stop"] == stop && record["tool"] == tool && record["open"] == false;
    daemon.records().wait("stop_effect", "its fate", is_its)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_answers_in_the_stream_and_leaves_it_open() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    let (other, says_to_sibling) = serves(&world, ENDPOINT);
    let mut sibling = Session::open(&world, "sibling", &other, ENDPOINT);
    for id in 1..=3 {
        session.call(id, "slow");
    }
    // Half an event is on its way.
    let half = event(&result(1, "too late").to_string());
    let (early, late) = half.split_at(30);
    says.say(early);
    let stop = ["stop", "agent=coder", "--reason", REASON, "--wait", "0s"];
    let stopped = daemon.cli().run(&stop);
    let id = stopped.json["stop"]["id"].as_str().expect("a stop").to_owned();
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 3, "{stopped:?}");
    assert!(calls.iter().all(|call| call["fate"] == "sent"), "{stopped:?}");
    for id in 1..=3 {
        let answer = session.of_id(id);
        assert!(mcp::refusal(&answer).is_some_and(|text| text.contains(REASON)), "{answer}");
    }
    sibling.call(1, "echo");
    says_to_sibling.message(&result(1, "nothing is amiss"));
    assert_eq!(sibling.of_id(1), result(1, "nothing is amiss"));
    assert!(session.refused(4, "echo").contains(REASON), "told where it listens");
    assert!(!server.saw("echo"));

    says.say(late);
    let fate = fate_of(&daemon, &id, "slow");
    assert_eq!(fate["fate"], "finished_after_stop", "{fate}");
    assert_eq!(fate["late"]["bytes"], result(1, "too late").to_string().len(), "the whole of it: {fate}");
    // What a server says meanwhile is not for the agent, and a question is answered.
    says.message(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "a log"}}));
    says.message(&json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}}));
    server.wait("an error", |request| request.json()["id"] == "q" && request.json()["error"].is_object());
    server.wait("a cancel", |request| {
        request.json()["method"] == "notifications/cancelled" && request.json()["params"]["requestId"] == 2
    });
    assert!(server.requests().iter().all(|request| {
        request.start.starts_with("GET /sse?key=1 ") || request.start == format!("POST {ENDPOINT} HTTP/1.1")
    }));

    assert_eq!(daemon.cli().release(&id).code, 0);
    session.call(5, "echo");
    says.message(&result(5, "released"));
    assert_eq!(session.of_id(5), result(5, "released"));
    let text = session.so_far("released");
    assert!(!text.contains("too late") && !text.contains("a log") && !text.contains("sampling"), "{text}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_of_one_tool_leaves_the_other_calls_of_the_stream_alone() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "pay");
    session.call(2, "look");
    let stopped = daemon.cli().run(&["stop", "agent=coder", "tool=pay", "--reason", REASON, "--wait", "0s"]);
    let id = stopped.json["stop"]["id"].as_str().expect("a stop").to_owned();
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert_eq!(calls.iter().map(|call| &call["tool"]).collect::<Vec<_>>(), ["pay"], "{stopped:?}");
    assert!(mcp::refusal(&session.of_id(1)).is_some_and(|text| text.contains(REASON)));
    says.message(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 0, "message": "Request cancelled"}}));
    says.message(&result(2, "looked"));
    assert_eq!(session.of_id(2), result(2, "looked"));
    assert_eq!(fate_of(&daemon, &id, "pay")["fate"], "cancelled");
    assert!(session.refused(3, "pay").contains(REASON));
    session.call(4, "look");
    assert!(!session.so_far("looked").contains("Request cancelled"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn isolation_ends_the_stream_with_the_answers_and_late_ones_are_evidence() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "pay");
    session.call(2, "look");
    let stop = ["stop", "agent=coder", "tool=pay", "--reason", REASON, "--wait", "0s"];
    let first = daemon.cli().run(&stop).json["stop"]["id"].as_str().expect("a stop").to_owned();
    let stop = ["stop", "agent=coder", "--level", "isolate", "--reason", REASON, "--wait", "0s"];
    let second = daemon.cli().run(&stop);
    let calls = second.json["calls"].as_array().expect("calls");
    assert_eq!(calls.iter().map(|call| &call["tool"]).collect::<Vec<_>>(), ["look"], "{second:?}");
    let second = second.json["stop"]["id"].as_str().expect("a stop");
    let stream = session.agent.message(&mut session.stream).expect("a whole stream");
    for id in 1..=2 {
        assert!(mcp::refusal(mcp::of_id(&stream.messages(), id)).is_some(), "{}", stream.text());
    }
    says.message(&result(2, "looked"));
    says.message(&result(1, "paid"));
    assert_eq!(fate_of(&daemon, second, "look")["fate"], "finished_after_stop");
    assert_eq!(fate_of(&daemon, &first, "pay")["fate"], "finished_after_stop");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_the_server_does_not_answer_any_more_is_known_too() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "pay");
    let (first, _) = daemon.cli().stop(&["agent=coder", "tool=pay"], "refuse");
    assert_eq!(fate_of(&daemon, &first, "pay")["fate"], "sent", "it took the cancel, and may still answer");
    daemon.cli().release(&first);
    session.call(2, "pay");
    let stop = ["stop", "agent=coder", "tool=pay", "--reason", REASON, "--wait", "0s"];
    let second = daemon.cli().run(&stop).json["stop"]["id"].as_str().expect("a stop").to_owned();
    server.wait("a cancel", |request| request.json()["params"]["requestId"] == 2);
    daemon.records().wait("cancel", "the second", |record| record["rpc_id"] == "2");
    says.end();
    assert_eq!(fate_of(&daemon, &second, "pay")["fate"], "closed");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_while_a_post_is_on_its_way_is_answered_in_the_stream_as_well() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    // It reads no POST to its end.
    let server = agent_tests::raw_server::RawServer::talks(&world, |talk| {
        let begun = talk.read()?.unwrap_or_default();
        if !begun.starts_with(b"GET ") {
            return talk.hold(|| false);
        }
        let first = format!("event: endpoint\ndata: {ENDPOINT}\n\n");
        talk.write(&[agent_tests::http::sse_head(), agent_tests::http::chunk(first.as_bytes())].concat())?;
        talk.hold(|| false)
    });
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    let body = mcp::call(1, "pay", json!({"text": "x".repeat(3 << 20)})).to_string();
    session.agent.send(&session.posts, &super::post_to(ENDPOINT, &body)).expect("send");
    daemon.records().decision("pay", "allow");
    // Its last byte cannot have left: nobody takes 3 MiB off the wire.
    let (_, stopped) = daemon.cli().stop(&["agent=coder"], "refuse");
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{stopped:?}");
    assert_eq!(calls[0]["fate"], "cut", "{stopped:?}");
    assert_eq!(session.agent.message(&mut session.posts).expect("a receipt").status(), 202);
    assert!(mcp::refusal(&session.of_id(1)).is_some_and(|text| text.contains(REASON)));
}
