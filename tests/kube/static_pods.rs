//! Pods that the kubelet makes from files on the node, of which it tells the API server later, if that answers.

use std::time::Duration;

use agent_tests::app::interlock;
use agent_tests::wait::within;
use agent_tests::{Sdk, wait_for};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};

use crate::captured::{BY_API, RULES, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::peers;

/// Of the node's name the kubelet makes the end of the pod's.
const POD: &str = "early-node1";
/// The kubelet asks the API server first, which takes its time to be found silent.
const WHILE_SILENT: Duration = Duration::from_secs(120);

#[test]
fn a_static_pod_gets_nowhere_until_a_silent_api_server_tells_of_it() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    cluster.pod_ready("servers", "bank");
    let bank = cluster.service_ip("servers", "bank");
    let tries = || -> Vec<Value> {
        let lines = cluster.log_on_node("agents", POD);
        lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let frozen = cluster.freeze_api_server();
    let labels = json!({"interlock.dev/agent": "true"});
    let _pod = cluster.static_pod(&peers::teller("agents", "early", &labels, bank));
    let come = |least: usize| within(WHILE_SILENT, || (tries().len() >= least).then_some(()));
    come(6).expect("the kubelet starts it without the API server");

    // Nor does the next daemon know who it is, and there is one soon without an API server.
    let daemons = || cluster.processes("/interlock run ");
    let [daemon] = daemons()[..] else { panic!("there is one daemon") };
    kill(daemon, Signal::SIGKILL).expect("kill the daemon");
    let another = || if daemons().contains(&daemon) { None } else { status(&cluster) };
    let status = within(WHILE_SILENT, another).expect("another daemon");
    assert_eq!(status["kubernetes"]["complete"], true, "it knows what the one before knew: {status}");
    let before = tries().len();
    come(before + 6).expect("it goes on");
    let all = tries();
    assert!(all.iter().all(|tried| tried["came_to"] == "no connection"), "{all:?}");

    drop(frozen);
    let last = |tool: &str| tries().into_iter().rev().find(|tried| tried["tool"] == tool);
    let is_known = || (last("echo")?["came_to"] == "passed").then_some(());
    within(WHILE_SILENT, is_known).unwrap_or_else(|| panic!("{:?}", tries().last()));
    let denied = wait_for("a rule to refuse it something", || {
        (last("wire_transfer")?["came_to"] == "refused")
            .then(|| deployment.records().decision("wire_transfer", "deny"))
    });
    let object = cluster.object("agents", &format!("pod/{POD}"));
    assert_eq!(
        (&denied["agent"], &denied["pod"]["uid"]),
        (&json!("agents/early-node1"), &object["metadata"]["uid"]),
        "{denied}"
    );
    let calls = peers::calls(&cluster, "servers", "bank");
    assert!(calls.iter().all(|tool| tool == "echo"), "{calls:?}");
}

/// What the daemon on the node says of itself, asked from the node.
fn status(cluster: &Cluster) -> Option<Value> {
    let output = cluster.enter(&[&interlock(), "--json", "status"]).output().expect("run interlock");
    serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
}
