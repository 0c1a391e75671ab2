//! The running cluster, as its administrator and as the root of its only node.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use agent_tests::process::Process;
use agent_tests::wait::within;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a pod on a loaded machine of two cores.
const POD_DEADLINE: Duration = Duration::from_secs(60);

/// The cluster that is up.
pub(crate) struct Cluster {
    /// What xtask keeps of it: scripts that enter it, logs, the node's private folders.
    run: PathBuf,
    dir: TempDir,
}

impl Cluster {
    /// Finds it.
    pub(crate) fn join() -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
        let run = target.join("kube/run");
        assert!(run.join("kubectl").exists(), "no cluster is up (run `cargo xtask kube up` first)");
        Self { run, dir: tempfile::tempdir().expect("a temporary folder") }
    }

    /// A folder of the test's own.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A folder or file of the node: what pods have as `hostPath`. Only those that the cluster has its own of.
    pub(crate) fn node_path(&self, path: &str) -> PathBuf {
        self.run.join("node").join(path.trim_start_matches('/'))
    }

    /// A command in the node's network and mount namespace (for a Prometheus that scrapes pods, say).
    pub(crate) fn enter(&self, command: &[&str]) -> Command {
        let mut enter = Command::new(self.run.join("enter"));
        enter.args(command);
        enter
    }

    /// How its administrator reaches it, from the node's network namespace.
    pub(crate) fn admin(&self) -> PathBuf {
        self.run.join("certs/admin.kubeconfig")
    }

    /// A command of whoever has the administrator's KUBECONFIG, in the node's namespaces.
    pub(crate) fn as_operator(&self, command: &[&str]) -> Command {
        let config = format!("KUBECONFIG={}", self.admin().display());
        self.enter(&[&["env", &*config], command].concat())
    }

    fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut kubectl = Command::new(self.run.join("kubectl"));
        kubectl.args(args);
        kubectl
    }

    /// Runs kubectl, whatever comes of it.
    pub(crate) fn try_kubectl(&self, args: &[&str]) -> Output {
        self.kubectl_command(args).output().expect("run kubectl")
    }

    /// Runs kubectl; answers what it prints.
    #[track_caller]
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        let output = self.try_kubectl(args);
        assert!(
            output.status.success(),
            "kubectl {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("kubectl prints text")
    }

    /// Applies objects. This API server is older than some fields of our manifests: it drops what it does not know, and
    /// kubectl is told not to mind.
    #[track_caller]
    pub(crate) fn apply(&self, yaml: &str) {
        let mut kubectl = self
            .kubectl_command(&["apply", "--validate=ignore", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("run kubectl");
        kubectl.stdin.take().expect("piped").write_all(yaml.as_bytes()).expect("hand kubectl the objects");
        assert!(kubectl.wait().expect("wait for kubectl").success(), "apply {yaml}");
    }

    /// An object of the API.
    pub(crate) fn object(&self, namespace: &str, what: &str) -> Value {
        let text = self.kubectl(&["--namespace", namespace, "get", what, "-o", "json"]);
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    /// Waits until a pod is ready; answers its address.
    #[track_caller]
    pub(crate) fn pod_ready(&self, namespace: &str, pod: &str) -> IpAddr {
        let what = format!("pod/{pod}");
        let ready = within(POD_DEADLINE, || {
            let pod = self.try_kubectl(&["--namespace", namespace, "get", &what, "-o", "json"]);
            let pod: Value = serde_json::from_slice(&pod.stdout).ok()?;
            let conditions = pod["status"]["conditions"].as_array()?;
            conditions.iter().find(|it| it["type"] == "Ready" && it["status"] == "True")?;
            pod["status"]["podIP"].as_str()?.parse().ok()
        });
        ready.unwrap_or_else(|| panic!("{}", self.describe(namespace, &what)))
    }

    /// The address of a Service.
    pub(crate) fn service_ip(&self, namespace: &str, name: &str) -> IpAddr {
        let service = self.object(namespace, &format!("service/{name}"));
        service["spec"]["clusterIP"]
            .as_str()
            .and_then(|ip| ip.parse().ok())
            .expect("a Service has an address")
    }

    /// What a person would look at when something does not start.
    pub(crate) fn describe(&self, namespace: &str, what: &str) -> String {
        let words = |args: &[&str]| {
            let output = self.try_kubectl(&[&["--namespace", namespace], args].concat());
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
        };
        let (described, logs) =
            (words(&["describe", what]), words(&["logs", what, "--tail=30", "--all-containers"]));
        format!("{described}\nlogs of {what}:\n{logs}")
    }

    /// Runs a command in a pod, whatever comes of it.
    pub(crate) fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Output {
        self.try_kubectl(&[&["--namespace", namespace, "exec", pod, "--"], command].concat())
    }

    /// Starts a command in a pod: a process of that pod's, whose input and output are here.
    pub(crate) fn start(&self, namespace: &str, pod: &str, command: &[String]) -> Process {
        let mut kubectl = self.kubectl_command(&["--namespace", namespace, "exec", "--stdin", pod, "--"]);
        kubectl.args(command);
        Process::spawn(pod, kubectl, self.dir())
    }

    /// Makes a namespace, which goes with its guard.
    pub(crate) fn namespace(&self, name: &str) -> Namespace<'_> {
        self.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}"));
        Namespace { cluster: self, name: name.to_owned() }
    }

    /// Gives the kubelet a pod of its own, of which it tells the API server; it goes with its guard.
    pub(crate) fn static_pod(&self, manifest: &str) -> StaticPod {
        let file = self.run.join("static-pods/pod.yaml");
        fs::write(&file, manifest).unwrap_or_else(|error| panic!("write {}: {error}", file.display()));
        StaticPod { file }
    }

    /// Stops the API server where it is, until the guard is dropped: it takes connections and says nothing. No kubectl
    /// may be run meanwhile: it would wait.
    pub(crate) fn freeze_api_server(&self) -> Frozen {
        let [api_server] = self.processes("kube-apiserver --")[..] else { panic!("there is one API server") };
        kill(api_server, Signal::SIGSTOP).expect("stop the API server");
        Frozen(api_server)
    }

    /// The processes of the cluster and of its pods that were started with these words.
    pub(crate) fn processes(&self, words: &str) -> Vec<Pid> {
        let is_one = |entry: &Path| {
            let read = |file: &str| fs::read_to_string(entry.join(file)).unwrap_or_default();
            read("cgroup").contains("/itest-kube") && read("cmdline").replace('\0', " ").contains(words)
        };
        let all = fs::read_dir("/proc").expect("/proc is mounted").flatten().map(|entry| entry.path());
        let found = all.filter(|entry| is_one(entry));
        found.filter_map(|entry| entry.file_name()?.to_str()?.parse().ok().map(Pid::from_raw)).collect()
    }

    /// What the only container of a pod has said, in lines, as the node keeps it.
    pub(crate) fn log_on_node(&self, namespace: &str, pod: &str) -> Vec<String> {
        let named = format!("{namespace}_{pod}_");
        let folders = fs::read_dir(self.node_path("/var/log/pods")).into_iter().flatten().flatten();
        let of_pod = folders.filter(|folder| folder.file_name().to_string_lossy().starts_with(&named));
        let logs = of_pod.filter_map(|folder| fs::read_to_string(folder.path().join("main/0.log")).ok());
        // `TIME stdout F LINE`.
        let said = |line: &str| line.splitn(4, ' ').nth(3).map(str::to_owned);
        logs.flat_map(|log| log.lines().filter_map(said).collect::<Vec<_>>()).collect()
    }

    /// Removes all that is in a folder of the node.
    pub(crate) fn clear(&self, path: &str) {
        let folder = self.node_path(path);
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.unwrap_or_else(|error| panic!("remove {}: {error}", path.display()));
        }
    }
}

/// A pod from a file on the node.
pub(crate) struct StaticPod {
    file: PathBuf,
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// An API server that does not run. It goes on when this is dropped.
pub(crate) struct Frozen(Pid);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// A namespace of a test's own.
pub(crate) struct Namespace<'a> {
    cluster: &'a Cluster,
    pub(crate) name: String,
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        // Pods first and at once: a namespace waits for their grace periods otherwise.
        let pods = ["--namespace", &self.name, "delete", "pods", "--all", "--grace-period=0", "--force"];
        self.cluster.try_kubectl(&pods);
        self.cluster.try_kubectl(&["delete", "namespace", &self.name, "--timeout=60s"]);
    }
}
