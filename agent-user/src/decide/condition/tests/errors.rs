//! What is wrong with an expression, and where.

use super::*;

#[track_caller]
fn refused(phase: Phase, table: &[(&str, &str)]) {
    for (text, error) in table {
        match Condition::compile(text, phase) {
            Ok(_) => panic!("{text} was taken"),
            Err(got) => assert!(got.contains(error), "{text}: {got}"),
        }
    }
}

#[test]
fn unknown_names_come_with_a_hint() {
    refused(
        Phase::Request,
        &[
            ("agnet.name == 'x'", "1:1: unknown variable `agnet` (did you mean `agent`?)"),
            ("agent.nmae == 'x'", "1:6: `agent` has no field `nmae` (did you mean `name`?)"),
            ("has(agent.nmae)", "`agent` has no field `nmae`"),
            ("true &&\n  arsg.x == 1", "2:3: unknown variable `arsg` (did you mean `args`?)"),
            ("foo", "unknown variable `foo` (there is agent, user, server, session, workflow,"),
            ("args.l.exists(item_, itme_ > 1)", "unknown variable `itme_` (did you mean `item_`?)"),
            ("agent == agent", "`agent` is no value of its own; there is agent.name, agent.pid"),
            ("[agent].size() == 1", "`agent` is no value of its own"),
            ("agent['name'] == 'x'", "`agent` is no value of its own"),
            ("tool.startWith('x')", "1:15: unknown function `startWith` (did you mean `startsWith`?)"),
            ("foo(1)", "unknown function `foo` (there is size, contains"),
            ("'é' == 'é' && foo", "1:15: unknown variable `foo`"),
        ],
    );
}

#[test]
fn variables_of_another_phase_are_named() {
    let request = "and this rule is of phase request";
    refused(
        Phase::Request,
        &[("result == null", "`result` is known in phase response, "), ("took > now", request)],
    );
    refused(
        Phase::Response,
        &[("args.a == 1", "`args` is known in phase request, and this rule is of phase response")],
    );
    refused(
        Phase::List,
        &[("args.a == 1", "`args` is known in phase request"), ("is_error", "phase response")],
    );
    refused(Phase::Request, &[("item.name == 'x'", "`item` is known in phase list")]);
}

#[test]
fn types_that_never_fit_are_errors() {
    refused(
        Phase::Request,
        &[
            ("\"a\" + 1 == 'a1'", "1:5: there is no string + int"),
            ("agent.uid == \"x\"", "there is no int == string"),
            ("size && true", "1:1: a bool is needed here, and this is of type int"),
            ("!size", "a bool is needed here"),
            ("agent.uid", "1:6: a condition is true or false, and this is of type int"),
            ("'x'", "is of type string"),
            ("null", "is of type null"),
            ("args.l.map(x, x)", "is of type list(dyn)"),
            ("size > '1'", "there is no int > string"),
            ("size > now", "there is no int > timestamp"),
            ("[1] < [2]", "there is no list(int) < list(int)"),
            ("null < null", "there is no null < null"),
            ("tool in agent.name", "there is no string in string"),
            ("1 in agent.labels", "there is no int in map(string, string)"),
            ("tool in [1, 2]", "there is no string in list(int)"),
            ("size + 1.5 > 2.0", "there is no int + double; convert one with int(), uint() or double()"),
            ("-tool == 'x'", "there is no `-` of string"),
            ("tool - tool == ''", "there is no string - string"),
            ("1.5 % 1.0 == 0.5", "there is no double % double"),
            ("tool.name == 'x'", "a value of type string has no member `name`"),
            ("has(size.x)", "a value of type int has no member `x`"),
            ("agent.labels.a.b == 'x'", "a value of type string has no member `b`"),
            ("agent.labels[1] == 'x'", "there is no map(string, string)[int]"),
            ("[1]['a'] == 1", "there is no list(int)['a']"),
            ("args[true] == 1", "there is no dyn[bool]"),
            ("tool[0] == 'x'", "there is no string[int]"),
            ("tool.all(c, true)", "a list or a map is needed here, and this is of type string"),
            ("args.l.all(x, 1)", "a bool is needed here"),
            ("agent.labels == [1]", "there is no map(string, string) == list(int)"),
            ("(true ? 1 : 'a') == 1", "`? :` gives int or string"),
            ("(size ? 1 : 2) == 1", "a bool is needed here"),
            ("{1: 2} == {}", "names of members are strings, and this is of type int"),
            ("b'x' == b'x'", "nothing here is of type bytes"),
            ("Foo{a: 1} == 1", "messages cannot be made here"),
            ("tool == null", "there is no string == null"),
        ]
        .map(|(text, error)| (text, error.split("['").next().unwrap())),
    );
}

#[test]
fn calls_are_checked() {
    refused(
        Phase::Request,
        &[
            ("tool.contains(1)", "no string.contains(int); there is string.contains(string)"),
            ("tool.contains()", "no string.contains(); there is string.contains(string)"),
            ("tool.contains('a', 'b')", "no string.contains(string, string)"),
            ("contains(tool, 'a')", "no contains(string, string); there is string.contains(string)"),
            ("tool.int() == 1", "no string.int(); there is int(int), int(uint), int(double), int(string)"),
            ("size(1) == 1", "no size(int); there is"),
            ("int(true) == 1", "no int(bool)"),
            ("now.getHours(1) == 1", "no timestamp.getHours(int)"),
            ("tool.matches('(')", "1:14: bad pattern"),
            ("tool.matches('a{1000}{1000}')", "bad pattern"),
            ("tool.matches(args.pattern)", "a pattern must be written here, not computed"),
            ("now.getHours('Europe/Berlni') == 1", "1:14: unknown time zone \"Europe/Berlni\""),
            ("now.getHours(tool) == 1", "a time zone must be written here"),
            ("now > timestamp('soon')", "1:16: \"soon\" is no timestamp"),
            ("now - now > duration('1 parsec')", "is no duration"),
            ("args.l.all(x, x, x)", "1:11: write `all` as list.all(x, x > 1)"),
            (
                "args.l.map(x) == []",
                "write `map` as list.map(x, x.name), or list.map(x, x.price > 1, x.name)",
            ),
            ("args.l.foo(x, x)", "unknown variable `x`"),
            ("has(args)", "has()"),
            ("has(args.a, args.b)", "write `has` as has(args.a)"),
            ("has(args['a'])", "has()"),
            ("args.?a == 1", "1:5: unsupported syntax"),
        ],
    );
}

#[test]
fn syntax_errors_have_a_place() {
    refused(
        Phase::Request,
        &[
            ("", "an expression is missing"),
            (" \n", "an expression is missing"),
            ("args.a >", "1:"),
            ("true &&\n&& false", "2:1: "),
            ("args.a = 1", "1:8: "),
            ("\"abc", "1:1: "),
            ("1 > 2)", "1:6: "),
            ("args.a > 99999999999999999999", "1:10: "),
            ("args.`a` > 1", "1:"),
            ("// nothing", "1:"),
            ("#", "1:1"),
        ],
    );
}

#[test]
fn what_can_have_no_value_is_an_error_at_once() {
    refused(
        Phase::Request,
        &[
            ("1 / 0 == 1", "1:3: division by zero"),
            ("[1][1] == 1", "1:4: no such element of a list of 1"),
            ("int('x') == 1", "1:4: \"x\" is no such number"),
            ("{'a': 1, 'a': 2} == {}", "member \"a\" is there twice"),
            ("dyn(1)", "a bool is needed here, and this is of type int"),
        ],
    );
}
