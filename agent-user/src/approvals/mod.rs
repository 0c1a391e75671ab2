//! Requests that wait for a person: a rule asks for an approval, and until somebody gives it not one byte leaves.
//!
//! Whoever judges a request parks it here, and takes the outcome from [`Parked`]. Each request that was parked comes to
//! exactly one outcome: the first of a person's answer, the end of its time, and its withdrawal. Bounded: what finds no
//! room is refused.

mod question;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::info;

use crate::decide::stop::Operator;
use crate::decode::RawId;
use crate::ledger::{Conn, Scene};
use crate::parts::Ids;
use crate::record::entry::{Approval, Entry};
use crate::record::log::Log;
use crate::record::metrics::Metrics;
use crate::session::Session;

pub use self::question::{Asked, Question, RuleAsked, Text};

/// Most requests that wait at a time, and most of one agent.
const MOST: usize = 1000;
const PER_AGENT: usize = 100;
/// Outcomes that are remembered, so that whoever comes late is told.
const REMEMBERED: usize = 1000;

/// What may become of a request that needs an approval, as metric label values.
pub const OUTCOMES: [&str; 5] = ["approved", "refused", "timed_out", "withdrawn", "not_asked"];

/// The requests that wait.
#[derive(Debug)]
pub struct Approvals {
    ids: Ids,
    waiting: Mutex<Waiting>,
    log: Arc<Log>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Oldest first.
    open: Vec<Pending>,
    /// Ids of those that have come to an outcome, and the words for it; newest last.
    over: Vec<(Arc<str>, String)>,
    /// The daemon ends.
    closed: bool,
}

#[derive(Debug)]
struct Pending {
    question: Arc<Question>,
    /// Its agent's number.
    agent: u32,
    answer: oneshot::Sender<Outcome>,
}

/// What became of a request that was parked.
#[derive(Clone, Debug)]
pub enum Outcome {
    Approved {
        by: Operator,
        reason: String,
    },
    Refused {
        by: Operator,
        reason: String,
    },
    TimedOut,
    /// Nobody waits for it any more; the label says why.
    Withdrawn(&'static str),
}

/// A request that waits. Dropping it withdraws it.
#[derive(Debug)]
pub struct Parked {
    approvals: Arc<Approvals>,
    pub question: Arc<Question>,
    answer: oneshot::Receiver<Outcome>,
    deadline: Instant,
}

impl Approvals {
    pub fn new(log: Arc<Log>, metrics: Arc<Metrics>) -> Approvals {
        Approvals { ids: Ids::new("apr"), waiting: Mutex::default(), log, metrics }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parks what a connection is about to send, for as long as `within`. An error says in words why nobody can be asked.
    pub fn park(
        self: &Arc<Self>,
        conn: &Conn,
        scene: &Scene,
        calls: Vec<Asked>,
        within: Duration,
    ) -> Result<Parked, &'static str> {
        let identity = &conn.identity;
        let since = Timestamp::now();
        let until = SignedDuration::try_from(within).ok().and_then(|within| since.checked_add(within).ok());
        let question = Arc::new(Question {
            approval: self.ids.next().into(),
            agent: Arc::clone(&identity.agent.name),
            pid: identity.pid,
            uid: identity.uid,
            exe: identity.exe.clone(),
            conn: conn.id,
            server: Arc::clone(&scene.server),
            destination: conn.destination,
            session: scene.session,
            workflow: scene.workflow.clone(),
            since,
            until: until.unwrap_or(Timestamp::MAX),
            calls,
        });
        let (answer, receiver) = oneshot::channel();
        let pending = Pending { question: Arc::clone(&question), agent: identity.agent.number, answer };
        self.add(pending).inspect_err(|_| self.metrics.approval("not_asked"))?;
        info!(approval = &*question.approval, agent = &*question.agent, "a person is asked");
        self.log.record(&Entry::Approval(Approval::new("asked", &question)));
        let deadline = Instant::now() + within;
        Ok(Parked { approvals: Arc::clone(self), question, answer: receiver, deadline })
    }

