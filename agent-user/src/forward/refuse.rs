//! Everything interlock itself says to an agent. Answers are in the protocol of the call, so that SDK clients
//! surface the reason and go on: never a status that means "log in", "start a new session" or "use another
//! transport" to them (MCP: 401, 403 with a challenge, 404, 405, bare 400 and 202 all do).

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::decide::Refusal;
use crate::decide::stop::Stop;
use crate::decode::sse;
use crate::ledger::Call;

/// JSON-RPC error codes of our own, outside the range that JSON-RPC and MCP reserve (-32768 to -32000).
const REFUSED: i64 = 40301;
const STOPPED: i64 = 40302;
const UNANSWERED: i64 = 40303;
/// `HeaderMismatch` (MCP 2026-07-28, transports): what any server says to it, with HTTP status 400.
const HEADER_MISMATCH: i64 = -32020;

/// A call and why it is refused.
#[derive(Clone, Debug)]
pub struct Refused {
    pub call: Call,
    pub refusal: Refusal,
}

impl Refused {
    /// Several calls, refused for one reason.
    pub fn all(calls: &[Call], refusal: &Refusal) -> Vec<Refused> {
        calls.iter().map(|call| Refused { call: call.clone(), refusal: refusal.clone() }).collect()
    }
}

/// A JSON-RPC response. The id is the agent's own bytes: a number of any size comes back as it was.
#[derive(Serialize)]
struct Response<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Result(Value),
    Error(Value),
}

/// The JSON text of a response that refuses a call; `None` for a message that has no id to answer.
pub fn response(Refused { call, refusal }: &Refused) -> Option<String> {
    if call.is_operation {
        return Some(status(call, refusal).to_string());
    }
    let id: &RawValue = serde_json::from_str(call.rpc_id.as_deref()?).ok()?;
    let text = text(call, refusal);
    let data = json!({
        "rule": refusal.rule(),
        "reason": refusal.reason(),
        "decision": call.decision,
        "stop": refusal.stop_id(),
        "approval": refusal.approval_id(),
    });
    let outcome = if refusal.is_mcp_header_mismatch() {
        Outcome::Error(json!({"code": HEADER_MISMATCH, "message": text, "data": data}))
    } else if &*call.method == "tools/call" {
        // The model sees the result of a tool, and only that. `resultType` is required by 2026-07-28 and unknown,
        // hence ignored, before.
        Outcome::Result(json!({
            "content": [{"type": "text", "text": text}],
            "isError": true,
            "resultType": "complete",
            "_meta": {"interlock.dev/refusal": data},
        }))
    } else {
        let code = if refusal.stop_id().is_some() { STOPPED } else { REFUSED };
        Outcome::Error(json!({"code": code, "message": text, "data": data}))
    };
    serde_json::to_string(&Response { jsonrpc: "2.0", id, outcome }).ok()
}

/// The error that refuses an operation of A2A's HTTP+JSON binding (1.0, section 11.6, after `google.rpc.Status`). Clients
/// show the message of errors that A2A knows alone, and of those "not supported" comes next to "not allowed".
fn status(call: &Call, refusal: &Refusal) -> Value {
    json!({"error": {
        "code": 403,
        "status": "PERMISSION_DENIED",
        "message": text(call, refusal),
        "details": [{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "UNSUPPORTED_OPERATION",
            "domain": "a2a-protocol.org",
            "metadata": {
                "rule": refusal.rule(),
                "reason": refusal.reason(),
                "decision": call.decision,
                "stop": refusal.stop_id().unwrap_or_default(),
                "approval": refusal.approval_id().unwrap_or_default(),
            },
        }],
    }})
}

/// The error that a server gets for a request of its own that is kept from the agent.
pub fn error(refusal: &Refusal) -> Value {
    let data = json!({"rule": refusal.rule(), "reason": refusal.reason()});
    let message = format!("interlock: the request was refused by policy: {}", refusal.reason());
    json!({"code": REFUSED, "message": message, "data": data})
}

/// A whole HTTP answer for calls that were refused before their answer began: 200 with one response per id, or 202
/// for a message that expects none; 400 where a header contradicts the body; 403 for an operation of A2A over HTTP+JSON.
pub fn http(refused: &[Refused], batch: bool, close: bool) -> Vec<u8> {
    let responses = responses(refused);
    let contradicts = refused.iter().any(|refused| refused.refusal.is_mcp_header_mismatch());
    let is_operation = refused.iter().any(|refused| refused.call.is_operation);
    match (&*responses, batch) {
        ([response], false) if is_operation => with_body("403 Forbidden", response, close),
        ([response], false) if contradicts => with_body("400 Bad Request", response, close),
        ([], _) if contradicts => head("400 Bad Request", None, close),
        ([], _) => head("202 Accepted", None, close),
        ([response], false) => with_body("200 OK", response, close),
        _ => with_body("200 OK", &format!("[{}]", responses.join(",")), close),
    }
}

