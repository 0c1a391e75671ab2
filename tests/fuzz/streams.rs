//! Random streams of HTTP/1 messages: whole ones, odd ones, and ones with a character too many or too few.

use crate::random::Random;

const METHODS: [&str; 9] = ["GET", "GET", "GET", "POST", "POST", "HEAD", "OPTIONS", "CONNECT", "X"];
const TARGETS: [&str; 14] = [
    "/",
    "/",
    "/",
    "/",
    "/",
    "/a?b",
    "/a?b",
    "*",
    "http://a/b",
    "http://a",
    "a:1",
    "//b",
    "http://u@a/",
    "/a#b",
];
const HEADERS: [&str; 20] = [
    "Host: b:80",
    "Host: a@b",
    "Content-Length: 5",
    "Content-Length: 5",
    "Content-Length: 0",
    "content-length:3 ",
    "Content-Length:\t5",
    "Content-Length: 5, 5",
    "Content-Length: +5",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked",
    "transfer-encoding:Chunked ",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding:\tchunked",
    "Connection: close",
    "Connection: keep-alive",
    "Expect: 100-continue",
    "Upgrade: x",
    "X: y",
    "X: y\r\n z",
];
const BODIES: [&str; 16] = [
    "hello",
    "hello",
    "5\r\nhello\r\n",
    "5\r\nhello\r\n",
    "5;a=b\r\nhello\r\n",
    "5 ;a\r\nhello\r\n",
    "005\r\nhello\r\n",
    "a\r\n0123456789\r\n",
    "0\r\n\r\n",
    "0\r\n\r\n",
    "0\r\nA: b\r\n\r\n",
    "0;x\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "5\nhello\n",
    "0x5\r\nhello\r\n",
    "",
];
const STATUSES: [&str; 8] =
    ["200 OK", "200", "204 X", "304 X", "100 Continue", "103 X", "404 Not Found", "101 X"];
/// What is put where it does not belong.
const ODD: [&str; 14] = ["\r", "\n", "\r\n", " ", "\t", ":", ";", ",", "0", "a", "\0", "\u{fc}", "\"", "F"];

/// Requests, one after the other.
pub(crate) fn requests(random: &mut Random) -> String {
    messages(random, |random| {
        let version = if random.one_in(6) { "HTTP/1.0" } else { "HTTP/1.1" };
        let host = if random.one_in(6) { "" } else { "\r\nHost: a" };
        format!("{} {} {version}{host}", random.pick(&METHODS), random.pick(&TARGETS))
    })
}

/// Responses, one after the other.
pub(crate) fn responses(random: &mut Random) -> String {
    messages(random, |random| {
        let version = if random.one_in(6) { "HTTP/1.0" } else { "HTTP/1.1" };
        format!("{version} {}", random.pick(&STATUSES))
    })
}

fn messages(random: &mut Random, line: impl Fn(&mut Random) -> String) -> String {
    let mut text = String::new();
    for _ in 0..=random.below(3) {
        text += &line(random);
        for _ in 0..random.below(4) {
            text += "\r\n";
            text += random.pick(&HEADERS);
        }
        text += "\r\n\r\n";
        for _ in 0..random.below(4) {
            text += random.pick(&BODIES);
        }
    }
    for _ in 0..random.below(3) {
        let mut at = random.below(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        match random.below(3) {
            0 if at < text.len() => drop(text.remove(at)),
            1 => text.truncate(at),
            _ => text.insert_str(at, &random.text(&ODD, 2)),
        }
    }
    text
}
