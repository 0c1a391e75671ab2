//! Objects of the API server as authorities on the servers that they name, beside the store, a file and each other.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::orders::show;
use super::{FIRST_USE, World, order, place, tool};
use crate::baseline::orders::Wish;
use crate::baseline::{Authority, Baseline, Document, Filter, Refusal, Wanted};
use crate::fingerprint::{State, Surface};

/// What is trusted of servers of this name, in the letters of [`tool`].
fn servers(name: &str, tools: &str) -> Value {
    json!([{"server": [name], "items": items(tools)}])
}

fn items(tools: &str) -> Vec<Value> {
    let item = |text: &str| {
        let tool = tool(text);
        json!({"surface": "tool", "name": tool["name"], "text": tool.to_string()})
    };
    tools.split_whitespace().map(item).collect()
}

fn governed(objects: &[(&str, Value)]) -> World {
    let mut world = World::new(true);
    world.govern(None, objects);
    world
}

fn by(world: &World, at: &str) -> Option<String> {
    world.known.governed_by(&place(at)).map(|by| by.to_string())
}

#[track_caller]
fn check_error(servers: &Value, parts: &[&str]) {
    let error = Document::of_object("bank", servers.as_array().unwrap()).unwrap_err();
    assert!(error.starts_with(parts[0]) && parts.iter().all(|part| error.contains(part)), "{error}");
}

#[test]
fn mistakes_are_told_with_server_and_item() {
    check_error(&json!([{"servr": ["s"]}]), &["server 1: ", "servr"]);
    check_error(&json!([{"server": ["s"]}, {"server": ["s["]}]), &["server 2 (s[): server: glob \"s[\""]);
    check_error(&json!([{"server": [""]}]), &["server 1 (): ", "empty glob"]);
    check_error(&json!([{"server": ["s"], "adress": "10.0.0.1:80"}]), &["server 1: ", "adress"]);
    let glob = json!([{"server": ["*.s"], "address": "10.0.0.1:80"}]);
    check_error(&glob, &["server 1 (*.s): glob \"*.s\" beside an `address`", "give 10.0.0.1:80 as `server`"]);
    let of = |items: Value| json!([{"server": ["s"], "items": items}]);
    check_error(&of(json!([{"surface": "tol", "name": "a"}])), &["server 1 (s): item 1 (a): ", "tol"]);
    check_error(
        &of(json!([{"surface": "tool", "name": "a"}])),
        &["server 1 (s): item 1 (a): neither `text` nor"],
    );
    let twice = [items("a=1"), items("a=2")].concat();
    check_error(&of(twice.into()), &["server 1 (s): item 2 (a): tool \"a\" is there twice"]);
    let mut lies = items("a=1");
    lies[0]["digests"] = json!({
        "definition": format!("sha256:{:064}", 0), "core": format!("sha256:{:064}", 0), "display": format!("sha256:{:064}", 0),
        "annotations": format!("sha256:{:064}", 0), "meta": format!("sha256:{:064}", 0), "ui": format!("sha256:{:064}", 0),
        "hints": {"read_only": false, "destructive": true, "idempotent": false, "open_world": true},
    });
    check_error(&of(lies.into()), &["server 1 (s): item 1 (a): `text` and `digests` do not agree"]);
    let many: Vec<Value> = (0..1_001).map(|n| json!({"server": [n.to_string()]})).collect();
    check_error(&many.into(), &["1001 servers", "make several"]);
}

