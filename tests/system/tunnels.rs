//! What is not HTTP, or stops being it (`proxies.rs` has tunnels of proxies): let through or not as the operator says, counted, and cut by stops.

use std::io;

use agent_tests::agent::RawConn;
use agent_tests::http::Message;
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::NO_RULES;

const NO_TUNNELS: &str = "version: 1\ndefaults: {opaque: deny}\n";
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n";

/// A server that switches protocols whatever it is asked, and from then on says everything twice.
fn switches(world: &World) -> RawServer {
    RawServer::talks(world, |talk| {
        talk.read_to("\r\n\r\n")?;
        talk.write(SWITCH)?;
        while let Some(bytes) = talk.read()? {
            talk.write(&[&*bytes, &*bytes].concat())?;
        }
        Ok(())
    })
}

fn upgrade(to: &str) -> Vec<u8> {
    format!(
        "GET /mcp HTTP/1.1\r\nhost: bank.test\r\nconnection: upgrade\r\nupgrade: {to}\r\n\r\nthrough the tunnel"
    )
    .into_bytes()
}

/// Whether an open connection of the class is counted.
fn is_counted(daemon: &Daemon, class: &str) {
    daemon.metrics().wait("interlock_connections_open", &[("class", class)], 1.0);
}

/// The record of the agent's only connection.
fn record(daemon: &Daemon) -> Value {
    daemon.records().wait("connection", "the agent's", |record| record["agent"] == "coder")
}

/// Asks for a tunnel in a world with these rules; answers what the agent gets before the connection ends.
fn asks(rules: &str, request: &[u8]) -> Message {
    let world = World::new();
    let daemon = Daemon::start(&world, rules);
    let server = switches(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, request).expect("send");
    let answer = agent.message(&mut conn).expect("an answer");
    let _ = agent.send(&conn, b"through the tunnel"); // it may be closed by now
    let rest = agent.to_end(&mut conn).unwrap_or_default();
    assert!(rest.is_empty(), "{}", rest.escape_ascii());
    assert_ne!(record(&daemon)["class"], "opaque");
    assert!(!server.saw("through the tunnel"));
    let denied = |record: &Value| record["verdict"] == "deny" && record["rules"] != json!([]);
    daemon.records().wait("decision", "the tunnel's refusal", denied);
    answer
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn switch_of_protocols_is_refused_where_opaque_is_denied() {
    for protocol in ["websocket", "h2c"] {
        let answer = asks(NO_TUNNELS, &upgrade(protocol));
        assert_eq!(answer.status(), 502, "{protocol}");
        assert!(answer.text().contains("default:opaque"), "{protocol}: {}", answer.text());
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn switch_of_protocols_that_was_not_asked_for_is_refused() {
    for rules in [NO_RULES, NO_TUNNELS] {
        let get = asks(rules, b"GET /mcp HTTP/1.1\r\nhost: bank.test\r\n\r\n");
        assert_eq!(get.status(), 502);
        assert!(get.text().contains("unsolicited_upgrade"), "{}", get.text());
        let call = asks(rules, &mcp::legacy(&mcp::call(1, "echo", json!({})))).messages();
        let refusal = mcp::refusal(mcp::of_id(&call, 1)).expect("the call is answered in protocol");
        assert!(refusal.contains("unsolicited_upgrade"), "{refusal}");
    }
}

/// Whether both ends of a tunnel hear each other.
fn works(agent: &mut RawAgent, conn: &mut RawConn, server: &RawServer) {
    agent.send(conn, b"more of it\r\n\r\n").expect("send");
    let heard =
        agent.so_far(conn, |message| message.text().ends_with("more of it\r\n\r\n")).expect("an echo");
    assert!(heard.start.is_empty() || heard.start.contains("more of it"), "{}", heard.start);
    assert!(server.saw("more of it"));
}

/// The agent's connection is cut, and what it says afterwards gets nowhere.
fn is_cut(daemon: &Daemon, agent: &mut RawAgent, conn: &mut RawConn, server: &RawServer) {
    daemon.cli().stop(&["agent=coder"], "refuse");
    let end = agent.send(conn, b"after the stop").and_then(|()| agent.to_end(conn));
    assert_ne!(end.as_ref().err().map(io::Error::kind), Some(io::ErrorKind::TimedOut), "it ends");
    let connection = record(daemon);
    assert_eq!((&connection["class"], &connection["cause"]), (&json!("opaque"), &json!("operator_stop")));
    assert!(!server.saw("after the stop"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn switch_of_protocols_that_is_allowed_becomes_a_tunnel_that_a_stop_cuts() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = switches(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &upgrade("websocket")).expect("send");
    assert_eq!(agent.head(&mut conn).expect("an answer").status(), 101);
    works(&mut agent, &mut conn, &server);
    assert!(server.saw("through the tunnel"), "what was said ahead of the switch");
    is_counted(&daemon, "opaque");
    is_cut(&daemon, &mut agent, &mut conn, &server);
}

/// A mail server: it greets, and then says everything twice.
fn greets(world: &World) -> RawServer {
    RawServer::talks(world, |talk| {
        talk.write(b"220 mail.test at your service\r\n\r\n")?;
        while let Some(bytes) = talk.read()? {
            talk.write(&[&*bytes, &*bytes].concat())?;
        }
        Ok(())
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn server_that_speaks_first_is_heard_counted_and_cut_by_a_stop() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = greets(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let greeting = agent.head(&mut conn).expect("it is heard before the agent says a word");
    assert_eq!(greeting.start, "220 mail.test at your service");
    works(&mut agent, &mut conn, &server);
    is_counted(&daemon, "opaque");
    is_cut(&daemon, &mut agent, &mut conn, &server);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn server_that_speaks_first_is_not_heard_where_opaque_is_denied() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TUNNELS);
    let server = greets(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let end = agent.to_end(&mut conn).expect_err("a reset, which nobody takes for an orderly end");
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(record(&daemon)["class"], "refused");
}
