//! A disk that is full, and files that cannot be read.

use std::fs;
use std::path::Path;

use super::super::file::builder;
use super::backend::Disk;
use super::orders::{id, show};
use super::{FIRST_USE, order, place};
use crate::baseline::room::Bounds;
use crate::baseline::{Baseline, Filter, Refusal, Wanted};
use crate::fingerprint::{State, Surface};

fn state(baseline: &Baseline, name: &str) -> State {
    baseline.standings(&place("s"), Some((Surface::Tool, name))).of(Surface::Tool).state
}

#[tokio::test]
async fn on_a_full_disk_memory_goes_on_and_is_saved_once_there_is_room() {
    let disk = Disk::new();
    let baseline = Baseline::begin(disk.open(), FIRST_USE).unwrap();
    show(&baseline, "s", "a=1");
    baseline.saved().await.unwrap();
    disk.set_full(true);
    assert_eq!(show(&baseline, "s", "a=2"), "drifted a drifted [definition]");
    baseline.saved().await.unwrap_err();
    baseline.saved().await.unwrap_err();
    assert!(baseline.is_unsaved());
    assert_eq!(state(&baseline, "a"), State::Drifted);
    let error = baseline.approve(&id(&baseline, "a"), order("good")).await.unwrap_err();
    assert!(matches!(error, Refusal::Unsaved(_)), "{error}");
    assert_eq!(state(&baseline, "a"), State::Drifted, "not done");
    disk.set_full(false);
    baseline.saved().await.unwrap();
    assert!(!baseline.is_unsaved());
    let history = baseline.show(&id(&baseline, "a")).await.unwrap().history;
    assert_eq!(history.len(), 2, "{history:?}");
    drop(baseline);
    let baseline = Baseline::begin(disk.open(), FIRST_USE).unwrap();
    assert_eq!(state(&baseline, "a"), State::Drifted);
}

#[tokio::test]
async fn what_was_forgotten_while_the_disk_was_full_is_not_there_afterwards() {
    let disk = Disk::new();
    let baseline = Baseline::begin(disk.open(), FIRST_USE).unwrap();
    baseline.shared.known().bounds = Bounds { all: 10, list: 10 };
    show(&baseline, "s", "a=1 b=1 c=1");
    baseline.saved().await.unwrap();
    disk.set_full(true);
    for host in 0..30 {
        show(&baseline, &format!("h{host}@10.0.1.{host}"), "a=1 b=2 c=3");
    }
    baseline.saved().await.unwrap_err();
    disk.set_full(false);
    baseline.saved().await.unwrap();
    let known = baseline.list(&Filter::default()).into_iter().map(|item| item.id);
    let known: Vec<String> = known.collect();
    drop(baseline);
    let baseline = Baseline::begin(disk.open(), FIRST_USE).unwrap();
    let there: Vec<String> = baseline.list(&Filter::default()).into_iter().map(|item| item.id).collect();
    assert_eq!(there, known);
    assert_eq!(state(&baseline, "a"), State::Unseen);
    for id in there {
        assert!(baseline.show(&id).await.unwrap().seen.text.is_some());
    }
}

#[tokio::test]
async fn an_order_after_a_failed_one_is_done() {
    let disk = Disk::new();
    let baseline = Baseline::begin(disk.open(), FIRST_USE).unwrap();
    show(&baseline, "s", "a=1");
    baseline.saved().await.unwrap();
    disk.set_full(true);
    baseline.block(&id(&baseline, "a"), order("bad")).await.unwrap_err();
    assert_eq!(state(&baseline, "a"), State::Trusted);
    disk.set_full(false);
    baseline.block(&id(&baseline, "a"), order("bad")).await.unwrap();
    assert_eq!(state(&baseline, "a"), State::Blocked);
}

/// A file in the place of the store is a fault that names it, refuses everything, and stays as it is.
async fn check_fault(dir: &Path, part: &str) {
    let file = dir.join("baseline.redb");
    let before = fs::read(&file).unwrap();
    let baseline = Baseline::open(dir, FIRST_USE).unwrap();
    let fault = baseline.fault().unwrap_or_else(|| panic!("no fault: {part}")).to_owned();
    assert!(fault.contains("baseline.redb: ") && fault.contains(part), "{fault}");
    assert_eq!(show(&baseline, "s", "a=1"), "");
    assert_eq!(state(&baseline, "never shown"), State::Unreadable);
    assert_eq!(baseline.export(Wanted::default()).await.unwrap_err(), Refusal::Fault(fault.clone()));
    assert_eq!(baseline.saved().await.unwrap_err(), fault);
    baseline.settled(&place("s"), Surface::Tool).await;
    drop(baseline);
    assert!(fs::read(&file).unwrap() == before, "it was changed");
}

fn store_in(dir: &Path) -> Vec<u8> {
    let baseline = Baseline::open(dir, FIRST_USE).unwrap();
    for host in 0..20 {
        show(&baseline, &format!("h{host}"), "a=1 b=2 c=3");
    }
    drop(baseline);
    fs::read(dir.join("baseline.redb")).unwrap()
}

#[tokio::test]
async fn what_is_no_store_is_a_fault_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("baseline.redb");
    let store = store_in(dir.path());
    fs::write(&file, "no store").unwrap();
    check_fault(dir.path(), "").await;
    fs::write(&file, &store[..store.len() / 2]).unwrap();
    check_fault(dir.path(), "").await;
    let mut other = store.clone();
    other[..4096].fill(0);
    fs::write(&file, &other).unwrap();
    check_fault(dir.path(), "").await;
    // Put back, it is as it was.
    fs::write(&file, &store).unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    assert_eq!(baseline.fault(), None);
    assert_eq!(baseline.counts()[1].1, 60);
}

#[tokio::test]
async fn what_was_altered_is_a_fault_or_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("baseline.redb");
    let store = store_in(dir.path());
    let mut faults = 0;
    for page in 1..store.len() / 4096 {
        let mut other = store.clone();
        for byte in &mut other[page * 4096 + 8..page * 4096 + 64] {
            *byte ^= 0x5a;
        }
        fs::write(&file, &other).unwrap();
        let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
        match baseline.fault() {
            Some(_) => faults += 1,
            None => assert_eq!(baseline.counts()[1].1, 60, "page {page}"),
        }
    }
    assert!(faults > 0);
}

#[tokio::test]
async fn a_store_of_another_version_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    drop(Baseline::open(dir.path(), FIRST_USE).unwrap());
    let file = fs::OpenOptions::new().read(true).write(true).open(dir.path().join("baseline.redb")).unwrap();
    let database = builder().create_with_backend(redb::backends::FileBackend::new(file).unwrap()).unwrap();
    let transaction = database.begin_write().unwrap();
    {
        let meta: redb::TableDefinition<'_, &str, &[u8]> = redb::TableDefinition::new("meta");
        transaction.open_table(meta).unwrap().insert("version", &b"2"[..]).unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let fault = baseline.fault().unwrap();
    assert!(fault.contains("version is 2; this interlock reads version 1"), "{fault}");
}

#[test]
fn another_daemon_cannot_open_it() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let error = Baseline::open(dir.path(), FIRST_USE).unwrap_err().to_string();
    assert!(error.contains("baseline.redb: another interlock uses it"), "{error}");
    drop(baseline);
    Baseline::open(dir.path(), FIRST_USE).unwrap();
}

#[test]
fn nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    drop(Baseline::open(dir.path(), FIRST_USE).unwrap());
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["baseline.redb"]);
    let mode = fs::metadata(dir.path().join("baseline.redb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
