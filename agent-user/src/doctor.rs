//! What a host offers and lacks, and what each lack costs. Works without a daemon.

use std::path::Path;

use serde::Serialize;

use crate::control::client::Client;
use crate::kernel::cgroup;

/// Oldest kernel with everything that is used: `SO_NETNS_COOKIE`, `cgroup.kill` and taking from a hash map came with 5.14;
/// before 5.15 a mounted cgroup v1 could hide the v2 cgroup of a socket.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// One thing looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub state: State,
    pub detail: String,
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Good,
    /// Works, with the limit that the detail names.
    Limited,
    /// interlock cannot work without it.
    Missing,
}

/// Looks at everything.
pub fn examine(client: &Client) -> Vec<Finding> {
    vec![
        kernel_version(),
        btf(),
        cgroups(),
        root_cgroup(),
        bpffs(),
        syn_cookies(),
        privileges(),
        raw_packets(),
        daemon(client),
    ]
}

/// The report in words.
pub fn render(findings: &[Finding]) -> String {
    let lines = findings.iter().map(|finding| {
        let mark = match finding.state {
            State::Good => "good   ",
            State::Limited => "limited",
            State::Missing => "MISSING",
        };
        format!("{mark}  {}: {}", finding.what, finding.detail)
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn finding(what: &'static str, state: State, detail: impl Into<String>) -> Finding {
    Finding { what, state, detail: detail.into() }
}

fn kernel_version() -> Finding {
    let release = nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= OLDEST_KERNEL {
        finding("kernel", State::Good, release)
    } else {
        finding(
            "kernel",
            State::Missing,
            format!("{release}; at least {}.{} is needed", OLDEST_KERNEL.0, OLDEST_KERNEL.1),
        )
    }
}

fn btf() -> Finding {
    let path = "/sys/kernel/btf/vmlinux";
    if Path::new(path).exists() {
        finding("kernel types (BTF)", State::Good, path)
    } else {
        finding(
            "kernel types (BTF)",
            State::Missing,
            format!("{path} does not exist; use a kernel with CONFIG_DEBUG_INFO_BTF"),
        )
    }
}

fn cgroups() -> Finding {
    match cgroup::root() {
        Ok(root) => finding("cgroup v2", State::Good, root.display().to_string()),
        Err(error) => finding("cgroup v2", State::Missing, format!("{error:#}")),
    }
}

fn root_cgroup() -> Finding {
    let what = "processes in the root cgroup";
    let count = cgroup::root()
        .ok()
        .and_then(|root| std::fs::read_to_string(root.join("cgroup.procs")).ok())
        .map_or(0, |procs| {
            procs.lines().filter(|pid| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok()).count()
        });
    if count == 0 {
        finding(what, State::Good, "none")
    } else {
        finding(
            what,
            State::Limited,
            format!("{count}; a socket one of them makes and hands to an agent is not seen"),
        )
    }
}

fn bpffs() -> Finding {
    match nix::sys::statfs::statfs("/sys/fs/bpf") {
        Ok(fs) if fs.filesystem_type() == nix::sys::statfs::FsType(libc::BPF_FS_MAGIC) => {
            finding("bpffs", State::Good, "/sys/fs/bpf")
        }
        _ => finding("bpffs", State::Limited, "not mounted on /sys/fs/bpf; the daemon mounts it"),
    }
}

// Each network namespace has its own; this is ours.
fn syn_cookies() -> Finding {
    let what = "SYN cookies";
    match std::fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies") {
        Ok(mode) if mode.trim() == "2" => finding(
            what,
            State::Missing,
            "net.ipv4.tcp_syncookies is 2, so no listener sees a SYN and agents' connections are closed; set it to 1",
        ),
        _ => finding(what, State::Good, "not for every connection"),
    }
}

fn privileges() -> Finding {
    if nix::unistd::geteuid().is_root() {
        finding("privileges", State::Good, "root")
    } else {
        finding(
            "privileges",
            State::Limited,
            "not root; the daemon needs CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_SYS_PTRACE",
        )
    }
}

fn raw_packets() -> Finding {
    finding(
        "packet sockets",
        State::Limited,
        "AF_PACKET is not seen by cgroup programs: run agents without CAP_NET_RAW",
    )
}

fn daemon(client: &Client) -> Finding {
    match client.get("/v1/status") {
        Ok(status) if status["kernel"]["attached"] == true => finding(
            "daemon",
            State::Good,
            format!("version {}, everything attached", status["version"].as_str().unwrap_or("?")),
        ),
        Ok(_) => finding(
            "daemon",
            State::Missing,
            "runs, but a kernel program is detached; `interlock status` names it",
        ),
        Err(error) => finding("daemon", State::Limited, format!("{error:#}")),
    }
}
