//! `interlock policy`: tools for the author of rules. None of them needs a daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde_json::json;

use super::{Args, BadConfig};
use crate::author::case::{self, Case};
use crate::author::{check, explain, replay};
use crate::reload::{self, Loaded};

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Read a rules file as the daemon would, and warn of rules that cannot be what is meant.
    Check {
        file: PathBuf,
        /// Warn also of globs that match nothing in these records.
        #[arg(long)]
        records: Option<PathBuf>,
    },
    /// Show how each rule looks at one message: a decision of the records, or a call in a file of its own.
    Explain {
        file: PathBuf,
        /// The id of the decision.
        #[arg(long, requires = "records", conflicts_with = "call", required_unless_present = "call")]
        decision: Option<String>,
        /// The records that it is in.
        #[arg(long)]
        records: Option<PathBuf>,
        /// A JSON object like a decision of the records: `{"agent": …, "server": …, "method": …, "tool": …, "arguments": …}`.
        #[arg(long)]
        call: Option<PathBuf>,
    },
    /// Decide once more on the messages of a records file, and count what would have been different.
    Replay {
        records: PathBuf,
        /// The rules to decide with.
        #[arg(long = "with")]
        file: PathBuf,
    },
}

pub(super) fn run(args: &Args, command: &PolicyCommand) -> Result<ExitCode> {
    match command {
        PolicyCommand::Check { file, records } => {
            let Loaded { file: rules, text, policy } = reload::load(file).context(BadConfig)?;
            let seen = records.as_deref().map(case::decisions).transpose()?.map(check::Seen::of);
            let warnings = check::check(&rules, &text, seen.as_ref());
            args.print(&json!({"rules": policy.len(), "warnings": warnings}), |_| {
                let name = file.display().to_string();
                format!("{}{name}: {} rules, good", check::render(&warnings, &name), policy.len())
            });
        }
        PolicyCommand::Explain { file, decision, records, call } => {
            let Loaded { file: rules, policy, .. } = reload::load(file).context(BadConfig)?;
            let case = match (decision, records, call) {
                (Some(id), Some(records), _) => case::find(records, id)?,
                (_, _, Some(call)) => Case::load(call)?,
                _ => bail!("say which message: --decision ID --records FILE, or --call FILE"),
            };
            let explanation = explain::explain(&rules, &policy, &case);
            args.print(&serde_json::to_value(&explanation)?, |_| explain::render(&explanation));
        }
        PolicyCommand::Replay { records, file } => {
            let policy = reload::load(file).context(BadConfig)?.policy;
            let report = replay::replay(case::decisions(records)?, &policy);
            args.print(&serde_json::to_value(&report)?, |_| replay::render(&report));
        }
    }
    Ok(ExitCode::SUCCESS)
}
