//! Tasks: what servers still do for agents after the call that began it was answered. A stop has to know them, since
//! no connection is open for them.
//!
//! MCP has two generations of tasks, of 2025-11-25 (in the core) and as an extension of 2026-07-28. Both are known
//! here by their id alone; a task is forgotten when its server says that it is over.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};

use crate::decide::stop::Selector;
use crate::decode::{Kind, Message, find};
use crate::kernel::netns::Netns;
use crate::ledger::{Call, Conn, Scene};

/// Most tasks that are followed of one agent; further ones are not known to a stop.
const PER_AGENT: usize = 1000;
/// Most tasks that are followed of all.
const MOST: usize = 10_000;
/// How long a task is followed that never ends.
const FOLLOWED_FOR: SignedDuration = SignedDuration::from_hours(24);

/// A task a server runs for an agent.
#[derive(Debug)]
pub struct Task {
    pub id: Box<str>,
    /// The call that began it.
    pub call: Call,
    pub scene: Scene,
    /// The connection of that call; it may be gone.
    pub conn: Arc<Conn>,
    pub netns: Arc<Netns>,
    /// Head of the request that began it: a cancel must repeat its headers.
    pub request: Vec<u8>,
    /// A stop has caught it. From then on it is not forgotten when it ends: what came of it is not for the agent.
    pub caught: AtomicBool,
}

/// The tasks that are not over, as far as is known.
#[derive(Debug, Default)]
pub struct Tasks {
    running: Mutex<HashMap<Key, Arc<Task>>>,
}

/// Ids are chosen by servers: those of two servers, or of two agents, have nothing to do with each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    agent: u32,
    server: SocketAddr,
    id: Box<str>,
}

impl Key {
    fn new(conn: &Conn, id: &str) -> Key {
        Key { agent: conn.identity.agent.number, server: conn.destination, id: id.into() }
    }
}

impl Tasks {
    fn running(&self) -> MutexGuard<'_, HashMap<Key, Arc<Task>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns from a server's message: a response to `call`, or a notification. `begin` makes the task that a response
    /// tells of. Returns false where there was no room to remember it.
    pub fn learn(
        &self,
        conn: &Conn,
        message: &Message<'_>,
        call: Option<&Call>,
        begin: impl FnOnce(Box<str>, &Call) -> Task,
    ) -> bool {
        let Some(news) = news(message, call) else { return true };
        let key = Key::new(conn, &news.id);
        let mut running = self.running();
        if news.is_over {
            if running.get(&key).is_some_and(|task| !task.caught.load(Ordering::Relaxed)) {
                running.remove(&key);
            }
        } else if let Some(call) = call.filter(|_| news.begins) {
            if running.len() >= PER_AGENT {
                let now = Timestamp::now();
                running.retain(|_, task| now.duration_since(task.call.since) < FOLLOWED_FOR);
            }
            let of_agent = running.keys().filter(|known| known.agent == key.agent).count();
            if running.len() >= MOST || of_agent >= PER_AGENT {
                return false;
            }
            running.insert(key, Arc::new(begin(news.id, call)));
        }
        true
    }

    /// The tool behind a task of this agent at this server.
    pub fn tool(&self, conn: &Conn, id: &str) -> Option<Box<str>> {
        self.running().get(&Key::new(conn, id)).and_then(|task| task.call.tool.clone())
    }

    /// The running tasks that a selector is for, unless a stop has caught them.
    pub fn matching(&self, selector: &Selector) -> Vec<Arc<Task>> {
        let running = self.running();
        let concerns = |task: &&Arc<Task>| {
            !task.caught.load(Ordering::Relaxed)
                && selector.matches(&task.call.facts(&task.scene, &task.conn.identity.agent.name))
        };
        running.values().filter(concerns).cloned().collect()
    }

    /// As [`Tasks::matching`], for a stop, which catches each of them once.
    pub fn catch(&self, selector: &Selector) -> Vec<Arc<Task>> {
        let mut tasks = self.matching(selector);
        tasks.retain(|task| !task.caught.swap(true, Ordering::Relaxed));
        tasks
    }
}

