//! The daemon of a world: the real `interlock run`, in a cgroup of its own.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::cli::Cli;
use crate::metrics::Metrics;
use crate::process::Process;
use crate::records::Records;
use crate::sdk::binary;
use crate::wait::wait_for;
use crate::world::{World, mount_bpffs};

/// The agents every configuration of the tests names; the cgroup `coder-2` is `coder` too.
const AGENTS: [&str; 3] = ["coder", "sibling", "parked"];

/// The path of the program under test.
pub fn interlock() -> String {
    std::env::var("INTERLOCK_BIN").unwrap_or_else(|_| binary("interlock"))
}

/// The running daemon of one world.
pub struct Daemon {
    process: Process,
    config: PathBuf,
    with_servers: bool,
    rules: PathBuf,
    cli: Cli,
    records: Records,
    metrics: Metrics,
}

impl Daemon {
    /// Starts a daemon with these rules, and waits until it is ready.
    pub fn start(world: &World, rules: &str) -> Self {
        Self::start_with(world, rules, "")
    }

    /// Starts a daemon with more lines of configuration.
    pub fn start_with(world: &World, rules: &str, more: &str) -> Self {
        Self::start_at(world, rules, "", more, false, "digest")
    }

    /// The same in the servers' network namespace, where agents can reach it over the wire.
    pub fn start_with_servers(world: &World, rules: &str, more: &str) -> Self {
        Self::start_at(world, rules, "", more, true, "digest")
    }

    /// Starts a daemon in the servers' network namespace with one more entry in its list of agents.
    pub fn start_with_servers_for(world: &World, rules: &str, entry: &str) -> Self {
        Self::start_at(world, rules, &format!("  - {entry}\n"), "", true, "digest")
    }

    /// Starts a daemon whose records have arguments in full.
    pub fn start_with_arguments(world: &World, rules: &str) -> Self {
        Self::start_at(world, rules, "", "", false, "full")
    }

    /// Starts a daemon with one more entry in its list of agents, and more lines of configuration.
    pub fn start_with_agents(world: &World, rules: &str, entry: &str, more: &str) -> Self {
        Self::start_at(world, rules, &format!("  - {entry}\n"), more, false, "digest")
    }

    fn start_at(
        world: &World,
        rules: &str,
        entries: &str,
        more: &str,
        with_servers: bool,
        arguments: &str,
    ) -> Self {
        mount_bpffs();
        let (config, rules_file) = (world.path("config.yaml"), world.path("rules.yaml"));
        let (run, records) = (world.path("run"), world.path("records.jsonl"));
        let cgroup = world.cgroup();
        let agents = AGENTS
            .map(|name| format!("  - {{name: {name}, cgroup: \"{cgroup}/agents/{name}*\"}}\n"))
            .concat();
        let text = format!(
            "version: 1\nattach: [{cgroup}]\nagents:\n{agents}{entries}rules: {rules}\nstate_dir: {state}\nruntime_dir: {run}\n\
             pin_dir: {pins}\nrecords: {{path: {records}, arguments: {arguments}}}\nmetrics_addr: 127.0.0.1:0\n\
             evidence_window: 3s\nexec_cgroup: {cgroup}/exec\n{more}",
            rules = rules_file.display(),
            state = world.path("state").display(),
            run = run.display(),
            pins = world.pin_dir().display(),
            records = records.display(),
        );
        fs::write(&rules_file, rules).expect("write the rules");
        fs::write(&config, text).expect("write the configuration");
        let mut daemon = Self {
            process: run_daemon(world, &interlock(), &config, with_servers),
            config,
            with_servers,
            rules: rules_file,
            cli: Cli::new(&run),
            records: Records::new(records),
            metrics: Metrics::default(),
        };
        daemon.ready();
        daemon
    }

    /// The command line of this daemon.
    pub fn cli(&self) -> &Cli {
        &self.cli
    }

    /// Its records.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Its metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Its rules file, which a test may write.
    pub fn rules(&self) -> &Path {
        &self.rules
    }

    /// Waits until it holds a cgroup that was made while it ran.
    pub fn holds(&self, cgroup: &str) {
        let is_listed = || self.cli.run(&["agents"]).json.to_string().contains(&format!("\"{cgroup}\""));
        wait_for(&format!("{cgroup} to be held"), || is_listed().then_some(()));
    }

    /// Asks it to end, and waits.
    pub fn stop(&mut self) {
        self.process.signal(Signal::SIGTERM);
        self.process.wait();
    }

    /// Kills it without a word.
    pub fn crash(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.process.wait();
    }

    /// Starts it again with the same configuration, and waits until it is ready.
    pub fn restart(&mut self, world: &World) {
        self.restart_as(world, &interlock());
    }

    /// Starts another program in its place, and waits until it is ready.
    pub fn restart_as(&mut self, world: &World, program: &str) {
        assert!(!self.process.is_running(), "stop or crash it first");
        self.process = run_daemon(world, program, &self.config, self.with_servers);
        self.ready();
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn ready(&mut self) {
        let status = wait_for("the daemon to be ready", || {
            assert!(self.process.is_running(), "{}", self.process.stderr());
            self.cli.try_run(&["status"]).filter(|status| status.code == 0)
        });
        let address = status.json["metrics_addr"].as_str().and_then(|address| address.parse().ok());
        self.metrics = Metrics::new(address.expect("the daemon says where its metrics are"));
    }
}

fn run_daemon(world: &World, program: &str, config: &Path, with_servers: bool) -> Process {
    let config = config.display().to_string();
    let command = [program.to_owned(), "run".to_owned(), "--config".to_owned(), config];
    if with_servers {
        return world.start_operator_with_servers("interlock", &command);
    }
    world.start_operator("interlock", &command)
}
