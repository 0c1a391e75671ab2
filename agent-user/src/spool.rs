//! Orders that the command line carried out with no daemon to ask, until a daemon has taken them up: one file each,
//! below the state directory, in a folder for root only.
//!
//! What cannot be read here may be an order. It is read as the order that nobody regrets: all agents isolated.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tracing::{error, warn};

use crate::decide::stop::{Level, OFFLINE, Operator, Selector, Stop, Terms};
use crate::orders::receipt::Report;
use crate::state::SavedStop;

/// Name of the folder in the state directory.
const DIR: &str = "orders";
const VERSION: u32 = 1;
/// What a stop's id begins with when nobody ordered it: something could not be read, or was found in force.
const CLOSED: &str = "stp-held-";
/// What the name of a file begins with that could not be read and was set aside, for a person to look at.
const ASIDE: &str = "unreadable-";
/// Largest file that is read.
const BOUND: u64 = 16 << 20;

/// The folder of orders that a daemon has not taken up yet.
#[derive(Clone, Debug)]
pub struct Spool {
    dir: PathBuf,
}

/// An order in the spool.
#[derive(Clone, Debug)]
pub struct Left {
    /// Name of its file; empty where the folder itself could not be read.
    pub file: OsString,
    pub stop: Arc<Stop>,
    /// What the command line did about it. `None`: it did not come to write that, or the file cannot be read.
    pub report: Option<Report>,
    /// Why the file, or the folder, could not be read.
    pub fault: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    stop: SavedStop,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    report: Option<Report>,
}

impl Spool {
    /// The spool of a state directory. Touches nothing.
    pub fn new(state_dir: &Path) -> Spool {
        Spool { dir: state_dir.join(DIR) }
    }

    /// Leaves an order, durably and whole or not at all.
    ///
    /// # Errors
    /// It is not there; a daemon that comes does not know of it.
    pub fn leave(&self, stop: &Stop) -> Result<()> {
        self.prepare()?;
        let path = self.path(stop);
        let new = self.write(stop, None)?;
        // Not a rename: that would replace another order of this name.
        let linked = fs::hard_link(&new, &path).with_context(|| format!("write {}", path.display()));
        let _ = fs::remove_file(&new);
        linked?;
        self.sync()
    }

    /// Adds to an order what was done about it, unless a daemon has taken it up meanwhile.
    pub fn complete(&self, stop: &Stop, report: &Report) -> Result<()> {
        let path = self.path(stop);
        let new = self.write(stop, Some(report))?;
        let swapped = renameat2(AT_FDCWD, &new, AT_FDCWD, &path, RenameFlags::RENAME_EXCHANGE);
        let _ = fs::remove_file(&new);
        match swapped {
            Ok(()) => self.sync(),
            Err(nix::errno::Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno).with_context(|| format!("write {}", path.display())),
        }
    }

    /// The orders in files that are not among `seen`. Cheap where there are none.
    pub fn read(&self, seen: &HashSet<OsString>) -> Vec<Left> {
        let names = match self.names() {
            Ok(names) => names,
            Err(_) if seen.contains(OsStr::new("")) => return Vec::new(),
            Err(error) => return vec![closed(OsString::new(), &unique(), format!("{error:#}"))],
        };
        let new = names.into_iter().filter(|name| !seen.contains(name));
        let mut left: Vec<Left> = new.filter_map(|name| self.read_file(name)).collect();
        left.sort_by_key(|left| left.stop.issued_at);
        left
    }

    /// What was done about an order, as its file says now.
    pub fn report_of(&self, left: &Left) -> Option<Report> {
        let now = self.read_file(left.file.clone()).filter(|now| now.fault.is_none());
        now.and_then(|now| now.report).or_else(|| left.report.clone())
    }

