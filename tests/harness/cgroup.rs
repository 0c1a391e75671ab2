//! A cgroup that a test has made, and that goes with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A cgroup at depth 1, named `itest-<pid>-<n>`. Dropping it kills what is still inside.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
}

impl Cgroup {
    /// Makes one below the root of the hierarchy.
    pub fn create(root: &Path) -> Cgroup {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("itest-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = root.join(name);
        fs::create_dir(&dir).expect("root may make cgroups");
        Cgroup { dir }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes one inside it.
    pub fn child(&self, name: &str) -> PathBuf {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).expect("root may make cgroups");
        dir
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("cgroup.kill"), "1");
        let deadline = Instant::now() + Duration::from_secs(5);
        // Killed processes leave a little later.
        while remove(&self.dir).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Moves a process into a cgroup.
pub fn enter(dir: &Path, pid: u32) {
    fs::write(dir.join("cgroup.procs"), pid.to_string()).expect("the cgroup takes the process");
}

fn remove(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(dir)
}