#[test]
fn an_object_is_the_only_authority_on_its_servers_and_on_no_others() {
    let mut world = governed(&[("bank", servers("s", "a=1"))]);
    assert_eq!(world.show("s", "a=1 b=1"), "first a trusted []; first b new []");
    assert_eq!(world.show("s", "a=2 b=1"), "drifted a drifted [definition]");
    assert_eq!(world.show("t@10.0.0.2", "a=1"), "first a trusted []");
    assert_eq!(world.show("t@10.0.0.2", "a=2"), "drifted a drifted [definition]", "by what it showed first");
    assert_eq!(by(&world, "s").as_deref(), Some("ToolBaseline bank"));
    assert_eq!(by(&world, "never-seen@10.0.0.3"), None);
    let id = world.id("s", "b");
    assert_eq!(world.order(Wish::Approve(id)).unwrap_err(), Refusal::Authority("ToolBaseline bank".into()));
    assert_eq!(world.approve("t@10.0.0.2", "a"), "approved a trusted []");
    let file = |server: &str| {
        let text = format!(
            "version: 1\nservers:\n- server: {server}\n  items:\n  - {{surface: tool, name: a, text: '{}'}}",
            tool("a=3")
        );
        Wish::Import(Arc::new(Document::of_file(&text).unwrap()))
    };
    assert_eq!(world.order(file("s")).unwrap_err(), Refusal::Authority("ToolBaseline bank".into()));
    assert_eq!(world.order(file("t")).unwrap(), "imported a drifted [definition]");
    // Blocking is for operators, whoever says what is trusted.
    assert_eq!(world.block("s", "b"), "blocked b blocked []");
    assert_eq!(world.approve("s", "b"), "approved b new []");
}

#[test]
fn what_nobody_was_shown_is_trusted_only_where_no_object_is() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let object = Document::of_object("bank", servers("s", "a=1").as_array().unwrap()).unwrap();
    baseline.set_authority(Authority::new(None, vec![Arc::new(object)], None));
    let of = |at: &str| {
        let standings = baseline.standings(&place(at), Some((Surface::Tool, "a")));
        (standings.of(Surface::Tool).state, standings.by.is_some())
    };
    assert_eq!(of("s"), (State::New, true));
    assert_eq!(of("t@10.0.0.2"), (State::Unseen, false));
    baseline.set_authority(None);
    assert_eq!(of("s"), (State::Unseen, false));
}

#[test]
fn several_objects_and_a_file_trust_what_any_of_them_does() {
    let (one, two) = (("one", servers("s", "a=1")), ("two", servers("s", "a=2 b=1")));
    let mut world = governed(&[one.clone(), two.clone()]);
    assert_eq!(by(&world, "s").as_deref(), Some("ToolBaseline one or ToolBaseline two"));
    world.show("s", "a=1 b=1");
    assert_eq!((&*world.standing("s", "a"), &*world.standing("s", "b")), ("trusted []", "trusted []"));
    world.show("s", "a=2 b=1");
    assert_eq!(world.standing("s", "a"), "trusted []");
    assert_eq!(world.show("s", "a=3 b=1"), "drifted a drifted [definition]");
    let file = format!(
        "version: 1\nservers:\n- server: s\n  items:\n  - {{surface: tool, name: a, text: '{}'}}",
        tool("a=3")
    );
    world.govern(Some(&file), &[one.clone(), two]);
    assert_eq!(world.standing("s", "a"), "trusted []");
    let all = "the baseline file or ToolBaseline one or ToolBaseline two";
    assert_eq!(by(&world, "s").as_deref(), Some(all));
    assert_eq!(by(&world, "t").as_deref(), Some("the baseline file"), "it is about all servers");
    let more = ["three", "four"].map(|name| (name, servers("s", "")));
    world.govern(Some(&file), &[[one.clone(), one].as_slice(), &more].concat());
    assert!(by(&world, "s").is_some_and(|by| by.ends_with(" or another")), "{:?}", by(&world, "s"));
}

#[test]
fn a_server_is_governed_by_its_name_or_its_address_and_trusted_where_all_fits() {
    let object = json!([{"server": ["s"], "path": "/mcp", "address": "10.0.0.1:80", "items": items("a=1")}]);
    for (at, expect) in [
        ("s/mcp", "trusted []"),
        ("S/mcp", "trusted []"),
        ("s/other", "new []"),
        ("x/mcp", "new []"),
        ("s/mcp@10.0.0.9", "new []"),
        ("s/mcp%ann", "trusted []"),
        ("t@10.0.0.2", "trusted []"),
    ] {
        let mut world = governed(&[("bank", object.clone())]);
        world.show(at, "a=1");
        assert_eq!(world.standing(at, "a"), expect, "{at}");
        assert_eq!(by(&world, at).is_some(), at != "t@10.0.0.2", "{at}");
    }
    // An address of an agent's own means something to that agent alone.
    let object = json!([{"server": ["s"], "address": "10.0.0.1:80", "agent": "ann", "items": items("a=1")}]);
    let world = governed(&[("bank", object)]);
    assert_eq!(
        ["s%ann", "x%ann", "s%bob", "s"].map(|at| by(&world, at).is_some()),
        [true, true, false, false]
    );
    // Globs, and addresses as names.
    let world = governed(&[("all", json!([{"server": ["*.internal", "10.0.0.7"]}]))]);
    let governed = ["a.internal", "x@10.0.0.7", "a.external"].map(|at| by(&world, at).is_some());
    assert_eq!(governed, [true, true, false]);
}

