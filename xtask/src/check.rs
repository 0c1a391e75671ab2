//! `cargo xtask check`: formatting, lints for the host and for the kernel, and the rules of this repository.
//! Changes nothing; stops at the first failure.

use crate::{ebpf, shell, tidy};

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
        ebpf::clippy()?;
    }
    tidy::run()
}
