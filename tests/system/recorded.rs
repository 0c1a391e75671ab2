//! Makes `tests/data/records.jsonl`, on which the ready-made policies are tried: what the real daemon records of SDK clients,
//! and of calls without one. Written anew by
//! `cargo test -p agent-tests --features root-tests --test system recorded -- --ignored`; then the counts in
//! `deploy/policies.rs` are to be looked at again.

use std::fs;
use std::path::Path;

use agent_tests::agent::{call, list, together};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Agent, Daemon, Era, RawAgent, Sdk, Server, World, mcp, wait_for};
use serde_json::{Value, json};

const RULES: &str = "
version: 1
rules:
  - id: big-transfers
    action: deny
    match: {method: tools/call, tool: wire_transfer}
    when: args.amount > 1000
    reason: transfers over 1000 need a person
  - id: slow-ones
    action: deny
    mode: observe
    match: {tool: slow}
  - id: no-cards
    action: redact
    match: {method: tools/call, tool: echo}
    redact: {patterns: [cards]}
";

/// The tools of a server that says what they are like.
fn tools() -> Value {
    let tool = |name: &str, hints: Value| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": hints});
    json!({"tools": [
        tool("read_file", json!({"readOnlyHint": true})),
        tool("write_file", json!({"readOnlyHint": false, "destructiveHint": false})),
        tool("delete_file", json!({"destructiveHint": true})),
        {"name": "run_query", "inputSchema": {"type": "object"}},
    ]})
}

fn files(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        match request.json()["method"].as_str() {
            Some("tools/list") => reply.result(request, &tools()),
            Some("resources/read") => reply.result(request, &json!({"contents": []})),
            _ => reply.result(request, &json!({"content": [{"type": "text", "text": "done"}]})),
        }
    })
}

fn script(transfer: f64) -> Value {
    json!([
        list(),
        call("echo", json!({"text": "good morning"})),
        call("add", json!({"a": 2, "b": 3})),
        call("wire_transfer", json!({"amount": transfer})),
        together(&[call("echo", json!({"text": "one"})), call("add", json!({"a": 1, "b": 1}))]),
        call("ask", json!({})),
        call("slow", json!({"seconds": 0.1})),
        call("echo", json!({"text": "pay with 4111 1111 1111 1111"})),
    ])
}

fn raw_calls(world: &World, server: &RawServer) {
    let mut agent = RawAgent::start(world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let file = |path: &str| json!({"path": path});
    let named = |id, tool, path: &str| mcp::call(id, tool, file(path));
    let bodies = [
        named(1, "read_file", "/srv/notes.txt"),
        mcp::request(2, "tools/list", json!({})),
        named(3, "read_file", "/srv/notes.txt"),
        named(4, "read_file", "/srv/coder/.ssh/id_rsa"),
        named(5, "write_file", "/srv/notes.txt"),
        named(6, "delete_file", "/srv/notes.txt"),
        mcp::call(7, "run_query", json!({"query": "select 1"})),
        mcp::request(8, "resources/read", json!({"uri": "file:///srv/.env"})),
        mcp::request(9, "resources/read", json!({"uri": "file:///srv/readme.md"})),
        named(10, "write_file", "/srv/todo.txt"),
    ];
    for bytes in [mcp::initialize("2025-11-25")].into_iter().chain(bodies.iter().map(mcp::legacy)) {
        agent.send(&conn, &bytes).expect("sent");
        agent.message(&mut conn).expect("an answer");
    }
    // The header says one tool and the body another: a guard refuses it.
    agent
        .send(&conn, &mcp::modern_call(11, "read_file", "delete_file", file("/srv/notes.txt")))
        .expect("sent");
    agent.message(&mut conn).expect("a refusal");
}

/// The path of a program says where this was recorded, and nothing more.
fn neutral(line: &str) -> String {
    let mut record: Value = serde_json::from_str(line).expect("a record");
    let Some(exe) = record["exe"].as_str() else { return line.to_owned() };
    let name = Path::new(exe).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // The rest of the line stays as it was written.
    let name = if name.starts_with("python") { "python3" } else { &name };
    let written = serde_json::to_string(exe).expect("JSON");
    record["exe"] = format!("/usr/bin/{name}").into();
    line.replacen(&format!("\"exe\":{written}"), &format!("\"exe\":{}", record["exe"]), 1)
}

#[test]
#[ignore = "writes tests/data/records.jsonl; needs root, BPF and the SDKs"]
fn record() {
    let world = World::new();
    let mut daemon = Daemon::start_with_arguments(&world, RULES);
    let servers = [Server::start(&world, Sdk::Py2), Server::start(&world, Sdk::Ts1)];
    let files = files(&world);
    let clients = [
        ("coder", Sdk::Py1, Era::Legacy, 0, 20.0),
        ("coder", Sdk::Py2, Era::Auto, 0, 2000.0),
        ("sibling", Sdk::Ts1, Era::Legacy, 1, 100.0),
        ("sibling", Sdk::Rmcp, Era::Auto, 0, 5000.5),
    ];
    for (name, sdk, era, server, transfer) in clients {
        let agent = Agent::start(&world, name, sdk, era, &servers[server].url(), &script(transfer));
        agent.connected();
        agent.rest();
    }
    raw_calls(&world, &files);

    daemon.cli().stop(&["agent=sibling"], "refuse");
    let mut agent = RawAgent::start(&world, "sibling");
    let mut conn = agent.open(files.address()).expect("a connection");
    agent
        .send(&conn, &mcp::legacy(&mcp::call(1, "read_file", json!({"path": "/srv/notes.txt"}))))
        .expect("sent");
    agent.message(&mut conn).expect("a refusal");
    let stopped = |record: &Value| record["stop"].is_string();
    wait_for("the refused call in the records", || daemon.records().of("decision").into_iter().find(stopped));
    daemon.stop();

    let text = fs::read_to_string(world.path("records.jsonl")).expect("records");
    let of_messages = ["decision", "result", "connection", "stop_effect"];
    let kept = text.lines().filter(|line| {
        let record: Value = serde_json::from_str(line).expect("a record");
        of_messages.into_iter().any(|kind| record["kind"] == kind)
    });
    let text: String = kept.map(|line| neutral(line) + "\n").collect();
    fs::write(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/records.jsonl"), text).expect("written");
}
