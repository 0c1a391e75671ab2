//! The `interlock` binary: arguments, logging, exit code.

use std::process::ExitCode;

use clap::Parser;
use interlock::cli::{self, Args};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    cli::main(Args::parse())
}
