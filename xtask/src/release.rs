//! The program as it is shipped, in an image or a package: the release build with the kernel object in it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::{ebpf, shell};

/// Builds it, if anything has changed, and says where it is.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    ebpf::run()?;
    shell::run(&mut shell::cargo(&["build", "--release", "--package=agent-user", "--bin=interlock"]))?;
    Ok(shell::target().join("release/interlock"))
}

/// Takes symbols and line tables out of a copy of it.
pub(crate) fn strip(program: &Path) -> anyhow::Result<()> {
    let status = Command::new("strip").arg(program).status().context("run strip (install binutils)")?;
    ensure!(status.success(), "strip {}: {status}", program.display());
    Ok(())
}
