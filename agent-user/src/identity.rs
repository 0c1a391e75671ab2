//! Who is behind a connection: the agent, as the kernel tagged it, and the process that called `connect`.

use std::sync::Arc;

use agent_abi::Origin;

use crate::record::metrics::AgentMetrics;
use crate::session::Process;
use crate::workflow::{Extractors, OfProcess};

/// An agent known to this host. There is one value per name for the life of the daemon.
#[derive(Debug)]
pub struct Agent {
    /// Key of the kernel's maps; stable across restarts.
    pub number: u32,
    pub name: Arc<str>,
    pub metrics: AgentMetrics,
}

/// Who opened a connection.
#[derive(Clone, Debug)]
pub struct Identity {
    pub agent: Arc<Agent>,
    /// Process that called `connect`; 0 when the kernel did so on its behalf.
    pub pid: u32,
    pub uid: u32,
    /// Its executable at the time of the accept; `None` when it was gone by then.
    pub exe: Option<Arc<str>>,
    /// Tells it from a later process of the same number.
    pub process: Option<Process<'static>>,
    /// What its process says of the workflow it is part of.
    pub workflow: OfProcess,
}

impl Identity {
    /// Completes what the kernel knows with what `/proc` knows.
    pub fn resolve(agent: Arc<Agent>, origin: &Origin, workflow: &Extractors) -> Identity {
        let exe = std::fs::read_link(format!("/proc/{}/exe", origin.tgid)).ok();
        let exe = exe.map(|path| path.to_string_lossy().into());
        Identity {
            agent,
            pid: origin.tgid,
            uid: origin.uid,
            exe,
            process: Process::read(origin.tgid),
            workflow: workflow.of_process(origin.tgid),
        }
    }
}
