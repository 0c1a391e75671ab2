//! The schemas of the custom resources: that an API server takes them, and what they take and refuse.

use interlock::baseline::{Baseline, Document, Endpoint, Options, Page, Place, Shown, Wanted};
use interlock::fingerprint::{Digest, Surface, canonical_text, fingerprint};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::{said, tool};
use crate::documents;
use crate::program::Folder;

/// The schema of a kind.
fn schema(kind: &str) -> Value {
    let all = documents("kubernetes/base/crds.yaml");
    let definition = all.iter().find(|definition| definition["spec"]["names"]["kind"] == kind);
    let definition = definition.unwrap_or_else(|| panic!("no definition of {kind}"));
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// What an API server asks of a schema (structural schemas, `apiextensions.k8s.io/v1`): a type everywhere, and in what is beside
/// it, such as `anyOf`, nothing that would have to be known to prune or to fill in.
fn check_structure(schema: &Value, at: &str, mistakes: &mut Vec<String>) {
    let mut wrong = |what: &str| mistakes.push(format!("{at}: {what}"));
    if schema["type"].is_null() && schema["x-kubernetes-preserve-unknown-fields"] != true {
        wrong("no type");
    }
    if schema["additionalProperties"] == false {
        wrong("additionalProperties");
    }
    for junctor in ["allOf", "anyOf", "oneOf"] {
        for part in schema[junctor].as_array().into_iter().flatten() {
            for forbidden in ["type", "default", "description", "nullable", "additionalProperties"] {
                if !part[forbidden].is_null() {
                    wrong(&format!("{junctor} with {forbidden}"));
                }
            }
        }
    }
    if schema["x-kubernetes-list-type"] == "map" {
        for key in schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
            let required = schema["items"]["required"].as_array().is_some_and(|all| all.contains(key));
            if !required {
                wrong(&format!("key {key} of the list may be left out"));
            }
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        check_structure(property, &format!("{at}.{name}"), mistakes);
    }
    if !schema["items"].is_null() {
        check_structure(&schema["items"], &format!("{at}[]"), mistakes);
    }
}

#[test]
fn an_api_server_takes_the_schemas() {
    let mut mistakes = Vec::new();
    for kind in ["AgentStop", "AgentStopReport", "AgentPolicy", "ClusterAgentPolicy", "ToolBaseline"] {
        check_structure(&schema(kind), kind, &mut mistakes);
    }
    assert_eq!(mistakes, [""; 0]);
    let bad = json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}]}}});
    check_structure(&bad, "it", &mut mistakes);
    assert_eq!(mistakes, ["it.a: no type", "it.a: anyOf with type"], "it knows a fault");
}

/// What a JSON Schema validator finds wrong; nothing: it is good.
fn faults(schema: &Value, object: &Value) -> String {
    let folder = Folder::with(&[("schema.json", &schema.to_string()), ("object.json", &object.to_string())]);
    let mut command = tool("jsonschema");
    command.args(["--instance", "object.json", "schema.json"]).current_dir(folder.path());
    let output = command.output().expect("run jsonschema");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if output.status.success() { String::new() } else { said }
}

fn baseline(server: Value) -> Value {
    json!({
        "apiVersion": "interlock.dev/v1alpha1", "kind": "ToolBaseline", "metadata": {"name": "bank"},
        "spec": {"servers": [server]},
    })
}

fn with_item(change: impl Fn(&mut Value)) -> Value {
    let digest = format!("sha256:{}", "0a".repeat(32));
    let mut item = json!({
        "surface": "tool", "name": "pay", "revision": "2025-11-25", "principal": "bob", "text": "{\"name\":\"pay\"}",
        "digests": {
            "definition": digest, "core": digest, "annotations": digest, "display": digest, "meta": digest, "ui": digest,
            "hints": {"read_only": false, "destructive": true, "idempotent": false, "open_world": true},
        },
    });
    change(&mut item);
    baseline(json!({"server": ["bank:80"], "path": "/mcp", "address": "10.0.0.1:80", "items": [item]}))
}

