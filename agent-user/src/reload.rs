//! The rules file, read at the start and whenever it changes, and beside it the rules that the API server tells of. A bad
//! file changes nothing: the last good rules keep holding, and the mistake is loud in the log, the metrics, the records and
//! `interlock status`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use jiff::Timestamp;
use notify::event::ModifyKind;
use notify::{EventKind, RecursiveMode, Watcher};
use serde::Serialize;
use tokio::sync::mpsc;
use tracing::{error, info};

use crate::config::parse_yaml;
use crate::decide::limit::{Limit, Tag};
use crate::decide::policy::{Bias, Fault, Policy, PolicyFile};
use crate::fleet::policies::Policies;
use crate::parts::Parts;
use crate::record::entry::{Entry, PolicyEntry};

/// A rules file that was read and is good; by default none, without rules.
#[derive(Debug, Default)]
pub struct Loaded {
    pub text: String,
    pub file: PolicyFile,
    pub policy: Policy,
}

/// Reads and checks a rules file.
pub fn load(path: &Path) -> Result<Loaded> {
    let text = read(path)?;
    let file: PolicyFile = parse_yaml(&text, path)?;
    let policy = join(&file, None).map_err(|fault| placed(fault, &text, path))?;
    Ok(Loaded { text, file, policy })
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// The rules of a file and those that the API server tells of.
pub fn join(file: &PolicyFile, policies: Option<&Policies>) -> Result<Policy, Fault> {
    let mut file = file.clone();
    file.rules.extend(policies.into_iter().flat_map(Policies::rules));
    Policy::compile(file)
}

/// Says where in a rules file a mistake is.
fn placed(fault: Fault, text: &str, path: &Path) -> anyhow::Error {
    let place = fault.place(text).map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
    anyhow::Error::new(fault).context(format!("{}{place}", path.display()))
}

/// Keeps the rules in force in line with their file, and with what the API server tells of.
#[derive(Debug)]
pub struct Reloader {
    /// Absent: there is no rules file.
    path: Option<PathBuf>,
    policies: Option<Arc<Policies>>,
    parts: Arc<Parts>,
    outcome: Mutex<Outcome>,
    /// What was read last.
    read: Mutex<Read>,
}

#[derive(Debug)]
struct Read {
    /// Good or bad.
    text: String,
    /// The last good one.
    file: PolicyFile,
}

/// The last reload.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub at: Timestamp,
    /// Why the file was not taken; the rules before it are in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Reloader {
    /// The rules of `loaded`, read from `path`, and those of `policies` are in force already.
    pub fn new(
        path: Option<PathBuf>,
        loaded: Loaded,
        policies: Option<Arc<Policies>>,
        parts: Arc<Parts>,
    ) -> Reloader {
        let outcome = Mutex::new(Outcome { at: Timestamp::now(), error: None });
        let read = Mutex::new(Read { text: loaded.text, file: loaded.file });
        Reloader { path, policies, parts, outcome, read }
    }

    /// The rules file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What the API server tells of, if it is asked.
    pub fn policies(&self) -> Option<&Arc<Policies>> {
        self.policies.as_ref()
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file if it says something else than when it was read last.
    pub fn reload_if_changed(&self) {
        let Some(path) = &self.path else { return };
        // An unreadable file is a change too, once.
        let text = read(path).unwrap_or_default();
        let is_changed = text != self.read().text;
        if is_changed {
            self.reload();
        }
    }

    /// Reads the file now.
    pub fn reload(&self) {
        let Some(path) = &self.path else { return };
        let mut last = self.read();
        let text = read(path);
        text.as_deref().unwrap_or_default().clone_into(&mut last.text);
        let result = text.and_then(|text| {
            let file = parse_yaml(&text, path)?;
            let policy = join(&file, self.policies.as_deref()).map_err(|fault| placed(fault, &text, path))?;
            last.file = file;
            self.publish(policy)
        });
        let error = match result {
            Ok(generation) => {
                info!(generation, "rules reloaded");
                None
            }
            Err(fault) => Some(format!("{fault:#}")),
        };
        if let Some(error) = &error {
            self.tell_of(error);
        }
        self.parts.metrics.policy_reloaded(error.is_none());
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) =
            Outcome { at: Timestamp::now(), error };
    }

    /// Puts in force what the API server tells of now.
    pub fn join(&self) {
        let Some(policies) = &self.policies else { return };
        let mut faults = policies.new_faults();
        let last = self.read();
        let policy = join(&last.file, Some(policies)).map_err(anyhow::Error::from);
        match policy.and_then(|policy| self.publish(policy)) {
            Ok(generation) => {
                info!(generation, policies = policies.count(), "rules of the API server in force")
            }
            Err(fault) => faults.push(format!("{fault:#}")),
        }
        faults.iter().for_each(|fault| self.tell_of(fault));
        self.parts.metrics.policy_reloaded(faults.is_empty());
    }

    /// A mistake is loud; what it is about stays as it was.
    fn tell_of(&self, fault: &str) {
        error!(error = fault, "rules not reloaded; the last good ones are in force");
        let rules = self.parts.gate.rules();
        self.parts.log.record(&Entry::Policy(PolicyEntry {
            generation: rules.generation,
            rules: rules.policy.len(),
            error: Some(fault),
        }));
    }

    fn publish(&self, policy: Policy) -> Result<u64> {
        let quic = policy.quic();
        let rules = policy.len();
        self.parts.kernel.allow_udp(quic == Bias::Allow)?;
        let limits: Vec<Tag> = policy.limits().map(Limit::tag).collect();
        let generation = self.parts.gate.set_policy(policy);
        // What was counted for a rule that is another one now counts for nothing.
        self.parts.counts.keep_only(&limits);
        self.parts.metrics.policy_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        self.parts.log.record(&Entry::Policy(PolicyEntry { generation, rules, error: None }));
        Ok(generation)
    }

    fn read(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals what may be a change of a file. Its directory is watched, because editors and Kubernetes replace files
/// instead of writing to them; writes to its neighbours are passed over.
pub fn watch(file: &Path) -> Result<(notify::RecommendedWatcher, mpsc::Receiver<()>)> {
    let dir = file.parent().unwrap_or(Path::new("/"));
    let name = file.file_name().map(ToOwned::to_owned);
    let concerns = move |event: &notify::Event| {
        !event.kind.is_modify()
            || matches!(event.kind, EventKind::Modify(ModifyKind::Name(_)))
            || event.paths.iter().any(|path| path.file_name() == name.as_deref())
    };
    let (mut watcher, changes) = watcher(concerns)?;
    watcher.watch(dir, RecursiveMode::NonRecursive).with_context(|| format!("watch {}", dir.display()))?;
    Ok((watcher, changes))
}

/// A watcher of nothing yet. Changes that come while one is pending are one change.
pub fn watcher(
    concerns: impl Fn(&notify::Event) -> bool + Send + 'static,
) -> Result<(notify::RecommendedWatcher, mpsc::Receiver<()>)> {
    let (sender, changes) = mpsc::channel(1);
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access() && concerns(&event)) {
            // Full: a change is pending already.
            let _ = sender.try_send(());
        }
    })
    .context("watch files (inotify)")?;
    Ok((watcher, changes))
}
