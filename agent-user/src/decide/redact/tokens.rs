//! Tokens: JSON Web Tokens, what `Bearer` and `Basic` carry, and passwords in URLs.

use std::ops::Range;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use serde::Deserialize;

use super::patterns::begins_word;

/// A JWT (RFC 7519), signed, unsigned or encrypted, around the `eyJ` at `place`: three to five parts, the first of which
/// says how it is signed.
pub(super) fn jwt(text: &str, place: &Range<usize>) -> Option<Range<usize>> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "alg")]
        _algorithm: String,
    }
    // Not inside a part: each part is looked at once for each of the parts before it, and not for each `eyJ` in it.
    let is_inside = text.get(..place.start)?.ends_with(['-', '_']) || !begins_word(text, place.start);
    if is_inside || text.get(place.clone())? != "eyJ" {
        return None;
    }
    let part_at = |at: usize| {
        let rest = text.get(at..).unwrap_or_default();
        rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte)).count()
    };
    let header = place.start..place.start + part_at(place.start);
    let (mut end, mut parts) = (header.end, 1);
    while parts < 5 && text.as_bytes().get(end) == Some(&b'.') {
        let length = part_at(end + 1);
        // The third is empty if it is not signed; behind it that is a full stop.
        if length == 0 && parts >= 3 {
            break;
        }
        end += 1 + length;
        parts += 1;
    }
    if parts < 3 {
        return None;
    }
    serde_json::from_slice::<Header>(&base64(text.get(header)?)?).ok()?;
    Some(place.start..end)
}

/// The token after the word `Bearer` at `place` (RFC 6750, section 2.1).
pub(super) fn bearer(text: &str, place: &Range<usize>) -> Option<Range<usize>> {
    let token = credentials(text, place)?;
    let said = text.get(token.clone())?;
    (said.len() >= 16 && said.contains(|char: char| char.is_ascii_digit())).then_some(token)
}

/// The credentials after the word `Basic` at `place` (RFC 7617): base64 of a name, a colon and a password.
pub(super) fn basic(text: &str, place: &Range<usize>) -> Option<Range<usize>> {
    let credentials = credentials(text, place)?;
    let said = String::from_utf8(base64(text.get(credentials.clone())?)?).ok()?;
    (said.contains(':') && !said.contains(char::is_control)).then_some(credentials)
}

/// The password of the URL that has its `://` at `place`.
pub(super) fn url(text: &str, place: &Range<usize>) -> Option<Range<usize>> {
    let is_scheme = |last: char| last.is_ascii_alphanumeric() || "+-.".contains(last);
    if !text.get(..place.start)?.ends_with(is_scheme) {
        return None;
    }
    let is_end = |char: char| char.is_whitespace() || char.is_control() || "/?#\"'`<>\\".contains(char);
    let authority = text.get(place.end..)?.split(is_end).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    let (name, password) = user.split_once(':')?;
    if password.starts_with(['$', '{']) || password.chars().all(|char| char == '*') {
        return None;
    }
    let start = place.end + name.len() + 1;
    Some(start..start + password.len())
}

/// What follows the name of a scheme of HTTP authentication (RFC 9110, section 11.2).
fn credentials(text: &str, place: &Range<usize>) -> Option<Range<usize>> {
    if !begins_word(text, place.start) {
        return None;
    }
    let rest = text.get(place.end..)?;
    let spaces = rest.bytes().take_while(|byte| *byte == b' ').count();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    let length = rest.bytes().skip(spaces).take_while(is_part).count();
    let start = place.end + spaces;
    // A full stop at the end is of the sentence.
    let token = text.get(start..start + length)?.trim_end_matches('.');
    (spaces > 0 && !token.is_empty()).then(|| start..start + token.len())
}

/// Base64 in either alphabet, with padding or without (RFC 4648). Bits that are left over do not matter.
fn base64(coded: &str) -> Option<Vec<u8>> {
    let coded = coded.trim_end_matches('=').replace('-', "+").replace('_', "/");
    LENIENT.decode(coded).ok()
}

