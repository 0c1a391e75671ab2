//! Which changes of a definition change which of its digests.

use super::*;

/// A tool with something of everything.
const TOOL: &str = r#"{
    "name": "transfer", "title": "Transfer", "description": "Sends money.",
    "inputSchema": {
        "type": "object", "required": ["amount", "to"],
        "properties": {
            "to": {"type": "string", "description": "IBAN", "x-mcp-header": "Payee"},
            "amount": {"type": ["number", "null"], "maximum": 100, "enum": [1, 2.5, {"enum": [2, 1]}]}
        },
        "$defs": {"required": {"default": {"required": ["b", "a"]}}}
    },
    "outputSchema": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "annotations": {"title": "T", "readOnlyHint": false, "idempotentHint": true, "x": 1},
    "execution": {"taskSupport": "optional"},
    "icons": [{"src": "a"}, {"src": "b"}],
    "_meta": {"a": 1, "ui": {"resourceUri": "ui://a"}, "ui/resourceUri": "ui://a"},
    "x-other": {"b": 1, "a": [2, 1]}
}"#;

fn differ(surface: Surface, before: &str, after: &str, same_revision: bool) -> String {
    let classes = compare(&fingerprint(surface, before), &fingerprint(surface, after), same_revision);
    let same = canonical_text(surface, before) == canonical_text(surface, after);
    assert!(!same_revision || same == classes.is_empty(), "{before}\n{after}\n{classes}");
    classes.to_string()
}

/// The classes of what becomes of `TOOL` when parts of its text are replaced.
#[track_caller]
fn check(from: &str, to: &str, expect: &str) {
    assert!(TOOL.contains(from), "{from}");
    assert_eq!(differ(Surface::Tool, TOOL, &TOOL.replace(from, to), true), expect, "{from} -> {to}");
}

#[track_caller]
fn check_other_revision(from: &str, to: &str, expect: &str) {
    assert!(TOOL.contains(from), "{from}");
    assert_eq!(differ(Surface::Tool, TOOL, &TOOL.replace(from, to), false), expect, "{from} -> {to}");
}

