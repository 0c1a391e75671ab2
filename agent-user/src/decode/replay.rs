//! Tests only: recorded connections of real SDKs, fed through all decoders in writes of every size.

use std::collections::VecDeque;
use std::fmt::Write as _;

use super::*;

/// One direction of a recorded connection.
pub(super) struct Replay {
    /// Methods still to be answered, if this is the server's side.
    answers: Option<VecDeque<Method>>,
    pub(super) pending: Vec<u8>,
    pub(super) consumed: usize,
    body: Option<Current>,
    /// One line per message.
    seen: Vec<String>,
    methods: VecDeque<Method>,
}

struct Current {
    body: Body,
    media: Media,
    content: Vec<u8>,
    events: Events,
    claims: Option<(McpHeaders, Vec<u8>)>,
}

impl Replay {
    pub(super) fn new(answers: Option<VecDeque<Method>>) -> Self {
        let (seen, methods) = (Vec::new(), VecDeque::new());
        Self { answers, pending: Vec::new(), consumed: 0, body: None, seen, methods }
    }

    /// Takes the next bytes; an error is what the decoders refuse.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.pending.extend_from_slice(bytes);
        loop {
            let more = match self.body.take() {
                None => self.head()?,
                Some(current) => self.body(current)?,
            };
            if !more {
                return Ok(());
            }
        }
    }

    fn head(&mut self) -> Result<bool, String> {
        let limit = Limits::default().header;
        let (len, line, framing, media, claims) = match &mut self.answers {
            None => match parse_request(&self.pending, limit).map_err(|error| error.to_string())? {
                None => return Ok(false),
                Some(head) => {
                    self.methods.push_back(head.method);
                    let raw = self.pending[..head.len].to_vec();
                    let line = format!("{:?}", head.method).to_uppercase();
                    (head.len, line, head.framing, head.media, Some((head.mcp, raw)))
                }
            },
            Some(methods) => {
                let method = methods.front().copied().unwrap_or(Method::Post);
                match parse_response(&self.pending, limit, method).map_err(|error| error.to_string())? {
                    None => return Ok(false),
                    Some(head) => {
                        if head.status >= 200 {
                            methods.pop_front();
                        }
                        (head.len, head.status.to_string(), head.framing, head.media, None)
                    }
                }
            }
        };
        self.take(len);
        self.seen.push(line);
        let events = Events::new(Limits::default().event);
        self.body = Some(Current { body: Body::new(framing), media, content: Vec::new(), events, claims });
        Ok(true)
    }

    fn body(&mut self, mut current: Current) -> Result<bool, String> {
        let step = current.body.advance(&self.pending).map_err(|error| error.to_string())?;
        let mut data = &self.pending[step.data];
        if current.media == Media::EventStream {
            while let Some(end) = current.events.next_end(data).map_err(|error| error.to_string())? {
                current.content.extend_from_slice(&data[..end]);
                // How often nothing is said depends on the writes.
                self.seen
                    .extend(event(&sse::fields(&current.content)).map(|event| format!("  event {event}")));
                current.content.clear();
                data = &data[end..];
            }
        }
        current.content.extend_from_slice(data);
        self.take(step.consumed);
        if !step.done {
            self.body = Some(current);
            return Ok(step.consumed > 0);
        }
        if current.media == Media::Json && !current.content.is_empty() {
            self.seen.push(format!("  {}", payload(&current.content, current.claims.as_ref())));
        }
        Ok(true)
    }

    fn take(&mut self, len: usize) {
        self.pending.drain(..len);
        self.consumed += len;
    }
}

fn event(event: &Event<'_>) -> Option<String> {
    match event.has_data {
        true => Some(payload(&event.data, None)),
        false => event.id.then(|| "priming".to_owned()),
    }
}

fn payload(bytes: &[u8], claims: Option<&(McpHeaders, Vec<u8>)>) -> String {
    match decode(bytes, &Limits::default()) {
        Ok(Payload::Single(message)) => {
            let mut line = String::new();
            match (&message.kind, mcp::call(&message), mcp::result_facts(&message)) {
                (Kind::Request { id, .. }, Some(call), _) => write!(line, "{} {}", call.method, id.raw),
                (_, Some(call), _) => write!(line, "{}", call.method),
                (Kind::Response { id, .. }, _, Some(facts)) => {
                    let error = if facts.is_error { "error" } else { "result" };
                    write!(line, "{error} {}", id.map_or("-", |id| id.raw))
                }
                _ => unreachable!("a call or a response"),
            }
            .unwrap();
            if let Some(call) = mcp::call(&message) {
                if let Some(name) = &call.name {
                    write!(line, " {name}").unwrap();
                }
                if let Some((headers, head)) = claims {
                    let claims = headers.claims(head);
                    if let Some(mismatch) = mcp::mismatch(&claims, &call) {
                        write!(line, " unlike {}", mismatch.header).unwrap();
                    }
                    if call.is_mcp {
                        let revision = mcp::revision(&call, &claims, None);
                        write!(line, " {}", revision.map_or("unknown", Revision::as_str)).unwrap();
                    }
                }
            }
            line
        }
        Ok(Payload::Batch(messages)) => format!("batch of {}", messages.len()),
        Ok(Payload::NotJsonRpc) => "other json".to_owned(),
        Err(error) => error.label().to_owned(),
    }
}

