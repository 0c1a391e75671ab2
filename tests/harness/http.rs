//! Just enough HTTP/1.1 to say odd things to a proxy and to see exactly what came back.

use serde_json::Value;

/// A message as it came, and what it says.
#[derive(Clone, Debug)]
pub struct Message {
    /// The start line.
    pub start: String,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Message {
    /// Takes one message from the front of `bytes`; `None` while it is not whole. A response without a length is whole
    /// when the connection has ended.
    pub fn take(bytes: &mut Vec<u8>, ended: bool) -> Option<Self> {
        let (mut message, head) = Self::head(bytes)?;
        let (body, rest) =
            if message.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
                let (body, used) = chunked(&bytes[head..]);
                (body, head + used?)
            } else if let Some(length) = message.header("content-length") {
                let end = head + length.parse::<usize>().ok()?;
                (bytes.get(head..end)?.to_vec(), end)
            } else if message.start.starts_with("HTTP/") && !matches!(message.status(), 202 | 204) {
                if !ended {
                    return None;
                }
                (bytes[head..].to_vec(), bytes.len())
            } else {
                (Vec::new(), head)
            };
        message.body = body;
        bytes.drain(..rest);
        Some(message)
    }

    /// Takes one head from the front of `bytes`, as a message without a body.
    pub fn take_head(bytes: &mut Vec<u8>) -> Option<Self> {
        let (message, head) = Self::head(bytes)?;
        bytes.drain(..head);
        Some(message)
    }

    /// What there is of a message that is still on its way: its head, and the body so far without framing.
    pub fn so_far(bytes: &[u8]) -> Option<Self> {
        let (mut message, head) = Self::head(bytes)?;
        let is_chunked = message.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked"));
        message.body = if is_chunked { chunked(&bytes[head..]).0 } else { bytes[head..].to_vec() };
        Some(message)
    }

    /// The status of a response; 0 of a request.
    pub fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// A header field; the first of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; `null` when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The JSON messages of an SSE body or of a plain one.
    pub fn messages(&self) -> Vec<Value> {
        if self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let text = self.text();
            let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
            return data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect();
        }
        match self.json() {
            Value::Null => Vec::new(),
            Value::Array(all) => all,
            one => vec![one],
        }
    }

    fn head(bytes: &[u8]) -> Option<(Self, usize)> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = text.split("\r\n");
        let start = lines.next()?.to_owned();
        let field = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        Some((Self { start, headers: lines.filter_map(field).collect(), body: Vec::new() }, end + 4))
    }
}

/// A POST of `body` to `/mcp`, as SDK clients send it, with `headers` added.
pub fn post(body: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text =
        String::from("POST /mcp HTTP/1.1\r\nhost: bank.test\r\ncontent-type: application/json\r\n");
    text += "accept: application/json, text/event-stream\r\n";
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\n\r\n{body}", body.len());
    text.into_bytes()
}

/// A GET of `/mcp` as SDK clients send it to listen, with `headers` added.
pub fn get(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut text = String::from("GET /mcp HTTP/1.1\r\nhost: bank.test\r\naccept: text/event-stream\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    text.into_bytes()
}

/// A response with a body of known length.
pub fn response(content_type: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    [text.as_bytes(), body].concat()
}

/// The head of an SSE response whose events follow as chunks.
pub fn sse_head() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
        .to_vec()
}

/// One chunk of a chunked body; an empty one ends it.
pub fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The decoded part of a chunked body, and how many bytes it took when it is whole.
fn chunked(bytes: &[u8]) -> (Vec<u8>, Option<usize>) {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let Some(line) = bytes[at..].windows(2).position(|window| window == b"\r\n") else {
            return (body, None);
        };
        let size = String::from_utf8_lossy(&bytes[at..at + line]).into_owned();
        let Ok(size) = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16) else {
            return (body, None);
        };
        let start = at + line + 2;
        let have = bytes.len().saturating_sub(start).min(size);
        body.extend_from_slice(&bytes[start..start + have]);
        if bytes.len() < start + size + 2 {
            return (body, None);
        }
        at = start + size + 2;
        if size == 0 {
            return (body, Some(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_taken_only_when_whole() {
        let whole = [sse_head(), chunk(b"data: {\"id\":1}\n\n"), chunk(b"")].concat();
        for cut in 0..whole.len() {
            assert!(Message::take(&mut whole[..cut].to_vec(), false).is_none(), "cut at {cut}");
        }
        let mut bytes = [whole, post("{}", &[])].concat();
        let first = Message::take(&mut bytes, false).expect("a response");
        assert_eq!(first.messages(), [serde_json::json!({"id": 1})]);
        let second = Message::take(&mut bytes, false).expect("a request");
        assert_eq!((second.body.as_slice(), bytes.len()), (b"{}".as_slice(), 0));
    }

    #[test]
    fn body_so_far_is_without_framing() {
        let part = [sse_head(), chunk(b"data: 1\n\n"), b"5\r\ndat".to_vec()].concat();
        assert_eq!(Message::so_far(&part).expect("a head").text(), "data: 1\n\ndat");
    }
}
