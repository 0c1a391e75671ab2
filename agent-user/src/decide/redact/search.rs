//! Finds every match in one string, so that nothing is found in what is left.
//!
//! One automaton runs over the text once and finds what matches may begin with or be known by (see
//! [`patterns`](super::patterns)); only there is looked closer.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use memchr::memmem::Finder;

use super::patterns::{self, Clue};
use super::{FIELD_MARK, Kind, PatternName, cards};

/// Some sets of patterns, ready for use.
#[derive(Debug)]
pub(super) struct Search {
    /// `None`: none of the sets has clues.
    automaton: Option<AhoCorasick>,
    /// By the number of its pattern in the automaton.
    clues: Vec<Clue>,
    marks: AhoCorasick,
    /// How all marks begin: nearly no text has one.
    mark: Finder<'static>,
    cards: bool,
}

/// Something to take out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) range: Range<usize>,
    pub(super) kind: Kind,
}

impl Search {
    /// `None`: there are no patterns.
    pub(super) fn of(names: &[PatternName]) -> Option<Search> {
        if names.is_empty() {
            return None;
        }
        let clues: Vec<Clue> = patterns::clues(names).collect();
        let texts = clues.iter().map(|clue| clue.text);
        // Fails only if there are too many or too long patterns, which the tests of this file would show.
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .kind(Some(AhoCorasickKind::DFA))
            .build(texts)
            .ok();
        let kinds = [Kind::Key, Kind::Token, Kind::Card, Kind::Mail];
        let marks = kinds.map(Kind::mark).into_iter().chain([FIELD_MARK]);
        let marks = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(marks).ok()?;
        let mark = Finder::new("[redacted");
        Some(Search { automaton, clues, marks, mark, cards: names.contains(&PatternName::Cards) })
    }

    pub(super) fn has_keys(&self) -> bool {
        self.clues.iter().any(|clue| clue.kind == Kind::Key)
    }

    pub(super) fn has_cards(&self) -> bool {
        self.cards
    }

    /// Whether something was taken out of the text before.
    pub(super) fn has_mark(&self, text: &str) -> bool {
        self.mark.find(text.as_bytes()).is_some() && self.marks.is_match(text)
    }

    /// What to take out of `text`, in its order and without overlaps.
    ///
    /// What lies between marks is searched as if it stood alone, until nothing is found. So the text that comes out,
    /// which has the same pieces between its marks, is not changed by another search.
    pub(super) fn matches(&self, text: &str) -> Vec<Match> {
        let (mut matches, mut left) = (Vec::new(), Vec::new());
        if self.mark.find(text.as_bytes()).is_none() {
            self.search(text, 0..text.len(), &mut matches, &mut left);
        } else {
            left = self.pieces(text);
        }
        for _ in 0..PASSES {
            if left.is_empty() {
                matches.sort_by_key(|found| found.range.start);
                return matches;
            }
            for piece in std::mem::take(&mut left) {
                self.search(text, piece, &mut matches, &mut left);
            }
        }
        let kind = matches.first().map_or(Kind::Key, |found| found.kind);
        vec![Match { range: 0..text.len(), kind }]
    }

    /// Searches a piece once. If something was found, the pieces around it are `left` to be searched again.
    fn search(
        &self,
        text: &str,
        piece: Range<usize>,
        matches: &mut Vec<Match>,
        left: &mut Vec<Range<usize>>,
    ) {
        let Some(part) = text.get(piece.clone()) else { return };
        let mut found = Vec::new();
        if let Some(automaton) = &self.automaton {
            let mut end = 0;
            for hit in automaton.find_overlapping_iter(part) {
                // In what is taken out anyway, or beside it, where the next search finds it. Or the cost were not linear.
                if hit.start() < end {
                    continue;
                }
                let Some(clue) = self.clues.get(hit.pattern().as_usize()) else { continue };
                if let Some(range) = clue.look(part, hit.range()) {
                    end = range.end;
                    found.push(Match { range, kind: clue.kind });
                }
            }
        }
        if self.cards {
            cards::find(part, |range| found.push(Match { range, kind: Kind::Card }));
        }
        if found.is_empty() {
            return;
        }
        found.sort_by_key(|found| (found.range.start, found.kind));
        let mut at = 0;
        for Match { range, kind } in found {
            if range.start >= at {
                left.push(piece.start + at..piece.start + range.start);
                at = range.end;
                matches.push(Match { range: piece.start + range.start..piece.start + range.end, kind });
            }
        }
        left.push(piece.start + at..piece.end);
        left.retain(|piece| !piece.is_empty());
    }

