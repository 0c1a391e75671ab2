//! What README.md shows is what the program does: its files are read, its commands are understood, its output is compared.

use std::fs;
use std::path::Path;

use clap::Parser;
use interlock::cli::Args;
use interlock::config::Config;
use interlock::reload;

use crate::program::Folder;

/// A block of code, with the heading above it and the line it begins in.
struct Block {
    language: String,
    text: String,
    line: usize,
}

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md")).expect("README.md")
}

fn blocks(language: &str) -> Vec<Block> {
    let text = readme();
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((line, text)) = lines.next() {
        let Some(language) = text.strip_prefix("```") else { continue };
        let inside = lines.by_ref().take_while(|(_, text)| *text != "```");
        let text = inside.map(|(_, text)| format!("{text}\n")).collect();
        blocks.push(Block { language: language.to_owned(), text, line: line + 1 });
    }
    assert!(blocks.iter().any(|block| block.language == language), "no {language}");
    blocks.retain(|block| block.language == language);
    blocks
}

#[test]
fn every_file_is_read() {
    let folder = Folder::new();
    let (mut rules, mut configs) = (0, 0);
    for block in blocks("yaml") {
        let is_fragment = block.text.starts_with("  - id:");
        let is_rules = is_fragment || block.text.contains("\nrules:\n");
        let text = match (is_fragment, block.text.starts_with("version:")) {
            (true, _) => format!("version: 1\nrules:\n{}", block.text),
            (false, true) => block.text.clone(),
            (false, false) => format!("version: 1\n{}", block.text),
        };
        folder.write("file.yaml", &text);
        let file = folder.path().join("file.yaml");
        let outcome = if is_rules {
            rules += 1;
            reload::load(&file).map(drop)
        } else {
            configs += 1;
            Config::load(&file).map(drop)
        };
        outcome.unwrap_or_else(|error| panic!("README.md:{}: {error:#}", block.line));
        if is_rules {
            let checked = folder.json(&["policy", "check", "file.yaml"]);
            assert_eq!(checked["warnings"], serde_json::json!([]), "README.md:{}", block.line);
        }
    }
    assert!(rules >= 3 && configs >= 2, "{rules} files of rules, {configs} of configuration");
}

#[test]
fn rules_are_tried_as_shown() {
    let text = readme();
    let rules =
        blocks("yaml").into_iter().find(|block| block.text.contains("rules:\n  - id:")).expect("rules");
    let call = blocks("json").into_iter().next().expect("a call");
    let shown = blocks("console")
        .into_iter()
        .find(|block| block.text.contains("policy explain"))
        .expect("what it says");
    assert!(text.contains("With the file above as `rules.yaml` and this call in `call.json`"));
    let folder = Folder::with(&[("rules.yaml", &rules.text), ("call.json", &call.text)]);
    let mut said = String::new();
    for command in shown.text.lines().filter_map(|line| line.strip_prefix("$ interlock ")) {
        let output = folder.run(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(output.code, 0, "{command}: {}", output.stderr);
        said += &format!("$ interlock {command}\n{}", output.stdout);
    }
    assert_eq!(said, shown.text);
}

/// The words of a command as a shell sees them, up to what is not its own.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    let mut was_quoted = false;
    for letter in command.chars() {
        match (quote, letter) {
            (None, '"' | '\'') => (quote, was_quoted) = (Some(letter), true),
            (Some(open), letter) if open == letter => quote = None,
            (None, '#' | ';' | '|' | '&' | ',') if words.last().is_some_and(String::is_empty) => break,
            (None, letter) if letter.is_whitespace() => {
                if was_quoted || words.last().is_some_and(|word| !word.is_empty()) {
                    words.push(String::new());
                }
                was_quoted = false;
            }
            (_, letter) => words.last_mut().expect("there is one").push(letter),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Subcommands, which words beside `interlock` in a sentence are not.
const COMMANDS: [&str; 16] = [
    "run",
    "hold",
    "exec",
    "stop",
    "escalate",
    "release",
    "stops",
    "approvals",
    "approve",
    "refuse",
    "agents",
    "status",
    "doctor",
    "policy",
    "config",
    "log",
];

#[track_caller]
fn check(command: &str, line: usize) {
    let words: Vec<String> = words(command).into_iter().map(|word| word.replace("…", "x")).collect();
    let Err(error) = Args::try_parse_from(&words) else { return };
    use clap::error::ErrorKind::{
        DisplayHelpOnMissingArgumentOrSubcommand, MissingRequiredArgument, MissingSubcommand,
    };
    // In a sentence the name of a command is enough; a flag or value that is given must be known.
    let left_out = [MissingRequiredArgument, MissingSubcommand, DisplayHelpOnMissingArgumentOrSubcommand]
        .contains(&error.kind());
    assert!(left_out, "README.md:{line}: {command}: {error}");
}

#[test]
fn every_command_is_understood() {
    let mut commands = 0;
    for language in ["sh", "console"] {
        for block in blocks(language) {
            for (offset, text) in block.text.lines().enumerate() {
                let text = text.strip_prefix("$ ").unwrap_or(text);
                if text.starts_with("interlock ") {
                    check(text, block.line + offset + 1);
                    commands += 1;
                }
            }
        }
    }
    assert!(commands >= 12, "{commands} commands");
}

#[test]
fn every_command_in_a_sentence_is_understood() {
    let text = readme();
    let mut inside = false;
    let (mut prose, mut commands) = (Vec::new(), 0);
    for (line, text) in text.lines().enumerate() {
        inside ^= text.starts_with("```");
        if !inside && !text.starts_with("```") {
            prose.push((line + 1, text));
        }
    }
    // A command may go on in the next line.
    let joined: String = prose.iter().map(|(_, text)| format!("{text} ")).collect();
    for code in joined.split('`').skip(1).step_by(2) {
        let is_command = |command: &str| code == command || code.starts_with(&format!("{command} "));
        let command = match code.strip_prefix("interlock ") {
            Some(rest) if !rest.is_empty() => code.to_owned(),
            _ if code.contains(' ') && COMMANDS.into_iter().any(is_command) => format!("interlock {code}"),
            _ => continue,
        };
        let begins: String = code.chars().take(12).collect();
        let line = prose
            .iter()
            .find(|(_, text)| text.contains(code))
            .or(prose.iter().find(|(_, text)| text.contains(&begins)));
        // Brackets around what may be left out.
        let command = command.replace(['[', ']'], "");
        check(&command, line.map_or(0, |(line, _)| *line));
        commands += 1;
    }
    assert!(commands >= 12, "{commands} commands");
}