/// Feeds `input` in the given pieces; all of it must be consumed.
fn feed<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    answers: Option<&VecDeque<Method>>,
) -> (Vec<String>, VecDeque<Method>) {
    let mut replay = Replay::new(answers.cloned());
    let mut total = 0;
    for piece in pieces {
        replay.write(piece).unwrap();
        total += piece.len();
    }
    assert_eq!((replay.consumed, replay.pending.len()), (total, 0));
    (replay.seen, replay.methods)
}

/// The messages of one direction, the same for every way to cut it.
fn messages(input: &[u8], answers: Option<&VecDeque<Method>>) -> (Vec<String>, VecDeque<Method>) {
    let whole = feed([input], answers);
    for cut in 0..input.len() {
        let (before, after) = input.split_at(cut);
        assert_eq!(feed([before, after], answers), whole, "cut at {cut}");
    }
    for size in [1, 2, 3, 7, 100] {
        assert_eq!(feed(input.chunks(size), answers), whole, "in writes of {size}");
    }
    whole
}

#[track_caller]
fn check(name: &str, expect: &str) {
    let (_, agent, server) =
        CAPTURES.iter().find(|(known, ..)| *known == name).expect("a recording of this name");
    let (mut seen, methods) = messages(agent, None);
    seen.extend(messages(server, Some(&methods)).0);
    let expect: Vec<&str> = expect.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let seen: Vec<&str> = seen.iter().map(|line| line.trim()).collect();
    assert_eq!(seen, expect, "{name}\n{}", seen.join("\n"));
}

#[test]
fn a2a_stream_answers_one_id_many_times() {
    check(
        "a2a-sdk-1.3.0--jsonrpc-stream.c2",
        r#"
            POST
            SendStreamingMessage "fffc8380-c115-40e9-97e5-05d363e4611c"
            200
            event result "fffc8380-c115-40e9-97e5-05d363e4611c"
            event result "fffc8380-c115-40e9-97e5-05d363e4611c"
            event result "fffc8380-c115-40e9-97e5-05d363e4611c"
            event result "fffc8380-c115-40e9-97e5-05d363e4611c"
        "#,
    );
}

#[test]
fn a2a_rest_is_no_jsonrpc() {
    check(
        "a2a-sdk-1.3.0--rest-stream.c2",
        "
            POST
            other json
            200
            event other json
            event other json
            event other json
            event other json
        ",
    );
}

#[test]
fn probe_that_fails_is_followed_by_a_handshake() {
    check(
        "srv-everything-2026.8.31--cli-py-mcp-2.3.0-auto.c1",
        "
            POST
            server/discover 1 2026-07-28
            POST
            initialize 2 2025-11-25
            400
            error null
            200
            event priming
            event result 2
        ",
    );
}

#[test]
fn priming_event_comes_before_a_long_list() {
    check(
        "srv-everything-2026.8.31--cli-py-mcp-2.3.0-auto.c4",
        "
            POST
            tools/list 3 2025-11-25
            200
            event priming
            event result 3
        ",
    );
}

#[test]
fn fastmcp_uses_one_connection() {
    check(
        "srv-fastmcp-4.2.3--cli-fastmcp-4.2.3.c1",
        "
            POST
            server/discover 1 2026-07-28
            POST
            tools/list 2 2026-07-28
            POST
            tools/call 3 add 2026-07-28
            POST
            tools/call 4 slow 2026-07-28
            200
            result 1
            200
            result 2
            200
            result 3
            200
            event notifications/progress
            event notifications/progress
            event notifications/progress
            event result 4
        ",
    );
}

#[test]
fn python_1_handshake_is_answered_in_a_stream() {
    check(
        "srv-py-mcp-1.30.0-sse--cli-py-mcp-1.30.0.c1",
        "
            POST
            initialize 0 2025-11-25
            200
            event result 0
        ",
    );
}

#[test]
fn python_1_list_is_answered_in_a_stream() {
    check(
        "srv-py-mcp-1.30.0-sse--cli-py-mcp-1.30.0.c4",
        "
            POST
            tools/list 1 2025-11-25
            200
            event result 1
        ",
    );
}

#[test]
fn session_is_ended_by_delete() {
    check(
        "srv-py-mcp-1.30.0-sse--cli-py-mcp-1.30.0.c7",
        "
            DELETE
            200
        ",
    );
}

