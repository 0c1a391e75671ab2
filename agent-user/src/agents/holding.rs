//! How a cgroup comes to be held.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use tracing::{info, warn};

use super::{Agents, Held, Labels};
use crate::identity::OwnPod;
use crate::kernel::cgroup;
use crate::kubernetes::Pod;
use crate::record::entry::{AgentHeld, Entry};

impl Agents {
    /// Holds a cgroup, unless it is held already. Returns whether it is held only now.
    pub(super) fn hold(
        &self,
        held: &mut BTreeMap<String, Held>,
        path: &str,
        who: (&str, &Labels, Option<&Arc<Pod>>),
        made: Option<Instant>,
    ) -> Result<bool> {
        let cut = |dir: &Path| Ok(self.kernel.destroy_old_below(&[dir.to_owned()])?.total());
        self.hold_and(held, path, who, made, cut)
    }

    /// The same with another way to cut the connections that are older than this: they were never redirected and must
    /// not go on unread.
    pub(super) fn hold_and(
        &self,
        held: &mut BTreeMap<String, Held>,
        path: &str,
        (name, labels, pod): (&str, &Labels, Option<&Arc<Pod>>),
        made: Option<Instant>,
        cut: impl FnOnce(&Path) -> Result<u32>,
    ) -> Result<bool> {
        let dir = self.dir(path);
        let id = cgroup::id(&dir)?;
        if held.get(path).is_some_and(|known| known.id == id) {
            return Ok(false);
        }
        let agent = self.named(name, labels)?;
        if let Some(pod) = pod {
            self.add_pod(&agent, OwnPod { cgroup: path.to_owned(), pod: Arc::clone(pod) })?;
        }
        let is_new = !self.kernel.held()?.contains_key(&id);
        self.kernel.hold(&dir, id, agent.number).with_context(|| format!("hold cgroup {path}"))?;
        // A second look finds it held: what failed is told here or nowhere.
        let cut = if is_new { cut(&dir) } else { Ok(0) };
        let cut = cut.unwrap_or_else(|error| {
            let error = format!("{error:#}");
            warn!(agent = name, cgroup = path, error, "held, but what was there before may go on unread");
            0
        });
        info!(agent = name, cgroup = path, sockets_cut = cut, "holding");
        if !is_below_roots(&dir) {
            warn!(
                cgroup = path,
                "a user owns the cgroup above and can move the agent out: hold that user's slice"
            );
        }
        self.log.record(&Entry::Agent(AgentHeld { agent: name, cgroup: path, sockets_cut: cut }));
        if let Some(replaced) = held.insert(path.to_owned(), Held { id, agent, made, halted: Vec::new() }) {
            // The path was removed and made again between two looks.
            self.kernel.let_go(replaced.id)?;
        }
        Ok(true)
    }
}

/// Whether the cgroup above is root's. Another owner moves processes in and out as it likes.
pub(super) fn is_below_roots(dir: &Path) -> bool {
    dir.parent().and_then(|above| std::fs::metadata(above).ok()).is_some_and(|above| above.uid() == 0)
}
