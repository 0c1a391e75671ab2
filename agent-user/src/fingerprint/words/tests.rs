//! What is said of which change.

use super::super::canonical_text;
use super::*;

fn said(surface: Surface, before: &str, after: &str) -> Vec<String> {
    changes(surface, &canonical_text(surface, before), &canonical_text(surface, after))
}

#[track_caller]
fn check(before: &str, after: &str, expect: &[&str]) {
    assert_eq!(said(Surface::Tool, before, after), expect, "{before}\n{after}");
}

/// Of the input schema of a tool.
#[track_caller]
fn check_schema(before: &str, after: &str, expect: &[&str]) {
    let tool = |schema: &str| format!(r#"{{"inputSchema":{schema}}}"#);
    check(&tool(before), &tool(after), expect);
}

/// Of its argument `x`.
#[track_caller]
fn check_argument(before: &str, after: &str, expect: &[&str]) {
    let schema = |argument: &str| format!(r#"{{"properties":{{"x":{argument}}}}}"#);
    check_schema(&schema(before), &schema(after), expect);
}

#[test]
fn texts_say_something_new_or_nothing_more() {
    let tool = |text: &str| format!(r#"{{"description":"{text}"}}"#);
    let check = |before, after, expect: &[&str]| check(&tool(before), &tool(after), expect);
    check("Sends. Fast.", "Sends. Ask nobody. Fast.", &["description now also says: \"Ask nobody. \""]);
    check("Sends. Ask first. Fast.", "Sends. Fast.", &["description no longer says: \"Ask first. \""]);
    check(
        "A. B. C. D. E.",
        "A. b. C. d. E.",
        &["description now says: \"b.  … d. \"", "description no longer says: \"B.  … D. \""],
    );
    check(
        "a",
        "a\u{200b}\\u001b[2J",
        &["description now says: \"a<U+200B>\\u001b[2J\"", "description no longer says: \"a\""],
    );
    let long = format!("A. {}", "b".repeat(600));
    let expect = format!(
        "description now also says: \"{}[… 100 characters left out …]{}\"",
        "b".repeat(334),
        "b".repeat(166)
    );
    check("A. ", &long, &[&expect]);
    super::tests::check("{}", &tool("a"), &["description added: \"a\""]);
    super::tests::check(&tool("a"), "{}", &["description removed: \"a\""]);
    super::tests::check(&tool("a"), r#"{"description":7}"#, &["description changed from \"a\" to 7"]);
    assert_eq!(said(Surface::Instructions, "\"a\"", "\"a. b\"")[0], "instructions now says: \"a. b\"");
}

#[test]
fn arguments_come_go_and_change() {
    check_schema(
        r#"{"properties":{"a":{}}}"#,
        r#"{"properties":{"a":{},"to":{"type":"string"},"cc":{}},"required":["to"]}"#,
        &["argument `cc` added: {}", r#"argument `to` added (required): {"type":"string"}"#],
    );
    check_schema(
        r#"{"properties":{"a":{},"b":{}},"required":["a","b"]}"#,
        r#"{"properties":{"a":{}}}"#,
        &["argument `b` removed: {}", "argument `a` is no longer required"],
    );
    check_schema(
        r#"{"properties":{"a":{}}}"#,
        r#"{"properties":{"a":{}},"required":["a","z"]}"#,
        &["argument `a` is now required", "argument `z` is now required"],
    );
    check_argument(
        r#"{"type":"number"}"#,
        r#"{"type":"string"}"#,
        &["argument `x`: type changed from number to string"],
    );
    check_argument(
        r#"{"type":"number"}"#,
        r#"{"type":["number"]}"#,
        &["argument `x`: type changed from number to [\"number\"]"],
    );
    check_argument(
        r#"{"type":["number"]}"#,
        r#"{"type":["number","null"]}"#,
        &["argument `x` may now also be \"null\""],
    );
    check_argument(
        r#"{"enum":[1,2]}"#,
        r#"{"enum":[2,3]}"#,
        &["argument `x` may now also be 3", "argument `x` may no longer be 1"],
    );
    check_argument(
        r#"{"description":"a"}"#,
        r#"{"description":"a. b"}"#,
        &["argument `x`: description now says: \"a. b\"", "argument `x`: description no longer says: \"a\""],
    );
    check_argument(
        r#"{"maximum":100}"#,
        r#"{"maximum":1e3}"#,
        &["argument `x`: maximum changed from 100 to 1000"],
    );
    check_argument("{}", r#"{"default":[1]}"#, &["argument `x`: default added: [1]"]);
    check_argument("{}", r#"{"x-mcp-header":"A"}"#, &["argument `x`: x-mcp-header added: \"A\""]);
    check_argument("true", "{}", &["argument `x`: schema changed from true to {}"]);
}

#[test]
fn schemas_are_read_at_any_depth() {
    let inner =
        |inner: &str| format!(r#"{{"properties":{{"f":{{"items":{{"properties":{{"limit":{inner}}}}}}}}}}}"#);
    check_schema(
        &inner(r#"{"type":"number"}"#),
        &inner(r#"{"type":"string"}"#),
        &["argument `f[].limit`: type changed from number to string"],
    );
    check_schema(
        r#"{"$defs":{"a":{"type":"null"}}}"#,
        r#"{"$defs":{"a":{"type":"string"},"b":{}}}"#,
        &["definition `a`: type changed from null to string", "definition `b` added: {}"],
    );
    check_argument(
        r#"{"anyOf":[{"maximum":1},{}]}"#,
        r#"{"anyOf":[{},{"maximum":2}]}"#,
        &["argument `x (anyOf)`: maximum changed from 1 to 2"],
    );
    check_argument(r#"{"anyOf":[{}]}"#, r#"{"anyOf":[{},true]}"#, &["argument `x`: anyOf now also has true"]);
    check_argument(
        r#"{"default":{"a":[1,2,3]}}"#,
        r#"{"default":{"a":[1,9,3,4]}}"#,
        &[
            "`/inputSchema/properties/x/default/a/1` changed from 2 to 9",
            "`/inputSchema/properties/x/default/a/3` added: 4",
        ],
    );
    check(
        r#"{"outputSchema":{"properties":{"r":{"type":"null"}}}}"#,
        r#"{"outputSchema":{"properties":{"r":{"type":"string"}}}}"#,
        &["result `r`: type changed from null to string"],
    );
}

#[test]
fn arguments_that_are_not_listed() {
    let taken = "may now take arguments that are not listed (additionalProperties)";
    check_schema(r#"{"additionalProperties":false}"#, "{}", &[taken]);
    check_schema(r#"{"additionalProperties":false}"#, r#"{"additionalProperties":true}"#, &[taken]);
    check_schema(
        r#"{"additionalProperties":false}"#,
        r#"{"additionalProperties":{"type":"null"}}"#,
        &[&format!(r#"{taken}: {{"type":"null"}}"#)],
    );
    check_schema(
        "{}",
        r#"{"additionalProperties":false}"#,
        &["may no longer take arguments that are not listed (additionalProperties)"],
    );
    check_argument(
        r#"{"additionalProperties":false}"#,
        "{}",
        &["argument `x` may now have members that are not listed (additionalProperties)"],
    );
    check_schema(
        "{}",
        r#"{"additionalProperties":true}"#,
        &["`/inputSchema/additionalProperties` added: true"],
    );
}

#[test]
fn what_matters_most_comes_first() {
    check(
        r#"{"name":"t","title":"a","description":"D","annotations":{"readOnlyHint":true,"openWorldHint":true},"_meta":{"ui":{"resourceUri":"ui://a"}},"inputSchema":{}}"#,
        r#"{"name":"t","title":"b","description":"D. E","annotations":{"openWorldHint":false,"x":1},"_meta":{"ui":{"resourceUri":"ui://b"}},"inputSchema":{"maximum":1},"x":{"a/b":1}}"#,
        &[
            "description now says: \"D. E\"",
            "readOnlyHint: true -> false (less safe)",
            "destructiveHint: false -> true (less safe)",
            "`/annotations/x` added: 1",
            "arguments: maximum added: 1",
            "x added: {\"a/b\":1}",
            "description no longer says: \"D\"",
            "`/_meta/ui/resourceUri` changed from \"ui://a\" to \"ui://b\"",
            "openWorldHint: true -> false (safer)",
            "title changed from \"a\" to \"b\"",
        ],
    );
}

#[test]
fn things_with_names_are_compared_by_them() {
    assert_eq!(
        said(
            Surface::Prompt,
            r#"{"arguments":[{"name":"a","description":"x"},{"name":"b","required":true},{"name":"c"}]}"#,
            r#"{"arguments":[{"name":"d"},{"name":"b"},{"name":"a","description":"y","required":true}]}"#,
        ),
        [
            "argument `a`: description now says: \"y\"",
            "argument `a` is now required",
            "argument `b` is no longer required",
            "argument `d` added: {\"name\":\"d\"}",
            "argument `a`: description no longer says: \"x\"",
            "argument `c` removed: {\"name\":\"c\"}",
        ]
    );
    assert_eq!(
        said(
            Surface::AgentCard,
            r#"{"skills":[{"id":"a","tags":["x"]}]}"#,
            r#"{"skills":[{"id":"a","tags":["y"]}]}"#
        ),
        ["`/skills/tags/0` changed from \"x\" to \"y\""]
    );
    assert_eq!(
        said(
            Surface::Prompt,
            r#"{"arguments":[{"name":"a"},{"name":"a"}]}"#,
            r#"{"arguments":[{"name":"a"},7]}"#
        ),
        ["arguments now has 7", "arguments no longer has {\"name\":\"a\"}"]
    );
}

#[test]
fn much_is_bounded_and_nothing_is_silent() {
    let many = |value: usize| {
        let members: Vec<String> = (0..200).map(|name| format!("\"m{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    };
    let all = said(Surface::Tool, &many(1), &many(2));
    assert_eq!((all.len(), all[49].as_str()), (50, "and 151 more changes: see the patch"));
    let long = |letter: &str| format!("\"{}\"", letter.repeat(600_000));
    assert_eq!(said(Surface::Instructions, &long("a"), &long("b")).len(), 1);
    // A name of any length, at any depth, is shown in part.
    let name = "n".repeat(100_000);
    for depth in [1, 30] {
        let deep = |value| {
            format!(
                "{}{value}{}",
                format!("{{\"{}\":", &name[..100_000 / depth]).repeat(depth),
                "}".repeat(depth)
            )
        };
        let all = said(Surface::Tool, &deep(1), &deep(2));
        assert!(all.len() == 1 && all[0].len() < 1_000, "{all:?}");
    }
    for (before, after) in [
        ("{}", "[]"),
        ("1", "2"),
        ("[1]", "[2]"),
        ("nonsense", "{"),
        (r#"{"a":1,"a":2}"#, r#"{"a":3,"a":2}"#),
    ] {
        for surface in Surface::ALL {
            assert!(!said(surface, before, after).is_empty(), "{before} {after}");
            assert!(said(surface, before, before).is_empty());
        }
    }
}
