//! A connection whose messages are lines (MCP, stdio framing over TCP): many calls in flight at a time, answers in any order.
//!
//! What the agent says is judged line by line ([`up`]), each as if it came on a connection of its own, and is on the ledger as
//! such; once a line has left, its call belongs to the connection, as one that was POSTed belongs to its stream over HTTP+SSE. What the
//! server says is decided line by line ([`down`]). A stop at level `refuse` leaves the connection open: only in it can
//! the agent be told.
//!
//! Other JSON, and whatever else comes, passes as what cannot be read does, and stops end the connection as long as
//! nothing of MCP was seen.

mod down;
mod late;
mod line;
mod up;
mod waiting;

use std::sync::Arc;

use jiff::Timestamp;
use tokio::pin;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::channels::Channel;
use crate::decide::stop::{Level, Stop};
use crate::forward::End;
use crate::forward::channel::catch;
use crate::forward::lines::ToServer;
use crate::forward::side::Side;
use crate::judge::Target;
use crate::kernel::netns::Netns;
use crate::ledger::{Call, Conn};
use crate::parts::Parts;
use crate::record::entry::{CallResult, Entry};
use crate::record::metrics::Class;

use self::down::Down;
use self::late::Late;
use self::up::Up;
use super::Connection;
use super::stop::ANSWER_WITHIN;

/// What both directions need.
#[derive(Clone)]
struct Shared {
    parts: Arc<Parts>,
    conn: Arc<Conn>,
    netns: Arc<Netns>,
    /// In it the agent is told.
    channel: Arc<Channel>,
    server: Arc<ToServer>,
}

impl Shared {
    /// Records that a call got no answer.
    fn record_unanswered(&self, call: &Call, cause: Option<&'static str>) {
        let took = Timestamp::now().duration_since(call.since).unsigned_abs();
        self.parts.log.record(&Entry::Result(CallResult {
            conn: self.conn.id,
            agent: &self.conn.identity.agent.name,
            call,
            outcome: "none",
            cause: call.cause(cause),
            status: None,
            bytes: 0,
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        }));
    }
}

/// Why the relaying has ended.
enum Over {
    End(End),
    Stop(Arc<Stop>),
}

impl Connection {
    /// Relays lines until one side closes, or a stop ends it.
    pub(super) async fn lines(&mut self) -> End {
        self.classify(Class::Opaque);
        let server = Arc::new(ToServer::default());
        self.conn.speaks_lines(Arc::downgrade(&server));
        self.conn.open(self.scene.clone());
        let mut target = Target::default();
        target.follow(&Arc::clone(&self.parts.gate.rules()), &self.conn);
        self.conn.open_posted(target.session_of_process(&self.conn));
        let (channel, said) = Channel::of_lines(&self.conn, &self.netns);
        let shared = Shared {
            parts: Arc::clone(&self.parts),
            conn: Arc::clone(&self.conn),
            netns: Arc::clone(&self.netns),
            channel,
            server,
        };
        let (dialed, server) = oneshot::channel();
        let mut up = Up::new(shared.clone(), &mut self.agent.reader, dialed);
        if let Some(Side { reader, writer }) = self.server.take() {
            up.is_connected(reader, writer, self.source.take()).await;
        }
        let mut down = Down::new(shared.clone(), &mut self.agent.writer, server, said);
        if self.within_line {
            down.lines.begin_within();
        }
        let over = relay(&shared, &mut up, &mut down, &mut self.class).await;
        let (end, in_order) = match over {
            Over::End(end) => {
                let _ = timeout(ANSWER_WITHIN, up.give_up(end.label())).await;
                // What was refused last, and why it ends.
                let _ = timeout(ANSWER_WITHIN, down.say_rest()).await;
                (end, true)
            }
            Over::Stop(stop) => {
                up.cut(&stop).await;
                catch(&shared.parts, &shared.channel);
                // An agent that does not read learns nothing; it is cut all the same.
                let told = timeout(ANSWER_WITHIN, down.say_rest()).await;
                shared.parts.ledger.acted(&shared.conn);
                (End::Stopped, matches!(told, Ok(Ok(()))) && shared.conn.is_mcp())
            }
        };
        self.to_server += shared.server.written();
        if let Some(late) = Late::of(shared, down) {
            tokio::spawn(late.follow());
        }
        if !in_order {
            self.agent.reset_on_close();
        }
        end
    }
}

/// Relays both ways. A stop that leaves the connection open interrupts nothing: what it is about is told apart by the ledger.
async fn relay(shared: &Shared, up: &mut Up<'_>, down: &mut Down<'_>, class: &mut Option<Class>) -> Over {
    let relaying = async {
        tokio::select! {
            end = up.run(class) => end,
            end = down.run() => end,
        }
    };
    pin!(relaying);
    loop {
        tokio::select! {
            biased;
            stop = shared.parts.gate.stopped(&shared.parts.ledger, &shared.conn) => {
                if stop.level > Level::Refuse || !shared.conn.is_mcp() {
                    return Over::Stop(stop);
                }
                catch(&shared.parts, &shared.channel);
                shared.parts.ledger.acted(&shared.conn);
            }
            end = &mut relaying => return Over::End(end),
        }
    }
}
