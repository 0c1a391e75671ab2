//! Header values of MCP 2026-07-28: as they are, or base64 between `=?base64?` and `?=`.

use std::borrow::Cow;

/// The value that a header stands for; `None` if its base64 is bad. Markers in another case, or only one of them, are
/// part of a literal value (SEP-2243).
pub fn decode(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    match value.strip_prefix(b"=?base64?").and_then(|rest| rest.strip_suffix(b"?=")) {
        Some(coded) => base64(coded).map(Cow::Owned),
        None => Some(Cow::Borrowed(value)),
    }
}

/// The header value that stands for `text`: coded where it could not stand there as it is, or would be taken for coded.
pub fn encode(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && text.trim() == text;
    if is_plain && !text.is_empty() && !text.starts_with("=?") {
        return Cow::Borrowed(text);
    }
    let mut coded = String::from("=?base64?");
    for three in text.as_bytes().chunks(3) {
        let bits =
            three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) & 63;
            coded.push(if place > three.len() { '=' } else { char::from(DIGITS[digit as usize]) });
        }
    }
    coded.push_str("?=");
    Cow::Owned(coded)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Standard base64 with padding (RFC 4648, section 4); bits that are left over must be zero, so that there is one
/// spelling only.
fn base64(coded: &[u8]) -> Option<Vec<u8>> {
    if !coded.len().is_multiple_of(4) {
        return None;
    }
    let digits = coded.strip_suffix(b"==").or(coded.strip_suffix(b"=")).unwrap_or(coded);
    let mut decoded = Vec::with_capacity(coded.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0_u32);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            let [.., byte] = (bits >> count).to_be_bytes();
            decoded.push(byte);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0 && count < 6).then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(value: &str, expect: Option<&str>) {
        assert_eq!(decode(value.as_bytes()).as_deref(), expect.map(str::as_bytes), "{value}");
    }

    #[test]
    fn sentinel_values_are_decoded() {
        check("=?base64?WsO8cmljaA==?=", Some("Zürich"));
        check("=?base64?YWJj?=", Some("abc"));
        check("=?base64?YWI=?=", Some("ab"));
        check("=?base64??=", Some(""));
        check("plain", Some("plain"));
        check("", Some(""));
        check("=?BASE64?YWJj?=", Some("=?BASE64?YWJj?="));
        check("=?base64?YWJj", Some("=?base64?YWJj"));
        check("YWJj?=", Some("YWJj?="));
    }

    #[test]
    fn bad_base64_has_no_value() {
        check("=?base64?YWJ?=", None);
        check("=?base64?YW-j?=", None);
        check("=?base64?YWK=?=", None);
        check("=?base64?Y===?=", None);
        check("=?base64?YW=j?=", None);
        check("=?base64?====?=", None);
    }

    #[test]
    fn what_is_encoded_decodes_to_itself() {
        for text in [
            "plain-1",
            "two words",
            "",
            " a",
            "a\r\nX-Evil: b",
            "\u{fc}",
            "=?base64?YQ==?=",
            "ab",
            "abc",
            "abcd\n",
        ] {
            let value = encode(text);
            assert!(value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{value}");
            assert_eq!(decode(value.as_bytes()).as_deref(), Some(text.as_bytes()), "{value}");
        }
        assert_eq!(encode("task 7"), "task 7");
        assert_eq!(encode("\u{fc}"), "=?base64?w7w=?=");
    }
}
