//! The command line: one binary, the daemon and its tools. Human words by default, `--json` everywhere.

mod approvals;
mod fleet;
mod offline;
mod policy;
mod remote;
mod render;
mod stops;
mod tools;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};

use crate::config::{CONFIG, Config, RUNTIME_DIR};
use crate::control::ExecOrder;
use crate::control::client::Client;
use crate::decide::condition::variables;
use crate::decide::policy::PolicyFile;
use crate::fleet::controller::Nodes;
use crate::fleet::resources::definitions;
use crate::{app, doctor, hold, reload};

use self::render::{agents_table, status_text, text, variables_table};

/// Exit code for a bad configuration (`EX_USAGE` of sysexits.h).
const BAD_CONFIG: u8 = 64;

/// A kill switch and policy gate for AI agents that needs nothing from the agent.
#[derive(Debug, Parser)]
#[command(name = "interlock", version)]
pub struct Args {
    /// Where the daemon's control socket is.
    #[arg(long, global = true, env = "INTERLOCK_RUNTIME_DIR", default_value = RUNTIME_DIR)]
    runtime_dir: PathBuf,
    #[command(flatten)]
    remote: remote::RemoteArgs,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon.
    Run {
        #[arg(long, default_value = CONFIG)]
        config: PathBuf,
    },
    /// Hold agents in the kernel as their stops say, and end: at boot, before any of them starts. The daemon takes over.
    Hold {
        #[arg(long, default_value = CONFIG)]
        config: PathBuf,
        /// Only see to it that the cgroup this runs in is held, which must be an agent's; also beside a daemon.
        #[arg(long)]
        own: bool,
    },
    /// Sum up what the nodes of a cluster answer to each `AgentStop`, until it is ended. One is enough; no stop depends on it.
    Fleet {
        /// Namespace and name of the DaemonSet that runs interlock: so many nodes are to answer.
        #[arg(long, default_value = "interlock")]
        namespace: String,
        #[arg(long, default_value = "interlock")]
        daemon_set: String,
    },
    /// Start a command as an agent, in a cgroup of its own that is held before the command begins.
    Exec {
        /// Name of the agent.
        #[arg(long)]
        agent: String,
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
    /// Stop agents now. Exit code 0: in force, all fates known; 3: in force, fates open; 1: not in force.
    Stop(stops::Stop),
    /// Make a stop in force go further. Exit codes as for `stop`.
    Escalate(stops::Escalate),
    /// End a stop. Exit code 3: it holds until a second person orders the same (`require_two`).
    Release {
        id: String,
        #[arg(long)]
        reason: String,
    },
    /// List the stops in force.
    Stops {
        #[command(subcommand)]
        command: Option<stops::Stops>,
    },
    /// List the requests that wait for an approval.
    Approvals {
        #[command(subcommand)]
        command: Option<approvals::Approvals>,
    },
    /// Let a request go on that waits for an approval; the rules and stops of that moment still hold for it.
    Approve {
        id: String,
        #[arg(long)]
        reason: String,
    },
    /// Refuse a request that waits for an approval.
    Refuse {
        id: String,
        /// Why; the agent is shown it.
        #[arg(long)]
        reason: String,
    },
    /// List what servers show to models, what has changed of it, and decide on that.
    Tools(tools::Tools),
    /// List the agents held.
    Agents,
    /// Show how the daemon is doing.
    Status,
    /// Say what this host lacks and what that costs.
    Doctor,
    /// Check and try rules without a daemon.
    Policy {
        #[command(subcommand)]
        command: policy::PolicyCommand,
    },
    /// Describe the configuration files.
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print the records.
    Log {
        /// Go on with what comes.
        #[arg(long, short)]
        follow: bool,
        /// The records file; by default the daemon's.
        #[arg(long)]
        path: Option<PathBuf>,
    },
    /// Let every agent go: takes the kernel programs and maps of a pin directory away.
    Detach {
        #[arg(long, default_value = "/sys/fs/bpf/interlock")]
        pin_dir: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the JSON Schema of the configuration, or of the rules, or the variables of conditions.
    Schema {
        #[arg(long)]
        rules: bool,
        /// The variables a condition of a rule may use.
        #[arg(long, conflicts_with = "rules")]
        cel: bool,
        /// The definitions of the custom resources, for `kubectl apply`.
        #[arg(long, conflicts_with_all = ["rules", "cel"])]
        crds: bool,
    },
}

/// Runs one command and says how it went.
pub fn main(args: Args) -> ExitCode {
    match args.run() {
        Ok(code) => code,
        Err(error) => {
            let code = if error.is::<BadConfig>() { BAD_CONFIG } else { 1 };
            let error = format!("{error:#}");
            if args.json {
                print_json(&json!({"error": error}));
            } else {
                eprintln!("interlock: {error}");
            }
            ExitCode::from(code)
        }
    }
}

/// Marks errors of configuration and rules files.
#[derive(Debug)]
struct BadConfig;

impl std::fmt::Display for BadConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bad configuration")
    }
}

