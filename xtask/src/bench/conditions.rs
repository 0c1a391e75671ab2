//! What conditions of rules cost a message: runs `agent-user/benches/conditions.rs` and reads what it measured.

use std::fs;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::shell;

/// Medians, µs.
#[derive(Debug, Serialize)]
pub(crate) struct Conditions {
    /// One message, 100 conditions like the first one in README that all run.
    pub(crate) example_us: f64,
    /// Likewise, of eight different kinds.
    pub(crate) mixed_us: f64,
    /// One condition that takes all its steps: the most a hostile message can make of it.
    pub(crate) bound_us: f64,
}

pub(crate) fn run() -> anyhow::Result<Conditions> {
    shell::run(&mut shell::cargo(&["bench", "--package", "agent-user", "--bench", "conditions"]))?;
    Ok(Conditions { example_us: median("example")?, mixed_us: median("mixed")?, bound_us: median("bound")? })
}

/// From the report of criterion.
fn median(name: &str) -> anyhow::Result<f64> {
    let path = shell::target().join("criterion/conditions").join(name).join("new/estimates.json");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let estimates: Value = serde_json::from_str(&text)?;
    let nanos = estimates["median"]["point_estimate"].as_f64();
    Ok(nanos.with_context(|| format!("{}: no median", path.display()))? / 1000.0)
}
