//! The one door for build, test, demo and bench: each subcommand is a file with `Options` and `run`.

mod apt;
mod bench;
mod cgroup;
mod check;
mod deb;
mod demo;
mod ebpf;
mod fuzz;
mod image;
mod interrupt;
mod kube;
mod oci;
mod process;
mod release;
mod scrape;
mod scratch;
mod sdk;
mod setup;
mod shell;
mod soak;
mod test;
mod tidy;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Build, show, test and measure interlock")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the kernel object needs to build: rust-src and bpf-linker
    Setup(setup::Options),
    /// Build the kernel object, which the next build of agent-user embeds
    Ebpf,
    /// Make the MCP SDKs ready that the tests talk to
    Sdk,
    /// See interlock at work, with real processes, in under a minute after the build
    Demo,
    /// Measure what interlock costs next to direct calls, and that a stop stops
    Bench(bench::Options),
    /// Make a container image of interlock: target/image/interlock.oci.tar
    Image(image::Options),
    /// Make a Debian package of interlock: target/deb/interlock_VERSION_ARCHITECTURE.deb
    Deb(deb::Options),
    /// Formatting, lints for the host and for the kernel, and the rules of this repository
    Check(check::Options),
    /// Random rules and messages, for as many seconds
    Fuzz(fuzz::Options),
    /// Mixed clients for many minutes: no error of ours, nothing altered, memory and open files flat
    Soak(soak::Options),
    /// A real Kubernetes cluster on this machine
    Kube(kube::Options),
    /// Every test this machine can run, with what they need
    Test(test::Options),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().task {
        Task::Setup(options) => setup::run(&options),
        Task::Ebpf => ebpf::run(),
        Task::Sdk => sdk::provision(),
        Task::Demo => demo::run(),
        Task::Bench(options) => bench::run(&options),
        Task::Image(options) => image::run(&options),
        Task::Deb(options) => deb::run(&options),
        Task::Check(options) => check::run(&options),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Kube(options) => kube::run(&options),
        Task::Test(options) => test::run(&options),
    }
}

/// The workspace folder.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}
