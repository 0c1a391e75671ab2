//! TCP connections under remote control: an agent without any SDK, for bytes that no SDK would send.
//!
//! One JSON command per line on stdin, one JSON answer per line on stdout, bytes as hex:
//! `{"op":"open","conn":"a","addr":"1.2.3.4:80"}` · `{"op":"send","conn":"a","hex":"..","chunk":1}` ·
//! `{"op":"recv","conn":"a","timeout":5}` (waits for some bytes, at most `most` of them) · `{"op":"finish","conn":"a"}` (says that nothing more
//! comes) · `{"op":"close","conn":"a"}` · `{"op":"peer","conn":"a"}` (whom the agent believes to talk to). A failure
//! carries the errno.

use std::collections::HashMap;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

/// How much one `recv` answers at most.
const RECV: usize = 256 * 1024;

fn main() -> anyhow::Result<()> {
    let mut connections = HashMap::new();
    for line in io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line?).context("a command is one line of JSON")?;
        let answer = match run(&command, &mut connections) {
            Ok(answer) => answer,
            Err(error) => json!({"ok": false, "errno": error.raw_os_error(), "message": error.to_string()}),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

fn run(command: &Value, connections: &mut HashMap<String, TcpStream>) -> io::Result<Value> {
    let text = |name: &str| command[name].as_str().unwrap_or_default();
    let name = text("conn").to_owned();
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    if text("op") == "open" {
        let address: SocketAddr = text("addr").parse().map_err(|_| invalid("addr must be HOST:PORT"))?;
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        connections.insert(name, stream);
        return Ok(json!({"ok": true}));
    }
    let stream = connections.get_mut(&name).ok_or_else(|| invalid("no such connection"))?;
    match text("op") {
        "send" => {
            let bytes = from_hex(text("hex")).ok_or_else(|| invalid("hex"))?;
            let chunk = command["chunk"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
            for piece in bytes.chunks(chunk.max(1)) {
                stream.write_all(piece)?;
            }
            Ok(json!({"ok": true}))
        }
        "recv" => {
            stream.set_read_timeout(command["timeout"].as_f64().map(Duration::from_secs_f64))?;
            let most = command["most"].as_u64().and_then(|most| usize::try_from(most).ok());
            let mut bytes = vec![0; most.unwrap_or(RECV)];
            let length = stream.read(&mut bytes)?;
            Ok(json!({"ok": true, "eof": length == 0, "hex": to_hex(&bytes[..length])}))
        }
        "peer" => Ok(json!({"ok": true, "addr": stream.peer_addr()?.to_string()})),
        "finish" => {
            stream.shutdown(Shutdown::Write)?;
            Ok(json!({"ok": true}))
        }
        "close" => {
            connections.remove(&name);
            Ok(json!({"ok": true}))
        }
        _ => Err(invalid("unknown op")),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).and_then(|value| u8::try_from(value).ok())).collect();
    Some(digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}
