//! Where a request of a connection goes, what it is part of, and which rules and stops can concern it. Computed again
//! only when the rules, the server's name or the session change.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Carrier;
use crate::decide::{Reach, Rules};
use crate::decode::mcp;
use crate::forward::connect::Tunnel;
use crate::ledger::{Conn, Scene, addresses};
use crate::session::Session;
use crate::user::{LastPrincipal, LastToken};

/// The server as the agent names it, and what can concern a message to it.
#[derive(Debug, Default)]
pub struct Target {
    generation: u64,
    host: Vec<u8>,
    server: Arc<str>,
    servers: Arc<[String]>,
    pub(super) reach: Reach,
    /// The session id that was seen last, and its digest.
    session: Option<(Vec<u8>, Session)>,
    /// Stands for the session of messages that name none.
    process: Option<Session>,
    /// The bearer token that was seen last, and whom it speaks for.
    pub(super) token: LastToken,
    principal: LastPrincipal,
    path: Arc<str>,
}

impl Target {
    pub(super) fn update(&mut self, rules: &Rules, conn: &Conn, host: &[u8]) {
        if self.generation == rules.generation && self.host == host {
            return;
        }
        if self.generation == 0 || self.host != host {
            self.name(conn, host);
        }
        self.reach =
            conn.identity.agent.as_whom(|agent| rules.reach(agent, conn.identity.namespace(), &self.servers));
        self.generation = rules.generation;
    }

    /// Goes by these rules from now on, at the server that was asked last, or where the connection leads.
    pub fn follow(&mut self, rules: &Rules, conn: &Conn) {
        if self.generation == 0 {
            self.name(conn, b"");
        }
        if self.generation != rules.generation {
            self.reach = conn
                .identity
                .agent
                .as_whom(|agent| rules.reach(agent, conn.identity.namespace(), &self.servers));
            self.generation = rules.generation;
        }
    }

    /// What can concern what goes to that server, or comes from it.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    fn name(&mut self, conn: &Conn, host: &[u8]) {
        let servers = names(conn, conn.tunnel(), &String::from_utf8_lossy(host));
        self.server = servers[0].as_str().into();
        self.servers = servers.into();
        host.clone_into(&mut self.host);
        self.process = None;
    }

    /// What a message that is carried so is part of. `is_mcp`: it is also of the session of its process with this server, and
    /// of that alone where it names none. `is_modern`: its revision has no session ids (2026-07-28), and servers do not look
    /// for one.
    pub(super) fn scene(
        &mut self,
        conn: &Conn,
        carrier: &Carrier<'_>,
        (is_mcp, is_modern): (bool, bool),
        workflow: Option<Arc<str>>,
    ) -> Scene {
        let process = if is_mcp { self.session_of_process(conn) } else { None };
        let id = carrier.session_id().filter(|id| !id.is_empty());
        let named = id.and_then(|id| self.digest(id));
        let (session, other_session) =
            if is_modern { (process, named) } else { (named.or(process), process) };
        let (server, servers) = (Arc::clone(&self.server), Arc::clone(&self.servers));
        let path = carrier.path();
        if self.path.as_bytes() != path {
            self.path = String::from_utf8_lossy(path).into();
        }
        let path = Arc::clone(&self.path);
        let principal = self.principal.of_request(carrier.headers(), &conn.identity.agent.name);
        let revision = mcp::claimed_revision(&carrier.claims()).map(mcp::Revision::as_str);
        Scene { server, path, servers, session, other_session, workflow, revision, principal }
    }

    /// What its process does at the server that was asked last, outside of any session with an id.
    pub fn session_of_process(&mut self, conn: &Conn) -> Option<Session> {
        if self.process.is_none() {
            let of_process = |process| Session::of_process(process, &self.server);
            self.process = conn.identity.process.as_ref().map(of_process);
        }
        self.process
    }

    fn digest(&mut self, id: &[u8]) -> Option<Session> {
        if self.session.as_ref().is_none_or(|(known, _)| known != id) {
            self.session = Session::of_id(id).map(|digest| (id.to_owned(), digest));
        }
        self.session.as_ref().map(|(_, digest)| *digest)
    }
}

/// Every name of a server, which rules and stops know it by: as it is named, if it is, and where the connection goes, with
/// the port and without. The first is what records say.
pub fn server_names(named: &str, destination: Option<SocketAddr>) -> Vec<String> {
    // Names are compared as servers compare them: without case and without the dot of the DNS root.
    let named = named.to_ascii_lowercase();
    let port = named.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let (name, port) = port.map_or((&*named, None), |(name, port)| (name, Some(port)));
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut names = match port {
        _ if name.is_empty() => Vec::new(),
        Some(port) => vec![format!("{name}:{port}"), name.to_owned()],
        None => vec![name.to_owned()],
    };
    names.extend(destination.into_iter().flat_map(addresses));
    names
}

/// Every name of the server that a connection leads to through a tunnel, if there is one: as it is named, as the proxy was
/// told to find it, and the address of the proxy.
pub fn names(conn: &Conn, tunnel: Option<&Tunnel>, named: &str) -> Vec<String> {
    let Some(tunnel) = tunnel else { return server_names(named, Some(conn.destination)) };
    let mut names = server_names(named, None);
    for name in server_names(tunnel.server(), tunnel.address()).into_iter().chain(addresses(conn.destination))
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
