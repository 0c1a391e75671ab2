//! One interlock daemon of the bench, with cgroups, pins and directories of its own, driven as an operator would:
//! a configuration file, the command line, and what it tells Prometheus.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use super::host::Core;
use crate::cgroup::Cgroup;
use crate::interrupt::check_interrupted;
use crate::process::Process;
use crate::scrape;

pub(crate) struct Daemon {
    process: Process,
    binary: PathBuf,
    runtime_dir: PathBuf,
    /// What it records.
    pub(crate) records: PathBuf,
    /// Below the process: fields are dropped in this order, and pins go after the daemon.
    _pins: Pins,
    /// Where its metrics are, once it has said so.
    metrics: Option<SocketAddr>,
    /// What starts in here is the agent `bench`.
    pub(crate) agents: PathBuf,
    /// What starts in here is under the same programs and no agent.
    pub(crate) peers: PathBuf,
}

/// The daemon's pins stay when it ends, as they should; those of a bench must not.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            eprintln!("bench: {} could not be removed: {error}", self.0.display());
        }
    }
}

impl Daemon {
    /// Starts a daemon with a file of rules, and waits until it is ready.
    pub(crate) fn start(
        binary: &Path,
        cgroup: &Cgroup,
        scratch: &Path,
        name: &str,
        rules: &str,
        log: &Path,
    ) -> anyhow::Result<Self> {
        let folder = scratch.join(name);
        fs::create_dir_all(&folder)?;
        let pins = Pins(format!("/sys/fs/bpf/{}-{name}", &cgroup.name[1..]).into());
        let (config, rules_file, runtime_dir) =
            (folder.join("config.yaml"), folder.join("rules.yaml"), folder.join("run"));
        let records = folder.join("records.jsonl");
        fs::write(&rules_file, rules)?;
        let below = format!("{}/{name}", cgroup.name);
        let text = format!(
            "version: 1\nattach: [\"{below}\"]\nagents: [{{name: bench, cgroup: \"{below}/agents/bench*\"}}]\n\
             rules: {rules}\nstate_dir: {folder}/state\nruntime_dir: {run}\npin_dir: {pins}\n\
             records: {{path: {records}}}\nmetrics_addr: 127.0.0.1:0\n",
            rules = rules_file.display(),
            folder = folder.display(),
            records = records.display(),
            run = runtime_dir.display(),
            pins = pins.0.display(),
        );
        fs::write(&config, text)?;
        let agents = cgroup.child(&format!("{name}/agents/bench"))?;
        let peers = cgroup.child(&format!("{name}/peers"))?;
        let mut command = Command::new(binary);
        command.args(["run", "--config"]).arg(&config).env("RUST_LOG", "warn");
        let log_file = fs::File::create(log).with_context(|| format!("create {}", log.display()))?;
        let home = cgroup.child(&format!("{name}/daemon"))?;
        let process = Core::Proxy.start(command, Some(&home), Some(log_file))?;
        let mut daemon = Self {
            process,
            binary: binary.into(),
            runtime_dir,
            records,
            _pins: pins,
            metrics: None,
            agents,
            peers,
        };
        daemon.wait_until_ready().with_context(|| {
            let said = fs::read_to_string(log).unwrap_or_default();
            let tail: Vec<&str> = said.lines().rev().take(5).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            format!("interlock run said (all of it in {}):\n{}", log.display(), tail.join("\n"))
        })?;
        Ok(daemon)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(15);
        loop {
            if self.process.has_ended() {
                bail!("it ended at once");
            }
            let status = self.cli(&["status", "--json"])?;
            if status.status.success() {
                let status: Value = serde_json::from_slice(&status.stdout).context("status is not JSON")?;
                self.metrics = status["metrics_addr"].as_str().and_then(|address| address.parse().ok());
                return Ok(());
            }
            check_interrupted()?;
            if Instant::now() > deadline {
                bail!("not ready after 15 s: {}", String::from_utf8_lossy(&status.stderr).trim());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Runs an operator's command against this daemon.
    pub(crate) fn cli(&self, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(&self.binary);
        command.arg("--runtime-dir").arg(&self.runtime_dir).args(args).stdin(Stdio::null());
        command.output().with_context(|| format!("run {}", self.binary.display()))
    }

    /// The same for a command with `--json`; what it exits with is looked at by `accept`.
    pub(crate) fn cli_json(&self, args: &[&str], accept: &[i32]) -> anyhow::Result<Value> {
        let output = self.cli(args)?;
        if !output.status.code().is_some_and(|code| accept.contains(&code)) {
            let (stdout, stderr) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            bail!("interlock {}: {}: {} {}", args[0], output.status, stderr.trim(), stdout.trim());
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("what interlock {} says is not JSON", args[0]))
    }

    /// Sum of a metric over all its series with `label`, such as `state="trusted"`, which may be empty.
    pub(crate) fn metric(&self, name: &str, label: &str) -> anyhow::Result<f64> {
        Ok(scrape::sum_metric(
            &scrape::scrape(self.metrics.context("the daemon has not said where its metrics are")?)?,
            name,
            label,
        ))
    }
}

/// So many rules none of which can match a tool of the bench: four in five name a tool, the others a pattern.
pub(crate) fn rules_yaml(count: usize) -> String {
    let mut text = String::from("version: 1\nrules:");
    if count == 0 {
        return text + " []\n";
    }
    for n in 0..count {
        let tool = if n % 5 == 4 { format!("\"never_{n}_*\"") } else { format!("never_{n}") };
        let _ = write!(
            text,
            "\n  - {{id: bench-{n}, action: deny, match: {{tool: {tool}}}, reason: no tool of the bench}}"
        );
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_their_number_and_no_rules_is_an_empty_list() {
        assert_eq!(rules_yaml(10).matches("id: bench-").count(), 10);
        assert!(rules_yaml(0).ends_with("rules: []\n"));
    }
}
