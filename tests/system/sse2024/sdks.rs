//! The clients and servers of the official SDKs over HTTP+SSE: a refused call fails in protocol, and the session goes on as if
//! nothing had happened.

use agent_tests::agent::{Agent, Step, call, list, together, wait_line};
use agent_tests::records::rules;
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Era, Sdk, Server, World};
use serde_json::{Value, json};

use crate::drift::NO_DRIFT;
use crate::{NO_RULES, REASON};

const RULES: &str = "
version: 1
rules:
  - id: no-transfers
    action: deny
    phase: request
    match: {agent: coder, method: tools/call, tool: wire_transfer}
    reason: transfers need a person
  - {id: unseen, action: hide, match: {agent: coder, tool: add}, reason: not for agents}
  - {id: no-cards, action: redact, phase: response, match: {agent: coder, tool: echo}, redact: {patterns: [cards]}}
";

const CARD: &str = "4111 1111 1111 1111";

/// One test per pair: client and server, and the revision they agree on.
macro_rules! pairs {
    ($($name:ident: $client:ident => $server:ident;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
            fn refused_call_leaves_the_session_working() {
                works(Sdk::$client, Sdk::$server);
            }

            #[test]
            #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
            fn stop_is_answered_in_the_stream_and_released() {
                stops(Sdk::$client, Sdk::$server);
            }
        }
    )*};
}

pairs! {
    py1_at_py1: Py1 => Py1;
    py1_at_ts1: Py1 => Ts1;
    py2_at_py2: Py2 => Py2;
    py2_at_ts1: Py2 => Ts1;
    ts1_at_py1: Ts1 => Py1;
    ts1_at_ts1: Ts1 => Ts1;
    ts2_at_py2: Ts2 => Py2;
    ts2_at_ts1: Ts2 => Ts1;
}

fn serve(world: &World, sdk: Sdk) -> Server {
    Server::start_on(world, sdk, SERVER_V4, &["--sse"])
}

fn start(world: &World, name: &str, client: Sdk, server: &Server, script: &Value) -> Agent {
    Agent::start(world, name, client, Era::Legacy, &server.sse_url(), script)
}

/// KiB that a client takes in one event.
fn big(client: Sdk) -> usize {
    if client == Sdk::Py2 { 512 } else { 1024 }
}

fn worked(step: &Step) -> &str {
    assert!(step.ok && !step.is_error, "{step:?}");
    &step.text
}

fn works(client: Sdk, server: Sdk) {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let server = serve(&world, server);
    let script = json!([
        list(),
        call("echo", json!({"text": format!("a card {CARD}")})),
        call("wire_transfer", json!({"amount": 5000})),
        call("add", json!({"a": 1, "b": 2})),
        call("echo", json!({"text": "after"})),
        call("ask", json!({})),
        call("progress", json!({"steps": 3})),
        call("big", json!({"kib": big(client)})),
    ]);
    let agent = start(&world, "coder", client, &server, &script);
    let revision = agent.connected();
    // Another agent has a session at the same server, with the same ids in it.
    let others = json!([
        call("wire_transfer", json!({"amount": 1})),
        call("echo", json!({"text": CARD})),
        call("add", json!({"a": 2, "b": 2})),
    ]);
    let sibling = start(&world, "sibling", client, &server, &others);
    sibling.connected();
    let steps = agent.rest();
    let [listed, card, refused, hidden, after, asked, progress, big_one] = &steps[..] else {
        panic!("{steps:?}")
    };
    let steps = sibling.rest();
    let [moved, said, added] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!([worked(moved), worked(said), worked(added)], ["transferred 1", CARD, "4"]);

    let listed: Vec<&str> = worked(listed).split(' ').collect();
    assert!(listed.contains(&"wire_transfer") && !listed.contains(&"add"), "{listed:?}");
    assert!(worked(card).starts_with("a card ") && !card.text.contains(CARD), "{card:?}");
    assert!(refused.is_error && refused.text.contains("no-transfers"), "{refused:?}");
    assert!(refused.text.contains("transfers need a person"), "{refused:?}");
    assert!(hidden.is_error && hidden.text.contains("unseen"), "{hidden:?}");
    assert_eq!(worked(after), "after");
    assert_eq!(worked(asked), "accept", "the server's question, and its answer");
    assert_eq!(worked(progress), "3 steps");
    assert_eq!(worked(big_one).len(), big(client) * 1024);
    assert_eq!(server.started("wire_transfer").len(), 1, "of the other agent");
    assert_eq!(server.started("add").len(), 1);

    // Records lag a little.
    daemon
        .records()
        .wait("result", "the last call", |record| record["agent"] == "coder" && record["tool"] == "big");
    let records = daemon.records().all();
    let of = |kind: &str, tool: &str| {
        let is =
            |record: &&Value| record["kind"] == kind && record["agent"] == "coder" && record["tool"] == tool;
        records.iter().filter(is).collect::<Vec<_>>()
    };
    for (tool, count) in [("echo", 2), ("ask", 1), ("progress", 1), ("big", 1), ("wire_transfer", 0)] {
        let results = of("result", tool);
        assert_eq!(results.len(), count, "{results:?}");
        for result in results {
            assert_eq!((&result["outcome"], &result["status"]), (&json!("result"), &json!(200)), "{result}");
            assert_eq!(result["revision"], revision.as_str(), "what was agreed on: {result}");
            assert!(result["took_us"].as_u64() > Some(0) && result["bytes"].as_u64() > Some(0), "{result}");
        }
    }
    let denied = of("decision", "wire_transfer");
    assert_eq!(denied.len(), 1, "nothing retries: {denied:?}");
    assert_eq!((&denied[0]["verdict"], rules(denied[0])), (&json!("deny"), vec!["no-transfers"]));
    assert!(refused.text.contains(denied[0]["decision"].as_str().expect("an id")), "{refused:?}");
    let labels = [("agent", "coder"), ("class", "mcp")];
    daemon.metrics().wait("interlock_connections_total", &labels, 1.0);
}

