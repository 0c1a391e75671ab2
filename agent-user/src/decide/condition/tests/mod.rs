//! What conditions mean, by tables; `random` compares them with the interpreter of the crate whose parser is used.

mod bounds;
mod errors;
mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::decide::subject::{Annotations, Party, Recent, Sender, Subject, User};
use crate::session::Session;

fn compile(text: &str) -> Condition {
    Condition::compile(text, Phase::Request).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn run(text: &str, args: &str) -> Result<bool, String> {
    let subject = Subject { arguments: Some(args), ..Subject::default() };
    compile(text).holds(&Inputs::new(&subject))
}

#[track_caller]
fn check(args: &str, table: &[(&str, bool)]) {
    for (text, holds) in table {
        assert_eq!(run(text, args), Ok(*holds), "{text} on {args}");
    }
}

#[track_caller]
fn check_fails(args: &str, table: &[(&str, &str)]) {
    for (text, error) in table {
        let got = run(text, args).unwrap_err();
        assert!(got.contains(error), "{text} on {args}: {got}");
    }
}

#[test]
fn numbers_compare_whatever_their_form() {
    for (amount, above) in
        [("1000", false), ("1000.0", false), ("1e3", false), ("1000.5", true), ("1001", true), ("1e9", true)]
    {
        check(&format!("{{\"amount\": {amount}}}"), &[("args.amount > 1000", above)]);
        check(&format!("{{\"amount\": {amount}}}"), &[("args.amount > 1000.0", above)]);
        check(&format!("{{\"amount\": {amount}}}"), &[("args.amount > 1000u", above)]);
        check(&format!("{{\"amount\": {amount}}}"), &[("args.amount == 1000", !above)]);
    }
    // Beyond 63, 64 and 53 bits.
    check(
        r#"{"a": 9223372036854775808, "b": 18446744073709551616, "c": 9007199254740993, "d": -1e300}"#,
        &[
            ("args.a > 9223372036854775807", true),
            ("args.a == 9223372036854775808u", true),
            ("args.a == 9223372036854775808.0", true),
            ("args.a > 0 && args.b > 18446744073709551615u", true),
            ("args.b == 18446744073709551616.0", true),
            ("args.c == 9007199254740992.0", false),
            ("args.c > 9007199254740992.0", true),
            ("args.d < -9223372036854775807", true),
        ],
    );
}

#[test]
fn json_is_matched_at_any_depth() {
    let args = r#"{"amount": 5, "tags": ["x", 1, null], "to": {"bank": {"country": "DE"}}, "dry": false,
        "note": null, "items": [{"price": 4}, {"price": 11.5}], "a.b": {"c d": [[1, 2], [3]]}, "": 1, "s": "a\"\u00e9\n"}"#;
    check(
        args,
        &[
            ("\"x\" in args.tags", true),
            ("1.0 in args.tags && null in args.tags", true),
            ("\"y\" in args.tags", false),
            ("args.to.bank.country == \"DE\" && args['to'].bank[\"country\"] == 'DE'", true),
            ("args.to == {'bank': {'country': 'DE'}}", true),
            ("args.to == {'bank': {'country': 'DE', 'x': 1}}", false),
            ("args.dry", false),
            ("args.note == null", true),
            ("args.amount == null || args.amount == \"5\"", false),
            ("args.items.exists(i, i.price > 10)", true),
            ("args.items.all(i, i.price > 10)", false),
            ("args.items.exists_one(i, i.price > 10)", true),
            ("args.items.map(i, i.price) == [4, 11.5]", true),
            ("args.items.filter(i, i.price > 10).size() == 1", true),
            ("args.items.map(i, i.price > 10, i.price) == [11.5]", true),
            ("args['a.b']['c d'][0][1] == 2 && args['a.b']['c d'][1.0] == [3]", true),
            ("args[''] == 1", true),
            ("args.s == 'a\"\\u00e9\\n' && size(args.s) == 4", true),
            ("has(args.to.bank) && !has(args.to.iban)", true),
            ("'to' in args && !('from' in args)", true),
            ("args.exists(name, name == 'dry')", true),
            ("size(args) == 9 && args.tags.size() == 3", true),
            ("type(args.amount) == int && type(args.note) == null_type", true),
            ("args.items.all(a, args.items.exists(b, b == a))", true),
            ("args.items.exists(args, args.price == 4)", true),
            ("(args.amount > 3 ? 'big' : 'small') == 'big'", true),
            ("string(args.amount) + '!' == '5!' && int('7') == 7 && double(args.amount) * 2.0 == 10.0", true),
        ],
    );
    check("{}", &[("has(args.a)", false), ("args == {}", true)]);
    check("[1]", &[("args[0] == 1", true)]);
}

