//! Beside the closed loop: every endpoint of bench-server is asked for one thing once in a while, each over a connection
//! of its own, one after the other.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use crate::Run;
use crate::client::{Client, Form, Shape};

/// What became of what was asked for.
#[derive(Default, Serialize)]
pub(crate) struct Walk {
    answers: u64,
    /// By why.
    failures: BTreeMap<String, u64>,
}

impl Walk {
    pub(crate) fn add(&mut self, other: Self) {
        self.answers += other.answers;
        for (why, count) in other.failures {
            *self.failures.entry(why).or_default() += count;
        }
    }
}

/// Asks endpoint `number`, from the end of the warm-up on until the end of the run.
pub(crate) async fn endpoint(run: Rc<Run>, shape: Shape, number: u32) -> Walk {
    let args = &run.args;
    let mut walk = Walk::default();
    let begin = Instant::from_std(run.started) + Duration::from_secs_f64(args.warmup);
    let end = begin + Duration::from_secs_f64(args.seconds.unwrap_or_default());
    let every = Duration::from_secs_f64(args.every);
    let form = Form::new(&format!("tools-{number}.bench"), shape, None, args.revision, 0);
    let mut client = Client::new(args.connect);
    // Those of the loop begin below.
    let mut id = (args.connections + 1 + u64::from(number)) << 32;
    let mut next = begin + every * number / args.endpoints;
    while next < end {
        sleep_until(next).await;
        id += 1;
        match client.call(&form, id, None).await {
            Ok(reply) if reply.refused => *walk.failures.entry("refused".to_owned()).or_default() += 1,
            Ok(_) => walk.answers += 1,
            Err(why) => *walk.failures.entry(why.to_string()).or_default() += 1,
        }
        next += every;
    }
    walk
}
