//! `interlock stop --fleet`, and the controller behind it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use super::render::{scope_text, text};
use super::stops::OPEN;
use super::{Args, BadConfig};
use crate::config::Kubernetes;
use crate::decide::stop::Selector;
use crate::fleet::controller::{self, Nodes};
use crate::fleet::resources::{AgentStop, AgentStopSpec, AgentStopStatus};
use crate::kubernetes;

/// How often the sum is looked at; the controller writes it once a second.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Makes an `AgentStop`, and waits until every node has answered, or for so long.
pub(super) fn stop(args: &Args, spec: AgentStopSpec, wait: SignedDuration) -> Result<ExitCode> {
    ensure!(!spec.reason.trim().is_empty(), "give a reason; agents are shown it");
    // What no node could carry out need not be asked of all.
    let selector = Selector::compile(spec.scope.clone()).map_err(anyhow::Error::msg).context(BadConfig)?;
    selector.permits(spec.level).map_err(anyhow::Error::msg).context(BadConfig)?;
    let made = block_on(async |client| {
        let stops = Api::<AgentStop>::all(client);
        let name = format!("stop-{}", Timestamp::now().strftime("%Y%m%d-%H%M%S-%3f"));
        let made = stops.create(&PostParams::default(), &AgentStop::new(&name, spec)).await;
        let mut made = made.context("nothing is stopped: the API server did not take the AgentStop")?;
        let deadline = Instant::now() + Duration::try_from(wait).unwrap_or_default();
        while !is_answered(made.status.as_ref()) && Instant::now() < deadline {
            sleep(LOOK_EVERY).await;
            made = stops.get(&name).await.with_context(|| format!("AgentStop {name} is made; look at it"))?;
        }
        Ok(made)
    })?;
    let answer = json!({"name": made.name_any(), "spec": made.spec, "status": made.status});
    args.print(&answer, stop_text);
    Ok(match made.status.as_ref() {
        status if is_answered(status) => ExitCode::SUCCESS,
        status if is_everywhere(status) => OPEN.into(),
        _ => ExitCode::FAILURE,
    })
}

/// Every node has it in force.
fn is_everywhere(status: Option<&AgentStopStatus>) -> bool {
    status.is_some_and(|status| status.nodes > 0 && status.nodes_in_force == status.nodes)
}

/// And every fate is known.
fn is_answered(status: Option<&AgentStopStatus>) -> bool {
    is_everywhere(status) && status.is_some_and(|status| status.open == 0)
}

fn stop_text(answer: &Value) -> String {
    let (name, status) = (text(&answer["name"]), &answer["status"]);
    let scope = scope_text(&answer["spec"]["scope"]);
    if status.is_null() {
        return format!("AgentStop {name} ({scope}) is made; nobody has summed the nodes up yet");
    }
    let mut shown = format!(
        "AgentStop {name} ({scope}): in force on {} nodes, {} agents; {} calls were in flight",
        text(&status["inForce"]),
        status["agents"],
        status["calls"],
    );
    for (fate, calls) in status["fates"].as_object().into_iter().flatten() {
        shown += &format!("\n  {calls} {fate}");
    }
    for problem in status["problems"].as_array().into_iter().flatten() {
        shown += &format!("\n! {}", text(problem));
    }
    shown + &format!("\nrelease it with `kubectl delete agentstop {name}`")
}

/// Runs the controller until it is told to end: the first process of a container ends by no signal that it does not ask for.
pub(super) fn run(nodes: Nodes) -> Result<()> {
    block_on(async |client| {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            ended = controller::run(client, nodes) => ended,
            _ = terminate.recv() => Ok(()),
        }
    })
}

fn block_on<T>(work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { work(kubernetes::client(&Kubernetes::default()).await?).await })
}
