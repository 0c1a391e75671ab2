//! Thousands of nodes in one process. Each has a client with connections of its own, as a daemon has, and the daemon's
//! service account; all of them follow stops and answer as daemons do.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent_tests::process::Process;
use anyhow::Result;
use interlock::decide::stop::fleet_id;
use interlock::fleet::carry_out::CarriesOut;
use interlock::fleet::node::Follower;
use interlock::fleet::resources::{AgentStop, AgentStopReportSpec, AgentStopStatus};
use kube::api::PostParams;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{status, stop};
use crate::cluster::Cluster;

/// Agents on each node that a stop is for.
pub(super) const AGENTS: usize = 10;
/// Calls that are in flight on each, where the reason of a stop is [`BUSY`].
pub(super) const CALLS: usize = 2;
pub(super) const BUSY: &str = "calls are in flight";
/// How long their fates are open.
const OPEN_FOR: Duration = Duration::from_secs(3);

/// What stands for a node: it remembers what it is to carry out.
#[derive(Default)]
struct Node {
    held: Mutex<HashMap<Arc<str>, Held>>,
}

struct Held {
    name: String,
    since: Instant,
    at: jiff::Timestamp,
    is_busy: bool,
}

impl Node {
    fn held(&self) -> MutexGuard<'_, HashMap<Arc<str>, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CarriesOut for Node {
    async fn carry_out(&self, stop: &AgentStop, uid: &str) -> Result<()> {
        let held = || Held {
            name: stop.name_any(),
            since: Instant::now(),
            at: jiff::Timestamp::now(),
            is_busy: stop.spec.reason == BUSY,
        };
        self.held().entry(fleet_id(uid)).or_insert_with(held);
        Ok(())
    }

    fn come_to(&self, id: &str) -> Option<AgentStopReportSpec> {
        let all = self.held();
        let held = all.get(id)?;
        let is_open = held.is_busy && held.since.elapsed() < OPEN_FOR;
        let calls = if held.is_busy { CALLS } else { 0 };
        let fate = if is_open { "sent" } else { "finished_after_stop" };
        Some(AgentStopReportSpec {
            in_force: true,
            in_force_at: Some(held.at),
            agents: AGENTS,
            connections: 3 * AGENTS,
            calls,
            open: if is_open { calls } else { 0 },
            fates: (calls > 0).then(|| (fate.to_owned(), calls)).into_iter().collect(),
            ..AgentStopReportSpec::default()
        })
    }

    fn of_fleet(&self) -> Vec<(Arc<str>, String)> {
        self.held().iter().map(|(id, held)| (Arc::clone(id), held.name.clone())).collect()
    }

    async fn release(&self, id: &str, _name: &str) -> Result<()> {
        self.held().remove(id);
        Ok(())
    }
}

/// All of them.
pub(super) struct Fleet {
    nodes: Vec<Arc<Node>>,
    /// As the administrator of the cluster.
    stops: Api<AgentStop>,
    runtime: Runtime,
}

impl Fleet {
    pub(super) fn start(cluster: &Cluster, count: usize) -> Self {
        let runtime = runtime_in(cluster);
        let admin = runtime.block_on(config(cluster));
        let mut own = admin.clone();
        let token = ["--namespace", "interlock", "create", "token", "interlock", "--duration=1h"];
        own.auth_info =
            AuthInfo { token: Some(cluster.kubectl(&token).trim().to_owned().into()), ..AuthInfo::default() };
        let nodes: Vec<Arc<Node>> = (0..count).map(|_| Arc::default()).collect();
        let inside = runtime.enter();
        for (number, node) in nodes.iter().enumerate() {
            let client = Client::try_from(own.clone()).expect("a client");
            runtime.spawn(Follower::new(client, format!("simulated-{number:05}"), Arc::clone(node)).run());
        }
        let stops = Api::all(Client::try_from(admin).expect("a client"));
        drop(inside);
        Self { nodes, stops, runtime }
    }

    /// Makes an `AgentStop`.
    pub(super) fn order(&self, name: &str, reason: &str) {
        let stop = stop(name, reason);
        let stops = self.stops.clone();
        let made = self.inside(async move { stops.create(&PostParams::default(), &stop).await });
        made.expect("make an AgentStop");
    }

    /// Waits until its status is like this.
    #[track_caller]
    pub(super) fn wait(
        &self,
        name: &str,
        time: Duration,
        is: impl Fn(&AgentStopStatus) -> bool,
    ) -> AgentStopStatus {
        let until = Instant::now() + time;
        loop {
            let (stops, name) = (self.stops.clone(), name.to_owned());
            let now = self.inside(async move { stops.get(&name).await }).map(status);
            match now {
                Ok(status) if is(&status) => return status,
                now => assert!(Instant::now() < until, "{now:?}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs this where the cluster is; the thread that asks for it is elsewhere.
    fn inside<T: Send + 'static>(&self, what: impl Future<Output = T> + Send + 'static) -> T {
        self.runtime.block_on(self.runtime.spawn(what)).expect("it does not panic")
    }

    /// When the last node has carried it out.
    pub(super) fn last_carried_out(&self, name: &str) -> Instant {
        let since = self.nodes.iter().map(|node| {
            let held = node.held();
            held.values().find(|held| held.name == name).expect("each holds it").since
        });
        since.max().expect("there are nodes")
    }

    /// Whether no node holds anything.
    pub(super) fn is_released(&self) -> bool {
        self.nodes.iter().all(|node| node.held().is_empty())
    }
}

/// The administrator's configuration.
async fn config(cluster: &Cluster) -> Config {
    let read = Kubeconfig::read_from(cluster.admin()).expect("the cluster has a kubeconfig");
    Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.expect("it is good")
}

/// A runtime all of whose threads are in the network namespace of the cluster.
fn runtime_in(cluster: &Cluster) -> Runtime {
    // A process that is there, which says so by giving back what it is told.
    let mut inside = Process::spawn("cat", cluster.enter(&["cat"]), cluster.dir());
    inside.tell("true");
    assert_eq!(inside.line(), Value::Bool(true));
    let namespace: PathBuf = format!("/proc/{}/ns/net", inside.pid()).into();
    let namespace = Arc::new(File::open(namespace).expect("the namespace of a process"));
    let enter = move || setns(&*namespace, CloneFlags::CLONE_NEWNET).expect("root may enter");
    Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(enter)
        .enable_all()
        .build()
        .expect("a runtime")
}
