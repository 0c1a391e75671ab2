//! Drives `agent-probe`, a process that does on command what an agent might do.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};

/// A running probe; it ends with this.
#[derive(Debug)]
pub struct Probe {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Probe {
    /// Starts the program at `path`, which a test knows as `env!("CARGO_BIN_EXE_agent-probe")`.
    pub fn start(path: &Path) -> Probe {
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("agent-probe starts");
        let commands = child.stdin.take().expect("its input is a pipe");
        let answers = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        Probe { child, commands, answers }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// One command, one line of answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Sends a command without waiting.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the probe listens");
    }

    /// The next line of answer.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the probe answers");
        line.trim_end().to_owned()
    }

    /// Whether a line of answer comes in this time; it is then the next [`Probe::answer`].
    pub fn answers_within(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        self.set_flags(OFlag::O_NONBLOCK);
        let mut has_come = false;
        while !has_come && Instant::now() < deadline {
            has_come = self.answers.fill_buf().is_ok_and(|bytes| !bytes.is_empty());
            if !has_come {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.set_flags(OFlag::empty());
        has_come
    }

    fn set_flags(&self, flags: OFlag) {
        fcntl(self.answers.get_ref(), FcntlArg::F_SETFL(flags)).expect("the answers come through a pipe");
    }

    /// A command that must succeed; gives what follows `ok`.
    #[track_caller]
    pub fn must(&mut self, command: &str) -> String {
        let answer = self.ask(command);
        match answer.strip_prefix("ok") {
            Some(rest) => rest.trim_start().to_owned(),
            None => panic!("{command}: {answer}"),
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
