//! The last two steps: that what happened is on record, and was counted.

use std::collections::HashSet;

use anyhow::ensure;
use serde_json::{Value, json};

use super::evidence::digest;
use super::story::{RULE, Story};
use super::words::relevant;
use crate::scrape::sum_metric;

impl Story {
    pub(super) fn record(&mut self) -> anyhow::Result<()> {
        self.stage
            .screen
            .say("One JSON line each in records.jsonl, refusals and stops on disk before their answer leaves; in short:")?;
        let records = self.stage.records();
        for (what, is_meant) in EXPECTED {
            records.wait(&format!("{what} on record"), is_meant)?;
        }
        for id in &self.stops {
            let of = |kind: &str| records.count(|record| record["kind"] == kind && record["stop"] == **id);
            ensure!(of("stop")? == 1 && of("release")? == 1, "{id} is not on record once each way");
        }
        let records = records.read()?;
        self.stage.screen.output(&digest(&records))?;
        let decisions = || records.iter().filter(|record| record["kind"] == "decision");
        let ids: HashSet<&str> = decisions().filter_map(|record| record["decision"].as_str()).collect();
        ensure!(ids.len() == decisions().count(), "two decisions have one id");
        self.checked(&format!(
            "{} records, of every kind that the steps above call for; no two decisions of the two daemons share an id.",
            records.len()
        ))
    }

    pub(super) fn counters(&mut self) -> anyhow::Result<()> {
        let screen = self.stage.screen;
        let now = self.stage.scrape()?;
        screen.say(&format!(
            "Lines about decisions and stops of http://{}/metrics. Counters begin anew with a daemon; these are of \
             the first one, right before it was killed:",
            self.stage.metrics_addr()
        ))?;
        screen.output(&relevant(&self.counters))?;
        screen.say("And of the second one, now:")?;
        screen.output(&relevant(&now))?;
        for (text, name, label, at_least) in [
            (&self.counters, "interlock_decisions_total", "verdict=\"allow\"", 3.0),
            (&self.counters, "interlock_decisions_total", "verdict=\"deny\"", 3.0),
            (&self.counters, "interlock_denials_total", RULE, 2.0),
            (&self.counters, "interlock_stops_active", "level=\"isolate\"", 1.0),
            (&self.counters, "interlock_stops_total", "level=\"refuse\"", 1.0),
            (&self.counters, "interlock_stop_calls_total", "", 1.0),
            (&self.counters, "interlock_stop_refusals_total", "layer=\"proxy\"", 1.0),
            (&self.counters, "interlock_stop_refusals_total", "layer=\"kernel\"", 1.0),
            (&now, "interlock_denials_total", RULE, 1.0),
            (&now, "interlock_stop_refusals_total", "layer=\"kernel\"", 1.0),
        ] {
            let found = sum_metric(text, name, label);
            ensure!(found >= at_least, "{name}{{{label}}} is {found}");
        }
        ensure!(sum_metric(&now, "interlock_stops_active", "") == 0.0, "a stop counts as active");
        self.checked("what the steps did is what was counted, and no stop is active.")
    }
}

type IsMeant = fn(&Value) -> bool;

/// What must be on record at the end, besides each stop and its release.
const EXPECTED: [(&str, IsMeant); 7] = [
    ("an allowed call", |record| record["verdict"] == "allow" && record["tool"] == "echo"),
    ("a refused call", |record| record["verdict"] == "deny" && record["rules"] == json!([RULE])),
    ("a call refused by the stop", |record| record["verdict"] == "deny" && record["stop"].is_string()),
    ("the edit of the rules", |record| record["kind"] == "policy"),
    ("the fate of the slow call", |record| record["kind"] == "stop_effect" && record["tool"] == "slow"),
    ("a connection refused in the kernel", |record| record["kind"] == "kernel"),
    ("the agent's own try", |record| record["kind"] == "intrusion"),
];
