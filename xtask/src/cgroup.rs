//! Cgroups of the bench's and the demo's own, gone with all that runs in them when it ends.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

/// A cgroup v2 subtree of this run; gone, with all that runs in it, when dropped.
pub(crate) struct Cgroup {
    root: PathBuf,
    /// As the configuration names it: below the cgroup v2 root.
    pub(crate) name: String,
}

impl Cgroup {
    /// Makes one that is named after this process.
    pub(crate) fn make(prefix: &str) -> anyhow::Result<Self> {
        let name = format!("/{prefix}-{}", std::process::id());
        let root = cgroup2_root()?.join(&name[1..]);
        std::fs::create_dir(&root).with_context(|| format!("make cgroup {} (needs root)", root.display()))?;
        Ok(Self { root, name })
    }

    /// Its folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.root
    }

    /// Makes a cgroup below, with the ones between.
    pub(crate) fn child(&self, path: &str) -> anyhow::Result<PathBuf> {
        let path = self.root.join(path);
        std::fs::create_dir_all(&path).with_context(|| format!("make cgroup {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        // Stopped agents may be frozen; what is left in here was started by this run.
        let _ = std::fs::write(self.root.join("cgroup.kill"), "1");
        while self.root.exists() {
            remove_tree(&self.root);
            if Instant::now() > deadline {
                eprintln!("cgroup {} could not be removed", self.root.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Removes cgroup directories from the leaves up; their files go by themselves.
pub(crate) fn remove_tree(path: &Path) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(path);
}

/// Where the cgroup v2 hierarchy is mounted: on hybrid hosts not at /sys/fs/cgroup.
pub(crate) fn cgroup2_root() -> anyhow::Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    find_cgroup2(&mounts).context("no cgroup v2 mount (mount -t cgroup2 none /sys/fs/cgroup)")
}

fn find_cgroup2(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        (kind.starts_with("cgroup2 ") && root == "/").then(|| point.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_on_hybrid_and_unified_hosts() {
        let hybrid = "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw";
        assert_eq!(find_cgroup2(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            find_cgroup2("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 none rw"),
            Some("/sys/fs/cgroup".into())
        );
        assert_eq!(find_cgroup2("41 31 0:38 /pod /sys/fs/cgroup rw - cgroup2 none rw"), None);
    }
}
