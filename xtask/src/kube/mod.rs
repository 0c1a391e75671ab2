//! `cargo xtask kube`: a real Kubernetes on this one machine, for tests and for developers: API server, controllers,
//! scheduler, kubelet, kube-proxy and containerd, in a network and a mount namespace of their own. What it needs is kept
//! below `target/kube/`; taken down, it leaves nothing of itself on the machine.

mod build;
mod certs;
mod cluster;
mod control;
mod debs;
mod files;
mod hierarchy;
mod images;
mod node;
mod worker;

use std::process::Command;

use anyhow::{bail, ensure};
use clap::Subcommand;

pub(crate) use self::cluster::Cluster;
use self::files::Files;
use crate::{interrupt, shell};

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch and build what a cluster needs, once: about eight minutes on two cores
    Provision,
    /// Start a cluster, which stays until `down`
    Up,
    /// End it and remove every trace of it
    Down,
    /// Run kubectl as its administrator
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    needs_root()?;
    match &options.task {
        Task::Provision => provision(),
        Task::Up => {
            interrupt::catch_interrupts()?;
            provision()?;
            images::interlock(&Files::new())?;
            Cluster::up()?.keep();
            Ok(())
        }
        Task::Down => node::take_down(&Files::new()),
        Task::Kubectl { args } => {
            let kubectl = Files::new().kubectl();
            ensure!(kubectl.exists(), "no cluster is up (run `cargo xtask kube up`)");
            let status = Command::new(kubectl).args(args).status()?;
            std::process::exit(status.code().unwrap_or(1));
        }
    }
}

/// Fetches and builds what is missing, and says what it does.
pub(crate) fn provision() -> anyhow::Result<()> {
    let files = Files::new();
    debs::provision(&files)?;
    build::provision(&files)?;
    images::provision(&files)
}

/// Runs the tests that need a cluster, in the one that is up, which stays, or in one of their own.
pub(crate) fn test(names: &[String]) -> anyhow::Result<()> {
    needs_root()?;
    interrupt::catch_interrupts()?;
    let files = Files::new();
    provision()?;
    images::interlock(&files)?;
    let _own = if files.kubectl().exists() {
        images::all(&files).iter().try_for_each(|image| worker::load(&files, image))?;
        None
    } else {
        Some(Cluster::up()?)
    };
    // The workspace as one, as for all other tests: nothing is built twice.
    let features = "--features=agent-tests/root-tests,agent-tests/kube-tests";
    let mut tests = shell::cargo(&["test", "--workspace", features, "--test=kube", "--"]);
    // The command line of operators outside of the cluster.
    tests.env("INTERLOCK_BIN", shell::target().join("release/interlock"));
    // One node, and its settings are every test's.
    shell::run(tests.arg("--test-threads=1").args(names))
}

fn needs_root() -> anyhow::Result<()> {
    if !shell::is_root() {
        bail!("a cluster needs root: it makes namespaces and cgroups, and removes all of them again");
    }
    Ok(())
}
