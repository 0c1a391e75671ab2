//! Which rules can concern the kinds of message that a connection has carried last. Agents call the same few tools again and
//! again, and what is found for a call is the same each time.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::super::subject::Subject;
use super::file::Phase;

/// Most kinds of message that are known; with one more the oldest is forgotten.
const KINDS: usize = 16;
/// Most bytes of names by which a kind is known. What has longer ones is looked up each time.
const MAX_TEXT: usize = 256;
/// Most rules that are known for a kind. Where there are more, judging by them costs more than finding them again.
const MAX_RULES: usize = 64;

/// What one policy's index has found within one scope: at most 14 KiB. Only the connection that the scope is for uses it, so
/// nobody waits for its lock.
#[derive(Debug, Default)]
pub struct Known {
    /// The oldest first.
    kinds: Mutex<VecDeque<Kind>>,
}

/// What the index looks at in a message, all of it, and what it has found.
#[derive(Debug)]
struct Kind {
    phase: Phase,
    /// The method, what it names, and the tool behind that.
    names: [Option<Box<str>>; 3],
    rules: Box<[usize]>,
}

impl Known {
    /// The rules that can concern a message: those that were found for one of its kind, or else what `find` finds.
    pub(super) fn rules(&self, subject: &Subject<'_>, find: impl FnOnce() -> Vec<usize>) -> Vec<usize> {
        let names = [subject.method, subject.name, subject.of_tool];
        if names.into_iter().flatten().map(str::len).sum::<usize>() > MAX_TEXT {
            return find();
        }
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |kind: &&Kind| kind.phase == subject.phase && kind.names.iter().map(Option::as_deref).eq(names);
        if let Some(kind) = kinds.iter().rev().find(is_same) {
            return kind.rules.to_vec();
        }
        let rules = find();
        if rules.len() <= MAX_RULES {
            if kinds.len() == KINDS {
                kinds.pop_front();
            }
            kinds.push_back(Kind {
                phase: subject.phase,
                names: names.map(|name| name.map(Box::from)),
                rules: rules.as_slice().into(),
            });
        }
        rules
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::subject::Sender;
    use super::*;

    fn call<'a>(name: &'a str) -> Subject<'a> {
        Subject { method: Some("tools/call"), name: Some(name), ..Subject::default() }
    }

    /// Whether a message is looked up, which finds this rule.
    fn is_looked_up(known: &Known, subject: &Subject<'_>, rule: usize) -> bool {
        let mut is = false;
        let find = || {
            is = true;
            vec![rule]
        };
        assert_eq!(known.rules(subject, find), [rule]);
        is
    }

    #[test]
    fn each_kind_is_looked_up_once() {
        let known = Known::default();
        let kinds = [
            call("echo"),
            Subject { phase: Phase::Response, ..call("echo") },
            Subject { method: Some("prompts/get"), ..call("echo") },
            Subject { of_tool: Some("echo"), ..call("echo") },
            Subject { method: Some("echo"), ..Subject::default() },
            Subject { method: None, ..call("echo") },
            call("ech"),
            Subject::default(),
        ];
        for is_new in [true, false] {
            for (rule, kind) in kinds.iter().enumerate() {
                assert_eq!(is_looked_up(&known, kind, rule), is_new, "{kind:?}");
            }
        }
        let same = Subject { agent: Sender { name: "a", ..Sender::default() }, size: 9, ..kinds[0].clone() };
        assert!(!is_looked_up(&known, &same, 0));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let known = Known::default();
        let names: Vec<String> = (0..=KINDS).map(|name| name.to_string()).collect();
        assert!(names.iter().all(|name| is_looked_up(&known, &call(name), 1)));
        assert!(names[1..].iter().all(|name| !is_looked_up(&known, &call(name), 1)));
        assert!(is_looked_up(&known, &call(&names[0]), 1));
        assert!(is_looked_up(&known, &call(&names[1]), 1));
    }

    #[test]
    fn what_is_large_is_not_kept() {
        let known = Known::default();
        let longest = "n".repeat(MAX_TEXT - "tools/call".len());
        let longer = format!("{longest}n");
        for is_new in [true, false] {
            assert_eq!(is_looked_up(&known, &call(&longest), 1), is_new);
            assert!(is_looked_up(&known, &call(&longer), 1));
        }
        let find = |name, count| known.rules(&call(name), || vec![7; count]).len();
        assert_eq!((find("many", MAX_RULES), find("many", 0)), (MAX_RULES, MAX_RULES));
        assert_eq!((find("more", MAX_RULES + 1), find("more", 0)), (MAX_RULES + 1, 0));
    }
}
