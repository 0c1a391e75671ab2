//! The canonical form of JSON: one text for all spellings of a value. As RFC 8785 has it (members in the order of their
//! UTF-16, no white space, few escapes), but that numbers keep all their digits ([`number`]), halves of surrogate
//! pairs stay apart ([`string`]), and what [`Place`] says about order and about defaults.
//!
//! One pass over the text; what is out of order is copied once for every level that it is in.

use crate::decode::{Scanner, Stop, unescape};

use super::place::Place;
use super::{number, string};

/// Deeper than the decoder lets through.
const DEEPEST: usize = 512;

/// The canonical form of a value that the decoder has found valid; of other text, that of the text as a string.
pub(super) fn canonical(text: &str, place: Place) -> String {
    with_core(text, place).0
}

/// The same, and what it is without what only some revisions of the protocol have, if there is any of that.
pub(super) fn with_core(text: &str, place: Place) -> (String, Option<String>) {
    let Some((form, depends)) = write(text, place, false) else { return (string::quote(text), None) };
    let core = if depends { write(text, place, true).map(|(core, _)| core) } else { None };
    (form, core)
}

/// Names in canonical form, in their order, and values, still as they are spelled, of the members of a valid object.
pub(super) fn members(text: &str) -> Option<Vec<(String, &str)>> {
    let mut members = Vec::new();
    let mut scanner = scanner(text)?;
    if scanner.peek() != Some(b'{') {
        return None;
    }
    let found = scanner.object(|scanner, name| {
        let value = scanner.value()?;
        let mut canonical = String::with_capacity(name.len() + 2);
        string::push(name, &mut canonical);
        members.push((canonical, value));
        Ok(())
    });
    found.ok().filter(|()| ends(&mut scanner))?;
    // Stable, also further down: members of one name, which never get here from the wire, stay as they are.
    members.sort_by(|(a, _), (b, _)| string::compare(a, b));
    Some(members)
}

/// An object of members that are in canonical form.
pub(super) fn object<'a>(members: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut members: Vec<_> = members.into_iter().collect();
    members.sort_by(|(a, _), (b, _)| string::compare(a, b));
    let mut out =
        String::with_capacity(members.iter().map(|(name, value)| name.len() + value.len() + 2).sum());
    out.push('{');
    for (index, (name, value)) in members.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(name);
        out.push(':');
        out.push_str(value);
    }
    out.push('}');
    out
}

fn scanner(text: &str) -> Option<Scanner<'_>> {
    let mut scanner = Scanner::new(text.as_bytes(), DEEPEST).ok()?;
    scanner.lenient = true;
    Some(scanner)
}

fn ends(scanner: &mut Scanner<'_>) -> bool {
    scanner.space();
    scanner.at_end()
}

/// The form, and whether something in it depends on the revision of the protocol; for `core` this is left out.
fn write(text: &str, place: Place, core: bool) -> Option<(String, bool)> {
    let mut writer = Writer { out: String::with_capacity(text.len()), core, depends: false };
    let mut scanner = scanner(text)?;
    writer.value(&mut scanner, place).ok().filter(|()| ends(&mut scanner))?;
    Some((writer.out, writer.depends))
}

struct Writer {
    out: String,
    core: bool,
    depends: bool,
}

/// A member or an element in what was written.
struct Item {
    start: usize,
    /// Where its name ends, if it has one.
    name_end: usize,
    end: usize,
    equals_none: bool,
}

impl Writer {
    fn value(&mut self, scanner: &mut Scanner<'_>, place: Place) -> Result<(), Stop> {
        match scanner.peek() {
            Some(b'{') => return self.object(scanner, place),
            Some(b'[') => return self.array(scanner, place),
            Some(b'"') => string::push(string::inner(scanner.value()?), &mut self.out),
            Some(b'-' | b'0'..=b'9') => number::push(scanner.value()?, &mut self.out),
            _ => self.out.push_str(scanner.value()?),
        }
        Ok(())
    }