/// What a message says of a task.
#[derive(Debug, PartialEq, Eq)]
struct News {
    id: Box<str>,
    /// It is the answer to the call that began it.
    begins: bool,
    is_over: bool,
}

fn news(message: &Message<'_>, call: Option<&Call>) -> Option<News> {
    match (&message.kind, call) {
        (Kind::Notification { method }, _) if method.starts_with("notifications/tasks") => {
            let params = message.params.as_ref()?;
            let id = find::text(params.task_id?)?.into();
            Some(News { id, begins: false, is_over: is_over(params.raw) })
        }
        (Kind::Response { is_error, .. }, Some(call)) => {
            let result = message.result.as_ref();
            if call.method.starts_with("tasks/") {
                let is_over = match &*call.method {
                    // Blocks until the task is over (2025-11-25).
                    "tasks/result" => !is_error,
                    _ => result.is_some_and(|result| is_over(result.raw)),
                };
                return Some(News { id: call.tool.clone()?, begins: false, is_over });
            }
            // Another protocol's results may look alike.
            let result = result.filter(|_| call.revision.is_some())?;
            // Flat in the extension; the core has it in an object of its own.
            let (task, id) = match result.task {
                Some(task) => (task, find::member(task, "taskId").ok()??),
                None => (result.raw, result.task_id?),
            };
            Some(News { id: find::text(id)?.into(), begins: true, is_over: is_over(task) })
        }
        _ => None,
    }
}

/// Whether a task object says that nothing more will come of it.
pub fn is_over(task: &str) -> bool {
    matches!(status(task).as_deref(), Some("completed" | "failed" | "cancelled"))
}

/// The status a task object states.
pub fn status(task: &str) -> Option<String> {
    find::text(find::member(task, "status").ok()??).map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Limits, Payload, decode};

    fn call(method: &str, name: &str) -> Call {
        Call {
            method: method.into(),
            tool: Some(name.into()),
            of_tool: None,
            of_unknown: false,
            agent_cancelled_at: None,
            rpc_id: Some("1".into()),
            server: "s".into(),
            session: None,
            workflow: None,
            revision: Some("2025-11-25"),
            decision: "d".into(),
            since: Timestamp::UNIX_EPOCH,
        }
    }

    #[track_caller]
    fn check(text: &str, call: Option<Call>, expect: Option<(&str, bool, bool)>) {
        let payload = decode(text.as_bytes(), &Limits::default()).unwrap();
        let Payload::Single(message) = &payload else { panic!("{text}") };
        let expect = expect.map(|(id, begins, is_over)| News { id: id.into(), begins, is_over });
        assert_eq!(news(message, call.as_ref()), expect, "{text}");
    }

    #[test]
    fn both_generations_begin_a_task() {
        let core = r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t-1","status":"working"}}}"#;
        check(core, Some(call("tools/call", "slow")), Some(("t-1", true, false)));
        let flat = r#"{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"t\u002d2","status":"working"}}"#;
        check(flat, Some(call("tools/call", "slow")), Some(("t-2", true, false)));
        let over = r#"{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"t-1","status":"completed"}}}"#;
        check(over, Some(call("tools/call", "slow")), Some(("t-1", true, true)));
        let plain = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;
        check(plain, Some(call("tools/call", "slow")), None);
    }

    #[test]
    fn a_task_is_over_when_its_server_says_so() {
        let get = |status: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"taskId":"t-1","status":"{status}"}}}}"#)
        };
        for (status, over) in
            [("working", false), ("input_required", false), ("failed", true), ("cancelled", true)]
        {
            check(&get(status), Some(call("tasks/get", "t-1")), Some(("t-1", false, over)));
        }
        let result = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;
        check(result, Some(call("tasks/result", "t-1")), Some(("t-1", false, true)));
        let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}"#;
        check(error, Some(call("tasks/result", "t-1")), Some(("t-1", false, false)));
        let news = r#"{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"t-1","status":"completed"}}"#;
        check(news, None, Some(("t-1", false, true)));
    }
}
