//! Counts over an hour or more outlive the daemon: a file, replaced whole. It is written every 30 seconds at most, and
//! when the daemon ends: one that is killed has forgotten what the last 30 seconds have used up.
//!
//! Bias: a file that cannot be read is not an empty one. Its limits let nothing through until a person has repaired or
//! removed it, for whoever could spoil it would have a new budget.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tracing::{error, warn};

use super::{Count, Entry, Id, Limits, is_kept};
use crate::decide::limit::{Span, Tag, Window};
use crate::state;

const FILE: &str = "limits.json";
const VERSION: u32 = 1;
/// How often changed counts are saved.
pub const SAVE_EVERY: Duration = Duration::from_secs(30);

/// Where counts are saved.
#[derive(Debug, Default)]
pub(super) struct File {
    /// `None`: nowhere.
    path: Option<PathBuf>,
    /// Why the counts could not be read, with the remedy.
    fault: Option<String>,
    /// When they were saved last. Held while they are being saved.
    saved: Mutex<Option<Instant>>,
}

impl File {
    pub(super) fn is_lost(&self) -> bool {
        self.fault.is_some()
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    counts: Vec<Saved>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    /// Agent that answers for it.
    agent: Arc<str>,
    /// [`Tag`] and digest of its key, in hexadecimal digits.
    id: String,
    /// Microseconds.
    slice_us: u64,
    /// Numbers of slices since 1970, and what each has.
    slices: Vec<(u64, u64)>,
}

impl Limits {
    /// What was counted before the restart. What cannot be read is a [`Limits::fault`].
    pub fn load(dir: &Path, now: Instant) -> Limits {
        let path = dir.join(FILE);
        let (content, fault) = match read(&path) {
            Ok(content) => (content, None),
            Err(fault) => {
                let fault = format!("{fault:#}");
                error!(fault, "limits over an hour or more let nothing through until this is repaired");
                (Vec::new(), Some(fault))
            }
        };
        let limits = Limits::new(File { path: Some(path), fault, saved: Mutex::default() }, now);
        let at = limits.micros(now);
        for (id, agent, span, slices) in content {
            let window = Window::restore(span, at, &slices);
            if window.is_over(span, at) {
                continue;
            }
            // There was room for all of them, whoever comes first now.
            limits.owners().add(&agent);
            let count = Mutex::new(Count::Within(span, window));
            limits.shard(&id).insert(id, Arc::new(Entry { owner: agent, count }));
        }
        limits
    }

    /// Why the counts of before the restart could not be read, with the remedy.
    pub fn fault(&self) -> Option<&str> {
        self.file.fault.as_deref()
    }

    /// Something is to be saved, and it is time to.
    pub fn is_due(&self, now: Instant) -> bool {
        self.changed.load(Ordering::Relaxed)
            // Taken: it is being saved.
            && self.file.saved.try_lock().is_ok_and(|saved| {
                saved.is_none_or(|last| now.saturating_duration_since(last) >= SAVE_EVERY)
            })
    }

    /// Saves the counts, if they have changed. What fails is tried again when it is due again. Waits for the disk.
    pub fn save(&self, now: Instant) {
        let mut saved = self.file.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = self.file.path.as_deref().filter(|_| !self.file.is_lost()) else { return };
        // What changes from here on is for the next time.
        if !self.changed.swap(false, Ordering::Relaxed) {
            return;
        }
        *saved = Some(now);
        let content = Content { version: VERSION, counts: self.kept(self.micros(now)) };
        let bytes = serde_json::to_vec(&content).map_err(anyhow::Error::from);
        if let Err(error) = bytes.and_then(|bytes| Ok(state::replace(path, &bytes)?)) {
            self.changed.store(true, Ordering::Relaxed);
            let error = format!("write {}: {error:#}", path.display());
            warn!(error, "counts of limits not saved; a restart would forget them");
        }
    }

    /// The counts that outlive the daemon.
    fn kept(&self, at: u64) -> Vec<Saved> {
        let mut kept = Vec::new();
        for shard in &self.shards {
            let entries: Vec<(Id, Arc<Entry>)> = {
                let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                shard.iter().map(|(id, entry)| (*id, Arc::clone(entry))).collect()
            };
            for (id, entry) in entries {
                if let Count::Within(span, window) = &*entry.count()
                    && is_kept(*span)
                    && !window.is_over(*span, at)
                {
                    kept.push(Saved {
                        agent: Arc::clone(&entry.owner),
                        id: write_id(id),
                        slice_us: span.slice_us(),
                        slices: window.slices().collect(),
                    });
                }
            }
        }
        kept
    }
}

type Restored = (Id, Arc<str>, Span, Vec<(u64, u64)>);

/// Reads a file of counts; one that is not there is empty. Errors carry the remedy.
fn read(path: &Path) -> Result<Vec<Restored>> {
    let remedy = || {
        format!(
            "limits {}: restore it, or remove it to start with nothing counted; then restart",
            path.display()
        )
    };
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.with_context(remedy)?,
    };
    let content: Content = serde_json::from_slice(&bytes).with_context(remedy)?;
    if content.version != VERSION {
        bail!("version {} is not known; run the interlock that wrote it ({})", content.version, remedy());
    }
    let counts = content.counts.into_iter().map(|saved| {
        let id = read_id(&saved.id).with_context(|| format!("id {:?}", saved.id))?;
        Ok((id, saved.agent, Span::of_slice(saved.slice_us), saved.slices))
    });
    counts.collect::<Result<_>>().with_context(remedy)
}

