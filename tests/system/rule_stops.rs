//! Rules that stop an agent: when they do, whom they leave alone, and that what they make is an ordinary stop.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use agent_tests::agent::{Agent, RawConn, call, wait_line};
use agent_tests::cli::Cli;
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::records::rules;
use agent_tests::{Daemon, Era, RawAgent, Sdk, Server, World, http, mcp, wait_for};
use serde_json::{Value, json};

/// Three denials stop the agent; what denies is another rule's, or a default's, affair.
const RUNAWAY: &str = "
version: 1
defaults: {opaque: deny}
rules:
  - id: no-transfers
    action: deny
    match: {method: tools/call, tool: [wire_transfer]}
    reason: transfers need a person
  - id: runaway
    action: stop
    match: {agent: '*'}
    after: {denials: 3, within: 60s}
    reason: it does not take no for an answer
";

const REASON: &str = "it does not take no for an answer";

fn bank(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? { Ok(()) } else { reply.result(request, &json!({"content": []})) }
    })
}

/// A raw agent and a connection of it.
struct Caller {
    agent: RawAgent,
    conn: RawConn,
}

impl Caller {
    fn start(world: &World, name: &str, server: &RawServer) -> Self {
        let mut agent = RawAgent::start(world, name);
        let conn = agent.open(server.address()).expect("a connection");
        Self { agent, conn }
    }

    /// Calls a tool; answers the refusal, if it is one.
    fn call(&mut self, tool: &str) -> Option<String> {
        self.agent.send(&self.conn, &mcp::legacy(&mcp::call(1, tool, json!({})))).expect("send");
        let messages = self.agent.message(&mut self.conn).expect("an answer").messages();
        mcp::refusal(mcp::of_id(&messages, 1))
    }

    /// Makes a call that the rule denies.
    fn is_denied(&mut self) {
        let refusal = self.call("wire_transfer").expect("a refusal");
        assert!(refusal.contains("no-transfers"), "by the rule and not by a stop: {refusal}");
    }
}

/// Waits for the `count`th stop of a rule.
fn stopped(daemon: &Daemon, rule: &str, count: usize) -> Value {
    let by = format!("rule:{rule}");
    wait_for(&format!("stop {count} by {by}"), || {
        let mut stops = daemon.records().of("stop");
        stops.retain(|stop| stop["by"]["user"] == by.as_str());
        assert!(stops.len() <= count, "{stops:?}");
        stops.into_iter().nth(count - 1)
    })
}

