//! Counts, one after the other and under races.

use std::sync::atomic::AtomicUsize;
use std::thread;

use super::*;
use crate::decide::limit::LimitFile;
use crate::decide::subject::Subject;

fn limit(yaml: &str) -> Limit {
    let file: LimitFile = serde_saphyr::from_str(yaml).unwrap();
    file.compile(&"r".into()).unwrap()
}

fn key(limit: &Limit, agent: &str, tool: &str) -> Key {
    limit.key(&agent.into(), &Subject { name: Some(tool), ..Subject::default() })
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn calls_are_counted_for_each_key_apart_until_their_window_has_run_out() {
    let (limits, now) = (Limits::default(), Instant::now());
    let limit = limit("{calls: 2, within: 60s, per: [agent, tool]}");
    let take = |agent, tool, after| limits.take(&limit, &key(&limit, agent, tool), 1, now + seconds(after));
    assert!(take("a", "t", 0).is_ok() && take("a", "t", 30).is_ok());
    let refused = take("a", "t", 31).unwrap_err();
    let retry = refused.retry_after.unwrap();
    assert!(retry > seconds(29) && retry <= seconds(30), "{retry:?}");
    assert!(refused.reason.ends_with("retry after 30 s"), "{}", refused.reason);
    assert!(take("a", "u", 31).is_ok() && take("b", "t", 31).is_ok());
    assert!(take("a", "t", 59).is_err() && take("a", "t", 61).is_ok() && take("a", "t", 62).is_err());
}

#[test]
fn an_answer_is_no_further_call() {
    let (limits, now) = (Limits::default(), Instant::now());
    let limit = limit("{calls: 2, within: 60s}");
    let key = key(&limit, "a", "t");
    let permit = limits.take(&limit, &key, 1, now).unwrap();
    limits.add_answer(&permit, 500, now);
    assert!(limits.take(&limit, &key, 1, now).is_ok() && limits.take(&limit, &key, 1, now).is_err());
}

#[test]
fn bytes_of_answers_are_missing_to_those_after_them() {
    let (limits, now) = (Limits::default(), Instant::now());
    let limit = limit("{bytes: 100, within: 60s}");
    let key = key(&limit, "a", "t");
    let take = |amount, after| limits.take(&limit, &key, amount, now + seconds(after));
    assert!(take(101, 0).unwrap_err().retry_after.is_none());
    let permit = take(40, 0).unwrap();
    assert!(take(61, 0).is_err());
    limits.add_answer(&permit, 50, now + seconds(10));
    limits.add_answer(&permit, 50, now + seconds(20));
    drop(permit);
    let refused = take(1, 20).unwrap_err();
    assert!(refused.retry_after.unwrap() > seconds(39), "the first 40 must have run out: {refused:?}");
    assert!(take(1, 61).is_err(), "100 of answers are left, which is all");
    assert!(take(50, 71).is_ok() && take(1, 71).is_err());
}

#[test]
fn a_slot_is_given_back_once() {
    let (limits, now) = (Limits::default(), Instant::now());
    let limit = limit("{concurrent: 2}");
    let key = key(&limit, "a", "t");
    let take = || limits.take(&limit, &key, 1, now);
    let (first, second) = (take().unwrap(), take().unwrap());
    assert!(first.is_slot() && take().is_err());
    drop(first);
    let third = take().unwrap();
    assert!(take().is_err());
    third.give_back();
    let fourth = take().unwrap();
    assert!(take().is_err());
    drop((second, fourth));
    assert_eq!((0..9).map_while(|_| take().ok()).collect::<Vec<_>>().len(), 2);
}

#[test]
fn a_message_is_counted_under_all_its_limits_or_under_none() {
    let (limits, now) = (Limits::default(), Instant::now());
    let yamls = ["{calls: 5, within: 60s}", "{concurrent: 3}", "{bytes: 25, within: 1h}"];
    let [calls, concurrent, bytes] = yamls.map(limit);
    let wanted = [&calls, &concurrent, &bytes].map(|limit| (limit, key(limit, "a", "t"), limit.amount(10)));
    let take = || limits.take_all(wanted.iter().map(|(limit, key, amount)| (*limit, key, *amount)), now);
    let held = (take().unwrap(), take().unwrap());
    assert_eq!(held.0.iter().map(Permit::is_slot).collect::<Vec<_>>(), [false, true, false]);
    for _ in 0..9 {
        assert!(take().unwrap_err().reason.contains("25 B"), "only the last one is used up");
    }
    let of =
        |limit: &Limit| (0..9).map_while(|_| limits.take(limit, &key(limit, "a", "t"), 1, now).ok()).count();
    assert_eq!([of(&calls), of(&bytes)], [3, 5]);
    // The slots go back one by one, so `count` alone would not see an end.
    let slots: Vec<_> = (0..9).map_while(|_| limits.take(&concurrent, &wanted[1].1, 1, now).ok()).collect();
    assert_eq!(slots.len(), 1);
}

#[test]
fn what_was_not_sent_does_not_count() {
    let (limits, now) = (Limits::default(), Instant::now());
    let limit = limit("{calls: 1, within: 60s}");
    let key = key(&limit, "a", "t");
    limits.take(&limit, &key, 1, now).unwrap().give_back();
    let permit = limits.take(&limit, &key, 1, now).unwrap();
    assert!(limits.take(&limit, &key, 1, now).is_err());
    // Long after, in another slice: it has run out by itself.
    drop(limits.take(&limit, &key, 1, now + seconds(99)).unwrap());
    permit.give_back();
    assert!(limits.take(&limit, &key, 1, now + seconds(99)).is_err());
}

/// Takes new counts until there is no room.
fn fill(limits: &Limits, limit: &Limit, agent: &str, from: usize, now: Instant) -> usize {
    let mut taken = 0;
    while limits.take(limit, &key(limit, agent, &(from + taken).to_string()), 1, now).is_ok() {
        taken += 1;
    }
    taken
}

#[test]
fn no_agent_takes_the_room_of_another() {
    let (limits, now) = (Limits::default(), Instant::now());
    let limit = limit("{calls: 1, within: 60s, per: [agent, tool]}");
    let refused = || limits.take(&limit, &key(&limit, "a", "one more"), 1, now).unwrap_err();
    for agent in ["a", "b", "c", "d"] {
        assert_eq!(fill(&limits, &limit, agent, 0, now), PER_AGENT);
    }
    assert_eq!((refused().label, limits.refused_for_room()), ("limit_full", 5));
    assert_eq!(fill(&limits, &limit, "e", 0, now), ASSURED, "all is full, and this much is left");
    let exceeded = limits.take(&limit, &key(&limit, "a", "0"), 1, now).unwrap_err();
    assert_eq!(exceeded.label, "limit", "no count was dropped for the sake of others");
    // What has run out is dropped first.
    let late = now + seconds(61);
    assert_eq!(fill(&limits, &limit, "a", PER_AGENT, late), PER_AGENT);
    assert_eq!(limits.owners().total, PER_AGENT);
    assert_eq!(limits.shards.iter().map(|shard| shard.lock().unwrap().len()).sum::<usize>(), PER_AGENT);
}

#[test]
fn changed_rules_begin_anew_and_others_go_on() {
    let (limits, now) = (Limits::default(), Instant::now());
    let [old, kept, slots] =
        ["{calls: 1, within: 60s}", "{calls: 2, within: 60s}", "{concurrent: 1}"].map(limit);
    let take = |limit: &Limit| limits.take(limit, &key(limit, "a", "t"), 1, now);
    let _permits = [take(&old), take(&kept), take(&kept)].map(Result::unwrap).map(drop);
    let slot = take(&slots).unwrap();
    limits.keep_only(&[kept.tag()]);
    assert!(take(&kept).is_err() && take(&old).is_ok());
    assert!(take(&slots).is_err(), "what is in flight is so under any rules");
    drop(slot);
    limits.keep_only(&[]);
    let owners = limits.owners();
    assert_eq!((owners.total, owners.counts.len()), (0, 0));
}

#[test]
fn what_a_permit_holds_is_not_swept() {
    let (limits, now) = (Limits::default(), Instant::now());
    let limit = limit("{bytes: 10, within: 60s}");
    let key = key(&limit, "a", "t");
    let permit = limits.take(&limit, &key, 1, now).unwrap();
    let late = now + seconds(600);
    limits.sweep_if_due(late);
    limits.keep_only(&[]);
    limits.add_answer(&permit, 10, late);
    assert!(limits.take(&limit, &key, 1, late).is_err(), "the answer counts");
}

#[test]
fn a_count_is_small() {
    // With two counters before it and a window of at most 64 times 16 bytes behind it.
    assert!(size_of::<Entry>() <= 80, "{}", size_of::<Entry>());
    assert!(size_of::<(Id, Arc<Entry>)>() <= 32);
}

/// Many threads at few keys, while what has run out is swept.
#[test]
fn bounds_hold_under_races() {
    let limits = Limits::default();
    let [slots, calls] = ["{concurrent: 3}", "{calls: 500, within: 60s}"].map(limit);
    let (in_flight, most, passed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let now = Instant::now();
    thread::scope(|scope| {
        for seed in 0..8 {
            let (limits, slots, calls) = (&limits, &slots, &calls);
            let (in_flight, most, passed) = (&in_flight, &most, &passed);
            scope.spawn(move || {
                for round in 0..2_000 {
                    let wanted = [(slots, key(slots, "a", "t"), 1), (calls, key(calls, "a", "t"), 1)];
                    // In either order.
                    let (first, second) = if (round + seed) % 2 == 0 { (0, 1) } else { (1, 0) };
                    let wanted = [&wanted[first], &wanted[second]];
                    let wanted = wanted.into_iter().map(|(limit, key, amount)| (*limit, key, *amount));
                    if let Ok(permits) = limits.take_all(wanted, now) {
                        most.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        passed.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                        drop(permits);
                    }
                    if round % 64 == 0 {
                        limits.sweep(|_, entry| !entry.is_over(limits.micros(now)));
                    }
                }
            });
        }
    });
    assert!(most.into_inner() <= 3);
    // Those who gave back may have kept one out in passing, but no more were let through.
    assert!((490..=500).contains(&passed.into_inner()));
    let slots: Vec<_> =
        (0..9).map_while(|_| limits.take(&slots, &key(&slots, "a", "t"), 1, now).ok()).collect();
    assert_eq!(slots.len(), 3, "every slot came back");
}