#[test]
fn what_is_known_of_the_address_under_another_name_is_looked_at_by_the_object() {
    // Without the object what `x` was shown first is trusted, and a call under `s` goes by that.
    let mut world = governed(&[]);
    world.show("x", "a=2");
    assert_eq!(world.standing("s", "a"), "trusted []");
    world.govern(None, &[("bank", servers("s", "a=1"))]);
    assert_eq!(world.standing("x", "a"), "trusted []");
    assert_eq!(world.standing("s", "a"), "drifted [definition]");
    world.show("x", "a=2 b=1");
    assert_eq!(world.standing("s", "b"), "new [added]");
    // And the other way round: what is known to be none of what is trusted does not become so by another name.
    let mut world = governed(&[("bank", servers("s", "a=1"))]);
    world.show("s", "a=2");
    world.show("x", "a=2");
    assert_eq!(world.standing("x", "a"), "drifted [definition]");
}

#[test]
fn a_server_goes_back_to_the_store_with_the_last_object() {
    let object = || ("bank", servers("s", "a=2 c=1"));
    let mut world = governed(&[]);
    world.show("s", "a=1");
    world.govern(None, &[object()]);
    assert_eq!(world.standing("s", "a"), "drifted [definition]");
    world.show("s", "a=2 b=1 c=1");
    let standings = |world: &mut World| ["a", "b", "c"].map(|name| world.standing("s", name));
    assert_eq!(standings(&mut world), ["trusted []", "new [added]", "trusted []"]);
    world.govern(None, &[]);
    // By what was trusted before; what came meanwhile waits for a person.
    assert_eq!(standings(&mut world), ["drifted [definition]", "new [added]", "new [added]"]);
    assert_eq!(world.approve("s", "b"), "approved b trusted []");
    world.govern(None, &[object()]);
    assert_eq!(standings(&mut world), ["trusted []", "new [added]", "trusted []"]);
}

#[test]
fn an_object_that_is_changed_ends_a_drift_for_everybody() {
    let mut world = governed(&[("bank", servers("s", "a=1"))]);
    world.show_to("ann", "s", "a=2");
    world.show_to("bob", "s", "a=2");
    assert_eq!(world.standing("s", "a"), "drifted [definition]");
    world.govern(None, &[("bank", servers("s", "a=2"))]);
    assert_eq!(world.standing("s", "a"), "trusted []");
    world.show_to("bob", "s", "a=1");
    assert_eq!(world.standing("s", "a"), "drifted [definition]");
    world.show_to("bob", "s", "a=2");
    assert_eq!(world.standing("s", "a"), "trusted []", "ann was shown what is good now");
}

#[test]
fn where_objects_cannot_be_read_nothing_is_trusted() {
    let mut world = governed(&[]);
    world.show("s", "a=1");
    let closed = Authority::new(None, Vec::new(), Some("baselines.json"));
    world.known.set_authority(closed.map(Arc::new), &HashMap::new());
    assert_eq!((world.standing("s", "a"), by(&world, "t")), ("new []".into(), Some("baselines.json".into())));
    world.govern(None, &[]);
    assert_eq!(world.standing("s", "a"), "trusted []");
}

