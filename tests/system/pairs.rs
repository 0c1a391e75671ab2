//! Every SDK's client against a server of another SDK, each in its own cgroup and network namespace (W5, W6): a refused
//! call fails in protocol, and the session goes on as if nothing had happened.

use agent_tests::agent::{Agent, Step, call, list, wait_line};
use agent_tests::records::rules;
use agent_tests::world::{SERVER_V4, SERVER_V6};
use agent_tests::{Daemon, Era, Sdk, Server, World};
use serde_json::json;

use crate::NO_TRANSFERS;

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// One test per pair: client, what it is told to speak, server, the revision they agree on.
macro_rules! pairs {
    ($($name:ident: $client:ident, $era:ident => $server:ident, $revision:expr;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            refused_call_leaves_the_session_working(Sdk::$client, Era::$era, Sdk::$server, $revision);
        }
    )*};
}

pairs! {
    py1_at_ts2_on_2025: Py1, Legacy => Ts2, LEGACY;
    py1_at_rmcp_on_2025: Py1, Legacy => Rmcp, LEGACY;
    py2_at_ts1_on_2025: Py2, Legacy => Ts1, LEGACY;
    ts1_at_py2_on_2025: Ts1, Legacy => Py2, LEGACY;
    ts1_at_rmcp_on_2025: Ts1, Legacy => Rmcp, LEGACY;
    ts2_at_py1_on_2025: Ts2, Legacy => Py1, LEGACY;
    rmcp_at_py1_on_2025: Rmcp, Legacy => Py1, LEGACY;
    rmcp_at_ts1_on_2025: Rmcp, Legacy => Ts1, LEGACY;
    py2_at_ts2_on_2026: Py2, Auto => Ts2, MODERN;
    py2_at_rmcp_on_2026: Py2, Auto => Rmcp, MODERN;
    ts2_at_py2_on_2026: Ts2, Auto => Py2, MODERN;
    ts2_at_rmcp_on_2026: Ts2, Auto => Rmcp, MODERN;
    rmcp_at_py2_on_2026: Rmcp, Auto => Py2, MODERN;
    rmcp_at_ts2_on_2026: Rmcp, Auto => Ts2, MODERN;
    py2_falls_back_at_py1: Py2, Auto => Py1, LEGACY;
    ts2_falls_back_at_ts1: Ts2, Auto => Ts1, LEGACY;
    rmcp_falls_back_at_py1: Rmcp, Auto => Py1, LEGACY;
}

fn refused_call_leaves_the_session_working(client: Sdk, era: Era, server: Sdk, revision: &str) {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = Server::start(&world, server);
    let script = json!([
        list(),
        call("echo", json!({"text": "before"})),
        call("wire_transfer", json!({"amount": 5000})),
        call("echo", json!({"text": "after"})),
        call("ask", json!({})),
        call("progress", json!({"steps": 3})),
        call("big", json!({"kib": 300})),
    ]);
    let agent = Agent::start(&world, "coder", client, era, &server.url(), &script);
    assert_eq!(agent.connected(), revision);
    let steps = agent.rest();
    let [listed, before, refused, after, asked, progress, big] = &steps[..] else { panic!("{steps:?}") };

    worked(listed);
    assert!(listed.text.contains("wire_transfer"), "a rule on calls hides nothing: {listed:?}");
    assert_eq!(worked(before), "before");
    assert_eq!(worked(after), "after");
    assert_eq!(worked(asked), "accept", "the server's question comes through (W6)");
    assert_eq!(worked(progress), "3 steps");
    assert_eq!(worked(big).len(), 300 * 1024);

    check_refusal(&daemon, &server, refused);
    let decisions = daemon.records().of("decision");
    let count =
        |field: &str, value: &str| decisions.iter().filter(|decision| decision[field] == value).count();
    assert_eq!(count("tool", "wire_transfer"), 1, "nothing retries");
    assert!(
        count("method", "initialize") <= 1 && count("method", "server/discover") <= 1,
        "nothing reconnects"
    );
}

