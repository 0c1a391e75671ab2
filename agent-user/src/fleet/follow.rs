//! Hearing of the rules that the API server has: one list and one watch of each kind.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::block_in_place;
use tracing::warn;

use super::policies::{Name, Policies};
use super::resources::{AgentPolicy, ClusterAgentPolicy, PolicyStatus};
use crate::kubernetes::heard;

/// An object with rules.
pub(super) trait Ruled:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    const NAMESPACED: bool;
    fn rules(&self) -> &[Value];
    fn status(&self) -> Option<&PolicyStatus>;
    /// Where it is written to.
    fn api(&self, client: Client) -> Api<Self>;

    fn ruled_name(&self) -> Name {
        Name { namespace: self.namespace().filter(|_| Self::NAMESPACED), name: self.name_any() }
    }
}

impl Ruled for AgentPolicy {
    const NAMESPACED: bool = true;

    fn rules(&self) -> &[Value] {
        &self.spec.rules
    }

    fn status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn api(&self, client: Client) -> Api<Self> {
        Api::namespaced(client, &self.namespace().unwrap_or_default())
    }
}

impl Ruled for ClusterAgentPolicy {
    const NAMESPACED: bool = false;

    fn rules(&self) -> &[Value] {
        &self.spec.rules
    }

    fn status(&self) -> Option<&PolicyStatus> {
        self.status.as_ref()
    }

    fn api(&self, client: Client) -> Api<Self> {
        Api::all(client)
    }
}

/// Keeps the policies as the API server has them. Never ends; while it is away those it told of last hold.
pub async fn follow(client: Client, policies: Arc<Policies>) {
    tokio::join!(
        of_kind::<AgentPolicy>(&client, &policies),
        of_kind::<ClusterAgentPolicy>(&client, &policies)
    );
}

async fn of_kind<K: Ruled>(client: &Client, policies: &Policies) {
    let objects = Api::<K>::all(client.clone());
    let mut told = std::pin::pin!(heard(objects, watcher::Config::default()));
    let mut all = BTreeMap::new();
    let mut is_heard = true;
    loop {
        // The backoff has waited; an error is not the end.
        let event = match told.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => continue,
            Err(error) => {
                if std::mem::take(&mut is_heard) {
                    warn!(%error, kind = %K::kind(&()), "rules of the API server are not heard of; those in force stay");
                }
                continue;
            }
        };
        is_heard = true;
        let entry = |object: K| (object.ruled_name(), object.rules().to_vec());
        // What is new goes to disk.
        block_in_place(|| match event {
            Event::Init => all.clear(),
            Event::InitApply(object) => all.extend([entry(object)]),
            Event::InitDone => policies.set_all(K::NAMESPACED, std::mem::take(&mut all)),
            Event::Apply(object) => {
                let (name, rules) = entry(object);
                policies.set(name, rules);
            }
            Event::Delete(object) => policies.delete(&object.ruled_name()),
        });
    }
}