    /// What lies between the marks of earlier redactions.
    fn pieces(&self, text: &str) -> Vec<Range<usize>> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for mark in self.marks.find_iter(text) {
            pieces.push(at..mark.start());
            at = mark.end();
        }
        pieces.push(at..text.len());
        pieces
    }
}

/// The text with marks in place of matches.
pub(super) fn replace(text: &str, matches: &[Match]) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut at = 0;
    for Match { range, kind } in matches {
        replaced.push_str(text.get(at..range.start).unwrap_or_default());
        replaced.push_str(kind.mark());
        at = range.end;
    }
    replaced.push_str(text.get(at..).unwrap_or_default());
    replaced
}

/// After the first pass little is left to find: what only a neighbour hid. A text that goes on is taken out whole.
const PASSES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> Search {
        let names = [PatternName::Keys, PatternName::Tokens, PatternName::Cards, PatternName::Mail];
        let search = Search::of(&names).unwrap();
        assert!(search.automaton.is_some());
        search
    }

    #[track_caller]
    fn check(text: &str, expect: &str) {
        let search = search();
        let replaced = replace(text, &search.matches(text));
        assert_eq!(replaced, expect, "{text}");
        assert_eq!(search.matches(&replaced), [], "twice: {text}");
    }

    #[test]
    fn what_a_neighbour_hid_is_found_too() {
        check("4111111111111111AKIAIOSFODNN7EXAMPLE", "[redacted:card][redacted:key]");
        check("AKIAIOSFODNN7EXAMPLE4111-1111-1111-1111", "[redacted:key][redacted:card]");
        check("bob@example.org_carol@example.org", "[redacted:mail][redacted:mail]");
    }

    #[test]
    fn of_two_at_one_place_the_first_clue_counts() {
        check("password=ghp_abcdefghijklmnopqrstuvwxyz0123456789", "password=[redacted:key]");
        check("https://bob:hunter2@host.example/", "https://bob:[redacted:token]@host.example/");
        check(&format!("Bearer {}{}", "sk-ant-", "api03-x".repeat(4)), "Bearer [redacted:token]");
    }

    #[test]
    fn marks_are_left_alone() {
        for text in [
            "password=[redacted:key]",
            "password: \"[redacted:key]\"",
            "Bearer [redacted:token]",
            "https://bob:[redacted:token]@host.example/",
            "[redacted]@example.org",
            "[redacted:mail]4111[redacted]1111 1111 1111",
        ] {
            check(text, text);
        }
        check("[redacted:card] 4111111111111111[redacted", "[redacted:card] [redacted:card][redacted");
    }

    /// Each part of these texts gives the ones before it a reason to look far.
    #[test]
    fn cost_is_linear() {
        let search = search();
        for unit in [
            "password=",
            "key=key:",
            "password=\"",
            "password='\\\"",
            "eyJ",
            "-eyJ",
            ".eyJ",
            "eyJhbGciOiJub25lIn0.",
            "bearer ",
            "basic ",
            "://",
            "a://b:",
            "@",
            "a@",
            "@a.",
            "a@b.",
            "-----BEGIN PRIVATE KEY-----",
            "sk-ant-",
            "ghp_",
            "ghp_....",
            "4",
            "4 ",
            "4111 ",
            "4111-",
            "411-1111-",
            "\\",
            "\\n",
            "[redacted",
            "[redacted:key]",
            "secret secret ",
            "passphrase=' ",
            "AKIAIOSFODNN7EXAMPLE",
            "4111111111111111",
            "4111111111111111ghp_",
            "\u{e9}@",
            "-",
            "api_key=abcd",
        ] {
            let text = unit.repeat((1 << 16) / unit.len());
            let start = std::time::Instant::now();
            let _ = search.matches(&text);
            // A tenth of a second in a debug build; half a minute where the cost is quadratic.
            let took = start.elapsed();
            assert!(took.as_secs() < 5, "{unit:?}: {took:?}");
        }
    }
}
