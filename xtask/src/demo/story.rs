//! The nine steps, in order; the last two, which look back, are in `proof`. One agent process lives through all of them, on one MCP session.

use std::fs;
use std::time::Instant;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use super::agent::{Agent, NAME};
use super::evidence::wait_for;
use super::stage::Stage;
use super::words::{EPERM, call, is_refusal, outcome, shown};
use crate::scrape::sum_metric;

/// What the demo has on stage and knows so far. The agent is dropped first.
pub(super) struct Story {
    agent: Agent,
    pub(super) stage: Stage,
    /// Ids of the two stops.
    pub(super) stops: Vec<String>,
    /// What the daemon told Prometheus right before it was killed.
    pub(super) counters: String,
}

type Step = fn(&mut Story) -> anyhow::Result<()>;

pub(super) const STEPS: [(&str, Step); 9] = [
    ("An allowed call", Story::allowed_call),
    ("A refused call", Story::refused_call),
    ("A rule edited live", Story::edited_rule),
    ("An operator's stop, in the middle of a call", Story::stop),
    ("The daemon killed, the stop still holding", Story::dead_daemon),
    ("The agent tries to free itself", Story::self_release),
    ("The operator releases the agent", Story::release),
    ("The record of it all", Story::record),
    ("The counters, as Prometheus reads them", Story::counters),
];

impl Story {
    /// Starts the daemon and the agent.
    pub(super) fn begin(mut stage: Stage) -> anyhow::Result<Self> {
        stage.screen.say(&format!(
            "On stage: an MCP server, which is a bank, at {}. The daemon. And an agent, an MCP client in a cgroup of \
             its own. Client and server are plain programs on the official Rust SDK; neither knows of interlock, and \
             the agent is told only the server's address: eBPF hands its connections to the daemon.",
            stage.server()
        ))?;
        stage.screen.say("The rules:")?;
        stage.screen.output(RULES)?;
        stage.start_daemon()?;
        let raw = json!({"op": "connect", "addr": stage.server().to_string()});
        let steps = vec![
            call("echo", json!({"text": "hello"})),
            call("wire_transfer", json!({"amount": 5000})),
            call("echo", json!({"text": "after the edit"})),
            call("echo", json!({"text": "edited back"})),
            call("slow", json!({"seconds": 60})),
            call("echo", json!({"text": "retry"})),
            raw.clone(),
            raw.clone(),
            raw,
            call("echo", json!({"text": "free again"})),
            call("wire_transfer", json!({"amount": 1})),
        ];
        let agent = Agent::start(&stage, steps)?;
        Ok(Self { agent, stage, stops: Vec::new(), counters: String::new() })
    }

    pub(super) fn last_words(&self) -> String {
        self.stage.last_words()
    }

    fn allowed_call(&mut self) -> anyhow::Result<()> {
        self.stage.screen.say("No rule is against echo. The call goes through, byte for byte.")?;
        let got = self.agent_calls()?;
        ensure!(got["ok"] == true && got["text"] == "hello", "the agent got {got}");
        ensure!(self.reached_server("echo")? == 1, "the server did not see one call of echo");
        self.checked("the server's own log has the call.")
    }

    fn refused_call(&mut self) -> anyhow::Result<()> {
        self.stage.screen.say(
            "The rule is against wire_transfer. The agent gets an answer of its own protocol, a tool result that says \
             why, so that the model reads it and the session goes on. This is exactly what it saw:",
        )?;
        let got = self.agent_calls()?;
        ensure!(is_refusal(&got, RULE), "the agent got {got}");
        ensure!(self.reached_server("wire_transfer")? == 0, "the server saw the call");
        self.checked("not one byte of the call reached the server; its log has no wire_transfer.")
    }

    fn edited_rule(&mut self) -> anyhow::Result<()> {
        let screen = self.stage.screen;
        screen.say(
            "The operator edits the rules file while the agent's session stays open: now the rule is against echo too.",
        )?;
        let edited = RULES.replace("tool: wire_transfer", "tool: [wire_transfer, echo]");
        self.edit("tool: [wire_transfer, echo]", &edited)?;
        let got = self.agent_calls()?;
        ensure!(is_refusal(&got, RULE), "the agent got {got}");
        screen.say("And back again:")?;
        self.edit("tool: wire_transfer", RULES)?;
        let got = self.agent_calls()?;
        ensure!(got["ok"] == true && got["text"] == "edited back", "the agent got {got}");
        ensure!(
            self.reached_server("echo")? == 2,
            "the server did not see just the two allowed calls of echo"
        );
        self.checked("the server saw the second of these two calls only; the session never closed.")
    }

