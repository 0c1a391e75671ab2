//! interlock as part of a cluster's life: it is there soon, it is replaced while agents work, and it is scraped.

use std::time::{Duration, Instant};

use agent_tests::{Era, Sdk, wait_for};
use serde_json::{Value, json};

use crate::captured::{BY_API, RULES, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::peers;
use crate::prometheus::{self, Prometheus};

/// A server and an agent, both ready; answers the address of the server's Service.
pub(crate) fn agent_and_bank(cluster: &Cluster) -> std::net::IpAddr {
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    let labels = json!({"interlock.dev/agent": "true"});
    cluster.apply(&peers::agent("agents", "client", &labels, &json!({})));
    cluster.pod_ready("servers", "bank");
    cluster.pod_ready("agents", "client");
    cluster.service_ip("servers", "bank")
}

#[test]
fn from_apply_to_the_first_captured_call_is_less_than_a_minute() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let bank = agent_and_bank(&cluster);
    let started = Instant::now();
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let script = json!([{"op": "call", "tool": "wire_transfer", "args": {"amount": 5}}]);
    let agent = peers::start(&cluster, ("agents", "client"), (Sdk::Py2, Era::Auto), (bank, 80), &script);
    agent.connected();
    assert!(agent.step().is_error);
    deployment.records().decision("wire_transfer", "deny");
    let took = started.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    println!("from apply to the first captured call: {:.1} s", took.as_secs_f64());
}

#[test]
fn a_rollout_lets_nothing_slip_and_calls_go_on_after_it() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let bank = agent_and_bank(&cluster);
    let mut hammer = peers::hammer(&cluster, ("agents", "client"), bank);
    let echoes = || peers::calls(&cluster, "servers", "bank").iter().filter(|tool| *tool == "echo").count();
    wait_for("calls before the rollout", || (echoes() > 3).then_some(()));
    let pod = deployment.pod();
    deployment.roll_out();
    assert_ne!(deployment.pod(), pod);
    let before = echoes();
    wait_for("calls after the rollout", || (echoes() > before + 3).then_some(()));
    hammer.tell("enough");
    let done: Value = hammer.line();
    assert_eq!(done["wire_transfer"], 0, "{done}");
    let calls = peers::calls(&cluster, "servers", "bank");
    assert!(!calls.contains(&"wire_transfer".to_owned()), "one slipped among {} calls", calls.len());
}

#[test]
fn prometheus_scrapes_it() {
    let cluster = Cluster::join();
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let target = prometheus::target(&cluster, &deployment);
    let prometheus = Prometheus::start(&cluster, &target, None);
    let answer = wait_for("a scrape", || {
        let answer = prometheus.get("query?query=interlock_kernel_attached")?;
        answer["data"]["result"][0].is_object().then_some(answer)
    });
    let sample = &answer["data"]["result"][0];
    assert_eq!(
        (&sample["metric"]["instance"], &sample["value"][1]),
        (&json!(target), &json!("1")),
        "{answer}"
    );
}
