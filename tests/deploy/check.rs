//! `interlock policy`: what it says of mistakes, of one message and of recorded ones, through the real program.

use serde_json::{Value, json};

use crate::program::Folder;

/// Runs `policy check` on a bad file, and looks for these parts of what it says; the first is the beginning.
#[track_caller]
fn check_error(text: &str, expect: &[&str]) {
    let folder = Folder::with(&[("rules.yaml", text)]);
    let said = folder.run(&["policy", "check", "rules.yaml"]);
    assert_eq!((said.code, &*said.stdout), (64, ""), "{}", said.stderr);
    let start = format!("interlock: bad configuration: rules.yaml{}", expect[0]);
    assert!(said.stderr.starts_with(&start), "{}", said.stderr);
    for part in expect {
        assert!(said.stderr.contains(part), "{part} in {}", said.stderr);
    }
    let json = folder.run(&["policy", "check", "rules.yaml", "--json"]);
    let error: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(
        (json.code, format!("interlock: {}\n", error["error"].as_str().expect("a text"))),
        (64, said.stderr)
    );
}

fn rule(fields: &str) -> String {
    format!("version: 1\nrules:\n  - id: a\n    action: deny\n    {fields}\n")
}

#[test]
fn mistakes_have_a_place_and_a_remedy() {
    check_error(&rule("match: [tool: x}"), &[":5:", "^"]);
    check_error("version: 1\nrules:\n\t- id: a\n", &[":3:"]);
    check_error(&rule("mtach: {tool: x}"), &[":5:5: unknown field `mtach`", "did you mean `match`?"]);
    check_error(&rule("match: {toll: x}"), &[":5:13: unknown field `toll`", "did you mean `tool`?"]);
    check_error(&rule("match: {colour: x}"), &[":5:13: unknown field `colour`, expected one of agent, "]);
    check_error(
        "version: 1\ndefaults: {opaqe: deny}\n",
        &[":2:12: unknown field `opaqe`", "did you mean `opaque`?"],
    );
    check_error(
        "version: 1\nrules: [{id: a, action: dney}]\n",
        &[":2:25: unknown variant `dney`", "did you mean `deny`?"],
    );
    check_error("version: 1\nrules: [{id: a}]\n", &[":2:", "missing field `action`"]);
    check_error("version: 2\n", &[": version 2 is not known; this interlock reads version 1"]);
    check_error(
        &rule("match: {tool: 'x['}"),
        &[":5:12: rule 1 (a): match.tool: glob \"x[\": unclosed character class"],
    );
    check_error(
        &rule("match: {tool: ''}"),
        &[":5:12: rule 1 (a): match.tool: an empty glob", "leave the field out"],
    );
    check_error(&rule("level: kill"), &[":5:12: rule 1 (a): `level` goes with `action: stop`; leave it out"]);
    check_error(
        &rule("phase: list"),
        &[":5:12: rule 1 (a): `phase`: `action: deny` has no such phase; use `hide`"],
    );
    check_error(&rule("on_error: deny"), &[":5:15: rule 1 (a): `on_error` goes with `when`"]);
    check_error(
        &rule("redact: {patterns: [keys]}"),
        &[":5:13: rule 1 (a): `redact` goes with `action: redact`"],
    );
    let twice = "version: 1\nrules:\n  - {id: a, action: deny}\n  - id: a\n    action: deny\n";
    check_error(twice, &[":4:9: rule 2 (a): `id` is used twice; ids must be unique"]);
}

#[test]
fn mistakes_in_a_condition_have_a_place_inside_it() {
    check_error(&rule("when: args.amount >"), &[":5:11: rule 1 (a): when: 1:", "rule 1 (a)"]);
    check_error(&rule("when: argz.amount > 1"), &[":5:11: rule 1 (a): when: 1:1: ", "did you mean `args`?"]);
    check_error(&rule("when: tool > 1"), &[":5:11: rule 1 (a): when: 1:"]);
    check_error(
        &rule("when: |\n      true\n      && result == 1"),
        &[":6:7: rule 1 (a): when: 2:4: ", "`result`"],
    );
    check_error(&rule("when: tool.matches('(')"), &[":5:11: rule 1 (a): when: 1:"]);
}

