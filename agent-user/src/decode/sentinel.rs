//! Header values of MCP 2026-07-28: as they are, or base64 between `=?base64?` and `?=`.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The value that a header stands for; `None` if its base64 is bad. Markers in another case, or only one of them, are
/// part of a literal value (SEP-2243).
pub fn decode(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    match value.strip_prefix(OPEN).and_then(|rest| rest.strip_suffix(CLOSE)) {
        // One spelling only: with padding, and no bits left over (RFC 4648, section 4).
        Some(coded) => STANDARD.decode(coded).ok().map(Cow::Owned),
        None => Some(Cow::Borrowed(value)),
    }
}

/// Whether a value is almost a coded one: some readers take it for that, others for what it is, or for nothing.
pub fn is_broken(value: &[u8]) -> bool {
    let Some((open, rest)) = value.split_at_checked(OPEN.len()) else { return false };
    open.eq_ignore_ascii_case(OPEN)
        && (open != OPEN
            || !rest.ends_with(CLOSE)
            || decode(value).is_none_or(|content| std::str::from_utf8(&content).is_err()))
}

/// The header value that stands for `text`: coded where it could not stand there as it is, or would be taken for coded.
pub fn encode(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && text.trim() == text;
    if is_plain && !text.is_empty() && !text.starts_with("=?") {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("=?base64?{}?=", STANDARD.encode(text)))
}

const OPEN: &[u8] = b"=?base64?";
const CLOSE: &[u8] = b"?=";

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
    fn what_is_almost_coded_is_broken() {
        for broken in [
            "=?base64?YWJ?=",
            "=?BASE64?YWJj?=",
            "=?Base64?YWJj",
            "=?base64?YWJj",
            "=?base64?=",
            "=?base64?/w==?=",
        ] {
            assert!(is_broken(broken.as_bytes()), "{broken}");
        }
        for whole in ["", "=?", "really?=", "=?base64?YWJj?=", "=?base64??=", "a =?BASE64?YWJj?="] {
            assert!(!is_broken(whole.as_bytes()), "{whole}");
        }
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
