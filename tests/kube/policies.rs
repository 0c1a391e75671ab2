//! Rules as objects of the API server.

use agent_tests::{Era, Sdk, Step, wait_for};
use serde_json::json;

use crate::captured::{BY_API, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::peers;

const NO_RULES: &str = "version: 1\nrules: []\n";
const OF_CLUSTER: &str = "{apiVersion: interlock.dev/v1alpha1, kind: ClusterAgentPolicy, metadata: {name: everywhere}, spec: {rules: \
    [{id: slow, action: deny, match: {tool: slow}, reason: nobody waits}]}}";
const OF_NAMESPACE: &str = "{apiVersion: interlock.dev/v1alpha1, kind: AgentPolicy, metadata: {name: team, namespace: agents}, spec: \
    {rules: [{id: money, action: deny, match: {tool: wire_transfer}, when: 'args.amount > 3', reason: too much}]}}";

#[test]
fn policies_of_the_api_server_are_in_force_and_say_whether_nodes_take_them() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, WATCH, NO_RULES);
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    cluster.apply(&peers::agent("agents", "coder", &json!({"interlock.dev/agent": "true"}), &json!({})));
    cluster.pod_ready("servers", "bank");
    cluster.pod_ready("agents", "coder");
    let generation = |least: u64| {
        wait_for("the rules in force", || {
            let status = deployment.run(&["status"]).json;
            (status["generation"].as_u64()? >= least).then(|| status["generation"].as_u64())?
        })
    };
    let before = generation(1);
    cluster.apply(OF_CLUSTER);
    cluster.apply(OF_NAMESPACE);
    wait_for("both in force", || (deployment.run(&["status"]).json["policy"]["rules"] == 2).then_some(()));
    assert!(generation(before + 1) > before);
    for (kind, name) in [("clusteragentpolicy", "everywhere"), ("agentpolicy", "team")] {
        let namespace = if kind == "agentpolicy" { "agents" } else { "" };
        let status = wait_for("the controller to look at it", || {
            let policy = cluster.object(namespace, &format!("{kind}/{name}"));
            policy["status"]["accepted"].as_bool().map(|_| policy["status"].clone())
        });
        assert_eq!((&status["accepted"], &status["rules"]), (&json!(true), &json!(1)), "{status}");
    }
    let call = |tool, args| json!({"op": "call", "tool": tool, "args": args});
    let script = json!([
        call("wire_transfer", json!({"amount": 5})),
        call("wire_transfer", json!({"amount": 1})),
        call("slow", json!({})),
        {"op": "wait_line"},
        call("slow", json!({"seconds": 0})),
    ]);
    let bank = (cluster.service_ip("servers", "bank"), 80);
    let mut coder = peers::start(&cluster, ("agents", "coder"), (Sdk::Py2, Era::Auto), bank, &script);
    coder.connected();
    assert!(coder.step().text.contains("too much"));
    assert!(coder.step().ok, "that is little enough");
    assert!(coder.step().text.contains("nobody waits"));
    let denied = deployment.records().wait("decision", "by the policy", |record| record["verdict"] == "deny");
    assert_eq!(denied["rules"], json!(["AgentPolicy/agents/team/money"]));

    // A slip is said where it was made, and changes nothing on the nodes.
    cluster.apply(&OF_NAMESPACE.replace("args.amount", "arguments.amount"));
    wait_for("the controller to refuse it", || {
        let status = cluster.object("agents", "agentpolicy/team")["status"].clone();
        (status["accepted"] == false && status["message"].as_str()?.contains("arguments")).then_some(())
    });
    assert_eq!(deployment.run(&["status"]).json["policy"]["rules"], 2);
    let shown = cluster.kubectl(&["--namespace", "agents", "get", "agentpolicies"]);
    assert!(shown.contains("ACCEPTED") && shown.contains("false") && shown.contains("arguments"), "{shown}");

    cluster.kubectl(&["delete", "clusteragentpolicy", "everywhere"]);
    wait_for("it to be gone", || (deployment.run(&["status"]).json["policy"]["rules"] == 1).then_some(()));
    coder.go();
    let is_slow = |step: &Step| step.line["op"] == "call" && step.ok && !step.is_error;
    assert!(coder.rest().iter().any(is_slow));
}
