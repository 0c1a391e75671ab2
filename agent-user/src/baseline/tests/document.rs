//! The file for review: written, read, and as the only authority.

use jiff::Timestamp;
use proptest::prelude::*;

use super::orders::{id, show};
use super::{FIRST_USE, World, order, place, say, tool, whole};
use crate::baseline::{Baseline, Document, Options, Refusal, Shown, Wanted};
use crate::fingerprint::{Surface, canonical_text, fingerprint};

const NOTHING: Options = Options { trust_first_use: false, authority: None };

#[track_caller]
fn check_error(yaml: &str, at: &str, part: &str) {
    let error = Document::of_file(yaml).unwrap_err();
    assert!(error.starts_with(at) && error.contains(part), "{error}");
}

#[test]
fn mistakes_are_told_with_their_place() {
    check_error("version: 2", "1:10: ", "version 2 is not known");
    check_error("version: 1\nservers:\n- server: s\n  itmes: []", "4:3: ", "itmes");
    check_error("version: 1\nservers:\n- server: 's['", "3:3: ", "server: glob \"s[\"");
    check_error("version: 1\nservers:\n- server: ''", "3:3: ", "empty glob");
    let items = |items: &str| format!("version: 1\nservers:\n- server: s\n  items:\n  {items}");
    check_error(&items("- {surface: tool, name: a}"), "5:5: ", "give one of them");
    check_error(&items("- {surface: tol, name: a}"), "5:", "tol");
    let twice = items("- {surface: tool, name: a, text: '{}'}\n  - {surface: tool, name: a, text: '{}'}");
    check_error(&twice, "6:5: ", "tool \"a\" is there twice");
}

#[test]
fn digests_must_agree_with_their_text() {
    let digests =
        |says: &str| serde_json::to_string(&fingerprint(Surface::Tool, &tool(says).to_string())).unwrap();
    let yaml = |digests: String| {
        let text = tool("a=1");
        format!(
            "version: 1\nservers:\n- server: s\n  items:\n  - {{surface: tool, name: a, text: '{text}', digests: {digests}}}"
        )
    };
    Document::of_file(&yaml(digests("a=1"))).unwrap();
    check_error(&yaml(digests("a=2")), "5:5: ", "do not agree");
}

#[tokio::test]
async fn what_was_exported_can_be_imported_elsewhere() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let exports = Baseline::open(one.path(), FIRST_USE).unwrap();
    show(&exports, "s", "a=1 b=1/Title twice=1 twice=2");
    show(&exports, "s#2026-07-28!bob", "a=1?");
    show(&exports, "s", "a=2 b=1/Title twice=1 twice=2");
    let yaml = exports.export(Wanted::default()).await.unwrap();
    assert!(yaml.contains("text: |-\n"), "{yaml}");
    let imports = Baseline::open(two.path(), NOTHING).unwrap();
    let changes = imports.import(&yaml, order("reviewed")).await.unwrap();
    assert_eq!(changes.len(), 4);
    assert_eq!(imports.export(Wanted::default()).await.unwrap(), yaml);
    assert_eq!(show(&imports, "s", "a=1 b=1/Title twice=1 twice=2"), "");
    assert_eq!(show(&imports, "s", "a=2 b=1/Title twice=1 twice=2"), "drifted a drifted [definition]");
    drop(imports);
    let imports = Baseline::open(two.path(), NOTHING).unwrap();
    assert_eq!(imports.export(Wanted::default()).await.unwrap(), yaml);
    let review = imports.show(&id(&imports, "b")).await.unwrap();
    assert_eq!(review.history[0].reason.as_deref(), Some("reviewed"));
}

#[tokio::test]
async fn an_import_approves_what_was_seen_and_needs_an_address_for_what_was_not() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), NOTHING).unwrap();
    show(&baseline, "s.example", "a=1");
    show(&baseline, "t.example", "a=2");
    let yaml = |server: &str| {
        let text = tool("a=1");
        format!(
            "version: 1\nservers:\n- server: '{server}'\n  items:\n  - {{surface: tool, name: a, text: '{text}'}}"
        )
    };
    let said = say(&baseline.import(&yaml("*.EXAMPLE"), order("")).await.unwrap());
    assert_eq!(said, "imported a trusted []; imported a drifted [definition]");
    let error = baseline.import(&yaml("u.example"), order("")).await.unwrap_err();
    assert!(
        matches!(&error, Refusal::File(error) if error.starts_with("5:1: ") && error.contains("`address`")),
        "{error}"
    );
}

