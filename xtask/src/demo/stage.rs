//! The stage: an MCP server, the daemon, cgroups, pins and a folder of this run's own. Dropping it leaves nothing of
//! that behind, however the demo ends.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::evidence::{Lines, wait_for};
use super::screen::Screen;
use crate::cgroup::Cgroup;
use crate::interrupt::check_interrupted;
use crate::process::Process;
use crate::scrape;
use crate::scratch::Scratch;

/// Fields are dropped in this order: what runs, then its pins, then where it ran.
pub(super) struct Stage {
    daemon: Option<Process>,
    _server: Process,
    pins: Pins,
    cgroup: Cgroup,
    scratch: Scratch,
    server: SocketAddr,
    metrics: SocketAddr,
    programs: PathBuf,
    pub(super) screen: Screen,
}

/// What a command answered.
pub(super) struct Answer {
    pub(super) code: Option<i32>,
    /// Standard output, then standard error.
    pub(super) text: String,
}

impl Stage {
    /// Sets it up with programs from a folder.
    pub(super) fn build(programs: &Path, screen: Screen, rules: &str) -> anyhow::Result<Self> {
        let scratch = Scratch::make(PREFIX)?;
        let cgroup = Cgroup::make(PREFIX)?;
        let pins = Pins {
            dir: Path::new("/sys/fs/bpf").join(&cgroup.name[1..]),
            interlock: programs.join("interlock"),
        };
        let config = format!(
            "version: 1\nattach: [{name}]\nexec_cgroup: {name}/agents\nrules: rules.yaml\nstate_dir: state\n\
             runtime_dir: run\nrecords: {{path: records.jsonl}}\npin_dir: {pins}\nmetrics_addr: 127.0.0.1:0\n",
            name = cgroup.name,
            pins = pins.dir.display(),
        );
        fs::write(scratch.0.join("config.yaml"), config)?;
        fs::write(scratch.0.join("rules.yaml"), rules)?;
        let mut command = Command::new(programs.join("mcp-server"));
        command.arg("--log").arg(scratch.0.join("server.jsonl"));
        let log = File::create(scratch.0.join("server.log"))?;
        let mut server = Process::start(command, Some(&cgroup.child("server")?), Some(log))?;
        let line = server.first_line()?;
        let port = serde_json::from_str::<Value>(&line).ok().and_then(|line| line["listening"].as_u64());
        let port = port.and_then(|port| u16::try_from(port).ok()).with_context(|| line)?;
        Ok(Self {
            daemon: None,
            _server: server,
            pins,
            cgroup,
            scratch,
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            metrics: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            programs: programs.to_owned(),
            screen,
        })
    }

    /// Starts the daemon, and waits until it is ready.
    pub(super) fn start_daemon(&mut self) -> anyhow::Result<()> {
        let config = self.path("config.yaml").display().to_string();
        let words = ["interlock", "run", "--config", &config];
        self.screen.command(&[&words[..], &["&"]].concat())?;
        let home = self.cgroup.child("daemon")?;
        let process = self.start(&words, Some(&home), "interlock")?;
        self.daemon = Some(process);
        let ready = wait_for("interlock is ready", || {
            if self.daemon.as_mut().is_none_or(Process::has_ended) {
                bail!("interlock ended at once");
            }
            let status = self.ask(&["interlock", "status", "--json"])?;
            Ok((status.code == Some(0)).then_some(status.text))
        });
        let status = ready.with_context(|| format!("interlock said:\n{}", self.last_words()))?;
        let status: Value = serde_json::from_str(&status).context("status is not JSON")?;
        let metrics =
            status["metrics_addr"].as_str().context("the daemon does not say where its metrics are")?;
        self.metrics = metrics.parse()?;
        Ok(())
    }

    /// SIGKILL to the daemon's pid.
    pub(super) fn kill_daemon(&mut self) -> anyhow::Result<()> {
        let mut daemon = self.daemon.take().context("there is no daemon")?;
        self.screen.command(&["kill", "-9", &daemon.pid().to_string()])?;
        daemon.kill()
    }

