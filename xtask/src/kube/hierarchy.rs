//! The cgroups of the cluster, in every hierarchy that this machine has: pods below one, its own processes in another.
//! Both are at depth 1, so that what is told to attach to the pods' sees nothing else of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::cgroup;

/// Above every pod.
pub(super) const PODS: &str = "itest-kube";
/// Of etcd, the API server, the kubelet, containerd and so on.
const OWN: &str = "itest-kube-own";

/// Makes them. The kubelet wants the pods' to be there in every hierarchy.
pub(super) fn make() -> anyhow::Result<()> {
    for hierarchy in hierarchies()? {
        let pods = hierarchy.join(PODS);
        fs::create_dir_all(&pods).with_context(|| format!("make {}", pods.display()))?;
        // Without them a cpuset takes no process.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let inherited = fs::read_to_string(hierarchy.join(file)).unwrap_or_default();
            if !inherited.trim().is_empty() {
                let file = pods.join(file);
                fs::write(&file, inherited).with_context(|| format!("write {}", file.display()))?;
            }
        }
    }
    fs::create_dir_all(own()?).context("make the cgroup of the cluster's own processes")
}

pub(super) fn own() -> anyhow::Result<PathBuf> {
    Ok(cgroup::cgroup2_root()?.join(OWN))
}

/// Whether anything of a cluster is there.
pub(super) fn exist() -> anyhow::Result<bool> {
    Ok(own()?.exists() || hierarchies()?.iter().any(|hierarchy| hierarchy.join(PODS).exists()))
}

/// Kills what is in them, and removes them. Every process of the cluster is in one of the two, from its first
/// instruction on, and so is all that it starts: no pid has to be remembered.
pub(super) fn remove() -> anyhow::Result<()> {
    let root = cgroup::cgroup2_root()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    // The cluster's own first: it would start pods again.
    for name in [OWN, PODS] {
        let of_processes = root.join(name);
        while of_processes.exists() && is_populated(&of_processes) {
            let kill = of_processes.join("cgroup.kill");
            fs::write(&kill, "1").with_context(|| format!("write {}", kill.display()))?;
            ensure!(Instant::now() < deadline, "processes in {} do not end", of_processes.display());
            std::thread::sleep(Duration::from_millis(20));
        }
        for hierarchy in hierarchies()? {
            let left = hierarchy.join(name);
            while left.exists() {
                cgroup::remove_tree(&left);
                ensure!(Instant::now() < deadline, "cgroup {} could not be removed", left.display());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    Ok(())
}

fn is_populated(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.events")).is_ok_and(|events| events.contains("populated 1"))
}

/// Where the hierarchies are mounted: one of cgroup v2, and on older and hybrid hosts one per controller.
fn hierarchies() -> anyhow::Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    Ok(find_hierarchies(&mounts))
}

fn find_hierarchies(mountinfo: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (kind.starts_with("cgroup") && root == "/").then(|| point.into())
    };
    mountinfo.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hierarchies_are_found() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                      39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(
            find_hierarchies(mounts),
            ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified"].map(PathBuf::from)
        );
    }
}
