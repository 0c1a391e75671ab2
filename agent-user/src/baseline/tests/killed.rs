//! A process that is killed while it writes. Every order that was answered is there.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::orders::{id, show};
use super::{FIRST_USE, order};
use crate::baseline::{Baseline, What};
use crate::fingerprint::State;

/// Where the child writes. Not set in the parent.
const DIR: &str = "INTERLOCK_TEST_BASELINE";

/// Not a test, but what is killed in one.
#[tokio::test]
async fn child_that_writes() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let baseline = Baseline::open(dir.as_ref(), FIRST_USE).unwrap();
    let known = baseline.counts().iter().map(|(_, count)| count).sum::<usize>();
    for number in known.. {
        let name = format!("n{number}");
        show(&baseline, &format!("h{number}"), &format!("{name}=1 {name}x=1"));
        baseline.approve(&id(&baseline, &name), order("good")).await.unwrap();
        baseline.block(&id(&baseline, &format!("{name}x")), order("bad")).await.unwrap();
        // Past the harness, which keeps what tests print.
        writeln!(std::io::stdout(), "\n!{name}").unwrap();
    }
}

#[tokio::test]
async fn every_order_that_was_answered_is_there_after_the_process_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut answered: Vec<String> = Vec::new();
    for lines in [1, 2, 5, 9] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "baseline::tests::killed::child_that_writes", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let names = output.map_while(Result::ok).filter_map(|line| line.strip_prefix('!').map(str::to_owned));
        answered.extend(names.take(lines));
        child.kill().unwrap();
        child.wait().unwrap();
        let baseline = Baseline::open(dir.path(), FIRST_USE).unwrap();
        assert_eq!(baseline.fault(), None);
        for name in &answered {
            let review = baseline.show(&id(&baseline, name)).await.unwrap();
            assert_eq!(review.history.last().unwrap().what, What::Approved, "{name}");
            let blocked = baseline.show(&id(&baseline, &format!("{name}x"))).await.unwrap();
            assert_eq!(blocked.summary.standing.state, State::Blocked, "{name}");
        }
    }
    assert_eq!(answered.len(), 17);
}
