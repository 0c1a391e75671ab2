//! Tasks: what servers still do for agents after the call that began it was answered. A stop has to know them, since
//! no connection is open for them.
//!
//! MCP has two generations of tasks, of 2025-11-25 (in the core) and as an extension of 2026-07-28. Both are known
//! here by their id alone; a task is forgotten when its server says that it is over.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};

use crate::decide::stop::{Selector, Stop};
use crate::decode::{Kind, Message, find};
use crate::kernel::netns::Netns;
use crate::ledger::{Call, Conn, Scene};
use crate::room::Taken;

/// Most tasks that are followed of one agent; of further ones a stop knows only that there are some.
const PER_AGENT: usize = 1000;
/// Most tasks that are followed of all.
const MOST: usize = 10_000;
/// Longest id of a task that is followed, and longest texts of the call that began it: servers and agents choose them.
const MAX_TEXT: usize = 4096;
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
    /// What that takes of the room for messages.
    pub held: Taken,
}

/// The tasks that are not over, as far as is known.
#[derive(Debug, Default)]
pub struct Tasks {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    followed: HashMap<Key, Followed>,
    /// By agent: how many tasks began that are not followed, and when the last of them did.
    unfollowed: HashMap<u32, (u64, Timestamp)>,
}

#[derive(Debug)]
struct Followed {
    task: Arc<Task>,
    /// Stops in force that have caught it. Until they are released it is not forgotten though it is over: what came of it
    /// is not for the agent.
    caught_by: Vec<Arc<str>>,
    is_over: bool,
}

/// What a message has told of tasks.
#[derive(Debug)]
pub enum Learnt {
    Nothing,
    Begun(Arc<Task>),
    /// One has begun that cannot be followed.
    Unfollowed,
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
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns from a server's message: a response to `call`, or a notification. `begin` makes the task that a response
    /// tells of.
    pub fn learn(
        &self,
        conn: &Conn,
        message: &Message<'_>,
        call: Option<&Call>,
        begin: impl FnOnce(Box<str>, &Call) -> Option<Task>,
    ) -> Learnt {
        let Some(news) = news(message, call) else { return Learnt::Nothing };
        let key = Key::new(conn, &news.id);
        if news.is_over {
            self.known().end(&key);
            return Learnt::Nothing;
        }
        let Some(call) = call.filter(|_| news.begins) else { return Learnt::Nothing };
        let mut known = self.known();
        let texts = [Some(&news.id), Some(&call.method), call.tool.as_ref(), call.rpc_id.as_ref()];
        let is_long = texts.into_iter().flatten().any(|text| text.len() > MAX_TEXT);
        let begun = if is_long || !known.has_room(&key) { None } else { begin(news.id, call) };
        let Some(task) = begun.map(Arc::new) else {
            let (count, last) = known.unfollowed.entry(key.agent).or_default();
            (*count, *last) = (*count + 1, Timestamp::now());
            return Learnt::Unfollowed;
        };
        let followed = Followed { task: Arc::clone(&task), caught_by: Vec::new(), is_over: false };
        known.followed.insert(key, followed);
        Learnt::Begun(task)
    }

    /// The tool behind a task of this agent. A server may have several addresses: where the task is not known at this one,
    /// one of the same id at another is meant.
    pub fn tool(&self, conn: &Conn, id: &str) -> Option<Box<str>> {
        let known = self.known();
        let agent = conn.identity.agent.number;
        let elsewhere = || known.followed.iter().find(|(key, _)| key.agent == agent && &*key.id == id);
        let here = known.followed.get(&Key::new(conn, id));
        here.or_else(|| elsewhere().map(|(_, followed)| followed))?.task.call.tool.clone()
    }

    /// The running tasks that a selector is for.
    pub fn matching(&self, selector: &Selector) -> Vec<Arc<Task>> {
        let known = self.known();
        let concerned = known.followed.values().filter(|followed| followed.is_met_by(selector));
        concerned.map(|followed| Arc::clone(&followed.task)).collect()
    }

    /// As [`Tasks::matching`], for a stop, which catches each of them once. `is` leaves some out.
    pub fn catch(&self, stop: &Stop, is: impl Fn(&Arc<Task>) -> bool) -> Vec<Arc<Task>> {
        let mut known = self.known();
        let concerned = known.followed.values_mut().filter(|followed| {
            is(&followed.task) && followed.is_met_by(&stop.selector) && !followed.caught_by.contains(&stop.id)
        });
        let caught = concerned.map(|followed| {
            followed.caught_by.push(Arc::clone(&stop.id));
            Arc::clone(&followed.task)
        });
        caught.collect()
    }

    /// A task is over.
    pub fn end(&self, task: &Task) {
        self.known().end(&Key::new(&task.conn, &task.id));
    }

    /// A stop was released: what it has caught and is over is forgotten, and what goes on is there for the next stop.
    pub fn release(&self, stop: &str) {
        self.known().followed.retain(|_, followed| {
            followed.caught_by.retain(|id| &**id != stop);
            !(followed.is_over && followed.caught_by.is_empty())
        });
    }

    /// How many tasks of an agent began that are not followed: they may still run.
    pub fn unfollowed(&self, agent: u32) -> u64 {
        let now = Timestamp::now();
        let mut known = self.known();
        known.unfollowed.retain(|_, (_, last)| now.duration_since(*last) < FOLLOWED_FOR);
        known.unfollowed.get(&agent).map_or(0, |(count, _)| *count)
    }
}

