//! Files of rules: recorded ones, changed at random, and some that are made of parts that fit.

use std::fs;
use std::path::Path;

use interlock::decide::policy::Policy;

use crate::random::Random;

/// What is shipped, and one of everything.
pub(crate) fn corpus() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/policies");
    let files = fs::read_dir(folder).expect("policies").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    let shipped = files.iter().map(|path| fs::read_to_string(path).expect("a policy"));
    shipped.chain([EVERYTHING.to_owned()]).collect()
}

const EVERYTHING: &str = r#"version: 1
defaults: {undecodable: deny, oversized: deny, opaque: allow, quic: deny, unseen_tool: allow, unknown_revision: allow}
agent_defaults: [{agent: "pay/*", opaque: deny}]
rules:
  - {id: d, action: deny, mode: observe, match: {agent: "a*", server: ["*.b", "[::1]:443"], workflow: x, session: "0*"}}
  - {id: w, action: deny, when: 'args.a[0].b > 1.5e3 && tool.matches("(a|b)*c$") || "x" in agent.labels', on_error: allow}
  - {id: n, action: deny, when: 'args.exists(k, args[k] == 3) && now.getHours("Europe/Berlin") < duration("90s").getSeconds()'}
  - {id: o, action: allow_only, match: {method: [tools/call, "prompts/*"], tool: "{get,list}_*"}}
  - {id: h, action: hide, match: {tool: "[!a-c]?*"}}
  - {id: r, action: redact, phase: response, redact: {fields: ["/a/*/b", "/c~1d"], patterns: [keys, tokens, cards, mail]}}
  - {id: l, action: limit, limit: {bytes: 1MiB, within: 1h, per: [agent, tool]}}
  - {id: p, action: require_approval, timeout: 10m, match: {tool: wire}}
  - {id: q, action: deny_drift, drift: {classes: [definition, ui], also: [server], unsure: wait, wait: 5s, in_flight: cut}}
  - {id: s, action: stop, after: {denials: 5, within: 60s}, level: kill, reason: "a\u00e9 \t"}
"#;

/// Words that a file may have anywhere.
const WORDS: [&str; 44] = [
    "*",
    "**",
    "?",
    "[",
    "]",
    "{",
    "}",
    "\\",
    "!",
    "'",
    "\"",
    ": ",
    "- ",
    "\n",
    "\n    ",
    ",",
    "|",
    ">-\n",
    "&a ",
    "*a",
    "#",
    "~",
    "null",
    "0",
    "-1",
    "1e999",
    "deny",
    "allow_only",
    "hide",
    "when: ",
    "match: ",
    "phase: list",
    "phase: response",
    "args",
    "args.a",
    "&&",
    "||",
    ".matches('(((a*)*)*)*$')",
    "size > 9",
    "[[[[[[[[",
    "((((((((",
    "\u{fc}",
    "\u{feff}",
    "!!binary ",
];

pub(crate) fn mutated(random: &mut Random, corpus: &[String]) -> String {
    let mut bytes = corpus[random.below(corpus.len())].clone().into_bytes();
    for _ in 0..=random.below(5) {
        let at = random.below(bytes.len());
        let end = (at + random.below(30)).min(bytes.len());
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let part = bytes[at..end].repeat(1 + random.below(4));
                let to = random.below(bytes.len());
                bytes.splice(to..to, part);
            }
            4 => {
                let other = corpus[random.below(corpus.len())].as_bytes();
                let from = random.below(other.len());
                let part = &other[from..(from + random.below(60)).min(other.len())];
                bytes.splice(at..end, part.iter().copied());
            }
            // A line, again somewhere else.
            5 => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                let mut lines: Vec<&str> = text.lines().collect();
                let line = lines.get(random.below(lines.len())).copied().unwrap_or_default();
                lines.insert(random.below(lines.len()), line);
                bytes = lines.join("\n").into_bytes();
            }
            6 => drop(bytes.splice(at..end, random.pick(&WORDS).bytes())),
            _ => drop(bytes.splice(at..at, random.pick(&WORDS).bytes())),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parts of globs, and of what they match.
const LETTERS: [&str; 14] =
    ["a", "a", "b", "ab", "/", "*", "*", "**", "?", "[ab]", "[!a]", "{a,b*}", "{b,/a}", "\u{fc}"];
const METHODS: [&str; 8] = [
    "tools/call",
    "tools/*",
    "*",
    "prompts/get",
    "initialize",
    "{tools,tasks}/*",
    "*/list",
    "notifications/?*",
];
const CONDITIONS: [&str; 8] = [
    "true",
    "args.a == 1",
    "tool.startsWith('a')",
    "size > 10",
    "has(args.b) && args.b > 2",
    "method in ['tools/call']",
    "agent.labels['t'] == 'x'",
    "recent.calls > 3 || now.getHours() < 12",
];

fn glob(random: &mut Random, field: &str) -> String {
    if field == "method" && !random.one_in(4) {
        return random.pick(&METHODS).to_owned();
    }
    format!("{}{}", random.pick(&LETTERS), random.text(&LETTERS, 4))
}

fn matches(random: &mut Random) -> String {
    let mut fields = Vec::new();
    for field in ["agent", "server", "method", "tool", "workflow", "session"] {
        if random.one_in(3) {
            let globs: Vec<String> =
                (0..=random.below(3)).map(|_| format!("'{}'", glob(random, field))).collect();
            fields.push(format!("{field}: [{}]", globs.join(", ")));
        }
    }
    format!("match: {{{}}}", fields.join(", "))
}

/// A good file of random rules.
pub(crate) fn made(random: &mut Random) -> String {
    let mut text = "version: 1\nrules:\n  - {id: first, action: deny, match: {tool: never}}\n".to_owned();
    let most = if random.one_in(20) { 400 } else { 12 };
    for id in 0..random.below(most) {
        let action = random.pick(&[
            "deny",
            "deny",
            "allow_only",
            "hide",
            "require_approval",
            "stop",
            "redact, redact: {patterns: [mail]}",
            "limit, limit: {calls: 3, within: 1m, per: agent}",
        ]);
        let phase = random.pick(&["", "", "", ", phase: response", ", phase: list"]);
        let mode = random.pick(&["", "", ", mode: observe"]);
        let when = match random.one_in(4) {
            true => {
                format!(", when: \"{}\"{}", random.pick(&CONDITIONS), random.pick(&["", ", on_error: allow"]))
            }
            false => String::new(),
        };
        let rule = format!("  - {{id: r{id}, action: {action}{phase}{mode}{when}, {}}}\n", matches(random));
        // Not every action has every phase, and not every text is a glob.
        let file = serde_saphyr::from_str(&format!("version: 1\nrules:\n{rule}"));
        if file.is_ok_and(|file| Policy::compile(file).is_ok()) {
            text += &rule;
        }
    }
    text
}
