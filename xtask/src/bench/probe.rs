//! Stops and releases while calls flow.
//!
//! The promise: from the moment a stop is in force, as its answer says, no new call in its scope reaches the server. The
//! server notes every call with the time it read it; the load notes what became of every call; the answers list what
//! was in flight. A call that the server read while a stop was in force, and that the stop's answer does not list as on
//! its way, breaks the promise; and nothing may be lost between the books (see `books`).
//!
//! Stops of both levels alternate. An isolate destroys the agent's sockets: the load makes new ones after the release,
//! and the next stop waits until they are there. `--wait 0s` keeps waiting for fates out of what is measured; what
//! became of the calls is asked again before the release.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;

use super::books::{self, Stop, compare, read_outcomes, recorded};
use super::daemon::Daemon;
use super::host::{Core, load_average, monotonic_ns, progress, progress_done};
use super::matrix::{load_command, percentile};
use crate::interrupt::pause;

/// How far a stop goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Refuse,
    Isolate,
}

impl Level {
    const ALL: [Level; 2] = [Level::Refuse, Level::Isolate];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Isolate => "isolate",
        }
    }
}

/// The load under which is stopped.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Crowd {
    pub(crate) name: &'static str,
    /// Open at the moment of every stop.
    pub(crate) connections: u32,
    /// Calls in flight.
    pub(crate) active: u32,
    /// How long a call that is not instant takes the server.
    pub(crate) call_ms: u64,
    /// How long the agent waits after a refusal.
    pub(crate) pause_ms: u64,
    /// From a release until the next stop, once all connections are open.
    pub(crate) rest_ms: u64,
}

/// A stubborn agent that does not wait: for exactness.
pub(crate) const DENSE: Crowd =
    Crowd { name: "dense", connections: 64, active: 64, call_ms: 4, pause_ms: 2, rest_ms: 10 };
/// Many agents' worth of connections: for the time a stop takes.
pub(crate) const WIDE: Crowd =
    Crowd { name: "wide", connections: 2000, active: 256, call_ms: 100, pause_ms: 100, rest_ms: 150 };

/// What the probe found under one crowd.
#[derive(Debug, Serialize)]
pub(crate) struct Probe {
    pub(crate) crowd: &'static str,
    pub(crate) connections: u32,
    pub(crate) active: u32,
    pub(crate) load_average: f64,
    pub(crate) levels: Vec<Times>,
    /// Calls the server read in the whole probe.
    pub(crate) calls_at_server: usize,
    /// Calls the agent was refused.
    pub(crate) calls_refused: usize,
    /// Calls the agent got no answer for.
    pub(crate) calls_failed: usize,
    /// Calls the answers list, by fate as of the release.
    pub(crate) fates: BTreeMap<String, usize>,
    /// Read by the server between in force and release, and not listed by the answer. Must be 0.
    pub(crate) after_in_force: usize,
    /// The same, but listed as on its way: read late.
    pub(crate) late: usize,
    /// Ended before the stop, as a record says, with an answer that went down with the agent's socket.
    pub(crate) answer_lost: usize,
    /// Every disagreement between the answers, the server's log and the agent. Must be empty.
    pub(crate) disagreements: Vec<String>,
}

/// How long the stops of one level took, and what they met.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    pub(crate) level: Level,
    pub(crate) stops: usize,
    /// From starting the command until its answer is there, ms: what an operator waits.
    pub(crate) answer_ms_p50: f64,
    pub(crate) answer_ms_p99: f64,
    /// From `issued_at` to `in_force_at` as the answers say, ms.
    pub(crate) in_force_ms_p50: f64,
    pub(crate) in_force_ms_p99: f64,
    /// A command that asks for nothing (`--version`), ms: what starting a process costs under this load.
    pub(crate) command_ms_p50: f64,
    pub(crate) command_ms_p99: f64,
    /// Connections a stop met.
    pub(crate) connections_p50: f64,
    /// Calls a stop caught.
    pub(crate) caught_p50: f64,
}

/// What is kept of one stop for [`Times`].
struct Took {
    level: Level,
    answer_ms: f64,
    in_force_ms: f64,
    command_ms: f64,
    connections: f64,
    caught: f64,
}

/// Stops `stops` times, half of them at each level. The books are compared every [`BATCH`] stops, each time with a new
/// load.
pub(crate) fn run(
    load: &Path,
    daemon: &Daemon,
    server: SocketAddr,
    scratch: &Path,
    crowd: Crowd,
    stops: usize,
) -> anyhow::Result<Probe> {
    let mut probe = Probe::new(crowd);
    let mut took = Vec::new();
    while took.len() < stops {
        let batch = BATCH.min(stops - took.len());
        run_batch(load, daemon, server, scratch, crowd, batch, (&mut probe, &mut took, stops))?;
    }
    progress_done();
    probe.levels = Level::ALL.map(|level| Times::of(level, &took)).into();
    Ok(probe)
}

