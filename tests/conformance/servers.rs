//! The suites as agents, at servers on the official SDKs.

use agent_tests::sdk::{Sdk, Suite, everything_server};
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Server, World, wait_for};

use crate::suite::{self, Findings};

/// Rules that read and edit messages of every kind, all of them about something else: everything is looked at, and
/// nothing may change.
const RULES: &str = r#"
version: 1
rules:
  - {id: hidden, action: hide, match: {tool: "no_such_*"}}
  - {id: requests, action: redact, phase: request, redact: {fields: [/no/such/field]}}
  - {id: results, action: redact, phase: response, redact: {fields: [/no/such/field]}}
  - {id: conditions, action: deny, match: {method: tools/call}, when: 'has(args.no_such)'}
  - {id: plenty, action: limit, limit: {calls: 1000000, within: 1h, per: agent}}
"#;

/// What a suite is told to check, and the revision it is about.
const LEGACY: [(Suite, &[&str]); 2] =
    [(Suite::Stable, &[]), (Suite::Next, &["--requirements", "2025-11-25"])];
const MODERN: (Suite, &[&str]) = (Suite::Next, &["--requirements", "2026-07-28"]);

/// One test per server.
macro_rules! servers {
    ($($name:ident: $start:expr, modern $modern:literal, $least:literal;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            let world = World::new();
            let (_server, url) = $start(&world);
            same_with_and_without(&world, &url, $modern, $least);
        }
    )*};
}

servers! {
    python_1: |world| peer(world, Sdk::Py1), modern false, 10;
    python_2: |world| peer(world, Sdk::Py2), modern true, 40;
    typescript_1: |world| peer(world, Sdk::Ts1), modern false, 10;
    typescript_2: |world| peer(world, Sdk::Ts2), modern true, 40;
    rust: |world| peer(world, Sdk::Rmcp), modern true, 40;
}

fn peer(world: &World, sdk: Sdk) -> (Server, String) {
    let server = Server::start(world, sdk);
    let url = server.url();
    (server, url)
}

/// Each suite first where nobody is an agent, then as an agent: the same findings, of which at least so many say that
/// the server does it right.
fn same_with_and_without(world: &World, url: &str, modern: bool, least: u32) {
    let peers = world.make_cgroup("peers");
    let suites = LEGACY.iter().chain(modern.then_some(&MODERN));
    let mut direct = Vec::new();
    for (number, (suite, arguments)) in suites.clone().enumerate() {
        let arguments = [&["server", "--url", url], *arguments].concat();
        direct.push(suite::run(world, *suite, &format!("direct-{number}"), &arguments, |command| {
            world.start_in(&peers, "suite", command)
        }));
    }
    let daemon = Daemon::start(world, RULES);
    let mut successes = 0;
    let mut differences = String::new();
    for (number, (suite, arguments)) in suites.enumerate() {
        let arguments = [&["server", "--url", url], *arguments].concat();
        let through = suite::run(world, *suite, &format!("through-{number}"), &arguments, |command| {
            world.start_agent("coder", command)
        });
        successes += direct[number].count("SUCCESS");
        println!(
            "{suite:?} {arguments:?}: {} of {} succeed",
            direct[number].count("SUCCESS"),
            direct[number].all()
        );
        differences += &direct[number].differences(&through);
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(successes >= least, "only {successes} checks succeed");
    assert!(daemon.records().of("decision").len() > 100, "the suites went through");
}
