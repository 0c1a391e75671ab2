//! Answering a server in its client's place: what it asks of the agent, and the agent does not get, would leave it
//! waiting for an answer (MCP up to 2025-11-25; in 2026-07-28 servers ask nothing).

use std::sync::Arc;

use serde_json::Value;

use crate::decode::Limits;
use crate::forward::cancel::{self, Client};
use crate::forward::inspect::Inspecting;
use crate::kernel::netns::Netns;
use crate::ledger::Conn;
use crate::record::entry::{self, Entry};
use crate::record::log::Log;

/// An answer to a server, in its client's place.
struct Reply {
    log: Arc<Log>,
    limits: Limits,
    conn: Arc<Conn>,
    netns: Arc<Netns>,
    server: Arc<str>,
    /// The head of the request in whose answer the server asked.
    request: Vec<u8>,
    /// The id that the server gave, as it wrote it.
    rpc_id: Box<str>,
    message: String,
}

impl Inspecting<'_> {
    /// Answers a request of the server's, of that id as it wrote it, with a JSON-RPC error. Returns as soon as it is that
    /// answer's turn to be sent: a server that asks faster than it takes answers has to wait.
    pub(super) async fn answer_server(&self, rpc_id: &str, error: &Value) {
        let Some(message) = cancel::error(rpc_id, error) else { return };
        let reply = Reply {
            log: Arc::clone(&self.parts.log),
            limits: self.parts.limits,
            conn: Arc::clone(self.conn),
            netns: Arc::clone(self.netns),
            server: self.conn.scene().server,
            request: self.client().to_vec(),
            rpc_id: rpc_id.into(),
            message,
        };
        // The semaphore is never closed.
        let turn = Arc::clone(&self.conn.identity.agent.cancels).acquire_owned().await;
        tokio::spawn(async move {
            reply.send().await;
            drop(turn);
        });
    }
}

impl Reply {
    async fn send(self) {
        let client =
            Client { request: &self.request, conn: &self.conn, netns: &self.netns, limits: &self.limits };
        let outcome = match client.post(&self.message, None).await {
            Ok(reply) => reply.outcome(),
            Err(error) => error.to_string(),
        };
        self.log.record(&Entry::Reply(entry::Reply {
            conn: self.conn.id,
            agent: &self.conn.identity.agent.name,
            server: &self.server,
            rpc_id: &self.rpc_id,
            outcome,
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::identity::{Agent, Identity};
    use crate::ledger::{Ledger, Scene};
    use crate::record::metrics::Metrics;
    use crate::workflow::OfProcess;

    const LISTENS: &str = "GET /mcp?a=1 HTTP/1.1\r\nHost: bank.test\r\nAccept: text/event-stream\r\n\
                           Authorization: Bearer t\r\nMcp-Session-Id: s-1\r\nMCP-Protocol-Version: 2025-11-25\r\n\
                           Last-Event-ID: 7\r\n\r\n";

    /// A reply to a server at an address, and where its record will be.
    fn reply(to: SocketAddr, rpc_id: &str) -> (Reply, impl FnOnce() -> Value) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let metrics = Arc::new(Metrics::new().unwrap());
        let agent = Arc::new(Agent::new(1, "coder", metrics.agent("coder")));
        let (log, writer) = Log::open(&path, metrics).unwrap();
        let identity = Identity {
            agent,
            pid: 0,
            uid: 0,
            exe: None,
            labels: Arc::default(),
            pod: None,
            process: None,
            workflow: OfProcess::default(),
        };
        let listed = Arc::new(Ledger::default()).open(identity, to, Scene::of_connection(to, None));
        let error = json!({"code": -1, "message": "sampling is refused"});
        let reply = Reply {
            log,
            limits: Limits::default(),
            conn: Arc::clone(listed.conn()),
            netns: Arc::new(Netns::current().unwrap()),
            server: "bank.test".into(),
            request: LISTENS.into(),
            rpc_id: rpc_id.into(),
            message: cancel::error(rpc_id, &error).unwrap(),
        };
        let record = move || {
            drop(writer);
            let text = std::fs::read_to_string(dir.path().join("records")).unwrap();
            serde_json::from_str(text.trim()).unwrap()
        };
        (reply, record)
    }

    #[tokio::test]
    async fn server_is_answered_as_by_its_client() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (reply, record) = reply(listener.local_addr().unwrap(), "12345678901234567890123");
        let sending = tokio::spawn(reply.send());
        let (mut server, _) = listener.accept().await.unwrap();
        let mut seen = String::new();
        while !seen.contains("refused\"}}") {
            let mut piece = [0; 4096];
            let read = server.read(&mut piece).await.unwrap();
            assert!(read > 0, "{seen}");
            seen += std::str::from_utf8(&piece[..read]).unwrap();
        }
        server.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        sending.await.unwrap();

        let (head, body) = seen.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /mcp?a=1 HTTP/1.1\r\n"), "{head}");
        for line in [
            "Host: bank.test",
            "Authorization: Bearer t",
            "Mcp-Session-Id: s-1",
            "MCP-Protocol-Version: 2025-11-25",
            "Content-Type: application/json",
        ] {
            assert!(head.contains(line), "{line}: {head}");
        }
        assert!(!head.contains("Last-Event-ID"), "{head}");
        assert_eq!(
            body,
            r#"{"jsonrpc":"2.0","id":12345678901234567890123,"error":{"code":-1,"message":"sampling is refused"}}"#
        );
        let record = record();
        assert_eq!(
            (&record["kind"], &record["rpc_id"], &record["outcome"]),
            (&json!("reply"), &json!("12345678901234567890123"), &json!("status 202"))
        );
    }

    #[tokio::test]
    async fn server_that_is_gone_is_on_record() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (reply, record) = reply(listener.local_addr().unwrap(), "\"q-1\"");
        drop(listener);
        reply.send().await;
        let record = record();
        assert_eq!(record["rpc_id"], "\"q-1\"");
        assert!(record["outcome"].as_str().is_some_and(|outcome| outcome.contains("refused")), "{record}");
    }
}
