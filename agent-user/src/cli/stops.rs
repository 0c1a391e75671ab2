//! `interlock stop`, `escalate`, `release` and `stops`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args as ClapArgs, Subcommand};
use jiff::SignedDuration;
use serde_json::Value;

use crate::control::client::{Client, NoAnswer};
use crate::control::{EscalateOrder, ReleaseOrder, StopOrder};
use crate::decide::stop::{Level, Terms};
use crate::fleet::resources::AgentStopSpec;
use crate::place::Places;
use crate::spool::offline_id;

use super::render::{drill_text, operator_text, receipt_text, scope_text, stops_table, text};
use super::{Args, BadConfig, fleet, offline};

/// A stop is in force, and the fate of some call is open, or a restart would lift it; or a release needs a second person.
pub(super) const OPEN: u8 = 3;
/// How often a followed stop is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);

/// What to stop, and how far to go.
#[derive(Debug, ClapArgs)]
pub(super) struct Stop {
    /// `agent=`, `label=KEY=`, `workflow=`, `session=`, `server=`, `tool=`; ANDed. Globs are allowed, and hold for what comes later.
    selectors: Vec<String>,
    /// Everything of every agent.
    #[arg(long)]
    all: bool,
    /// Why; the agent is shown it.
    #[arg(long, required_unless_present = "dry_run")]
    reason: Option<String>,
    /// How far to go. Levels beyond `refuse` act on whole agents.
    #[arg(long, value_enum, default_value_t)]
    level: Level,
    /// How long to wait for the fates of calls in flight, such as `5s`.
    #[arg(long, default_value = "5s")]
    wait: SignedDuration,
    /// Only list what would be cut now.
    #[arg(long)]
    dry_run: bool,
    /// On every node of the cluster that KUBECONFIG names: makes an `AgentStop`, and sums up what the nodes answer.
    #[arg(long, conflicts_with_all = ["dry_run", "config"])]
    fleet: bool,
    /// The daemon's configuration, to stop without it where it has not run since boot.
    #[arg(long)]
    config: Option<PathBuf>,
}

/// How far a stop goes from now on.
#[derive(Debug, ClapArgs)]
pub(super) struct Escalate {
    id: String,
    #[arg(long, value_enum)]
    level: Level,
    #[arg(long)]
    reason: String,
    /// How long to wait for the fates of calls in flight, such as `5s`.
    #[arg(long, default_value = "5s")]
    wait: SignedDuration,
}

#[derive(Debug, Subcommand)]
pub(super) enum Stops {
    /// Show all that is known of one stop: what was done to whom, and what became of every call.
    Show {
        id: String,
        /// Print again what changes, until every fate is known.
        #[arg(long, short)]
        follow: bool,
    },
}

pub(super) fn stop(args: &Args, client: &Client, stop: &Stop) -> Result<ExitCode> {
    let scope = Terms::parse(&stop.selectors, stop.all).map_err(anyhow::Error::msg).context(BadConfig)?;
    if stop.fleet {
        let spec =
            AgentStopSpec { scope, level: stop.level, reason: stop.reason.clone().unwrap_or_default() };
        return fleet::stop(args, spec, stop.wait);
    }
    let ticket = offline_id();
    let order = StopOrder {
        scope,
        level: stop.level,
        reason: stop.reason.clone().unwrap_or_default(),
        wait: stop.wait,
        dry_run: stop.dry_run,
        ticket: Some(ticket.clone()),
    };
    if stop.dry_run {
        args.print(&client.post("/v1/stops", &order)?, drill_text);
        return Ok(ExitCode::SUCCESS);
    }
    let answer = match client.post_watched("/v1/stops", &order) {
        Err(error) if error.is::<NoAnswer>() => {
            eprintln!("interlock: {error:#}; stopping without it");
            let places = Places::find(stop.config.as_deref(), &args.runtime_dir)
                .with_context(|| format!("nothing is stopped: {error:#}"))?;
            serde_json::to_value(offline::stop(&places, order, &ticket)?)?
        }
        answer => answer?,
    };
    args.print(&answer, receipt_text);
    Ok(code(&answer))
}

pub(super) fn escalate(args: &Args, client: &Client, order: &Escalate) -> Result<ExitCode> {
    let Escalate { id, level, reason, wait } = order;
    let body = EscalateOrder { level: *level, reason: reason.clone(), wait: *wait };
    let answer = client.post(&format!("/v1/stops/{id}/escalate"), &body)?;
    args.print(&answer, receipt_text);
    Ok(code(&answer))
}

pub(super) fn release(args: &Args, client: &Client, id: &str, reason: &str) -> Result<ExitCode> {
    let order = ReleaseOrder { reason: reason.to_owned() };
    let answer = client.post(&format!("/v1/stops/{id}/release"), &order)?;
    let released = answer["outcome"] == "released";
    args.print(&answer, |answer| {
        let stop = &answer["stop"];
        let what = format!("{} ({})", text(&stop["id"]), scope_text(&stop["scope"]));
        if released {
            format!("released {what}")
        } else {
            format!(
                "{what} HOLDS: {} has asked for its release; a second person must order the same",
                operator_text(&answer["asked_by"])
            )
        }
    });
    Ok(if released { ExitCode::SUCCESS } else { ExitCode::from(OPEN) })
}

pub(super) fn stops(args: &Args, client: &Client, command: Option<&Stops>) -> Result<ExitCode> {
    match command {
        None => {
            args.print(&client.get("/v1/stops")?, stops_table);
            Ok(ExitCode::SUCCESS)
        }
        Some(Stops::Show { id, follow }) => show(args, client, id, *follow),
    }
}

fn show(args: &Args, client: &Client, id: &str, follow: bool) -> Result<ExitCode> {
    let path = format!("/v1/stops/{id}");
    let mut shown = client.get(&path)?;
    args.print(&shown, receipt_text);
    let may_change = |receipt: &Value| {
        let calls = receipt["calls"].as_array();
        receipt["released"].is_null()
            && calls.is_some_and(|calls| calls.iter().any(|call| call["open"] == true))
    };
    while follow && may_change(&shown) {
        std::thread::sleep(LOOK_EVERY);
        let now = client.get(&path)?;
        if now["calls"] != shown["calls"] || now["stop"] != shown["stop"] {
            args.print(&now, receipt_text);
        }
        shown = now;
    }
    Ok(code(&shown))
}

fn code(receipt: &Value) -> ExitCode {
    match (receipt["in_force"] != false, receipt["open"] == 0 && receipt["durable"] != false) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(OPEN),
        (false, _) => ExitCode::FAILURE,
    }
}
