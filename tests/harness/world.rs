//! One test's world: its own cgroups, two network namespaces with a wire between them, and a folder for state. Two
//! worlds share nothing, so tests run side by side; dropping a world removes all of it, also after a panic.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{Place, Process};
use crate::wait::within;

/// The agents' side of the wire.
pub const AGENT_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The agents' side of the wire.
pub const AGENT_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
/// The servers' side of the wire.
pub const SERVER_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
/// The servers' side of the wire.
pub const SERVER_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));

/// Where the pins of all worlds lie.
const BPFFS: &str = "/sys/fs/bpf";

/// One test's world. Declare it first, so that it is dropped last.
pub struct World {
    name: String,
    cgroup: PathBuf,
    agents: String,
    servers: String,
    dir: TempDir,
    parked: Option<Process>,
}

impl World {
    /// Makes a world in whose agents' network namespace an agent already is (`parked`, which does nothing): a daemon
    /// that starts now is ready for agents there.
    pub fn new() -> Self {
        let mut world = Self::bare();
        world.parked = Some(world.start_agent("parked", &["sleep", "infinity"].map(str::to_owned)));
        world
    }

    /// Makes a world without any process.
    pub fn bare() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let name = format!("itest-{pid}-{number}");
        let world = Self {
            cgroup: cgroup_root().join(&name),
            agents: format!("il{pid}a{number}"),
            servers: format!("il{pid}s{number}"),
            dir: TempDir::with_prefix(&name).expect("make a folder"),
            parked: None,
            name,
        };
        for child in ["daemon", "peers", "agents/coder", "agents/sibling", "agents/parked"] {
            fs::create_dir_all(world.cgroup.join(child)).expect("make a cgroup (needs root)");
        }
        ip(&["netns", "add", &world.agents]);
        ip(&["netns", "add", &world.servers]);
        let wire = ["link", "add", "wire0", "netns", &world.agents, "type", "veth"];
        ip(&[&wire[..], &["peer", "name", "wire0", "netns", &world.servers]].concat());
        for (netns, v4, v6) in [(&world.agents, AGENT_V4, AGENT_V6), (&world.servers, SERVER_V4, SERVER_V6)] {
            ip(&["-n", netns, "link", "set", "lo", "up"]);
            ip(&["-n", netns, "link", "set", "wire0", "up"]);
            ip(&["-n", netns, "addr", "add", &format!("{v4}/24"), "dev", "wire0"]);
            ip(&["-n", netns, "addr", "add", &format!("{v6}/64"), "dev", "wire0", "nodad"]);
        }
        world
    }

    /// The world's cgroup, as a path below the cgroup v2 root, as configurations name it.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.name)
    }

    /// The cgroup of an agent, made when it is not there.
    pub fn agent_cgroup(&self, agent: &str) -> PathBuf {
        let path = self.cgroup.join("agents").join(agent);
        fs::create_dir_all(&path).expect("make an agent's cgroup");
        path
    }

    /// Makes a cgroup below the world's own.
    pub fn make_cgroup(&self, below: &str) -> PathBuf {
        let path = self.cgroup.join(below);
        fs::create_dir_all(&path).expect("make a cgroup");
        path
    }

    /// Removes a cgroup below the world's own, and those in it, once its processes have ended.
    pub fn remove_cgroup(&self, below: &str) {
        let path = self.cgroup.join(below);
        within(Duration::from_secs(5), || remove_cgroups(&path).then_some(())).expect("remove a cgroup");
    }

    /// Starts a program in a cgroup of this world and the agents' network namespace.
    pub fn start_in(&self, cgroup: &Path, name: &str, command: &[String]) -> Process {
        Process::start(name, &Place { cgroup, netns: Some(&self.agents) }, command, self.dir.path())
    }

    /// A file or folder of this world's state.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where the daemon of this world pins its programs and maps.
    pub fn pin_dir(&self) -> PathBuf {
        Path::new(BPFFS).join(&self.name)
    }

    /// The name of the agents' network namespace.
    pub fn agent_netns(&self) -> &str {
        &self.agents
    }

    /// The name of the servers' network namespace.
    pub fn server_netns(&self) -> &str {
        &self.servers
    }

    /// Starts a program as an agent: in the agent's cgroup and the agents' network namespace.
    pub fn start_agent(&self, agent: &str, command: &[String]) -> Process {
        let cgroup = self.agent_cgroup(agent);
        Process::start(agent, &Place { cgroup: &cgroup, netns: Some(&self.agents) }, command, self.dir.path())
    }

    /// Starts a program as a server: nobody's agent, in the servers' network namespace.
    pub fn start_server(&self, name: &str, command: &[String]) -> Process {
        let cgroup = self.cgroup.join("peers");
        Process::start(name, &Place { cgroup: &cgroup, netns: Some(&self.servers) }, command, self.dir.path())
    }

    /// Starts a program of the operator's in the agents' network namespace, as `interlock exec` may be.
    pub fn start_operator_there(&self, name: &str, command: &[String]) -> Process {
        let cgroup = self.cgroup.join("daemon");
        Process::start(name, &Place { cgroup: &cgroup, netns: Some(&self.agents) }, command, self.dir.path())
    }

    /// Makes the addresses of a network the servers' own, by routes alone: no interface has them.
    pub fn route_to_servers(&self, network: &str) {
        ip(&["-n", &self.servers, "route", "add", "local", network, "dev", "lo"]);
        ip(&["-n", &self.agents, "route", "add", network, "via", &SERVER_V4.to_string()]);
    }

    /// Starts a program of the operator's in the servers' network namespace.
    pub fn start_operator_with_servers(&self, name: &str, command: &[String]) -> Process {
        let cgroup = self.cgroup.join("daemon");
        Process::start(name, &Place { cgroup: &cgroup, netns: Some(&self.servers) }, command, self.dir.path())
    }

    /// Starts a program as an agent, but in the servers' network namespace.
    pub fn start_agent_with_servers(&self, agent: &str, command: &[String]) -> Process {
        let cgroup = self.agent_cgroup(agent);
        Process::start(
            agent,
            &Place { cgroup: &cgroup, netns: Some(&self.servers) },
            command,
            self.dir.path(),
        )
    }

    /// Starts a program of the operator's: in the host's network namespace and the daemon's cgroup.
    pub fn start_operator(&self, name: &str, command: &[String]) -> Process {
        let cgroup = self.cgroup.join("daemon");
        Process::start(name, &Place { cgroup: &cgroup, netns: None }, command, self.dir.path())
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.parked = None;
        // Nothing lives in this cgroup but what this world started, and what that started.
        let _ = fs::write(self.cgroup.join("cgroup.kill"), "1");
        for netns in [&self.agents, &self.servers] {
            let _ = Command::new("ip").args(["netns", "del", netns]).output();
        }
        let _ = fs::remove_dir_all(self.pin_dir());
        let removed = within(Duration::from_secs(5), || remove_cgroups(&self.cgroup).then_some(()));
        if removed.is_none() {
            eprintln!("{} stays: something in it does not end", self.cgroup.display());
        }
    }
}

/// The root of the cgroup v2 hierarchy, wherever this host has it.
pub fn cgroup_root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
        let is_v2 = |line: &&str| line.split(" - ").nth(1).is_some_and(|tail| tail.starts_with("cgroup2 "));
        let mount = mounts.lines().find(is_v2).expect("cgroup v2 is mounted");
        PathBuf::from(mount.split(' ').nth(4).expect("the fifth field is the mount point"))
    })
}

/// Makes sure that there is a BPF file system to pin in.
pub fn mount_bpffs() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("read the mounts");
        if !mounts.lines().any(|line| line.split(' ').nth(1) == Some(BPFFS)) {
            let status = Command::new("mount").args(["-t", "bpf", "bpf", BPFFS]).status().expect("run mount");
            assert!(status.success(), "mount {BPFFS}: {status}");
        }
    });
}

fn remove_cgroups(cgroup: &Path) -> bool {
    let Ok(entries) = fs::read_dir(cgroup) else { return true };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_cgroups(&entry.path());
    }
    fs::remove_dir(cgroup).is_ok()
}

fn ip(args: &[&str]) {
    let output = Command::new("ip").args(args).output().expect("run ip (iproute2)");
    assert!(output.status.success(), "ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
}
