//! Why a call got no answer: an agent that cancels or vanishes, a server that closes, a network that fails and an
//! operator's stop are told apart in the records for ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_tests::http;
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::NO_RULES;

/// A server that does what the tool's name says, once the flag is set.
fn server(world: &World) -> (RawServer, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    let server =
        RawServer::start(world, move |request: &http::Message, reply: &mut Reply<'_>| -> io::Result<()> {
            if handshake(request, reply)? {
                return Ok(());
            }
            let message = request.json();
            if message["method"] == "notifications/cancelled" {
                return reply.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n");
            }
            reply.write(&[http::sse_head(), http::chunk(b": working\n\n")].concat())?;
            reply.hold(|| set.load(Ordering::Relaxed))?;
            match message["params"]["name"].as_str() {
                Some("reset") => reply.reset(),
                Some("finish") => {
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}});
                    reply.write(
                        &[http::chunk(format!("data: {answer}\n\n").as_bytes()), http::chunk(b"")].concat(),
                    )
                }
                _ => reply.write(&http::chunk(b"")),
            }
        });
    (server, flag)
}

/// The result record of a call.
fn result(daemon: &Daemon, tool: &str) -> Value {
    daemon.records().wait("result", tool, |record| record["tool"] == tool)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn every_way_a_call_can_end_has_its_cause() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let (server, go) = server(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let begin = |agent: &mut RawAgent, id: u32, tool: &str| {
        let mut conn = agent.open(server.address()).expect("a connection");
        agent.send(&conn, &mcp::legacy(&mcp::call(id, tool, json!({})))).expect("send");
        agent.so_far(&mut conn, |message| message.text().contains("working")).expect("the stream has begun");
        conn
    };
    let vanishing = begin(&mut agent, 1, "vanish");
    let _closed = begin(&mut agent, 2, "close");
    let _reset = begin(&mut agent, 3, "reset");
    let _cancelled = begin(&mut agent, 4, "cancel");
    let _stopped = begin(&mut agent, 5, "stop");
    let mut late = begin(&mut agent, 6, "finish");

    agent.close(vanishing).expect("close");
    let mut other = agent.open(server.address()).expect("a connection");
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4, "reason": "changed my mind"}});
    agent.send(&other, &mcp::legacy(&cancel)).expect("send");
    assert_eq!(agent.message(&mut other).expect("an answer").status(), 202);
    let unknown = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}});
    agent.send(&other, &mcp::legacy(&unknown)).expect("send");
    agent.message(&mut other).expect("an answer");
    agent.finish(&late).expect("the agent has said all it will say");
    let answer = daemon.cli().run(&["stop", "tool=stop", "--reason", "a test says so", "--wait", "0s"]);
    assert_eq!(answer.code, 3, "its fate is open: {answer:?}");
    let id = answer.json["stop"]["id"].clone();
    go.store(true, Ordering::Relaxed);

    let check = |tool: &str, outcome: &str, cause: &str| {
        let record = result(&daemon, tool);
        assert_eq!((&record["outcome"], &record["cause"]), (&json!(outcome), &json!(cause)), "{record}");
        record
    };
    check("vanish", "none", "agent_closed");
    check("close", "none", "server_closed");
    check("reset", "none", "network_error");
    let cancelled = check("cancel", "none", "agent_cancelled");
    assert!(cancelled["agent_cancelled_at"].is_string(), "{cancelled}");
    agent.to_end(&mut late).expect("what came before the agent's end is delivered");
    check("finish", "result", "agent_closed");

    let cancels = daemon.records().of("cancel");
    let agents: Vec<&Value> = cancels.iter().filter(|record| record["cause"] == "agent_cancelled").collect();
    assert_eq!(agents.len(), 2, "{cancels:?}");
    assert_eq!((&agents[0]["rpc_id"], &agents[0]["outcome"]), (&json!("4"), &json!("in flight")));
    assert_eq!((&agents[1]["rpc_id"], &agents[1]["outcome"]), (&json!("99"), &json!("not in flight")));
    let stopped: Vec<&Value> = cancels.iter().filter(|record| record["cause"] == "operator_stop").collect();
    assert_eq!((stopped.len(), &stopped[0]["stop"]), (1, &id), "{cancels:?}");
    assert!(
        !daemon.records().of("result").iter().any(|record| record["tool"] == "stop"),
        "a stop has its own records"
    );
    let ended = daemon.records().wait("stop_effect", "known", |record| record["open"] == false);
    assert_eq!((&ended["tool"], &ended["fate"]), (&json!("stop"), &json!("closed")), "{ended}");
}
