//! What looks like something that has just gone from the same list: the same but for its name, or of a name that is
//! hardly another one. A hint for operators.

use std::sync::Arc;

use serde_json::Value;

use super::id::first_bytes;
use super::list::List;
use crate::fingerprint::Digest;

/// Names that are compared with each other, of those gone and of those new.
const MOST: usize = 64;
/// Longest name that is compared letter by letter, in bytes.
const MAX_NAME: usize = 128;
/// How like each other names are that are hardly two (Jaro-Winkler, 1 being the same).
const CLOSE: f64 = 0.92;

/// Digest of a definition but for its name.
pub(super) fn body(text: &str) -> u64 {
    let Ok(Value::Object(mut members)) = serde_json::from_str(text) else {
        return first_bytes(Digest::of(text.as_bytes()).0);
    };
    members.remove("name");
    first_bytes(Digest::of(Value::Object(members).to_string().as_bytes()).0)
}

/// Pairs of what is new and what is gone. Each of them is in one pair.
pub(super) fn find(list: &List, gone: &[Arc<str>], new: &[Arc<str>]) -> Vec<(Arc<str>, Arc<str>)> {
    let mut gone: Vec<&Arc<str>> = gone.iter().take(MOST).collect();
    let mut pairs = Vec::new();
    let body = |name: &Arc<str>| list.items.get(name).map(|item| item.body);
    for new in new.iter().take(MOST) {
        let same = gone.iter().position(|old| body(old) == body(new));
        let close = || gone.iter().position(|old| are_close(old, new));
        if let Some(index) = same.or_else(close) {
            pairs.push((new.clone(), gone.swap_remove(index).clone()));
        }
    }
    pairs
}

fn are_close(one: &str, other: &str) -> bool {
    one.len() <= MAX_NAME && other.len() <= MAX_NAME && strsim::jaro_winkler(one, other) >= CLOSE
}