fn run_batch(
    load: &Path,
    daemon: &Daemon,
    server: SocketAddr,
    scratch: &Path,
    crowd: Crowd,
    stops: usize,
    (probe, took, all): (&mut Probe, &mut Vec<Took>, usize),
) -> anyhow::Result<()> {
    let outcomes = scratch.join("outcomes");
    let mut command = load_command(load, server, "small", crowd.connections);
    command.args(["--until-eof", "--active", &crowd.active.to_string()]);
    command.args(["--ms", &crowd.call_ms.to_string(), "--pause", &crowd.pause_ms.to_string()]);
    command.arg("--outcomes").arg(&outcomes);
    let known = server_log(server, 0)?.len();
    let process = Core::Load.start(command, Some(&daemon.agents), None)?;
    let mut done = Vec::new();
    for n in 0..stops {
        progress(&format!("{}: stop {}/{all}", crowd.name, took.len() + 1));
        wait_for_connections(daemon, crowd.connections)?;
        // Not always at the same point of a call.
        pause(Duration::from_micros(crowd.rest_ms * 1000 + (n as u64 * 617) % (crowd.call_ms * 1000)))?;
        let level = Level::ALL[took.len() % Level::ALL.len()];
        let (stop, times) = stop_and_release(daemon, level)
            .with_context(|| format!("{} stop {} ({})", crowd.name, took.len() + 1, level.label()))?;
        done.push(stop);
        took.push(times);
    }
    process.finish(Duration::from_secs(30)).context("bench-load")?;
    let arrivals = server_log(server, known)?;
    let seen = read_outcomes(&outcomes)?;
    let verdict = compare(&done, &arrivals, &seen, |calls| {
        // Records may lag.
        pause(Duration::from_millis(500))?;
        recorded(&daemon.records, calls)
    })?;
    let count = |outcome| seen.values().filter(|call| call.outcome == outcome).count();
    probe.calls_at_server += arrivals.len();
    probe.calls_refused += count(books::Outcome::Refused);
    probe.calls_failed += count(books::Outcome::Failed);
    for (fate, count) in verdict.fates {
        *probe.fates.entry(fate).or_default() += count;
    }
    probe.after_in_force += verdict.after_in_force;
    probe.late += verdict.late;
    probe.answer_lost += verdict.answer_lost;
    probe.disagreements.extend(verdict.disagreements);
    Ok(())
}

/// Waits until the load has opened all its connections, again after an isolate.
fn wait_for_connections(daemon: &Daemon, wanted: u32) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let open = daemon.cli_json(&["status", "--json"], &[0])?["connections"].as_u64().unwrap_or(0);
        if open >= u64::from(wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{open} of {wanted} connections are open after 30 s");
        }
        pause(Duration::from_millis(10))?;
    }
}

fn stop_and_release(daemon: &Daemon, level: Level) -> anyhow::Result<(Stop, Took)> {
    let begun = Instant::now();
    daemon.cli(&["--version"])?;
    let command_ms = begun.elapsed().as_secs_f64() * 1000.0;

    let (ordered, begun) = (monotonic_ns()?, Instant::now());
    let args =
        ["stop", "agent=bench", "--level", level.label(), "--reason", "probe", "--wait", "0s", "--json"];
    // 3 is in force with fates still open; 1 is not in force.
    let answer = daemon.cli_json(&args, &[0, 3])?;
    let answer_ms = begun.elapsed().as_secs_f64() * 1000.0;
    let (answered, answered_at) = both_clocks()?;
    let id = answer["stop"]["id"].as_str().context("the answer to a stop has no id")?;
    let issued_at = timestamp(&answer["stop"]["issued_at"])?;
    let in_force_at = timestamp(&answer["in_force_at"])?;
    let since = answered_at.duration_since(in_force_at).as_nanos();
    // A clock that is set in between must not make it earlier than the order or later than the answer.
    let in_force = answered.saturating_sub(u64::try_from(since).unwrap_or(0)).max(ordered);
    let connections: f64 = answer["agents"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|agent| agent["connections"].as_f64())
        .sum();

    // Long enough for a call that should not come to come.
    pause(Duration::from_millis(15))?;
    let later = fates(&daemon.cli_json(&["stops", "show", id, "--json"], &[0, 3])?);
    let release_ordered = monotonic_ns()?;
    daemon.cli_json(&["release", id, "--reason", "probe", "--json"], &[0])?;
    let answer = fates(&answer);
    let took = Took {
        level,
        answer_ms,
        in_force_ms: in_force_at.duration_since(issued_at).as_secs_f64() * 1000.0,
        command_ms,
        connections,
        caught: answer.len() as f64,
    };
    Ok((Stop { level, ordered, in_force, release_ordered, answer, later }, took))
}

