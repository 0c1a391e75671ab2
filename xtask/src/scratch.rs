//! A folder of this run's own, gone when it ends.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A folder for configuration, sockets and records; short, because a socket's path must be.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn make(prefix: &str) -> anyhow::Result<Self> {
        Self::make_in(&std::env::temp_dir(), prefix)
    }

    /// One for what is too large for the machine's folder of temporary files.
    pub(crate) fn make_in(dir: &Path, prefix: &str) -> anyhow::Result<Self> {
        let path = dir.join(format!("{prefix}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
