//! An allowed request on its way to the server, and the agent that sends it.

use std::io;

use bytes::Buf;
use tokio::task::yield_now;

use crate::decode::{Body, Framing, parse_request, rewrite_head};
use crate::forward::End;
use crate::forward::side::{Reader, Writer};
use crate::gate::Gate;
use crate::ledger::{Conn, Phase};

/// Bytes that an agent may send ahead while an answer is on its way.
const READ_AHEAD: usize = 64 * 1024;

/// How far the sending of a request has come; kept where a stop finds it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Bytes of the request that are still in the agent's buffer; `None` while more of it are to come, and where the agent's
    /// side ends with the answer.
    pub(super) unsent: Option<usize>,
    /// All of it has left.
    pub(super) sent: bool,
    /// We have told the agent to go on with its body.
    pub(super) continued: bool,
    /// The agent has closed its side, and has asked for nothing more.
    pub(super) agent_ended: bool,
}

/// Whether such bytes begin with a request that has come whole.
fn is_whole_request(bytes: &[u8]) -> bool {
    let Ok(Some(head)) = parse_request(bytes, bytes.len() + 1) else { return false };
    let (mut body, mut at) = (Body::new(head.framing), head.len);
    while at < bytes.len() && !body.is_done() {
        let Ok(step) = body.advance(&bytes[at..]) else { return false };
        at += step.consumed;
    }
    body.is_done()
}

/// A request with this head and another content.
pub(super) fn with_content(head: &[u8], content: &[u8]) -> Vec<u8> {
    [&rewrite_head(head, Framing::Length(content.len() as u64)), content].concat()
}

/// Gives back what was made of a message that has left.
pub(super) fn give_back(reader: &mut Reader) {
    // Nothing is always within the bounds.
    let _ = reader.made(0);
    reader.rest();
}

/// An allowed request on its way out.
pub(super) struct Request {
    /// Bytes at the start of the agent's buffer that may leave at once.
    pub(super) ready: usize,
    /// What leaves in their place, if the request was edited.
    pub(super) replaced: Option<Vec<u8>>,
    /// What is still to come from the agent.
    pub(super) rest: Body,
    pub(super) has_calls: bool,
}

impl Request {
    /// Sends the request, then watches the agent while the answer is on its way. Returns only when the exchange cannot
    /// go on.
    pub(super) async fn send(
        mut self,
        gate: &Gate,
        conn: &Conn,
        agent: &mut Reader,
        server: &mut Writer,
        progress: &mut Progress,
    ) -> End {
        let delivered = self.deliver(agent, server, progress).await;
        match delivered {
            Ok(()) => {}
            // A server that takes no more may have answered already: its answer is read to the end.
            Err(Undelivered::Server) => return std::future::pending().await,
            Err(Undelivered::Agent(end)) => return end,
        }
        progress.sent = true;
        if self.has_calls {
            conn.set_phase(Phase::Sent);
            while !gate.hand_over(conn) {
                // The stop that it meets is on its way here, unless it is released again.
                yield_now().await;
            }
        }
        // What comes now is the next request, or the news that the agent is gone.
        while agent.buffer.len() < READ_AHEAD {
            match agent.fill().await {
                // It has asked ahead, and waits for all of its answers.
                Ok(0) if is_whole_request(&agent.buffer) => break,
                Ok(0) => {
                    progress.agent_ended = true;
                    conn.mark_agent_left();
                    // The server must learn of it: for MCP 2026-07-28 it is the cancel. If it is gone, its answer's end tells.
                    let _ = server.finish().await;
                    break;
                }
                Ok(_) => {}
                // The next one can wait.
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => break,
                Err(error) => return End::agent(error),
            }
        }
        std::future::pending().await
    }

