//! The one machine of the cluster, as its processes see it: a network namespace, and a mount namespace in which the
//! folders they write to are the cluster's own, and so are the kernel's settings that a kubelet changes. No pid
//! namespace: the kernel side of interlock knows processes by the machine's pids.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use super::files::Files;
use super::hierarchy;
use crate::interrupt::check_interrupted;

pub(super) const NAME: &str = "node1";
pub(super) const ADDRESS: &str = "10.79.0.1";

/// Folders of the machine that the cluster's processes have their own of.
const FOLDERS: [&str; 10] = [
    "/run/containerd",
    "/run/interlock",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/interlock",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/interlock",
    "/var/log/pods",
];

/// Settings of the whole kernel that a kubelet writes to. It gets files to write to instead.
const SETTINGS: [&str; 5] = [
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// Makes the namespaces complete, and then is the process that keeps them. Arguments: the folder with the private
/// folders and the settings, the node's address, the folders.
const BEGIN: &str = r#"set -e
node=$1 address=$2; shift 2
mount --make-rshared /
for folder in "$@"; do mount --bind "$node$folder" "$folder"; done
# In memory: images are there sooner, and containers' file systems end without being written to disk.
mount -t tmpfs -o mode=700 tmpfs /var/lib/containerd
mount -t bpf bpf /sys/fs/bpf
(cd "$node/proc/sys" && find . -type f) | while read -r file; do mount --bind "$node/proc/sys/$file" "/proc/sys/$file"; done
ip link set lo up
ip link add node0 type bridge
ip address add "$address/24" dev node0
ip link set node0 up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo ready
exec sleep infinity
"#;

/// The running node; its processes end with [`take_down`].
pub(super) struct Node {
    holder: u32,
    path: String,
    libraries: PathBuf,
}

impl Node {
    pub(super) fn start(files: &Files) -> anyhow::Result<Self> {
        ensure!(
            !hierarchy::exist()?,
            "a cluster is up already, or one was left (run `cargo xtask kube down`)"
        );
        prepare(files)?;
        hierarchy::make()?;
        let libraries = files.debian().join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let mut node = Self { holder: 0, path: files.path(), libraries };
        let log = files.log("node");
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "--mount", "--propagation", "private", "sh", "-c", BEGIN, "sh"]);
        unshare.arg(files.private("/")).arg(ADDRESS).args(FOLDERS);
        let mut child = node.spawn(unshare, &log)?;
        node.holder = child.id();
        wait_for("the node's namespaces", Duration::from_secs(10), || {
            ensure!(child.try_wait()?.is_none(), "it ended: {}", read(&log));
            Ok(read(&log).contains("ready"))
        })?;
        let enter = format!(
            "#!/bin/sh\nPATH={}:$PATH exec nsenter --target {} --net --mount -- \"$@\"\n",
            files.path(),
            node.holder
        );
        script(&files.enter(), &enter)?;
        Ok(node)
    }

    /// Starts a process of the cluster. Its output goes to `log`.
    pub(super) fn run(&self, program: &str, args: &[String], log: &Path) -> anyhow::Result<Child> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.to_string(), "--net", "--mount", "--"]);
        command.arg("env").arg(format!("LD_LIBRARY_PATH={}", self.libraries.display()));
        command.arg(format!("XTABLES_LIBDIR={}", self.libraries.join("xtables").display()));
        command.arg(program).args(args);
        self.spawn(command, log).with_context(|| format!("start {program}"))
    }

    /// The command is in the cluster's cgroup before its first instruction; that is how it will be found.
    fn spawn(&self, command: Command, log: &Path) -> anyhow::Result<Child> {
        let output = File::create(log).with_context(|| format!("create {}", log.display()))?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(hierarchy::own()?.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args()).env("PATH", &self.path);
        // A group of its own: Ctrl-C reaches xtask only, which then ends the rest in order.
        shell.process_group(0).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        shell.spawn().context("start a process of the cluster")
    }
}

/// One at a time: the cgroups are the machine's.
pub(super) fn ensure_none() -> anyhow::Result<()> {
    ensure!(!hierarchy::exist()?, "a cluster is up already, or one was left (run `cargo xtask kube down`)");
    Ok(())
}

/// The folders of the run, empty, and the points on the machine over which they are mounted.
fn prepare(files: &Files) -> anyhow::Result<()> {
    let _ = fs::remove_dir_all(files.run());
    let make =
        |folder: &Path| fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()));
    make(&files.run().join("log"))?;
    let mut made = Vec::new();
    for folder in FOLDERS {
        make(&files.private(folder))?;
        if !Path::new(folder).exists() {
            made.push(folder);
        }
    }
    // Written down before they are made: whatever happens, `down` knows.
    fs::write(made_list(files), made.join("\n")).context("note the mount points")?;
    for folder in made {
        make(Path::new(folder))?;
    }
    for setting in SETTINGS {
        let real = Path::new("/proc/sys").join(setting);
        let own = files.private("/proc/sys").join(setting);
        make(own.parent().context("a setting lies in a folder")?)?;
        let value = fs::read_to_string(&real).with_context(|| format!("read {}", real.display()))?;
        fs::write(&own, value).with_context(|| format!("write {}", own.display()))?;
    }
    Ok(())
}

fn made_list(files: &Files) -> PathBuf {
    files.run().join("made")
}

/// Ends every process of the cluster and removes all it has made. Its mounts, links and addresses go with its
/// namespaces, which go with their last process.
pub(super) fn take_down(files: &Files) -> anyhow::Result<()> {
    hierarchy::remove()?;
    for folder in read(&made_list(files)).lines() {
        match fs::remove_dir(folder) {
            // Somebody else has begun to use it.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => {}
            removed => removed.with_context(|| format!("remove {folder}, which this made"))?,
        }
    }
    match fs::remove_dir_all(files.run()) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("remove the run's folder"),
        _ => Ok(()),
    }
}

/// Asks `is` until it says so.
pub(super) fn wait_for(
    what: &str,
    time: Duration,
    mut is: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + time;
    while !is().with_context(|| format!("wait for {what}"))? {
        check_interrupted()?;
        if Instant::now() > deadline {
            bail!("waited {time:?} for {what}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

pub(super) fn script(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).context("make it executable")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
