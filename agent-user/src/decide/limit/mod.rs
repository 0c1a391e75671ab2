//! Rules that let only so much through: what is counted, for whom apart, and what is said when it is used up. The
//! counts themselves are kept by [`crate::limits`]; the time comes in from the caller.

mod file;
mod window;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::Deserialize;
use sha2::{Digest, Sha256};

pub use self::file::{LimitFile, OneOrMore};
pub use self::window::{Span, Window};
use super::subject::Subject;

/// How much of what a rule matches is let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Id of the rule.
    pub rule: Arc<str>,
    pub kind: Kind,
    /// Ascending, each once.
    per: Vec<Per>,
    tag: Tag,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Messages that were let through.
    Calls { max: u64, within: Duration },
    /// Bytes of their JSON, and of that of their answers.
    Bytes { max: u64, within: Duration },
    /// Calls in flight.
    Concurrent { max: u64 },
}

/// What is counted apart. All but the agent and the server's address is what the agent says: who makes up a new session
/// gets a new count. To bound an agent for certain, count per agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    Agent,
    /// The tool (or prompt, resource, task) a message names; those that name none count together.
    Tool,
    Session,
    Workflow,
    /// The address, with its port, to which the connection really goes, whatever name the agent has for it.
    Server,
}

/// Tells a limit of a rule from every other one, also after a restart. With the rule's id or anything in the limit it
/// changes, and what was counted then counts for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// One of the counts of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The agent that has to answer for the memory the count takes.
    pub owner: Arc<str>,
    pub tag: Tag,
    /// Digest of what is counted apart: agents choose it, so it may be of any length.
    pub digest: [u8; 16],
}

/// Why a message is not let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    pub rule: Arc<str>,
    /// In words, for the agent and the record.
    pub reason: String,
    /// When it may be let through; `None`: that cannot be told, or never.
    pub retry_after: Option<Duration>,
    /// A bounded label for metrics: `limit`, `limit_full` or `limit_lost`.
    pub label: &'static str,
}

impl Per {
    fn label(self) -> &'static str {
        match self {
            Per::Agent => "agent",
            Per::Tool => "tool",
            Per::Session => "session",
            Per::Workflow => "workflow",
            Per::Server => "server",
        }
    }
}

impl Limit {
    fn new(rule: Arc<str>, kind: Kind, per: Vec<Per>) -> Limit {
        let mut limit = Limit { rule, kind, per, tag: Tag(0) };
        let [tag, ..] = halves(Sha256::new().chain_update(&*limit.rule).chain_update(limit.canonical()));
        limit.tag = Tag(tag);
        limit
    }

