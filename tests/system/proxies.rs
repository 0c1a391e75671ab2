//! Agents that reach their servers through an explicit proxy: what goes through its tunnels is judged as if it went
//! straight to the server that the proxy was told to find, and what is asked of it in absolute form by that server's name.

use std::io;

use agent_tests::agent::{Agent, RawConn, call};
use agent_tests::http::Message;
use agent_tests::proxy::Proxy;
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Daemon, Era, RawAgent, Sdk, Server, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::{NO_RULES, REASON};

/// Forbids a tool at one server, and all that nobody can read.
const RULES: &str = r#"
version: 1
defaults: {opaque: deny}
rules:
  - id: no-bank-transfers
    action: deny
    match: {server: "bank.test", tool: wire_transfer}
    reason: transfers need a person
"#;

/// An agent, a proxy, and a server behind it that answers every call.
struct Tunnels {
    agent: RawAgent,
    proxy: Proxy,
    server: RawServer,
    daemon: Daemon,
    world: World,
}

impl Tunnels {
    fn under(rules: &str) -> Self {
        let world = World::new();
        let daemon = Daemon::start(&world, rules);
        let proxy = Proxy::start(&world);
        let server = RawServer::start(&world, |request, reply| {
            if request.text().contains("slow") {
                reply.hold(|| false)
            } else if handshake(request, reply)? {
                Ok(())
            } else {
                reply.result(request, &json!({"content": []}))
            }
        });
        Self { agent: RawAgent::start(&world, "coder"), proxy, server, daemon, world }
    }

    /// Where the proxy is asked to find that name.
    fn named(&self, name: &str) -> String {
        format!("{name}:{}", self.server.address().port())
    }

    /// A connection to the proxy, and its answer to each CONNECT for these, one inside the other.
    fn connect(&mut self, authorities: &[&str]) -> (RawConn, Message) {
        let mut conn = self.agent.open(self.proxy.address()).expect("a connection");
        let mut last = None;
        for authority in authorities {
            let request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n");
            self.agent.send(&conn, request.as_bytes()).expect("send");
            let answer = self.agent.head(&mut conn).expect("an answer");
            if answer.status() != 200 {
                return (conn, answer);
            }
            last = Some(answer);
        }
        (conn, last.expect("one at least"))
    }

    fn say(&mut self, conn: &mut RawConn, request: &[u8]) -> Option<String> {
        self.agent.send(conn, request).expect("send");
        let messages = self.agent.message(conn).expect("an answer").messages();
        mcp::refusal(&messages[0])
    }

    fn connections(&self, class: &str) -> Vec<Value> {
        self.daemon.records().of("connection").into_iter().filter(|record| record["class"] == class).collect()
    }
}

