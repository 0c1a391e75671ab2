//! A process in a place: a cgroup, a network namespace. Ends with its guard, by its own pid.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::wait::{DEADLINE, within};

/// Where a process runs.
pub struct Place<'a> {
    /// The cgroup it joins before it becomes the program, so that nothing of it runs outside.
    pub cgroup: &'a Path,
    /// The network namespace's name, or the test's own.
    pub netns: Option<&'a str>,
}

/// A started process whose stdout is read line by line.
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    /// Locked so that several threads can start processes in one world.
    lines: Mutex<Receiver<String>>,
    stderr: PathBuf,
}

impl Process {
    /// Starts `command` in `place`; its stderr goes to a file in `dir`.
    pub fn start(name: &str, place: &Place<'_>, command: &[String], dir: &Path) -> Self {
        let mut shell = Command::new("sh");
        // The shell joins the cgroup and then becomes the program: one pid from the first instruction on.
        shell.args(["-c", r#"echo $$ > "$0/cgroup.procs" && exec "$@""#]).arg(place.cgroup);
        if let Some(netns) = place.netns {
            shell.arg("nsenter").arg(format!("--net=/run/netns/{netns}")).arg("--");
        }
        shell.args(command);
        Self::spawn(name, shell, dir)
    }

    /// Starts a command where the test is; its stderr goes to a file in `dir`.
    pub fn spawn(name: &str, mut command: Command, dir: &Path) -> Self {
        let stderr = unused(dir, &name.replace('/', "_"));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&stderr).expect("create the file for stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("start {name}: {error}"));
        let (send, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Self { name: name.to_owned(), stdin: child.stdin.take(), child, lines: Mutex::new(lines), stderr }
    }

    /// The process id, the same from the shell to the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its stdout as JSON; panics when none comes in time.
    pub fn line(&self) -> Value {
        self.line_within(DEADLINE).unwrap_or_else(|| panic!("{} says nothing; {}", self.name, self.stderr()))
    }

    /// The next line of its stdout as JSON, if one comes in time.
    pub fn line_within(&self, time: Duration) -> Option<Value> {
        match self.lines.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(time) {
            Ok(line) => Some(
                serde_json::from_str(&line)
                    .unwrap_or_else(|error| panic!("{} says {line:?}: {error}", self.name)),
            ),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("{} has ended; {}", self.name, self.stderr()),
        }
    }

    /// Writes one line to its stdin.
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{line}").unwrap_or_else(|error| panic!("tell {}: {error}", self.name));
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid fits");
        kill(Pid::from_raw(pid), signal).unwrap_or_else(|error| panic!("signal {}: {error}", self.name));
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The most memory it has had, in KiB.
    pub fn peak_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    /// The memory it has now, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// Lets the most memory it has had begin anew.
    pub fn reset_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.pid()), "5").expect("it runs");
    }

    /// How many files it has open.
    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("it runs").count()
    }

    fn status_kib(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of that name");
        line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let name = &self.name;
        within(DEADLINE, || self.child.try_wait().expect("wait for a child"))
            .unwrap_or_else(|| panic!("{name} does not end"))
    }

    /// What it wrote to stderr, the last part of it.
    pub fn stderr(&self) -> String {
        let text = fs::read_to_string(&self.stderr).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("stderr of {}: {}", self.name, lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.stderr());
        }
        let _ = self.child.kill(); // already gone is fine
        let _ = self.child.wait();
    }
}

fn unused(dir: &Path, name: &str) -> PathBuf {
    (0..)
        .map(|n| dir.join(format!("{name}-{n}.stderr")))
        .find(|path| !path.exists())
        .expect("there is always a next number")
}
