//! One walk over JSON text that notes what to replace, and then does it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use crate::decode::{Scanner, Stop, unescape, unescape_one};

use super::label::{self, Label};
use super::pointer::{Open, Place};
use super::search::{self, Match, Search};
use super::splice::locate;
use super::{FIELD_MARK, Found, Kind, Redacted, Redaction, Replaced, cards};

pub(super) fn walk(redaction: &Redaction, json: &str) -> Option<Redacted> {
    let mut walk =
        Walk { text: json, redaction, edits: Vec::new(), found: Found::default(), replaced: Vec::new() };
    let mut scanner = Scanner::new(json.as_bytes(), usize::MAX).ok()?;
    scanner.lenient = true;
    walk.value(&mut scanner, &Open::all(&redaction.fields), None).ok()?;
    scanner.space();
    if !scanner.at_end() || walk.edits.is_empty() {
        return None;
    }
    Some(Redacted { text: walk.edited(), found: walk.found, replaced: walk.replaced })
}

struct Walk<'a> {
    text: &'a str,
    redaction: &'a Redaction,
    edits: Vec<(Range<usize>, Cow<'static, str>)>,
    found: Found,
    replaced: Vec<Replaced>,
}

/// A name of a member with something to take out.
struct Rename<'a> {
    raw: &'a str,
    matches: Vec<Match>,
}

impl<'a> Walk<'a> {
    /// Reads the value at the cursor. `label` is what the name of its member says that it is.
    fn value(&mut self, scanner: &mut Scanner<'a>, open: &Open, label: Option<Label>) -> Result<(), Stop> {
        match scanner.peek() {
            _ if open.is_none() && self.search().is_none() => scanner.skip(),
            Some(b'{') => self.object(scanner, open),
            Some(b'[') => {
                let mut index = 0;
                scanner.array(|scanner| {
                    let place = Place::Element(index);
                    index += 1;
                    self.inner(scanner, open, place, None)
                })
            }
            Some(b'"') => {
                let raw = scanner.value()?;
                self.string(raw, label);
                Ok(())
            }
            _ => {
                let raw = scanner.value()?;
                self.bare(raw);
                Ok(())
            }
        }
    }

