//! The pods of this node, as the API server last told of them. Kept on disk, so that a daemon that starts while no API
//! server answers knows them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::warn;

use super::place::Uid;
use super::pod::Pod;
use crate::state;

/// Below `state_dir`.
const FILE: &str = "pods.json";
const VERSION: u32 = 1;

/// By the uid that the pod's cgroup has.
pub type ByUid = HashMap<Uid, Arc<Pod>>;

/// What is known of this node's pods.
#[derive(Debug)]
pub struct Directory {
    /// Read at every look at the cgroup tree, without a lock.
    pods: ArcSwap<ByUid>,
    /// Taken by whoever changes them.
    writer: Mutex<Writer>,
    /// Whether the API server has told all at least once, to us or to an earlier daemon.
    is_complete: AtomicBool,
    /// Why nothing is heard from the API server, while nothing is.
    fault: Mutex<Option<String>>,
    changed: Notify,
    file: PathBuf,
}

#[derive(Debug, Default)]
struct Writer {
    /// The API server has these no more; their processes may still be there.
    deleted: HashSet<Uid>,
    is_unsaved: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    pods: ByUid,
}

impl Directory {
    /// With what an earlier daemon knew. A file that cannot be read is one that is not there: the API server tells all
    /// again.
    pub fn load(state_dir: &Path) -> Directory {
        let file = state_dir.join(FILE);
        let known = read(&file).unwrap_or_else(|error| {
            warn!(error = format!("{error:#}"), "pods are not known until the API server tells of them");
            None
        });
        Directory {
            is_complete: AtomicBool::new(known.is_some()),
            pods: ArcSwap::from_pointee(known.unwrap_or_default()),
            writer: Mutex::default(),
            fault: Mutex::default(),
            changed: Notify::new(),
            file,
        }
    }

    pub fn pods(&self) -> Arc<ByUid> {
        self.pods.load_full()
    }

    /// Whether who is not in it is a pod that has just come.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Waits for the next change. Changes since the last call count.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Why nothing is heard from the API server.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_fault(&self, fault: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// These are all.
    pub(super) fn set_all(&self, all: ByUid) {
        self.change(true, |pods, writer| {
            writer.deleted = pods.keys().filter(|uid| !all.contains_key(uid)).cloned().collect();
            pods.extend(all);
        });
        self.is_complete.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    pub(super) fn set(&self, uid: Uid, pod: Pod) {
        if self.pods.load().get(&uid).is_some_and(|known| **known == pod) {
            return;
        }
        self.change(self.is_complete(), |pods, writer| {
            writer.deleted.remove(&uid);
            pods.insert(uid, Arc::new(pod));
        });
        self.changed.notify_one();
    }

    /// The API server has it no more. It is known for as long as it has a cgroup: a pod that was deleted by force goes on.
    pub(super) fn delete(&self, uid: Uid) {
        self.writer().deleted.insert(uid);
        self.changed.notify_one();
    }

    /// Forgets those that were deleted and are not among these, which have cgroups.
    pub fn keep(&self, seen: &HashSet<Uid>) {
        let is_over = |uid: &Uid| !seen.contains(uid);
        if !self.writer().deleted.iter().any(is_over) {
            return;
        }
        self.change(self.is_complete(), |pods, writer| {
            writer.deleted.retain(|uid| {
                if is_over(uid) {
                    pods.remove(uid);
                }
                !is_over(uid)
            });
        });
    }

    /// A part is not told to the next daemon.
    fn change(&self, is_complete: bool, change: impl FnOnce(&mut ByUid, &mut Writer)) {
        let mut writer = self.writer();
        let mut pods = ByUid::clone(&self.pods.load());
        change(&mut pods, &mut writer);
        // On disk first: what an agent is held and stopped by must be known to a daemon that starts the moment after.
        writer.is_unsaved = true;
        if is_complete {
            match self.write(&pods) {
                Ok(()) => writer.is_unsaved = false,
                Err(error) => warn!(error = format!("{error:#}"), "pods not saved yet"),
            }
        }
        self.pods.store(Arc::new(pods));
    }

    /// Writes to disk what could not be written when it changed.
    pub fn save(&self) -> Result<()> {
        // Held while it is written, so that nothing newer is written over.
        let mut writer = self.writer();
        if self.is_complete() && writer.is_unsaved {
            self.write(&self.pods())?;
            writer.is_unsaved = false;
        }
        Ok(())
    }

    fn write(&self, pods: &ByUid) -> Result<()> {
        let bytes = serde_json::to_vec(&Content { version: VERSION, pods: pods.clone() })?;
        state::replace(&self.file, &bytes).with_context(|| format!("write {}", self.file.display()))
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None`: there is none.
fn read(file: &Path) -> Result<Option<ByUid>> {
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        bytes => bytes.with_context(|| format!("read {}", file.display()))?,
    };
    let content: Content = serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
    anyhow::ensure!(
        content.version == VERSION,
        "{}: version {} is not known",
        file.display(),
        content.version
    );
    Ok(Some(content.pods))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(n: u8) -> Uid {
        Uid::parse(&format!("5a1d0c1e-0000-4000-8000-0000000000{n:02x}")).unwrap()
    }

    fn pod(name: &str) -> Pod {
        Pod { namespace: "agents".into(), name: name.into(), ..Pod::default() }
    }

    fn names(directory: &Directory) -> Vec<String> {
        let mut names: Vec<_> = directory.pods().values().map(|pod| pod.name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_known_is_known_again_and_complete() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::load(dir.path());
        directory.set(uid(1), pod("a"));
        directory.save().unwrap();
        assert!(!Directory::load(dir.path()).is_complete(), "a part is not told to the next daemon");
        directory.set_all([(uid(1), Arc::new(pod("a"))), (uid(2), Arc::new(pod("b")))].into());
        directory.save().unwrap();
        let next = Directory::load(dir.path());
        assert!(next.is_complete());
        assert_eq!(names(&next), ["a", "b"]);
    }

    #[test]
    fn a_deleted_pod_is_known_while_it_has_a_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::load(dir.path());
        directory.set_all([(uid(1), Arc::new(pod("a"))), (uid(2), Arc::new(pod("b")))].into());
        directory.delete(uid(1));
        directory.keep(&[uid(1)].into());
        assert_eq!(names(&directory), ["a", "b"]);
        directory.keep(&HashSet::new());
        assert_eq!(names(&directory), ["b"], "that has no cgroup yet");
        // Deleted while nobody listened.
        directory.set_all([(uid(3), Arc::new(pod("c")))].into());
        assert_eq!(names(&directory), ["b", "c"]);
        directory.keep(&HashSet::new());
        assert_eq!(names(&directory), ["c"]);
    }

    #[test]
    fn a_broken_file_is_none_at_all() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{}", r#"{"version": 2, "pods": {}}"#] {
            fs::write(dir.path().join(FILE), text).unwrap();
            let directory = Directory::load(dir.path());
            assert!(!directory.is_complete() && directory.pods().is_empty(), "{text:?}");
        }
    }
}
