//! Carrying a fleet stop out on one node, and what it has come to there.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::ResourceExt as _;

use super::resources::{AgentStop, AgentStopReportSpec};
use crate::decide::stop::{Operator, Selector, fleet_id};
use crate::orders::receipt::Receipt;
use crate::orders::{Order, Orders};

/// Who carries stops out on a node: its [`Orders`]. A test of thousands of nodes in one process has others.
pub trait CarriesOut: Send + Sync + 'static {
    /// Puts a stop in force, as far as it is not yet.
    fn carry_out(&self, stop: &AgentStop, uid: &str) -> impl Future<Output = Result<()>> + Send;

    /// What the stop of this id has come to here; whose it is is not said. `None`: it is in force no more.
    fn come_to(&self, id: &str) -> Option<AgentStopReportSpec>;

    /// The fleet's stops that are in force, each with the name of its object.
    fn of_fleet(&self) -> Vec<(Arc<str>, String)>;

    /// Ends the stop of this id; `name` is that of its object.
    fn release(&self, id: &str, name: &str) -> impl Future<Output = Result<()>> + Send;
}

impl CarriesOut for Orders {
    async fn carry_out(&self, stop: &AgentStop, uid: &str) -> Result<()> {
        let (id, by, spec) = (fleet_id(uid), Operator::fleet(&stop.name_any()), &stop.spec);
        let selector = Selector::compile(spec.scope.clone()).map_err(anyhow::Error::msg).context("scope")?;
        let in_force = self.in_force().into_iter().find(|known| known.stop.id == id);
        // Nobody waits for the fates here; the report tells them.
        match in_force {
            Some(known) if known.stop.scope != *selector.terms() || spec.level < known.stop.level => bail!(
                "it holds as it was made ({}, level {}); it can only go further: delete it, and make another one",
                known.stop.scope,
                known.stop.level.label()
            ),
            Some(known) if spec.level > known.stop.level => {
                self.escalate(&id, spec.level, &spec.reason, by, Duration::ZERO).await?;
            }
            Some(_) => {}
            None => {
                let order =
                    Order { id: Some(id), selector, level: spec.level, reason: spec.reason.clone(), by };
                self.stop(order, Duration::ZERO).await?;
            }
        }
        Ok(())
    }

    fn come_to(&self, id: &str) -> Option<AgentStopReportSpec> {
        let receipt = self.receipt(id).filter(|receipt| receipt.released.is_none())?;
        Some(summary(&receipt, self.agents_of(id)))
    }

    fn of_fleet(&self) -> Vec<(Arc<str>, String)> {
        let named =
            |known: crate::orders::InForce| Some((known.stop.by.fleet_stop()?.to_owned(), known.stop.id));
        self.in_force().into_iter().filter_map(named).map(|(name, id)| (id, name)).collect()
    }

    async fn release(&self, id: &str, name: &str) -> Result<()> {
        let reason = format!("AgentStop {name} was deleted");
        Orders::release(self, id, &reason, Operator::fleet(name)).await.map(drop)
    }
}

fn summary(receipt: &Receipt, agents: usize) -> AgentStopReportSpec {
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
        ..AgentStopReportSpec::default()
    }
}
