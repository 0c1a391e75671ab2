//! What watching tools costs: small calls at full load, while 200 endpoints are asked for their 25 tools once a second,
//! or for as many bytes that are no list.
//!
//! Each round has a daemon of its own: at first it knows nothing, then all it is shown is new to it, then lists and bytes
//! take turns. A ratio is that of two neighbours in time, so that what else the machine does falls on both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::STUCK;
use super::daemon::Daemon;
use super::host::{cpu_seconds, progress, progress_done};
use super::matrix::{Load, load_command, median, percentile, run_load};

/// How often.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Repeats {
    /// Daemons.
    pub(crate) rounds: usize,
    /// Turns of lists and bytes with each.
    pub(crate) turns: usize,
}

/// Ratios are medians of the ratios of neighbours.
#[derive(Debug, Serialize)]
pub(crate) struct Watch {
    pub(crate) connections: u32,
    pub(crate) endpoints: u32,
    /// Bytes, and a daemon that has seen no list.
    pub(crate) unknowing: Speed,
    /// Lists in which everything is new, one of each endpoint in a second.
    pub(crate) first: Speed,
    /// To `unknowing`.
    pub(crate) first_ratio: f64,
    /// Bytes, and a daemon that knows all lists.
    pub(crate) bytes: Speed,
    /// To `unknowing`: what it takes a call that so much is known.
    pub(crate) knowing_ratio: f64,
    /// Lists of what is known.
    pub(crate) lists: Speed,
    /// To `bytes`: what it takes to look at lists.
    pub(crate) lists_ratio: f64,
    /// The tenth and the ninetieth percentile of it.
    pub(crate) lists_ratio_range: [f64; 2],
    /// How much of its core the proxy took while lists were listed; below 1 something else was the limit.
    pub(crate) proxy_core: f64,
    /// CPU of the proxy for each tool in a list of what is known, without other load, µs.
    pub(crate) cpu_us_per_tool: f64,
    /// Likewise for as many bytes that are no list.
    pub(crate) cpu_us_per_tool_of_bytes: f64,
    /// The fewest that a daemon knew in the end, by its metric: trusted tools. Must be all.
    pub(crate) tools_known: f64,
    /// Likewise of endpoints, by what it tells operators.
    pub(crate) endpoints_known: usize,
    /// Calls and lists that failed or were refused. Must be empty.
    pub(crate) failures: BTreeMap<String, u64>,
}

/// Of small calls; medians.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Speed {
    /// Calls per second.
    pub(crate) throughput: f64,
    /// CPU of the proxy, with that for what is beside, µs. On a busy machine it says more than the throughput.
    pub(crate) cpu_us_per_call: f64,
}

/// What was measured, one value for each turn or round.
#[derive(Default)]
struct Samples {
    unknowing: Vec<Speed>,
    first: Vec<Speed>,
    first_ratio: Vec<f64>,
    bytes: Vec<Speed>,
    knowing_ratio: Vec<f64>,
    lists: Vec<Speed>,
    lists_ratio: Vec<f64>,
    proxy_core: Vec<f64>,
    cpu_us_of_lists: Vec<f64>,
    cpu_us_of_bytes: Vec<f64>,
    tools_known: Vec<f64>,
    endpoints_known: Vec<usize>,
    failures: BTreeMap<String, u64>,
}

/// What the endpoints are asked for, as bench-load calls it.
#[derive(Clone, Copy)]
enum Ask {
    Lists,
    Bytes,
}

/// One run of bench-load.
struct Run {
    load: Load,
    /// CPU of the proxy, seconds.
    cpu: f64,
}

/// Who asks whom, and by way of whom.
struct Route<'a> {
    load: &'a Path,
    server: SocketAddr,
    daemon: &'a Daemon,
}

/// Measures; `start` makes the daemon of a round.
pub(crate) fn run(
    load: &Path,
    server: SocketAddr,
    repeats: Repeats,
    start: impl Fn(usize) -> anyhow::Result<Daemon>,
) -> anyhow::Result<Watch> {
    let mut samples = Samples::default();
    for round in 0..repeats.rounds {
        progress(&format!("watching tools: round {}/{}", round + 1, repeats.rounds));
        let daemon = start(round)?;
        samples.round(&Route { load, server, daemon: &daemon }, round, repeats.turns)?;
    }
    progress_done();
    Ok(samples.summary())
}

