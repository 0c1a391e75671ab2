//! An answer in a stream that was begun before there was one: the agent was told for a while that its call waits for a
//! person. The server's status and headers come too late then, and what it says goes on in that stream.

use crate::decide::Refusal;
use crate::decode::{Framing, Kind, Limits, Media, Payload, ResponseHead, decode};
use crate::forward::End;
use crate::forward::answer::Relay;
use crate::forward::inspect::Edit;
use crate::forward::refuse;
use crate::ledger::Phase;

impl Relay<'_> {
    /// Relays an answer into the stream that is open: events follow, a JSON text becomes one, and anything else, such as
    /// the page of an HTTP error, becomes an error of the call.
    pub(super) async fn go_on(&mut self, head: &ResponseHead) -> Result<(), End> {
        let is_empty = matches!(head.framing, Framing::Empty | Framing::Length(0));
        let media = Some(head.media).filter(|_| !is_empty);
        let content = match media {
            Some(Media::EventStream) => return self.stream(head).await,
            Some(Media::Json) => match self.whole(head).await? {
                Ok((content, _)) => content.of(&self.server.buffer).to_vec(),
                Err(guard) => return Err(self.refuse(&Refusal::Guard(guard), Some(head.status)).await),
            },
            _ => Vec::new(),
        };
        let rules = self.rules();
        let edit =
            if content.is_empty() { Edit::Pass } else { self.edit(&rules, &content, head.status).await };
        let json = match edit {
            Edit::Pass => content,
            Edit::Replace(json) => json,
            Edit::Drop { refusal, .. } => return Err(self.refuse(&refusal, Some(head.status)).await),
        };
        let open = self.conn.end();
        self.conn.set_phase(Phase::Answering);
        if open.is_empty() {
            self.stream.send(&refuse::chunk(&refuse::event(&json)));
        }
        for call in &open {
            self.inspecting().record(call, "error", None, Some(head.status), json.len());
            let error = refuse::unanswered(call, head.status, error(&json, &self.parts.limits));
            self.stream
                .send(&refuse::chunk(&error.map_or_else(Vec::new, |error| refuse::event(error.as_bytes()))));
        }
        self.stream.finish();
        self.flush().await
    }
}

/// The error of a JSON-RPC message that answers nobody in particular: what servers say to a request they did not read.
fn error<'a>(json: &'a [u8], limits: &Limits) -> Option<&'a str> {
    match decode(json, limits) {
        Ok(Payload::Single(message)) if matches!(message.kind, Kind::Response { .. }) => message.error,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_nobody_are_found() {
        let limits = Limits::default();
        let check = |json: &str, expect| assert_eq!(error(json.as_bytes(), &limits), expect, "{json}");
        check(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001}}"#, Some(r#"{"code":-32001}"#));
        check(r#"{"jsonrpc":"2.0","error":{"code":1}}"#, Some(r#"{"code":1}"#));
        for other in ["", "{}", r#"{"error":"invalid_token"}"#, r#"{"jsonrpc":"2.0","id":1,"result":{}}"#] {
            check(other, None);
        }
    }
}