const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        find: fn(&str, &Range<usize>) -> Option<Range<usize>>,
        clue: &str,
        text: &str,
        expect: Option<&str>,
    ) {
        let mut clues = text.match_indices(clue).map(|(at, clue)| at..at + clue.len());
        assert_eq!(clues.find_map(|place| find(text, &place)).map(|range| &text[range]), expect, "{text}");
    }

    #[test]
    fn web_tokens_are_found() {
        // RFC 7515, appendix A.1; RFC 7519, section 6.1 (unsigned); RFC 7516, appendix A.1, shortened.
        let signed = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODB9.dBjftJeZ4CVP";
        let unsigned = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UifQ.";
        let encrypted = "eyJhbGciOiJSU0EtT0FFUCIsImVuYyI6IkEyNTZHQ00ifQ.OKOawDo13gRp2oja.48V1_ALb6US04U3b.5eym8TW_c8SuK0lt.XFBoMYUZodet";
        for token in [signed, unsigned, encrypted] {
            check(jwt, "eyJ", token, Some(token));
            check(jwt, "eyJ", &format!("token={token}; x"), Some(token));
            check(jwt, "eyJ", &format!("({token})"), Some(token));
        }
        check(jwt, "eyJ", &format!("It is {signed}. So"), Some(signed));
        check(jwt, "eyJ", &format!("{{\\\"t\\\":\\\"\\n{signed}\\\"}}"), Some(signed));
        for other in [
            "eyJhbGciOiJub25lIn0",
            "eyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UifQ",
            "eyJhbGciOiJub25lIn0 .eyJpc3MiOiJqb2UifQ.x",
            "xeyJhbGciOiJub25lIn0.eyJpc3MiOiJqb2UifQ.x",
            "eyJ0eXAiOiJKV1QifQ.eyJpc3MiOiJqb2UifQ.x",
            "eyJa.b.c",
            "eyJ..",
        ] {
            check(jwt, "eyJ", other, None);
        }
    }

    #[test]
    fn credentials_of_http_are_found() {
        check(bearer, "Bearer", "Authorization: Bearer mF_9.B5f-4.1JqM1234", Some("mF_9.B5f-4.1JqM1234"));
        check(bearer, "bearer", "'bearer  abcdefghijklmnop1=='", Some("abcdefghijklmnop1=="));
        for other in [
            "Bearer token",
            "Bearer authentication-is-required",
            "Bearer",
            "Bearer: x",
            "ForBearer abcdefghijklmnop1",
        ] {
            check(bearer, "Bearer", other, None);
        }
        check(basic, "Basic", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", Some("QWxhZGRpbjpvcGVuIHNlc2FtZQ=="));
        for other in ["Basic authentication", "Basic usage: see", "Basic QWxhZGRpbg==", "Basic "] {
            check(basic, "Basic", other, None);
        }
    }

    #[test]
    fn passwords_in_urls_are_found() {
        check(url, "://", "postgres://bob:hunter2@db.host.example:5432/x", Some("hunter2"));
        check(url, "://", "git+https://:p%40ss:w@ord@host.example", Some("p%40ss:w@ord"));
        check(url, "://", "see amqp://a:b@c.", Some("b"));
        for other in [
            "https://host.example/",
            "https://host.example:8080/bob:x@y",
            "https://bob@host.example/",
            "https://bob:@host.example/",
            "https://bob:$PASSWORD@host.example/",
            "https://bob:****@host.example/",
            "https://bob:<password>@host.example/",
            "://bob:hunter2@host.example/",
            "https://a:b c@d",
        ] {
            check(url, "://", other, None);
        }
    }

    #[test]
    fn both_alphabets_of_base64_are_read() {
        let check = |coded, expect: Option<&[u8]>| assert_eq!(base64(coded).as_deref(), expect, "{coded}");
        check("-_+/", Some(&[0xfb, 0xff, 0xbf]));
        check("YWI=", Some(b"ab"));
        check("YWI", Some(b"ab"));
        check("", Some(b""));
        check("a.b", None);
    }
}
