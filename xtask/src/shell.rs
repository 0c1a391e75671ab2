//! Commands of cargo and others that fail with their own words.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from)
}

/// The cargo that runs this program, in the root of the workspace.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(crate::root());
    command
}

/// Shows a command, runs it, and fails when it does.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let mut text = command.get_program().to_string_lossy().rsplit('/').next().unwrap_or_default().to_owned();
    for arg in command.get_args() {
        text = format!("{text} {}", arg.to_string_lossy());
    }
    eprintln!("$ {text}");
    let status = command.status().with_context(|| format!("start {text}"))?;
    if !status.success() {
        bail!("`{text}` failed ({status})");
    }
    Ok(())
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
