//! Streamable HTTP as its revisions have it beside single calls: two of them on one connection, streams that are listened
//! on, sessions that end.

use std::io;

use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::NO_TRANSFERS;

/// Hides what has `secret` in its name.
const HIDDEN: &str = "
version: 1
rules:
  - {id: none-known, action: hide, match: {tool: '*secret*'}}
";

/// A request of 2026-07-28 for a method that has no name.
fn modern(id: u32, method: &str, mut params: Value) -> Vec<u8> {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
    http::post(&mcp::request(id, method, params).to_string(), &headers)
}

fn event(message: &Value) -> Vec<u8> {
    http::chunk(format!("data: {message}\n\n").as_bytes())
}

/// A client that discovers falls back on the connection it has.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn revisions_share_a_connection() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |request, reply| match handshake(request, reply)? {
        true => Ok(()),
        false => reply.result(request, &json!({"content": [], "resultType": "complete"})),
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let requests = [
        modern(1, "server/discover", json!({})),
        mcp::legacy(&mcp::call(2, "echo", json!({}))),
        mcp::modern_call(3, "wire_transfer", "wire_transfer", json!({})),
        mcp::legacy(&mcp::call(4, "wire_transfer", json!({}))),
        mcp::modern_call(5, "echo", "echo", json!({})),
    ];
    let refused = requests.map(|request| {
        agent.send(&conn, &request).expect("send");
        mcp::refusal(&agent.message(&mut conn).expect("an answer").json()).is_some()
    });
    assert_eq!(refused, [false, false, true, true, false]);
    assert_eq!((server.connections(), server.requests().len()), (1, 3));
    let revisions = wait_for("five decisions", || {
        let decisions = daemon.records().of("decision");
        let revisions: Vec<Value> = decisions.iter().map(|record| record["revision"].clone()).collect();
        (revisions.len() == 5).then_some(revisions)
    });
    assert_eq!(revisions, ["2026-07-28", "2025-11-25", "2026-07-28", "2025-11-25", "2026-07-28"]);
}

/// `subscriptions/listen` (2026-07-28): a call whose answer is what happens, until somebody closes.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_is_listened_for_comes_until_a_stop() {
    let world = World::new();
    let daemon = Daemon::start(&world, HIDDEN);
    let server = RawServer::start(&world, |_request, reply| {
        let told =
            |method: &str, params: Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
        let of = json!({"_meta": {"io.modelcontextprotocol/subscriptionId": 7}});
        reply.write(
            &[http::sse_head(), event(&told("notifications/subscriptions/acknowledged", of.clone()))]
                .concat(),
        )?;
        reply.write(&http::chunk(b": still there\n\n"))?;
        reply.write(&event(&told("notifications/tools/list_changed", of)))?;
        reply.hold(|| false)
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let listen = modern(7, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}}));
    agent.send(&conn, &listen).expect("send");
    let so_far = agent
        .so_far(&mut conn, |message| message.text().contains("list_changed"))
        .expect("what the server tells comes at once");
    assert!(
        so_far.text().contains("acknowledged") && so_far.text().contains(": still there"),
        "{}",
        so_far.text()
    );
    daemon.records().wait("decision", "to listen", |record| record["method"] == "subscriptions/listen");

    let (_, answer) = daemon.cli().stop(&["agent=coder"], "refuse");
    assert_eq!(answer.json["calls"].as_array().map(Vec::len), Some(1), "{}", answer.json);
    let rest = agent.message(&mut conn).map(|message| message.text());
    assert!(rest.as_ref().map_or(true, |text| text.contains("stopped")), "{rest:?}");
}

/// What a session ends with is the server's to say: 200 or 405 to `DELETE`, 404 to what comes after.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_session_ends_as_the_server_says() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let gone = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let ended = b"HTTP/1.1 405 Method Not Allowed\r\nallow: POST\r\ncontent-length: 0\r\n\r\n";
    let server = RawServer::start(&world, |request: &Message, reply: &mut Reply<'_>| -> io::Result<()> {
        let is_delete = request.start.starts_with("DELETE ");
        reply.write(if is_delete { ended } else { gone })
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let delete = b"DELETE /mcp HTTP/1.1\r\nHost: bank.test\r\nMcp-Session-Id: session-1\r\nMCP-Protocol-Version: 2025-11-25\r\n\r\n";
    agent.send(&conn, delete).expect("send");
    assert_eq!(agent.message(&mut conn).expect("an answer").status(), 405);
    assert!(server.bytes().starts_with(delete), "byte for byte");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
    let answer = agent.message(&mut conn).expect("an answer");
    assert_eq!((answer.status(), &*answer.text()), (404, "{}"), "which makes a client begin a new session");
    daemon.records().wait("decision", "the call", |record| record["tool"] == "echo");
}
