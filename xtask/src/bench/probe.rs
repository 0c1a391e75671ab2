//! The stop probe: under load an operator stops the agent and releases it, again and again. How long until the answer,
//! and do the answer, the server's log and what the agent saw agree call by call?
//!
//! Two promises are checked. After an answer no call in scope reaches the server that the answer does not list; a call
//! it lists as sent may still be read late, because its bytes had left. And nothing is lost between the three books:
//! a call that the server read and the agent got no result for is listed, one listed as refused was never read, one
//! listed as sent was.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::Value;

use super::daemon::Daemon;
use super::host::{Core, monotonic_ns, progress, progress_done};
use super::matrix::{load_command, percentile};
use crate::interrupt::pause;

/// What the probe found.
#[derive(Debug, Serialize)]
pub(crate) struct Probe {
    pub(crate) stops: usize,
    /// From starting the command until its answer is there, ms: what an operator waits.
    pub(crate) answer_ms_p50: f64,
    pub(crate) answer_ms_p99: f64,
    /// From `issued_at` to `in_force_at` as the answers say, µs.
    pub(crate) in_force_us_p50: f64,
    pub(crate) in_force_us_p99: f64,
    /// Calls the server read in the whole probe.
    pub(crate) calls_at_server: usize,
    /// Calls the agent was refused.
    pub(crate) calls_refused: usize,
    /// Calls the answers list, by fate.
    pub(crate) fates: BTreeMap<String, usize>,
    /// Read by the server between an answer and its release, and not listed by it. Must be 0.
    pub(crate) after_answer: usize,
    /// The same, but listed as on its way: read late.
    pub(crate) after_answer_listed: usize,
    /// Every disagreement between the answers, the server's log and the agent. Must be empty.
    pub(crate) disagreements: Vec<String>,
}

/// One stop, as the probe saw it. Times are CLOCK_MONOTONIC nanoseconds.
struct Stop {
    answered: u64,
    release_ordered: u64,
    took_ms: f64,
    in_force_us: Option<f64>,
    /// Fate of each call in the answer, by JSON-RPC id.
    fates: HashMap<u64, String>,
}

pub(crate) fn run(
    load: &Path,
    daemon: &Daemon,
    server: SocketAddr,
    scratch: &Path,
    stops: usize,
) -> anyhow::Result<Probe> {
    let outcomes = scratch.join("outcomes");
    let mut command = load_command(load, server, "small", 32);
    command.arg("--until-eof").arg("--outcomes").arg(&outcomes);
    let known = server_log(server, 0)?.len();
    let process = Core::Load.start(command, Some(&daemon.agents), None)?;
    pause(Duration::from_millis(300))?;
    let mut done = Vec::new();
    for n in 0..stops {
        progress(&format!("stop {}/{stops}", n + 1));
        done.push(stop_and_release(daemon).with_context(|| format!("stop {}", n + 1))?);
        pause(Duration::from_millis(15))?;
    }
    progress_done();
    process.finish(Duration::from_secs(30)).context("bench-load")?;
    let arrivals = server_log(server, known)?;
    let seen = read_outcomes(&fs::read_to_string(&outcomes)?)?;
    Ok(compare(&done, &arrivals, &seen))
}

