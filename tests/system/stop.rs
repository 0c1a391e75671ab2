//! The stop, as an operator uses it on a bad day: what it cuts, what it answers, and that it stays.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use agent_tests::agent::{Agent, call, together, wait_line};
use agent_tests::cli::Answer;
use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::wait::monotonic_ns;
use agent_tests::{Daemon, Era, RawAgent, Sdk, Server, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::{NO_RULES, REASON};

// === S1: microsoft/agent-governance-toolkit#754, #3739 ===

/// One test per SDK and era: three calls in flight, the SDK's own GET stream, an idle keep-alive connection, a sibling.
macro_rules! in_flight {
    ($($name:ident: $client:ident, $era:ident => $server:ident;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            every_call_in_flight_is_answered(Sdk::$client, Era::$era, Sdk::$server);
        }
    )*};
}

in_flight! {
    stop_answers_py1_calls_in_flight: Py1, Legacy => Py2;
    stop_answers_ts1_calls_in_flight: Ts1, Legacy => Py1;
    stop_answers_rmcp_calls_in_flight_on_2025: Rmcp, Legacy => Ts1;
    stop_answers_py2_calls_in_flight_on_2026: Py2, Auto => Ts2;
    stop_answers_ts2_calls_in_flight_on_2026: Ts2, Auto => Py2;
    stop_answers_rmcp_calls_in_flight_on_2026: Rmcp, Auto => Ts2;
}

fn every_call_in_flight_is_answered(client: Sdk, era: Era, server: Sdk) {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = Server::start(&world, server);
    let slow = call("slow", json!({"seconds": 60}));
    let script = json!([
        call("echo", json!({"text": "before"})),
        together(&[slow.clone(), slow.clone(), slow]),
        call("echo", json!({"text": "after-stop"})),
    ]);
    let coder = Agent::start(&world, "coder", client, era, &server.url(), &script);
    let script =
        json!([call("echo", json!({"text": "one"})), wait_line(), call("echo", json!({"text": "two"}))]);
    let mut sibling = Agent::start(&world, "sibling", Sdk::Rmcp, Era::Legacy, &server.url(), &script);
    let mut raw = RawAgent::start(&world, "coder");
    let mut idle = raw.open(server.address()).expect("a connection");
    raw.send(&idle, &mcp::initialize("2025-11-25")).expect("send");
    raw.message(&mut idle).expect("a session");
    coder.connected();
    sibling.connected();
    assert!(coder.step().ok && sibling.step().ok);
    server.wait("slow", "start", 3);

    let (id, answer) = daemon.cli().stop(&["agent=coder"], "refuse");
    check_answer(&answer, era);
    for _ in 0..3 {
        let step = coder.step();
        assert!(
            step.is_error && step.error != "timeout",
            "a pending call is answered, and at once: {step:?}"
        );
        assert!(step.text.contains(REASON), "with the stop's reason: {step:?}");
    }
    let after = coder.step();
    assert!(after.is_error && after.error != "timeout" && after.text.contains(REASON), "{after:?}");
    raw.send(&idle, &mcp::legacy(&mcp::call(7, "echo", json!({"text": "after-stop"})))).expect("send");
    let refused = raw.message(&mut idle).expect("the idle connection is answered too");
    assert!(refused.text().contains(REASON), "{}", refused.text());

    sibling.go();
    assert!(sibling.step().ok);
    let two = sibling.step();
    assert!(two.ok && two.text == "two", "the sibling notices nothing: {two:?}");
    server.wait("slow", "cancelled", 3); // the server is told, where the protocol can
    assert!(!server.started("echo").iter().any(|seen| seen.args["text"] == "after-stop"));
    wait_for("the fate of each call on record", || {
        let effects = daemon.records().of("stop_effect");
        (effects.iter().filter(|effect| effect.to_string().contains(&id)).count() >= 3).then_some(())
    });
    let initialized = |record: &&Value| record["agent"] == "coder" && record["method"] == "initialize";
    let sessions = daemon.records().of("decision").iter().filter(initialized).count();
    assert!(sessions <= 2, "the client and the raw agent; nothing reconnects (S6): {sessions}");
}

