//! bench-load: N keep-alive connections in a closed loop of one kind of MCP tools/call, for a time, a count, or until
//! standard input closes. It checks every answer (status, size, number of events), knows a refusal from an error, and
//! prints one line of JSON. With `--outcomes` it also writes `id outcome start end` of every call, for the stop probe,
//! whose load is a crowd (`--active`). With `--walk` it asks many endpoints for something meanwhile.
//!
//! It runs as the agent of a bench: it knows nothing of a proxy.

mod client;
mod common;
mod crowd;
mod reply;
mod walk;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use hdrhistogram::Histogram;

use client::{Client, Form, Revision, Shape};
use reply::{Failure, Reply};
use walk::Walk;

#[derive(Parser, Clone)]
struct Args {
    /// The server.
    #[arg(long)]
    connect: SocketAddr,
    /// What is called.
    #[arg(long, value_enum, default_value = "small")]
    shape: Shape,
    /// Name of the tool, when it is not the shape's own.
    #[arg(long)]
    tool: Option<String>,
    #[arg(long, default_value_t = 1)]
    connections: u64,
    /// Run this long, after the warm-up.
    #[arg(long, conflicts_with_all = ["calls", "until_eof", "idle"])]
    seconds: Option<f64>,
    /// Make this many calls in all.
    #[arg(long, conflicts_with_all = ["until_eof", "idle"])]
    calls: Option<u64>,
    /// Run until standard input closes.
    #[arg(long, conflicts_with = "idle")]
    until_eof: bool,
    /// One call on each connection, then `{"open":N}`, then hold all of them open until standard input closes.
    #[arg(long)]
    idle: bool,
    /// Calls made in this time count nowhere but in `total_calls`.
    #[arg(long, default_value_t = 0.0)]
    warmup: f64,
    /// A new connection for every call.
    #[arg(long)]
    fresh: bool,
    #[arg(long, value_enum, default_value = "2025-11-25")]
    revision: Revision,
    /// How long the tools `slow` and `drip` take.
    #[arg(long, default_value_t = 0)]
    ms: u64,
    /// All connections stay open, so many have a call in flight at a time; the calls are a mix, the shape is not used.
    #[arg(long, requires_all = ["until_eof", "outcomes"], conflicts_with = "fresh")]
    active: Option<usize>,
    /// How long a refused member of the crowd keeps its turn, ms.
    #[arg(long, default_value_t = 0)]
    pause: u64,
    /// Where to write what became of every call.
    #[arg(long)]
    outcomes: Option<PathBuf>,
    /// Meanwhile asks each of the endpoints `tools-N.bench` of the server for this.
    #[arg(long, value_enum, requires = "seconds")]
    walk: Option<Shape>,
    /// How many of these there are.
    #[arg(long, default_value_t = 200)]
    endpoints: u32,
    /// In how many seconds each is asked once.
    #[arg(long, default_value_t = 1.0)]
    every: f64,
}

impl Args {
    fn form(&self) -> Form {
        Form::new(&self.connect.to_string(), self.shape, self.tool.as_deref(), self.revision, self.ms)
    }
}

/// What became of one call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Answered,
    Refused,
    /// No answer, or not the right one; why is counted by name.
    Failed,
}

