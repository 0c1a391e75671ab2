//! Pods of which the API server has not told yet: what `unclassified` makes of them. It is not asked while the daemon's role
//! is taken from it.

use std::net::IpAddr;
use std::time::Duration;

use agent_tests::agent::{call, wait_line};
use agent_tests::wait::within;
use agent_tests::{Era, Sdk, Step};
use serde_json::json;

use crate::captured::{BY_API, RULES, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::peers;

#[test]
fn a_pod_that_is_not_known_runs_free_until_it_is_where_the_operator_allows_that() {
    let allow = WATCH.replace("hold", "allow");
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, &allow, RULES);
    let bank = strangers(&cluster, &deployment);
    let transfer = || call("wire_transfer", json!({"amount": 5}));
    let script = json!([transfer(), wait_line(), transfer()]);
    let start = || peers::start(&cluster, ("agents", "client"), (Sdk::Py2, Era::Auto), bank, &script);
    let mut client = start();
    client.connected();
    let step = client.step();
    assert!(step.ok && !step.is_error, "nobody knows yet that it is an agent: {step:?}");

    deployment.apply(RULES);
    is_known(&deployment);
    client.go();
    let passed = |step: &Step| step.line["op"] == "call" && step.ok && !step.is_error;
    assert!(!client.rest().iter().any(passed), "nor on the connection that it has");
    let client = start();
    client.connected();
    assert!(client.step().text.contains("payments are made by people"));
    assert_eq!(peers::calls(&cluster, "servers", "bank"), ["wire_transfer"], "the first alone");
}

#[test]
fn a_pod_that_is_not_known_gets_nowhere_until_it_is_where_it_is_held() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let bank = strangers(&cluster, &deployment);
    let script = json!([call("echo", json!({"text": "hello"}))]);
    let start = || peers::start(&cluster, ("agents", "client"), (Sdk::Py2, Era::Auto), bank, &script);
    assert_eq!(start().tried()["connected"], false);
    deployment.apply(RULES);
    is_known(&deployment);
    let client = start();
    client.connected();
    assert_eq!(client.step().text, "hello");
    assert_eq!(peers::calls(&cluster, "servers", "bank"), ["echo"]);
}

/// A server, and an agent's pod that starts when nobody tells the daemon of it.
fn strangers(cluster: &Cluster, deployment: &Deployment<'_>) -> (IpAddr, u16) {
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    cluster.pod_ready("servers", "bank");
    cluster.kubectl(&["delete", "clusterrolebinding", "interlock"]);
    // A watch that is open goes on; the next daemon's is refused.
    deployment.roll_out();
    cluster.apply(&peers::agent("agents", "client", &json!({"interlock.dev/agent": "true"}), &json!({})));
    cluster.pod_ready("agents", "client");
    let agents = deployment.run(&["agents"]).json.to_string();
    assert!(!agents.contains("agents/client"), "{agents}");
    (cluster.service_ip("servers", "bank"), 80)
}

/// Waits until the daemon has asked again; it does so ever less often.
fn is_known(deployment: &Deployment<'_>) {
    let known = || deployment.run(&["agents"]).json.to_string().contains("agents/client").then_some(());
    within(Duration::from_secs(60), known).expect("it is known within a minute");
}