/// A call in a session, to a server by that name.
fn call_at(host: &str, id: u32, tool: &str) -> Vec<u8> {
    let request = String::from_utf8(mcp::legacy(&mcp::call(id, tool, json!({})))).expect("text");
    request.replace("host: bank.test", &format!("host: {host}")).into_bytes()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn calls_in_a_tunnel_are_judged_by_the_server_at_its_end() {
    let mut tunnels = Tunnels::under(RULES);
    for (authority, host) in
        [("bank.test", "bank.test"), ("bank.test", "shop.test"), ("shop.test", "bank.test")]
    {
        let authority = tunnels.named(authority);
        let (mut conn, _) = tunnels.connect(&[&authority]);
        assert_eq!(tunnels.say(&mut conn, &call_at(host, 1, "echo")), None, "{authority}, {host}");
        let refusal = tunnels.say(&mut conn, &call_at(host, 2, "wire_transfer")).expect("refused");
        assert!(refusal.contains("no-bank-transfers"), "{authority}, {host}: {refusal}");
        assert_eq!(tunnels.say(&mut conn, &call_at(host, 3, "echo")), None, "{authority}, {host}");
        tunnels.agent.close(conn).expect("close");
    }
    let authority = tunnels.named("shop.test");
    let (mut conn, _) = tunnels.connect(&[&authority]);
    assert_eq!(tunnels.say(&mut conn, &call_at("shop.test", 1, "wire_transfer")), None, "another server");
    tunnels.agent.close(conn).expect("close");
    assert_eq!(tunnels.server.requests().len(), 7);

    // Each tunnel is on record as what it was, and so is the connection to the proxy up to there.
    wait_for("records of both", || (tunnels.connections("mcp").len() == 4).then_some(()));
    let (inside, outside) = (tunnels.connections("mcp"), tunnels.connections("http"));
    assert_eq!(inside[0]["tunnel"], tunnels.named("bank.test"));
    assert_eq!((outside.len(), &outside[0]["cause"]), (4, &json!("tunnel")));
    assert_eq!(outside[0]["tunnel"], Value::Null);
    for record in [&inside[0], &outside[0]] {
        assert_eq!(record["destination"], tunnels.proxy.address().to_string());
        assert!(
            record["bytes_to_server"].as_u64() > Some(40) && record["bytes_to_agent"].as_u64() > Some(40)
        );
    }
    assert_eq!(inside[0]["cause"], "agent_closed");
    let open = tunnels.daemon.metrics().value("interlock_connections_open", &[("class", "http")]);
    assert_eq!(open, 0.0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_is_said_ahead_of_the_proxys_answer_is_judged_too() {
    let mut tunnels = Tunnels::under(RULES);
    let connect = format!("CONNECT {} HTTP/1.1\r\n\r\n", tunnels.named("bank.test"));
    for piece in [1, usize::MAX] {
        let mut conn = tunnels.agent.open(tunnels.proxy.address()).expect("a connection");
        let both = [connect.as_bytes(), &call_at("shop.test", 1, "wire_transfer")].concat();
        tunnels.agent.send_in(piece, &conn, &both).expect("send");
        assert_eq!(tunnels.agent.head(&mut conn).expect("the proxy's answer").status(), 200);
        let messages = tunnels.agent.message(&mut conn).expect("the call's").messages();
        assert!(mcp::refusal(mcp::of_id(&messages, 1)).is_some(), "{messages:?}");
        tunnels.agent.close(conn).expect("close");
    }
    assert!(!tunnels.server.saw("wire_transfer"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn tunnels_to_a_forbidden_server_are_not_asked_for() {
    let rules =
        "version: 1\nrules: [{id: no-bank, action: deny, match: {server: bank.test}, reason: not there}]\n";
    let mut tunnels = Tunnels::under(rules);
    for authority in [tunnels.named("bank.test"), tunnels.named("BANK.test.")] {
        let (_conn, answer) = tunnels.connect(&[&authority]);
        assert_eq!(answer.status(), 403, "{authority}");
    }
    for authority in ["bank.test", "x@bank.test:80", "0x0a4d0002:80", "bank.test:080"] {
        let (_conn, answer) = tunnels.connect(&[authority]);
        assert_eq!(answer.status(), 400, "{authority}");
    }
    assert_eq!(tunnels.proxy.asked(), [""; 0]);
    let (_conn, answer) = tunnels.connect(&["nobody.test:80"]);
    assert_eq!(answer.status(), 502, "the proxy's own answer");
}

/// The first bytes of a TLS client (RFC 8446, section 4.1.2) that names no server.
fn hello() -> Vec<u8> {
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let length = u8::try_from(body.len()).expect("it is short");
    [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length][..], &body].concat()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_cannot_be_read_in_a_tunnel_is_refused_where_opaque_is_denied() {
    let mut tunnels = Tunnels::under(RULES);
    for (class, said) in [("tls", hello()), ("opaque", b"\x00\x01 not HTTP".to_vec())] {
        let authority = tunnels.named("shop.test");
        let (mut conn, _) = tunnels.connect(&[&authority]);
        tunnels.agent.send(&conn, &said).expect("send");
        let end = tunnels.agent.to_end(&mut conn).expect_err("it is cut");
        assert_eq!(end.kind(), io::ErrorKind::ConnectionReset, "{class}");
        let refused = |record: &Value| record["verdict"] == "deny" && record["method"] == class;
        let decision = tunnels.daemon.records().wait("decision", class, refused);
        assert_eq!(decision["server"], authority, "{class}");
    }
    assert_eq!(tunnels.server.bytes(), b"");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_cannot_be_read_in_a_tunnel_passes_where_it_may_and_is_cut_by_stops() {
    let mut tunnels = Tunnels::under(NO_RULES);
    let greets = RawServer::talks(&tunnels.world, |talk| {
        talk.write(b"220 mail.test at your service\r\n\r\n")?;
        while let Some(bytes) = talk.read()? {
            talk.write(&bytes)?;
        }
        Ok(())
    });
    let (mut conn, _) = tunnels.connect(&[&format!("mail.test:{}", greets.address().port())]);
    let greeting = tunnels.agent.head(&mut conn).expect("it speaks first");
    assert_eq!(greeting.start, "220 mail.test at your service");
    tunnels.agent.send(&conn, b"HELO\r\n\r\n").expect("send");
    assert_eq!(tunnels.agent.head(&mut conn).expect("an echo").start, "HELO");
    tunnels.daemon.cli().stop(&["server=mail.test"], "refuse");
    assert!(tunnels.agent.to_end(&mut conn).is_err(), "it is cut");
    let records = tunnels.daemon.records();
    let cut = records.wait("connection", "the tunnel", |record| record["cause"] == "operator_stop");
    assert_eq!(cut["class"], "opaque");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn tunnels_in_tunnels_are_read_to_a_depth() {
    let mut tunnels = Tunnels::under(RULES);
    let proxy = format!("proxy.test:{}", tunnels.proxy.address().port());
    let bank = tunnels.named("bank.test");
    let (mut conn, _) = tunnels.connect(&[&proxy, &bank]);
    assert_eq!(tunnels.say(&mut conn, &call_at("shop.test", 1, "echo")), None);
    assert!(tunnels.say(&mut conn, &call_at("shop.test", 2, "wire_transfer")).is_some());

    let asked = tunnels.proxy.asked().len();
    let (mut conn, answer) = tunnels.connect(&[&proxy, &proxy, &bank]);
    assert_eq!(answer.status(), 400);
    assert!(
        String::from_utf8_lossy(&tunnels.agent.to_end(&mut conn).expect("why")).contains("nested_tunnel")
    );
    assert_eq!(tunnels.proxy.asked().len(), asked + 2);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn call_in_a_tunnel_is_stopped_and_its_server_told_through_another() {
    let mut tunnels = Tunnels::under(NO_RULES);
    let bank = tunnels.named("bank.test");
    let (mut conn, _) = tunnels.connect(&[&bank]);
    tunnels.agent.send(&conn, &call_at("bank.test", 1, "slow")).expect("send");
    tunnels.server.wait("the call", |request| request.text().contains("slow"));
    let (stop, _) = tunnels.daemon.cli().stop(&[&format!("server={bank}")], "refuse");
    let messages = tunnels.agent.message(&mut conn).expect("an answer").messages();
    assert!(mcp::refusal(mcp::of_id(&messages, 1)).is_some_and(|text| text.contains(REASON)), "{messages:?}");
    let told = |request: &Message| request.text().contains("notifications/cancelled");
    tunnels.server.wait("the cancel", told);
    assert_eq!(tunnels.proxy.asked(), vec![format!("CONNECT {bank} HTTP/1.1"); 2], "by way of the proxy");

    assert!(
        tunnels.say(&mut conn, &call_at("bank.test", 2, "echo")).is_some(),
        "the stop holds in the tunnel"
    );
    tunnels.daemon.cli().release(&stop);
    assert_eq!(tunnels.say(&mut conn, &call_at("bank.test", 3, "echo")), None, "and it goes on");
    assert_eq!(tunnels.proxy.asked().len(), 3);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn sdk_client_behind_a_proxy_is_judged_by_the_server_it_names() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let (proxy, server) = (Proxy::start(&world), Server::start(&world, Sdk::Py2));
    let url = server.url().replace(&server.address().ip().to_string(), "bank.test");
    let script = json!([call("echo", json!({"text": "hi"})), call("wire_transfer", json!({"amount": 5}))]);
    let mut command = vec!["env".to_owned(), format!("http_proxy=http://{}", proxy.address())];
    command.extend(Agent::command(Sdk::Py2, Era::Legacy, &url, &script));
    let agent = Agent::of(world.start_agent("coder", &command));
    agent.connected();
    let steps = agent.rest();
    assert!(!steps[0].is_error, "{:?}", steps[0]);
    assert!(steps[1].is_error && steps[1].text.contains("no-bank-transfers"), "{:?}", steps[1]);
    assert!(proxy.asked().iter().all(|line| line.contains("http://bank.test:")), "{:?}", proxy.asked());
    let decision = daemon.records().decision("wire_transfer", "deny");
    assert!(decision["server"].as_str().is_some_and(|server| server.starts_with("bank.test:")), "{decision}");
}