    fn add(&self, pending: Pending) -> Result<(), &'static str> {
        if pending.question.calls.iter().any(Asked::is_unreadable) {
            return Err("a name or an id in it is too long for a person to read");
        }
        let mut waiting = self.waiting();
        let of_agent = waiting.open.iter().filter(|other| other.agent == pending.agent).count();
        if waiting.closed {
            return Err("the daemon ends");
        }
        if waiting.open.len() >= MOST || of_agent >= PER_AGENT {
            return Err("too many calls wait for an approval");
        }
        waiting.open.push(pending);
        self.count(&waiting);
        Ok(())
    }

    /// Carries out what a person has decided. It is on disk before anything leaves; what then becomes of the request is up
    /// to the rules and stops of that moment.
    pub async fn decide(&self, id: &str, approve: bool, reason: &str, by: Operator) -> Result<Value> {
        ensure!(!reason.trim().is_empty(), "give a reason; the record will show it, and a refused agent too");
        let outcome = if approve { "approved" } else { "refused" };
        let words = format!("{outcome} by {} at {}", by.name(), Timestamp::now());
        let pending = match self.take(|question| &*question.approval == id, &words) {
            Some(pending) => pending,
            None => bail!("{}", self.unknown(id)),
        };
        let record =
            Approval { by: Some(&by), reason: Some(reason), ..Approval::new(outcome, &pending.question) };
        self.log.record_durably(&Entry::Approval(record)).await;
        self.metrics.approval(outcome);
        info!(approval = id, by = by.name(), outcome, "a person has decided");
        let mut shown = serde_json::to_value(&*pending.question).context("show it")?;
        shown["outcome"] = outcome.into();
        shown["by"] = serde_json::to_value(&by)?;
        let reason = reason.to_owned();
        let answer = if approve { Outcome::Approved { by, reason } } else { Outcome::Refused { by, reason } };
        // Whoever waited for it may have met a stop meanwhile.
        let _ = pending.answer.send(answer);
        Ok(shown)
    }

    /// The agent itself does not want an answer any more to a request of this session and id, at the same server.
    pub fn cancelled_by_agent(&self, asking: &Conn, session: Option<Session>, id: RawId<'_>) {
        let (agent, destination) = (&asking.identity.agent.name, asking.destination);
        let is = |question: &Question| {
            question.agent == *agent
                && question.destination == destination
                && question.session == session
                && question.calls.iter().any(|call| call.rpc_id.as_deref().is_some_and(|raw| id.matches(raw)))
        };
        if let Some(pending) = self.take(is, "withdrawn: its agent has cancelled it") {
            self.withdrawn(pending, "agent_cancelled", None);
        }
    }

    /// The daemon ends: nobody is asked any more.
    pub fn close(&self) {
        let open = {
            let mut waiting = self.waiting();
            waiting.closed = true;
            let open = std::mem::take(&mut waiting.open);
            self.count(&waiting);
            open
        };
        open.into_iter().for_each(|pending| self.withdrawn(pending, "drain", None));
    }

    /// Everything that waits, oldest first.
    pub fn list(&self) -> Vec<Arc<Question>> {
        self.waiting().open.iter().map(|pending| Arc::clone(&pending.question)).collect()
    }

    /// All of what one request asks for.
    pub fn show(&self, id: &str) -> Result<Value> {
        let question = self.list().into_iter().find(|question| &*question.approval == id);
        let question = question.with_context(|| self.unknown(id))?;
        let mut shown = serde_json::to_value(&*question)?;
        for (call, asked) in shown["calls"].as_array_mut().into_iter().flatten().zip(&question.calls) {
            call["asks"] = json!(asked.text);
        }
        Ok(shown)
    }

