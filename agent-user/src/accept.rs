//! The listeners: one pair, on 127.0.0.1 and `::1`, in every network namespace in which an agent is. The kernel
//! sends agents there, and refuses and reports those whose namespace has none yet.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agent_abi::{Listener, Origin};
use anyhow::{Context, Result};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::conn;
use crate::identity::Agent;
use crate::kernel::netns::{Identity, Netns};
use crate::kernel::syn;
use crate::parts::Parts;
use crate::record::entry::{self, Entry};
use crate::record::metrics::Class;
use crate::room::{Full, Room};

/// Connections that wait for their turn.
const BACKLOG: i32 = 4096;
/// How long a namespace may be without an agent before its listeners go; they keep it alive.
const UNUSED: Duration = Duration::from_secs(60);
/// Pause after a failed accept: the usual cause is a limit that needs time to clear.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

/// All listeners.
#[derive(Debug)]
pub struct Listeners {
    parts: Arc<Parts>,
    connections: Arc<Room>,
    runtime: Handle,
    by_netns: Mutex<HashMap<Identity, Listening>>,
}

#[derive(Debug)]
struct Listening {
    cookie: u64,
    used: Instant,
    tasks: Vec<JoinHandle<()>>,
}

impl Listeners {
    /// No listeners yet; theirs will accept as many connections at a time as there is room for, on `runtime`.
    pub fn new(parts: Arc<Parts>, connections: Room, runtime: Handle) -> Listeners {
        let connections = Arc::new(connections);
        Listeners { parts, connections, runtime, by_netns: Mutex::default() }
    }

    fn by_netns(&self) -> MutexGuard<'_, HashMap<Identity, Listening>> {
        self.by_netns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that agents in a namespace are listened to. Returns its cookie.
    pub fn ensure(&self, netns: Netns) -> Result<u64> {
        let mut listening = self.by_netns();
        if let Some(known) = listening.get_mut(&netns.identity()) {
            known.used = Instant::now();
            return Ok(known.cookie);
        }
        let identity = netns.identity();
        let cookie = netns.cookie().context("read the cookie of a network namespace")?;
        let netns = Arc::new(netns);
        let v4 = self.listen(&netns, Ipv4Addr::LOCALHOST.into());
        // A namespace may have no IPv6 on its loopback; agents are then refused over IPv6.
        let v6 = self.listen(&netns, Ipv6Addr::LOCALHOST.into());
        let port = |listener: &io::Result<TcpListener>| {
            listener
                .as_ref()
                .ok()
                .and_then(|listener| listener.local_addr().ok())
                .map_or(0, |addr| addr.port().into())
        };
        let ports = Listener { port4: port(&v4), port6: port(&v6) };
        if let (Err(error), Err(_)) = (&v4, &v6) {
            anyhow::bail!("listen in network namespace {cookie}: {error} (is its loopback interface up?)");
        }
        let tasks = [v4, v6]
            .into_iter()
            .flatten()
            .map(|listener| self.accept(listener, Arc::clone(&netns)))
            .collect();
        self.parts.kernel.set_listener(cookie, ports)?;
        info!(netns = cookie, port4 = ports.port4, port6 = ports.port6, "listening");
        listening.insert(identity, Listening { cookie, used: Instant::now(), tasks });
        Ok(cookie)
    }

    /// Cookies of the namespaces listened in.
    pub fn cookies(&self) -> Vec<u64> {
        self.by_netns().values().map(|listening| listening.cookie).collect()
    }

    /// Stops listening where no agent was for a while.
    pub fn retire_unused(&self) {
        self.by_netns().retain(|_, listening| {
            if listening.used.elapsed() < UNUSED {
                return true;
            }
            info!(netns = listening.cookie, "no agent here any more");
            self.retire(listening);
            false
        });
    }

    /// Stops listening everywhere; connects of agents are refused from now on.
    pub fn close(&self) {
        for (_, listening) in self.by_netns().drain() {
            self.retire(&listening);
        }
    }

    fn retire(&self, listening: &Listening) {
        if let Err(error) = self.parts.kernel.remove_listener(listening.cookie) {
            warn!(netns = listening.cookie, error = format!("{error:#}"), "stale listener in the kernel");
        }
        for task in &listening.tasks {
            task.abort();
        }
    }

    fn listen(&self, netns: &Netns, ip: IpAddr) -> io::Result<TcpListener> {
        let socket = netns.within(|| {
            let domain = if ip.is_ipv4() { socket2::Domain::IPV4 } else { socket2::Domain::IPV6 };
            // Never SO_REUSEPORT: another process of the namespace could then take a share of the connections.
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
            socket.set_nonblocking(true)?;
            socket.bind(&SocketAddr::new(ip, 0).into())?;
            syn::keep(socket.as_fd())?;
            socket.listen(BACKLOG)?;
            Ok::<_, io::Error>(socket)
        })??;
        let _runtime = self.runtime.enter();
        TcpListener::from_std(socket.into())
    }

    fn accept(&self, listener: TcpListener, netns: Arc<Netns>) -> JoinHandle<()> {
        let (parts, connections) = (Arc::clone(&self.parts), Arc::clone(&self.connections));
        self.runtime.spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => take(stream, &netns, &parts, &connections),
                    Err(error) => {
                        warn!(%error, "accept");
                        tokio::time::sleep(AFTER_FAILURE).await;
                    }
                }
            }
        })
    }
}

/// Starts the path of one accepted connection.
fn take(stream: TcpStream, netns: &Arc<Netns>, parts: &Arc<Parts>, connections: &Arc<Room>) {
    // Without an origin the connection did not come through the kernel side, or on a socket that an agent was given from
    // outside: where it wants to go is not known, so it goes nowhere.
    let Some(origin) = parts.kernel.take_origin(stream.as_fd()) else {
        parts.metrics.connection_refused("");
        return;
    };
    let Some(agent) = parts.agents.by_number(origin.agent) else {
        warn!(agent = origin.agent, pid = origin.tgid, "a connection of nobody we know was closed");
        return;
    };
    let taken = match connections.take(&agent.connections, 1) {
        Ok(taken) => taken,
        Err(full) => return refuse(&stream, &agent, &origin, parts, full),
    };
    let (netns, parts) = (Arc::clone(netns), Arc::clone(parts));
    tokio::spawn(async move {
        conn::run(stream, agent, origin, netns, parts).await;
        drop(taken);
    });
}

/// Closes a connection for which there is no room. Nothing of it is read, and those that are open go on.
fn refuse(stream: &TcpStream, agent: &Agent, origin: &Origin, parts: &Parts, full: Full) {
    // A reset, which no client takes for an answer. Fails only on a socket that is already gone.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
    parts.metrics.connection_refused(&agent.name);
    parts.log.record(&Entry::Connection(entry::Connection {
        conn: parts.ledger.next_id(),
        who: entry::Who { agent: &agent.name, pid: origin.tgid, uid: origin.uid, exe: None, pod: None },
        destination: entry::address(origin.addr, origin.port),
        tunnel: None,
        class: Class::Refused.label(),
        tls_name: None,
        cause: full.label(),
        error: Some(full.to_string()),
        bytes_to_server: 0,
        bytes_to_agent: 0,
        lasted_ms: 0,
    }));
}
