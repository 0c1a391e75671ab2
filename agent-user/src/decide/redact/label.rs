//! Secrets that only their name gives away: `password=…`, `"api_key": "…"`, or a member of JSON by such a name.
//!
//! Passed over is what is no secret but stands in its place: an empty or short value, words of a schema, a placeholder,
//! a variable or call in code, a path, anything with white space. `api_key=api_key` in code and `PASSWORD=changeme` in a
//! file differ only in what is around them; a value that could be a name in code counts where it has a line or a part
//! of a query to itself. An unquoted value ends at white space, quotes, brackets, commas and semicolons.

use std::ops::Range;

use super::patterns::behind_escape;

/// What is said to be assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// Chosen by a person, so it may be short.
    Password,
    /// May have spaces.
    Passphrase,
    /// Made by a machine.
    Key,
}

/// How names of secrets end, in lower case.
pub(super) const CLUES: [&str; 7] = ["password", "passwd", "pwd", "passphrase", "secret", "key", "token"];

/// What a name says its value is; written in any of `db_password`, `DB-PASSWORD`, `dbPassword`, `db password 2`.
pub(super) fn label_of(name: &str) -> Option<Label> {
    // Longer names are whole texts.
    if name.len() > MOST_OF_NAME {
        return None;
    }
    let letters = name.chars().filter(char::is_ascii_alphanumeric).map(|char| char.to_ascii_lowercase());
    let letters: String = letters.collect();
    let letters = letters.trim_end_matches(|char: char| char.is_ascii_digit());
    let ends = |ends: &[&str]| ends.iter().any(|end| letters.ends_with(end));
    if ends(&["password", "passwd", "pwd"]) {
        Some(Label::Password)
    } else if ends(&["passphrase"]) {
        Some(Label::Passphrase)
    } else if ends(KEYS) || letters == "token" {
        Some(Label::Key)
    } else {
        None
    }
}

/// The secret that is assigned to the name that has its end at `place`.
pub(super) fn find(text: &str, place: &Range<usize>) -> Option<Range<usize>> {
    let digits = text.get(place.end..)?.bytes().take(4).take_while(u8::is_ascii_digit).count();
    let (assigned, value) = assignment(text, place.end + digits)?;
    let name = name_before(text, place.start);
    let label = name_label(text.get(name..place.end)?)?;
    if let Some((quote, start)) = opening_quote(text, value) {
        let length = quoted(text.get(start..)?, quote, label)?;
        let said = text.get(start..start + length)?;
        return is_secret(label, said).then_some(start..start + length);
    }
    let rest = text.get(value..)?;
    let is_end = |char: char| char.is_whitespace() || "\"'`,;&<>(){}[]|\\".contains(char);
    let length = rest.find(is_end).unwrap_or(rest.len());
    let said = rest.get(..length)?.trim_end_matches('.');
    // Only so much is looked at: what is refused may be looked at again by the next name in it.
    let seen = said.char_indices().nth(MOST_SEEN).map_or(said, |(at, _)| &said[..at]);
    let is_alone = assigned == Assigned::Tightly && begins_line(text, name) && ends_line(rest.get(length..)?);
    let is_call = rest.get(length..)?.starts_with(['(', '[']);
    let is_bare = !is_call && (is_alone || !is_name(seen)) && is_secret(label, seen);
    is_bare.then_some(value..value + said.len())
}

