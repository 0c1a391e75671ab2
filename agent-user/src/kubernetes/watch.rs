//! Hearing from the API server which pods this node has: one list and one watch, of the pods of this node alone.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::task::block_in_place;
use tracing::{info, warn};

use super::directory::{ByUid, Directory};
use super::pod::Pod;
use crate::config::Kubernetes;

/// The API server, as the configuration, the pod's own service account or `KUBECONFIG` says.
///
/// # Errors
/// Nothing says where it is. That it does not answer is none.
pub async fn client(config: &Kubernetes) -> Result<Client> {
    let config = match &config.kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).with_context(|| format!("kubernetes: {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("kubernetes: {}", path.display()))?
        }
        None => kube::Config::infer().await.context(
            "kubernetes: where is the API server? (run as a pod with a service account, or name a `kubeconfig`)",
        )?,
    };
    Client::try_from(config).context("kubernetes: make a client")
}

/// Keeps the directory as the API server has it. Never ends: what fails is tried again, ever less often, and the directory
/// says so meanwhile.
pub async fn watch(client: Client, node: &str, directory: Arc<Directory>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let events = watcher(Api::<ApiPod>::all(client), config);
    let mut all = ByUid::new();
    let told = events.default_backoff().inspect_err(|error| {
        if directory.fault().is_none() {
            warn!(%error, "the API server is not heard from; pods are those it told of last");
        }
        directory.set_fault(Some(error.to_string()));
    });
    let mut told = std::pin::pin!(told);
    loop {
        // The backoff has waited; an error is not the end.
        let Ok(Some(event)) = told.try_next().await else { continue };
        if directory.fault().is_some() {
            info!("the API server is heard from again");
            directory.set_fault(None);
        }
        // What is new goes to disk.
        block_in_place(|| match event {
            Event::Init => all.clear(),
            Event::InitApply(pod) => all.extend(Pod::of(pod).map(|(uid, pod)| (uid, Arc::new(pod)))),
            Event::InitDone => {
                info!(node, pods = all.len(), "the API server has told of all pods of this node");
                directory.set_all(std::mem::take(&mut all));
            }
            Event::Apply(pod) => {
                if let Some((uid, pod)) = Pod::of(pod) {
                    directory.set(uid, pod);
                }
            }
            Event::Delete(pod) => {
                if let Some((uid, _)) = Pod::of(pod) {
                    directory.delete(uid);
                }
            }
        });
    }
}
