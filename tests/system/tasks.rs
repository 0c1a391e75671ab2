//! Tasks go on after their call is answered: a stop knows them, has their servers cancel them, and says what came of it.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use agent_tests::http::{self, post};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, RawAgent, Server, World, mcp};
use serde_json::{Value, json};

use crate::{NO_RULES, REASON};

/// A server whose tools begin tasks of either generation. What becomes of a task when it is cancelled is in its id.
fn server(world: &World) -> RawServer {
    let asked = AtomicUsize::new(0);
    RawServer::start(world, move |request: &http::Message, reply: &mut Reply<'_>| -> io::Result<()> {
        if handshake(request, reply)? {
            return Ok(());
        }
        let message = request.json();
        let params = &message["params"];
        let modern = !params["_meta"].is_null();
        let task = params["taskId"].as_str().unwrap_or_default();
        let error = |code: i32| json!({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": "no"}});
        let result = |result: Value| json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        let described = |status: &str| json!({"taskId": task, "status": status, "ttl": null});
        let answer = match (message["method"].as_str(), task) {
            (Some("tools/call"), _) => {
                let id = params["name"].as_str().unwrap_or_default();
                let task = json!({"taskId": id, "status": "working", "ttl": null});
                result(if modern {
                    merge(json!({"resultType": "task"}), task)
                } else {
                    json!({"task": task})
                })
            }
            (Some("tasks/cancel"), "stubborn") => error(-32602),
            (Some("tasks/cancel"), "slow") => result(json!({"resultType": "complete"})),
            (Some("tasks/cancel"), _) => result(described("cancelled")),
            // It goes on for a while before it ends by itself.
            (Some("tasks/get"), "slow") if asked.fetch_add(1, Ordering::Relaxed) > 0 => {
                result(described("completed"))
            }
            (Some("tasks/get"), "over") => result(described("completed")),
            _ => result(described("working")),
        };
        reply.write(&http::response("application/json", &[], answer.to_string().as_bytes()))
    })
}

fn merge(mut a: Value, b: Value) -> Value {
    if let (Some(a), Value::Object(b)) = (a.as_object_mut(), b) {
        a.extend(b);
    }
    a
}

const ENVELOPE: &str = "io.modelcontextprotocol/protocolVersion";

/// A call that a server answers with a task.
fn begin(agent: &mut RawAgent, server: &RawServer, id: u32, tool: &str, modern: bool) {
    let mut params = json!({"name": tool, "arguments": {}});
    params[if modern { "_meta" } else { "task" }] =
        if modern { json!({ENVELOPE: "2026-07-28"}) } else { json!({}) };
    ask(agent, server, id, "tools/call", params, modern);
}

fn ask(
    agent: &mut RawAgent,
    server: &RawServer,
    id: u32,
    method: &str,
    params: Value,
    modern: bool,
) -> Value {
    let body = mcp::request(id, method, params).to_string();
    let headers: &[(&str, &str)] = if modern {
        &[("MCP-Protocol-Version", "2026-07-28"), ("Authorization", "Bearer of-the-agent")]
    } else {
        &[mcp::SESSION, ("MCP-Protocol-Version", "2025-11-25"), ("Authorization", "Bearer of-the-agent")]
    };
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &post(&body, headers)).expect("send");
    let answer = mcp::of_id(&agent.message(&mut conn).expect("an answer").messages(), id).clone();
    agent.close(conn).expect("close");
    answer
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn running_tasks_are_cancelled_and_their_end_is_told() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    begin(&mut agent, &server, 1, "legacy", false);
    begin(&mut agent, &server, 2, "stubborn", false);
    begin(&mut agent, &server, 3, "modern", true);
    begin(&mut agent, &server, 4, "slow", true);
    begin(&mut agent, &server, 5, "over", false);
    let get = ask(&mut agent, &server, 6, "tasks/get", json!({"taskId": "over"}), false);
    assert_eq!(get["result"]["status"], "completed");

    let (id, answer) = daemon.cli().stop(&["agent=coder"], "refuse");
    let calls = answer.json["calls"].as_array().expect("calls");
    let mut fates: Vec<(&str, &str)> = calls
        .iter()
        .map(|call| (call["task"].as_str().unwrap_or_default(), call["fate"].as_str().unwrap_or_default()))
        .collect();
    fates.sort_unstable();
    assert_eq!(
        fates,
        [
            ("legacy", "cancelled"),
            ("modern", "cancelled"),
            ("slow", "finished_after_stop"),
            ("stubborn", "not_cancelable")
        ],
        "{answer:?}"
    );
    assert_eq!(answer.code, 0, "every fate is known: {answer:?}");

    let cancel = |task: &str| {
        server.wait("a cancel", |request| {
            request.json()["method"] == "tasks/cancel" && request.json()["params"]["taskId"] == task
        })
    };
    let legacy = cancel("legacy");
    assert_eq!(legacy.header(mcp::SESSION.0), Some(mcp::SESSION.1), "in the session of the call");
    assert_eq!(legacy.header("authorization"), Some("Bearer of-the-agent"));
    assert_eq!((legacy.header("mcp-name"), &legacy.json()["params"]["_meta"]), (None, &Value::Null));
    let modern = cancel("modern");
    assert_eq!(
        (modern.header("mcp-method"), modern.header("mcp-name")),
        (Some("tasks/cancel"), Some("modern"))
    );
    assert_eq!(modern.json()["params"]["_meta"][ENVELOPE], "2026-07-28");
    assert!(
        !server.saw(r#""taskId":"over","_"#)
            && !server.requests().iter().any(|request| {
                request.json()["method"] == "tasks/cancel" && request.json()["params"]["taskId"] == "over"
            }),
        "what is over is left alone"
    );
    let cancels = daemon.records().of("cancel");
    let of = |task: &str| cancels.iter().find(|record| record["task"] == task).cloned().unwrap_or_default();
    assert_eq!(
        (&of("stubborn")["outcome"], &of("stubborn")["stop"]),
        (&json!("status 200, error -32602"), &json!(id))
    );
    assert_eq!(of("legacy")["via"], "tasks/cancel");
}

/// The server of an SDK cancels its task, and says so.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn task_of_an_sdk_server_is_cancelled() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = Server::start_tasks(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::initialize("2025-11-25")).expect("send");
    let answer = agent.message(&mut conn).expect("a session");
    let session = answer.header("mcp-session-id").expect("a session").to_owned();
    let headers = [("mcp-session-id", &*session), ("mcp-protocol-version", "2025-11-25")];
    let mut ask = |id: u32, method: &str, params: Value| {
        agent.send(&conn, &post(&mcp::request(id, method, params).to_string(), &headers)).expect("send");
        mcp::of_id(&agent.message(&mut conn).expect("an answer").messages(), id).clone()
    };
    let call = json!({"name": "research", "arguments": {"topic": "x"}, "task": {"ttl": 60_000}});
    let begun = ask(1, "tools/call", call);
    let task =
        begun["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("a task: {begun}")).to_owned();
    assert_eq!(ask(2, "tasks/get", json!({"taskId": task}))["result"]["status"], "working");

    let (id, answer) = daemon.cli().stop(&["tool=research"], "refuse");
    let caught = &answer.json["calls"][0];
    assert_eq!(
        (&caught["task"], &caught["fate"], answer.code),
        (&json!(task), &json!("cancelled"), 0),
        "{answer:?}"
    );
    assert_eq!(daemon.cli().release(&id).code, 0);
    assert_eq!(
        ask(3, "tasks/get", json!({"taskId": task}))["result"]["status"],
        "cancelled",
        "its server knows"
    );
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_of_a_tool_holds_for_what_is_asked_of_its_tasks() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    begin(&mut agent, &server, 1, "legacy", false);
    begin(&mut agent, &server, 2, "other", false);
    let drill = daemon.cli().run(&["stop", "tool=legacy", "--dry-run"]).json;
    assert_eq!(drill["agents"][0]["tasks"][0]["task"], "legacy", "{drill}");
    daemon.cli().stop(&["tool=legacy"], "refuse");
    let refused = ask(&mut agent, &server, 3, "tasks/result", json!({"taskId": "legacy"}), false);
    assert!(mcp::refusal(&refused).is_some_and(|text| text.contains(REASON)), "{refused}");
    let other = ask(&mut agent, &server, 4, "tasks/get", json!({"taskId": "other"}), false);
    assert_eq!(other["result"]["status"], "working", "{other}");
}
