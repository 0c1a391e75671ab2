//! Calls that a person must approve of: they wait with not one byte sent, and whatever ends the wait is told to the agent
//! and on record.

mod rounds;
mod told;

use std::fs;

use agent_tests::agent::RawConn;
use agent_tests::certs::{Ca, Use};
use agent_tests::cli::{Answer, Cli};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::records::rules;
use agent_tests::{Daemon, RawAgent, World, http, mcp, wait_for};
use serde_json::{Value, json};

use crate::REASON;
use crate::remote::{endpoint, port};

const RULES: &str = "
version: 1
rules:
  - id: transfers
    action: require_approval
    match: {method: tools/call, tool: [wire_transfer]}
    timeout: 60s
    reason: transfers need a person
";
const DENY: &str = "
  - {id: no-transfers, action: deny, match: {tool: wire_transfer}, reason: not today}
";

fn bank(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        let body = request.json();
        let answer = |message: &Value| {
            let text = format!("ran {}", message["params"]["name"].as_str().unwrap_or_default());
            let result = json!({"content": [{"type": "text", "text": text}]});
            json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
        };
        let body = match &body {
            Value::Array(batch) => batch.iter().map(answer).collect::<Value>(),
            one => answer(one),
        };
        reply.write(&http::response("application/json", &[], body.to_string().as_bytes()))
    })
}

