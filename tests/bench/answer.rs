//! What bench-server answers, put together with as few copies as can be.

use std::io;
use std::time::Duration;

use bytes::Buf;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::{Call, Head, Server};

/// Answers a request.
pub(crate) async fn answer(
    stream: &mut TcpStream,
    server: &Server,
    head: &Head,
    call: &Call<'_>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let Some(id) = call.id.map(|id| id.get().as_bytes()) else {
        return stream.write_all(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n").await;
    };
    let kind = if head.modern { r#""resultType":"complete","# } else { "" };
    let (text, page) = (&server.blob[..], if head.modern { MODERN_PAGE } else { "" });
    match (&*call.method, &*call.params.name) {
        ("tools/call", "blob25k") => {
            // That of the endpoint itself, so that it is made by now when the list is asked for.
            let length = server.tools.of(head.endpoint.unwrap_or(0)).len();
            return blob(stream, out, id, kind, &text[..length]).await;
        }
        ("tools/call", "blob64k") => return blob(stream, out, id, kind, &text[..65536]).await,
        ("tools/call", "blob1m") => return blob(stream, out, id, kind, text).await,
        ("tools/call", "events20") => return events(stream, out, id, kind).await,
        ("tools/call", "drip") => {
            return drip(stream, out, id, kind, Duration::from_millis(call.params.arguments.ms)).await;
        }
        ("tools/call", "echo" | "slow") => {
            if call.params.arguments.ms > 0 {
                tokio::time::sleep(Duration::from_millis(call.params.arguments.ms)).await;
            }
            json(
                out,
                "200 OK",
                id,
                &format!(r#""result":{{{kind}"content":[{{"type":"text","text":"done"}}]}}"#),
            );
        }
        ("tools/call", _) => json(out, "200 OK", id, r#""error":{"code":-32602,"message":"unknown tool"}"#),
        ("initialize", _) => json(out, "200 OK", id, INITIALIZED),
        ("tools/list", _) => {
            if let Some(endpoint) = head.endpoint {
                let list = server.tools.of(endpoint).as_bytes();
                return large(stream, out, id, [&format!(r#"{page}"tools":"#), "}}"], list).await;
            }
            json(out, "200 OK", id, &tools_list(page));
        }
        ("ping", _) => json(out, "200 OK", id, r#""result":{}"#),
        _ => json(out, "200 OK", id, r#""error":{"code":-32601,"message":"unknown method"}"#),
    }
    stream.write_all(out).await
}

/// A large text result.
async fn blob(
    stream: &mut TcpStream,
    out: &mut Vec<u8>,
    id: &[u8],
    kind: &str,
    text: &[u8],
) -> io::Result<()> {
    let start = format!(r#"{kind}"content":[{{"type":"text","text":""#);
    large(stream, out, id, [&start, r#""}]}}"#], text).await
}

/// A large result with a start and an end, written as three pieces so that the text is never copied.
async fn large(
    stream: &mut TcpStream,
    out: &mut Vec<u8>,
    id: &[u8],
    [start, end]: [&str; 2],
    text: &[u8],
) -> io::Result<()> {
    const RESULT: &str = r#","result":{"#;
    let length = JSON.len() + id.len() + RESULT.len() + start.len() + text.len() + end.len();
    push(
        out,
        &["HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ", &length.to_string()],
    );
    push(out, &["\r\n\r\n", JSON]);
    out.extend_from_slice(id);
    push(out, &[RESULT, start]);
    stream.write_all_buf(&mut Buf::chain(&out[..], text).chain(end.as_bytes())).await
}

/// Nineteen progress notifications and the result, each an event, a chunk and a write of its own.
async fn events(stream: &mut TcpStream, out: &mut Vec<u8>, id: &[u8], kind: &str) -> io::Result<()> {
    push(out, &[EVENT_STREAM]);
    for step in 1..20 {
        push_progress(out, step, 20);
        stream.write_all(out).await?;
        out.clear();
    }
    push_last_event(out, id, kind);
    stream.write_all(out).await
}

/// The same in five events spread over `time`: an answer that is long on its way.
async fn drip(
    stream: &mut TcpStream,
    out: &mut Vec<u8>,
    id: &[u8],
    kind: &str,
    time: Duration,
) -> io::Result<()> {
    push(out, &[EVENT_STREAM]);
    for step in 1..5 {
        push_progress(out, step, 5);
        stream.write_all(out).await?;
        out.clear();
        tokio::time::sleep(time / 4).await;
    }
    push_last_event(out, id, kind);
    stream.write_all(out).await
}

fn push_progress(out: &mut Vec<u8>, step: u32, total: u32) {
    let event = format!(
        "event: message\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":\
         {{\"progressToken\":1,\"progress\":{step},\"total\":{total}}}}}\n\n"
    );
    push(out, &[&format!("{:x}\r\n", event.len()), &event, "\r\n"]);
}

/// The result, and the end of the stream.
fn push_last_event(out: &mut Vec<u8>, id: &[u8], kind: &str) {
    let mut event = b"event: message\ndata: ".to_vec();
    push(&mut event, &[JSON]);
    event.extend_from_slice(id);
    push(&mut event, &[",\"result\":{", kind, "\"content\":[{\"type\":\"text\",\"text\":\"done\"}]}}\n\n"]);
    push(out, &[&format!("{:x}\r\n", event.len())]);
    out.extend_from_slice(&event);
    push(out, &["\r\n0\r\n\r\n"]);
}

pub(crate) fn json(out: &mut Vec<u8>, status: &str, id: &[u8], member: &str) {
    let length = JSON.len() + id.len() + member.len() + 2;
    push(
        out,
        &["HTTP/1.1 ", status, "\r\ncontent-type: application/json\r\ncontent-length: ", &length.to_string()],
    );
    push(out, &["\r\n\r\n", JSON]);
    out.extend_from_slice(id);
    push(out, &[",", member, "}"]);
}

pub(crate) fn push(out: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
}

/// `page` is what a list says of itself.
fn tools_list(page: &str) -> String {
    let tools = ["echo", "blob25k", "blob64k", "blob1m", "events20", "slow", "drip"].map(|name| {
        format!(r#"{{"name":"{name}","description":"bench","inputSchema":{{"type":"object"}}}}"#)
    });
    format!(r#""result":{{{page}"tools":[{}]}}"#, tools.join(","))
}

const EVENT_STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const MODERN_PAGE: &str = r#""resultType":"complete","ttlMs":60000,"cacheScope":"private","#;
const JSON: &str = r#"{"jsonrpc":"2.0","id":"#;
const INITIALIZED: &str = r#""result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench-server","version":"1"}}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_answer_has_the_length_it_says() {
        let mut out = Vec::new();
        json(&mut out, "200 OK", b"7", r#""result":{}"#);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, r#"{"jsonrpc":"2.0","id":7,"result":{}}"#);
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
    }
}
