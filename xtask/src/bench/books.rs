//! The books of a stop probe, held against each other: what the answers list, what the server read, what the agent
//! saw, and, where those three leave a doubt, what the daemon recorded.
//!
//! An agent whose socket was destroyed does not know what became of its call. If the answer had been decided and was on
//! its way, the call was over before the stop and no stop lists it; then a record has to say so.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::probe::Level;

/// One stop, as the probe saw it. Times are CLOCK_MONOTONIC nanoseconds.
pub(super) struct Stop {
    pub(super) level: Level,
    pub(super) ordered: u64,
    /// From here on no call may reach the server: in force, as the answer says.
    pub(super) in_force: u64,
    pub(super) release_ordered: u64,
    /// Fate of each call in the answer, by JSON-RPC id.
    pub(super) answer: HashMap<u64, String>,
    /// The same as of the release: fates that were open may be known, but no call may have come or gone.
    pub(super) later: HashMap<u64, String>,
}

/// What became of a call, as the agent saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    Refused,
    /// No answer: for all the agent knows, it may have happened.
    Failed,
}

/// A call in the agent's book.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) outcome: Outcome,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// What comparing them yields.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Calls the answers list, by fate as of the release.
    pub(super) fates: BTreeMap<String, usize>,
    /// Read by the server while a stop was in force, and not listed by it.
    pub(super) after_in_force: usize,
    /// The same, but listed as on their way: read late.
    pub(super) late: usize,
    /// Calls whose answer was on its way to a socket that an isolate destroyed, as a record says.
    pub(super) answer_lost: usize,
    pub(super) disagreements: Vec<String>,
}

pub(super) fn read_outcomes(path: &Path) -> anyhow::Result<HashMap<u64, Seen>> {
    let parse = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        let outcome = match fields.next()? {
            "answered" => Outcome::Answered,
            "refused" => Outcome::Refused,
            "failed" => Outcome::Failed,
            _ => return None,
        };
        Some((id, Seen { outcome, start: fields.next()?.parse().ok()?, end: fields.next()?.parse().ok()? }))
    };
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    BufReader::new(file)
        .lines()
        .map(|line| {
            let line = line?;
            parse(&line).with_context(|| format!("outcome line {line}"))
        })
        .collect()
}

