//! Taking out of a message what rules say, and out of the headers that mirror it.

use std::borrow::Cow;
use std::sync::Arc;

use crate::decide::Verdict;
use crate::decide::policy::{Mode, Redact};
use crate::decide::redact::{Redacted, splice};
use crate::decode::{find, replace_values, sentinel};

/// A part of a message after something was taken out of it.
pub(super) struct Edited {
    pub(super) text: String,
    taken: Vec<(Arc<Redact>, Redacted)>,
}

/// Applies the rules of a verdict to a part of its message, one after the other, and notes which of them have fired.
pub(super) fn redact(verdict: &mut Verdict, part: &str) -> Option<Edited> {
    let mut text = Cow::Borrowed(part);
    let mut taken = Vec::new();
    for rule in std::mem::take(&mut verdict.redactions) {
        let Some(redacted) = rule.redaction.apply(&text) else { continue };
        if !verdict.fired.contains(&rule.rule) {
            verdict.fired.push(Arc::clone(&rule.rule));
        }
        match rule.mode {
            Mode::Observe => verdict.would_edit = true,
            Mode::Enforce => {
                verdict.redacted.add(&redacted.found);
                text = Cow::Owned(redacted.text.clone());
                taken.push((rule, redacted));
            }
        }
    }
    match text {
        Cow::Owned(text) => Some(Edited { text, taken }),
        Cow::Borrowed(_) => None,
    }
}

impl Edited {
    /// The head of a request whose `Mcp-Param-*` headers say what its arguments say now (MCP 2026-07-28, streamable HTTP):
    /// a server refuses a request where they differ.
    pub(super) fn head(&self, head: &[u8]) -> Vec<u8> {
        replace_values(head, |name, value| {
            name.get(..MIRRORS.len()).filter(|start| start.eq_ignore_ascii_case(MIRRORS))?;
            let decoded = sentinel::decode(value)?;
            let was = std::str::from_utf8(&decoded).ok()?;
            let mut says = Cow::Borrowed(was);
            for (rule, redacted) in &self.taken {
                if let Some(now) = rule.redaction.mirror(redacted, &says) {
                    says = Cow::Owned(now);
                }
            }
            match says {
                Cow::Owned(says) => Some(sentinel::encode(&says).into_owned().into_bytes()),
                Cow::Borrowed(_) => None,
            }
        })
    }
}

const MIRRORS: &[u8] = b"mcp-param-";

/// A result from which something was taken out, with what an agent has to give back as it got it: with a token cut out of
/// it, it would be worth nothing (MCP: pagination, and multi round-trip requests of 2026-07-28).
pub(super) fn keep_opaque(result: &str, edited: String) -> String {
    OPAQUE.iter().fold(edited, |edited, name| {
        let member = |text| find::member(text, name).ok().flatten();
        let kept = member(result).zip(member(&edited)).filter(|(was, now)| was != now);
        kept.and_then(|(was, now)| splice(&edited, now, was)).unwrap_or(edited)
    })
}

const OPAQUE: [&str; 2] = ["nextCursor", "requestState"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_given_as_it_was() {
        let result = r#"{"text":"a@b.example","requestState":"a@b.example","nextCursor":"x"}"#;
        let edited = r#"{"text":"[redacted:mail]","requestState":"[redacted:mail]","nextCursor":"x"}"#;
        let expect = r#"{"text":"[redacted:mail]","requestState":"a@b.example","nextCursor":"x"}"#;
        assert_eq!(keep_opaque(result, edited.to_owned()), expect);
    }
}
