//! What a text says now, and what it no longer says.

use similar::{Algorithm, DiffTag, capture_diff_slices};

use super::super::string;
use super::super::visible::cut;
use super::sentences::{Rank, Sentences};

/// Characters of a text that are shown.
const SHOWN: usize = 500;
/// Sentences that are compared one by one: comparing takes the product of two such numbers.
const COMPARED: usize = 100;

/// Compares two texts: JSON strings in canonical form, or none. What is said anew and what is not said any more have
/// a rank each.
pub(super) fn texts(
    subject: &str,
    before: Option<&str>,
    after: Option<&str>,
    (says, falls): (Rank, Rank),
    said: &mut Sentences,
) {
    let quoted = |text: &str| format!("\"{}\"", cut(text, SHOWN));
    let is_text = |value: Option<&str>| value.is_none_or(|value| value.starts_with('"'));
    match (before, after) {
        (Some(before), Some(after)) if is_text(Some(before)) && is_text(Some(after)) => {
            let (old, new) = changed(string::inner(before), string::inner(after));
            if !new.is_empty() {
                let also = if old.is_empty() { "now also says" } else { "now says" };
                said.say(says, || format!("{subject} {also}: {}", quoted(&new)));
            }
            if !old.is_empty() {
                said.say(falls, || format!("{subject} no longer says: {}", quoted(&old)));
            }
        }
        (Some(before), Some(after)) => {
            said.say(says, || {
                format!("{subject} changed from {} to {}", cut(before, SHOWN), cut(after, SHOWN))
            });
        }
        (None, Some(after)) => said.say(says, || format!("{subject} added: {}", cut(after, SHOWN))),
        (Some(before), None) => said.say(falls, || format!("{subject} removed: {}", cut(before, SHOWN))),
        (None, None) => {}
    }
}

/// The sentences that are only in one of two different texts.
fn changed(before: &str, after: &str) -> (String, String) {
    let (before, after) = (sentences(before), sentences(after));
    let same = |pair: &(&&str, &&str)| pair.0 == pair.1;
    let head = before.iter().zip(&after).take_while(same).count();
    let (before, after) = (before.get(head..).unwrap_or_default(), after.get(head..).unwrap_or_default());
    let tail = before.iter().rev().zip(after.iter().rev()).take_while(same).count();
    let before = before.get(..before.len() - tail).unwrap_or_default();
    let after = after.get(..after.len() - tail).unwrap_or_default();
    if before.len().max(after.len()) > COMPARED {
        return (before.concat(), after.concat());
    }
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for op in capture_diff_slices(Algorithm::Myers, before, after) {
        if op.tag() != DiffTag::Equal {
            old.push(before.get(op.old_range()).unwrap_or_default().concat());
            new.push(after.get(op.new_range()).unwrap_or_default().concat());
        }
    }
    let together = |mut runs: Vec<String>| {
        runs.retain(|run| !run.is_empty());
        runs.join(" … ")
    };
    (together(old), together(new))
}

/// A text in canonical form, without its quotes, by sentences and lines, each with the space behind it.
pub(in crate::fingerprint) fn sentences(text: &str) -> Vec<&str> {
    let bytes = text.as_bytes();
    let mut sentences = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(byte) = bytes.get(at) {
        let next = bytes.get(at + 1);
        let (len, ends) = match byte {
            b'\\' => (2, next == Some(&b'n')),
            b' ' => (1, at > 0 && matches!(bytes.get(at - 1), Some(b'.' | b'!' | b'?' | b':' | b';'))),
            _ => (1, false),
        };
        at += len;
        if ends {
            sentences.extend(text.get(start..at));
            start = at;
        }
    }
    sentences.extend(text.get(start..).filter(|rest| !rest.is_empty()));
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_lines_end_where_they_end() {
        let check = |text, expect: &[&str]| assert_eq!(sentences(text), expect, "{text}");
        check("A b. C? d", &["A b. ", "C? ", "d"]);
        check(r"a\nb\\n c.\n", &[r"a\n", r"b\\n c.\n"]);
        check("v1.2", &["v1.2"]);
        check("", &[]);
    }

    #[test]
    fn long_texts_are_compared_by_where_they_begin_to_differ() {
        let text = |letter: &str| format!("Same. {}End.", format!("{letter}. ").repeat(1000));
        let (old, new) = changed(&text("a"), &text("b"));
        assert_eq!((old, new), ("a. ".repeat(1000), "b. ".repeat(1000)));
    }
}
