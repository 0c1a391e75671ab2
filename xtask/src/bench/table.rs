//! The report as a person reads it.

use super::conditions::Conditions;
use super::matrix::{Cell, Effort};
use super::memory::{Bystander, Memory};
use super::probe::Probe;
use super::watch::Watch;

pub(crate) fn matrix(cells: &[Cell], effort: Effort) {
    println!(
        "\nLoad: medians of {} alternating rounds of {} s; in brackets the ratio to direct",
        effort.rounds, effort.seconds
    );
    println!(
        "{:<6} {:>5}  {:<11} {:>16} {:>18} {:>18} {:>15} {:>10}",
        "shape", "conns", "way", "calls/s", "p50 µs", "p99 µs", "CPU s/1k calls", "µs/call"
    );
    let mut last = ("", 0);
    for cell in cells {
        let this = (cell.shape, cell.connections);
        let (shape, connections) =
            if this == last { ("", String::new()) } else { (cell.shape, cell.connections.to_string()) };
        last = this;
        let with_ratio = |value: f64, ratio: f64| format!("{value:.0} ({ratio:.2})");
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        println!(
            "{shape:<6} {connections:>5}  {:<11} {:>16} {:>18} {:>18} {:>15} {:>10}{}",
            cell.way,
            with_ratio(cell.throughput, cell.ratio.throughput),
            with_ratio(cell.p50_us, cell.ratio.p50),
            with_ratio(cell.p99_us, cell.ratio.p99),
            or_dash(cell.cpu_s_per_1000.map(|seconds| format!("{seconds:.4}"))),
            or_dash(cell.cpu_us_per_call.map(|us| format!("{us:.1}"))),
            if cell.errors + cell.refusals > 0 { "  errors!" } else { "" },
        );
    }
}

pub(crate) fn memory(memory: Option<&Memory>) {
    let Some(memory) = memory else { return };
    let mib = |kib: u64| kib as f64 / 1024.0;
    println!("\nMemory (VmRSS)");
    println!("  idle                     {:>8.1} MiB", mib(memory.idle_kib));
    println!("  idle, 1000 rules         {:>8.1} MiB", mib(memory.idle_1000_rules_kib));
    println!(
        "  {} connections open    {:>8.1} MiB   {:.1} KiB per connection",
        memory.connections,
        mib(memory.open_kib),
        memory.per_connection_kib
    );
    println!("  after they closed        {:>8.1} MiB", mib(memory.closed_kib));
}

pub(crate) fn conditions(conditions: Option<&Conditions>) {
    let Some(conditions) = conditions else { return };
    println!("\nConditions of rules, on one core");
    println!("  100 like the first in README {:>10.1} µs per message", conditions.example_us);
    println!("  100 of eight kinds           {:>10.1} µs per message", conditions.mixed_us);
    println!("  one that takes all its steps {:>10.1} µs", conditions.bound_us);
}

pub(crate) fn bystander(bystander: Option<&Bystander>) {
    let Some(bystander) = bystander else { return };
    println!("\nA process that is no agent: connect, call, close");
    println!(
        "  programs attached {:.1} µs, outside {:.1} µs: ratio {:.3} (outside against outside {:.3})",
        bystander.attached_p50_us, bystander.outside_p50_us, bystander.ratio, bystander.noise
    );
    println!("  its connections that interlock took: {}", bystander.connections_touched);
}

pub(crate) fn watch(watch: &Watch) {
    println!(
        "\nWatching tools: small calls over {} connections, beside {} lists of {} tools in a second, or as many bytes",
        watch.connections,
        watch.endpoints,
        watch.tools()
    );
    println!("  {:<34} {:>8} {:>12}  ratio of calls/s", "", "calls/s", "CPU µs/call");
    for (name, speed, ratio) in [
        ("bytes, no list seen so far", watch.unknowing, None),
        ("lists, all of it new", watch.first, Some((watch.first_ratio, "to the line above"))),
        ("bytes, all lists known", watch.bytes, Some((watch.knowing_ratio, "to the first line"))),
        ("lists, all of them known", watch.lists, Some((watch.lists_ratio, "to the line above"))),
    ] {
        let ratio = ratio.map(|(ratio, to)| format!("{ratio:.3} {to}")).unwrap_or_default();
        println!("  {name:<34} {:>8.0} {:>12.1}  {ratio}", speed.throughput, speed.cpu_us_per_call);
    }
    let [low, high] = watch.lists_ratio_range;
    println!("  of the last ratio four in five lie between {low:.3} and {high:.3}");
    println!("  the proxy took {:.0} % of its core while lists were listed", watch.proxy_core * 100.0);
    println!(
        "  CPU of the proxy for each tool in a list {:.2} µs, for as many bytes {:.2} µs",
        watch.cpu_us_per_tool, watch.cpu_us_per_tool_of_bytes
    );
    println!("  known in the end: {} tools of {} endpoints", watch.tools_known, watch.endpoints_known);
    for (what, ratio) in [
        ("lists", watch.lists_ratio),
        ("lists that are new", watch.first_ratio),
        ("knowing", watch.knowing_ratio),
    ] {
        if ratio < COSTLY {
            println!("  {what}: more than 3 % of the throughput");
        }
    }
}

pub(crate) fn stop(stop: &Probe) {
    println!(
        "\nStop, {}: {} connections, {} calls in flight (load average {:.1})",
        stop.crowd, stop.connections, stop.active, stop.load_average
    );
    println!(
        "  {:<8} {:>5}  {:>21} {:>21} {:>21} {:>6} {:>7}",
        "level", "stops", "order to answer, ms", "issued to in force", "any command", "conns", "caught"
    );
    for level in &stop.levels {
        let pair = |p50: f64, p99: f64| format!("p50 {p50:>5.1} p99 {p99:>5.1}");
        println!(
            "  {:<8} {:>5}  {:>21} {:>21} {:>21} {:>6} {:>7}",
            level.level.label(),
            level.stops,
            pair(level.answer_ms_p50, level.answer_ms_p99),
            pair(level.in_force_ms_p50, level.in_force_ms_p99),
            pair(level.command_ms_p50, level.command_ms_p99),
            level.connections_p50,
            level.caught_p50,
        );
    }
    println!(
        "  calls read by the server {}, refused to the agent {}, without an answer {}",
        stop.calls_at_server, stop.calls_refused, stop.calls_failed
    );
    let fates: Vec<String> = stop.fates.iter().map(|(fate, count)| format!("{fate} {count}")).collect();
    println!(
        "  in flight, as the answers list them, fates as of the release: {}",
        if fates.is_empty() { "none".into() } else { fates.join(", ") }
    );
    println!(
        "  at the server while a stop was in force: {} (and {} it lists as on their way)",
        stop.after_in_force, stop.late
    );
    println!("  answered before the stop, the answer lost with the agent's socket: {}", stop.answer_lost);
    println!("  disagreements between answers, server and agent: {}", stop.disagreements.len());
}

/// Watching tools is meant to take no more of the throughput.
const COSTLY: f64 = 0.97;
