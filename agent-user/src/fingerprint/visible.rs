//! What nobody sees in a text, made visible.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Control characters, format characters (zero-width ones, bidirectional controls, tags, soft hyphens, byte order marks),
/// private and unassigned ones, line and paragraph separators, and what fonts show as nothing (variation selectors and
/// other default ignorable ones).
static UNSEEN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]").expect("a good pattern")
});

/// A server's text as it may be shown on a terminal: each character that is not seen, or that does something, as its
/// number in angle brackets (`<U+200B>`). Line feeds and tabs are among them.
pub fn visible(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    UNSEEN.replace_all(text, |found: &Captures<'_>| {
        found[0].chars().map(|letter| format!("<U+{:04X}>", u32::from(letter))).collect::<String>()
    })
}

/// The same text without them, but with its line feeds, carriage returns and tabs.
pub(super) fn seen(text: &str) -> Cow<'_, str> {
    if !has_controls(text) && !has_hidden(text) {
        return Cow::Borrowed(text);
    }
    UNSEEN.replace_all(
        text,
        |found: &Captures<'_>| if is_layout(&found[0]) { found[0].to_owned() } else { String::new() },
    )
}

/// Whether there are control characters, other than those for layout.
pub(super) fn has_controls(text: &str) -> bool {
    text.chars().any(|letter| letter.is_control() && !LAYOUT.contains(&letter))
}

/// Whether there are characters that are not seen, other than control characters and what emoji are made with.
pub(super) fn has_hidden(text: &str) -> bool {
    let makes_emoji = |at: usize, letter: &str| {
        let before = text.get(..at).and_then(|text| text.chars().next_back()).unwrap_or_default();
        let is_symbol = before > '\u{2000}'
            && !before.is_alphanumeric()
            && !UNSEEN.is_match(before.encode_utf8(&mut [0; 4]));
        match letter {
            "\u{fe0e}" | "\u{fe0f}" => is_symbol,
            "\u{200d}" => is_symbol || before == '\u{fe0f}',
            _ => false,
        }
    };
    let is_control = |letter: &str| letter.chars().all(char::is_control);
    !text.is_ascii()
        && UNSEEN
            .find_iter(text)
            .any(|found| !is_control(found.as_str()) && !makes_emoji(found.start(), found.as_str()))
}

fn is_layout(text: &str) -> bool {
    text.chars().all(|letter| LAYOUT.contains(&letter))
}

const LAYOUT: [char; 3] = ['\n', '\r', '\t'];

fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

/// A text of at most `most` characters, then what is in its middle left out; and visible.
pub(super) fn cut(text: &str, most: usize) -> String {
    // Bytes are no fewer than characters.
    let length = if text.len() <= most { 0 } else { text.chars().count() };
    if length <= most {
        return visible(text).into_owned();
    }
    let tail = most / 3;
    let head = most - tail;
    let at = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
    let (head_end, tail_start) = (at(head), at(length - tail));
    let (first, last) =
        (text.get(..head_end).unwrap_or_default(), text.get(tail_start..).unwrap_or_default());
    format!("{}[… {} characters left out …]{}", visible(first), length - most, visible(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_is_shown_as_its_number() {
        let check = |text: &str, expect: &str| assert_eq!(visible(text), expect);
        check("plain ~", "plain ~");
        check("d\u{e9}j\u{e0} \u{65e5}\u{672c} \u{1f600}", "d\u{e9}j\u{e0} \u{65e5}\u{672c} \u{1f600}");
        check("a\nb\tc\u{1b}[1m\u{7f}\u{85}", "a<U+000A>b<U+0009>c<U+001B>[1m<U+007F><U+0085>");
        for letter in [
            '\u{0}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{180e}',
            '\u{200b}',
            '\u{200d}',
            '\u{202e}',
            '\u{2028}',
            '\u{2029}',
            '\u{2060}',
            '\u{2066}',
            '\u{3164}',
            '\u{e000}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{fff9}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{10ffff}',
            '\u{378}',
        ] {
            let number = u32::from(letter);
            check(&format!("a{letter}{letter}b"), &format!("a<U+{number:04X}><U+{number:04X}>b"));
            assert_eq!(seen(&format!("a{letter}b")), "ab", "{number:x}");
        }
    }

    #[test]
    fn long_texts_lose_their_middle() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("\u{e9}bcdef", 6), "\u{e9}bcdef");
        assert_eq!(cut("\u{e9}bcdefg", 6), "\u{e9}bcd[… 1 characters left out …]fg");
        assert_eq!(cut(&"\u{200b}".repeat(10), 3), "<U+200B><U+200B>[… 7 characters left out …]<U+200B>");
    }
}
