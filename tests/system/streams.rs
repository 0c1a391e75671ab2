//! Streams of events between two framings: whatever the server's is, the agent gets each event at once and whole, in a
//! framing that it reads, and a stop finds its place between two of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_tests::agent::RawConn;
use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::json;

use crate::{NO_RULES, REASON};

/// How a server frames its stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    /// In chunks of this size.
    Chunks(usize),
    Length,
    UntilClose,
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-a:  B \r\n";

impl Framing {
    /// The head of a stream of this content, and the content in this framing.
    fn of(self, content: &str) -> (Vec<u8>, Vec<u8>) {
        let (line, body) = match self {
            Framing::Chunks(size) => {
                let chunks = content.as_bytes().chunks(size).flat_map(http::chunk).collect();
                ("transfer-encoding: chunked\r\n".to_owned(), [chunks, http::chunk(b"")].concat())
            }
            Framing::Length => (format!("content-length: {}\r\n", content.len()), content.into()),
            Framing::UntilClose => (String::new(), content.into()),
        };
        (format!("{HEAD}{line}\r\n").into_bytes(), body)
    }
}

fn answer() -> String {
    json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "Grüße"}]}}).to_string()
}

fn call() -> Vec<u8> {
    mcp::legacy(&mcp::call(1, "echo", json!({})))
}

/// A server that answers each call with these bytes, in writes of that size, and then closes if the stream says so.
fn says(world: &World, framing: Framing, content: &str, piece: usize) -> RawServer {
    let (head, body) = framing.of(content);
    let whole = [head, body].concat();
    RawServer::start(world, move |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        reply.write_in(piece, &whole)?;
        if framing == Framing::UntilClose {
            Err(std::io::ErrorKind::ConnectionAborted.into())
        } else {
            Ok(())
        }
    })
}

