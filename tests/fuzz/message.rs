//! Random messages.

use std::collections::BTreeMap;

use interlock::decide::policy::Phase;
use interlock::decide::subject::{Party, Sender, Subject};

use crate::random::Random;

const LETTERS: [&str; 6] = ["a", "b", "ab", "/", "*", "\u{fc}"];
const METHODS: [&str; 9] = [
    "tools/call",
    "tools/list",
    "prompts/get",
    "prompts/list",
    "initialize",
    "tasks/get",
    "resources/read",
    "notifications/message",
    "ab",
];
const ARGUMENTS: [&str; 7] = [
    "{}",
    r#"{"a":1}"#,
    r#"{"a":"1","b":3.5}"#,
    r#"{"b":"\ud83d\ude00"}"#,
    "[1]",
    "null",
    r#"{"a":{"a":{"a":[{}]}}}"#,
];

/// One of them, which a subject borrows from.
#[derive(Debug)]
pub(crate) struct Message {
    agent: String,
    labels: BTreeMap<String, String>,
    servers: Vec<String>,
    phase: Phase,
    from: Party,
    method: Option<&'static str>,
    names: [Option<String>; 3],
    arguments: Option<&'static str>,
    continues: bool,
    size: usize,
}

impl Message {
    pub(crate) fn new(random: &mut Random) -> Message {
        let word = |random: &mut Random| random.text(&LETTERS, 4);
        let name = |random: &mut Random| (!random.one_in(3)).then(|| random.text(&LETTERS, 4));
        Message {
            agent: word(random),
            labels: [("t".to_owned(), "x".to_owned())].into_iter().filter(|_| random.one_in(2)).collect(),
            servers: (0..random.below(3)).map(|_| random.text(&LETTERS, 4)).collect(),
            phase: [Phase::Request, Phase::Request, Phase::Response, Phase::List][random.below(4)],
            from: if random.one_in(4) { Party::Server } else { Party::Agent },
            method: (!random.one_in(8)).then(|| random.pick(&METHODS)),
            names: [name(random), name(random), name(random)],
            arguments: (!random.one_in(4)).then(|| random.pick(&ARGUMENTS)),
            continues: random.one_in(5),
            size: random.below(30),
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        let [name, of_tool, workflow] = self.names.each_ref().map(|name| name.as_deref());
        Subject {
            phase: self.phase,
            from: self.from,
            agent: Sender { name: &self.agent, labels: Some(&self.labels), ..Sender::default() },
            servers: &self.servers,
            protocol: "mcp",
            method: self.method,
            name,
            of_tool: of_tool.filter(|_| self.continues),
            workflow,
            continues: self.continues,
            params: self.arguments,
            arguments: self.arguments,
            size: self.size,
            ..Subject::default()
        }
    }
}
