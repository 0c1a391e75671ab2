//! What holds for whatever text: the output is JSON that says the same but for what was taken out, a second time takes
//! out nothing, and no planted secret is left.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{PatternName, RedactFile, Redaction};

const ALL: [PatternName; 4] = [PatternName::Keys, PatternName::Tokens, PatternName::Cards, PatternName::Mail];

/// Of each: a secret, and what of it must not be left.
fn secrets() -> Vec<(String, String)> {
    let same = |secret: String| (secret.clone(), secret);
    vec![
        same("4111 1111 1111 1111".to_owned()),
        same("378282246310005".to_owned()),
        same("carol.o'neil@mail.example.org".to_owned()),
        same(format!("ghp_{}", "aB3".repeat(12))),
        same("AKIAIOSFODNN7EXAMPLE".to_owned()),
        same(format!("sk-proj-{}", "Zz9_".repeat(10))),
        same(format!("eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UifQ.{}", "x9_-".repeat(5))),
        same(format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----", "MIIEvQ+/".repeat(8))),
        ("postgres://bob:hunter2secret@db/x".to_owned(), "hunter2secret".to_owned()),
        ("DB_PASSWORD: \"hunter3secret\"".to_owned(), "hunter3secret".to_owned()),
        ("Authorization: Bearer abc123abc123abc123".to_owned(), "abc123abc123abc123".to_owned()),
    ]
}

/// Pieces that are much like secrets, or beside them change what they are.
fn crumb() -> impl Strategy<Value = String> {
    let fixed = prop::sample::select(vec![
        "@",
        ".",
        "-",
        " ",
        ":",
        "=",
        "\"",
        "'",
        "\\",
        "\\n",
        "\n",
        "/",
        "://",
        "[",
        "]",
        "[redacted",
        "[redacted:key]",
        "[redacted]",
        " (2)",
        "4111",
        "1111",
        "411111111111111",
        "1",
        "e",
        "0.",
        "eyJ",
        "eyJhbGciOiJub25lIn0",
        "AKIA",
        "IOSFODNN7EXAMPLE",
        "ghp_",
        "aB3aB3aB3aB3aB3aB3aB3aB3aB3aB3aB3aB3",
        "sk-",
        "Bearer ",
        "Basic ",
        "password",
        "api_key",
        "token",
        "secret1secret2",
        "-----BEGIN PRIVATE KEY-----",
        "-----END ",
        "-----",
        "org",
        "\u{e9}",
        "$",
    ]);
    let secret = prop::sample::select(secrets()).prop_map(|(secret, _)| secret);
    prop_oneof![4 => fixed.prop_map(str::to_owned), 1 => secret, 1 => "\\PC{0,4}"]
}

fn text() -> impl Strategy<Value = String> {
    let crumbs = prop::collection::vec(crumb(), 0..12).prop_map(|crumbs| crumbs.concat());
    let secret = prop::sample::select(secrets()).prop_map(|(secret, _)| secret);
    prop_oneof![2 => crumbs, 1 => secret, 1 => "\\PC{0,12}"]
}

fn json() -> impl Strategy<Value = Value> {
    let number =
        prop_oneof![any::<i64>().prop_map(Value::from), Just(Value::from(4_111_111_111_111_111_u64))];
    let leaf = prop_oneof![4 => text().prop_map(Value::from), 1 => number, 1 => Just(Value::Null), 1 => Just(Value::Bool(true))];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let members = prop::collection::vec((text(), inner.clone()), 0..5);
        let object = members.prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>()));
        prop_oneof![prop::collection::vec(inner, 0..5).prop_map(Value::Array), object]
    })
}

/// JSON text with white space, and with `escape` of eight characters escaped.
fn written(value: &Value, escape: u32) -> String {
    let string = |text: &str| {
        let mut written = String::new();
        for (at, char) in (0..).zip(text.chars()) {
            let mut units = [0; 2];
            if (at * 7 + u32::from(char)) % 8 < escape {
                let units = char.encode_utf16(&mut units).iter();
                written.extend(units.map(|unit| format!("\\u{unit:04x}")));
            } else {
                let quoted = Value::from(char.to_string()).to_string();
                written.push_str(&quoted[1..quoted.len() - 1]);
            }
        }
        format!("\"{written}\"")
    };
    match value {
        Value::String(text) => string(text),
        Value::Array(elements) => {
            let elements: Vec<String> = elements.iter().map(|element| written(element, escape)).collect();
            format!("[ {}]", elements.join(" ,"))
        }
        Value::Object(members) => {
            let member =
                |(name, value): (&String, _)| format!("{}: {}", string(name), written(value, escape));
            let members: Vec<String> = members.iter().map(member).collect();
            format!("{{{}\n}}", members.join(",\t"))
        }
        other => other.to_string(),
    }
}