impl Known {
    fn end(&mut self, key: &Key) {
        match self.followed.get_mut(key) {
            Some(followed) if !followed.caught_by.is_empty() => followed.is_over = true,
            _ => drop(self.followed.remove(key)),
        }
    }

    /// Whether one more task can be followed.
    fn has_room(&mut self, key: &Key) -> bool {
        if self.followed.len() >= PER_AGENT {
            let now = Timestamp::now();
            self.followed.retain(|_, followed| now.duration_since(followed.task.call.since) < FOLLOWED_FOR);
        }
        let of_agent = self.followed.keys().filter(|known| known.agent == key.agent).count();
        self.followed.contains_key(key) || self.followed.len() < MOST && of_agent < PER_AGENT
    }
}

impl Followed {
    fn is_met_by(&self, selector: &Selector) -> bool {
        let Task { call, scene, conn, .. } = &*self.task;
        !self.is_over && conn.identity.agent.as_whom(|agent| selector.matches(&call.facts(scene, agent)))
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
    use crate::decide::stop::Level;
    use crate::decode::{Limits, Payload, decode};
    use crate::identity::{Agent, Identity};
    use crate::ledger::Ledger;
    use crate::record::metrics::Metrics;
    use crate::room::{Room, What};
    use crate::workflow::OfProcess;

    fn call(method: &str, name: &str) -> Call {
        Call {
            method: method.into(),
            tool: Some(name.into()),
            of_tool: None,
            is_operation: false,
            of_unknown: false,
            cursor: None,
            round: None,
            agent_cancelled_at: None,
            held: None,
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

    /// A connection of agent 1 to a server at this address.
    fn conn(ledger: &Arc<Ledger>, to: &str) -> Arc<Conn> {
        let metrics = Metrics::new().unwrap().agent("a");
        let identity = Identity {
            agent: Arc::new(Agent::new(1, "a", metrics)),
            pid: 0,
            uid: 0,
            exe: None,
            process: None,
            labels: Arc::default(),
            pod: None,
            workflow: OfProcess::default(),
        };
        let to = to.parse().unwrap();
        Arc::clone(ledger.open(identity, to, Scene::of_connection(to, None)).conn())
    }

    fn begin(tasks: &Tasks, conn: &Arc<Conn>, id: &str) -> Learnt {
        let text = format!(
            r#"{{"jsonrpc":"2.0","id":1,"result":{{"task":{{"taskId":"{id}","status":"working"}}}}}}"#
        );
        let payload = decode(text.as_bytes(), &Limits::default()).unwrap();
        let Payload::Single(message) = &payload else { panic!("{text}") };
        let call = Call { since: Timestamp::now(), ..call("tools/call", "slow") };
        let room = Arc::new(Room::new(What::Memory, 0, 0));
        tasks.learn(conn, message, Some(&call), |id, call| {
            Some(Task {
                id,
                call: call.clone(),
                scene: Scene::default(),
                conn: Arc::clone(conn),
                netns: Arc::new(Netns::current().unwrap()),
                request: Vec::new(),
                held: room.take(&conn.identity.agent.memory, 0).ok()?,
            })
        })
    }

    #[test]
    fn a_task_is_known_at_every_address_of_its_server() {
        let (tasks, ledger) = (Tasks::default(), Arc::default());
        let [first, second] = ["10.0.0.7:80", "[fd00::7]:80"].map(|to| conn(&ledger, to));
        assert!(matches!(begin(&tasks, &first, "t"), Learnt::Begun(_)));
        assert_eq!(tasks.tool(&first, "t").as_deref(), Some("slow"));
        assert_eq!(tasks.tool(&second, "t").as_deref(), Some("slow"));
        assert_eq!(tasks.tool(&second, "u"), None);
    }

    #[test]
    fn what_is_not_followed_is_counted_and_not_kept() {
        let (tasks, ledger) = (Tasks::default(), Arc::default());
        let conn = conn(&ledger, "10.0.0.7:80");
        assert!(matches!(begin(&tasks, &conn, &"x".repeat(MAX_TEXT + 1)), Learnt::Unfollowed));
        for n in 0..=PER_AGENT {
            begin(&tasks, &conn, &n.to_string());
        }
        assert_eq!((tasks.unfollowed(1), tasks.unfollowed(2)), (2, 0));
        assert_eq!(tasks.known().followed.len(), PER_AGENT);
    }

    #[test]
    fn what_stops_have_caught_is_forgotten_once_they_are_released_and_it_is_over() {
        let (tasks, ledger) = (Tasks::default(), Arc::default());
        let conn = conn(&ledger, "10.0.0.7:80");
        let Learnt::Begun(task) = begin(&tasks, &conn, "t") else { panic!("a task") };
        let stop = |id: &str| {
            let stop = Stop::drill(Selector::of_agent("a").unwrap(), Level::Refuse);
            Stop { id: id.into(), ..stop }
        };
        let [first, second] = ["stp-1", "stp-2"].map(stop);
        assert_eq!(tasks.catch(&first, |_| true).len(), 1);
        assert_eq!(tasks.catch(&first, |_| true).len(), 0, "once");
        assert_eq!(tasks.catch(&second, |_| true).len(), 1);
        tasks.end(&task);
        assert!(tasks.matching(&first.selector).is_empty(), "it is over");
        tasks.release("stp-1");
        assert!(tasks.tool(&conn, "t").is_some(), "the second still holds");
        tasks.release("stp-2");
        assert!(tasks.tool(&conn, "t").is_none());
    }
}
