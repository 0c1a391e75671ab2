//! What is wrong with a rules file, and where.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::Spanned;

/// A mistake in a file that is good YAML of the right shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Position and id of the rule, if it is one's.
    pub(super) rule: Option<(usize, String)>,
    /// What is wrong, beginning with the field, and the remedy.
    pub(super) error: String,
}

impl Fault {
    pub(super) fn of_file(error: impl Into<String>) -> Fault {
        Fault { rule: None, error: error.into() }
    }

    /// Line and column, both from 1, of the field, or else of its rule, in the text that the file was read from.
    pub fn place(&self, text: &str) -> Option<(u64, u64)> {
        let (position, _) = self.rule.as_ref()?;
        place(text, *position, &self.error)
    }
}

/// Where a rule is in its file: at the field with which `about` begins, or else where it begins.
pub fn place(text: &str, rule: usize, about: &str) -> Option<(u64, u64)> {
    #[derive(Deserialize)]
    struct Places {
        rules: Vec<Spanned<BTreeMap<String, Spanned<IgnoredAny>>>>,
    }
    let places: Places = serde_saphyr::from_str(text).ok()?;
    let rule = places.rules.get(rule)?;
    let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
    let field = about.trim_start_matches('`').split(|letter| !is_part(letter)).next()?;
    let at = rule.value.get(field).map_or(&rule.referenced, |field| &field.referenced);
    Some((at.line(), at.column()))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            Some((position, id)) if id.is_empty() => write!(f, "rule {}: {}", position + 1, self.error),
            Some((position, id)) => write!(f, "rule {} ({id}): {}", position + 1, self.error),
            None => f.write_str(&self.error),
        }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "version: 1
rules:
  - {id: a, action: deny}
  - id: b
    action: deny
    match:
      tool: 'x['
";

    #[track_caller]
    fn check(rule: usize, error: &str, expect: Option<(u64, u64)>) {
        let fault = Fault { rule: Some((rule, "b".to_owned())), error: error.to_owned() };
        assert_eq!(fault.place(TEXT), expect);
    }

    #[test]
    fn a_fault_is_at_its_field_or_its_rule() {
        check(1, "action: x", Some((5, 13)));
        check(1, "`action: deny` has no such", Some((5, 13)));
        check(1, "match.tool: glob", Some((7, 7)));
        check(1, "the id is used twice", Some((4, 5)));
        check(0, "level: x", Some((3, 5)));
        check(2, "id", None);
        assert_eq!(Fault::of_file("version 2").place(TEXT), None);
    }
}
