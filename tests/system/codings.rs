//! Content codings: rules see what is under them, on answers (W4, W11), streams and requests, and what nobody can undo is
//! refused.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agent_tests::http::{self, Message};
use agent_tests::raw_server::RawServer;
use agent_tests::records::rules;
use agent_tests::{Daemon, World, mcp};
use brotli::CompressorWriter;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use serde_json::json;
use zstd_safe::{CCtx, InBuffer, OutBuffer};

use crate::REASON;
use crate::rule_peers::{Caller, call_with, of_server, serves};

const RULES: &str = "
version: 1
rules:
  - {id: no-pay, action: deny, match: {method: tools/call, tool: wire_transfer}, reason: not for agents}
  - {id: hide, action: hide, match: {tool: pay}}
  - {id: in, action: redact, phase: response, redact: {patterns: [mail]}}
  - {id: out, action: redact, phase: request, redact: {fields: [/pin]}}
  - {id: no-log, action: deny, phase: response, match: {method: notifications/message}, reason: no logs}
";

/// Tokens of `Content-Encoding`, and how a server codes.
const CODINGS: [&str; 7] = ["gzip", "X-GZIP", "deflate", "raw", "br", "zstd", "deflate, br"];

/// The token on the wire: there are two formats of one name.
fn token(coding: &str) -> &str {
    if coding == "raw" { "deflate" } else { coding }
}

/// The parts in that coding, each flushed, and the end.
fn code(coding: &str, parts: &[&[u8]]) -> Vec<Vec<u8>> {
    macro_rules! pieces {
        ($writer:expr, $finish:expr) => {{
            let mut writer = $writer;
            let (mut pieces, mut at) = (Vec::new(), 0);
            for part in parts {
                writer.write_all(part).expect("code");
                writer.flush().expect("flush");
                pieces.push(writer.get_ref()[at..].to_vec());
                at = writer.get_ref().len();
            }
            let whole: Vec<u8> = $finish(writer);
            pieces.push(whole[at..].to_vec());
            pieces
        }};
    }
    let level = Compression::default();
    match coding {
        "gzip" | "X-GZIP" => {
            pieces!(GzEncoder::new(vec![], level), |it: GzEncoder<_>| it.finish().expect("end"))
        }
        "deflate" => pieces!(ZlibEncoder::new(vec![], level), |it: ZlibEncoder<_>| it.finish().expect("end")),
        "raw" => {
            pieces!(DeflateEncoder::new(vec![], level), |it: DeflateEncoder<_>| it.finish().expect("end"))
        }
        "br" => pieces!(CompressorWriter::new(vec![], 4096, 5, 22), CompressorWriter::into_inner),
        "zstd" => zstd(parts),
        _ => {
            let inner = code("deflate", parts);
            let mut both = code("br", &inner.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let end = both.split_off(parts.len()).concat();
            both.push(end);
            both
        }
    }
}

fn zstd(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut context = CCtx::create();
    let (mut pieces, mut room) = (Vec::new(), vec![0; 1 << 20]);
    for part in parts {
        let mut out = OutBuffer::around(&mut room[..]);
        let mut input = InBuffer::around(part);
        while input.pos() < part.len() {
            context.compress_stream(&mut out, &mut input).expect("code");
        }
        context.flush_stream(&mut out).expect("flush");
        pieces.push(out.as_slice().to_vec());
    }
    let mut out = OutBuffer::around(&mut room[..]);
    context.end_stream(&mut out).expect("end");
    pieces.push(out.as_slice().to_vec());
    pieces
}

fn whole(coding: &str, content: &str) -> Vec<u8> {
    code(coding, &[content.as_bytes()]).concat()
}

/// A JSON answer in a coding, of known length or in chunks.
fn answer(coding: &str, body: &[u8], chunked: bool) -> Vec<u8> {
    let framing = if chunked {
        "transfer-encoding: chunked".to_owned()
    } else {
        format!("content-length: {}", body.len())
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: {coding}\r\nVary: accept-encoding\r\n\
         ETag: \"1\"\r\nContent-MD5: x\r\nDigest: x\r\nRepr-Digest: x\r\nAccept-Ranges: bytes\r\n{framing}\r\n\r\n"
    );
    let body = if chunked {
        body.chunks(7).flat_map(http::chunk).chain(http::chunk(b"")).collect()
    } else {
        body.to_vec()
    };
    [head.into_bytes(), body].concat()
}

fn result(text: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}}).to_string()
}

fn notice(method: &str) -> String {
    format!("data: {}\n\n", json!({"jsonrpc": "2.0", "method": method, "params": {"data": "a word"}}))
}

