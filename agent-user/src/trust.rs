//! What documents say is trusted: a file, read at the start and whenever it changes, and beside it the objects that the API
//! server tells of. What is bad changes nothing: what was read last of it stays, and the mistake is loud in the log, the
//! metrics, the records and `interlock status`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use tracing::{error, info};

use crate::baseline::{Authority, Document};
use crate::fleet::baselines::Baselines;
use crate::parts::Parts;
use crate::record::entry::{Entry, PolicyEntry};

/// Where the documents come from.
#[derive(Debug)]
pub struct Trust {
    /// Absent: there is no file.
    path: Option<PathBuf>,
    objects: Option<Arc<Baselines>>,
    last: Mutex<Last>,
}

/// What was read last of the file.
#[derive(Debug, Default)]
struct Last {
    /// Good or bad.
    text: String,
    error: Option<String>,
    /// The last good one.
    document: Option<Arc<Document>>,
}

impl Trust {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// Name the file, the line and the remedy.
    pub fn load(path: Option<&Path>, objects: Option<Arc<Baselines>>) -> Result<(Trust, Option<Authority>)> {
        let mut last = Last::default();
        if let Some(path) = path {
            last.text = read(path)?;
            last.document = Some(parse(&last.text, path)?);
        }
        let trust = Trust { path: path.map(ToOwned::to_owned), objects, last: Mutex::new(last) };
        let authority = trust.authority(&trust.last());
        Ok((trust, authority))
    }

    /// Reads the file again if it says something else than when it was read last.
    pub fn reload_if_changed(&self, parts: &Parts) {
        let Some(path) = &self.path else { return };
        let text = read(path);
        let mut last = self.last();
        // An unreadable file is a change too, once.
        if last.text == text.as_deref().unwrap_or_default() {
            return;
        }
        text.as_deref().unwrap_or_default().clone_into(&mut last.text);
        let read = text.and_then(|text| parse(&text, path)).map(|document| {
            last.document = Some(document);
            self.publish(parts, &last);
        });
        last.error = read.err().map(|fault| format!("{fault:#}"));
        last.error.iter().for_each(|error| tell_of(parts, error));
        parts.metrics.policy_reloaded(last.error.is_none());
    }

    /// Puts in force what the API server tells of now.
    pub fn join(&self, parts: &Parts) {
        let Some(objects) = &self.objects else { return };
        let faults = objects.new_faults();
        self.publish(parts, &self.last());
        faults.iter().for_each(|fault| tell_of(parts, fault));
        parts.metrics.policy_reloaded(faults.is_empty());
    }

    /// The objects that the API server tells of, if it is asked.
    pub fn objects(&self) -> Option<&Arc<Baselines>> {
        self.objects.as_ref()
    }

    /// Why the file as it is now does not hold. `None`: there is no file.
    pub fn file_error(&self) -> Option<Option<String>> {
        self.path.as_ref().map(|_| self.last().error.clone())
    }

    /// It is in force for whoever reads the rules from now on.
    fn publish(&self, parts: &Parts, last: &Last) {
        parts.baseline.set_authority(self.authority(last));
        // After that, so that what is decided by the new generation is decided by this.
        let generation = parts.gate.renew();
        parts.metrics.policy_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        let rules = parts.gate.rules().policy.len();
        parts.log.record(&Entry::Policy(PolicyEntry { generation, rules, error: None }));
        let objects = self.objects.as_ref().map_or(0, |objects| objects.count());
        info!(generation, objects, "what is trusted was read again");
    }

    fn authority(&self, last: &Last) -> Option<Authority> {
        let objects = self.objects.as_ref().map(|objects| objects.documents()).unwrap_or_default();
        let is_closed = self.objects.as_ref().is_some_and(|objects| objects.unreadable().is_some());
        // To go by first use where objects were in force would trust whatever comes.
        let closed = is_closed.then_some("baselines.json, which cannot be read,");
        Authority::new(last.document.clone(), objects, closed)
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A mistake is loud; what it is about stays as it was.
fn tell_of(parts: &Parts, fault: &str) {
    error!(error = fault, "what is trusted was not read again; what was read last holds");
    let rules = parts.gate.rules();
    parts.log.record(&Entry::Policy(PolicyEntry {
        generation: rules.generation,
        rules: rules.policy.len(),
        error: Some(fault),
    }));
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn parse(text: &str, path: &Path) -> Result<Arc<Document>> {
    Ok(Arc::new(Document::of_file(text).map_err(|fault| anyhow!("{}: {fault}", path.display()))?))
}
