//! Builds the kernel object to `target/bpf/agent-ebpf`. Cheap when nothing changed, and the file is only touched
//! when its content did, so that `agent-user` is not rebuilt for nothing.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, ensure};

use crate::setup;

/// Builds the object, setting up first what that needs.
pub(crate) fn run() -> anyhow::Result<()> {
    setup::run(&setup::Options::default())?;
    cargo("build", &[])?;
    publish()
}

/// Lints the kernel code, which is a stub on the host.
pub(crate) fn clippy() -> anyhow::Result<()> {
    setup::run(&setup::Options::default())?;
    cargo("clippy", &["--", "-D", "warnings"])
}

fn cargo(subcommand: &str, extra: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(crate::root())
        .arg(subcommand)
        .args(["--package", "agent-ebpf", "--release", "--quiet"])
        .args(["--target", TARGET, "-Z", "build-std=core", "--target-dir"])
        .arg(build_dir())
        .args(extra)
        // `build-std` is all that is unstable here; the toolchain stays the one of the workspace.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-C linker=bpf-linker -C debuginfo=2 -C link-arg=--btf")
        .env("PATH", setup::path_with_tools()?)
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = command.status().context("run cargo")?;
    ensure!(status.success(), "cargo {subcommand} for {TARGET}: {status}");
    Ok(())
}

fn publish() -> anyhow::Result<()> {
    let built = build_dir().join(TARGET).join("release/agent-ebpf");
    let object = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    let published = crate::root().join("target/bpf/agent-ebpf");
    if fs::read(&published).is_ok_and(|old| old == object) {
        return Ok(());
    }
    let folder = crate::root().join("target/bpf");
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    fs::write(&published, &object).with_context(|| format!("write {}", published.display()))?;
    eprintln!(
        "built {} ({} KiB); the next build of agent-user embeds it",
        published.display(),
        object.len() / 1024
    );
    Ok(())
}

fn build_dir() -> PathBuf {
    crate::root().join("target/bpf-build")
}

const TARGET: &str = "bpfel-unknown-none";