fn asks(agent: &mut RawAgent, server: &RawServer, request: &[u8]) -> RawConn {
    let conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, request).expect("send");
    conn
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn content_is_the_servers_whatever_its_framing() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let mut agent = RawAgent::start(&world, "coder");
    let stream = format!(
        ": hi\r\nid: 1\r\ndata:\r\n\r\nevent: message\nid: 2\ndata: {}\n\n: bye\n\n",
        answer().replace(',', ",\ndata: ")
    );
    for framing in
        [1, 2, 7, 64, 4096].map(Framing::Chunks).into_iter().chain([Framing::Length, Framing::UntilClose])
    {
        for piece in [1, 3, 50, usize::MAX] {
            let server = says(&world, framing, &stream, piece);
            let mut conn = asks(&mut agent, &server, &call());
            let what = format!("{framing:?} in writes of {piece}");
            let got = agent.message(&mut conn).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(got.text(), stream, "{what}");
            assert_eq!((got.status(), got.header("x-a")), (200, Some("B")));
            let coding = got.header("transfer-encoding");
            assert_eq!(coding.is_some(), framing != Framing::UntilClose, "{what}");
            assert_eq!(got.header("content-length"), None, "{what}: it may be edited");
            if framing != Framing::UntilClose {
                agent.send(&conn, &call()).expect("the connection is good for another call");
                assert_eq!(agent.message(&mut conn).expect("an answer").text(), stream, "{what}");
                assert_eq!(server.connections(), 1);
            }
            agent.close(conn).expect("close");
        }
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_agent_that_knows_no_chunks_gets_none() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let mut agent = RawAgent::start(&world, "coder");
    let stream = format!("data: {}\n\n", answer());
    let old = String::from_utf8(call()).expect("text").replace("HTTP/1.1", "HTTP/1.0");
    let kept = old.replacen("\r\n", "\r\nconnection: keep-alive\r\n", 1);
    for framing in [Framing::Chunks(5), Framing::Length] {
        for request in [&old, &kept] {
            let server = says(&world, framing, &stream, usize::MAX);
            let mut conn = asks(&mut agent, &server, request.as_bytes());
            let got = String::from_utf8(agent.to_end(&mut conn).expect("the end")).expect("text");
            assert_eq!(got, format!("{HEAD}Connection: close\r\n\r\n{stream}"), "{framing:?}");
        }
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_comment_does_not_wait_for_the_next_event() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let seen = Arc::new(AtomicBool::new(false));
    let server = RawServer::start(&world, {
        let seen = seen.clone();
        move |_, reply| {
            reply.write(&[http::sse_head(), http::chunk(b": ping\n")].concat())?;
            reply.hold(|| seen.load(Ordering::Relaxed))?;
            let event = format!("data: {}\n\n", answer());
            reply.write(&[http::chunk(event.as_bytes()), http::chunk(b"")].concat())
        }
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = asks(&mut agent, &server, &call());
    agent.so_far(&mut conn, |message| message.text() == ": ping\n").expect("the comment");
    seen.store(true, Ordering::Relaxed);
    mcp::of_id(&agent.message(&mut conn).expect("the answer").messages(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_is_withheld_leaves_its_id_to_resume_from() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let stream = format!(
        "data: no json\n\nid: 7\nevent: message\ndata: {{\"jsonrpc\":\ndata: no json\n\nid: 8\ndata: {}\n\n",
        answer()
    );
    let rest = format!("id: 7\ndata: \n\nid: 8\ndata: {}\n\n", answer());
    let mut agent = RawAgent::start(&world, "coder");
    for (framing, piece) in [
        (Framing::Chunks(1), usize::MAX),
        (Framing::Chunks(4096), 9),
        (Framing::Length, 1),
        (Framing::UntilClose, 1),
    ] {
        let server = says(&world, framing, &stream, piece);
        let mut conn = asks(&mut agent, &server, &call());
        assert_eq!(agent.message(&mut conn).expect("an answer").text(), rest, "{framing:?}");
    }
    let decisions = daemon.records().of("decision");
    let withheld =
        decisions.iter().filter(|record| record["method"] == "event" && record["verdict"] == "deny");
    assert_eq!(withheld.count(), 2 * 4);
}

/// Stops an agent that has had one event, and of the next one nothing, although half of it has come from the server.
fn stop_in_the_middle_of_an_event(framing: Framing) {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let first = format!("data: {}\n\n", json!({"jsonrpc": "2.0", "method": "notifications/first"}));
    let (head, body) = framing.of(&format!("{first}data: {}\n\n", answer()));
    let go = Arc::new(AtomicBool::new(false));
    let server = RawServer::start(&world, {
        let go = go.clone();
        move |request, reply| {
            if handshake(request, reply)? {
                return Ok(());
            }
            let (early, late) = body.split_at(body.len() - 30);
            reply.write(&[&*head, early].concat())?;
            reply.hold(|| go.load(Ordering::Relaxed))?;
            reply.write(late)
        }
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = asks(&mut agent, &server, &call());
    let so_far =
        agent.so_far(&mut conn, |message| message.text().contains("first")).expect("the first event");
    assert_eq!(so_far.text(), first, "and no more");

    let stop = ["stop", "agent=coder", "--reason", REASON, "--wait", "0s"];
    let stopped = daemon.cli().run(&stop);
    assert_eq!(stopped.json["calls"][0]["fate"], "sent", "{stopped:?}");
    let ended: Message = if framing == Framing::UntilClose {
        let bytes = agent.to_end(&mut conn).expect("the end");
        Message::take(&mut bytes.clone(), true).expect("a whole answer")
    } else {
        agent.message(&mut conn).expect("a whole answer")
    };
    assert!(ended.text().starts_with(&first) && !ended.text().contains("Gr"), "{}", ended.text());
    let messages = ended.messages();
    assert!(mcp::refusal(mcp::of_id(&messages, 1)).is_some_and(|text| text.contains(REASON)), "{messages:?}");
    if framing != Framing::UntilClose {
        agent.send(&conn, &call()).expect("the connection is in order");
        let messages = agent.message(&mut conn).expect("an answer").messages();
        assert!(mcp::refusal(mcp::of_id(&messages, 1)).is_some(), "{messages:?}");
    }

    go.store(true, Ordering::Relaxed);
    let late = daemon.records().wait("stop_effect", "the late answer", |record| record["open"] == false);
    assert_eq!(late["fate"], "finished_after_stop", "{late}");
    assert_eq!(late["late"]["bytes"], answer().len(), "the whole of it: {late}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_finds_its_place_in_a_stream_of_chunks() {
    stop_in_the_middle_of_an_event(Framing::Chunks(4096));
    stop_in_the_middle_of_an_event(Framing::Chunks(3));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_finds_its_place_in_a_stream_of_known_length() {
    stop_in_the_middle_of_an_event(Framing::Length);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_finds_its_place_in_a_stream_that_ends_with_its_connection() {
    stop_in_the_middle_of_an_event(Framing::UntilClose);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn half_an_event_at_the_end_of_a_stream_is_none() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let mut agent = RawAgent::start(&world, "coder");
    for framing in [Framing::Chunks(4096), Framing::Length, Framing::UntilClose] {
        let server = says(&world, framing, &format!("id: 1\n\ndata: {}\n", answer()), usize::MAX);
        let mut conn = asks(&mut agent, &server, &call());
        assert_eq!(agent.message(&mut conn).expect("an answer").text(), "id: 1\n\n", "{framing:?}");
    }
    let unanswered =
        |record: &serde_json::Value| record["outcome"] == "none" && record["cause"] == "server_closed";
    daemon.records().wait("result", "no answer", unanswered);
    // A stream of anything else is passed to its very end.
    let server = says(&world, Framing::Length, "data: x\n\ndata: [DONE]", usize::MAX);
    let mut conn = asks(&mut agent, &server, b"GET / HTTP/1.1\r\nhost: llm.test\r\n\r\n");
    assert_eq!(agent.message(&mut conn).expect("an answer").text(), "data: x\n\ndata: [DONE]");
}
