//! The `interlock` command line, as an operator or a script uses it: `--json`, and the exit code.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::app::interlock;
use crate::certs::Identity;

/// The command line of one daemon.
pub struct Cli {
    flags: Vec<String>,
    /// Who has logged in, where that matters; `None`: nobody.
    login: Option<Option<u32>>,
}

/// What a command answered.
#[derive(Debug)]
pub struct Answer {
    /// The exit code.
    pub code: i32,
    /// stdout as JSON; `null` when it is none.
    pub json: Value,
    /// stderr.
    pub stderr: String,
}

impl Cli {
    /// The command line of the daemon with this runtime folder.
    pub fn new(runtime_dir: &Path) -> Self {
        Self { flags: vec!["--runtime-dir".to_owned(), runtime_dir.display().to_string()], login: None }
    }

    /// The command line of an operator on another machine.
    pub fn remote(url: &str, ca: &Path, who: &Identity) -> Self {
        let files = [ca, &who.certificate, &who.key].map(|file| file.display().to_string());
        let values = std::iter::once(url.to_owned()).chain(files);
        let flags = ["--remote", "--ca", "--cert", "--key"].into_iter().map(str::to_owned).zip(values);
        Self { flags: flags.flat_map(|(flag, value)| [flag, value]).collect(), login: None }
    }

    /// The same, as somebody who has logged in as that user; `None`: as nobody who has.
    pub fn logged_in(&self, uid: Option<u32>) -> Self {
        Self { flags: self.flags.clone(), login: Some(uid) }
    }

    /// The command with its flags, for a caller that starts it somewhere else (in an agent's cgroup, say).
    pub fn command(&self, args: &[&str]) -> Vec<String> {
        let login = self.login.map(|uid| {
            // The kernel keeps it through exec; -1 is nobody.
            let set = r#"echo "$0" > /proc/self/loginuid && exec "$@""#;
            ["sh", "-c", set, &uid.unwrap_or(u32::MAX).to_string()].map(str::to_owned)
        });
        let json = "--json".to_owned();
        let args = args.iter().map(|&arg| arg.to_owned());
        let flags = self.flags.iter().cloned();
        login.into_iter().flatten().chain([interlock()]).chain(flags).chain([json]).chain(args).collect()
    }

    /// Runs a command.
    pub fn run(&self, args: &[&str]) -> Answer {
        self.try_run(args).unwrap_or_else(|| panic!("interlock {} was ended by a signal", args.join(" ")))
    }

    /// Runs a command; `None` when a signal ended it.
    pub fn try_run(&self, args: &[&str]) -> Option<Answer> {
        let command = self.command(args);
        let output = Command::new(&command[0])
            .args(&command[1..])
            .output()
            .unwrap_or_else(|error| panic!("run {}: {error}", command[0]));
        Some(Answer {
            code: output.status.code()?,
            json: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs a command as a person would, without `--json`; answers what it says.
    pub fn words(&self, args: &[&str]) -> String {
        let mut command = self.command(args);
        command.retain(|arg| arg != "--json");
        let output = Command::new(&command[0]).args(&command[1..]).output();
        String::from_utf8_lossy(&output.expect("run interlock").stdout).into_owned()
    }

    /// Stops what `selectors` name; answers the stop's id and the whole answer.
    pub fn stop(&self, selectors: &[&str], level: &str) -> (String, Answer) {
        let tail = ["--level", level, "--reason", "a test says so", "--wait", "5s"];
        let answer = self.run(&[&["stop"], selectors, &tail].concat());
        assert!(matches!(answer.code, 0 | 3), "{answer:?}");
        assert_eq!(answer.json["in_force"], true, "{answer:?}");
        let id = answer.json["stop"]["id"].as_str().unwrap_or_else(|| panic!("a stop has an id: {answer:?}"));
        (id.to_owned(), answer)
    }

    /// Releases a stop.
    pub fn release(&self, id: &str) -> Answer {
        self.run(&["release", id, "--reason", "the test is over"])
    }
}
