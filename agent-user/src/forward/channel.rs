//! A stream in which a server answers what is POSTed on other connections (HTTP+SSE, MCP 2024-11-05): how one begins, what
//! is said in it besides what the server says, and what becomes of calls that a stop catches in it. The stream itself outlives
//! a stop at level `refuse`: it is the only way in which its agent can be told that its calls are refused.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::{sleep, timeout};

use crate::channels::{Channel, Listed};
use crate::decide::stop::Stop;
use crate::decode::{Event, Method, ResponseHead, parse_request};
use crate::fate::Fate;
use crate::forward::End;
use crate::forward::answer::{Answered, Asked, Relay};
use crate::forward::evidence::{IN_FORCE_WITHIN, Teller};
use crate::forward::refuse::{self, Refused};
use crate::ledger::Call;
use crate::orders::ANSWERED_WITHIN;
use crate::parts::Parts;
use crate::record::metrics::Class;

/// Such a stream that is being relayed, and what is needed to go on with it after a stop.
#[derive(Debug)]
pub struct Open {
    pub listed: Listed,
    pub head: ResponseHead,
    pub asked: Asked,
    pub since: Instant,
}

impl Relay<'_> {
    /// Whether an event names the URI to POST to: the first one of its stream does (2024-11-05, transports, HTTP with SSE).
    pub(super) fn is_endpoint(&self, event: &Event<'_>) -> bool {
        let may_be = self.asked.method == Method::Get && !self.asked.has_calls;
        may_be && event.event_type == Some(b"endpoint") && (self.is_fresh || self.channel.is_some())
    }

    /// From here on answers to what is POSTed there are known by their calls. It must be known before the agent knows it.
    pub(super) fn open_channel(&mut self, head: &ResponseHead, uri: &[u8]) {
        let Ok(Some(request)) = parse_request(self.request, self.parts.limits.header) else { return };
        let channels = &self.conn.identity.agent.channels;
        let Some(listed) = channels.list(self.conn, self.netns, (&request, self.request), uri) else {
            return;
        };
        self.conn.mark_mcp();
        self.parts.metrics.classify(self.class, Class::Mcp);
        let before = self.channel.take();
        if let Some(mut before) = before {
            listed.channel.agree(before.listed.channel.revision());
            while let Ok(event) = before.listed.said.try_recv() {
                self.stream.say(&event);
            }
        }
        self.conn.open_posted(self.target.session_of_process(self.conn));
        *self.channel = Some(Open { listed, head: head.clone(), asked: self.asked, since: self.since });
    }

    /// Reads on; what somebody else says in the stream comes first.
    pub(super) async fn more_or_said(&mut self, expected: usize) -> Result<(), End> {
        let Some(open) = self.channel.as_mut().filter(|_| !self.stream.is_passing()) else {
            return self.more(expected).await;
        };
        tokio::select! {
            Some(event) = open.listed.said.recv() => {
                self.stream.say(&event);
                Ok(())
            }
            read = self.server.fill_for(expected) => match read.map_err(End::server)? {
                0 => Err(End::ServerClosed),
                _ => Ok(()),
            },
        }
    }

    /// What was said by others leaves before the end.
    pub(super) fn say_rest(&mut self) {
        let Some(open) = self.channel.as_mut() else { return };
        open.listed.forget();
        while let Ok(event) = open.listed.said.try_recv() {
            self.stream.say(&event);
        }
    }

    /// Goes on with a stream where a stop has left it.
    pub async fn go_on_with(mut self, head: &ResponseHead) -> Result<Answered, End> {
        let relayed = self.events(head).await;
        self.or_full(relayed).await?;
        Ok(self.answered(head))
    }

    /// The server has answered a POST: if not with a mere receipt, what was to be answered in the stream ends here. Some
    /// servers answer in both.
    pub(super) fn is_posted(&self, head: &ResponseHead, has_content: bool) {
        let Some(channel) = self.posting else { return };
        if !(200..300).contains(&head.status) || has_content && head.status != 202 {
            return self.conn.take_back();
        }
        // A receipt can come before the last byte was seen to leave.
        self.parts.gate.hand_over(self.conn);
        for call in channel.conn.retire_cancelled() {
            self.inspecting().record(&call, "none", None, Some(head.status), 0);
        }
    }
}

/// Ends what is in flight in a stream and meets a stop: its fate is filed, its agent told, its server, too.
pub fn catch(parts: &Arc<Parts>, channel: &Arc<Channel>) {
    let rules = Arc::clone(&parts.gate.rules());
    let file = |stop: &Arc<Stop>, call: &Call| {
        parts.book.file(stop, &channel.conn, std::slice::from_ref(call), Fate::Sent, true);
    };
    for caught in channel.conn.catch_posted(&rules, file) {
        channel.say_later(&refuse::responses(&Refused::all(&caught.calls, &caught.refusal)));
        let (parts, channel) = (Arc::clone(parts), Arc::clone(channel));
        tokio::spawn(follow(parts, channel, caught.stop, caught.calls));
    }
}

/// Tells the server, and waits for what it says; whoever reads the stream settles what is answered.
async fn follow(parts: Arc<Parts>, channel: Arc<Channel>, stop: Arc<Stop>, calls: Vec<Call>) {
    let _ = timeout(IN_FORCE_WITHIN, parts.ledger.settled()).await;
    sleep(ANSWERED_WITHIN).await;
    let teller = Teller {
        parts: Arc::clone(&parts),
        conn: Arc::clone(&channel.conn),
        netns: Arc::clone(&channel.netns),
        stop: Arc::clone(&stop),
        request: channel.request.clone(),
    };
    let told = tokio::spawn(teller.tell(&calls));
    let taken = match timeout(parts.evidence_window, channel.ended()).await {
        Ok(()) => Some(told.await.unwrap_or_default()),
        // It may have answered, or may still: we do not know.
        Err(_) => None,
    };
    for call in calls {
        if !channel.conn.give_up_late(&call.decision) {
            continue;
        }
        let fate = match &taken {
            None => Fate::Sent,
            Some(taken) if taken.contains(&call.decision) => Fate::Closed,
            Some(_) => Fate::Lost,
        };
        parts.book.settle(&stop, &channel.conn, &call, None, fate, None);
    }
}
