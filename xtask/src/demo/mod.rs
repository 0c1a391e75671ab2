//! `cargo xtask demo`: interlock at work, for somebody who sees it for the first time. Real processes, an MCP server and
//! an MCP client on the official SDK, no internet. Each step checks what it says against the server's own log, exit codes
//! and records; the first that does not hold ends the demo with an error. Nothing stays behind.

mod agent;
mod evidence;
mod proof;
mod screen;
mod stage;
mod story;
mod words;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use self::screen::Screen;
use self::stage::Stage;
use self::story::{RULES, STEPS, Story};
use crate::{ebpf, interrupt, shell};

pub(crate) fn run() -> anyhow::Result<()> {
    if !shell::is_root() {
        bail!(
            "the demo needs root: it loads eBPF programs into the kernel and makes cgroups of its own (run \
             `sudo -E env \"PATH=$PATH\" cargo xtask demo`; it removes all of it again)"
        );
    }
    interrupt::catch_interrupts()?;
    let outcome = build().and_then(|programs| play(&programs));
    // Whatever failed because of a Ctrl-C did not fail.
    interrupt::check_interrupted().context("the demo did not get to its end")?;
    outcome
}

/// Debug: it builds faster than release, `cargo xtask test` needs the same build, and the demo takes seconds either way.
fn build() -> anyhow::Result<PathBuf> {
    ebpf::run()?;
    shell::run(&mut shell::cargo(&[
        "build",
        "--workspace",
        "--bin=interlock",
        "--bin=mcp-server",
        "--bin=mcp-client",
    ]))?;
    Ok(shell::target().join("debug"))
}

fn play(programs: &Path) -> anyhow::Result<()> {
    let (screen, started) = (Screen::open(), Instant::now());
    screen.heading("interlock: a kill switch and policy gate for AI agents, in nine steps")?;
    let stage = Stage::build(programs, screen, RULES)?;
    let traces = stage.traces();
    let told = tell(stage);
    let left: Vec<String> =
        traces.iter().filter(|trace| trace.exists()).map(|trace| trace.display().to_string()).collect();
    if !left.is_empty() {
        eprintln!("The demo could not remove {}", left.join(" "));
    }
    told?;
    ensure!(left.is_empty(), "the demo left something behind");
    screen.heading(&format!(
        "Done in {:.0} s: all nine steps did what they say, and nothing of the demo is left on this host.",
        started.elapsed().as_secs_f64()
    ))
}

/// Goes through the steps; everything that was started is gone when this returns.
fn tell(stage: Stage) -> anyhow::Result<()> {
    let screen = stage.screen;
    let mut story = Story::begin(stage)?;
    for (number, (title, step)) in (1..).zip(STEPS) {
        screen.heading(&format!("{number}. {title}"))?;
        let outcome = step(&mut story);
        if outcome.is_err() {
            match interrupt::check_interrupted() {
                Ok(()) => eprintln!("\nThe daemon's last words:\n{}", story.last_words()),
                Err(_) => eprintln!("\nInterrupted; taking everything away again."),
            }
        }
        outcome.with_context(|| format!("step {number} ({title}) did not do what it says"))?;
    }
    Ok(())
}
