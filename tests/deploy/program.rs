//! The real program, run in a folder of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use agent_tests::app::interlock;
use serde_json::Value;
use tempfile::TempDir;

/// A folder in which commands run.
pub(crate) struct Folder(TempDir);

/// What a command said.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(TempDir::new().expect("a folder"))
    }

    pub(crate) fn with(files: &[(&str, &str)]) -> Folder {
        let folder = Folder::new();
        files.iter().for_each(|(name, text)| folder.write(name, text));
        folder
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).expect("write a file");
    }

    /// Runs `interlock`.
    pub(crate) fn run(&self, args: &[&str]) -> Said {
        let mut command = Command::new(interlock());
        let output = command.args(args).current_dir(self.path()).output().expect("run interlock");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        Said {
            code: output.status.code().expect("it ends by itself"),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Runs `interlock --json`, which must go well.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let said = self.run(&[args, &["--json"]].concat());
        assert_eq!(said.code, 0, "{args:?}: {}{}", said.stdout, said.stderr);
        serde_json::from_str(&said.stdout).expect("JSON")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}
