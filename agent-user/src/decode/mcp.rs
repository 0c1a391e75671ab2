//! What a JSON-RPC message asks for in MCP, and whether the headers that travel with it agree.
//!
//! The body decides; headers are claims and only ever checked against it (MCP 2026-07-28, transports). Each message
//! stands alone: what a session remembers is handed in.

use std::borrow::Cow;

use super::fields::McpHeaders;
use super::jsonrpc::{Kind, Message, RawId};
use super::members::Params;
use super::sentinel;
use super::strings::string;

/// The revisions of MCP: a set of names, not ordered, since an unknown one must not compare as newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Revision {
    /// 2024-11-05, HTTP+SSE
    V2024_11_05,
    /// 2025-03-26, Streamable HTTP, batches
    V2025_03_26,
    /// 2025-06-18
    V2025_06_18,
    /// 2025-11-25
    V2025_11_25,
    /// 2026-07-28, no handshake
    V2026_07_28,
}

/// What a request or notification asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The method, unescaped.
    pub method: Cow<'a, str>,
    /// The tool, prompt, resource or task it is about, unescaped.
    pub name: Option<Cow<'a, str>>,
    /// The JSON text of `params.arguments`.
    pub arguments: Option<&'a str>,
    /// The revision that the body states, if we know it.
    pub revision: Option<Revision>,
    /// The text of the revision that the body states, known or not.
    pub stated_revision: Option<Cow<'a, str>>,
    /// `_meta` holds the protocol version: the message is of 2026-07-28 or later.
    pub is_enveloped: bool,
    /// The progress token of the request, compared as an id is.
    pub progress_token: Option<RawId<'a>>,
    /// The id that a `notifications/cancelled` names.
    pub cancelled_request_id: Option<RawId<'a>>,
    /// The method belongs to MCP, by its name and, where A2A has the same one, by its params.
    pub is_mcp: bool,
}

/// What HTTP headers claim about a message, over any HTTP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims<'a> {
    /// `MCP-Protocol-Version`
    pub protocol_version: Option<&'a [u8]>,
    /// `Mcp-Method`
    pub method: Option<&'a [u8]>,
    /// `Mcp-Name` as sent
    pub name: Option<&'a [u8]>,
    /// A header that says the same as the body and occurs twice.
    pub repeated: Option<&'static str>,
    /// An `Mcp-Param-*` that readers decode differently.
    pub broken_param: Option<&'a [u8]>,
}

/// A header that says something else than the body, with both as evidence (at most 256 characters each).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The header, in lower case.
    pub header: &'static str,
    /// What it says, base64 undone where it could be. Empty for a repeated header.
    pub header_value: String,
    /// What the body says; empty if it says nothing.
    pub body_value: String,
}

/// What a response says, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultFacts<'a> {
    /// A JSON-RPC error, or a tool result with `isError: true`.
    pub is_error: bool,
    /// `resultType` of 2026-07-28: `complete`, `input_required`, `task`, …
    pub result_type: Option<Cow<'a, str>>,
    /// The revision that an initialize result puts in force, if we know it.
    pub revision: Option<Revision>,
    /// The JSON text of `tools` of a list.
    pub tools: Option<&'a str>,
    /// The JSON text of `nextCursor`: more follows, even if it is `""`.
    pub next_cursor: Option<&'a str>,
}

impl Call<'_> {
    /// The URI of the resource that it asks for.
    pub fn resource(&self) -> Option<&str> {
        let asks = matches!(&*self.method, "resources/read" | "resources/subscribe");
        self.name.as_deref().filter(|_| asks)
    }
}

/// Reads what `message` asks for; `None` for a response.
pub fn call<'a>(message: &Message<'a>) -> Option<Call<'a>> {
    let method = match &message.kind {
        Kind::Request { method, .. } | Kind::Notification { method } => method.clone(),
        Kind::Operation { method } => Cow::Borrowed(*method),
        Kind::Response { .. } => return None,
    };
    let none = Params::default();
    let params = message.params.as_ref().unwrap_or(&none);
    let stated = match params.meta.protocol_version {
        None if method == "initialize" => params.protocol_version,
        stated => stated,
    };
    let stated = stated.and_then(string);
    let cancelled = if method == "notifications/cancelled" { params.request_id } else { None };
    Some(Call {
        name: subject(&method).and_then(|subject| subject.of(params)).and_then(string),
        arguments: params.arguments,
        revision: stated.as_deref().and_then(Revision::parse),
        stated_revision: stated,
        is_enveloped: params.meta.protocol_version.is_some(),
        progress_token: params.meta.progress_token.or(params.progress_token).map(RawId::of),
        cancelled_request_id: cancelled.map(RawId::of),
        is_mcp: is_mcp(&method, params),
        method,
    })
}

