//! Every bound of `limits:` in the configuration: what is over it is refused for a reason of its own, in the answer and in
//! the record, and the next one is served.

mod worst;

use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::NO_RULES;
use crate::sse2024::{ENDPOINT, Session, serves};

const LIMITS: &str = "limits: {message: 64KiB, event: 128KiB, header: 4KiB, name: 256, depth: 16, unanswered: 3, \
                      memory: 3MiB, memory_per_agent: 1MiB, connections: 12, connections_per_agent: 8}\n";

/// Answers with a text of so many bytes, as JSON or as an event.
fn sized(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        let arguments = &request.json()["params"]["arguments"];
        let size = arguments["answer"].as_u64().and_then(|size| usize::try_from(size).ok()).unwrap_or(1);
        let result = json!({"content": [{"type": "text", "text": "y".repeat(size)}]});
        if arguments["event"] == true {
            let answer = json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": result});
            let event = http::chunk(format!("data: {answer}\n\n").as_bytes());
            return reply.write(&[http::sse_head(), event, http::chunk(b"")].concat());
        }
        reply.result(request, &result)
    })
}

/// One request on a connection of its own.
fn ask(agent: &mut RawAgent, server: &RawServer, request: &[u8]) -> Message {
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, request).expect("send");
    let message = agent.message(&mut conn).expect("an answer");
    agent.close(conn).expect("close");
    message
}

fn echo(args: Value) -> Vec<u8> {
    mcp::legacy(&mcp::call(1, "echo", args))
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_is_over_a_bound_of_a_message_is_refused_for_a_reason_of_its_own() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, LIMITS);
    let server = sized(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let long = "n".repeat(300);
    let deep = format!("{}1{}", "[".repeat(20), "]".repeat(20));
    let deep: Value = serde_json::from_str(&deep).expect("JSON");
    let header = [("x-long", "h".repeat(5000))].map(|(name, value)| (name, value));
    let header = header.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut long_id = mcp::call(1, "echo", json!({}));
    long_id["id"] = json!(long);
    let cases = [
        (
            "message",
            echo(json!({"text": "x".repeat(65 * 1024)})),
            413,
            "larger than the limit of 65536 bytes",
        ),
        ("header", http::post(&mcp::call(1, "echo", json!({})).to_string(), &header), 400, "head_too_long"),
        ("depth", echo(deep), 400, "too_deep"),
        ("name of a tool", mcp::legacy(&mcp::call(1, &long, json!({}))), 400, "name_too_long"),
        ("method", mcp::legacy(&mcp::request(1, &long, json!({}))), 400, "name_too_long"),
        ("id", mcp::legacy(&long_id), 400, "name_too_long"),
        ("answer", echo(json!({"answer": 65 * 1024})), 200, "larger than the limit of 65536 bytes"),
        (
            "event",
            echo(json!({"answer": 129 * 1024, "event": true})),
            200,
            "larger than the limit of 131072 bytes",
        ),
    ];
    for (what, request, status, reason) in cases {
        let before = daemon.records().all().len();
        let answer = ask(&mut agent, &server, &request);
        assert_eq!(answer.status(), status, "{what}: {}", answer.text());
        assert!(answer.text().contains(reason), "{what}: {}", answer.text());
        let says_so = |record: &Value| record["reason"].as_str().is_some_and(|said| said.contains(reason));
        let refused = daemon.records().all().split_off(before).into_iter().find(says_so);
        assert_eq!(refused.unwrap_or_else(|| panic!("{what} is on record"))["verdict"], "deny", "{what}");
        // Just within.
        let answer =
            ask(&mut agent, &server, &echo(json!({"text": "x".repeat(60 * 1024), "answer": 60 * 1024})));
        assert!(answer.text().contains("yyy"), "after {what}: {}", answer.text());
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn calls_of_a_session_over_http_sse_without_an_answer_are_bounded() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, LIMITS);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    for id in 1..=3 {
        session.call(id, "slow");
    }
    let refusal = session.refused(4, "slow");
    assert!(refusal.contains("3 calls of the same session wait for their answers"), "{refusal}");
    daemon.records().wait("decision", "the refusal", |record| record["rules"] == json!(["guard:unanswered"]));
    says.message(&crate::sse2024::result(2, "done"));
    assert_eq!(session.of_id(2)["result"]["content"][0]["text"], "done");
    session.call(5, "slow");
}

