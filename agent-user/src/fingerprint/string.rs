//! Strings in canonical form: whatever the escapes, one text for one string.

use std::cmp::Ordering;
use std::fmt::Write as _;

use crate::decode::unescape_one;

/// Appends a string with its quotes, with the escapes that RFC 8785, section 3.2.2.2, leaves: `\"`, `\\`, `\b`, `\f`, `\n`,
/// `\r`, `\t`, and `\u` with lower-case digits for other control characters, and for half a surrogate pair, which UTF-8
/// cannot write. `raw` is the text of a valid one without its quotes.
pub(super) fn push(raw: &str, out: &mut String) {
    out.push('"');
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        let (plain, escaped) = rest.split_at(at);
        out.push_str(plain);
        let (escape, len) = unescape_one(escaped.as_bytes()).unwrap_or((None, escaped.len()));
        let (escaped, behind) = escaped.split_at_checked(len).unwrap_or((escaped, ""));
        match escape {
            Some(letter) => push_letter(letter, out),
            None => out.push_str(&escaped.to_ascii_lowercase()),
        }
        rest = behind;
    }
    out.push_str(rest);
    out.push('"');
}

fn push_letter(letter: char, out: &mut String) {
    match letter {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        // Writing to a string cannot fail.
        '\0'..' ' => drop(write!(out, "\\u{:04x}", u32::from(letter))),
        _ => out.push(letter),
    }
}

/// A text as a canonical string, with its quotes.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    text.chars().for_each(|letter| push_letter(letter, &mut out));
    out.push('"');
    out
}

/// The order of two strings in canonical form by the UTF-16 code units of what they say (RFC 8785, section 3.2.3).
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (inner(a), inner(b));
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let (common, rest) = a.as_bytes().split_at_checked(same).unwrap_or_default();
    let other = b.as_bytes().get(same..).unwrap_or_default();
    let is_plain = |rest: &[u8]| rest.first().is_none_or(|byte| byte.is_ascii() && *byte != b'\\');
    if is_plain(rest) && is_plain(other) && memchr::memchr(b'\\', common).is_none() {
        return rest.first().cmp(&other.first());
    }
    units(a).cmp(units(b))
}

/// What is between the quotes of a string; of anything else nothing.
pub(super) fn inner(value: &str) -> &str {
    value.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or_default()
}

fn units(text: &str) -> impl Iterator<Item = u16> {
    let mut rest = text;
    let mut low = None;
    std::iter::from_fn(move || {
        if let Some(unit) = low.take() {
            return Some(unit);
        }
        let first = rest.chars().next()?;
        let (letter, len) = match first {
            '\\' => unescape_one(rest.as_bytes())?,
            _ => (Some(first), first.len_utf8()),
        };
        let (one, behind) = rest.split_at_checked(len)?;
        rest = behind;
        match letter {
            Some(letter) => {
                let mut pair = [0; 2];
                let pair = letter.encode_utf16(&mut pair);
                low = pair.get(1).copied();
                pair.first().copied()
            }
            // Half a pair.
            None => u16::from_str_radix(one.get(2..)?, 16).ok(),
        }
    })
}

/// Whether a string in canonical form has half a surrogate pair.
pub(super) fn is_torn(canonical: &str) -> bool {
    let mut rest = canonical;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        let Some((Some(_), len)) = rest.get(at..).and_then(|rest| unescape_one(rest.as_bytes())) else {
            return true;
        };
        rest = rest.get(at + len..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(raw: &str) -> String {
        let mut out = String::new();
        push(raw, &mut out);
        out
    }

    #[test]
    fn a_string_has_one_form() {
        let check = |raw, expect| assert_eq!(canonical(raw), expect, "{raw}");
        check("a", r#""a""#);
        check(r"\u0061\/\u002f", r#""a//""#);
        check(r#"\u0022\"\u005C\\"#, r#""\"\"\\\\""#);
        check(r"\u0008\u000C\u000a\u000d\u0009\u001F\u007f", "\"\\b\\f\\n\\r\\t\\u001f\u{7f}\"");
        check(r"\uD83D\uDE00", "\"\u{1f600}\"");
        check("\u{2028}\u{fffd}", "\"\u{2028}\u{fffd}\"");
        // Half a pair stays itself.
        check(r"\uD83D", r#""\ud83d""#);
        check(r"\uDE00\uD83D", r#""\ude00\ud83d""#);
        check(r"\\ud83d", r#""\\ud83d""#);
        // No valid string.
        check(r"\", r#""\""#);
        check(r"a\x\u00zz", r#""a\x\u00zz""#);
        assert_eq!(quote("a\"\\\n\u{1}\u{e9}"), "\"a\\\"\\\\\\n\\u0001\u{e9}\"");
    }

    #[test]
    fn names_are_in_the_order_of_their_utf_16() {
        // RFC 8785, section 3.2.3, and the one pair that UTF-8 orders the other way round.
        let sorted =
            [r"\r", "1", "\u{80}", "\u{f6}", "\u{20ac}", r"\ud83d", "\u{1f600}", r"\ud83e", "\u{fb33}"];
        for (index, a) in sorted.iter().enumerate() {
            for (other, b) in sorted.iter().enumerate() {
                let order = compare(&canonical(a), &canonical(b));
                assert_eq!(order, index.cmp(&other), "{a} {b}");
            }
        }
        assert_eq!(compare(r#""a""#, r#""a!""#), Ordering::Less);
        assert_eq!(compare(r#""a""#, "\"a\u{e9}\""), Ordering::Less);
    }

    #[test]
    fn half_a_pair_is_seen() {
        for (raw, expect) in [(r"\ud83d", true), (r"\\ud83d", false), (r"\ud83d\ude00\n", false)] {
            assert_eq!(is_torn(&canonical(raw)), expect, "{raw}");
        }
    }
}