#[test]
fn what_is_not_there_or_of_another_type_is_an_error() {
    let args = r#"{"a": {}, "n": 5, "s": "x", "l": [1], "d": 1.5, "big": 9223372036854775807}"#;
    check_fails(
        args,
        &[
            ("args.b > 1", "1:5: no member \"b\""),
            ("has(args.b.c)", "no member \"b\""),
            ("has(args.n.c)", "a value of type int has no members"),
            ("args.a.b.c", "no member \"b\""),
            ("args.s > 1", "there is no string > int"),
            ("args.n", "a bool is needed here, and this is of type int"),
            ("args.n && true", "a bool is needed here"),
            ("!args.s", "a bool is needed here"),
            ("args.n in args.s", "there is no int in string"),
            ("args.l[1] == 1", "no such element of a list of 1"),
            ("args.l[0.5] == 1", "no such element"),
            ("args.l[-1] == 1", "no such element"),
            ("args.l['a'] == 1", "there is no list[string]"),
            ("args.n.startsWith('x')", "two strings are needed here, not int and string"),
            ("args.n.matches('x')", "a string is needed here"),
            ("args.s.all(c, true)", "a list or a map is needed here"),
            ("args.d * 2 > 1", "there is no double * int; convert one with int(), uint() or double()"),
            ("args.big + 1 > 1", "too large"),
            ("args.n / 0 == 1", "division by zero"),
            ("int(args.s) == 1", "\"x\" is no such number"),
            ("args.l.exists_one(x, x.y)", "has no members"),
        ],
    );
    let error = run("args[args.s] == 1", &format!("{{\"s\": \"{}\"}}", "é".repeat(10_000))).unwrap_err();
    assert!(error.len() < 300, "{}", error.len());
}

#[test]
fn one_side_decides_alone() {
    check(
        r#"{"l": [1, "x", 3]}"#,
        &[
            ("args.missing > 1 || true", true),
            ("true || args.missing > 1", true),
            ("args.missing > 1 && false", false),
            ("false && args.missing > 1", false),
            ("args.l.exists(i, i > 2)", true),
            ("args.l.all(i, i < 3)", false),
            ("true ? true : args.missing", true),
        ],
    );
    check_fails(
        r#"{"l": [1, "x", 3]}"#,
        &[
            ("args.missing > 1 || false", "no member"),
            ("args.missing > 1 && true", "no member"),
            ("args.l.exists(i, i > 3)", "there is no string > int"),
            ("args.l.all(i, i > 0)", "there is no string > int"),
            ("args.l.filter(i, i > 0) == []", "there is no string > int"),
        ],
    );
}

#[test]
fn json_that_cannot_be_read_is_an_error_only_where_it_is_used() {
    check("{", &[("size == 0", true), ("true || args.a", true)]);
    check_fails(
        "{",
        &[("args.a", "`args` cannot be read"), ("args.a == 1 || args.b == 2", "`args` cannot be read")],
    );
    check_fails("{\"a\": 1e400}", &[("args.a > 1", "number out of range")]);
    check_fails("{\"a\": 1, \"a\": 2}", &[("args.a > 1", "member \"a\" is there twice")]);
}