    /// A daemon has taken an order up, durably: its file goes. One that could not be read is set aside.
    ///
    /// # Errors
    /// It is still there, and will be taken up again by the next daemon.
    pub fn done(&self, left: &Left) -> Result<()> {
        if left.file.is_empty() {
            return Ok(());
        }
        let path = self.dir.join(&left.file);
        let result = match left.fault {
            None => fs::remove_file(&path),
            Some(_) => fs::rename(&path, self.dir.join(format!("{ASIDE}{}", unique()))),
        };
        match result {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", path.display()))
            }
            _ => self.sync(),
        }
    }

    fn prepare(&self) -> Result<()> {
        let subject = || format!("create {}", self.dir.display());
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).with_context(subject)?;
        // Whoever can write here can stop agents; it may have been made by hand.
        fs::set_permissions(&self.dir, Permissions::from_mode(0o700)).with_context(subject)
    }

    /// Names of what may be orders.
    fn names(&self) -> Result<Vec<OsString>> {
        let subject = || format!("read {}", self.dir.display());
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(subject)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.with_context(subject)?.file_name();
            let bytes = name.as_encoded_bytes();
            // A file that begins with a dot is still being written.
            if !bytes.starts_with(b".") && !bytes.starts_with(ASIDE.as_bytes()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// `None`: the file has gone since it was listed.
    fn read_file(&self, name: OsString) -> Option<Left> {
        match self.parse(&name) {
            Ok((stop, report)) => Some(Left { file: name, stop: Arc::new(stop), report, fault: None }),
            Err(error)
                if error
                    .downcast_ref::<std::io::Error>()
                    .is_some_and(|e| e.kind() == ErrorKind::NotFound) =>
            {
                None
            }
            Err(error) => {
                let id = self.incarnation(&name);
                Some(closed(name, &id, format!("{error:#}")))
            }
        }
    }

    /// Tells a file that cannot be read from any other, before and after a restart alike.
    fn incarnation(&self, name: &OsStr) -> String {
        let changed = fs::symlink_metadata(self.dir.join(name)).and_then(|about| about.modified());
        let changed = changed.ok().and_then(|at| Timestamp::try_from(at).ok()).unwrap_or_default();
        let digest = Sha256::digest(name.as_encoded_bytes());
        let name: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{name}", changed.strftime("%Y%m%dT%H%M%S%3f"))
    }

    fn parse(&self, name: &OsStr) -> Result<(Stop, Option<Report>)> {
        let path = self.dir.join(name);
        // A link leads elsewhere, and a pipe would keep us waiting.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        let file = file.with_context(|| format!("order {}", path.display()))?;
        let about = file.metadata().context("order")?;
        ensure!(about.is_file(), "order {}: not a file", path.display());
        let is_ours = about.uid() == nix::unistd::geteuid().as_raw() && about.mode() & 0o022 == 0;
        ensure!(is_ours, "order {}: others may write to it", path.display());
        let mut bytes = Vec::new();
        file.take(BOUND + 1).read_to_end(&mut bytes).with_context(|| format!("order {}", path.display()))?;
        if bytes.len() as u64 > BOUND {
            bail!("order {}: larger than {BOUND} bytes", path.display());
        }
        let content: Content =
            serde_json::from_slice(&bytes).with_context(|| format!("order {}", path.display()))?;
        ensure!(
            content.version == VERSION,
            "order {}: version {} is not known",
            path.display(),
            content.version
        );
        let stop = content.stop.restore().with_context(|| format!("order {}", path.display()))?;
        let is_own = stop.id.starts_with(OFFLINE)
            && stop.id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && file_name(&stop.id) == *name;
        ensure!(is_own, "order {}: its id is not that of its file", path.display());
        stop.selector.permits(stop.level).map_err(anyhow::Error::msg)?;
        Ok((stop, content.report))
    }

    fn path(&self, stop: &Stop) -> PathBuf {
        self.dir.join(file_name(&stop.id))
    }

    /// Writes a whole new file beside the orders.
    fn write(&self, stop: &Stop, report: Option<&Report>) -> Result<PathBuf> {
        let content = Content { version: VERSION, stop: SavedStop::from(stop), report: report.cloned() };
        let path = self.dir.join(format!(".{}", file_name(&stop.id).to_string_lossy()));
        let write = || -> std::io::Result<()> {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            file.write_all(&serde_json::to_vec(&content)?)?;
            file.sync_all()
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&path);
            return Err(error).with_context(|| format!("write {}", path.display()));
        }
        Ok(path)
    }

    fn sync(&self) -> Result<()> {
        let sync = File::open(&self.dir).and_then(|dir| dir.sync_all());
        sync.with_context(|| format!("sync {}", self.dir.display()))
    }
}

/// An id for a stop that the command line carries out: `stp-off-`, when, and by which process.
pub fn offline_id() -> String {
    format!("{OFFLINE}{}-{}", Timestamp::now().strftime("%Y%m%dT%H%M%S"), std::process::id())
}

/// A stop that nobody ordered, because what is known does not say that agents may run.
pub fn closed_stop(selector: Selector, level: Level, reason: &str) -> Arc<Stop> {
    closed_as(&unique(), selector, level, reason)
}

fn closed_as(id: &str, selector: Selector, level: Level, reason: &str) -> Arc<Stop> {
    Arc::new(Stop {
        id: format!("{CLOSED}{id}").into(),
        selector,
        level,
        reason: reason.into(),
        by: Operator { user: "interlock".to_owned(), ..Operator::default() },
        issued_at: Timestamp::now(),
        escalations: Vec::new(),
        refused: Arc::default(),
    })
}

/// All agents: what is assumed of an order that cannot be read.
pub fn everybody() -> Selector {
    Selector::compile(Terms { all: true, ..Terms::default() }).expect("`all` alone is a selector")
}

