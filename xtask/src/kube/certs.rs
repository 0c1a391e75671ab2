//! The certificates of a cluster, made by openssl: a CA, one for the API server, and one for each of its clients. They are
//! of one run only.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::node;

/// The address under which pods know the API server: the first of the range of Services.
const SERVICE: &str = "10.96.0.1";

/// Clients of the API server, each with the user and the group that RBAC knows it by.
const CLIENTS: [(&str, &str, &str); 6] = [
    ("admin", "admin", "system:masters"),
    ("api-to-kubelet", "api-to-kubelet", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", "interlock"),
    ("scheduler", "system:kube-scheduler", "interlock"),
    ("kubelet", "system:node:node1", "system:nodes"),
    ("proxy", "system:kube-proxy", "interlock"),
];

/// A folder with `ca`, `server`, `sa` and one per client, each `.crt` and `.key`, and a `.kubeconfig` per client.
pub(super) struct Certs {
    pub(super) dir: PathBuf,
}

impl Certs {
    pub(super) fn make(dir: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        let certs = Self { dir };
        certs.issue("ca", "itest-kube", "interlock", "basicConstraints = critical,CA:TRUE", None)?;
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"];
        let names = names.map(|name| format!("DNS:{name}")).join(",");
        let server = format!(
            "extendedKeyUsage = serverAuth\nsubjectAltName = {names},IP:{SERVICE},IP:{},IP:127.0.0.1",
            node::ADDRESS
        );
        certs.issue("server", "kubernetes", "interlock", &server, Some("ca"))?;
        for (name, user, group) in CLIENTS {
            certs.issue(name, user, group, "extendedKeyUsage = clientAuth", Some("ca"))?;
            certs.kubeconfig(name)?;
        }
        // Signs the tokens of service accounts.
        openssl(Command::new("openssl").args(["genrsa", "-out"]).arg(certs.path("sa.key")).arg("2048"))?;
        Ok(certs)
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// `--flag=path`, as every program of Kubernetes takes it.
    pub(super) fn flag(&self, flag: &str, file: &str) -> String {
        format!("--{flag}={}", self.path(file).display())
    }

    fn issue(&self, name: &str, cn: &str, group: &str, more: &str, ca: Option<&str>) -> anyhow::Result<()> {
        let constraints = if ca.is_some() { "basicConstraints = critical,CA:FALSE\n" } else { "" };
        let config = self.path(&format!("{name}.cnf"));
        let text = format!(
            "[req]\ndistinguished_name = name\nx509_extensions = more\nprompt = no\n[name]\nO = {group}\nCN = {cn}\n\
             [more]\n{constraints}{more}\n"
        );
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let mut req = Command::new("openssl");
        req.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "30",
        ]);
        req.arg("-config").arg(config);
        req.arg("-keyout").arg(self.path(&format!("{name}.key")));
        req.arg("-out").arg(self.path(&format!("{name}.crt")));
        if let Some(ca) = ca {
            req.arg("-CA")
                .arg(self.path(&format!("{ca}.crt")))
                .arg("-CAkey")
                .arg(self.path(&format!("{ca}.key")));
        }
        openssl(&mut req)
    }

    fn kubeconfig(&self, name: &str) -> anyhow::Result<()> {
        let file = |extension: &str| self.path(&format!("{name}.{extension}")).display().to_string();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: itest\n\
             contexts: [{{name: itest, context: {{cluster: itest, user: {name}}}}}]\n\
             clusters: [{{name: itest, cluster: {{server: \"https://{}:6443\", certificate-authority: \"{}\"}}}}]\n\
             users: [{{name: {name}, user: {{client-certificate: \"{}\", client-key: \"{}\"}}}}]\n",
            node::ADDRESS,
            self.path("ca.crt").display(),
            file("crt"),
            file("key"),
        );
        fs::write(file("kubeconfig"), text).context("write a kubeconfig")
    }
}

fn openssl(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().context("run openssl")?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// The kubeconfig of a client.
pub(super) fn kubeconfig(certs: &Path, client: &str) -> PathBuf {
    certs.join(format!("{client}.kubeconfig"))
}
