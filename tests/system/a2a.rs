//! A2A over HTTP+JSON (1.0, section 11) meets rules and stops as it does over JSON-RPC, with the official SDK on both sides; and
//! however a target is spelt, what its server takes it for is what is judged.

use agent_tests::agent::{Agent, Step, call};
use agent_tests::{Client, Daemon, Era, Server, World};
use serde_json::{Value, json};

use crate::hostile::{Attempt, post};
use crate::{NO_RULES, REASON};

const RULES: &str = r#"
version: 1
rules:
  - id: no-transfers
    action: deny
    match: {method: [SendMessage, SendStreamingMessage]}
    when: 'params.message.parts.exists(part, part.text.contains("transfer"))'
    reason: transfers need a person
  - {id: no-cancels, action: deny, match: {method: CancelTask}, reason: ask a person}
  - id: no-secrets
    action: deny
    phase: response
    match: {method: "Send*Message"}
    when: 'result.message.parts.exists(part, part.text.contains("secret"))'
    on_error: allow
    reason: this is not for agents
  - {id: no-keys, action: redact, phase: response, match: {method: "Send*Message"}, redact: {patterns: [cards]}}
"#;

const NO_OPERATIONS: &str = "
version: 1
rules:
  - {id: no-operations, action: deny, match: {method: [SendMessage, CancelTask]}, reason: not here}
";

fn send(text: &str) -> Value {
    call("send", json!({"text": text}))
}

fn stream(text: &str) -> Value {
    call("stream", json!({"text": text}))
}

/// What comes of a script, over both bindings.
fn run(world: &World, server: &Server, binding: &str, script: &[Value]) -> Vec<Step> {
    let url = format!("http://{}{binding}", server.address());
    Agent::start(world, "coder", Client::A2a, Era::Auto, &url, &json!(script)).rest()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn operations_meet_the_rules_over_both_bindings() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = Server::start_a2a(&world);
    for binding in ["/", "/rest"] {
        let script = [
            send("hello there"),
            stream("task one two"),
            call("get", json!({})),
            send("transfer 100"),
            call("send", json!({"text": "transfer 100", "tenant": "acme"})),
            stream("task transfer 100"),
            call("cancel", json!({})),
            send("a secret"),
            send("pay with 4111 1111 1111 1111 now"),
            send("goodbye"),
        ];
        let steps = run(&world, &server, binding, &script);
        let said = |step: usize| (steps[step].ok, &*steps[step].text);
        assert_eq!(said(0), (true, "hello there"), "{binding}");
        assert_eq!(said(1), (true, "one two done"), "{binding}");
        assert_eq!(said(2), (true, "TASK_STATE_COMPLETED"), "{binding}");
        for (step, reason) in [
            (3, "transfers need a person"),
            (4, "transfers need a person"),
            (5, "transfers need a person"),
            (6, "ask a person"),
            (7, "this is not for agents"),
        ] {
            let refused = &steps[step];
            assert!(!refused.ok && refused.text.contains(reason), "{binding}: {}", refused.line);
        }
        assert!(
            steps[8].ok && steps[8].text.starts_with("pay with [redacted"),
            "{binding}: {}",
            steps[8].line
        );
        assert_eq!(said(9), (true, "goodbye"), "{binding}");
    }
    let texts: Vec<Value> =
        server.started("execute").into_iter().map(|seen| seen.args["text"].clone()).collect();
    assert!(texts.iter().all(|text| !text.to_string().contains("transfer")), "{texts:?}");
    assert!(server.started("cancel").is_empty());

    let metrics = daemon.metrics();
    let seen = metrics.value("interlock_connections_total", &[("agent", "coder"), ("class", "a2a")]);
    assert!(seen >= 2.0, "{seen} connections");
    let denied = metrics
        .value("interlock_decisions_total", &[("agent", "coder"), ("protocol", "a2a"), ("verdict", "deny")]);
    assert_eq!(denied, 8.0, "four requests of each binding");
    let records = daemon.records();
    let ended = records.of("result").into_iter().filter(|record| record["method"] == "SendStreamingMessage");
    let outcomes: Vec<Value> = ended.map(|record| record["outcome"].clone()).collect();
    assert_eq!(outcomes, ["result"; 2], "an answer is an answer");
    let decided =
        records.wait("decision", "the task that was looked at", |record| record["method"] == "GetTask");
    assert_eq!(decided["protocol"], "a2a");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn a_stop_ends_operations_in_flight_with_its_reason() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = Server::start_a2a(&world);
    let calls = [
        ("/rest", stream("task one slow two")),
        ("/rest", send("task one slow two")),
        ("/", stream("task one slow two")),
    ];
    for (count, (binding, step)) in calls.into_iter().enumerate() {
        let url = format!("http://{}{binding}", server.address());
        let script = json!([step, send("after it")]);
        let agent = Agent::start(&world, "coder", Client::A2a, Era::Auto, &url, &script);
        server.wait("word", "end", count + 1);
        let (stop, answer) = daemon.cli().stop(&["agent=coder"], "refuse");
        assert_eq!(answer.json["calls"].as_array().map(Vec::len), Some(1), "{answer:?}");
        for step in agent.rest() {
            assert!(!step.ok && step.text.contains(REASON), "{}", step.line);
        }
        daemon.cli().release(&stop);
    }
    assert_eq!(run(&world, &server, "/rest", &[send("released")])[0].text, "released");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn operations_are_refused_however_they_are_spelt() {
    let mut attempt = Attempt::under(NO_OPERATIONS);
    let asked = |target: &str, lines: &str, body: &str| {
        let request = post(&format!("{lines}content-length: {}\r\n", body.len()), body.as_bytes());
        let request = String::from_utf8(request).expect("text");
        request.replacen("/mcp", target, 1).into_bytes()
    };
    let json = "content-type: application/json\r\n";
    let message = r#"{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}"#;
    for target in [
        "/message:send",
        "/acme/v1/message:send",
        "/message%3Asend",
        "/m%65ssage:send?x=1",
        "//x/../Message:Send/",
        "http://bank.test/message:send",
    ] {
        let refusal = attempt.refused_by("no-operations", target, &asked(target, json, message));
        assert_eq!(refusal.status(), 403, "{target}");
    }
    for target in ["/tasks/t-1:cancel", "/acme/tasks/t-1%3Acancel", "/tasks/a%2Fb:cancel"] {
        for body in ["", "{}"] {
            attempt.refused_by("no-operations", target, &asked(target, json, body));
        }
    }
    attempt.refused_by(
        "no-operations",
        "a2a+json",
        &asked("/message:send", "content-type: application/a2a+json\r\n", message),
    );

    // What cannot be read is no way around.
    let twice = r#"{"message":{},"id":1,"id":2}"#;
    let rpc = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{},"message":{"parts":[]}}"#;
    attempt.refused_by("default:undecodable", "duplicates", &asked("/message:send", json, twice));
    attempt.refused_by("default:undecodable", "two bindings", &asked("/message:send", json, rpc));
    attempt.refused_by("default:undecodable", "a form", &asked("/tasks/t-1:cancel", "", "a=1&b=2"));
    attempt.allowed("another interface", &asked("/api/tasks/7", json, r#"{"id":1,"done":true}"#));
}
