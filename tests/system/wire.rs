//! What goes over the wire, byte by byte: agents and servers without any SDK, saying what SDKs never would.

use std::io;

use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::records::rules;
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::{NO_RULES, NO_TRANSFERS};

/// A server of 2025-era clients whose tools say their own name; it answers batches as one.
fn name_tools(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        let body = request.json();
        let answers: Vec<Value> = match &body {
            Value::Array(all) => all.iter().map(name_answer).collect(),
            one => {
                return reply.write(&http::response(
                    "application/json",
                    &[],
                    name_answer(one).to_string().as_bytes(),
                ));
            }
        };
        reply.write(&http::response("application/json", &[], json!(answers).to_string().as_bytes()))
    })
}

fn name_answer(request: &Value) -> Value {
    let text = format!("ran {}", request["params"]["name"].as_str().unwrap_or("nothing"));
    json!({"jsonrpc": "2.0", "id": request["id"], "result": {"content": [{"type": "text", "text": text}]}})
}

/// A server that answers every `tools/call` with these bytes, in writes of that size.
fn says(world: &World, piece: usize, bytes: Vec<u8>) -> RawServer {
    RawServer::start(
        world,
        move |request, reply| {
            if handshake(request, reply)? { Ok(()) } else { reply.write_in(piece, &bytes) }
        },
    )
}

/// One request on a connection of its own.
fn ask(agent: &mut RawAgent, server: &RawServer, request: &[u8]) -> io::Result<Message> {
    let mut conn = agent.open(server.address())?;
    agent.send(&conn, request)?;
    let message = agent.message(&mut conn)?;
    agent.close(conn)?;
    Ok(message)
}

// === W1: stacklok/toolhive#5745, NVIDIA/OpenShell#2082 ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn every_element_of_a_batch_is_judged() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = name_tools(&world);
    let mut agent = RawAgent::start(&world, "coder");
    ask(&mut agent, &server, &mcp::initialize("2025-03-26")).expect("a session");

    let batch = json!([
        mcp::request(1, "ping", json!({})),
        mcp::call(2, "wire_transfer", json!({"amount": 5000})),
        mcp::call(3, "echo", json!({"text": "hi"})),
    ]);
    let answer = ask(&mut agent, &server, &mcp::legacy(&batch)).expect("an answer");
    let messages = answer.messages();
    assert_eq!(answer.status(), 200);
    for id in [1, 3] {
        mcp::of_id(&messages, id); // ran or not: it is answered
    }
    let refusal = mcp::refusal(mcp::of_id(&messages, 2)).expect("the blocked element is answered");
    assert!(refusal.contains("no-transfers"), "{refusal}");
    assert!(!server.saw("wire_transfer"), "no byte of the blocked element reaches the server");

    let decision = daemon.records().decision("wire_transfer", "deny");
    assert_eq!(rules(&decision), ["no-transfers"]);
    daemon.records().wait("decision", "each inner tool", |record| record["tool"] == "echo");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn batch_of_refused_calls_reaches_no_server() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = name_tools(&world);
    let mut agent = RawAgent::start(&world, "coder");
    ask(&mut agent, &server, &mcp::initialize("2025-03-26")).expect("a session");
    let before = server.bytes().len();

    let batch = json!([mcp::call(1, "wire_transfer", json!({})), mcp::call(2, "wire_transfer", json!({}))]);
    let messages = ask(&mut agent, &server, &mcp::legacy(&batch)).expect("an answer").messages();
    for id in [1, 2] {
        assert!(mcp::refusal(mcp::of_id(&messages, id)).is_some(), "{messages:?}");
    }
    assert_eq!(server.bytes().len(), before, "a refused call has put zero bytes on the upstream connection");
}

// === W2: stacklok/toolhive#5257 ===

fn list_after_rubbish() -> Vec<u8> {
    let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    let notification =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
    let tools = json!([tool("echo"), tool("secret_tool")]);
    let result = json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}});
    let events = [
        format!("data: {notification}\n\n"),
        "data: not json at all\n\n".to_owned(),
        format!("data: {result}\n\n"),
    ];
    let chunks = events.iter().map(|event| http::chunk(event.as_bytes()));
    [http::sse_head()].into_iter().chain(chunks).chain([http::chunk(b"")]).flatten().collect()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn undecodable_event_may_pass_and_inspection_goes_on() {
    let world = World::new();
    let daemon = Daemon::start(&world, "version: 1\ndefaults: {undecodable: allow}\n");
    let server = says(&world, usize::MAX, list_after_rubbish());
    let mut agent = RawAgent::start(&world, "coder");

    let list = mcp::legacy(&mcp::request(1, "tools/list", json!({})));
    let text = ask(&mut agent, &server, &list).expect("an answer").text();
    assert!(text.contains("notifications/message"), "{text}");
    assert!(text.contains("not json at all"), "the default lets it pass: {text}");
    assert!(text.contains("secret_tool"), "{text}");
    let is_read = |record: &Value| record["method"] == "tools/list" && record["outcome"] == "result";
    daemon.records().wait("result", "the result after the rubbish is read", is_read);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn undecodable_event_is_refused_by_default() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let server = says(&world, usize::MAX, list_after_rubbish());
    let mut agent = RawAgent::start(&world, "coder");

    let list = mcp::legacy(&mcp::request(1, "tools/list", json!({})));
    let answer = ask(&mut agent, &server, &list).expect("an answer");
    assert!(!answer.text().contains("not json at all"), "{}", answer.text());
    mcp::of_id(&answer.messages(), 1); // and the agent does not wait for ever
}

