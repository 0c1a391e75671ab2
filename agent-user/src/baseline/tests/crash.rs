//! A crash at every moment: whatever the disk had done by then, the store opens, and all that was acknowledged is there.

use super::backend::{Disk, Done, redo};
use super::orders::{id, show};
use super::{FIRST_USE, World, order, shown};
use crate::baseline::id::digest;
use crate::baseline::known::Known;
use crate::baseline::list::List;
use crate::baseline::{Baseline, Filter, Summary};

/// What is known, as text.
fn told(known: &Known) -> String {
    let mut lists: Vec<&List> = known.lists.values().collect();
    lists.sort_by_key(|list| list.number);
    let tell = |list: &&List| format!("{} {:?} whole {}\n", list.number, list.place, list.whole);
    let lists: String = lists.iter().map(tell).collect();
    let tell = |item: Summary| format!("{:?} {} {:?} {}\n", item.place, item.name, item.standing, item.id);
    lists + &known.summaries(&Filter::default()).into_iter().map(tell).collect::<String>()
}

/// What a disk holds. Of whatever is shown or trusted it has the text, and when something first happened to it.
fn read(bytes: Vec<u8>) -> Result<String, String> {
    let (mut store, content) = Disk::with(bytes).open()?;
    let mut known = World::new(true).known;
    known.key = content.key;
    known.restore(content.lists);
    for list in known.lists.values() {
        for (name, item) in &list.items {
            let trusted = item.facts().trusted.map_or(item.seen, |trusted| *trusted.fingerprint);
            for fingerprint in [item.seen, trusted] {
                assert!(store.text(digest(&fingerprint)).unwrap().is_some(), "{name}");
            }
            assert_eq!(store.history(&(list.number, name.clone())).unwrap()[0].agent.as_deref(), Some("ann"));
        }
    }
    Ok(told(&known))
}

/// A disk on which much was done, and what was acknowledged after how much of it.
async fn work() -> (Vec<u8>, Vec<Done>, Vec<(usize, String)>) {
    let disk = Disk::new();
    let empty = disk.bytes();
    let baseline = Baseline::begin(disk.open(), FIRST_USE).unwrap();
    let mut acknowledged = vec![(0, String::new())];
    let note = |baseline: &Baseline, acknowledged: &mut Vec<(usize, String)>| {
        acknowledged.push((disk.log().len(), told(&baseline.shared.known())));
    };
    for round in 0..3 {
        for items in [format!("a={round} b=1"), format!("a={round}x b=1 c{round}=1"), "b=1".to_owned()] {
            show(&baseline, "s", &items);
            baseline.saved().await.unwrap();
            note(&baseline, &mut acknowledged);
        }
        show(&baseline, &format!("s#{round}"), "a=5 b=1");
        baseline.saved().await.unwrap();
        note(&baseline, &mut acknowledged);
        baseline.approve(&id(&baseline, "a"), order("good")).await.unwrap();
        note(&baseline, &mut acknowledged);
        baseline.block(&id(&baseline, "b"), order("bad")).await.unwrap();
        note(&baseline, &mut acknowledged);
    }
    drop(baseline);
    let (mut store, _) = Disk::with(disk.bytes()).open().unwrap();
    let unused = shown("a=1").remove(0).fingerprint;
    assert_eq!(store.text(digest(&unused)).unwrap(), None, "neither shown nor trusted any more");
    (empty, disk.log(), acknowledged)
}

#[tokio::test]
async fn whatever_was_acknowledged_is_there_after_a_crash_at_any_moment() {
    let (empty, log, acknowledged) = work().await;
    let (mut now, mut synced) = (empty.clone(), empty);
    for (at, done) in log.iter().enumerate() {
        let torn = match done {
            Done::Write(at, data) => Some(Done::Write(*at, data[..data.len() / 2].to_vec())),
            _ => None,
        };
        // The write is torn; or of all that was not synced it alone has come to the disk.
        for (case, from, last) in [("torn", &now, torn.as_ref()), ("alone", &synced, Some(done))] {
            let Some(last) = last else { continue };
            let mut bytes = from.clone();
            redo(&mut bytes, last);
            check(case, at, bytes, &acknowledged);
        }
        redo(&mut now, done);
        if matches!(done, Done::Sync) {
            synced.clone_from(&now);
        }
        check("whole", at + 1, now.clone(), &acknowledged);
    }
}

/// What is read is what was acknowledged last, or what was being written.
#[track_caller]
fn check(case: &str, at: usize, bytes: Vec<u8>, acknowledged: &[(usize, String)]) {
    let last = acknowledged.iter().rposition(|(log, _)| *log <= at).unwrap();
    let there = read(bytes).unwrap_or_else(|error| panic!("{case} at {at}: {error}"));
    let expect = &acknowledged[last..acknowledged.len().min(last + 2)];
    assert!(expect.iter().any(|(_, known)| *known == there), "{case} at {at}: {there}\nnone of {expect:#?}");
}