impl Route<'_> {
    /// Small calls at full load, and `ask` beside them for so many seconds.
    fn at_full_load(&self, ask: Ask, seconds: f64) -> anyhow::Result<Run> {
        self.measure(ask, CONNECTIONS, [WARMUP, seconds, 1.0])
    }

    /// Only `ask`, fast.
    fn alone(&self, ask: Ask) -> anyhow::Result<Run> {
        self.measure(ask, 0, [0.0, SECONDS, 0.1])
    }

    fn measure(&self, ask: Ask, connections: u32, times: [f64; 3]) -> anyhow::Result<Run> {
        let [warmup, seconds, every] = times.map(|seconds| seconds.to_string());
        let mut command = load_command(self.load, self.server, "small", connections);
        command.args(["--warmup", &warmup, "--seconds", &seconds]);
        command.args(["--walk", ask.shape(), "--endpoints", &ENDPOINTS.to_string(), "--every", &every]);
        let before = cpu_seconds(&[self.daemon.pid()])?;
        let load = run_load(command, Some(&self.daemon.agents), STUCK)?;
        Ok(Run { load, cpu: cpu_seconds(&[self.daemon.pid()])? - before })
    }
}

impl Samples {
    fn round(&mut self, route: &Route<'_>, round: usize, turns: usize) -> anyhow::Result<()> {
        let unknowing = self.seen(route.at_full_load(Ask::Bytes, SECONDS)?).speed();
        // One walk: each list is new.
        let first = self.seen(route.at_full_load(Ask::Lists, 1.0)?).speed();
        let mut knowing = Vec::new();
        for turn in 0..turns {
            let mut order = [Ask::Bytes, Ask::Lists];
            order.rotate_left((round + turn) % 2);
            let mut runs = Vec::new();
            for ask in order {
                runs.push(self.seen(route.at_full_load(ask, SECONDS)?));
            }
            runs.rotate_left((round + turn) % 2);
            let [bytes, lists] = [runs[0].speed(), runs[1].speed()];
            self.proxy_core.push(runs[1].cpu / (WARMUP + SECONDS));
            self.lists_ratio.push(lists.throughput / bytes.throughput);
            self.lists.push(lists);
            self.bytes.push(bytes);
            knowing.push(bytes.throughput);
        }
        self.knowing_ratio.push(median(knowing) / unknowing.throughput);
        self.first_ratio.push(first.throughput / unknowing.throughput);
        self.unknowing.push(unknowing);
        self.first.push(first);
        let lists = self.seen(route.alone(Ask::Lists)?).cpu_us_per_tool();
        let bytes = self.seen(route.alone(Ask::Bytes)?).cpu_us_per_tool();
        self.cpu_us_of_lists.push(lists);
        self.cpu_us_of_bytes.push(bytes);
        self.tools_known.push(route.daemon.metric("interlock_tools", "state=\"trusted\"")?);
        self.endpoints_known.push(endpoints(&route.daemon.cli_json(&["tools", "--json"], &[0])?));
        Ok(())
    }

    /// Notes what failed in a run.
    fn seen(&mut self, run: Run) -> Run {
        let Load { refusals, walk, error_kinds, .. } = &run.load;
        let failures = error_kinds.iter().chain(&walk.failures);
        for (why, count) in failures.filter(|(_, count)| **count > 0) {
            *self.failures.entry(why.clone()).or_default() += count;
        }
        if *refusals > 0 {
            *self.failures.entry("refused".to_owned()).or_default() += refusals;
        }
        run
    }

    fn summary(self) -> Watch {
        Watch {
            connections: CONNECTIONS,
            endpoints: ENDPOINTS,
            unknowing: Speed::median(&self.unknowing),
            first: Speed::median(&self.first),
            first_ratio: median(self.first_ratio),
            bytes: Speed::median(&self.bytes),
            knowing_ratio: median(self.knowing_ratio),
            lists: Speed::median(&self.lists),
            lists_ratio_range: [0.1, 0.9].map(|share| percentile(self.lists_ratio.clone(), share)),
            lists_ratio: median(self.lists_ratio),
            proxy_core: median(self.proxy_core),
            cpu_us_per_tool: median(self.cpu_us_of_lists),
            cpu_us_per_tool_of_bytes: median(self.cpu_us_of_bytes),
            tools_known: self.tools_known.into_iter().fold(f64::INFINITY, f64::min),
            endpoints_known: self.endpoints_known.into_iter().min().unwrap_or(0),
            failures: self.failures,
        }
    }
}

