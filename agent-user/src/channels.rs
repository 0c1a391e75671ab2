//! The streams of HTTP+SSE (MCP 2024-11-05, transports) that an agent has open: on each of them a server answers what is
//! POSTed to the URI that it has named in its `endpoint` event, on whatever connection. A connection of lines is one as well, for
//! the lines that its agent sends in it; nobody has to find that.
//!
//! Each agent has a table of its own, so that none gets at another one's stream. It has one entry for each open stream
//! at most, and is not locked for agents without any. What was not seen to belong to a stream is answered as over any other
//! transport.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use url::Url;

use crate::decode::{Method, RequestHead, Revision};
use crate::fingerprint::Digest;
use crate::forward::refuse;
use crate::kernel::netns::{self, Netns};
use crate::ledger::Conn;

/// Messages of ours that wait to be sent in one stream; who has one more waits, too.
const WAITING: usize = 16;
/// Longest URI that is believed.
const MAX_URI: usize = 4096;

/// The streams of one agent.
#[derive(Debug, Default)]
pub struct Channels {
    open: AtomicUsize,
    known: Mutex<HashMap<Endpoint, Arc<Channel>>>,
}

/// Where messages to a server are POSTed. Its URI holds the id of a session, which is a secret: only a digest is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Endpoint {
    netns: netns::Identity,
    server: SocketAddr,
    uri: Digest,
}

/// A stream, for those who POST.
#[derive(Debug)]
pub struct Channel {
    /// Its connection, on which the calls are listed.
    pub conn: Arc<Conn>,
    pub netns: Arc<Netns>,
    /// Path of its own URL, if it has one: what its server lists is known by that.
    pub path: Arc<str>,
    /// The head of a POST to its endpoint, with the headers that its client is known by; lines have none.
    pub request: Vec<u8>,
    /// What client and server have agreed on, once they have.
    revision: Mutex<Option<Revision>>,
    says: mpsc::Sender<Vec<u8>>,
    /// How often its agent was told of progress by us.
    told: AtomicU32,
}

/// Keeps a stream listed, and has what others say in it.
#[derive(Debug)]
pub struct Listed {
    endpoint: Endpoint,
    pub channel: Arc<Channel>,
    pub said: mpsc::Receiver<Vec<u8>>,
}

impl Channels {
    fn known(&self) -> MutexGuard<'_, HashMap<Endpoint, Arc<Channel>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream in which a request of this connection is answered.
    pub fn of(&self, conn: &Conn, netns: &Netns, head: &RequestHead, bytes: &[u8]) -> Option<Arc<Channel>> {
        if self.open.load(Ordering::Acquire) == 0 || head.method != Method::Post {
            return None;
        }
        let uri = digest(&url(conn, head, bytes)?);
        let endpoint = Endpoint { netns: netns.identity(), server: conn.destination, uri };
        self.known().get(&endpoint).cloned()
    }

    /// Lists the stream of a connection whose server has named `uri` in it, in answer to the request with this head.
    /// `None`: that is no URI of the same server, which clients must not believe (nor do those of the SDKs).
    pub fn list(
        &self,
        conn: &Arc<Conn>,
        netns: &Arc<Netns>,
        (head, bytes): (&RequestHead, &[u8]),
        uri: &[u8],
    ) -> Option<Listed> {
        let own = url(conn, head, bytes)?;
        let uri = std::str::from_utf8(uri).ok().filter(|uri| uri.len() <= MAX_URI)?;
        let named = own.join(uri).ok().filter(|named| named.origin() == own.origin())?;
        let endpoint = Endpoint { netns: netns.identity(), server: conn.destination, uri: digest(&named) };
        let (says, said) = mpsc::channel(WAITING);
        let channel = Arc::new(Channel {
            conn: Arc::clone(conn),
            netns: Arc::clone(netns),
            path: conn.scene().path,
            request: post(head, bytes, &named)?,
            revision: Mutex::default(),
            says,
            told: AtomicU32::new(1),
        });
        // Of two streams with one endpoint clients read the one that was opened last.
        if self.known().insert(endpoint, Arc::clone(&channel)).is_none() {
            self.open.fetch_add(1, Ordering::Release);
        }
        Some(Listed { endpoint, channel, said })
    }
}

