//! Stops that rules make. They are ordinary ones, with the rule as their author.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::error;

use super::{Order, Orders};
use crate::decide::stop::{Operator, Selector};
use crate::tripwires::Tripped;

impl Orders {
    /// Carries out what rules order, until the daemon ends.
    pub async fn obey_rules(self: Arc<Orders>, mut orders: mpsc::Receiver<Tripped>) {
        while let Some(tripped) = orders.recv().await {
            if let Err(fault) = self.stop_by_rule(&tripped).await {
                let Tripped { agent, tripwire } = &tripped;
                error!(
                    agent = &**agent,
                    rule = &*tripwire.rule,
                    error = format!("{fault:#}"),
                    "a rule's stop failed"
                );
            }
            self.parts.tripwires.forget(&tripped.agent, &tripped.tripwire.rule);
        }
    }

    async fn stop_by_rule(&self, Tripped { agent, tripwire }: &Tripped) -> anyhow::Result<()> {
        let selector = Selector::of_agent(agent).map_err(anyhow::Error::msg)?;
        let by = Operator::rule(&tripwire.rule);
        // One of a connection that had not acted on the stop when the count started again.
        let is_made = self
            .parts
            .gate
            .rules()
            .stops
            .iter()
            .any(|stop| stop.by == by && stop.selector.terms() == selector.terms());
        if !is_made {
            let order =
                Order { id: None, selector, level: tripwire.level, reason: tripwire.reason.to_string(), by };
            // Nobody waits for the fates; the records and `interlock stops` tell them.
            self.stop(order, Duration::ZERO).await?;
        }
        Ok(())
    }
}
