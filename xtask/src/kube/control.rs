//! The control plane: etcd, the API server, the controllers and the scheduler.

use std::process::Child;
use std::time::Duration;

use anyhow::ensure;

use super::certs::{Certs, kubeconfig};
use super::files::Files;
use super::node::{self, Node, wait_for};

/// Starts it, and waits until the API server is ready.
pub(super) fn start(node: &Node, files: &Files, certs: &Certs) -> anyhow::Result<()> {
    let mut etcd = etcd(node, files)?;
    let mut api = api_server(node, files, certs)?;
    wait_for("the API server", Duration::from_secs(60), || {
        for (name, child) in [("etcd", &mut etcd), ("kube-apiserver", &mut api)] {
            ensure!(child.try_wait()?.is_none(), "{name} ended, see {}", files.log(name).display());
        }
        let answer =
            std::process::Command::new(files.kubectl()).args(["get", "--raw", "/readyz"]).output()?;
        Ok(answer.stdout == b"ok")
    })?;
    let config = |client| format!("--kubeconfig={}", kubeconfig(&certs.dir, client).display());
    let own_certs = format!("--cert-dir={}", files.run().join("made-certs").display());
    let controllers = [
        config("controller-manager"),
        own_certs.clone(),
        certs.flag("service-account-private-key-file", "sa.key"),
        certs.flag("root-ca-file", "ca.crt"),
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect=false".to_owned(),
        "--port=0".to_owned(),
        BOUND_TOKENS.to_owned(),
    ];
    run(node, files, "kube-controller-manager", &controllers)?;
    let scheduler =
        [config("scheduler"), own_certs, "--leader-elect=false".to_owned(), "--port=0".to_owned()];
    run(node, files, "kube-scheduler", &scheduler)?;
    Ok(())
}

/// Tokens that expire and are bound to their pod, with the CA beside them: the default of later versions.
const BOUND_TOKENS: &str = "--feature-gates=BoundServiceAccountTokenVolume=true";

fn etcd(node: &Node, files: &Files) -> anyhow::Result<Child> {
    let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    let args = [
        format!("--data-dir={}", files.run().join("etcd").display()),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        // Nothing of it has to survive the machine.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    run(node, files, "etcd", &args)
}

fn api_server(node: &Node, files: &Files, certs: &Certs) -> anyhow::Result<Child> {
    let mut args = vec![
        certs.flag("tls-cert-file", "server.crt"),
        certs.flag("tls-private-key-file", "server.key"),
        certs.flag("client-ca-file", "ca.crt"),
        certs.flag("kubelet-client-certificate", "api-to-kubelet.crt"),
        certs.flag("kubelet-client-key", "api-to-kubelet.key"),
        certs.flag("service-account-key-file", "sa.key"),
        certs.flag("service-account-signing-key-file", "sa.key"),
        format!("--advertise-address={}", node::ADDRESS),
    ];
    let fixed = [
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        "--service-account-issuer=https://kubernetes",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        BOUND_TOKENS,
    ];
    args.extend(fixed.map(str::to_owned));
    run(node, files, "kube-apiserver", &args)
}

fn run(node: &Node, files: &Files, program: &str, args: &[String]) -> anyhow::Result<Child> {
    node.run(program, args, &files.log(program))
}
