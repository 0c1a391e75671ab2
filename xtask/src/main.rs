//! The one door for build, test, demo and bench.

mod sdk;

use clap::Parser;

#[derive(Parser)]
enum Task {
    /// Make the MCP SDKs ready that the whole-program tests talk to
    Sdk,
}

fn main() -> anyhow::Result<()> {
    match Task::parse() {
        Task::Sdk => sdk::provision(),
    }
}