/// A POST in the session of a body that is coded.
fn post(coding: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: bank.test\r\ncontent-type: {content_type}\r\ncontent-encoding: {coding}\r\n\
         accept: application/json, text/event-stream\r\nmcp-session-id: session-1\r\n\
         mcp-protocol-version: 2025-11-25\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The content that the agent got without any coding, in headers that say so.
fn plain(message: &Message) -> String {
    for gone in ["content-encoding", "etag", "content-md5", "digest", "repr-digest", "accept-ranges"] {
        assert_eq!(message.header(gone), None, "{message:?}");
    }
    assert_eq!(message.header("vary"), Some("accept-encoding"));
    assert_eq!(message.header("content-length"), Some(&*message.body.len().to_string()));
    assert_eq!(message.header("transfer-encoding"), None);
    message.text()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn rules_see_the_text_of_answers_and_what_they_leave_is_the_servers() {
    let world = World::new();
    let _daemon = Daemon::start(&world, RULES);
    for coding in CODINGS {
        for chunked in [false, true] {
            let server = serves(&world, move |request, reply| {
                let tool = request.json()["params"]["name"].as_str().unwrap_or_default().to_owned();
                let tools = json!({"tools": [{"name": "look"}, {"name": "pay"}]});
                let text = match (request.json()["method"].as_str(), &*tool) {
                    (Some("tools/list"), _) => {
                        json!({"jsonrpc": "2.0", "id": 1, "result": tools}).to_string()
                    }
                    (Some("tools/call"), "mail") => result("ask ann@example.com"),
                    (Some("tools/call"), _) => result("nothing to hide"),
                    _ => return Ok(false),
                };
                reply.write_in(13, &answer(token(coding), &whole(coding, &text), chunked))?;
                Ok(true)
            });
            let mut coder = Caller::start(&world, "coder", &server);
            let list = coder.ask(&mcp::legacy(&mcp::request(1, "tools/list", json!({}))));
            assert_eq!(
                plain(&list),
                r#"{"id":1,"jsonrpc":"2.0","result":{"tools":[{"name":"look"}]}}"#,
                "{coding}"
            );
            let mail = coder.ask(&call_with(1, "mail", "{}"));
            assert_eq!(plain(&mail), result("ask [redacted:mail]"), "{coding}");
            let same = coder.ask(&call_with(1, "same", "{}"));
            assert_eq!(same.body, whole(coding, &result("nothing to hide")), "{coding}: byte for byte");
            assert_eq!(same.header("content-encoding"), Some(token(coding)));
            assert_eq!((same.header("etag"), same.header("accept-ranges")), (Some("\"1\""), Some("bytes")));
            assert_eq!(server.connections(), 1);
        }
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_cannot_be_undone_is_refused_with_its_reason() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let text = result("hello");
    let gzip = whole("gzip", &text);
    let bomb = whole("gzip", &result(&"0".repeat(5 << 20)));
    let mut wrong = gzip.clone();
    let checksum = wrong.len() - 5;
    wrong[checksum] ^= 1;
    let cases = [
        ("content_coding", "compress", gzip.clone()),
        ("content_coding", "gzip, gzip, gzip, gzip", gzip.clone()),
        ("coding_corrupt", "br", gzip.clone()),
        ("coding_corrupt", "gzip", wrong),
        ("coding_truncated", "gzip", gzip[..gzip.len() - 1].to_vec()),
        ("coding_trailing_bytes", "gzip", [&*gzip, b"\0"].concat()),
        ("coding_ambiguous", "gzip", text.clone().into_bytes()),
        ("oversized", "gzip", bomb),
    ];
    for (label, coding, body) in cases {
        let said = answer(coding, &body, false);
        let server = serves(&world, move |request, reply| {
            let is_call = request.json()["method"] == "tools/call";
            if is_call {
                reply.write(&said)?;
            }
            Ok(is_call)
        });
        let mut coder = Caller::start(&world, "coder", &server);
        let answer = coder.ask(&call_with(1, label, "{}"));
        let refusal = mcp::refusal(mcp::of_id(&answer.messages(), 1)).expect("a refusal");
        assert!(refusal.contains(label) || label == "oversized", "{label}: {refusal}");
        let record = daemon.records().wait("result", label, |record| record["tool"] == label);
        assert_eq!((&record["outcome"], &record["cause"]), (&json!("none"), &json!(label)), "{record}");

        // The same as a request: the server gets nothing of it, or of what is too large.
        coder.reopen();
        let answer = coder.ask(&post(coding, "application/json", &body));
        let status = if label == "oversized" { 413 } else { 415 };
        assert_eq!(answer.status(), status, "{label}: {}", answer.text());
        assert!(!server.saw("content-encoding"), "{label}");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_coded_request_is_judged_and_leaves_as_it_came() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let call = |tool: &str, args: serde_json::Value| mcp::call(1, tool, args).to_string();
    for coding in CODINGS {
        let server = serves(&world, |request, reply| {
            let is_coded = request.header("content-encoding").is_some();
            if is_coded {
                reply.write(&http::response("application/json", &[], result("ran").as_bytes()))?;
            }
            Ok(is_coded)
        });
        let mut coder = Caller::start(&world, "coder", &server);
        for content_type in ["application/json", "text/plain", "application/octet-stream"] {
            let body = whole(coding, &call("wire_transfer", json!({})));
            let denied = coder.ask(&post(token(coding), content_type, &body)).messages();
            let refusal = mcp::refusal(mcp::of_id(&denied, 1)).expect("a refusal");
            assert!(refusal.contains("not for agents"), "{coding} as {content_type}: {refusal}");
            assert_eq!(server.requests().len(), 0, "{coding} as {content_type}");
        }
        let passes = whole(coding, &call("look", json!({})));
        let answer = coder.ask(&post(token(coding), "application/json", &passes));
        assert!(answer.text().contains("ran"), "{}", answer.text());
        let arrived = server.requests().pop().expect("the call");
        assert_eq!((&arrived.body, arrived.header("content-encoding")), (&passes, Some(token(coding))));

        let edited = whole(coding, &call("look", json!({"pin": "1234", "a": 1})));
        coder.ask(&post(token(coding), "application/json", &edited));
        let arrived = server.requests().pop().expect("the call");
        assert_eq!(arrived.text(), call("look", json!({"pin": "[redacted]", "a": 1})));
        assert_eq!(arrived.header("content-encoding"), None);

        // What is not MCP is not held.
        let upload = whole(coding, "id,amount\n1,2\n");
        coder.ask(&post(token(coding), "text/csv", &upload));
        assert_eq!(server.requests().pop().expect("the upload").body, upload);
    }
    let denied = daemon.records().of("decision");
    let denied = denied.iter().filter(|record| rules(record) == ["no-pay"]);
    assert_eq!(denied.count(), CODINGS.len() * 3);
}

/// A server that answers each request with a stream in that coding, one event after each turn.
fn streams(world: &World, coding: &'static str, events: Vec<String>, turn: &Arc<AtomicUsize>) -> RawServer {
    let turn = turn.clone();
    serves(world, move |request, reply| {
        if request.json()["method"] == "initialize" {
            return Ok(false);
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {}\r\nvary: accept-encoding\r\n\
             etag: x\r\ntransfer-encoding: chunked\r\n\r\n",
            token(coding)
        );
        reply.write(head.as_bytes())?;
        let parts: Vec<&[u8]> = events.iter().map(String::as_bytes).collect();
        let pieces = code(coding, &parts);
        for (count, piece) in pieces.iter().enumerate() {
            reply.hold(|| turn.load(Ordering::Relaxed) >= count)?;
            reply.write_in(5, &piece.chunks(11).flat_map(http::chunk).collect::<Vec<u8>>())?;
        }
        reply.write(&http::chunk(b"")).map(|()| true)
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn events_of_a_coded_stream_are_judged_and_arrive_as_they_are_flushed() {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    for coding in CODINGS {
        let turn = Arc::new(AtomicUsize::new(0));
        let last = format!("id: 3\ndata: {}\n\n", result("ask ann@example.com"));
        let events =
            vec![notice("notifications/a"), format!("id: 2\n{}", notice("notifications/message")), last];
        let server = streams(&world, coding, events, &turn);
        let mut coder = Caller::start(&world, "coder", &server);
        let mut listening = Caller::start(&world, "coder", &server);
        coder.send(&call_with(1, "watch", "{}"));
        listening.send(&http::get(&[mcp::SESSION, ("mcp-protocol-version", "2025-11-25")]));
        let expect = [
            notice("notifications/a"),
            "id: 2\ndata: \n\n".to_owned(),
            format!("id: 3\ndata: {}\n\n", result("ask [redacted:mail]")),
        ];
        for count in 1..=expect.len() {
            // The server waits for its turn, and so the next event has not been sent.
            for caller in [&mut coder, &mut listening] {
                let so_far = expect[..count].concat();
                let got =
                    caller.agent.so_far(&mut caller.conn, |message| message.text().len() >= so_far.len());
                assert_eq!(got.expect("the event").text(), so_far, "{coding}");
            }
            turn.store(count, Ordering::Relaxed);
        }
        for caller in [&mut coder, &mut listening] {
            let whole = caller.message();
            assert_eq!(whole.text(), expect.concat(), "{coding}");
            assert_eq!((whole.header("content-encoding"), whole.header("etag")), (None, None));
            assert_eq!(whole.header("vary"), Some("accept-encoding"));
        }
    }
    of_server(&daemon, "the log", |record| rules(record) == ["no-log"]);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stream_that_cannot_be_undone_is_refused_and_one_that_breaks_is_ended() {
    let world = World::new();
    let _daemon = Daemon::start(&world, RULES);
    let go = Arc::new(AtomicUsize::new(0));
    let event = code("gzip", &[notice("notifications/a").as_bytes()]).swap_remove(0);
    let server = serves(&world, {
        let go = go.clone();
        move |request, reply| {
            let coding = request.json()["params"]["name"].as_str().unwrap_or("x").to_owned();
            let head = format!("content-type: text/event-stream\r\ncontent-encoding: {coding}\r\n");
            let length = event.len() + 3;
            let head = format!("HTTP/1.1 200 OK\r\n{head}content-length: {length}\r\n\r\n");
            reply.write(&[head.as_bytes(), &event].concat())?;
            reply.hold(|| coding != "gzip" || go.load(Ordering::Relaxed) > 0)?;
            reply.write(b"\xff\xff\xff").map(|()| true)
        }
    });
    let mut coder = Caller::start(&world, "coder", &server);
    assert!(coder.refused("compress", "{}").contains("content_coding"));
    coder.reopen();
    coder.send(&call_with(1, "gzip", "{}"));
    let whole = |message: &Message| message.text() == notice("notifications/a");
    coder.agent.so_far(&mut coder.conn, whole).expect("the event");
    go.store(1, Ordering::Relaxed);
    let answer = coder.message();
    assert!(answer.text().starts_with(&notice("notifications/a")), "{}", answer.text());
    let refusal = mcp::refusal(mcp::of_id(&answer.messages(), 1)).expect("a refusal");
    assert!(refusal.contains("coding_corrupt"), "{refusal}");

    let no_identity = ("accept-encoding", "gzip, identity;q=0");
    let body = mcp::call(1, "gzip", json!({})).to_string();
    coder.reopen();
    let answer = coder.ask(&http::post(&body, &[mcp::SESSION, no_identity]));
    let refusal = mcp::refusal(mcp::of_id(&answer.messages(), 1)).expect("a refusal");
    assert!(refusal.contains("content_coding"), "{refusal}");

    coder.reopen();
    let answer = coder.ask(&http::get(&[mcp::SESSION]));
    assert_eq!(answer.status(), 502, "{}", answer.text());
    // What is not MCP is the agent's business.
    coder.reopen();
    let answer = coder.ask(b"GET /news HTTP/1.1\r\nhost: news.test\r\n\r\n");
    assert_eq!((answer.status(), answer.header("content-encoding")), (200, Some("x")));
}

/// What a stop learns of a late answer, in a coding and of that media type.
fn late(coding: &'static str, content_type: &'static str, text: &str) -> serde_json::Value {
    let world = World::new();
    let daemon = Daemon::start(&world, RULES);
    let go = Arc::new(AtomicUsize::new(0));
    let body = whole(coding, text);
    let server = serves(&world, {
        let go = go.clone();
        move |request, reply| {
            if request.json()["method"] != "tools/call" {
                return Ok(false);
            }
            let coding = token(coding);
            let head = format!("content-type: {content_type}\r\ncontent-encoding: {coding}\r\n");
            let length = body.len();
            // An event is in the middle of its coding when the stop comes.
            let early = if content_type == "text/event-stream" { length / 2 } else { 0 };
            reply.write(format!("HTTP/1.1 200 OK\r\n{head}content-length: {length}\r\n\r\n").as_bytes())?;
            reply.write(&body[..early])?;
            reply.hold(|| go.load(Ordering::Relaxed) > 0)?;
            reply.write(&body[early..]).map(|()| true)
        }
    });
    let mut coder = Caller::start(&world, "coder", &server);
    coder.send(&call_with(1, "slow", "{}"));
    if content_type == "text/event-stream" {
        coder.agent.so_far(&mut coder.conn, |_| true).expect("the head");
    } else {
        server.wait("the call", |request| request.json()["method"] == "tools/call");
    }
    let stopped = daemon.cli().run(&["stop", "agent=coder", "--reason", REASON, "--wait", "0s"]);
    assert_eq!(stopped.json["calls"][0]["fate"], "sent", "{stopped:?}");
    go.store(1, Ordering::Relaxed);
    let effect = daemon.records().wait("stop_effect", "the late answer", |record| record["open"] == false);
    assert_eq!(effect["fate"], "finished_after_stop", "{effect}");
    effect["late"].clone()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_late_answer_is_kept_out_of_its_coding() {
    let text = result("late");
    let digest = interlock::fingerprint::Digest::of(text.as_bytes()).to_string();
    for late in [
        late("zstd", "application/json", &text),
        late("deflate, br", "application/json", &text),
        late("gzip", "text/event-stream", &format!("data: {text}\n\n")),
    ] {
        assert_eq!((&late["bytes"], &late["digest"]), (&json!(text.len()), &json!(digest)));
    }
}
