//! The interface of a tool is a resource that its definition names (MCP Apps, SEP-1865): what is said of the tool is said of
//! that.

use agent_tests::http;
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, World};
use serde_json::{Value, json};

use crate::rule_peers::{Caller, reload, serves};
use crate::{NO_RULES, NO_TRANSFERS, REASON};

/// Two tools with an interface of their own, and two that share one.
fn bank(world: &World) -> RawServer {
    serves(world, |request, reply| {
        let message = request.json();
        let result = match message["method"].as_str() {
            Some("tools/list") => json!({"tools": [
                {"name": "wire_transfer", "inputSchema": {}, "_meta": {"ui": {"resourceUri": "ui://bank/transfer"}}},
                {"name": "balance", "inputSchema": {}, "_meta": {"ui/resourceUri": "ui://bank/balance"}},
                {"name": "rates", "inputSchema": {}, "_meta": {"ui": {"resourceUri": "ui://bank/shared"}}},
                {"name": "pay_bill", "inputSchema": {}, "_meta": {"ui": {"resourceUri": "ui://bank/shared"}}},
            ]}),
            Some("resources/read" | "resources/subscribe") => {
                json!({"contents": [{"uri": message["params"]["uri"], "text": "<p>here"}]})
            }
            _ => return Ok(false),
        };
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
        reply.write(&http::response("application/json", &[], answer.to_string().as_bytes()))?;
        Ok(true)
    })
}

/// What kept the agent from reading it.
fn refusal(coder: &mut Caller, uri: &str) -> Option<String> {
    asked(coder, "resources/read", uri)
}

fn asked(coder: &mut Caller, method: &str, uri: &str) -> Option<String> {
    let answer = coder.request(method, json!({"uri": uri}));
    Some(answer["error"]["message"].as_str()?.to_owned())
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_interface_is_refused_with_its_tool() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_TRANSFERS);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    assert_eq!(refusal(&mut coder, "ui://bank/transfer"), None, "nobody has said whose it is");
    coder.request("tools/list", json!({}));

    for uri in ["ui://bank/transfer", "UI://Bank/transfer", "ui://bank/x/../transfer"] {
        let refusal = refusal(&mut coder, uri).unwrap_or_else(|| panic!("{uri} is refused"));
        assert!(refusal.contains("no-transfers"), "{refusal}");
    }
    assert!(asked(&mut coder, "resources/subscribe", "ui://bank/transfer").is_some());
    for uri in ["ui://bank/balance", "ui://bank/shared", "ui://bank/transfer/help", "file:///bank/transfer"] {
        assert_eq!(refusal(&mut coder, uri), None, "{uri}");
    }
    let denied = daemon.records().wait("decision", "the refusal", |record| {
        record["verdict"] == "deny" && record["tool"] == "ui://bank/transfer"
    });
    assert_eq!((&denied["method"], &denied["continues"]), (&json!("resources/read"), &Value::Null));

    // One that is shared is there for as long as one of the tools is.
    let only = |tools: &str| {
        format!("version: 1\nrules:\n  - {{id: only, action: deny, match: {{tool: {tools}}}, reason: no}}\n")
    };
    for (tools, is_refused) in [("[rates]", false), ("[pay_bill]", false), ("[rates, pay_bill]", true)] {
        reload(&daemon, &only(tools));
        assert_eq!(refusal(&mut coder, "ui://bank/shared").is_some(), is_refused, "{tools}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_interface_is_stopped_with_its_tool() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    coder.request("tools/list", json!({}));
    for (selector, stopped, other) in [
        ("tool=balance", "ui://bank/balance", "ui://bank/transfer"),
        ("tool=ui://bank/transfer", "ui://bank/transfer", "ui://bank/balance"),
    ] {
        let (stop, _) = daemon.cli().stop(&[selector], "refuse");
        let refusal = refusal(&mut coder, stopped).unwrap_or_else(|| panic!("{selector} stops {stopped}"));
        assert!(refusal.contains(REASON), "{refusal}");
        assert_eq!(self::refusal(&mut coder, other), None, "{selector}");
        daemon.cli().release(&stop);
    }
}
