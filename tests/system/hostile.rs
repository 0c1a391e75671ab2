//! An agent that wants past a rule: a call that is refused stays refused however it is spelt, framed, coded or addressed,
//! no byte of it reaches the server, and the refusal is on record before its answer.

use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::{Daemon, RawAgent, World, mcp};
use serde_json::{Value, json};

use crate::NO_TRANSFERS;

pub(crate) const TRANSFER: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wire_transfer","arguments":{}}}"#;

/// An agent in front of a server that would carry out whatever reaches it.
pub(crate) struct Attempt {
    agent: RawAgent,
    server: RawServer,
    daemon: Daemon,
    _world: World,
}

impl Attempt {
    pub(crate) fn under(rules: &str) -> Self {
        let world = World::new();
        let daemon = Daemon::start(&world, rules);
        let server = RawServer::start(&world, |request, reply| {
            if handshake(request, reply)? { Ok(()) } else { reply.result(request, &json!({"content": []})) }
        });
        Self { agent: RawAgent::start(&world, "coder"), server, daemon, _world: world }
    }

    /// Says something on a connection of its own, in writes of that size; answers the first message that comes back.
    fn say(&mut self, what: &str, piece: usize, request: &[u8]) -> Message {
        let mut conn = self.agent.open(self.server.address()).expect("a connection");
        self.agent.send_in(piece, &conn, request).expect("send");
        let answer = self.agent.message(&mut conn).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.agent.close(conn).expect("close");
        answer
    }

    /// Says something that must be refused.
    pub(crate) fn refused(&mut self, what: &str, piece: usize, request: &[u8]) -> Message {
        let (denied, received) = (self.denied().len(), self.server.bytes().len());
        let answer = self.say(what, piece, request);
        assert_eq!(self.server.bytes().len(), received, "{what}: no byte reaches the server");
        assert!(self.denied().len() > denied, "{what}: on record before its answer");
        answer
    }

    /// Says something that must be refused by a rule or default of this name.
    pub(crate) fn refused_by(&mut self, rule: &str, what: &str, request: &[u8]) -> Message {
        let answer = self.refused(what, usize::MAX, request);
        let denied = self.denied();
        let last = denied.last().expect("there is one");
        assert!(last["rules"].to_string().contains(rule), "{what}: {last}");
        assert!(answer.text().contains(rule), "{what}: the agent learns why: {}", answer.text());
        answer
    }

    /// Says something that must reach the server: the path is open for those who keep to the rules.
    pub(crate) fn allowed(&mut self, what: &str, request: &[u8]) {
        let received = self.server.requests().len();
        let answer = self.say(what, usize::MAX, request);
        assert_eq!(mcp::refusal(mcp::of_id(&answer.messages(), 1)), None, "{what}");
        assert_eq!(self.server.requests().len(), received + 1, "{what}");
    }

    fn denied(&self) -> Vec<Value> {
        let decisions = self.daemon.records().of("decision").into_iter();
        decisions.filter(|record| record["verdict"] == "deny").collect()
    }
}

/// A POST with exactly these header lines, each ended, and a body that they frame.
pub(crate) fn post(lines: &str, body: &[u8]) -> Vec<u8> {
    [b"POST /mcp HTTP/1.1\r\nhost: bank.test\r\n", lines.as_bytes(), b"\r\n", body].concat()
}

/// A POST of a body of this type.
pub(crate) fn typed(content_type: &str, body: &[u8]) -> Vec<u8> {
    post(&format!("content-type: {content_type}\r\ncontent-length: {}\r\n", body.len()), body)
}

fn utf16(text: &str, order: fn(u16) -> [u8; 2]) -> Vec<u8> {
    text.encode_utf16().flat_map(order).collect()
}

