//! `defaults`: tools that no list has shown, revisions that nobody knows, and agents for which something else holds; and
//! what a server says of its tools, as conditions see it.

use agent_tests::agent::{Agent, call, list};
use agent_tests::records::rules;
use agent_tests::{Daemon, Era, Sdk, Server, World, http, mcp};
use serde_json::{Value, json};

use crate::rule_peers::{Caller, bank, calls_of, serves};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_tool_must_be_listed_before_it_is_called() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
defaults: {unseen_tool: deny}
agent_defaults:
  - {agent: 'sib*', unseen_tool: allow}
",
    );
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let refusal = coder.refused("look", "{}");
    assert!(refusal.contains("list the tools first") && refusal.contains("default:unseen_tool"), "{refusal}");
    assert_eq!(Caller::start(&world, "sibling", &server).call("look", "{}"), None, "another default");
    assert_eq!(calls_of(&server, "look"), 1);
    coder.request("tools/list", json!({}));
    assert_eq!(coder.call("look", "{}"), None);
    assert!(coder.refused("other", "{}").contains("unseen_tool"), "it is not in the list");
    let again = bank(&world);
    let mut elsewhere = Caller::start(&world, "coder", &again);
    assert!(elsewhere.refused("look", "{}").contains("unseen_tool"), "another server");
    let mut parked = Caller::start(&world, "parked", &server);
    assert!(parked.refused("look", "{}").contains("unseen_tool"), "another agent has seen it");
    let denied = daemon.records().decision("look", "deny");
    assert_eq!(rules(&denied), ["default:unseen_tool"]);
    let labels = [("reason", "unseen_tool"), ("agent", "coder")];
    assert_eq!(daemon.metrics().value("interlock_denials_total", &labels), 3.0);
}

