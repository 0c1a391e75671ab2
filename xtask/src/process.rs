//! Processes of the bench and the demo. Every one that is started here is ended here, by its pid.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::interrupt::check_interrupted;

/// A child that does not outlive its value.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts `command`, when one is given inside `cgroup` before its first instruction. Its standard error goes to
    /// `log`, or where this program's goes.
    pub(crate) fn start(
        mut command: Command,
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
        let mut child =
            command.spawn().with_context(|| format!("start {}", command.get_program().display()))?;
        let stdin = child.stdin.take();
        Ok(Self { child, stdin })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output, for a reader who keeps it open: a closed pipe would end it at its next line.
    pub(crate) fn take_output(&mut self) -> anyhow::Result<ChildStdout> {
        self.child.stdout.take().context("its output is already taken")
    }

    /// Writes a line to its standard input.
    pub(crate) fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("its input is closed")?;
        writeln!(stdin, "{line}").with_context(|| format!("write to process {}", self.child.id()))
    }

    /// SIGKILL: it gets no chance to tidy up.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// The first line of its standard output.
    pub(crate) fn first_line(&mut self) -> anyhow::Result<String> {
        let mut reader = BufReader::new(self.take_output()?);
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

/// A port of the loopback that was free a moment ago.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
