//! Takes secrets out of JSON text on its way: fields by pointer, and whatever looks like a key, a token, a card number
//! or a mail address.
//!
//! Pure, and linear in the text. What is not taken out stays byte for byte: order, spelling of numbers, escapes, white
//! space. Strings are searched as they are meant, not as they are escaped. JSON inside a string is plain text to the
//! patterns, and pointers do not enter it.
//!
//! Bias: rather too much than too little, but code and prose that only speak of secrets should survive. Not found: a
//! secret split over several strings, and one that is encoded (base64, percent signs, compressed). Whoever wants to
//! smuggle a secret out can; this keeps secrets from getting out by the way.

mod cards;
mod label;
mod mail;
mod patterns;
mod pointer;
#[cfg(test)]
mod properties;
mod search;
mod splice;
mod tokens;
mod walk;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use pointer::Pointer;
use search::Search;

pub use splice::{splice, splice_all};

/// What a rule with `action: redact` takes out, as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RedactFile {
    /// JSON Pointers (RFC 6901), such as `/customer/iban`; `*` stands for every member or element, as in
    /// `/rows/*/email`. What they point to becomes `"[redacted]"`, whatever it was. Names are compared exactly.
    pub fields: Vec<String>,
    /// What is looked for in every string; a match becomes `[redacted:key]`, `[redacted:token]`, `[redacted:card]` or
    /// `[redacted:mail]`.
    pub patterns: Vec<PatternName>,
}

/// A set of patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatternName {
    /// Private keys in PEM; keys of AWS, GitHub, GitLab, Slack, Google, Stripe, OpenAI, Anthropic, npm and Hugging Face;
    /// passwords and keys that only their name gives away, as in `password=…`, or a member `api_key`.
    Keys,
    /// JSON Web Tokens, `Bearer …`, `Basic …`, and passwords in URLs.
    Tokens,
    /// Payment card numbers, also where they are JSON numbers.
    Cards,
    /// Mail addresses.
    Mail,
}

/// What a rule takes out, ready for use.
#[derive(Debug)]
pub struct Redaction {
    fields: Vec<Pointer>,
    /// `None`: no patterns.
    search: Option<Search>,
}

/// A text after something was taken out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redacted {
    /// Valid JSON; no object has two members of one name if none had before.
    pub text: String,
    pub found: Found,
    /// Scalars that were replaced whole.
    pub replaced: Vec<Replaced>,
}

/// A string, number or boolean that was replaced whole, by itself or with what it was in. A header that mirrors it has
/// to follow, and may not be found by the patterns alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Strings as they are meant; anything else as written.
    pub was: String,
    /// What a header says instead.
    pub now: &'static str,
}

/// How many of what were taken out, for the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    /// By pointer.
    #[serde(skip_serializing_if = "is_zero")]
    pub fields: usize,
    #[serde(skip_serializing_if = "is_zero")]
    pub keys: usize,
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: usize,
    #[serde(skip_serializing_if = "is_zero")]
    pub cards: usize,
    #[serde(skip_serializing_if = "is_zero")]
    pub mail: usize,
}

/// What a match is called in its place. In the order in which they are preferred where two begin at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Key,
    Token,
    Card,
    Mail,
}

impl Redaction {
    /// Errors name the field and the remedy.
    pub fn compile(file: &RedactFile) -> Result<Redaction, String> {
        if file.fields.is_empty() && file.patterns.is_empty() {
            return Err("redact: nothing to take out: give `fields`, `patterns` or both".to_owned());
        }
        if file.fields.len() > MAX_FIELDS {
            return Err(format!("redact.fields: {} of them: give at most {MAX_FIELDS}", file.fields.len()));
        }
        let fields = file
            .fields
            .iter()
            .map(|field| Pointer::parse(field).map_err(|fault| format!("redact.fields: {field:?}: {fault}")));
        Ok(Redaction { fields: fields.collect::<Result<_, _>>()?, search: Search::of(&file.patterns) })
    }

    /// Takes it out of JSON text that the decoder has found valid. `None`: there is nothing to take out, or this is no
    /// JSON after all.
    ///
    /// Names of members are searched by the patterns, too. Where names of one object become the same, the later ones
    /// get a number: `[redacted:mail] (2)`.
    pub fn apply(&self, json: &str) -> Option<Redacted> {
        walk::walk(self, json)
    }

    /// Takes what the patterns find out of a plain string, such as a header that mirrors an argument.
    pub fn apply_text(&self, text: &str) -> Option<String> {
        let matches = self.search.as_ref()?.matches(text);
        (!matches.is_empty()).then(|| search::replace(text, &matches))
    }

    /// What a header with this (decoded) value has to say once `redacted` was sent; `None`: what it says.
    pub fn mirror(&self, redacted: &Redacted, value: &str) -> Option<String> {
        let replaced = redacted.replaced.iter().find(|replaced| replaced.was == value);
        replaced.map(|replaced| replaced.now.to_owned()).or_else(|| self.apply_text(value))
    }
}

impl Found {
    /// All of them.
    pub fn total(&self) -> usize {
        self.fields + self.keys + self.tokens + self.cards + self.mail
    }