/// Holds the books against each other. `recorded` finds what the records say of some calls; it is asked once, and only
/// when there is a doubt.
pub(super) fn compare(
    stops: &[Stop],
    arrivals: &[(u64, u64)],
    seen: &HashMap<u64, Seen>,
    recorded: impl FnOnce(&HashSet<u64>) -> anyhow::Result<HashMap<u64, Vec<String>>>,
) -> anyhow::Result<Verdict> {
    let mut verdict = Verdict::default();
    let listed: HashMap<u64, &str> =
        stops.iter().flat_map(|stop| &stop.later).map(|(&id, fate)| (id, &**fate)).collect();
    for fate in listed.values() {
        *verdict.fates.entry((*fate).to_owned()).or_default() += 1;
    }
    let mut by_time = arrivals.to_vec();
    by_time.sort_unstable_by_key(|&(_, at)| at);
    for stop in stops {
        let from = by_time.partition_point(|&(_, at)| at <= stop.in_force);
        for (id, _) in by_time[from..].iter().take_while(|&&(_, at)| at < stop.release_ordered) {
            match stop.answer.get(id).map(String::as_str) {
                None | Some("refused" | "cut") => verdict.after_in_force += 1,
                Some(_) => verdict.late += 1,
            }
        }
        for id in stop.later.keys().filter(|id| !stop.answer.contains_key(id)) {
            verdict.disagreements.push(format!("call {id}: caught by a stop whose answer does not list it"));
        }
        for id in stop.answer.keys().filter(|id| !stop.later.contains_key(id)) {
            verdict.disagreements.push(format!("call {id}: in a stop's answer, and forgotten later"));
        }
    }
    let at_server: HashSet<u64> = arrivals.iter().map(|(id, _)| *id).collect();
    if at_server.len() < arrivals.len() {
        verdict
            .disagreements
            .push(format!("{} calls were read twice by the server", arrivals.len() - at_server.len()));
    }
    let mut doubts = HashSet::new();
    for id in &at_server {
        let call = seen.get(id);
        match call.map(|call| call.outcome) {
            _ if listed.contains_key(id) => {}
            Some(Outcome::Answered) => {}
            Some(Outcome::Failed) if call.is_some_and(|call| isolated_during(stops, call)) => {
                doubts.insert(*id);
            }
            outcome => verdict.disagreements.push(format!(
                "call {id}: the server read it, the agent's end is {outcome:?}, no stop lists it"
            )),
        }
    }
    for (id, fate) in &listed {
        let outcome = seen.get(id).map(|call| call.outcome);
        match (*fate, at_server.contains(id)) {
            ("refused" | "cut", true) => {
                verdict.disagreements.push(format!("call {id}: listed as {fate}, but the server read it"));
            }
            ("sent" | "finished_after_stop" | "cancelled", false) => {
                verdict
                    .disagreements
                    .push(format!("call {id}: listed as {fate}, but the server never read it"));
            }
            _ if outcome == Some(Outcome::Answered) => {
                verdict
                    .disagreements
                    .push(format!("call {id}: listed as {fate}, but the agent got its result"));
            }
            _ => {}
        }
    }
    for (id, call) in seen {
        if call.outcome == Outcome::Answered && !at_server.contains(id) {
            verdict
                .disagreements
                .push(format!("call {id}: the agent got a result, but the server never read it"));
        }
    }
    if !doubts.is_empty() {
        let recorded = recorded(&doubts)?;
        for id in doubts {
            let words = recorded.get(&id).map(Vec::as_slice).unwrap_or_default();
            if words.iter().any(|word| word == RESULT) {
                verdict.answer_lost += 1;
            } else {
                verdict.disagreements.push(format!(
                    "call {id}: the server read it, the agent's socket was destroyed, no stop lists it, and the \
                     records say only {words:?}"
                ));
            }
        }
    }
    Ok(verdict)
}

/// An isolate may have destroyed the socket this call was made on.
fn isolated_during(stops: &[Stop], call: &Seen) -> bool {
    let isolates = stops.iter().filter(|stop| stop.level == Level::Isolate);
    isolates.into_iter().any(|stop| call.start <= stop.release_ordered && stop.ordered <= call.end)
}

/// What the records in this file say of these calls, in short words, such as `result: result`.
pub(super) fn recorded(records: &Path, calls: &HashSet<u64>) -> anyhow::Result<HashMap<u64, Vec<String>>> {
    let file = File::open(records).with_context(|| format!("open {}", records.display()))?;
    let mut found: HashMap<u64, Vec<String>> = HashMap::new();
    for line in BufReader::new(file).lines() {
        // The last line may still be on its way.
        let Ok(record) = serde_json::from_str::<Record>(&line?) else { continue };
        if let Ok(id) = record.rpc_id.parse()
            && calls.contains(&id)
        {
            let what = [record.verdict, record.outcome, record.fate, record.cause];
            let what: Vec<String> = what.into_iter().flatten().collect();
            found.entry(id).or_default().push(format!("{}: {}", record.kind, what.join(" ")));
        }
    }
    Ok(found)
}

/// The parts of a record about a call that are looked at.
#[derive(Deserialize)]
struct Record {
    kind: String,
    rpc_id: String,
    verdict: Option<String>,
    outcome: Option<String>,
    fate: Option<String>,
    cause: Option<String>,
}

