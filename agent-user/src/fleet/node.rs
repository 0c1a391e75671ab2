//! One node's part of a fleet stop: carry it out, answer, and release it when it is deleted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::TryStreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{info, warn};

use super::resources::{AgentStop, AgentStopReport, AgentStopReportSpec};
use crate::decide::stop::{Operator, Selector, fleet_id};
use crate::orders::receipt::Receipt;
use crate::orders::{Order, Orders};

/// How often a report is compared with what became of the calls since.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Follows the `AgentStop`s of a cluster on one node.
pub struct Follower {
    client: Client,
    node: String,
    orders: Arc<Orders>,
    /// Those that report, by uid of the object.
    reporting: HashMap<String, JoinHandle<()>>,
}

impl Follower {
    pub fn new(client: Client, node: String, orders: Arc<Orders>) -> Follower {
        Follower { client, node, orders, reporting: HashMap::new() }
    }

    /// Never ends. While the API server is away what is in force stays in force.
    pub async fn run(mut self) {
        let stops = Api::<AgentStop>::all(self.client.clone());
        let mut is_heard = true;
        let mut told = std::pin::pin!(watcher(stops, watcher::Config::default()).default_backoff());
        let mut all: HashSet<String> = HashSet::new();
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
                    all.extend(stop.uid());
                    self.apply(&stop).await;
                }
                Event::InitDone => self.release_all_but(&all).await,
                Event::Apply(stop) => self.apply(&stop).await,
                Event::Delete(stop) => {
                    if let Some(uid) = stop.uid() {
                        self.release(&fleet_id(&uid), &stop.name_any()).await;
                    }
                }
            }
        }
    }

    /// Carries a stop out, as far as it is not in force yet.
    async fn apply(&mut self, stop: &AgentStop) {
        let Some(uid) = stop.uid() else { return };
        let problem = self.carry_out(stop, &uid).await.err().map(|error| format!("{error:#}"));
        if let Some(error) = &problem {
            warn!(stop = stop.name_any(), error, "a stop of the fleet is not carried out");
        }
        if self.reporting.get(&uid).is_none_or(JoinHandle::is_finished) || problem.is_some() {
            let report = Reporting {
                client: self.client.clone(),
                node: self.node.clone(),
                orders: Arc::clone(&self.orders),
                stop: stop.clone(),
                uid: uid.clone(),
                problem,
            };
            if let Some(before) = self.reporting.insert(uid, tokio::spawn(report.run())) {
                before.abort();
            }
        }
    }

    async fn carry_out(&self, stop: &AgentStop, uid: &str) -> Result<()> {
        let (id, by, spec) = (fleet_id(uid), Operator::fleet(&stop.name_any()), &stop.spec);
        let selector = Selector::compile(spec.scope.clone()).map_err(anyhow::Error::msg).context("scope")?;
        let in_force = self.orders.in_force().into_iter().find(|known| known.stop.id == id);
        // Nobody waits for the fates here; the report tells them.
        match in_force {
            Some(known) if known.stop.scope != *selector.terms() || spec.level < known.stop.level => bail!(
                "it holds as it was made ({}, level {}); it can only go further: delete it, and make another one",
                known.stop.scope,
                known.stop.level.label()
            ),
            Some(known) if spec.level > known.stop.level => {
                self.orders.escalate(&id, spec.level, &spec.reason, by, Duration::ZERO).await?;
            }
            Some(_) => {}
            None => {
                let order =
                    Order { id: Some(id), selector, level: spec.level, reason: spec.reason.clone(), by };
                self.orders.stop(order, Duration::ZERO).await?;
            }
        }
        Ok(())
    }

    /// Releases what was deleted while nobody listened.
    async fn release_all_but(&mut self, all: &HashSet<String>) {
        let wanted: HashSet<Arc<str>> = all.iter().map(|uid| fleet_id(uid)).collect();
        for known in self.orders.in_force() {
            if let Some(name) = known.stop.by.fleet_stop()
                && !wanted.contains(&known.stop.id)
            {
                self.release(&known.stop.id, name).await;
            }
        }
    }

    async fn release(&mut self, id: &str, name: &str) {
        let reason = format!("AgentStop {name} was deleted");
        match self.orders.release(id, &reason, Operator::fleet(name)).await {
            Ok(_) => info!(stop = id, name, "released for the fleet"),
            Err(error) => warn!(stop = id, name, error = format!("{error:#}"), "not released for the fleet"),
        }
        self.reporting.retain(|_, reporting| !reporting.is_finished());
    }
}

/// Tells the API server what a stop has come to on this node, until nothing about it is open.
struct Reporting {
    client: Client,
    node: String,
    orders: Arc<Orders>,
    stop: AgentStop,
    uid: String,
    /// Why it was not carried out.
    problem: Option<String>,
}

impl Reporting {
    async fn run(self) {
        let reports = Api::<AgentStopReport>::all(self.client.clone());
        let mut told: Option<AgentStopReportSpec> = None;
        loop {
            let Some(report) = self.report() else { return };
            if told.as_ref() != Some(&report) {
                match self.tell(&reports, &report).await {
                    Ok(()) => told = Some(report.clone()),
                    // The stop is in force all the same; the answer follows when somebody listens.
                    Err(error) => {
                        warn!(stop = report.stop, error = format!("{error:#}"), "report not written yet")
                    }
                }
            }
            if told.is_some() && report.open == 0 {
                return;
            }
            sleep(REPORT_EVERY).await;
        }
    }

    /// `None`: it is in force no more.
    fn report(&self) -> Option<AgentStopReportSpec> {
        let report = AgentStopReportSpec {
            stop: self.stop.name_any(),
            stop_uid: self.uid.clone(),
            node: self.node.clone(),
            level: self.stop.spec.level,
            ..AgentStopReportSpec::default()
        };
        let id = fleet_id(&self.uid);
        match (self.orders.receipt(&id), &self.problem) {
            (_, Some(problem)) => Some(AgentStopReportSpec { problems: vec![problem.clone()], ..report }),
            (Some(receipt), None) if receipt.released.is_none() => {
                let agents = self.orders.agents_of(&id);
                Some(filled(report, &receipt, agents))
            }
            _ => None,
        }
    }

    async fn tell(&self, reports: &Api<AgentStopReport>, report: &AgentStopReportSpec) -> Result<()> {
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
        reports
            .patch(&name, &params, &Patch::Apply(&object))
            .await
            .with_context(|| format!("report {name}"))?;
        Ok(())
    }
}

fn filled(report: AgentStopReportSpec, receipt: &Receipt, agents: usize) -> AgentStopReportSpec {
    let mut fates: BTreeMap<String, usize> = BTreeMap::new();
    for caught in &receipt.calls {
        *fates.entry(caught.fate.label().to_owned()).or_default() += 1;
    }
    let done = receipt.report.as_ref();
    AgentStopReportSpec {
        level: receipt.stop.level,
        // A stop that is older than this daemon is in force since before its first connection.
        in_force: done.is_none_or(|done| done.in_force),
        in_force_at: done.map_or(Some(receipt.stop.issued_at), |done| done.in_force_at),
        agents,
        connections: done.map_or(0, |done| done.agents.iter().map(|effect| effect.connections).sum()),
        calls: receipt.calls.len(),
        open: receipt.open,
        fates,
        problems: done.map(|done| done.problems.clone()).unwrap_or_default(),
        ..report
    }
}