    /// Starts one of the programs; what it says on standard error goes to `NAME.log`.
    pub(super) fn start(&self, words: &[&str], cgroup: Option<&Path>, name: &str) -> anyhow::Result<Process> {
        let path = self.path(&format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("open {}", path.display()))?;
        let mut command = self.prepare(words)?;
        command.env("RUST_LOG", "info");
        Process::start(command, cgroup, Some(log))
    }

    /// Shows a command of the operator, runs it, and shows what it answered.
    pub(super) fn run(&self, words: &[&str]) -> anyhow::Result<Answer> {
        self.screen.command(words)?;
        let answer = self.ask(words)?;
        self.screen.output(&answer.text)?;
        Ok(answer)
    }

    /// Runs a command unseen.
    pub(super) fn ask(&self, words: &[&str]) -> anyhow::Result<Answer> {
        let (out, err) = (self.path("out"), self.path("err"));
        let mut command = self.prepare(words)?;
        command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        // Ctrl-C is for the demo, which then ends what it started.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().with_context(|| format!("run {}", words.join(" ")))?;
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            let given_up = check_interrupted().err().or_else(|| {
                let is_late = Instant::now() > deadline;
                is_late.then(|| anyhow::anyhow!("`{}` hangs", words.join(" ")))
            });
            if let Some(error) = given_up {
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let text = fs::read_to_string(out)? + &fs::read_to_string(err)?;
        Ok(Answer { code: status.code(), text })
    }

    /// The stops in force, by id.
    pub(super) fn stops(&self) -> anyhow::Result<Vec<String>> {
        let answer = self.ask(&["interlock", "stops", "--json"])?;
        ensure!(answer.code == Some(0), "interlock stops: {}", answer.text);
        let answer: Value = serde_json::from_str(&answer.text)?;
        let stops = answer["stops"].as_array().context("stops")?.iter();
        Ok(stops.filter_map(|entry| Some(entry["stop"]["id"].as_str()?.to_owned())).collect())
    }

    /// The programs are found by their names, and the daemon without a flag, so that commands can be shown as they
    /// are run.
    fn prepare(&self, words: &[&str]) -> anyhow::Result<Command> {
        let (program, args) = words.split_first().context("an empty command")?;
        let mut command = Command::new(self.programs.join(program));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(self.programs.clone()).chain(std::env::split_paths(&path));
        command.args(args).env("PATH", std::env::join_paths(path)?);
        command.env("INTERLOCK_RUNTIME_DIR", self.path("run")).env("NO_COLOR", "1");
        Ok(command)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }

    /// Where the MCP server listens.
    pub(super) fn server(&self) -> SocketAddr {
        self.server
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/mcp", self.server)
    }

    /// Tool calls that reached the server, as the server says.
    pub(super) fn server_log(&self) -> Lines {
        Lines(self.path("server.jsonl"))
    }

    pub(super) fn records(&self) -> Lines {
        Lines(self.path("records.jsonl"))
    }

    pub(super) fn metrics_addr(&self) -> SocketAddr {
        self.metrics
    }

    pub(super) fn scrape(&self) -> anyhow::Result<String> {
        scrape::scrape(self.metrics)
    }

    /// The last the daemon said, for when something went wrong.
    pub(super) fn last_words(&self) -> String {
        let said = fs::read_to_string(self.path("interlock.log")).unwrap_or_default();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// What must be gone once the stage is.
    pub(super) fn traces(&self) -> Vec<PathBuf> {
        vec![self.pins.dir.clone(), self.cgroup.dir().to_owned(), self.scratch.0.clone()]
    }
}

/// A daemon's pins stay when it ends, as they should; those of a demo must not.
struct Pins {
    dir: PathBuf,
    interlock: PathBuf,
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut command = Command::new(&self.interlock);
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        // Whether it worked shows in what is left.
        let _ = command.args(["detach", "--pin-dir"]).arg(&self.dir).stdout(Stdio::null()).status();
    }
}

const PREFIX: &str = "interlock-demo";
/// How long a command may take; a stop waits 5 s for fates.
const PATIENCE: Duration = Duration::from_secs(20);