#[test]
fn a_file_that_is_not_there_is_a_bad_configuration() {
    let folder = Folder::new();
    for args in [
        &["policy", "check", "rules.yaml"][..],
        &["policy", "replay", "records.jsonl", "--with", "rules.yaml"],
        &["policy", "explain", "rules.yaml", "--call", "call.json"],
    ] {
        let said = folder.run(args);
        assert_eq!(said.code, 64, "{}", said.stderr);
        assert!(said.stderr.contains("rules.yaml"), "{}", said.stderr);
    }
    assert_eq!(folder.run(&["policy", "explain", "rules.yaml"]).code, 2, "which message?");
}

const SUSPICIOUS: &str = r#"version: 1
rules:
  - id: wide
    action: deny
    match: {tool: "w*"}
  - id: narrow
    action: deny
    match: {tool: wire, agent: coder}
  - {id: never, action: deny, when: "1 > 2"}
  - id: typed
    action: deny
    match: {method: tool/call, server: "https://bank"}
  - {id: lists, action: deny, match: {method: tools/list, tool: x}}
  - {id: comes-back, action: deny, phase: response, match: {method: notifications/initialized}}
"#;

#[test]
fn good_rules_that_cannot_be_meant_are_warned_of() {
    let folder = Folder::with(&[("rules.yaml", SUSPICIOUS)]);
    let said = folder.run(&["policy", "check", "rules.yaml"]);
    let expect = "\
rules.yaml:6:9: warning: rule narrow: it changes nothing: \"wide\" refuses all that it matches
rules.yaml:9:37: warning: rule never: the condition is always false, so the rule never matches
rules.yaml:12:12: warning: rule typed: it never matches: https://bank has a `/`; a server is a host or an address, with or without a port
rules.yaml:12:12: warning: rule typed: match.method: \"tool/call\" is no method of MCP; did you mean \"tools/call\"?
rules.yaml:13:38: warning: rule lists: it never matches: tools/list names no tool, prompt, resource or task
rules.yaml:14:60: warning: rule comes-back: it never matches: notifications/initialized has no response
rules.yaml: 6 rules, good
";
    assert_eq!((said.code, &*said.stdout), (0, expect));
    let said = folder.json(&["policy", "check", "rules.yaml"]);
    assert_eq!(said["rules"], 6);
    let first = json!({"rule": "narrow", "line": 6, "column": 9,
        "text": "it changes nothing: \"wide\" refuses all that it matches"});
    assert_eq!(said["warnings"][0], first);
}

const RECORDS: &str = concat!(
    r#"{"schema":1,"at":"2026-07-13T10:00:00Z","kind":"daemon","event":"start","version":"1","pid":1}"#,
    "\n",
    r#"{"schema":1,"at":"2026-07-13T10:00:00Z","kind":"decision","decision":"d-1","agent":"coder","server":"bank","destination":"10.0.0.7:443","method":"tools/call","tool":"wire","verdict":"allow","rules":[],"arguments_digest":"sha256:0","arguments":{"amount":11},"annotations":{"known":true,"readOnlyHint":true}}"#,
    "\n",
    r#"{"schema":1,"at":"2026-07-13T10:00:01Z","kind":"decision","decision":"d-2","agent":"coder","server":"bank","destination":"10.0.0.7:443","method":"tools/call","tool":"wire","verdict":"deny","rules":["budget"],"arguments_digest":"sha256:0"}"#,
    "\n",
    r#"{"schema":1,"at":"2026-07-13T10:00:02Z","kind":"decision","decision":"d-3","agent":"coder","server":"bank","destination":"10.0.0.7:443","method":"tools/call","tool":"pay","verdict":"allow","rules":["ask"],"approval":"apr-1","arguments_digest":"sha256:0"}"#,
    "\nhalf a li",
);

