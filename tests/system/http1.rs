//! HTTP/1.1 as it is in the wild, past what SDKs say: interim answers, and requests sent ahead of a half-close.

use std::io;

use agent_tests::http::{self, Message};
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::{NO_RULES, NO_TRANSFERS};

/// A server that says the names of the paths that it is asked for.
fn paths(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        let path = request.start.split(' ').nth(1).unwrap_or_default().to_owned();
        reply.write(&http::response("text/plain", &[], path.as_bytes()))
    })
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: bank.test\r\n\r\n")
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn requests_ahead_of_a_half_close_are_answered() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = paths(&world);
    let mut agent = RawAgent::start(&world, "coder");
    for piece in [1, 40, usize::MAX] {
        let mut conn = agent.open(server.address()).expect("a connection");
        let refused =
            String::from_utf8(mcp::legacy(&mcp::call(2, "wire_transfer", json!({})))).expect("text");
        let requests = [get("/one"), refused, get("/three"), get("/four")].concat();
        agent.send_in(piece, &conn, requests.as_bytes()).expect("send");
        agent.finish(&conn).expect("half-close");
        assert_eq!(agent.message(&mut conn).expect("the first answer").text(), "/one");
        let messages = agent.message(&mut conn).expect("the second").messages();
        assert!(mcp::refusal(mcp::of_id(&messages, 2)).is_some(), "{messages:?}");
        assert_eq!(agent.message(&mut conn).expect("the third").text(), "/three");
        assert_eq!(agent.message(&mut conn).expect("the fourth").text(), "/four");
        assert_eq!(agent.to_end(&mut conn).expect("an orderly end"), b"");
    }
    assert!(!server.saw("wire_transfer"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_that_leaves_before_its_next_request_is_whole_is_seen_to_leave() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::talks(&world, |talk| {
        talk.read_to("\r\n\r\n")?;
        while talk.read()?.is_some() {}
        talk.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nleft")
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, format!("{}GET /half HTTP/1.1\r\n", get("/one")).as_bytes()).expect("send");
    agent.finish(&conn).expect("half-close");
    assert_eq!(agent.message(&mut conn).expect("the server has seen it").text(), "left");
    let ended = |record: &Value| record["cause"] == "agent_closed";
    daemon.records().wait("connection", "the agent's", ended);
    assert!(!server.saw("/half"));
}

/// A server that wants bodies, answers each with its length, and ends with the connection.
fn wants_bodies(world: &World) -> RawServer {
    RawServer::talks(world, |talk| {
        // The body may come with the head.
        let mut request = talk.read()?.unwrap_or_default();
        talk.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")?;
        while !String::from_utf8_lossy(&request).contains("the end") {
            request.extend(talk.read()?.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        talk.write(&http::response("text/plain", &[], b"taken"))
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_that_expects_100_continue_gets_one() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let server = wants_bodies(&world);
    let mut agent = RawAgent::start(&world, "coder");
    // The statuses that an agent gets, and whether it waits for the first one.
    let mut expecting = |framing: &str, wait: bool, body: &[u8]| -> Vec<u16> {
        let mut conn = agent.open(server.address()).expect("a connection");
        let head =
            format!("POST /up HTTP/1.1\r\nhost: bank.test\r\nexpect: 100-continue\r\n{framing}\r\n\r\n");
        agent.send(&conn, head.as_bytes()).expect("send");
        let mut seen = Vec::new();
        if wait {
            seen.push(agent.head(&mut conn).expect("it is told to go on").status());
        }
        agent.send(&conn, body).expect("send");
        loop {
            let so_far = agent.so_far(&mut conn, |_| true).expect("an answer");
            if so_far.status() >= 200 {
                let last: Message = agent.message(&mut conn).expect("the answer");
                assert_eq!(last.text(), "taken");
                seen.push(last.status());
                return seen;
            }
            seen.push(agent.head(&mut conn).expect("an interim answer").status());
        }
    };
    let upload = b"PK\x03\x04 some bytes the end";
    let sized = format!("content-length: {}", upload.len());
    let json = br#"{"some": "json", "that is": "the end"}"#;
    let chunks = [http::chunk(upload), http::chunk(b"")].concat();
    assert_eq!(expecting(&sized, true, upload), [100, 103, 200], "streamed");
    assert_eq!(expecting("transfer-encoding: chunked", true, &chunks), [100, 103, 200], "streamed in chunks");
    let sized = format!("content-length: {}", json.len());
    assert_eq!(expecting(&sized, true, json), [100, 103, 200], "held");
}
