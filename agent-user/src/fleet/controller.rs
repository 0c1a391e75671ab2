//! `interlock fleet`: sums the reports of the nodes up in the status of each `AgentStop`, and says of each policy and
//! baseline whether nodes take it. One is enough for a cluster, and no stop and no rule depends on it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::pace::Pace;
use super::resources::{
    AgentPolicy, AgentStop, AgentStopReport, AgentStopReportSpec, ClusterAgentPolicy, ToolBaseline,
};
use super::sum::sum;
use super::verdict::tell;
use crate::kubernetes::heard;

/// How often the reports are looked at.
const SUM_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked how many nodes there are, in units of [`SUM_EVERY`].
const COUNT_EVERY: u32 = 10;

/// Where interlock runs on every node.
#[derive(Clone, Debug)]
pub struct Nodes {
    pub namespace: String,
    pub daemon_set: String,
}

/// Runs until it is ended.
pub async fn run(client: Client, nodes: Nodes) -> Result<()> {
    let stops = followed::<AgentStop>(&client);
    let reports = followed::<AgentStopReport>(&client);
    let policies = followed::<AgentPolicy>(&client);
    let of_cluster = followed::<ClusterAgentPolicy>(&client);
    let baselines = followed::<ToolBaseline>(&client);
    // Before all are there a status would say too little.
    stops.wait_until_ready().await?;
    reports.wait_until_ready().await?;
    info!(stops = stops.state().len(), reports = reports.state().len(), "summing up");
    let mut ticks = interval(SUM_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut count, mut pace) = (0, Pace::default());
    for tick in 0u32.. {
        ticks.tick().await;
        if tick % COUNT_EVERY == 0 {
            match desired(&client, &nodes).await {
                Ok(desired) => count = desired,
                Err(error) => warn!(%error, "how many nodes there are is not known; the last number holds"),
            }
        }
        sum_up(&client, &stops, &reports, count, &mut pace).await;
        tell(&client, &policies).await;
        tell(&client, &of_cluster).await;
        tell(&client, &baselines).await;
    }
    Ok(())
}

async fn desired(client: &Client, nodes: &Nodes) -> kube::Result<usize> {
    let set = Api::<DaemonSet>::namespaced(client.clone(), &nodes.namespace).get(&nodes.daemon_set).await?;
    let desired = set.status.map_or(0, |status| status.desired_number_scheduled);
    Ok(usize::try_from(desired).unwrap_or(0))
}

async fn sum_up(
    client: &Client,
    stops: &Store<AgentStop>,
    reports: &Store<AgentStopReport>,
    nodes: usize,
    pace: &mut Pace,
) {
    let mut by_stop: HashMap<String, Vec<Arc<AgentStopReport>>> = HashMap::new();
    for report in reports.state() {
        by_stop.entry(report.spec.stop_uid.clone()).or_default().push(report);
    }
    let stops = stops.state();
    pace.keep_only(|uid| stops.iter().any(|stop| stop.metadata.uid.as_deref() == Some(uid)));
    for stop in stops {
        let uid = stop.uid().unwrap_or_default();
        let own = by_stop.remove(&uid).unwrap_or_default();
        let specs = own.iter().map(|report| -> &AgentStopReportSpec { &report.spec });
        let status = sum(specs, nodes);
        let now = Instant::now();
        if stop.status.as_ref() == Some(&status) || !pace.is_due(&uid, &status, now) {
            continue;
        }
        let name = stop.name_any();
        let patch = Patch::Merge(json!({"status": status}));
        let api = Api::<AgentStop>::all(client.clone());
        match api.patch_status(&name, &PatchParams::default(), &patch).await {
            Ok(_) => pace.written(&uid, now),
            Err(error) => warn!(stop = name, %error, "status not written yet"),
        }
    }
}

/// All objects of a kind, kept as the API server has them.
fn followed<K>(client: &Client) -> Store<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let objects = heard(Api::<K>::all(client.clone()), watcher::Config::default());
    tokio::spawn(reflector::reflector(writer, objects).for_each(|told| {
        if let Err(error) = told {
            warn!(%error, "the API server is not heard from");
        }
        std::future::ready(())
    }));
    store
}
