//! `cargo xtask bench`: what interlock costs, next to the same calls without it, on this host and in this run.
//!
//! The proxy has a core of its own; load and server share another, so that a light proxy is not hidden by a heavy load.
//! Two daemons run side by side, one without rules and one with 1,000. Prints tables and writes
//! `target/bench/latest.json`. Fails when a promise is broken (a call after a stop's answer, traffic that was not
//! inspected), not when a number is high.

mod baseline;
mod books;
mod conditions;
mod daemon;
mod host;
mod matrix;
mod memory;
mod probe;
mod table;
mod watch;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, iter};

use anyhow::{Context, bail};
use serde::Serialize;

use self::baseline::Baseline;
use self::conditions::Conditions;
use self::daemon::{Daemon, rules_yaml};
use self::host::Core;
use self::matrix::{CONNECTIONS, Cell, Effort, SHAPES, Way};
use self::memory::{Bystander, Memory};
use self::probe::{Crowd, DENSE, Probe, WIDE};
use self::watch::{Repeats, Watch};
use crate::cgroup::Cgroup;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{interrupt, shell};

#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// One short round of everything, few stops.
    #[arg(long)]
    quick: bool,
    /// Only load against server, without interlock: needs no root and shows what the tools themselves can do.
    #[arg(long)]
    direct: bool,
    /// Only these cells, as SHAPE/CONNECTIONS, e.g. small/32,64k/1.
    #[arg(long, value_delimiter = ',')]
    cells: Vec<String>,
    /// Measure this binary instead of building one, e.g. an older one.
    #[arg(long, conflicts_with = "direct")]
    binary: Option<PathBuf>,
    /// Leave the load matrix out.
    #[arg(long)]
    no_matrix: bool,
    /// Leave the stop probe out.
    #[arg(long)]
    no_probe: bool,
    /// Leave memory and bystander out.
    #[arg(long)]
    no_memory: bool,
    /// Leave conditions of rules out.
    #[arg(long)]
    no_conditions: bool,
    /// Leave out what rules that cannot match cost a decision.
    #[arg(long)]
    no_rules: bool,
    /// Leave out what watching tools costs.
    #[arg(long)]
    no_watch: bool,
    /// Stops under the dense load, for exactness.
    #[arg(long)]
    stops: Option<usize>,
    /// Stops under the wide load of 2,000 connections, for the time they take.
    #[arg(long)]
    wide_stops: Option<usize>,
    /// Use debug builds and leave the measurements out: for the promises, not for the numbers.
    #[arg(long, conflicts_with_all = ["binary", "direct"])]
    promises: bool,
}

/// Everything that was measured, as it is written to `target/bench/latest.json`.
#[derive(Serialize)]
struct Report {
    version: u32,
    at: String,
    kernel: String,
    cores: usize,
    /// Processes that wanted to run in the minute before: on a busy machine the numbers are of the machine.
    load_average: f64,
    quick: bool,
    effort: Effort,
    cells: Vec<Cell>,
    memory: Option<Memory>,
    bystander: Option<Bystander>,
    conditions: Option<Conditions>,
    watch: Option<Watch>,
    stop: Vec<Probe>,
}

/// The programs of the bench, built.
struct Programs {
    interlock: PathBuf,
    server: PathBuf,
    load: PathBuf,
}

/// The two daemons; dropped before the cgroups they live in.
struct Daemons {
    no_rules: Daemon,
    rules: Daemon,
}

