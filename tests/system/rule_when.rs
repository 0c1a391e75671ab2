//! Conditions on calls (W13): arguments as the JSON they are, what becomes of a call for which a condition cannot be
//! computed, labels of agents, and claims of whom they speak for.

use agent_tests::records::rules;
use agent_tests::{Daemon, World, http, mcp};
use serde_json::json;

use crate::rule_peers::{Caller, bank, calls_of, configured};

/// A condition, arguments for which it holds, and others.
const CASES: &[(&str, &[&str], &[&str])] = &[
    (
        "args.amount > 1000",
        &[r#"{"amount":1001}"#, r#"{"amount": 1000.5}"#, r#"{"amount":1e4}"#, r#"{"x":1,"amount":10005E-1}"#],
        &[r#"{"amount":1000}"#, r#"{"amount":1e3}"#, r#"{"amount":-1e9}"#, r#"{"amount":999.9999}"#],
    ),
    ("args.dry_run == false", &[r#"{"dry_run":false}"#], &[r#"{"dry_run":true}"#]),
    (
        r#"args.order.to.country == "XX""#,
        &[r#"{"order":{"to":{"country":"XX"}}}"#, r#"{"order":{"to":{"country":"\u0058X"}}}"#],
        &[r#"{"order":{"to":{"country":"DE"}}}"#],
    ),
    (
        "args.rows.exists(row, row.amount > 10)",
        &[r#"{"rows":[{"amount":1},{"amount":11}]}"#],
        &[r#"{"rows":[{"amount":1},{"amount":10}]}"#, r#"{"rows":[]}"#],
    ),
    ("args.list[1] == 2", &[r#"{"list":[1,2]}"#], &[r#"{"list":[2,1]}"#]),
];

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn arguments_are_seen_as_the_json_they_are() {
    let world = World::new();
    let mut text = "version: 1\nrules:\n".to_owned();
    for (index, (when, ..)) in CASES.iter().enumerate() {
        text += &format!(
            "  - {{id: r{index}, action: deny, match: {{method: tools/call, tool: t{index}}}, when: '{when}'}}\n"
        );
    }
    let daemon = Daemon::start(&world, &text);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    for (index, (when, holds, fails)) in CASES.iter().enumerate() {
        let (tool, rule) = (format!("t{index}"), format!("r{index}"));
        for args in *holds {
            let refusal = coder.refused(&tool, args);
            assert!(refusal.contains(&format!("rule {rule}")), "{when}, {args}: {refusal}");
        }
        assert_eq!(calls_of(&server, &tool), 0, "{when}: nothing of them has left");
        for args in *fails {
            assert_eq!(coder.call(&tool, args), None, "{when}, {args}");
            assert!(server.saw(args), "{when}: byte for byte");
        }
        assert_eq!(calls_of(&server, &tool), fails.len());
        let decisions = daemon.records().of("decision");
        let denied = decisions.iter().filter(|record| record["tool"] == tool && record["verdict"] == "deny");
        let denied: Vec<_> = denied.collect();
        assert_eq!(denied.len(), holds.len(), "{when}");
        for record in denied {
            assert_eq!(rules(record), [rule.as_str()]);
            assert_eq!((record.get("phase"), record.get("from"), record.get("failed")), (None, None, None));
        }
    }
    assert_eq!(daemon.metrics().value("interlock_condition_errors_total", &[]), 0.0);
}

const DOUBTS: &str = "
version: 1
rules:
  - {id: strict, action: deny, match: {tool: strict}, when: args.amount > 1000, reason: too much}
  - {id: lenient, action: deny, match: {tool: lenient}, when: args.amount > 1000, on_error: allow, reason: too much}
  - {id: watched, action: deny, mode: observe, match: {tool: watched}, when: args.amount > 1000}
";

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_cannot_be_computed_is_refused_unless_the_rule_says_otherwise() {
    let world = World::new();
    let daemon = Daemon::start(&world, DOUBTS);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    let failures = |rule| daemon.metrics().value("interlock_condition_errors_total", &[("rule", rule)]);
    let doubtful = [
        ("{}", "no member \"amount\""),
        (r#"{"amount":"many"}"#, "there is no string > int"),
        (r#"{"amount":null}"#, "> int"),
        ("[1]", ""),
    ];
    for (count, (args, said)) in (1_u32..).zip(doubtful) {
        let refusal = coder.refused("strict", args);
        for part in ["too much (its condition failed: 1:", said, "rule strict"] {
            assert!(refusal.contains(part), "{args}: {part} in {refusal}");
        }
        assert_eq!(coder.call("lenient", args), None, "{args}");
        assert_eq!(coder.call("watched", args), None, "{args}");
        for rule in ["strict", "lenient", "watched"] {
            assert_eq!(failures(rule), f64::from(count), "{rule} {args}");
        }
    }
    assert_eq!((calls_of(&server, "strict"), calls_of(&server, "lenient")), (0, 4));
    assert_eq!(calls_of(&server, "watched"), 4);
    assert!(coder.refused("lenient", r#"{"amount":1001}"#).contains("too much"));
    assert_eq!(coder.call("strict", r#"{"amount":1}"#), None);

    let denied = daemon.records().decision("strict", "deny");
    assert_eq!((rules(&denied), &denied["failed"][0]["rule"]), (vec!["strict"], &json!("strict")));
    let error = denied["failed"][0]["error"].as_str().expect("why it failed");
    assert!(error.contains("amount"), "{error}");
    let let_through = daemon.records().decision("lenient", "allow");
    assert_eq!(rules(&let_through), [""; 0]);
    assert_eq!(let_through["failed"][0]["rule"], "lenient", "{let_through}");
    assert_eq!(rules(&daemon.records().decision("watched", "would_deny")), ["watched"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agents_are_told_apart_by_their_labels() {
    let world = World::new();
    let text = r#"
version: 1
rules:
  - {id: gold-only, action: deny, match: {tool: pay}, when: 'agent.labels["tier"] != "gold"'}
"#;
    let daemon = configured(&world, text, |config| {
        config
            .replace("{name: coder,", "{name: coder, labels: {tier: gold},")
            .replace("{name: sibling,", "{name: sibling, labels: {tier: silver},")
    });
    let server = bank(&world);
    assert_eq!(Caller::start(&world, "coder", &server).call("pay", "{}"), None);
    let mut sibling = Caller::start(&world, "sibling", &server);
    assert!(sibling.refused("pay", "{}").contains("gold-only"));
    assert_eq!(sibling.call("look", "{}"), None);
    let mut parked = Caller::start(&world, "parked", &server);
    assert!(parked.refused("pay", "{}").contains("its condition failed"), "it has no such label");
    let agents: Vec<_> = daemon.records().of("decision");
    let denied = agents.iter().filter(|record| record["verdict"] == "deny");
    assert_eq!(denied.map(|record| &record["agent"]).collect::<Vec<_>>(), ["sibling", "parked"]);
    assert_eq!(calls_of(&server, "pay"), 1);
}

/// Claims `{"sub":"ann","groups":["ops"],"exp":4102444800}`, signed by the key of [`JWKS`], which is kept nowhere.
const TOKEN: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbm4iLCJncm91cHMiOlsib3BzIl0sImV4cCI6NDEwMjQ0NDgwMH0.LPjf6WZYrRoLyV4wjEaYY78I7qVVR2gHn6j0kMvjcFwIrQWPdSJoTp0CTP1F4WsUbu5BoZy5oeSsOlJ1HwXmDQ";
/// The same with another signature.
const FORGED: &str = "eyJhbGciOiJFZERTQSIsImtpZCI6ImsxIn0.eyJzdWIiOiJhbm4iLCJncm91cHMiOlsib3BzIl0sImV4cCI6NDEwMjQ0NDgwMH0.Lfjf6WZYrRoLyV4wjEaYY78I7qVVR2gHn6j0kMvjcFwIrQWPdSJoTp0CTP1F4WsUbu5BoZy5oeSsOlJ1HwXmDQ";
const JWKS: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"ewszaD5SuuJOg8B7U_FJ3PBjAKuZuN83ZoGQcuYFSeg"}]}"#;

const CLAIMS: &str = r#"
version: 1
rules:
  - {id: ops, action: deny, match: {tool: pay}, when: '!("ops" in user.claims.groups)'}
  - {id: signed, action: deny, match: {tool: wire}, when: '!user.verified || user.claims.sub != "ann"'}
"#;

/// Calls a tool with a bearer token; answers the refusal, if it is one.
fn call_as(coder: &mut Caller, tool: &str, token: &str) -> Option<String> {
    let bearer = format!("Bearer {token}");
    let body = mcp::call(1, tool, json!({})).to_string();
    let headers = [mcp::SESSION, ("mcp-protocol-version", "2025-11-25"), ("authorization", &bearer)];
    let messages = coder.ask(&http::post(&body, &headers)).messages();
    mcp::refusal(mcp::of_id(&messages, 1))
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn claims_of_a_token_that_nobody_has_checked_are_seen_and_not_believed() {
    let world = World::new();
    let daemon = Daemon::start(&world, CLAIMS);
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    assert_eq!(call_as(&mut coder, "pay", TOKEN), None);
    assert_eq!(call_as(&mut coder, "pay", FORGED), None);
    assert!(
        call_as(&mut coder, "pay", "opaque-token")
            .expect("it says no groups")
            .contains("its condition failed")
    );
    assert!(coder.refused("pay", "{}").contains("its condition failed"), "no token, no groups");
    for token in [TOKEN, FORGED, "opaque-token"] {
        assert!(call_as(&mut coder, "wire", token).expect("not verified").contains("signed"));
    }
    assert_eq!((calls_of(&server, "pay"), calls_of(&server, "wire")), (2, 0));
    let records: String = daemon.records().all().iter().map(ToString::to_string).collect();
    assert!(!records.contains(TOKEN), "no token is on record");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn claims_of_a_token_that_stands_up_to_the_keys_are_verified() {
    let world = World::new();
    std::fs::write(world.path("keys.json"), JWKS).expect("write the keys");
    let daemon = Daemon::start_with(&world, CLAIMS, "tokens: {jwks: keys.json}\n");
    let server = bank(&world);
    let mut coder = Caller::start(&world, "coder", &server);
    assert_eq!(call_as(&mut coder, "wire", TOKEN), None);
    assert!(call_as(&mut coder, "wire", FORGED).expect("not verified").contains("signed"));
    assert!(coder.refused("wire", "{}").contains("signed"));
    assert_eq!(call_as(&mut coder, "wire", TOKEN), None, "on the same connection");
    assert_eq!(calls_of(&server, "wire"), 2);
    assert_eq!(rules(&daemon.records().decision("wire", "deny")), ["signed"]);
}
