//! The rules file, read at the start and whenever it changes. A bad file changes nothing: the last good rules keep
//! holding, and the mistake is loud in the log, the metrics, the records and `interlock status`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use jiff::Timestamp;
use notify::event::ModifyKind;
use notify::{EventKind, RecursiveMode, Watcher};
use serde::Serialize;
use tokio::sync::mpsc;
use tracing::{error, info};

use crate::config::parse_yaml;
use crate::decide::limit::{Limit, Tag};
use crate::decide::policy::{Bias, Policy, PolicyFile};
use crate::parts::Parts;
use crate::record::entry::{Entry, PolicyEntry};

/// Reads and checks a rules file. Returns its text beside.
pub fn load(path: &Path) -> Result<(Policy, String)> {
    let text = read(path)?;
    Ok((parse(&text, path)?, text))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn parse(text: &str, path: &Path) -> Result<Policy> {
    let file: PolicyFile = parse_yaml(text, path)?;
    Policy::compile(file).map_err(|fault| {
        let place = fault.place(text).map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
        anyhow::Error::new(fault).context(format!("{}{place}", path.display()))
    })
}

/// Keeps the rules in force in line with their file.
#[derive(Debug)]
pub struct Reloader {
    path: PathBuf,
    parts: Arc<Parts>,
    outcome: Mutex<Outcome>,
    /// The text that was read last, good or bad.
    text: Mutex<String>,
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
    /// The rules of `path` are in force already, as this text said.
    pub fn new(path: PathBuf, text: String, parts: Arc<Parts>) -> Reloader {
        let outcome = Mutex::new(Outcome { at: Timestamp::now(), error: None });
        Reloader { path, parts, outcome, text: Mutex::new(text) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn outcome(&self) -> Outcome {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file if it says something else than when it was read last.
    pub fn reload_if_changed(&self) {
        // An unreadable file is a change too, once.
        let text = read(&self.path).unwrap_or_default();
        if text != *self.text.lock().unwrap_or_else(PoisonError::into_inner) {
            self.reload();
        }
    }

    /// Reads the file now.
    pub fn reload(&self) {
        let text = read(&self.path);
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) =
            text.as_deref().unwrap_or_default().to_owned();
        let result = text.and_then(|text| parse(&text, &self.path)).and_then(|policy| self.publish(policy));
        let error = match result {
            Ok(generation) => {
                info!(generation, "rules reloaded");
                None
            }
            Err(fault) => {
                let text = format!("{fault:#}");
                error!(error = text, "rules not reloaded; the last good ones are in force");
                let rules = self.parts.gate.rules();
                self.parts.log.record(&Entry::Policy(PolicyEntry {
                    generation: rules.generation,
                    rules: rules.policy.len(),
                    error: Some(&text),
                }));
                Some(text)
            }
        };
        self.parts.metrics.policy_reloaded(error.is_none());
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) =
            Outcome { at: Timestamp::now(), error };
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
