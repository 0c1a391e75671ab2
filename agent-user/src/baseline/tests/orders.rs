//! Orders of operators on a whole baseline.

use jiff::Timestamp;

use super::{FIRST_USE, order, place, say, shown, whole};
use crate::baseline::{Baseline, Filter, Refusal, What};
use crate::fingerprint::State;

pub(super) fn show(baseline: &Baseline, at: &str, items: &str) -> String {
    say(&baseline.observe(&place(at), &whole(items), || shown(items), "ann", Timestamp::UNIX_EPOCH))
}

pub(super) fn id(baseline: &Baseline, name: &str) -> String {
    let filter = Filter { name: Some(name.to_owned()), ..Filter::default() };
    baseline.list(&filter).pop().unwrap().id
}

#[tokio::test]
async fn an_approval_is_for_what_was_reviewed() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    show(&baseline, "s", "a=1");
    show(&baseline, "s", "a=2");
    let reviewed = id(&baseline, "a");
    show(&baseline, "s", "a=3");
    let error = baseline.approve(&reviewed, order("seen")).await.unwrap_err();
    assert_eq!(error, Refusal::Changed { id: reviewed, now: id(&baseline, "a") });
    for unknown in ["tool-000000000000", "tool-", "x", "tool-+00000000000"] {
        let error = baseline.block(unknown, order("")).await.unwrap_err();
        assert_eq!(error, Refusal::Unknown { id: unknown.to_owned() });
    }
    let changes = baseline.approve(&id(&baseline, "a"), order("seen")).await.unwrap();
    assert_eq!(say(&changes), "approved a trusted []");
}

#[tokio::test]
async fn a_review_has_both_texts_and_who_did_what() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    show(&baseline, "s", "a=1");
    baseline.saved().await.unwrap();
    show(&baseline, "s", "a=2");
    let review = baseline.show(&id(&baseline, "a")).await.unwrap();
    assert!(review.seen.text.unwrap().contains("\"2\""));
    assert!(review.trusted.unwrap().text.unwrap().contains("\"1\""));
    baseline.approve(&id(&baseline, "a"), order("known")).await.unwrap();
    drop(baseline);
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let review = baseline.show(&id(&baseline, "a")).await.unwrap();
    assert_eq!(review.seen, review.trusted.unwrap());
    let whats: Vec<What> = review.history.iter().map(|event| event.what).collect();
    assert_eq!(whats, [What::First, What::Drifted, What::Approved]);
    assert_eq!(review.history[0].agent.as_deref(), Some("ann"));
    let last = review.history.last().unwrap();
    assert_eq!((last.by.as_ref().unwrap().name(), last.reason.as_deref()), ("eve", Some("known")));
    assert_eq!(review.summary.standing.state, State::Trusted);
}

#[tokio::test]
async fn a_text_that_is_too_long_is_a_digest_only() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    let long = format!("a={}", "x".repeat(70_000));
    show(&baseline, "s", &long);
    let review = baseline.show(&id(&baseline, "a")).await.unwrap();
    assert_eq!(review.seen.text, None);
    assert!(review.seen.bytes > 70_000);
}

#[tokio::test]
async fn a_history_keeps_the_first_event_and_the_last_ones() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    for turn in 0..40 {
        show(&baseline, "s", &format!("a={turn}"));
        if turn % 3 == 0 {
            baseline.saved().await.unwrap();
        }
    }
    let history = baseline.show(&id(&baseline, "a")).await.unwrap().history;
    let history_on_disk = {
        drop(baseline);
        let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
        baseline.show(&id(&baseline, "a")).await.unwrap().history
    };
    assert_eq!(history, history_on_disk);
    assert_eq!(history.len(), 32);
    assert_eq!(history[0].what, What::First);
    let last = shown("a=39").remove(0).fingerprint.definition;
    assert_eq!(history.last().unwrap().digest, last);
}

#[tokio::test]
async fn whoever_waits_for_a_list_goes_on_when_it_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = std::sync::Arc::new(Baseline::open(dir.path(), FIRST_USE).unwrap());
    let surface = crate::fingerprint::Surface::Tool;
    show(&baseline, "s", "a=1");
    baseline.settled(&place("s"), surface).await;
    baseline.doubt(&place("s").endpoint, surface);
    let waits = tokio::spawn({
        let baseline = baseline.clone();
        async move { baseline.settled(&place("s"), surface).await }
    });
    tokio::task::yield_now().await;
    assert!(!waits.is_finished());
    show(&baseline, "s", "a=1");
    waits.await.unwrap();
}

#[tokio::test]
async fn filters_find_by_name_address_and_state() {
    let dir = tempfile::tempdir().unwrap();
    let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
    show(&baseline, "s:80", "a=1 b=1");
    show(&baseline, "t@10.0.0.2", "a=1");
    show(&baseline, "s:80", "a=2 b=1");
    let count = |filter: Filter| baseline.list(&filter).len();
    for (server, expect) in [("S", 2), ("s:80", 2), ("10.0.0.1", 2), ("10.0.0.2:80", 1), ("x", 0)] {
        assert_eq!(
            count(Filter { server: Some(server.to_owned()), ..Filter::default() }),
            expect,
            "{server}"
        );
    }
    assert_eq!(count(Filter { state: Some(State::Drifted), ..Filter::default() }), 1);
    assert_eq!(count(Filter { name: Some("a".to_owned()), ..Filter::default() }), 2);
    assert_eq!(baseline.counts()[1], (State::Trusted, 2));
}
