//! The entries of `agents:`.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{PodSelector, check_cgroup_path};

/// How a cgroup or a process becomes an agent.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSelector {
    /// Name of the agent. `{unit}` stands for the systemd unit without its suffix, `{cgroup}` for the last part of
    /// the cgroup path, `{namespace}` and `{pod}` for those of a pod, `{executable}` for the last part of the path of its
    /// program.
    pub name: String,
    /// Glob over cgroup paths below the cgroup v2 root; `*` does not cross a `/`.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// Glob over names of systemd units.
    #[serde(default)]
    pub systemd: Option<String>,
    /// Glob over paths of programs, as the process that executes one sees them; `*` does not cross a `/`. Of a script that is
    /// its interpreter. The process, and all that it has forked, is moved into a cgroup of its own below the one it is in.
    /// Whoever can write files can run the same from elsewhere: select the cgroup where that matters.
    #[serde(default)]
    pub executable: Option<String>,
    /// Pods of this node.
    #[serde(default)]
    pub kubernetes: Option<PodSelector>,
    /// What rules see as `agent.labels`; a pod has its own. An agent has those it begins with for the daemon's life, as all of this file is
    /// read at its start; `interlock exec --agent NAME` gets those of the entry whose `name` is just that.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl AgentSelector {
    pub(super) fn check(&self) -> Result<()> {
        let ways = [
            self.cgroup.is_some(),
            self.systemd.is_some(),
            self.executable.is_some(),
            self.kubernetes.is_some(),
        ];
        if ways.into_iter().filter(|given| *given).count() != 1 {
            bail!(
                "agent {:?}: give it exactly one of `cgroup`, `systemd`, `executable` and `kubernetes`",
                self.name
            );
        }
        if let Some(cgroup) = &self.cgroup {
            check_cgroup_path(cgroup)?;
        }
        if let Some(executable) = self.executable.as_ref().filter(|path| !path.starts_with('/')) {
            bail!("agent {:?}: `executable: {executable}` must be an absolute path", self.name);
        }
        if let Some(pods) = &self.kubernetes {
            pods.check(self)?;
        }
        if self.name.is_empty() {
            bail!("agents: `name` is empty");
        }
        Ok(())
    }
}