fn world(yaml: &str) -> World {
    let mut world = World::new(true);
    world.govern(Some(yaml), &[]);
    world
}

#[test]
fn a_file_is_the_only_authority() {
    let text = tool("a=1");
    let yaml = format!(
        "version: 1\nservers:\n- server: ['s', '10.0.0.7']\n  items:\n  - {{surface: tool, name: a, text: '{text}'}}"
    );
    let mut world = world(&yaml);
    assert_eq!(world.show("s", "a=1 b=1"), "first a trusted []; first b new []");
    assert_eq!(world.show("s", "a=2 b=1"), "drifted a drifted [definition]");
    assert_eq!(world.show("s", "a=1 b=1"), "returned a trusted []");
    world.show("x@10.0.0.7", "a=1");
    assert_eq!(world.standing("x@10.0.0.7", "a"), "trusted []");
    world.show("x@10.0.0.8", "a=1");
    assert_eq!(world.standing("x@10.0.0.8", "a"), "new []");
    let id = world.id("s", "b");
    let by = Refusal::Authority("the baseline file".into());
    assert_eq!(world.order(super::Wish::Approve(id)).unwrap_err(), by);
    assert_eq!(world.block("s", "a"), "blocked a blocked []");
    assert_eq!(world.approve("s", "a"), "approved a trusted []", "the block ends, the file decides");
    // Another file, and everything is looked at anew, pages that are the same included.
    world.govern(Some("version: 1"), &[]);
    assert_eq!(world.standing("s", "a"), "new []");
}

#[test]
fn an_entry_may_be_for_a_revision_or_a_principal() {
    let entry =
        |says: &str, of: &str| format!("  - {{surface: tool, name: a, {of}, text: '{}'}}\n", tool(says));
    let yaml = "version: 1\nservers:\n- server: s\n  items:\n".to_owned()
        + &entry("a=1", "revision: 2025-06-18")
        + &entry("a=2", "revision: 2025-06-18, principal: bob");
    let mut world = world(&yaml);
    for (at, shows, expect) in [
        ("s", "a=1", "trusted []"),
        ("s", "a=2", "drifted [definition]"),
        ("s!bob", "a=2", "trusted []"),
        ("s", "a=1", "trusted []"),
        ("s#2026-07-28", "a=1/Title", "trusted []"),
        ("s#2026-07-28", "a=3", "drifted [definition]"),
        ("s", "a=1", "drifted [definition]"),
        ("s#2026-07-28", "a=1", "trusted []"),
        ("s", "a=1/Title", "drifted [display]"),
    ] {
        world.show(at, shows);
        assert_eq!(world.standing(at, "a"), expect, "{at} {shows}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_text_comes_through_the_file(text in any::<String>(), name in "[a-z\u{80}-\u{a0}\u{2028}]{1,8}") {
        let tool = serde_json::json!({"name": name, "description": text, "inputSchema": {}}).to_string();
        let of_tool = fingerprint(Surface::Tool, &tool);
        let canonical = canonical_text(Surface::Tool, &tool);
        prop_assert_eq!(fingerprint(Surface::Tool, &canonical), of_tool);
        let dir = tempfile::tempdir().unwrap();
        let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
        let shown = || vec![Shown { name: name.into(), fingerprint: of_tool, text: canonical.into(), smells: serde_json::Value::Null }];
        baseline.observe(&place("s"), &whole(""), shown, "ann", Timestamp::UNIX_EPOCH);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let yaml = runtime.block_on(baseline.export(Wanted::default())).unwrap();
        Document::of_file(&yaml).unwrap();
        prop_assert_eq!(baseline.counts()[1].1, 1);
    }
}