    /// Rewrites the rules file in one step and measures until the new rules decide.
    fn edit(&self, shown: &str, rules: &str) -> anyhow::Result<()> {
        let generation = || Ok::<_, anyhow::Error>(sum_metric(&self.stage.scrape()?, GENERATION, ""));
        let (file, next, before) =
            (self.stage.path("rules.yaml"), self.stage.path("rules.next"), generation()?);
        fs::write(&next, rules)?;
        let written = Instant::now();
        fs::rename(next, file)?;
        wait_for("the new rules are in force", || Ok((generation()? > before).then_some(())))?;
        let took = written.elapsed().as_secs_f64() * 1000.0;
        self.stage.screen.say(&format!("rules.yaml: {shown}   (in force {took:.1} ms after the write)"))
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        let screen = self.stage.screen;
        screen.say("The agent is in the middle of a call that takes a minute, when an operator stops it.")?;
        let asked = self.agent.begin()?;
        screen.agent_asks(&shown(&asked))?;
        let is_slow = |line: &Value| line["tool"] == "slow" && line["phase"] == "start";
        self.stage.server_log().wait("the server has the slow call", is_slow)?;
        self.order_stop("refuse", REASON)?;
        screen.say("The pending call is answered at once, and so is a retry, with the operator's words:")?;
        let got = self.agent.report()?;
        screen.agent_gets(&outcome(&got))?;
        ensure!(is_refusal(&got, REASON), "the agent got {got}");
        let got = self.agent_calls()?;
        ensure!(is_refusal(&got, REASON), "the agent got {got}");
        ensure!(self.reached_server("echo")? == 2, "the server saw the retry");
        let id = self.stops[0].clone();
        let is_caught = |record: &Value| record["kind"] == "stop_effect" && record["stop"] == *id;
        let effect = self.stage.records().wait("the slow call's fate is on record", is_caught)?;
        ensure!(effect["tool"] == "slow", "the stop caught {effect}");
        let is_given_up = |line: &Value| line["tool"] == "slow" && line["phase"] == "cancelled";
        self.stage.server_log().wait("the server gives the slow call up", is_given_up)?;
        self.checked(
            "the retry never reached the server. The pending call had, so the stop closed its connection, which is \
             how this revision of MCP cancels: the server closed in turn, and no answer can come (closed).",
        )?;

        screen.say(
            "A connect() of the agent still succeeds, if only to be refused by the daemon. The next level takes its whole \
             network away, in the kernel:",
        )?;
        self.order_stop("isolate", "cut it off until we know more")?;
        self.connect_is_refused()?;
        let is_refused = |record: &Value| record["kind"] == "kernel" && record["reason"] == "stopped";
        self.stage.records().wait("the kernel's refusal is on record", is_refused)?;
        self.checked("connect() failed with EPERM, and the kernel reported that it was for the stop.")
    }

    /// Runs `interlock stop`, and keeps the id of the stop.
    fn order_stop(&mut self, level: &str, reason: &str) -> anyhow::Result<()> {
        let selector = format!("agent={NAME}");
        let mut words = vec!["interlock", "stop", &selector, "--reason", reason];
        if level != "refuse" {
            words.extend(["--level", level]);
        }
        let answer = self.stage.run(&words)?;
        ensure!(matches!(answer.code, Some(0 | 3)), "interlock stop ended with {:?}", answer.code);
        let id = answer.text.split_whitespace().nth(1).context("the answer names no stop")?.to_owned();
        ensure!(answer.text.contains(" is in force "), "the stop is not in force");
        ensure!(self.stage.stops()?.contains(&id), "interlock stops does not list {id}");
        self.stops.push(id);
        Ok(())
    }