fn without(member: &'static str) -> impl Fn(&mut Value) {
    move |item| drop(item.as_object_mut().expect("an object").remove(member))
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs jsonschema")]
fn good_baselines_are_taken() {
    let schema = schema("ToolBaseline");
    for good in [
        with_item(|_| {}),
        with_item(without("text")),
        with_item(without("digests")),
        with_item(without("name")),
        baseline(json!({"server": ["*.internal", "10.0.0.7"], "items": []})),
        baseline(json!({"server": ["[fd77::2]:80"], "address": "[fd77::2]:80"})),
        // Nodes refuse it, and say why; dropped on the way it would trust more.
        baseline(json!({"server": ["bank"], "adress": "10.0.0.1:80"})),
    ] {
        assert_eq!(faults(&schema, &good), "", "{good}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs jsonschema")]
fn bad_baselines_are_refused() {
    let schema = schema("ToolBaseline");
    let set = |pointer: &'static str, value: Value| {
        with_item(move |item| *item.pointer_mut(pointer).expect("it is there") = value.clone())
    };
    let many = |of: usize| Value::from(vec![json!({"server": ["a"]}); of]);
    let mut crowd = baseline(json!({}));
    crowd["spec"]["servers"] = many(1_001);
    for (bad, about) in [
        (baseline(json!({"items": []})), "'server' is a required property"),
        (baseline(json!({"server": "bank"})), "'bank' is not of type 'array'"),
        (baseline(json!({"server": []})), "[]"),
        (baseline(json!({"server": [""]})), "''"),
        (baseline(json!({"server": ["a"], "address": "10.0.0.1"})), "'10.0.0.1'"),
        (baseline(json!({"server": ["a"], "address": "bank:80"})), "'bank:80'"),
        (with_item(|item| ["text", "digests"].iter().for_each(|name| without(name)(item))), "any of"),
        (with_item(without("surface")), "'surface' is a required property"),
        (set("/surface", json!("tol")), "'tol'"),
        (set("/name", json!("x".repeat(257))), "is too long"),
        (set("/text", json!("")), "''"),
        (set("/digests/ui", json!("sha256:abc")), "'sha256:abc' does not match"),
        (set("/digests/definition", json!(format!("sha256:{}", "0A".repeat(32)))), "does not match"),
        (set("/digests/hints/read_only", json!("yes")), "'yes' is not of type 'boolean'"),
        (with_item(|item| without("core")(&mut item["digests"])), "'core' is a required property"),
        (crowd, "is too long"),
        (json!({"kind": "ToolBaseline", "spec": {}}), "'servers' is a required property"),
    ] {
        let said = faults(&schema, &bad);
        assert!(said.contains(about), "{about} in {said:?}");
    }
}

/// Texts in which readers of YAML could see something else: they are in a block where that can be.
const ODD: [&str; 9] = [
    "plain",
    "# no: comment, 'quoted' \"twice\" %x @y `z` {{ template }}",
    "  spaces before, and behind  ",
    "tab\there, line\nfeed, carriage\rreturn",
    "not seen: \u{200b}\u{200d}\u{2028}\u{2029}\u{85}\u{a0}\u{feff}\u{7f}\u{1b}",
    "\u{202e}right to left, \u{1f600} and \u{e0041} beyond the first plane",
    "--- ... <<: *alias &anchor !!tag ? : - ",
    "~ null true 0x1f 1e3 2026-11-30",
    "",
];

/// A store that has been shown tools that say so.
fn shown(folder: &Folder) -> Baseline {
    let options = Options { trust_first_use: true, authority: None };
    let store = Baseline::open(folder.path(), options).expect("a store");
    let address = "10.0.0.1:80".parse().expect("an address");
    let place = Place {
        endpoint: Endpoint::new("[fd77::2]:80", "/mcp", address, None),
        revision: Some("2025-11-25".into()),
        principal: Some("https://id.example#bob".into()),
    };
    let page = Page {
        surface: Surface::Tool,
        digest: Digest::of(b""),
        asked: None,
        next: None,
        public: false,
        walker: 0,
    };
    let tools = || {
        ODD.iter().enumerate().map(|(number, says)| {
            let name = format!("tool {number}: '\"#{says:.3}");
            let text = json!({"name": name, "description": says.repeat(40), "inputSchema": {}}).to_string();
            let fingerprint = fingerprint(Surface::Tool, &text);
            let text = canonical_text(Surface::Tool, &text).into();
            Shown { name: name.into(), fingerprint, text, smells: Value::Null }
        })
    };
    let changes = store.observe(&place, &page, || tools().collect(), "coder", Timestamp::now());
    assert_eq!(changes.len(), ODD.len());
    store
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs kubectl and jsonschema")]
fn what_is_exported_is_read_by_kubectl_as_it_was_written() {
    let folder = Folder::new();
    let store = shown(&folder);
    let wanted = Wanted { as_object: Some("bank".to_owned()), ..Wanted::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let exported = runtime.block_on(store.export(wanted)).expect("an object");
    assert!(exported.contains("text: |-"), "most can be read by people: {exported}");
    folder.write("bank.yaml", &exported);
    // Of all that reads as `kubectl apply` does it asks no API server.
    let mut reads = tool("kubectl");
    reads.args(["annotate", "--local", "--output=json", "--filename=bank.yaml", "read=true"]);
    let mut read: Value =
        serde_json::from_str(&said(reads.current_dir(folder.path()))).expect("kubectl prints JSON");
    let mut ours: Value = serde_saphyr::from_str(&exported).expect("YAML");
    assert_eq!(read["metadata"].take()["annotations"], json!({"read": "true"}));
    ours["metadata"].take();
    assert_eq!(read, ours);
    read["metadata"] = json!({"name": "bank"});
    assert_eq!(faults(&schema("ToolBaseline"), &read), "");
    let servers = read["spec"]["servers"].as_array().expect("servers");
    let document = Document::of_object("bank", servers).expect("it is good");
    assert_eq!(document.entries(), ODD.len(), "with digests that agree with their texts");
}
