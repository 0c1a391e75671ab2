//! The overlays as they are shipped, but for where this machine has the cgroups of pods.

use std::fs;
use std::path::Path;

use agent_tests::agent::call;
use agent_tests::records::rules;
use agent_tests::{Era, Sdk, wait_for};
use serde_json::{Map, Value, json};

use crate::cluster::Cluster;
use crate::deployment::{Deployment, given};
use crate::node::agent_and_bank;
use crate::peers;
use crate::prometheus::Prometheus;

#[test]
fn observe_lets_pass_what_its_rules_would_refuse_and_says_so() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let bank = (agent_and_bank(&cluster), 80);
    let deployment = Deployment::as_given(&cluster, "overlays/observe");
    let script = json!([call("wire_transfer", json!({"amount": 5}))]);
    let start = || peers::start(&cluster, ("agents", "client"), (Sdk::Py2, Era::Auto), bank, &script);
    let client = start();
    client.connected();
    let step = client.step();
    assert!(step.ok && !step.is_error, "{step:?}");
    let would = deployment.records().decision("wire_transfer", "would_deny");
    // Of a tool that was not listed nobody has said that it destroys nothing.
    let expect = vec!["would-be-destructive", "would-be-unlisted"];
    assert_eq!((&would["agent"], rules(&would)), (&json!("agents/client"), expect));
    assert_eq!(peers::calls(&cluster, "servers", "bank"), ["wire_transfer"]);

    // What is observed are rules. A stop is none.
    let (stop, _) = deployment.stop(&["agent=agents/client"], "isolate");
    assert_eq!(start().tried()["connected"], false);
    deployment.release(&stop);
    start().connected();
}

/// What the Prometheus Operator makes of the two objects is made here: there is no operator.
#[test]
fn monitoring_has_a_prometheus_find_the_daemon_and_raise_its_alerts() {
    let cluster = Cluster::join();
    let _definitions = Definitions::apply(&cluster);
    let _deployment = Deployment::as_given(&cluster, "overlays/monitoring");
    let [monitor, alerts] = ["podmonitor", "prometheusrule"].map(|kind| {
        let taken = cluster.object("interlock", &format!("{kind}/interlock"))["spec"].take();
        let file = given().join(format!("components/prometheus-operator/{kind}.yaml"));
        let given: Value =
            serde_saphyr::from_str(&fs::read_to_string(&file).expect("a manifest")).expect("YAML");
        assert_eq!(taken, given["spec"], "nothing is dropped");
        taken
    });

    let labels = monitor["selector"]["matchLabels"].as_object().expect("labels");
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={}", text(value))).collect();
    let all = ["--namespace", "interlock", "get", "pods", "-o", "json", "--selector", &pairs.join(",")];
    let pods: Value = serde_json::from_str(&cluster.kubectl(&all)).expect("kubectl prints JSON");
    let [pod] = &pods["items"].as_array().expect("a list")[..] else { panic!("the daemon's alone: {pods}") };
    let [endpoint] = &monitor["podMetricsEndpoints"].as_array().expect("endpoints")[..] else {
        panic!("{monitor}")
    };
    let ports = pod["spec"]["containers"][0]["ports"].as_array().expect("ports");
    let port = ports.iter().find(|port| port["name"] == endpoint["port"]).expect("the daemon has the port");
    let job = json!({
        "job_name": "podMonitor/interlock/interlock/0",
        "static_configs": [{
            "targets": [format!("{}:{}", text(&pod["status"]["podIP"]), port["containerPort"])],
            "labels": {"__meta_kubernetes_pod_node_name": pod["spec"]["nodeName"]},
        }],
        "relabel_configs": endpoint["relabelings"].as_array().expect("relabelings").iter().map(snake_case)
            .collect::<Vec<_>>(),
    });
    let file = cluster.dir().join("alerts.yaml");
    fs::write(&file, alerts.to_string()).expect("write the rules");
    let prometheus = Prometheus::with_job(&cluster, &job, Some(&file));
    let up = wait_for("a scrape", || {
        let up = prometheus.get("query?query=up")?["data"]["result"].get(0)?.clone();
        (up["value"][1] == "1").then_some(up)
    });
    // What the alerts rest on.
    assert_eq!((&up["metric"]["job"], &up["metric"]["node"]), (&json!("interlock"), &json!("node1")));
    let given = alerts["groups"].as_array().expect("groups").iter();
    let given = given.map(|group| group["rules"].as_array().map_or(0, Vec::len)).sum::<usize>();
    assert!(given > 5, "{alerts}");
    // One that was looked at before the first scrape is no longer pending, either.
    wait_for("each alert to be looked at, and none to be due", || {
        let groups = prometheus.get("rules")?["data"]["groups"].take();
        let rules: Vec<&Value> =
            groups.as_array()?.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
        let is_well = |rule: &&Value| rule["health"] == "ok" && rule["state"] == "inactive";
        (rules.len() == given && rules.iter().all(is_well)).then_some(())
    });
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// A relabeling with the names that Prometheus has for its fields.
fn snake_case(relabeling: &Value) -> Value {
    let name = |camel: &String| -> String {
        let letters = camel.chars().map(|letter| match letter {
            'A'..='Z' => format!("_{}", letter.to_ascii_lowercase()),
            _ => letter.to_string(),
        });
        letters.collect()
    };
    let fields = relabeling.as_object().expect("an object").iter();
    fields.map(|(camel, value)| (name(camel), value.clone())).collect::<Map<_, _>>().into()
}

/// Definitions of the two kinds, in place of the operator's own, which no package of a registry that the tests use carries:
/// with the fields that `deploy/` uses, typed as the operator's are. What is not in them the API server drops.
struct Definitions<'a> {
    cluster: &'a Cluster,
    file: String,
}

impl<'a> Definitions<'a> {
    fn apply(cluster: &'a Cluster) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/prometheus_operator.json");
        let definitions = Self { cluster, file: file.display().to_string() };
        cluster.kubectl(&["apply", "-f", &definitions.file]);
        cluster.kubectl(&["wait", "--for=condition=Established", "-f", &definitions.file, "--timeout=30s"]);
        definitions
    }
}

impl Drop for Definitions<'_> {
    fn drop(&mut self) {
        self.cluster.try_kubectl(&["delete", "-f", &self.file, "--timeout=60s"]);
    }
}
