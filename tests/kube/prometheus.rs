//! A real Prometheus on the node, which scrapes interlock. Debian's is built without discovery in clusters, so it is told the
//! address that it would find, and the labels that `podmonitor.yaml` gives.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use agent_tests::process::Process;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::deployment::Deployment;

const ADDRESS: &str = "127.0.0.1:9090";
/// A query takes a process; a scrape a second.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// One that runs.
pub(crate) struct Prometheus<'a> {
    cluster: &'a Cluster,
    _process: Process,
}

impl<'a> Prometheus<'a> {
    /// Scrapes `target` each second, and looks at these alerting rules as often.
    pub(crate) fn start(cluster: &'a Cluster, target: &str, rules: Option<&Path>) -> Self {
        let labels = json!({"node": "node1"});
        let job = json!({
            "job_name": "interlock", "static_configs": [{"targets": [target], "labels": labels}],
        });
        Self::with_job(cluster, &job, rules)
    }

    /// Scrapes as this job says.
    pub(crate) fn with_job(cluster: &'a Cluster, job: &Value, rules: Option<&Path>) -> Self {
        let config = cluster.dir().join("prometheus.yml");
        let text = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": rules.into_iter().collect::<Vec<_>>(),
            "scrape_configs": [job],
        });
        fs::write(&config, text.to_string()).expect("write the configuration of Prometheus");
        let [config, data] = [config, cluster.dir().join("tsdb")].map(|path| path.display().to_string());
        let prometheus = cluster.enter(&[
            "prometheus",
            &format!("--config.file={config}"),
            &format!("--storage.tsdb.path={data}"),
            &format!("--web.listen-address={ADDRESS}"),
        ]);
        Self { cluster, _process: Process::spawn("prometheus", prometheus, cluster.dir()) }
    }

    /// What its API answers, once it does.
    pub(crate) fn get(&self, what: &str) -> Option<Value> {
        thread::sleep(ASK_EVERY);
        let url = format!("http://{ADDRESS}/api/v1/{what}");
        let output = self.cluster.enter(&["busybox", "wget", "-qO-", &url]).output().expect("run wget");
        serde_json::from_slice(&output.stdout).ok()
    }
}

/// Where the annotations of interlock's pod say that its metrics are.
pub(crate) fn target(cluster: &Cluster, deployment: &Deployment<'_>) -> String {
    let pod = cluster.object("interlock", &format!("pod/{}", deployment.pod()));
    let (address, annotations) = (pod["status"]["podIP"].as_str(), &pod["metadata"]["annotations"]);
    assert_eq!(annotations["prometheus.io/scrape"], "true");
    let port = annotations["prometheus.io/port"].as_str().expect("the pod says where its metrics are");
    format!("{}:{port}", address.expect("a running pod has an address"))
}
