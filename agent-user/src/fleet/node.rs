//! One node's part of a fleet stop: have it carried out, answer, and release it when it is deleted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{info, warn};

use super::carry_out::CarriesOut;
use super::resources::{AgentStop, AgentStopReport, AgentStopReportSpec};
use crate::decide::stop::fleet_id;
use crate::kubernetes::heard;

/// How often a report is compared with what became of the calls since.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Follows the `AgentStop`s of a cluster on one node.
pub struct Follower<N> {
    client: Client,
    name: String,
    node: Arc<N>,
    /// What is reported, by id of the stop.
    reported: HashMap<Arc<str>, Reported>,
}

/// An answer that is given, or was.
struct Reported {
    /// The generation of the object that it is about.
    generation: Option<i64>,
    problem: Option<String>,
    task: JoinHandle<()>,
}

impl Drop for Reported {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<N: CarriesOut> Follower<N> {
    pub fn new(client: Client, name: String, node: Arc<N>) -> Follower<N> {
        Follower { client, name, node, reported: HashMap::new() }
    }

    /// Never ends. While the API server is away what is in force stays in force.
    pub async fn run(mut self) {
        let stops = Api::<AgentStop>::all(self.client.clone());
        let mut is_heard = true;
        let mut told = std::pin::pin!(heard(stops, watcher::Config::default()));
        let mut all: HashSet<Arc<str>> = HashSet::new();
        loop {
            let event = match told.try_next().await {
                Ok(Some(event)) => event,
                Ok(None) => continue,
                Err(error) => {
                    if std::mem::take(&mut is_heard) {
                        warn!(%error, "stops of the fleet are not heard of; those in force stay");
                    }
                    continue;
                }
            };
            is_heard = true;
            match event {
                Event::Init => all.clear(),
                Event::InitApply(stop) => {
                    all.extend(stop.uid().map(|uid| fleet_id(&uid)));
                    self.apply(stop).await;
                }
                Event::InitDone => self.release_all_but(&all).await,
                Event::Apply(stop) => self.apply(stop).await,
                Event::Delete(stop) => {
                    if let Some(uid) = stop.uid() {
                        self.release(&fleet_id(&uid), &stop.name_any()).await;
                    }
                }
            }
        }
    }

    /// Has a stop carried out, as far as it is not in force yet, and answers.
    async fn apply(&mut self, stop: AgentStop) {
        let Some(uid) = stop.uid() else { return };
        let (id, generation) = (fleet_id(&uid), stop.metadata.generation);
        let carried_out = self.node.carry_out(&stop, &uid).await;
        let problem = carried_out.err().map(|error| format!("{error:#}"));
        // Every status that the controller writes comes along here: were each answered, thousands of nodes would answer it.
        let is_told = |told: &Reported| told.generation == generation && told.problem == problem;
        if self.reported.get(&id).is_some_and(is_told) {
            return;
        }
        if let Some(error) = &problem {
            warn!(stop = stop.name_any(), error, "a stop of the fleet is not carried out");
        }
        let reporting = Reporting {
            reports: Api::all(self.client.clone()),
            name: self.name.clone(),
            node: Arc::clone(&self.node),
            stop,
            uid,
            problem: problem.clone(),
        };
        self.reported.remove(&id);
        let task = tokio::spawn(reporting.run());
        self.reported.insert(id, Reported { generation, problem, task });
    }

    /// Releases what was deleted while nobody listened.
    async fn release_all_but(&mut self, all: &HashSet<Arc<str>>) {
        for (id, name) in self.node.of_fleet() {
            if !all.contains(&id) {
                self.release(&id, &name).await;
            }
        }
        self.reported.retain(|id, _| all.contains(id));
    }

    async fn release(&mut self, id: &str, name: &str) {
        match self.node.release(id, name).await {
            Ok(()) => info!(stop = id, name, "released for the fleet"),
            Err(error) => warn!(stop = id, name, error = format!("{error:#}"), "not released for the fleet"),
        }
        self.reported.remove(id);
    }
}

/// Tells the API server what a stop has come to on this node, until nothing about it is open.
struct Reporting<N> {
    reports: Api<AgentStopReport>,
    /// Of the node.
    name: String,
    node: Arc<N>,
    stop: AgentStop,
    uid: String,
    /// Why it was not carried out.
    problem: Option<String>,
}

impl<N: CarriesOut> Reporting<N> {
    async fn run(self) {
        let mut told: Option<AgentStopReportSpec> = None;
        loop {
            let Some(report) = self.report() else { return };
            if told.as_ref() != Some(&report) {
                match self.tell(&report).await {
                    Ok(()) => told = Some(report.clone()),
                    // The stop is in force all the same; the answer follows when somebody listens.
                    Err(error) => {
                        warn!(stop = report.stop, error = format!("{error:#}"), "report not written yet")
                    }
                }
            }
            if told.as_ref() == Some(&report) && report.open == 0 {
                return;
            }
            sleep(REPORT_EVERY).await;
        }
    }

    /// `None`: it is in force no more.
    fn report(&self) -> Option<AgentStopReportSpec> {
        let come_to = match &self.problem {
            Some(problem) => AgentStopReportSpec {
                level: self.stop.spec.level,
                problems: vec![problem.clone()],
                ..AgentStopReportSpec::default()
            },
            None => self.node.come_to(&fleet_id(&self.uid))?,
        };
        Some(AgentStopReportSpec {
            stop: self.stop.name_any(),
            stop_uid: self.uid.clone(),
            node: self.name.clone(),
            ..come_to
        })
    }

    async fn tell(&self, report: &AgentStopReportSpec) -> Result<()> {
        let name = format!("{}.{}", report.stop, report.node);
        let mut object = AgentStopReport::new(&name, report.clone());
        // It goes with the stop.
        object.metadata.owner_references = Some(vec![OwnerReference {
            api_version: AgentStop::api_version(&()).into_owned(),
            kind: AgentStop::kind(&()).into_owned(),
            name: report.stop.clone(),
            uid: self.uid.clone(),
            ..OwnerReference::default()
        }]);
        let params = PatchParams::apply("interlock").force();
        self.reports
            .patch(&name, &params, &Patch::Apply(&object))
            .await
            .with_context(|| format!("report {name}"))?;
        Ok(())
    }
}
