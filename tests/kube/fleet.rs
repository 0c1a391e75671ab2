//! Stops of the whole cluster, ordered and released by an object of its API server.

use std::time::Duration;

use agent_tests::app::interlock;
use agent_tests::wait::within;
use agent_tests::{Era, Sdk, wait_for};
use serde_json::{Value, json};

use crate::captured::{BY_API, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::peers;

/// Only pods of one namespace are kept from this tool.
const RULES: &str = "version: 1\nrules:\n  - {id: not-here, action: deny, match: {namespace: agents, tool: wire_transfer}, \
                     reason: payments are made by people}\n";
const STOP: &str = "{apiVersion: interlock.dev/v1alpha1, kind: AgentStop, metadata: {name: bad-day}, spec: {scope: {label: \
                    {tier: gold}}, level: isolate, reason: it deletes tickets}}";

#[test]
fn an_agent_stop_holds_on_every_node_says_so_and_ends_with_its_object() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    for (name, tier) in [("gold", "gold"), ("silver", "silver")] {
        let labels = json!({"interlock.dev/agent": "true", "tier": tier});
        cluster.apply(&peers::agent("agents", name, &labels, &json!({})));
    }
    cluster.pod_ready("servers", "bank");
    let bank = (cluster.service_ip("servers", "bank"), 80);
    let script = json!([
        {"op": "call", "tool": "wire_transfer", "args": {"amount": 5}},
        {"op": "wait_line"},
        {"op": "call", "tool": "echo", "args": {"text": "again"}},
    ]);
    let start = |name| {
        cluster.pod_ready("agents", name);
        peers::start(&cluster, ("agents", name), (Sdk::Py2, Era::Auto), bank, &script)
    };
    let (mut gold, mut silver) = (start("gold"), start("silver"));
    for agent in [&gold, &silver] {
        agent.connected();
        assert!(agent.step().text.contains("payments are made by people"));
    }

    cluster.apply(STOP);
    let status = wait_for("every node to answer", || {
        let stop = cluster.object("", "agentstop/bad-day");
        (stop["status"]["inForce"] == "1/1").then(|| stop["status"].clone())
    });
    assert_eq!((&status["agents"], &status["open"]), (&json!(1), &json!(0)), "{status}");
    let shown = cluster.kubectl(&["get", "agentstops"]);
    let words = |line: usize| shown.lines().nth(line).map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(words(1).map(|words| words[..3].join(" ")).as_deref(), Some("bad-day isolate 1/1"), "{shown}");
    gold.go();
    silver.go();
    let passed =
        |steps: Vec<agent_tests::Step>| steps.iter().any(|step| step.ok && step.line["op"] == "call");
    assert!(!passed(gold.rest()) && passed(silver.rest()));
    assert_eq!(start("gold").tried()["connected"], false, "nobody connects past a stop");
    let record = deployment.records().wait("stop", "of the fleet", |_| true);
    assert_eq!(record["by"]["user"], "agentstop:bad-day");

    cluster.kubectl(&["delete", "agentstop", "bad-day"]);
    deployment.records().wait("release", "of the fleet", |released| released["stop"] == record["stop"]);
    start("gold").connected();
    // By the garbage collector of Kubernetes, which looks every 30 s what kinds there are: ours are as new as this test.
    let gone = within(Duration::from_secs(60), || {
        let reports = cluster.object("", "agentstopreports");
        reports["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    gone.expect("the reports go with their stop");

    // The same by one command.
    let order = [
        "stop",
        "--fleet",
        "--json",
        "label=tier=gold",
        "--level",
        "isolate",
        "--reason",
        "odd",
        "--wait",
        "30s",
    ];
    let stopped =
        cluster.as_operator(&[&[&*interlock()], &order[..]].concat()).output().expect("run interlock");
    assert!(stopped.status.success(), "{stopped:?}");
    let answer: Value = serde_json::from_slice(&stopped.stdout).expect("JSON");
    assert_eq!(
        (&answer["status"]["inForce"], &answer["status"]["agents"]),
        (&json!("1/1"), &json!(1)),
        "{answer}"
    );
    assert_eq!(start("gold").tried()["connected"], false, "nobody connects past a stop");
}
