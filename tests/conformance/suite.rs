//! A suite as a process, and what it found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_tests::World;
use agent_tests::process::Process;
use agent_tests::sdk::Suite;
use agent_tests::wait::within;
use serde_json::Value;

/// No run takes a third of it on an idle machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// What was found: each check of each scenario, and how often it came out how.
#[derive(Debug, Default)]
pub(crate) struct Findings(BTreeMap<String, u32>);

/// A suite that runs.
pub(crate) struct Run {
    process: Process,
    results: PathBuf,
}

impl Run {
    /// Starts a suite as `start` does; its results go to a folder of the world.
    pub(crate) fn start(
        world: &World,
        suite: Suite,
        label: &str,
        arguments: &[&str],
        start: impl FnOnce(&[String]) -> Process,
    ) -> Self {
        let results = world.path(label);
        let output = ["-o", &results.display().to_string()].map(str::to_owned);
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        let command: Vec<String> = suite.command().into_iter().chain(arguments).chain(output).collect();
        Self { process: start(&command), results }
    }

    /// Waits for its end and reads what it found.
    pub(crate) fn finish(mut self) -> Findings {
        let process = &mut self.process;
        within(PATIENCE, || (!process.is_running()).then_some(()))
            .unwrap_or_else(|| panic!("{} does not end; {}", self.results.display(), process.stderr()));
        let findings = Findings::read(&self.results);
        assert!(!findings.0.is_empty(), "{} has no check; {}", self.results.display(), process.stderr());
        findings
    }
}

impl Findings {
    fn read(results: &Path) -> Self {
        let mut found = BTreeMap::new();
        collect(results, "", &mut found);
        Self(found)
    }

    /// Adds those of another run.
    pub(crate) fn add(&mut self, other: Self) {
        for (line, count) in other.0 {
            *self.0.entry(line).or_default() += count;
        }
    }

    /// How many checks were passed.
    pub(crate) fn successes(&self) -> u32 {
        self.0.iter().filter(|(line, _)| line.ends_with(": SUCCESS")).map(|(_, count)| count).sum()
    }

    /// How many checks there were.
    pub(crate) fn checks(&self) -> u32 {
        self.0.values().sum()
    }

    /// What differs, line by line; empty when nothing does.
    pub(crate) fn differences(&self, through: &Self) -> String {
        let mut text = String::new();
        for (name, mine, other) in [("direct", self, through), ("through", through, self)] {
            for (line, count) in &mine.0 {
                if other.0.get(line) != Some(count) {
                    let _ = writeln!(text, "{name}, {count} ×: {line}");
                }
            }
        }
        text
    }
}

/// Adds the checks of each run in a folder; some runs lie one deeper, as `auth/metadata-default-…`.
fn collect(folder: &Path, within: &str, found: &mut BTreeMap<String, u32>) {
    for entry in fs::read_dir(folder).expect("the suite wrote results").flatten() {
        let name = entry.file_name().into_string().expect("a name in UTF-8");
        let Ok(text) = fs::read_to_string(entry.path().join("checks.json")) else {
            if entry.path().is_dir() {
                collect(&entry.path(), &format!("{within}{name}/"), found);
            }
            continue;
        };
        let checks: Vec<Value> = serde_json::from_str(&text).expect("checks are JSON");
        for check in checks {
            *found.entry(line(&format!("{within}{}", scenario(&name)), &check)).or_default() += 1;
        }
    }
}

/// `server-tools-list-2026-11-30T13-17-46-308Z`, without the time.
fn scenario(run: &str) -> &str {
    let time = "-2026-11-30T13-17-46-308Z".len();
    run.get(..run.len().saturating_sub(time)).unwrap_or(run)
}

/// A check as one line that is the same in two runs of the same.
fn line(scenario: &str, check: &Value) -> String {
    let text = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
    let mut line = format!("{scenario} {}: {}", text("id"), text("status"));
    if !text("errorMessage").is_empty() {
        let _ = write!(line, "\n    {}", text("errorMessage"));
    }
    line
}
