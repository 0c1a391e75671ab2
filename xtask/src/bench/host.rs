//! What the bench asks of the host: pinned processes, CPU and memory readings, and one clock.

use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;

use crate::process::Process;

/// Which half of the machine a process runs on.
#[derive(Clone, Copy)]
pub(crate) enum Core {
    /// The proxy, alone.
    Proxy,
    /// Load and server.
    Load,
}

impl Core {
    /// Starts a process that stays on this core.
    pub(crate) fn start(
        self,
        command: Command,
        cgroup: Option<&Path>,
        log: Option<File>,
    ) -> anyhow::Result<Process> {
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this)?;
        sched_setaffinity(this, &self.set(&before)?)?;
        let started = Process::start(command, cgroup, log);
        sched_setaffinity(this, &before)?;
        started
    }

    fn set(self, all: &CpuSet) -> anyhow::Result<CpuSet> {
        let cores: Vec<usize> = (0..CpuSet::count()).filter(|&n| all.is_set(n).unwrap_or(false)).collect();
        let mut set = CpuSet::new();
        match (self, cores.first(), cores.get(1)) {
            // With one core there is nothing to keep apart.
            (_, Some(&only), None) | (Self::Proxy, Some(&only), _) => set.set(only)?,
            (Self::Load, _, Some(&second)) => set.set(second)?,
            (_, None, _) => bail!("no core to run on"),
        }
        Ok(set)
    }
}

/// CPU time of the processes so far, all threads, user and system. Clock ticks: 10 ms.
pub(crate) fn cpu_seconds(pids: &[u32]) -> anyhow::Result<f64> {
    let mut ticks = 0;
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| gone(*pid))?;
        ticks += parse_ticks(&stat).with_context(|| format!("read /proc/{pid}/stat"))?;
    }
    Ok(ticks as f64 / 100.0)
}

/// utime + stime. The name of the program may hold anything, so fields are counted from its last bracket.
fn parse_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ').skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Resident memory of one process.
pub(crate) fn rss_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| gone(pid))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn gone(pid: u32) -> String {
    format!("process {pid} is gone")
}

/// Of the last minute; NaN where the host does not say.
pub(crate) fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(f64::NAN)
}

/// Nanoseconds of CLOCK_MONOTONIC, as bench-server and bench-load read it.
pub(crate) fn monotonic_ns() -> anyhow::Result<u64> {
    let now = nix::time::ClockId::CLOCK_MONOTONIC.now()?;
    Ok(now.tv_sec().unsigned_abs() * 1_000_000_000 + now.tv_nsec().unsigned_abs())
}

/// Lifts the soft limit of open files to the hard one, for the children too: a daemon with 2,000 connections has 4,000
/// sockets.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

/// Shows how far the run is, where somebody looks.
pub(crate) fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[Kbench: {text}");
    }
}

/// Clears what [`progress`] showed.
pub(crate) fn progress_done() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// A program on the PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    places.map(|place| place.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_survive_odd_program_names() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 5 6 7";
        assert_eq!(parse_ticks(stat), Some(300));
        assert_eq!(parse_ticks("7 (a"), None);
    }
}
