//! `cargo xtask soak`: for as many minutes as it is told (`INTERLOCK_SOAK_MINUTES`) mixed clients talk to their servers through
//! `interlock`, with rules of every kind in force that allow what they do, and the same clients beside them directly.
//!
//! There is no error that is not there without us as well, what no rule edits is the same byte for byte, and the daemon's
//! memory and open files stay flat. [`sdks`] are the official SDKs, [`bytes`] what no SDK would say, [`flat`] the samples.

mod bytes;
mod flat;
mod random;
mod sdks;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use agent_tests::{Daemon, World, wait_for};

use self::flat::Samples;

/// One of every kind. All that is done passes; `turn` is hidden, and card numbers are taken out of what `echo` answers.
const RULES: &str = "
version: 1
rules:
  - {id: no-transfers, action: deny, match: {tool: wire_transfer}, reason: nobody does}
  - id: what-is-done
    action: allow_only
    match: {method: tools/call, tool: [echo, add, slow, ask, big, progress, random]}
    reason: not on the list
  - {id: hidden, action: hide, match: {tool: turn}, reason: not for agents}
  - {id: no-cards, action: redact, phase: response, match: {tool: echo}, redact: {patterns: [cards]}}
  - {id: often, action: limit, match: {method: tools/call}, limit: {calls: 100000000, within: 1h, per: [agent, tool]}}
  - {id: at-once, action: limit, match: {method: tools/call}, limit: {concurrent: 10000}}
  - {id: much, action: limit, match: {method: tools/call}, limit: {bytes: 1000GiB, within: 1m}}
  - {id: ask-first, action: require_approval, match: {tool: wire_transfer}, reason: nobody does}
  - {id: no-drift, action: deny_drift, reason: tools stay what they are}
  - {id: tripwire, action: stop, match: {tool: wire_transfer}, level: isolate, reason: nobody does}
  - {id: runaway, action: stop, match: {agent: '*'}, after: {denials: 1, within: 60s}, reason: nothing is refused}
  - {id: small, action: deny, match: {tool: add}, when: 'args.a > 1000000 && agent.name != \"\"', reason: too much}
";

/// From this time on memory and open files must be flat.
const LONG_ENOUGH: Duration = Duration::from_secs(120);
/// Faults after which it ends.
const ENOUGH: usize = 20;

/// What the lanes have found.
#[derive(Default)]
pub(crate) struct Found {
    /// Sessions of SDK clients, and raw connections.
    pub(crate) sessions: u64,
    pub(crate) calls: u64,
    /// Errors that were there without us as well, and how often.
    pub(crate) shared: BTreeMap<String, u64>,
    /// Bytes that were compared.
    pub(crate) compared: u64,
    pub(crate) faults: Vec<String>,
}

/// The end, and what was found so far.
pub(crate) struct Run {
    pub(crate) until: Instant,
    pub(crate) found: Mutex<Found>,
}

impl Run {
    pub(crate) fn goes_on(&self) -> bool {
        let faults = self.found.lock().expect("nobody panics with it").faults.len();
        Instant::now() < self.until && faults < ENOUGH
    }

    pub(crate) fn note(&self, what: impl FnOnce(&mut Found)) {
        what(&mut self.found.lock().expect("nobody panics with it"));
    }

    /// Something is not as it is without us.
    pub(crate) fn fault(&self, text: String) {
        eprintln!("soak: {text}");
        self.note(|found| found.faults.push(text));
    }
}

#[test]
fn soak() {
    let minutes: f64 =
        std::env::var("INTERLOCK_SOAK_MINUTES").map_or(2.0, |text| text.parse().expect("a number"));
    let seed: u64 = std::env::var("INTERLOCK_SOAK_SEED").map_or(1, |text| text.parse().expect("a number"));
    let world = World::new();
    let mut daemon = Daemon::start(&world, RULES);
    let lasts = Duration::from_secs_f64(minutes * 60.0);
    let run = Run { until: Instant::now() + lasts, found: Mutex::default() };
    let lanes = sdks::lanes(&world);
    let peers = bytes::servers(&world);
    let samples = thread::scope(|scope| {
        for lane in &lanes {
            scope.spawn(|| lane.go_on(&world, &run));
        }
        for (number, peer) in (0..).zip(&peers) {
            let (run, world) = (&run, &world);
            scope.spawn(move || bytes::go_on(world, peer, seed + number, run));
        }
        Samples::take(&mut daemon, &run, lasts)
    });
    let found = run.found.into_inner().expect("nobody panics with it");
    wait_for("the connections to be over", || {
        (daemon.metrics().value("interlock_connections_open", &[]) == 0.0).then_some(())
    });
    let count = |name: &str| daemon.metrics().value(name, &[]);
    println!(
        "soak: {minutes} minutes, seed {seed}: {} sessions, {} calls, {} MiB compared\n\
         soak: errors with and without us: {:?}\n\
         soak: {} decisions, {} records, {} dropped, {} denials\n{samples}",
        found.sessions,
        found.calls,
        found.compared >> 20,
        found.shared,
        count("interlock_decisions_total"),
        count("interlock_records_total"),
        count("interlock_records_dropped_total"),
        count("interlock_denials_total") + 0.0,
    );
    assert_eq!(found.faults, Vec::<String>::new());
    assert!(found.sessions > 0 && found.calls > 0 && found.compared > 0, "something was done");
    assert_eq!(count("interlock_records_dropped_total"), 0.0);
    assert_eq!(
        count("interlock_denials_total"),
        0.0,
        "{:?}",
        daemon.records().of("decision").iter().find(|decision| decision["verdict"] == "deny")
    );
    // In less, clients still begin for the first time in one fifth and not in another.
    if lasts >= LONG_ENOUGH {
        samples.check();
    }
}
