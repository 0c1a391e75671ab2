//! A stop finds calls that are in flight in lines, tells agent and server there, and leaves the connection open where it can.

use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, World, mcp};
use serde_json::{Value, json};

use super::{Session, answers, received, result, serves, silent, wait};
use crate::{NO_RULES, REASON};

fn fate_of(daemon: &Daemon, stop: &str, tool: &str) -> Value {
    let is_its = |record: &Value| record["stop"] == stop && record["tool"] == tool && record["open"] == false;
    daemon.records().wait("stop_effect", "its fate", is_its)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_answers_what_is_in_flight_tells_the_server_and_keeps_late_answers() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    for id in 1..=3 {
        session.call(id, "slow");
    }
    wait(&server, "the third", |message| message["id"] == 3);
    // Half a line is on its way.
    let late = result(&json!(1), &json!("too late")).to_string();
    says.say(&late.as_bytes()[..30]);
    let stopped = daemon.cli().run(&["stop", "agent=coder", "--reason", REASON, "--wait", "0s"]);
    let id = stopped.json["stop"]["id"].as_str().expect("a stop").to_owned();
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 3, "{stopped:?}");
    assert!(calls.iter().all(|call| call["fate"] == "sent"), "{stopped:?}");
    for id in 1..=3 {
        assert!(session.refused(id).contains(REASON));
    }
    session.call(4, "echo");
    assert!(session.refused(4).contains(REASON), "told where it listens");
    assert!(!server.saw("echo"));

    says.say(&late.as_bytes()[30..]);
    says.say(b"\n");
    let fate = fate_of(&daemon, &id, "slow");
    assert_eq!(fate["fate"], "finished_after_stop", "{fate}");
    assert_eq!(fate["late"]["bytes"], late.len(), "the whole of it: {fate}");
    // What a server says meanwhile is not for the agent, and a question is answered.
    says.line(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "a log"}}));
    says.line(&json!({"jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": {}}));
    says.say(b"no message at all\n");
    wait(&server, "an error", |message| message["id"] == "q" && message["error"].is_object());
    let cancel = wait(&server, "a cancel", |message| {
        message["method"] == "notifications/cancelled" && message["params"]["requestId"] == 2
    });
    assert!(cancel["params"]["reason"].as_str().is_some_and(|reason| reason.contains(REASON)), "{cancel}");
    says.line(&json!({"jsonrpc": "2.0", "id": 2, "error": {"code": 0, "message": "Request cancelled"}}));
    let is_cancelled = |record: &Value| record["stop"] == *id && record["fate"] == "cancelled";
    daemon.records().wait("stop_effect", "the cancelled one", is_cancelled);
    let record = daemon.records().wait("cancel", "the cancel", |record| record["rpc_id"] == "2");
    assert_eq!((&record["via"], &record["outcome"]), (&json!("notifications/cancelled"), &json!("written")));

    assert_eq!(daemon.cli().release(&id).code, 0);
    session.call(5, "echo");
    says.line(&result(&json!(5), &json!("released")));
    assert_eq!(session.next(), result(&json!(5), &json!("released")), "and nothing before it");
    assert_eq!(server.connections(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_of_one_tool_leaves_the_other_calls_alone() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "pay");
    session.call(2, "look");
    wait(&server, "the second", |message| message["id"] == 2);
    let drill = daemon.cli().run(&["stop", "agent=coder", "tool=pay", "--reason", REASON, "--dry-run"]);
    assert_eq!(drill.json["agents"][0]["calls"].as_array().map(Vec::len), Some(1), "{drill:?}");
    let stopped = daemon.cli().run(&["stop", "agent=coder", "tool=pay", "--reason", REASON, "--wait", "0s"]);
    let id = stopped.json["stop"]["id"].as_str().expect("a stop").to_owned();
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert_eq!(calls.iter().map(|call| &call["tool"]).collect::<Vec<_>>(), ["pay"], "{stopped:?}");
    assert_eq!(stopped.json["agents"][0]["connections"], 1, "{stopped:?}");
    assert!(session.refused(1).contains(REASON));
    says.line(&result(&json!(2), &json!("looked")));
    assert_eq!(session.next(), result(&json!(2), &json!("looked")));
    session.call(3, "pay");
    assert!(session.refused(3).contains(REASON));
    session.call(4, "look");
    wait(&server, "the fourth", |message| message["id"] == 4);
    assert_eq!(received(&server).iter().filter(|message| message["params"]["name"] == "pay").count(), 1);
    assert_eq!(fate_of(&daemon, &id, "pay")["fate"], "sent", "it was told, and may still answer");
    says.line(&result(&json!(1), &json!("paid")));
    says.line(&result(&json!(4), &json!("looked")));
    let next = session.next();
    assert!(next["id"] == 1 || next["id"] == 4, "{next}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn isolation_ends_the_connection_and_late_answers_are_evidence() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "pay");
    session.call(2, "look");
    wait(&server, "the second", |message| message["id"] == 2);
    let stop = ["stop", "agent=coder", "tool=pay", "--reason", REASON, "--wait", "0s"];
    let first = daemon.cli().run(&stop).json["stop"]["id"].as_str().expect("a stop").to_owned();
    let stop = ["stop", "agent=coder", "--level", "isolate", "--reason", REASON, "--wait", "0s"];
    let second = daemon.cli().run(&stop);
    let calls = second.json["calls"].as_array().expect("calls");
    assert_eq!(calls.iter().map(|call| &call["tool"]).collect::<Vec<_>>(), ["look"], "{second:?}");
    let second = second.json["stop"]["id"].as_str().expect("a stop");
    let conn = daemon.records().wait("connection", "its record", |record| record["class"] == "mcp");
    assert_eq!(conn["cause"], "operator_stop", "{conn}");
    wait(&server, "a cancel", |message| message["params"]["requestId"] == 2);
    says.line(&result(&json!(2), &json!("looked")));
    says.line(&result(&json!(1), &json!("paid")));
    assert_eq!(fate_of(&daemon, second, "look")["fate"], "finished_after_stop");
    assert_eq!(fate_of(&daemon, &first, "pay")["fate"], "finished_after_stop");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn evidence_is_gathered_when_the_agent_leaves_and_a_server_that_closes_is_known() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let closing = RawServer::talks(&world, |talk| talk.read_to("notifications/cancelled"));
    let mut session = Session::open(&world, "coder", &closing);
    session.call(1, "pay");
    daemon.records().decision("pay", "allow");
    agent_tests::wait_for("the call", || closing.saw("pay").then_some(()));
    let (first, _) = daemon.cli().stop(&["agent=coder", "tool=pay"], "refuse");
    assert_eq!(fate_of(&daemon, &first, "pay")["fate"], "lost", "no cancel is taken in lines");
    daemon.cli().release(&first);

    let (server, says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "look");
    wait(&server, "the call", |message| message["id"] == 1);
    let stop = ["stop", "agent=coder", "tool=look", "--reason", REASON, "--wait", "0s"];
    let second = daemon.cli().run(&stop).json["stop"]["id"].as_str().expect("a stop").to_owned();
    session.agent.close(session.conn).expect("close");
    wait(&server, "a cancel", |message| message["method"] == "notifications/cancelled");
    says.line(&result(&json!(1), &json!("looked")));
    assert_eq!(fate_of(&daemon, &second, "look")["fate"], "finished_after_stop");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_line_that_is_cut_is_no_message_and_the_connection_goes_on() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    // It reads nothing until it is told to.
    let go = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let may_go = std::sync::Arc::clone(&go);
    let server = RawServer::talks(&world, move |talk| {
        talk.hold(|| may_go.load(std::sync::atomic::Ordering::Relaxed))?;
        let mut held = Vec::new();
        while let Some(piece) = talk.read()? {
            held.extend(piece);
            while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = held.drain(..=end).collect();
                if let Some(answer) = serde_json::from_slice(&line).ok().and_then(|message| answers(&message))
                {
                    talk.write(format!("{answer}\n").as_bytes())?;
                }
            }
        }
        Ok(())
    });
    let mut session = Session::open(&world, "coder", &server);
    session.line(&mcp::call(1, "pay", json!({"text": "x".repeat(3 << 20)})));
    daemon.records().decision("pay", "allow");
    // Its last byte cannot have left: nobody takes 3 MiB off the wire.
    let (id, stopped) = daemon.cli().stop(&["agent=coder", "tool=pay"], "refuse");
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert_eq!(calls.len(), 1, "{stopped:?}");
    assert_eq!(calls[0]["fate"], "cut", "{stopped:?}");
    assert!(session.refused(1).contains(REASON));
    go.store(true, std::sync::atomic::Ordering::Relaxed);
    session.passes(2, "look");
    assert!(received(&server).iter().all(|message| message["id"] != 1), "what was cut is no message");
    assert_eq!(daemon.cli().release(&id).code, 0);
    session.passes(3, "pay");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stopped_agent_reaches_no_server_and_is_answered_all_the_same() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _says) = serves(&world, answers);
    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    let mut session = Session::open(&world, "coder", &server);
    session.send(b"\r\n");
    session.call(1, "echo");
    assert!(session.refused(1).contains(REASON));
    assert_eq!(server.connections(), 0);
    assert_eq!(daemon.cli().release(&id).code, 0);
    session.passes(2, "echo");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_agent_that_cancels_is_told_from_an_operator() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _says) = serves(&world, silent);
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "slow");
    let params = json!({"requestId": 1, "reason": "changed my mind"});
    session.line(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}));
    wait(&server, "the cancel", |message| message["method"] == "notifications/cancelled");
    let cancel = daemon.records().wait("cancel", "the cancel", |record| record["rpc_id"] == "1");
    assert_eq!(
        (&cancel["cause"], &cancel["outcome"]),
        (&json!("agent_cancelled"), &json!("in flight")),
        "{cancel}"
    );
    let outcome = daemon.records().wait("result", "the result", |record| record["tool"] == "slow");
    assert_eq!(
        (&outcome["outcome"], &outcome["cause"]),
        (&json!("none"), &json!("agent_cancelled")),
        "{outcome}"
    );
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn tasks_are_cancelled_in_the_connection_and_the_agent_does_not_see_it() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, says) = serves(&world, |message: &Value| {
        let result = |result: Value| Some(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
        match message["method"].as_str() {
            Some("tools/call") => result(json!({"task": {"taskId": "t-1", "status": "working"}})),
            Some("tasks/cancel") => result(json!({"taskId": "t-1", "status": "cancelled"})),
            _ => None,
        }
    });
    let mut session = Session::open(&world, "coder", &server);
    session.call(1, "research");
    assert_eq!(session.next()["result"]["task"]["taskId"], "t-1");
    let (id, _) = daemon.cli().stop(&["agent=coder", "tool=research"], "refuse");
    let asked = wait(&server, "a cancel", |message| message["method"] == "tasks/cancel");
    assert_eq!(asked["params"]["taskId"], "t-1", "{asked}");
    assert_eq!(fate_of(&daemon, &id, "research")["fate"], "cancelled");
    says.line(&json!({"jsonrpc": "2.0", "method": "notifications/hello"}));
    assert_eq!(session.next()["method"], "notifications/hello", "and nothing before it");
}