    fn object(&mut self, scanner: &mut Scanner<'_>, place: Place) -> Result<(), Stop> {
        self.out.push('{');
        let begin = self.out.len();
        let mut items = Vec::new();
        scanner.object(|scanner, name| {
            let of_member = place.of_member(&unescape(name));
            if of_member.depends_on_revision() {
                self.depends = true;
                if self.core {
                    return scanner.skip();
                }
            }
            let start = self.out.len();
            string::push(name, &mut self.out);
            let name_end = self.out.len();
            self.out.push(':');
            self.value(scanner, of_member)?;
            let end = self.out.len();
            let equals_none = of_member.equals_none(self.text(name_end + 1, end));
            items.push(Item { start, name_end, end, equals_none });
            self.out.push(',');
            Ok(())
        })?;
        let name = |item: &Item| self.text(item.start, item.name_end);
        let mut in_order = items.is_sorted_by(|a, b| string::compare(name(a), name(b)).is_le());
        if !in_order {
            items.sort_by(|a, b| string::compare(name(a), name(b)));
        }
        // Of two members of one name, which never get here from the wire, none is like none.
        let once = || items.windows(2).all(|pair| pair.first().map(name) != pair.last().map(name));
        if items.iter().any(|item| item.equals_none) && once() {
            items.retain(|item| !item.equals_none);
            in_order = false;
        }
        self.finish(begin, &items, in_order, '}');
        Ok(())
    }

    fn array(&mut self, scanner: &mut Scanner<'_>, place: Place) -> Result<(), Stop> {
        self.out.push('[');
        let begin = self.out.len();
        let mut items = Vec::new();
        scanner.array(|scanner| {
            let start = self.out.len();
            self.value(scanner, place.of_element())?;
            if place.is_set() {
                items.push(Item { start, name_end: start, end: self.out.len(), equals_none: false });
            }
            self.out.push(',');
            Ok(())
        })?;
        let text = |item: &Item| self.text(item.start, item.end);
        let in_order = items.is_sorted_by(|a, b| text(a) <= text(b));
        if !in_order {
            items.sort_by(|a, b| text(a).cmp(text(b)));
        }
        self.finish(begin, &items, in_order, ']');
        Ok(())
    }

    /// Closes an object or a list. If what was written from `begin` on is not in the order of `items`, it is made so.
    fn finish(&mut self, begin: usize, items: &[Item], in_order: bool, close: char) {
        if !in_order {
            let written = self.out.split_off(begin);
            for item in items {
                self.out.push_str(written.get(item.start - begin..item.end - begin).unwrap_or_default());
                self.out.push(',');
            }
        }
        if self.out.len() > begin {
            // The comma behind the last one.
            self.out.pop();
        }
        self.out.push(close);
    }

