//! What keys, tokens and mail addresses are known by, and how far they reach.
//!
//! The forms are those that issuers document, with the lower bounds on length that the rules of gitleaks have and no
//! upper ones, since issuers make their keys longer as they like (GitHub's of 40 characters became 520):
//! * AWS: "Reference elements: unique identifiers" of the IAM user guide; only the kinds that are credentials.
//! * GitHub: changelog of 2021-03-31 and of 2026-04-24 (`ghs_APPID_JWT`). GitLab: "Token overview: token prefixes".
//! * Slack: "Tokens" of its API docs. Google: "Using API keys". Stripe: "API keys".
//! * OpenAI, Anthropic, npm, Hugging Face: gitleaks, `config/gitleaks.toml`.
//! * PEM: RFC 7468. JWT: RFC 7519. `Bearer`: RFC 6750. `Basic`: RFC 7617. Passwords in URLs: RFC 3986, section 3.2.1.
//!
//! Nothing looks at a byte more than a bounded number of times: what is looked at is taken out, and what is in it not
//! looked at any more, or it ends at the next thing of its kind, or it is short.

use std::ops::Range;

use super::{Kind, PatternName, label, mail, tokens};

/// A text, in any case, at which a closer look is worth while.
#[derive(Debug)]
pub(super) struct Clue {
    pub(super) text: &'static str,
    pub(super) kind: Kind,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    /// The text itself in its case, where no word goes on, and then so many characters of a kind.
    Prefix(Tail),
    Pem,
    /// The end of a name to which a secret may be assigned.
    Label,
    Jwt,
    Bearer,
    Basic,
    Url,
    Mail,
}

/// What follows a prefix.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// Beside letters and digits.
    also: &'static str,
    least: usize,
    /// Not more either, no small letters, and no word goes on behind it.
    exact: bool,
    /// There is a digit, as in nearly every random text of this length and hardly any name.
    digit: bool,
}

/// All clues of these sets.
pub(super) fn clues(names: &[PatternName]) -> impl Iterator<Item = Clue> {
    let has = |name| names.contains(&name);
    let keys = PREFIXES.iter().map(|(text, tail)| (*text, Kind::Key, Shape::Prefix(*tail)));
    let labels = label::CLUES.iter().map(|text| (*text, Kind::Key, Shape::Label));
    let keys = keys.chain(labels).chain([("-----begin ", Kind::Key, Shape::Pem)]);
    let tokens =
        [("eyJ", Shape::Jwt), ("bearer", Shape::Bearer), ("basic", Shape::Basic), ("://", Shape::Url)];
    let tokens = tokens.into_iter().map(|(text, shape)| (text, Kind::Token, shape));
    let mail = [("@", Kind::Mail, Shape::Mail)].into_iter();
    keys.filter(move |_| has(PatternName::Keys))
        .chain(tokens.filter(move |_| has(PatternName::Tokens)))
        .chain(mail.filter(move |_| has(PatternName::Mail)))
        .map(|(text, kind, shape)| Clue { text, kind, shape })
        .collect::<Vec<_>>()
        .into_iter()
}

impl Clue {
    /// What to take out of `text` where the clue was found.
    pub(super) fn look(&self, text: &str, place: Range<usize>) -> Option<Range<usize>> {
        match self.shape {
            Shape::Prefix(tail) => self.key(text, &place, tail),
            Shape::Pem => pem(text, &place),
            Shape::Label => label::find(text, &place),
            Shape::Jwt => tokens::jwt(text, &place),
            Shape::Bearer => tokens::bearer(text, &place),
            Shape::Basic => tokens::basic(text, &place),
            Shape::Url => tokens::url(text, &place),
            Shape::Mail => mail::find(text, &place),
        }
    }

    fn key(&self, text: &str, place: &Range<usize>, tail: Tail) -> Option<Range<usize>> {
        if text.get(place.clone())? != self.text || !begins_word(text, place.start) {
            return None;
        }
        let rest = text.get(place.end..)?;
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || tail.also.as_bytes().contains(byte);
        let read = |most: usize| rest.bytes().take(most).take_while(is_part).count();
        // What is refused is looked at again by the next clue in it, so no more than is needed to refuse it.
        let seen = rest.get(..read(MOST_SEEN))?.trim_end_matches('.');
        let is_random = !tail.digit || seen.contains(|char: char| char.is_ascii_digit());
        let is_like = match tail.exact {
            true => seen.len() == tail.least && !seen.contains(|char: char| char.is_ascii_lowercase()),
            false => seen.len() >= tail.least,
        };
        if !is_like || !is_random {
            return None;
        }
        // A full stop at the end is of the sentence.
        let key = rest.get(..read(usize::MAX))?.trim_end_matches('.');
        Some(place.start..place.end + key.len())
    }
}