fn utf32(text: &str, order: fn(u32) -> [u8; 4]) -> Vec<u8> {
    text.chars().flat_map(|character| order(u32::from(character))).collect()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn json_in_another_encoding_is_refused() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    let marked = format!("\u{feff}{TRANSFER}");
    let spaced = format!("  \r\n{TRANSFER}");
    for (name, text) in [("bare", TRANSFER), ("marked", &marked), ("spaced", &spaced)] {
        let bodies = [
            ("utf-16be", utf16(text, u16::to_be_bytes)),
            ("utf-16le", utf16(text, u16::to_le_bytes)),
            ("utf-32be", utf32(text, u32::to_be_bytes)),
            ("utf-32le", utf32(text, u32::to_le_bytes)),
        ];
        for (encoding, body) in bodies {
            for content_type in ["application/json", "application/octet-stream"] {
                let what = format!("{encoding} {name} as {content_type}");
                attempt.refused_by("default:undecodable", &what, &typed(content_type, &body));
            }
        }
    }
    attempt.refused_by("default:undecodable", "utf-8 marked", &typed("application/json", marked.as_bytes()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn json_in_a_foreign_charset_is_refused() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    let utf7 = TRANSFER.replace("wire_transfer", "wire+AF8-transfer");
    let big = utf16(TRANSFER, u16::to_be_bytes);
    let bodies: [(&str, &[u8]); 5] = [
        ("application/json; charset=utf-7", utf7.as_bytes()),
        ("application/json;CharSet=\"UTF-7\"", utf7.as_bytes()),
        ("text/plain; charset=utf-7", utf7.as_bytes()),
        ("application/json; charset=utf-16be", &big),
        ("application/json; charset=utf-16be", TRANSFER.as_bytes()),
    ];
    for (content_type, body) in bodies {
        let answer = attempt.refused_by("default:undecodable", content_type, &typed(content_type, body));
        assert_eq!(answer.status(), 415, "{content_type}");
    }
    let echo = TRANSFER.replace("wire_transfer", "echo");
    attempt.allowed("utf-8", &typed("application/json; charset=utf-8", echo.as_bytes()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn media_type_does_not_hide_a_call() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    for content_type in [
        "text/plain",
        "application/octet-stream",
        "application/x-www-form-urlencoded",
        "image/png",
        "",
        "json",
    ] {
        let answer =
            attempt.refused_by("no-transfers", content_type, &typed(content_type, TRANSFER.as_bytes()));
        assert!(mcp::refusal(mcp::of_id(&answer.messages(), 1)).is_some(), "{}", answer.text());
    }
    let length = format!("content-length: {}\r\n", TRANSFER.len());
    attempt.refused_by("no-transfers", "no media type", &post(&length, TRANSFER.as_bytes()));
    let echo = TRANSFER.replace("wire_transfer", "echo");
    attempt.allowed("text/plain", &typed("text/plain", echo.as_bytes()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn chunks_of_one_byte_and_leading_space_do_not_hide_a_call() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    for space in ["", " \r\n\t", &" ".repeat(300)] {
        for content_type in ["application/json", "text/plain"] {
            let body = format!("{space}{TRANSFER}");
            let lines = format!("content-type: {content_type}\r\ntransfer-encoding: chunked\r\n");
            let chunks: Vec<u8> = body.as_bytes().chunks(1).flat_map(http::chunk).collect();
            let what = format!("{content_type} after {} spaces", space.len());
            let request = post(&lines, &[chunks, http::chunk(b"")].concat());
            for piece in [1, usize::MAX] {
                let answer = attempt.refused(&what, piece, &request);
                let messages = answer.messages();
                let refusal = mcp::refusal(mcp::of_id(&messages, 1)).expect("in protocol");
                assert!(refusal.contains("no-transfers"), "{what}: {refusal}");
            }
        }
    }
}

// === Addresses ===

const NO_BANK: &str = r#"
version: 1
rules:
  - id: no-bank
    action: deny
    match: {server: "*.bank.internal", tool: wire_transfer}
"#;

/// The call, to a target and with header lines that name the server.
fn addressed(target: &str, lines: &str) -> Vec<u8> {
    let head = format!("POST {target} HTTP/1.1\r\n{lines}content-type: application/json\r\n");
    format!("{head}content-length: {}\r\n\r\n{TRANSFER}", TRANSFER.len()).into_bytes()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn server_is_known_however_its_name_is_written() {
    let mut attempt = Attempt::under(NO_BANK);
    for host in [
        "api.bank.internal",
        "API.BANK.INTERNAL",
        "api.bank.internal.",
        "api.bank.internal:80",
        "Api.Bank.Internal.:8080",
    ] {
        attempt.refused_by("no-bank", host, &addressed("/mcp", &format!("host: {host}\r\n")));
        let target = format!("http://{host}/mcp");
        attempt.refused_by("no-bank", &target, &addressed(&target, &format!("Host:{host}\r\n")));
    }
    attempt.allowed("another server", &addressed("/mcp", "host: api.shop.internal\r\n"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn target_and_host_that_name_two_servers_are_refused() {
    let mut attempt = Attempt::under(NO_BANK);
    for (target, lines) in [
        ("http://api.bank.internal/mcp", "host: shop.test\r\n"),
        ("HTTP://api.bank.internal/mcp", "host: shop.test\r\n"),
        ("http://api.bank.internal?/mcp", "host: shop.test\r\n"),
        ("http://api.bank.internal:80/mcp", "host: shop.test:80\r\n"),
        ("http://api.bank.internal/mcp", ""),
    ] {
        attempt.refused_by("guard:header-mismatch", target, &addressed(target, lines));
        let download = format!("GET {target} HTTP/1.1\r\n{lines}\r\n");
        attempt.refused_by("guard:header-mismatch", &download, download.as_bytes());
    }
    let twice = addressed("/mcp", "host: shop.test\r\nhost: api.bank.internal\r\n");
    attempt.refused_by("default:undecodable", "two hosts", &twice);
    let blurred = addressed("/mcp", "host: shop.test, api.bank.internal\r\n");
    attempt.refused_by("default:undecodable", "a host with a space", &blurred);
    attempt.allowed("one name", &addressed("http://shop.test/mcp", "host: shop.test\r\n"));
    attempt.allowed("with its port", &addressed("http://shop.test:80/mcp", "host: shop.test\r\n"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn server_that_a_target_names_is_judged_whatever_is_asked_of_it() {
    let mut attempt = Attempt::under(
        "version: 1\nrules: [{id: no-bank, action: deny, match: {server: '*.bank.internal'}, reason: not there}]\n",
    );
    for target in ["http://api.bank.internal/page", "HTTPS://API.bank.internal:443", "/page"] {
        let download = format!("GET {target} HTTP/1.1\r\nhost: api.bank.internal\r\n\r\n");
        let answer = attempt.refused_by("no-bank", target, download.as_bytes());
        assert_eq!(answer.status(), 403, "{target}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn names_that_are_no_names_are_refused() {
    let mut attempt = Attempt::under(NO_BANK);
    for (label, target, host) in [
        ("host", "/mcp", "shop.test@api.bank.internal"),
        ("host", "/mcp", "api.bank.internal@"),
        ("host", "/mcp", "api.bank.internal:http"),
        ("host", "/mcp", "api.bank.internal:080"),
        ("host", "/mcp", "api.bank.internal/"),
        ("host", "/mcp", "api%2ebank.internal"),
        ("tab_around_value", "/mcp", "\tapi.bank.internal"),
        ("request_target", "api.bank.internal", "shop.test"),
        ("request_target", "http://shop.test@api.bank.internal/mcp", "shop.test"),
        ("request_target", "http:api.bank.internal/mcp", "shop.test"),
        ("request_target", "/mcp#http://api.bank.internal/", "shop.test"),
        ("request_target", "*", "shop.test"),
    ] {
        for request in [
            addressed(target, &format!("host: {host}\r\n")),
            format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n").into_bytes(),
        ] {
            let answer = attempt.refused_by("default:undecodable", label, &request);
            assert_eq!(answer.status(), 400, "{target} {host}");
            assert!(answer.text().contains(label), "{target} {host}: {}", answer.text());
        }
    }
}

// === Spelling ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn escapes_do_not_hide_a_call() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    for (plain, escaped) in [
        ("wire_transfer", r"wire\u005ftransfer"),
        ("wire_transfer", r"wire_trans\u0066er"),
        ("wire_transfer", r"\u0077\u0069\u0072\u0065_transfer"),
        (r#""name""#, r#""n\u0061me""#),
        (r#""params""#, r#""\u0070arams""#),
        (r#""method""#, r#""meth\u006Fd""#),
        ("tools/call", r"tools\/call"),
        ("tools/call", r"tools/c\u0061ll"),
    ] {
        let body = TRANSFER.replace(plain, escaped);
        assert_ne!(body, TRANSFER);
        attempt.refused_by("no-transfers", escaped, &typed("application/json", body.as_bytes()));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn members_that_parsers_read_differently_are_refused() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    let params = r#""params":{"name":"echo","arguments":{}}"#;
    for (member, twice) in [
        (r#""name":"wire_transfer""#, r#""name":"wire_transfer","name":"echo""#.to_owned()),
        (r#""name":"wire_transfer""#, r#""name":"echo","name":"wire_transfer""#.to_owned()),
        (r#""name":"wire_transfer""#, r#""name":"echo","n\u0061me":"wire_transfer""#.to_owned()),
        (r#""name":"wire_transfer""#, r#""name":"echo","Name":"wire_transfer""#.to_owned()),
        (r#""method":"tools/call""#, r#""method":"tools/list","method":"tools/call""#.to_owned()),
        (r#""method":"tools/call""#, r#""method":"tools/list","METHOD":"tools/call""#.to_owned()),
        (r#""params":"#, format!(r#"{params},"params":"#)),
    ] {
        let body = TRANSFER.replace(member, &twice);
        assert_ne!(body, TRANSFER);
        attempt.refused_by("default:undecodable", &twice, &typed("application/json", body.as_bytes()));
    }
    let two = format!("{TRANSFER}\n{TRANSFER}");
    attempt.refused_by("default:undecodable", "two documents", &typed("application/json", two.as_bytes()));
}

// === Framing ===

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn framing_that_two_readers_could_see_differently_is_refused() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    let echo = TRANSFER.replace("wire_transfer", "echo");
    let hidden = String::from_utf8(typed("application/json", TRANSFER.as_bytes())).expect("text");
    let smuggled = format!("0\r\n\r\n{hidden}");
    let length = echo.len();
    for (label, request) in [
        (
            "length_and_chunked",
            post(
                &format!("content-length: {}\r\ntransfer-encoding: chunked\r\n", smuggled.len()),
                smuggled.as_bytes(),
            ),
        ),
        (
            "length_and_chunked",
            post(&format!("transfer-encoding: chunked\r\ncontent-length: {length}\r\n"), echo.as_bytes()),
        ),
        (
            "length_conflict",
            post(&format!("content-length: {length}\r\ncontent-length: 0\r\n"), echo.as_bytes()),
        ),
        ("length_list", post(&format!("content-length: {length}, {length}\r\n"), echo.as_bytes())),
        ("length_invalid", post(&format!("content-length: +{length}\r\n"), echo.as_bytes())),
        ("length_invalid", post("content-length: 9223372036854775808\r\n", echo.as_bytes())),
        ("tab_around_value", post(&format!("content-length:\t{length}\r\n"), echo.as_bytes())),
        ("tab_around_value", post("transfer-encoding: chunked\t\r\n", smuggled.as_bytes())),
        ("bare_lf", post(&format!("a: b\ncontent-length: {length}\r\n"), echo.as_bytes())),
        ("bare_cr", post(&format!("a: b\rc: d\r\ncontent-length: {length}\r\n"), echo.as_bytes())),
        ("obs_fold", post(&format!("content-length: {length}\r\na: b\r\n c\r\n"), echo.as_bytes())),
        ("space_before_colon", post(&format!("content-length : {length}\r\n"), echo.as_bytes())),
        ("transfer_encoding", post("transfer-encoding: xchunked\r\n", smuggled.as_bytes())),
        ("transfer_encoding", post("transfer-encoding: gzip, chunked\r\n", smuggled.as_bytes())),
        ("chunk_size", post("transfer-encoding: chunked\r\n", b"0x2\r\n{}\r\n0\r\n\r\n")),
        ("bare_lf", post("transfer-encoding: chunked\r\n", b"2\n{}\r\n0\r\n\r\n")),
        ("chunk_end", post("transfer-encoding: chunked\r\n", b"2\r\n{} 0\r\n\r\n")),
    ] {
        let answer = attempt.refused_by("default:undecodable", label, &request);
        assert_eq!(answer.status(), 400, "{label}");
        assert!(answer.text().contains(label), "{label}: {}", answer.text());
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn pipelined_requests_are_judged_one_by_one_and_answered_in_order() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    let (agent, server) = (&mut attempt.agent, &attempt.server);
    let mut conn = agent.open(server.address()).expect("a connection");
    let calls = ["echo", "wire_transfer", "add", "wire_transfer", "wire_transfer", "echo"];
    let requests = (1..).zip(calls).map(|(id, tool)| mcp::legacy(&mcp::call(id, tool, json!({}))));
    agent.send(&conn, &requests.collect::<Vec<_>>().concat()).expect("in one segment");
    for (id, tool) in (1..).zip(calls) {
        let messages = agent.message(&mut conn).expect("each has its answer").messages();
        let refusal = mcp::refusal(mcp::of_id(&messages, id));
        assert_eq!(refusal.is_some(), tool == "wire_transfer", "{id} {tool}: {messages:?}");
    }
    let names: Vec<Value> =
        server.requests().iter().map(|request| request.json()["params"]["name"].clone()).collect();
    assert_eq!(names, ["echo", "add", "echo"]);
    assert!(!server.saw("wire_transfer"));
    assert_eq!(server.connections(), 1);
    assert_eq!(attempt.denied().len(), 3);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn coded_json_that_cannot_be_read_is_refused() {
    let mut attempt = Attempt::under(NO_TRANSFERS);
    // `{}` by gzip(1)
    let gzip = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00";
    let coded = |lines: &str, body: &[u8]| post(&format!("{lines}content-length: {}\r\n", body.len()), body);
    for (what, lines, body, label) in [
        ("nobody's", "content-type: application/json\r\ncontent-encoding: x-lz", &gzip[..], "content_coding"),
        ("no type", "Content-Encoding: COMPRESS", gzip, "content_coding"),
        ("another one", "content-type: a/b+json\r\ncontent-encoding: identity, br", gzip, "coding_"),
        (
            "half of it",
            "content-type: application/json\r\ncontent-encoding: gzip",
            &gzip[..15],
            "coding_truncated",
        ),
        (
            "not coded at all",
            "content-type: text/plain\r\ncontent-encoding: gzip",
            TRANSFER.as_bytes(),
            "coding_",
        ),
    ] {
        let request = coded(&format!("{lines}\r\n"), body);
        let answer = attempt.refused_by("default:undecodable", what, &request);
        assert_eq!(answer.status(), 415, "{what}");
        assert!(answer.text().contains(label), "{what}: {}", answer.text());
    }
    let echo = TRANSFER.replace("wire_transfer", "echo");
    let plain = "content-type: application/json\r\ncontent-encoding: identity\r\n";
    attempt.allowed("identity", &coded(plain, echo.as_bytes()));
}