/// Sends unfinished requests until one is refused; gives its answer and the connections that are still open.
fn fill(agent: &mut RawAgent, server: &RawServer) -> (Message, Vec<agent_tests::agent::RawConn>) {
    // Chunks of one byte take six on the wire, and are held as they came.
    let head = "POST /mcp HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let body = format!("1\r\n[\r\n{}", "1\r\n1\r\n".repeat(60 * 1024));
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut conn = agent.open(server.address()).expect("a connection");
        // It may be cut while it is being sent.
        let _ = agent.send(&conn, format!("{head}{body}").as_bytes());
        match agent.so_far(&mut conn, |_| true) {
            Ok(answer) => return (answer, held),
            Err(_) => held.push(conn),
        }
    }
    panic!("nothing was refused");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn memory_of_one_agent_is_bounded_and_another_one_is_served() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, LIMITS);
    let server = sized(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut sibling = RawAgent::start(&world, "sibling");
    agent.patience(std::time::Duration::from_secs(1));
    let (refused, held) = fill(&mut agent, &server);
    assert_eq!(refused.status(), 503, "{}", refused.text());
    let reason = "messages of this agent hold the limit of 1048576 bytes of memory";
    assert!(refused.text().contains(reason), "{}", refused.text());
    daemon.records().wait("decision", "the refusal", |record| {
        record["reason"].as_str().is_some_and(|said| said == reason)
            && record["rules"] == json!(["guard:full"])
    });
    daemon.records().wait("connection", "its end", |record| record["cause"] == "agent_memory_full");

    let large = echo(json!({"text": "x".repeat(60 * 1024), "answer": 60 * 1024}));
    assert!(ask(&mut sibling, &server, &large).text().contains("yyy"), "the other agent has room of its own");
    assert!(ask(&mut agent, &server, &echo(json!({}))).text().contains('y'), "what is small always has room");
    for conn in held {
        agent.close(conn).expect("close");
    }
    agent_tests::wait_for("the room to be given back", || {
        ask(&mut agent, &server, &large).text().contains("yyy").then_some(())
    });
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answers_that_do_not_fit_are_refused_in_the_protocol_of_their_call() {
    let world = World::new();
    let daemon = Daemon::start_with(
        &world,
        NO_RULES,
        "limits: {memory: 8MiB, memory_per_agent: 8MiB, event: 2MiB, message: 2MiB}\n",
    );
    let held = |reply: &mut Reply<'_>| reply.hold(|| false);
    let server = RawServer::start(&world, move |request, reply| {
        // An event, or an answer, of which the end never comes.
        let endless = "1\r\nz\r\n".repeat(300 * 1024);
        match request.json()["params"]["name"].as_str() {
            Some("event") => {
                reply.write(&[http::sse_head(), b"4\r\n:ok\n\r\n1\r\n\n\r\n".to_vec()].concat())?;
                reply.write(&http::chunk(format!("data: {}", "z".repeat(3 << 19)).as_bytes()))?;
            }
            _ => {
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                reply.write(format!("{head}{endless}").as_bytes())?;
            }
        }
        held(reply)
    });
    let mut agent = RawAgent::start(&world, "coder");
    let reason = "hold the limit of 8388608 bytes of memory";
    for tool in ["json", "event"] {
        let mut open = Vec::new();
        let refusal = (1..20)
            .find_map(|id| {
                let mut conn = agent.open(server.address()).expect("a connection");
                agent.send(&conn, &mcp::legacy(&mcp::call(id, tool, json!({})))).expect("send");
                agent.patience(std::time::Duration::from_secs(1));
                let refusal =
                    agent.so_far(&mut conn, |message| message.text().contains("hold the limit")).ok();
                open.push(conn);
                refusal
            })
            .unwrap_or_else(|| panic!("{tool}: nothing was refused"));
        assert_eq!(refusal.status(), 200);
        let messages = refusal.messages();
        let words = messages.iter().find_map(mcp::refusal).unwrap_or_default();
        assert!(words.contains(reason), "{tool}: {}", refusal.text());
        for conn in open {
            agent.close(conn).expect("close");
        }
        daemon.records().wait("result", "its end", |record| {
            record["tool"] == tool
                && record["cause"].as_str().is_some_and(|cause| cause.ends_with("memory_full"))
        });
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn connections_are_bounded_and_those_that_are_open_go_on() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, LIMITS);
    let server = sized(&world);
    let [mut coder, mut sibling] = ["coder", "sibling"].map(|name| RawAgent::start(&world, name));
    let mut open: Vec<_> = (0..8).map(|_| coder.open(server.address()).expect("a connection")).collect();
    let mut others: Vec<_> = (0..4).map(|_| sibling.open(server.address()).expect("a connection")).collect();
    agent_tests::wait_for("all of them to be open", || (server.connections() == 12).then_some(()));
    for (agent, cause, words) in [
        (&mut coder, "agent_connections_full", "the limit of 8 open connections of this agent is reached"),
        (&mut sibling, "connections_full", "the limit of 12 open connections of all agents is reached"),
    ] {
        let closed = agent.open(server.address()).and_then(|mut conn| agent.to_end(&mut conn));
        assert!(!closed.as_ref().is_ok_and(|bytes| !bytes.is_empty()), "{closed:?}");
        let record = daemon.records().wait("connection", cause, |record| record["cause"] == cause);
        assert_eq!((&record["class"], &record["error"]), (&json!("refused"), &json!(words)));
        assert_eq!(record["destination"], server.address().to_string());
    }
    daemon.metrics().wait("interlock_connections_total", &[("agent", "coder"), ("class", "refused")], 1.0);
    for (agent, conn) in [(&mut coder, &mut open[0]), (&mut sibling, &mut others[0])] {
        agent.send(conn, &echo(json!({}))).expect("send");
        assert!(agent.message(conn).expect("an answer").text().contains('y'), "what is open goes on");
    }
    // Orders do not depend on it.
    let stop = daemon.cli().run(&["stop", "agent=coder", "--level", "isolate", "--reason", crate::REASON]);
    assert_eq!(stop.code, 0, "{stop:?}");
    agent_tests::wait_for("its connections to be cut", || {
        (daemon.records().of("connection").iter().filter(|end| end["cause"] == "operator_stop").count() == 8)
            .then_some(())
    });
    sibling.close(others.remove(1)).expect("close");
    agent_tests::wait_for("a connection in their place", || {
        let mut conn = sibling.open(server.address()).ok()?;
        sibling.send(&conn, &echo(json!({}))).ok()?;
        sibling.message(&mut conn).ok().map(drop)
    });
}
