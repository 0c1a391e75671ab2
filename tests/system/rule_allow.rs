//! `allow_only` and `hide`: what is not on the list does not leave, and what is hidden is neither listed nor used.

use agent_tests::agent::{Agent, call, list};
use agent_tests::raw_server::RawServer;
use agent_tests::records::rules;
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Era, Sdk, Server, World, http, mcp};
use serde_json::{Value, json};

use crate::rule_peers::{Caller, bank, calls_of, of_server, serves};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn only_the_tools_that_some_rule_names_are_called() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
rules:
  - {id: say, action: allow_only, match: {agent: coder, tool: [echo, 'read_*']}, reason: not on the list}
  - {id: small, action: allow_only, match: {agent: coder, tool: pay}, when: args.amount < 10, reason: too much}
",
    );
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    for (tool, args) in [("echo", "{}"), ("read_file", "{}"), ("pay", r#"{"amount":9}"#)] {
        assert_eq!(coder.call(tool, args), None, "{tool}");
    }
    for (tool, args) in [("write", "{}"), ("pay", r#"{"amount":10}"#), ("Echo", "{}")] {
        assert!(coder.refused(tool, args).contains("not on the list"), "{tool}");
    }
    assert!(!server.saw("write") && calls_of(&server, "pay") == 1);
    assert!(coder.request("tools/list", json!({}))["result"]["tools"].is_array(), "no call of a tool");
    assert_eq!(Caller::start(&world, "sibling", &server).call("write", "{}"), None);
    let denied = daemon.records().decision("write", "deny");
    assert_eq!((rules(&denied), &denied["agent"]), (vec!["say", "small"], &json!("coder")));
    assert_eq!(rules(&daemon.records().decision("echo", "allow")), [""; 0]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn sessions_begin_and_end_whatever_methods_are_allowed() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
rules:
  - {id: lists, action: allow_only, match: {agent: '*', method: [tools/list, 'prompts/*']}, reason: it may only look}
",
    );
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    assert_eq!(coder.ask(&mcp::initialize("2025-11-25")).status(), 200);
    for method in ["notifications/initialized", "notifications/cancelled"] {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": {"requestId": 7}});
        assert_eq!(coder.ask(&mcp::legacy(&body)).status(), 202);
        server.wait(method, |request| request.json()["method"] == method);
    }
    for method in ["ping", "server/discover", "tools/list", "prompts/list", "prompts/get"] {
        let answer = coder.request(method, json!({}));
        assert!(answer["result"].is_object(), "{method}: {answer}");
    }
    assert!(coder.refused("look", "{}").contains("it may only look"));
    let answer = coder.request("resources/list", json!({}));
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["data"]["rule"]),
        (&json!(40301), &json!("lists"))
    );
    assert!(!server.saw("tools/call") && !server.saw("resources/list"));
    assert_eq!(rules(&daemon.records().decision("look", "deny")), ["lists"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn other_servers_are_not_even_connected_to() {
    let world = World::new();
    let (ours, other) = (bank(&world), bank(&world));
    let text = format!(
        "
version: 1
rules:
  - {{id: ours, action: allow_only, match: {{agent: coder, server: '{}'}}, reason: not a server of ours}}
",
        ours.address()
    );
    let daemon = Daemon::start(&world, &text);
    let mut coder = Caller::start(&world, "coder", &ours);
    assert_eq!(coder.call("look", "{}"), None);
    assert_eq!(coder.ask(b"GET / HTTP/1.1\r\nhost: bank.test\r\n\r\n").text(), "hi");

    let mut coder = Caller::start(&world, "coder", &other);
    assert!(coder.refused("look", "{}").contains("not a server of ours"));
    coder.reopen();
    let page = coder.ask(b"GET / HTTP/1.1\r\nhost: bank.test\r\n\r\n");
    assert_eq!((page.status(), &page.json()["error"]["data"]["rule"]), (403, &json!("ours")));
    for bytes in
        [b"\x16\x03\x01\x00\x05hello".as_slice(), b"SSH-2.0-x\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        coder.reopen();
        coder.send(bytes);
        assert!(coder.is_cut());
    }
    assert_eq!((other.connections(), other.bytes()), (0, Vec::new()), "the address alone decides");
    let denied = |method: &str| {
        daemon.records().wait("decision", method, |record| {
            record["method"] == method && record["verdict"] == "deny" && rules(record) == ["ours"]
        })
    };
    for method in ["tools/call", "tls"] {
        assert_eq!(denied(method)["destination"], other.address().to_string());
    }
    let mut sibling = Caller::start(&world, "sibling", &other);
    assert_eq!(sibling.call("look", "{}"), None, "the rule is about another agent");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_server_may_be_allowed_by_the_name_the_agent_gives() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
rules:
  - {id: ours, action: allow_only, match: {server: 'Bank.test'}, reason: not a server of ours}
",
    );
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    assert_eq!(coder.call("look", "{}"), None);
    let text = String::from_utf8(mcp::legacy(&mcp::call(1, "pay", json!({})))).expect("text");
    let messages = coder.ask(text.replace("bank.test", "evil.test").as_bytes()).messages();
    assert!(mcp::refusal(mcp::of_id(&messages, 1)).expect("a refusal").contains("not a server of ours"));
    assert_eq!(coder.call("look", "{}"), None, "on the same connection");
    coder.reopen();
    coder.send(b"SSH-2.0-x\r\n");
    assert!(coder.is_cut(), "it gives no name");
    assert!(!server.saw("evil.test") && !server.saw("SSH"));
    assert_eq!(daemon.records().decision("pay", "deny")["server"], "evil.test");
}

const HIDE: &str = "
version: 1
rules:
  - {id: no-transfers, action: hide, match: {tool: wire_transfer}, reason: transfers need a person}
";

/// One test per pair: client, what it is told to speak, server and how it answers.
macro_rules! pairs {
    ($($name:ident: $client:ident, $era:ident => $server:ident, $json:expr;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            hidden_tool_is_not_listed_and_not_called(Sdk::$client, Era::$era, Sdk::$server, $json);
        }
    )*};
}

