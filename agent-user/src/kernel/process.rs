//! What a process is, as the kernel tells it: for the evidence of a stop, read before it is carried out.
//!
//! A process may end at any moment; what it was is then an error ([`is_gone`]) or left out of a list, never a fact
//! about another process that has got its number. Nothing here reads a process's memory,
//! which it could make unreadable for as long as it likes.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, User, sysconf};

use super::cgroup;

/// A process (thread group).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// The name it gives itself, at most 15 bytes of its choice.
    pub comm: String,
    /// The program it runs, as a path in its own mount namespace; ` (deleted)` behind it where the file is gone.
    /// `None`: it is dead and not waited for.
    pub exe: Option<PathBuf>,
    /// Its real user, as a number of the reader's user namespace.
    pub uid: u32,
    /// When it began, to a hundredth of a second.
    pub started: Timestamp,
    /// The same in clock ticks after boot, which with `pid` names it for good.
    pub start_ticks: u64,
}

/// The processes of a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// As many as were asked for.
    pub list: Vec<Process>,
    /// How many there were, listed or not.
    pub total: usize,
}

/// The processes of a cgroup and of all below it, at most `limit` of them. What ends meanwhile is left out.
///
/// # Errors
/// The cgroup is gone ([`cgroup::is_gone`]).
pub fn in_cgroup(dir: &Path, limit: usize) -> anyhow::Result<Processes> {
    // 0 is a process outside of our process namespace.
    let pids: Vec<u32> = cgroup::procs(dir)?.into_iter().filter(|pid| *pid != 0).collect();
    let list = pids.iter().filter_map(|pid| of_pid(*pid).ok()).take(limit).collect();
    Ok(Processes { list, total: pids.len() })
}

/// A process by its number.
///
/// # Errors
/// It is gone ([`is_gone`]).
pub fn of_pid(pid: u32) -> io::Result<Process> {
    let proc = Proc::open(pid)?;
    let start_ticks = parse_start(&proc.read("stat")?).ok_or_else(broken)?;
    let status = proc.read("status")?;
    let mut comm = proc.read("comm")?;
    if comm.last() == Some(&b'\n') {
        comm.pop();
    }
    Ok(Process {
        pid,
        comm: String::from_utf8_lossy(&comm).into_owned(),
        exe: fs::read_link(proc.path("exe")).ok(),
        uid: parse_uid(&status).ok_or_else(broken)?,
        started: time_of(start_ticks),
        start_ticks,
    })
}

/// When a process began, in clock ticks after boot: with its number it names the process for good.
///
/// # Errors
/// It is gone ([`is_gone`]).
pub fn start_ticks(pid: u32) -> io::Result<u64> {
    parse_start(&Proc::open(pid)?.read("stat")?).ok_or_else(broken)
}

/// The program that a process executes, as a path in its own mount namespace.
///
/// # Errors
/// The process is gone ([`is_gone`]), or is the kernel's own.
pub fn program(pid: u32) -> io::Result<PathBuf> {
    Ok(without_deleted(fs::read_link(Proc::open(pid)?.path("exe"))?))
}

/// Every process there is, and its parent.
///
/// # Errors
/// There is no `/proc`.
pub fn parents() -> io::Result<HashMap<u32, u32>> {
    let pid = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u32>().ok();
    let parent = |pid: u32| parse_parent(&Proc::open(pid).ok()?.read("stat").ok()?);
    Ok(fs::read_dir("/proc")?.filter_map(pid).filter_map(|pid| Some((pid, parent(pid)?))).collect())
}

/// The inodes of the sockets that a process holds open, of any kind, among its first 65,536 descriptors. Read it before
/// the process is killed. Sockets in the private descriptor table of a thread, or on their way between two processes,
/// are not found; they are destroyed all the same.
///
/// # Errors
/// The process is gone ([`is_gone`]).
pub fn sockets(pid: u32) -> io::Result<HashSet<u64>> {
    let mut inodes = HashSet::new();
    for entry in fs::read_dir(Proc::open(pid)?.path("fd"))?.take(MAX_DESCRIPTORS) {
        // Closed meanwhile.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        inodes.extend(parse_socket(target.as_os_str()));
    }
    Ok(inodes)
}

/// The user who logged in and began what led to a process, kept by the kernel through every change of user
/// (`loginuid`). `None`: nobody logged in (a service), or the kernel does not keep it (`CONFIG_AUDIT`).
///
/// # Errors
/// The process is gone ([`is_gone`]).
pub fn login_uid(pid: u32) -> io::Result<Option<u32>> {
    let proc = Proc::open(pid)?;
    match proc.read("loginuid") {
        Err(error) if error.kind() == ErrorKind::NotFound => proc.read("stat").map(|_| None),
        text => Ok(parse_login(&text?)),
    }
}

