//! What hostile JSON and long expressions may cost.

use super::*;

/// Without a bound each of them takes hours.
#[test]
fn nested_macros_over_long_lists_end() {
    let list = format!("{{\"l\": [{}0]}}", "0,".repeat(20_000));
    let text = format!("{{\"l\": [{}\"\"], \"t\": {:?}}}", "\"\",".repeat(5_000), "a".repeat(1 << 20));
    for (condition, args) in [
        ("args.l.all(a, args.l.all(b, args.l.all(c, a == b)))", &list),
        ("args.l.exists(a, args.l.exists(b, a > b)) || true", &list),
        ("args.l.map(a, args.l.map(b, args.l)).size() > 1", &list),
        ("args.l.all(a, args.l == args.l)", &list),
        ("args.l.map(a, args.l + args.l).size() > 1", &list),
        ("args.l.all(a, args.t.contains('b') || true)", &text),
        ("args.l.all(a, args.t.matches('b') || true)", &text),
        ("args.l.all(a, args.t == args.t + a)", &text),
        ("args.l.all(a, args.t <= args.t + 'b')", &text),
        ("args.l.map(a, args.t + 'b').size() > 1", &text),
        ("args.l.all(a, size(args.t) > 1)", &text),
        ("args.l.all(a, string(args.t) != '')", &text),
    ] {
        let error = run(condition, args).unwrap_err();
        assert!(error.contains("stopped after 1000000 steps"), "{condition}: {error}");
    }
    // What one pass over a long list or text costs is within the bound.
    check(&list, &[("args.l.all(a, a < 1 && a >= 0)", true), ("args.l == args.l", true)]);
    check(&text, &[("args.t.contains('b') || args.t.matches('(a*)*b')", false)]);
}

#[test]
fn json_of_too_many_values_or_levels_is_an_error() {
    let many = format!("{{\"l\": [{}0]}}", "0,".repeat(json::MAX_VALUES));
    check_fails(&many, &[("args.l[0] == 0", "more than 250000 values")]);
    let deep = format!("{{\"l\": {}{}}}", "[".repeat(100), "]".repeat(100));
    check(&deep, &[("args.l == args.l && args.l.size() == 1", true)]);
    let deeper = format!("{}{}", "[".repeat(4000), "]".repeat(4000));
    check_fails(&deeper, &[("args == []", "recursion limit")]);
}

#[test]
fn expressions_are_neither_long_nor_deep() {
    let wrap = |left: &str, inner: &str, right: &str, times: usize| {
        format!("{}{inner}{}", left.repeat(times), right.repeat(times))
    };
    for text in [
        wrap("(", "true", ")", 2000),
        wrap("[", "1", "]", 2000),
        wrap("", "1", "+1", 2000),
        wrap("", "args", ".a", 2000),
        wrap("", "args", "[0]", 1300),
        wrap("true?true:", "true", "", 400),
        wrap("args.all(x,", "true", ")", 300),
        wrap("size(", "args", ")", 600),
        wrap("{'a':", "1", "}", 600),
        wrap("'a", "", "'", 1),
        wrap("", "args", ".size()", 500),
        wrap("", "true", "==true", 600),
    ] {
        let error = Condition::compile(&text, Phase::Request).unwrap_err();
        assert!(error.len() < 200, "{error}");
    }
    let error = Condition::compile(&wrap("(", "true", ")", 2000), Phase::Request).unwrap_err();
    assert_eq!(error, "1:97: nested deeper than 64");
    // The parser drops pairs of them.
    assert_eq!(compile(&wrap("!", "true", "", 4000)).constant(), Some(true));
    let error = Condition::compile(&" ".repeat(5000), Phase::Request).unwrap_err();
    assert!(error.contains("give 4096 at most"), "{error}");
    // Chains of `&&` are balanced by the parser.
    let chain = vec!["args.a>1"; 300].join("&&");
    assert_eq!(run(&chain, "{\"a\": 2}"), Ok(true));
}

/// On the stack of this test, 2 MiB in a debug build; workers of the daemon have as much, and need less.
#[test]
fn the_deepest_expressions_that_are_taken_run() {
    let nested = |left: &str, inner: &str, right: &str| {
        let text = |times: usize| format!("{}{inner}{}", left.repeat(times), right.repeat(times));
        let deepest = (1..200).map(text).take_while(|text| Condition::compile(text, Phase::Request).is_ok());
        compile(&deepest.last().unwrap()).holds(&Inputs::new(&Subject::default())).ok();
    };
    nested("[1].all(x, ", "args.a == 1", ")");
    nested("!(args.a && ", "args.b", ")");
    nested("(args.a ? ", "true", ": args.b)");
    nested("", "args == args", ".a");
    nested("[args] == [", "args", "].map(x, x)");
}