impl Outcome {
    const fn of(reply: &Result<Reply, Failure>) -> Self {
        match reply {
            Ok(Reply { refused: true, .. }) => Self::Refused,
            Ok(_) => Self::Answered,
            Err(_) => Self::Failed,
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// One line of `--outcomes`.
struct Line {
    id: u64,
    outcome: Outcome,
    start: u64,
    end: u64,
}

/// What one connection counted.
struct Tally {
    latency: Histogram<u64>,
    total: u64,
    calls: u64,
    refusals: u64,
    bytes: u64,
    errors: BTreeMap<String, u64>,
    lines: Vec<Line>,
}

/// What all connections of this run share.
struct Run {
    args: Args,
    started: Instant,
    stop: AtomicBool,
    calls_left: AtomicU64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    common::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    match args.active {
        Some(active) => local.block_on(&runtime, crowd::run(args, active)),
        None if args.idle => local.block_on(&runtime, hold(args)),
        None => local.block_on(&runtime, load(args)),
    }
}

async fn load(args: Args) -> anyhow::Result<()> {
    let run = Rc::new(Run {
        started: Instant::now(),
        stop: AtomicBool::new(false),
        calls_left: AtomicU64::new(args.calls.unwrap_or(u64::MAX)),
        args,
    });
    let tasks: Vec<_> =
        (0..run.args.connections).map(|n| tokio::task::spawn_local(connection(run.clone(), n))).collect();
    let endpoints = run.args.walk.map(|shape| (0..run.args.endpoints).map(move |n| (shape, n)));
    let walks: Vec<_> = endpoints
        .into_iter()
        .flatten()
        .map(|(shape, n)| tokio::task::spawn_local(walk::endpoint(run.clone(), shape, n)))
        .collect();
    match run.args.seconds {
        Some(seconds) => tokio::time::sleep(Duration::from_secs_f64(run.args.warmup + seconds)).await,
        None if run.args.until_eof => common::stdin_closed().await,
        None => {}
    }
    if run.args.calls.is_none() {
        run.stop.store(true, Ordering::Relaxed);
    }
    let mut sum = Tally::new(&run.args)?;
    for task in tasks {
        sum.add(task.await??)?;
    }
    let mut walked = Walk::default();
    for walk in walks {
        walked.add(walk.await?);
    }
    report(&run, &sum, &walked)
}

async fn connection(run: Rc<Run>, number: u64) -> anyhow::Result<Tally> {
    let args = &run.args;
    let warm = run.started + Duration::from_secs_f64(args.warmup);
    let mut tally = Tally::new(args)?;
    let (form, mut client) = (args.form(), Client::new(args.connect));
    // Unique in this run, and no id looks like a small number of something else.
    let mut id = (number + 1) << 32;
    while !run.stop.load(Ordering::Relaxed) {
        if run.calls_left.load(Ordering::Relaxed) == 0 {
            break;
        }
        run.calls_left.fetch_sub(1, Ordering::Relaxed);
        id += 1;
        let (begin, start) = (Instant::now(), common::monotonic_ns());
        let reply = client.call(&form, id, None).await;
        let took = begin.elapsed();
        let outcome = Outcome::of(&reply);
        tally.total += 1;
        if begin >= warm {
            tally.count(&reply, took);
        }
        if args.outcomes.is_some() && tally.lines.len() < MAX_LINES {
            tally.lines.push(Line { id, outcome, start, end: common::monotonic_ns() });
        }
        if args.fresh || outcome == Outcome::Failed {
            client.close();
        }
        if outcome == Outcome::Failed {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    Ok(tally)
}

/// Opens the connections a few at a time, makes one call on each and keeps them.
async fn hold(args: Args) -> anyhow::Result<()> {
    let (form, mut held) = (args.form(), Vec::new());
    for number in 0..args.connections {
        let mut client = Client::new(args.connect);
        client
            .call(&form, number, None)
            .await
            .map_err(|why| anyhow::anyhow!("connection {number}: {why}"))?;
        held.push(client);
    }
    println!("{}", serde_json::json!({"open": held.len()}));
    common::stdin_closed().await;
    Ok(())
}

impl Tally {
    fn new(args: &Args) -> anyhow::Result<Self> {
        let lines = Vec::with_capacity(if args.outcomes.is_some() { 4096 } else { 0 });
        let latency = Histogram::new_with_bounds(1, 120_000_000_000, 3)?;
        Ok(Self { latency, total: 0, calls: 0, refusals: 0, bytes: 0, errors: BTreeMap::new(), lines })
    }

    fn count(&mut self, reply: &Result<Reply, Failure>, took: Duration) {
        match reply {
            Ok(reply) if reply.refused => self.refusals += 1,
            Ok(reply) => {
                self.calls += 1;
                self.bytes += reply.bytes;
                self.latency.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            Err(why) => *self.errors.entry(why.to_string()).or_default() += 1,
        }
    }

    fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.latency.add(&other.latency)?;
        self.total += other.total;
        self.calls += other.calls;
        self.refusals += other.refusals;
        self.bytes += other.bytes;
        for (why, count) in other.errors {
            *self.errors.entry(why).or_default() += count;
        }
        self.lines.extend(other.lines);
        Ok(())
    }
}

fn report(run: &Run, sum: &Tally, walked: &Walk) -> anyhow::Result<()> {
    let seconds = (run.started.elapsed().as_secs_f64() - run.args.warmup).max(1e-9);
    let micros = |ns: u64| ns as f64 / 1000.0;
    println!(
        "{}",
        serde_json::json!({
            "calls": sum.calls,
            "total_calls": sum.total,
            "seconds": seconds,
            "throughput": sum.calls as f64 / seconds,
            "mean_us": sum.latency.mean() / 1000.0,
            "p50_us": micros(sum.latency.value_at_quantile(0.5)),
            "p99_us": micros(sum.latency.value_at_quantile(0.99)),
            "max_us": micros(sum.latency.max()),
            "bytes": sum.bytes,
            "refusals": sum.refusals,
            "errors": sum.errors.values().sum::<u64>(),
            "error_kinds": sum.errors,
            "walk": walked,
        })
    );
    if let Some(path) = &run.args.outcomes {
        use std::fmt::Write;
        let text = sum.lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{} {} {} {}", line.id, line.outcome.label(), line.start, line.end);
            text
        });
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Bound on the outcomes one connection keeps (4 MiB): a probe with 32 connections stays far below it.
const MAX_LINES: usize = 1 << 17;
