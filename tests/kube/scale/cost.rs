//! What the API server says that it has had to do, and how large what it keeps is.

use std::fmt;
use std::fs;
use std::ops::Sub;

use agent_tests::metrics::sum;
use serde_json::Value;

use crate::cluster::Cluster;

/// Since the API server began, or between two such moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Writes of reports that were taken.
    pub(super) reports: usize,
    /// Those it had no room for, and that came again.
    refused: usize,
    /// Statuses that were written.
    statuses: usize,
    /// Events about stops that were sent to those who watch, and their bytes.
    events: usize,
    bytes: usize,
}

impl Cost {
    pub(super) fn so_far(cluster: &Cluster) -> Self {
        let text = scrape(cluster);
        let requests = |labels: &[(&str, &str)]| count_in(&text, "apiserver_request_total", labels);
        // One that makes a report, one that changes it.
        let written = |code| requests(&[("resource", "agentstopreports"), ("code", code), ("verb", "APPLY")]);
        let of_stops = [("group", "interlock.dev"), ("kind", "AgentStop")];
        Self {
            reports: written("200") + written("201"),
            refused: written("429"),
            statuses: requests(&[("resource", "agentstops"), ("subresource", "status"), ("code", "200")]),
            events: count_in(&text, "apiserver_watch_events_total", &of_stops),
            bytes: count_in(&text, "apiserver_watch_events_sizes_sum", &of_stops),
        }
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            reports: self.reports - before.reports,
            refused: self.refused - before.refused,
            statuses: self.statuses - before.statuses,
            events: self.events - before.events,
            bytes: self.bytes - before.bytes,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { reports, refused, statuses, events, bytes } = self;
        write!(
            f,
            "{reports} reports written ({refused} put off), {statuses} statuses, {events} events of {bytes} bytes to \
             watches of stops"
        )
    }
}

/// How many watch objects of this kind.
pub(super) fn watching(cluster: &Cluster, kind: &str) -> usize {
    let labels = [("group", "interlock.dev"), ("kind", kind)];
    count_in(&scrape(cluster), "apiserver_registered_watchers", &labels)
}

/// How many objects there are.
pub(super) fn count(cluster: &Cluster, what: &str) -> usize {
    let path = format!("/apis/interlock.dev/v1alpha1/{what}?limit=1");
    let list: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path])).expect("JSON");
    let here = list["items"].as_array().map_or(0, Vec::len);
    let left = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
    here + usize::try_from(left).expect("a number of objects")
}

/// Prints how large a stop and one of its reports are.
pub(super) fn print_sizes(cluster: &Cluster, name: &str) {
    let size = |path: &str| {
        cluster.kubectl(&["get", "--raw", &format!("/apis/interlock.dev/v1alpha1/{path}")]).len()
    };
    println!(
        "{name}: the stop with its status has {} bytes, a report {}",
        size(&format!("agentstops/{name}")),
        size(&format!("agentstopreports/{name}.simulated-00000")),
    );
}

/// Prints the most memory that each program had which a fleet makes work.
pub(super) fn print_memory() {
    for entry in fs::read_dir("/proc").expect("/proc is mounted").flatten() {
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let command = read("cmdline").replace('\0', " ");
        let is = |words: &&str| command.contains(words);
        let program = ["kube-apiserver ", "etcd ", "interlock fleet"].into_iter().find(is);
        let peak = read("status").lines().find_map(|line| line.strip_prefix("VmHWM:").map(str::to_owned));
        if let (Some(program), Some(peak)) = (program, peak) {
            println!("most memory of {}: {}", program.trim(), peak.trim());
        }
    }
}

fn scrape(cluster: &Cluster) -> String {
    cluster.kubectl(&["get", "--raw", "/metrics"])
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters of whole things")]
fn count_in(text: &str, name: &str, labels: &[(&str, &str)]) -> usize {
    sum(text, name, labels) as usize
}
