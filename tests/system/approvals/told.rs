//! What agents hear while their calls wait for a person, and how the answer follows.

use std::time::Duration;

use agent_tests::agent::{Agent, RawConn, call};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Era, RawAgent, Sdk, Server, World, http, mcp};
use serde_json::{Value, json};

use super::{RULES, approve, asked, decide, waiting};
use crate::REASON;

/// One test per client and server: the agent hears that its call waits, and the answer comes in the stream that this began.
macro_rules! told {
    ($($name:ident: $client:ident, $era:ident => $server:ident, $json:expr, $revision:expr;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            agent_is_told_that_its_call_waits(Sdk::$client, Era::$era, (Sdk::$server, $json), $revision);
        }
    )*};
}

told! {
    approval_is_waited_for_by_py1: Py1, Legacy => Py2, &[], "2025-11-25";
    approval_is_waited_for_by_py1_on_json: Py1, Legacy => Ts1, &["--json"], "2025-11-25";
    approval_is_waited_for_by_ts1: Ts1, Legacy => Py2, &[], "2025-11-25";
    approval_is_waited_for_by_ts1_on_json: Ts1, Legacy => Py1, &["--json"], "2025-11-25";
    approval_is_waited_for_by_py2: Py2, Auto => Ts2, &[], "2026-07-28";
    approval_is_waited_for_by_py2_on_json: Py2, Auto => Ts2, &["--json"], "2026-07-28";
    approval_is_waited_for_by_ts2: Ts2, Auto => Py2, &[], "2026-07-28";
    approval_is_waited_for_by_ts2_on_json: Ts2, Auto => Py2, &["--json"], "2026-07-28";
    approval_is_waited_for_by_py2_on_2025: Py2, Legacy => Ts1, &[], "2025-11-25";
    approval_is_waited_for_by_ts2_on_2025: Ts2, Legacy => Py1, &["--json"], "2025-11-25";
    approval_is_waited_for_by_py1_over_sse: Py1, Legacy => Py1, &["--sse"], "2025-11-25";
    approval_is_waited_for_by_ts1_over_sse: Ts1, Legacy => Ts1, &["--sse"], "2025-11-25";
    approval_is_waited_for_by_rmcp: Rmcp, Auto => Py2, &[], "2026-07-28";
}

fn agent_is_told_that_its_call_waits(client: Sdk, era: Era, server: (Sdk, &[&str]), revision: &str) {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let over_sse = server.1.contains(&"--sse");
    let server = Server::start_on(&world, server.0, SERVER_V4, server.1);
    let url = if over_sse { server.sse_url() } else { server.url() };
    let transfer = call("wire_transfer", json!({"amount": 5}));
    let script = json!([
        transfer,
        transfer,
        call("echo", json!({"text": "hi"})),
        call("progress", json!({"steps": 3}))
    ]);
    let agent = Agent::start(&world, "coder", client, era, &url, &script);
    assert_eq!(agent.connected(), revision);
    let mut ids = Vec::new();
    for verb in ["approve", "refuse"] {
        let (id, asked) = asked(&daemon);
        let conn = asked["conn"].as_u64();
        // The second notice comes after three seconds.
        std::thread::sleep(Duration::from_millis(3500));
        assert_eq!(waiting(&daemon)[0]["conn"].as_u64(), conn, "nobody has lost patience");
        decide(daemon.cli(), verb, &id);
        ids.push(id);
        let step = agent.step();
        if verb == "approve" {
            assert!(step.ok && !step.is_error && step.text == "transferred 5", "{step:?}");
        } else {
            assert!(step.is_error && step.text.contains(REASON), "{step:?}");
        }
        if client != Sdk::Rmcp {
            let told = step.line["told"].as_array().expect("what it was told");
            let text = format!("waiting for approval {} (rule transfers)", ids.last().expect("an id"));
            let notices = told.iter().filter(|notice| *notice == text.as_str()).count();
            assert!(notices >= 2, "{step:?}");
        }
    }
    for step in [agent.step(), agent.step()] {
        assert!(step.ok && !step.is_error, "the session goes on: {step:?}");
    }
    assert_eq!(server.started("wire_transfer").len(), 1);
}