    /// Adds what was found elsewhere in the same message.
    pub fn add(&mut self, other: &Found) {
        self.fields += other.fields;
        self.keys += other.keys;
        self.tokens += other.tokens;
        self.cards += other.cards;
        self.mail += other.mail;
    }

    fn count(&mut self, kind: Kind) {
        *match kind {
            Kind::Key => &mut self.keys,
            Kind::Token => &mut self.tokens,
            Kind::Card => &mut self.cards,
            Kind::Mail => &mut self.mail,
        } += 1;
    }
}

impl Kind {
    fn mark(self) -> &'static str {
        match self {
            Kind::Key => "[redacted:key]",
            Kind::Token => "[redacted:token]",
            Kind::Card => "[redacted:card]",
            Kind::Mail => "[redacted:mail]",
        }
    }
}

/// What a field becomes.
const FIELD_MARK: &str = "[redacted]";

/// Every value is held against those that its parents leave open.
const MAX_FIELDS: usize = 256;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction(fields: &[&str], patterns: &[PatternName]) -> Redaction {
        let fields = fields.iter().map(|field| (*field).to_owned()).collect();
        Redaction::compile(&RedactFile { fields, patterns: patterns.to_vec() }).unwrap()
    }

    fn all() -> Redaction {
        redaction(&[], &[PatternName::Keys, PatternName::Tokens, PatternName::Cards, PatternName::Mail])
    }

    #[track_caller]
    fn check(redaction: &Redaction, json: &str, expect: Option<&str>) {
        let redacted = redaction.apply(json);
        assert_eq!(redacted.as_ref().map(|redacted| &*redacted.text), expect, "{json}");
        if let Some(redacted) = redacted {
            assert_eq!(redaction.apply(&redacted.text), None, "twice: {json}");
        }
    }

    #[test]
    fn fields_are_replaced_whole() {
        let one = redaction(&["/a"], &[]);
        check(&one, r#"{"a":"x"}"#, Some(r#"{"a":"[redacted]"}"#));
        check(
            &one,
            r#"{ "b" : 1.50 , "\u0061" : {"x":[1,2]} }"#,
            Some(r#"{ "b" : 1.50 , "\u0061" : "[redacted]" }"#),
        );
        check(&one, r#"{"a":null}"#, Some(r#"{"a":"[redacted]"}"#));
        for other in [r#"{"A":"x"}"#, r#"{"b":{"a":1}}"#, r#"["a"]"#, r#""a""#, "{}", r#"{"a":"[redacted]"}"#]
        {
            check(&one, other, None);
        }
        let many = redaction(&["/rows/*/mail", "/rows/1", "/a~1b/m~0n", "/*/0/", "/rows/*/mail/deeper"], &[]);
        check(
            &many,
            r#"{"rows":[{"mail":1,"n":1},{"mail":2},{"mail":{"deeper":3}}]}"#,
            Some(r#"{"rows":[{"mail":"[redacted]","n":1},"[redacted]",{"mail":"[redacted]"}]}"#),
        );
        check(&many, r#"{"a/b":{"m~n":1,"m":2}}"#, Some(r#"{"a/b":{"m~n":"[redacted]","m":2}}"#));
        check(&many, r#"{"rows":{"01":1,"1":2}}"#, Some(r#"{"rows":{"01":1,"1":"[redacted]"}}"#));
        check(&many, r#"{"x":[{"":1}]}"#, Some(r#"{"x":[{"":"[redacted]"}]}"#));
    }

    #[test]
    fn patterns_are_replaced_within_strings() {
        check(
            &all(),
            r#"{"b":1e2,"a":"\u00e9\/ pay 4111 1111 1111 111\u0031, \"bob@example.org\"\n"}"#,
            Some(r#"{"b":1e2,"a":"\u00e9\/ pay [redacted:card], \"[redacted:mail]\"\n"}"#),
        );
        check(&all(), r#"["\ud83d bob@example.org"]"#, Some(r#"["\ud83d [redacted:mail]"]"#));
        check(&all(), r#"{"a":["plain",1,true,null,{"b":"c"}]}"#, None);
        check(&redaction(&[], &[PatternName::Mail]), r#""4111111111111111""#, None);
    }

    #[test]
    fn card_numbers_may_be_json_numbers() {
        let card = Some(r#"["[redacted:card]"]"#);
        for number in
            ["4111111111111111", "4111111111111111.0", "4.111111111111111e15", "41111111111111110E-1"]
        {
            check(&all(), &format!("[{number}]"), card);
        }
        for number in [
            "4111111111111112",
            "4111111111111111.5",
            "0.4111111111111111",
            "1e400",
            "1E-400",
            "1700000000000",
        ] {
            check(&all(), &format!("[{number}]"), None);
        }
    }

    #[test]
    fn members_that_are_called_passwords_are_keys() {
        for name in
            ["password", "DB_PASSWORD", "dbPassword", "apiKey", "api-key", "aws_secret_access_key", "token"]
        {
            check(
                &all(),
                &format!(r#"{{"{name}":"hunter2hunter2"}}"#),
                Some(&format!(r#"{{"{name}":"[redacted:key]"}}"#)),
            );
        }
        for json in [
            r#"{"password":{"type":"string"}}"#,
            r#"{"password":"string"}"#,
            r#"{"password":true}"#,
            r#"{"nextPageToken":"CAUQAA1234567890"}"#,
            r#"{"progressToken":"abc-1234567890"}"#,
            r#"{"password_hint":"hunter2hunter2"}"#,
            r#"{"key":"hunter2hunter2"}"#,
            r#"{"password":"${DB_PASSWORD}"}"#,
        ] {
            check(&all(), json, None);
        }
        check(&all(), r#"{"token":["hunter2hunter2"]}"#, None);
    }

    #[test]
    fn names_are_redacted_and_stay_apart() {
        check(
            &all(),
            r#"{"a@example.org":1,"b@example.org":2,"[redacted:mail] (2)":3,"x":{"c@example.org":4}}"#,
            Some(
                r#"{"[redacted:mail]":1,"[redacted:mail] (3)":2,"[redacted:mail] (2)":3,"x":{"[redacted:mail]":4}}"#,
            ),
        );
        let both = redaction(&["/a@example.org"], &[PatternName::Mail]);
        check(&both, r#"{"a@example.org":1}"#, Some(r#"{"[redacted:mail]":"[redacted]"}"#));
    }

    #[test]
    fn json_inside_strings_stays_json() {
        check(
            &all(),
            r#"{"text":"{\"to\":\"x\\nbob@example.org\",\"password\":\"hunter2\",\"k\":\"\\nghp_abcdefghijklmnopqrstuvwxyz0123456789\"}"}"#,
            Some(
                r#"{"text":"{\"to\":\"x\\n[redacted:mail]\",\"password\":\"[redacted:key]\",\"k\":\"\\n[redacted:key]\"}"}"#,
            ),
        );
    }

    #[test]
    fn what_was_found_is_counted() {
        let both = redaction(&["/a", "/b"], &[PatternName::Keys, PatternName::Cards]);
        let redacted = both
            .apply(r#"{"a":{"x":"y\u0031","n":[7,null]},"b":true,"c":4111111111111111,"password":"hunter2","d":"x"}"#)
            .unwrap();
        assert_eq!(redacted.found, Found { fields: 2, keys: 1, cards: 1, ..Found::default() });
        assert_eq!(serde_json::to_string(&redacted.found).unwrap(), r#"{"fields":2,"keys":1,"cards":1}"#);
        assert_eq!(redacted.found.total(), 4);
        let mirror = |value| both.mirror(&redacted, value);
        assert_eq!(mirror("y1").as_deref(), Some("[redacted]"));
        assert_eq!(mirror("7").as_deref(), Some("[redacted]"));
        assert_eq!(mirror("true").as_deref(), Some("[redacted]"));
        assert_eq!(mirror("hunter2").as_deref(), Some("[redacted:key]"));
        assert_eq!(mirror("card 4111111111111111").as_deref(), Some("card [redacted:card]"));
        assert_eq!(mirror("x"), None);
    }

    #[test]
    fn what_is_not_json_is_left_alone() {
        for text in ["", "{", "bob@example.org", "[\"bob@example.org\"", "[\"bob@example.org\"] x", "\"\\x\""]
        {
            check(&all(), text, None);
        }
    }

    #[test]
    fn deepest_nesting_fits_a_small_stack() {
        let nested = || {
            let text = format!("{}\"a@example.org\"{}", "[{\"a\":".repeat(256), "}]".repeat(256));
            let redaction = redaction(&["/*/a/*/a/x"], &[PatternName::Mail]);
            assert_eq!(redaction.apply(&text).unwrap().found.mail, 1);
        };
        std::thread::Builder::new().stack_size(1 << 20).spawn(nested).unwrap().join().unwrap();
    }

    #[test]
    fn bad_files_are_named() {
        let check = |fields: &[&str], expect: &str| {
            let fields = fields.iter().map(|field| (*field).to_owned()).collect();
            let fault = Redaction::compile(&RedactFile { fields, patterns: Vec::new() }).unwrap_err();
            assert_eq!(fault, expect);
        };
        check(&[], "redact: nothing to take out: give `fields`, `patterns` or both");
        check(&["a"], "redact.fields: \"a\": a pointer begins with a slash: write \"/a\"");
        check(&[""], "redact.fields: \"\": this is everything: give a member, such as \"/password\"");
        check(
            &["/a~2"],
            "redact.fields: \"/a~2\": ~ stands only before 0 (for ~) or 1 (for /): write \"/a~02\"",
        );
        check(&["/a/**"], "redact.fields: \"/a/**\": ** is not known: write one * for each level");
        let unknown = serde_json::from_str::<RedactFile>(r#"{"pattern":[]}"#).unwrap_err().to_string();
        assert!(unknown.contains("unknown field `pattern`"), "{unknown}");
        let patterns = serde_json::from_str::<RedactFile>(r#"{"patterns":["keys","tokens","cards","mail"]}"#);
        assert_eq!(patterns.unwrap().patterns.len(), 4);
    }
}
