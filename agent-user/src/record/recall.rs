//! What the records tell of a stop that this daemon has not carried out itself, or has forgotten: the same receipt,
//! put together from its lines.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use memchr::memmem::Finder;
use serde_json::{Map, Value, json};

/// The receipt of a stop as its records tell it; `None` where they do not know it. Reads the whole file.
pub fn recall(records: &Path, stop: &str) -> Result<Option<Value>> {
    let file = File::open(records).with_context(|| format!("open records {}", records.display()))?;
    let mut told = Told::default();
    let quoted = json!(stop).to_string();
    let finder = Finder::new(&quoted);
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if finder.find(&line).is_some()
            && let Ok(Value::Object(record)) = serde_json::from_slice(&line)
            && record.get("stop").is_some_and(|of| of == stop)
        {
            told.add(record);
        }
        line.clear();
    }
    Ok(told.receipt())
}

#[derive(Default)]
struct Told {
    /// The orders that were carried out.
    orders: Vec<Map<String, Value>>,
    calls: Vec<Map<String, Value>>,
    /// Where each of them is, by decision and task.
    places: HashMap<(String, String), usize>,
    released: Option<Value>,
    refused_by_proxy: u64,
    refused_by_kernel: u64,
}

impl Told {
    fn add(&mut self, mut record: Map<String, Value>) {
        match record["kind"].as_str() {
            Some("stop") => self.orders.push(record),
            Some("stop_effect") => self.effect(record),
            Some("release") if record["released"] == true => {
                let [by, reason, at, asked_by] =
                    ["by", "reason", "at", "asked_by"].map(|name| record.remove(name).unwrap_or_default());
                let mut release = json!({"by": by, "reason": reason, "at": at});
                if !asked_by.is_null() {
                    release["asked_by"] = asked_by;
                }
                self.released = Some(release);
            }
            // What was in flight when the stop came has not run into it.
            Some("decision") if self.is_caught(&record) => {}
            Some("decision") => self.refused_by_proxy += 1,
            Some("kernel") => self.refused_by_kernel += 1,
            _ => {}
        }
    }

    fn is_caught(&self, decision: &Map<String, Value>) -> bool {
        let decision = decision.get("decision").and_then(Value::as_str).unwrap_or_default();
        self.places.contains_key(&(decision.to_owned(), String::new()))
    }

    /// The last line about a call tells its fate.
    fn effect(&mut self, mut record: Map<String, Value>) {
        for name in ["schema", "kind", "stop", "at"] {
            record.remove(name);
        }
        // Whoever waited for it is gone.
        record.insert("open".into(), false.into());
        let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        match self.places.entry((text("decision"), text("task"))) {
            Entry::Occupied(place) => self.calls[*place.get()] = record,
            Entry::Vacant(place) => {
                place.insert(self.calls.len());
                self.calls.push(record);
            }
        }
    }

    fn receipt(mut self) -> Option<Value> {
        let mut order = self.orders.pop()?;
        let view = ["id", "scope", "level", "reason", "by", "issued_at", "escalations"];
        let stop = view.into_iter().filter_map(|name| Some((name.to_owned(), order.remove(name)?)));
        let stop: Map<String, Value> = stop.collect();
        let open = self.calls.iter().filter(|call| call["fate"] == "sent").count() as u64;
        let agents = order.get("agents").and_then(Value::as_array);
        let unknown = agents.into_iter().flatten().filter_map(|agent| agent["tasks_unknown"].as_u64());
        let open = open + unknown.sum::<u64>();
        let only_report = |order: &mut Map<String, Value>| {
            for name in ["schema", "kind", "at", "stop"].into_iter().chain(view) {
                order.remove(name);
            }
        };
        only_report(&mut order);
        self.orders.iter_mut().for_each(only_report);
        order.insert("stop".into(), stop.into());
        if !self.orders.is_empty() {
            order.insert("earlier".into(), self.orders.into());
        }
        order.insert("calls".into(), self.calls.into());
        order.insert("open".into(), open.into());
        let refused = json!({"proxy": self.refused_by_proxy, "kernel": self.refused_by_kernel});
        order.insert("refused".into(), refused);
        order.insert("from_records".into(), true.into());
        if let Some(released) = self.released {
            order.insert("released".into(), released);
            order.insert("in_force".into(), false.into());
        }
        Some(order.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_about_a_call_tells_its_fate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records.jsonl");
        let lines = [
            json!({"kind": "stop", "stop": "stp-7", "id": "stp-7", "level": "refuse", "at": "t0", "in_force": false}),
            json!({"kind": "stop", "stop": "stp-7", "id": "stp-7", "level": "isolate", "at": "t1", "in_force": true}),
            json!({"kind": "stop_effect", "stop": "stp-7", "at": "t1", "decision": "d-1", "fate": "sent"}),
            json!({"kind": "stop_effect", "stop": "stp-77", "at": "t1", "decision": "d-9", "fate": "sent"}),
            json!({"kind": "stop_effect", "stop": "stp-7", "at": "t1", "decision": "d-2", "fate": "sent"}),
            json!({"kind": "stop_effect", "stop": "stp-7", "at": "t2", "decision": "d-1", "fate": "finished_after_stop", "late": {"bytes": 3}}),
            json!({"kind": "decision", "stop": "stp-7", "verdict": "deny"}),
            json!({"kind": "decision", "stop": "stp-7", "verdict": "deny", "decision": "d-2"}),
            json!({"kind": "release", "stop": "stp-7", "at": "t3", "reason": "fine", "by": {"user": "a"}, "released": true}),
        ];
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text + "{\"half").unwrap();
        let receipt = recall(&path, "stp-7").unwrap().unwrap();
        assert_eq!(receipt["stop"], json!({"id": "stp-7", "level": "isolate"}));
        assert_eq!(receipt["earlier"], json!([{"in_force": false}]));
        let first =
            json!({"decision": "d-1", "fate": "finished_after_stop", "open": false, "late": {"bytes": 3}});
        assert_eq!(receipt["calls"][0], first);
        assert_eq!((&receipt["calls"][1]["fate"], &receipt["open"]), (&json!("sent"), &json!(1)));
        assert_eq!(receipt["refused"], json!({"proxy": 1, "kernel": 0}));
        assert_eq!(receipt["released"], json!({"by": {"user": "a"}, "reason": "fine", "at": "t3"}));
        assert_eq!(receipt["in_force"], false, "any more");
        assert!(recall(&path, "stp-8").unwrap().is_none());
    }
}
