//! What looks like something that has just gone from the same list: the same but for its name, of a name that is hardly
//! another one, of nearly the same text, or with the same schema. A hint for operators.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
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
/// In how many of 64 bits the sketches of texts differ at most that are nearly the same. Those of texts that have nothing
/// to do with each other differ in about 32.
const NEAR: u32 = 10;
/// Words of a text that make up its sketch.
const WORDS: usize = 4_096;

/// What of a definition is compared, but for its name. Zero: there is nothing to compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Looks {
    /// Digest of all of it.
    body: u64,
    /// Digest of its schema, if that has at least two properties.
    schema: u64,
    /// Texts with many words in common have sketches with many bits in common (SimHash).
    sketch: u64,
}

impl Looks {
    pub(super) fn of(text: &str) -> Looks {
        let Ok(Value::Object(mut members)) = serde_json::from_str(text) else {
            return Looks { body: digest(text), ..Looks::default() };
        };
        members.remove("name");
        let schema = members.get("inputSchema").filter(|schema| {
            schema["properties"].as_object().is_some_and(|properties| properties.len() >= 2)
        });
        let schema = schema.map_or(0, |schema| digest(&schema.to_string()));
        let body = Value::Object(members).to_string();
        Looks { body: digest(&body), schema, sketch: sketch(&body) }
    }

    fn are_near(self, other: Looks) -> bool {
        self.sketch != 0 && other.sketch != 0 && (self.sketch ^ other.sketch).count_ones() <= NEAR
    }
}

fn digest(text: &str) -> u64 {
    first_bytes(Digest::of(text.as_bytes()).0)
}

fn sketch(text: &str) -> u64 {
    let mut votes = [0_i32; 64];
    let words = text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    for word in words.take(WORDS) {
        let bits = digest(word);
        votes
            .iter_mut()
            .enumerate()
            .for_each(|(bit, vote)| *vote += if bits >> bit & 1 == 1 { 1 } else { -1 });
    }
    votes.iter().enumerate().fold(0, |sketch, (bit, vote)| sketch | u64::from(*vote > 0) << bit)
}

/// Pairs of what is new and what is gone. Each of them is in one pair.
pub(super) fn find(list: &List, gone: &[Arc<str>], new: &[Arc<str>]) -> Vec<(Arc<str>, Arc<str>)> {
    let mut gone: Vec<&Arc<str>> = gone.iter().take(MOST).collect();
    let mut pairs = Vec::new();
    let looks = |name: &Arc<str>| list.items.get(name).map_or(Looks::default(), |item| item.looks);
    for new in new.iter().take(MOST) {
        let own = looks(new);
        let like = |is: &dyn Fn(&Arc<str>) -> bool| gone.iter().position(|old| is(old));
        let found = like(&|old| own.body != 0 && looks(old).body == own.body)
            .or_else(|| like(&|old| are_close(old, new)))
            .or_else(|| like(&|old| looks(old).are_near(own)))
            .or_else(|| like(&|old| own.schema != 0 && looks(old).schema == own.schema));
        if let Some(index) = found {
            pairs.push((new.clone(), gone.swap_remove(index).clone()));
        }
    }
    pairs
}

fn are_close(one: &str, other: &str) -> bool {
    one.len() <= MAX_NAME && other.len() <= MAX_NAME && strsim::jaro_winkler(one, other) >= CLOSE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, text: &str, schema: &str) -> Looks {
        let schema = format!(r#"{{"type":"object","properties":{{{schema}}}}}"#);
        Looks::of(&format!(r#"{{"name":"{name}","description":"{text}","inputSchema":{schema}}}"#))
    }

    const TEXT: &str = "Moves an amount of money from the account of the caller to the account that is given, and returns the number of the transfer.";
    const SCHEMA: &str = r#""to":{"type":"string"},"amount":{"type":"number"}"#;

    #[test]
    fn a_name_is_no_difference_and_few_words_are_little() {
        let one = tool("pay", TEXT, SCHEMA);
        assert_eq!(tool("transfer", TEXT, SCHEMA), one);
        let near = tool("pay", &TEXT.replace("Moves", "Always moves"), SCHEMA);
        assert!(near.body != one.body && near.are_near(one) && near.schema == one.schema);
        let other = tool(
            "find",
            "Looks for files below a folder whose names match a pattern.",
            r#""glob":{},"folder":{}"#,
        );
        assert!(!other.are_near(one) && other.schema != one.schema);
    }

    #[test]
    fn what_says_little_is_like_nothing() {
        assert_eq!(tool("a", "x", r#""to":{}"#).schema, 0, "many tools take one argument");
        let (one, other) = (Looks::of("\"a text\""), Looks::of("not JSON"));
        assert!(!one.are_near(other) && one.body != other.body);
    }
}
