//! Changes of a JSON Schema, in words.

use std::collections::BTreeSet;

use crate::decode::find;

use super::super::string;
use super::member::{At, list, member, shown};
use super::sentences::{Rank, Sentences};
use super::texts::texts;
use super::{exchanged, is_object, union};

/// Says in what two schemas differ, at any depth.
pub(super) fn schema(at: &At, before: &str, after: &str, said: &mut Sentences) {
    if before == after {
        return;
    }
    if !is_object(before) || !is_object(after) {
        return said.say(Rank::Takes, || {
            format!("{}: schema changed from {} to {}", at.subject(), shown(before), shown(after))
        });
    }
    for (name, (old, new)) in union(before, after) {
        if old == new {
            continue;
        }
        let inner = at.member(name);
        let count = said.count();
        match (name, old, new) {
            ("properties", _, _) => properties(&inner, (old, new), (before, after), said),
            ("required", _, _) => {
                required(at, (old, new), (before, after), said);
                continue;
            }
            ("enum" | "type", Some(old), Some(new)) if name == "enum" || is_list(old) && is_list(new) => {
                values(at, old, new, said);
            }
            ("additionalProperties", _, _) => additional(&inner, old, new, said),
            (
                "items" | "not" | "contains" | "propertyNames" | "if" | "then" | "else",
                Some(old),
                Some(new),
            ) => {
                let suffix = if name == "items" { "[]".to_owned() } else { format!(" ({name})") };
                schema(&inner.part(&suffix), old, new, said);
            }
            ("$defs" | "definitions", Some(old), Some(new)) => {
                for (name, (old, new)) in union(old, new) {
                    either(&inner.member(name).of("definition").named(name), old, new, said);
                }
            }
            ("anyOf" | "oneOf" | "allOf", Some(old), Some(new)) => alternatives(&inner, name, old, new, said),
            ("description" | "title" | "$comment", _, _) => {
                texts(&of(at, name), old, new, (Rank::Says, Rank::Falls), said);
            }
            _ => keyword(at, name, old, new, said),
        }
        if said.count() == count {
            member(&inner, old, new, Rank::Other, said);
        }
    }
}

/// A keyword of a schema, in words.
fn of(at: &At, keyword: &str) -> String {
    format!("{}: {}", at.subject(), super::super::visible::cut(keyword, 60))
}

/// A schema that may have come or gone.
fn either(at: &At, before: Option<&str>, after: Option<&str>, said: &mut Sentences) {
    match (before, after) {
        (Some(before), Some(after)) => schema(at, before, after, said),
        (None, Some(after)) => said.say(Rank::Takes, || format!("{} added: {}", at.subject(), shown(after))),
        (Some(before), None) => {
            said.say(Rank::Takes, || format!("{} removed: {}", at.subject(), shown(before)));
        }
        (None, None) => {}
    }
}

type Pair<'a> = (Option<&'a str>, Option<&'a str>);

/// `at` is that of `properties`; `around` the schemas that these are of.
fn properties(at: &At, (old, new): Pair<'_>, around: (&str, &str), said: &mut Sentences) {
    let needed: BTreeSet<&str> =
        member_of(around.1, "required").map(find::elements).into_iter().flatten().collect();
    for (name, (before, after)) in union(old.unwrap_or("{}"), new.unwrap_or("{}")) {
        let at = at.member(name).named(name);
        match (before, after) {
            (None, Some(after)) => {
                let required =
                    if needed.contains(format!("\"{name}\"").as_str()) { " (required)" } else { "" };
                said.say(Rank::Takes, || format!("{} added{required}: {}", at.subject(), shown(after)));
            }
            _ => either(&at, before, after, said),
        }
    }
}

/// `at` is that of the schema.
fn required(at: &At, (old, new): Pair<'_>, around: (&str, &str), said: &mut Sentences) {
    let names = |schema| -> BTreeSet<&str> {
        member_of(schema, "properties")
            .map(find::members)
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
            .collect()
    };
    let (before, after) = (names(around.0), names(around.1));
    let (dropped, needed) = exchanged(old.unwrap_or("[]"), new.unwrap_or("[]"));
    if dropped.is_empty() && needed.is_empty() {
        return member(&at.member("required"), old, new, Rank::Takes, said);
    }
    for (values, there, word) in [(needed, &before, "is now"), (dropped, &after, "is no longer")] {
        for value in values {
            let name = string::inner(value);
            // Of those that came or went it was said before.
            if there.contains(name) || !before.contains(name) && !after.contains(name) {
                let subject = if value.starts_with('"') { at.named(name).subject() } else { shown(value) };
                said.say(Rank::Takes, || format!("{subject} {word} required"));
            }
        }
    }
}

fn values(at: &At, old: &str, new: &str, said: &mut Sentences) {
    let (gone, come) = exchanged(old, new);
    if !come.is_empty() {
        said.say(Rank::Takes, || format!("{} may now also be {}", at.subject(), list(&come)));
    }
    if !gone.is_empty() {
        said.say(Rank::Takes, || format!("{} may no longer be {}", at.subject(), list(&gone)));
    }
}

/// `at` is that of `additionalProperties`.
fn additional(at: &At, old: Option<&str>, new: Option<&str>, said: &mut Sentences) {
    let takes = |word: &str| match at.subject().as_str() {
        "arguments" => format!("{word} take arguments that are not listed (additionalProperties)"),
        subject => format!("{subject} {word} have members that are not listed (additionalProperties)"),
    };
    match (old, new) {
        (Some("false"), None | Some("true")) => said.say(Rank::Takes, || takes("may now")),
        (Some("false"), Some(new)) => {
            said.say(Rank::Takes, || format!("{}: {}", takes("may now"), shown(new)))
        }
        (_, Some("false")) => said.say(Rank::Falls, || takes("may no longer")),
        (Some(old), Some(new)) => schema(&at.part(".*"), old, new, said),
        _ => {}
    }
}

fn alternatives(at: &At, name: &str, old: &str, new: &str, said: &mut Sentences) {
    let (gone, come) = exchanged(old, new);
    if let ([gone], [come]) = (gone.as_slice(), come.as_slice()) {
        return schema(&at.part(&format!(" ({name})")), gone, come, said);
    }
    if !come.is_empty() {
        said.say(Rank::Takes, || format!("{}: {name} now also has {}", at.subject(), list(&come)));
    }
    if !gone.is_empty() {
        said.say(Rank::Takes, || format!("{}: {name} no longer has {}", at.subject(), list(&gone)));
    }
}

/// One whose value is no schema.
fn keyword(at: &At, name: &str, old: Option<&str>, new: Option<&str>, said: &mut Sentences) {
    let plain = |value: &str| match value {
        _ if name == "type" => shown(value).trim_matches('"').to_owned(),
        _ => shown(value),
    };
    let subject = || of(at, name);
    match (old, new) {
        // Where in there is said by pointer.
        (Some(old), Some(new)) if is_object(old) && is_object(new) || is_list(old) && is_list(new) => {}
        (Some(old), Some(new)) => {
            said.say(Rank::Takes, || format!("{} changed from {} to {}", subject(), plain(old), plain(new)));
        }
        (None, Some(new)) => said.say(Rank::Takes, || format!("{} added: {}", subject(), plain(new))),
        (Some(old), None) => said.say(Rank::Takes, || format!("{} removed: {}", subject(), plain(old))),
        (None, None) => {}
    }
}

fn is_list(value: &str) -> bool {
    value.starts_with('[')
}

fn member_of<'a>(schema: &'a str, name: &str) -> Option<&'a str> {
    find::members(schema).find_map(|(other, value)| (other == name).then_some(value))
}