// === W3: stacklok/toolhive#2403, gravitational/teleport#67000 ===

/// An SSE answer of one event of about that size, and its body without chunk framing.
fn one_event(size: usize, chunk: usize) -> (Vec<u8>, Vec<u8>) {
    let content = json!([{"type": "text", "text": "x".repeat(size)}]);
    let event = format!("data: {}\n\n", json!({"jsonrpc": "2.0", "id": 1, "result": {"content": content}}))
        .into_bytes();
    let chunks: Vec<u8> = event.chunks(chunk).flat_map(http::chunk).collect();
    ([http::sse_head(), chunks, http::chunk(b"")].concat(), event)
}

fn event_passes(size: usize, piece: usize) {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let (answer, event) = one_event(size, 16 * 1024);
    let server = says(&world, piece, answer);
    let mut agent = RawAgent::start(&world, "coder");
    let got = ask(&mut agent, &server, &mcp::legacy(&mcp::call(1, "big", json!({})))).expect("an answer");
    assert!(got.body == event, "{} bytes came, {} were sent", got.body.len(), event.len());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn event_of_80_kb_in_single_bytes_passes_byte_for_byte() {
    event_passes(80 * 1000, 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn event_of_one_and_a_half_mib_passes_byte_for_byte() {
    event_passes(3 * 512 * 1024, 16 * 1024);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn event_over_the_bound_is_refused_with_its_own_reason() {
    let world = World::new();
    let mut daemon = Daemon::start_with(&world, NO_RULES, "limits: {event: 16MiB}\n");
    let (answer, _) = one_event(20 * 1024 * 1024, 16 * 1024);
    let server = says(&world, 16 * 1024, answer);
    let mut agent = RawAgent::start(&world, "coder");

    let got = ask(&mut agent, &server, &mcp::legacy(&mcp::call(1, "big", json!({})))).expect("an answer");
    let refusal = got.messages().iter().find_map(mcp::refusal).expect("the call is answered in protocol");
    assert!(refusal.contains("oversized") && !refusal.contains("parse"), "{refusal}");
    daemon.records().wait("result", "oversized", |record| record["cause"] == "oversized");
    let peak = daemon.process().peak_kib();
    assert!(peak < 256 * 1024, "memory stays bounded, not {peak} KiB");
}

// === W6: wso2/api-platform#2968; `ask` in pairs.rs is the same with SDKs ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn question_in_the_answer_stream_reaches_the_agent_and_its_reply_the_server() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let is_reply = |request: &Message| {
        request.json()["id"] == "question-1" && request.json()["result"]["action"] == "accept"
    };
    let server = RawServer::start(&world, move |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        if is_reply(request) {
            return reply.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n");
        }
        let question = json!({"jsonrpc": "2.0", "id": "question-1", "method": "elicitation/create", "params": {"message": "may I?"}});
        reply.write(&[http::sse_head(), http::chunk(format!("data: {question}\n\n").as_bytes())].concat())?;
        reply.hold_for(is_reply)?; // no answer before the reply: a proxy that waits for one deadlocks here
        let answer = format!("data: {}\n\n", name_answer(&request.json()));
        reply.write(&[http::chunk(answer.as_bytes()), http::chunk(b"")].concat())
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut call = agent.open(server.address()).expect("a connection");
    agent.send(&call, &mcp::legacy(&mcp::call(1, "ask", json!({})))).expect("send");
    let asked = agent
        .so_far(&mut call, |message| message.text().contains("\n\n"))
        .expect("the question comes at once");
    assert!(asked.text().contains("elicitation/create"), "{}", asked.text());

    let reply = json!({"jsonrpc": "2.0", "id": "question-1", "result": {"action": "accept", "content": {}}});
    assert_eq!(ask(&mut agent, &server, &mcp::legacy(&reply)).expect("an answer").status(), 202);
    let whole = agent.message(&mut call).expect("the call is answered");
    assert!(whole.text().contains("ran ask"), "{}", whole.text());
}

// === W7: agentgateway/agentgateway#2167, rossoctl/cortex ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn odd_but_legal_sse_passes_byte_for_byte() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"content": []}}).to_string();
    let (left, right) = answer.split_at(answer.find(',').expect("a comma") + 1);
    let streams = [
        format!(
            "\u{feff}retry: 3000\nid: 1\ndata:\n\n: comment\n\nevent: message\nid: 2\ndata: {answer}\n\n"
        ),
        format!("id: 1\r\ndata: {left}\r\ndata: {right}\r\n\r\n"),
        format!("event: message\rdata:{answer}\rid: 7\r\r"),
        format!("unknown: field\nevent\ndata: {answer}\n\n: the end\n"),
    ];
    for stream in streams {
        let whole = [http::sse_head(), http::chunk(stream.as_bytes()), http::chunk(b"")].concat();
        let server = says(&world, 7, whole.clone());
        let mut agent = RawAgent::start(&world, "coder");
        let mut conn = agent.open(server.address()).expect("a connection");
        agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
        let message = agent.message(&mut conn).expect("an answer");
        assert_eq!(message.text(), stream);
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn broken_stream_is_resumed_with_last_event_id() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let event = |id: u32, data: &str| http::chunk(format!("id: {id}\ndata: {data}\n\n").as_bytes());
    let server = RawServer::start(&world, move |request, reply| {
        if request.start.starts_with("GET") {
            let from: u32 = request.header("last-event-id").and_then(|id| id.parse().ok()).unwrap_or(0);
            let answer = name_answer(&json!({"id": 1, "params": {"name": "echo"}})).to_string();
            return reply.write(&[http::sse_head(), event(from + 1, &answer), http::chunk(b"")].concat());
        }
        if handshake(request, reply)? {
            return Ok(());
        }
        reply.write(&[http::sse_head(), event(41, "")].concat())?;
        Err(io::ErrorKind::ConnectionAborted.into()) // the network breaks; the stream does not end
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut call = agent.open(server.address()).expect("a connection");
    agent.send(&call, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
    agent.so_far(&mut call, |message| message.text().contains("id: 41\n")).expect("the first event");
    agent.close(call).expect("close");

    let resume = http::get(&[mcp::SESSION, ("last-event-id", "41")]);
    let resumed = ask(&mut agent, &server, &resume).expect("an answer");
    assert_eq!(resumed.text().lines().next(), Some("id: 42"));
    assert_eq!(mcp::refusal(mcp::of_id(&resumed.messages(), 1)), None);
}

// === W8: IBM/mcp-context-forge#6637 ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn body_decides_and_a_header_that_says_otherwise_is_refused() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |request, reply: &mut Reply<'_>| {
        reply.write(&http::response(
            "application/json",
            &[],
            name_answer(&request.json()).to_string().as_bytes(),
        ))
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut say = |named: &str, tool: &str| {
        let request = mcp::modern_call(1, named, tool, json!({"amount": 1}));
        let messages = ask(&mut agent, &server, &request).expect("an answer").messages();
        mcp::refusal(mcp::of_id(&messages, 1))
    };

    assert_eq!(say("echo", "echo"), None);
    let disguised = say("echo", "wire_transfer").expect("refused");
    assert!(say("echo", "add").is_some(), "the mismatch is itself refused, whatever the rules say of both");
    assert!(!server.saw("wire_transfer"), "{disguised}");
    assert!(!server.saw("\"add\""));
    let both = |record: &Value| {
        let text = record.to_string();
        record["verdict"] == "deny" && text.contains("echo") && text.contains("add")
    };
    daemon.records().wait("decision", "of both names", both);
}

// === W10: agentgateway/agentgateway#1410, #3578 ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn bound_in_the_configuration_is_the_bound_in_force() {
    const LIMIT: usize = 64 * 1024;
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, "limits: {message: 64KiB}\n");
    let server = name_tools(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let sized = |size: usize| {
        let frame = mcp::call(1, "echo", json!({"text": ""})).to_string().len();
        mcp::legacy(&mcp::call(1, "echo", json!({"text": "x".repeat(size - frame)})))
    };

    let fits = ask(&mut agent, &server, &sized(LIMIT)).expect("an answer");
    assert_eq!(mcp::refusal(mcp::of_id(&fits.messages(), 1)), None);
    let received = server.requests().len();
    let over = ask(&mut agent, &server, &sized(LIMIT + 1)).expect("an answer");
    assert!(over.text().contains("default:oversized"), "its own reason: {}", over.text());
    assert!(!over.text().contains("parse"), "{}", over.text());
    assert_eq!(server.requests().len(), received);
    let is_oversized = |record: &Value| record["rules"].to_string().contains("default:oversized");
    daemon.records().wait("decision", "oversized", is_oversized);
}