/// Whether a value of such a name is a secret and no stand-in.
pub(super) fn is_secret(label: Label, value: &str) -> bool {
    let least = if label == Label::Key { 8 } else { 4 };
    let length = value.chars().take(20).count();
    if length < least || (label != Label::Passphrase && value.contains(char::is_whitespace)) {
        return false;
    }
    let first = value.chars().next();
    let is_filler = value.chars().all(|char| Some(char) == first) && !value.starts_with(char::is_numeric);
    let is_placeholder =
        value.starts_with(['$', '<', '{', '%', '=']) || value.contains("${") || value.contains("{{");
    let is_elsewhere = value.contains("://") || PATHS.iter().any(|path| value.starts_with(path));
    if is_filler || is_placeholder || is_elsewhere || WORDS.contains(&&*value.to_ascii_lowercase()) {
        return false;
    }
    label != Label::Key || length >= 20 || value.contains(|char: char| char.is_ascii_digit())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Assigned {
    /// `name=value`
    Tightly,
    Loosely,
}

/// Reads `=`, `:`, `:=` or `=>` behind a name that ends at `at`, and perhaps its quote. Gives where the value begins.
fn assignment(text: &str, at: usize) -> Option<(Assigned, usize)> {
    let rest = text.get(at..)?;
    let quoted = rest.trim_start_matches('\\').trim_start_matches(['"', '\'', '`']);
    // A backslash alone is of whatever follows.
    let rest = if quoted.len() + 4 >= rest.len() { quoted } else { rest };
    let sign = skip_spaces(rest)?;
    let value = match sign.as_bytes() {
        [b'=', b'=', ..] | [b':', b':', ..] => return None,
        [b':', b'=', ..] | [b'=', b'>', ..] => sign.get(2..)?,
        [b'=' | b':', ..] => sign.get(1..)?,
        _ => return None,
    };
    let start = skip_spaces(value)?;
    let is_tight = rest.len() == sign.len() && sign.len() == start.len() + 1 && sign.starts_with('=');
    let assigned = if is_tight { Assigned::Tightly } else { Assigned::Loosely };
    Some((assigned, text.len() - start.len()))
}

/// Without spaces at its start, of which there are few.
fn skip_spaces(text: &str) -> Option<&str> {
    let spaces = text.bytes().take(MOST_SPACES + 1).take_while(|byte| b" \t".contains(byte)).count();
    (spaces <= MOST_SPACES).then(|| text.get(spaces..))?
}

/// Where the name that has one of the clues at `clue` begins: one word, or two with a space between.
fn name_before(text: &str, clue: usize) -> usize {
    let before = text.as_bytes().get(..clue).unwrap_or_default();
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    let word = |end: usize| {
        let before = before.get(..end).unwrap_or_default();
        end - before.iter().rev().take(MOST_OF_NAME).take_while(|byte| is_part(byte)).count()
    };
    let start = word(clue);
    let start = match before.get(..start) {
        Some([.., last, b' ']) if is_part(last) => word(start - 1),
        _ => start,
    };
    // The letter of an escape is not of the name, unless it begins with the clue.
    behind_escape(text, start).min(clue)
}

/// What one or two words say; that a token is one only if nothing is before it.
fn name_label(name: &str) -> Option<Label> {
    let last = name.rsplit(' ').next().unwrap_or(name);
    label_of(last).or_else(|| label_of(name))
}

/// The quote that opens at `at`, with the backslashes before it, and where what it quotes begins.
fn opening_quote(text: &str, at: usize) -> Option<((usize, u8), usize)> {
    let rest = text.as_bytes().get(at..)?;
    let slashes = rest.iter().take(8).take_while(|byte| **byte == b'\\').count();
    let quote = *rest.get(slashes).filter(|byte| b"\"'`".contains(byte))?;
    Some(((slashes, quote), at + slashes + 1))
}

/// How long a quoted value is. The quote that closes it has as many backslashes as the one that opened it; one without
/// any is closed by one that is not escaped.
fn quoted(text: &str, (slashes, quote): (usize, u8), label: Label) -> Option<usize> {
    let mut run = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\\' => run += 1,
            _ if byte == quote && run == slashes => return Some(at - run),
            _ if byte == quote && slashes == 0 && run % 2 == 0 => return Some(at),
            b'\n' | b'\r' => return None,
            b' ' | b'\t' if label != Label::Passphrase => return None,
            _ => run = 0,
        }
    }
    None
}

/// It could be a name in code: `settings.api_key`.
fn is_name(value: &str) -> bool {
    value.bytes().all(|byte| byte.is_ascii_alphabetic() || b"_-.$:".contains(&byte))
}

fn begins_line(text: &str, at: usize) -> bool {
    let before = text.get(..at).unwrap_or_default();
    let is_option = text.get(at..).is_some_and(|name| name.starts_with("--"));
    before.is_empty() || before.ends_with(['\n', ';', '&', '?']) || before.ends_with("\\n") || is_option
}

fn ends_line(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(['\n', '\r', ';', '&', ' ', '\\'])
}

const MOST_OF_NAME: usize = 64;
const MOST_SPACES: usize = 8;
const MOST_SEEN: usize = 64;

/// Ends of names for what machines make. Bare `key` is of a map, and `nextPageToken` of a list.
const KEYS: &[&str] = &[
    "secret",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "accountkey",
    "masterkey",
    "signingkey",
    "encryptionkey",
    "authkey",
    "apitoken",
    "accesstoken",
    "authtoken",
    "refreshtoken",
    "idtoken",
    "bearertoken",
    "sessiontoken",
    "securitytoken",
];

