//! What interlock holds in memory, idle and with many open connections, and what it costs a process that is no agent.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::STUCK;
use super::daemon::Daemon;
use super::host::{Core, rss_kib};
use super::matrix::{load_command, median, run_load};
use crate::interrupt::pause;

/// Resident memory (VmRSS) of the daemons.
#[derive(Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) idle_kib: u64,
    pub(crate) idle_1000_rules_kib: u64,
    pub(crate) connections: u32,
    /// With that many connections open, each after one call.
    pub(crate) open_kib: u64,
    pub(crate) per_connection_kib: f64,
    /// After they were closed again.
    pub(crate) closed_kib: u64,
}

/// A process on the same host that is no agent: connect, one call, close, over and over.
#[derive(Debug, Serialize)]
pub(crate) struct Bystander {
    /// Medians over the rounds, µs: below the cgroup with the programs, and outside of it.
    pub(crate) attached_p50_us: f64,
    pub(crate) outside_p50_us: f64,
    pub(crate) ratio: f64,
    /// Outside against outside, measured the same way: how far a ratio is from 1 by chance.
    pub(crate) noise: f64,
    /// Connections interlock counted meanwhile. Must be 0.
    pub(crate) connections_touched: f64,
}

pub(crate) fn run(
    load: &Path,
    no_rules: &Daemon,
    rules: &Daemon,
    server: SocketAddr,
) -> anyhow::Result<Memory> {
    pause(Duration::from_secs(1))?;
    let (idle_kib, idle_1000_rules_kib) = (rss_kib(no_rules.pid())?, rss_kib(rules.pid())?);
    let mut command = load_command(load, server, "small", OPEN);
    command.arg("--idle");
    let mut process = Core::Load.start(command, Some(&no_rules.agents), None)?;
    process.first_line().with_context(|| format!("open {OPEN} connections"))?;
    pause(Duration::from_secs(1))?;
    let open_kib = rss_kib(no_rules.pid())?;
    drop(process);
    pause(Duration::from_secs(1))?;
    Ok(Memory {
        idle_kib,
        idle_1000_rules_kib,
        connections: OPEN,
        open_kib,
        per_connection_kib: (open_kib.saturating_sub(idle_kib)) as f64 / f64::from(OPEN),
        closed_kib: rss_kib(no_rules.pid())?,
    })
}

pub(crate) fn bystander(
    load: &Path,
    daemon: &Daemon,
    server: SocketAddr,
    quick: bool,
) -> anyhow::Result<Bystander> {
    let (rounds, calls) = if quick { (3, "1000") } else { (15, "2000") };
    let before = daemon.metric("interlock_connections_total", "")?;
    let fresh = |cgroup: Option<&Path>| -> anyhow::Result<f64> {
        let mut command: Command = load_command(load, server, "small", 1);
        command.args(["--fresh", "--calls", calls]);
        Ok(run_load(command, cgroup, STUCK)?.p50_us)
    };
    let (mut attached, mut outside, mut control) = (Vec::new(), Vec::new(), Vec::new());
    fresh(None)?;
    for _ in 0..rounds {
        outside.push(fresh(None)?);
        attached.push(fresh(Some(&daemon.peers))?);
        control.push(fresh(None)?);
    }
    let (attached_p50_us, outside_p50_us) = (median(attached), median(outside));
    Ok(Bystander {
        attached_p50_us,
        outside_p50_us,
        ratio: attached_p50_us / outside_p50_us,
        noise: median(control) / outside_p50_us,
        connections_touched: daemon.metric("interlock_connections_total", "")? - before,
    })
}

const OPEN: u32 = 2000;