impl Listed {
    /// Nothing that is POSTed from now on is answered in it.
    pub fn forget(&self) {
        let channels = &self.channel.conn.identity.agent.channels;
        let mut known = channels.known();
        if known.get(&self.endpoint).is_some_and(|listed| Arc::ptr_eq(listed, &self.channel)) {
            known.remove(&self.endpoint);
            channels.open.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Channel {
    /// That of a connection of lines, and what others say in it.
    pub fn of_lines(conn: &Arc<Conn>, netns: &Arc<Netns>) -> (Arc<Channel>, mpsc::Receiver<Vec<u8>>) {
        let (says, said) = mpsc::channel(WAITING);
        let channel = Channel {
            conn: Arc::clone(conn),
            netns: Arc::clone(netns),
            path: Arc::default(),
            request: Vec::new(),
            revision: Mutex::default(),
            says,
            told: AtomicU32::new(1),
        };
        (Arc::new(channel), said)
    }

    /// Says these JSON texts in the stream, after what its agent is being sent. False: it has ended.
    pub async fn say(&self, texts: &[String]) -> bool {
        self.says.send(self.framed(texts)).await.is_ok()
    }

    /// As [`Channel::say`], without waiting for an agent that does not read.
    pub fn say_later(&self, texts: &[String]) -> bool {
        match self.says.try_send(self.framed(texts)) {
            Ok(()) => true,
            Err(TrySendError::Closed(_)) => false,
            Err(TrySendError::Full(framed)) => {
                let says = self.says.clone();
                tokio::spawn(async move { says.send(framed).await });
                true
            }
        }
    }

    /// As they are said in it.
    pub fn framed(&self, texts: &[String]) -> Vec<u8> {
        if self.conn.lines().is_some() {
            return texts.iter().flat_map(|text| [text.as_bytes(), b"\n"].concat()).collect();
        }
        texts.iter().flat_map(|text| refuse::event(text.as_bytes())).collect()
    }

    /// A number for the agent to see that a call is not forgotten; it only grows.
    pub fn next_progress(&self) -> u32 {
        self.told.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until nothing more is read of its server.
    pub async fn ended(&self) {
        self.says.closed().await;
    }

    /// The revision of what is POSTed: the oldest one until a handshake has passed.
    pub fn revision(&self) -> Revision {
        self.agreed().unwrap_or(Revision::V2024_11_05)
    }

    pub fn agree(&self, revision: Revision) {
        *self.agreed() = Some(revision);
    }

    fn agreed(&self) -> MutexGuard<'_, Option<Revision>> {
        self.revision.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The URL of a request, as its client has it.
fn url(conn: &Conn, head: &RequestHead, bytes: &[u8]) -> Option<Url> {
    let target = std::str::from_utf8(head.target.of(bytes)).ok().filter(|target| target.len() <= MAX_URI)?;
    if !target.starts_with('/') {
        return Url::parse(target).ok().filter(|url| url.scheme() == "http");
    }
    let host = head.host.map_or(&b""[..], |host| host.of(bytes));
    match std::str::from_utf8(host).ok()? {
        "" => Url::parse(&format!("http://{}{target}", conn.destination)).ok(),
        host => Url::parse(&format!("http://{host}{target}")).ok(),
    }
}

/// Tells the endpoints of a server apart, whatever the order of their parameters.
fn digest(url: &Url) -> Digest {
    let mut parameters: Vec<&str> = url.query().unwrap_or_default().split('&').collect();
    parameters.sort_unstable();
    let origin = url.origin().ascii_serialization();
    Digest::of([&*origin, url.path(), "?", &parameters.join("&")].concat().as_bytes())
}

/// The head of a POST with the headers of another request.
fn post(head: &RequestHead, bytes: &[u8], to: &Url) -> Option<Vec<u8>> {
    let headers = bytes.get(memchr::memchr(b'\n', bytes)? + 1..head.len)?;
    let query = to.query().map(|query| format!("?{query}")).unwrap_or_default();
    Some([format!("POST {}{query} HTTP/1.1\r\n", to.path()).as_bytes(), headers].concat())
}
