//! Who is behind a connection: the agent, as the kernel tagged it, and the process that called `connect`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use agent_abi::Origin;
use arc_swap::ArcSwap;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::channels::Channels;
use crate::decide::stop::Whom;
use crate::decide::subject::{InPod, Sender};
use crate::kernel::cgroup;
use crate::kubernetes::{self, Pod};
use crate::recent::Deeds;
use crate::record::metrics::AgentMetrics;
use crate::session::Process;
use crate::workflow::{Extractors, OfProcess};

/// An agent known to this host. There is one value per name for the life of the daemon.
#[derive(Debug)]
pub struct Agent {
    /// Key of the kernel's maps; stable across restarts.
    pub number: u32,
    pub name: Arc<str>,
    /// As the configuration gives them, or those that its pod has now.
    pub labels: ArcSwap<BTreeMap<String, String>>,
    /// The pods that it is: one, and before it those of the same name that were deleted by force and go on.
    pub pods: ArcSwap<Vec<OwnPod>>,
    pub metrics: AgentMetrics,
    /// Bounds how many of its processes' environments are read at a time.
    pub reading: Arc<Semaphore>,
    /// Bounds how many cancels stops send for it at a time, and answers to what servers ask: each needs a descriptor, and a
    /// stop may have caught thousands of calls. Servers that do not answer hold up the cancels of no other agent.
    pub cancels: Arc<Semaphore>,
    /// Its open connections, and the bytes of messages that they hold (see [`crate::room`]).
    pub connections: Arc<AtomicUsize>,
    pub memory: Arc<AtomicUsize>,
    /// What it did lately, where some rule asks for it.
    pub deeds: Deeds,
    /// Its streams in which servers answer what it POSTs elsewhere.
    pub channels: Channels,
}

impl Agent {
    /// What `ask` says of it, as its labels are now.
    pub fn as_whom<T>(&self, ask: impl FnOnce(Whom<'_>) -> T) -> T {
        ask(Whom { name: &self.name, labels: &self.labels.load() })
    }

    /// One without labels.
    pub fn new(number: u32, name: &str, metrics: AgentMetrics) -> Agent {
        Agent {
            number,
            name: name.into(),
            labels: ArcSwap::default(),
            pods: ArcSwap::default(),
            metrics,
            reading: Arc::new(Semaphore::new(READING)),
            cancels: Arc::new(Semaphore::new(CANCELS)),
            connections: Arc::default(),
            memory: Arc::default(),
            deeds: Deeds::new(Instant::now()),
            channels: Channels::default(),
        }
    }
}

/// A pod of an agent.
#[derive(Clone, Debug)]
pub struct OwnPod {
    /// Its cgroup, below the root.
    pub cgroup: String,
    pub pod: Arc<Pod>,
}

/// Environments of one agent that are read at a time.
const READING: usize = 4;
/// Cancels, and answers to servers, for one agent at a time.
const CANCELS: usize = 64;

/// Who opened a connection.
#[derive(Clone, Debug)]
pub struct Identity {
    pub agent: Arc<Agent>,
    /// Process that called `connect`; 0 when the kernel did so on its behalf.
    pub pid: u32,
    pub uid: u32,
    /// Its executable at the time of the accept; `None` when it was gone by then.
    pub exe: Option<Arc<str>>,
    /// Of the agent, when the connection began.
    pub labels: Arc<BTreeMap<String, String>>,
    /// The pod and container it is in.
    pub pod: Option<InPod>,
    /// Tells it from a later process of the same number.
    pub process: Option<Process<'static>>,
    /// What its process says of the workflow it is part of.
    pub workflow: OfProcess,
}

impl Identity {
    /// Completes what the kernel knows with what `/proc` knows.
    pub async fn resolve(agent: Arc<Agent>, origin: &Origin, workflow: &Arc<Extractors>) -> Identity {
        let workflow = workflow_of(&agent, origin.tgid, workflow).await;
        let exe = std::fs::read_link(format!("/proc/{}/exe", origin.tgid)).ok();
        let exe = exe.map(|path| path.to_string_lossy().into());
        let (pod, labels) = in_pod(&agent.pods.load(), origin.tgid).unzip();
        let labels = labels.unwrap_or_else(|| agent.labels.load_full());
        Identity {
            agent,
            pid: origin.tgid,
            uid: origin.uid,
            exe,
            labels,
            pod,
            process: Process::read(origin.tgid),
            workflow,
        }
    }
}

impl Identity {
    /// That of its pod, or the empty name.
    pub fn namespace(&self) -> &str {
        Sender::from(self).namespace()
    }
}

impl<'a> From<&'a Identity> for Sender<'a> {
    fn from(identity: &'a Identity) -> Sender<'a> {
        let (pid, uid) = (identity.pid, identity.uid);
        Sender {
            name: &identity.agent.name,
            pid,
            uid,
            exe: identity.exe.as_deref(),
            labels: Some(&identity.labels),
            pod: identity.pod.as_ref(),
        }
    }
}

/// The pod that a process is in, and its labels. An agent of one pod can be in no other; of several its cgroup tells, while
/// there is a process.
fn in_pod(pods: &[OwnPod], pid: u32) -> Option<(InPod, Arc<BTreeMap<String, String>>)> {
    if pods.is_empty() {
        return None;
    }
    let cgroup = cgroup::of_pid(pid).unwrap_or_default();
    let below = |own: &OwnPod| cgroup.strip_prefix(&own.cgroup).ok().and_then(Path::to_str);
    let (own, below) = match pods {
        [one] => (one, below(one)),
        several => several.iter().find_map(|own| Some((own, Some(below(own)?))))?,
    };
    let pod = &own.pod;
    let id = below.and_then(kubernetes::container_in).unwrap_or_default();
    let container = pod.containers.get(id).cloned().unwrap_or_default();
    let found = InPod {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        node: pod.node.clone(),
        service_account: pod.service_account.clone(),
        container_id: id.to_owned(),
        container: container.name,
        image: container.image,
        annotations: pod.annotations.clone(),
    };
    Some((found, Arc::clone(&pod.labels)))
}

/// Time for a process to let its environment be read.
const WORKFLOW_WITHIN: Duration = Duration::from_millis(100);
/// What a process says of its workflow. Its environment lies in its own memory, which it can make unreadable for as long
/// as it likes (userfaultfd, FUSE): such a process has no workflow, and holds up nobody but its own agent.
async fn workflow_of(agent: &Agent, pid: u32, extractors: &Arc<Extractors>) -> OfProcess {
    if !extractors.reads_processes() {
        return OfProcess::default();
    }
    let (reading, extractors) = (Arc::clone(&agent.reading), Arc::clone(extractors));
    let read = async move {
        let permit = reading.acquire_owned().await.ok()?;
        let read = move || {
            let _permit = permit;
            extractors.of_process(pid)
        };
        spawn_blocking(read).await.ok()
    };
    timeout(WORKFLOW_WITHIN, read).await.ok().flatten().unwrap_or_default()
}
