//! The suites as servers, and as authorization servers, of clients on the official SDKs, which are the agents.

use agent_tests::process::Process;
use agent_tests::sdk::{Sdk, Suite};
use agent_tests::{Daemon, World};

use crate::RULES;
use crate::suite::{self, Findings};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn typescript_2() {
    let legacy = (Suite::Next, "2025-11-25");
    same_with_and_without(Sdk::Ts2, &[legacy, (Suite::Next, "2026-07-28")], 800);
}

/// Each run of the suite starts some forty of them at once, which takes Python its time: so only one revision.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
fn python_2() {
    same_with_and_without(Sdk::Py2, &[(Suite::Next, "2026-07-28")], 400);
}

/// Runs each suite with a client that is nobody's agent and then with one that is: the same findings, of which at least so
/// many say that the client does it right.
fn same_with_and_without(sdk: Sdk, suites: &[(Suite, &str)], least: u32) {
    let world = World::new();
    let run = |label: &str, number: usize, client: &[String]| -> Findings {
        let (suite, revision) = suites[number];
        let client = client.join(" ");
        let arguments = ["client", "--command", &client, "--requirements", revision, "--timeout", "120000"];
        // Suite and client talk over this namespace's own loopback.
        let start = |command: &[String]| -> Process { world.start_operator_there("suite", command) };
        suite::run(&world, suite, &format!("{label}-{number}"), &arguments, start)
    };
    let client = sdk.conformance_client();
    let direct: Vec<Findings> = (0..suites.len()).map(|number| run("direct", number, &client)).collect();
    let daemon = Daemon::start(&world, RULES);
    let agent = daemon.cli().command(
        &[&["exec", "--agent", "coder", "--"], &client.iter().map(String::as_str).collect::<Vec<_>>()[..]]
            .concat(),
    );
    let mut differences = String::new();
    for (number, direct) in direct.iter().enumerate() {
        let through = run("through", number, &agent);
        println!("{:?}: {} of {} checks succeed", suites[number], direct.successes(), direct.checks());
        differences += &direct.differences(&through);
    }
    assert!(differences.is_empty(), "with and without interlock differ:\n{differences}");
    let successes: u32 = direct.iter().map(Findings::successes).sum();
    assert!(successes >= least, "only {successes} checks succeed, with and without");
    let decisions = daemon.records().of("decision").len();
    assert!(decisions > 30 * suites.len(), "only {decisions} messages went through");
}
