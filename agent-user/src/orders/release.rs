//! The end of a stop, by one person or, where the configuration asks for it, by two.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde::Serialize;
use tracing::{info, warn};

use super::Orders;
use super::receipt::{AskedView, ReleaseView, StopView};
use crate::decide::stop::Operator;
use crate::record::entry::{Entry, Release};

/// What became of an order to release.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    Released {
        stop: StopView,
        #[serde(flatten)]
        release: ReleaseView,
    },
    /// The stop holds until a second person orders the same.
    NeedsSecond { stop: StopView, asked_by: Operator },
}

impl Orders {
    /// Ends a stop. Where it takes two, the first who asks is remembered until the stop goes further, or the daemon ends.
    pub async fn release(&self, id: &str, reason: &str, by: Operator) -> Result<Outcome> {
        let mut turn = self.take_turn().await;
        ensure!(!reason.trim().is_empty(), "give a reason; the record of the release will show it");
        let stop = self.find(id)?;
        if let Some(name) = stop.by.fleet_stop()
            && stop.by != by
        {
            bail!(
                "stop {id} is the fleet's: it is released on every node by `kubectl delete agentstop {name}`"
            );
        }
        let mut asked_by = None;
        // Whoever deletes an `AgentStop` has answered to the API server.
        if self.require_two && by.fleet_stop().is_none() {
            let person = person(&by)?;
            let first = self.asked().get(&stop.id).cloned();
            match first {
                // Names are compared without case, so that nobody becomes two by writing one differently.
                Some(first) if self::person(&first.by)?.eq_ignore_ascii_case(person) => bail!(
                    "stop {id} holds: {person} has asked for its release already, and a second person must do so too \
                     (require_two)"
                ),
                Some(first) => asked_by = Some(first.by),
                None => {
                    let ask = AskedView { by: by.clone(), reason: reason.to_owned(), at: Timestamp::now() };
                    self.asked().insert(Arc::clone(&stop.id), ask);
                    self.record(&stop.id, stop.selector.to_string(), reason, &by, None, false).await;
                    warn!(stop = id, person, "release asked for; a second person must order it too");
                    return Ok(Outcome::NeedsSecond { stop: StopView::from(&*stop), asked_by: by });
                }
            }
        }
        // Durable first: a release that a crash undoes is safer than a stop that it undoes.
        let mut stops = self.parts.gate.rules().stops.clone();
        stops.retain(|other| other.id != stop.id);
        self.state.save_stops(&stops).context("the stop still holds")?;
        self.saved(&mut turn);
        self.record(&stop.id, stop.selector.to_string(), reason, &by, asked_by.as_ref(), true).await;
        self.publish(|stops| stops.retain(|other| other.id != stop.id));
        self.asked().remove(&stop.id);
        let release = ReleaseView { by, reason: reason.to_owned(), at: Timestamp::now(), asked_by };
        self.parts.book.release(&stop, release.clone());
        self.parts.tasks.release(&stop.id);
        self.count_active();
        info!(stop = id, scope = %stop.selector, "released");
        let agents = &self.parts.agents;
        // The stop is over: whatever fails here, the others are let go all the same.
        let everybody = agents.apply_to_everybody();
        let everybody =
            everybody.with_context(|| format!("stop {id} is released, but the kernel still holds everybody"));
        let each = agents.matching(&stop.selector).into_iter().map(|agent| {
            let (applied, thawed) = (agents.apply_stops(&agent), agents.thaw(&agent, stop.level));
            applied.and(thawed).with_context(|| {
                format!("stop {id} is released, but the kernel still holds agent {} as stopped", agent.name)
            })
        });
        let applied: Vec<Result<()>> = std::iter::once(everybody).chain(each).collect();
        applied.into_iter().collect::<Result<()>>()?;
        Ok(Outcome::Released { stop: StopView::from(&*stop), release })
    }

    async fn record(
        &self,
        stop: &str,
        scope: String,
        reason: &str,
        by: &Operator,
        asked_by: Option<&Operator>,
        released: bool,
    ) {
        let release = Release { stop, scope, reason, by, asked_by, released };
        self.parts.log.record_durably(&Entry::Release(release)).await;
    }
}

/// What tells two persons apart: who logged in, or the subject of a client certificate. A uid does not, since everybody
/// who may give orders here is root.
fn person(operator: &Operator) -> Result<&str> {
    match (&operator.login, &operator.certificate) {
        (Some(login), _) => Ok(login),
        (None, Some(_)) => Ok(&operator.user),
        (None, None) => bail!(
            "require_two: cannot tell which person asks, because process {} has no login uid \
             (/proc/PID/loginuid; log in through PAM, or use the HTTPS endpoint with a client certificate)",
            operator.pid.unwrap_or_default()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::stop::Certificate;

    #[test]
    fn person_is_who_logged_in_or_who_the_certificate_names() {
        let local = Operator { uid: Some(0), pid: Some(7), user: "root".into(), ..Operator::default() };
        let alice = Operator { login: Some("alice".into()), ..local.clone() };
        assert_eq!(person(&alice).unwrap(), "alice");
        let certificate = Some(Certificate::default());
        assert_eq!(
            person(&Operator { user: "bob".into(), certificate, ..Operator::default() }).unwrap(),
            "bob"
        );
        let error = person(&local).unwrap_err().to_string();
        assert!(error.contains("process 7 has no login uid"), "root is nobody in particular: {error}");
        assert!(person(&Operator { user: "rule:a".into(), ..Operator::default() }).is_err());
    }
}
