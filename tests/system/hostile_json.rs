//! JSON-RPC that two parsers could take for two things, or that says in one place what it denies in another. Beside
//! `hostile.rs` (escapes, encodings, members twice), `codings.rs` (content codings), `wire.rs` (batches) and `tasks.rs` (what
//! goes on after a call).

use agent_tests::http::post;
use agent_tests::mcp;
use serde_json::{Value, json};

use crate::hostile::{Attempt, TRANSFER, typed};
use crate::{NO_RULES, NO_TRANSFERS};

const JSON: &str = "application/json";

/// A call of a tool as of 2026-07-28, with these header lines for what headers say of it.
fn modern(tool: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = mcp::request(1, "tools/call", json!({"name": tool, "arguments": {}, "_meta": meta}));
    post(&body.to_string(), headers)
}

const VERSION: (&str, &str) = ("mcp-protocol-version", "2026-07-28");
const METHOD: (&str, &str) = ("mcp-method", "tools/call");

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn members_of_the_envelope_that_come_twice_are_refused() {
    let mut attempt = Attempt::under(NO_RULES);
    let version = r#""io.modelcontextprotocol/protocolVersion""#;
    for (what, params) in [
        ("_meta twice", format!(r#"{{"name":"echo","_meta":{{{version}:"2026-07-28"}},"_meta":{{}}}}"#)),
        (
            "_meta escaped",
            format!(r#"{{"name":"echo","_meta":{{}},"_m\u0065ta":{{{version}:"2026-07-28"}}}}"#),
        ),
        (
            "version twice",
            format!(r#"{{"name":"echo","_meta":{{{version}:"2026-07-28",{version}:"2025-11-25"}}}}"#),
        ),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        attempt.refused_by("default:undecodable", what, &typed(JSON, body.as_bytes()));
    }
    for (what, body) in [
        ("id twice", TRANSFER.replace(r#""id":1"#, r#""id":1,"id":2"#)),
        ("jsonrpc twice", TRANSFER.replace(r#""jsonrpc":"2.0""#, r#""jsonrpc":"2.0","jsonrpc":"1.0""#)),
    ] {
        attempt.refused_by("default:undecodable", what, &typed(JSON, body.as_bytes()));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn text_that_is_none_is_refused() {
    let mut attempt = Attempt::under(NO_RULES);
    let name = |bytes: &[u8]| {
        let (before, after) = TRANSFER.split_once("wire_transfer").expect("it is there");
        [before.as_bytes(), bytes, after.as_bytes()].concat()
    };
    let deep = TRANSFER
        .replace(r#""arguments":{}"#, &format!(r#""arguments":{}1{}"#, "[".repeat(200), "]".repeat(200)));
    for (label, body) in [
        ("invalid_utf8", name(b"wire\xfftransfer")),
        ("invalid_utf8", name(b"wire\xc0\x80transfer")),
        ("invalid_utf8", name(b"wire\xed\xa0\x80transfer")),
        ("lone_surrogate", name(br"wire\ud800transfer")),
        ("invalid_json", name(br"wire\x5ftransfer")),
        ("invalid_json", name(b"wire\0transfer")),
        ("invalid_json", TRANSFER.replace(r#""id":1"#, r#""id":01"#).into_bytes()),
        ("invalid_json", TRANSFER.replace("{}}", "{},}").into_bytes()),
        ("invalid_json", TRANSFER.replace("{}", "/**/{}").into_bytes()),
        ("invalid_json", TRANSFER.replace('"', "'").into_bytes()),
        ("invalid_json", TRANSFER.replace("{}", "NaN").into_bytes()),
        ("trailing_bytes", format!("{TRANSFER}}}").into_bytes()),
        ("too_deep", deep.into_bytes()),
    ] {
        let answer = attempt.refused_by("default:undecodable", label, &typed(JSON, &body));
        assert!(answer.text().contains(label), "{label}: {}", answer.text());
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn ids_are_answered_as_they_were_written() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    for id in ["123456789012345678901234567890", "1.0", "1e3", "-0", r#""\u0031""#, r#""1""#] {
        let body = TRANSFER.replace(r#""id":1"#, &format!(r#""id":{id}"#));
        let answer = attempt.refused_by("no-transfers", id, &typed(JSON, body.as_bytes()));
        assert!(answer.text().contains(&format!(r#""id":{id},"#)), "{id}: {}", answer.text());
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn headers_that_come_twice_or_folded_are_refused() {
    let mut attempt = Attempt::under(NO_RULES);
    let name = ("mcp-name", "echo");
    for (what, headers) in [
        ("name twice", &[VERSION, METHOD, name, name][..]),
        ("name in two cases", &[VERSION, METHOD, name, ("MCP-NAME", "wire_transfer")]),
        ("method twice", &[VERSION, METHOD, METHOD, name]),
        ("version twice", &[VERSION, ("MCP-Protocol-Version", "2025-11-25"), METHOD, name]),
        ("parameter twice", &[VERSION, METHOD, name, ("mcp-param-a", "1"), ("Mcp-Param-A", "2")]),
    ] {
        attempt.refused_by("guard:header-mismatch", what, &modern("echo", headers));
    }
    let folded = [VERSION, METHOD, ("mcp-name", "\r\n echo")];
    attempt.refused_by("default:undecodable", "folded name", &modern("echo", &folded));
    attempt.allowed(
        "once each",
        &modern("echo", &[VERSION, METHOD, name, ("mcp-param-a", "1"), ("mcp-param-b", "2")]),
    );
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn headers_that_are_almost_coded_are_refused() {
    let mut attempt = Attempt::under(NO_RULES);
    for coded in
        ["=?BASE64?ZWNobw==?=", "=?base64?ZWNobw?=", "=?base64?ZWNobw==", "=?base64?/w==?=", "=?Base64?!?="]
    {
        let named = modern("echo", &[VERSION, METHOD, ("mcp-name", coded)]);
        attempt.refused_by("guard:header-mismatch", coded, &named);
        let headers = [VERSION, METHOD, ("mcp-name", "echo"), ("mcp-param-to", coded)];
        attempt.refused_by("guard:header-mismatch", coded, &modern("echo", &headers));
    }
    let coded = "=?base64?ZWNobw==?=";
    let headers =
        [VERSION, METHOD, ("mcp-name", coded), ("mcp-param-to", coded), ("mcp-param-from", "really?=")];
    attempt.allowed("coded", &modern("echo", &headers));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn batches_are_judged_where_the_revision_has_none() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    let call: Value = serde_json::from_str(TRANSFER).expect("JSON");
    let other = mcp::call(2, "echo", json!({}));
    for revision in ["2024-11-05", "2025-06-18", "2025-11-25", "2026-07-28"] {
        for batch in [json!([call]), json!([other, call]), json!([[call]]), json!([other, 1, call])] {
            let request = post(&batch.to_string(), &[("mcp-protocol-version", revision)]);
            attempt.refused(&format!("{batch} on {revision}"), usize::MAX, &request);
        }
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn calls_are_judged_whatever_era_they_seem_to_be_of() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    let named = ("mcp-name", "wire_transfer");
    for (what, request) in [
        ("no handshake, no header", typed(JSON, TRANSFER.as_bytes())),
        ("no handshake, a session of nobody", post(TRANSFER, &[("mcp-session-id", "made-up")])),
        ("an envelope without headers", modern("wire_transfer", &[])),
        (
            "an envelope in a legacy session",
            modern("wire_transfer", &[mcp::SESSION, ("mcp-protocol-version", "2025-11-25")]),
        ),
        ("headers without an envelope", post(TRANSFER, &[VERSION, METHOD, named])),
        ("a revision of nobody", post(TRANSFER, &[("mcp-protocol-version", "2099-01-01")])),
        ("no revision at all", post(TRANSFER, &[("mcp-protocol-version", "")])),
        ("a notification", typed(JSON, TRANSFER.replace(r#""id":1,"#, "").as_bytes())),
        ("another JSON-RPC", typed(JSON, TRANSFER.replace(r#""2.0""#, r#""1.0""#).as_bytes())),
        ("no JSON-RPC", typed(JSON, TRANSFER.replace(r#""jsonrpc":"2.0","#, "").as_bytes())),
    ] {
        attempt.refused(what, usize::MAX, &request);
    }
}
