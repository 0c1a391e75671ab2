//! The daemon's records, as a reader of the file sees them.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::wait::wait_for;

/// A file of records.
pub struct Records {
    path: PathBuf,
}

impl Records {
    /// The records in this file.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// All whole records so far, oldest first.
    pub fn all(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.path).unwrap_or_default(); // nothing recorded yet is no file
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The records of one kind.
    pub fn of(&self, kind: &str) -> Vec<Value> {
        self.all().into_iter().filter(|record| record["kind"] == kind).collect()
    }

    /// Waits for a record of this kind.
    pub fn wait(&self, kind: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        wait_for(&format!("a {kind} record: {what}"), || self.of(kind).into_iter().find(&is))
    }

    /// Waits for the decision on a call of this tool.
    pub fn decision(&self, tool: &str, verdict: &str) -> Value {
        let is = |record: &Value| record["tool"] == tool && record["verdict"] == verdict;
        self.wait("decision", &format!("{verdict} {tool}"), is)
    }
}

/// The ids in a record's list of rules.
pub fn rules(record: &Value) -> Vec<&str> {
    record["rules"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}