    /// Everything that makes the limit, in a form that stays.
    fn canonical(&self) -> String {
        let (kind, max, within) = match self.kind {
            Kind::Calls { max, within } => ("calls", max, within),
            Kind::Bytes { max, within } => ("bytes", max, within),
            Kind::Concurrent { max } => ("concurrent", max, Duration::ZERO),
        };
        let per: Vec<&str> = self.per.iter().map(|per| per.label()).collect();
        format!("\0{kind} {max} {} {}", within.as_nanos(), per.join(" "))
    }

    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The count that a message belongs to.
    pub fn key(&self, agent: &Arc<str>, subject: &Subject<'_>) -> Key {
        let mut hash = Sha256::new();
        let mut add = |value: Option<&str>| {
            // Lengths before texts: no two lists of values have the same bytes.
            let len = value.map_or(u64::MAX, |value| value.len() as u64);
            hash.update(len.to_be_bytes());
            hash.update(value.unwrap_or_default());
        };
        for per in &self.per {
            match per {
                Per::Agent => add(Some(agent)),
                Per::Tool => add(subject.name),
                Per::Session => add(subject.session.as_ref().map(|session| session.as_str())),
                Per::Workflow => add(subject.workflow),
                Per::Server => {
                    let address = |port: u16, ip: String| format!("{ip} {port}");
                    let place =
                        subject.address.map(|at| address(at.port(), at.ip().to_canonical().to_string()));
                    add(Some(&place.unwrap_or_else(|| subject.server.to_ascii_lowercase())));
                }
            }
        }
        let [first, second, ..] = halves(hash);
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&first.to_be_bytes());
        digest[8..].copy_from_slice(&second.to_be_bytes());
        Key { owner: Arc::clone(agent), tag: self.tag, digest }
    }

    /// How much of the limit a message of so many bytes takes.
    pub fn amount(&self, bytes: usize) -> u64 {
        match self.kind {
            Kind::Calls { .. } | Kind::Concurrent { .. } => 1,
            Kind::Bytes { .. } => bytes as u64,
        }
    }

    /// What is said when the limit has no room for a message.
    pub fn exceeded(&self, amount: u64, retry_after: Option<Duration>) -> Exceeded {
        let when = match (self.kind, retry_after) {
            (Kind::Bytes { max, .. }, _) if amount > max => {
                format!("has no room for a message of {amount} bytes, now or later")
            }
            (Kind::Concurrent { .. }, _) => "is used up; retry when one of them has ended".to_owned(),
            (_, Some(time)) => format!("is used up; retry after {} s", whole_seconds(time)),
            (_, None) => "is used up".to_owned(),
        };
        self.refusal("limit", format!("the limit of {self} {when}"), retry_after)
    }

    /// What is said when there is no memory for one more count.
    pub fn full(&self) -> Exceeded {
        let reason = format!(
            "the limit of {self} cannot be counted: there are too many such counts already; retry when some have run out"
        );
        self.refusal("limit_full", reason, None)
    }

    /// What is said when nobody knows what was counted before the restart.
    pub fn lost(&self) -> Exceeded {
        let reason = format!(
            "the limit of {self} cannot be counted: what was counted before a restart cannot be read; an operator must repair that"
        );
        self.refusal("limit_lost", reason, None)
    }

    fn refusal(&self, label: &'static str, reason: String, retry_after: Option<Duration>) -> Exceeded {
        Exceeded { rule: Arc::clone(&self.rule), reason, retry_after, label }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |max: u64| if max == 1 { "" } else { "s" };
        let time = |within: Duration| SignedDuration::try_from(within).unwrap_or(SignedDuration::MAX);
        match self.kind {
            Kind::Calls { max, within } => write!(f, "{max} call{} within {:#}", plural(max), time(within))?,
            Kind::Bytes { max, within } => write!(f, "{} within {:#}", ByteSize(max), time(within))?,
            Kind::Concurrent { max } => write!(f, "{max} call{} at a time", plural(max))?,
        }
        for (index, per) in self.per.iter().enumerate() {
            let before = match index {
                0 => " for each ",
                _ if index + 1 == self.per.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{}", per.label())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A digest, as numbers.
fn halves(hash: Sha256) -> [u64; 4] {
    let digest = hash.finalize();
    let mut numbers = [0; 4];
    for (number, bytes) in numbers.iter_mut().zip(digest.as_chunks().0) {
        *number = u64::from_be_bytes(*bytes);
    }
    numbers
}

/// Rounded up: who comes back then is not told the same again.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Session;

    fn limit(yaml: &str) -> Limit {
        let file: LimitFile = serde_saphyr::from_str(yaml).unwrap();
        file.compile(&"r".into()).unwrap()
    }

    #[test]
    fn a_key_is_what_is_counted_apart_and_nothing_else() {
        let subject = Subject {
            server: "a.test",
            address: Some("10.0.0.1:80".parse().unwrap()),
            session: Session::of_id(b"s"),
            workflow: Some("w"),
            name: Some("t"),
            ..Subject::default()
        };
        let others = [
            ("tool", Subject { name: Some("u"), ..subject.clone() }),
            ("tool", Subject { name: None, ..subject.clone() }),
            ("tool", Subject { name: Some(""), ..subject.clone() }),
            ("session", Subject { session: None, ..subject.clone() }),
            ("workflow", Subject { workflow: Some("t"), ..subject.clone() }),
            ("server", Subject { address: Some("10.0.0.2:80".parse().unwrap()), ..subject.clone() }),
            ("server", Subject { address: Some("10.0.0.1:81".parse().unwrap()), ..subject.clone() }),
        ];
        let agent: Arc<str> = "coder".into();
        for per in ["agent", "tool", "session", "workflow", "server"] {
            let limit = limit(&format!("{{concurrent: 1, per: {per}}}"));
            let key = limit.key(&agent, &subject);
            for (differs, other) in &others {
                assert_eq!(limit.key(&agent, other) != key, *differs == per, "per {per}: {other:?}");
            }
            assert_eq!(limit.key(&"b".into(), &subject).digest != key.digest, per == "agent", "per {per}");
        }
        let limit = limit("{concurrent: 1, per: [tool, workflow]}");
        let key = |name, workflow| {
            limit
                .key(&agent, &Subject { name: Some(name), workflow: Some(workflow), ..subject.clone() })
                .digest
        };
        assert_ne!(key("ab", "c"), key("a", "bc"), "the parts are kept apart");
    }

    #[test]
    fn another_name_or_form_of_a_server_is_the_same_server() {
        let limit = limit("{concurrent: 1, per: server}");
        let key = |server, address: &str| {
            let address = Some(address.parse().unwrap());
            limit.key(&"a".into(), &Subject { server, address, ..Subject::default() })
        };
        assert_eq!(key("a.test", "10.0.0.1:80"), key("b.test", "[::ffff:10.0.0.1]:80"));
    }

    #[test]
    fn a_limit_that_changed_is_another_one() {
        let yaml = "{calls: 5, within: 60s}";
        assert_eq!(limit(yaml).tag(), limit("{calls: 5, within: 1m, per: [agent]}").tag());
        let file: LimitFile = serde_saphyr::from_str(yaml).unwrap();
        let tags = [
            limit(yaml).tag(),
            file.compile(&"s".into()).unwrap().tag(),
            limit("{calls: 6, within: 60s}").tag(),
            limit("{bytes: 5, within: 60s}").tag(),
            limit("{calls: 5, within: 61s}").tag(),
            limit("{calls: 5, within: 60s, per: tool}").tag(),
            limit("{calls: 5, within: 60s, per: [agent, tool]}").tag(),
        ];
        let different: std::collections::HashSet<_> = tags.into_iter().collect();
        assert_eq!(different.len(), tags.len());
        // What is on disk goes by it.
        assert_eq!(format!("{:?}", tags[0]), "53cf4e85f57161e0");
    }

    #[test]
    fn refusals_say_what_is_used_up_and_when_to_come_back() {
        let check = |yaml: &str, amount, retry_ms: Option<u64>, expect: &str| {
            let exceeded = limit(yaml).exceeded(amount, retry_ms.map(Duration::from_millis));
            assert_eq!(exceeded.reason, expect);
        };
        check(
            "{calls: 100, within: 60s}",
            1,
            Some(11_001),
            "the limit of 100 calls within 1m for each agent is used up; retry after 12 s",
        );
        check(
            "{concurrent: 4}",
            1,
            None,
            "the limit of 4 calls at a time for each agent is used up; retry when one of them has ended",
        );
        check(
            "{bytes: 10, within: 1h}",
            11,
            None,
            "the limit of 10 B within 1h for each agent has no room for a message of 11 bytes, now or later",
        );
        assert!(limit("{concurrent: 4}").full().reason.contains("too many such counts"));
    }
}
