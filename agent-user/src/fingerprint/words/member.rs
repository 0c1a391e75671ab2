//! Changes of JSON that there are no words of its own for, by JSON Pointer (RFC 6901).

use std::borrow::Cow;

use crate::decode::{find, unescape};

use super::super::visible::cut;
use super::sentences::{Rank, Sentences};
use super::texts::texts;
use super::{is_object, union};

/// Characters of a value that are shown.
const SHOWN: usize = 200;
/// Characters of a pointer or path that are shown.
const SHOWN_PATH: usize = 120;
/// Longer strings, in bytes, are compared by their sentences.
const SHORT: usize = 80;

/// A place in a definition, made visible.
#[derive(Clone)]
pub(super) struct At {
    pointer: String,
    /// What a schema is of, in words: of an `argument`, for example.
    what: &'static str,
    /// Which of these; empty for all.
    path: String,
}

impl At {
    /// The definition.
    pub(super) fn root() -> At {
        At { pointer: String::new(), what: "", path: String::new() }
    }

    /// A member of this. `name` is still escaped.
    pub(super) fn member(&self, name: &str) -> At {
        let name = unescape(name).replace('~', "~0").replace('/', "~1");
        At { pointer: longer(&self.pointer, "/", &name), ..self.clone() }
    }

    /// The same as the schema of such things, or as one of such.
    pub(super) fn of(&self, what: &'static str) -> At {
        At { pointer: self.pointer.clone(), what, path: String::new() }
    }

    /// The same as the one of this name, still escaped.
    pub(super) fn named(&self, name: &str) -> At {
        let dot = if self.path.is_empty() { "" } else { "." };
        At { path: longer(&self.path, dot, &unescape(name)), ..self.clone() }
    }

    /// The same, being a part of it.
    pub(super) fn part(&self, suffix: &str) -> At {
        At { path: longer(&self.path, suffix, ""), ..self.clone() }
    }

    /// In words.
    pub(super) fn subject(&self) -> String {
        match (self.what, self.path.is_empty()) {
            ("", _) => self.place(),
            ("argument", true) => "arguments".to_owned(),
            (what, true) => what.to_owned(),
            (what, false) => format!("{what} `{}`", cut(&self.path, SHOWN_PATH)),
        }
    }

    /// By pointer; members of the definition itself by their names.
    fn place(&self) -> String {
        match self.pointer.strip_prefix('/') {
            None => "definition".to_owned(),
            Some(name) if name.bytes().all(|byte| byte.is_ascii_alphanumeric()) => cut(name, SHOWN_PATH),
            Some(_) => format!("`{}`", cut(&self.pointer, SHOWN_PATH)),
        }
    }
}

/// A path that does not grow without bound, so that as many as there are members take no time.
fn longer(path: &str, separator: &str, name: &str) -> String {
    let name = if path.len() > 10 * SHOWN_PATH { "…".to_owned() } else { cut(name, SHOWN_PATH) };
    if path.ends_with('…') { path.to_owned() } else { format!("{path}{separator}{name}") }
}

/// A value as it may be shown.
pub(super) fn shown(value: &str) -> String {
    cut(value, SHOWN)
}

/// Several of them.
pub(super) fn list(values: &[&str]) -> String {
    const MOST: usize = 10;
    let mut texts: Vec<Cow<'_, str>> = values.iter().take(MOST).map(|value| shown(value).into()).collect();
    if values.len() > MOST {
        texts.push(format!("and {} more", values.len() - MOST).into());
    }
    texts.join(", ")
}

/// Says in what two values differ.
pub(super) fn member(at: &At, before: Option<&str>, after: Option<&str>, rank: Rank, said: &mut Sentences) {
    match (before, after) {
        _ if before == after => {}
        (Some(before), Some(after)) if is_object(before) && is_object(after) => {
            for (name, (before, after)) in union(before, after) {
                member(&at.member(name), before, after, rank, said);
            }
        }
        (Some(before), Some(after)) if before.starts_with('[') && after.starts_with('[') => {
            elements(at, before, after, rank, said);
        }
        (Some(old), Some(new))
            if old.starts_with('"') && new.starts_with('"') && old.len().max(new.len()) > SHORT =>
        {
            texts(&at.place(), before, after, (rank, rank), said);
        }
        (Some(before), Some(after)) => {
            said.say(rank, || format!("{} changed from {} to {}", at.place(), shown(before), shown(after)));
        }
        (None, Some(after)) => said.say(rank, || format!("{} added: {}", at.place(), shown(after))),
        (Some(before), None) => said.say(rank, || format!("{} removed: {}", at.place(), shown(before))),
        (None, None) => {}
    }
}

/// Of two lists, what is between the beginning and the end that they share.
fn elements(at: &At, before: &str, after: &str, rank: Rank, said: &mut Sentences) {
    let (before, after): (Vec<_>, Vec<_>) =
        (find::elements(before).collect(), find::elements(after).collect());
    let same = |pair: &(&&str, &&str)| pair.0 == pair.1;
    let head = before.iter().zip(&after).take_while(same).count();
    let rest = |list: &[&'_ str]| list.len() - head;
    let shorter = rest(&before).min(rest(&after));
    let tail = before.iter().rev().zip(after.iter().rev()).take(shorter).take_while(same).count();
    let (before, after) = (before.get(..before.len() - tail), after.get(..after.len() - tail));
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    for index in head..before.len().max(after.len()) {
        let at = at.member(&index.to_string());
        member(&at, before.get(index).copied(), after.get(index).copied(), rank, said);
    }
}
