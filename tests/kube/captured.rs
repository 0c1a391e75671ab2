//! Agents that are pods, chosen by their cgroup or by what the API says of them: their calls are seen, decided and
//! stopped, and servers still see the pods' own addresses.

use agent_tests::{Agent, Era, Sdk, Step, wait_for};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::peers;

pub(crate) const RULES: &str = "version: 1\nrules:\n  - id: no-wire-transfers\n    action: deny\n    \
                     match: {method: tools/call, tool: wire_transfer}\n    reason: payments are made by people\n";
/// Only agents are of the class Guaranteed, see [`peers::guaranteed`].
const BY_CGROUP: &str = "  - {name: coder, cgroup: \"/itest-kube/kubepods/pod*/*\"}";
pub(crate) const BY_API: &str = "  - {name: \"{namespace}/{pod}\", kubernetes: {namespaces: [agents], \
                      labels: {interlock.dev/agent: \"true\"}}}";
pub(crate) const WATCH: &str = "kubernetes: {cgroup_root: /itest-kube, unclassified: hold}";

/// A call that passes and one that a rule refuses, then one more after each line on stdin.
fn script() -> Value {
    json!([
        {"op": "call", "tool": "echo", "args": {"text": "hello"}},
        {"op": "call", "tool": "wire_transfer", "args": {"amount": 5}},
        {"op": "wait_line"},
        {"op": "call", "tool": "echo", "args": {"text": "again"}},
    ])
}

#[test]
fn calls_of_a_pod_chosen_by_cgroup_are_decided_and_stopped() {
    let cluster = Cluster::join();
    let deployment = Deployment::start(&cluster, BY_CGROUP, "", RULES);
    is_governed(&cluster, &deployment, "coder", &peers::guaranteed());
}

#[test]
fn calls_of_a_pod_chosen_by_label_are_decided_and_stopped() {
    let cluster = Cluster::join();
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    is_governed(&cluster, &deployment, "agents/client", &json!({}));
}

#[test]
fn pods_that_call_at_once_are_held_from_their_first_connection() {
    let cluster = Cluster::join();
    let _deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    cluster.apply(&peers::server("servers", "bank", Sdk::Ts2));
    let bank = (cluster.pod_ready("servers", "bank"), 8000);
    let script = json!([{"op": "call", "tool": "wire_transfer", "args": {"amount": 5}}]);
    let labels = json!({"interlock.dev/agent": "true"});
    let names: Vec<String> = (0..6).map(|n| format!("eager-{n}")).collect();
    let pods = names
        .iter()
        .map(|name| peers::eager_agent("agents", name, &labels, (Sdk::Ts2, Era::Auto), bank, &script));
    cluster.apply(&pods.collect::<Vec<_>>().join("---\n"));
    for name in &names {
        let said = wait_for("an agent to end", || {
            let pod = cluster.object("agents", &format!("pod/{name}"));
            let has_ended = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == *phase);
            has_ended.then(|| cluster.kubectl(&["--namespace", "agents", "logs", name]))
        });
        // It may have got no connection at all: then it was not known yet.
        let refused = said.contains("payments are made by people") || said.contains("\"connected\":false");
        assert!(refused, "{name}: {said}");
    }
    assert_eq!(peers::calls(&cluster, "servers", "bank"), [""; 0], "nothing slips");
}

#[test]
fn a_stop_by_label_holds_the_pods_that_have_it_and_no_others() {
    let cluster = Cluster::join();
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    for tier in ["gold", "silver"] {
        let labels = json!({"interlock.dev/agent": "true", "tier": tier});
        cluster.apply(&peers::agent("agents", tier, &labels, &json!({})));
        cluster.pod_ready("agents", tier);
    }
    let bank = (cluster.pod_ready("servers", "bank"), 8000);
    let script = json!([{"op": "call", "tool": "echo", "args": {"text": "hello"}}]);
    let passes = |pod| {
        let agent = peers::start(&cluster, ("agents", pod), (Sdk::Py2, Era::Auto), bank, &script);
        agent.tried()["connected"] == true && !agent.step().is_error
    };
    let (stop, _) = deployment.stop(&["label=tier=gold"], "refuse");
    assert_eq!((passes("gold"), passes("silver")), (false, true));
    deployment.release(&stop);
    assert!(passes("gold"));
}

/// Everything that is promised of an agent, of a pod known as `name`.
fn is_governed(cluster: &Cluster, deployment: &Deployment<'_>, name: &str, resources: &Value) {
    let _servers = cluster.namespace("servers");
    let _agents = cluster.namespace("agents");
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    let labels = json!({"interlock.dev/agent": "true"});
    cluster.apply(&peers::agent("agents", "client", &labels, resources));
    let direct = (cluster.pod_ready("servers", "bank"), 8000);
    let service = (cluster.service_ip("servers", "bank"), 80);
    let client = cluster.pod_ready("agents", "client");
    let start = |kind, address| {
        let agent = peers::start(cluster, ("agents", "client"), kind, address, &script());
        agent.connected();
        agent
    };
    for kind in [(Sdk::Py2, Era::Auto), (Sdk::Py2, Era::Legacy), (Sdk::Ts2, Era::Auto)] {
        for address in [direct, service] {
            let mut agent = start(kind, address);
            is_decided(&agent);
            agent.go();
            assert!(agent.rest().iter().all(|step| step.ok), "{kind:?}");
        }
    }
    let decision = deployment.records().decision("wire_transfer", "deny");
    assert_eq!(
        (&decision["agent"], &decision["rules"]),
        (&json!(name), &json!(["no-wire-transfers"])),
        "{decision}"
    );
    let agents = deployment.run(&["agents"]);
    assert!(agents.json.to_string().contains(&format!("\"{name}\"")), "{agents:?}");

    // Refused calls have not reached the server, and those that have come from the pod itself.
    assert!(!peers::calls(cluster, "servers", "bank").contains(&"wire_transfer".to_owned()));
    let callers = peers::callers(cluster, "servers", "bank");
    assert!(!callers.is_empty() && callers.iter().all(|caller| *caller == client.to_string()), "{callers:?}");

    let mut agent = start((Sdk::Py2, Era::Auto), service);
    is_decided(&agent);
    let before = peers::calls(cluster, "servers", "bank").len();
    let (stop, _) = deployment.stop(&[&format!("agent={name}")], "isolate");
    agent.go();
    // Its SDK may end the session instead.
    let passed = |step: &Step| step.ok && step.line["op"] == "call";
    assert!(!agent.rest().iter().any(passed), "nothing passes a stop");
    let late = peers::start(cluster, ("agents", "client"), (Sdk::Py2, Era::Auto), direct, &script());
    assert_eq!(late.tried()["connected"], false, "nobody connects past a stop");
    assert_eq!(peers::calls(cluster, "servers", "bank").len(), before);
    deployment.release(&stop);
    is_decided(&start((Sdk::Py2, Era::Auto), service));
}

/// The first two calls of the script.
fn is_decided(agent: &Agent) {
    let (echo, transfer) = (agent.step(), agent.step());
    assert_eq!((echo.ok, &*echo.text), (true, "hello"), "{echo:?}");
    assert!(transfer.is_error && transfer.text.contains("payments are made by people"), "{transfer:?}");
}
