//! HTTP+SSE (MCP 2024-11-05): what an agent POSTs is answered in a stream that it has open on another connection, by
//! servers and by `interlock`.

mod answers;
mod endpoint;
mod sdks;
mod stops;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use agent_tests::agent::RawConn;
use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, Reply};
use agent_tests::{RawAgent, World, mcp};
use serde_json::{Value, json};

/// What a test says in the streams of its server.
#[derive(Clone, Default)]
pub(crate) struct Says(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Says {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.0.lock().expect("nobody panics here")
    }

    /// Bytes of a stream's content, in a chunk of their own.
    pub(crate) fn say(&self, bytes: &[u8]) {
        self.queue().push_back(http::chunk(bytes));
    }

    /// A message.
    pub(crate) fn message(&self, message: &Value) {
        self.say(&event(&message.to_string()));
    }

    /// The stream ends.
    pub(crate) fn end(&self) {
        self.queue().push_back(http::chunk(b""));
    }

    /// Sends in an open stream what the test says from now on.
    fn tell(&self, reply: &mut Reply<'_>) -> io::Result<()> {
        loop {
            let mut bytes = None;
            reply.hold(|| {
                bytes = self.queue().pop_front();
                bytes.is_some()
            })?;
            let bytes = bytes.unwrap_or_default();
            reply.write(&bytes)?;
            if bytes == http::chunk(b"") {
                return Ok(());
            }
        }
    }
}

/// An event that holds a message.
pub(crate) fn event(json: &str) -> Vec<u8> {
    format!("event: message\r\ndata: {json}\r\n\r\n").into_bytes()
}

/// The result of a tool.
pub(crate) fn result(id: u32, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}})
}

pub(crate) const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 8\r\n\r\nAccepted";

/// A server that names this endpoint in its stream, takes what is POSTed, and says what the test says.
pub(crate) fn serves(world: &World, endpoint: &str) -> (RawServer, Says) {
    let says = Says::default();
    let (endpoint, tells) = (endpoint.to_owned(), says.clone());
    let server = RawServer::start(world, move |request, reply| {
        if !request.start.starts_with("GET ") {
            return reply.write(ACCEPTED);
        }
        let first = format!("event: endpoint\r\ndata: {endpoint}\r\n\r\n");
        reply.write(&[http::sse_head(), http::chunk(first.as_bytes())].concat())?;
        tells.tell(reply)
    });
    (server, says)
}

/// Where most servers of the tests have what is POSTed.
pub(crate) const ENDPOINT: &str = "/messages/?session_id=one&a=1";

/// The POST of a message to a URI.
pub(crate) fn post_to(uri: &str, body: &str) -> Vec<u8> {
    let head = format!("POST {uri} HTTP/1.1\r\nhost: bank.test\r\ncontent-type: application/json\r\n");
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// An agent with a stream open, and a connection on which it POSTs.
pub(crate) struct Session {
    pub(crate) agent: RawAgent,
    pub(crate) stream: RawConn,
    pub(crate) posts: RawConn,
    endpoint: String,
}

impl Session {
    /// Opens a stream at a server that names such an endpoint.
    pub(crate) fn open(world: &World, name: &str, server: &RawServer, endpoint: &str) -> Self {
        let mut agent = RawAgent::start(world, name);
        let stream = agent.open(server.address()).expect("a connection");
        let posts = agent.open(server.address()).expect("a connection");
        let mut session = Self { agent, stream, posts, endpoint: endpoint.to_owned() };
        session.get();
        session
    }

    /// Asks for a stream.
    pub(crate) fn get(&mut self) {
        let get = b"GET /sse?key=1 HTTP/1.1\r\nhost: bank.test\r\naccept: text/event-stream\r\n\r\n";
        self.agent.send(&self.stream, get).expect("send");
        self.so_far("event: endpoint");
    }

    /// What has come in the stream once it has this text.
    pub(crate) fn so_far(&mut self, text: &str) -> String {
        let has = |message: &Message| message.text().contains(text);
        self.agent.so_far(&mut self.stream, has).unwrap_or_else(|error| panic!("{text}: {error}")).text()
    }

    /// POSTs a body to the endpoint, and gives the answer to that.
    pub(crate) fn post(&mut self, body: &str) -> Message {
        self.post_to(&self.endpoint.clone(), body)
    }

    pub(crate) fn post_to(&mut self, uri: &str, body: &str) -> Message {
        self.agent.send(&self.posts, &post_to(uri, body)).expect("send");
        self.agent.message(&mut self.posts).expect("an answer to the POST")
    }

    /// POSTs a call of a tool, which is taken.
    pub(crate) fn call(&mut self, id: u32, tool: &str) {
        self.call_with(id, tool, json!({}));
    }

    pub(crate) fn call_with(&mut self, id: u32, tool: &str, args: Value) {
        let answer = self.post(&mcp::call(id, tool, args).to_string());
        assert_eq!((answer.status(), answer.text().as_str()), (202, "Accepted"), "{answer:?}");
    }

    /// POSTs a call of a tool, which is refused in the stream; gives the refusal.
    pub(crate) fn refused(&mut self, id: u32, tool: &str) -> String {
        let answer = self.post(&mcp::call(id, tool, json!({})).to_string());
        assert_eq!((answer.status(), answer.text().as_str()), (202, ""), "{answer:?}");
        let message = self.of_id(id);
        mcp::refusal(&message).unwrap_or_else(|| panic!("refused: {message}"))
    }

    /// The message of this id in the stream.
    pub(crate) fn of_id(&mut self, id: u32) -> Value {
        let of_id = |message: &Message| message.messages().into_iter().find(|message| message["id"] == id);
        let stream = self.agent.so_far(&mut self.stream, |message| of_id(message).is_some());
        of_id(&stream.expect("a message of that id")).unwrap_or_default()
    }
}
