//! bench-server: an MCP server over HTTP/1.1 that costs next to nothing per call, so that a bench sees the proxy.
//!
//! Stateless (no session id), revisions 2025-11-25 and 2026-07-28. Tools: `echo` (small result), `blob25k`, `blob64k`,
//! `blob1m`, `events20` (an SSE answer of 20 events, one chunk and one write each), `slow` (after `arguments.ms`) and `drip` (five
//! events spread over `arguments.ms`). Under the names `tools-0.bench` to `tools-199.bench` it lists 25 others, different
//! ones under each, as long as the result of `blob25k`. With `--log` it keeps (call id, CLOCK_MONOTONIC ns when read) of
//! every tools/call in memory; `GET /log?since=N` returns the entries from N on, one `id ns` a line. It prints `listening ADDR` and runs until its standard input closes.

mod answer;
mod common;
mod tools;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Parser;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::answer::{answer, json, push};
use crate::tools::Tools;

#[derive(Parser)]
struct Args {
    /// Where to listen; port 0 picks one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Keep the arrival of every tools/call for GET /log.
    #[arg(long)]
    log: bool,
}

/// The parts of a JSON-RPC request that the answer depends on.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    method: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    params: Params<'a>,
}

#[derive(Deserialize, Default)]
struct Params<'a> {
    #[serde(borrow, default)]
    name: std::borrow::Cow<'a, str>,
    #[serde(default)]
    arguments: Arguments,
}

#[derive(Deserialize, Default)]
struct Arguments {
    #[serde(default)]
    ms: u64,
}

/// One tools/call as the server saw it.
type Arrival = (u64, u64);

struct Server {
    /// Arrivals in order, when asked for.
    log: Option<Mutex<Vec<Arrival>>>,
    /// The text of the large results.
    blob: Vec<u8>,
    tools: Tools,
}

impl Server {
    fn arrived(&self, id: Option<&RawValue>) {
        let Some(log) = &self.log else { return };
        let id = id.and_then(|id| id.get().parse().ok()).unwrap_or(u64::MAX);
        log.lock().unwrap_or_else(PoisonError::into_inner).push((id, common::monotonic_ns()));
    }

    fn log_since(&self, since: usize) -> String {
        use std::fmt::Write;
        let Some(log) = &self.log else { return String::new() };
        let log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().skip(since).fold(String::new(), |mut text, (id, at)| {
            let _ = writeln!(text, "{id} {at}");
            text
        })
    }
}

/// One request, as far as this server reads it.
struct Head {
    get: bool,
    path: String,
    modern: bool,
    /// Under which of its names it is asked for tools, if it is one of these.
    endpoint: Option<usize>,
    length: usize,
    /// Bytes up to the body.
    size: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    common::raise_open_files();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(args.listen).await?;
        println!("listening {}", listener.local_addr()?);
        let server = Arc::new(Server {
            log: args.log.then(Mutex::default),
            blob: FILL.repeat(MIB / FILL.len()),
            tools: Tools::new(),
        });
        tokio::select! {
            done = accept(listener, server) => done?,
            () = common::stdin_closed() => {}
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener, server: Arc<Server>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let server = server.clone();
        // A connection that ends badly is the other side's business: the load counts it.
        tokio::spawn(async move { drop(serve(stream, &server).await) });
    }
}

async fn serve(mut stream: TcpStream, server: &Server) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut input, mut out) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
    loop {
        let head = loop {
            match parse_head(&input)? {
                Some(head) if input.len() >= head.size + head.length => break head,
                _ if input.len() > MIB => return Err(io::ErrorKind::InvalidData.into()),
                _ => {}
            }
            if stream.read_buf(&mut input).await? == 0 {
                return Ok(());
            }
        };
        out.clear();
        if head.get {
            answer_get(&head.path, server, &mut out);
            stream.write_all(&out).await?;
        } else {
            let body = &input[head.size..head.size + head.length];
            match serde_json::from_slice::<Call>(body) {
                Ok(call) => {
                    if call.method == "tools/call" {
                        server.arrived(call.id);
                    }
                    answer(&mut stream, server, &head, &call, &mut out).await?;
                }
                Err(_) => {
                    json(
                        &mut out,
                        "400 Bad Request",
                        b"null",
                        r#""error":{"code":-32700,"message":"not JSON"}"#,
                    );
                    stream.write_all(&out).await?;
                }
            }
        }
        input.drain(..head.size + head.length);
    }
}

fn parse_head(input: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let httparse::Status::Complete(size) = request.parse(input).map_err(|_| invalid())? else {
        return Ok(None);
    };
    let (mut length, mut modern, mut endpoint) = (0, false, None);
    for header in request.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            length =
                std::str::from_utf8(header.value).ok().and_then(|v| v.parse().ok()).ok_or_else(invalid)?;
        } else if header.name.eq_ignore_ascii_case("mcp-protocol-version") {
            modern = header.value == b"2026-07-28";
        } else if header.name.eq_ignore_ascii_case("host") {
            endpoint = tools::endpoint(header.value);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(invalid());
        }
    }
    let get = request.method == Some("GET");
    let path = if get { request.path.unwrap_or_default().to_owned() } else { String::new() };
    Ok(Some(Head { get, path, modern, endpoint, length, size }))
}

fn answer_get(path: &str, server: &Server, out: &mut Vec<u8>) {
    match path.strip_prefix("/log") {
        Some(query) => {
            let since = query.strip_prefix("?since=").and_then(|n| n.parse().ok()).unwrap_or(0);
            let text = server.log_since(since);
            push(
                out,
                &["HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: ", &text.len().to_string()],
            );
            push(out, &["\r\n\r\n", &text]);
        }
        // No stream of the server's own: what the protocol asks for is 405.
        None => push(out, &["HTTP/1.1 405 Method Not Allowed\r\nallow: POST\r\ncontent-length: 0\r\n\r\n"]),
    }
}

const MIB: usize = 1 << 20;
/// 32 bytes that JSON needs not escape; the large results repeat them.
const FILL: &[u8] = b"abcdefghijklmnopqrstuvwxyz012345";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_head_is_need_more() {
        let whole = b"POST /mcp HTTP/1.1\r\ncontent-length: 2\r\nMcp-Protocol-Version: 2026-07-28\r\n\r\n{}";
        for cut in 0..whole.len() - 2 {
            assert!(parse_head(&whole[..cut]).unwrap().is_none(), "{cut}");
        }
        let head = parse_head(whole).unwrap().unwrap();
        assert_eq!((head.size, head.length, head.modern, head.get), (whole.len() - 2, 2, true, false));
    }
}
