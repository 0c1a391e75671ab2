//! Clients and servers that mean no harm and do what HTTP allows: what reaches them is what was said.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_tests::http;
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::{NO_RULES, NO_TRANSFERS};

const MIB: usize = 1 << 20;

/// The head of a POST with a body of that size and type.
fn post(content_type: &str, size: usize, more: &str) -> String {
    format!(
        "POST /upload HTTP/1.1\r\nhost: bank.test\r\ncontent-type: {content_type}\r\n{more}content-length: {size}\r\n\r\n"
    )
}

fn plain(text: &str) -> Vec<u8> {
    http::response("text/plain", &[], text.as_bytes())
}

// === Uploads ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answer_that_comes_before_the_upload_ends_reaches_the_agent() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    for status in ["413 Content Too Large", "401 Unauthorized"] {
        let server = RawServer::talks(&world, move |talk| {
            talk.read_to("\r\n\r\n")?;
            talk.write(
                format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno").as_bytes(),
            )
        }); // closes while most of the upload is unread
        let mut agent = RawAgent::start(&world, "coder");
        let mut conn = agent.open(server.address()).expect("a connection");
        let upload = [post("image/png", 8 * MIB, "").into_bytes(), vec![b'x'; 8 * MIB]].concat();
        agent.send(&conn, &upload).expect("no reset takes the answer away");
        let answer = agent.message(&mut conn).expect("the server's answer");
        assert_eq!((answer.start, &*answer.body), (format!("HTTP/1.1 {status}"), &b"no"[..]));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn refusal_of_a_message_that_is_too_large_reaches_an_agent_that_goes_on_sending() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::start(&world, |_, reply| reply.write(&plain("never")));
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let body = mcp::call(1, "echo", json!({"text": "x".repeat(8 * MIB)})).to_string();
    agent.send(&conn, post("application/json", body.len(), "").as_bytes()).expect("send");
    agent.send_in(MIB, &conn, body.as_bytes()).expect("no reset takes the answer away");
    let answer = agent.message(&mut conn).expect("an answer");
    assert_eq!(answer.status(), 413);
    assert!(answer.text().contains("default:oversized"), "{}", answer.text());
    assert!(server.bytes().is_empty());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn form_leaves_the_connection_good_for_the_next_request() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |request, reply| match request.json() {
        Value::Null => reply.write(&plain(&format!("{} bytes", request.body.len()))),
        _ => reply.result(request, &json!({"content": []})),
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    for size in [0, 7, MIB] {
        let form = [
            post("application/x-www-form-urlencoded", size, "").into_bytes(),
            b"a=1&b=2".iter().copied().cycle().take(size).collect(),
        ];
        agent.send(&conn, &form.concat()).expect("send");
        assert_eq!(agent.message(&mut conn).expect("an answer").text(), format!("{size} bytes"));
        for (tool, is_refused) in [("echo", false), ("wire_transfer", true)] {
            agent.send(&conn, &mcp::legacy(&mcp::call(1, tool, json!({})))).expect("on the same connection");
            let messages = agent.message(&mut conn).expect("an answer").messages();
            assert_eq!(mcp::refusal(mcp::of_id(&messages, 1)).is_some(), is_refused, "{tool}: {messages:?}");
        }
    }
    assert_eq!(server.connections(), 1);
    daemon.records().decision("wire_transfer", "deny");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_that_waits_for_a_go_ahead_gets_one() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = RawServer::start(&world, |request, reply| {
        assert_eq!(request.header("expect"), Some("100-continue"));
        reply.write(b"HTTP/1.1 100 Continue\r\n\r\n")?; // as servers do, whether or not the body is there already
        reply.result(request, &json!({"content": []}))
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    for (tool, is_refused) in [("echo", false), ("wire_transfer", true), ("echo", false)] {
        let body = mcp::call(1, tool, json!({})).to_string();
        let head = post("application/json", body.len(), "expect: 100-continue\r\n");
        agent.send(&conn, head.as_bytes()).expect("send");
        assert_eq!(agent.head(&mut conn).expect("a go-ahead").status(), 100, "{tool}");
        agent.send(&conn, body.as_bytes()).expect("send");
        let answer = agent.message(&mut conn).expect("an answer");
        assert_eq!(answer.status(), 200, "{tool}: and no second go-ahead");
        assert_eq!(mcp::refusal(mcp::of_id(&answer.messages(), 1)).is_some(), is_refused, "{tool}");
    }
    assert_eq!(server.connections(), 1);
}

// === Answers ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answers_without_a_body_leave_the_connection_good_for_the_next_request() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::start(&world, |request, reply| {
        let status = request.start.split('/').nth(1).unwrap_or_default();
        match status.split(' ').next() {
            Some("head") => reply.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
            Some("head-json") => {
                reply.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 5\r\n\r\n")
            }
            Some("head-chunked") => reply.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
            Some("204") => reply.write(b"HTTP/1.1 204 No Content\r\n\r\n"),
            Some("304") => reply.write(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
            _ => reply.result(request, &json!({"content": []})),
        }
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    for (request, status) in [
        ("HEAD /head", 200),
        ("HEAD /head-json", 200),
        ("HEAD /head-chunked", 200),
        ("DELETE /204", 204),
        ("GET /304", 304),
    ] {
        agent.send(&conn, format!("{request} HTTP/1.1\r\nhost: bank.test\r\n\r\n").as_bytes()).expect("send");
        assert_eq!(agent.head(&mut conn).expect("an answer").status(), status, "{request}");
        agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("on the same connection");
        let messages = agent.message(&mut conn).expect("an answer").messages();
        assert_eq!(mcp::refusal(mcp::of_id(&messages, 1)), None, "after {request}");
    }
    assert_eq!(server.connections(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answer_cut_short_by_a_reset_is_a_reset_to_the_agent() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    for content_type in ["text/plain", "text/event-stream", "application/json"] {
        let arrived = Arc::new(AtomicBool::new(false));
        let has_arrived = arrived.clone();
        let server = RawServer::start(&world, move |_, reply| {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n\r\n");
            reply.write(format!("{head}data: {{}}\n\n").as_bytes())?; // the body ends with the connection
            reply.hold(|| has_arrived.load(Ordering::Relaxed))?;
            reply.reset()
        });
        let mut agent = RawAgent::start(&world, "coder");
        let mut conn = agent.open(server.address()).expect("a connection");
        agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
        if content_type != "application/json" {
            agent.so_far(&mut conn, |message| message.text() == "data: {}\n\n").expect("the first half");
        }
        arrived.store(true, Ordering::Relaxed);
        let end = agent.to_end(&mut conn).expect_err("half an answer is not the whole");
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset, "{content_type}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn event_without_end_in_chunks_of_one_byte_is_refused_within_bounded_memory() {
    let world = World::new();
    let mut daemon = Daemon::start_with(&world, NO_RULES, "limits: {event: 4MiB}\n");
    let server = RawServer::start(&world, |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        reply.write(&[http::sse_head(), http::chunk(b"data: ")].concat())?;
        let many = http::chunk(b"x").repeat(16 * 1024);
        loop {
            reply.write(&many)?; // until the other side has had enough
        }
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "big", json!({})))).expect("send");
    let answer = agent.message(&mut conn).expect("the stream is ended in order");
    let refusal = mcp::refusal(mcp::of_id(&answer.messages(), 1)).expect("and the call is answered");
    assert!(refusal.contains("default:oversized"), "{refusal}");
    daemon.records().wait("result", "oversized", |record| record["cause"] == "oversized");
    let peak = daemon.process().peak_kib();
    assert!(peak < 100 * 1024, "memory stays bounded, not {peak} KiB");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_that_has_said_all_still_gets_the_whole_answer() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let answer =
        json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [], "pad": "x".repeat(MIB)}}).to_string();
    for content_type in ["application/json", "text/plain"] {
        let whole = http::response(content_type, &[], answer.as_bytes());
        let server = RawServer::talks(&world, move |talk| {
            talk.read_to("wire_transfer")?;
            while talk.read()?.is_some() {} // the half-close arrives, and the server still has something to say
            talk.write_in(100_000, &whole)
        });
        let mut agent = RawAgent::start(&world, "coder");
        let mut conn = agent.open(server.address()).expect("a connection");
        agent.send(&conn, &mcp::legacy(&mcp::call(1, "wire_transfer", json!({})))).expect("send");
        agent.finish(&conn).expect("nothing more");
        let got = agent.message(&mut conn).expect("an answer");
        assert!(got.text() == answer, "{} bytes of {} came", got.body.len(), answer.len());
        assert_eq!(agent.to_end(&mut conn).expect("an orderly end"), b"");
    }
}
