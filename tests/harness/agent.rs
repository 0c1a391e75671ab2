//! Agents: SDK clients that run a script, and TCP connections of an agent under the test's control.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::Message;
use crate::process::Process;
use crate::sdk::{Client, Era, binary};
use crate::wait::DEADLINE;
use crate::world::World;

/// What came of one step of an agent's script.
#[derive(Clone, Debug)]
pub struct Step {
    /// Whether the SDK returned a result (which may say that the tool failed).
    pub ok: bool,
    /// Whether the agent's code sees a failure, as a tool error or as an exception.
    pub is_error: bool,
    /// The text the agent's code gets, of a result or of an exception.
    pub text: String,
    /// `protocol`, `timeout`, or the SDK's own kind; empty without an exception.
    pub error: String,
    /// The line as the client wrote it.
    pub line: Value,
}

impl Step {
    fn of(line: Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let ok = line["ok"] == true;
        Self {
            ok,
            is_error: line["is_error"] == true,
            text: text(if ok { &line["text"] } else { &line["error"]["message"] }),
            error: text(&line["error"]["type"]),
            line,
        }
    }
}

/// An agent on an SDK, which runs a script.
pub struct Agent {
    process: Process,
}

impl Agent {
    /// Starts a client as the agent `name`, and hands it a script (see `tests/README.md`).
    pub fn start(
        world: &World,
        name: &str,
        client: impl Into<Client>,
        era: Era,
        url: &str,
        script: &Value,
    ) -> Self {
        Self { process: world.start_agent(name, &Self::command(client, era, url, script)) }
    }

    /// The command of such a client, for a caller that starts it in its own way.
    pub fn command(client: impl Into<Client>, era: Era, url: &str, script: &Value) -> Vec<String> {
        let mut command = client.into().command(era);
        command.extend(["--url".to_owned(), url.to_owned(), "--script".to_owned(), script.to_string()]);
        command
    }

    /// The client that runs as this process.
    pub fn of(process: Process) -> Self {
        Self { process }
    }

