//! What makes the node one that runs pods: containerd with a network for them, the kubelet, and kube-proxy for Services.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::certs::{Certs, kubeconfig};
use super::files::Files;
use super::hierarchy;
use super::images;
use super::node::{self, Node, wait_for};

/// Pods' addresses.
const PODS: &str = "10.80.0.0/24";
/// In the node's private folder: a short path, as a socket's must be.
const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// Starts containerd and brings the images into it.
pub(super) fn start_containerd(node: &Node, files: &Files) -> anyhow::Result<()> {
    let cni = files.run().join("cni");
    fs::create_dir_all(&cni).context("make the folder for the pods' network")?;
    // A wire per pod and no bridge: so answers to a Service pass the node, and it can translate them back, also where
    // the kernel does not filter on bridges.
    let network = json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }],
    });
    write(&cni.join("10-pods.conflist"), &network.to_string())?;
    let config = files.run().join("containerd.toml");
    let text = format!(
        "version = 2\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\n\
         [grpc]\naddress = \"{CONTAINERD}\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"{pause}\"\nrestrict_oom_score_adj = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"{bin}\"\nconf_dir = \"{cni}\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"overlayfs\"\n",
        pause = images::BUSYBOX,
        bin = files.debian().join("usr/lib/cni").display(),
        cni = cni.display(),
    );
    write(&config, &text)?;
    let log = files.log("containerd");
    let args = ["-c", &config.display().to_string(), "-l", "warn"].map(str::to_owned);
    let mut child = node.run("containerd", &args, &log)?;
    wait_for("containerd", Duration::from_secs(20), || {
        ensure!(child.try_wait()?.is_none(), "it ended, see {}", log.display());
        Ok(ctr(files, &["version"]).is_ok())
    })?;
    for tar in images::all(files).iter().filter(|tar| tar.exists()) {
        load(files, tar)?;
    }
    Ok(())
}

/// Brings an image into the running cluster.
pub(super) fn load(files: &Files, tar: &Path) -> anyhow::Result<()> {
    ctr(files, &["--namespace=k8s.io", "images", "import", &tar.display().to_string()])
}

fn ctr(files: &Files, args: &[&str]) -> anyhow::Result<()> {
    let mut ctr = Command::new(files.enter());
    let output = ctr.args(["ctr", "--address", CONTAINERD]).args(args).output().context("run ctr")?;
    ensure!(output.status.success(), "ctr {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Starts the kubelet and kube-proxy, and waits until the node is ready.
pub(super) fn start(node: &Node, files: &Files, certs: &Certs) -> anyhow::Result<()> {
    let mut kubelet = kubelet(node, files, certs)?;
    let mut proxy = proxy(node, files, certs)?;
    wait_for("the node to be ready", Duration::from_secs(60), || {
        for (name, child) in [("kubelet", &mut kubelet), ("kube-proxy", &mut proxy)] {
            ensure!(child.try_wait()?.is_none(), "{name} ended, see {}", files.log(name).display());
        }
        let path = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
        let answer = Command::new(files.kubectl()).args(["get", "nodes", "-o", path]).output()?;
        Ok(answer.stdout == b"True")
    })
}

fn kubelet(node: &Node, files: &Files, certs: &Certs) -> anyhow::Result<std::process::Child> {
    let resolver = files.run().join("resolv.conf");
    write(&resolver, "# no DNS in this cluster: a name is refused at once\n")?;
    fs::create_dir_all(files.static_pods()).context("make the folder for static pods")?;
    let config = files.run().join("kubelet.json");
    let settings = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "x509": {"clientCAFile": certs.path("ca.crt")},
        },
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", hierarchy::PODS),
        "failSwapOn": false,
        "resolvConf": resolver,
        "staticPodPath": files.static_pods(),
        "volumePluginDir": files.run().join("volume-plugins"),
        "imageGCHighThresholdPercent": 100,
        // The disk of whoever runs tests is nobody's business.
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        // Tests wait for what by default takes a minute: a changed ConfigMap in a pod, a ready node.
        "syncFrequency": "2s",
        "nodeStatusUpdateFrequency": "2s",
    });
    write(&config, &settings.to_string())?;
    let args = [
        format!("--kubeconfig={}", kubeconfig(&certs.dir, "kubelet").display()),
        format!("--config={}", config.display()),
        format!("--cert-dir={}", files.run().join("made-certs").display()),
        "--container-runtime=remote".to_owned(),
        format!("--container-runtime-endpoint=unix://{CONTAINERD}"),
        format!("--hostname-override={}", node::NAME),
        format!("--node-ip={}", node::ADDRESS),
        format!("--pod-infra-container-image={}", images::BUSYBOX),
    ];
    node.run("kubelet", &args, &files.log("kubelet"))
}

fn proxy(node: &Node, files: &Files, certs: &Certs) -> anyhow::Result<std::process::Child> {
    let config = files.run().join("proxy.json");
    let settings = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig(&certs.dir, "proxy")},
        "hostnameOverride": node::NAME,
        "mode": "iptables",
        "clusterCIDR": PODS,
        "bindAddress": "0.0.0.0",
        // Limits of the whole kernel, which a namespace may not set.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
    });
    write(&config, &settings.to_string())?;
    node.run("kube-proxy", &[format!("--config={}", config.display())], &files.log("kube-proxy"))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