fn stop_and_release(daemon: &Daemon) -> anyhow::Result<Stop> {
    let ordered = Instant::now();
    let output = daemon.cli(&["stop", "agent=bench", "--reason", "probe", "--json"])?;
    let took_ms = ordered.elapsed().as_secs_f64() * 1000.0;
    let answered = monotonic_ns()?;
    // 3 is in force with fates still open; 1 is not in force.
    if !matches!(output.status.code(), Some(0 | 3)) {
        bail!("interlock stop: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let answer: Value = serde_json::from_slice(&output.stdout).context("the answer to a stop is not JSON")?;
    let id = answer["stop"]["id"].as_str().context("the answer to a stop has no id")?;
    let fates = fates(&answer);
    let in_force_us = between(&answer["stop"], "issued_at", "in_force_at");
    // Long enough for a call that should not come to come.
    pause(Duration::from_millis(15))?;
    let release_ordered = monotonic_ns()?;
    let output = daemon.cli(&["release", id, "--reason", "probe"])?;
    if !output.status.success() {
        bail!("interlock release: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(Stop { answered, release_ordered, took_ms, in_force_us, fates })
}

/// The fate of every call in the answer, by its JSON-RPC id. The answer carries the id's JSON text.
fn fates(answer: &Value) -> HashMap<u64, String> {
    let calls = answer["calls"].as_array().into_iter().flatten();
    calls
        .filter_map(|call| Some((call["rpc_id"].as_str()?.parse().ok()?, call["fate"].as_str()?.to_owned())))
        .collect()
}

fn between(stop: &Value, from: &str, to: &str) -> Option<f64> {
    let at = |key: &str| stop[key].as_str()?.parse::<jiff::Timestamp>().ok();
    Some(at(to)?.duration_since(at(from)?).as_secs_f64() * 1e6)
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

fn read_outcomes(text: &str) -> anyhow::Result<HashMap<u64, String>> {
    let pair = |line: &str| {
        let mut fields = line.split(' ');
        Some((fields.next()?.parse().ok()?, fields.next()?.to_owned()))
    };
    text.lines().map(|line| pair(line).with_context(|| format!("outcome line {line}"))).collect()
}

/// Holds the three books against each other.
fn compare(stops: &[Stop], arrivals: &[(u64, u64)], seen: &HashMap<u64, String>) -> Probe {
    let listed: HashMap<u64, &str> =
        stops.iter().flat_map(|stop| &stop.fates).map(|(&id, fate)| (id, &**fate)).collect();
    let mut fates = BTreeMap::new();
    for fate in listed.values() {
        *fates.entry((*fate).to_owned()).or_default() += 1;
    }
    let (mut after_answer, mut after_answer_listed) = (0, 0);
    for stop in stops {
        for (id, at) in arrivals {
            if *at > stop.answered && *at < stop.release_ordered {
                match stop.fates.get(id).map(String::as_str) {
                    None | Some("refused") => after_answer += 1,
                    Some(_) => after_answer_listed += 1,
                }
            }
        }
    }
    let at_server: HashSet<u64> = arrivals.iter().map(|(id, _)| *id).collect();
    let mut disagreements = Vec::new();
    for id in &at_server {
        let outcome = seen.get(id).map_or("unknown", String::as_str);
        if outcome != "answered" && !listed.contains_key(id) {
            disagreements.push(format!(
                "call {id}: the server read it, the agent's end is {outcome}, no stop lists it"
            ));
        }
    }
    for (id, fate) in &listed {
        let outcome = seen.get(id).map_or("unknown", String::as_str);
        match (*fate, at_server.contains(id)) {
            ("refused", true) => {
                disagreements.push(format!("call {id}: listed as refused, but the server read it"))
            }
            ("sent" | "finished_after_stop" | "cancelled", false) => {
                disagreements.push(format!("call {id}: listed as {fate}, but the server never read it"));
            }
            _ if outcome == "answered" => {
                disagreements.push(format!("call {id}: listed as {fate}, but the agent got its result"));
            }
            _ => {}
        }
    }
    for (id, outcome) in seen {
        if outcome == "answered" && !at_server.contains(id) {
            disagreements.push(format!("call {id}: the agent got a result, but the server never read it"));
        }
    }
    let took: Vec<f64> = stops.iter().map(|stop| stop.took_ms).collect();
    let in_force: Vec<f64> = stops.iter().filter_map(|stop| stop.in_force_us).collect();
    Probe {
        stops: stops.len(),
        answer_ms_p50: percentile(took.clone(), 0.5),
        answer_ms_p99: percentile(took, 0.99),
        in_force_us_p50: percentile(in_force.clone(), 0.5),
        in_force_us_p99: percentile(in_force, 0.99),
        calls_at_server: arrivals.len(),
        calls_refused: seen.values().filter(|outcome| *outcome == "refused").count(),
        fates,
        after_answer,
        after_answer_listed,
        disagreements,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(fates: &[(u64, &str)]) -> Stop {
        let fates = fates.iter().map(|&(id, fate)| (id, fate.to_owned())).collect();
        Stop { answered: 100, release_ordered: 200, took_ms: 1.0, in_force_us: None, fates }
    }

    fn seen(outcomes: &[(u64, &str)]) -> HashMap<u64, String> {
        outcomes.iter().map(|&(id, outcome)| (id, outcome.to_owned())).collect()
    }

    #[test]
    fn books_that_agree() {
        let probe = compare(
            &[stop(&[(2, "sent"), (3, "refused")])],
            &[(1, 50), (2, 99), (5, 250)],
            &seen(&[(1, "answered"), (2, "refused"), (3, "refused"), (4, "refused"), (5, "answered")]),
        );
        assert_eq!((probe.after_answer, probe.after_answer_listed, probe.calls_refused), (0, 0, 3));
        assert_eq!(probe.disagreements, Vec::<String>::new());
    }

    #[test]
    fn call_after_the_answer_is_told_from_one_that_is_read_late() {
        let probe = compare(&[stop(&[(2, "sent")])], &[(2, 101), (3, 102), (4, 201)], &seen(&[]));
        assert_eq!((probe.after_answer, probe.after_answer_listed), (1, 1));
    }

    #[test]
    fn every_kind_of_disagreement_is_found() {
        let probe = compare(
            &[stop(&[(1, "refused"), (2, "sent"), (4, "cut")])],
            &[(1, 10), (3, 20)],
            &seen(&[(1, "refused"), (2, "refused"), (3, "failed"), (4, "answered"), (5, "answered")]),
        );
        assert_eq!(probe.disagreements.len(), 6, "{:#?}", probe.disagreements);
    }

    #[test]
    fn answer_is_read_as_the_daemon_writes_it() {
        let answer = serde_json::json!({
            "stop": {"issued_at": "2026-01-01T00:00:00.0001Z", "in_force_at": "2026-01-01T00:00:00.0003Z"},
            "calls": [{"rpc_id": "4294967297", "fate": "sent"}],
        });
        assert_eq!(fates(&answer), seen(&[(4_294_967_297, "sent")]));
        assert!(
            between(&answer["stop"], "issued_at", "in_force_at").is_some_and(|us| (us - 200.0).abs() < 1.0)
        );
    }
}