#[test]
fn globs_that_match_nothing_in_the_records_are_warned_of() {
    let rules =
        "version: 1\nrules: [{id: a, action: deny, match: {tool: [wire, rob], server: BANK, agent: code?}}]";
    let folder = Folder::with(&[("rules.yaml", rules), ("records.jsonl", RECORDS)]);
    let said = folder.json(&["policy", "check", "rules.yaml", "--records", "records.jsonl"]);
    let texts: Vec<&Value> =
        said["warnings"].as_array().expect("a list").iter().map(|warning| &warning["text"]).collect();
    assert_eq!(texts, ["match.tool: \"rob\" matches nothing in the records"]);
}

const RULES: &str = "version: 1
rules:
  - {id: hints, action: deny, match: {method: tools/call, tool: wire}, when: '!annotations.readOnlyHint'}
  - {id: big, action: deny, match: {tool: wire}, when: args.amount > 10}
  - {id: late, action: deny, when: recent.calls > 5, match: {tool: other}}
  - {id: budget, action: limit, match: {tool: wire}, limit: {calls: 5, within: 1m, per: agent}}
  - {id: ask, action: require_approval, match: {tool: pay}}
";

#[test]
fn one_decision_of_the_records_is_explained() {
    let folder = Folder::with(&[("rules.yaml", RULES), ("records.jsonl", RECORDS)]);
    let explain =
        |id| folder.run(&["policy", "explain", "rules.yaml", "--decision", id, "--records", "records.jsonl"]);
    let said = explain("d-1");
    let expect = "\
hints (deny) does not fire
  + method tools/call: tools/call
  + tool wire: wire
  when !annotations.readOnlyHint: false
big (deny) fires
  + tool wire: wire
  when args.amount > 10: true
late (deny) does not fire
  - tool other: wire
  when recent.calls > 5: not known: recent is not here
budget (limit) counts it
  + tool wire: wire
ask (require_approval) does not fire
  - tool pay: wire
verdict: deny: not allowed by policy (big) (decided at the time: allow)
";
    assert_eq!((said.code, said.stdout.trim_end()), (0, expect.trim_end()));
    let said = explain("d-2").stdout;
    assert!(said.contains("when !annotations.readOnlyHint: not known: annotations is not here"), "{said}");
    assert!(said.contains("when args.amount > 10: not known: args is not here"), "{said}");
    let said = explain("d-3").stdout;
    assert!(said.contains("ask (require_approval) fires") && said.contains("verdict: ask"), "{said}");
    let said = explain("d-4");
    assert_eq!((said.code, &*said.stderr), (1, "interlock: records.jsonl: no decision d-4\n"));
    let args = ["policy", "explain", "rules.yaml", "--decision", "d-1", "--records", "records.jsonl"];
    let look = &folder.json(&args)["rules"][1];
    let expect = json!({"rule": "big", "action": "deny", "fires": true, "other_phase": false,
        "fields": [{"field": "tool", "globs": ["wire"], "value": "wire", "matches": true}],
        "when": ["args.amount > 10", "true"]});
    assert_eq!(*look, expect);
}

#[test]
fn recorded_decisions_are_made_once_more() {
    let folder = Folder::with(&[("rules.yaml", RULES), ("records.jsonl", RECORDS)]);
    let said = folder.run(&["policy", "replay", "records.jsonl", "--with", "rules.yaml"]);
    let expect = "\
3 decisions: 1 the same, 0 not by rules (stops, guards, defaults)
1 allow -> deny
  d-1 coder bank tools/call wire [big]
1 depend on what is not in the records (`records.arguments: full` keeps arguments and hints)
";
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stdout.starts_with(expect), "{}", said.stdout);
    assert!(said.stdout.contains("2 meet limits, and are taken as within them"), "{}", said.stdout);
    let report = folder.json(&["policy", "replay", "records.jsonl", "--with", "rules.yaml"]);
    assert_eq!((&report["limits"], &report["redactions"]), (&json!(2), &json!(0)));
    let example = json!({"decision": "d-1", "agent": "coder", "server": "bank", "method": "tools/call", "tool": "wire",
        "rules": ["big"]});
    assert_eq!(report["changed"]["allow -> deny"], json!({"count": 1, "examples": [example]}));
    let said = folder.run(&["policy", "replay", "none.jsonl", "--with", "rules.yaml"]);
    assert_eq!(said.code, 1, "{}", said.stderr);
}
