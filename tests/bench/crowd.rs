//! The load of the stop probe: many connections that stay open, some of which have a call in flight at any time.
//!
//! The calls are a mix of JSON answers and event streams, quick and slow, in both revisions; some requests leave in two
//! pieces, so that a stop falls between them. Whoever loses its connection makes another, again and again, as a
//! stubborn agent would: it takes no "no" for an answer, and remembers what became of every call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::Semaphore;

use crate::client::{Client, Form, Revision, Shape, Split};
use crate::{Args, Outcome, common};

struct Crowd {
    args: Args,
    /// One for each call that may be in flight; whoever waited longest is next.
    turns: Semaphore,
    forms: Vec<Form>,
    outcomes: RefCell<BufWriter<File>>,
    calls: Cell<u64>,
    failures: RefCell<BTreeMap<String, u64>>,
}

pub(crate) async fn run(args: Args, active: usize) -> anyhow::Result<()> {
    let path = args.outcomes.as_deref().context("--active goes with --outcomes")?;
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let form = |shape, revision| {
        let ms = if matches!(shape, Shape::Small) { 0 } else { args.ms };
        Form::new(&args.connect.to_string(), shape, None, revision, ms)
    };
    let crowd = Rc::new(Crowd {
        turns: Semaphore::new(active),
        forms: [Revision::Legacy, Revision::Modern]
            .into_iter()
            .flat_map(|revision| KINDS.map(|shape| form(shape, revision)))
            .collect(),
        outcomes: RefCell::new(BufWriter::new(file)),
        calls: Cell::new(0),
        failures: RefCell::default(),
        args,
    });
    let tasks: Vec<_> = (0..crowd.args.connections)
        .map(|number| tokio::task::spawn_local(member(crowd.clone(), number)))
        .collect();
    common::stdin_closed().await;
    crowd.turns.close();
    for task in tasks {
        task.await??;
    }
    crowd.outcomes.borrow_mut().flush()?;
    println!(
        "{}",
        serde_json::json!({"total_calls": crowd.calls.get(), "error_kinds": &*crowd.failures.borrow()})
    );
    Ok(())
}

async fn member(crowd: Rc<Crowd>, number: u64) -> anyhow::Result<()> {
    let mut client = Client::new(crowd.args.connect);
    // Unique in this run, and no id looks like a small number of something else.
    let mut id = (number + 1) << 32;
    while !crowd.turns.is_closed() {
        if client.connect().await.is_err() {
            // Not all at the same moment.
            tokio::time::sleep(Duration::from_millis(10 + number % 32)).await;
            continue;
        }
        let turn = tokio::select! {
            biased;
            () = client.ended() => {
                client.close();
                continue;
            }
            turn = crowd.turns.acquire() => turn,
        };
        // Closed: the end of the run.
        let Ok(_turn) = turn else { return Ok(()) };
        id += 1;
        let (form, split) = plan(id, crowd.args.ms);
        let form = &crowd.forms[form + if number.is_multiple_of(2) { 0 } else { KINDS.len() }];
        let start = common::monotonic_ns();
        let reply = client.call(form, id, split).await;
        let (outcome, end) = (Outcome::of(&reply), common::monotonic_ns());
        crowd.calls.set(crowd.calls.get() + 1);
        writeln!(crowd.outcomes.borrow_mut(), "{id} {} {start} {end}", outcome.label())?;
        match reply {
            Ok(reply) if reply.refused => tokio::time::sleep(Duration::from_millis(crowd.args.pause)).await,
            Ok(_) => {}
            Err(why) => *crowd.failures.borrow_mut().entry(why.to_string()).or_default() += 1,
        }
    }
    Ok(())
}

/// What call `id` is: which of [`KINDS`], and whether it leaves in two pieces. The same for each run.
fn plan(id: u64, ms: u64) -> (usize, Option<Split>) {
    let hash = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let split = hash[1]
        .is_multiple_of(4)
        .then(|| Split { at: hash[2], pause: Duration::from_micros(ms * 1000 * u64::from(hash[3]) / 256) });
    (usize::from(hash[0]) % KINDS.len(), split)
}

const KINDS: [Shape; 4] = [Shape::Slow, Shape::Drip, Shape::Small, Shape::Drip];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_a_mix() {
        let plans: Vec<_> = (0..1000).map(|n| plan((7 << 32) + n, 100)).collect();
        let count = |kind| plans.iter().filter(|(form, _)| *form == kind).count();
        assert!((0..KINDS.len()).all(|kind| count(kind) > 150), "{plans:?}");
        let split: Vec<_> = plans.iter().filter_map(|(_, split)| *split).collect();
        assert!((150..350).contains(&split.len()), "{split:?}");
        assert!(split.iter().any(|split| split.at < 32) && split.iter().any(|split| split.at > 224));
    }
}
