//! Lists as servers give them: in any order and spelling, in pages, in streams.

use agent_tests::{Daemon, World, http, mcp};
use serde_json::{Value, json};

use super::{NO_DRIFT, Turncoat, known, lists, look, pay};
use crate::rule_peers::{Caller, in_session};

/// The list as this text.
fn listed(id: &Value, tools: &str, next: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[{tools}]{next}}}}}"#)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn the_same_tool_in_another_spelling_has_not_changed() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_DRIFT);
    let spellings = [
        r#"{"name":"pay","description":"Moves money","inputSchema":{"type":"object","properties":{"amount":{"type":"number","maximum":100},"to":{"type":"string"}},"required":["amount","to"]}}"#,
        r#" { "inputSchema":{"required":["to","amount"],"properties":{"to":{"type":"string"},"amount":{"maximum":1e2,"type":"number"}},"type":"object"},"description":"Moves\u0020money","name":"p\u0061y","annotations":{"readOnlyHint":false},"execution":{"taskSupport":"forbidden"}}"#,
    ];
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let bank = Turncoat::serve(&world, json!([]), move |request, reply| {
        let message = request.json();
        if message["method"] != "tools/list" {
            return Ok(false);
        }
        let nth = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let body = listed(&message["id"], spellings[nth % 2], "");
        reply.write(&http::response("application/json", &[], body.as_bytes())).map(|()| true)
    });
    let mut coder = Caller::start(&world, "coder", &bank.server);
    for _ in 0..4 {
        lists(&mut coder);
        assert_eq!(coder.call("pay", "{}"), None);
        assert_eq!(known(&daemon, "pay")["state"], "trusted");
    }
    assert!(daemon.records().of("surface").iter().all(|record| record["change"] == "first"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn each_change_has_its_class_and_harmless_ones_do_not_refuse() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_DRIFT);
    let bank = Turncoat::start(&world, json!([pay("Moves money.")]));
    let mut coder = Caller::start(&world, "coder", &bank.server);
    lists(&mut coder);
    let with = |member: &str, value: Value| {
        let mut tool = pay("Moves money.");
        tool[member] = value;
        json!([tool])
    };
    for (tools, class, refused) in [
        (with("title", json!("Pay!")), "display", false),
        (with("_meta", json!({"x": 1})), "meta", false),
        (with("_meta", json!({"ui": {"resourceUri": "ui://pay"}})), "ui", false),
        (with("annotations", json!({"destructiveHint": false})), "annotations_safer", false),
        (with("annotations", json!({"idempotentHint": true})), "annotations_safer", false),
        (with("annotations", json!({"other": true})), "annotations_less_safe", true),
        (with("description", json!("Moves much money.")), "definition", true),
        (with("outputSchema", json!({"type": "object"})), "definition", true),
    ] {
        bank.say(tools);
        lists(&mut coder);
        let known = known(&daemon, "pay");
        assert_eq!((&known["state"], &known["classes"]), (&json!("drifted"), &json!([class])));
        assert_eq!(coder.call("pay", "{}").is_some(), refused, "{class}");
    }
    bank.say(json!([pay("Moves money.")]));
    lists(&mut coder);
    assert_eq!(coder.call("pay", "{}"), None, "it is what was trusted again");
    assert_eq!(known(&daemon, "pay")["state"], "trusted");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn only_a_list_that_was_seen_whole_takes_tools_away() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_DRIFT);
    let bank = Turncoat::serve(&world, json!([]), |request, reply| {
        let message = request.json();
        let cursor = message["params"]["cursor"].as_str();
        let body = match (message["method"].as_str(), cursor) {
            (Some("tools/list"), None) => {
                listed(&message["id"], &pay("Moves money.").to_string(), r#","nextCursor":"""#)
            }
            (Some("tools/list"), Some("")) => {
                listed(&message["id"], &look().to_string(), r#","nextCursor":"2""#)
            }
            (Some("tools/list"), Some("2")) => listed(&message["id"], r#"{"name":"last"}"#, ""),
            // The list has become shorter.
            (Some("tools/list"), Some("short")) => listed(&message["id"], "", ""),
            _ => return Ok(false),
        };
        // Pages come as streams, too.
        let event = format!("event: message\ndata: {body}\n\n");
        reply
            .write(&[http::sse_head(), http::chunk(event.as_bytes()), http::chunk(b"")].concat())
            .map(|()| true)
    });
    let mut coder = Caller::start(&world, "coder", &bank.server);
    let mut page = |cursor: Option<&str>| {
        let params = cursor.map_or(json!({}), |cursor| json!({"cursor": cursor}));
        coder.ask(&in_session(&mcp::request(1, "tools/list", params).to_string()));
    };
    let state = |name: &str| known(&daemon, name)["state"].clone();
    [None, Some(""), Some("2")].into_iter().for_each(&mut page);
    assert_eq!([state("pay"), state("look"), state("last")], ["trusted"; 3]);
    [None, Some("")].into_iter().for_each(&mut page);
    assert_eq!([state("pay"), state("look"), state("last")], ["trusted"; 3], "a walk that stops half way");
    page(Some("short"));
    assert_eq!([state("pay"), state("look"), state("last")], ["trusted"; 3], "a page that nobody was led to");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_goes_and_what_comes_is_recorded() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_DRIFT);
    let bank = Turncoat::start(&world, json!([pay("Moves money."), look()]));
    let mut coder = Caller::start(&world, "coder", &bank.server);
    lists(&mut coder);
    let mut renamed = pay("Moves money.");
    renamed["name"] = json!("pay_now");
    bank.say(json!([look(), renamed]));
    lists(&mut coder);
    assert_eq!(known(&daemon, "pay")["state"], "removed");
    let new = known(&daemon, "pay_now");
    assert_eq!((&new["classes"], &new["renamed_from"]), (&json!(["added"]), &json!("pay")));
    assert_eq!(coder.call("pay_now", "{}"), None, "what is added is seen for the first time");
    let of = |change: &str| daemon.records().wait("surface", change, |record| record["change"] == change);
    assert_eq!((&of("removed")["name"], &of("added")["name"]), (&json!("pay"), &json!("pay_now")));
    for class in ["added", "removed"] {
        assert_eq!(daemon.metrics().value("interlock_drift_total", &[("class", class)]), 1.0, "{class}");
    }
}