pairs! {
    hidden_from_py2_at_ts2: Py2, Auto => Ts2, &[];
    hidden_from_py2_at_ts2_on_json: Py2, Auto => Ts2, &["--json"];
    hidden_from_ts2_at_py2: Ts2, Auto => Py2, &[];
    hidden_from_ts2_at_py2_on_json: Ts2, Auto => Py2, &["--json"];
    hidden_from_rmcp_at_py2: Rmcp, Auto => Py2, &[];
    hidden_from_py1_at_ts2_on_2025: Py1, Legacy => Ts2, &[];
    hidden_from_ts1_at_py2_on_2025: Ts1, Legacy => Py2, &["--json"];
}

fn hidden_tool_is_not_listed_and_not_called(client: Sdk, era: Era, server: Sdk, more: &[&str]) {
    let world = World::new();
    let daemon = Daemon::start(&world, HIDE);
    let server = Server::start_on(&world, server, SERVER_V4, more);
    let transfer = call("wire_transfer", json!({"amount": 5}));
    let script = json!([list(), transfer, call("echo", json!({"text": "after"}))]);
    let agent = Agent::start(&world, "coder", client, era, &server.url(), &script);
    agent.connected();
    let steps = agent.rest();
    let [listed, refused, after] = &steps[..] else { panic!("{steps:?}") };
    assert!(listed.ok && !listed.is_error, "{listed:?}");
    let names: Vec<_> = listed.text.split(' ').collect();
    assert!(names.contains(&"echo") && !names.contains(&"wire_transfer"), "{listed:?}");
    assert!(refused.is_error && refused.text.contains("transfers need a person"), "{refused:?}");
    assert_eq!((after.is_error, after.text.as_str()), (false, "after"));
    assert!(server.started("wire_transfer").is_empty());

    let hidden = of_server(&daemon, "the list", |record| record["phase"] == "list");
    assert_eq!((&hidden["verdict"], &hidden["hidden"]), (&json!("edit"), &json!(["wire_transfer"])));
    assert_eq!((&hidden["method"], rules(&hidden)), (&json!("tools/list"), vec!["no-transfers"]));
    let asked = daemon.records().wait("decision", "the request", |record| record["decision"] == hidden["of"]);
    assert_eq!((&asked["method"], &asked["verdict"]), (&json!("tools/list"), &json!("allow")));
    assert_eq!(rules(&daemon.records().decision("wire_transfer", "deny")), ["no-transfers"]);
}