    pub fn len(&self) -> usize {
        self.waiting().open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes one out, which then has come to its outcome, in these words.
    fn take(&self, is: impl Fn(&Question) -> bool, words: &str) -> Option<Pending> {
        let mut waiting = self.waiting();
        let index = waiting.open.iter().position(|pending| is(&pending.question))?;
        let pending = waiting.open.remove(index);
        if waiting.over.len() >= REMEMBERED {
            waiting.over.remove(0);
        }
        waiting.over.push((Arc::clone(&pending.question.approval), words.to_owned()));
        self.count(&waiting);
        Some(pending)
    }

    fn withdrawn(&self, pending: Pending, cause: &'static str, stop: Option<&str>) {
        let record = Approval { cause: Some(cause), stop, ..Approval::new("withdrawn", &pending.question) };
        self.log.record(&Entry::Approval(record));
        self.metrics.approval("withdrawn");
        let _ = pending.answer.send(Outcome::Withdrawn(cause));
    }

    fn count(&self, waiting: &Waiting) {
        self.metrics.approvals_pending.set(i64::try_from(waiting.open.len()).unwrap_or(i64::MAX));
    }

    /// Why nothing waits under an id.
    fn unknown(&self, id: &str) -> String {
        match self.waiting().over.iter().find(|(known, _)| &**known == id) {
            Some((_, words)) => format!("approval {id} is over: {words}"),
            None => format!("no approval {id:?} waits here; `interlock approvals` lists those that do"),
        }
    }
}

impl Parked {
    /// Waits for the outcome. Cancelling loses nothing.
    pub async fn outcome(&mut self) -> Outcome {
        if let Ok(answer) = timeout_at(self.deadline, &mut self.answer).await {
            return answer.unwrap_or(Outcome::Withdrawn("drain"));
        }
        let id = &self.question.approval;
        match self.approvals.take(|question| question.approval == *id, "nobody had decided in time") {
            Some(pending) => {
                let record = Approval::new("timed_out", &pending.question);
                self.approvals.log.record(&Entry::Approval(record));
                self.approvals.metrics.approval("timed_out");
                Outcome::TimedOut
            }
            // Somebody has, at the last moment.
            None => (&mut self.answer).await.unwrap_or(Outcome::Withdrawn("drain")),
        }
    }

    /// Nobody waits for it any more. Without effect once it has come to an outcome.
    pub fn withdraw(&self, cause: &'static str, stop: Option<&str>) {
        let id = &self.question.approval;
        let words = format!("withdrawn: {cause}");
        if let Some(pending) = self.approvals.take(|question| question.approval == *id, &words) {
            self.approvals.withdrawn(pending, cause, stop);
        }
    }

    /// How long it could wait.
    pub fn within(&self) -> Duration {
        let within = self.question.until.duration_since(self.question.since);
        Duration::try_from(within).unwrap_or_default()
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.withdraw("drain", None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Agent, Identity};
    use crate::ledger::Ledger;
    use crate::record::log;
    use crate::workflow::OfProcess;

    const WITHIN: Duration = Duration::from_secs(60);

    struct Lab {
        approvals: Arc<Approvals>,
        records: std::path::PathBuf,
        writer: Option<log::Writer>,
        _dir: tempfile::TempDir,
    }

    impl Lab {
        fn new() -> Lab {
            let dir = tempfile::tempdir().unwrap();
            let records = dir.path().join("records.jsonl");
            let metrics = Arc::new(Metrics::new().unwrap());
            let (log, writer) = Log::open(&records, Arc::clone(&metrics)).unwrap();
            let approvals = Arc::new(Approvals::new(log, metrics));
            Lab { approvals, records, writer: Some(writer), _dir: dir }
        }

        fn park(&self, conn: &Conn) -> Result<Parked, &'static str> {
            self.park_for(conn, WITHIN)
        }

        fn park_for(&self, conn: &Conn, within: Duration) -> Result<Parked, &'static str> {
            let asked = Asked { rpc_id: Some("7".into()), method: "tools/call".into(), ..Asked::default() };
            self.approvals.park(conn, &Scene::default(), vec![asked], within)
        }

        /// Outcomes and causes on record.
        fn told(mut self) -> Vec<(String, String)> {
            drop(self.writer.take());
            let text = std::fs::read_to_string(&self.records).unwrap();
            let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            lines.map(|line| (text(&line["outcome"]), text(&line["cause"]))).collect()
        }
    }

    fn conn(number: u32) -> Arc<Conn> {
        let name = number.to_string();
        let identity = Identity {
            agent: Arc::new(Agent::new(number, &name, Metrics::new().unwrap().agent(&name))),
            pid: 0,
            uid: 0,
            exe: None,
            process: None,
            labels: Arc::default(),
            pod: None,
            workflow: OfProcess::default(),
        };
        let to = "10.0.0.7:80".parse().unwrap();
        Arc::clone(Arc::new(Ledger::default()).open(identity, to, Scene::of_connection(to, None)).conn())
    }

