//! The suite as server, and as authorization server, of clients on the official SDKs, which are the agents. Only what
//! 2026-07-28 requires of a client: with a few exceptions that is what 2025-11-25 does, on another wire.

use std::fs;

use agent_tests::sdk::{Sdk, Suite};
use agent_tests::{Daemon, World};
use serde::Deserialize;

use crate::RULES;
use crate::suite::{Findings, Run};

const REVISION: &str = "2026-07-28";

/// What a revision requires, as a file of the suite lists it.
#[derive(Deserialize)]
struct Requirements {
    client: Vec<String>,
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn typescript_2() {
    same_with_and_without(Sdk::Ts2, 400);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn python_2() {
    same_with_and_without(Sdk::Py2, 300);
}

/// Runs the suite with a client that is nobody's agent and then with one that is: the same findings, of which at least so
/// many say that the client does it right.
fn same_with_and_without(sdk: Sdk, least: u32) {
    let world = World::new();
    let client = sdk.conformance_client();
    let direct = findings(&world, "direct", &client.join(" "));
    let daemon = Daemon::start(&world, RULES);
    let exec = daemon.cli().command(&["exec", "--agent", "coder", "--"]);
    let through = findings(&world, "through", &[exec, client].concat().join(" "));
    println!("{} of {} checks succeed", direct.successes(), direct.checks());
    let differences = direct.differences(&through);
    assert!(differences.is_empty(), "with and without interlock differ:\n{differences}");
    let successes = direct.successes();
    assert!(successes >= least, "only {successes} checks succeed, with and without");
    let decisions = daemon.records().of("decision").len();
    assert!(decisions > 50, "only {decisions} messages went through");
}

/// What all scenarios find. Two at a time, where the suite itself would start some forty clients at once: then connections
/// are idle for longer than their servers keep them, and a call in that moment is lost, with and without interlock.
fn findings(world: &World, label: &str, client: &str) -> Findings {
    let path = Suite::Next.file(&format!("requirements/{REVISION}.yaml"));
    let text = fs::read_to_string(path).expect("read what is required");
    let requirements: Requirements = serde_saphyr::from_str(&text).expect("the requirements are YAML");
    let start = |scenario: &String| {
        let arguments = ["client", "--command", client, "--spec-version", REVISION, "--scenario", scenario];
        // Suite and client talk over this namespace's own loopback.
        let place = |command: &[String]| world.start_operator_there("suite", command);
        Run::start(world, Suite::Next, &format!("{label}/{scenario}"), &arguments, place)
    };
    let mut found = Findings::default();
    for pair in requirements.client.chunks(2) {
        let runs: Vec<Run> = pair.iter().map(start).collect();
        runs.into_iter().for_each(|run| found.add(run.finish()));
    }
    found
}
