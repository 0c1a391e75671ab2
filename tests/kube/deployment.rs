//! interlock in the cluster, from the manifests in `deploy/kubernetes`, with what only a test changes laid over them:
//! the image, what it attaches to, the configuration and the rules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_tests::cli::Answer;
use agent_tests::records::Records;
use serde_json::{Value, json};

use crate::cluster::Cluster;

const NAMESPACE: &str = "interlock";
/// The cgroup of this machine that has all pods in it.
const PODS: &str = "/itest-kube";
/// Folders of the node that it writes to, and that outlive its pods.
const STATE: [&str; 3] = ["/var/lib/interlock", "/var/log/interlock", "/run/interlock"];

/// interlock on every node (there is one); removed, with its state and its pins, when dropped.
pub(crate) struct Deployment<'a> {
    cluster: &'a Cluster,
    overlay: PathBuf,
    /// What of `deploy/kubernetes` it is.
    manifests: &'static str,
    config: String,
}

impl<'a> Deployment<'a> {
    /// Deploys the base with these agents (lines of YAML) and more lines of configuration, and waits until its pod is ready.
    pub(crate) fn start(cluster: &'a Cluster, agents: &str, more: &str, rules: &str) -> Self {
        let config = format!(
            "version: 1\nattach: [{PODS}]\nagents:\n{agents}\nrules: /etc/interlock/rules.yaml\n\
             state_dir: /var/lib/interlock\nruntime_dir: /run/interlock\npin_dir: /sys/fs/bpf/interlock\n\
             records: {{path: /var/log/interlock/records.jsonl, arguments: digest}}\nmetrics_addr: 0.0.0.0:9464\n\
             evidence_window: 3s\n{more}\n"
        );
        Self::deploy(cluster, "base", config, Some(rules))
    }

    /// Deploys what is in this folder of `deploy/kubernetes`, with its own rules; and its own configuration, but for where
    /// the cgroups of pods are.
    pub(crate) fn as_given(cluster: &'a Cluster, manifests: &'static str) -> Self {
        let config = fs::read_to_string(given().join("base/config.yaml")).expect("the configuration");
        let mut config: Value = serde_saphyr::from_str(&config).expect("YAML");
        config["attach"] = json!([PODS]);
        config["kubernetes"]["cgroup_root"] = PODS.into();
        Self::deploy(cluster, manifests, config.to_string(), None)
    }

    fn deploy(cluster: &'a Cluster, manifests: &'static str, config: String, rules: Option<&str>) -> Self {
        let overlay = cluster.dir().join("overlay");
        fs::create_dir_all(&overlay).expect("make a folder");
        let copied = Command::new("cp").arg("-a").arg(given()).arg(&overlay).status().expect("run cp");
        assert!(copied.success());
        let deployment = Self { cluster, overlay, manifests, config };
        deployment.remove_state();
        deployment.apply_with(rules);
        deployment.ready();
        deployment
    }

    /// Applies the manifests with these rules; the pod that runs sees them soon.
    pub(crate) fn apply(&self, rules: &str) {
        self.apply_with(Some(rules));
    }

    fn apply_with(&self, rules: Option<&str>) {
        fs::write(self.overlay.join("kustomization.yaml"), self.kustomization(rules).to_string())
            .expect("write the kustomization");
        let overlay = self.overlay.display().to_string();
        self.cluster.kubectl(&["apply", "--validate=ignore", "-k", &overlay]);
    }

    fn kustomization(&self, rules: Option<&str>) -> Value {
        let mut map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "interlock", "namespace": NAMESPACE},
            "data": {"config.yaml": self.config},
        });
        if let Some(rules) = rules {
            map["data"]["rules.yaml"] = rules.into();
        }
        // A pod with a configuration of its own is another pod: a changed one rolls out.
        let pods = json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "interlock", "namespace": NAMESPACE},
            "spec": {"template": {
                "metadata": {"annotations": {"interlock.test/config": self.config}},
            }},
        });
        json!({
            "resources": [format!("kubernetes/{}", self.manifests)],
            "images": [{"name": "interlock", "newName": "localhost/interlock", "newTag": "test"}],
            "patches": [{"patch": map.to_string()}, {"patch": pods.to_string()}],
        })
    }

    /// Waits until every pod of it is the newest and ready. On a loaded machine this kubelet may take more than a minute to
    /// see that the one before has ended.
    #[track_caller]
    pub(crate) fn ready(&self) {
        let args = ["--namespace", NAMESPACE, "rollout", "status", "daemonset/interlock", "--timeout=150s"];
        let output = self.cluster.try_kubectl(&args);
        assert!(output.status.success(), "{}", self.cluster.describe(NAMESPACE, "daemonset/interlock"));
    }

    /// Replaces its pods, one after the other, and waits.
    pub(crate) fn roll_out(&self) {
        self.cluster.kubectl(&["--namespace", NAMESPACE, "rollout", "restart", "daemonset/interlock"]);
        self.ready();
    }

    /// The name of its pod.
    pub(crate) fn pod(&self) -> String {
        let all = self.cluster.object(NAMESPACE, "pods");
        let pods = all["items"].as_array().expect("a list of pods").iter();
        // The controller has a pod of its own there.
        let is_own = |pod: &&Value| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "interlock";
        let mut living = pods.filter(is_own).filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        living.next().and_then(|pod| pod["metadata"]["name"].as_str()).expect("it has a pod").to_owned()
    }

    /// Runs a command of `interlock` in its pod, as an operator with kubectl would.
    pub(crate) fn run(&self, args: &[&str]) -> Answer {
        let command = [&["/usr/local/bin/interlock", "--json"], args].concat();
        let output = self.cluster.exec(NAMESPACE, "daemonset/interlock", &command);
        Answer {
            code: output.status.code().expect("kubectl ends by itself"),
            json: serde_json::from_slice(&output.stdout).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Stops what `selectors` name; answers the stop's id and the whole answer.
    #[track_caller]
    pub(crate) fn stop(&self, selectors: &[&str], level: &str) -> (String, Answer) {
        let tail = ["--level", level, "--reason", "a test says so", "--wait", "5s"];
        let answer = self.run(&[&["stop"], selectors, &tail].concat());
        assert!(matches!(answer.code, 0 | 3), "{answer:?}");
        assert_eq!(answer.json["in_force"], true, "{answer:?}");
        let id = answer.json["stop"]["id"].as_str().expect("a stop has an id").to_owned();
        (id, answer)
    }

    /// Releases a stop.
    #[track_caller]
    pub(crate) fn release(&self, id: &str) {
        let answer = self.run(&["release", id, "--reason", "the test is over"]);
        assert_eq!(answer.code, 0, "{answer:?}");
    }

    /// The records, on the node.
    pub(crate) fn records(&self) -> Records {
        Records::new(self.cluster.node_path("/var/log/interlock/records.jsonl"))
    }

    fn remove_state(&self) {
        for folder in STATE {
            self.cluster.clear(folder);
        }
        let unpin = self.cluster.enter(&["rm", "-rf", "/sys/fs/bpf/interlock"]).status();
        assert!(unpin.is_ok_and(|status| status.success()), "the pins are removed");
    }
}

impl Drop for Deployment<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.cluster.describe(NAMESPACE, "daemonset/interlock"));
        }
        let overlay = self.overlay.display().to_string();
        // As long as `ready` waits, for the same reason: the next one cannot begin before its namespace has gone.
        self.cluster.try_kubectl(&["delete", "-k", &overlay, "--ignore-not-found", "--timeout=150s"]);
        self.remove_state();
    }
}

/// The manifests that are shipped.
pub(crate) fn given() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes")
}
