//! Relaying a stream of server-sent events, each as soon as it is whole and decided. One that is coded reaches the agent
//! without its codings: in them nothing could be edited, or end, between two events.

use bytes::Buf;
use tokio::task::yield_now;
use tracing::debug;

use crate::decide::Guard;
use crate::decide::policy::Bias;
use crate::decode::coding::{Decoder, Fault, refuses_identity};
use crate::decode::{Framing, Headers, Oversized, ResponseHead, Version, parse_request, rewrite_head, sse};
use crate::forward::End;
use crate::forward::answer::{Begun, Relay};
use crate::forward::hold;
use crate::forward::inspect::Edit;
use crate::forward::reframe::{Broken, Stream};
use crate::ledger::Phase;

/// The most of an event that is read at a time.
const MOST_AHEAD: usize = 256 * 1024;

impl Relay<'_> {
    /// Relays a stream of events, each as soon as it is whole and decided.
    pub(super) async fn stream(&mut self, head: &ResponseHead) -> Result<(), End> {
        let decoder = match self.decoder(head) {
            Ok(decoder) => decoder,
            Err(fault) => return self.or_refuse(Guard::Undecodable(fault.label()), head).await,
        };
        self.begin(head, decoder);
        if !self.asked.has_calls {
            self.conn.set_phase(Phase::Open);
        }
        self.events(head).await
    }

    /// Relays what follows, be it from the middle of the stream.
    pub(super) async fn events(&mut self, head: &ResponseHead) -> Result<(), End> {
        loop {
            let taken = self.take();
            let decided = self.decide(head).await;
            if taken.is_ok() && decided.is_ok() && self.stream.is_done() {
                break;
            }
            self.flush().await?;
            let limit = self.parts.limits.event;
            match (taken, decided) {
                (Err(Broken::Framing(malformed)), _) => return Err(End::Malformed(malformed)),
                (_, Err(Oversized)) => return Err(self.refuse_rest(Guard::Oversized { limit }).await),
                (Err(Broken::Coding(fault)), _) => {
                    return Err(self.refuse_rest(hold::guard(fault, limit)).await);
                }
                (Ok(()), Ok(())) => {}
            }
            self.server.made(self.stream.held()).map_err(End::server)?;
            if self.stream.has_more() {
                // A small input can be much to decode: others, and stops, have their turn.
                yield_now().await;
                continue;
            }
            let undecided = self.stream.undecided();
            if undecided == 0 {
                self.server.rest();
            }
            match self.more_or_said(undecided.min(MOST_AHEAD)).await {
                Err(End::ServerClosed) if head.framing == Framing::UntilClose => break,
                result => result?,
            }
        }
        // Half an event is none for a client of MCP, and nobody has decided it.
        if !self.is_mcp() {
            self.stream.pass_rest();
        }
        self.say_rest();
        self.stream.finish();
        self.flush().await?;
        self.close_calls("none", Some("server_closed"), Some(head.status), 0);
        Ok(())
    }

    /// What undoes the codings of a stream, if it has any, for an agent that takes it without.
    fn decoder(&self, head: &ResponseHead) -> Result<Option<Decoder>, Fault> {
        let Some(decoder) = Stream::decoder(head.codings, self.parts.limits.event)? else { return Ok(None) };
        let request = parse_request(self.request, self.parts.limits.header).ok().flatten();
        let refuses = |request| refuses_identity(Headers::of(&request, self.request).all("accept-encoding"));
        if request.is_some_and(refuses) { Err(Fault::Unknown) } else { Ok(Some(decoder)) }
    }

    /// The head leaves with the first events, if those are there already. It says how they are framed: in chunks where both
    /// sides know them and the server tells the end of the stream from that of its connection, else up to the end of the
    /// agent's connection. A stream that is open goes on.
    fn begin(&mut self, head: &ResponseHead, decoder: Option<Decoder>) {
        if self.asked.opened {
            self.stream.go_on(head.framing);
            self.stream.decode_with(decoder);
            self.server.buffer.advance(head.len);
            return;
        }
        let chunked =
            self.asked.chunked && head.version == Version::Http11 && head.framing != Framing::UntilClose;
        let framing = if chunked { Framing::Chunked } else { Framing::UntilClose };
        *self.stream = Stream::new(head.framing, chunked, self.parts.limits.event);
        let bytes = &self.server.buffer[..head.len];
        if framing == head.framing && decoder.is_none() {
            self.stream.send(bytes);
        } else {
            self.stream.send(&rewrite_head(bytes, framing));
        }
        self.stream.decode_with(decoder);
        self.server.buffer.advance(head.len);
        self.asked.keep_alive &= chunked;
        *self.begun = Begun::Stream;
    }

    /// Takes what has come from the server.
    fn take(&mut self) -> Result<(), Broken> {
        let taken = self.stream.take(&self.server.buffer)?;
        self.server.buffer.advance(taken);
        Ok(())
    }

    /// Decides every event that is whole.
    async fn decide(&mut self, head: &ResponseHead) -> Result<(), Oversized> {
        let decided = loop {
            match self.stream.has_event() {
                Ok(true) => self.event(head).await,
                Ok(false) => break Ok(()),
                Err(_) if self.parts.defaults_of(self.conn).oversized == Bias::Allow => {
                    self.stream.pass_unread();
                }
                Err(oversized) => break Err(oversized),
            }
        };
        // Half an event on the wire cannot be followed by anything of ours.
        *self.begun = if self.stream.is_passing() { Begun::Partial } else { Begun::Stream };
        decided
    }

    /// Decides one whole event.
    async fn event(&mut self, head: &ResponseHead) {
        let rules = self.rules();
        let event = sse::fields(self.stream.event());
        if self.is_endpoint(&event) {
            let uri = event.data.into_owned();
            self.open_channel(head, &uri);
            return self.stream.pass();
        }
        self.is_fresh &= !event.has_data;
        let edit =
            if event.has_data { self.edit(&rules, &event.data, head.status).await } else { Edit::Pass };
        match edit {
            Edit::Pass => self.stream.pass(),
            Edit::Replace(json) => self.stream.replace(&json),
            Edit::Drop { refusal, recorded } => {
                debug!(conn = self.conn.id, label = refusal.label(), "event withheld");
                if !recorded {
                    self.parts.record_guard(self.conn, "event", &refusal).await;
                }
                self.stream.withhold();
            }
        }
    }

    /// Sends what is decided. When a stop comes in between, it sends the rest.
    pub(super) async fn flush(&mut self) -> Result<(), End> {
        let (bytes, left) = self.stream.leaving();
        self.agent.send_rest(bytes, left).await.map_err(End::agent)?;
        self.stream.sent();
        Ok(())
    }
}
