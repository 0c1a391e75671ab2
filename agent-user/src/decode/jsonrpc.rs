//! JSON-RPC 2.0 messages, read strictly and without building values.
//!
//! One pass over the bytes notes where the members lie that a decision needs; everything is borrowed. A message that
//! peers could read in two ways is [`Undecodable`]; JSON that is no JSON-RPC is not our business and passes.

use std::borrow::Cow;
use std::collections::HashSet;

use super::json::{Scanner, Stop};
use super::members::{Params, ResultMembers, blame_case_variant};
use super::strings::{string, unescape};
use super::{Limits, Undecodable, mcp, names};

/// Messages that one batch may have.
pub const MAX_BATCH: usize = 1024;

/// What one body, event or line holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the large variant is the usual one, and is moved once")]
pub enum Payload<'a> {
    /// One message.
    Single(Message<'a>),
    /// A batch (MCP 2025-03-26), never empty. Every element is a message.
    Batch(Vec<Message<'a>>),
    /// JSON without JSON-RPC in it: no `jsonrpc` member and no method of MCP. An array without messages too.
    NotJsonRpc,
}

/// One request, notification or response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Which of them, with what only that kind has.
    pub kind: Kind<'a>,
    /// The text of this message: what to forward of a batch.
    pub raw: &'a str,
    /// `params`, if there are any.
    pub params: Option<Params<'a>>,
    /// `result`, if there is one.
    pub result: Option<ResultMembers<'a>>,
    /// The text of `error`, if there is one.
    pub error: Option<&'a str>,
}

/// The kinds of message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// Has a method and an id.
    Request {
        /// Chosen by the sender; null and the like are flagged in it.
        id: RawId<'a>,
        /// Unescaped.
        method: Cow<'a, str>,
    },
    /// Has a method and no id.
    Notification {
        /// Unescaped.
        method: Cow<'a, str>,
    },
    /// An operation of A2A's HTTP+JSON binding: it has no id, and is answered by the whole answer
    /// (see [`super::operation`]).
    Operation {
        /// Its name in A2A 1.0.
        method: &'static str,
    },
    /// Has a result or an error.
    Response {
        /// The id of the request; errors may lack it.
        id: Option<RawId<'a>>,
        /// Has an error.
        is_error: bool,
    },
}

/// An id as it stands on the wire, so that `1`, `"1"` and numbers of any size differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawId<'a> {
    /// The JSON text.
    pub raw: &'a str,
    /// What it is.
    pub kind: IdKind,
}

/// What an id is. MCP allows the first two only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdKind {
    /// A string.
    String,
    /// An integer written without fraction and exponent.
    Integer,
    /// `null`
    Null,
    /// A fraction, a boolean, an array or an object.
    Other,
}

/// Decodes a whole body, the data of one event, or one line. Takes time in proportion to its length, which the caller
/// bounds by [`Limits::message`] or [`Limits::event`].
pub fn decode<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Payload<'a>, Undecodable> {
    let mut scanner = Scanner::new(bytes, limits.depth)?;
    let first = payload(&mut scanner)?;
    names::check(&first, limits.name)?;
    let is_message = first != Payload::NotJsonRpc;
    let mut separated = scanner.space();
    while !scanner.at_end() {
        // Documents in a row are no JSON-RPC, but some servers would take the first, or the last.
        if is_message {
            return Err(Undecodable::Trailing);
        }
        if !separated {
            return Err(Undecodable::Json);
        }
        if payload(&mut scanner)? != Payload::NotJsonRpc {
            return Err(Undecodable::Trailing);
        }
        separated = scanner.space();
    }
    Ok(first)
}

