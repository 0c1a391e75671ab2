//! A cluster from nothing to a ready node, and back.

use std::time::Instant;

use super::certs::{Certs, kubeconfig};
use super::files::Files;
use super::node::{self, Node};
use super::{control, worker};

/// A running cluster, which is taken down when dropped.
pub(crate) struct Cluster {
    files: Files,
    keep: bool,
}

impl Cluster {
    /// Starts one; everything it needs has been made ready before.
    pub(crate) fn up() -> anyhow::Result<Self> {
        let started = Instant::now();
        node::ensure_none()?;
        let cluster = Self { files: Files::new(), keep: false };
        let files = &cluster.files;
        let node = Node::start(files)?;
        let certs = Certs::make(files.run().join("certs"))?;
        let kubectl = format!(
            "#!/bin/sh\nexec {} {} --kubeconfig {} \"$@\"\n",
            files.enter().display(),
            files.debian().join("usr/bin/kubectl").display(),
            kubeconfig(&certs.dir, "admin").display(),
        );
        node::script(&files.kubectl(), &kubectl)?;
        control::start(&node, files, &certs)?;
        println!("kube: API server ready after {:.1} s", started.elapsed().as_secs_f64());
        worker::start_containerd(&node, files)?;
        println!("kube: images loaded after {:.1} s", started.elapsed().as_secs_f64());
        worker::start(&node, files, &certs)?;
        println!(
            "kube: node ready after {:.1} s; kubectl is {}",
            started.elapsed().as_secs_f64(),
            files.kubectl().display()
        );
        Ok(cluster)
    }

    /// Leaves it running, until `cargo xtask kube down`.
    pub(crate) fn keep(mut self) {
        self.keep = true;
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let started = Instant::now();
        match node::take_down(&self.files) {
            Ok(()) => println!("kube: taken down in {:.1} s", started.elapsed().as_secs_f64()),
            Err(error) => eprintln!("kube: {error:#} (run `cargo xtask kube down`)"),
        }
    }
}