/// A POST of a call whose sender wants to hear of progress.
fn telling(id: u32) -> Vec<u8> {
    let params = json!({"name": "wire_transfer", "arguments": {}, "_meta": {"progressToken": "p-1"}});
    mcp::legacy(&mcp::request(id, "tools/call", params))
}

/// What an agent gets whose call has waited, from a server that answers with these bytes.
fn told_and_answered(answer: Vec<u8>) -> (http::Message, Vec<Value>) {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = RawServer::start(&world, move |request, reply| {
        if handshake(request, reply)? { Ok(()) } else { reply.write_in(7, &answer) }
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &telling(7)).expect("send");
    let (id, _) = asked(&daemon);
    agent.so_far(&mut conn, |message| message.text().contains(&id)).expect("it is told at once");
    assert!(!server.saw("wire_transfer"));
    approve(&daemon, &id);
    let message = agent.message(&mut conn).expect("the end of the stream");
    assert_eq!((message.status(), message.header("content-type")), (200, Some("text/event-stream")));
    let mut messages = message.messages();
    let first = messages.remove(0);
    assert_eq!(
        (&first["method"], &first["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("p-1"))
    );
    daemon.records().wait("result", "of the call", |record| record["tool"] == "wire_transfer");
    (message, messages)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn whatever_a_server_answers_goes_on_in_the_stream_that_approval_began() {
    let result = json!({"jsonrpc": "2.0", "id": 7, "result": {"content": []}});
    let text = format!("{result:#}");
    let (_, messages) = told_and_answered(http::response("application/json", &[], text.as_bytes()));
    assert_eq!(messages, std::slice::from_ref(&result));

    let events = format!("id: 1\ndata:\n\n: hi\n\nevent: message\ndata: {result}\n\n");
    let answer = [http::sse_head(), http::chunk(events.as_bytes()), http::chunk(b"")].concat();
    let (message, messages) = told_and_answered(answer);
    assert_eq!(messages, [result]);
    assert!(message.text().contains("id: 1\n") && message.text().contains(": hi"), "{}", message.text());

    let status = |status: &str, kind: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n{body}")
            .into_bytes()
    };
    let gone = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}"#;
    let (_, messages) = told_and_answered(status("404 Not Found", "application/json", gone));
    assert_eq!((&messages[0]["id"], &messages[0]["error"]["code"]), (&json!(7), &json!(-32001)));
    let (_, messages) = told_and_answered(status("502 Bad Gateway", "text/html", "<p>sorry</p>"));
    assert_eq!((&messages[0]["id"], &messages[0]["error"]["data"]["status"]), (&json!(7), &json!(502)));
    let (_, messages) = told_and_answered(b"HTTP/1.1 2000 OK\r\n\r\n".to_vec());
    assert!(mcp::refusal(&messages[0]).expect("a refusal").contains("cannot be read"), "{messages:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_answers_in_the_stream_that_approval_began() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = RawServer::start(&world, |request, reply| {
        if request.json()["method"] == "tools/call" {
            reply.hold_for(|request| request.json()["method"] == "notifications/cancelled")?;
            return reply.result(request, &json!({"content": []}));
        }
        handshake(request, reply).map(drop)
    });
    let mut agent = RawAgent::start(&world, "coder");
    let ended = |agent: &mut RawAgent, conn: &mut RawConn, stop: &str| {
        let messages = agent.message(conn).expect("the end of the stream").messages();
        let refusal = mcp::refusal(mcp::of_id(&messages, 7)).expect("a refusal");
        assert!(refusal.contains(stop), "{refusal}");
    };
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &telling(7)).expect("send");
    let (id, _) = asked(&daemon);
    agent.so_far(&mut conn, |message| message.text().contains(&id)).expect("it is told at once");
    let (stop, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    ended(&mut agent, &mut conn, &stop);
    daemon.cli().release(&stop);

    // The same connection again; this time the server has the call.
    agent.send(&conn, &telling(7)).expect("send");
    let (id, _) = asked(&daemon);
    agent.so_far(&mut conn, |message| message.text().contains(&id)).expect("it is told at once");
    approve(&daemon, &id);
    server.wait("the call", |request| request.json()["method"] == "tools/call");
    let (stop, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    ended(&mut agent, &mut conn, &stop);
    let late = |record: &Value| record["stop"] == stop.as_str() && record["fate"] == "finished_after_stop";
    daemon.records().wait("stop_effect", "what the server says after that", late);
}