/// Reads what a response says; `None` for a request or notification.
pub fn result_facts<'a>(message: &Message<'a>) -> Option<ResultFacts<'a>> {
    let Kind::Response { is_error, .. } = message.kind else { return None };
    let result = message.result.as_ref();
    Some(ResultFacts {
        is_error: is_error || result.is_some_and(|result| result.is_error == Some("true")),
        result_type: result.and_then(|result| result.result_type).and_then(string),
        revision: result
            .and_then(|result| string(result.protocol_version?))
            .and_then(|stated| Revision::parse(&stated)),
        tools: result.and_then(|result| result.tools),
        next_cursor: result.and_then(|result| result.next_cursor).filter(|cursor| *cursor != "null"),
    })
}

/// Whether a result puts requests of its server to the client (2026-07-28, multi round-trip requests).
pub fn asks_for_input(message: &Message<'_>) -> bool {
    let kind = message.result.as_ref().and_then(|result| string(result.result_type?));
    kind.as_deref() == Some("input_required")
}

/// The revision that a message over HTTP is of. `session` is what is bound to its session: the initialize result's,
/// or 2024-11-05 for a URI learnt from an `endpoint` event. `None` is a revision that we do not know.
pub fn revision(call: &Call<'_>, claims: &Claims<'_>, session: Option<Revision>) -> Option<Revision> {
    if call.is_enveloped {
        return call.revision;
    }
    if call.method == "initialize" {
        // Provisional, and a handshake whatever it offers: the Rust SDK offers 2026-07-28 in one.
        return call.revision.map(|offer| if offer.is_modern() { Revision::V2025_11_25 } else { offer });
    }
    session.or_else(|| claimed_revision(claims))
}

/// The revision that headers alone say, if we know it. Without any it is what a server must assume (2025-06-18,
/// transports).
pub fn claimed_revision(claims: &Claims<'_>) -> Option<Revision> {
    match claims.protocol_version {
        Some(claimed) => Revision::parse(std::str::from_utf8(claimed).ok()?),
        None => Some(Revision::V2025_03_26),
    }
}

/// The first header that disagrees with the body, occurs twice, or is not quite coded. Absent headers disagree with nothing.
pub fn mismatch(claims: &Claims<'_>, call: &Call<'_>) -> Option<Mismatch> {
    let differ = |header, header_value: &[u8], body_value: &str| {
        let cut = |text: &str| text.chars().take(256).collect();
        Some(Mismatch {
            header,
            header_value: cut(&String::from_utf8_lossy(header_value)),
            body_value: cut(body_value),
        })
    };
    if let Some(header) = claims.repeated {
        return differ(header, b"", "");
    }
    if let Some(value) = claims.broken_param {
        return differ("mcp-param-*", value, "");
    }
    if let Some(value) = claims.method.filter(|value| *value != call.method.as_bytes()) {
        return differ("mcp-method", value, &call.method);
    }
    if let Some(value) = claims.name.filter(|_| subject(&call.method).is_some()) {
        let body = call.name.as_deref();
        match sentinel::decode(value) {
            Some(decoded) if body.is_some_and(|body| body.as_bytes() == &*decoded) => {}
            decoded => {
                return differ("mcp-name", decoded.as_deref().unwrap_or(value), body.unwrap_or_default());
            }
        }
    }
    let stated = call.stated_revision.as_deref().unwrap_or_default();
    let version = claims.protocol_version.filter(|_| call.is_enveloped)?;
    if version == stated.as_bytes() { None } else { differ("mcp-protocol-version", version, stated) }
}

/// Whether a message asks for something of MCP.
pub fn asks(message: &Message<'_>) -> bool {
    call(message).is_some_and(|call| call.is_mcp)
}

/// Whether a method is MCP's by its name alone. `tasks/*` counts, though A2A has some of them too.
pub fn is_mcp_method(method: &str) -> bool {
    match method.split_once('/') {
        None => matches!(method, "initialize" | "ping"),
        Some(("server", name)) => name == "discover",
        Some(("tasks", name)) => {
            name != "resubscribe"
                && name != "send"
                && name != "sendSubscribe"
                && !name.starts_with("pushNotification")
        }
        Some((family, _)) => FAMILIES.contains(&family),
    }
}

fn is_mcp(method: &str, params: &Params<'_>) -> bool {
    let is_shared = method.starts_with("tasks/") && params.id.is_some();
    is_mcp_method(method) && (!is_shared || params.task_id.is_some() || params.meta.is_mcp)
}