    /// Reads the value at the cursor, at a place inside of the one that `open` is of.
    fn inner(
        &mut self,
        scanner: &mut Scanner<'a>,
        open: &Open,
        place: Place<'_>,
        label: Option<Label>,
    ) -> Result<(), Stop> {
        if open.is_none() {
            return self.value(scanner, open, label);
        }
        let inside = open.at(&self.redaction.fields, place);
        if !inside.ends {
            return self.value(scanner, &inside, label);
        }
        let known = self.replaced.len();
        let (raw, ()) = scanner.spanned(|scanner| self.gather(scanner))?;
        if raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')) == Some(FIELD_MARK) {
            self.replaced.truncate(known);
        } else {
            self.found.fields += 1;
            self.replace_whole(raw, FIELD_MARK);
        }
        Ok(())
    }

    fn object(&mut self, scanner: &mut Scanner<'a>, open: &Open) -> Result<(), Stop> {
        let mut names = Vec::new();
        let mut renames = Vec::new();
        scanner.object(|scanner, raw| {
            let name = unescape(raw);
            let matches = self.search().map(|search| search.matches(&name)).unwrap_or_default();
            if matches.is_empty() {
                names.push(raw);
            } else {
                renames.push(Rename { raw, matches });
            }
            let label = self.search().filter(|search| search.has_keys() && !search.has_mark(&name));
            let label = label.and_then(|_| label::label_of(&name));
            self.inner(scanner, open, Place::Member(&name), label)
        })?;
        if !renames.is_empty() {
            self.rename(&names, renames);
        }
        Ok(())
    }

    /// Takes matches out of names. Those that become the same as another get a number.
    fn rename(&mut self, names: &[&str], renames: Vec<Rename<'a>>) {
        // Of each name the number that was given last.
        let mut taken: HashMap<String, usize> =
            names.iter().map(|raw| (unescape(raw).into_owned(), 1)).collect();
        for Rename { raw, matches } in renames {
            let name = search::replace(&unescape(raw), &matches);
            let mut number = taken.get(&name).copied().unwrap_or_default();
            let mut suffix = String::new();
            loop {
                number += 1;
                if number > 1 {
                    // Brackets, so that it makes no number, host or value with what is before.
                    suffix = format!(" ({number})");
                }
                if !taken.contains_key(&format!("{name}{suffix}")) {
                    break;
                }
            }
            taken.insert(format!("{name}{suffix}"), 1);
            taken.insert(name, number);
            self.take_out(raw, &matches);
            if let Some(place) = locate(self.text, raw).filter(|_| !suffix.is_empty()) {
                self.edits.push((place.end..place.end, suffix.into()));
            }
        }
    }

    fn string(&mut self, raw: &'a str, label: Option<Label>) {
        let Some(search) = self.search() else { return };
        let inner = raw.get(1..raw.len() - 1).unwrap_or_default();
        let text = unescape(inner);
        if label.is_some_and(|label| label::is_secret(label, &text)) && !search.has_mark(&text) {
            self.replaced.push(Replaced { was: text.into_owned(), now: Kind::Key.mark() });
            self.found.count(Kind::Key);
            self.replace_whole(raw, Kind::Key.mark());
            return;
        }
        let matches = search.matches(&text);
        self.take_out(inner, &matches);
    }

    /// A number or a word.
    fn bare(&mut self, raw: &'a str) {
        if self.search().is_some_and(Search::has_cards) && cards::is_card_number(raw) {
            self.replaced.push(Replaced { was: raw.to_owned(), now: Kind::Card.mark() });
            self.found.count(Kind::Card);
            self.replace_whole(raw, Kind::Card.mark());
        }
    }

    /// Skips a value that is taken out whole, and keeps the scalars in it.
    fn gather(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Stop> {
        match scanner.peek() {
            Some(b'{') => scanner.object(|scanner, _| self.gather(scanner)),
            Some(b'[') => scanner.array(|scanner| self.gather(scanner)),
            _ => {
                let raw = scanner.value()?;
                let string = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
                let was = string.map_or(Cow::Borrowed(raw), unescape).into_owned();
                if raw != "null" {
                    self.replaced.push(Replaced { was, now: FIELD_MARK });
                }
                Ok(())
            }
        }
    }

    fn replace_whole(&mut self, raw: &str, mark: &str) {
        let place = locate(self.text, raw);
        self.edits.extend(place.map(|place| (place, format!("\"{mark}\"").into())));
    }

    /// Takes matches out of the inside of a string, of which they are as it is unescaped.
    fn take_out(&mut self, raw: &str, matches: &[Match]) {
        let Some(start) = locate(self.text, raw).map(|place| place.start) else { return };
        let mut escapes = Escapes::of(raw);
        for Match { range, kind } in matches {
            let place = start + escapes.raw_at(range.start)..start + escapes.raw_at(range.end);
            self.found.count(*kind);
            self.edits.push((place, kind.mark().into()));
        }
    }

    fn search(&self) -> Option<&'a Search> {
        self.redaction.search.as_ref()
    }

    fn edited(&mut self) -> String {
        // Names come after what they are names of.
        self.edits.sort_by_key(|(place, _)| place.start);
        let mut text = String::with_capacity(self.text.len());
        let mut at = 0;
        for (place, with) in &self.edits {
            text.push_str(self.text.get(at..place.start).unwrap_or_default());
            text.push_str(with);
            at = place.end;
        }
        text.push_str(self.text.get(at..).unwrap_or_default());
        text
    }
}

/// Finds places of an unescaped string in its text; in ascending order.
struct Escapes<'a> {
    raw: &'a str,
    at: usize,
    unescaped: usize,
}

impl<'a> Escapes<'a> {
    fn of(raw: &'a str) -> Escapes<'a> {
        Escapes { raw, at: 0, unescaped: 0 }
    }

    fn raw_at(&mut self, wanted: usize) -> usize {
        loop {
            let rest = self.raw.as_bytes().get(self.at..).unwrap_or_default();
            let near = rest.get(..(wanted - self.unescaped).min(rest.len())).unwrap_or_default();
            let plain = memchr::memchr(b'\\', near).unwrap_or(near.len());
            self.at += plain;
            self.unescaped += plain;
            if plain == near.len() {
                return self.at;
            }
            let (char, length) = unescape_one(rest.get(plain..).unwrap_or_default()).unwrap_or((None, 1));
            self.at += length;
            self.unescaped += char.unwrap_or(char::REPLACEMENT_CHARACTER).len_utf8();
        }
    }
}
