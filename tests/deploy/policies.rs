//! The ready-made policies, each tried on calls that it is meant for, and on recorded traffic (`data/records.jsonl`, which
//! `system/recorded.rs` makes).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::deploy;
use crate::program::Folder;

/// A call in the form of `policy explain --call`, what becomes of it, and the rules that say so.
type Case = (Value, &'static str, &'static [&'static str]);

fn call(tool: &str, more: Value) -> Value {
    let mut call = json!({
        "agent": "coder", "server": "10.77.0.2:8080", "destination": "10.77.0.2:8080", "protocol": "mcp",
        "method": "tools/call", "tool": tool, "arguments": {},
    });
    let fields = call.as_object_mut().expect("an object");
    more.as_object().expect("an object").iter().for_each(|(name, value)| {
        fields.insert(name.clone(), value.clone());
    });
    call
}

fn path_of(policy: &str) -> String {
    deploy(&format!("policies/{policy}.yaml")).display().to_string()
}

/// What a rule does when it fires, or without a word.
fn acts(rule: &Value) -> bool {
    rule["fires"] == true || rule["does"].is_string()
}

#[track_caller]
fn check(policy: &str, cases: &[Case]) {
    let folder = Folder::new();
    for (call, verdict, rules) in cases {
        folder.write("call.json", &call.to_string());
        let said = folder.json(&["policy", "explain", &path_of(policy), "--call", "call.json"]);
        let looks = said["rules"].as_array().expect("rules");
        let acting: Vec<&str> =
            looks.iter().filter(|rule| acts(rule)).filter_map(|rule| rule["rule"].as_str()).collect();
        assert_eq!(
            (said["verdict"].as_str().expect("a verdict"), &acting[..]),
            (*verdict, *rules),
            "{call}\n{said:#}"
        );
    }
    for rule in names(policy) {
        assert!(cases.iter().any(|(.., rules)| rules.contains(&&*rule)), "no case in which {rule} acts");
    }
}

fn names(policy: &str) -> Vec<String> {
    let text = fs::read_to_string(path_of(policy)).expect("a policy");
    text.lines().filter_map(|line| line.trim().strip_prefix("- id: ")).map(str::to_owned).collect()
}

fn records() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/records.jsonl").display().to_string()
}

/// Of the 59 recorded decisions, 2 of which no rule has made: how many would have been the same, depend on what is not
/// recorded, meet limits and meet redactions, and how many would have been different, by the change.
#[track_caller]
fn check_replay(rules: &str, [same, unknown, limits, redactions]: [usize; 4], changed: Value) {
    let said = Folder::new().json(&["policy", "replay", &records(), "--with", rules]);
    let changes = said["changed"].as_object().expect("changes").iter();
    let counts: serde_json::Map<String, Value> =
        changes.map(|(change, changed)| (change.clone(), changed["count"].clone())).collect();
    let expect = json!({
        "decisions": 59, "not_by_rules": 2, "same": same, "unknown": unknown, "changed": changed, "limits": limits,
        "redactions": redactions,
    });
    let found = json!({
        "decisions": said["decisions"], "not_by_rules": said["not_by_rules"], "same": said["same"],
        "unknown": said["unknown"]["count"], "changed": counts, "limits": said["limits"],
        "redactions": said["redactions"],
    });
    assert_eq!(found, expect, "{said:#}");
}

/// All of them were recorded from one agent's side or the other's, on servers that say little of their tools but for
/// `bank.test`, late on a Sunday.
#[test]
fn recorded_traffic() {
    let check = |policy, counts, changed| check_replay(&path_of(policy), counts, changed);
    check("observe", [24, 0, 0, 4], json!({"allow -> would_deny": 31, "deny -> would_deny": 2}));
    let all = json!({"allow -> deny": 51, "would_deny -> deny": 4});
    check("read-only", [2, 0, 0, 4], all.clone());
    check("egress", [2, 0, 0, 4], all.clone());
    check("office-hours", [2, 0, 0, 4], all);
    check(
        "no-destructive-tools",
        [21, 0, 0, 4],
        json!({"allow -> ask": 2, "allow -> deny": 30, "would_deny -> deny": 4}),
    );
    // A card number that was taken out is not in the records either, so nobody knows what was in the path.
    check(
        "secrets",
        [45, 4, 0, 41],
        json!({"allow -> deny": 2, "deny -> allow": 2, "would_deny -> allow": 4}),
    );
    // What was trusted then is not in the records.
    check("no-drift", [0, 57, 0, 4], json!({}));
    check("budget", [51, 0, 41, 4], json!({"deny -> allow": 2, "would_deny -> allow": 4}));
}

/// With the recorded servers in place of the house's, what is not about tools passes, and so does what says that it reads.
#[test]
fn recorded_traffic_to_servers_that_are_listed() {
    let folder = Folder::new();
    let with = |policy: &str, listed: &str| {
        let text = fs::read_to_string(path_of(policy)).expect("a policy");
        assert!(text.contains(listed), "{policy} lists {listed}");
        folder.write("rules.yaml", &text.replace(listed, "10.77.0.2:*"));
        folder.path().join("rules.yaml").display().to_string()
    };
    let passes = json!({"deny -> allow": 2, "would_deny -> allow": 4});
    check_replay(&with("egress", "10.0.0.7:443"), [51, 0, 0, 4], passes);
    let reads = json!({"allow -> deny": 33, "would_deny -> deny": 4});
    check_replay(&with("read-only", "127.0.0.1:*"), [20, 0, 0, 4], reads);
}

#[test]
fn records_are_many_and_say_nothing_of_where_they_were_made() {
    let text = fs::read_to_string(records()).expect("records");
    let decisions: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record"))
        .filter(|record: &Value| record["kind"] == "decision")
        .collect();
    for (field, least) in
        [("agent", 2), ("server", 3), ("tool", 9), ("method", 7), ("revision", 2), ("verdict", 4)]
    {
        let values: BTreeSet<&str> = decisions.iter().filter_map(|record| record[field].as_str()).collect();
        assert!(values.len() >= least, "{field}: {values:?}");
    }
    for record in &decisions {
        assert!(record["exe"].as_str().is_some_and(|exe| exe.starts_with("/usr/bin/")), "{record}");
    }
}

fn hints(read_only: bool, destructive: bool) -> Value {
    json!({"annotations": {"known": true, "readOnlyHint": read_only, "destructiveHint": destructive}})
}

#[test]
fn no_drift() {
    let standing = |of: &str, state: &str, classes: Value| json!({"standing": {of: {"state": state, "classes": classes}}});
    check(
        "no-drift",
        &[
            (call("pay", json!({"standing": {}})), "allow", &[]),
            (call("pay", standing("tool", "drifted", json!(["definition"]))), "deny", &["no-drift"]),
            (call("pay", standing("tool", "drifted", json!(["display", "meta"]))), "allow", &[]),
            (call("pay", standing("tool", "new", json!([]))), "deny", &["no-drift"]),
            (call("pay", standing("instructions", "drifted", json!(["definition"]))), "deny", &["no-drift"]),
            (call("pay", standing("server", "drifted", json!(["definition"]))), "allow", &[]),
        ],
    );
}

#[test]
fn observe() {
    let server_asks = json!({"method": "sampling/createMessage", "tool": null, "from": "server"});
    check(
        "observe",
        &[
            (call("read", hints(true, true)), "allow", &[]),
            (call("write", hints(false, false)), "allow", &[]),
            (call("drop", hints(false, true)), "would_deny", &["would-be-destructive"]),
            (call("new", json!({})), "would_deny", &["would-be-destructive", "would-be-unlisted"]),
            (call("", server_asks), "would_deny", &["would-be-asked-by-a-server"]),
            (call("", json!({"method": "tools/list", "tool": null})), "allow", &[]),
        ],
    );
}

#[test]
fn read_only() {
    let here = json!({"server": "files.internal", "destination": "10.77.0.2:80"});
    let with = |more: Value| {
        let mut all = here.clone();
        more.as_object().into_iter().flatten().for_each(|(name, value)| all[name] = value.clone());
        all
    };
    check(
        "read-only",
        &[
            (call("read", with(hints(true, false))), "allow", &[]),
            (call("write", with(hints(false, false))), "deny", &["read-only"]),
            (call("new", here.clone()), "deny", &["read-only"]),
            (call("read", hints(true, false)), "deny", &["trusted-servers"]),
            (call("", with(json!({"method": "initialize", "tool": null}))), "allow", &[]),
            (call("", with(json!({"method": "tools/list", "tool": null}))), "allow", &[]),
            (call("", json!({"method": "initialize", "tool": null})), "deny", &["trusted-servers"]),
        ],
    );
}

#[test]
fn no_destructive_tools() {
    check(
        "no-destructive-tools",
        &[
            (call("read", hints(true, true)), "allow", &[]),
            (call("tidy", hints(false, true)), "deny", &["says-it-destroys"]),
            (call("delete_all", hints(true, false)), "deny", &["is-named-so"]),
            (call("user_delete", hints(false, true)), "deny", &["says-it-destroys", "is-named-so"]),
            (call("write_file", hints(false, false)), "ask", &["needs-a-person"]),
            // What no list has shown is not said to destroy.
            (call("tidy", json!({})), "allow", &[]),
            (call("undelete", json!({})), "allow", &[]),
        ],
    );
}

#[test]
fn egress() {
    let to = |address: &str| json!({"server": "whatever.example", "destination": address});
    check(
        "egress",
        &[
            (call("read", to("10.0.0.7:443")), "allow", &[]),
            (call("read", to("127.0.0.1:3000")), "allow", &[]),
            (call("read", to("10.0.0.7:80")), "deny", &["listed-servers"]),
            (
                call("", json!({"method": null, "tool": null, "protocol": "http"})),
                "deny",
                &["listed-servers"],
            ),
        ],
    );
}

#[test]
fn secrets() {
    let reads = |path: &str| json!({"arguments": {"path": path}});
    let resource = |uri: &str| json!({"method": "resources/read", "tool": uri});
    check(
        "secrets",
        &[
            (call("read", reads("/srv/a/notes.txt")), "allow", &["none-out"]),
            (call("read", reads("/srv/a/.ssh/id_rsa")), "deny", &["none-out", "no-credential-files"]),
            (call("read", reads("/etc/tls/SERVER.PEM")), "deny", &["none-out", "no-credential-files"]),
            (call("read", json!({"arguments": {"path": 7}})), "allow", &["none-out"]),
            (call("read", json!({"arguments": null})), "allow", &["none-out"]),
            (call("", resource("file:///srv/.env")), "deny", &["no-credential-files"]),
            (call("", resource("file:///srv/env.txt")), "allow", &[]),
            (call("read", json!({"phase": "response"})), "allow", &["none-in"]),
        ],
    );
}

#[test]
fn office_hours() {
    let at = |time: &str| json!({"at": time});
    check(
        "office-hours",
        &[
            // A Monday in summer, two hours ahead of UTC.
            (call("read", at("2026-07-13T05:00:00Z")), "allow", &[]),
            (call("read", at("2026-07-13T04:59:59Z")), "deny", &["night"]),
            (call("read", at("2026-07-13T16:59:59Z")), "allow", &[]),
            (call("read", at("2026-07-13T17:00:00Z")), "deny", &["night"]),
            // A Friday in winter, one hour ahead.
            (call("read", at("2026-01-16T17:59:59Z")), "allow", &[]),
            (call("read", at("2026-01-17T11:00:00Z")), "deny", &["weekend"]),
            (call("read", at("2026-01-18T23:30:00Z")), "deny", &["night"]),
        ],
    );
}

#[test]
fn budget() {
    let all = &["calls-a-day", "calls-of-one-tool", "bytes-a-day", "at-a-time", "runaway"];
    check(
        "budget",
        &[
            (call("read", json!({})), "allow", all),
            (
                call("", json!({"method": "resources/read", "tool": "a"})),
                "allow",
                &["bytes-a-day", "runaway"],
            ),
            (call("", json!({"method": "initialize", "tool": null})), "allow", &["runaway"]),
        ],
    );
}

#[test]
fn every_policy_is_good_and_warns_of_nothing() {
    let folder = Folder::new();
    let mut policies = Vec::new();
    for entry in fs::read_dir(deploy("policies")).expect("policies") {
        let path = entry.expect("a file").path();
        let said = folder.json(&["policy", "check", &path.display().to_string()]);
        assert_eq!(said["warnings"], json!([]), "{}", path.display());
        policies.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
    }
    policies.sort();
    let tried = [
        "budget",
        "egress",
        "no-destructive-tools",
        "no-drift",
        "observe",
        "office-hours",
        "read-only",
        "secrets",
    ];
    assert_eq!(policies, tried, "each has a test above");
}