impl Args {
    fn run(&self) -> Result<ExitCode> {
        let client = self.client()?;
        match &self.command {
            Command::Run { config } => {
                let config = Config::load(config).context(BadConfig)?;
                let rules = config.rules.as_deref().map(reload::load).transpose().context(BadConfig)?;
                app::run(&config, rules)?;
            }
            Command::Hold { config, own: true } => {
                let agent = hold::own(&Config::load(config).context(BadConfig)?)?;
                self.print(&json!({"agent": agent}), |_| format!("held as agent {agent}"));
            }
            Command::Hold { config, own: false } => {
                let held = hold::run(&Config::load(config).context(BadConfig)?)?;
                self.print(&json!({"cgroups": held}), |_| format!("{held} cgroups held; start the daemon"));
            }
            Command::Fleet { namespace, daemon_set } => {
                fleet::run(Nodes { namespace: namespace.clone(), daemon_set: daemon_set.clone() })?;
            }
            Command::Exec { agent, command } => return Err(exec(&client, agent, command)),
            Command::Stop(order) => return stops::stop(self, &client, order),
            Command::Escalate(order) => return stops::escalate(self, &client, order),
            Command::Release { id, reason } => return stops::release(self, &client, id, reason),
            Command::Stops { command } => return stops::stops(self, &client, command.as_ref()),
            Command::Approvals { command } => return approvals::approvals(self, &client, command.as_ref()),
            Command::Approve { id, reason } => {
                return approvals::decide(self, &client, id, "approve", reason);
            }
            Command::Refuse { id, reason } => return approvals::decide(self, &client, id, "refuse", reason),
            Command::Tools(command) => return tools::tools(self, &client, command),
            Command::Agents => self.print(&client.get("/v1/agents")?, agents_table),
            Command::Status => {
                let status = client.get("/v1/status")?;
                self.print(&status, status_text);
                if status["kernel"]["attached"] != true {
                    return Ok(ExitCode::FAILURE);
                }
            }
            Command::Doctor => {
                let report = doctor::examine(&client);
                self.print(&serde_json::to_value(&report)?, |_| doctor::render(&report));
                if report.iter().any(|finding| finding.state == doctor::State::Missing) {
                    return Ok(ExitCode::FAILURE);
                }
            }
            Command::Policy { command } => return policy::run(self, command),
            Command::Config { command: ConfigCommand::Schema { cel: true, .. } } => {
                self.print(&json!({"variables": variables()}), variables_table);
            }
            Command::Config { command: ConfigCommand::Schema { crds: true, .. } } => {
                print_json(&json!({"apiVersion": "v1", "kind": "List", "items": definitions()}));
            }
            Command::Config { command: ConfigCommand::Schema { rules, .. } } => {
                let schema =
                    if *rules { schemars::schema_for!(PolicyFile) } else { schemars::schema_for!(Config) };
                print_json(&serde_json::to_value(schema)?);
            }
            Command::Log { follow, path } => {
                let path = match path {
                    Some(path) => path.clone(),
                    None => PathBuf::from(text(&client.get("/v1/status")?["records"]["path"])),
                };
                print_log(&path, *follow)?;
            }
            Command::Detach { pin_dir } => {
                if let Ok(status) = client.get("/v1/status")
                    && status["pin_dir"].as_str().is_some_and(|pins| Path::new(pins) == pin_dir)
                {
                    bail!("{}: a daemon holds agents with it; end the daemon first", pin_dir.display());
                }
                crate::kernel::Kernel::detach_all(pin_dir)?;
                self.print(&json!({"detached": pin_dir}), |_| {
                    format!("detached {}; agents run free", pin_dir.display())
                });
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, value: &Value, human: impl FnOnce(&Value) -> String) {
        if self.json {
            print_json(value);
        } else {
            print(&human(value));
        }
    }
}

/// Replaces this process by the command, inside a cgroup that is held already. Returns only on failure.
fn exec(client: &Client, agent: &str, command: &[OsString]) -> anyhow::Error {
    let enter = || -> Result<()> {
        let made = client.post("/v1/exec", &ExecOrder { agent: agent.to_owned() })?;
        let dir = PathBuf::from(text(&made["cgroup"]));
        crate::kernel::cgroup::enter(&dir, std::process::id())
    };
    if let Err(error) = enter() {
        return error;
    }
    let error = std::process::Command::new(&command[0]).args(&command[1..]).exec();
    anyhow::Error::from(error).context(format!("run {}", command[0].display()))
}

fn print_log(path: &Path, follow: bool) -> Result<()> {
    let file = std::fs::File::open(path).with_context(|| format!("open records {}", path.display()))?;
    let mut reader = BufReader::new(file);
    let mut stdout = std::io::stdout().lock();
    loop {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line)? > 0 {
            if line.ends_with(b"\n") {
                stdout.write_all(&line)?;
                continue;
            }
            // Half a line: it is read again once it is whole.
            reader.seek_relative(-i64::try_from(line.len())?)?;
        }
        stdout.flush()?;
        if !follow {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn print_json(value: &Value) {
    print(&format!("{value:#}"));
}

fn print(text: &str) {
    // A closed pipe is the reader's wish.
    let _ = writeln!(std::io::stdout(), "{text}");
}
