//! What the demo prints: headings, sentences, commands and what they answered. For a person at a terminal.

use std::io::{IsTerminal, Write};

use anyhow::Context;

/// Standard output. Who closes it ends the demo, in order.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    bold: bool,
}

impl Screen {
    pub(super) fn open() -> Self {
        Self { bold: std::io::stdout().is_terminal() }
    }

    /// The title of a step.
    pub(super) fn heading(self, text: &str) -> anyhow::Result<()> {
        if self.bold { print(&format!("\n\x1b[1m{text}\x1b[0m")) } else { print(&format!("\n{text}")) }
    }

    /// A sentence of explanation.
    pub(super) fn say(self, text: &str) -> anyhow::Result<()> {
        print(&wrap(text, "  ", "  "))
    }

    /// A command that is run, as one would type it.
    pub(super) fn command(self, words: &[&str]) -> anyhow::Result<()> {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        print(&wrap(&words.join(" "), "  $ ", "      "))
    }

    /// What a command printed, as it is.
    pub(super) fn output(self, text: &str) -> anyhow::Result<()> {
        text.lines().try_for_each(|line| print(&format!("    {line}")))
    }

    /// What the agent does.
    pub(super) fn agent_asks(self, text: &str) -> anyhow::Result<()> {
        print(&wrap(text, "  agent > ", "          "))
    }

    /// What the agent gets.
    pub(super) fn agent_gets(self, text: &str) -> anyhow::Result<()> {
        print(&wrap(text, "  agent < ", "          "))
    }

    /// What was checked, and held.
    pub(super) fn checked(self, text: &str) -> anyhow::Result<()> {
        print(&wrap(text, "  checked: ", "           "))
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{text}").context("write to standard output")
}

/// Breaks between words; a word that is too long stays whole, so that it can be copied.
fn wrap(text: &str, first: &str, rest: &str) -> String {
    let (mut lines, mut line, mut is_empty) = (String::new(), first.to_owned(), true);
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += line.trim_end();
            lines.push('\n');
            line = rest.to_owned();
        } else if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines + line.trim_end()
}

/// As a shell needs it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=&".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{word}'") }
}

const WIDTH: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_broken_between_words() {
        let text = wrap(&"word ".repeat(30), "  $ ", "      ");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("  $ word") && lines[0].len() <= WIDTH, "{text}");
        assert!(lines[1].starts_with("      word") && lines[1].ends_with("word"), "{text}");
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(quoted("agent=demo-agent"), "agent=demo-agent");
        assert_eq!(quoted("two words"), "'two words'");
    }
}