    fn alice() -> Operator {
        Operator { user: "root".into(), login: Some("alice".into()), ..Operator::default() }
    }

    fn told(outcomes: &[(&str, &str)]) -> Vec<(String, String)> {
        outcomes.iter().map(|(outcome, cause)| ((*outcome).to_owned(), (*cause).to_owned())).collect()
    }

    #[tokio::test]
    async fn a_person_decides_once() {
        let lab = Lab::new();
        let mut parked = lab.park(&conn(1)).unwrap();
        let id = Arc::clone(&parked.question.approval);
        assert!(lab.approvals.decide(&id, true, " ", alice()).await.is_err(), "a reason is needed");
        let shown = lab.approvals.decide(&id, true, "fine", alice()).await.unwrap();
        assert_eq!((&shown["outcome"], &shown["by"]["login"]), (&json!("approved"), &json!("alice")));
        let error = lab.approvals.decide(&id, false, "no", alice()).await.unwrap_err().to_string();
        assert!(error.contains("is over: approved by alice"), "{error}");
        assert!(matches!(parked.outcome().await, Outcome::Approved { reason, .. } if reason == "fine"));
        let error = lab.approvals.decide("apr-0", true, "fine", alice()).await.unwrap_err().to_string();
        assert!(error.contains("no approval \"apr-0\" waits"), "{error}");
        drop(parked);
        assert_eq!(lab.told(), told(&[("asked", ""), ("approved", "")]));
    }

    #[tokio::test]
    async fn what_nobody_decides_times_out() {
        let lab = Lab::new();
        let within = Duration::from_millis(100);
        let before = Instant::now();
        let mut parked = lab.park_for(&conn(1), within).unwrap();
        assert!(matches!(parked.outcome().await, Outcome::TimedOut));
        assert!(before.elapsed() >= within);
        let error = lab.approvals.show(&parked.question.approval).unwrap_err().to_string();
        assert!(error.contains("nobody had decided in time"), "{error}");
        drop(parked);
        assert_eq!(lab.told(), told(&[("asked", ""), ("timed_out", "")]));
    }

    #[tokio::test]
    async fn whoever_leaves_withdraws() {
        let lab = Lab::new();
        let conn = conn(1);
        lab.park(&conn).unwrap().withdraw("operator_stop", Some("stp-1"));
        drop(lab.park(&conn).unwrap());
        let mut parked = lab.park(&conn).unwrap();
        lab.approvals.cancelled_by_agent(&conn, None, RawId::of("8"));
        lab.approvals.cancelled_by_agent(&super::tests::conn(2), None, RawId::of("7"));
        assert_eq!(lab.approvals.len(), 1, "another id, another agent");
        lab.approvals.cancelled_by_agent(&conn, None, RawId::of("7"));
        assert!(matches!(parked.outcome().await, Outcome::Withdrawn("agent_cancelled")));
        let mut parked = lab.park(&conn).unwrap();
        lab.approvals.close();
        assert!(matches!(parked.outcome().await, Outcome::Withdrawn("drain")));
        assert_eq!(lab.park(&conn).unwrap_err(), "the daemon ends");
        let asked = ("asked", "");
        let withdrawn = |cause| ("withdrawn", cause);
        let [stop, drain] = ["operator_stop", "drain"].map(withdrawn);
        assert_eq!(
            lab.told(),
            told(&[asked, stop, asked, drain, asked, withdrawn("agent_cancelled"), asked, drain])
        );
    }

    #[test]
    fn one_agent_cannot_take_all_the_room() {
        let lab = Lab::new();
        let mut parked = Vec::new();
        for number in 1.. {
            let conn = conn(number);
            let of_one = std::iter::from_fn(|| lab.park(&conn).ok());
            let before = parked.len();
            parked.extend(of_one);
            if parked.len() == before {
                break;
            }
            assert_eq!(parked.len() - before, PER_AGENT);
        }
        assert_eq!(parked.len(), MOST);
        let mut ids: Vec<_> = parked.iter().map(|parked| Arc::clone(&parked.question.approval)).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), MOST);
        parked.clear();
        assert!(lab.approvals.is_empty() && lab.park(&conn(1)).is_ok());
    }
}
