//! Cgroup v2 as the kernel side sees it: paths below the one true root, and ids, which are inode numbers.

mod halt;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, bail};
use nix::sched::{CloneFlags, setns};

pub use self::halt::{EVENTS, Events, events, kill, set_frozen, wait};

/// Where cgroup v2 is mounted, on hybrid hosts too.
pub fn root() -> anyhow::Result<PathBuf> {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    if let Some(root) = ROOT.get() {
        return Ok(root.clone());
    }
    let root = find_root()?;
    Ok(ROOT.get_or_init(|| root).clone())
}

fn find_root() -> anyhow::Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    let mounts: Vec<PathBuf> = text.lines().filter_map(parse_mount).collect();
    if mounts.is_empty() {
        bail!("no cgroup v2 mounted (mount it: `mount -t cgroup2 none /sys/fs/cgroup`, or boot with it)");
    }
    // Elsewhere is the root of a cgroup namespace, from which the ids of the host cannot be told.
    match mounts.iter().find(|mount| id(mount).is_ok_and(|id| id == ROOT_ID)) {
        Some(mount) => Ok(mount.clone()),
        None => {
            bail!("{}: inside a cgroup namespace (mount the host's /sys/fs/cgroup here)", mounts[0].display())
        }
    }
}

/// The id of a cgroup. A folder that was removed and made again has a new one.
pub fn id(dir: &Path) -> anyhow::Result<u64> {
    Ok(fs::metadata(dir).with_context(|| format!("cgroup {}", dir.display()))?.ino())
}

/// The folder of a cgroup.
pub fn path_of(id: u64) -> anyhow::Result<PathBuf> {
    let root = root()?;
    let mount = File::open(&root).with_context(|| format!("open {}", root.display()))?;
    let path = match open_by_id(&mount, id) {
        Ok(dir) => {
            fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).context("read /proc/self/fd")?
        }
        // Needs CAP_DAC_READ_SEARCH; a walk does not.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => subtree(&root)?
            .into_iter()
            .find(|dir| self::id(dir).is_ok_and(|found| found == id))
            .unwrap_or_default(),
        Err(error) => return Err(error.into()),
    };
    if !path.starts_with(&root) || !path.is_dir() {
        return Err(io::Error::from(ErrorKind::NotFound).into());
    }
    Ok(path)
}

/// Whether an error means that the cgroup does not exist any more.
pub fn is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| {
        error.kind() == ErrorKind::NotFound
            || matches!(error.raw_os_error(), Some(libc::ESTALE | libc::ENODEV))
    })
}

/// The cgroups right below this one.
pub fn children(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut children = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            children.push(entry.path());
        }
    }
    children.sort();
    Ok(children)
}