/// A server that answers a method with this JSON text as the result, in an event or not.
fn lists(world: &World, results: &'static [(&'static str, &'static str)]) -> RawServer {
    serves(world, move |request, reply| {
        let body = request.json();
        let of = |name: &str| results.iter().find(|(method, _)| *method == name);
        let Some((_, result)) = of(body["method"].as_str().unwrap_or_default()) else { return Ok(false) };
        let text = format!(r#"{{"jsonrpc":"2.0", "id":{},"result":{result}}}"#, body["id"]);
        if body["params"]["sse"] == true {
            let event = format!("id: 3\ndata: {text}\n\n");
            reply.write(&[http::sse_head(), http::chunk(event.as_bytes()), http::chunk(b"")].concat())?;
        } else {
            reply.write(&http::response("application/json", &[], text.as_bytes()))?;
        }
        Ok(true)
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn prompts_and_resources_are_hidden_too_and_what_is_left_is_the_servers_own_text() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        "
version: 1
rules:
  - {id: secret, action: hide, match: {tool: ['secret*', 'file:///etc/*']}, reason: not for agents}
  - {id: all-tools, action: hide, match: {method: tools/call, agent: coder}, reason: no tools}
",
    );
    let server = lists(
        &world,
        &[
            (
                "prompts/list",
                r#"{"prompts": [ {"name":"a", "n": 1.0} , {"name":"secret-1"},{"name":"b\u0031"} ], "x":1e2}"#,
            ),
            (
                "resources/list",
                r#"{"resources":[{"uri":"file:///etc/passwd","name":"a"},{"uri":"file:///tmp/x","name":"secret"}]}"#,
            ),
            (
                "resources/templates/list",
                r#"{"resourceTemplates":[{"uriTemplate":"file:///etc/{name}","name":"e"}]}"#,
            ),
            ("tools/list", r#"{"nextCursor":"c","tools":[{"name":"x"},{"name":"y"}]}"#),
        ],
    );
    let left = [
        ("prompts/list", r#"{"prompts": [{"name":"a", "n": 1.0},{"name":"b\u0031"}], "x":1e2}"#),
        ("resources/list", r#"{"resources":[{"uri":"file:///tmp/x","name":"secret"}]}"#),
        ("resources/templates/list", r#"{"resourceTemplates":[]}"#),
        ("tools/list", r#"{"nextCursor":"c","tools":[]}"#),
    ];
    let mut coder = Caller::start(&world, "coder", &server);
    for (method, result) in left {
        for sse in [false, true] {
            let answer = coder.ask(&mcp::legacy(&mcp::request(1, method, json!({"sse": sse}))));
            let text = format!(r#"{{"jsonrpc":"2.0", "id":1,"result":{result}}}"#);
            let expected = if sse { format!("id: 3\ndata: {text}\n\n") } else { text };
            assert_eq!(answer.text(), expected, "{method}");
        }
    }
    for (method, params) in [
        ("prompts/get", json!({"name": "secret-1"})),
        ("resources/read", json!({"uri": "file:///etc/passwd"})),
        ("resources/subscribe", json!({"uri": "file:///etc/passwd"})),
        ("tools/call", json!({"name": "x"})),
    ] {
        assert!(mcp::refusal(&coder.request(method, params)).is_some(), "{method}");
        assert!(!server.saw(method), "{method}");
    }
    let read = coder.request("resources/read", json!({"uri": "file:///tmp/x"}));
    assert!(read["result"].is_object(), "{read}");
    let hidden =
        |method: &str| of_server(&daemon, method, |record| record["method"] == method)["hidden"].clone();
    assert_eq!(hidden("prompts/list"), json!(["secret-1"]));
    assert_eq!(hidden("resources/list"), json!(["file:///etc/passwd"]));
    assert_eq!(hidden("resources/templates/list"), json!(["file:///etc/{name}"]));
    assert_eq!(hidden("tools/list"), json!(["x", "y"]));
    let sibling = Caller::start(&world, "sibling", &server).request("tools/list", json!({}));
    assert_eq!(sibling["result"]["tools"].as_array().map(Vec::len), Some(2), "{sibling}");
    assert_eq!(sibling["result"]["tools"][0], json!({"name": "x"}) as Value);
}
