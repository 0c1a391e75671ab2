//! A server without any SDK: answers exactly the bytes a test wants, and keeps every byte it received.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::http::{self, Message};
use crate::wait::wait_for;
use crate::world::{SERVER_V4, World};

/// How often a quiet thread looks whether the server is to end.
const TICK: Duration = Duration::from_millis(10);

/// A scripted server in the servers' network namespace.
pub struct RawServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

/// One connection: that on which a request came, for the answer, or all of it.
pub struct Reply<'a> {
    stream: &'a mut TcpStream,
    shared: &'a Shared,
}

#[derive(Default)]
struct Shared {
    ending: AtomicBool,
    counted: AtomicUsize,
    forgets: AtomicBool,
    received: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    connections: usize,
    bytes: Vec<u8>,
    requests: Vec<Message>,
}

impl RawServer {
    /// Starts a server that lets `answer` reply to each request.
    pub fn start(
        world: &World,
        answer: impl Fn(&Message, &mut Reply<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::talks(world, move |talk| serve(talk, &answer))
    }

    /// Starts a server that lets `talk` have each connection from its first moment on, whatever it speaks.
    pub fn talks(
        world: &World,
        talk: impl Fn(&mut Reply<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let netns = format!("/run/netns/{}", world.server_netns());
        let shared = Arc::new(Shared::default());
        let (send, bound) = mpsc::channel();
        let accepting = thread::spawn({
            let shared = shared.clone();
            move || {
                // This thread alone moves; a socket stays where it was made.
                let netns = File::open(&netns).expect("open the network namespace");
                setns(netns, CloneFlags::CLONE_NEWNET).expect("enter the network namespace");
                let listener = TcpListener::bind((SERVER_V4, 0)).expect("bind");
                listener.set_nonblocking(true).expect("set nonblocking");
                send.send(listener.local_addr().expect("an address")).expect("the test waits for it");
                accept(&listener, &shared, &Arc::new(talk));
            }
        });
        Self { address: bound.recv().expect("the server starts"), shared, accepting: Some(accepting) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its MCP endpoint.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Every byte it received, of all connections.
    pub fn bytes(&self) -> Vec<u8> {
        self.shared.received().bytes.clone()
    }

    /// Whether a text is among the bytes it received.
    pub fn saw(&self, text: &str) -> bool {
        self.shared.received().bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }

    /// The requests it received.
    pub fn requests(&self) -> Vec<Message> {
        self.shared.received().requests.clone()
    }

    /// Keeps nothing of what it receives from now on.
    pub fn forget(&self) {
        self.shared.forgets.store(true, Ordering::Relaxed);
    }

    /// How many connections it has accepted.
    pub fn connections(&self) -> usize {
        self.shared.received().connections
    }

    /// What its connections have [counted](Reply::count).
    pub fn counted(&self) -> usize {
        self.shared.counted.load(Ordering::Relaxed)
    }

    /// Waits for a request, and answers it.
    pub fn wait(&self, what: &str, is: impl Fn(&Message) -> bool) -> Message {
        wait_for(&format!("{what} at the server"), || self.requests().into_iter().find(|request| is(request)))
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

impl Reply<'_> {
    /// Writes bytes in one write.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Writes bytes in pieces of that size, each a write of its own.
    pub fn write_in(&mut self, piece: usize, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        bytes.chunks(piece).try_for_each(|piece| self.stream.write_all(piece))
    }

    /// Waits for bytes; `None` when the other side has ended, or this server is to.
    pub fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.read_at_most(64 * 1024)
    }

    /// The same, up to so many bytes.
    pub fn read_at_most(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        loop {
            match self.poll(most)? {
                Some(piece) if piece.is_empty() => {}
                read => return Ok(read),
            }
        }
    }

    /// Bytes that have come, up to so many, and soon if none have; `None` when the other side has ended, or this server is to.
    pub fn poll(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        if self.shared.is_ending() {
            return Ok(None);
        }
        let mut piece = vec![0; most];
        match self.stream.read(&mut piece) {
            Ok(0) => Ok(None),
            Ok(length) => {
                piece.truncate(length);
                if !self.shared.forgets.load(Ordering::Relaxed) {
                    self.shared.received().bytes.extend_from_slice(&piece);
                }
                Ok(Some(piece))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Ok(Some(Vec::new()))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads on until `text` has come.
    pub fn read_to(&mut self, text: &str) -> io::Result<()> {
        let mut bytes = Vec::new();
        while !bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
            bytes.extend(self.read()?.ok_or(io::ErrorKind::UnexpectedEof)?);
        }
        Ok(())
    }

    /// Adds to what the test can ask for.
    pub fn count(&self, bytes: usize) {
        self.shared.counted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Ends the connection with a reset.
    pub fn reset(&mut self) -> io::Result<()> {
        SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO))?;
        Err(io::ErrorKind::ConnectionAborted.into()) // and so it is closed
    }

    /// Answers a request with a JSON-RPC result.
    pub fn result(&mut self, request: &Message, result: &Value) -> io::Result<()> {
        let body = json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": result}).to_string();
        self.write(&http::response("application/json", &[], body.as_bytes()))
    }

    /// Holds the answer back until `ready`; an error when the server ends first.
    pub fn hold(&self, mut ready: impl FnMut() -> bool) -> io::Result<()> {
        while !ready() {
            if self.shared.is_ending() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Holds the answer back until another request has come that satisfies `is`, and answers that one.
    pub fn hold_for(&self, is: impl Fn(&Message) -> bool) -> io::Result<Message> {
        let mut found = None;
        self.hold(|| {
            found = self.shared.received().requests.iter().find(|request| is(request)).cloned();
            found.is_some()
        })?;
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Shared {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a legacy server says to `initialize` and to notifications; `false` when the request is something else.
pub fn handshake(request: &Message, reply: &mut Reply<'_>) -> io::Result<bool> {
    let body = request.json();
    match body["method"].as_str() {
        Some("initialize") => {
            let result = json!({
                "protocolVersion": body["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "scripted", "version": "1"},
            });
            let body = json!({"jsonrpc": "2.0", "id": body["id"], "result": result}).to_string();
            let session = [("mcp-session-id", "session-1")];
            reply.write(&http::response("application/json", &session, body.as_bytes()))?;
        }
        Some(method) if method.starts_with("notifications/") => {
            reply.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n")?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn accept<T>(listener: &TcpListener, shared: &Arc<Shared>, talk: &Arc<T>)
where
    T: Fn(&mut Reply<'_>) -> io::Result<()> + Send + Sync + 'static,
{
    let mut talking = Vec::new();
    while !shared.is_ending() {
        let Ok((mut stream, _)) = listener.accept() else {
            thread::sleep(TICK);
            continue;
        };
        shared.received().connections += 1;
        let (shared, talk) = (shared.clone(), talk.clone());
        talking.push(thread::spawn(move || {
            // A quiet socket wakes up to see whether the server is to end; accepted ones must not inherit nonblocking.
            if stream.set_nonblocking(false).is_ok() && stream.set_read_timeout(Some(TICK)).is_ok() {
                // The other side may have gone, which is what some tests are about.
                let _ = talk(&mut Reply { stream: &mut stream, shared: &shared });
            }
        }));
    }
    for connection in talking {
        let _ = connection.join();
    }
}

/// HTTP: one request after the other.
fn serve(
    reply: &mut Reply<'_>,
    answer: &impl Fn(&Message, &mut Reply<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Some(piece) = reply.read()? {
        bytes.extend(piece);
        while let Some(request) = Message::take(&mut bytes, false) {
            if !reply.shared.forgets.load(Ordering::Relaxed) {
                reply.shared.received().requests.push(request.clone());
            }
            answer(&request, reply)?;
        }
    }
    Ok(())
}
