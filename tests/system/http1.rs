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

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answers_of_every_kind_arrive_byte_for_byte() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let answers: [(&str, &[u8]); 9] = [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        ("HEAD", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\netag: x\r\n\r\n"),
        ("GET", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200\r\ncontent-length: 2\r\n\r\nok"),
        ("PUT", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;a=\"b\"\r\nok\r\n0;c\r\nx-sum: 1\r\n\r\n"),
        ("OPTIONS", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        ("QUERY", b"HTTP/1.1 404 Nothing\r\ncontent-length: 3\r\n\r\nno!"),
        ("GET", b"HTTP/1.1 200 OK\r\n\r\nto the end"),
    ];
    let server = RawServer::talks(&world, move |talk| {
        let mut asked = String::new();
        for (_, answer) in answers {
            // Pipelined, they may all be there.
            while !asked.contains("\r\n\r\n") {
                let more = talk.read()?.ok_or(io::ErrorKind::UnexpectedEof)?;
                asked += &String::from_utf8_lossy(&more);
            }
            asked = asked.split_once("\r\n\r\n").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
            talk.write_in(7, answer)?;
        }
        Ok(())
    });
    let requests: String = answers.iter().map(|(method, _)| get("/a").replacen("GET", method, 1)).collect();
    let expected: Vec<u8> = answers.iter().flat_map(|(_, answer)| answer.iter().copied()).collect();
    let mut agent = RawAgent::start(&world, "coder");
    for piece in [1, 50, usize::MAX] {
        let before = server.bytes().len();
        let mut conn = agent.open(server.address()).expect("a connection");
        agent.send_in(piece, &conn, requests.as_bytes()).expect("send");
        let got = agent.to_end(&mut conn).expect("an orderly end");
        assert_eq!(
            got.escape_ascii().to_string(),
            expected.escape_ascii().to_string(),
            "in pieces of {piece}"
        );
        assert_eq!(server.bytes()[before..], *requests.as_bytes());
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn answer_that_comes_before_the_request_has_left_arrives() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::talks(&world, |talk| {
        talk.read_to("\r\n\r\n")?;
        talk.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, b"PUT /a HTTP/1.1\r\nhost: a\r\ncontent-length: 9000000\r\n\r\nP").expect("send");
    let answer = agent.message(&mut conn).expect("the answer");
    assert_eq!((answer.status(), &*answer.text()), (413, "no"));
    assert_eq!(agent.to_end(&mut conn).expect("and an orderly end"), b"");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn http_2_is_no_way_around() {
    let world = World::new();
    let daemon = Daemon::start(&world, "version: 1\ndefaults: {opaque: deny}\n");
    let server = paths(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("send");
    assert!(agent.to_end(&mut conn).is_err(), "it is cut");
    daemon.records().wait("decision", "a refusal", |record: &Value| record["verdict"] == "deny");
    assert_eq!(server.bytes(), b"");
}
