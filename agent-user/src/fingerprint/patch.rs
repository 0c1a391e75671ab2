//! What has changed in a definition, line by line.

use similar::TextDiff;

use crate::decode::find;

use super::visible::visible;
use super::words::{MAX_TEXT, sentences};

/// Lines of which each is compared with each of as many others: comparing takes the product of two such numbers.
const COMPARED: usize = 2_000;
/// Characters of a line of a string.
const WIDTH: usize = 100;
/// Levels that are indented.
const INDENTED: usize = 40;

/// A unified diff of two texts that [`canonical_text`](super::canonical_text) has given, as indented JSON, and visible
/// ([`visible`]). A string of several sentences or lines, or of more than 100 characters, goes on in the next line's
/// quotes; there is no comma between them.
///
/// Texts of over 512 KiB, or with over 2,000 lines from the first to the last that differ, are not compared; then this
/// says so.
pub fn patch(before: &str, after: &str) -> String {
    if before.len().max(after.len()) > MAX_TEXT {
        return format!("too long for a patch: {} bytes before, {} now\n", before.len(), after.len());
    }
    let (before, after) = (pretty(before), pretty(after));
    let (old, new) = different(&before, &after);
    if old.max(new) > COMPARED {
        return format!("too much for a patch: {old} lines before differ from {new} lines now\n");
    }
    let diff = TextDiff::from_lines(&before, &after);
    let diff = diff.unified_diff().header("before", "now").to_string();
    diff.lines().flat_map(|line| [visible(line), "\n".into()]).collect()
}

/// How many lines there are from the first to the last that differ.
fn different(before: &str, after: &str) -> (usize, usize) {
    let same = |pair: &(&str, &str)| pair.0 == pair.1;
    let head = before.lines().zip(after.lines()).take_while(same).count();
    let rest = |text: &str| text.lines().count() - head;
    let (old, new) = (rest(before), rest(after));
    let tail = before.lines().rev().zip(after.lines().rev()).take(old.min(new)).take_while(same).count();
    (old - tail, new - tail)
}

fn pretty(value: &str) -> String {
    let mut out = String::new();
    push(value, 0, &mut out);
    out.push('\n');
    out
}

fn push(value: &str, level: usize, out: &mut String) {
    let mut items = 0;
    let mut item = |out: &mut String| {
        if items > 0 {
            out.push(',');
        }
        items += 1;
        indent(level + 1, out);
    };
    match value.as_bytes() {
        [b'{', b'"', ..] => {
            out.push('{');
            for (name, value) in find::members(value) {
                item(out);
                out.extend(["\"", name, "\": "]);
                push(value, level + 1, out);
            }
            indent(level, out);
            out.push('}');
        }
        [b'[', more, ..] if *more != b']' => {
            out.push('[');
            for value in find::elements(value) {
                item(out);
                push(value, level + 1, out);
            }
            indent(level, out);
            out.push(']');
        }
        [b'"', ..] => push_string(super::string::inner(value), level, out),
        _ => out.push_str(value),
    }
}

fn indent(level: usize, out: &mut String) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", level.min(INDENTED)));
}

fn push_string(text: &str, level: usize, out: &mut String) {
    out.push('"');
    for (index, piece) in sentences(text).into_iter().flat_map(pieces).enumerate() {
        if index > 0 {
            out.push('"');
            indent(level + 1, out);
            out.push('"');
        }
        out.push_str(piece);
    }
    out.push('"');
}

/// Parts of at most so many characters, where no escape is torn.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut at = 0;
        for _ in 0..WIDTH {
            let bytes = rest.as_bytes();
            at += match (bytes.get(at), bytes.get(at + 1)) {
                (Some(b'\\'), Some(b'u')) => 6,
                (Some(b'\\'), _) => 2,
                _ => rest.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8),
            };
        }
        let (piece, behind) = rest.split_at_checked(at).unwrap_or((rest, ""));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_shows_sentences_and_what_is_hidden() {
        let before = r#"{"a":{"b":[1,2],"c":{},"d":[]},"description":"One. Two.\nThree."}"#;
        let after = "{\"a\":{\"b\":[1,3],\"c\":{},\"d\":[]},\"description\":\"One. Tw\u{200b}o.\\nThree.\"}";
        let expect = r#"--- before
+++ now
@@ -2,12 +2,12 @@
   "a": {
     "b": [
       1,
-      2
+      3
     ],
     "c": {},
     "d": []
   },
   "description": "One. "
-    "Two.\n"
+    "Tw<U+200B>o.\n"
     "Three."
 }
"#;
        assert_eq!(patch(before, after), expect);
        assert_eq!(patch(before, before), "");
        assert!(patch("\"a\"", "\"b\"").contains("-\"a\"\n+\"b\"\n"));
    }

    #[test]
    fn long_strings_are_broken_but_not_their_escapes() {
        let text = "\\u001f\\\\\u{e9}".repeat(50);
        let broken: Vec<&str> = pieces(&text).collect();
        assert_eq!(broken.concat(), text);
        assert_eq!(broken.len(), 2);
        assert!(broken[1].starts_with("\\\\"), "{broken:?}");
        for odd in ["\\", "\\u", "a\\u00", "\u{1f600}"] {
            assert_eq!(pieces(odd).collect::<String>(), odd);
        }
    }

    #[test]
    fn what_is_too_much_is_said() {
        let long = |letter: &str| format!("[{}0]", format!("{letter},").repeat(300_000));
        assert!(patch(&long("1"), &long("2")).starts_with("too long"));
        let many = |letter: &str| format!("[{}0]", format!("{letter},").repeat(2_001));
        assert_eq!(
            patch(&many("1"), &many("2")),
            "too much for a patch: 2001 lines before differ from 2001 lines now\n"
        );
        let deep = "[".repeat(512) + "1" + &"]".repeat(512);
        assert!(patch(&deep, &deep.replace('1', "2")).contains("+"));
    }
}