/// The requests that wait for an approval.
fn waiting(daemon: &Daemon) -> Vec<Value> {
    let answer = daemon.cli().run(&["approvals"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    answer.json["approvals"].as_array().cloned().unwrap_or_default()
}

/// Waits until something waits for an approval; answers its id and all of it.
fn asked(daemon: &Daemon) -> (String, Value) {
    let asked = wait_for("a request for an approval", || waiting(daemon).into_iter().next());
    (asked["approval"].as_str().expect("an id").to_owned(), asked)
}

fn decide(cli: &Cli, verb: &str, id: &str) -> Answer {
    cli.run(&[verb, id, "--reason", REASON])
}

fn approve(daemon: &Daemon, id: &str) {
    let answer = decide(daemon.cli(), "approve", id);
    assert_eq!((answer.code, &answer.json["outcome"]), (0, &json!("approved")), "{answer:?}");
}

fn error(answer: &Answer) -> &str {
    assert_eq!(answer.code, 1, "{answer:?}");
    answer.json["error"].as_str().unwrap_or_default()
}

/// An agent that has asked for a transfer.
fn transfer(world: &World, server: &RawServer) -> (RawAgent, RawConn) {
    let mut agent = RawAgent::start(world, "coder");
    let conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &mcp::legacy(&mcp::call(7, "wire_transfer", json!({"amount": 5000})))).expect("send");
    (agent, conn)
}

/// How its call was refused.
fn refusal(agent: &mut RawAgent, conn: &mut RawConn) -> String {
    let messages = agent.message(conn).expect("the call is answered").messages();
    mcp::refusal(mcp::of_id(&messages, 7)).expect("with a refusal")
}

fn wait_outcome(daemon: &Daemon, id: &str, outcome: &str) -> Value {
    let is = |record: &Value| record["approval"] == id && record["outcome"] == outcome;
    daemon.records().wait("approval", outcome, is)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn call_goes_on_once_a_person_has_approved_of_it() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let (id, asked) = asked(&daemon);
    assert!(id.starts_with("apr-"), "{id}");
    assert_eq!((&asked["agent"], &asked["server"]), (&json!("coder"), &json!("bank.test")), "{asked}");
    let rule = &asked["calls"][0]["rules"][0];
    assert_eq!((&rule["rule"], &rule["reason"]), (&json!("transfers"), &json!("transfers need a person")));
    assert_eq!(asked["calls"][0]["asks"], json!(null), "{asked}");
    assert!(!server.saw("wire_transfer"), "no byte of it has left");
    assert_eq!(daemon.metrics().value("interlock_approvals_pending", &[]), 1.0);
    assert_eq!(daemon.cli().run(&["status"]).json["approvals"], 1);
    assert!(daemon.cli().words(&["approvals"]).contains(&id));
    let shown = daemon.cli().run(&["approvals", "show", &id]).json;
    assert_eq!(shown["calls"][0]["asks"]["json"], r#"{"amount":5000}"#, "{shown}");
    assert!(daemon.cli().words(&["approvals", "show", &id]).contains(r#"arguments {"amount":5000}"#));

    approve(&daemon, &id);
    let messages = agent.message(&mut conn).expect("an answer").messages();
    assert_eq!(mcp::of_id(&messages, 7)["result"]["content"][0]["text"], "ran wire_transfer");
    assert_eq!(waiting(&daemon), [json!(null); 0]);
    assert_eq!(daemon.metrics().value("interlock_approvals_pending", &[]), 0.0);
    assert_eq!(daemon.metrics().value("interlock_approvals_total", &[("outcome", "approved")]), 1.0);
    let decision = daemon.records().decision("wire_transfer", "allow");
    assert_eq!((&decision["approval"], rules(&decision)), (&json!(id), vec!["transfers"]));
    assert_eq!(decision["by"]["uid"], 0);
    assert_eq!(decision["decision"], asked["calls"][0]["decision"]);
    assert_eq!(daemon.records().of("decision").len(), 1, "one decision on one message");
    for outcome in ["asked", "approved"] {
        let record = wait_outcome(&daemon, &id, outcome);
        assert_eq!(record["calls"][0]["arguments_digest"], decision["arguments_digest"], "{record}");
    }
    let records: String = daemon.records().all().iter().map(Value::to_string).collect();
    assert!(!records.contains("5000"), "the arguments are not in the records");

    for verb in ["approve", "refuse"] {
        let again = decide(daemon.cli(), verb, &id);
        assert!(error(&again).contains("is over: approved by"), "{again:?}");
    }
    let unknown = decide(daemon.cli(), "approve", "apr-7");
    assert!(error(&unknown).contains("no approval \"apr-7\" waits here"), "{unknown:?}");
    error(&daemon.cli().run(&["approvals", "show", &id]));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn refused_call_is_told_who_has_refused_it() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let (id, _) = asked(&daemon);
    assert_eq!(decide(daemon.cli(), "refuse", &id).json["outcome"], "refused");
    let refusal = refusal(&mut agent, &mut conn);
    for part in ["transfers need a person", &id, REASON, "rule transfers", "refused"] {
        assert!(refusal.contains(part), "{refusal}");
    }
    assert!(!server.saw("wire_transfer"));
    agent.send(&conn, &mcp::legacy(&mcp::call(8, "echo", json!({})))).expect("the connection is in order");
    assert!(agent.message(&mut conn).expect("an answer").text().contains("ran echo"));
    let decision = daemon.records().decision("wire_transfer", "deny");
    assert_eq!((&decision["approval"], &decision["by"]["uid"]), (&json!(id), &json!(0)), "{decision}");
    wait_outcome(&daemon, &id, "refused");
    let labels = [("rule", "transfers"), ("reason", "approval_refused")];
    assert_eq!(daemon.metrics().value("interlock_denials_total", &labels), 1.0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn call_that_nobody_decides_on_is_refused_in_time() {
    let world = World::new();
    let daemon = Daemon::start(&world, &RULES.replace("60s", "1s"));
    let server = bank(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let refusal = refusal(&mut agent, &mut conn);
    assert!(refusal.contains("nobody has decided") && refusal.contains("within 1s"), "{refusal}");
    assert!(!server.saw("wire_transfer"));
    let decision = daemon.records().decision("wire_transfer", "deny");
    let id = decision["approval"].as_str().expect("an approval");
    wait_outcome(&daemon, id, "timed_out");
    let late = decide(daemon.cli(), "approve", id);
    assert!(error(&late).contains("nobody had decided in time"), "{late:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_ends_the_wait_and_no_byte_has_left() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let (id, asked) = asked(&daemon);
    let (stop, answer) = daemon.cli().stop(&["agent=coder", "tool=wire_transfer"], "refuse");
    assert_eq!(answer.code, 0, "every fate is known: {answer:?}");
    let caught = &answer.json["calls"][0];
    assert_eq!(
        (&caught["fate"], &caught["tool"]),
        (&json!("refused"), &json!("wire_transfer")),
        "{answer:?}"
    );
    assert_eq!(caught["decision"], asked["calls"][0]["decision"]);
    let refusal = refusal(&mut agent, &mut conn);
    assert!(refusal.contains(&stop) && refusal.contains(REASON), "{refusal}");
    let late = decide(daemon.cli(), "approve", &id);
    assert!(error(&late).contains("withdrawn: operator_stop"), "{late:?}");
    let record = wait_outcome(&daemon, &id, "withdrawn");
    assert_eq!((&record["cause"], &record["stop"]), (&json!("operator_stop"), &json!(stop)));
    let decision = daemon.records().decision("wire_transfer", "deny");
    assert_eq!((&decision["stop"], &decision["approval"]), (&json!(stop), &json!(id)));
    assert_eq!(daemon.cli().run(&["stops", "show", &stop]).json["refused"]["proxy"], 0);

    daemon.cli().release(&stop);
    agent.send(&conn, &mcp::legacy(&mcp::call(8, "echo", json!({})))).expect("the connection is in order");
    assert!(agent.message(&mut conn).expect("an answer").text().contains("ran echo"));
    assert!(!server.saw("wire_transfer"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_that_leaves_withdraws_what_it_has_asked_for() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let (mut agent, conn) = transfer(&world, &server);
    let (closed, _) = asked(&daemon);
    // What it has sent behind must not hide its end.
    agent.send(&conn, &[b'\n'; 32 * 1024]).expect("send");
    agent.close(conn).expect("close");
    assert_eq!(wait_outcome(&daemon, &closed, "withdrawn")["cause"], "agent_closed");
    assert_eq!(waiting(&daemon), [json!(null); 0]);

    let (_agent, _conn) = transfer(&world, &server);
    let (cancelled, _) = asked(&daemon);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    let mut other = RawAgent::start(&world, "coder");
    let mut conn = other.open(server.address()).expect("a connection");
    other.send(&conn, &mcp::legacy(&cancel)).expect("send");
    assert_eq!(other.message(&mut conn).expect("an answer").status(), 202);
    assert_eq!(wait_outcome(&daemon, &cancelled, "withdrawn")["cause"], "agent_cancelled");
    assert!(!server.saw("wire_transfer"));
    let denied = |record: &Value| record["approval"] == cancelled.as_str() && record["verdict"] == "deny";
    daemon.records().wait("decision", "one for it, too", denied);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn rules_of_the_moment_hold_for_what_a_person_has_approved_of() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let (id, _) = asked(&daemon);
    let reloaded = |rules: String| {
        let before = daemon.metrics().value("interlock_policy_reloads_total", &[]);
        fs::write(daemon.rules(), rules).expect("write the rules");
        daemon.metrics().wait("interlock_policy_reloads_total", &[], before + 1.0);
    };
    reloaded(format!("{RULES}{DENY}"));
    approve(&daemon, &id);
    let refused = refusal(&mut agent, &mut conn);
    assert!(refused.contains("no-transfers") && refused.contains("not today"), "{refused}");
    let decision = daemon.records().decision("wire_transfer", "deny");
    assert_eq!(rules(&decision), ["transfers", "no-transfers"]);

    // A rule that came meanwhile asks again; the approval for the first one counts on.
    reloaded(RULES.to_owned());
    let (mut agent, mut conn) = transfer(&world, &server);
    let (first, one) = asked(&daemon);
    reloaded(
        RULES.to_owned()
            + &RULES[RULES.find("  - id").expect("a rule")..].replace("id: transfers", "id: second"),
    );
    approve(&daemon, &first);
    let (second, other) = asked(&daemon);
    assert_ne!(first, second);
    assert_eq!(other["calls"][0]["rules"].as_array().map(Vec::len), Some(1), "{other}");
    assert_eq!(other["calls"][0]["rules"][0]["rule"], "second");
    assert_eq!(other["calls"][0]["decision"], one["calls"][0]["decision"]);
    assert!(!server.saw("wire_transfer"));
    approve(&daemon, &second);
    assert!(agent.message(&mut conn).expect("an answer").text().contains("ran wire_transfer"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn no_agent_approves_of_anything() {
    let world = World::new();
    let ca = Ca::new(&world.path("."), "site");
    let gate = ca.issue("gate", Use::Server(&["localhost"]));
    let daemon = Daemon::start_with(&world, RULES, &endpoint("127.0.0.1:0", &gate, ca.file()));
    let server = bank(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let (id, _) = asked(&daemon);
    for verb in ["approve", "refuse"] {
        let command = daemon.cli().command(&[verb, &id, "--reason", "let me"]);
        assert!(!world.start_agent("sibling", &command).wait().success());
    }
    daemon.records().wait("intrusion", "the try", |record| record["order"].to_string().contains("/approve"));
    assert_eq!(asked(&daemon).0, id, "it still waits");

    let url = format!("https://localhost:{}", port(&daemon));
    let alice = Cli::remote(&url, ca.file(), &ca.issue("alice", Use::Client));
    assert_eq!(alice.run(&["approvals", "show", &id]).json["approval"], id.as_str());
    let answer = decide(&alice, "approve", &id);
    assert_eq!((answer.code, &answer.json["by"]["user"]), (0, &json!("alice")), "{answer:?}");
    assert!(agent.message(&mut conn).expect("an answer").text().contains("ran wire_transfer"));
    let decision = daemon.records().decision("wire_transfer", "allow");
    assert!(decision["by"]["certificate"].is_object(), "{decision}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn batch_is_approved_as_one() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let batch = json!([mcp::call(1, "echo", json!({})), mcp::call(2, "wire_transfer", json!({"amount": 1}))]);
    let mut send = || {
        let conn = agent.open(server.address()).expect("a connection");
        agent.send(&conn, &mcp::legacy(&batch)).expect("send");
        let (id, asked) = asked(&daemon);
        let asks = asked["calls"]
            .as_array()
            .expect("calls")
            .iter()
            .map(|call| call["rules"].as_array().map(Vec::len));
        assert_eq!(asks.collect::<Vec<_>>(), [Some(0), Some(1)], "{asked}");
        (id, conn)
    };
    let (first, mut refused) = send();
    decide(daemon.cli(), "refuse", &first);
    let (second, mut approved) = {
        wait_for("the answer", || waiting(&daemon).is_empty().then_some(()));
        send()
    };
    let messages = agent.message(&mut refused).expect("an answer").messages();
    let told = |id: u32| mcp::refusal(mcp::of_id(&messages, id)).expect("a refusal");
    assert!(told(1).contains("same batch") && told(2).contains("refused its approval"), "{messages:?}");
    assert!(!server.saw("wire_transfer") && !server.saw("echo"));
    approve(&daemon, &second);
    let messages = agent.message(&mut approved).expect("an answer").messages();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(server.saw("wire_transfer") && server.saw("echo"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn wait_ends_with_the_daemon_and_ids_are_never_used_twice() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let (first, _) = asked(&daemon);
    daemon.stop();
    let refused = refusal(&mut agent, &mut conn);
    assert!(refused.contains("withdrawn: drain"), "{refused}");
    assert_eq!(wait_outcome(&daemon, &first, "withdrawn")["cause"], "drain");

    daemon.restart(&world);
    let (mut agent, mut conn) = transfer(&world, &server);
    let (second, _) = asked(&daemon);
    assert_ne!(first, second);
    assert!(error(&decide(daemon.cli(), "approve", &first)).contains("no approval"));
    daemon.crash();
    assert!(agent.message(&mut conn).is_err(), "the call is lost with its connection");
    assert!(!server.saw("wire_transfer"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_that_asks_for_too_much_is_refused() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    let request = mcp::legacy(&mcp::call(7, "wire_transfer", json!({})));
    let mut conns: Vec<RawConn> = Vec::new();
    for _ in 0..100 {
        let conn = agent.open(server.address()).expect("a connection");
        agent.send(&conn, &request).expect("send");
        conns.push(conn);
    }
    daemon.metrics().wait("interlock_approvals_pending", &[], 100.0);
    let mut conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, &request).expect("send");
    let refused = refusal(&mut agent, &mut conn);
    assert!(refused.contains("too many calls wait for an approval"), "{refused}");
    let (mut sibling, mut other) = {
        let mut sibling = RawAgent::start(&world, "sibling");
        let other = sibling.open(server.address()).expect("a connection");
        sibling.send(&other, &request).expect("send");
        (sibling, other)
    };
    let is_siblings = |asked: &Value| asked["agent"] == "sibling";
    let asked = wait_for("the sibling's", || waiting(&daemon).into_iter().find(is_siblings));
    approve(&daemon, asked["approval"].as_str().expect("an id"));
    assert!(sibling.message(&mut other).expect("an answer").text().contains("ran wire_transfer"));
}
