//! One agent connection, from accept to record. Read this first; then `exchange`, which every HTTP request takes, `lines`, for
//! messages without HTTP, and `stop`, which ends what a stop runs into.

mod exchange;
mod inside;
pub mod intrusion;
mod lines;
mod park;
mod sending;
mod stop;

use std::sync::Arc;
use std::time::Instant;

use agent_abi::Origin;
use tokio::net::TcpStream;

use crate::approvals::Parked;
use crate::channels::Channel;
use crate::decode::{Hello, Named, Sniff, sniff};
use crate::forward::End;
use crate::forward::answer::Begun;
use crate::forward::channel::Open;
use crate::forward::connect::Tunnel;
use crate::forward::dial::dial;
use crate::forward::own::Source;
use crate::forward::reframe::Stream;
use crate::forward::side::{Reader, Side};
use crate::forward::tunnel::tunnel;
use crate::identity::{Agent, Identity};
use crate::judge::{Target, is_refused, judge_opaque, names};
use crate::kernel::netns::Netns;
use crate::ledger::{Conn, Phase, Scene};
use crate::parts::Parts;
use crate::record::entry::{self, Entry};
use crate::record::metrics::Class;
use crate::room::Share;

use self::sending::Progress;

/// Carries one connection of an agent until it ends, and records it.
pub async fn run(stream: TcpStream, agent: Arc<Agent>, origin: Origin, netns: Arc<Netns>, parts: Arc<Parts>) {
    let identity = Identity::resolve(agent, &origin, &parts.workflow).await;
    let destination = entry::address(origin.addr, origin.port);
    let scene = Scene::of_connection(destination, identity.workflow.value());
    let mut listed = parts.ledger.open(identity, destination, scene.clone());
    let mut conn = Arc::clone(listed.conn());
    if destination.ip().is_loopback() && !netns.is_home() {
        conn.mark_apart();
    }
    let mut connection = Connection::new(stream, netns, Arc::clone(&parts), Arc::clone(&conn), scene);
    let end = loop {
        let end = tokio::select! {
            biased;
            stop = parts.gate.stopped(&parts.ledger, &conn) => connection.stop(&stop).await,
            end = connection.serve() => Some(end),
        };
        match end {
            // Listed before the one up to here is off the ledger: a stop finds one of them.
            Some(End::Tunnel(tunnel)) => listed = connection.enter(tunnel),
            Some(End::Lines) => break connection.lines().await,
            Some(end) => break end,
            None => {}
        }
        conn = Arc::clone(listed.conn());
    };
    // Off the ledger first: a stop need not wait for an agent that is slow to take its leave.
    drop(listed);
    connection.close(end).await;
}

struct Connection {
    parts: Arc<Parts>,
    conn: Arc<Conn>,
    netns: Arc<Netns>,
    agent: Side,
    /// Dialed at the start, or before the first message that may go there.
    server: Option<Side>,
    /// Tells that the server's connection is an agent's, should it lead to ourselves.
    source: Option<Source>,
    /// What is known of the connection whatever it says.
    scene: Scene,
    target: Target,
    /// How far the answer in progress has begun.
    begun: Begun,
    /// What it holds, if it is a stream of events.
    stream: Stream,
    /// The calls in flight came as a batch.
    batch: bool,
    /// Head of the request in progress; a stop may have to repeat its headers.
    request: Vec<u8>,
    progress: Progress,
    /// The stream in progress is one in which calls of other connections are answered.
    channel: Option<Open>,
    /// The request in progress is answered in such a stream.
    posting: Option<Arc<Channel>>,
    /// The request in progress waits for a person.
    parked: Option<Parked>,
    class: Option<Class>,
    /// The server that a TLS client has named.
    tls_name: Option<String>,
    /// The server has spoken first, and has not ended its line.
    within_line: bool,
    /// Bytes sent to servers that this connection has done with.
    to_server: u64,
    opened: Instant,
    end: Option<End>,
}

impl Connection {
    fn new(
        stream: TcpStream,
        netns: Arc<Netns>,
        parts: Arc<Parts>,
        conn: Arc<Conn>,
        scene: Scene,
    ) -> Connection {
        Connection {
            agent: Side::new(stream, share(&parts, &conn), parts.keepalive),
            parts,
            conn,
            netns,
            server: None,
            source: None,
            scene,
            target: Target::default(),
            begun: Begun::Nothing,
            stream: Stream::default(),
            batch: false,
            request: Vec::new(),
            progress: Progress::default(),
            channel: None,
            posting: None,
            parked: None,
            class: None,
            tls_name: None,
            within_line: false,
            to_server: 0,
            opened: Instant::now(),
            end: None,
        }
    }