#[test]
fn typescript_1_calls_a_python_server() {
    check(
        "srv-py-mcp-1.30.0-sse--cli-ts-sdk-1.32.2.c3",
        "
            POST
            tools/list 1 2025-11-25
            POST
            tools/call 3 slow 2025-11-25
            200
            event result 1
            200
            event notifications/progress
            event notifications/progress
            event notifications/progress
            event result 3
        ",
    );
}

#[test]
fn python_2_needs_no_handshake() {
    check(
        "srv-py-mcp-2.3.0--cli-py-mcp-2.3.0-auto.c1",
        "
            POST
            server/discover 1 2026-07-28
            POST
            tools/list 2 2026-07-28
            POST
            tools/call 3 add 2026-07-28
            POST
            tools/call 4 slow 2026-07-28
            200
            result 1
            200
            result 2
            200
            result 3
            200
            event notifications/progress
            event notifications/progress
            event notifications/progress
            event result 4
        ",
    );
}

#[test]
fn rust_call_is_enveloped() {
    check(
        "srv-rmcp-3.11.0--cli-rmcp-3.11.0-auto.c3",
        "
            POST
            tools/call 2 add 2026-07-28
            200
            event result 2
        ",
    );
}

#[test]
fn rust_handshake_offers_a_revision_without_handshakes() {
    check(
        "srv-rmcp-3.11.0--cli-rmcp-3.11.0.c1",
        "
            POST
            initialize 0 2025-11-25
            200
            event priming
            event result 0
        ",
    );
}

#[test]
fn rust_list_begins_with_a_priming_event() {
    check(
        "srv-rmcp-3.11.0--cli-rmcp-3.11.0.c4",
        "
            POST
            tools/list 1 2025-11-25
            200
            event priming
            event result 1
        ",
    );
}

#[test]
fn typescript_1_answers_in_json() {
    check(
        "srv-ts-sdk-1.32.2-json--cli-ts-sdk-1.32.2.c3",
        "
            POST
            tools/list 1 2025-11-25
            POST
            tools/call 3 slow 2025-11-25
            200
            result 1
            200
            result 3
        ",
    );
}

#[test]
fn typescript_1_answers_in_a_stream() {
    check(
        "srv-ts-sdk-1.32.2-sse--cli-ts-sdk-1.32.2.c3",
        "
            POST
            tools/list 1 2025-11-25
            POST
            tools/call 3 slow 2025-11-25
            200
            event result 1
            200
            event notifications/progress
            event notifications/progress
            event notifications/progress
            event result 3
        ",
    );
}

#[test]
fn typescript_2_keeps_the_connection() {
    check(
        "srv-ts-server-2.4.0--cli-ts-client-2.4.0-auto.c2",
        "
            POST
            tools/list 0 2026-07-28
            POST
            tools/call 2 slow 2026-07-28
            200
            result 0
            200
            event notifications/progress
            event notifications/progress
            event notifications/progress
            event result 2
        ",
    );
}

macro_rules! captures {
    ($($name:literal,)*) => {
        &[$((
            $name,
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/captures/", $name, ".c2s.txt")),
            include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/captures/", $name, ".s2c.txt")),
        ),)*]
    };
}

/// Recorded connections: name, what the agent sent, what the server sent.
pub(super) const CAPTURES: &[(&str, &[u8], &[u8])] = captures![
    "a2a-sdk-1.3.0--jsonrpc-stream.c2",
    "a2a-sdk-1.3.0--rest-stream.c2",
    "srv-everything-2026.8.31--cli-py-mcp-2.3.0-auto.c1",
    "srv-everything-2026.8.31--cli-py-mcp-2.3.0-auto.c4",
    "srv-fastmcp-4.2.3--cli-fastmcp-4.2.3.c1",
    "srv-py-mcp-1.30.0-sse--cli-py-mcp-1.30.0.c1",
    "srv-py-mcp-1.30.0-sse--cli-py-mcp-1.30.0.c4",
    "srv-py-mcp-1.30.0-sse--cli-py-mcp-1.30.0.c7",
    "srv-py-mcp-1.30.0-sse--cli-ts-sdk-1.32.2.c3",
    "srv-py-mcp-2.3.0--cli-py-mcp-2.3.0-auto.c1",
    "srv-rmcp-3.11.0--cli-rmcp-3.11.0-auto.c3",
    "srv-rmcp-3.11.0--cli-rmcp-3.11.0.c1",
    "srv-rmcp-3.11.0--cli-rmcp-3.11.0.c4",
    "srv-ts-sdk-1.32.2-json--cli-ts-sdk-1.32.2.c3",
    "srv-ts-sdk-1.32.2-sse--cli-ts-sdk-1.32.2.c3",
    "srv-ts-server-2.4.0--cli-ts-client-2.4.0-auto.c2",
];