/// A list in an event counts as well as one in JSON, and SDKs list before they call.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn lists_of_sdks_are_seen() {
    let world = World::new();
    let _daemon = Daemon::start(&world, "version: 1\ndefaults: {unseen_tool: deny}\n");
    for (client, server) in [(Sdk::Py2, Sdk::Ts2), (Sdk::Rmcp, Sdk::Py2)] {
        let server = Server::start(&world, server);
        let echo = call("echo", json!({"text": "hi"}));
        let script = json!([list(), echo, call("add", json!({"a": 1, "b": 2}))]);
        let agent = Agent::start(&world, "coder", client, Era::Auto, &server.url(), &script);
        agent.connected();
        for step in agent.rest() {
            assert!(step.ok && !step.is_error, "{step:?}");
        }
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_list_in_an_event_counts_and_hidden_tools_are_never_seen() {
    let world = World::new();
    let _daemon = Daemon::start(
        &world,
        "
version: 1
defaults: {unseen_tool: deny}
rules:
  - {id: no-pay, action: hide, match: {tool: pay}, reason: hidden}
",
    );
    let server = serves(&world, |request, reply| {
        if request.json()["method"] != "tools/list" {
            return Ok(false);
        }
        let tools = json!({"tools": [{"name": "look"}, {"name": "pay"}]});
        let result = json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": tools});
        let event = format!("data: {result}\n\n");
        reply.write(&[http::sse_head(), http::chunk(event.as_bytes()), http::chunk(b"")].concat())?;
        Ok(true)
    });
    let mut coder = Caller::start(&world, "coder", &server);
    let listed = coder.request("tools/list", json!({}));
    assert_eq!(listed["result"]["tools"], json!([{"name": "look"}]));
    assert_eq!(coder.call("look", "{}"), None);
    assert!(coder.refused("pay", "{}").contains("no-pay"));
    assert_eq!(calls_of(&server, "pay"), 0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_revision_that_nobody_knows_is_refused_where_the_default_says_so() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
defaults: {unknown_revision: deny}
agent_defaults:
  - {agent: sibling, unknown_revision: allow}
",
    );
    let server = bank(&world);
    let body = mcp::call(1, "look", json!({})).to_string();
    let of = |revision: &str| http::post(&body, &[mcp::SESSION, ("mcp-protocol-version", revision)]);
    let mut coder = Caller::start(&world, "coder", &server);
    for known in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let messages = coder.ask(&of(known)).messages();
        assert_eq!(mcp::refusal(mcp::of_id(&messages, 1)), None, "{known}");
    }
    let messages = coder.ask(&of("2031-01-01")).messages();
    let refusal = mcp::refusal(mcp::of_id(&messages, 1)).expect("a refusal");
    assert!(refusal.contains("\"2031-01-01\" is not known here"), "{refusal}");
    let begun = coder.ask(&mcp::initialize("2031-01-01")).json();
    assert_eq!(begun["error"]["data"]["rule"], "default:unknown_revision", "{begun}");
    assert!(!server.saw("2031-01-01"));
    assert_eq!(rules(&daemon.records().decision("look", "deny")), ["default:unknown_revision"]);
    let messages = Caller::start(&world, "sibling", &server).ask(&of("2031-01-01")).messages();
    assert_eq!(mcp::refusal(mcp::of_id(&messages, 1)), None);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn defaults_of_one_agent_are_not_its_siblings() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
defaults: {undecodable: allow}
agent_defaults:
  - {agent: coder, opaque: deny, undecodable: deny}
  - {agent: '*', opaque: allow}
",
    );
    let server = bank(&world);
    let broken = http::post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","id":2}"#, &[]);
    for (name, is_refused) in [("coder", true), ("sibling", false)] {
        let mut caller = Caller::start(&world, name, &server);
        let before = server.requests().len();
        let status = caller.ask(&broken).status();
        assert_eq!((status == 400, server.requests().len() == before), (is_refused, is_refused), "{name}");
        caller.reopen();
        caller.send(b"SSH-2.0-x\r\n");
        if is_refused {
            assert!(caller.is_cut());
            assert!(!server.saw("SSH-2.0"));
        } else {
            agent_tests::wait_for("the bytes", || server.saw("SSH-2.0").then_some(()));
        }
    }
    let is = |record: &Value| rules(record) == ["default:opaque"];
    assert_eq!(daemon.records().wait("decision", "opaque", is)["agent"], "coder");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_a_server_says_of_its_tools_is_known_once_it_has_listed_them() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
rules:
  - {id: read-only, action: allow_only, match: {agent: coder, method: tools/call}, when: annotations.readOnlyHint}
  - {id: no-harm, action: deny, match: {agent: sibling, method: tools/call}, when: annotations.known && annotations.destructiveHint}
  - {id: show, action: hide, match: {agent: parked, method: tools/call}, when: '!annotations.readOnlyHint'}
",
    );
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    assert!(coder.refused("look", "{}").contains("read-only"), "nobody knows yet");
    coder.request("tools/list", json!({}));
    assert_eq!(coder.call("look", "{}"), None);
    assert!(coder.refused("pay", "{}").contains("read-only"));

    let mut sibling = Caller::start(&world, "sibling", &server);
    assert_eq!(sibling.call("pay", "{}"), None, "nobody knows yet");
    sibling.request("tools/list", json!({}));
    assert!(sibling.refused("pay", "{}").contains("no-harm"), "silence means destructive");
    assert_eq!(sibling.call("look", "{}"), None, "what only reads destroys nothing");

    let mut parked = Caller::start(&world, "parked", &server);
    let listed = parked.request("tools/list", json!({}));
    let names: Vec<_> =
        listed["result"]["tools"].as_array().into_iter().flatten().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["look"]);
    assert_eq!(parked.call("look", "{}"), None);
    assert!(parked.refused("pay", "{}").contains("show"));
    assert_eq!((calls_of(&server, "look"), calls_of(&server, "pay")), (3, 1));
    assert_eq!(rules(&daemon.records().decision("pay", "deny")), ["read-only"]);
}