    /// Everything that happens on the connection, unless a stop comes first; and what happens after one that has
    /// left the agent's side in order.
    async fn serve(&mut self) -> End {
        let result = async {
            if matches!(self.class, Some(Class::Http | Class::Mcp | Class::A2a)) {
                return self.http().await;
            }
            // Who is refused gets the answer from us alone.
            if !is_refused(&self.parts, &self.conn, &self.scene) {
                self.dial().await?;
            }
            match self.first_bytes().await? {
                Sniff::Http1 => self.http().await,
                Sniff::Tls => {
                    self.hello().await?;
                    self.opaque(Class::Tls).await
                }
                Sniff::Lines => Ok(End::Lines),
                Sniff::Http2Preface | Sniff::Opaque | Sniff::NeedMore => self.opaque(Class::Opaque).await,
            }
        };
        result.await.unwrap_or_else(|end| end)
    }

    async fn dial(&mut self) -> Result<(), End> {
        if self.server.is_none() {
            // The one before may have had the same address.
            self.source = None;
            let (server, source) = reach(&self.parts, &self.netns, &self.conn).await?;
            (self.server, self.source) = (Some(server), source);
        }
        Ok(())
    }

    /// Waits until the agent's bytes tell what it speaks. A server that speaks first is not HTTP, but may speak JSON.
    async fn first_bytes(&mut self) -> Result<Sniff, End> {
        loop {
            match sniff(&self.agent.reader.buffer) {
                Sniff::NeedMore => {}
                known => return Ok(known),
            }
            match between(&mut self.agent.reader, self.server.as_mut()).await? {
                Spoke::Agent => {}
                Spoke::Server => {
                    let said = self.server.as_ref().and_then(|server| server.reader.buffer.first());
                    return Ok(if matches!(said, Some(b'{' | b'[')) { Sniff::Lines } else { Sniff::Opaque });
                }
            }
        }
    }

    /// Waits until a TLS client has named its server, within the bound for a head. From then on rules and stops know it by
    /// that name as well: the agent's claim, as `Host` is. A server that speaks first does not wait for a hello.
    async fn hello(&mut self) -> Result<(), End> {
        let mut hello = Hello::default();
        self.tls_name = loop {
            let buffer = &self.agent.reader.buffer;
            match hello.read(buffer) {
                Named::Server(name) => break name,
                Named::NeedMore if buffer.len() > self.parts.limits.header => break None,
                Named::NeedMore => {}
            }
            if let Spoke::Server = between(&mut self.agent.reader, self.server.as_mut()).await? {
                break None;
            }
        };
        if let Some(name) = &self.tls_name {
            let tunnel = self.conn.tunnel();
            let port = tunnel.map_or(self.conn.destination.port(), Tunnel::port);
            let servers = names(&self.conn, tunnel, &format!("{name}:{port}"));
            self.scene =
                Scene { server: servers[0].as_str().into(), servers: servers.into(), ..self.scene.clone() };
        }
        Ok(())
    }

    /// Copies what cannot be read, where that is allowed.
    async fn opaque(&mut self, class: Class) -> Result<End, End> {
        self.classify(class);
        // Listed before the stop is looked for, as with calls.
        self.conn.open(self.scene.clone());
        if judge_opaque(&self.parts, &self.conn, class.label()).await.is_some() {
            self.classify(Class::Refused);
            return Err(End::Refused);
        }
        self.dial().await?;
        let is_greeted = class == Class::Opaque && self.agent.reader.buffer.is_empty();
        if is_greeted && self.greeting().await == Sniff::Lines {
            return Ok(End::Lines);
        }
        self.tunnel().await
    }

    /// Hands on what a server says before its agent has said anything, and tells what that then begins with.
    async fn greeting(&mut self) -> Sniff {
        self.begun = Begun::Partial;
        loop {
            let Some(server) = &mut self.server else { return Sniff::Opaque };
            if !server.reader.buffer.is_empty() {
                self.within_line = !server.reader.buffer.ends_with(b"\n");
                // Where this fails, copying does.
                if self.agent.writer.send(&server.reader.buffer).await.is_err() {
                    return Sniff::Opaque;
                }
                server.reader.buffer.clear();
            }
            match sniff(&self.agent.reader.buffer) {
                Sniff::NeedMore => {}
                known => return known,
            }
            if between(&mut self.agent.reader, self.server.as_mut()).await.is_err() {
                return Sniff::Opaque;
            }
        }
    }

    async fn tunnel(&mut self) -> Result<End, End> {
        self.conn.set_phase(Phase::Open);
        self.begun = Begun::Partial;
        match self.server.as_mut() {
            Some(server) => Ok(tunnel(&mut self.agent, server).await),
            None => Err(End::ServerClosed),
        }
    }