fn redaction(fields: &[&str], patterns: &[PatternName]) -> Redaction {
    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
    Redaction::compile(&RedactFile { fields, patterns: patterns.to_vec() }).unwrap()
}

/// The two say the same, but where the second has a mark.
fn is_same(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Array(old), Value::Array(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_same(old, new))
        }
        // Renamed members are sorted anew.
        (Value::Object(old), Value::Object(new)) => {
            let mut kept = new.iter().filter(|(name, _)| !name.contains("[redacted"));
            let is_kept = |(name, new)| old.get(name).is_some_and(|old| is_same(old, new));
            old.len() == new.len() && kept.all(is_kept)
        }
        (Value::String(old), Value::String(new)) => is_same_text(old, new),
        (_, Value::String(new)) => new == "[redacted]" || new == "[redacted:card]",
        _ => old == new,
    }
}

/// What the second has between its marks is in the first, in this order; quotes and numbers beside marks may be new.
fn is_same_text(old: &str, new: &str) -> bool {
    let mut pieces = vec![new];
    for mark in ["[redacted]", "[redacted:key]", "[redacted:token]", "[redacted:card]", "[redacted:mail]"] {
        pieces = pieces.iter().flat_map(|piece| piece.split(mark)).collect();
    }
    let last = pieces.len() - 1;
    let mut rest = old;
    for (at, piece) in pieces.into_iter().enumerate() {
        let piece = if at == 0 { piece } else { piece.strip_prefix('"').unwrap_or(piece) };
        let piece = if at == last { piece } else { piece.strip_suffix('"').unwrap_or(piece) };
        let found = match at {
            0 => rest.strip_prefix(piece),
            _ if at == last && rest.ends_with(piece) => Some(""),
            _ => rest.split_once(piece).map(|(_, rest)| rest),
        };
        let unnumbered = piece.split_once("(").and_then(|(_, piece)| piece.split_once(')'));
        match (found, unnumbered) {
            (Some(found), _) => rest = found,
            (None, Some((_, piece))) if rest.contains(piece) => rest = rest.split_once(piece).unwrap().1,
            (None, _) => return false,
        }
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn output_says_the_same_and_holds_nothing_more(value in json(), escape in 0_u32..8) {
        let json = written(&value, escape);
        prop_assert_eq!(&serde_json::from_str::<Value>(&json).unwrap(), &value);
        for redaction in [redaction(&[], &ALL), redaction(&["/*/*", "/0", "/password/*/0"], &ALL[..2]), redaction(&["/*/1"], &[])] {
            let Some(redacted) = redaction.apply(&json) else { continue };
            let new: Value = serde_json::from_str(&redacted.text).unwrap();
            prop_assert!(is_same(&value, &new), "{} became {}", json, redacted.text);
            prop_assert!(is_same_text(&json, &redacted.text), "{} became {}", json, redacted.text);
            prop_assert!(redacted.found.total() > 0);
            let again = redaction.apply(&redacted.text);
            prop_assert!(again.is_none(), "{} became {} became {:?}", json, redacted.text, again);
        }
    }

    #[test]
    fn planted_secrets_are_gone((secret, bare) in prop::sample::select(secrets()), left in "\\PC{0,20}[ (<]", right in "[ )>,]\\PC{0,20}", escape in 0_u32..8) {
        let left = left.replace(['-', '@', '\\', '"', '\''], " ");
        let right = right.replace(['@'], " ");
        let text = format!("{left}{secret}{right}");
        let nested = Value::from(text.clone()).to_string();
        let value = serde_json::json!({ "a": [text], "b": nested, text.clone(): 1 });
        let redacted = redaction(&[], &ALL).apply(&written(&value, escape)).unwrap();
        let new: Value = serde_json::from_str(&redacted.text).unwrap();
        let plain = |text: &Value| text.as_str().unwrap().to_owned();
        let name = new.as_object().unwrap().keys().cloned().collect::<String>();
        let escaped = Value::from(bare.clone()).to_string();
        for (left, bare) in [(plain(&new["a"][0]), &*bare), (name, &*bare), (plain(&new["b"]), escaped.trim_matches('"'))] {
            prop_assert!(!left.contains(bare), "{} is left in {}", bare, left);
        }
    }

    #[test]
    fn texts_are_redacted_once(text in text(), more in text()) {
        let all = redaction(&[], &ALL);
        let text = format!("{text}{more}");
        if let Some(redacted) = all.apply_text(&text) {
            prop_assert_eq!(all.apply_text(&redacted), None, "{} became {}", text, redacted);
        }
    }
}
