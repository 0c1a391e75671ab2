//! The ready-made policies, each tried on calls that it is meant for, and on recorded traffic (`data/records.jsonl`, which
//! `system/recorded.rs` makes).

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

/// What the recorded decisions would have been: how many the same, not by rules, unknown, and by each change; those that
/// meet limits and redactions.
#[track_caller]
fn check_replay(policy: &str, expect: Value) {
    let folder = Folder::new();
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/records.jsonl").display().to_string();
    let said = folder.json(&["policy", "replay", &records, "--with", &path_of(policy)]);
    let changed: serde_json::Map<String, Value> = said["changed"]
        .as_object()
        .expect("changes")
        .iter()
        .map(|(change, changed)| (change.clone(), changed["count"].clone()))
        .collect();
    let counts = json!({
        "decisions": said["decisions"], "same": said["same"], "not_by_rules": said["not_by_rules"],
        "unknown": said["unknown"]["count"], "changed": changed, "limits": said["limits"],
        "redactions": said["redactions"],
    });
    assert_eq!(counts, expect, "{said:#}");
}

fn hints(read_only: bool, destructive: bool) -> Value {
    json!({"annotations": {"known": true, "readOnlyHint": read_only, "destructiveHint": destructive}})
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
            (call("read", reads("/home/a/notes.txt")), "allow", &["none-out"]),
            (call("read", reads("/home/a/.ssh/id_rsa")), "deny", &["none-out", "no-credential-files"]),
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
    let tried =
        ["budget", "egress", "no-destructive-tools", "observe", "office-hours", "read-only", "secrets"];
    assert_eq!(policies, tried, "each has a test above");
}
