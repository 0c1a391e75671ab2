//! A disk in memory that remembers what was done to it, and can be full.

use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use super::super::file::builder;
use super::super::id::Key;
use super::super::store::{Content, Store};

#[derive(Clone, Debug)]
pub(super) enum Done {
    Write(usize, Vec<u8>),
    Length(usize),
    Sync,
}

/// The disk. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<Inside>>);

#[derive(Debug, Default)]
struct Inside {
    bytes: Vec<u8>,
    log: Vec<Done>,
    /// No write is possible any more.
    full: bool,
}

impl Disk {
    pub(super) fn with(bytes: Vec<u8>) -> Disk {
        Disk(Arc::new(Mutex::new(Inside { bytes, ..Inside::default() })))
    }

    /// With a new store on it.
    pub(super) fn new() -> Disk {
        let disk = Disk::default();
        let database = builder().create_with_backend(disk.clone()).unwrap();
        Store::initialize(&database, &Key([3; 32])).unwrap();
        database.close().unwrap();
        disk.content().log.clear();
        disk
    }

    fn content(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.content().bytes.clone()
    }

    /// What was done since the store was made.
    pub(super) fn log(&self) -> Vec<Done> {
        self.content().log.clone()
    }

    pub(super) fn set_full(&self, full: bool) {
        self.content().full = full;
    }

    pub(super) fn open(&self) -> Result<(Store, Content), String> {
        let disk = self.clone();
        let store = Store::new(Box::new(move || builder().create_with_backend(disk.clone())));
        let mut store = store.map_err(|error| error.to_string())?;
        let content = store.read().map_err(|error| error.to_string())?;
        Ok((store, content))
    }
}

/// Does something to bytes.
pub(super) fn redo(bytes: &mut Vec<u8>, done: &Done) {
    match done {
        Done::Write(at, data) => {
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[*at..at + data.len()].copy_from_slice(data);
        }
        Done::Length(length) => bytes.resize(*length, 0),
        Done::Sync => {}
    }
}

impl Inside {
    fn act(&mut self, done: Done) -> Result<(), Error> {
        if self.full {
            return Err(ErrorKind::StorageFull.into());
        }
        redo(&mut self.bytes, &done);
        self.log.push(done);
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.content().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let at = usize::try_from(offset).unwrap();
        let content = self.content();
        let there = content.bytes.get(at..at + out.len());
        out.copy_from_slice(there.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.content().act(Done::Length(usize::try_from(len).unwrap()))
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.content().act(Done::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.content().act(Done::Write(usize::try_from(offset).unwrap(), data.to_vec()))
    }
}
