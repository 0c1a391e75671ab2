//! The one door for build, test, demo and bench: each subcommand is a file with `Options` and `run`.

mod ebpf;
mod setup;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Build, test and measure interlock")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the kernel object needs to build: rust-src and bpf-linker
    Setup(setup::Options),
    /// Build the kernel object, which the next build of agent-user embeds
    Ebpf(ebpf::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().task {
        Task::Setup(options) => setup::run(&options),
        Task::Ebpf(options) => ebpf::run(&options),
    }
}

/// The workspace folder.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}
