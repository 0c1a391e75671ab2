//! What the tests of rules share: an agent without an SDK, a server that runs whatever it is asked, and what both saw.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use agent_tests::agent::RawConn;
use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

/// An agent with one connection.
pub(crate) struct Caller {
    pub(crate) agent: RawAgent,
    pub(crate) conn: RawConn,
    address: SocketAddr,
}

impl Caller {
    pub(crate) fn start(world: &World, name: &str, server: &RawServer) -> Self {
        let mut agent = RawAgent::start(world, name);
        let address = server.address();
        let conn = agent.open(address).expect("a connection");
        Self { agent, conn, address }
    }

    /// Goes on with a new connection to the same server.
    pub(crate) fn reopen(&mut self) {
        self.conn = self.agent.open(self.address).expect("a connection");
    }

    pub(crate) fn send(&mut self, request: &[u8]) {
        self.agent.send(&self.conn, request).expect("the connection is open");
    }

    pub(crate) fn message(&mut self) -> Message {
        self.agent.message(&mut self.conn).expect("an answer")
    }

    pub(crate) fn ask(&mut self, request: &[u8]) -> Message {
        self.send(request);
        self.message()
    }

    /// Calls a tool with id 1; answers the refusal, if it is one.
    pub(crate) fn call(&mut self, tool: &str, args: &str) -> Option<String> {
        let messages = self.ask(&call_with(1, tool, args)).messages();
        mcp::refusal(mcp::of_id(&messages, 1))
    }

    /// Calls a tool, and is refused.
    pub(crate) fn refused(&mut self, tool: &str, args: &str) -> String {
        self.call(tool, args).unwrap_or_else(|| panic!("{tool} {args} is refused"))
    }

    /// Whether the connection was ended and not one byte had come.
    pub(crate) fn is_cut(&mut self) -> bool {
        match self.agent.to_end(&mut self.conn) {
            Ok(bytes) => bytes.is_empty(),
            // What it had sent was not read to its end.
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// Asks for something else with id 1; answers the message that comes back.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> Value {
        let messages = self.ask(&mcp::legacy(&mcp::request(1, method, params))).messages();
        mcp::of_id(&messages, 1).clone()
    }
}

/// The POST of a call whose arguments are this JSON text.
pub(crate) fn call_with(id: u32, tool: &str, args: &str) -> Vec<u8> {
    in_session(&format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}","arguments":{args}}}}}"#
    ))
}

/// The POST of this text, as of 2025-11-25.
pub(crate) fn in_session(body: &str) -> Vec<u8> {
    http::post(body, &[mcp::SESSION, ("mcp-protocol-version", "2025-11-25")])
}

/// A server that runs every tool, and has two that it lists: `look` only reads, and `pay` does not say.
pub(crate) fn bank(world: &World) -> RawServer {
    serves(world, |_, _| Ok(false))
}

/// The same, unless `answer` has answered.
pub(crate) fn serves(
    world: &World,
    answer: impl Fn(&Message, &mut Reply<'_>) -> io::Result<bool> + Send + Sync + 'static,
) -> RawServer {
    RawServer::start(world, move |request, reply| {
        if answer(request, reply)? || handshake(request, reply)? {
            return Ok(());
        }
        let body = match &request.json() {
            Value::Null => return reply.write(&http::response("text/plain", &[], b"hi")),
            Value::Array(batch) => batch.iter().map(answer_to).collect::<Value>(),
            // An answer to what the server asked.
            one if one.get("method").is_none() => {
                return reply.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n");
            }
            one => answer_to(one),
        };
        reply.write(&http::response("application/json", &[], body.to_string().as_bytes()))
    })
}

fn answer_to(message: &Value) -> Value {
    let result = match message["method"].as_str() {
        Some("tools/list") => json!({"tools": [
            {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}},
            {"name": "pay", "inputSchema": {"type": "object"}},
        ]}),
        Some("tools/call") => {
            let text = format!("ran {}", message["params"]["name"].as_str().unwrap_or_default());
            json!({"content": [{"type": "text", "text": text}]})
        }
        _ => json!({}),
    };
    json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
}

/// How many calls of a tool a server has had.
pub(crate) fn calls_of(server: &RawServer, tool: &str) -> usize {
    let messages = server.requests().into_iter().flat_map(|request| request.messages());
    messages.filter(|message| message["method"] == "tools/call" && message["params"]["name"] == tool).count()
}

/// A daemon whose configuration is not quite that of all tests.
pub(crate) fn configured(world: &World, rules: &str, change: impl Fn(&str) -> String) -> Daemon {
    let mut daemon = Daemon::start(world, rules);
    daemon.stop();
    let text = fs::read_to_string(daemon.config()).expect("read the configuration");
    let changed = change(&text);
    assert_ne!(text, changed);
    fs::write(daemon.config(), changed).expect("write the configuration");
    daemon.restart(world);
    daemon
}

/// Puts other rules in force.
pub(crate) fn reload(daemon: &Daemon, rules: &str) {
    let before = daemon.metrics().value("interlock_policy_reloads_total", &[("result", "ok")]);
    let next = daemon.rules().with_extension("next");
    fs::write(&next, rules).expect("write beside it");
    fs::rename(&next, daemon.rules()).expect("put it in place");
    daemon.metrics().wait("interlock_policy_reloads_total", &[("result", "ok")], before + 1.0);
}

/// The decisions on record that say something of the server's messages.
pub(crate) fn of_server(daemon: &Daemon, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    daemon.records().wait("decision", what, |record| record["from"] == "server" && is(record))
}
