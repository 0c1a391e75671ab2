//! Fleet stops where thousands of nodes follow them: the API server, its storage, its controllers and the controller of interlock
//! are real, and so is what each node does with them, which is the program's own code. Only the carrying out is left out.

mod cost;
mod nodes;

use std::time::{Duration, Instant};

use agent_tests::wait::within;
use interlock::fleet::resources::{AgentStop, AgentStopStatus};
use serde_json::json;

use self::cost::Cost;
use self::nodes::{AGENTS, BUSY, CALLS, Fleet};
use crate::captured::{BY_API, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;

const NO_RULES: &str = "version: 1\nrules: []\n";
/// For thousands of nodes on two cores that are theirs, the API server's and its storage's.
const DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn a_stop_is_carried_out_and_answered_by_a_thousand_nodes() {
    is_answered_by(1000);
}

#[test]
#[ignore = "takes minutes and some GB of memory: for the figures in deploy/kubernetes/README.md"]
fn a_stop_is_carried_out_and_answered_by_three_thousand_nodes() {
    is_answered_by(3000);
}

fn is_answered_by(nodes: usize) {
    let cluster = Cluster::join();
    let _deployment = Deployment::start(&cluster, BY_API, WATCH, NO_RULES);
    let started = Instant::now();
    let fleet = Fleet::start(&cluster, nodes);
    let watching = || (cost::watching(&cluster, "AgentStop") > nodes).then_some(());
    within(DEADLINE, watching).unwrap_or_else(|| panic!("{} watch", cost::watching(&cluster, "AgentStop")));
    println!("{nodes} nodes follow after {:.1} s", started.elapsed().as_secs_f64());
    // The node of the cluster is one more.
    let all = nodes + 1;
    for (name, reason, reports) in [("quiet", "no call is in flight", 1), ("busy", BUSY, 2)] {
        let before = Cost::so_far(&cluster);
        let ordered = Instant::now();
        fleet.order(name, reason);
        let in_force = fleet.wait(name, DEADLINE, |status| status.nodes_in_force == all);
        let (carried_out, told) = (fleet.last_carried_out(name) - ordered, ordered.elapsed());
        let agents = nodes * AGENTS;
        assert_eq!(in_force.agents, agents, "{in_force:?}");
        let status = fleet.wait(name, DEADLINE, |status| {
            status.open == 0 && status.calls == if reason == BUSY { nodes * CALLS } else { 0 }
        });
        let closed = ordered.elapsed();
        assert_eq!(status.problems, Vec::<String>::new());
        let cost = Cost::so_far(&cluster) - before;
        println!(
            "{nodes} nodes, {name}: carried out by the last after {:.2} s, all in the status after {:.2} s, no fate open \
             after {:.2} s; {cost}",
            carried_out.as_secs_f64(),
            told.as_secs_f64(),
            closed.as_secs_f64(),
        );
        // A report for each change on a node, and none for what others have answered.
        let most = all * reports + all / 10;
        assert!((all..=most).contains(&cost.reports), "{} reports of {all} nodes", cost.reports);
        cost::print_sizes(&cluster, name);

        let deleted = Instant::now();
        cluster.kubectl(&["delete", "agentstop", name, "--wait=false"]);
        within(DEADLINE, || fleet.is_released().then_some(())).expect("all nodes release it");
        println!(
            "{nodes} nodes, {name}: released by the last after {:.2} s",
            deleted.elapsed().as_secs_f64()
        );
        // The controllers of Kubernetes would delete them one by one, ten a second.
        cluster.kubectl(&["delete", "--raw", "/apis/interlock.dev/v1alpha1/agentstopreports"]);
        let left = || cost::count(&cluster, "agentstopreports");
        within(DEADLINE, || (left() == 0).then_some(())).unwrap_or_else(|| panic!("{} are left", left()));
    }
    cost::print_memory();
}

/// An order to all agents of a label.
fn stop(name: &str, reason: &str) -> AgentStop {
    let stop = json!({
        "apiVersion": "interlock.dev/v1alpha1", "kind": "AgentStop", "metadata": {"name": name},
        "spec": {"scope": {"label": {"tier": "gold"}}, "level": "refuse", "reason": reason},
    });
    serde_json::from_value(stop).expect("an AgentStop")
}

/// The status of one, if it has any.
fn status(stop: AgentStop) -> AgentStopStatus {
    stop.status.unwrap_or_default()
}