#[test]
fn times_have_zones() {
    let now = "2027-07-01T22:30:15.5Z".parse().unwrap();
    let subject =
        Subject { now, took: Duration::from_millis(1500), phase: Phase::Response, ..Subject::default() };
    for text in [
        "now.getHours() == 22 && now.getHours('Europe/Berlin') == 0 && now.getHours('+01:30') == 0",
        "now.getDate() == 1 && now.getDate('Asia/Tokyo') == 2 && now.getDayOfMonth() == 0",
        "now.getMonth() == 6 && now.getFullYear() == 2027 && now.getDayOfYear() == 181",
        "now.getDayOfWeek() == 4 && now.getDayOfWeek('Europe/Berlin') == 5",
        "now.getMinutes() == 30 && now.getMinutes('-03:30') == 0 && now.getSeconds() == 15",
        "now.getMilliseconds() == 500",
        "now > timestamp('2027-07-01T00:00:00Z') && now - timestamp('2027-07-01T22:30:15Z') == duration('500ms')",
        "now + duration('1h') > now && now - duration('1h') < now && duration('1h') + now > now",
        "took > duration('1s') && took.getSeconds() == 1 && took.getMilliseconds() == 1500",
        "duration('90m').getHours() == 1 && duration('1.5h') == duration('90m') && duration('-1s') < took",
        "string(now) == '2027-07-01T22:30:15.5Z' && string(took) == '1.5s' && int(timestamp(7)) == 7",
    ] {
        let condition = Condition::compile(text, Phase::Response).unwrap();
        assert_eq!(condition.holds(&Inputs::new(&subject)), Ok(true), "{text}");
    }
    check_fails("{\"s\": \"soon\"}", &[("timestamp(args.s) > now", "\"soon\" is no timestamp")]);
}

#[test]
fn every_variable_says_what_the_subject_says() {
    let labels = BTreeMap::from([("tier".to_owned(), "gold".to_owned())]);
    let claims = json!({"sub": "ada", "groups": ["ops"]}).as_object().unwrap().clone();
    let user = User { verified: true, claims };
    let subject = Subject {
        agent: Sender {
            name: "a/b",
            pid: 7,
            uid: 1000,
            exe: Some("/bin/x"),
            labels: Some(&labels),
            ..Sender::default()
        },
        user: Some(&user),
        server: "Bank.Internal:8080",
        address: Some("[::ffff:10.0.0.1]:81".parse().unwrap()),
        session: Session::of_id(b"abc"),
        workflow: Some("w"),
        protocol: "mcp",
        revision: Some("2025-11-25"),
        method: Some("tools/call"),
        name: Some("pay"),
        params: Some("{\"name\": \"pay\"}"),
        arguments: Some("{\"x\": 1}"),
        annotations: Annotations { known: true, read_only: true, ..Annotations::default() },
        recent: Recent { calls: 3, denials: 1 },
        size: 99,
        from: Party::Server,
        ..Subject::default()
    };
    for text in [
        "agent.name == 'a/b' && agent.pid == 7 && agent.uid == 1000 && agent.exe == '/bin/x'",
        "agent.labels.tier == 'gold' && agent.labels['tier'].startsWith('go') && !('x' in agent.labels)",
        "user.verified && user.claims.sub == 'ada' && 'ops' in user.claims.groups",
        "server.name == 'Bank.Internal:8080' && server.host == 'bank.internal'",
        "server.port == 81 && server.address == '10.0.0.1'",
        "session == 's-ba7816bf8f01' && workflow == 'w' && protocol == 'mcp' && revision == '2025-11-25'",
        "method == 'tools/call' && tool == 'pay' && from == 'server' && phase == 'request' && size == 99",
        "annotations.known && annotations.readOnlyHint && annotations.destructiveHint",
        "!annotations.idempotentHint && annotations.openWorldHint",
        "recent.calls == 3 && recent.denials == 1 && args.x == 1 && params.name == 'pay'",
        "now == timestamp(0)",
    ] {
        assert_eq!(compile(text).holds(&Inputs::new(&subject)), Ok(true), "{text}");
    }
    let nothing = Subject { phase: Phase::Response, ..Subject::default() };
    for text in [
        "agent.exe == '' && agent.labels == {} && !user.verified && user.claims == {} && server.port == 0",
        "server.address == '' && session == '' && workflow == '' && revision == '' && method == '' && tool == ''",
        "result == null && error == null && !is_error && took == duration('0s') && phase == 'response'",
    ] {
        let condition = Condition::compile(text, Phase::Response).unwrap();
        assert_eq!(condition.holds(&Inputs::new(&nothing)), Ok(true), "{text}");
    }
    check("{}", &[("args == {} && params == {}", true)]);
    let answer =
        Subject { phase: Phase::Response, result: Some("[1]"), error: Some("{}"), ..Subject::default() };
    let condition = Condition::compile("result == [1] && error == {}", Phase::Response).unwrap();
    assert_eq!(condition.holds(&Inputs::new(&answer)), Ok(true));
    let entry = Subject { phase: Phase::List, item: Some("{\"name\": \"x\"}"), ..Subject::default() };
    let condition = Condition::compile("item.name == 'x'", Phase::List).unwrap();
    assert_eq!(condition.holds(&Inputs::new(&entry)), Ok(true));
}