    fn text(&self, start: usize, end: usize) -> &str {
        self.out.get(start..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(place: Place, spellings: &[&str], expect: &str) {
        for text in spellings {
            assert_eq!(canonical(text, place), expect, "{text}");
        }
        assert_eq!(canonical(expect, place), expect);
    }

    #[test]
    fn spellings_of_a_value_are_one_text() {
        check(
            Place::Plain,
            &[
                " { \"b\" : [ 1e2 , 1.0 ] ,\n\"a\":{\"d\":\"\\u0078\",\"c\":null} } ",
                r#"{"\u0061":{"c":null,"d":"x"},"b":[100,1]}"#,
            ],
            r#"{"a":{"c":null,"d":"x"},"b":[100,1]}"#,
        );
        for (text, expect) in [("[ ]", "[]"), ("{ }", "{}"), (" true", "true"), ("-0", "0"), ("\"\"", "\"\"")]
        {
            check(Place::Plain, &[text], expect);
        }
        // All names of an object are in order, also where UTF-8 has another one.
        check(
            Place::Plain,
            &["{\"\u{fb33}\":1,\"\u{1f600}\":2,\"\\ud83e\":3}"],
            "{\"\u{1f600}\":2,\"\\ud83e\":3,\"\u{fb33}\":1}",
        );
    }

    #[test]
    fn lists_are_in_order_but_for_sets_of_schemas() {
        check(
            Place::Plain,
            &[r#"{"required":["b","a"],"anyOf":[2,1]}"#],
            r#"{"anyOf":[2,1],"required":["b","a"]}"#,
        );
        let sets = r#"{"allOf":[{"type":["null","string"]},{}],"enum":["a",[2,1],{"enum":["b","a"]}],"required":["b","a"]}"#;
        let sorted = r#"{"allOf":[{"type":["null","string"]},{}],"enum":["a",[2,1],{"enum":["b","a"]}],"required":["a","b"]}"#;
        check(Place::Schema, &[sets, &sets.replace(r#"["null","string"]"#, r#"["string","null"]"#)], sorted);
        // One type in a list is not that type, and what is twice in a set is twice.
        check(Place::Schema, &[r#"{"type":["string"]}"#], r#"{"type":["string"]}"#);
        check(Place::Schema, &[r#"{"enum":[1,2,1]}"#], r#"{"enum":[1,1,2]}"#);
        for ordered in ["prefixItems", "examples", "const", "default", "items", "x-other"] {
            let text = format!(r#"{{"{ordered}":[2,1]}}"#);
            check(Place::Schema, &[&text], &text);
        }
    }

    #[test]
    fn names_are_no_keywords_and_data_is_no_schema() {
        for names in ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"] {
            check(
                Place::Schema,
                &[&format!(
                    r#"{{"{names}":{{"required":{{"enum":[2,1]}},"default":{{"type":["b","a"]}}}}}}"#
                )],
                &format!(r#"{{"{names}":{{"default":{{"type":["a","b"]}},"required":{{"enum":[1,2]}}}}}}"#),
            );
        }
        for data in ["default", "const", "examples", "x-other"] {
            let text = format!(r#"{{"{data}":{{"enum":[2,1],"properties":{{"a":{{"enum":[2,1]}}}}}}}}"#);
            check(Place::Schema, &[&text], &text);
        }
        for schema in
            ["items", "not", "if", "then", "else", "contains", "additionalProperties", "propertyNames"]
        {
            check(
                Place::Schema,
                &[&format!(r#"{{"{schema}":{{"enum":[2,1]}}}}"#)],
                &format!(r#"{{"{schema}":{{"enum":[1,2]}}}}"#),
            );
        }
        check(
            Place::Schema,
            &[r#"{"prefixItems":[{"enum":[2,1]},{}]}"#],
            r#"{"prefixItems":[{"enum":[1,2]},{}]}"#,
        );
        check(
            Place::Schema,
            &[r#"{"dependentRequired":{"enum":["b","a"]}}"#],
            r#"{"dependentRequired":{"enum":["a","b"]}}"#,
        );
        check(
            Place::Schema,
            &[r#"{"dependencies":{"x":["b","a"],"default":{"required":["b","a"]}}}"#],
            r#"{"dependencies":{"default":{"required":["a","b"]},"x":["a","b"]}}"#,
        );
    }

    #[test]
    fn defaults_equal_none() {
        let dialect = concat!("https:", "//json-schema.org/draft/2020-12/schema");
        let with = |dialect: &str| format!(r#"{{"type":"object","$schema":"{dialect}"}}"#);
        check(
            Place::RootSchema,
            &[&with(dialect), &with(&format!("{dialect}#")), &with(&dialect.replace('/', "\\/"))],
            r#"{"type":"object"}"#,
        );
        for other in [dialect.replace("2020-12", "2019-09"), format!("{dialect}##"), format!("{dialect}/")] {
            assert!(canonical(&with(&other), Place::RootSchema).contains("$schema"), "{other}");
        }
        // Only at the root.
        let inner = canonical(&format!(r#"{{"not":{}}}"#, with(dialect)), Place::RootSchema);
        assert!(inner.contains("$schema"), "{inner}");
        check(Place::Execution, &[r#"{"taskSupport":"forbidden","a":1}"#], r#"{"a":1}"#);
        check(Place::Execution, &[r#"{"taskSupport":"optional"}"#], r#"{"taskSupport":"optional"}"#);
    }

    #[test]
    fn what_depends_on_the_revision_is_no_part_of_the_core() {
        let schema = r#"{"$schema":"x","properties":{"x-mcp-header":{"x-mcp-header":"A","type":"string"}},"default":{"x-mcp-header":1}}"#;
        let expect = r#"{"default":{"x-mcp-header":1},"properties":{"x-mcp-header":{"type":"string"}}}"#;
        assert_eq!(with_core(schema, Place::RootSchema).1.as_deref(), Some(expect));
        assert_eq!(with_core(expect, Place::RootSchema).1, None);
    }

    #[test]
    fn members_that_are_there_twice_are_kept_in_their_order() {
        check(Place::Plain, &[r#"{"b":1,"a":2,"a":1}"#], r#"{"a":2,"a":1,"b":1}"#);
        let twice = r#"{"taskSupport":"forbidden","taskSupport":"required"}"#;
        check(Place::Execution, &[twice], twice);
    }

    #[test]
    fn what_is_no_json_is_a_string() {
        let deep = "[".repeat(100_000);
        for text in ["", "{", "[1,]", "{\"a\":1", "1 2", "\"a", "nul", "01", "\u{feff}1", "{\"a\" 1}", &deep]
        {
            assert_eq!(canonical(text, Place::RootSchema), string::quote(text), "{text}");
            assert_eq!(members(text), None, "{text}");
        }
        let deepest = format!("{}{}", "[".repeat(512), "]".repeat(512));
        check(Place::Plain, &[&deepest], &deepest);
    }
}