/// The cgroup of a process, as a path below the root (`/` is the root itself).
pub fn of_pid(pid: u32) -> anyhow::Result<PathBuf> {
    let path = format!("/proc/{pid}/cgroup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    parse_proc(&text).with_context(|| format!("{path}: no cgroup v2 line"))
}

/// The folder of a process's cgroup.
pub fn dir_of(pid: u32) -> anyhow::Result<PathBuf> {
    let below = of_pid(pid)?;
    Ok(root()?.join(below.strip_prefix("/").unwrap_or(&below)))
}

/// How far below the root a cgroup lies; the root is 0.
pub fn depth(dir: &Path) -> anyhow::Result<usize> {
    let root = root()?;
    let below = dir
        .strip_prefix(&root)
        .with_context(|| format!("{} is not below {}", dir.display(), root.display()))?;
    Ok(below.components().filter(|part| matches!(part, Component::Normal(_))).count())
}

/// Every process in a cgroup and below it.
pub fn procs(dir: &Path) -> anyhow::Result<Vec<u32>> {
    let mut procs = Vec::new();
    for dir in subtree(dir)? {
        match fs::read_to_string(dir.join("cgroup.procs")) {
            Ok(text) => procs.extend(text.lines().filter_map(|line| line.parse::<u32>().ok())),
            // Removed meanwhile, or threaded: its processes are listed further up.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)) => {}
            Err(error) => return Err(error).with_context(|| format!("read {}/cgroup.procs", dir.display())),
        }
    }
    Ok(procs)
}

/// The ids of a cgroup and of all below it.
pub fn subtree_ids(dir: &Path) -> anyhow::Result<HashSet<u64>> {
    Ok(subtree(dir)?.iter().filter_map(|dir| id(dir).ok()).collect())
}

/// Moves a process.
pub fn enter(dir: &Path, pid: u32) -> anyhow::Result<()> {
    write(&dir.join("cgroup.procs"), &pid.to_string())
}

/// Processes in the host's namespaces: the first of the kernel's own threads, and the first process, which some hosts let
/// nobody look into.
pub(super) const HOSTS: [&str; 2] = ["2", "1"];

/// Sees the paths of all cgroups as the host does. A container runtime may have given this process a cgroup namespace of its
/// own, in which `/proc/PID/cgroup` leads up from there (`/../…`). Call it while this is the only thread.
///
/// # Errors
/// The host's namespace is known and cannot be entered; that needs CAP_SYS_ADMIN.
pub fn leave_namespace() -> anyhow::Result<()> {
    let path = |process: &str| format!("/proc/{process}/ns/cgroup");
    let namespace = |process: &str| fs::metadata(path(process)).map(|file| file.ino());
    // Without either this is no container that was given the host's processes.
    let host = HOSTS.into_iter().find_map(|process| Some((process, namespace(process).ok()?)));
    let Some((process, host)) = host else { return Ok(()) };
    if namespace("self").is_ok_and(|own| own == host) {
        return Ok(());
    }
    let host = path(process);
    let host = File::open(&host).with_context(|| format!("open {host}"))?;
    setns(host, CloneFlags::CLONE_NEWCGROUP).context("enter the host's cgroup namespace")
}

/// Moves this process out of the root cgroup, where no hook would see its sockets, into one of this name. It
/// stays where it is when a service manager has already given it a cgroup.
pub fn leave_root(name: &str) -> anyhow::Result<()> {
    if of_pid(std::process::id())? != Path::new("/") {
        return Ok(());
    }
    let dir = root()?.join(name);
    match fs::create_dir(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("create {}", dir.display()));
        }
        _ => {}
    }
    enter(&dir, std::process::id())
}

/// A cgroup and all below it, outer ones first.
pub fn subtree(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = vec![dir.to_owned()];
    let mut next = 0;
    while next < found.len() {
        match children(&found[next]) {
            Ok(children) => found.extend(children),
            // Removed while we walk; but the start must be there.
            Err(error) if next == 0 => return Err(error),
            Err(_) => {}
        }
        next += 1;
    }
    Ok(found)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Inode number of the root of the hierarchy (kernfs), and of nothing else.
const ROOT_ID: u64 = 1;

// proc_pid_mountinfo(5): ... (4) root (5) mount point ... - (9) type ...
fn parse_mount(line: &str) -> Option<PathBuf> {
    let (left, right) = line.split_once(" - ")?;
    if right.split(' ').next() != Some("cgroup2") {
        return None;
    }
    Some(PathBuf::from(left.split(' ').nth(4)?.replace("\\040", " ")))
}

fn parse_proc(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(PathBuf::from(path.strip_suffix(" (deleted)").unwrap_or(path)))
}

// The kernel finds a cgroup by its id through a file handle of type FILEID_KERNFS (exportfs.h).
fn open_by_id(mount: &File, id: u64) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: [u8; 8],
    }
    const FILEID_KERNFS: i32 = 0xfe;
    let mut handle = Handle { bytes: 8, kind: FILEID_KERNFS, id: id.to_ne_bytes() };
    // SAFETY: `handle` is a `struct file_handle` with its eight bytes, and outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_mount_is_found() {
        let line = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        assert_eq!(parse_mount(line), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(parse_mount("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"), None);
    }

    #[test]
    fn only_the_v2_line_names_the_cgroup() {
        assert_eq!(parse_proc("2:cpu:/x\n0::/a/b\n"), Some(PathBuf::from("/a/b")));
        assert_eq!(parse_proc("0::/gone (deleted)\n"), Some(PathBuf::from("/gone")));
        assert_eq!(parse_proc("2:cpu:/x\n"), None);
    }
}