#[test]
fn a_condition_knows_what_it_uses() {
    let condition = compile("agent.labels['tier'] == 'x' && args.a.exists(user, user == tool)");
    let used = |name| condition.uses(name);
    assert!(used("agent") && used("args") && used("tool"));
    assert!(!used("user") && !used("agent.labels") && !used("recent"));
    assert_eq!(condition.constant(), None);
    assert_eq!(compile("1 < 2").constant(), Some(true));
    assert_eq!(compile("[1].exists(x, x > 1)").constant(), Some(false));
    // Which members there are is known of what is ours.
    assert_eq!(compile("has(agent.name)").constant(), None);
}

#[test]
fn every_documented_variable_compiles_in_its_phases_and_in_no_other() {
    let readme = include_str!("../../../../../README.md");
    let (_, readme) = readme.split_once("### Conditions").unwrap();
    let readme = readme.split("\n### ").next().unwrap();
    for variable in variables() {
        let Variable { name, kind, doc, .. } = variable;
        assert!(!variable.phases.is_empty() && !doc.is_empty(), "{name}");
        // Of no other type than it says.
        assert!(kind == &"dyn" || variable.typed() != kind::Kind::Dyn, "{name}: {kind}");
        assert!(kind == &"dyn" || variable.typed().to_string() == *kind, "{name}: {kind}");
        for phase in [Phase::Request, Phase::Response, Phase::List] {
            let compiled = Condition::compile(&format!("{name} == {name}"), phase);
            assert_eq!(compiled.is_ok(), variable.phases.contains(&phase), "{name} {phase:?}");
            let Ok(condition) = compiled else { continue };
            assert!(condition.uses(variable.root()) && condition.constant().is_none());
            let subject = Subject { phase, ..Subject::default() };
            assert_eq!(condition.holds(&Inputs::new(&subject)), Ok(true), "{name}");
        }
        let written = match name.split_once('.') {
            None => readme.contains(&format!("`{name}`")),
            Some((root, field)) => readme.split_once(&format!("`{root}.{{")).is_some_and(|(_, fields)| {
                fields.split('}').next().is_some_and(|fields| fields.split(", ").any(|known| known == field))
            }),
        };
        assert!(written, "README lacks {name}");
    }
}

#[test]
fn conditions_go_between_threads() {
    fn both<T: Send + Sync>() {}
    both::<Condition>();
    both::<Inputs<'_>>();
}
