//! What agents and servers do to a stop: none of it makes the stop reach too far, fall short, or claim what was not seen.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_tests::http::{self, post};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::wait::within;
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::{NO_RULES, REASON};

/// A server whose tool `slow` answers when the flag is set. All others begin a task with the id in their argument, or
/// their own name; such a task never ends, and cannot be cancelled.
fn server(world: &World) -> (RawServer, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    let server =
        RawServer::start(world, move |request: &http::Message, reply: &mut Reply<'_>| -> io::Result<()> {
            if handshake(request, reply)? {
                return Ok(());
            }
            let message = request.json();
            let name = message["params"]["name"].as_str().unwrap_or_default();
            let id = message["params"]["arguments"]["id"].as_str().unwrap_or(name);
            match message["method"].as_str() {
                Some("tools/call") if name == "slow" => {
                    reply.hold(|| set.load(Ordering::Relaxed))?;
                    reply.result(request, &json!({"content": []}))
                }
                Some("tools/call") => {
                    reply.result(request, &json!({"task": {"taskId": id, "status": "working"}}))
                }
                Some("tasks/cancel") => {
                    let error = json!({"code": -32602, "message": "no"});
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "error": error}).to_string();
                    reply.write(&http::response("application/json", &[], answer.as_bytes()))
                }
                _ => reply.result(request, &json!({"taskId": "t", "status": "working"})),
            }
        });
    (server, flag)
}

fn is_cancel(request: &http::Message, of: &str) -> bool {
    let message = request.json();
    message["method"].as_str().is_some_and(|method| method.contains("cancel"))
        && (message["params"]["taskId"] == of || message["params"]["requestId"] == of)
}

/// A call on a connection of its own, and its answer.
fn ask(agent: &mut RawAgent, server: &RawServer, request: &[u8]) -> Value {
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, request).expect("send");
    let answer = agent.message(&mut conn).expect("an answer").messages();
    agent.close(conn).expect("close");
    answer[0].clone()
}