/// The fate of every call in the answer, by its JSON-RPC id. The answer carries the id's JSON text.
fn fates(answer: &Value) -> HashMap<u64, String> {
    let calls = answer["calls"].as_array().into_iter().flatten();
    calls
        .filter_map(|call| Some((call["rpc_id"].as_str()?.parse().ok()?, call["fate"].as_str()?.to_owned())))
        .collect()
}

/// CLOCK_MONOTONIC and the time of day at one moment: on a busy machine another may run between two readings.
fn both_clocks() -> anyhow::Result<(u64, jiff::Timestamp)> {
    loop {
        let (before, now, after) = (monotonic_ns()?, jiff::Timestamp::now(), monotonic_ns()?);
        if after - before < 20_000 {
            return Ok((before, now));
        }
    }
}

fn timestamp(value: &Value) -> anyhow::Result<jiff::Timestamp> {
    Ok(value.as_str().context("the answer to a stop lacks a time")?.parse()?)
}

/// (call id, ns) of every tools/call the server read since entry `since`.
fn server_log(server: SocketAddr, since: usize) -> anyhow::Result<Vec<(u64, u64)>> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "GET /log?since={since} HTTP/1.1\r\nHost: bench\r\n\r\n")?;
    let (mut text, mut part) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let read = stream.read(&mut part)?;
        text.extend_from_slice(&part[..read]);
        let Some(end) = text.windows(4).take(512).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&text[..end])?;
        let length = head.rsplit("content-length: ").next().and_then(|value| value.lines().next());
        let length: usize = length.context("no length")?.parse()?;
        if text.len() >= end + 4 + length {
            text.drain(..end + 4);
            break;
        }
        if read == 0 {
            bail!("the log of bench-server ends early");
        }
    }
    let pair = |line: &str| {
        let (id, at) = line.split_once(' ')?;
        Some((id.parse().ok()?, at.parse().ok()?))
    };
    std::str::from_utf8(&text)?
        .lines()
        .map(|line| pair(line).with_context(|| format!("log line {line}")))
        .collect()
}

impl Probe {
    fn new(crowd: Crowd) -> Self {
        Self {
            crowd: crowd.name,
            connections: crowd.connections,
            active: crowd.active,
            load_average: load_average(),
            levels: Vec::new(),
            calls_at_server: 0,
            calls_refused: 0,
            calls_failed: 0,
            fates: BTreeMap::new(),
            after_in_force: 0,
            late: 0,
            answer_lost: 0,
            disagreements: Vec::new(),
        }
    }
}

impl Times {
    fn of(level: Level, took: &[Took]) -> Self {
        let these: Vec<&Took> = took.iter().filter(|one| one.level == level).collect();
        let at =
            |share, pick: fn(&Took) -> f64| percentile(these.iter().map(|one| pick(one)).collect(), share);
        Self {
            level,
            stops: these.len(),
            answer_ms_p50: at(0.5, |one| one.answer_ms),
            answer_ms_p99: at(0.99, |one| one.answer_ms),
            in_force_ms_p50: at(0.5, |one| one.in_force_ms),
            in_force_ms_p99: at(0.99, |one| one.in_force_ms),
            command_ms_p50: at(0.5, |one| one.command_ms),
            command_ms_p99: at(0.99, |one| one.command_ms),
            connections_p50: at(0.5, |one| one.connections),
            caught_p50: at(0.5, |one| one.caught),
        }
    }
}

/// Stops between two comparisons, which bounds the books.
const BATCH: usize = 250;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_read_as_the_daemon_writes_it() {
        let answer = serde_json::json!({
            "stop": {"issued_at": "2026-01-01T00:00:00.0001Z"},
            "calls": [{"rpc_id": "4294967297", "fate": "sent"}],
        });
        assert_eq!(fates(&answer), HashMap::from([(4_294_967_297, "sent".to_owned())]));
        assert_eq!(timestamp(&answer["stop"]["issued_at"]).unwrap().subsec_microsecond(), 100);
        assert!(timestamp(&answer["in_force_at"]).is_err());
    }
}
