//! What the bench asks of the host: pinned processes, CPU and memory readings, one clock, and an end on Ctrl-C.
//! Every process started here is ended here, by its pid.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Which half of the machine a process runs on.
#[derive(Clone, Copy)]
pub(crate) enum Core {
    /// The proxy, alone.
    Proxy,
    /// Load and server.
    Load,
}

impl Core {
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

/// A child that does not outlive its value.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts `command` on `core` and, when one is given, inside `cgroup` before its first instruction. Its standard
    /// error goes to `log`, or where this program's goes.
    pub(crate) fn start(
        mut command: Command,
        core: Core,
        cgroup: Option<&Path>,
        log: Option<File>,
    ) -> anyhow::Result<Self> {
        if let Some(cgroup) = cgroup {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", r#"echo $$ > "$0" && exec "$@""#]).arg(cgroup.join("cgroup.procs"));
            shell.arg(command.get_program()).args(command.get_args());
            for (name, value) in command.get_envs() {
                if let Some(value) = value {
                    shell.env(name, value);
                }
            }
            command = shell;
        }
        if let Some(log) = log {
            command.stderr(log);
        }
        // A group of its own: Ctrl-C reaches this program only, which then ends the rest in order.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let this = Pid::from_raw(0);
        let before = sched_getaffinity(this)?;
        sched_setaffinity(this, &core.set(&before)?)?;
        let spawned = command.spawn();
        sched_setaffinity(this, &before)?;
        let mut child = spawned.with_context(|| format!("start {}", command.get_program().display()))?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The first line of its standard output.
    pub(crate) fn first_line(&mut self) -> anyhow::Result<String> {
        let mut reader = BufReader::new(self.child.stdout.take().context("its output is already taken")?);
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            bail!("process {} ended before it said anything", self.pid());
        }
        // Kept open: a closed pipe would end it at its next line.
        std::thread::spawn(move || drop(std::io::copy(&mut reader, &mut std::io::sink())));
        Ok(line.trim_end().to_owned())
    }

    /// Closes its standard input, which ends it, and returns what it printed.
    pub(crate) fn finish(mut self, within: Duration) -> anyhow::Result<String> {
        drop(self.stdin.take());
        self.wait(within)
    }

    /// Waits until it ends by itself and returns what it printed.
    pub(crate) fn wait(mut self, within: Duration) -> anyhow::Result<String> {
        let output = self.child.stdout.take();
        let reader = std::thread::spawn(move || output.map(std::io::read_to_string).transpose());
        let deadline = Instant::now() + within;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            check_interrupted()?;
            if Instant::now() > deadline {
                bail!("process {} did not end within {within:?}", self.pid());
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let output = reader.join().ok().context("reader of its output")??.unwrap_or_default();
        if !status.success() {
            bail!("process {} ended with {status}: {output}", self.pid());
        }
        Ok(output)
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stdin.take());
        if self.has_ended() {
            return;
        }
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let _ = kill(pid, Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_secs(3);
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
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

static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From here on SIGINT and SIGTERM end the run in order instead of at once; a second one ends it at once. Children do
/// not inherit this.
pub(crate) fn catch_interrupts() -> anyhow::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, INTERRUPTED.clone())?;
        signal_hook::flag::register(signal, INTERRUPTED.clone())?;
    }
    Ok(())
}

/// Lifts the soft limit of open files to the hard one, for the children too: a daemon with 2,000 connections has 4,000
/// sockets.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?)
}

pub(crate) fn check_interrupted() -> anyhow::Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Sleeps, but not through an interrupt.
pub(crate) fn pause(time: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        check_interrupted()?;
        std::thread::sleep((deadline - Instant::now().min(deadline)).min(Duration::from_millis(50)));
    }
    Ok(())
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

/// A port of the loopback that was free a moment ago.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
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