    async fn deliver(
        &mut self,
        agent: &mut Reader,
        server: &mut Writer,
        progress: &mut Progress,
    ) -> Result<(), Undelivered> {
        let ready = self.replaced.as_deref().unwrap_or(&agent.buffer[..self.ready]);
        server.send(ready).await.map_err(|_| Undelivered::Server)?;
        self.replaced = None;
        agent.buffer.advance(self.ready);
        give_back(agent);
        progress.unsent = progress.unsent.map(|_| 0);
        let mut body = self.rest.clone();
        while !body.is_done() {
            let mut at = 0;
            while at < agent.buffer.len() && !body.is_done() {
                let step = body.advance(&agent.buffer[at..]);
                at += step.map_err(|malformed| Undelivered::Agent(End::Malformed(malformed)))?.consumed;
            }
            server.send(&agent.buffer[..at]).await.map_err(|_| Undelivered::Server)?;
            agent.buffer.advance(at);
            if !body.is_done() {
                let read = agent.fill().await.map_err(|error| Undelivered::Agent(End::agent(error)))?;
                if read == 0 {
                    return Err(Undelivered::Agent(End::AgentClosed));
                }
            }
        }
        Ok(())
    }
}

/// Why a request did not leave whole.
enum Undelivered {
    /// The server takes no more of it.
    Server,
    /// The agent sends no more of it.
    Agent(End),
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::timeout;

    use super::*;
    use crate::forward::side::{Keepalive, Side};
    use crate::room::Share;

    const ASKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n[1,2,3]";
    const NEXT: &[u8] = b"GET / HTTP/1.1\r\n";

    async fn pair() -> (Side, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (Side::new(near.unwrap(), Share::default(), Keepalive::default()), far.unwrap().0)
    }

    /// An agent that has sent the request and the beginning of the next one, and its request edited to another content.
    async fn edited(content: &[u8]) -> (Side, TcpStream, Request, Progress) {
        let (mut agent, far) = pair().await;
        agent.reader.buffer.extend_from_slice(ASKED.as_bytes());
        agent.reader.buffer.extend_from_slice(NEXT);
        let head = &ASKED.as_bytes()[..ASKED.len() - "[1,2,3]".len()];
        let request = Request {
            ready: ASKED.len(),
            replaced: Some(with_content(head, content)),
            rest: Body::new(Framing::Empty),
            has_calls: true,
        };
        (agent, far, request, Progress { unsent: Some(ASKED.len()), ..Progress::default() })
    }

    #[test]
    fn requests_that_were_asked_ahead_are_whole_or_not() {
        for whole in [
            ASKED,
            "GET / HTTP/1.1\r\n\r\nGET",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ] {
            assert!(is_whole_request(whole.as_bytes()), "{whole}");
        }
        for part in ["", "GET / HTTP/1.1\r\n", &ASKED[..ASKED.len() - 1], "GET bank.test HTTP/1.1\r\n\r\n"] {
            assert!(!is_whole_request(part.as_bytes()), "{part}");
        }
    }

    #[tokio::test]
    async fn an_edited_request_leaves_in_place_of_the_agents() {
        let (mut agent, _far, mut request, mut progress) = edited(b"[1]").await;
        let (mut server, mut far) = pair().await;
        let delivered = request.deliver(&mut agent.reader, &mut server.writer, &mut progress).await;
        assert!(delivered.is_ok());
        server.writer.finish().await.unwrap();
        let mut seen = String::new();
        far.read_to_string(&mut seen).await.unwrap();
        assert_eq!(seen, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n[1]");
        assert_eq!(agent.reader.buffer, NEXT, "what follows is the next request");
        assert_eq!(progress.unsent, Some(0));
    }

    #[tokio::test]
    async fn an_edited_request_that_is_cut_short_leaves_the_agents_whole() {
        let (mut agent, _far, mut request, mut progress) = edited(&vec![b' '; 64 << 20]).await;
        let (mut server, _deaf) = pair().await;
        let sending = request.deliver(&mut agent.reader, &mut server.writer, &mut progress);
        assert!(timeout(Duration::from_millis(100), sending).await.is_err(), "nobody reads it");
        assert!(server.writer.written() > ASKED.len() as u64);
        assert_eq!(progress.unsent, Some(ASKED.len()), "this much is skipped to come to the next request");
        assert_eq!(&agent.reader.buffer[ASKED.len()..], NEXT);
    }
}
