//! The agent: an MCP client on the official SDK that knows nothing of interlock, taken through its script one step at
//! a time.

use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::stage::Stage;
use crate::interrupt::check_interrupted;
use crate::process::Process;

pub(super) struct Agent {
    process: Process,
    lines: Receiver<String>,
    steps: std::vec::IntoIter<Value>,
}

impl Agent {
    /// Starts it through `interlock exec`: it is held before its first instruction.
    pub(super) fn start(stage: &Stage, steps: Vec<Value>) -> anyhow::Result<Self> {
        // It waits for a line before each step.
        let script: Vec<&Value> = steps.iter().flat_map(|step| [&*WAIT, step]).collect();
        let script = serde_json::to_string(&script)?;
        let url = stage.url();
        let command = ["interlock", "exec", "--agent", NAME, "--", "mcp-client", "--url", &url, "--script"];
        stage.screen.command(&[&command[..], &["STEPS"]].concat())?;
        let mut process = stage.start(&[&command[..], &[&script]].concat(), None, "agent")?;
        let (sender, lines) = channel();
        let reader = BufReader::new(process.take_output()?);
        std::thread::spawn(move || {
            reader.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut agent = Self { process, lines, steps: steps.into_iter() };
        let hello = agent.report().context("the agent's session")?;
        ensure!(hello["connected"] == true, "the agent has no session: {hello}");
        Ok(agent)
    }

    /// Lets it begin its next step, and returns what the step is.
    pub(super) fn begin(&mut self) -> anyhow::Result<Value> {
        let step = self.steps.next().context("the agent's script is at its end")?;
        self.process.write_line("")?;
        let heard = self.report()?;
        ensure!(heard["op"] == "wait_line", "the agent is not where it should be: {heard}");
        Ok(step)
    }

    /// What came of the step it is at.
    pub(super) fn report(&mut self) -> anyhow::Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            check_interrupted()?;
            match self.lines.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => return serde_json::from_str(&line).with_context(|| line),
                Err(RecvTimeoutError::Disconnected) => bail!("the agent ended"),
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    bail!("the agent hangs: no answer within {} s", PATIENCE.as_secs())
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The agent's name.
pub(super) const NAME: &str = "demo-agent";
const PATIENCE: Duration = Duration::from_secs(15);
static WAIT: std::sync::LazyLock<Value> =
    std::sync::LazyLock::new(|| json!({"op": "wait_line", "timeout": 3600}));