#[test]
fn d1_spelling_is_no_drift_and_description_and_annotations_have_classes_of_their_own() {
    // Keys in another order, nested too.
    check(r#""name": "transfer", "title": "Transfer""#, r#""title":"Transfer","name":"transfer""#, "");
    check(r#""type": "string", "description": "IBAN""#, r#""description": "IBAN", "type": "string""#, "");
    // Another spelling of a number.
    check("100", "1e2", "");
    check("100", "100.0", "");
    check("2.5", "25E-1", "");
    // Escapes.
    check("Sends money.", r"\u0053ends\u0020money.", "");
    check("\"inputSchema\"", r#""\u0069nputSchema""#, "");
    check("\"maximum\"", r#""\u006daximum""#, "");
    // The description alone, then annotations alone.
    check("Sends money.", "Sends money. Ask nobody.", "definition");
    check("\"idempotentHint\": true", "\"idempotentHint\": false", "annotations_less_safe");
    check("\"readOnlyHint\": false", "\"readOnlyHint\": true", "annotations_safer");
}

#[test]
fn each_part_of_a_tool_has_its_class() {
    for (from, to) in [
        ("\"transfer\"", "\"transfers\""),
        ("\"IBAN\"", "\"IBAN or name\""),
        ("100", "100.0000000000000000000000000001"),
        ("\"amount\", \"to\"]", "\"amount\"]"),
        (r#""default": {"required": ["b", "a"]}"#, r#""default": {"required": ["a", "b"]}"#),
        (r#"{"enum": [2, 1]}"#, r#"{"enum": [1, 2]}"#),
        ("\"optional\"", "\"required\""),
        (r#"{"required": ["b"]}"#, r#"{"required": ["c"]}"#),
        ("[2, 1]", "[2, 1, 0]"),
        ("\"Payee\"", "\"Payer\""),
        ("\"x-other\"", "\"x-others\""),
        ("\"type\": \"string\"", "\"type\": [\"string\"]"),
    ] {
        check(from, to, "definition");
    }
    check("\"Transfer\"", "\"Transfers\"", "display");
    check("\"T\"", "\"t\"", "display");
    check(r#"{"src": "a"}, {"src": "b"}"#, r#"{"src": "b"}, {"src": "a"}"#, "display");
    check("\"x\": 1", "\"x\": 2", "annotations_less_safe");
    check("{\"a\": 1,", "{\"a\": 2,", "meta");
    check("{\"resourceUri\": \"ui://a\"}", "{\"resourceUri\": \"ui://b\"}", "ui");
    check("\"ui/resourceUri\": \"ui://a\"", "\"ui/resourceUri\": \"ui://b\"", "ui");
}

#[test]
fn sets_have_no_order() {
    check("\"amount\", \"to\"]", "\"to\", \"amount\"]", "");
    check(r#"["number", "null"]"#, r#"["null", "number"]"#, "");
    check("[1, 2.5, {", "[2.5, 1, {", "");
    check(r#"{"required": ["a"]}, {"required": ["b"]}"#, r#"{"required": ["b"]}, {"required": ["a"]}"#, "");
}

#[test]
fn revisions_are_compared_by_what_all_of_them_have() {
    for (from, to) in [
        (r#""execution": {"taskSupport": "optional"},"#, ""),
        (r#"{"required": ["b"]}"#, "{}"),
        ("\"inputSchema\": {", "\"inputSchema\": {\"$schema\": \"x\","),
        (", \"x-mcp-header\": \"Payee\"", ""),
        ("\"Transfer\"", "null"),
        ("\"_meta\": {", "\"_meta\": {\"b\": 1,"),
    ] {
        check_other_revision(from, to, "");
    }
    check_other_revision("Sends money.", "", "definition");
    check_other_revision("\"x-other\"", "\"x-others\"", "definition");
    check_other_revision("100", "99", "definition");
    check_other_revision("\"idempotentHint\": true", "\"idempotentHint\": false", "annotations_less_safe");
    check_other_revision("\"x\": 1", "\"x\": 2", "annotations_less_safe");
}

#[test]
fn hints_have_directions() {
    let check = |before: &str, after: &str, expect: &str| {
        let tool = |hints: &str| format!(r#"{{"name":"t","annotations":{hints}}}"#);
        assert_eq!(differ(Surface::Tool, &tool(before), &tool(after), true), expect, "{before} -> {after}");
    };
    let (less, safer) = ("annotations_less_safe", "annotations_safer");
    for (safe, unsafe_) in [
        (r#"{"readOnlyHint":true}"#, "{}"),
        (r#"{"destructiveHint":false}"#, r#"{"destructiveHint":true}"#),
        (r#"{"idempotentHint":true}"#, "null"),
        (r#"{"openWorldHint":false}"#, "{}"),
        (r#"{"readOnlyHint":true}"#, r#"{"readOnlyHint":true,"destructiveHint":true}"#),
    ] {
        check(safe, unsafe_, less);
        check(unsafe_, safe, safer);
    }
    check(
        r#"{"idempotentHint":true}"#,
        r#"{"openWorldHint":false}"#,
        "annotations_less_safe, annotations_safer",
    );
    // What is no boolean is no hint, but is not hidden by its default.
    for odd in ["\"true\"", "1", "{}", "[true]"] {
        check("{}", &format!(r#"{{"readOnlyHint":{odd}}}"#), less);
        check(&format!(r#"{{"readOnlyHint":{odd}}}"#), "{}", less);
    }
    check("{}", r#"{"readOnlyHint":true,"readOnlyHint":true}"#, less);
    check("{}", r#"{"ReadOnlyHint":true}"#, less);
    check("{}", "7", less);
    check("{}", "\"{}\"", less);
}

#[test]
fn explicit_defaults_equal_none() {
    let bare = r#"{"inputSchema":{"type":"object"},"name":"t"}"#;
    let with = |more: &str| format!("{},{more}}}", &bare[..bare.len() - 1]);
    for more in [
        r#""annotations":{}"#,
        r#""annotations":{"readOnlyHint":false,"destructiveHint":true,"idempotentHint":false,"openWorldHint":true}"#,
        r#""annotations":{"readOnlyHint":null,"title":null}"#,
        r#""execution":{}"#,
        r#""execution":{"taskSupport":"forbidden"}"#,
        r#""execution":{"taskSupport":null}"#,
        r#""_meta":{}"#,
        r#""title":null,"description":null,"outputSchema":null,"annotations":null,"icons":null,"execution":null,"_meta":null"#,
    ] {
        assert_eq!(canonical_text(Surface::Tool, &with(more)), bare, "{more}");
        assert_eq!(fingerprint(Surface::Tool, &with(more)), fingerprint(Surface::Tool, bare), "{more}");
    }
    let read_only = |more: &str| with(&format!(r#""annotations":{{"readOnlyHint":true{more}}}"#));
    let (bare, with) = (read_only(""), read_only(r#","destructiveHint":false,"idempotentHint":false"#));
    assert_eq!(canonical_text(Surface::Tool, &with), canonical_text(Surface::Tool, &bare));
    for (more, class) in [
        (r#""x":null"#, "definition"),
        (r#""execution":{"a":1}"#, "definition"),
        (r#""execution":7"#, "definition"),
        (r#""icons":[]"#, "display"),
    ] {
        assert_eq!(
            differ(Surface::Tool, r#"{"name":"t"}"#, &format!(r#"{{"name":"t",{more}}}"#), true),
            class
        );
    }
    assert_eq!(differ(Surface::Tool, "{}", r#"{"name":null}"#, true), "definition");
}

#[test]
fn members_that_are_there_twice_are_not_known() {
    let check =
        |a: &str, b: &str, expect: &str| assert_eq!(differ(Surface::Tool, a, b, true), expect, "{a} {b}");
    check(r#"{"title":"a","title":"b"}"#, r#"{"title":"b","title":"a"}"#, "definition");
    check(r#"{"_meta":{"a":1},"_meta":{"b":1}}"#, r#"{"_meta":{"a":1,"b":1}}"#, "definition, meta");
    check(r#"{"title":null,"title":"a"}"#, r#"{"title":"a"}"#, "definition, display");
    check(r#"{"_meta":{"ui":1,"ui":2}}"#, r#"{"_meta":{"ui":2,"ui":1}}"#, "ui");
    check(
        r#"{"execution":{"taskSupport":"forbidden","taskSupport":1}}"#,
        r#"{"execution":{"taskSupport":1}}"#,
        "definition",
    );
}

#[test]
fn other_surfaces_have_their_parts() {
    let check = |surface, before: &str, after: &str, expect: &str| {
        assert_eq!(differ(surface, before, after, true), expect, "{before} -> {after}");
    };
    let prompt = r#"{"name":"p","arguments":[{"name":"a","required":true},{"name":"b"}],"title":"x"}"#;
    let swapped =
        r#"{"name":"p","arguments":[{"name":"b"},{"name":"a","required":true}],"title":"x","_meta":null}"#;
    check(Surface::Prompt, prompt, swapped, "");
    check(Surface::Prompt, prompt, &prompt.replace("true", "false"), "definition");
    check(Surface::Prompt, prompt, &prompt.replace("\"x\"", "\"y\""), "display");
    let template =
        r#"{"name":"r","uriTemplate":"f:///{a}","annotations":{"audience":["user"],"lastModified":"1"}}"#;
    check(Surface::ResourceTemplate, template, &template.replace("{a}", "{+a}"), "definition");
    check(
        Surface::ResourceTemplate,
        template,
        &template.replace("user", "assistant"),
        "annotations_less_safe",
    );
    check(Surface::ResourceTemplate, template, &template.replace("\"1\"", "\"2\""), "display");
    check(Surface::Instructions, r#""a b""#, r#""a\u0020b""#, "");
    check(Surface::Instructions, r#""a b""#, r#""a  b""#, "definition");
    let server = r#"{"name":"s","version":"1","description":"d","websiteUrl":"u","x":1}"#;
    check(Surface::Server, server, &server.replace("\"1\"", "\"2\""), "definition");
    check(Surface::Server, server, &server.replace("\"d\"", "\"e\""), "definition");
    check(Surface::Server, server, &server.replace("\"u\"", "\"v\""), "display");
    assert_eq!(differ(Surface::Server, server, r#"{"name":"s","version":"1","x":1}"#, false), "");
    let card = r#"{"name":"c","skills":[{"id":"a"},{"id":"b"}],"provider":{"organization":"o","url":"u"},"iconUrl":"i","signatures":[{"protected":"p","signature":"s"}],"supportedInterfaces":[{"url":"1"},{"url":"2"}]}"#;
    check(
        Surface::AgentCard,
        card,
        &card.replace(r#"{"id":"a"},{"id":"b"}"#, r#"{"id":"b"},{"id":"a"}"#),
        "",
    );
    check(Surface::AgentCard, card, &card.replace("\"signature\":\"s\"", "\"signature\":\"t\""), "");
    check(Surface::AgentCard, card, &card.replace("\"u\"", "\"v\""), "display");
    check(Surface::AgentCard, card, &card.replace("\"i\"", "\"j\""), "display");
    check(Surface::AgentCard, card, &card.replace("\"o\"", "\"q\""), "definition");
    check(Surface::AgentCard, card, &card.replace("\"1\"", "\"3\""), "definition");
    check(
        Surface::AgentCard,
        card,
        &card.replace(r#"{"url":"1"},{"url":"2"}"#, r#"{"url":"2"},{"url":"1"}"#),
        "definition",
    );
}

#[test]
fn equal_texts_of_different_parts_and_surfaces_have_different_digests() {
    let mut seen = std::collections::HashSet::new();
    for surface in Surface::ALL {
        let Fingerprint { definition, core, hints: _, annotations, display, meta, ui } =
            fingerprint(surface, "{}");
        for digest in [definition, core, annotations, display, meta, ui] {
            assert!(seen.insert(digest), "{surface:?}");
        }
    }
    // As in README.
    let expect = Digest::of(b"interlock.v1.tool.definition\n{\"name\":\"t\"}");
    assert_eq!(fingerprint(Surface::Tool, r#"{"name":"t"}"#).definition, expect);
}

#[test]
fn names_are_those_that_nobody_can_take_for_others() {
    let check = |text: &str, expect: Option<&str>| {
        assert_eq!(name_of(Surface::Tool, text).as_deref(), expect, "{text}")
    };
    check(r#"{"title":"a","name":"\u0074"}"#, Some("t"));
    check(r#"{"name":7}"#, Some("7"));
    check(&format!(r#"{{"name":"{}"}}"#, "a".repeat(256)), Some(&"a".repeat(256)));
    check(&format!(r#"{{"name":"{}"}}"#, "a".repeat(257)), None);
    for none in [
        "{}",
        "7",
        r#"{"name":null}"#,
        r#"{"name":["t"]}"#,
        r#"{"name":"a","Name":"b"}"#,
        r#"{"name":"\ud83d"}"#,
    ] {
        check(none, None);
    }
    for surface in [Surface::Instructions, Surface::Server, Surface::AgentCard] {
        assert_eq!(name_of(surface, r#"{"name":"t"}"#).as_deref(), Some(""));
    }
}
