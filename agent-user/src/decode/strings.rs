//! JSON strings: where plain text ends in them, and what their escapes say (RFC 8259, section 7).

use std::borrow::Cow;

/// What a JSON value says, if it is a string. `raw` is the text of one valid value.
pub(super) fn string(raw: &str) -> Option<Cow<'_, str>> {
    Some(unescape(raw.strip_prefix('"')?.strip_suffix('"')?))
}

/// Undoes the escapes of a string without its quotes.
pub(crate) fn unescape(raw: &str) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'\\', raw.as_bytes()) else { return Cow::Borrowed(raw) };
    let (plain, mut rest) = raw.split_at(first);
    let mut text = String::with_capacity(raw.len());
    text.push_str(plain);
    while !rest.is_empty() {
        let (escape, len) = unescape_one(rest.as_bytes()).unwrap_or((None, rest.len()));
        text.push(escape.unwrap_or(char::REPLACEMENT_CHARACTER));
        rest = rest.get(len..).unwrap_or_default();
        let (plain, escaped) = rest.split_at(memchr::memchr(b'\\', rest.as_bytes()).unwrap_or(rest.len()));
        text.push_str(plain);
        rest = escaped;
    }
    Cow::Owned(text)
}

/// Reads the escape at the start of `bytes`: its character (`None` for half a surrogate pair) and its length.
pub(crate) fn unescape_one(bytes: &[u8]) -> Option<(Option<char>, usize)> {
    let plain = match bytes.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\x08',
        b'f' => '\x0c',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let high = hex(bytes.get(2..6)?)?;
            if !(0xd800..0xdc00).contains(&high) {
                return Some((char::from_u32(high), 6));
            }
            let low =
                bytes.get(6..12).filter(|next| next.starts_with(b"\\u")).and_then(|next| hex(next.get(2..)?));
            return Some(match low {
                Some(low @ 0xdc00..0xe000) => {
                    (char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)), 12)
                }
                _ => (None, 6),
            });
        }
        _ => return None,
    };
    Some((Some(plain), 2))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
}

/// The next byte from `at` on that ends a run of plain string text: a quote, a backslash or a control character.
pub(super) fn special(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        // The high bit of each byte that is below 0x20, a quote, or a backslash; exact up to the first one set.
        let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word;
        let found = below(word, 0x20) | below(word ^ (ONES * 0x22), 1) | below(word ^ (ONES * 0x5c), 1);
        let found = found & (ONES * 0x80);
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    let plain = rest.iter().position(|byte| matches!(byte, 0..0x20 | b'"' | b'\\'));
    at + plain.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_unescaped() {
        let check = |raw: &str, expect: Option<&str>| assert_eq!(string(raw).as_deref(), expect, "{raw}");
        check(r#""tools\u002fcall""#, Some("tools/call"));
        check(r#""plain""#, Some("plain"));
        check(r#""\ud83d\ude00 a\"b""#, Some("\u{1f600} a\"b"));
        check(r#""\ud83d""#, Some("\u{fffd}"));
        check("12", None);
    }
}
