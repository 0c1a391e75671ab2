//! Where everything of the cluster lies: what is kept, and what is of one run.

use std::path::PathBuf;

use crate::shell;

/// The folder `target/kube`.
pub(crate) struct Files {
    pub(super) dir: PathBuf,
}

impl Files {
    pub(super) fn new() -> Self {
        Self { dir: shell::target().join("kube") }
    }

    /// The programs of Kubernetes, built from source.
    pub(super) fn bin(&self) -> PathBuf {
        self.dir.join("bin")
    }

    /// Debian packages, unpacked.
    pub(super) fn debian(&self) -> PathBuf {
        self.dir.join("debian")
    }

    /// Images, each an OCI layout in a tar file.
    pub(super) fn images(&self) -> PathBuf {
        self.dir.join("images")
    }

    /// What is of the running cluster; gone with it.
    pub(super) fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub(super) fn log(&self, name: &str) -> PathBuf {
        self.run().join(format!("log/{name}.log"))
    }

    /// The folder that the cluster's processes see as `path`, so that the machine's own is not touched.
    pub(super) fn private(&self, path: &str) -> PathBuf {
        self.run().join("node").join(path.trim_start_matches('/'))
    }

    /// What lies here is a pod of the node, by its kubelet alone.
    pub(super) fn static_pods(&self) -> PathBuf {
        self.run().join("static-pods")
    }

    /// kubectl as the administrator, to be called from anywhere on the machine.
    pub(crate) fn kubectl(&self) -> PathBuf {
        self.run().join("kubectl")
    }

    /// A command in the namespaces of the cluster's node, to be called from anywhere on the machine.
    pub(crate) fn enter(&self) -> PathBuf {
        self.run().join("enter")
    }

    /// PATH of the cluster's processes.
    pub(super) fn path(&self) -> String {
        let own = ["usr/sbin", "usr/bin", "bin"].map(|dir| self.debian().join(dir).display().to_string());
        let kubernetes = self.bin().display().to_string();
        format!("{kubernetes}:{}:/usr/sbin:/usr/bin:/sbin:/bin", own.join(":"))
    }
}