/// A private key in PEM. With its end cut off, or before it something else, as many lines as look like base64.
fn pem(text: &str, place: &Range<usize>) -> Option<Range<usize>> {
    let label = line(text.get(place.end..)?)?;
    if !label.ends_with("PRIVATE KEY") && !label.ends_with("PRIVATE KEY BLOCK") {
        return None;
    }
    let start = place.end + label.len() + DASHES.len();
    let body = text.get(start..)?;
    let next = memchr::memmem::find(body.as_bytes(), DASHES.as_bytes()).unwrap_or(body.len());
    if let Some(end) = body.get(next..)?.strip_prefix("-----END ") {
        let label = line(end).map_or(0, |label| label.len() + DASHES.len());
        return Some(place.start..text.len() - end.len() + label);
    }
    let mut rest = body.get(..next)?;
    let mut end = None;
    loop {
        rest = rest.trim_start();
        // A line end as JSON or a shell writes it.
        while let Some(behind) = rest.strip_prefix("\\n").or_else(|| rest.strip_prefix("\\r")) {
            rest = behind.trim_start();
        }
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        let (run, behind) = rest.split_at(rest.bytes().take_while(is_part).count());
        if run.len() < 16 && !(end.is_some() && run.ends_with('=')) {
            return end.map(|end| place.start..end);
        }
        end = Some(start + next - behind.len());
        rest = behind;
    }
}

/// What stands before the five dashes that end the first or last line of PEM.
fn line(text: &str) -> Option<&str> {
    let near = text.as_bytes().get(..64.min(text.len()))?;
    text.get(..memchr::memmem::find(near, DASHES.as_bytes())?)
}

