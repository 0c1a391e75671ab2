//! What a JSON-RPC message of A2A says about its conversation (A2A 0.3, section 7, and 1.0, section 9).

use std::borrow::Cow;

use super::find::{Ambiguous, member};
use super::strings::string;
use super::{Message, mcp};

/// The `contextId` of a request: that of the message it sends (`message/send`, `message/stream`, `SendMessage`,
/// `SendStreamingMessage`), or its own (`ListTasks`). The first message of a conversation has none, as the server
/// makes it up.
///
/// Nothing for a method of MCP, where the member would have no meaning. Nothing either if two of them differ, or if
/// one is spelled `context_id`: readers of ProtoJSON take that as the same name, and others do not.
pub fn context_id<'a>(message: &Message<'a>) -> Option<Cow<'a, str>> {
    let params = message.params.as_ref()?.raw;
    if mcp::is_mcp_method(message.method()?) {
        return None;
    }
    let sent = member(params, "message").ok()?.unwrap_or_default();
    match (of(sent).ok()?, of(params).ok()?) {
        (Some(sent), Some(own)) if string(sent) != string(own) => None,
        (sent, own) => string(sent.or(own)?),
    }
}

/// Whether a request target is that of an agent card (A2A 0.3 and 1.0: `agent-card.json`; before, `agent.json`).
pub fn is_card(target: &[u8]) -> bool {
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    path.ends_with(b"/.well-known/agent-card.json") || path.ends_with(b"/.well-known/agent.json")
}

/// Whether a method is answered by many responses with one id, and so over only when its stream is (A2A 0.3, section 3.2.2,
/// and 1.0, section 9.4; and what was before).
pub fn is_streamed(method: &str) -> bool {
    let streamed = [
        "message/stream",
        "tasks/resubscribe",
        "tasks/sendSubscribe",
        "SendStreamingMessage",
        "SubscribeToTask",
    ];
    streamed.contains(&method)
}

fn of(object: &str) -> Result<Option<&str>, Ambiguous> {
    if member(object, "context_id")?.is_some() {
        return Err(Ambiguous);
    }
    member(object, "contextId")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Limits, Payload, decode};

    #[track_caller]
    fn check(method: &str, params: &str, expect: Option<&str>) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        match decode(text.as_bytes(), &Limits::default()) {
            Ok(Payload::Single(message)) => assert_eq!(context_id(&message).as_deref(), expect, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn context_is_that_of_the_message_or_of_the_request() {
        let send = r#"{"message":{"messageId":"m","contextId":"c-1","parts":[{"data":{"contextId":"x"}}]}}"#;
        for method in ["message/send", "message/stream", "SendMessage", "SendStreamingMessage"] {
            check(method, send, Some("c-1"));
        }
        check("ListTasks", r#"{"contextId":"c\u002d1","pageSize":5}"#, Some("c-1"));
        check("SendMessage", r#"{"contextId":"c","message":{"contextId":"\u0063"}}"#, Some("c"));
        check("SendMessage", r#"{"message":{"contextId":null}}"#, None);
        check("SendMessage", r#"{"message":{"contextId":7}}"#, None);
        check("SendMessage", r#"{"message":"contextId","configuration":{"contextId":"x"}}"#, None);
        check("SendMessage", "[]", None);
        check("GetTask", r#"{"id":"t"}"#, None);
    }

    #[test]
    fn doubtful_context_says_nothing() {
        check("SendMessage", r#"{"contextId":"c","message":{"contextId":"d"}}"#, None);
        check("SendMessage", r#"{"message":{"context_id":"c"}}"#, None);
        check("SendMessage", r#"{"message":{"contextId":"c","context_id":"d"}}"#, None);
        check("SendMessage", r#"{"message":{"contextId":"c","contextid":"d"}}"#, None);
        check("SendMessage", r#"{"message":{"contextId":"c"},"Message":{}}"#, None);
        check("tools/call", r#"{"name":"a","contextId":"c"}"#, None);
    }
}
