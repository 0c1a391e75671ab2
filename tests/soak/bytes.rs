//! Raw agents and servers that exchange random bodies in every framing and coding, pipelined and not, on connections that
//! live on and that end: what a server gets is what its agent has sent, and the other way round.
//!
//! Both make a message from its number alone, so each knows what it should have got.

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_tests::agent::RawConn;
use agent_tests::http::{self, Message};
use agent_tests::raw_server::{RawServer, Reply};
use agent_tests::{RawAgent, World};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::json;

use crate::Run;
use crate::random::Random;

/// Requests of one connection.
const EACH: usize = 40;
/// Requests that are sent before an answer is read.
const AHEAD: usize = 4;

pub(crate) struct Peer {
    server: RawServer,
    /// Requests that were not as they were sent.
    altered: Arc<AtomicU64>,
}

pub(crate) fn servers(world: &World) -> [Peer; 2] {
    [(); 2].map(|()| {
        let altered = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&altered);
        let server = RawServer::start(world, move |request, reply| answer(request, reply, &counts));
        server.forget();
        Peer { server, altered }
    })
}

/// What is asked, and what is answered: an exchange as its number makes it.
struct Exchange {
    number: u64,
    kind: Kind,
    asked: Vec<u8>,
    answered: Vec<u8>,
    request: Vec<u8>,
    response: Vec<u8>,
    /// The connection ends with the answer.
    ends: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A call of MCP, answered by JSON.
    Call,
    /// A call of MCP, answered by a stream of events.
    Stream,
    /// Anything else.
    Other,
}

impl Exchange {
    fn of(number: u64) -> Self {
        let mut random = Random(number);
        let kind = random.one_of(&[Kind::Call, Kind::Stream, Kind::Other]);
        let (size, back) = (random.size(200_000), random.size(1_000_000));
        let (asked, answered) = match kind {
            // What begins like JSON is read as such, whatever its type, and refused.
            Kind::Other => ([b"bytes", &*random.bytes(size)].concat(), random.bytes(back)),
            Kind::Call => (call(number, &random.text(size)), result(number, &random.text(back))),
            Kind::Stream => (call(number, &random.text(size)), events(number, back, &mut random)),
        };
        let (kind_of_asked, kind_of_answered) = match kind {
            Kind::Other => ("application/octet-stream", "application/octet-stream"),
            Kind::Call => ("application/json", "application/json"),
            Kind::Stream => ("application/json", "text/event-stream"),
        };
        let asked_in = random.one_of(&CODINGS);
        // Streams of MCP lose their codings, which is what they are for here.
        let answered_in = random.one_of(&CODINGS);
        let ends = random.below(EACH) == 0;
        let head = format!(
            "POST /mcp?number={number} HTTP/1.1\r\nhost: bytes.test\r\naccept: application/json, text/event-stream\r\n"
        );
        let request = framed(head, kind_of_asked, asked_in, &asked, false, &mut random);
        let response = framed(
            "HTTP/1.1 200 OK\r\n".to_owned(),
            kind_of_answered,
            answered_in,
            &answered,
            ends,
            &mut random,
        );
        // A content that is coded passes as it is.
        let asked = coded(asked_in, &asked);
        let answered = if kind == Kind::Stream { answered } else { coded(answered_in, &answered) };
        Self { number, kind, asked, answered, request, response, ends }
    }

    fn is_of(request: &Message) -> Option<u64> {
        request.start.split("number=").nth(1)?.split(' ').next()?.parse().ok()
    }
}

const CODINGS: [Option<&str>; 6] = [None, None, Some("gzip"), Some("deflate"), Some("br"), Some("zstd")];

fn coded(coding: Option<&str>, content: &[u8]) -> Vec<u8> {
    let whole = |result: io::Result<Vec<u8>>| result.expect("to memory");
    match coding {
        Some("gzip") => {
            let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
            whole(writer.write_all(content).and_then(|()| writer.finish()))
        }
        Some("deflate") => {
            let mut writer = ZlibEncoder::new(Vec::new(), Compression::fast());
            whole(writer.write_all(content).and_then(|()| writer.finish()))
        }
        Some("br") => {
            let mut coded = Vec::new();
            let mut writer = brotli::CompressorWriter::new(&mut coded, 4096, 1, 18);
            writer.write_all(content).expect("to memory");
            drop(writer);
            coded
        }
        Some("zstd") => {
            let mut coded = vec![0; zstd_safe::compress_bound(content.len())];
            let length = zstd_safe::compress(&mut coded[..], content, 1).expect("to memory");
            coded.truncate(length);
            coded
        }
        _ => content.to_vec(),
    }
}

