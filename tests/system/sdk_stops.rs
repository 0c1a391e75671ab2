//! What an application sees of a stop through its MCP client: none hangs, none knocks again and again, each is told the
//! operator's reason where bytes can still reach it, and a release is enough. `tests/data/sdk-stops.md` is the table of
//! it, and these tests keep it.

use std::time::Duration;

use agent_tests::agent::{Agent, call, wait_line};
use agent_tests::wait::within;
use agent_tests::{Client, Daemon, Era, Sdk, Server, World};
use serde_json::{Value, json};

use crate::sdk_table::{NEW_CLIENT, Rows, Table};
use crate::{NO_RULES, REASON};

/// A client that takes longer over a step waits for something that does not come.
const AT_ONCE: Duration = Duration::from_secs(5);

/// How long a stopped client is watched, and the most it may ask for meanwhile: the next call, with a session before it
/// where each call has its own, and twice the stream that up to 2025-11-25 belongs to a session.
const WATCHED: Duration = Duration::from_secs(3);
const KNOCKS: usize = 4;

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// One test per client and revision: the client, what it is told to speak, the server, what they agree on.
macro_rules! clients {
    ($($name:ident: $client:expr, $era:ident => $server:ident, $revision:expr;)*) => {
        $(
            #[test]
            #[cfg_attr(not(feature = "root-tests"), ignore = "needs root, BPF and the SDKs")]
            fn $name() {
                application_sees_what_the_table_says($client, Era::$era, Sdk::$server, $revision);
            }
        )*

        #[test]
        fn table_has_rows_of_these_clients_only() {
            let clients = [$(($client.name(), $revision)),*];
            assert_eq!(Table::read().clients(), clients);
        }
    };
}

clients! {
    py1_on_2025: Client::Sdk(Sdk::Py1), Legacy => Py1, LEGACY;
    py2_on_2025: Client::Sdk(Sdk::Py2), Legacy => Py1, LEGACY;
    py2_on_2026: Client::Sdk(Sdk::Py2), Auto => Rmcp, MODERN;
    ts1_on_2025: Client::Sdk(Sdk::Ts1), Legacy => Py1, LEGACY;
    ts2_on_2025: Client::Sdk(Sdk::Ts2), Legacy => Py1, LEGACY;
    ts2_on_2026: Client::Sdk(Sdk::Ts2), Auto => Rmcp, MODERN;
    rmcp_on_2025: Client::Sdk(Sdk::Rmcp), Legacy => Py1, LEGACY;
    rmcp_on_2026: Client::Sdk(Sdk::Rmcp), Auto => Rmcp, MODERN;
    fastmcp_on_2025: Client::FastMcp, Legacy => Py1, LEGACY;
    fastmcp_on_2026: Client::FastMcp, Auto => Rmcp, MODERN;
    langchain_on_2025: Client::LangChain, Legacy => Py1, LEGACY;
    openai_on_2025: Client::OpenAi, Auto => Py1, LEGACY;
    openai_on_2026: Client::OpenAi, Auto => Rmcp, MODERN;
}

/// An agent that is stopped while its call is in flight.
struct Stopped {
    name: &'static str,
    level: &'static str,
    agent: Agent,
    stop: String,
    since: String,
}

fn application_sees_what_the_table_says(client: Client, era: Era, server: Sdk, revision: &'static str) {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = Server::start(&world, server);
    let url = server.url();
    let start = |name: &str, script: &Value| Agent::start(&world, name, client, era, &url, script);
    let script = json!([
        echo("before"),
        call("slow", json!({"seconds": 60})),
        wait_line(),
        echo("next"),
        wait_line(),
        echo("after release"),
    ]);
    let agents = [("coder", "refuse"), ("sibling", "isolate")]
        .map(|(name, level)| (name, level, start(name, &script)));
    for (_, _, agent) in &agents {
        assert_eq!(agent.connected(), revision);
        assert!(agent.step().ok);
    }
    server.wait("slow", "start", agents.len());

    let mut rows = Rows::of(client.name(), revision, &url);
    let mut stopped = agents.map(|(name, level, mut agent)| {
        let (stop, answer) = daemon.cli().stop(&[&format!("agent={name}")], level);
        rows.push(level, "call in flight", &line(&mut agent));
        rows.push(level, "next call", &resume(&mut agent));
        let since = answer.json["in_force_at"].as_str().expect("it is in force").to_owned();
        Stopped { name, level, agent, stop, since }
    });
    let restarted = stopped.each_ref().map(|stopped| start(stopped.name, &json!([echo("new client")])));
    let knocks_on = within(WATCHED, || stopped.iter_mut().find_map(|stopped| stopped.knocks_on(&daemon)));
    assert_eq!(knocks_on, None, "more than {KNOCKS} requests after the stop");
    for (stopped, agent) in stopped.iter().zip(restarted) {
        rows.push(stopped.level, NEW_CLIENT, &agent.tried());
    }
    for told in rows.at("refuse") {
        assert!(told.contains(REASON), "the operator's reason reaches the application: {told}");
    }

    for stopped in &mut stopped {
        assert_eq!(daemon.cli().release(&stopped.stop).code, 0);
        let seen = resume(&mut stopped.agent);
        rows.push(stopped.level, "after release", &seen);
        if seen["ok"] != true {
            let agent = start(stopped.name, &json!([echo("after release")]));
            assert_eq!(agent.connected(), revision, "a new client works after the release");
            assert!(agent.step().ok);
        }
    }
    let reached: Vec<Value> = server.started("echo").iter().map(|seen| seen.args["text"].clone()).collect();
    assert_eq!(reached, ["before", "before", "after release", "after release"]);
    Table::read().check(&rows);
}

impl Stopped {
    /// What the client asked for since the stop, if that is too much.
    fn knocks_on(&mut self, daemon: &Daemon) -> Option<Vec<Value>> {
        let pid = self.agent.process().pid();
        let is_knock = |record: &Value| {
            matches!(record["kind"].as_str(), Some("decision" | "kernel"))
                && record["pid"] == pid
                && record["at"].as_str() > Some(&self.since)
        };
        let knocks: Vec<Value> = daemon.records().all().into_iter().filter(is_knock).collect();
        (knocks.len() > KNOCKS).then_some(knocks)
    }
}

fn echo(text: &str) -> Value {
    call("echo", json!({"text": text}))
}

/// What the client says next.
fn line(agent: &mut Agent) -> Value {
    let line = agent.process().line_within(AT_ONCE);
    line.unwrap_or_else(|| panic!("no answer within {AT_ONCE:?}: the client hangs"))
}

/// Lets a client that waits go on, and answers what came of its next step; of one that gave up, how it ended.
fn resume(agent: &mut Agent) -> Value {
    if agent.process().is_running() {
        agent.go();
    }
    let first = line(agent);
    if first["op"] == "wait_line" { line(agent) } else { first }
}
