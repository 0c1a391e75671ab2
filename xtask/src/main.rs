//! xtask: the one door for checking, testing and measuring interlock. One file per command.

mod bench;
mod shell;

use clap::Parser;

/// What can be asked of it.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Measure what interlock costs, and that a stop stops.
    Bench(bench::Args),
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Bench(args) => bench::run(&args),
    }
}