/// Which member of params says what a call is about.
#[derive(Clone, Copy)]
enum Subject {
    Name,
    Uri,
    TaskId,
}

fn subject(method: &str) -> Option<Subject> {
    match method {
        "tools/call" | "prompts/get" => Some(Subject::Name),
        "resources/read"
        | "resources/subscribe"
        | "resources/unsubscribe"
        | "notifications/resources/updated" => Some(Subject::Uri),
        "tasks/get" | "tasks/update" | "tasks/cancel" | "tasks/result" => Some(Subject::TaskId),
        _ => None,
    }
}

impl Subject {
    fn of<'a>(self, params: &Params<'a>) -> Option<&'a str> {
        match self {
            Self::Name => params.name,
            Self::Uri => params.uri,
            Self::TaskId => params.task_id,
        }
    }
}

impl Revision {
    /// The revision of this name; `None` for any other.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "2024-11-05" => Self::V2024_11_05,
            "2025-03-26" => Self::V2025_03_26,
            "2025-06-18" => Self::V2025_06_18,
            "2025-11-25" => Self::V2025_11_25,
            "2026-07-28" => Self::V2026_07_28,
            _ => return None,
        })
    }

    /// The name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// No handshake, and closing a stream cancels the request.
    pub fn is_modern(self) -> bool {
        self == Self::V2026_07_28
    }
}

impl McpHeaders {
    /// The claims, given the head that they were read from.
    pub fn claims<'a>(&self, head: &'a [u8]) -> Claims<'a> {
        Claims {
            protocol_version: self.protocol_version.map(|span| span.of(head)),
            method: self.method.map(|span| span.of(head)),
            name: self.name.map(|span| span.of(head)),
            repeated: self.repeated,
            broken_param: self.broken_param.map(|span| span.of(head)),
        }
    }
}

