//! What rules say of what servers send: results, notifications in a stream, and requests of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agent_tests::agent::{Agent, call};
use agent_tests::http::{self, Message};
use agent_tests::records::rules;
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Era, Sdk, Server, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::rule_peers::{Caller, call_with, calls_of, of_server, reload, serves};

const NO_SECRETS: &str = "
version: 1
rules:
  - id: no-secrets
    action: deny
    phase: response
    match: {method: tools/call}
    when: 'result.content.exists(part, part.text.contains(\"secret\"))'
    reason: this is not for agents
  - {id: no-log, action: deny, phase: response, match: {method: notifications/message}, reason: no logs}
";

fn result(id: u32, text: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}).to_string()
}

/// A notification of the server's.
fn notice(method: &str, text: &str) -> String {
    json!({"jsonrpc": "2.0", "method": method, "params": {"level": "info", "data": text}}).to_string()
}

/// The refusal of the call with id 1 in an answer.
fn refused(answer: &Message) -> String {
    mcp::refusal(mcp::of_id(&answer.messages(), 1)).unwrap_or_else(|| panic!("refused: {}", answer.text()))
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_refused_result_is_replaced_and_the_connection_goes_on() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_SECRETS);
    let server = serves(&world, |request, reply| {
        let text = request.json()["params"]["arguments"]["say"].as_str().unwrap_or_default().to_owned();
        match request.json()["params"]["name"].as_str() {
            Some("json") => {
                reply.write(&http::response("application/json", &[], result(1, &text).as_bytes()))?;
            }
            Some("sse") => {
                let log = notice("notifications/message", "a log");
                let other = notice("notifications/progress", "kept");
                let answer = result(1, &text);
                let stream = format!(
                    "id: 1\ndata: {log}\n\nid: 2\ndata: {other}\n\nid: 3\nevent: message\ndata: {answer}\n\n: bye\n\n"
                );
                let chunks = stream.as_bytes().chunks(13).flat_map(http::chunk).collect();
                reply.write_in(29, &[http::sse_head(), chunks, http::chunk(b"")].concat())?;
            }
            Some("batch") => {
                let body = format!("[{} , {}]", result(1, &text), result(2, "fine"));
                reply.write(&http::response("application/json", &[], body.as_bytes()))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    });
    let mut coder = Caller::start(&world, "coder", &server);
    for tool in ["json", "sse"] {
        let answer = coder.ask(&call_with(1, tool, r#"{"say":"a secret"}"#));
        let refusal = refused(&answer);
        for part in ["this is not for agents", "rule no-secrets", "tools/call"] {
            assert!(refusal.contains(part), "{refusal}");
        }
        assert!(!answer.text().contains("a secret") && answer.status() == 200, "{}", answer.text());
        let answer = coder.ask(&call_with(1, tool, r#"{"say":"hello"}"#));
        assert!(answer.text().contains("hello"), "{tool}: {}", answer.text());
    }
    let answer = coder.ask(&call_with(1, "sse", r#"{"say":"a secret"}"#));
    let text = answer.text();
    assert!(text.starts_with("id: 1\ndata: \n\nid: 2\ndata: {"), "the id stays: {text}");
    assert!(text.contains("kept") && !text.contains("a log"), "{text}");
    assert!(text.contains("id: 3\nevent: message\ndata: {") && text.ends_with(": bye\n\n"), "{text}");
    assert_eq!(answer.messages().len(), 2, "{text}");

    let batch = json!([mcp::call(1, "batch", json!({"say": "a secret"})), mcp::call(2, "batch", json!({}))]);
    let body = batch.to_string();
    let batch_server = serves(&world, |_, reply| {
        let body = format!("[{} , {}]", result(1, "a secret"), result(2, "fine"));
        reply.write(&http::response("application/json", &[], body.as_bytes())).map(|()| true)
    });
    let mut other = Caller::start(&world, "coder", &batch_server);
    let answer = other.ask(&http::post(&body, &[mcp::SESSION, ("mcp-protocol-version", "2025-03-26")]));
    assert!(refused(&answer).contains("no-secrets"), "{}", answer.text());
    assert_eq!(mcp::of_id(&answer.messages(), 2)["result"]["content"][0]["text"], "fine");
    assert_eq!(server.connections(), 1);
    assert_eq!(calls_of(&server, "json"), 2, "the call had left");

    let denied = of_server(&daemon, "the result", |record| record["tool"] == "json");
    assert_eq!((&denied["phase"], &denied["verdict"]), (&json!("response"), &json!("deny")));
    assert_eq!((rules(&denied), &denied["reason"]), (vec!["no-secrets"], &json!("this is not for agents")));
    assert_eq!(denied["of"], daemon.records().decision("json", "allow")["decision"]);
    let withheld = of_server(&daemon, "the log", |record| record["method"] == "notifications/message");
    assert_eq!((rules(&withheld), withheld.get("of")), (vec!["no-log"], None));
    let labels = [("agent", "coder"), ("rule", "no-secrets")];
    assert_eq!(daemon.metrics().value("interlock_denials_total", &labels), 4.0);
}

const NO_QUESTIONS: &str = "
version: 1
rules:
  - id: no-questions
    action: deny
    match: {method: [sampling/createMessage, elicitation/create, roots/list], agent: coder}
    reason: the server asks too much
";

/// What a server may ask, with the ids that it gives.
fn questions() -> [Value; 3] {
    [("sampling/createMessage", json!("q-1")), ("elicitation/create", json!(7)), ("roots/list", json!(0))]
        .map(|(method, id)| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"message": "may I?"}}))
}

/// A server that asks in the middle of a call, and answers once it has its answers.
fn asks(world: &World) -> agent_tests::raw_server::RawServer {
    serves(world, |request, reply| {
        if request.json()["params"]["name"] != "ask" {
            return Ok(false);
        }
        let events: String = questions().iter().map(|asked| format!("data: {asked}\n\n")).collect();
        reply.write(&[http::sse_head(), http::chunk(events.as_bytes())].concat())?;
        for asked in questions() {
            reply.hold_for(|request| {
                let body = request.json();
                body.get("method").is_none() && body["id"] == asked["id"]
            })?;
        }
        let event = format!("data: {}\n\n", result(1, "asked"));
        reply.write(&[http::chunk(event.as_bytes()), http::chunk(b"")].concat()).map(|()| true)
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_a_server_must_not_ask_is_answered_in_the_agents_place() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_QUESTIONS);
    let server = asks(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let answer = coder.ask(&call_with(1, "ask", "{}"));
    let messages = answer.messages();
    assert_eq!(messages.len(), 1, "no question: {}", answer.text());
    assert_eq!(messages[0]["result"]["content"][0]["text"], "asked");
    for asked in questions() {
        let is =
            |request: &Message| request.json()["error"].is_object() && request.json()["id"] == asked["id"];
        let reply = server.wait("the error", is);
        assert!(reply.start.starts_with("POST /mcp "), "{}", reply.start);
        assert_eq!(reply.header("mcp-session-id"), Some("session-1"));
        assert_eq!(reply.header("mcp-protocol-version"), Some("2025-11-25"));
        let error = &reply.json()["error"];
        assert_eq!((&error["code"], &error["data"]["rule"]), (&json!(40301), &json!("no-questions")));
        assert!(error["message"].as_str().is_some_and(|text| text.contains("asks too much")), "{error}");
        let denied = of_server(&daemon, "a question", |record| record["method"] == asked["method"]);
        assert_eq!((&denied["verdict"], denied.get("phase")), (&json!("deny"), None));
        assert_eq!(
            (rules(&denied), &denied["rpc_id"]),
            (vec!["no-questions"], &json!(asked["id"].to_string()))
        );
        let id = asked["id"].to_string();
        let is = |record: &Value| record["rpc_id"] == id;
        let reply = daemon.records().wait("reply", "to the server", is);
        assert_eq!((&reply["outcome"], &reply["agent"]), (&json!("status 202"), &json!("coder")));
    }
    assert_eq!(coder.call("look", "{}"), None, "the connection goes on");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_a_server_may_ask_and_what_is_answered_pass() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_QUESTIONS);
    let server = asks(&world);
    let mut sibling = Caller::start(&world, "sibling", &server);
    sibling.send(&call_with(1, "ask", "{}"));
    let is_there = |message: &Message| message.messages().len() == 3;
    let seen = sibling.agent.so_far(&mut sibling.conn, is_there).expect("three questions").messages();
    assert_eq!(seen, questions());
    let mut second = Caller::start(&world, "sibling", &server);
    for asked in questions() {
        let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}});
        assert_eq!(second.ask(&mcp::legacy(&answer)).status(), 202);
    }
    let answer = sibling.message().messages();
    assert_eq!(mcp::of_id(&answer, 1)["result"]["content"].as_array().map(Vec::len), Some(1));
    assert!(server.saw("accept") && !server.saw("40301"));
    assert_eq!(daemon.records().of("reply").len(), 0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_call_whose_result_asks_too_much_is_refused() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_QUESTIONS);
    let server = serves(&world, |request, reply| {
        let method = request.json()["params"]["arguments"]["ask"].clone();
        let requests =
            json!({"a": {"method": "other/ask", "params": {}}, "b": {"method": method, "params": {}}});
        let result = json!({"resultType": "input_required", "requestState": "st", "inputRequests": requests});
        reply.result(request, &result).map(|()| true)
    });
    let mut coder = Caller::start(&world, "coder", &server);
    let mut ask = |method: &str| coder.ask(&mcp::modern_call(1, "pay", "pay", json!({"ask": method})));
    let refusal = refused(&ask("elicitation/create"));
    assert!(refusal.contains("the server asks too much") && refusal.contains("tools/call pay"), "{refusal}");
    let passes = ask("some/thing");
    assert_eq!(passes.json()["result"]["resultType"], "input_required", "{}", passes.text());
    let denied = of_server(&daemon, "inside", |record| record["method"] == "elicitation/create");
    assert_eq!((&denied["verdict"], rules(&denied)), (&json!("deny"), vec!["no-questions"]));
    assert_eq!(denied["of"], daemon.records().decision("pay", "allow")["decision"]);
    assert_eq!(daemon.records().of("reply").len(), 0, "nobody waits for an error");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_server_does_not_get_around_rules_by_spelling() {
    let hide = "\n  - {id: hide, action: hide, match: {tool: pay}}\n";
    let world = World::new();
    let _daemon = Daemon::start(&world, &format!("{NO_QUESTIONS}{hide}"));
    let server = serves(&world, |request, reply| {
        let result = request.json()["params"]["arguments"]["result"].clone();
        let tools = r#"{"tools":[{"name":"pay"}],"Tools":[],"resultType":"complete"}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{}}}"#, result.as_str().unwrap_or(tools));
        reply.write(&http::response("application/json", &[], text.as_bytes())).map(|()| true)
    });
    let mut coder = Caller::start(&world, "coder", &server);
    let asks = r#"{"a":{"method":"elicitation/create","params":{}}}"#;
    let mut ask =
        |result: String| refused(&coder.ask(&mcp::modern_call(1, "read", "read", json!({"result": result}))));
    let escaped = ask(format!(r#"{{"resultType":"input\u005frequired","inputRequests":{asks}}}"#));
    assert!(escaped.contains("the server asks too much"), "{escaped}");
    let twice =
        ask(format!(r#"{{"resultType":"input_required","inputRequests":{asks},"InputRequests":{{}}}}"#));
    assert!(twice.contains("duplicate_member"), "{twice}");
    let list = coder.ask(&mcp::legacy(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})));
    assert!(list.text().contains("duplicate_member") && !list.text().contains(r#""name":"pay""#), "{list:?}");
    let entry = r#"{"tools":[{"name":"pay","Name":"read"}]}"#;
    let list = coder.ask(&mcp::legacy(
        &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"arguments": {"result": entry}}}),
    ));
    assert!(list.text().contains("duplicate_member"), "{list:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn the_next_event_of_an_open_stream_meets_a_new_rule() {
    let world = World::new();
    let daemon = Daemon::start(&world, "version: 1\nrules: []\n");
    let turn = Arc::new(AtomicUsize::new(0));
    let server = serves(&world, {
        let turn = turn.clone();
        move |_, reply| {
            reply.write(&http::sse_head())?;
            for count in 1..=4 {
                reply.hold(|| turn.load(Ordering::Relaxed) >= count)?;
                let event = notice("notifications/message", &format!("event {count}"));
                reply.write(&http::chunk(format!("id: {count}\ndata: {event}\n\n").as_bytes()))?;
            }
            let last = format!("data: {}\n\n", result(1, "a secret"));
            reply.write(&[http::chunk(last.as_bytes()), http::chunk(b"")].concat()).map(|()| true)
        }
    });
    let mut coder = Caller::start(&world, "coder", &server);
    let mut listening = Caller::start(&world, "coder", &server);
    coder.send(&call_with(1, "watch", "{}"));
    listening.send(&http::get(&[mcp::SESSION, ("mcp-protocol-version", "2025-11-25")]));
    let mut both = |has: &dyn Fn(&str) -> bool| {
        for caller in [&mut coder, &mut listening] {
            caller.agent.so_far(&mut caller.conn, |message| has(&message.text())).expect("the event");
        }
    };
    turn.store(1, Ordering::Relaxed);
    both(&|text| text.contains("event 1"));
    reload(&daemon, NO_SECRETS);
    turn.store(2, Ordering::Relaxed);
    both(&|text| text.ends_with("id: 2\ndata: \n\n"));
    let edit = "
version: 1
rules:
  - {id: cut, action: redact, phase: response, redact: {fields: [/data]}}
";
    reload(&daemon, edit);
    turn.store(3, Ordering::Relaxed);
    both(&|text| text.contains("id: 3\n") && text.contains("[redacted]") && text.ends_with("\n\n"));
    reload(&daemon, NO_SECRETS);
    turn.store(4, Ordering::Relaxed);
    let answer = coder.message();
    assert!(refused(&answer).contains("no-secrets"), "{}", answer.text());
    for text in [answer.text(), listening.message().text()] {
        for count in 2..=4 {
            assert!(!text.contains(&format!("event {count}")), "{text}");
        }
    }
    let generations = daemon.records().of("decision");
    let of = |id: &str| {
        generations.iter().find(|record| rules(record) == [id]).map(|record| record["generation"].as_u64())
    };
    assert!(of("no-log") < of("cut"), "{generations:?}");
}

/// One test per pair: client, what it is told to speak, server and how it answers.
macro_rules! pairs {
    ($($name:ident: $client:ident, $era:ident => $server:ident, $json:expr;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            refused_answers_and_questions(Sdk::$client, Era::$era, Sdk::$server, $json);
        }
    )*};
}

pairs! {
    answers_refused_for_py2_at_ts2: Py2, Auto => Ts2, &[];
    answers_refused_for_ts2_at_py2: Ts2, Auto => Py2, &[];
    answers_refused_for_rmcp_at_py2: Rmcp, Auto => Py2, &[];
    answers_refused_for_py2_at_ts2_on_json: Py2, Auto => Ts2, &["--json"];
    answers_refused_for_py1_at_ts1_on_2025: Py1, Legacy => Ts1, &[];
    answers_refused_for_ts1_at_py1_on_2025: Ts1, Legacy => Py1, &[];
    answers_refused_for_py2_at_py1_on_2025: Py2, Legacy => Py1, &[];
    answers_refused_for_ts2_at_py2_on_2025: Ts2, Legacy => Py2, &[];
}

fn refused_answers_and_questions(client: Sdk, era: Era, server: Sdk, more: &[&str]) {
    let world = World::new();
    let text = "
version: 1
rules:
  - {id: no-receipts, action: deny, phase: response, match: {tool: wire_transfer}, reason: receipts are secret}
  - {id: no-questions, action: deny, match: {method: elicitation/create}, reason: nobody is asked}
";
    let daemon = Daemon::start(&world, text);
    let server = Server::start_on(&world, server, SERVER_V4, more);
    let script = json!([
        call("wire_transfer", json!({"amount": 5})),
        call("ask", json!({})),
        call("progress", json!({"steps": 3})),
        call("echo", json!({"text": "after"})),
    ]);
    let agent = Agent::start(&world, "coder", client, era, &server.url(), &script);
    let revision = agent.connected();
    let steps = agent.rest();
    let [receipt, asked, progress, after] = &steps[..] else { panic!("{steps:?}") };
    assert!(receipt.is_error && receipt.text.contains("receipts are secret"), "{receipt:?}");
    assert!(!receipt.text.contains("transferred"), "{receipt:?}");
    assert_eq!(server.started("wire_transfer").len(), 1, "the server did it");
    assert!(asked.error != "timeout" && asked.text != "accept", "nobody was asked: {asked:?}");
    assert!(asked.is_error, "{asked:?}");
    assert_eq!((progress.is_error, progress.text.as_str()), (false, "3 steps"));
    assert_eq!((after.is_error, after.text.as_str()), (false, "after"));
    let denied = of_server(&daemon, "the receipt", |record| record["tool"] == "wire_transfer");
    assert_eq!((&denied["phase"], rules(&denied)), (&json!("response"), vec!["no-receipts"]));
    of_server(&daemon, "the question", |record| {
        record["method"] == "elicitation/create" && record["verdict"] == "deny"
    });
    // Up to 2025-11-25 the server waits for an answer to its question; later it has put it into the result.
    let expected = usize::from(revision == "2025-11-25");
    wait_for("the reply", || (daemon.records().of("reply").len() == expected).then_some(()));
}