/// The JSON texts of responses, one for each call that has an id to answer.
pub fn responses(refused: &[Refused]) -> Vec<String> {
    refused.iter().filter_map(response).collect()
}

/// One server-sent event per refused call, for an answer that has begun as a stream.
pub fn events(refused: &[Refused]) -> Vec<u8> {
    let event = |refused: &Refused| {
        let json = response(refused)?;
        // Clients of A2A tell an error in a stream by that alone.
        let kind = if refused.call.is_operation { ERROR } else { MESSAGE };
        Some(sse::with_data(kind, json.as_bytes()))
    };
    refused.iter().filter_map(event).flatten().collect()
}

/// A server-sent event with this JSON text.
pub fn event(json: &[u8]) -> Vec<u8> {
    sse::with_data(MESSAGE, json)
}

const MESSAGE: &[u8] = b"event: message\ndata:\n\n";
const ERROR: &[u8] = b"event: error\ndata:\n\n";

/// The head of an answer that begins as a stream of events, in chunks, before the server has it.
pub const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
    Cache-Control: no-cache, no-transform\r\nX-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The JSON text of a notification that the call with this progress token, a JSON text, is not forgotten. The server counts
/// its own progress later, and must come after: so this is next to none.
pub fn progress(token: &str, count: u32, message: &str) -> String {
    let progress = f64::from(count) / 1e6;
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{progress:.6},"message":{}}}}}"#,
        json!(message)
    )
}

/// The JSON text of an error in place of a server's answer that is none to this call: the server's own, a JSON text, where it
/// gives one.
pub fn unanswered(call: &Call, status: u16, error: Option<&str>) -> Option<String> {
    let id: &RawValue = serde_json::from_str(call.rpc_id.as_deref()?).ok()?;
    let error = error.map_or_else(
        || {
            let message = format!("the server answered with HTTP status {status}, and not to the call");
            json!({"code": UNANSWERED, "message": message, "data": {"status": status}}).to_string()
        },
        str::to_owned,
    );
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#))
}

/// A chunk of a chunked body (RFC 9112 section 7.1); an empty one would end the body.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() {
        return Vec::new();
    }
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// An HTTP answer to something that is no call: a stream, or a request to a server that is not MCP.
pub fn plain(status: &str, refusal: &Refusal, decision: &str) -> Vec<u8> {
    with_body(status, &unread(refusal, decision, None), true)
}

/// The JSON text of an error in place of something that could not be read; `id` is the JSON text of the id under which its
/// sender waits for an answer, as far as that can be told.
pub fn unread(refusal: &Refusal, decision: &str, id: Option<&str>) -> String {
    let error = json!({
        "code": if refusal.stop_id().is_some() { STOPPED } else { REFUSED },
        "message": format!("interlock refused this request: {}", refusal.reason()),
        "data": {"rule": refusal.rule(), "decision": decision, "stop": refusal.stop_id()},
    });
    format!(r#"{{"error":{error},"jsonrpc":"2.0","id":{}}}"#, id.unwrap_or("null"))
}

/// The interim answer an agent waits for before it sends a body (RFC 9110 section 10.1.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn text(call: &Call, refusal: &Refusal) -> String {
    let what = match &call.tool {
        Some(tool) => format!("{} {tool}", call.method),
        None => call.method.to_string(),
    };
    match refusal {
        Refusal::Stop(stop) => format!(
            "interlock: {what} was refused because {} stopped {}: {} (stop {}, by {}, since {}, decision {}). \
             Do not retry; the stop holds until the operator releases it.",
            if stop.by.is_rule() { "a rule" } else { "an operator" },
            stopped(stop),
            stop.reason,
            stop.id,
            stop.by.user,
            stop.issued_at,
            call.decision
        ),
        _ => format!(
            "interlock: {what} was refused by policy: {} (rule {}, decision {}).",
            refusal.reason(),
            refusal.rule(),
            call.decision
        ),
    }
}

/// What was stopped, for whoever is to do without it.
fn stopped(stop: &Stop) -> String {
    if stop.selector.is_whole_agents() { "this agent".to_owned() } else { stop.selector.to_string() }
}

fn with_body(status: &str, body: &str, close: bool) -> Vec<u8> {
    let mut answer = head(status, Some(body.len()), close);
    answer.extend_from_slice(body.as_bytes());
    answer
}

