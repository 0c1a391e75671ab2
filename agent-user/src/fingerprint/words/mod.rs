//! What has changed in a definition, in words, for whoever has to decide whether that is all right.

mod member;
mod named;
mod schema;
mod sentences;
mod texts;

use std::collections::BTreeMap;

use crate::decode::find;

use self::member::{At, member};
use self::schema::schema;
use self::sentences::{Rank, Sentences};
pub(super) use self::texts::sentences;
use self::texts::texts;
use super::item::{Role, parts, role};
use super::{Hints, Surface};

/// Longer texts, in bytes, are not compared in words or as a patch.
pub(super) const MAX_TEXT: usize = 512 << 10;

/// What has changed between two texts that [`canonical_text`](super::canonical_text) has given: at most 50 sentences, most
/// dangerous first, and visible ([`visible`](super::visible())). None if and only if the texts are equal.
pub fn changes(surface: Surface, before: &str, after: &str) -> Vec<String> {
    if before == after {
        return Vec::new();
    }
    if before.len().max(after.len()) > MAX_TEXT {
        let (before, after) = (before.len(), after.len());
        return vec![format!("changed, and too long to say in what: {before} bytes before, {after} now")];
    }
    let mut said = Sentences::default();
    if is_object(before) && is_object(after) {
        for (name, (before, after)) in union(before, after) {
            top(surface, name, before, after, &mut said);
        }
    } else if surface == Surface::Instructions {
        texts("instructions", Some(before), Some(after), (Rank::Says, Rank::Falls), &mut said);
    } else {
        member(&At::root(), Some(before), Some(after), Rank::Says, &mut said);
    }
    said.together()
}

/// A member of a definition.
fn top(surface: Surface, name: &str, before: Option<&str>, after: Option<&str>, said: &mut Sentences) {
    if before == after {
        return;
    }
    let at = At::root().member(name);
    let rank = match role(surface, name) {
        Role::Display => Rank::Display,
        Role::Meta => Rank::Meta,
        Role::Annotations => Rank::LessSafe,
        _ => Rank::Other,
    };
    match (name, before, after) {
        ("inputSchema", Some(before), Some(after)) if surface == Surface::Tool => {
            schema(&at.of("argument"), before, after, said);
        }
        ("outputSchema", Some(before), Some(after)) if surface == Surface::Tool => {
            schema(&at.of("result"), before, after, said);
        }
        ("annotations", _, _) if surface == Surface::Tool => annotations(&at, before, after, said),
        ("arguments", Some(before), Some(after)) if surface == Surface::Prompt => {
            named::list(&at, "argument", "name", before, after, said);
        }
        ("skills", Some(before), Some(after)) if surface == Surface::AgentCard => {
            named::list(&at, "skill", "id", before, after, said);
        }
        ("description", _, _) => texts("description", before, after, (Rank::Says, Rank::Falls), said),
        _ => member(&at, before, after, rank, said),
    }
}

fn annotations(at: &At, before: Option<&str>, after: Option<&str>, said: &mut Sentences) {
    let texts = (before.unwrap_or("{}"), after.unwrap_or("{}"));
    if !is_object(texts.0) || !is_object(texts.1) {
        return member(at, before, after, Rank::LessSafe, said);
    }
    let hints = |text| parts(Surface::Tool, &format!("{{\"annotations\":{text}}}")).hints;
    for ((name, before, safe), (_, after, _)) in
        hints(texts.0).promises().into_iter().zip(hints(texts.1).promises())
    {
        if before != after {
            let (rank, word) =
                if after == safe { (Rank::Safer, "safer") } else { (Rank::LessSafe, "less safe") };
            said.say(rank, || format!("{name}: {before} -> {after} ({word})"));
        }
    }
    let is_said = |value: Option<&str>| matches!(value, None | Some("true" | "false"));
    for (name, (before, after)) in union(texts.0, texts.1) {
        if Hints::NAMES.contains(&name) && is_said(before) && is_said(after) {
            continue;
        }
        let rank = if name == "title" { Rank::Display } else { Rank::LessSafe };
        member(&at.member(name), before, after, rank, said);
    }
}

fn is_object(value: &str) -> bool {
    value.starts_with('{')
}

/// The members of two objects by their names, still escaped.
fn union<'a>(before: &'a str, after: &'a str) -> BTreeMap<&'a str, (Option<&'a str>, Option<&'a str>)> {
    let mut union: BTreeMap<_, (Option<_>, Option<_>)> = BTreeMap::new();
    find::members(before).for_each(|(name, value)| union.entry(name).or_default().0 = Some(value));
    find::members(after).for_each(|(name, value)| union.entry(name).or_default().1 = Some(value));
    union
}

/// What two lists have more of than the other one.
fn exchanged<'a>(before: &'a str, after: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    let mut counts: BTreeMap<&str, isize> = BTreeMap::new();
    find::elements(before).for_each(|value| *counts.entry(value).or_default() -= 1);
    find::elements(after).for_each(|value| *counts.entry(value).or_default() += 1);
    let of =
        |sign: isize| counts.iter().filter(move |(_, count)| **count * sign > 0).map(|(value, _)| *value);
    (of(-1).collect(), of(1).collect())
}

#[cfg(test)]
mod tests;