/// The answer lists the calls that had left, and claims no more than it saw.
fn check_answer(answer: &Answer, era: Era) {
    let calls: Vec<&Value> =
        answer.json["calls"].as_array().into_iter().flatten().filter(|call| call["tool"] == "slow").collect();
    assert_eq!(calls.len(), 3, "{answer:?}");
    let mut open = false;
    for call in calls {
        assert_eq!(call["agent"], "coder", "{call}");
        let fate = call["fate"].as_str().unwrap_or_default();
        // Told to cancel, these servers end the call's stream; or they say so in an answer.
        let expect: &[&str] = match era {
            Era::Auto => &["closed"],
            _ => &["closed", "cancelled", "sent"],
        };
        assert!(expect.contains(&fate), "{call}");
        open |= fate == "sent";
    }
    assert_eq!(answer.code, if open { 3 } else { 0 }, "{answer:?}");
    assert!(answer.json["stop"]["issued_at"] != Value::Null && answer.json["in_force_at"] != Value::Null);
    assert_eq!(answer.json["stop"]["by"]["uid"], 0, "who: {answer:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn no_call_reaches_the_server_after_the_answer() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = Server::start(&world, Sdk::Rmcp);
    let done = Arc::new(AtomicBool::new(false));
    let hammers: Vec<_> = (0..2)
        .map(|_| {
            let (mut agent, address, done) =
                (RawAgent::start(&world, "coder"), server.address(), done.clone());
            thread::spawn(move || {
                let mut conn = agent.open(address).expect("a connection");
                let mut refused = 0;
                while !done.load(Ordering::Relaxed) {
                    agent
                        .send(&conn, &mcp::modern_call(1, "echo", "echo", json!({"text": "x"})))
                        .expect("send");
                    refused +=
                        u32::from(agent.message(&mut conn).expect("an answer").text().contains(REASON));
                }
                refused
            })
        })
        .collect();
    server.wait("echo", "start", 50);
    let (_, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    let answered_at = monotonic_ns();
    daemon.metrics().wait("interlock_stop_refusals_total", &[("agent", "coder")], 50.0);
    done.store(true, Ordering::Relaxed);
    let refused: u32 =
        hammers.into_iter().map(|hammer| hammer.join().expect("an agent is always answered")).sum();
    assert!(refused >= 50, "{refused}");
    let late = server.started("echo").iter().filter(|seen| seen.at_ns > answered_at).count();
    assert_eq!(late, 0, "calls that reached the server after the stop was answered");
}

// === S2: aj47/SpeakMCP#254, anthropics/claude-code#34449 ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn isolated_agent_gets_nowhere_however_it_tries() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = Server::start(&world, Sdk::Ts2);
    let echo = |text: &str| call("echo", json!({"text": text}));
    let script = json!([echo("before"), wait_line(), echo("retry"), echo("retry again")]);
    let mut coder = Agent::start(&world, "coder", Sdk::Py2, Era::Auto, &server.url(), &script);
    coder.connected();
    assert!(coder.step().ok);
    let mut raw = RawAgent::start(&world, "coder");
    let mut open = raw.open(server.address()).expect("a connection");

    let (id, _) = daemon.cli().stop(&["agent=coder"], "isolate");
    coder.go();
    assert!(coder.step().ok, "the line from the test");
    loop {
        let retry = coder.tried();
        if retry["done"] == true {
            break;
        }
        // Some SDKs give their session up when a connect is refused; either way it happens at once.
        let failed = retry["is_error"] == true && retry["error"]["type"] != "timeout";
        assert!(failed || retry["connected"] == false, "a retry fails at once: {retry}");
    }
    assert!(
        raw.send(&open, b"GET / HTTP/1.1\r\n\r\n").and_then(|()| raw.message(&mut open)).is_err(),
        "an open connection"
    );
    assert!(raw.open(server.address()).is_err(), "a raw connection to the same server");
    let mut child = RawAgent::start(&world, "coder/child");
    assert!(child.open(server.address()).is_err(), "a child in a cgroup below");
    let again =
        Agent::start(&world, "coder", Sdk::Ts1, Era::Legacy, &server.url(), &json!([echo("restarted")]));
    assert_eq!(again.tried()["connected"], false, "its supervisor starts it again");
    world.agent_cgroup("coder-2");
    daemon.holds(&format!("{}/agents/coder-2", world.cgroup()));
    let second =
        Agent::start(&world, "coder-2", Sdk::Rmcp, Era::Auto, &server.url(), &json!([echo("second")]));
    assert_eq!(second.tried()["connected"], false, "another instance that the selector names");

    assert_eq!(server.started("echo").len(), 1, "only the call before the stop");
    daemon.metrics().wait("interlock_stop_refusals_total", &[("agent", "coder"), ("layer", "kernel")], 4.0);
    let stops = daemon.cli().run(&["stops"]).json.to_string();
    assert!(stops.contains(&id), "{stops}");
}

// === S3: EtanHey/cmuxlayer#77 ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn stop_of_a_crashed_agent_holds_for_its_next_start() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = Server::start(&world, Sdk::Py2);
    let script = json!([call("echo", json!({"text": "before"})), wait_line()]);
    let mut coder = Agent::start(&world, "coder", Sdk::Rmcp, Era::Auto, &server.url(), &script);
    coder.connected();
    assert!(coder.step().ok);
    coder.process().signal(nix::sys::signal::Signal::SIGKILL);
    coder.process().wait();

    daemon.cli().stop(&["agent=coder"], "refuse");
    let script = json!([call("echo", json!({"text": "after-stop"}))]);
    let coder = Agent::start(&world, "coder", Sdk::Rmcp, Era::Auto, &server.url(), &script);
    let tried = coder.tried();
    assert_eq!(tried["connected"], false, "{tried}");
    assert!(tried.to_string().contains(REASON), "it is told why: {tried}");
    assert_eq!(server.started("echo").len(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn stop_of_an_agent_never_seen_holds_for_its_first_start() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::start(&world, |request, reply| handshake(request, reply).map(drop));
    daemon.cli().stop(&["agent=coder"], "isolate");
    assert!(RawAgent::start(&world, "coder").open(server.address()).is_err());
    assert!(RawAgent::start(&world, "sibling").open(server.address()).is_ok());
}

// === S4: NVIDIA/OpenShell PR#1118; S6: NousResearch/hermes-agent#18069 ===

/// A server whose GET stream sends one event, waits for the flag, and sends `later`.
fn streams(world: &World, later: Value) -> (RawServer, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = flag.clone();
    let server = RawServer::start(world, move |request, reply| {
        if request.start.starts_with("GET") {
            reply.write(
                &[
                    http::sse_head(),
                    http::chunk(b"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/first\"}\n\n"),
                ]
                .concat(),
            )?;
            reply.hold(|| seen.load(Ordering::Relaxed))?;
            reply.write(&[http::chunk(format!("data: {later}\n\n").as_bytes()), http::chunk(b"")].concat())
        } else if handshake(request, reply)? {
            Ok(())
        } else {
            reply.result(request, &json!({"content": []}))
        }
    });
    (server, flag)
}

/// What a stream brought in all, however it ended; that it ended is the point.
fn text_of(outcome: io::Result<Message>) -> String {
    match outcome {
        Ok(message) => message.text(),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => panic!("the stream does not end: {error}"),
        Err(error) => error.to_string(),
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_meets_open_connections_and_open_streams() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, later) = streams(&world, json!({"jsonrpc": "2.0", "method": "notifications/second"}));
    let mut agent = RawAgent::start(&world, "coder");
    let mut kept = agent.open(server.address()).expect("a connection");
    agent.send(&kept, &mcp::initialize("2025-11-25")).expect("send");
    agent.message(&mut kept).expect("a session");
    let mut stream = agent.open(server.address()).expect("a connection");
    agent.send(&stream, &http::get(&[mcp::SESSION])).expect("send");
    agent.so_far(&mut stream, |message| message.text().contains("first")).expect("the first event");

    daemon.cli().stop(&["agent=coder"], "refuse");
    later.store(true, Ordering::Relaxed);
    let text = text_of(agent.message(&mut stream));
    assert!(!text.contains("second"), "{text}");

    agent.send(&kept, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("the old connection is open");
    let answer = agent.message(&mut kept).expect("an answer on the old connection");
    assert_eq!(answer.status(), 200, "nothing that a client takes for an expired session");
    let refusal = mcp::refusal(mcp::of_id(&answer.messages(), 1)).expect("refused");
    assert!(refusal.contains(REASON) && !refusal.to_lowercase().contains("session terminated"), "{refusal}");
    assert!(!server.saw("\"echo\""));
}

// === S5: java-sdk#130 ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn server_that_crashes_on_the_cancel_does_not_spoil_the_stop() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let crashed = AtomicBool::new(false);
    let server = RawServer::start(&world, move |request, reply| match request.json()["method"].as_str() {
        Some("notifications/cancelled") => {
            crashed.store(true, Ordering::Relaxed);
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        Some("tools/call") => {
            reply.hold(|| crashed.load(Ordering::Relaxed))?;
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        _ => handshake(request, reply).map(drop),
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::initialize("2025-11-25")).expect("send");
    agent.message(&mut conn).expect("a session");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "slow", json!({})))).expect("send");
    server.wait("the call", |request| request.json()["method"] == "tools/call");

    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    let messages = agent.message(&mut conn).expect("the call is answered").messages();
    let refusal = mcp::refusal(mcp::of_id(&messages, 1)).expect("with a refusal");
    assert!(refusal.contains(REASON), "{refusal}");
    let is_lost = |record: &Value| record["stop"] == id.as_str() && record["fate"] == "lost";
    daemon.records().wait("stop_effect", "the crash is the call's fate", is_lost);
}

// === Release ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn only_the_operator_releases_and_then_the_agent_works_again() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    let (id, _) = daemon.cli().stop(&["agent=coder"], "isolate");

    let mut inside =
        world.start_agent("coder", &daemon.cli().command(&["release", &id, "--reason", "let me go"]));
    assert!(!inside.wait().success(), "not from inside an agent's cgroup, whatever its uid");
    let mut agent = RawAgent::start(&world, "coder");
    assert!(agent.open(server.address()).is_err(), "so the stop is still in force");

    let answer = daemon.cli().release(&id);
    assert_eq!(answer.code, 0, "{answer:?}");
    let mut conn = agent.open(server.address()).expect("released");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
    let messages = agent.message(&mut conn).expect("an answer").messages();
    assert_eq!(mcp::refusal(mcp::of_id(&messages, 1)), None);
    daemon.records().wait("release", "this stop", |record| record["stop"] == id.as_str());
    daemon
        .records()
        .wait("intrusion", "the agent's own try", |record| record["order"].to_string().contains("stop"));
}
