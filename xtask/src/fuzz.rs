//! `cargo xtask fuzz`: random rules files, messages, definitions of tools and streams of HTTP/1 for a while; `cargo xtask test` has a short run of the same.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::shell;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// For each target
    #[arg(default_value_t = 60)]
    seconds: u64,
    /// As a fault named it, to see it again
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = options.seed.unwrap_or(now);
    let mut command =
        shell::cargo(&["test", "--package", "agent-tests", "--test", "fuzz", "--", "--nocapture"]);
    command.env("INTERLOCK_FUZZ_SECONDS", options.seconds.to_string());
    command.env("INTERLOCK_FUZZ_SEED", seed.to_string());
    shell::run(&mut command)
}