fn write_id((Tag(tag), digest): Id) -> String {
    format!("{tag:016x}{:032x}", u128::from_be_bytes(digest))
}

fn read_id(text: &str) -> Option<Id> {
    let (tag, digest) = text.split_at_checked(16).filter(|_| text.len() == 48)?;
    let digest = u128::from_str_radix(digest, 16).ok()?;
    Some((Tag(u64::from_str_radix(tag, 16).ok()?), digest.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::limit::{Key, Limit, LimitFile};

    fn limit(yaml: &str) -> Limit {
        let file: LimitFile = serde_saphyr::from_str(yaml).unwrap();
        file.compile(&"r".into()).unwrap()
    }

    fn key(limit: &Limit, agent: &str) -> Key {
        limit.key(&agent.into(), &Default::default())
    }

    /// How many calls an agent still has.
    fn left(limits: &Limits, limit: &Limit, agent: &str, now: Instant) -> usize {
        (0..1000).take_while(|_| limits.take(limit, &key(limit, agent), 1, now).is_ok()).count()
    }

    #[test]
    fn what_long_windows_have_counted_outlives_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let (hour, minute) = (limit("{calls: 5, within: 1h}"), limit("{calls: 5, within: 59m}"));
        let now = Instant::now();
        let limits = Limits::load(dir.path(), now);
        assert!(!limits.is_due(now) && limits.fault().is_none());
        for limit in [&hour, &minute] {
            drop(limits.take_all([(limit, &key(limit, "a"), 1), (limit, &key(limit, "a"), 1)], now).unwrap());
            drop(limits.take(limit, &key(limit, "b"), 1, now).unwrap());
        }
        assert!(limits.is_due(now));
        limits.save(now);
        assert!(!limits.is_due(now + SAVE_EVERY));
        drop(limits.take(&hour, &key(&hour, "a"), 1, now).unwrap());
        assert!(!limits.is_due(now + SAVE_EVERY / 2) && limits.is_due(now + SAVE_EVERY));
        limits.save(now);

        let limits = Limits::load(dir.path(), now);
        assert_eq!(limits.owners().total, 2, "short windows are not kept");
        let late = now + Duration::from_secs(60 * 60 + 60);
        assert_eq!([left(&limits, &hour, "a", now), left(&limits, &hour, "b", now)], [2, 4]);
        assert_eq!(left(&limits, &minute, "a", now), 5);
        assert_eq!(left(&limits, &hour, "a", late), 5, "once the window has run out");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_no_new_budget_and_is_left_as_it_is() {
        for text in [
            "",
            "{",
            r#"{"version":9,"counts":[]}"#,
            r#"{"version":1,"counts":[{"agent":"a","id":"0","slice_us":1,"slices":[]}]}"#,
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(FILE), text).unwrap();
            let now = Instant::now();
            let limits = Limits::load(dir.path(), now);
            assert!(limits.fault().unwrap().contains("remove it"), "{:?}", limits.fault());
            let (hour, minute) = (limit("{calls: 5, within: 1h}"), limit("{calls: 5, within: 1m}"));
            let refused = limits.take(&hour, &key(&hour, "a"), 1, now).unwrap_err();
            assert_eq!(refused.label, "limit_lost");
            assert_eq!(left(&limits, &minute, "a", now), 5, "others are not concerned");
            limits.save(now);
            assert_eq!(fs::read_to_string(dir.path().join(FILE)).unwrap(), text);
        }
    }

    #[test]
    fn what_could_not_be_saved_is_saved_later() {
        let dir = tempfile::tempdir().unwrap();
        let (hour, now) = (limit("{calls: 5, within: 1h}"), Instant::now());
        let limits = Limits::load(dir.path(), now);
        drop(limits.take(&hour, &key(&hour, "a"), 1, now).unwrap());
        // A directory where the new file should go: every write fails.
        fs::create_dir(dir.path().join("limits.new")).unwrap();
        limits.save(now);
        assert!(!dir.path().join(FILE).exists() && !limits.is_due(now) && limits.is_due(now + SAVE_EVERY));
        fs::remove_dir(dir.path().join("limits.new")).unwrap();
        limits.save(now + SAVE_EVERY);
        assert_eq!(left(&Limits::load(dir.path(), now), &hour, "a", now), 4);
    }
}
