//! The same for calls that are answered in a stream on another connection (HTTP+SSE, [`crate::channels`]): one connection
//! sends them, the other one has the stream, and a stop looks at one after the other.

use std::sync::Arc;

use loom::future::block_on;

use super::seen::End;
use super::world::{World, id, identity, is_refused, rest, server, to_call};
use super::{BYTES, CODER, Mistake};
use crate::decide::stop::Stop;
use crate::decode::RawId;
use crate::fate::Fate;
use crate::ledger::{Call, Conn, Entry, Phase, Scene};
use crate::sync::Notify;

/// What both connections know.
pub(super) struct Stream {
    conn: Arc<Conn>,
    /// Rung when nothing more is sent.
    done: Notify,
}

impl World {
    /// The stream is open before anything is POSTed.
    pub(super) fn open_stream(&self) -> (Entry, Arc<Stream>) {
        let scene = Scene::of_connection(server(), None);
        let listed = self.ledger.open(identity(&CODER), server(), scene.clone());
        let conn = Arc::clone(listed.conn());
        self.gate.begin(&conn, scene, Vec::new());
        conn.set_phase(Phase::Open);
        conn.open_posted(None);
        (listed, Arc::new(Stream { conn, done: Notify::new() }))
    }

    /// The connection with the stream, as `conn::run` serves it.
    pub(super) fn serve_stream(&self, listed: Entry, stream: &Stream) {
        block_on(async {
            loop {
                tokio::select! {
                    biased;
                    _ = self.gate.stopped(&self.ledger, &stream.conn) => {
                        self.catch(stream);
                        self.ledger.acted(&stream.conn);
                    }
                    () = stream.done.notified() => break,
                }
            }
        });
        drop(listed);
    }

    /// As `forward::channel::catch`.
    fn catch(&self, stream: &Stream) {
        let rules = Arc::clone(&self.gate.rules());
        let file = |_: &Arc<Stop>, call: &Call| self.seen().ended(id(call), End::Caught(Fate::Sent));
        stream.conn.catch_posted(&rules, file);
    }

    /// The connection that sends, and the answers in the stream.
    pub(super) fn serve_posts(&self, stream: &Stream) {
        let scene = Scene::of_connection(server(), None);
        let listed = self.ledger.open(identity(&CODER), server(), scene.clone());
        let conn = listed.conn();
        let mut left = self.plan.calls;
        block_on(async {
            loop {
                tokio::select! {
                    biased;
                    _ = self.gate.stopped(&self.ledger, conn) => {
                        if conn.phase() == Phase::Sent {
                            conn.leave_to_stream();
                            self.catch(stream);
                        }
                        let (phase, calls) = conn.stop();
                        calls.iter().for_each(|call| self.seen().ended(id(call), End::Caught(phase.fate())));
                        self.ledger.acted(conn);
                    }
                    () = self.posts(conn, &scene, stream, &mut left) => break,
                }
            }
        });
        drop(listed);
        stream.done.notify_one();
    }

    async fn posts(&self, conn: &Conn, scene: &Scene, stream: &Stream, left: &mut usize) {
        while *left > 0 {
            *left -= 1;
            let call = self.seen().call(&conn.identity.agent.name);
            self.post(conn, scene, stream, call).await;
            conn.end();
        }
        // What has no answer when the server ends gets none.
        for call in stream.conn.end() {
            self.seen().ended(id(&call), End::Answered);
        }
    }

    async fn post(&self, conn: &Conn, scene: &Scene, stream: &Stream, call: usize) {
        let listed = to_call(call);
        let rpc_id = listed.rpc_id.clone().unwrap_or_default();
        let rules = self.gate.begin(conn, scene.clone(), vec![listed]);
        conn.post_to(&stream.conn, 1000).unwrap();
        if conn.cut_by().is_some() || is_refused(&rules, &CODER.name, scene) {
            rest().await;
            conn.end();
            self.seen().ended(call, End::Refused);
            return;
        }
        rest().await;
        conn.set_phase(Phase::Sending);
        for _ in 0..BYTES {
            rest().await;
            self.seen().byte(call);
        }
        conn.set_phase(Phase::Sent);
        if self.plan.mistake == Some(Mistake::HandedOverUnread) {
            conn.lend();
            conn.leave_to_stream();
        } else {
            while !self.gate.hand_over(conn) {
                rest().await;
            }
        }
        // The server takes it, and answers in the stream.
        rest().await;
        if stream.conn.finish(RawId::of(&rpc_id)).is_some() {
            self.seen().ended(call, End::Answered);
        }
    }
}
