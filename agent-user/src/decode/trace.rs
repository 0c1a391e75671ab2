//! The W3C's two headers of distributed tracing, `traceparent` and `baggage`, in HTTP and in `_meta` (MCP 2026-07-28,
//! SEP-414). Both are read strictly: a value that only some readers would accept says nothing.

use std::borrow::Cow;

use super::head::is_token;

/// Bytes, and members, up to which a baggage must be passed on; of a larger one a platform may drop any member (W3C
/// Baggage, section 3.3.2).
const MAX_BAGGAGE: usize = 8192;
const MAX_MEMBERS: usize = 64;

/// The trace-id of a `traceparent` (W3C Trace Context, section 3.2). Versions after 00 may go on behind the flags.
pub fn trace_id(value: &[u8]) -> Option<&str> {
    let value = std::str::from_utf8(value).ok()?;
    let (known, more) = value.split_at_checked(55)?;
    let mut fields = known.split('-');
    let mut field =
        |len: usize| fields.next().filter(|field| field.len() == len && field.bytes().all(is_hex));
    let (version, trace, parent, _flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
    let is_known = if version == "00" { more.is_empty() } else { more.is_empty() || more.starts_with('-') };
    let is_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
    (is_known && version != "ff" && !is_zero(trace) && !is_zero(parent)).then_some(trace)
}

/// The value of one key of a `baggage`, percent-decoded (W3C Baggage, section 3.3). Several headers are one list.
///
/// Nothing if the key is there twice, or if anything in the baggage is malformed: some readers then skip a member,
/// some the whole.
pub fn baggage<'a>(lists: impl Iterator<Item = &'a [u8]>, key: &str) -> Option<Cow<'a, str>> {
    let (mut bytes, mut count) = (0, 0);
    let mut found = None;
    for list in lists {
        bytes += list.len() + 1;
        if bytes > MAX_BAGGAGE + 1 {
            return None;
        }
        for member in list.split(|byte| *byte == b',') {
            count += 1;
            let (name, value) = baggage_member(member)?;
            if count > MAX_MEMBERS || name == key.as_bytes() && found.replace(value).is_some() {
                return None;
            }
        }
    }
    percent_decode(found?)
}

/// Key and value of a list-member; its properties are checked and left out.
fn baggage_member(member: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = member.split(|byte| *byte == b';');
    let (key, value) = pair(parts.next()?);
    let value = value?;
    let properties_are_valid = parts.all(|property| {
        let (key, value) = pair(property);
        is_key(key) && value.is_none_or(is_value)
    });
    (is_key(key) && is_value(value) && properties_are_valid).then_some((key, value))
}

/// Splits at the first `=`.
fn pair(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut parts = text.splitn(2, |byte| *byte == b'=');
    (parts.next().unwrap_or_default().trim_ascii(), parts.next().map(<[u8]>::trim_ascii))
}

fn is_key(key: &[u8]) -> bool {
    !key.is_empty() && key.iter().all(|byte| is_token(*byte))
}

/// Only baggage-octets: visible ASCII without quote, comma, semicolon and backslash. The list is already split.
fn is_value(value: &[u8]) -> bool {
    value.iter().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(byte))
}

fn percent_decode(value: &[u8]) -> Option<Cow<'_, str>> {
    if memchr::memchr(b'%', value).is_none() {
        return std::str::from_utf8(value).ok().map(Cow::Borrowed);
    }
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value.iter();
    while let Some(byte) = rest.next() {
        decoded.push(if *byte == b'%' { digit(*rest.next()?)? << 4 | digit(*rest.next()?)? } else { *byte });
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// The specification allows small letters only.
fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn traceparent_is_read_strictly() {
        let check = |value: &str, expect: Option<&str>| {
            assert_eq!(trace_id(value.as_bytes()), expect, "{value}");
        };
        let good = format!("00-{TRACE}-00f067aa0ba902b7-01");
        check(&good, Some(TRACE));
        check(&format!("cc{}", &good[2..]), Some(TRACE));
        check(&format!("01{}-what-ever", &good[2..]), Some(TRACE));
        for cut in 0..good.len() {
            check(&good[..cut], None);
            check(&format!("{}é{}", &good[..cut], &good[cut + 1..]), None);
        }
        check(&format!("{good}-x"), None);
        check(&format!("{good} "), None);
        check(&format!("01{}x", &good[2..]), None);
        check(&format!("ff{}", &good[2..]), None);
        check(&good.to_uppercase(), None);
        check(&good.replace('-', "_"), None);
        check(&good.replace(TRACE, &"0".repeat(32)), None);
        check(&good.replace("00f067aa0ba902b7", &"0".repeat(16)), None);
        check(&good.replace("-01", "-0-"), None);
        check(&format!("{good},{good}"), None);
        assert_eq!(trace_id(&[0xff; 55]), None);
    }

    #[track_caller]
    fn check_baggage(lists: &[&str], expect: Option<&str>) {
        let found = baggage(lists.iter().map(|list| list.as_bytes()), "flow");
        assert_eq!(found.as_deref(), expect, "{lists:?}");
    }

    #[test]
    fn baggage_is_a_list_of_members() {
        check_baggage(&["flow=a"], Some("a"));
        check_baggage(&["user=1 , flow = a\t;ttl=3; x ,b="], Some("a"));
        check_baggage(&["a=1", "flow=a=b+c", "c=2"], Some("a=b+c"));
        check_baggage(&["flow=Z%C3%BCrich%20%31%2c"], Some("Zürich 1,"));
        check_baggage(&["flow="], Some(""));
        check_baggage(&["Flow=a", "a=flow"], None);
        check_baggage(&[], None);
    }

    #[test]
    fn doubtful_baggage_says_nothing() {
        for list in [
            "flow=a,flow=a",
            "flow=a,",
            ",flow=a",
            "flow=a,,b=1",
            "flow",
            "=a",
            "flow=a b",
            "flow=\"a\"",
            "flow=a\\",
            "flow=ü",
            "flow=a;",
            "flow=a; b c",
            "flow=a;b=\"c\"",
            "fl ow=1,flow=a",
            "flow=%",
            "flow=%2",
            "flow=%zz",
            "flow=%ff",
            "",
        ] {
            check_baggage(&[list], None);
        }
        check_baggage(&["flow=a", "flow=a"], None);
        check_baggage(&["flow=a", ""], None);
    }

    #[test]
    fn baggage_has_bounds() {
        let members = |count: usize| "a=1,".repeat(count - 1) + "flow=a";
        check_baggage(&[&members(64)], Some("a"));
        check_baggage(&[&members(65)], None);
        let long = |len: usize| format!("b={},flow=a", "x".repeat(len - 9));
        check_baggage(&[&long(8192)], Some("a"));
        check_baggage(&[&long(8193)], None);
        check_baggage(&["a=1", &long(8192 - 4)], Some("a"));
        check_baggage(&["a=1", &long(8192 - 3)], None);
    }
}