fn begin(agent: &mut RawAgent, server: &RawServer, tool: &str, id: &str) {
    ask(agent, server, &mcp::legacy(&mcp::call(1, tool, json!({"id": id}))));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_released_stop_cancels_nothing_any_more() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, finish) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let slow = agent.open(server.address()).expect("a connection");
    agent.send(&slow, &mcp::legacy(&mcp::call(1, "slow", json!({})))).expect("send");
    server.wait("the call", |request| request.text().contains("slow"));
    let answer = daemon.cli().run(&["stop", "agent=coder", "--reason", REASON, "--wait", "0s"]);
    let id = answer.json["stop"]["id"].as_str().expect("an id").to_owned();
    assert_eq!(daemon.cli().release(&id).code, 0);

    begin(&mut agent, &server, "research", "later");
    finish.store(true, Ordering::Relaxed);
    daemon.records().wait("stop_effect", "the late answer", |record| record["fate"] == "finished_after_stop");
    let cancelled = within(Duration::from_secs(2), || {
        server.requests().into_iter().find(|request| is_cancel(request, "later"))
    });
    assert!(cancelled.is_none(), "the task began after the release: {cancelled:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_task_that_outlives_one_stop_is_listed_by_the_next() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    begin(&mut agent, &server, "research", "stubborn");
    for turn in ["first", "second"] {
        let (id, answer) = daemon.cli().stop(&["agent=coder"], "refuse");
        let caught = &answer.json["calls"][0];
        assert_eq!(
            (&caught["task"], &caught["fate"]),
            (&json!("stubborn"), &json!("not_cancelable")),
            "{turn} stop: {answer:?}"
        );
        assert_eq!(daemon.cli().release(&id).code, 0);
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn tasks_that_are_not_followed_are_not_left_out_of_the_answer() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    begin(&mut agent, &server, "research", &"x".repeat(1 << 20));
    let (_, answer) = daemon.cli().stop(&["agent=coder"], "refuse");
    assert_eq!(answer.code, 3, "not every fate is known: {:?}", answer.json["agents"]);
    assert_eq!(answer.json["agents"][0]["tasks_unknown"], 1, "{answer:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn one_agents_tasks_do_not_hold_up_the_cancels_of_another() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (busy, _never) = server(&world);
    let endless = RawServer::start(&world, |request, reply| {
        let message = request.json();
        match message["method"].as_str() {
            Some("tasks/cancel") => reply.result(request, &json!({})),
            Some("tasks/get") => reply.result(request, &json!({"taskId": "t", "status": "working"})),
            _ => {
                let id = message["params"]["arguments"]["id"].clone();
                reply.result(request, &json!({"task": {"taskId": id, "status": "working"}}))
            }
        }
    });
    let mut hostile = RawAgent::start(&world, "coder");
    for n in 0..200 {
        begin(&mut hostile, &endless, "research", &format!("t-{n}"));
    }
    let stop = |agent: &str| daemon.cli().run(&["stop", agent, "--reason", REASON, "--wait", "0s"]);
    assert_eq!(stop("agent=coder").json["calls"].as_array().map(Vec::len), Some(200));
    endless.wait("a cancel", |request| request.text().contains("tasks/cancel"));

    let mut other = RawAgent::start(&world, "sibling");
    let conn = other.open(busy.address()).expect("a connection");
    other.send(&conn, &mcp::legacy(&mcp::call(7, "slow", json!({})))).expect("send");
    busy.wait("the call", |request| request.text().contains("slow"));
    stop("agent=sibling");
    let told = within(Duration::from_secs(5), || {
        busy.requests().into_iter().find(|request| request.text().contains("notifications/cancelled"))
    });
    assert!(told.is_some(), "its server is told without delay");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_agent_that_wants_one_answer_gets_its_end_too() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let body = mcp::call(1, "slow", json!({})).to_string();
    let closing = post(&body, &[mcp::SESSION, ("connection", "close")]);
    let old = String::from_utf8(post(&body, &[mcp::SESSION])).expect("text").replace("HTTP/1.1", "HTTP/1.0");
    let mut conns: Vec<_> = [closing.as_slice(), old.as_bytes()]
        .into_iter()
        .map(|request| {
            let conn = agent.open(server.address()).expect("a connection");
            agent.send(&conn, request).expect("send");
            conn
        })
        .collect();
    within(Duration::from_secs(20), || (server.requests().len() == 2).then_some(())).expect("both calls");
    daemon.cli().stop(&["agent=coder"], "refuse");
    for conn in &mut conns {
        let told = agent.to_end(conn).expect("the answer, and the end");
        assert!(String::from_utf8_lossy(&told).contains(REASON), "{told:?}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_made_up_session_id_is_no_way_out_of_a_session_without_one() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let call = |id: u32| String::from_utf8(mcp::modern_call(id, "echo", "echo", json!({}))).expect("text");
    ask(&mut agent, &server, call(1).as_bytes());
    let session =
        daemon.records().decision("echo", "allow")["session"].as_str().expect("a session").to_owned();
    assert!(session.starts_with("p-"), "{session}");
    daemon.cli().stop(&[&format!("session={session}")], "refuse");
    assert!(mcp::refusal(&ask(&mut agent, &server, call(2).as_bytes())).is_some());
    // A server of this revision does not look at the header.
    let forged = call(3).replacen("\r\n", "\r\nMcp-Session-Id: made-up\r\n", 1);
    let answer = ask(&mut agent, &server, forged.as_bytes());
    assert!(mcp::refusal(&answer).is_some_and(|text| text.contains(REASON)), "{answer}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn cgroups_that_come_and_go_break_no_order() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let _agent = RawAgent::start(&world, "coder");
    let done = AtomicBool::new(false);
    let path = world.agent_cgroup("coder-2");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5000 {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let _ = std::fs::create_dir(&path);
                std::thread::sleep(Duration::from_millis(7));
                let _ = std::fs::remove_dir(&path);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let failed: Vec<_> = (0..40)
            .flat_map(|_| {
                let stop =
                    daemon.cli().run(&["stop", "agent=coder", "--reason", REASON, "--level", "freeze"]);
                let release = daemon.cli().release(stop.json["stop"]["id"].as_str().unwrap_or_default());
                [stop, release]
            })
            .filter(|answer| answer.code != 0)
            .collect();
        done.store(true, Ordering::Relaxed);
        assert!(failed.is_empty(), "{} failed, as {:?}", failed.len(), failed[0]);
    });
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_id_that_servers_write_differently_hides_no_task() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    // As servers in JavaScript do.
    let server = RawServer::start(&world, |request, reply| {
        let id = request.json()["id"].as_f64().unwrap_or_default().round().to_string();
        let task = json!({"task": {"taskId": "hidden", "status": "working"}});
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{task}}}"#);
        reply.write(&http::response("application/json", &[], body.as_bytes()))
    });
    let mut agent = RawAgent::start(&world, "coder");
    let call = mcp::call(1, "research", json!({})).to_string().replace("\"id\":1", "\"id\":1.0");
    assert!(call.contains("1.0"), "{call}");
    ask(&mut agent, &server, &post(&call, &[mcp::SESSION, ("mcp-protocol-version", "2025-11-25")]));
    let drill = daemon.cli().run(&["stop", "agent=coder", "--dry-run"]).json;
    assert_eq!(drill["agents"][0]["tasks"][0]["task"], "hidden", "{drill}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn the_stop_of_a_tool_holds_for_its_tasks_when_the_daemon_has_forgotten_them() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    begin(&mut agent, &server, "research", "t");
    daemon.cli().stop(&["tool=research"], "refuse");
    daemon.crash();
    daemon.restart(&world);
    let result = mcp::legacy(&mcp::request(2, "tasks/result", json!({"taskId": "t"})));
    let answer = ask(&mut agent, &server, &result);
    assert!(mcp::refusal(&answer).is_some_and(|text| text.contains(REASON)), "{answer}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_agents_cancel_is_of_calls_at_the_server_it_was_sent_to() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let ((server, finish), (accomplice, _)) = (server(&world), self::server(&world));
    let mut agent = RawAgent::start(&world, "coder");
    let conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::legacy(&mcp::call(4, "slow", json!({})))).expect("send");
    server.wait("the call", |request| request.text().contains("slow"));
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}});
    let mut other = agent.open(accomplice.address()).expect("a connection");
    agent.send(&other, &mcp::legacy(&cancel)).expect("send");
    agent.message(&mut other).expect("an answer");
    let record =
        daemon.records().wait("cancel", "the agent's", |record| record["cause"] == "agent_cancelled");
    assert_eq!(record["outcome"], "not in flight", "not there: {record}");
    finish.store(true, Ordering::Relaxed);
    let result = daemon.records().wait("result", "the call's", |record| record["tool"] == "slow");
    assert!(result["agent_cancelled_at"].is_null(), "{result}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_released_stop_is_not_shown_as_in_force() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    assert!(daemon.cli().words(&["stops", "show", &id]).contains("is in force"));
    assert_eq!(daemon.cli().release(&id).code, 0);
    let words = daemon.cli().words(&["stops", "show", &id]);
    assert!(!words.contains("is in force") && words.contains("RELEASED"), "{words}");
    let shown = daemon.cli().run(&["stops", "show", &id]);
    assert_eq!((shown.code, &shown.json["in_force"]), (1, &json!(false)), "{shown:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn processes_that_an_order_halts_are_no_latecomers() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    // Each change of the tree lets the daemon look at all agents.
    let (done, path) = (AtomicBool::new(false), world.agent_cgroup("sibling-2"));
    let pairs: Vec<(u32, Value)> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5000 {
                let _ = std::fs::create_dir(&path).and_then(|()| std::fs::remove_dir(&path));
                std::thread::sleep(Duration::from_millis(1));
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let turns = (0..15).map(|_| {
            let mut agent = RawAgent::start(&world, "coder");
            let pid = agent.process().pid();
            let procs = world.agent_cgroup("coder").join("cgroup.procs");
            wait_for("the agent in its cgroup", || {
                let inside = std::fs::read_to_string(&procs).unwrap_or_default();
                inside.lines().any(|line| line == pid.to_string()).then_some(())
            });
            let stop = ["stop", "agent=coder", "--level", "kill", "--reason", REASON];
            let answer = daemon.cli().run(&stop);
            daemon.cli().release(answer.json["stop"]["id"].as_str().unwrap_or_default());
            (pid, answer.json)
        });
        let pairs = turns.collect();
        done.store(true, Ordering::Relaxed);
        pairs
    });
    for (pid, answer) in pairs {
        assert_eq!(answer["agents"][0]["process_list"][0]["pid"], pid, "it is in the receipt: {answer}");
    }
    assert_eq!(daemon.records().of("halt"), [Value::Null; 0]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_that_a_restart_would_lift_is_no_success() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    std::fs::rename(world.path("state"), world.path("gone")).expect("take the state away");
    let answer = daemon.cli().run(&["stop", "agent=coder", "--reason", REASON]);
    assert_eq!(
        (&answer.json["in_force"], &answer.json["durable"]),
        (&json!(true), &json!(false)),
        "{answer:?}"
    );
    assert_eq!(answer.code, 3, "{answer:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_task_of_any_name_is_cancelled_with_the_headers_its_server_asks_for() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, _never) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let id = "\u{fc}-7\r\nX-Evil: 1";
    ask(&mut agent, &server, &mcp::modern_call(1, "research", "research", json!({"id": id})));
    let answer = daemon.cli().run(&["stop", "agent=coder", "--reason", REASON, "--wait", "0s"]);
    assert_eq!(answer.json["calls"][0]["task"], id, "{answer:?}");
    let cancel = server.wait("the cancel", |request| is_cancel(request, id));
    let name = cancel.header("mcp-name").unwrap_or_default();
    assert!(name.starts_with("=?base64?w7wt") && name.ends_with("?="), "{cancel:?}");
    assert_eq!((cancel.header("mcp-method"), cancel.header("x-evil")), (Some("tasks/cancel"), None));
}