const FAMILIES: [&str; 10] = [
    "tools",
    "resources",
    "prompts",
    "completion",
    "logging",
    "sampling",
    "roots",
    "elicitation",
    "subscriptions",
    "notifications",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Limits, Payload, decode};

    fn message(input: &str) -> Message<'_> {
        match decode(input.as_bytes(), &Limits::default()) {
            Ok(Payload::Single(message)) => message,
            other => panic!("{input}: {other:?}"),
        }
    }

    fn asked(method: &str, params: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
    }

    #[track_caller]
    fn check_name(method: &str, params: &str, name: Option<&str>, is_mcp: bool) {
        let text = asked(method, params);
        let call = call(&message(&text)).unwrap();
        assert_eq!((call.name.as_deref(), call.is_mcp), (name, is_mcp), "{text}");
    }

    #[test]
    fn calls_name_what_they_are_about() {
        check_name("tools/call", r#"{"name":"wire\u005ftransfer"}"#, Some("wire_transfer"), true);
        check_name("tools/call", r#"{"name":7}"#, None, true);
        check_name("prompts/get", r#"{"name":"p"}"#, Some("p"), true);
        check_name("resources/read", r#"{"uri":"file:\/\/a","name":"x"}"#, Some("file://a"), true);
        check_name("tasks/cancel", r#"{"taskId":"t-9"}"#, Some("t-9"), true);
        check_name("tasks/cancel", r#"{"id":"t-9"}"#, None, false);
        check_name("tasks/get", r#"{"id":"t-9","_meta":{"io.modelcontextprotocol/x":1}}"#, None, true);
        check_name("tasks/resubscribe", r#"{"id":"t-9"}"#, None, false);
        check_name("message/send", "{}", None, false);
        check_name("SendMessage", "{}", None, false);
        check_name("server/discover", "{}", None, true);
        check_name("notifications/tools/list_changed", "[]", None, true);
    }

    #[test]
    fn a_result_asks_for_input_however_it_spells_that() {
        let check = |kind: &str, expect| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"resultType":{kind}}}}}"#);
            assert_eq!(asks_for_input(&message(&text)), expect, "{text}");
        };
        check(r#""input_required""#, true);
        check(r#""input\u005frequired""#, true);
        check(r#""complete""#, false);
        check("7", false);
    }

    #[test]
    fn revision_is_body_first() {
        let check = |method: &str, params: &str, header: Option<&str>, session, expect| {
            let text = asked(method, params);
            let claims = Claims { protocol_version: header.map(str::as_bytes), ..Claims::default() };
            assert_eq!(
                revision(&call(&message(&text)).unwrap(), &claims, session),
                expect,
                "{text} {header:?}"
            );
        };
        let modern = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        let future = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2027-01-01"}}"#;
        let old = Some(Revision::V2025_06_18);
        check("tools/call", modern, Some("2025-11-25"), old, Some(Revision::V2026_07_28));
        check("tools/call", future, None, old, None);
        check("initialize", r#"{"protocolVersion":"2025-11-25"}"#, None, None, Some(Revision::V2025_11_25));
        check("initialize", r#"{"protocolVersion":"2026-07-28"}"#, None, None, Some(Revision::V2025_11_25));
        check("tools/call", "{}", Some("2025-11-25"), old, old);
        check("tools/call", "{}", Some("2025-11-25"), None, Some(Revision::V2025_11_25));
        check("tools/call", "{}", Some("9999-99-99"), None, None);
        check("tools/call", "{}", None, None, Some(Revision::V2025_03_26));
    }

    #[test]
    fn revisions_have_one_name_each() {
        for name in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"] {
            assert_eq!(Revision::parse(name).map(Revision::as_str), Some(name));
        }
        assert_eq!(Revision::parse("2024-10-07"), None);
    }

    #[test]
    fn headers_that_disagree_with_the_body_are_found() {
        let params = r#"{"name":"Zürich","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        let modern = asked("tools/call", params);
        let list = asked("tools/list", "{}");
        let check = |body: &str, claims: Claims<'_>, expect: Option<(&str, &str, &str)>| {
            let found = mismatch(&claims, &call(&message(body)).unwrap());
            let found = found.as_ref().map(|m| (m.header, m.header_value.as_str(), m.body_value.as_str()));
            assert_eq!(found, expect, "{claims:?}");
        };
        let none = Claims::default();
        let name = |name: &'static str| Claims { name: Some(name.as_bytes()), ..none };
        check(&modern, none, None);
        check(&modern, name("=?base64?WsO8cmljaA==?="), None);
        check(&modern, name("Zürich"), None);
        check(&modern, name("safe_tool"), Some(("mcp-name", "safe_tool", "Zürich")));
        check(&modern, name("=?base64?WsO8cmljaA?="), Some(("mcp-name", "=?base64?WsO8cmljaA?=", "Zürich")));
        check(&modern, name(""), Some(("mcp-name", "", "Zürich")));
        check(&list, name("anything"), None);
        let method = |method: &'static str| Claims { method: Some(method.as_bytes()), ..none };
        check(&modern, method("tools/call"), None);
        check(&modern, method("Tools/Call"), Some(("mcp-method", "Tools/Call", "tools/call")));
        let version = |version: &'static str| Claims { protocol_version: Some(version.as_bytes()), ..none };
        check(&modern, version("2026-07-28"), None);
        check(&modern, version("2025-11-25"), Some(("mcp-protocol-version", "2025-11-25", "2026-07-28")));
        check(&list, version("2025-11-25"), None);
        check(&list, Claims { repeated: Some("mcp-name"), ..none }, Some(("mcp-name", "", "")));
        let broken = Claims { broken_param: Some(b"=?BASE64?YQ==?="), ..none };
        check(&list, broken, Some(("mcp-param-*", "=?BASE64?YQ==?=", "")));
    }

    #[test]
    fn cancellation_and_progress_are_typed() {
        let text = asked("notifications/cancelled", r#"{"requestId":"c-17"}"#);
        assert_eq!(call(&message(&text)).unwrap().cancelled_request_id, Some(RawId::of("\"c-17\"")));
        let text = asked("tools/call", r#"{"name":"a","arguments":{"x":1.0},"_meta":{"progressToken":3}}"#);
        let text_call = call(&message(&text)).unwrap();
        assert_eq!(text_call.progress_token, Some(RawId::of("3")));
        assert_eq!(text_call.arguments, Some(r#"{"x":1.0}"#));
    }

    #[test]
    fn results_say_whether_they_failed() {
        let check = |body: &str, is_error, result_type: Option<&str>| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#);
            let facts = result_facts(&message(&text)).unwrap();
            assert_eq!((facts.is_error, facts.result_type.as_deref()), (is_error, result_type), "{body}");
        };
        check(r#""result":{"content":[],"isError":true}"#, true, None);
        check(r#""result":{"resultType":"input_required"}"#, false, Some("input_required"));
        check(r#""error":{"code":-32601}"#, true, None);
        check(r#""result":[]"#, false, None);
        let text = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","tools":[],"nextCursor":""}}"#;
        let facts = result_facts(&message(text)).unwrap();
        assert_eq!(facts.revision, Some(Revision::V2025_06_18));
        assert_eq!((facts.tools, facts.next_cursor), (Some("[]"), Some("\"\"")));
    }
}
