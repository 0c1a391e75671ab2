//! Other JSON, and no JSON at all, on connections that begin like lines.

use agent_tests::proxy::Proxy;
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::json;

use super::{Session, answers, serves};
use crate::{NO_RULES, NO_TRANSFERS, REASON};

/// A server that gives back what it gets.
fn echoes(world: &World) -> RawServer {
    RawServer::talks(world, |talk| {
        while let Some(bytes) = talk.read()? {
            talk.write(&bytes)?;
        }
        Ok(())
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_is_no_json_rpc_flows_as_it_comes_and_needs_no_line_ends() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = echoes(&world);
    let mut agent = RawAgent::start(&world, "coder");
    for said in [
        &b"{\"level\":\"info\",\"message\":\"{\"}\n"[..],
        b"{\"level\":\"info\"}",
        b"[\"tag\",[[1,{\"a\":1}]]][\"tag\",[]]",
        b"{\"version\":\"1.1\"}\0{\"version\":\"1.1\"}\0",
        b"[INFO] it begins, {\n",
        b"\r\nGET / HTTP/1.0\r\n",
        b"{\"id\":1,\"method\":\"mining.subscribe\",\"jsonrpc\":\"2.0\"}",
        b"{\"id\":1}\x00\xff\xfe\x80",
    ] {
        for pieces in [said.len(), 1] {
            let mut conn = agent.open(server.address()).expect("a connection");
            agent.send_in(pieces, &conn, said).expect("send");
            let back = agent.bytes(&mut conn, said.len());
            let back = back.unwrap_or_else(|error| panic!("{}: {error}", said.escape_ascii()));
            assert_eq!(back, said, "{}", said.escape_ascii());
            agent.close(conn).expect("close");
        }
    }
    let conn = daemon.records().wait("connection", "one", |record| record["class"] == "opaque");
    assert_eq!(conn["cause"], "agent_closed", "{conn}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn nothing_that_goes_before_hides_a_call() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, _says) = serves(&world, answers);
    let call = mcp::call(7, "wire_transfer", json!({"amount": "4242"})).to_string();
    for before in [
        "{\"log\":1}\n",
        "\n",
        "   ",
        "\t\r\n",
        "[INFO] x\n",
        "{\"log\":1}\n[1,2]\n\n",
        "{\"id\":1,\"method\":\"x\",\"jsonrpc\":\"2.0\"}\n",
    ] {
        let mut session = Session::open(&world, "coder", &server);
        session.send(before.as_bytes());
        std::thread::sleep(std::time::Duration::from_millis(30));
        session.send(format!("{call}\n").as_bytes());
        assert!(session.refused(7).contains("transfers need a person"), "{before:?}");
    }
    // Behind something else in its line it is no message to every reader, and so to none.
    for before in ["{\"log\":1}", "[1]  ", "\u{feff}", "{\"log\":1}\0"] {
        let mut session = Session::open(&world, "coder", &server);
        session.send(before.as_bytes());
        std::thread::sleep(std::time::Duration::from_millis(30));
        session.send(format!("{call}\n").as_bytes());
        let answer = session.next();
        assert!(
            answer["error"]["message"].as_str().is_some_and(|text| text.contains("unambiguously")),
            "{before:?}: {answer}"
        );
    }
    assert!(!server.saw("4242"));
    daemon.records().decision("wire_transfer", "deny");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_cannot_be_read_obeys_its_default_and_stops() {
    let world = World::new();
    let daemon = Daemon::start(&world, "version: 1\ndefaults: {opaque: deny}\nrules: []\n");
    let (server, _says) = serves(&world, answers);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, b"{\"log\":1}\n").expect("send");
    assert!(agent.to_end(&mut conn).is_err() || server.bytes().is_empty());
    daemon.records().wait("decision", "the refusal", |record| record["rules"] == json!(["default:opaque"]));
    assert!(server.bytes().is_empty());
    // Beside calls only what cannot be read is refused.
    let mut session = Session { conn: agent.open(server.address()).expect("a connection"), agent };
    session.passes(1, "echo");
    session.send(b"{\"log\":1,\"id\":9}\n");
    let answer = session.next();
    assert_eq!(
        (&answer["id"], &answer["error"]["data"]["rule"]),
        (&json!(9), &json!("default:opaque")),
        "{answer}"
    );
    session.passes(2, "echo");
    assert!(!server.saw("log"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_cuts_what_is_no_mcp() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = echoes(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, b"{\"log\":1}\n").expect("send");
    agent.line(&mut conn).expect("it comes back");
    let (_, stopped) = daemon.cli().stop(&["agent=coder"], "refuse");
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert!(agent.to_end(&mut conn).is_err(), "a reset");
    let record = daemon.records().wait("connection", "its record", |record| record["class"] == "opaque");
    assert_eq!(record["cause"], "operator_stop", "{record}");
    assert!(stopped.json.to_string().contains(REASON));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_server_that_speaks_json_first_is_heard() {
    let world = World::new();
    let rules = "
version: 1
rules:
  - {id: no-logs, action: deny, phase: response, match: {method: notifications/message}}
  - {id: no-transfers, action: deny, match: {tool: wire_transfer}, reason: not today}
";
    let _daemon = Daemon::start(&world, rules);
    let server = RawServer::talks(&world, |talk| {
        talk.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"data\":\"a secret\"}}\n")?;
        talk.write(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/hello\"}\n")?;
        talk.read_to("for ever")
    });
    let mut session = Session::open(&world, "coder", &server);
    assert_eq!(session.next()["method"], "notifications/hello");
    session.call(1, "wire_transfer");
    assert!(session.refused(1).contains("not today"));
    assert!(server.bytes().is_empty());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_banner_before_the_first_message_hides_nothing() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    // What a server on stdin and stdout does that prints before it serves.
    let server = RawServer::talks(&world, |talk| {
        talk.write(b"starting the bank\n")?;
        talk.read_to("\n")?;
        talk.write(format!("{}\n", super::result(&json!(1), &json!("echo"))).as_bytes())?;
        talk.read_to("for ever")
    });
    let mut session = Session::open(&world, "coder", &server);
    assert_eq!(session.next_raw(), b"starting the bank\n");
    session.passes(1, "echo");
    session.call(2, "wire_transfer");
    assert!(session.refused(2).contains("transfers need a person"));
    assert_eq!(daemon.metrics().value("interlock_connections_open", &[("class", "mcp")]), 1.0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn lines_in_the_tunnel_of_a_proxy_are_read_too() {
    let world = World::new();
    let rules = "
version: 1
rules:
  - {id: not-there, action: deny, match: {server: bank.test, tool: wire_transfer}, reason: not at the bank}
";
    let daemon = Daemon::start(&world, rules);
    let proxy = Proxy::start(&world);
    let (server, _says) = serves(&world, answers);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(proxy.address()).expect("a connection");
    let to = format!("bank.test:{}", server.address().port());
    agent.send(&conn, format!("CONNECT {to} HTTP/1.1\r\nhost: {to}\r\n\r\n").as_bytes()).expect("send");
    assert_eq!(agent.head(&mut conn).expect("an answer").status(), 200);
    let mut session = Session { agent, conn };
    session.passes(1, "echo");
    session.call(2, "wire_transfer");
    assert!(session.refused(2).contains("not at the bank"));
    session.agent.close(session.conn).expect("close");
    let record = daemon.records().wait("connection", "the tunnel", |record| record["tunnel"] == to);
    assert_eq!((&record["class"], &record["cause"]), (&json!("mcp"), &json!("agent_closed")), "{record}");
}
