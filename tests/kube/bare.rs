//! The cluster itself: when one of these fails, the cluster or the peers are at fault and not the program.

use agent_tests::{Era, Sdk};
use serde_json::json;

use crate::cluster::Cluster;
use crate::peers;

#[test]
fn the_node_is_ready_and_pods_may_not_do_what_no_role_allows() {
    let cluster = Cluster::join();
    let node = cluster.object("default", "node/node1");
    let conditions = node["status"]["conditions"].as_array().expect("a node has conditions");
    assert!(conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True"), "{node}");
    let output =
        cluster.try_kubectl(&["auth", "can-i", "list", "pods", "--as=system:serviceaccount:default:default"]);
    assert_eq!(output.stdout, b"no\n");
}

#[test]
fn clients_reach_a_server_directly_and_through_a_service_without_interlock() {
    let cluster = Cluster::join();
    let space = cluster.namespace("bare");
    cluster.apply(&peers::server("bare", "server", Sdk::Py2));
    cluster.apply(&peers::agent("bare", "client", &json!({}), &json!({})));
    let server = cluster.pod_ready(&space.name, "server");
    let client = cluster.pod_ready(&space.name, "client");
    let service = cluster.service_ip(&space.name, "server");
    let script = json!([{"op": "call", "tool": "add", "args": {"a": 1, "b": 2}}]);
    for (address, kind) in [
        ((server, 8000), (Sdk::Py2, Era::Auto)),
        ((service, 80), (Sdk::Py2, Era::Auto)),
        ((service, 80), (Sdk::Py2, Era::Legacy)),
        ((service, 80), (Sdk::Py1, Era::Legacy)),
        ((service, 80), (Sdk::Ts2, Era::Auto)),
    ] {
        let agent = peers::start(&cluster, ("bare", "client"), kind, address, &script);
        agent.connected();
        assert_eq!(agent.step().text, "3", "{kind:?} at {address:?}");
    }
    assert_eq!(peers::calls(&cluster, "bare", "server"), ["add"; 5]);
    let callers = peers::callers(&cluster, "bare", "server");
    assert!(!callers.is_empty() && callers.iter().all(|caller| *caller == client.to_string()), "{callers:?}");
}
