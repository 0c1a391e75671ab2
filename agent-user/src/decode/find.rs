//! Single members of a JSON object by names that only the configuration knows, so that the scan of a message cannot
//! note them as they go by.
//!
//! Works on text that [`jsonrpc`](super::jsonrpc) has found valid: it only looks where values end, builds nothing, and
//! is told nothing by text that is not valid after all.

use std::borrow::Cow;

use super::members::fold;
use super::strings::{special, string, unescape};

/// Decoders would differ on which member is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ambiguous;

/// The text of a member's value; `None` if the object, or whatever else the text is, has none or it is `null`.
///
/// A name that is the same but for case makes it [`Ambiguous`]: decoders that ignore case take it too.
pub fn member<'a>(object: &'a str, name: &str) -> Result<Option<&'a str>, Ambiguous> {
    let mut found = None;
    for (other, value) in members(object) {
        let other = unescape(other);
        if other.chars().map(fold).eq(name.chars().map(fold))
            && (other != name || found.replace(value).is_some())
        {
            return Err(Ambiguous);
        }
    }
    Ok(found.filter(|value| *value != "null"))
}

/// What a value says, if it is a string, or an integer that every decoder reads alike (RFC 7493, section 2.2).
pub fn text(value: &str) -> Option<Cow<'_, str>> {
    string(value).or_else(|| {
        let number: i64 = value.parse().ok()?;
        (number.unsigned_abs() < 1 << 53 && value != "-0").then_some(Cow::Borrowed(value))
    })
}

/// The values of an array's elements.
pub fn elements(array: &str) -> impl Iterator<Item = &str> {
    let bytes = array.as_bytes();
    let mut at = 0;
    let mut before = b'[';
    std::iter::from_fn(move || {
        let start = space(bytes, expect(bytes, at, before)?);
        before = b',';
        at = value_end(bytes, start);
        array.get(start..at).filter(|value| !value.is_empty())
    })
}

/// Names, still escaped, and values of an object's members.
pub fn members(object: &str) -> impl Iterator<Item = (&str, &str)> {
    let bytes = object.as_bytes();
    let mut at = 0;
    let mut before = b'{';
    std::iter::from_fn(move || {
        at = expect(bytes, at, before)?;
        before = b',';
        let name = expect(bytes, at, b'"')?;
        let name_end = string_end(bytes, name);
        let start = space(bytes, expect(bytes, name_end + 1, b':')?);
        at = value_end(bytes, start);
        Some((object.get(name..name_end)?, object.get(start..at)?))
    })
}

/// Behind `byte`, which stands at `at` or behind white space.
fn expect(bytes: &[u8], at: usize, byte: u8) -> Option<usize> {
    let at = space(bytes, at);
    (bytes.get(at) == Some(&byte)).then_some(at + 1)
}

fn space(bytes: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\n' | b'\r' | b'\t') = bytes.get(at) {
        at += 1;
    }
    at
}

/// The quote that ends a string whose text begins at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = special(bytes, at);
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            _ => return at.min(bytes.len()),
        }
    }
}

/// Where the value that begins at `at` ends.
fn value_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at + 1),
            b'{' | b'[' => depth += 1,
            // The end of the object around a bare word.
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => depth -= 1,
            b',' | b' ' | b'\n' | b'\r' | b'\t' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
        if depth == 0 && matches!(byte, b'"' | b'}' | b']') {
            return at;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: &str =
        "{ \"a\" : 1 ,\"b\":{\"a\":[2,\"}\",{}]},\"\\u0063\":\"x\\\"\",\"d\":null,\"e\":[ ] ,\n\"f\":true}";

    #[test]
    fn members_are_found_at_the_first_level() {
        let check = |name, expect| assert_eq!(member(OBJECT, name), Ok(expect), "{name}");
        check("a", Some("1"));
        check("b", Some("{\"a\":[2,\"}\",{}]}"));
        check("c", Some("\"x\\\"\""));
        check("d", None);
        check("e", Some("[ ]"));
        check("f", Some("true"));
        check("g", None);
        check("", None);
    }

    #[test]
    fn names_that_may_be_taken_for_each_other_are_ambiguous() {
        for object in [
            r#"{"k":1,"k":1}"#,
            r#"{"k":1,"K":2}"#,
            r#"{"K":2}"#,
            r#"{"\u006b":1,"k":1}"#,
            "{\"\u{212a}\":1}",
        ] {
            assert_eq!(member(object, "k"), Err(Ambiguous), "{object}");
        }
    }

    #[test]
    fn what_is_no_object_has_no_members() {
        for other in [
            "",
            "[\"a\",1]",
            "\"a\"",
            "1",
            "null",
            "{}",
            "{",
            "{\"a\"",
            "{\"a\":",
            "{\"a\\",
            "{a:1}",
            "{,\"a\":1}",
        ] {
            let found = member(other, "a");
            assert!(matches!(found, Ok(None | Some(""))), "{other}: {found:?}");
        }
    }

    #[test]
    fn elements_are_found_at_the_first_level() {
        let check =
            |array, expect: &[&str]| assert_eq!(elements(array).collect::<Vec<_>>(), expect, "{array}");
        check("[ {\"a\":[1,2]} , \"]\",3,[] ]", &["{\"a\":[1,2]}", "\"]\"", "3", "[]"]);
        for other in ["[]", "[ ]", "{}", "", "[", "null", "[,1]"] {
            check(other, &[]);
        }
    }

    #[test]
    fn strings_and_whole_numbers_are_texts() {
        let check = |value, expect: Option<&str>| assert_eq!(text(value).as_deref(), expect, "{value}");
        check(r#""a\u0062""#, Some("ab"));
        check("7", Some("7"));
        check("-7", Some("-7"));
        check("9007199254740991", Some("9007199254740991"));
        for other in ["9007199254740992", "1e3", "1.0", "-0", "true", "{}", "[7]", ""] {
            check(other, None);
        }
    }
}
