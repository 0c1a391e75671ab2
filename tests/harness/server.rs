//! Servers on an SDK, and what they say they received.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde_json::Value;

use crate::process::Process;
use crate::sdk::{Sdk, a2a_server};
use crate::wait::wait_for;
use crate::world::{SERVER_V4, World};

/// A tool call as a server received it.
#[derive(Clone, Debug)]
pub struct Received {
    /// When, on the monotonic clock.
    pub at_ns: i64,
    /// The tool's name.
    pub tool: String,
    /// The arguments.
    pub args: Value,
    /// `start`, `end` or `cancelled`.
    pub phase: String,
}

/// A server that runs in the servers' network namespace.
pub struct Server {
    process: Process,
    address: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// Starts a server of `sdk`.
    pub fn start(world: &World, sdk: Sdk) -> Self {
        Self::start_on(world, sdk, SERVER_V4, &[])
    }

    /// Starts a server of `sdk` on an address of the servers' side, with more arguments.
    pub fn start_on(world: &World, sdk: Sdk, host: IpAddr, more: &[&str]) -> Self {
        let log = (0..)
            .map(|n| world.path(&format!("{}-{n}.calls", sdk.name())))
            .find(|path| !path.exists())
            .expect("there is always a next number");
        fs::write(&log, "").expect("make the log");
        Self::launch(world, sdk.name(), sdk.server(), host, log, more)
    }

    /// Starts the server whose one tool, `research`, runs as a task.
    pub fn start_tasks(world: &World) -> Self {
        let log = world.path("tasks.calls");
        fs::write(&log, "").expect("make the log");
        Self::launch(world, "tasks", Sdk::task_server(), SERVER_V4, log, &[])
    }

    /// Starts the A2A agent.
    pub fn start_a2a(world: &World) -> Self {
        let log = world.path("a2a.calls");
        fs::write(&log, "").expect("make the log");
        Self::launch(world, "a2a", a2a_server(), SERVER_V4, log, &[])
    }

    /// Starts the server that a conformance suite expects of an SDK.
    pub fn start_conformance(world: &World, sdk: Sdk) -> Self {
        let log = world.path("conformance.calls");
        fs::write(&log, "").expect("make the log");
        Self::launch(world, "conformance", sdk.conformance_server(), SERVER_V4, log, &[])
    }

    fn launch(
        world: &World,
        name: &str,
        mut command: Vec<String>,
        host: IpAddr,
        log: PathBuf,
        more: &[&str],
    ) -> Self {
        let fixed = ["--host", &host.to_string(), "--log", &log.display().to_string()].map(str::to_owned);
        command.extend(fixed.into_iter().chain(more.iter().map(|&arg| arg.to_owned())));
        let process = world.start_server(&format!("server-{name}"), &command);
        let port = process.line()["listening"].as_u64().and_then(|port| u16::try_from(port).ok());
        Self { process, address: SocketAddr::new(host, port.expect("a port")), log }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its MCP endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Its stream, where it was started with `--sse`: HTTP+SSE of MCP 2024-11-05.
    pub fn sse_url(&self) -> String {
        format!("http://{}/sse", self.address)
    }

    /// Where it was started with `--lines`: newline-delimited JSON-RPC over TCP.
    pub fn lines_url(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Everything it received so far.
    pub fn received(&self) -> Vec<Received> {
        let text = fs::read_to_string(&self.log).expect("read the server's log");
        let parse = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?; // the last line may be half written
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let at_ns = line["at_ns"].as_i64()?;
            Some(Received {
                at_ns,
                tool: text(&line["tool"]),
                args: line["args"].clone(),
                phase: text(&line["phase"]),
            })
        };
        text.lines().filter_map(parse).collect()
    }

    /// The calls of one tool that reached it.
    pub fn started(&self, tool: &str) -> Vec<Received> {
        self.received().into_iter().filter(|seen| seen.tool == tool && seen.phase == "start").collect()
    }

    /// Waits until `count` calls of a tool are in that phase.
    pub fn wait(&self, tool: &str, phase: &str, count: usize) -> Vec<Received> {
        wait_for(&format!("{count} × {tool} {phase} at the server"), || {
            let seen = self.received().into_iter().filter(|seen| seen.tool == tool && seen.phase == phase);
            Some(seen.collect::<Vec<_>>()).filter(|seen| seen.len() >= count)
        })
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