    fn dead_daemon(&mut self) -> anyhow::Result<()> {
        let screen = self.stage.screen;
        self.counters = self.stage.scrape()?;
        screen.say("Somebody kills the daemon without a word. What it held, the kernel holds:")?;
        self.stage.kill_daemon()?;
        ensure!(self.stage.ask(&["interlock", "status"])?.code != Some(0), "the daemon still answers");
        self.connect_is_refused()?;
        screen.say(
            "Started again, the daemon takes up where it was; of what the first one did the records tell:",
        )?;
        self.stage.start_daemon()?;
        let first = self.stops.first().context("no stop was ordered")?;
        let answer = self.stage.run(&["interlock", "stops", "show", first])?;
        ensure!(matches!(answer.code, Some(0 | 3)), "interlock stops show ended with {:?}", answer.code);
        ensure!(answer.text.contains("tools/call"), "the receipt does not list the call");
        self.connect_is_refused()?;
        ensure!(self.stage.stops()? == self.stops, "the stops in force are {:?}", self.stage.stops()?);
        self.checked("EPERM with the daemon dead, and again after it is back; both stops hold, and the call is told of.")
    }

    /// The agent's next step is a TCP connection past any SDK, and fails.
    fn connect_is_refused(&mut self) -> anyhow::Result<()> {
        let got = self.agent_calls()?;
        ensure!(got["error"]["code"] == EPERM, "the agent got {got}");
        Ok(())
    }

    fn self_release(&mut self) -> anyhow::Result<()> {
        self.stage
            .screen
            .say("The same command that would free it, run as root, but from inside the agent's cgroup:")?;
        let id = self.last_stop()?;
        let inside = ["interlock", "exec", "--agent", NAME, "--"];
        let release = ["interlock", "release", &id, "--reason", "let me go"];
        let answer = self.stage.run(&[&inside[..], &release[..]].concat())?;
        ensure!(answer.code == Some(1), "interlock release ended with {:?}", answer.code);
        ensure!(answer.text.contains("refused"), "the answer is not a refusal");
        ensure!(self.stage.stops()? == self.stops, "the stops in force are {:?}", self.stage.stops()?);
        let is_intrusion = |record: &Value| record["kind"] == "intrusion";
        self.stage.records().wait("the attempt is on record", is_intrusion)?;
        self.checked("exit code 1, both stops still in force, the attempt on record.")
    }

    fn last_stop(&self) -> anyhow::Result<String> {
        self.stops.last().cloned().context("no stop was ordered")
    }

    fn release(&mut self) -> anyhow::Result<()> {
        let screen = self.stage.screen;
        screen
            .say("No timer ends a stop; a person does. The same agent process goes on with its session:")?;
        for id in self.stops.iter().rev() {
            let answer = self.stage.run(&["interlock", "release", id, "--reason", "reviewed"])?;
            ensure!(answer.code == Some(0), "interlock release ended with {:?}", answer.code);
        }
        ensure!(self.stage.stops()?.is_empty(), "the stops in force are {:?}", self.stage.stops()?);
        let got = self.agent_calls()?;
        ensure!(got["ok"] == true && got["text"] == "free again", "the agent got {got}");
        ensure!(self.reached_server("echo")? == 3, "the server did not see the call");
        screen.say("The stop is gone; the rule is not:")?;
        let got = self.agent_calls()?;
        ensure!(is_refusal(&got, RULE), "the agent got {got}");
        ensure!(self.reached_server("wire_transfer")? == 0, "the server saw a wire_transfer");
        self.checked("the server has the echo, and in the whole demo never saw a wire_transfer.")
    }

    /// Lets the agent do its next step, shows it and what came of it.
    fn agent_calls(&mut self) -> anyhow::Result<Value> {
        let asked = self.agent.begin()?;
        self.stage.screen.agent_asks(&shown(&asked))?;
        let got = self.agent.report()?;
        self.stage.screen.agent_gets(&outcome(&got))?;
        Ok(got)
    }

    /// How many calls of a tool have reached the server, by its own log.
    fn reached_server(&self, tool: &str) -> anyhow::Result<usize> {
        self.stage.server_log().count(|line| line["tool"] == tool && line["phase"] == "start")
    }

    pub(super) fn checked(&self, text: &str) -> anyhow::Result<()> {
        self.stage.screen.checked(text)
    }
}

pub(super) const RULES: &str = "\
version: 1
rules:
  - id: no-transfers
    action: deny
    match: {method: tools/call, tool: wire_transfer}
    reason: transfers need a person
";
pub(super) const RULE: &str = "no-transfers";
const REASON: &str = "the transfers look wrong";
const GENERATION: &str = "interlock_policy_generation";