/// No word goes on at `at`. The escapes of JSON and URLs are no words.
pub(super) fn begins_word(text: &str, at: usize) -> bool {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    match before {
        [.., last] if !last.is_ascii_alphanumeric() => true,
        [] => true,
        [.., b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => true,
        [rest @ .., b'n' | b'r' | b't' | b'b' | b'f'] => ends_with_escape(rest),
        [rest @ .., b'u', a, b, c, d] if [a, b, c, d].iter().all(|digit| digit.is_ascii_hexdigit()) => {
            ends_with_escape(rest)
        }
        _ => false,
    }
}

/// Where the text goes on if an escape of JSON ends at or behind `at`, and its backslash is before it.
pub(super) fn behind_escape(text: &str, at: usize) -> usize {
    let (before, rest) = text.as_bytes().split_at(at);
    if !ends_with_escape(before) {
        return at;
    }
    match rest {
        [b'n' | b'r' | b't' | b'b' | b'f', ..] => at + 1,
        [b'u', digits @ ..]
            if digits.iter().take(4).filter(|digit| digit.is_ascii_hexdigit()).count() == 4 =>
        {
            at + 5
        }
        _ => at,
    }
}

/// The text ends with a backslash that is not escaped itself.
fn ends_with_escape(text: &[u8]) -> bool {
    text.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

const DASHES: &str = "-----";
const MOST_SEEN: usize = 64;

const fn tail(also: &'static str, least: usize) -> Tail {
    Tail { also, least, exact: false, digit: false }
}

const fn with_digit(also: &'static str, least: usize) -> Tail {
    Tail { also, least, exact: false, digit: true }
}

const AWS: Tail = Tail { also: "", least: 16, exact: true, digit: false };
const GITHUB: Tail = tail("_-.", 36);
const GITLAB: Tail = tail("_-.", 20);
const SLACK: Tail = with_digit("-", 10);
const STRIPE: Tail = tail("", 16);
const MODEL: Tail = with_digit("_-", 20);

const PREFIXES: &[(&str, Tail)] = &[
    ("AKIA", AWS),
    ("ASIA", AWS),
    ("ghp_", GITHUB),
    ("gho_", GITHUB),
    ("ghu_", GITHUB),
    ("ghs_", GITHUB),
    ("ghr_", GITHUB),
    ("github_pat_", GITHUB),
    ("glpat-", GITLAB),
    ("gldt-", GITLAB),
    ("glrt-", GITLAB),
    ("glcbt-", GITLAB),
    ("glptt-", GITLAB),
    ("glagent-", GITLAB),
    ("gloas-", GITLAB),
    ("xoxa-", SLACK),
    ("xoxb-", SLACK),
    ("xoxe-", SLACK),
    ("xoxp-", SLACK),
    ("xoxr-", SLACK),
    ("xoxs-", SLACK),
    ("xapp-", SLACK),
    ("AIza", tail("_-", 35)),
    ("sk_live_", STRIPE),
    ("rk_live_", STRIPE),
    ("sk_test_", STRIPE),
    ("rk_test_", STRIPE),
    // Of OpenAI before there were projects, and of many who do as they do.
    ("sk-", with_digit("", 20)),
    ("sk-proj-", MODEL),
    ("sk-svcacct-", MODEL),
    ("sk-admin-", MODEL),
    ("sk-ant-", MODEL),
    ("sk-or-v1-", MODEL),
    ("npm_", tail("", 36)),
    ("hf_", tail("", 30)),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The first key in a text.
    fn key(text: &str) -> Option<&str> {
        let lower = text.to_ascii_lowercase();
        let look = |clue: Clue| {
            let wanted = clue.text.to_ascii_lowercase();
            let mut places = lower.match_indices(&*wanted);
            places.find_map(|(at, found)| clue.look(text, at..at + found.len()))
        };
        let mut found: Vec<Range<usize>> = clues(&[PatternName::Keys]).filter_map(look).collect();
        found.sort_by_key(|range| range.start);
        found.first().map(|range| &text[range.clone()])
    }

    #[test]
    fn keys_of_issuers_are_found() {
        // Put together here, so that nothing takes this file for a leak.
        for (prefix, tail) in PREFIXES {
            for unit in ["A1", "1Z"] {
                let random = unit.repeat(tail.least);
                let whole = format!("{prefix}{}", &random[..tail.least]);
                for (left, right) in [
                    ("", ""),
                    ("key=\"", "\""),
                    ("(", ")"),
                    ("the ", ", and"),
                    ("is ", ". So"),
                    ("\\n", "\\n"),
                    ("%3D", "%20"),
                    ("K_", "/"),
                ] {
                    let text = format!("{left}{whole}{right}");
                    assert_eq!(key(&text), Some(&*whole), "{text}");
                }
                let short = format!("{prefix}{}", &random[..tail.least - 1]);
                for text in [&short, &format!("{short}. So"), &format!("x{whole}"), &whole.to_lowercase()] {
                    let is_lower =
                        *prefix == prefix.to_lowercase() && text.starts_with(prefix) && *text != short;
                    assert!(is_lower || key(text).is_none(), "{text}");
                }
                let longer = format!("{whole}{whole}");
                assert_eq!(key(&longer).is_some(), !tail.exact, "{longer}");
            }
        }
    }

    #[test]
    fn longer_forms_are_taken_whole() {
        for whole in [
            format!("ghs_12345_eyJhbGciOiJSUzI1NiJ9.{}.{}", "aB3_-".repeat(40), "x9".repeat(80)),
            format!("glpat-{}.01.0w1abcdef", "a1B2-".repeat(6)),
            format!("sk-proj-{}T3BlbkFJ{}", "a_1-B".repeat(15), "c2".repeat(30)),
            format!("xoxb-{}-{}-{}", "1".repeat(12), "2".repeat(13), "aB".repeat(12)),
            format!("github_pat_{}_{}", "1A".repeat(11), "b".repeat(59)),
        ] {
            assert_eq!(key(&format!("'{whole}'")), Some(&*whole));
        }
    }

    #[test]
    fn names_that_begin_like_keys_are_left_alone() {
        for other in [
            "ASIAPACIFIC",
            "AKIALOWERcase1234567",
            "xoxo-hugs",
            "xoxb-hugs-and-kisses",
            "sk-estimator-id-12",
            "sk-toggleable__content-1",
            "sk-antarctica-expedition-members",
            "task-4111aaaaaaaaaaaaaaaaaaaaaaaa",
            "npm_config_registry_with_a_very_long_name_in_it",
            "hf_hub_download",
            "ghp_xxxx",
            "glpat-short",
            "AIzawa",
        ] {
            assert_eq!(key(other), None, "{other}");
        }
    }

    #[test]
    fn private_keys_are_found() {
        let body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQ\nab==\n";
        for kind in ["PRIVATE KEY", "RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"] {
            let begin = format!("-----BEGIN {kind}-----");
            let whole = format!("{begin}\n{body}-----END {kind}-----");
            assert_eq!(key(&format!("x {whole} y")), Some(&*whole));
            let escaped = whole.replace('\n', "\\n");
            assert_eq!(key(&format!("\"{escaped}\\n\"")), Some(&*escaped));
            let encrypted = format!("{begin}\nProc-Type: 4,ENCRYPTED\n\n{body}-----END {kind}-----");
            assert_eq!(key(&encrypted), Some(&*encrypted));
            let cut = format!("{begin}\n{}", body.trim_end());
            assert_eq!(key(&cut), Some(&*cut));
            assert_eq!(key(&format!("{cut}\nand so on")), Some(&*cut));
            assert_eq!(key(&format!("{cut}\n-----BEGIN X-----")), Some(&*cut));
            assert_eq!(key(&format!("{begin} is how it begins")), None);
            assert_eq!(key(&format!("{begin}\n...\n-----BEGIN X-----")), None);
        }
        let public = format!("-----BEGIN PUBLIC KEY-----\n{body}-----END PUBLIC KEY-----");
        assert_eq!(key(&public), None);
        assert_eq!(key("-----BEGIN CERTIFICATE-----"), None);
    }
}
