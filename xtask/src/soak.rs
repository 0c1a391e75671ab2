//! `cargo xtask soak`: mixed clients through interlock and beside it for many minutes; `tests/soak/` says what must hold.

use crate::{ebpf, sdk, shell};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// How long
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Of the random bodies
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// With optimized builds
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(shell::is_root(), "soak: this is not root; it attaches kernel programs");
    ebpf::run()?;
    sdk::provision()?;
    let profile: &[&str] = if options.release { &["--release"] } else { &[] };
    shell::run(&mut shell::cargo(&[&["build", "--workspace"], profile].concat()))?;
    // The workspace as one, as `cargo xtask test` has it.
    let features = ["test", "--workspace", "--features", "agent-tests/root-tests,agent-tests/soak-tests"];
    let only = ["--test", "soak", "--", "--nocapture"];
    let mut command = shell::cargo(&[&features[..], profile, &only].concat());
    command.env("INTERLOCK_SOAK_MINUTES", options.minutes.to_string());
    command.env("INTERLOCK_SOAK_SEED", options.seed.to_string());
    shell::run(&mut command)
}
