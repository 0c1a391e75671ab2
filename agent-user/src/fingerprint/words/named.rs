//! Lists whose elements are known by a name in them, whatever their order: arguments of prompts, skills of agents.

use std::collections::BTreeMap;

use crate::decode::find;

use super::member::{At, list as values, member, shown};
use super::sentences::{Rank, Sentences};
use super::texts::texts;
use super::{exchanged, is_object, union};

/// Compares two lists of such things.
pub(super) fn list(at: &At, noun: &'static str, key: &str, before: &str, after: &str, said: &mut Sentences) {
    let (Some(old), Some(new)) = (by_name(before, key), by_name(after, key)) else {
        return nameless(at, before, after, said);
    };
    let names: Vec<&str> =
        old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))).copied().collect();
    let at = at.of(noun);
    for name in names {
        let at = at.named(super::super::string::inner(name));
        match (old.get(name), new.get(name)) {
            (Some(before), Some(after)) if before != after => {
                for (name, (before, after)) in union(before, after) {
                    thing(&at.member(name), name, before, after, said);
                }
            }
            (Some(_), Some(_)) | (None, None) => {}
            (None, Some(after)) => {
                said.say(Rank::Takes, || format!("{} added: {}", at.subject(), shown(after)))
            }
            (Some(before), None) => {
                said.say(Rank::Falls, || format!("{} removed: {}", at.subject(), shown(before)));
            }
        }
    }
}

/// A member of one of the things.
fn thing(at: &At, name: &str, before: Option<&str>, after: Option<&str>, said: &mut Sentences) {
    let subject = at.subject();
    match (name, before, after) {
        _ if before == after => {}
        ("required", before, Some("true")) if before != Some("true") => {
            said.say(Rank::Takes, || format!("{subject} is now required"));
        }
        ("required", Some("true"), None | Some("false")) => {
            said.say(Rank::Takes, || format!("{subject} is no longer required"));
        }
        ("description" | "title", _, _) => {
            texts(&format!("{subject}: {name}"), before, after, (Rank::Says, Rank::Falls), said);
        }
        _ => member(at, before, after, Rank::Other, said),
    }
}

/// `None` if some have no name, or two have the same.
fn by_name<'a>(list: &'a str, key: &str) -> Option<BTreeMap<&'a str, &'a str>> {
    let mut things = BTreeMap::new();
    for thing in find::elements(list) {
        let name = find::member(thing, key).ok()??;
        if !is_object(thing) || !name.starts_with('"') || things.insert(name, thing).is_some() {
            return None;
        }
    }
    list.starts_with('[').then_some(things)
}

fn nameless(at: &At, before: &str, after: &str, said: &mut Sentences) {
    let (old, new) = exchanged(before, after);
    if old.is_empty() && new.is_empty() {
        return member(at, Some(before), Some(after), Rank::Takes, said);
    }
    if !new.is_empty() {
        said.say(Rank::Takes, || format!("{} now has {}", at.subject(), values(&new)));
    }
    if !old.is_empty() {
        said.say(Rank::Falls, || format!("{} no longer has {}", at.subject(), values(&old)));
    }
}
