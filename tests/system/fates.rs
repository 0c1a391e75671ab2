//! What becomes of calls: that each answer finds its call, and that a stop loses none, whatever happens meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use agent_tests::http::{self, post};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::NO_RULES;

/// A server that answers a `tools/call` when the flag is set.
fn waits(world: &World) -> (RawServer, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    let server = RawServer::start(world, move |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        reply.hold(|| set.load(Ordering::Relaxed))?;
        reply.result(request, &json!({"content": []}))
    });
    (server, flag)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn call_without_an_id_is_listed_by_the_stop_that_catches_it() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = waits(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let notification = json!({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "wire_transfer"}});
    agent.send(&conn, &mcp::legacy(&notification)).expect("send");
    server.wait("the call", |request| request.json()["method"] == "tools/call");

    let (id, answer) = daemon.cli().stop(&["agent=coder"], "refuse");
    let calls = answer.json["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{answer:?}");
    assert_eq!((&calls[0]["tool"], &calls[0]["rpc_id"]), (&json!("wire_transfer"), &Value::Null));
    assert_eq!(calls[0]["fate"], "sent", "all of it had left: {answer:?}");
    assert_eq!(answer.code, 3, "and what came of it is not known");
    let caught = |record: &Value| record["stop"] == id.as_str() && record["tool"] == "wire_transfer";
    daemon.records().wait("stop_effect", "the call's", caught);

    assert_eq!(agent.message(&mut conn).expect("an orderly answer").status(), 202);
    agent.send(&conn, &mcp::legacy(&mcp::call(2, "echo", json!({})))).expect("the connection is in order");
    let messages = agent.message(&mut conn).expect("an answer").messages();
    assert!(mcp::refusal(mcp::of_id(&messages, 2)).is_some(), "{messages:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn release_while_the_stop_still_waits_loses_nothing() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, finish) = waits(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "slow", json!({})))).expect("send");
    server.wait("the call", |request| request.json()["method"] == "tools/call");

    let (id, answer) = thread::scope(|scope| {
        let stop =
            ["stop", "agent=coder", "--level", "refuse", "--reason", "a test says so", "--wait", "15s"];
        let cli = daemon.cli();
        let stopping = scope.spawn(move || cli.run(&stop));
        let stop = daemon.records().wait("stop", "in force", |_| true);
        let id = stop["stop"].as_str().expect("a stop has an id").to_owned();
        assert!(!stopping.is_finished(), "the call is still out");
        assert_eq!(daemon.cli().release(&id).code, 0);
        assert!(!stopping.is_finished(), "and the stop still waits for it");
        finish.store(true, Ordering::Relaxed);
        (id, stopping.join().expect("the command ends"))
    });
    assert_eq!(answer.code, 0, "every fate is known: {answer:?}");
    let calls = answer.json["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{answer:?}");
    assert_eq!(calls[0]["fate"], "finished_after_stop", "{answer:?}");
    let effect = daemon.records().wait("stop_effect", "the late answer", |record| {
        record["stop"] == id.as_str() && record["fate"] == "finished_after_stop"
    });
    assert!(
        effect["late"]["bytes"].as_u64() > Some(0) && effect["late"]["digest"] != Value::Null,
        "{effect}"
    );

    let refused = agent.message(&mut conn).expect("the agent was answered at the stop").messages();
    assert!(mcp::refusal(mcp::of_id(&refused, 1)).is_some(), "the late answer is not for it: {refused:?}");
}

/// What becomes of a call of 2026-07-28, in which closing is the cancel, at a server that pays no heed to it.
fn fate_of_modern_call(more: &str) -> (Value, Value) {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, more);
    let (server, finish) = waits(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::modern_call(1, "slow", "slow", json!({}))).expect("send");
    server.wait("the call", |request| request.json()["method"] == "tools/call");
    let answer = daemon.cli().run(&["stop", "agent=coder", "--reason", "a test says so", "--wait", "0s"]);
    assert_eq!((answer.code, &answer.json["calls"][0]["fate"]), (3, &json!("sent")), "{answer:?}");
    finish.store(true, Ordering::Relaxed);
    let id = answer.json["stop"]["id"].as_str().expect("an id");
    let followed = daemon.cli().run(&["stops", "show", id, "--follow"]);
    assert_eq!(followed.code, 0, "the last receipt shown knows all: {followed:?}");
    let effect = daemon.records().wait("stop_effect", "known", |record| record["open"] == false);
    let cancel = daemon.records().of("cancel").first().cloned().unwrap_or_default();
    (effect, cancel)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn closing_is_the_cancel_unless_the_server_is_watched() {
    let (closed, cancel) = fate_of_modern_call("");
    assert_eq!((&cancel["via"], &cancel["cause"]), (&json!("close"), &json!("operator_stop")), "{cancel}");
    // It was told by a FIN, which it did not look at, and it answered all the same.
    assert_eq!(closed["fate"], "finished_after_stop", "{closed}");
    assert!(closed["late"]["bytes"].as_u64() > Some(0), "{closed}");

    let (watched, cancel) = fate_of_modern_call("watch: ['10.77.0.*']\n");
    assert_eq!(cancel, Value::Null, "nothing was cancelled");
    assert_eq!(watched["fate"], "finished_after_stop", "{watched}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answer_finds_its_call_however_its_id_is_escaped() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    // As it is asked, and as it is answered.
    let ids = [
        (r#""ü""#, r#""\u00fc""#),
        (r#""\u00FC-2""#, r#""ü-2""#),
        (r#""a/b""#, r#""a\/b""#),
        (r#""\ud83d\ude00""#, r#""😀""#),
    ];
    let server = RawServer::start(&world, move |request, reply| {
        let (_, id) = ids.into_iter().find(|(id, _)| request.text().contains(id)).expect("one of them");
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}}}}"#);
        reply.write(&http::response("application/json", &[], body.as_bytes()))
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    for (id, answered) in ids {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"echo","arguments":{{}}}}}}"#
        );
        agent.send(&conn, &post(&body, &[mcp::SESSION])).expect("send");
        let text = agent.message(&mut conn).expect("an answer").text();
        assert!(text.contains(answered), "byte for byte: {text}");
        let result = daemon.records().wait("result", id, |record| record["rpc_id"] == id);
        assert_eq!((&result["outcome"], &result["tool"]), (&json!("result"), &json!("echo")), "{result}");
    }
}
