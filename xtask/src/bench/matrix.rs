//! The load matrix: what is called × over how many connections × by which way, in alternating rounds, as medians and
//! as ratios to the direct way of the same run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::host::{Core, cpu_seconds, progress, progress_done};

pub(crate) const SHAPES: [&str; 4] = ["small", "64k", "1m", "sse20"];
pub(crate) const CONNECTIONS: [u32; 3] = [1, 32, 256];

/// One way from the load to the server.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    /// Where the load connects to.
    pub(crate) target: SocketAddr,
    /// Where the load runs; `None` is outside of every agent.
    pub(crate) cgroup: Option<PathBuf>,
    /// The processes in between, whose CPU time is counted.
    pub(crate) proxies: Vec<u32>,
}

/// How long and how often.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) warmup: f64,
}

/// What bench-load prints.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Load {
    pub(crate) total_calls: u64,
    pub(crate) throughput: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) errors: u64,
    pub(crate) refusals: u64,
    pub(crate) error_kinds: BTreeMap<String, u64>,
    pub(crate) walk: Walk,
}

/// What bench-load prints of what it asked endpoints for meanwhile.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Walk {
    pub(crate) answers: u64,
    pub(crate) failures: BTreeMap<String, u64>,
}

/// Medians over the rounds of one cell by one way.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) shape: &'static str,
    pub(crate) connections: u32,
    pub(crate) way: &'static str,
    /// Calls per second.
    pub(crate) throughput: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU seconds of the proxy per 1,000 calls; none for the direct way.
    pub(crate) cpu_s_per_1000: Option<f64>,
    /// The same, in µs per call.
    pub(crate) cpu_us_per_call: Option<f64>,
    pub(crate) ratio: Ratio,
    pub(crate) errors: u64,
    pub(crate) refusals: u64,
    pub(crate) error_kinds: Vec<BTreeMap<String, u64>>,
}

/// To the direct way: below 1 is less. For throughput more is better, for the others less.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) throughput: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// One measured round.
struct Round {
    load: Load,
    cpu_us: Option<f64>,
}

/// Measures every cell by every way; the first way is the direct one.
pub(crate) fn run(
    load: &Path,
    ways: &[Way],
    effort: Effort,
    cells: &[(&'static str, u32)],
) -> anyhow::Result<Vec<Cell>> {
    let mut measured: Vec<Vec<Vec<Round>>> =
        cells.iter().map(|_| ways.iter().map(|_| Vec::new()).collect()).collect();
    for round in 0..effort.rounds {
        for (cell, &(shape, connections)) in cells.iter().enumerate() {
            // Another way begins each time, so that none always follows the same neighbour.
            for turn in 0..ways.len() {
                let way = (turn + round + cell) % ways.len();
                progress(&format!(
                    "round {}/{}  {shape} × {connections}  {}",
                    round + 1,
                    effort.rounds,
                    ways[way].name
                ));
                let result = measure(load, &ways[way], shape, connections, effort);
                measured[cell][way]
                    .push(result.with_context(|| format!("{shape} × {connections}, {}", ways[way].name))?);
            }
        }
    }
    progress_done();
    let mut out = Vec::new();
    for (&(shape, connections), rounds) in cells.iter().zip(&measured) {
        let direct = summary(shape, connections, ways[0].name, &rounds[0], None);
        for (way, rounds) in ways.iter().zip(rounds) {
            out.push(summary(shape, connections, way.name, rounds, Some(&direct)));
        }
    }
    Ok(out)
}

fn measure(load: &Path, way: &Way, shape: &str, connections: u32, effort: Effort) -> anyhow::Result<Round> {
    let before = cpu_seconds(&way.proxies)?;
    let mut command = load_command(load, way.target, shape, connections);
    command.args(["--seconds", &effort.seconds.to_string(), "--warmup", &effort.warmup.to_string()]);
    let load =
        run_load(command, way.cgroup.as_deref(), Duration::from_secs_f64(effort.seconds * 3.0 + 30.0))?;
    let cpu = cpu_seconds(&way.proxies)? - before;
    if load.total_calls == 0 {
        bail!("not one call was made: {:?}", load.error_kinds);
    }
    let cpu_us = (!way.proxies.is_empty()).then(|| cpu * 1e6 / load.total_calls as f64);
    Ok(Round { load, cpu_us })
}

pub(crate) fn load_command(load: &Path, target: SocketAddr, shape: &str, connections: u32) -> Command {
    let mut command = Command::new(load);
    command.args([
        "--connect",
        &target.to_string(),
        "--shape",
        shape,
        "--connections",
        &connections.to_string(),
    ]);
    command
}

/// Runs bench-load to its own end and reads what it printed.
pub(crate) fn run_load(command: Command, cgroup: Option<&Path>, within: Duration) -> anyhow::Result<Load> {
    let text = Core::Load.start(command, cgroup, None)?.wait(within)?;
    serde_json::from_str(&text).with_context(|| format!("read what bench-load printed: {text}"))
}

fn summary(
    shape: &'static str,
    connections: u32,
    way: &'static str,
    rounds: &[Round],
    direct: Option<&Cell>,
) -> Cell {
    let of = |pick: fn(&Load) -> f64| median(rounds.iter().map(|round| pick(&round.load)).collect());
    let (throughput, p50_us, p99_us) = (of(|l| l.throughput), of(|l| l.p50_us), of(|l| l.p99_us));
    let cpu: Vec<f64> = rounds.iter().filter_map(|round| round.cpu_us).collect();
    let cpu_us_per_call = (!cpu.is_empty()).then(|| median(cpu));
    let ratio = direct.map_or(Ratio { throughput: 1.0, p50: 1.0, p99: 1.0 }, |direct| Ratio {
        throughput: throughput / direct.throughput,
        p50: p50_us / direct.p50_us,
        p99: p99_us / direct.p99_us,
    });
    Cell {
        shape,
        connections,
        way,
        throughput,
        p50_us,
        p99_us,
        cpu_s_per_1000: cpu_us_per_call.map(|us| us / 1000.0),
        cpu_us_per_call,
        ratio,
        errors: rounds.iter().map(|round| round.load.errors).sum(),
        refusals: rounds.iter().map(|round| round.load.refusals).sum(),
        error_kinds: rounds
            .iter()
            .filter(|r| r.load.errors > 0)
            .map(|r| r.load.error_kinds.clone())
            .collect(),
    }
}

/// The middle value, or the mean of the two middle ones; NaN of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

/// The value below which `share` of the values lie; NaN of nothing.
pub(crate) fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let reached = values.iter().enumerate().find(|(index, _)| (index + 1) as f64 / count >= share);
    reached.map_or(f64::NAN, |(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_percentile_of_small_sets() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(hundred.clone(), 0.5), 50.0);
        assert_eq!(percentile(hundred, 0.99), 99.0);
        assert!(median(Vec::new()).is_nan() && percentile(Vec::new(), 0.5).is_nan());
    }
}
