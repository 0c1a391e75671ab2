//! A stop ends what its selectors name, and nothing else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_tests::agent::RawConn;
use agent_tests::http::{self, post};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::json;

use crate::{NO_RULES, REASON};

/// A server whose tool `slow` answers when the flag is set, all others at once.
fn server(world: &World) -> (RawServer, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    let server =
        RawServer::start(world, move |request: &http::Message, reply: &mut Reply<'_>| -> io::Result<()> {
            if handshake(request, reply)? {
                return Ok(());
            }
            if request.start.starts_with("GET") {
                reply.write(&[http::sse_head(), http::chunk(b": open\n\n")].concat())?;
                return reply.hold(|| set.load(Ordering::Relaxed));
            }
            if request.text().contains("\"slow\"") {
                reply.hold(|| set.load(Ordering::Relaxed))?;
            }
            reply.result(request, &json!({"content": []}))
        });
    (server, flag)
}

/// Whether a call is refused by a stop, with its reason.
fn is_refused(agent: &mut RawAgent, conn: &mut RawConn, id: u32, tool: &str) -> bool {
    agent.send(conn, &mcp::legacy(&mcp::call(id, tool, json!({})))).expect("send");
    let answer = agent.message(conn).expect("an answer");
    let refusal = mcp::refusal(mcp::of_id(&answer.messages(), id));
    assert!(refusal.as_ref().is_none_or(|text| text.contains(REASON)), "{refusal:?}");
    refusal.is_some()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_of_a_server_leaves_the_others() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let ((first, _), (second, _)) = (server(&world), server(&world));
    let mut agent = RawAgent::start(&world, "coder");
    let mut to_first = agent.open(first.address()).expect("a connection");
    let mut to_second = agent.open(second.address()).expect("a connection");
    daemon.cli().stop(&[&format!("server={}", first.address())], "refuse");
    assert!(is_refused(&mut agent, &mut to_first, 1, "echo"));
    assert!(!is_refused(&mut agent, &mut to_second, 2, "echo"));
    // What cannot be read goes by its address.
    let mut opaque = agent.open(first.address()).expect("a connection");
    agent.send(&opaque, b"\x16\x03\x01\x00\x05hello").expect("send");
    assert!(agent.to_end(&mut opaque).is_err(), "reset, without a byte");
    assert!(!first.saw("hello"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_of_a_tool_cuts_its_calls_and_no_other() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, finish) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut slow = agent.open(server.address()).expect("a connection");
    let mut other = agent.open(server.address()).expect("a connection");
    agent.send(&slow, &mcp::legacy(&mcp::call(1, "slow", json!({})))).expect("send");
    let pending =
        json!({"jsonrpc": "2.0", "id": 2, "method": "prompts/get", "params": {"name": "x", "hint": "slow"}});
    agent.send(&other, &mcp::legacy(&pending)).expect("send");
    server.wait("both", |request| request.text().contains("prompts/get"));
    server.wait("both", |request| request.text().contains("tools/call"));

    let (_, answer) = daemon.cli().stop(&["tool=slo*", "agent=coder"], "refuse");
    let calls = answer.json["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{answer:?}");
    assert_eq!(calls[0]["tool"], "slow");
    assert_eq!(answer.json["stop"]["scope"], json!({"agent": "coder", "tool": "slo*"}));
    let told = agent.message(&mut slow).expect("an answer").messages();
    let told = mcp::refusal(mcp::of_id(&told, 1)).unwrap_or_default();
    assert!(
        told.contains(REASON) && told.contains("stopped agent=coder tool=slo*"),
        "and what is stopped: {told}"
    );
    assert!(is_refused(&mut agent, &mut slow, 3, "slow"));
    assert!(!is_refused(&mut agent, &mut slow, 4, "echo"), "the same connection goes on");
    finish.store(true, Ordering::Relaxed);
    let untouched = agent.message(&mut other).expect("an answer").messages();
    assert!(mcp::of_id(&untouched, 2)["result"].is_object(), "{untouched:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_batch_ends_with_the_call_that_is_in_scope() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let batch = json!([mcp::call(1, "slow", json!({})), mcp::call(2, "echo", json!({}))]);
    agent.send(&conn, &mcp::legacy(&batch)).expect("send");
    server.wait("the batch", |request| request.text().contains("tools/call"));

    let drill = daemon.cli().run(&["stop", "tool=slow", "--dry-run"]);
    let calls = drill.json["agents"][0]["calls"].as_array().expect("calls").clone();
    let sibling =
        |tool: &str| calls.iter().find(|call| call["tool"] == tool).map(|call| call["is_sibling"].clone());
    assert_eq!((sibling("slow"), sibling("echo")), (Some(json!(false)), Some(json!(true))), "{drill:?}");
    assert!(calls.iter().all(|call| call["would_be"] == "sent"), "{drill:?}");

    let (_, answer) = daemon.cli().stop(&["tool=slow"], "refuse");
    assert_eq!(answer.json["calls"].as_array().map(Vec::len), Some(2), "both had left: {answer:?}");
    let told = agent.message(&mut conn).expect("an answer").messages();
    for id in [1, 2] {
        assert!(mcp::refusal(mcp::of_id(&told, id)).is_some(), "{told:?}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_of_a_session_ends_its_stream_and_not_the_next() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut stream = |id: &str| {
        let mut conn = agent.open(server.address()).expect("a connection");
        let headers = [("Mcp-Session-Id", id), ("Accept", "text/event-stream")];
        agent.send(&conn, &http::get(&headers)).expect("send");
        agent.so_far(&mut conn, |message| message.text().contains("open")).expect("the stream has begun");
        conn
    };
    let (mut one, mut two) = (stream("session-one"), stream("session-two"));
    let (_, answer) = daemon.cli().stop(&["session=session-one"], "refuse");
    let shown = answer.json["stop"]["scope"]["session"].as_str().expect("a digest").to_owned();
    assert!(shown.starts_with("s-") && shown.len() == 14, "the id is a secret: {shown}");
    agent.message(&mut one).expect("the stream ends in order");
    let call = post(&mcp::call(7, "echo", json!({})).to_string(), &[("Mcp-Session-Id", "session-two")]);
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &call).expect("send");
    let answer = agent.message(&mut conn).expect("an answer").messages();
    assert!(mcp::of_id(&answer, 7)["result"].is_object(), "{answer:?}");
    let decision =
        daemon.records().wait("decision", "of the other session", |record| record["rpc_id"] == "7");
    assert!(decision["session"].is_string() && decision["session"] != *shown, "{decision}");
    agent.close(conn).expect("close");
    assert!(
        agent.so_far(&mut two, |message| message.text().contains("open")).is_ok(),
        "the other stream is there"
    );
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_of_all_holds_for_whoever_comes() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _) = server(&world);
    let mut coder = RawAgent::start(&world, "coder");
    let mut conn = coder.open(server.address()).expect("a connection");
    let (id, answer) = daemon.cli().stop(&["--all"], "refuse");
    assert_eq!(answer.json["stop"]["scope"], json!({"all": true}));
    assert!(is_refused(&mut coder, &mut conn, 1, "echo"));
    let mut later = RawAgent::start(&world, "sibling");
    let mut conn_of_later = later.open(server.address()).expect("a connection");
    assert!(is_refused(&mut later, &mut conn_of_later, 1, "echo"));
    assert_eq!(daemon.cli().release(&id).code, 0);

    let (id, _) = daemon.cli().stop(&["--all"], "isolate");
    assert!(later.open(server.address()).is_err() && coder.open(server.address()).is_err());
    world.agent_cgroup("coder-3");
    daemon.holds(&format!("{}/agents/coder-3", world.cgroup()));
    let mut third = RawAgent::start(&world, "coder-3");
    assert!(third.open(server.address()).is_err(), "an agent that begins under the stop");
    assert_eq!(daemon.cli().release(&id).code, 0);
    let mut conn = third.open(server.address()).expect("released");
    assert!(!is_refused(&mut third, &mut conn, 1, "echo"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn selectors_that_cannot_be_carried_out_are_refused_with_a_remedy() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let check = |args: &[&str], expect: &str| {
        let answer = daemon.cli().run(&[&["stop", "--reason", "x"], args].concat());
        assert!(
            answer.code != 0 && answer.json["error"].as_str().is_some_and(|error| error.contains(expect)),
            "{answer:?}"
        );
    };
    check(&["tool=x", "--level", "isolate"], "select by agent=");
    check(&["pod=x"], "the selectors are");
    check(&["agent=a["], "agent=a[");
    check(&[], "--all");
    check(&["agent=x", "--all"], "leave the other selectors out");
    assert_eq!(daemon.cli().run(&["stops"]).json["stops"], json!([]), "none of them left a stop behind");
}
