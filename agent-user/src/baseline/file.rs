//! The file of the store in the state directory.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use redb::backends::FileBackend;
use redb::{Database, DatabaseError};
use ring::rand::{SecureRandom as _, SystemRandom};

use super::id::Key;
use super::store::{Content, Store};

/// Its name.
pub(super) const FILE: &str = "baseline.redb";
/// Memory for what was read of the file and may be read again, in bytes. It is read once.
const CACHE: usize = 8 << 20;

/// Opens the store of a state directory, or makes one.
///
/// # Errors
/// Another daemon uses it.
pub(super) fn open(dir: &Path) -> Result<std::result::Result<(Store, Content), String>> {
    let path = dir.join(FILE);
    let subject = || path.display().to_string();
    let opened = fs::create_dir_all(dir)
        .and_then(|()| fs::exists(&path))
        .map_err(DatabaseError::from)
        .and_then(|there| {
            if !there {
                create(dir, &path)?;
            }
            let opened = path.clone();
            Store::new(Box::new(move || database(&opened, false)))
        });
    let read = match opened {
        Err(DatabaseError::DatabaseAlreadyOpen) => bail!("{}: another interlock uses it", subject()),
        Err(error) => Err(error.into()),
        Ok(mut store) => store.read().map(|content| (store, content)),
    };
    Ok(read.map_err(|error| {
        format!(
            "{}: {error} (repair what keeps it from being read, or put a copy in its place; without it nothing that \
             servers show is trusted)",
            subject()
        )
    }))
}

/// Makes a store beside its place and moves it there, so that a crash leaves no half of one.
fn create(dir: &Path, path: &Path) -> std::result::Result<(), DatabaseError> {
    let new = dir.join(format!(".{FILE}.new"));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut key = Key([0; 32]);
    SystemRandom::new().fill(&mut key.0).map_err(|_| io::Error::other("no random numbers"))?;
    let database = database(&new, true)?;
    Store::initialize(&database, &key).map_err(io::Error::other)?;
    database.close()?;
    File::open(&new)?.sync_all()?;
    fs::rename(&new, path)?;
    File::open(dir)?.sync_all()?;
    Ok(())
}

fn database(path: &PathBuf, new: bool) -> std::result::Result<Database, DatabaseError> {
    let file = OpenOptions::new().read(true).write(true).create_new(new).mode(0o600).open(path)?;
    builder().create_with_backend(FileBackend::new(file)?)
}

/// A file that was altered must be found when it is opened: later it would end the daemon.
pub(super) fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
    builder
}
