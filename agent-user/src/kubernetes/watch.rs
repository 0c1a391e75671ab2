//! Hearing from the API server which pods this node has: one list and one watch, of the pods of this node alone.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use backon::ExponentialBuilder;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, ExponentialBackoff, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::block_in_place;
use tracing::{info, warn};

use super::directory::{ByUid, Directory};
use super::pod::Pod;
use crate::config::Kubernetes;

/// After how long an API server that has failed is asked again, at first and when it goes on failing; up to twice as long, so
/// that nodes do not ask at once. Thousands of them must let it come to itself, and a stop should not wait for longer.
const ASK_AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

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

/// Hears of objects, as they are and as they change. What fails is tried again, ever less often; an error is not the end.
pub fn heard<K>(
    objects: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let [at_first, at_last] = ASK_AGAIN;
    let delays = ExponentialBuilder::default().with_min_delay(at_first).with_max_delay(at_last);
    let mut asks = false;
    let heard = watcher(objects, config).flat_map(move |told| {
        // `Init` comes when the API server is asked, and would pass for its answer: it is kept until there is one.
        let is_question = matches!(told, Ok(Event::Init));
        let question = (asks && !is_question && told.is_ok()).then_some(Ok(Event::Init));
        asks = is_question;
        stream::iter(question.into_iter().chain((!is_question).then_some(told)))
    });
    heard.backoff(ExponentialBackoff::from(delays.with_jitter().without_max_times()))
}

/// Keeps the directory as the API server has it. Never ends: what fails is tried again, ever less often, and the directory
/// says so meanwhile.
pub async fn watch(client: Client, node: &str, directory: Arc<Directory>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut all = ByUid::new();
    let told = heard(Api::<ApiPod>::all(client), config).inspect_err(|error| {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::http::StatusCode;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn an_api_server_that_refuses_is_asked_ever_less_often() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let server = Router::new().fallback(async move || {
            count.fetch_add(1, Ordering::Relaxed);
            StatusCode::FORBIDDEN
        });
        let pods = Api::<ApiPod>::all(Client::new(server, "default"));
        let hears = heard(pods, watcher::Config::default()).for_each(|told| {
            assert!(told.is_err(), "a question is no answer: {told:?}");
            std::future::ready(())
        });
        assert!(timeout(Duration::from_secs(5), hears).await.is_err(), "it never ends");
        let asked = asked.load(Ordering::Relaxed);
        assert!((2..=4).contains(&asked), "{asked} times in 5 s");
    }
}
