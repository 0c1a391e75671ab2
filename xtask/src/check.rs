//! `cargo xtask check`: formatting, lints for the host and for the kernel, and the rules of this repository.
//! Changes nothing; stops at the first failure.

use crate::{shell, tidy};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Leave out the lints of the kernel side, which need rust-src
    #[arg(long)]
    no_kernel: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    shell::run(&mut shell::cargo(&["fmt", "--all", "--check"]))?;
    shell::run(&mut shell::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "--deny=warnings",
    ]))?;
    if options.no_kernel {
        eprintln!("check: the kernel side was not linted (--no-kernel)");
    } else {
        // CALL SITE: `setup::run(..)`, then `ebpf::run(&ebpf::Options { clippy: true })` in place of `kernel_clippy`.
        shell::run(&mut kernel_clippy())?;
    }
    tidy::run()
}

/// On the host the kernel side is a stub, so its lints need its own target, and that needs `core` built.
fn kernel_clippy() -> std::process::Command {
    let mut command = shell::cargo(&["clippy", "--package", "agent-ebpf", "--release"]);
    command.args(["--target", "bpfel-unknown-none", "-Z", "build-std=core", "--", "--deny=warnings"]);
    // `-Z` on a stable toolchain; the flags of a host build mean nothing to this target.
    command.env("RUSTC_BOOTSTRAP", "1").env_remove("RUSTFLAGS");
    command
}
