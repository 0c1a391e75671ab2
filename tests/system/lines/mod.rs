//! Newline-delimited JSON-RPC over plain TCP: the stdio framing of MCP through bridges, and 2026-07-28's custom transport.

mod calls;
mod edits;
mod hostile;
mod other;
mod sdks;
mod stops;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use agent_tests::agent::RawConn;
use agent_tests::raw_server::{RawServer, Reply};
use agent_tests::{RawAgent, World, mcp, wait_for};
use serde_json::{Value, json};

/// What a test has its server say.
#[derive(Clone, Default)]
pub(crate) struct Says(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Says {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.0.lock().expect("nobody panics here")
    }

    pub(crate) fn say(&self, bytes: &[u8]) {
        self.queue().push_back(bytes.to_vec());
    }

    pub(crate) fn line(&self, message: &Value) {
        self.say(format!("{message}\n").as_bytes());
    }
}

/// A server that answers lines as `answer` says, and says what the test says.
pub(crate) fn serves(
    world: &World,
    answer: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static,
) -> (RawServer, Says) {
    let says = Says::default();
    let tells = says.clone();
    let server = RawServer::talks(world, move |reply| talk(reply, &tells, &answer));
    (server, says)
}

fn talk(reply: &mut Reply<'_>, says: &Says, answer: &impl Fn(&Value) -> Option<Value>) -> io::Result<()> {
    let mut held = Vec::new();
    while let Some(piece) = reply.poll(64 * 1024)? {
        held.extend(piece);
        while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = held.drain(..=end).collect();
            let said = serde_json::from_slice(&line).ok().and_then(|message| answer(&message));
            if let Some(said) = said {
                reply.write(format!("{said}\n").as_bytes())?;
            }
        }
        loop {
            let said = says.queue().pop_front();
            let Some(said) = said else { break };
            reply.write(&said)?;
        }
    }
    Ok(())
}

/// Answers nothing.
pub(crate) fn silent(_: &Value) -> Option<Value> {
    None
}

/// Answers each call with the name of its tool.
pub(crate) fn answers(message: &Value) -> Option<Value> {
    (message["method"] == "tools/call").then(|| result(&message["id"], &message["params"]["name"]))
}

/// The result of a tool.
pub(crate) fn result(id: &Value, text: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
}

/// The messages that a server has received, as far as they are any.
pub(crate) fn received(server: &RawServer) -> Vec<Value> {
    let bytes = server.bytes();
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Waits for a message at a server.
pub(crate) fn wait(server: &RawServer, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait_for(&format!("{what} at the server"), || received(server).into_iter().find(|message| is(message)))
}

/// An agent with a connection.
pub(crate) struct Session {
    pub(crate) agent: RawAgent,
    pub(crate) conn: RawConn,
}

impl Session {
    pub(crate) fn open(world: &World, name: &str, server: &RawServer) -> Self {
        let mut agent = RawAgent::start(world, name);
        let conn = agent.open(server.address()).expect("a connection");
        Self { agent, conn }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.agent.send(&self.conn, bytes).expect("send");
    }

    pub(crate) fn line(&mut self, message: &Value) {
        self.send(format!("{message}\n").as_bytes());
    }

    pub(crate) fn call(&mut self, id: u32, tool: &str) {
        self.line(&mcp::call(id, tool, json!({})));
    }

    /// The next line, as it comes.
    pub(crate) fn next_raw(&mut self) -> Vec<u8> {
        self.agent.line(&mut self.conn).expect("a line")
    }

    pub(crate) fn next(&mut self) -> Value {
        let line = self.next_raw();
        serde_json::from_slice(&line).unwrap_or_else(|_| panic!("{}", line.escape_ascii()))
    }

    /// Why the call with this id was refused; it is what comes next.
    pub(crate) fn refused(&mut self, id: u32) -> String {
        let message = self.next();
        assert_eq!(message["id"], id, "{message}");
        mcp::refusal(&message).unwrap_or_else(|| panic!("refused: {message}"))
    }

    /// A call that passes, and its answer, which comes next.
    pub(crate) fn passes(&mut self, id: u32, tool: &str) {
        self.call(id, tool);
        assert_eq!(self.next(), result(&json!(id), &json!(tool)));
    }
}