/// A record of the answer that went to the agent.
const RESULT: &str = "result: result";

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(calls: &[(u64, &str)]) -> HashMap<u64, String> {
        calls.iter().map(|&(id, fate)| (id, fate.to_owned())).collect()
    }

    fn stop(level: Level, calls: &[(u64, &str)]) -> Stop {
        let (answer, later) = (fates(calls), fates(calls));
        Stop { level, ordered: 90, in_force: 100, release_ordered: 200, answer, later }
    }

    fn seen(outcomes: &[(u64, Outcome)]) -> HashMap<u64, Seen> {
        outcomes.iter().map(|&(id, outcome)| (id, Seen { outcome, start: 50, end: 110 })).collect()
    }

    fn check(stops: &[Stop], arrivals: &[(u64, u64)], outcomes: &[(u64, Outcome)]) -> Verdict {
        compare(stops, arrivals, &seen(outcomes), |_| Ok(HashMap::new())).unwrap()
    }

    use Outcome::{Answered, Failed, Refused};

    #[test]
    fn books_that_agree() {
        let verdict = check(
            &[stop(Level::Refuse, &[(2, "sent"), (3, "refused")])],
            &[(1, 50), (2, 99), (5, 250)],
            &[(1, Answered), (2, Refused), (3, Refused), (4, Refused), (5, Answered)],
        );
        assert_eq!(verdict.after_in_force, 0);
        assert_eq!(verdict.disagreements, Vec::<String>::new());
    }

    #[test]
    fn call_after_the_answer_is_told_from_one_that_is_read_late() {
        let verdict =
            check(&[stop(Level::Refuse, &[(2, "sent")])], &[(2, 101), (3, 102), (4, 201)], &[(4, Answered)]);
        assert_eq!((verdict.after_in_force, verdict.late), (1, 1));
    }

    #[test]
    fn every_kind_of_disagreement_is_found() {
        let mut stop =
            stop(Level::Refuse, &[(1, "refused"), (2, "sent"), (4, "cut"), (6, "cut"), (7, "lost")]);
        stop.later.remove(&7);
        stop.later.insert(8, "lost".into());
        let verdict = check(
            &[stop],
            &[(1, 10), (3, 20), (6, 30), (9, 40), (9, 41)],
            &[(1, Refused), (2, Refused), (3, Failed), (4, Answered), (5, Answered), (9, Answered)],
        );
        // 1, 2, 3, 4 twice (never read), 5, 6, 7, 8, 9 twice.
        assert_eq!(verdict.disagreements.len(), 10, "{:#?}", verdict.disagreements);
    }

    #[test]
    fn answer_lost_with_a_destroyed_socket_needs_a_record() {
        let lost = [(1, Failed), (2, Failed)];
        let record = HashMap::from([(1, vec!["decision: allow".to_owned(), RESULT.to_owned()])]);
        let stops = [stop(Level::Isolate, &[])];
        let verdict = compare(&stops, &[(1, 60), (2, 60)], &seen(&lost), |_| Ok(record.clone())).unwrap();
        assert_eq!((verdict.answer_lost, verdict.disagreements.len()), (1, 1));
        let stops = [stop(Level::Refuse, &[])];
        let verdict = compare(&stops, &[(1, 60), (2, 60)], &seen(&lost), |_| Ok(record.clone())).unwrap();
        assert_eq!((verdict.answer_lost, verdict.disagreements.len()), (0, 2));
    }

    #[test]
    fn records_are_read_as_the_daemon_writes_them() {
        let path = std::env::temp_dir().join(format!("ibench-records-{}", std::process::id()));
        let text = concat!(
            r#"{"schema":1,"kind":"decision","rpc_id":"1","verdict":"allow"}"#,
            "\n",
            r#"{"schema":1,"kind":"result","rpc_id":"1","outcome":"result","bytes":7}"#,
            "\n",
            r#"{"schema":1,"kind":"result","rpc_id":"2","outcome":"none","cause":"agent_closed"}"#,
            "\n",
            r#"{"schema":1,"kind":"stop","stop":"stp-1"}"#,
            "\n{",
        );
        std::fs::write(&path, text).unwrap();
        let found = recorded(&path, &HashSet::from([1, 2, 3]));
        std::fs::remove_file(&path).unwrap();
        let found = found.unwrap();
        assert_eq!(found[&1], ["decision: allow", RESULT]);
        assert_eq!(found[&2], ["result: none agent_closed"]);
        assert_eq!(found.len(), 2);
    }
}