    /// Waits for its session; answers the revision in use. Panics when it gets none.
    pub fn connected(&self) -> String {
        let line = self.process.line();
        assert_eq!(line["connected"], true, "{line}; {}", self.process.stderr());
        line["revision"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits for its attempt to get a session, and answers that line.
    pub fn tried(&self) -> Value {
        // Its own deadline comes first, and that it begins takes a while on a busy machine.
        let line = self.process.line_within(DEADLINE * 3);
        line.unwrap_or_else(|| panic!("it has not begun; {}", self.process.stderr()))
    }

    /// The next step's outcome.
    pub fn step(&self) -> Step {
        let line = self
            .process
            .line_within(DEADLINE * 2)
            .unwrap_or_else(|| panic!("no step; {}", self.process.stderr()));
        assert!(line.get("step").is_some(), "expected a step, got {line}");
        Step::of(line)
    }

    /// All outcomes up to the end of the script.
    pub fn rest(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            let line = self
                .process
                .line_within(DEADLINE * 2)
                .unwrap_or_else(|| panic!("no end; {}", self.process.stderr()));
            if line["done"] == true {
                return steps;
            }
            if line.get("step").is_some() {
                steps.push(Step::of(line));
            }
        }
    }

    /// Lets a `wait_line` step pass.
    pub fn go(&mut self) {
        self.process.tell("go");
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// A step that lists the tools.
pub fn list() -> Value {
    json!({"op": "list"})
}

/// A step that calls a tool.
pub fn call(tool: &str, args: Value) -> Value {
    json!({"op": "call", "tool": tool, "args": args})
}

/// A step that makes several calls at once.
pub fn together(calls: &[Value]) -> Value {
    json!({"op": "together", "calls": calls})
}

/// A step that waits for [`Agent::go`].
pub fn wait_line() -> Value {
    json!({"op": "wait_line", "timeout": 120})
}

/// A step that connects a TCP socket, past the SDK (`rmcp` only).
pub fn connect(address: SocketAddr) -> Value {
    json!({"op": "connect", "addr": address.to_string()})
}

/// An agent without an SDK: its TCP connections do what the test says.
pub struct RawAgent {
    process: Process,
    next: u32,
    patience: Duration,
}

/// One of its connections.
pub struct RawConn {
    name: String,
    bytes: Vec<u8>,
    ended: bool,
}

impl RawAgent {
    /// Starts the agent `name`.
    pub fn start(world: &World, name: &str) -> Self {
        Self::of(world.start_agent(name, &Self::command()))
    }

    /// The agent that runs as this process.
    pub fn of(process: Process) -> Self {
        Self { process, next: 0, patience: DEADLINE }
    }

    /// Its command, for a caller that starts it in its own way.
    pub fn command() -> Vec<String> {
        vec![binary("raw-agent")]
    }

    /// How long it waits for what may not come, from now on.
    pub fn patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Connects; an error carries the errno that the agent saw.
    pub fn open(&mut self, address: SocketAddr) -> io::Result<RawConn> {
        self.next += 1;
        let conn = RawConn { name: self.next.to_string(), bytes: Vec::new(), ended: false };
        self.ask(&json!({"op": "open", "conn": conn.name, "addr": address.to_string()}))?;
        Ok(conn)
    }

    /// Sends bytes in one write.
    pub fn send(&mut self, conn: &RawConn, bytes: &[u8]) -> io::Result<()> {
        self.ask(&json!({"op": "send", "conn": conn.name, "hex": to_hex(bytes)})).map(drop)
    }

    /// Sends bytes in pieces of that size, each a write of its own.
    pub fn send_in(&mut self, piece: usize, conn: &RawConn, bytes: &[u8]) -> io::Result<()> {
        let command = json!({"op": "send", "conn": conn.name, "hex": to_hex(bytes), "chunk": piece});
        self.ask(&command).map(drop)
    }

    /// Says that nothing more comes, and goes on listening.
    pub fn finish(&mut self, conn: &RawConn) -> io::Result<()> {
        self.ask(&json!({"op": "finish", "conn": conn.name})).map(drop)
    }

    /// Whom the agent believes to talk to.
    pub fn peer(&mut self, conn: &RawConn) -> io::Result<SocketAddr> {
        let answer = self.ask(&json!({"op": "peer", "conn": conn.name}))?;
        answer["addr"]
            .as_str()
            .and_then(|addr| addr.parse().ok())
            .ok_or_else(|| io::Error::other(answer.to_string()))
    }

    /// Closes a connection.
    pub fn close(&mut self, conn: RawConn) -> io::Result<()> {
        self.ask(&json!({"op": "close", "conn": conn.name})).map(drop)
    }

    /// The next whole message on a connection.
    pub fn message(&mut self, conn: &mut RawConn) -> io::Result<Message> {
        self.until(conn, |conn| Message::take(&mut conn.bytes, conn.ended))
    }

    /// The next head on a connection: an answer that has no body, whatever it says.
    pub fn head(&mut self, conn: &mut RawConn) -> io::Result<Message> {
        self.until(conn, |conn| Message::take_head(&mut conn.bytes))
    }

    /// The message that is under way on a connection, as soon as its body so far satisfies `enough`.
    pub fn so_far(&mut self, conn: &mut RawConn, enough: impl Fn(&Message) -> bool) -> io::Result<Message> {
        self.until(conn, |conn| Message::so_far(&conn.bytes).filter(&enough))
    }

    /// The next line on a connection, with its end.
    pub fn line(&mut self, conn: &mut RawConn) -> io::Result<Vec<u8>> {
        self.until(conn, |conn| {
            let end = conn.bytes.iter().position(|byte| *byte == b'\n')?;
            Some(conn.bytes.drain(..=end).collect())
        })
    }

    /// So many bytes of a connection.
    pub fn bytes(&mut self, conn: &mut RawConn, count: usize) -> io::Result<Vec<u8>> {
        self.until(conn, |conn| (conn.bytes.len() >= count).then(|| conn.bytes.drain(..count).collect()))
    }

    /// Reads to the end of the connection; answers what had not been taken before, framing included.
    pub fn to_end(&mut self, conn: &mut RawConn) -> io::Result<Vec<u8>> {
        self.until(conn, |conn| conn.ended.then(|| std::mem::take(&mut conn.bytes)))
    }

    /// Reads at most so many bytes, which nobody gets.
    pub fn read_some(&mut self, conn: &RawConn, most: usize) -> io::Result<()> {
        let timeout = self.patience.as_secs_f64();
        self.ask(&json!({"op": "recv", "conn": conn.name, "timeout": timeout, "most": most})).map(drop)
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    fn until<T>(
        &mut self,
        conn: &mut RawConn,
        mut ready: impl FnMut(&mut RawConn) -> Option<T>,
    ) -> io::Result<T> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(found) = ready(conn) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if conn.ended || left.is_zero() {
                let have = String::from_utf8_lossy(&conn.bytes).into_owned();
                let why = if conn.ended { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::TimedOut };
                return Err(io::Error::new(why, format!("have {have:?}")));
            }
            let timeout = left.max(Duration::from_millis(1)).as_secs_f64();
            let answer = self.ask(&json!({"op": "recv", "conn": conn.name, "timeout": timeout}))?;
            conn.ended = answer["eof"] == true;
            conn.bytes.extend(from_hex(answer["hex"].as_str().unwrap_or_default()));
        }
    }

    fn ask(&mut self, command: &Value) -> io::Result<Value> {
        self.process.tell(&command.to_string());
        let limit = DEADLINE + Duration::from_secs(5); // its own timeouts come first
        let answer =
            self.process.line_within(limit).unwrap_or_else(|| panic!("no answer to {}", command["op"]));
        if answer["ok"] == true {
            return Ok(answer);
        }
        match answer["errno"].as_i64().and_then(|errno| i32::try_from(errno).ok()) {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::Error::other(answer["message"].to_string())),
        }
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit =
        |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok()).unwrap_or(0);
    text.as_bytes().chunks(2).map(|pair| pair.iter().fold(0, |byte, &next| byte << 4 | digit(next))).collect()
}