impl Speed {
    fn median(samples: &[Self]) -> Self {
        let of = |pick: fn(&Self) -> f64| median(samples.iter().map(pick).collect());
        Self { throughput: of(|speed| speed.throughput), cpu_us_per_call: of(|speed| speed.cpu_us_per_call) }
    }
}

impl Run {
    fn speed(&self) -> Speed {
        let cpu_us_per_call = self.cpu * 1e6 / self.load.total_calls as f64;
        Speed { throughput: self.load.throughput, cpu_us_per_call }
    }

    fn cpu_us_per_tool(&self) -> f64 {
        self.cpu * 1e6 / (self.load.walk.answers * u64::from(TOOLS_PER_ENDPOINT)) as f64
    }
}

impl Ask {
    const fn shape(self) -> &'static str {
        match self {
            Self::Lists => "list",
            Self::Bytes => "25k",
        }
    }
}

impl Watch {
    /// All tools of all endpoints.
    pub(crate) fn tools(&self) -> u32 {
        self.endpoints * TOOLS_PER_ENDPOINT
    }

    /// What is not as it was meant to be.
    pub(crate) fn broken_promises(&self) -> Vec<String> {
        let mut broken = Vec::new();
        if self.tools_known < f64::from(self.tools()) {
            let (known, all) = (self.tools_known, self.tools());
            broken.push(format!("watching tools: {known} tools are known and trusted where {all} are shown"));
        }
        if !self.failures.is_empty() {
            broken.push(format!("watching tools: failures where all is allowed {:?}", self.failures));
        }
        broken
    }
}

/// How many servers there are among what `interlock tools` lists.
fn endpoints(listed: &Value) -> usize {
    let tools = listed["tools"].as_array().into_iter().flatten();
    tools.filter_map(|tool| tool["server"].as_str()).collect::<BTreeSet<_>>().len()
}

/// What refuses a call of a tool that has changed.
pub(crate) const RULES: &str = "version: 1\nrules:\n  - {id: no-drift, action: deny_drift}\n";
const CONNECTIONS: u32 = 32;
/// Those of bench-server, and what each lists.
const ENDPOINTS: u32 = 200;
const TOOLS_PER_ENDPOINT: u32 = 25;
/// Two walks.
const SECONDS: f64 = 2.0;
const WARMUP: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_that_knows_less_or_refuses_breaks_a_promise() {
        let mut samples = Samples { tools_known: vec![5000.0, 5000.0], ..Samples::default() };
        let watch = |samples: &mut Samples| std::mem::take(samples).summary().broken_promises().len();
        assert_eq!(watch(&mut samples), 0);
        let mut samples = Samples { tools_known: vec![5000.0, 4999.0], ..Samples::default() };
        samples.failures.insert("refused".to_owned(), 1);
        assert_eq!(watch(&mut samples), 2);
    }

    #[test]
    fn failures_of_loop_and_walk_are_both_noted() {
        let load = serde_json::json!({
            "total_calls": 9, "throughput": 1.0, "p50_us": 1.0, "p99_us": 1.0, "errors": 2, "refusals": 3,
            "error_kinds": {"status 500": 2}, "walk": {"answers": 4, "failures": {"status 500": 1, "refused": 5}},
        });
        let mut samples = Samples::default();
        let run = samples.seen(Run { load: serde_json::from_value(load).unwrap(), cpu: 0.0001 });
        assert_eq!(run.cpu_us_per_tool(), 1.0);
        assert_eq!(
            samples.failures,
            BTreeMap::from([("status 500".to_owned(), 3), ("refused".to_owned(), 8)])
        );
    }

    #[test]
    fn endpoints_are_counted_once() {
        let listed = serde_json::json!({"tools": [{"server": "a"}, {"server": "b"}, {"server": "a"}]});
        assert_eq!(endpoints(&listed), 2);
    }
}
