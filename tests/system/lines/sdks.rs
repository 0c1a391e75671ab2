//! The official SDKs over lines: their clients through a bridge, or over TCP themselves, at each other's servers.

use agent_tests::agent::{Agent, call, list, together, wait_line};
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Era, Sdk, Server, World};
use serde_json::{Value, json};

use crate::{NO_TRANSFERS, REASON};

/// Each SDK's client, and another one's server.
const PAIRS: [(Sdk, Sdk, Era); 8] = [
    (Sdk::Py1, Sdk::Ts1, Era::Legacy),
    (Sdk::Ts1, Sdk::Py1, Era::Legacy),
    (Sdk::Py2, Sdk::Py1, Era::Legacy),
    (Sdk::Py2, Sdk::Ts2, Era::Auto),
    (Sdk::Ts2, Sdk::Py2, Era::Auto),
    (Sdk::Ts2, Sdk::Rmcp, Era::Legacy),
    (Sdk::Rmcp, Sdk::Ts2, Era::Auto),
    (Sdk::Rmcp, Sdk::Py2, Era::Legacy),
];

fn start(world: &World, sdk: Sdk) -> Server {
    Server::start_on(world, sdk, SERVER_V4, &["--lines"])
}

fn script() -> Value {
    let echo = |text: &str| call("echo", json!({"text": text}));
    json!([
        list(),
        echo("one"),
        call("wire_transfer", json!({"amount": 5})),
        together(&[call("slow", json!({"seconds": 0.3})), echo("two"), call("big", json!({"kib": 40}))]),
        call("progress", json!({"steps": 3})),
        wait_line(),
        call("slow", json!({"seconds": 60})),
        echo("three"),
        wait_line(),
        echo("four"),
    ])
}

/// What the agent's own code sees of a whole session, with and without the program.
fn session(world: &World, (client, sdk, era): (Sdk, Sdk, Era), agent: &str) -> (Server, Agent, String) {
    let server = start(world, sdk);
    let client = Agent::start(world, agent, client, era, &server.lines_url(), &script());
    let revision = client.connected();
    (server, client, revision)
}

fn check(pair: (Sdk, Sdk, Era)) {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let (server, mut agent, revision) = session(&world, pair, "coder");
    let expected = if pair.2 == Era::Auto { "2026-07-28" } else { "2025-11-25" };
    // The TypeScript SDK 1.x does not tell it over stdin and stdout.
    assert!(revision == expected || revision.is_empty(), "{pair:?}: {revision}");
    let listed = agent.step();
    assert!(listed.text.contains("echo") && listed.text.contains("wire_transfer"), "{pair:?}: {listed:?}");
    assert_eq!(agent.step().text, "one", "{pair:?}");
    let refused = agent.step();
    assert!(refused.is_error && refused.text.contains("transfers need a person"), "{pair:?}: {refused:?}");
    let (mut texts, mut sizes) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let step = agent.step();
        assert!(!step.is_error, "{pair:?}: {step:?}");
        sizes.push(step.text.len());
        texts.push(step.text);
    }
    assert!(texts.contains(&"two".to_owned()) && sizes.contains(&(40 << 10)), "{pair:?}: {sizes:?}");
    assert_eq!(agent.step().text, "3 steps", "{pair:?}");
    assert!(server.started("wire_transfer").is_empty(), "{pair:?}");
    let echoed = daemon.records().decision("echo", "allow");
    assert_eq!((&echoed["revision"], &echoed["protocol"]), (&json!(expected), &json!("mcp")), "{pair:?}");
    agent.go();
    agent.step();

    // A stop with a call in flight: the client is told, the server is told, and the same session goes on later.
    server.wait("slow", "start", 2);
    let (id, stopped) = daemon.cli().stop(&["agent=coder"], "refuse");
    let calls = stopped.json["calls"].as_array().expect("calls");
    assert!(calls.iter().any(|call| call["tool"] == "slow"), "{pair:?}: {stopped:?}");
    for what in ["slow", "three"] {
        let step = agent.step();
        assert!(step.is_error && step.text.contains(REASON), "{pair:?}: {what}: {step:?}");
    }
    if pair.1 != Sdk::Rmcp {
        server.wait("slow", "cancelled", 1);
    }
    daemon.records().wait("cancel", "a cancel", |record| record["via"] == "notifications/cancelled");
    assert_eq!(daemon.cli().release(&id).code, 0);
    agent.go();
    agent.step();
    assert_eq!(agent.step().text, "four", "{pair:?}");
    assert_eq!(server.started("echo").len(), 3, "{pair:?}: one, two, four");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn clients_of_all_sdks_work_at_servers_of_all_sdks_in_lines() {
    PAIRS.into_iter().for_each(check);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn without_interlock_the_same_pairs_speak_lines() {
    for pair in PAIRS {
        let world = World::new();
        let (server, agent, _) = session(&world, pair, "coder");
        agent.step();
        assert_eq!(agent.step().text, "one", "{pair:?}");
        assert_eq!(agent.step().text.to_lowercase().trim_end_matches(".0"), "transferred 5", "{pair:?}");
        assert_eq!(server.started("wire_transfer").len(), 1, "{pair:?}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_server_that_asks_is_answered_by_its_client_or_in_its_place() {
    for (rules, expected) in [
        ("version: 1\nrules: []\n", "accept"),
        (
            "version: 1\nrules:\n  - {id: no-questions, action: deny, phase: request, match: {method: elicitation/create}, reason: ask nobody}\n",
            "ask nobody",
        ),
    ] {
        for (client, server) in [(Sdk::Py1, Sdk::Ts1), (Sdk::Ts1, Sdk::Py1)] {
            let world = World::new();
            let _daemon = Daemon::start(&world, rules);
            let server = start(&world, server);
            let script = json!([call("ask", json!({}))]);
            let agent = Agent::start(&world, "coder", client, Era::Legacy, &server.lines_url(), &script);
            agent.connected();
            let step = agent.step();
            assert!(step.text.contains(expected), "{client:?}: {step:?}");
        }
    }
}