fn payload<'a>(scanner: &mut Scanner<'a>) -> Result<Payload<'a>, Undecodable> {
    scanner.fault = None;
    let found = match scanner.peek() {
        Some(b'{') => message(scanner)?.map_or(Payload::NotJsonRpc, Payload::Single),
        Some(b'[') => batch(scanner)?,
        _ => {
            scanner.skip()?;
            Payload::NotJsonRpc
        }
    };
    match scanner.fault.take() {
        Some(fault) if found != Payload::NotJsonRpc => Err(fault),
        _ => Ok(found),
    }
}

fn batch<'a>(scanner: &mut Scanner<'a>) -> Result<Payload<'a>, Undecodable> {
    let mut messages = Vec::new();
    let (mut others, mut is_nested) = (false, false);
    scanner.array(|scanner| {
        let element = match scanner.peek() {
            Some(b'{') => message(scanner)?,
            // No batch has a batch in it, but a lenient server may flatten it.
            Some(b'[') => {
                is_nested |= has_messages(scanner)?;
                None
            }
            _ => scanner.skip().map(|()| None)?,
        };
        match element {
            Some(_) if messages.len() == MAX_BATCH => return Err(Stop::BatchTooLong),
            Some(message) => messages.push(message),
            None => others = true,
        }
        Ok(())
    })?;
    let requests = messages.iter().filter(|message| matches!(message.kind, Kind::Request { .. }));
    let mut ids = HashSet::new();
    if !requests.filter_map(Message::id).all(|id| ids.insert(id.loose_key())) {
        scanner.blame(Undecodable::DuplicateId);
    }
    match (messages.is_empty() && !is_nested, others) {
        (true, _) => Ok(Payload::NotJsonRpc),
        (false, true) => Err(Undecodable::BatchElement),
        (false, false) => Ok(Payload::Batch(messages)),
    }
}

/// Skips an array; whether a message is among its elements.
fn has_messages(scanner: &mut Scanner<'_>) -> Result<bool, Stop> {
    let mut found = false;
    scanner.array(|scanner| {
        match scanner.peek() {
            Some(b'{') => found |= message(scanner)?.is_some(),
            _ => scanner.skip()?,
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads an object; `None` if it is no JSON-RPC.
fn message<'a>(scanner: &mut Scanner<'a>) -> Result<Option<Message<'a>>, Stop> {
    let mut is_message = false;
    let mut id = None;
    let mut method = None;
    let mut params = None;
    let mut result = None;
    let mut error = None;
    let (raw, ()) = scanner.spanned(|scanner| {
        scanner.object(|scanner, name| {
            match &*unescape(name) {
                "jsonrpc" => {
                    is_message = true;
                    scanner.skip()?;
                }
                "id" => id = Some(RawId::of(scanner.value()?)),
                "method" => {
                    let value = string(scanner.value()?);
                    is_message |= value.as_deref().is_some_and(mcp::is_mcp_method);
                    method = Some(value);
                }
                "params" => params = Some(Params::read(scanner)?),
                "result" => result = Some(ResultMembers::read(scanner)?),
                "error" => error = Some(scanner.value()?).filter(|error| *error != "null"),
                other => {
                    let meant = blame_case_variant(scanner, other, &MEMBERS);
                    let value = scanner.value()?;
                    is_message |= meant == Some("jsonrpc")
                        || meant == Some("method")
                            && string(value).is_some_and(|value| mcp::is_mcp_method(&value));
                }
            }
            Ok(())
        })
    })?;
    if !is_message {
        return Ok(None);
    }
    let answers = result.is_some() || error.is_some();
    let kind = match (method, id, answers) {
        (Some(Some(method)), Some(id), false) => Kind::Request { id, method },
        (Some(Some(method)), None, false) => Kind::Notification { method },
        (None, id, true) => Kind::Response { id, is_error: error.is_some() },
        _ => {
            scanner.blame(Undecodable::Shape);
            Kind::Response { id, is_error: true }
        }
    };
    if error.is_some() && result.as_ref().is_some_and(|result| result.raw != "null") {
        scanner.blame(Undecodable::Shape);
    }
    Ok(Some(Message { kind, raw, params, result, error }))
}

impl<'a> Payload<'a> {
    /// All of them.
    pub fn messages(&self) -> &[Message<'a>] {
        match self {
            Payload::Single(message) => std::slice::from_ref(message),
            Payload::Batch(messages) => messages,
            Payload::NotJsonRpc => &[],
        }
    }
}

impl<'a> RawId<'a> {
    /// The id whose JSON text is `raw`.
    pub fn of(raw: &'a str) -> Self {
        let digits = raw.strip_prefix('-').unwrap_or(raw);
        let kind = match raw.as_bytes().first() {
            Some(b'"') => IdKind::String,
            Some(b'n') => IdKind::Null,
            _ if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => IdKind::Integer,
            _ => IdKind::Other,
        };
        Self { raw, kind }
    }

    /// What to match an answer with its request by: the text, with a string's escapes undone, since the peer may
    /// escape it otherwise. Ids of different kinds never have the same key.
    pub fn key(&self) -> Cow<'a, str> {
        match string(self.raw) {
            Some(Cow::Owned(text)) => Cow::Owned(format!("\"{text}\"")),
            _ => Cow::Borrowed(self.raw),
        }
    }

    /// Whether a peer may mean another id, given as its JSON text, by this one: it is the same, or the same number as many
    /// decoders read numbers. They answer `1.0` by `1`, and large ones rounded.
    pub fn matches(&self, raw: &str) -> bool {
        self.raw == raw || RawId::of(raw).loose_key() == self.loose_key()
    }

    /// The same for all ids that match each other.
    fn loose_key(&self) -> Cow<'a, str> {
        match self.raw.parse::<f64>() {
            // Adding zero makes -0 the same as 0.
            Ok(number) if self.kind != IdKind::String => Cow::Owned((number + 0.0).to_string()),
            _ => self.key(),
        }
    }
}