fn in_force(daemon: &Daemon) -> Vec<Value> {
    daemon.cli().run(&["stops"]).json["stops"].as_array().expect("stops").clone()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn denials_make_an_ordinary_stop_and_after_its_release_are_counted_anew() {
    let world = World::new();
    let daemon = Daemon::start(&world, RUNAWAY);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let mut sibling = Caller::start(&world, "sibling", &server);
    (0..2).for_each(|_| coder.is_denied());
    assert_eq!(coder.call("echo"), None, "two denials are two denials");
    sibling.is_denied();
    assert!(in_force(&daemon).is_empty(), "each agent has its own count");

    coder.is_denied();
    let stop = stopped(&daemon, "runaway", 1);
    assert_eq!(stop["by"], json!({"user": "rule:runaway"}), "no person: {stop}");
    assert_eq!((&stop["scope"], &stop["level"]), (&json!({"agent": "coder"}), &json!("refuse")), "{stop}");
    assert_eq!((&stop["reason"], &stop["in_force"]), (&json!(REASON), &json!(true)), "{stop}");
    assert_eq!(stop["agents"][0]["connections"], 1, "the connection stays, as with any stop: {stop}");
    let denials = daemon.records().of("decision");
    let denials: Vec<&Value> =
        denials.iter().filter(|record| record["agent"] == "coder" && record["verdict"] == "deny").collect();
    assert_eq!(rules(denials[1]), ["no-transfers"]);
    assert_eq!(rules(denials[2]), ["no-transfers", "runaway"], "the one that did it");

    let refusal = coder.call("echo").expect("stopped");
    assert!(refusal.contains(REASON) && refusal.contains("a rule stopped this agent"), "{refusal}");
    assert_eq!(sibling.call("echo"), None, "the sibling goes on");
    let stops = in_force(&daemon);
    assert_eq!((stops.len(), &stops[0]["stop"]["by"]["user"]), (1, &json!("rule:runaway")), "{stops:?}");
    assert_eq!(daemon.metrics().value("interlock_stops_total", &[("level", "refuse")]), 1.0);
    assert_eq!(daemon.metrics().value("interlock_stops_active", &[("level", "refuse")]), 1.0);
    (0..3).for_each(|_| assert!(coder.call("wire_transfer").expect("stopped").contains(REASON)));

    assert_eq!(daemon.cli().release(stop["stop"].as_str().expect("an id")).code, 0);
    (0..2).for_each(|_| coder.is_denied());
    assert_eq!(coder.call("echo"), None, "the count has started again");
    coder.is_denied();
    stopped(&daemon, "runaway", 2);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn one_forbidden_call_is_refused_and_isolates_its_agent() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
rules:
  - {id: tripwire, action: stop, match: {tool: wire_transfer}, level: isolate, reason: nobody calls this}
",
    );
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let mut sibling = Caller::start(&world, "sibling", &server);
    assert_eq!(coder.call("echo"), None);
    coder.agent.send(&coder.conn, &mcp::legacy(&mcp::call(1, "wire_transfer", json!({})))).expect("send");
    let stop = stopped(&daemon, "tripwire", 1);
    assert_eq!((&stop["level"], &stop["agents"][0]["isolated"]), (&json!("isolate"), &json!(true)), "{stop}");
    let decision = daemon.records().decision("wire_transfer", "deny");
    assert_eq!((rules(&decision), &decision["stop"]), (vec!["tripwire"], &Value::Null), "{decision}");
    assert!(!server.saw("wire_transfer"));
    assert!(coder.agent.open(server.address()).is_err(), "the agent has no network");
    assert_eq!(sibling.call("echo"), None, "the sibling has");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_rule_may_go_as_far_as_to_kill() {
    let world = World::new();
    let daemon = Daemon::start(&world, &RUNAWAY.replace("reason: it", "level: kill\n    reason: it"));
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    (0..2).for_each(|_| coder.is_denied());
    coder.agent.send(&coder.conn, &mcp::legacy(&mcp::call(1, "wire_transfer", json!({})))).expect("send");
    let stop = stopped(&daemon, "runaway", 1);
    assert_eq!(stop["agents"][0]["process_list"][0]["done"], "killed", "{stop}");
    assert!(!coder.agent.process().wait().success(), "its process is dead");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn the_stop_outlives_the_daemon_and_the_count_does_not() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, RUNAWAY);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    (0..2).for_each(|_| coder.is_denied());
    daemon.crash();
    daemon.restart(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    (0..2).for_each(|_| coder.is_denied());
    assert_eq!(coder.call("echo"), None, "counted anew");
    coder.is_denied();
    stopped(&daemon, "runaway", 1);
    daemon.crash();
    daemon.restart(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let refusal = coder.call("wire_transfer").expect("still stopped");
    assert!(refusal.contains("rule:runaway"), "{refusal}");
    assert_eq!(in_force(&daemon).len(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn observed_rules_say_what_they_would_stop_and_stop_nothing() {
    let world = World::new();
    let observe = RUNAWAY.replace("action: stop", "action: stop\n    mode: observe");
    let rule = "  - {id: tripwire, action: stop, mode: observe, match: {tool: echo}}\n";
    let daemon = Daemon::start(&world, &format!("{observe}{rule}"));
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    (0..3).for_each(|_| coder.is_denied());
    assert_eq!(coder.call("echo"), None, "still not stopped");
    coder.is_denied();

    let would = |verdict: &str| -> Vec<Value> {
        let decisions = daemon.records().of("decision");
        let decisions = decisions.iter().filter(|record| record["verdict"] == verdict);
        decisions.map(|record| record["would_stop"].clone()).collect()
    };
    daemon.records().decision("echo", "would_deny");
    let full = json!(["runaway"]);
    assert_eq!(would("deny"), [Value::Null, Value::Null, full.clone(), full], "from the third on");
    assert_eq!(would("would_deny"), [json!(["tripwire"])]);
    assert!(daemon.records().of("stop").is_empty() && in_force(&daemon).is_empty());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn racing_connections_make_one_stop() {
    let world = World::new();
    let daemon = Daemon::start(&world, RUNAWAY);
    let server = bank(&world);
    let is_stopped = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (mut coder, is_stopped) = (Caller::start(&world, "coder", &server), is_stopped.clone());
            thread::spawn(move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    coder.call("wire_transfer").expect("refused, by the rule or by the stop");
                }
            })
        })
        .collect();
    daemon.metrics().wait("interlock_stop_refusals_total", &[("agent", "coder")], 100.0);
    is_stopped.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| caller.join().expect("every call is answered"));
    stopped(&daemon, "runaway", 1);
    assert_eq!(in_force(&daemon).len(), 1);
    assert_eq!(daemon.metrics().value("interlock_stops_total", &[]), 1.0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_cannot_be_read_is_a_denial_and_what_a_stop_refuses_is_none() {
    let world = World::new();
    let daemon = Daemon::start(&world, RUNAWAY);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let (id, _) = daemon.cli().stop(&["agent=coder", "tool=read"], "refuse");
    (0..4).for_each(|_| assert!(coder.call("read").expect("stopped").contains(&id)));
    coder.is_denied();

    let mut broken = coder.agent.open(server.address()).expect("a connection");
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping","id":2}"#;
    coder.agent.send(&broken, &http::post(body, &[])).expect("send");
    assert_eq!(coder.agent.message(&mut broken).expect("an answer").status(), 400);
    assert_eq!(coder.call("echo"), None, "a rule and a default: two denials");
    let mut opaque = coder.agent.open(server.address()).expect("a connection");
    coder.agent.send(&opaque, b"\x16\x03\x01\x00\x05hello").expect("send");
    assert!(coder.agent.message(&mut opaque).is_err(), "what cannot be read is closed");

    let stop = stopped(&daemon, "runaway", 1);
    assert_eq!(stop["scope"], json!({"agent": "coder"}));
    let opaque = daemon.records().wait("decision", "the third", |record| record["method"] == "tls");
    assert_eq!(rules(&opaque), ["default:opaque", "runaway"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn sdk_client_is_told_why_it_is_stopped() {
    let world = World::new();
    let daemon = Daemon::start(&world, RUNAWAY);
    let server = Server::start(&world, Sdk::Ts2);
    let transfer = call("wire_transfer", json!({"amount": 1}));
    let script = json!([
        transfer.clone(),
        transfer.clone(),
        transfer,
        wait_line(),
        call("echo", json!({"text": "after-stop"})),
    ]);
    let mut coder = Agent::start(&world, "coder", Sdk::Py2, Era::Auto, &server.url(), &script);
    coder.connected();
    for _ in 0..3 {
        let step = coder.step();
        assert!(step.is_error && step.text.contains("transfers need a person"), "{step:?}");
    }
    stopped(&daemon, "runaway", 1);
    coder.go();
    assert!(coder.step().ok, "the line from the test");
    let step = coder.step();
    assert!(step.is_error && step.error != "timeout" && step.text.contains(REASON), "{step:?}");
    assert!(server.started("echo").is_empty() && server.started("wire_transfer").is_empty());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root")]
fn policy_check_names_the_place_and_the_remedy() {
    let world = World::bare();
    let (cli, file) = (Cli::new(&world.path("run")), world.path("rules.yaml"));
    let check = |text: &str| {
        fs::write(&file, text).expect("write the rules");
        let answer = cli.run(&["policy", "check", &file.display().to_string()]);
        (answer.code, format!("{}{}", answer.json, answer.stderr))
    };
    assert_eq!(check(RUNAWAY), (0, json!({"rules": 2, "warnings": []}).to_string()));
    for (right, wrong, expect) in [
        ("denials: 3", "denials: 0", "rule 2 (runaway): after.denials: 0: give 1 to 1000"),
        ("denials: 3", "denial: 3", "denial"),
        ("within: 60s", "within: 48h", "no more than 24h"),
        ("action: stop", "action: deny", "`after` goes with `action: stop`"),
    ] {
        let (code, said) = check(&RUNAWAY.replace(right, wrong));
        assert_eq!(code, 64, "{said}");
        assert!(said.contains(expect) && said.contains("rules.yaml"), "{said}");
    }
}
