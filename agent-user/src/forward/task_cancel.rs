//! What becomes of a task whose call was answered before the stop came: its server is told to cancel it
//! (`tasks/cancel`), and asked until it says how the task ended.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::book::Late;
use crate::decide::stop::Stop;
use crate::fate::Fate;
use crate::fingerprint::Digest;
use crate::forward::cancel::{self, Client, Reply};
use crate::parts::Parts;
use crate::record::entry::{Cancel, Entry};
use crate::tasks::{Task, is_over, status};

/// How often a server is asked how a task ended.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// Files every task in the scope of a stop, and has each cancelled.
pub fn cancel_all(parts: &Arc<Parts>, stop: &Arc<Stop>) {
    cancel_those(parts, stop, |_| true);
}

/// The same for a task that a call has begun which the stop had caught: be the stop released by now, the call was refused.
pub fn cancel_late(parts: &Arc<Parts>, stop: &Arc<Stop>, task: &Arc<Task>) {
    cancel_those(parts, stop, |known| Arc::ptr_eq(known, task));
}

fn cancel_those(parts: &Arc<Parts>, stop: &Arc<Stop>, is: impl Fn(&Arc<Task>) -> bool) {
    for task in parts.tasks.catch(stop, is) {
        parts.book.file_task(stop, &task);
        tokio::spawn(cancel(Arc::clone(parts), Arc::clone(stop), task));
    }
}

async fn cancel(parts: Arc<Parts>, stop: Arc<Stop>, task: Arc<Task>) {
    let told = ask(&parts, &task, "tasks/cancel").await;
    let outcome = match &told {
        Ok(reply) => describe(reply),
        Err(error) => error.to_string(),
    };
    record(&parts, &stop, &task, outcome);
    let mut known = told.as_ref().ok().and_then(fate);
    let until = Instant::now() + parts.evidence_window;
    // The extension only acknowledges, and a server that did not answer may have heard all the same.
    while known.is_none() && Instant::now() < until {
        sleep(ASK_EVERY).await;
        known = ask(&parts, &task, "tasks/get").await.ok().as_ref().and_then(fate_of_task);
    }
    let (fate, late) = known.unwrap_or((Fate::Sent, None));
    if matches!(fate, Fate::Cancelled | Fate::FinishedAfterStop) {
        parts.tasks.end(&task);
    }
    parts.book.settle(&stop, &task.conn, &task.call, Some(&task.id), fate, late);
}

async fn ask(parts: &Parts, task: &Task, method: &str) -> std::io::Result<Reply> {
    // Not held between two questions: others wait for it. The semaphore is never closed.
    let _turn = task.conn.identity.agent.cancels.acquire().await;
    let client =
        Client { request: &task.request, conn: &task.conn, netns: &task.netns, limits: &parts.limits };
    // An id that no agent would choose: its answer goes nowhere else.
    let rpc_id = format!("interlock-{}", parts.decisions.next());
    let revision = task.call.revision;
    let routing = (revision == Some("2026-07-28")).then_some((method, &*task.id));
    client.post(&cancel::about_task(method, &task.id, revision, &rpc_id), routing).await
}

/// JSON-RPC 2.0, section 5.1.
const INVALID_PARAMS: i64 = -32602;

type Known = (Fate, Option<Late>);

/// What the answer to `tasks/cancel` tells. `None`: nothing yet.
fn fate(reply: &Reply) -> Option<Known> {
    let response = reply.response()?;
    match response.get("error") {
        // What both generations answer for a task that is over, or cannot be cancelled.
        Some(error) if error["code"] == INVALID_PARAMS => {
            Some((Fate::NotCancelable, Some(late(reply, true))))
        }
        // It does not know us, or the method: that tells nothing of the task.
        Some(_) => None,
        None => fate_of_task(reply),
    }
}

/// What a task that a server describes has come to. `None`: it goes on, or the answer tells nothing.
fn fate_of_task(reply: &Reply) -> Option<Known> {
    let response = reply.response()?;
    let task = response.get("result")?.to_string();
    if !is_over(&task) {
        return None;
    }
    Some(match status(&task).as_deref() {
        Some("cancelled") => (Fate::Cancelled, None),
        other => (Fate::FinishedAfterStop, Some(late(reply, other == Some("failed")))),
    })
}

fn late(reply: &Reply, is_error: bool) -> Late {
    Late { bytes: reply.text.len(), digest: Digest::of(reply.text.as_bytes()).to_string(), is_error }
}

/// What a server answered, in a few words.
fn describe(reply: &Reply) -> String {
    let response = reply.response().unwrap_or(Value::Null);
    let code = response["error"]["code"].as_i64();
    let status = response["result"].get("status").and_then(Value::as_str);
    match (code, status) {
        (Some(code), _) => format!("{}, error {code}", reply.outcome()),
        (None, Some("cancelled" | "completed" | "failed" | "working" | "input_required")) => {
            format!("{}, task {}", reply.outcome(), status.unwrap_or_default())
        }
        (None, _) => reply.outcome(),
    }
}

fn record(parts: &Parts, stop: &Stop, task: &Task, outcome: String) {
    parts.log.record(&Entry::Cancel(Cancel {
        agent: &task.conn.identity.agent.name,
        server: &task.call.server,
        cause: "operator_stop",
        rpc_id: task.call.rpc_id.as_deref().unwrap_or_default(),
        task: Some(&task.id),
        stop: Some(&stop.id),
        via: "tasks/cancel",
        outcome: Some(outcome),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<Fate>) {
        let reply = Reply { status: Some(200), text: text.to_owned() };
        assert_eq!(fate(&reply).map(|(fate, _)| fate), expect, "{text}");
    }

    #[test]
    fn an_error_tells_of_the_task_only_where_it_is_about_the_task() {
        check(r#"{"error":{"code":-32602,"message":"no"}}"#, Some(Fate::NotCancelable));
        check(r#"{"error":{"code":-32601,"message":"method not found"}}"#, None);
        check(r#"{"error":{"code":-32600,"message":"session not found"}}"#, None);
        check(r#"{"result":{"taskId":"t","status":"cancelled"}}"#, Some(Fate::Cancelled));
        check(r#"{"result":{}}"#, None);
    }
}
