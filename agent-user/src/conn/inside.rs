//! What goes through the tunnel that a proxy gives an agent: a connection of its own, to the server that the agent has
//! named, with what it says judged from its first byte on.

use std::sync::Arc;
use std::time::Instant;

use crate::decide::Guard;
use crate::decode::{Method, RequestHead};
use crate::forward::End;
use crate::forward::answer::Begun;
use crate::forward::connect::Tunnel;
use crate::forward::reframe::Stream;
use crate::judge::{Target, names};
use crate::ledger::{Entry, Scene};

use super::{Connection, Progress};

impl Connection {
    /// The tunnel that the request in progress has asked for, now that the proxy gives it.
    pub(super) fn tunnel_to(&self) -> End {
        let tunnel = Tunnel::asked_for(&self.request, self.conn.tunnel());
        // Its head was read before.
        tunnel.map_or(End::ServerClosed, |tunnel| End::Tunnel(Arc::new(tunnel)))
    }

    /// Refuses to look into tunnels in tunnels for ever.
    pub(super) async fn refuse_deeper(&mut self, head: &RequestHead) -> Result<(), End> {
        if head.method == Method::Connect && self.conn.tunnel().is_some_and(Tunnel::is_deepest) {
            self.refuse_bytes("400 Bad Request", Guard::Undecodable("nested_tunnel")).await?;
            return Err(End::Refused);
        }
        Ok(())
    }

    /// Goes on inside a tunnel, as a connection that was just accepted; the one up to here is on record.
    pub(super) fn enter(&mut self, tunnel: Arc<Tunnel>) -> Entry {
        self.record(&End::Tunnel(Arc::clone(&tunnel)));
        let before = Arc::clone(&self.conn);
        let servers = names(&before, Some(&tunnel), "");
        let workflow = before.identity.workflow.value();
        self.scene = Scene {
            server: servers[0].as_str().into(),
            servers: servers.into(),
            ..Scene::of_connection(before.destination, workflow)
        };
        let listed = self.parts.ledger.open(before.identity.clone(), before.destination, self.scene.clone());
        self.conn = Arc::clone(listed.conn());
        self.conn.enter(tunnel);
        if before.is_apart() {
            self.conn.mark_apart();
        }
        self.target = Target::default();
        self.begun = Begun::Nothing;
        self.stream = Stream::default();
        self.progress = Progress::default();
        (self.posting, self.class, self.tls_name) = (None, None, None);
        self.within_line = false;
        self.opened = Instant::now();
        listed
    }
}