/// The name behind [`login_uid`]; its number where it has no name here. Asks the host's user database, which may be on
/// the network.
///
/// # Errors
/// As for [`login_uid`].
pub fn login(pid: u32) -> io::Result<Option<String>> {
    let name = |uid: u32| match User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    };
    Ok(login_uid(pid)?.map(name))
}

/// Whether an error means that the process does not exist any more.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

const MAX_DESCRIPTORS: usize = 65_536;
const NO_LOGIN: u32 = u32::MAX;

/// The folder of a process. It stays that process's when the number goes to another one.
struct Proc(File);

impl Proc {
    fn open(pid: u32) -> io::Result<Proc> {
        File::open(format!("/proc/{pid}")).map(Proc)
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path(name))
    }
}

fn broken() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "not a process as proc(5) describes it")
}

fn time_of(start_ticks: u64) -> Timestamp {
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|hz| u64::try_from(hz).ok());
    let per_second = per_second.filter(|hz| *hz > 0).unwrap_or(100);
    let since_boot = std::time::Duration::from_millis(start_ticks.saturating_mul(1000) / per_second);
    let up = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(since_boot, std::time::Duration::from);
    let age = SignedDuration::try_from(up.saturating_sub(since_boot)).unwrap_or(SignedDuration::ZERO);
    let now = Timestamp::now();
    now.checked_sub(age).unwrap_or(now)
}

// proc_pid_stat(5): (2) comm, in brackets and with any byte inside; (22) starttime.
fn parse_start(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_whitespace().nth(22 - 3)?.parse().ok()
}

// proc_pid_stat(5): (4) ppid.
fn parse_parent(stat: &[u8]) -> Option<u32> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    std::str::from_utf8(stat.get(end + 1..)?).ok()?.split_whitespace().nth(4 - 3)?.parse().ok()
}

// proc_pid_exe(5): of a file that was replaced, as an upgrade does.
fn without_deleted(program: PathBuf) -> PathBuf {
    match program.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(path) => PathBuf::from(OsStr::from_bytes(path)),
        None => program,
    }
}

// The name in here comes escaped: it cannot begin a line.
fn parse_uid(status: &[u8]) -> Option<u32> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    std::str::from_utf8(line).ok()?.split_whitespace().next()?.parse().ok()
}

fn parse_socket(target: &OsStr) -> Option<u64> {
    target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn parse_login(text: &[u8]) -> Option<u32> {
    let uid = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    (uid != NO_LOGIN).then_some(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_cannot_shift_its_facts() {
        let tail = "S 1 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        assert_eq!(parse_start(format!("7 (a) S 9 (b) {tail}").as_bytes()), Some(4711));
        assert_eq!(parse_start(format!("7 (\u{fffd}\n) {tail}").as_bytes()), Some(4711));
        assert_eq!(parse_start(b"7 (a) S 1"), None);
        assert_eq!(parse_start(b""), None);
        assert_eq!(parse_uid(b"Name:\tx\\nUid:\t0\nUmask:\t0022\nUid:\t1000\t0\t0\t0\n"), Some(1000));
        assert_eq!(parse_uid(b"Name:\tx\n"), None);
    }

    #[test]
    fn only_sockets_count_and_only_a_login_is_one() {
        assert_eq!(parse_socket(OsStr::new("socket:[4711]")), Some(4711));
        assert_eq!(parse_socket(OsStr::new("pipe:[4711]")), None);
        assert_eq!(parse_socket(OsStr::from_bytes(b"\xff")), None);
        assert_eq!(parse_login(b"4294967295"), None);
        assert_eq!(parse_login(b"1000\n"), Some(1000));
        assert_eq!(parse_login(b""), None);
    }

    #[test]
    fn programs_and_parents_are_read() {
        let replaced = |path: &str| without_deleted(PathBuf::from(path)).display().to_string();
        assert_eq!(replaced("/bin/agent (deleted)"), "/bin/agent");
        assert_eq!(replaced("/bin/agent"), "/bin/agent");
        assert_eq!(parse_parent(b"7 (a) S 9 (b) S 4 1 1"), Some(4));
        let own = std::process::id();
        assert_eq!(program(own).expect("it runs"), std::env::current_exe().expect("it has a path"));
        assert!(parents().expect("there is /proc").contains_key(&own));
    }

    #[test]
    fn own_process_is_told() {
        let own = of_pid(std::process::id()).expect("it runs");
        assert_eq!(own.exe, std::env::current_exe().ok());
        assert_eq!(own.uid, nix::unistd::getuid().as_raw());
        let age = Timestamp::now().duration_since(own.started);
        assert!(age >= SignedDuration::ZERO && age < SignedDuration::from_mins(60), "{age:?}");
        assert!(is_gone(&of_pid(0).expect_err("nobody's number")));
    }
}
