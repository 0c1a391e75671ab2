//! Mail addresses: `input type=email` of the HTML Standard (WHATWG, section 4.10.5.1.5), with letters of any script (RFC
//! 6531), as they stand in running text.
//!
//! So some of what HTML allows is left outside: `/ = ? & # | { }` and backquotes end the part before the `@`, since there
//! they are mostly of a URL, an assignment or Markdown, and the address is spoiled all the same; the host has at least
//! two labels and does not end with a number, or `lodash@4.17.21` were one. Quoted local parts are not known. Prose in
//! a script without spaces goes with the address that it touches.

use std::ops::Range;

use super::patterns::behind_escape;

/// The address around the `@` at `sign`.
pub(super) fn find(text: &str, sign: &Range<usize>) -> Option<Range<usize>> {
    let before = text.get(..sign.start)?;
    let after = text.get(sign.end..)?;
    let start = before.char_indices().rev().take_while(|(_, char)| is_local(*char)).last()?.0;
    // The letter of an escape, in JSON inside the string, is not of the address.
    let start = behind_escape(text, start);
    let local = text.get(start..sign.start)?;
    let start = start + local.find(|char: char| char.is_alphanumeric() || char == '_')?;
    let host = after.split(|char: char| !is_letter(char) && char != '-' && char != '.').next()?;
    Some(start..sign.end + host_length(host)?)
}

/// How much of this is a host: labels as long as they are good ones, up to the last that can be a top level.
fn host_length(host: &str) -> Option<usize> {
    let is_label = |label: &&str| !label.is_empty() && !label.starts_with('-');
    let mut labels: Vec<&str> = host.split('.').take_while(is_label).collect();
    let last = labels.iter().rposition(|label| !top_level(label).is_empty())?;
    labels.truncate(last + 1);
    let end = labels.last_mut()?;
    *end = top_level(end);
    let is_host = labels.len() > 1 && !is_image(&labels);
    is_host.then(|| labels.iter().map(|label| label.len()).sum::<usize>() + last)
}

/// What of a label can be a top level: all of it, or what is before a dash that ends the address; or nothing.
fn top_level(label: &str) -> &str {
    if label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--")) {
        return label.trim_end_matches('-');
    }
    let name = label.split('-').next().unwrap_or_default();
    if name.chars().count() > 1 && !name.contains(|char: char| char.is_ascii_digit()) { name } else { "" }
}

/// An image for screens of higher density: `icon@2x.png`.
fn is_image(labels: &[&str]) -> bool {
    matches!(labels, [scale, "png" | "jpg" | "jpeg" | "gif" | "webp" | "avif" | "svg"]
        if scale.len() == 2 && scale.starts_with(|digit: char| digit.is_ascii_digit()) && scale.ends_with('x'))
}

fn is_local(char: char) -> bool {
    is_letter(char) || ".!$%'*+^_~-".contains(char)
}

/// Letters, digits, and the marks that belong to letters of other scripts.
fn is_letter(char: char) -> bool {
    char.is_alphanumeric() || (!char.is_ascii() && !char.is_whitespace() && !is_punctuation(char))
}

/// Blocks of punctuation that stands beside addresses; of the rest the letters are told by the standard library.
fn is_punctuation(char: char) -> bool {
    matches!(char, '\u{80}'..='\u{bf}' | '\u{2010}'..='\u{206f}' | '\u{3000}'..='\u{3020}' | '\u{fe10}'..='\u{fe6f}')
        || matches!(char, '\u{ff00}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff20}' | '\u{ff3b}'..='\u{ff65}' | '\u{fffd}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(text: &str) -> Vec<&str> {
        let signs = text.match_indices('@').map(|(at, sign)| at..at + sign.len());
        signs.filter_map(|sign| find(text, &sign)).map(|range| &text[range]).collect()
    }

    #[test]
    fn addresses_are_found() {
        for address in [
            "bob@example.org",
            "bob.o'neil+tag%x@mail.example.co.uk",
            "_x-1@a-b.xn--p1ai",
            "\u{3b4}\u{3bf}\u{3ba}\u{3b9}\u{3bc}\u{3ae}@\u{3c0}\u{3b1}\u{3c1}\u{3ac}\u{3b4}\u{3b5}\u{3b9}\u{3b3}\u{3bc}\u{3b1}.gr",
            "\u{938}\u{902}\u{92a}\u{930}\u{94d}\u{915}@\u{921}\u{947}\u{91f}\u{93e}.\u{92d}\u{93e}\u{930}\u{924}",
            "git@github.com",
            "1@2.org",
        ] {
            assert_eq!(mail(address), [address]);
            for (left, right) in
                [("<", ">"), ("mailto:", "?subject=x"), ("'", "'"), ("`", "`"), ("(", ")."), (" ", ". ")]
            {
                assert_eq!(mail(&format!("{left}{address}{right}")), [address], "{left}");
            }
        }
        assert_eq!(mail("a@b.org,c@d.org;e@f.org"), ["a@b.org", "c@d.org", "e@f.org"]);
        assert_eq!(mail("/search?q=bob@example.org&x"), ["bob@example.org"]);
        assert_eq!(mail("mail=bob@example.org"), ["bob@example.org"]);
        assert_eq!(mail("bob@example.org.5"), ["bob@example.org"]);
        assert_eq!(
            mail("bob@example.org-- bob@example.org--so bob@b-c.xn--p1ai-"),
            ["bob@example.org", "bob@example.org", "bob@b-c.xn--p1ai",]
        );
        assert_eq!(mail("\u{300c}bob@example.org\u{300d}\u{3002}"), ["bob@example.org"]);
        assert_eq!(mail(r"x\nbob@example.org\n"), ["bob@example.org"]);
        assert_eq!(mail(r"\u003cbob@example.org\u003e"), ["bob@example.org"]);
    }

    #[test]
    fn other_signs_are_left_alone() {
        for other in [
            "@",
            "@example.org",
            "bob@",
            "bob@localhost",
            "bob @example.org",
            "bob@ example.org",
            "lodash@4.17.21",
            "react@1.2.3-beta.4",
            "actions/checkout@v4",
            "icon@2x.png",
            "bob@.org",
            "bob@example..org",
            "bob@-example.org",
            "'@x.org",
            "@Override.class",
            "a@b.c",
        ] {
            assert_eq!(mail(other), [] as [&str; 0], "{other}");
        }
    }
}