/// What schemas, forms and examples say in place of a password.
const WORDS: &[&str] = &[
    "string",
    "text",
    "password",
    "passwd",
    "secret",
    "none",
    "null",
    "true",
    "false",
    "undefined",
    "required",
    "optional",
    "hidden",
    "required:",
    "optional:",
];

const PATHS: &[&str] =
    &["./", "../", "~/", "/run/", "/etc/", "/var/", "/home", "/tmp/", "/opt/", "/usr/", "/mnt/", "arn:"];

#[cfg(test)]
mod tests {
    use super::*;

    /// The first secret in a text.
    fn secret(text: &str) -> Option<&str> {
        let lower = text.to_ascii_lowercase();
        let look = |clue: &str| {
            let mut places = lower.match_indices(clue).map(|(at, found)| at..at + found.len());
            places.find_map(|place| find(text, &place))
        };
        let found = CLUES.iter().filter_map(|clue| look(clue)).min_by_key(|range| range.start);
        found.map(|range| &text[range])
    }

    #[test]
    fn assigned_secrets_are_found() {
        let check = |text: &str, expect: &str| assert_eq!(secret(text), Some(expect), "{text}");
        check("password=hunter2", "hunter2");
        check("password: hunter2.", "hunter2");
        check("Password2 = 'correct-horse'", "correct-horse");
        check("DB_PASSWORD=changeme\nx", "changeme");
        check("export API_KEY=abcd1234efgh", "abcd1234efgh");
        check("login?user=bob&pwd=letmein&x=1", "letmein");
        check("Server=x;Pwd=letmein;", "letmein");
        check("run --password=letmein now", "letmein");
        check("{\"password\": \"let\\\"me\"}", "let\\\"me");
        check("{\\\"password\\\":\\\"hunter2\\\"}", "hunter2");
        check("{'apiKey' : '0123456789'}", "0123456789");
        check("api-key => `0123456789`", "0123456789");
        check("Your API key: abc123def456, keep it", "abc123def456");
        check("secret := \"abcdefghijklmnopqrstuvwxyz\"", "abcdefghijklmnopqrstuvwxyz");
        check(
            "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        );
        check(
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
            "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        );
        check("AccountKey=abcd1234/+==;", "abcd1234/+==");
        check("token: 0123abcd", "0123abcd");
        check("x-access-token: 0123abcd", "0123abcd");
        check("passphrase: \"correct horse battery\"", "correct horse battery");
        check("a\\npassword=letmein\\nb", "letmein");
        check("password: 12345", "12345");
    }

    #[test]
    fn what_is_no_secret_is_left_alone() {
        for other in [
            "password",
            "password:",
            "password=",
            "password: required",
            "The password: it must have eight characters",
            "\"password\": \"string\"",
            "\"password\": \"\"",
            "\"password\": \"at least 8 characters\"",
            "\"password\": {\"type\": \"string\"}",
            "password = get_password2()",
            "password = input2[0]",
            "client = Client(api_key=api_key)",
            "    api_key=settings.api_key,",
            "password == hunter2",
            "password::hunter2",
            "password=${DB_PASSWORD}",
            "password=$1password",
            "password: {{ password1 }}",
            "password: <your-password-1>",
            "password=********",
            "password_file: /run/secrets/db1",
            "password: /run/secrets/db1",
            "password_hint=hunter2",
            "api_key: short1",
            "api_key: \"environment\"",
            "next_token: abcd1234abcd",
            "max_tokens: 4096000000",
            "key: 0123456789",
            "public_key: 0123456789",
            "aws_access_key_id = 0123456789",
            "secret: https://vault.example/1234",
            "password:         hunter2",
            "password \"hunter2",
        ] {
            assert_eq!(secret(other), None, "{other}");
        }
    }

    #[test]
    fn names_say_what_their_value_is() {
        let check = |name: &str, expect| assert_eq!(label_of(name), expect, "{name}");
        for name in ["password", "Password", "dbPassword", "DB_PASSWD", "db-pwd", "password_2"] {
            check(name, Some(Label::Password));
        }
        check("ssh_passphrase", Some(Label::Passphrase));
        for name in
            ["clientSecret", "x-api-key", "secretAccessKey", "private key", "token", "githubAccessToken"]
        {
            check(name, Some(Label::Key));
        }
        for name in
            ["", "key", "secrets", "password_hint", "pageToken", "next_token", "tokens", "secretName", "7"]
        {
            check(name, None);
        }
        check(&"password".repeat(9), None);
    }
}
