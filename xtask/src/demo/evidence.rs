//! What really happened: the server's own log and interlock's records. The demo believes these, not itself.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::interrupt::pause;

/// A file of JSON lines that another process appends to.
pub(super) struct Lines(pub(super) PathBuf);

impl Lines {
    /// All of it so far; half a line at the end is not there yet.
    pub(super) fn read(&self) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.0).with_context(|| format!("read {}", self.0.display()))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    }

    /// How many lines there are of which this is true.
    pub(super) fn count(&self, is_meant: impl Fn(&Value) -> bool) -> anyhow::Result<usize> {
        Ok(self.read()?.iter().filter(|line| is_meant(line)).count())
    }

    /// Waits until a line comes of which this is true.
    pub(super) fn wait(&self, what: &str, is_meant: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        wait_for(what, || Ok(self.read()?.into_iter().find(&is_meant)))
    }
}

/// Asks until there is an answer.
pub(super) fn wait_for<T>(
    what: &str,
    mut ask: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            bail!("{what}: not within {} s", PATIENCE.as_secs());
        }
        pause(Duration::from_millis(2))?;
    }
}

/// The records that tell the story, as a table: when, what, verdict, tool, because of what, and what became of it.
pub(super) fn digest(records: &[Value]) -> String {
    let header = ["time (UTC)", "kind", "verdict", "tool", "rule or stop", "fate, or more"];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(records.iter().filter_map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn row(record: &Value) -> Option<[String; 6]> {
    let text = |name: &str| match &record[name] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let kind = text("kind");
    let cause = match record["rules"].as_array() {
        Some(rules) if record["stop"].is_null() => {
            rules.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
        }
        _ => text("stop"),
    };
    let (verdict, cause, more) = match kind.as_str() {
        "decision" if record["method"] == "tools/call" => (text("verdict"), cause, String::new()),
        "policy" => (
            String::new(),
            String::new(),
            format!("generation {}, {} rules", text("generation"), text("rules")),
        ),
        "stop" => (text("level"), cause, text("reason")),
        "stop_effect" => (String::new(), cause, text("fate")),
        "cancel" => (String::new(), cause, format!("{} {}", text("via"), text("outcome"))),
        "kernel" => ("refused".to_owned(), cause, format!("connect to {}", text("destination"))),
        "intrusion" => ("refused".to_owned(), cause, text("order")),
        "release" => (String::new(), cause, text("reason")),
        "daemon" => (String::new(), String::new(), format!("{}, pid {}", text("event"), text("pid"))),
        _ => return None,
    };
    let at = text("at");
    let time = at.get(11..23).unwrap_or(&at).to_owned();
    Some([time, kind, verdict, text("tool"), cause, more])
}

/// How long anything here may take before it counts as not happening.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn digest_keeps_what_tells_the_story() {
        let at = "2026-01-02T03:04:05.678901Z";
        let text = digest(&[
            json!({"at": at, "kind": "decision", "method": "tools/list", "verdict": "allow", "rules": []}),
            json!({"at": at, "kind": "decision", "method": "tools/call", "tool": "wire_transfer", "verdict": "deny",
                   "rules": ["no-transfers"]}),
            json!({"at": at, "kind": "stop_effect", "tool": "slow", "stop": "stp-1", "fate": "cancelled"}),
            json!({"at": at, "kind": "connection"}),
        ]);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert_eq!(rows[1], ["03:04:05.678", "decision", "deny", "wire_transfer", "no-transfers"]);
        assert_eq!(rows[2], ["03:04:05.678", "stop_effect", "slow", "stp-1", "cancelled"]);
    }
}