fn stops(client: Sdk, sdk: Sdk) {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = serve(&world, sdk);
    let slow = call("slow", json!({"seconds": 60}));
    let script = json!([
        together(&[slow.clone(), slow.clone(), slow]),
        call("echo", json!({"text": "stopped"})),
        list(),
        wait_line(),
        call("echo", json!({"text": "released"})),
    ]);
    let mut agent = start(&world, "coder", client, &server, &script);
    agent.connected();
    let beside = json!([wait_line(), call("echo", json!({"text": "beside"}))]);
    let mut sibling = start(&world, "sibling", client, &server, &beside);
    sibling.connected();
    server.wait("slow", "start", 3);
    let (id, stopped) = daemon.cli().stop(&["agent=coder"], "refuse");
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert_eq!(calls.iter().filter(|call| call["tool"] == "slow").count(), 3, "{stopped:?}");
    for _ in 0..5 {
        let step = agent.step();
        assert!(step.is_error && step.text.contains(REASON), "{step:?}");
        assert!(step.line["ms"].as_f64().is_some_and(|ms| ms < 15_000.0), "nothing hangs: {step:?}");
    }
    // Only one of them says that it has done so: of the others no more is known.
    let fate = if sdk == Sdk::Py1 { "cancelled" } else { "sent" };
    server.wait("slow", "cancelled", 3);
    for call in calls {
        let is_its = |record: &Value| record["decision"] == call["decision"] && record["open"] == false;
        let known = daemon.records().wait("stop_effect", "its fate", is_its);
        assert_eq!(known["fate"], fate, "{known}");
    }
    sibling.go();
    assert_eq!(sibling.rest().last().map(worked), Some("beside"), "a sibling notices nothing");

    assert_eq!(daemon.cli().release(&id).code, 0);
    agent.go();
    let steps = agent.rest();
    assert_eq!(steps.last().map(worked), Some("released"), "in the same session: {steps:?}");
    let decisions = daemon.records().of("decision");
    let handshakes = decisions.iter().filter(|record| record["method"] == "initialize");
    assert_eq!(handshakes.count(), 2, "nothing reconnects");
    assert_eq!(server.started("echo").len(), 2);
}

/// A tool that changes in the middle of a session.
fn drifts(client: Sdk, server: Sdk) {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_DRIFT);
    let server = serve(&world, server);
    let script = json!([
        list(),
        call("echo", json!({"text": "trusted"})),
        call("turn", json!({"says": "Says whatever it likes."})),
        list(),
        call("echo", json!({"text": "drifted"})),
        call("wire_transfer", json!({"amount": 1})),
    ]);
    let agent = start(&world, "coder", client, &server, &script);
    agent.connected();
    let steps = agent.rest();
    let [_, trusted, turned, listed, drifted, other] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!([worked(trusted), worked(turned), worked(other)], ["trusted", "turned", "transferred 1"]);
    worked(listed);
    assert!(drifted.is_error && drifted.text.contains("no-drift"), "{drifted:?}");
    assert_eq!(server.started("echo").len(), 1);
    let changed = daemon.records().wait("surface", "the change", |record| record["change"] == "drifted");
    assert_eq!(changed["name"], "echo", "{changed}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn a_tool_that_changes_is_seen_in_the_stream() {
    drifts(Sdk::Py1, Sdk::Py1);
    drifts(Sdk::Ts1, Sdk::Ts1);
}

/// The same pairs without `interlock`: a failure above is not the peers' fault.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and the SDKs")]
fn peers_agree_over_sse_without_interlock() {
    let world = World::new();
    for server in [Sdk::Py1, Sdk::Py2, Sdk::Ts1] {
        let server = serve(&world, server);
        for client in [Sdk::Py1, Sdk::Py2, Sdk::Ts1, Sdk::Ts2] {
            let script = json!([
                list(),
                call("echo", json!({"text": "hi"})),
                call("ask", json!({})),
                call("progress", json!({"steps": 3})),
                call("big", json!({"kib": big(client)})),
            ]);
            let agent = start(&world, "coder", client, &server, &script);
            agent.connected();
            let steps = agent.rest();
            assert_eq!(steps.len(), 5, "{}", client.name());
            steps.iter().for_each(|step| drop(worked(step).to_owned()));
        }
    }
}
