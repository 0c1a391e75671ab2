//! Which POSTs belong to a stream: those to the URI that its server has named in it, of the same agent, at the same server.

use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::json;

use super::{ENDPOINT, Session, post_to, serves};
use crate::NO_TRANSFERS;

/// Whether a refused call that is POSTed to `uri` is answered in the stream whose server has named `endpoint`; in any case it
/// is refused.
#[track_caller]
fn check(world: &World, endpoint: &str, uri: &str, in_stream: bool) {
    let (server, says) = serves(world, endpoint);
    let mut session = Session::open(world, "coder", &server, uri);
    if in_stream {
        assert!(session.refused(1, "wire_transfer").contains("no-transfers"), "{endpoint} {uri}");
    } else {
        let answer = session.post(&mcp::call(1, "wire_transfer", json!({})).to_string());
        assert_eq!(answer.status(), 200, "{endpoint} {uri}: {answer:?}");
        assert!(mcp::refusal(mcp::of_id(&answer.messages(), 1)).is_some(), "{answer:?}");
        says.say(b": the end\n\n");
        assert!(!session.so_far(": the end").contains("wire_transfer"), "{endpoint} {uri}");
    }
    assert!(!server.saw("wire_transfer"), "{endpoint} {uri}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_endpoint_is_found_however_it_is_written() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    for (endpoint, uri) in [
        ("/messages/?session_id=one", "/messages/?session_id=one"),
        ("http://bank.test/messages?s=1", "/messages?s=1"),
        ("http://BANK.test:80/messages?s=1", "http://bank.test/messages?s=1"),
        ("//bank.test/m", "/m"),
        ("messages?s=1", "/messages?s=1"),
        ("./a/../messages?s=1", "/messages?s=1"),
        ("?s=1", "/sse?s=1"),
        ("/m?a=1&b=2&a=3", "/m?b=2&a=3&a=1"),
    ] {
        check(&world, endpoint, uri, true);
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn another_uri_is_none_of_the_stream() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    for (endpoint, uri) in [
        ("http://other.test/messages", "/messages"),
        ("https://bank.test/messages", "/messages"),
        ("http://bank.test:81/messages", "/messages"),
        ("//other.test/messages", "/messages"),
        ("/messages?s=1", "/messages?s=2"),
        ("/messages?s=1", "/messages"),
        ("/messages", "/messages/"),
        ("http://[bank/messages", "/messages"),
    ] {
        check(&world, endpoint, uri, false);
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn the_last_endpoint_of_a_stream_counts() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, "/first");
    let mut session = Session::open(&world, "coder", &server, "/second");
    says.say(b"event: endpoint\ndata: /second\n\n");
    session.so_far("/second");
    assert!(session.refused(1, "wire_transfer").contains("no-transfers"));
    let answer = session.post_to("/first", &mcp::call(2, "wire_transfer", json!({})).to_string());
    assert_eq!(answer.status(), 200, "{answer:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stream_that_has_ended_is_forgotten() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, ENDPOINT);
    let mut session = Session::open(&world, "coder", &server, ENDPOINT);
    session.call(1, "echo");
    says.end();
    session.agent.message(&mut session.stream).expect("the end of the stream");
    let unanswered = daemon.records().wait("result", "no answer", |record| record["tool"] == "echo");
    assert_eq!((&unanswered["outcome"], &unanswered["cause"]), (&json!("none"), &json!("server_closed")));

    let answer = session.post(&mcp::call(2, "wire_transfer", json!({})).to_string());
    assert_eq!(answer.status(), 200, "the POST is all there is: {answer:?}");
    assert!(mcp::refusal(mcp::of_id(&answer.messages(), 2)).is_some());
    // The same connection is good for another stream.
    session.get();
    assert!(session.refused(3, "wire_transfer").contains("no-transfers"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn no_agent_gets_at_the_stream_of_another() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, says) = serves(&world, ENDPOINT);
    let mut coder = Session::open(&world, "coder", &server, ENDPOINT);
    // It knows the secret of the session.
    let mut sibling = RawAgent::start(&world, "sibling");
    let mut conn = sibling.open(server.address()).expect("a connection");
    let body = mcp::call(1, "wire_transfer", json!({})).to_string();
    sibling.send(&conn, &post_to(ENDPOINT, &body)).expect("send");
    let answer = sibling.message(&mut conn).expect("an answer");
    assert_eq!(answer.status(), 200, "{answer:?}");
    says.say(b": the end\n\n");
    assert!(!coder.so_far(": the end").contains("wire_transfer"));

    // Both have a stream with the same endpoint.
    let mut own = Session::open(&world, "sibling", &server, ENDPOINT);
    assert!(own.refused(7, "wire_transfer").contains("no-transfers"));
    assert!(coder.refused(8, "wire_transfer").contains("no-transfers"));
    assert!(!coder.so_far("\"id\":8").contains("\"id\":7"));
    assert!(!own.so_far("\"id\":7").contains("\"id\":8"));
}