/// Servers may answer with plain JSON instead of SSE, and may be reached over IPv6.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn plain_json_and_ipv6_change_nothing() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let servers = [
        (Sdk::Py1, SERVER_V6, &["--json"][..]),
        (Sdk::Ts2, SERVER_V4, &["--json"]),
        (Sdk::Py2, SERVER_V6, &[]),
    ];
    for (sdk, host, more) in servers {
        let server = Server::start_on(&world, sdk, host, more);
        let script = json!([
            call("echo", json!({"text": "before"})),
            call("wire_transfer", json!({"amount": 5000})),
            call("echo", json!({"text": "after"})),
        ]);
        let agent = Agent::start(&world, "coder", Sdk::Rmcp, Era::Auto, &server.url(), &script);
        agent.connected();
        let steps = agent.rest();
        let [before, refused, after] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!((worked(before), worked(after)), ("before", "after"));
        check_refusal(&daemon, &server, refused);
    }
}

/// The same pairs without `interlock`: a failure above is not the peers' fault.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and the SDKs")]
fn peers_agree_without_interlock() {
    let world = World::new();
    for server in Sdk::ALL {
        let server_peer = Server::start(&world, server);
        let clients = Sdk::ALL.into_iter().flat_map(|client| {
            let eras = if client.is_modern() { &[Era::Legacy, Era::Auto][..] } else { &[Era::Legacy][..] };
            eras.iter().map(move |&era| (client, era))
        });
        for (client, era) in clients {
            let script = json!([
                list(),
                call("echo", json!({"text": "hi"})),
                call("add", json!({"a": 1, "b": 2})),
                call("slow", json!({"seconds": 0.05})),
                call("wire_transfer", json!({"amount": 5})),
                call("ask", json!({})),
                call("progress", json!({"steps": 3})),
                call("big", json!({"kib": 300})),
            ]);
            let agent = Agent::start(&world, "coder", client, era, &server_peer.url(), &script);
            let expected = if era == Era::Auto && server.is_modern() { MODERN } else { LEGACY };
            let pair = format!("{} ({era:?}) at {}", client.name(), server.name());
            assert_eq!(agent.connected(), expected, "{pair}");
            let steps = agent.rest();
            assert_eq!(steps.len(), 8, "{pair}");
            for step in &steps {
                assert!(step.ok && !step.is_error, "{pair}: {step:?}");
            }
            assert_eq!(steps[2].text, "3", "{pair}");
            assert_eq!(steps[5].text, "accept", "{pair}");
        }
    }
}

/// A call that its SDK gives up is cancelled at the server: what a stop does upstream can be seen there.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and the SDKs")]
fn servers_notice_a_cancelled_call_without_interlock() {
    let world = World::new();
    for server in Sdk::ALL {
        let server = Server::start(&world, server);
        for (count, (client, era)) in
            [(Sdk::Ts1, Era::Legacy), (Sdk::Rmcp, Era::Auto)].into_iter().enumerate()
        {
            let mut slow = call("slow", json!({"seconds": 60}));
            slow["timeout"] = json!(0.3);
            let agent =
                Agent::start(&world, "coder", client, era, &server.url(), &json!([slow, wait_line()]));
            agent.connected();
            assert_eq!(agent.step().error, "timeout");
            server.wait("slow", "cancelled", count + 1);
        }
    }
}

/// The agent is told the rule and the decision, and the server nothing.
fn check_refusal(daemon: &Daemon, server: &Server, refused: &Step) {
    let decision = daemon.records().decision("wire_transfer", "deny");
    assert_eq!(decision["agent"], "coder");
    assert_eq!(rules(&decision), ["no-transfers"]);
    assert!(refused.is_error, "{refused:?}");
    assert!(refused.text.contains("no-transfers"), "the agent is told the rule: {refused:?}");
    let denied = daemon.records().of("decision").into_iter().filter(|decision| decision["verdict"] == "deny");
    let mut ids =
        denied.map(|decision| decision["decision"].as_str().expect("a decision has an id").to_owned());
    assert!(ids.any(|id| refused.text.contains(&id)), "the agent is told the decision: {refused:?}");
    assert!(server.started("wire_transfer").is_empty(), "a refused call reaches no server");
}

fn worked(step: &Step) -> &str {
    assert!(step.ok && !step.is_error, "{step:?}");
    &step.text
}
