//! Agents that are pods, and the cluster they are in.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use schemars::JsonSchema;
use serde::Deserialize;

use super::AgentSelector;

/// Environment variable with the name of this node.
const NODE: &str = "NODE_NAME";

/// Which pods are agents. A pod that is one stays one until it ends, whatever becomes of its labels.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PodSelector {
    /// Globs over their namespaces. Empty: whatever the namespace.
    pub namespaces: Vec<String>,
    /// Labels that a pod must have, each with a glob over its value.
    pub labels: BTreeMap<String, String>,
}

impl PodSelector {
    pub(super) fn check(&self, agent: &AgentSelector) -> Result<()> {
        if self.namespaces.is_empty() && self.labels.is_empty() {
            bail!(
                "agent {:?}: kubernetes: give it `namespaces` or `labels`; every pod of the node would be an agent",
                agent.name
            );
        }
        if !["{namespace}", "{pod}"].iter().all(|part| agent.name.contains(part)) {
            bail!(
                "agent {:?}: each pod is an agent of its own; put `{{namespace}}` and `{{pod}}` into its name",
                agent.name
            );
        }
        if !agent.labels.is_empty() {
            bail!("agent {:?}: `labels` are those of its pod; leave them out", agent.name);
        }
        Ok(())
    }
}

/// The node of a cluster that this host is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kubernetes {
    /// Name of the node. Absent: that in the environment variable `NODE_NAME`.
    pub node: Option<String>,
    /// How the API server is reached. Absent: with the service account of interlock's own pod or, outside of one, as
    /// `KUBECONFIG` says.
    pub kubeconfig: Option<PathBuf>,
    /// What the kubelet has as `--cgroup-root`, below the cgroup v2 root.
    pub cgroup_root: String,
    /// What becomes of pods that the API server has not told of yet.
    pub unclassified: Unclassified,
}

impl Default for Kubernetes {
    fn default() -> Kubernetes {
        Kubernetes {
            node: None,
            kubeconfig: None,
            cgroup_root: "/".to_owned(),
            unclassified: Unclassified::default(),
        }
    }
}

impl Kubernetes {
    /// The name of this node.
    pub fn node(&self) -> Result<String> {
        let node = self.node.clone().or_else(|| std::env::var(NODE).ok()).filter(|node| !node.is_empty());
        node.with_context(|| {
            format!("kubernetes: which node is this? (set `node`, or {NODE} from the pod's `spec.nodeName`)")
        })
    }
}

/// What becomes of pods of which it is not known yet whether they are agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unclassified {
    /// Their connects are refused until it is known, by the kernel and so also while the daemon is away, whatever `fail`
    /// says.
    #[default]
    Hold,
    /// They run free until it is known. What they have open by then is cut if they are agents.
    Allow,
}