#[tokio::test]
async fn what_is_exported_as_an_object_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let all = ["s/mcp", "[fd77::2]:8080@10.0.0.3", "odd{*}name@10.0.0.4"];
    for at in all {
        show(&baseline, at, "a=1 b=1/Title twice=1 twice=2");
    }
    show(&baseline, "s/mcp", "a=2 b=1/Title twice=1 twice=2");
    let wanted = |shown, server: Option<&str>| Wanted {
        filter: Filter { server: server.map(str::to_owned), ..Filter::default() },
        shown,
        as_object: Some("bank.v1".to_owned()),
    };
    let export = async |wanted| -> Value {
        let text = baseline.export(wanted).await.unwrap();
        serde_saphyr::from_str(&text).unwrap()
    };
    let object = export(wanted(false, None)).await;
    assert_eq!(
        (&object["apiVersion"], &object["kind"]),
        (&json!("interlock.dev/v1alpha1"), &json!("ToolBaseline"))
    );
    assert_eq!(object["metadata"], json!({"name": "bank.v1"}));
    let servers = |object: &Value| object["spec"]["servers"].as_array().unwrap().clone();
    let document = Document::of_object("bank.v1", &servers(&object)).unwrap();
    assert_eq!(document.entries(), 9);
    assert!(servers(&object)[0]["items"][0]["digests"].is_null(), "the text says all");
    let mut world = governed(&[("bank.v1", object["spec"]["servers"].clone())]);
    for at in all {
        world.show(at, "a=1 b=1/Title twice=1 twice=2");
        let standings = ["a", "b", "twice"].map(|name| world.standing(at, name));
        assert_eq!(standings, ["trusted []", "trusted []", "trusted []"], "{at}");
    }
    world.show("s/mcp", "a=2");
    assert_eq!(world.standing("s/mcp", "a"), "drifted [definition]");
    // What it has become, of one server, for whoever finds that good.
    let object = export(wanted(true, Some("s"))).await;
    assert_eq!(servers(&object).len(), 1);
    world.govern(None, &[("bank", object["spec"]["servers"].clone())]);
    assert_eq!(world.standing("s/mcp", "a"), "trusted []");
    // The file of the same reads as well.
    let file = baseline.export(Wanted::default()).await.unwrap();
    world.govern(Some(&file), &[]);
    assert_eq!(world.standing("[fd77::2]:8080@10.0.0.3", "a"), "trusted []");
    for name in ["", "Bank", "a_b", "-a", "a..b"] {
        let wanted = Wanted { as_object: Some(name.to_owned()), ..Wanted::default() };
        let error = baseline.export(wanted).await.unwrap_err().to_string();
        assert!(error.contains("is no name of an object"), "{name}: {error}");
    }
}

#[tokio::test]
async fn what_is_more_than_an_object_may_be_is_to_be_several() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let long = "x".repeat(60_000);
    let tools: Vec<String> = (0..20).map(|n| format!("t{n}={long}")).collect();
    show(&baseline, "s", &tools.join(" "));
    let wanted = Wanted { as_object: Some("s".to_owned()), ..Wanted::default() };
    let error = baseline.export(wanted.clone()).await.unwrap_err().to_string();
    assert!(error.contains("KiB") && error.contains("make several"), "{error}");
    // What is too long to be kept has digests alone.
    show(&baseline, "t@10.0.0.2", &format!("long={}", "x".repeat(70_000)));
    let filter = Filter { name: Some("long".to_owned()), ..Filter::default() };
    let object: Value =
        serde_saphyr::from_str(&baseline.export(Wanted { filter, ..wanted.clone() }).await.unwrap()).unwrap();
    let item = &object["spec"]["servers"][0]["items"][0];
    assert!(item["text"].is_null() && item["digests"]["core"].is_string(), "{item}");
    let filter = Filter { name: Some("t1*".to_owned()), ..Filter::default() };
    assert!(baseline.export(Wanted { filter, ..wanted }).await.is_ok());
}

#[tokio::test]
async fn what_was_never_shown_is_compared_by_the_text_of_the_object() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let object = Document::of_object("bank", servers("s", "a=1").as_array().unwrap()).unwrap();
    baseline.set_authority(Authority::new(None, vec![Arc::new(object)], None));
    show(&baseline, "s", "a=2");
    let review = baseline.show(&super::orders::id(&baseline, "a")).await.unwrap();
    assert_eq!(review.trusted.unwrap().text, Some(tool("a=1").to_string()));
    assert!(baseline.approve(&super::orders::id(&baseline, "a"), order("no")).await.is_err());
}