    fn classify(&mut self, class: Class) {
        self.parts.metrics.classify(&mut self.class, class);
    }

    /// Ends the connection as its cause asks: orderly after an answer, with a reset where an orderly end would be a lie.
    /// Dropping it makes the record.
    async fn close(mut self, end: End) {
        let speaks_http = matches!(self.class, Some(Class::Http | Class::Mcp | Class::A2a));
        match &end {
            End::Unreachable(_) | End::Network(_) => self.agent.reset_on_close(),
            End::Refused | End::Malformed(_) | End::Full(_)
                if !speaks_http || self.begun == Begun::Partial =>
            {
                self.agent.reset_on_close();
            }
            End::Refused | End::Malformed(_) | End::Full(_) => self.agent.linger().await,
            End::AgentClosed
            | End::ServerClosed
            | End::Stopped
            | End::Drain
            | End::Tunnel(_)
            | End::Lines => {}
        }
        self.end = Some(end);
    }
}

impl Drop for Connection {
    /// Exactly one record and one count per connection, however it ends.
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or(End::Drain);
        self.record(&end);
    }
}

impl Connection {
    fn record(&mut self, end: &End) {
        if let Some(parked) = self.parked.take() {
            parked.withdraw(end.label(), None);
        }
        let agent = &self.conn.identity.agent;
        let to_server = std::mem::take(&mut self.to_server)
            + self.server.as_ref().map_or(0, |server| server.writer.take_written());
        let to_agent = self.agent.writer.take_written();
        agent.metrics.bytes_to_server.inc_by(to_server);
        agent.metrics.bytes_to_agent.inc_by(to_agent);
        let class = match self.class {
            Some(class) => {
                self.parts.metrics.connection_closed(&agent.name, class);
                class
            }
            // Nothing was said that could be classified, or nobody was there to say it to.
            None => {
                self.parts.metrics.connection_refused(&agent.name);
                Class::Refused
            }
        };
        // The side that went first is the cause, whatever the other one then did.
        let left = self.conn.has_agent_left().then_some("agent_closed");
        for call in self.conn.end() {
            self.parts.log.record(&Entry::Result(entry::CallResult {
                conn: self.conn.id,
                agent: &agent.name,
                call: &call,
                outcome: "none",
                cause: call.cause(left.or(Some(end.label()))),
                status: None,
                bytes: 0,
                took_us: 0,
            }));
        }
        self.parts.log.record(&Entry::Connection(entry::Connection {
            conn: self.conn.id,
            who: (&self.conn.identity).into(),
            destination: self.conn.destination,
            class: class.label(),
            tunnel: self.conn.tunnel().map(Tunnel::server),
            tls_name: self.tls_name.as_deref(),
            cause: end.label(),
            error: end.detail(),
            bytes_to_server: to_server,
            bytes_to_agent: to_agent,
            lasted_ms: u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX),
        }));
    }
}

/// Makes the connection to the server.
async fn reach(parts: &Arc<Parts>, netns: &Netns, conn: &Arc<Conn>) -> Result<(Side, Option<Source>), End> {
    intrusion::refuse(parts, netns, conn).await?;
    let stream = dial(netns, conn.destination).await.map_err(End::Unreachable)?;
    let source = parts.own_endpoint.remember(netns, &stream, conn);
    let mut server = Side::new(stream, share(parts, conn), parts.keepalive);
    if let Some(tunnel) = conn.tunnel() {
        tunnel.dig(&mut server, parts.limits.header).await.map_err(End::Unreachable)?;
    }
    Ok((server, source))
}

/// What a side of a connection holds.
fn share(parts: &Parts, conn: &Conn) -> Share {
    // Nothing always fits.
    parts.memory.take(&conn.identity.agent.memory, 0).map(Share::new).unwrap_or_default()
}

enum Spoke {
    Agent,
    Server,
}

/// Waits for bytes of either side between messages. A closed side ends the wait.
async fn between(agent: &mut Reader, server: Option<&mut Side>) -> Result<Spoke, End> {
    let Some(server) = server else {
        return match agent.fill().await.map_err(End::agent)? {
            0 => Err(End::AgentClosed),
            _ => Ok(Spoke::Agent),
        };
    };
    tokio::select! {
        biased;
        read = agent.fill() => match read.map_err(End::agent)? {
            0 => Err(End::AgentClosed),
            _ => Ok(Spoke::Agent),
        },
        read = server.reader.fill() => match read.map_err(End::server)? {
            0 => Err(End::ServerClosed),
            _ => Ok(Spoke::Server),
        },
    }
}