fn closed(file: OsString, id: &str, fault: String) -> Left {
    error!(
        fault,
        "an order that was left cannot be read: everybody is held isolated until a person releases that"
    );
    let reason = "interlock cannot read an order that was left for it";
    let stop = closed_as(id, everybody(), Level::Isolate, reason);
    Left { file, stop, report: None, fault: Some(fault) }
}

fn file_name(id: &str) -> OsString {
    format!("{id}.json").into()
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let now = Timestamp::now().strftime("%Y%m%dT%H%M%S%3f").to_string();
    format!("{now}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Says that a file stays, and what that means.
pub fn warn_stays(left: &Left, error: &anyhow::Error) {
    warn!(
        stop = &*left.stop.id,
        error = format!("{error:#}"),
        "an order that was taken up stays in the spool; the next daemon will take it up again"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stop(id: &str) -> Stop {
        Stop {
            id: id.into(),
            level: Level::Freeze,
            reason: "odd".into(),
            issued_at: Timestamp::now(),
            ..Stop::drill(everybody(), Level::Freeze)
        }
    }

    fn spool() -> (tempfile::TempDir, Spool) {
        let dir = tempfile::tempdir().unwrap();
        let spool = Spool::new(dir.path());
        (dir, spool)
    }

    #[test]
    fn order_is_read_back_once_and_goes_when_it_is_done() {
        let (_dir, spool) = spool();
        assert_eq!(spool.read(&HashSet::new()).len(), 0, "nothing was ever left");
        spool.leave(&stop("stp-off-1")).unwrap();
        spool.leave(&stop("stp-off-1")).expect_err("never two of one name");
        let left = spool.read(&HashSet::new());
        assert_eq!((&*left[0].stop.id, left[0].stop.level, left.len()), ("stp-off-1", Level::Freeze, 1));
        assert!(spool.read(&HashSet::from([left[0].file.clone()])).is_empty());
        let report = Report { in_force: true, ..Report::default() };
        spool.complete(&stop("stp-off-1"), &report).unwrap();
        assert!(spool.report_of(&left[0]).unwrap().in_force);
        spool.done(&left[0]).unwrap();
        spool.complete(&stop("stp-off-1"), &report).unwrap();
        assert!(spool.read(&HashSet::new()).is_empty(), "what was taken up does not come back");
        assert_eq!(fs::metadata(&spool.dir).unwrap().mode() & 0o777, 0o700);
    }

    #[track_caller]
    fn check_closed(make: impl FnOnce(&Path)) {
        let (_dir, spool) = spool();
        spool.prepare().unwrap();
        make(&spool.dir);
        let left = spool.read(&HashSet::new());
        assert_eq!(left.len(), 1);
        assert!(left[0].fault.is_some() && left[0].stop.selector.is_any_agent(), "{left:?}");
        assert_eq!(left[0].stop.level, Level::Isolate);
        assert_eq!(spool.read(&HashSet::new())[0].stop.id, left[0].stop.id, "the same one after a restart");
        spool.done(&left[0]).unwrap();
        assert!(spool.read(&HashSet::new()).is_empty(), "it is set aside");
        assert_eq!(fs::read_dir(&spool.dir).unwrap().count(), 1, "and kept");
    }

    #[test]
    fn what_cannot_be_read_holds_everybody() {
        let content = |id: &str| {
            serde_json::to_vec(&Content { version: 1, stop: SavedStop::from(&stop(id)), report: None })
                .unwrap()
        };
        let write = |name: &'static str, bytes: Vec<u8>| {
            move |dir: &Path| {
                let options =
                    OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(name));
                options.unwrap().write_all(&bytes).unwrap();
            }
        };
        check_closed(write("stp-off-1.json", b"{".to_vec()));
        check_closed(write("stp-off-1.json", content("stp-off-2")));
        check_closed(write("stp-7.json", content("stp-7")));
        check_closed(write("stp-off-\n..json", content("stp-off-\n.")));
        check_closed(|dir| fs::create_dir(dir.join("a folder")).unwrap());
        check_closed(|dir| std::os::unix::fs::symlink("/dev/zero", dir.join("stp-off-1.json")).unwrap());
        check_closed(|dir| {
            nix::unistd::mkfifo(&dir.join("stp-off-1.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        });
    }

    #[test]
    fn folder_that_cannot_be_read_holds_everybody_once() {
        let (dir, spool) = spool();
        fs::write(dir.path().join(DIR), "").unwrap();
        let left = spool.read(&HashSet::new());
        assert!(left[0].fault.is_some() && left[0].file.is_empty());
        assert!(spool.read(&HashSet::from([OsString::new()])).is_empty());
        spool.leave(&stop("stp-off-1")).expect_err("nor can anything be left");
    }
}
