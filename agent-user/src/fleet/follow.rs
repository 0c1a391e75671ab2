//! Hearing of what the API server has for all nodes: one list and one watch of each kind.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures_util::TryStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::block_in_place;
use tracing::warn;

use super::baselines::{Baselines, Trusted};
use super::held::{Content, Held, Name};
use super::policies::{Policies, Rules};
use super::resources::{AgentPolicy, ClusterAgentPolicy, PolicyStatus, ToolBaseline, ToolBaselineStatus};
use super::verdict::Verdict;
use crate::kubernetes::heard;

/// Objects that are asked for at a time: one may have more than a MiB.
const PAGE: u32 = 50;

/// An object that says something to nodes.
pub(super) trait Said:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    type Content: Content;
    type Status: Serialize;
    const NAMESPACED: bool;

    /// What it says.
    fn written(&self) -> &[Value];

    /// The generation and the version that its status is about.
    fn told(&self) -> Option<(i64, &str)>;

    /// What nodes make of it.
    fn status(&self, verdict: Verdict) -> Self::Status;

    /// Where it is written to.
    fn api(&self, client: Client) -> Api<Self>;

    fn held_name(&self) -> Name {
        Name { namespace: self.namespace().filter(|_| Self::NAMESPACED), name: self.name_any() }
    }
}

/// Both kinds of policies say the same.
macro_rules! says_rules {
    ($kind:ty, $namespaced:literal, $api:expr) => {
        impl Said for $kind {
            type Content = Rules;
            type Status = PolicyStatus;
            const NAMESPACED: bool = $namespaced;

            fn written(&self) -> &[Value] {
                &self.spec.rules
            }

            fn told(&self) -> Option<(i64, &str)> {
                self.status.as_ref().map(|status| (status.observed_generation, &*status.version))
            }

            fn status(&self, verdict: Verdict) -> PolicyStatus {
                PolicyStatus {
                    observed_generation: verdict.generation,
                    accepted: verdict.fault.is_none(),
                    rules: self.spec.rules.len(),
                    message: verdict.fault.unwrap_or_default(),
                    version: verdict.version.to_owned(),
                }
            }

            fn api(&self, client: Client) -> Api<Self> {
                $api(self, client)
            }
        }
    };
}

says_rules!(AgentPolicy, true, |policy: &AgentPolicy, client| {
    Api::namespaced(client, &policy.namespace().unwrap_or_default())
});
says_rules!(ClusterAgentPolicy, false, |_: &ClusterAgentPolicy, client| Api::all(client));

impl Said for ToolBaseline {
    type Content = Trusted;
    type Status = ToolBaselineStatus;
    const NAMESPACED: bool = false;

    fn written(&self) -> &[Value] {
        &self.spec.servers
    }

    fn told(&self) -> Option<(i64, &str)> {
        self.status.as_ref().map(|status| (status.observed_generation, &*status.version))
    }

    fn status(&self, verdict: Verdict) -> ToolBaselineStatus {
        let servers = &self.spec.servers;
        let items = servers.iter().filter_map(|server| server["items"].as_array());
        ToolBaselineStatus {
            observed_generation: verdict.generation,
            accepted: verdict.fault.is_none(),
            servers: servers.len(),
            entries: items.map(Vec::len).sum(),
            message: verdict.fault.unwrap_or_default(),
            version: verdict.version.to_owned(),
        }
    }

    fn api(&self, client: Client) -> Api<Self> {
        Api::all(client)
    }
}

/// Keeps policies and baselines as the API server has them. Never ends; while it is away those it told of last hold.
pub async fn follow(client: Client, policies: Arc<Policies>, baselines: Arc<Baselines>) {
    tokio::join!(
        of_kind::<AgentPolicy>(&client, &policies),
        of_kind::<ClusterAgentPolicy>(&client, &policies),
        of_kind::<ToolBaseline>(&client, &baselines)
    );
}

async fn of_kind<K: Said>(client: &Client, held: &Held<K::Content>) {
    let objects = Api::<K>::all(client.clone());
    let config = watcher::Config::default().page_size(PAGE);
    let mut told = std::pin::pin!(heard(objects, config));
    let mut names = BTreeSet::new();
    let mut is_heard = true;
    loop {
        // The backoff has waited; an error is not the end.
        let event = match told.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => continue,
            Err(error) => {
                if std::mem::take(&mut is_heard) {
                    let what = K::Content::WHAT;
                    warn!(%error, kind = %K::kind(&()), "{what} are not heard of; those in force stay");
                }
                continue;
            }
        };
        is_heard = true;
        // What is new goes to disk.
        block_in_place(|| match event {
            Event::Init => names.clear(),
            Event::InitApply(object) => {
                held.hear(object.held_name(), object.written());
                names.insert(object.held_name());
            }
            Event::InitDone => held.keep_only(K::NAMESPACED, &std::mem::take(&mut names)),
            Event::Apply(object) => held.set(object.held_name(), object.written()),
            Event::Delete(object) => held.delete(&object.held_name()),
        });
    }
}
