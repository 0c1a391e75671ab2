//! What a raw agent says in MCP: bodies and the requests that carry them.

use serde_json::{Value, json};

use crate::http::post;

/// The session that [`crate::raw_server::handshake`] gives.
pub const SESSION: (&str, &str) = ("mcp-session-id", "session-1");

/// The body of a `tools/call`.
pub fn call(id: u32, tool: &str, args: Value) -> Value {
    request(id, "tools/call", json!({"name": tool, "arguments": args}))
}

/// The body of a request.
pub fn request(id: u32, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A POST of a body in the session, as of 2025-11-25.
pub fn legacy(body: &Value) -> Vec<u8> {
    post(&body.to_string(), &[SESSION, ("mcp-protocol-version", "2025-11-25")])
}

/// The POST of `initialize` for a revision.
pub fn initialize(revision: &str) -> Vec<u8> {
    let client = json!({"name": "raw-agent", "version": "1"});
    let params =
        json!({"protocolVersion": revision, "capabilities": {"elicitation": {}}, "clientInfo": client});
    post(&request(0, "initialize", params).to_string(), &[])
}

/// The POST of a `tools/call` as of 2026-07-28, whose header names `named`.
pub fn modern_call(id: u32, named: &str, tool: &str, args: Value) -> Vec<u8> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = request(id, "tools/call", json!({"name": tool, "arguments": args, "_meta": meta}));
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", named)];
    post(&body.to_string(), &headers)
}

/// The message of this id among others.
pub fn of_id(messages: &[Value], id: u32) -> &Value {
    messages
        .iter()
        .find(|message| message["id"] == id)
        .unwrap_or_else(|| panic!("no answer to {id}: {messages:?}"))
}

/// Whether a message tells the agent that its request failed, in protocol; and in which words.
pub fn refusal(message: &Value) -> Option<String> {
    let result = &message["result"];
    match (&message["error"], result["isError"] == true) {
        (Value::Object(error), _) => Some(error["message"].as_str().unwrap_or_default().to_owned()),
        (_, true) => Some(result["content"][0]["text"].as_str().unwrap_or_default().to_owned()),
        _ => None,
    }
}
