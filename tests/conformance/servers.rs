//! The suites as agents, at servers on the official SDKs.

use agent_tests::process::Process;
use agent_tests::sdk::{Sdk, Suite, everything_server};
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, Server, World, wait_for};

use crate::RULES;
use crate::suite::{Findings, Run};

/// A suite, and what it is told to check.
type Asked = (Suite, &'static [&'static str]);

const LEGACY: &[Asked] = &[(Suite::Stable, &[]), (Suite::Next, &["--requirements", "2025-11-25"])];
const MODERN: &[Asked] = &[(Suite::Next, &["--requirements", "2026-07-28"])];

/// One test per server, and how many checks it passes at least.
macro_rules! servers {
    ($($name:ident: $start:expr, $revisions:expr, $least:literal;)*) => {$(
        #[test]
        #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
        fn $name() {
            let world = World::new();
            let (_server, url) = $start(&world);
            same_with_and_without(&world, &url, $revisions, $least);
        }
    )*};
}

servers! {
    python_2: |world| whole(world, Sdk::Py2), &[LEGACY, MODERN].concat(), 250;
    typescript_2: |world| whole(world, Sdk::Ts2), &[LEGACY, MODERN].concat(), 250;
    rust: |world| whole(world, Sdk::Rmcp), &[LEGACY, MODERN].concat(), 250;
    python_1: |world| bank(world, Sdk::Py1), LEGACY, 40;
    typescript_1: |world| bank(world, Sdk::Ts1), LEGACY, 40;
    everything: start_everything, LEGACY, 40;
}

/// A server that has what the suites ask for.
fn whole(world: &World, sdk: Sdk) -> (Server, String) {
    let server = Server::start_conformance(world, sdk);
    let url = server.url();
    (server, url)
}

/// A server with tools of its own, and so right in less.
fn bank(world: &World, sdk: Sdk) -> (Server, String) {
    let server = Server::start(world, sdk);
    let url = server.url();
    (server, url)
}

/// `server-everything` of MCP's own authors. It says on stderr when it listens.
fn start_everything(world: &World) -> (Process, String) {
    let port = "3001";
    let command = [vec!["env".to_owned(), format!("PORT={port}")], everything_server()].concat();
    let server = world.start_server("everything", &command);
    wait_for("server-everything to listen", || server.stderr().contains("listening").then_some(()));
    (server, format!("http://{SERVER_V4}:{port}/mcp"))
}

/// Each suite first where nobody is an agent, then as an agent: the same findings, of which at least so many say that
/// the server does it right.
fn same_with_and_without(world: &World, url: &str, suites: &[Asked], least: u32) {
    let elsewhere = world.make_cgroup("peers");
    let run = |label: &str, number: usize, start: &dyn Fn(&[String]) -> Process| {
        let (suite, arguments) = suites[number];
        let arguments = [&["server", "--url", url], arguments].concat();
        Run::start(world, suite, &format!("{label}-{number}"), &arguments, start).finish()
    };
    let direct: Vec<Findings> = (0..suites.len())
        .map(|number| run("direct", number, &|command| world.start_in(&elsewhere, "suite", command)))
        .collect();
    let daemon = Daemon::start(world, RULES);
    let mut differences = String::new();
    for (number, direct) in direct.iter().enumerate() {
        let through = run("through", number, &|command| world.start_agent("coder", command));
        println!("{:?}: {} of {} checks succeed", suites[number], direct.successes(), direct.checks());
        differences += &direct.differences(&through);
    }
    assert!(differences.is_empty(), "with and without interlock differ:\n{differences}");
    let successes: u32 = direct.iter().map(Findings::successes).sum();
    assert!(successes >= least, "only {successes} checks succeed, with and without");
    let decisions = daemon.records().of("decision").len();
    assert!(decisions > 30 * suites.len(), "only {decisions} messages went through");
}
