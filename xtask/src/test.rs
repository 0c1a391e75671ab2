//! `cargo xtask test`: makes ready what the tests need, runs every test this machine can run, and names the ones it
//! cannot. With `kube`: only those in a real cluster, which the others do without; with `conformance`: only the official
//! suites, and what they find.

use crate::{bench, ebpf, kube, sdk, shell};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only what needs neither root nor the SDKs
    #[arg(long)]
    plain: bool,
    #[command(subcommand)]
    only: Option<Only>,
}

#[derive(clap::Subcommand)]
enum Only {
    /// Only those in a real Kubernetes cluster, in the one that is up or in one of their own
    Kube {
        /// Parts of the names of tests
        names: Vec<String>,
    },
    /// Only the official conformance suites, with and without interlock, and how many of their checks are passed
    Conformance {
        /// Parts of the names of tests
        names: Vec<String>,
    },
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.only {
        Some(Only::Kube { names }) => return kube::test(names),
        Some(Only::Conformance { names }) => return conformance(names),
        None => {}
    }
    let whole = !options.plain && shell::is_root();
    if whole {
        ebpf::run()?;
        sdk::provision()?;
    }
    // The workspace as one, always: a package alone is built with other features of what it uses, and so everything
    // twice. The whole-program tests start what is built here.
    shell::run(&mut shell::cargo(&["build", "--workspace"]))?;
    // Two at a time: each of the whole-program tests runs a daemon, a server and an agent.
    let features: &[_] = if whole { &["--features", "agent-tests/root-tests"] } else { &[] };
    let tests = [&["test", "--workspace"], features, &["--", "--test-threads=2"]].concat();
    shell::run(&mut shell::cargo(&tests))?;
    // Ledger and stops against each other in every interleaving. Only libraries: the program must not be built so.
    let models = ["test", "--workspace", "--features", "agent-user/loom", "--lib", "exact::"];
    shell::run(&mut shell::cargo(&models))?;
    if whole {
        // 200 stops and releases of both levels under load, the answers held against the server's log call by call.
        return bench::check_promises();
    }
    let why =
        if options.plain { "--plain was given" } else { "this is not root, and they attach kernel programs" };
    println!(
        "test: SKIPPED: the whole-program tests (agents in cgroups and network namespaces of their own, the official \
         SDKs, the stop under load), because {why}. Run `cargo xtask test` as root for them."
    );
    Ok(())
}

fn conformance(names: &[String]) -> anyhow::Result<()> {
    anyhow::ensure!(
        shell::is_root(),
        "the tests attach kernel programs: run `cargo xtask test conformance` as root"
    );
    ebpf::run()?;
    sdk::provision()?;
    shell::run(&mut shell::cargo(&["build", "--workspace"]))?;
    let mut tests = shell::cargo(&["test", "--workspace", "--features", "agent-tests/root-tests"]);
    tests.args(["--test", "conformance", "--", "--test-threads=1", "--nocapture"]).args(names);
    shell::run(&mut tests)
}