/// Checks what a stop promises, under load, with what `cargo xtask test` has built.
pub(crate) fn check_promises() -> anyhow::Result<()> {
    run(&Options { promises: true, ..Options::default() })
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::end_at_second_interrupt()?;
    interrupt::catch_interrupts()?;
    host::raise_open_files()?;
    let cells = pick_cells(&options.cells)?;
    if !options.direct && !shell::is_root() {
        bail!("the bench attaches kernel programs and makes cgroups: run it as root, or with --direct");
    }
    let load_average = host::load_average();
    if load_average > BUSY && !options.promises {
        eprintln!(
            "bench: this machine is busy (load average {load_average}): the numbers will be too high and uneven"
        );
    }
    let programs = build(options)?;
    let folder = shell::target().join("bench");
    fs::create_dir_all(&folder)?;
    let scratch = Scratch::make("ibench")?;

    let mut command = Command::new(&programs.server);
    command.arg("--log");
    let mut server = Core::Load.start(command, None, None)?;
    let address: SocketAddr = listening(&mut server)?;
    // Its log grows with every call, so the matrix has a server without one.
    let mut quiet = Core::Load.start(Command::new(&programs.server), None, None)?;
    let quiet_address = listening(&mut quiet)?;

    // Declared before what lives in it, so dropped after.
    let cgroup = (!options.direct).then(|| Cgroup::make("ibench")).transpose()?;
    let daemons =
        cgroup.as_ref().map(|cgroup| start_daemons(&programs, cgroup, &scratch.0, &folder)).transpose()?;

    let effort = if options.quick {
        Effort { rounds: 1, seconds: 0.6, warmup: 0.15 }
    } else {
        Effort { rounds: 5, seconds: 1.5, warmup: 0.3 }
    };
    let mut report = Report {
        version: 2,
        at: jiff::Timestamp::now().to_string(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        load_average,
        quick: options.quick,
        effort,
        cells: Vec::new(),
        memory: None,
        bystander: None,
        conditions: None,
        watch: None,
        stop: Vec::new(),
    };
    if !options.promises && !options.no_conditions {
        report.conditions = Some(conditions::run()?);
        table::conditions(report.conditions.as_ref());
    }
    if !options.promises && !options.direct && !options.no_rules {
        shell::run(&mut shell::cargo(&[
            "bench",
            "--package",
            "agent-user",
            "--bench",
            "rules",
            "--",
            "--ratios",
        ]))?;
    }
    // Memory first: the daemons are as they started.
    if let (Some(daemons), false) = (&daemons, options.promises || options.no_memory) {
        report.memory = Some(memory::run(&programs.load, &daemons.no_rules, &daemons.rules, quiet_address)?);
        table::memory(report.memory.as_ref());
        report.bystander =
            Some(memory::bystander(&programs.load, &daemons.rules, quiet_address, options.quick)?);
        table::bystander(report.bystander.as_ref());
    }
    if !options.no_matrix && !options.promises {
        let baselines = baseline::start_all(&scratch.0, quiet_address)?;
        let ways = ways(daemons.as_ref(), &baselines, quiet_address);
        let before = daemons.as_ref().map(judged).transpose()?;
        report.cells = matrix::run(&programs.load, &ways, effort, &cells)?;
        table::matrix(&report.cells, effort);
        if let (Some(daemons), Some(before)) = (&daemons, before) {
            check_inspected(daemons, before)?;
        }
    }
    if let (Some(cgroup), false) = (&cgroup, options.promises || options.no_watch) {
        let (rounds, turns) = if options.quick { (1, 1) } else { (5, 3) };
        let watch = watch::run(&programs.load, quiet_address, Repeats { rounds, turns }, |round| {
            let (name, log) = (format!("watch-{round}"), folder.join("interlock-watch.log"));
            Daemon::start(&programs.interlock, cgroup, &scratch.0, &name, watch::RULES, &log)
        })?;
        table::watch(&watch);
        report.watch = Some(watch);
    }
    if let (Some(daemons), false) = (&daemons, options.no_probe) {
        for (crowd, stops) in stops(options) {
            let probe = probe::run(&programs.load, &daemons.rules, address, &scratch.0, crowd, stops)?;
            table::stop(&probe);
            report.stop.push(probe);
        }
    }
    if !options.promises {
        let path = folder.join("latest.json");
        fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")?;
        println!("\nwritten to {}", path.strip_prefix(crate::root()).unwrap_or(&path).display());
    }
    broken_promises(&report)
}

/// How often is stopped under which load.
fn stops(options: &Options) -> Vec<(Crowd, usize)> {
    let (dense, wide) = match options {
        Options { promises: true, .. } => (200, 0),
        Options { quick: true, .. } => (40, 10),
        _ => (2000, 400),
    };
    let counts = [(DENSE, options.stops.unwrap_or(dense)), (WIDE, options.wide_stops.unwrap_or(wide))];
    counts.into_iter().filter(|&(_, stops)| stops > 0).collect()
}

fn build(options: &Options) -> anyhow::Result<Programs> {
    // Promises are kept by the programs of `cargo xtask test`, which builds the workspace as one; figures are of what ships.
    let build = |package: &str, programs: &[&str]| {
        let mut command = shell::cargo(&["build"]);
        if options.promises {
            command.arg("--workspace");
        } else {
            command.args(["--release", "--package", package]);
        }
        command.args(programs.iter().flat_map(|program| ["--bin", program]));
        shell::run(&mut command)
    };
    build("agent-tests", &["bench-server", "bench-load"])?;
    if !options.direct && options.binary.is_none() {
        crate::ebpf::run()?;
        build("agent-user", &["interlock"])?;
    }
    let folder = shell::target().join(if options.promises { "debug" } else { "release" });
    Ok(Programs {
        interlock: options.binary.clone().unwrap_or_else(|| folder.join("interlock")),
        server: folder.join("bench-server"),
        load: folder.join("bench-load"),
    })
}

fn listening(server: &mut Process) -> anyhow::Result<SocketAddr> {
    let line = server.first_line()?;
    let address = line.strip_prefix("listening ").with_context(|| format!("bench-server said {line}"))?;
    Ok(address.parse()?)
}

fn start_daemons(
    programs: &Programs,
    cgroup: &Cgroup,
    scratch: &Path,
    folder: &Path,
) -> anyhow::Result<Daemons> {
    let start = |name: &str, rules| {
        let log = folder.join(format!("interlock-{name}.log"));
        Daemon::start(&programs.interlock, cgroup, scratch, name, &rules_yaml(rules), &log)
    };
    Ok(Daemons { no_rules: start("no-rules", 0)?, rules: start("rules", 1000)? })
}

fn ways(daemons: Option<&Daemons>, baselines: &[Baseline], server: SocketAddr) -> Vec<Way> {
    let direct = Way { name: "direct", target: server, cgroup: None, proxies: Vec::new() };
    let through = |name, daemon: &Daemon| Way {
        name,
        target: server,
        cgroup: Some(daemon.agents.clone()),
        proxies: vec![daemon.pid()],
    };
    let held = daemons.map(|both| [through("no rules", &both.no_rules), through("1000 rules", &both.rules)]);
    let others = baselines.iter().map(|other| Way {
        name: other.name,
        target: other.address,
        cgroup: None,
        proxies: vec![other.process.pid()],
    });
    iter::once(direct).chain(held.into_iter().flatten()).chain(others).collect()
}

fn pick_cells(wanted: &[String]) -> anyhow::Result<Vec<(&'static str, u32)>> {
    let all = || SHAPES.into_iter().flat_map(|shape| CONNECTIONS.map(|connections| (shape, connections)));
    let name = |(shape, connections): (&str, u32)| format!("{shape}/{connections}");
    if let Some(unknown) = wanted.iter().find(|text| !all().any(|cell| name(cell) == **text)) {
        bail!("no cell {unknown}; there are {}", all().map(name).collect::<Vec<_>>().join(", "));
    }
    Ok(all().filter(|&cell| wanted.is_empty() || wanted.contains(&name(cell))).collect())
}

/// Messages both daemons have judged so far.
fn judged(daemons: &Daemons) -> anyhow::Result<[f64; 2]> {
    let judged = |daemon: &Daemon| daemon.metric("interlock_decisions_total", "");
    Ok([judged(&daemons.no_rules)?, judged(&daemons.rules)?])
}

/// A proxy that is fast because nothing goes through it is no result.
fn check_inspected(daemons: &Daemons, before: [f64; 2]) -> anyhow::Result<()> {
    let after = judged(daemons)?;
    if iter::zip(before, after).any(|(before, after)| after - before < 1.0) {
        bail!(
            "the load ran as an agent and interlock judged nothing of it: these numbers are not interlock's"
        );
    }
    Ok(())
}

fn broken_promises(report: &Report) -> anyhow::Result<()> {
    let mut broken = Vec::new();
    for cell in &report.cells {
        if cell.errors + cell.refusals > 0 {
            let (shape, connections, way) = (cell.shape, cell.connections, cell.way);
            broken.push(format!(
                "{shape} × {connections}, {way}: {} errors, {} refusals where all is allowed {:?}",
                cell.errors, cell.refusals, cell.error_kinds
            ));
        }
    }
    broken.extend(report.watch.iter().flat_map(Watch::broken_promises));
    for stop in &report.stop {
        if stop.after_in_force > 0 {
            let (crowd, calls) = (stop.crowd, stop.after_in_force);
            broken.push(format!("{crowd}: {calls} calls reached the server while a stop was in force"));
        }
        broken.extend(stop.disagreements.iter().take(20).cloned());
    }
    if report.bystander.as_ref().is_some_and(|bystander| bystander.connections_touched > 0.0) {
        broken.push("connections of a process that is no agent were taken".to_owned());
    }
    if !broken.is_empty() {
        bail!("the bench found broken promises:\n  {}", broken.join("\n  "));
    }
    Ok(())
}

/// Load average from which on somebody else is at work.
const BUSY: f64 = 0.7;
/// How long one run of a fixed number of calls may take before it counts as stuck.
const STUCK: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_picked_by_name() {
        assert_eq!(pick_cells(&[]).unwrap().len(), 12);
        assert_eq!(pick_cells(&["64k/32".to_owned()]).unwrap(), [("64k", 32)]);
        assert!(pick_cells(&["64k/33".to_owned()]).is_err());
    }
}
