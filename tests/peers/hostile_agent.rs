//! An agent that does its worst: many connections at a time, each of which goes on with one thing that costs its peer
//! memory, and begins anew when it is cut.
//!
//! Arguments: `--addr IP:PORT`, `--each N` (connections of each kind). One line when every connection was open once,
//! `{"open":N}`; then it goes on until it is killed, with a line `{"cut":N}` for every so many ends.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::Parser;

#[derive(Parser)]
struct Args {
    #[arg(long)]
    addr: SocketAddr,
    #[arg(long)]
    each: usize,
}

/// Pause before a connection is made anew.
const AGAIN: Duration = Duration::from_millis(50);
/// Ends of connections between two lines.
const TELL_EVERY: usize = 100;

const JSON: &str = "POST /mcp HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n";

/// What a connection goes on with.
type Worst = fn(&mut TcpStream) -> io::Result<()>;

const KINDS: [Worst; 12] = [
    dripped_head,
    body_without_end,
    tiny_chunks,
    half_a_chunk,
    deep,
    pipelined,
    coded_without_end,
    bomb,
    |stream| ask(stream, "event_without_end"),
    |stream| ask(stream, "interim_without_end"),
    |stream| ask(stream, "bomb_of_events"),
    |stream| ask(stream, "head_without_end"),
];

fn main() -> io::Result<()> {
    let args = Args::parse();
    let (open, cut) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let all = KINDS.len() * args.each;
    for worst in KINDS.into_iter().flat_map(|kind| std::iter::repeat_n(kind, args.each)) {
        let (open, cut) = (Arc::clone(&open), Arc::clone(&cut));
        thread::Builder::new().stack_size(128 << 10).spawn(move || {
            let mut is_first = true;
            loop {
                if let Ok(mut stream) = TcpStream::connect_timeout(&args.addr, Duration::from_secs(10)) {
                    if std::mem::take(&mut is_first) && open.fetch_add(1, Ordering::Relaxed) + 1 == all {
                        println!("{{\"open\":{all}}}");
                    }
                    // It ends as its peer wants.
                    let _ = worst(&mut stream);
                    let ends = cut.fetch_add(1, Ordering::Relaxed) + 1;
                    if ends.is_multiple_of(TELL_EVERY) {
                        println!("{{\"cut\":{ends}}}");
                    }
                }
                thread::sleep(AGAIN);
            }
        })?;
    }
    loop {
        thread::park();
    }
}

/// Waits for the end, and reads nothing before a while has passed.
fn hold(stream: &mut TcpStream) -> io::Result<()> {
    thread::sleep(Duration::from_secs(2));
    let mut sink = [0; 1024];
    while stream.read(&mut sink)? > 0 {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn dripped_head(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"POST /mcp HTTP/1.1\r\nhost: a\r\nx-long: ")?;
    for _ in 0..60 {
        stream.write_all(&[b'x'; 1024])?;
        thread::sleep(Duration::from_millis(20));
    }
    hold(stream)
}

fn body_without_end(stream: &mut TcpStream) -> io::Result<()> {
    let most = 4 << 20;
    stream.write_all(format!("{JSON}content-length: {most}\r\n\r\n{{\"a\":\"").as_bytes())?;
    stream.write_all(&vec![b'x'; most - 100])?;
    hold(stream)
}

fn tiny_chunks(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(format!("{JSON}transfer-encoding: chunked\r\n\r\n1\r\n[\r\n").as_bytes())?;
    let chunks = "1\r\n1\r\n".repeat(10_000);
    for _ in 0..500 {
        stream.write_all(chunks.as_bytes())?;
    }
    hold(stream)
}

fn half_a_chunk(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(format!("{JSON}transfer-encoding: chunked\r\n\r\n3fffff\r\n[").as_bytes())?;
    stream.write_all(&vec![b' '; 3 << 20])?;
    hold(stream)
}

fn deep(stream: &mut TcpStream) -> io::Result<()> {
    let most = (4 << 20) - 1;
    stream.write_all(format!("{JSON}content-length: {most}\r\n\r\n").as_bytes())?;
    stream.write_all(&vec![b'['; most])?;
    hold(stream)
}

/// Asks on and on, and never reads.
fn pipelined(stream: &mut TcpStream) -> io::Result<()> {
    loop {
        ask_only(stream, "large")?;
    }
}

/// Brotli whose window has 16 MiB, of a content that goes on.
fn coded_without_end(stream: &mut TcpStream) -> io::Result<()> {
    let most = 4 << 20;
    stream.write_all(
        format!("{JSON}content-encoding: br, br, br\r\ncontent-length: {most}\r\n\r\n").as_bytes(),
    )?;
    for _ in 0..most / 1024 {
        stream.write_all(&[0x0f; 1024])?;
        thread::sleep(Duration::from_millis(5));
    }
    hold(stream)
}

/// Gzip of 4 MiB of spaces, as a whole, of which nobody has an answer.
fn bomb(stream: &mut TcpStream) -> io::Result<()> {
    let mut content =
        br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"never","arguments":{}}}"#
            .to_vec();
    content.resize(4_000_000, b' ');
    let coded = stored(&content);
    stream.write_all(
        format!("{JSON}content-encoding: gzip\r\ncontent-length: {}\r\n\r\n", coded.len()).as_bytes(),
    )?;
    stream.write_all(&coded)?;
    hold(stream)
}

/// Gzip without compression (RFC 1951, section 3.2.4), which needs no library here.
fn stored(content: &[u8]) -> Vec<u8> {
    let mut coded = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let blocks = content.chunks(0xffff);
    let last = blocks.len() - 1;
    for (index, block) in blocks.enumerate() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        coded.push(u8::from(index == last));
        coded.extend_from_slice(&length.to_le_bytes());
        coded.extend_from_slice(&(!length).to_le_bytes());
        coded.extend_from_slice(block);
    }
    // A checksum that is wrong, and a length: what is held until then is what counts.
    coded.extend_from_slice(&[0; 8]);
    coded
}

fn ask_only(stream: &mut TcpStream, tool: &str) -> io::Result<()> {
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
    );
    stream.write_all(format!("{JSON}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

/// Has the server do its worst, and reads a little of it.
fn ask(stream: &mut TcpStream, tool: &str) -> io::Result<()> {
    ask_only(stream, tool)?;
    hold(stream)
}
