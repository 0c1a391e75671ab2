//! Random expressions on random JSON: nothing panics, and what has a value has the one that the interpreter of the
//! crate gives. `PROPTEST_CASES=10000` tries more.

use std::collections::HashMap;

use cel::objects::Key;
use cel::{Context, Value as Theirs};
use proptest::prelude::*;
use serde_json::Value as Json;

use super::*;

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Json::from),
        (-3i64..4).prop_map(Json::from),
        prop_oneof![Just(0.5), Just(1.0), Just(-2.5), Just(1e30)].prop_map(Json::from),
        Just(json!(u64::MAX)),
        "[ab]{0,2}".prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::hash_map("[abc]", inner, 0..4)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

/// Something of any type; `x` and `y` are those of macros around.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => prop::sample::select(vec![
            "args.a", "args.b", "args.c", "args['a']", "args.a[0]", "args.b.a", "x", "y", "x.a", "y[0]", "args",
        ]),
        2 => prop::sample::select(vec![
            "0", "1", "2u", "-1", "0.5", "1.0", "true", "null", "'a'", "''", "dyn([])", "dyn({})", "dyn([1, 'a'])",
            "dyn({'a': 1})", "-9223372036854775808", "18446744073709551615u", "tool",
        ]),
    ];
    leaf.prop_map(str::to_owned).prop_recursive(2, 8, 2, |inner| {
        let pair = (inner.clone(), inner.clone());
        let sign = prop::sample::select(vec!["-", "*", "/", "%"]);
        let function = prop::sample::select(vec!["size", "-", "int", "string", "double", "uint", "bool"]);
        // Theirs adds the names of a map to a list, which the language does not know.
        let sum = prop::sample::select(vec!["int(dyn(L)) + dyn(R)", "string(dyn(L)) + dyn(R)", "([L] + [R])"]);
        prop_oneof![
            3 => (pair.clone(), sign).prop_map(|((left, right), sign)| format!("(dyn({left}) {sign} dyn({right}))")),
            2 => (function, inner.clone()).prop_map(|(name, of)| format!("{name}(dyn({of}))")),
            2 => (pair.clone(), sum).prop_map(|((left, right), sum)| sum.replace('L', &left).replace('R', &right)),
            1 => pair.clone().prop_map(|(of, index)| format!("dyn({of})[dyn({index})]")),
            1 => pair.prop_map(|(left, right)| format!("[{left}, {right}]")),
            1 => inner.clone().prop_map(|of| format!("{{'a': {of}}}")),
            1 => inner.clone().prop_map(|of| format!("args.a.map(x, {of})")),
            1 => inner.prop_map(|of| format!("args.a.filter(x, x == {of})")),
        ]
    })
}

fn expression() -> impl Strategy<Value = String> {
    let pair = || (value(), value());
    let sign = prop::sample::select(vec!["==", "!=", "<", "<=", ">", ">=", "in"]);
    let search = prop::sample::select(vec!["contains", "startsWith", "endsWith"]);
    let leaf = prop_oneof![
        6 => (pair(), sign).prop_map(|((left, right), sign)| format!("dyn({left}) {sign} dyn({right})")),
        1 => (search, pair()).prop_map(|(name, (of, part))| format!("dyn({of}).{name}(dyn({part}))")),
        1 => prop::sample::select(vec!["has(args.b.a)", "has(args.d)", "has(x.a)", "has(args.a.b)", "x", "args.c"])
            .prop_map(str::to_owned),
    ];
    let body = leaf.prop_recursive(4, 24, 2, |inner| {
        let sign = prop::sample::select(vec!["&&", "||"]);
        let name = prop::sample::select(vec!["x", "y"]);
        let macro_ = prop::sample::select(vec!["all", "exists", "exists_one"]);
        let of = prop::sample::select(vec!["args.a", "args.a", "args.b", "args", "x", "args.a.map(y, y)"]);
        prop_oneof![
            3 => (inner.clone(), sign, inner.clone()).prop_map(|(left, sign, right)| format!("({left} {sign} {right})")),
            3 => (of, macro_, name, inner.clone()).prop_map(|(of, macro_, name, body)| format!("{of}.{macro_}({name}, {body})")),
            1 => inner.clone().prop_map(|of| format!("!({of})")),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(condition, then, other)| format!("({condition} ? {then} : {other})")),
        ]
    });
    body.prop_map(|body| format!("dyn([{{'a': 1}}]).all(x, dyn([[2]]).all(y, {body}))"))
}

fn theirs(json: &Json) -> Theirs {
    match json {
        Json::Null => Theirs::Null,
        Json::Bool(value) => Theirs::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Theirs::Int(number),
            (_, Some(number)) => Theirs::UInt(number),
            _ => Theirs::Float(number.as_f64().unwrap()),
        },
        Json::String(text) => Theirs::from(text.as_str()),
        Json::Array(elements) => Theirs::from(elements.iter().map(theirs).collect::<Vec<_>>()),
        Json::Object(members) => {
            let members = members.iter().map(|(name, value)| (Key::from(name.as_str()), theirs(value)));
            Theirs::from(members.collect::<HashMap<_, _>>())
        }
    }
}

/// Their value, with `args` and a tool.
fn run_theirs(text: &str, args: &Json) -> Option<bool> {
    let run = || {
        let program = cel::Program::compile(text).unwrap();
        let mut context = Context::default();
        context.add_variable_from_value("args", theirs(args));
        context.add_variable_from_value("tool", "ab");
        match program.execute(&context) {
            Ok(Theirs::Bool(value)) => Ok(value),
            _ => Err(String::new()),
        }
    };
    with_large_stack(run).ok()
}

fn run_ours(condition: &Condition, args: &str) -> Result<bool, String> {
    let subject = Subject { arguments: Some(args), name: Some("ab"), ..Subject::default() };
    condition.holds(&Inputs::new(&subject))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_are_those_of_the_crate(text in expression(), a in prop::collection::vec(json(), 0..4), b in prop::collection::hash_map("[abc]", json(), 0..3), c in json()) {
        let args = json!({"a": a, "b": b, "c": c});
        if let Ok(condition) = Condition::compile(&text, Phase::Request) {
            let ours = run_ours(&condition, &args.to_string());
            prop_assert_eq!(ours.as_ref().ok().copied(), run_theirs(&text, &args), "{} on {}: {:?}", text, args, ours);
        }
    }

    #[test]
    fn nothing_panics(text in "(args|agent|now|x|a|1|0x1|1e9|'|\"|\\.|\\(|\\)|\\[|\\]|\\{|\\}|,|:|\\?|!|-|\\+|/|%|<|=|>|&&|\\|\\||in|has|all| |\n|é|\\\\|b'|r'|``|//){0,12}", args in "\\PC{0,20}") {
        if let Ok(condition) = Condition::compile(&text, Phase::Request) {
            let _ = run_ours(&condition, &args);
        }
    }

    #[test]
    fn any_text_is_taken_or_refused(text in "\\PC{0,40}") {
        let _ = Condition::compile(&text, Phase::Response);
    }
}