impl<'a> Message<'a> {
    /// The method of a request or notification.
    pub fn method(&self) -> Option<&str> {
        match &self.kind {
            Kind::Request { method, .. } | Kind::Notification { method } => Some(method),
            Kind::Operation { method } => Some(method),
            Kind::Response { .. } => None,
        }
    }

    /// The id, if there is one.
    pub fn id(&self) -> Option<RawId<'a>> {
        match &self.kind {
            Kind::Request { id, .. } => Some(*id),
            Kind::Notification { .. } | Kind::Operation { .. } => None,
            Kind::Response { id, .. } => *id,
        }
    }
}

const MEMBERS: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(input: &str) -> Result<Payload<'_>, Undecodable> {
        decode(input.as_bytes(), &Limits::default())
    }

    fn single(input: &str) -> Message<'_> {
        match decoded(input) {
            Ok(Payload::Single(message)) => message,
            other => panic!("{input}: {other:?}"),
        }
    }

    #[track_caller]
    fn check_kind(input: &str, expect: Kind<'_>) {
        assert_eq!(single(input).kind, expect, "{input}");
    }

    #[track_caller]
    fn check_refused(input: &str, expect: Undecodable) {
        assert_eq!(decoded(input), Err(expect), "{input}");
    }

    #[track_caller]
    fn check_passes(input: &str) {
        assert_eq!(decoded(input), Ok(Payload::NotJsonRpc), "{input}");
    }

    #[test]
    fn kinds_are_told_apart() {
        let id = RawId::of("1");
        let method = "ping".into();
        check_kind(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, Kind::Request { id, method });
        let method = "notifications/initialized".into();
        check_kind(
            r#"{"method":"notifications/initialized","jsonrpc":"2.0"}"#,
            Kind::Notification { method },
        );
        check_kind(
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
            Kind::Response { id: Some(id), is_error: false },
        );
        check_kind(r#"{"jsonrpc":"2.0","error":{"code":-1}}"#, Kind::Response { id: None, is_error: true });
        let both = r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1}}"#;
        check_kind(both, Kind::Response { id: Some(id), is_error: true });
        let method = "tools/call".into();
        check_kind(r#"{"id":1,"\u006dethod":"tools\u002fcall"}"#, Kind::Request { id, method });
    }

    #[test]
    fn members_are_noted_as_they_stand() {
        let message = single(
            r#" {"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"a\u0062","arguments":{"x": [1]},
                "_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":7}}} "#,
        );
        let params = message.params.as_ref().unwrap();
        assert!(message.raw.starts_with('{') && message.raw.ends_with("}}}"));
        assert!(params.raw.starts_with("{\"name\"") && params.raw.ends_with("}}"));
        assert_eq!((params.name, params.arguments), (Some(r#""a\u0062""#), Some(r#"{"x": [1]}"#)));
        assert_eq!(params.meta.protocol_version, Some(r#""2026-07-28""#));
        assert_eq!(params.meta.progress_token, Some("7"));
        assert!(params.meta.raw.starts_with("{\"io.") && params.meta.raw.ends_with(":7}"));
        let answer =
            single(r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[{"text":"\ud83d"}]}}"#);
        assert_eq!(answer.result.unwrap().is_error, Some("true"));
    }

    #[test]
    fn ids_match_however_their_text_is_escaped() {
        assert!(RawId::of(r#""\u00fc""#).matches("\"ü\""));
        assert!(RawId::of("\"ü\"").matches(r#""\u00fc""#));
        assert!(!RawId::of("1").matches("\"1\""));
    }

    #[test]
    fn ids_keep_their_type() {
        let check = |raw: &str, kind, key: &str| {
            let id = RawId::of(raw);
            assert_eq!((id.kind, &*id.key()), (kind, key), "{raw}");
        };
        check("1", IdKind::Integer, "1");
        check("-7", IdKind::Integer, "-7");
        check("123456789012345678901234567890", IdKind::Integer, "123456789012345678901234567890");
        check(r#""1""#, IdKind::String, r#""1""#);
        check(r#""\u0061""#, IdKind::String, r#""a""#);
        check("null", IdKind::Null, "null");
        check("1.0", IdKind::Other, "1.0");
        check("1e3", IdKind::Other, "1e3");
        check("[1]", IdKind::Other, "[1]");
    }

    #[test]
    fn hostile_messages_are_refused_by_name() {
        let duplicate = |name: &str| Undecodable::DuplicateMember(name.into());
        let variant = |name: &str| Undecodable::CaseVariant(name.into());
        check_refused(
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}"#,
            duplicate("method"),
        );
        check_refused(r#"{"id":1,"method":"x","\u006dethod":"tools/call"}"#, duplicate("method"));
        check_refused(
            r#"{"jsonrpc":"2.0","method":"a","params":{"name":"a","name":"b"}}"#,
            duplicate("name"),
        );
        check_refused(r#"{"jsonrpc":"2.0","method":"a","params":{"_meta":{"k":1,"k":2}}}"#, duplicate("k"));
        check_refused(
            r#"{"jsonrpc":"2.0","method":"a","params":{"arguments":{"k":1,"k":2}}}"#,
            duplicate("k"),
        );
        check_refused(
            r#"{"jsonrpc":"2.0","id":1,"result":{"isError":false,"isError":true}}"#,
            duplicate("isError"),
        );
        check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}"#, variant("Method"));
        check_refused(
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","param\u017f":{}}"#,
            variant("param\u{17f}"),
        );
        check_refused(r#"{"Jsonrpc":"2.0","id":1,"method":"x"}"#, variant("Jsonrpc"));
        check_refused(r#"{"id":1,"Method":"tools/call"}"#, variant("Method"));
        check_refused(r#"{"jsonrpc":"2.0","method":"a","params":{"NAME":"b"}}"#, variant("NAME"));
        check_refused(
            r#"{"jsonrpc":"2.0","method":"a","params":{"name":"\ud800"}}"#,
            Undecodable::LoneSurrogate,
        );
        check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"a","result":{}}"#, Undecodable::Shape);
        check_refused(r#"{"jsonrpc":"2.0","id":1,"error":{},"result":{}}"#, Undecodable::Shape);
        check_refused(r#"{"jsonrpc":"2.0","id":1,"method":7}"#, Undecodable::Shape);
        check_refused(r#"{"jsonrpc":"2.0","id":1}"#, Undecodable::Shape);
        check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"a"}{}"#, Undecodable::Trailing);
        check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"a"} x"#, Undecodable::Trailing);
        check_refused("{\"a\":1}\n{\"id\":1,\"method\":\"tools/call\"}", Undecodable::Trailing);
        check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"a""#, Undecodable::Json);
        check_refused("{\"a\":1} x", Undecodable::Json);
        check_refused("", Undecodable::Empty);
        check_refused("\u{feff}{}", Undecodable::Bom);
        check_refused(&"[".repeat(200), Undecodable::Depth);
    }

    #[test]
    fn other_json_passes() {
        for input in [
            "{}",
            "[]",
            "7",
            "\"x\"",
            "[1,{\"a\":1}]",
            r#"{"a":1,"a":2}"#,
            r#"{"method":"GET","id":1}"#,
            "{\"a\":1}\n{\"b\":2}\r\n\n{\"c\":3}\n",
            r#"{"result":{},"id":1}"#,
            r#"{"Method":"GET"}"#,
            r#"{"x":"\ud800"}"#,
            r#"{"message":{"jsonrpc":"2.0","method":"tools/call"}}"#,
        ] {
            check_passes(input);
        }
    }

    #[test]
    fn every_element_of_a_batch_is_decoded() {
        let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
        let blocked = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a"}}"#;
        let input = format!("[{ping} , {blocked}]");
        let Ok(Payload::Batch(messages)) = decoded(&input) else { panic!("a batch") };
        assert_eq!(messages.iter().map(|message| message.raw).collect::<Vec<_>>(), [ping, blocked]);
        check_refused(&format!("[{ping},1]"), Undecodable::BatchElement);
        check_refused(&format!("[{{}},{ping}]"), Undecodable::BatchElement);
        check_refused(&format!("[[],{ping}]"), Undecodable::BatchElement);
        check_refused(&format!("[[{{}},{ping}]]"), Undecodable::BatchElement);
        check_refused(&format!("[[],[1,{blocked}]]"), Undecodable::BatchElement);
        check_passes(r#"[[{"method":"GET"},[1]],[]]"#);
        check_refused(&format!("[{}]", vec![ping; MAX_BATCH + 1].join(",")), Undecodable::BatchTooLong);
    }

    #[test]
    fn ids_match_as_peers_read_them() {
        let check = |sent, answered, expect| {
            assert_eq!(RawId::of(sent).matches(answered), expect, "{sent} {answered}")
        };
        for (sent, answered) in [
            ("1.0", "1"),
            ("1e0", "1"),
            ("-0", "0"),
            ("12345678901234567890123", "1.2345678901234568e+22"),
            (r#""\u0061""#, r#""a""#),
        ] {
            check(sent, answered, true);
        }
        for (sent, answered) in
            [("1", r#""1""#), ("1", "2"), ("null", "0"), (r#""nan""#, r#""NaN""#), ("1.5", "1")]
        {
            check(sent, answered, false);
        }
    }

    #[test]
    fn two_requests_of_one_id_are_no_batch() {
        let request = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let batch = |ids: [&str; 2]| format!("[{},{}]", request(ids[0]), request(ids[1]));
        check_refused(&batch(["1", "1"]), Undecodable::DuplicateId);
        check_refused(&batch(["1", "1.0"]), Undecodable::DuplicateId);
        assert!(matches!(decoded(&batch(["1", r#""1""#])), Ok(Payload::Batch(_))));
    }
}