/// A message in some framing. Only one that ends its connection may have none.
fn framed(
    head: String,
    kind: &str,
    coding: Option<&str>,
    content: &[u8],
    ends: bool,
    random: &mut Random,
) -> Vec<u8> {
    let coding_field = coding.map(|coding| format!("content-encoding: {coding}\r\n")).unwrap_or_default();
    let head = format!("{head}content-type: {kind}\r\n{coding_field}");
    let content = coded(coding, content);
    if ends {
        return [format!("{head}connection: close\r\n\r\n").as_bytes(), &content].concat();
    }
    if random.below(2) == 0 {
        return [format!("{head}content-length: {}\r\n\r\n", content.len()).as_bytes(), &content].concat();
    }
    let mut message = format!("{head}transfer-encoding: chunked\r\n\r\n").into_bytes();
    let mut rest = &content[..];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(1 + random.size(60_000)));
        message.extend(http::chunk(chunk));
        rest = after;
    }
    message.extend(http::chunk(b""));
    message
}

fn call(number: u64, text: &str) -> Vec<u8> {
    let params = json!({"name": "random", "arguments": {"text": text}});
    json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).to_string().into_bytes()
}

fn result(number: u64, text: &str) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": text}]}})
        .to_string()
        .into_bytes()
}

/// Some progress, comments and ids, then the answer.
fn events(number: u64, back: usize, random: &mut Random) -> Vec<u8> {
    let mut stream = Vec::new();
    for count in 0..random.below(20) {
        let params = json!({"progressToken": number, "progress": count, "message": random.text(100)});
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
        let event = random.one_of(&["data: ", "id: 7\r\nevent: message\r\ndata:", ": hello\n\ndata: "]);
        stream.extend_from_slice(format!("{event}{progress}\n\n").as_bytes());
    }
    let answer = result(number, &random.text(back));
    [&stream, &b"event: message\ndata: "[..], &answer, b"\n\n"].concat()
}

fn answer(request: &Message, reply: &mut Reply<'_>, altered: &AtomicU64) -> io::Result<()> {
    let Some(number) = Exchange::is_of(request) else { return Err(io::ErrorKind::InvalidData.into()) };
    let exchange = Exchange::of(number);
    if request.body != exchange.asked {
        altered.fetch_add(1, Ordering::Relaxed);
    }
    let piece = Random(number).one_of(&[1 << 20, 1 << 20, 16 << 10, 1000]);
    reply.write_in(piece, &exchange.response)?;
    if exchange.ends { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
}

/// One connection after the other, until the run is over.
pub(crate) fn go_on(world: &World, peer: &Peer, seed: u64, run: &Run) {
    let mut agent = RawAgent::start(world, "sibling");
    let mut numbers = Random(seed);
    while run.goes_on() {
        if let Err(error) = one(&mut agent, peer, &mut numbers, run) {
            run.fault(format!("raw connection: {error}"));
        }
    }
    match peer.altered.load(Ordering::Relaxed) {
        0 => {}
        altered => run.fault(format!("{altered} requests reached their server altered")),
    }
}

fn one(agent: &mut RawAgent, peer: &Peer, numbers: &mut Random, run: &Run) -> io::Result<()> {
    let mut conn = agent.open(peer.server.address())?;
    for _ in 0..EACH / AHEAD {
        // Nothing comes after one that ends the connection.
        let mut asked: Vec<Exchange> = Vec::new();
        while asked.len() < AHEAD && asked.last().is_none_or(|last| !last.ends) {
            // As a JSON number it must be exact.
            asked.push(Exchange::of(numbers.next() >> 12));
        }
        let pipelined: Vec<u8> = asked.iter().flat_map(|exchange| exchange.request.clone()).collect();
        if pipelined.len() < 64 * 1024 {
            agent.send(&conn, &pipelined)?;
            for exchange in &asked {
                compare(agent, &mut conn, exchange, run)?;
            }
        } else {
            for exchange in &asked {
                agent.send_in(16 << 10, &conn, &exchange.request)?;
                compare(agent, &mut conn, exchange, run)?;
            }
        }
        if asked.last().is_some_and(|last| last.ends) {
            break;
        }
    }
    run.note(|found| found.sessions += 1);
    agent.close(conn)
}

fn compare(agent: &mut RawAgent, conn: &mut RawConn, exchange: &Exchange, run: &Run) -> io::Result<()> {
    let Exchange { number, kind, asked, answered, .. } = exchange;
    let answer = agent.message(conn).map_err(|error| {
        io::Error::new(error.kind(), format!("{number} {kind:?}: no answer ({})", error.kind()))
    })?;
    if answer.body != *answered {
        let (got, wanted) = (answer.body.len(), answered.len());
        run.fault(format!("{number} {kind:?}: {got} bytes in place of {wanted}, status {}", answer.status()));
    }
    let compared = asked.len() + answered.len();
    run.note(|found| {
        found.calls += 1;
        found.compared += u64::try_from(compared).unwrap_or_default();
    });
    Ok(())
}
