//! `redact`: what rules take out of arguments and answers, and that the rest stays byte for byte.

use std::fs;

use agent_tests::agent::{Agent, call};
use agent_tests::http::{self, Message};
use agent_tests::raw_server::RawServer;
use agent_tests::records::rules;
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Era, Sdk, Server, World, mcp, wait_for};
use serde_json::{Value, json};

use crate::rule_peers::{Caller, bank, call_with, configured, in_session, of_server, serves};

const KEY: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
const OUT: &str = "
version: 1
rules:
  - id: none-out
    action: redact
    match: {method: tools/call}
    redact: {fields: [/customer/iban, '/rows/*/pin'], patterns: [keys, mail]}
";

/// Arguments with secrets in them, and what is left.
fn args() -> (String, String) {
    let with = |iban: &str, key: &str, mail: &str, pins: [&str; 2]| {
        format!(
            r#"{{ "customer":{{"iban":{iban} ,"name":"J\u00f6rg"}}, "note":"use {key}, ask {mail}\n", "amount":1e2,  "rows":[{{"pin":{}}},{{"x":1.50,"pin":{}}}]}}"#,
            pins[0], pins[1]
        )
    };
    (
        with(r#""DE02\u0031""#, KEY, "ann@example.com", ["1234", "[5,6]"]),
        with(r#""[redacted]""#, "[redacted:key]", "[redacted:mail]", [r#""[redacted]""#, r#""[redacted]""#]),
    )
}

fn last_of(server: &RawServer) -> Message {
    server.requests().pop().expect("a request")
}

fn body_of(request: &[u8]) -> String {
    String::from_utf8_lossy(request).split_once("\r\n\r\n").expect("a head").1.to_owned()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn server_and_records_get_the_arguments_without_the_secrets() {
    let world = World::new();
    let daemon = configured(&world, OUT, |config| config.replace("arguments: digest", "arguments: full"));
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let (secret, left) = args();
    assert_eq!(coder.call("pay", &secret), None);
    let expected = body_of(&call_with(1, "pay", &left));
    assert_eq!(last_of(&server).text(), expected, "the rest is the agent's own text");

    // The same in chunks.
    let body = body_of(&call_with(1, "pay", &secret));
    let head = "POST /mcp HTTP/1.1\r\nhost: bank.test\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunks = body.as_bytes().chunks(9).flat_map(http::chunk).collect();
    assert_eq!(coder.ask(&[head.into(), chunks, http::chunk(b"")].concat()).status(), 200);
    assert_eq!(last_of(&server).text(), expected);
    // In a batch the other call stays as it is.
    let other = body_of(&call_with(2, "look", r#"{"a":  1.0}"#));
    let answers = coder.ask(&in_session(&format!("[ {body} , {other}]"))).messages();
    assert_eq!(answers.len(), 2);
    assert_eq!(last_of(&server).text(), format!("[ {expected} , {other}]"));
    assert_eq!(coder.call("look", r#"{"a":  1.0}"#), None);
    assert_eq!(last_of(&server).text(), body_of(&call_with(1, "look", r#"{"a":  1.0}"#)));

    let edited = daemon.records().decision("pay", "edit");
    assert_eq!(
        (rules(&edited), &edited["redacted"]),
        (vec!["none-out"], &json!({"fields": 3, "keys": 1, "mail": 1}))
    );
    assert_eq!(edited["arguments"], serde_json::from_str::<Value>(&left).expect("JSON"));
    assert!(edited["arguments_digest"].is_string() && edited.get("phase").is_none(), "{edited}");
    assert_eq!(rules(&daemon.records().decision("look", "allow")), [""; 0]);
    let records = fs::read_to_string(world.path("records.jsonl")).expect("read the records");
    for part in [KEY, "ann@example.com", "DE02", "1234"] {
        assert!(!server.saw(part), "{part}");
        assert!(!records.contains(part) || part == "1234", "{part}");
    }
    assert_eq!(server.connections(), 1);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn headers_that_mirror_an_argument_follow_it() {
    let world = World::new();
    let _daemon = Daemon::start(&world, OUT);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let args = json!({"customer": {"iban": "DE02120300"}, "note": format!("Grüße {KEY}"), "key": KEY, "region": "eu"});
    let request = String::from_utf8(mcp::modern_call(1, "pay", "pay", args)).expect("text");
    // `Grüße ` and the key.
    let coded = "=?base64?R3LDvMOfZSBnaHBfMTZDN2U0MkYyOTJjNjkxMkU3NzEwYzgzODM0N0FlMTc4QjRh?=";
    let headers = format!(
        "\r\nMcp-Param-Iban: DE02120300\r\nmcp-param-note: {coded}\r\nMcp-Param-Key:  {KEY}\r\nMcp-Param-Region: eu\r\nX-Other: DE02120300\r\n"
    );
    let messages = coder.ask(request.replacen("\r\n", &headers, 1).as_bytes()).messages();
    assert_eq!(mcp::refusal(mcp::of_id(&messages, 1)), None);

    let seen = last_of(&server);
    let arguments = &seen.json()["params"]["arguments"];
    assert_eq!(
        *arguments,
        json!({"customer": {"iban": "[redacted]"}, "note": "Grüße [redacted:key]", "key": "[redacted:key]", "region": "eu"})
    );
    assert_eq!(seen.header("mcp-param-iban"), Some("[redacted]"));
    assert_eq!(seen.header("mcp-param-note"), Some("=?base64?R3LDvMOfZSBbcmVkYWN0ZWQ6a2V5XQ==?="));
    assert_eq!(seen.header("mcp-param-key"), Some("[redacted:key]"));
    assert_eq!(seen.header("mcp-param-region"), Some("eu"));
    assert_eq!(seen.header("x-other"), Some("DE02120300"), "no header of MCP's");
    assert_eq!(seen.header("mcp-name"), Some("pay"));
}

const IN: &str = "
version: 1
rules:
  - id: none-in
    action: redact
    phase: response
    match: {method: [tools/call, notifications/message]}
    redact: {fields: [/structuredContent/mail, /data], patterns: [mail]}
";

/// The result of a call, and what is left of it.
fn result() -> [String; 2] {
    [("ann@example.com", r#""bob""#), ("[redacted:mail]", r#""[redacted]""#)].map(|(text, structured)| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1, "result":{{"content":[{{"type":"text","text":"write to {text}"}}], "structuredContent":{{"n":1.0,"mail":{structured}}}}}}}"#
        )
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_gets_answers_without_the_secrets_however_they_are_framed() {
    let world = World::new();
    let daemon = Daemon::start(&world, IN);
    let [secret, left] = result();
    let notice = |data: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{data}}}}}"#
        )
    };
    let stream = |notice: &str, result: &str| {
        format!(
            ": hi\n\nid: 7\nevent: message\ndata: {notice}\n\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{{\"data\":\"kept\"}}}}\n\nid: 8\ndata: {result}\n\n"
        )
    };
    let sse = [stream(&notice(r#"["bob"]"#), &secret), stream(&notice(r#""[redacted]""#), &left)];
    let kinds = [("application/json", &[secret, left]), ("text/event-stream", &sse)];
    for (kind, [said, expected]) in kinds {
        for framing in ["length", "chunks", "close"] {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nx-a:  B\r\n");
            let whole = match framing {
                "length" => format!("{head}content-length: {}\r\n\r\n{said}", said.len()).into_bytes(),
                "close" => format!("{head}\r\n{said}").into_bytes(),
                _ => {
                    let chunks = said.as_bytes().chunks(5).flat_map(http::chunk).collect();
                    [
                        format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes(),
                        chunks,
                        http::chunk(b""),
                    ]
                    .concat()
                }
            };
            let server = serves(&world, move |_, reply| {
                reply.write_in(11, &whole)?;
                if framing == "close" { Err(std::io::ErrorKind::ConnectionAborted.into()) } else { Ok(true) }
            });
            let mut coder = Caller::start(&world, "coder", &server);
            let answer = coder.ask(&call_with(1, "look", r#"{"mail":"ann@example.com"}"#));
            assert_eq!(&answer.text(), expected, "{kind} {framing}");
            assert_eq!((answer.status(), answer.header("x-a")), (200, Some("B")));
            assert!(server.saw("ann@example.com"), "what is asked is not the rule's business");
            if framing != "close" {
                assert_eq!(&coder.ask(&call_with(1, "look", "{}")).text(), expected, "{kind} {framing}");
                assert_eq!(server.connections(), 1);
            }
        }
    }
    let edited = of_server(&daemon, "of the call", |record| record["method"] == "tools/call");
    assert_eq!((&edited["phase"], &edited["verdict"]), (&json!("response"), &json!("edit")));
    assert_eq!((rules(&edited), &edited["redacted"]), (vec!["none-in"], &json!({"fields": 1, "mail": 1})));
    let asked = daemon.records().decision("look", "allow");
    assert_eq!(edited["of"], asked["decision"]);
    let notice = of_server(&daemon, "of a notice", |record| record["method"] == "notifications/message");
    assert_eq!(notice["redacted"], json!({"fields": 1}));
    wait_for("a record of each result", || {
        let results = daemon.records().of("result");
        (results.iter().filter(|record| record["outcome"] == "result").count() == 10).then_some(())
    });
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn observed_redaction_changes_nothing_and_says_so() {
    let world = World::new();
    let rules_text = [OUT, IN.split_once("rules:").expect("rules").1]
        .concat()
        .replace("action: redact", "action: redact\n    mode: observe");
    let daemon = Daemon::start(&world, &rules_text);
    let [secret, _] = result();
    let server = serves(&world, {
        let secret = secret.clone();
        move |_, reply| {
            reply.write(&http::response("application/json", &[], secret.as_bytes())).map(|()| true)
        }
    });
    let mut coder = Caller::start(&world, "coder", &server);
    let request = call_with(1, "pay", &args().0);
    assert_eq!(coder.ask(&request).text(), secret);
    assert_eq!(server.bytes(), request);
    let asked = daemon.records().decision("pay", "would_edit");
    assert_eq!((rules(&asked), asked.get("redacted")), (vec!["none-out"], None));
    let answered = of_server(&daemon, "the answer", |record| record["verdict"] == "would_edit");
    assert_eq!((rules(&answered), &answered["of"]), (vec!["none-in"], &asked["decision"]));
}

/// One test per pair: client, what it is told to speak, server and how it answers.
macro_rules! pairs {
    ($($name:ident: $client:ident, $era:ident => $server:ident, $json:expr;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            secrets_do_not_pass(Sdk::$client, Era::$era, Sdk::$server, $json);
        }
    )*};
}

pairs! {
    redacted_for_py2_at_ts2: Py2, Auto => Ts2, &[];
    redacted_for_py2_at_ts2_on_json: Py2, Auto => Ts2, &["--json"];
    redacted_for_ts2_at_py2: Ts2, Auto => Py2, &[];
    redacted_for_rmcp_at_py2_on_json: Rmcp, Auto => Py2, &["--json"];
    redacted_for_py1_at_ts2_on_2025: Py1, Legacy => Ts2, &[];
    redacted_for_ts1_at_py1_on_2025: Ts1, Legacy => Py1, &["--json"];
}

/// A key does not leave; a mail address does, and does not come back.
fn secrets_do_not_pass(client: Sdk, era: Era, server: Sdk, more: &[&str]) {
    let world = World::new();
    let text = "
version: 1
rules:
  - {id: none-out, action: redact, redact: {patterns: [keys]}}
  - {id: none-in, action: redact, phase: response, redact: {patterns: [mail]}}
";
    let daemon = Daemon::start(&world, text);
    let server = Server::start_on(&world, server, SERVER_V4, more);
    let script = json!([
        call("echo", json!({"text": format!("{KEY} of ann@example.com")})),
        call("echo", json!({"text": "after"})),
    ]);
    let agent = Agent::start(&world, "coder", client, era, &server.url(), &script);
    agent.connected();
    let steps = agent.rest();
    let [first, after] = &steps[..] else { panic!("{steps:?}") };
    assert!(first.ok && !first.is_error, "{first:?}");
    assert_eq!(first.text, "[redacted:key] of [redacted:mail]");
    assert_eq!(after.text, "after");
    assert_eq!(server.started("echo")[0].args["text"], "[redacted:key] of ann@example.com");
    assert_eq!(daemon.records().decision("echo", "edit")["redacted"], json!({"keys": 1}));
    of_server(&daemon, "the answer", |record| record["verdict"] == "edit" && record["phase"] == "response");
}