fn head(status: &str, length: Option<usize>, close: bool) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status}\r\n");
    if length.is_some() {
        head += "Content-Type: application/json\r\nCache-Control: no-store\r\n";
    }
    head += &format!("Content-Length: {}\r\n", length.unwrap_or(0));
    if close {
        head += "Connection: close\r\n";
    }
    head += "\r\n";
    head.into_bytes()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;

    pub(in crate::forward) fn call(method: &str, rpc_id: Option<&str>) -> Call {
        Call {
            method: method.into(),
            of_tool: None,
            is_operation: false,
            of_unknown: false,
            cursor: None,
            round: None,
            agent_cancelled_at: None,
            held: None,
            tool: (method == "tools/call").then(|| "wire_transfer".into()),
            rpc_id: rpc_id.map(Into::into),
            server: "bank".into(),
            session: None,
            workflow: None,
            revision: None,
            decision: "d-1".into(),
            since: Timestamp::UNIX_EPOCH,
        }
    }

    fn refused(calls: &[Call]) -> Vec<Refused> {
        let refusal = Refusal::Rule { id: Arc::from("no-big-transfers"), reason: Arc::from("ask a person") };
        Refused::all(calls, &refusal)
    }

    fn body(answer: &[u8]) -> Value {
        let text = std::str::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        serde_json::from_str(body).unwrap()
    }

    #[test]
    fn a_refused_tool_call_is_a_result_the_model_sees() {
        let answer = body(&http(&refused(&[call("tools/call", Some("\"c-17\""))]), false, false));
        assert_eq!(answer["id"], "c-17");
        assert_eq!(answer["result"]["isError"], true);
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        for part in ["wire_transfer", "no-big-transfers", "ask a person", "d-1"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn any_other_request_gets_an_error_outside_the_reserved_range() {
        let answer = body(&http(&refused(&[call("prompts/get", Some("4"))]), false, false));
        assert_eq!(answer["id"], 4);
        assert_eq!(answer["error"]["code"], 40301);
        assert_eq!(answer["error"]["data"]["rule"], "no-big-transfers");
    }

    #[test]
    fn a_header_that_contradicts_the_body_gets_the_answer_of_the_protocol() {
        let mismatch = Refusal::Guard(crate::decide::Guard::HeaderMismatch {
            header: "mcp-method",
            header_value: "tools/list".to_owned(),
            body_value: "tools/call".to_owned(),
        });
        let answer = |id| http(&Refused::all(&[call("tools/call", id)], &mismatch), false, false);
        assert!(answer(Some("7")).starts_with(b"HTTP/1.1 400 "));
        let error = &body(&answer(Some("7")))["error"];
        assert_eq!(
            (&error["code"], &error["data"]["rule"]),
            (&json!(-32020), &json!("guard:header-mismatch"))
        );
        assert!(answer(None).starts_with(b"HTTP/1.1 400 "));
    }

    #[test]
    fn a_batch_is_answered_as_a_batch_and_a_notification_with_202() {
        let calls =
            [call("ping", Some("1")), call("notifications/initialized", None), call("tools/call", Some("2"))];
        let answer = body(&http(&refused(&calls), true, false));
        assert_eq!(answer.as_array().unwrap().len(), 2);
        assert!(http(&refused(&calls[1..2]), false, false).starts_with(b"HTTP/1.1 202"));
    }

    #[test]
    fn progress_grows_and_stays_small() {
        let told = |count| serde_json::from_str::<Value>(&progress("\"a\"", count, "wait \"here\"")).unwrap();
        let (first, last) = (told(1)["params"].clone(), told(30_000)["params"].clone());
        assert_eq!((&first["progressToken"], &first["message"]), (&json!("a"), &json!("wait \"here\"")));
        assert!(first["progress"].as_f64() > Some(0.0) && last["progress"].as_f64() < Some(0.1));
    }

    #[test]
    fn a_status_becomes_an_error_of_the_call() {
        let call = call("tools/call", Some("7"));
        let text = |error| unanswered(&call, 404, error).unwrap();
        let ours: Value = serde_json::from_str(&text(None)).unwrap();
        assert_eq!((&ours["id"], &ours["error"]["data"]["status"]), (&json!(7), &json!(404)));
        let error = r#"{"code":-32001,"message":"Session not found"}"#;
        assert_eq!(text(Some(error)), format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#));
    }

    #[test]
    fn big_ids_come_back_as_they_were() {
        let answer = http(&refused(&[call("ping", Some("12345678901234567890123"))]), false, false);
        assert!(String::from_utf8(answer).unwrap().contains("\"id\":12345678901234567890123"));
    }
}
