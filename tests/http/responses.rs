//! Streams of responses: as servers send them, odd, and hostile.

use crate::Exception;

/// What follows a hostile one, for whoever takes it for shorter than it is.
const NEXT: &str = "HTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx";

fn ok(lines: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}{NEXT}").into_bytes()
}

fn line(line: &str) -> Vec<u8> {
    format!("{line}\r\nContent-Length: 5\r\n\r\nhello{NEXT}").into_bytes()
}

/// Answers to HEAD: a head, whatever it says of a body, and another one.
fn heads(lines: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{lines}\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\n").into_bytes()
}

/// See [`crate::Sheet`].
pub(crate) const EXCEPTIONS: &[Exception] = &[
    // nginx reads otherwise.
    ("100 before", "nginx", "1.22 takes an interim answer for the last one, against RFC 9110, section 15.2"),
    ("103 before", "nginx", "the same"),
    // hyper and nginx agree on what we refuse, and others would not.
    ("another coding", "all", "both read to the end of the connection; others read a length or chunks"),
    ("identity", "all", "the same"),
    ("LF ends a head", "all", "strict readers see no end of a line (RFC 9112, section 2.2, allows both)"),
];

type Expect = Result<usize, &'static str>;

/// Name, method of the request, bytes, and how many responses we read or why we refuse one.
pub(crate) fn corpus() -> Vec<(&'static str, &'static str, Vec<u8>, Expect)> {
    let head = "Transfer-Encoding: chunked\r\n";
    let chunked = |body: &str| ok(head, body);
    let bare = |lines: &str, body: &str| format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}").into_bytes();
    vec![
        ("sized", "GET", ok("Content-Length: 5\r\n", "hello"), Ok(2)),
        ("empty", "GET", ok("Content-Length: 0\r\n", ""), Ok(2)),
        ("sized twice alike", "GET", ok("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), Ok(2)),
        ("in chunks", "GET", chunked("5\r\nhello\r\n0\r\n\r\n"), Ok(2)),
        ("chunks with extensions", "GET", chunked("5;a=\"b\"\r\nhello\r\n0;c\r\n\r\n"), Ok(2)),
        ("chunks and trailers", "GET", chunked("5\r\nhello\r\n0\r\nA: b\r\n\r\n"), Ok(2)),
        ("to the end", "GET", bare("", "hello"), Ok(1)),
        ("to the end, said so", "GET", bare("Connection: close\r\n", "hello"), Ok(1)),
        ("sized, then closed", "GET", ok("Connection: close\r\nContent-Length: 5\r\n", "hello"), Ok(1)),
        ("1.0", "GET", b"HTTP/1.0 200 OK\r\n\r\nhello".to_vec(), Ok(1)),
        ("1.0, sized", "GET", b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_vec(), Ok(1)),
        ("HEAD", "HEAD", heads("Content-Length: 5\r\n"), Ok(2)),
        ("HEAD in chunks", "HEAD", heads(head), Ok(2)),
        ("HEAD without a length", "HEAD", heads(""), Ok(2)),
        ("204", "GET", format!("HTTP/1.1 204 X\r\n\r\n{NEXT}").into_bytes(), Ok(2)),
        (
            "304 with a length",
            "GET",
            format!("HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n{NEXT}").into_bytes(),
            Ok(2),
        ),
        ("205", "GET", format!("HTTP/1.1 205 X\r\nContent-Length: 0\r\n\r\n{NEXT}").into_bytes(), Ok(2)),
        ("404", "GET", line("HTTP/1.1 404 Not Found"), Ok(2)),
        ("no reason", "GET", line("HTTP/1.1 200 "), Ok(2)),
        ("no reason, no space", "GET", line("HTTP/1.1 200"), Ok(2)),
        ("reason past ASCII", "GET", line("HTTP/1.1 200 \u{fc}"), Ok(2)),
        (
            "100 before",
            "GET",
            [b"HTTP/1.1 100 Continue\r\n\r\n", &ok("Content-Length: 5\r\n", "hello")[..]].concat(),
            Ok(2),
        ),
        (
            "103 before",
            "GET",
            [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", &ok("Content-Length: 5\r\n", "hello")[..]]
                .concat(),
            Ok(2),
        ),
        ("cut in a body", "GET", bare("Content-Length: 9\r\n", "hello"), Ok(0)),
        ("cut in a chunk", "GET", bare(head, "5\r\nhel"), Ok(0)),
        ("cut before the last chunk", "GET", bare(head, "5\r\nhello\r\n"), Ok(0)),
        ("cut in a head", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n".to_vec(), Ok(0)),
        // Lengths.
        (
            "length and chunks",
            "GET",
            ok("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            Err("length_and_chunked"),
        ),
        (
            "two lengths",
            "GET",
            ok("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"),
            Err("length_conflict"),
        ),
        ("list of lengths", "GET", ok("Content-Length: 5, 5\r\n", "hello"), Err("length_list")),
        ("negative length", "GET", ok("Content-Length: -5\r\n", "hello"), Err("length_invalid")),
        ("no length", "GET", ok("Content-Length:\r\n", "hello"), Err("length_invalid")),
        (
            "length of 2^63",
            "GET",
            ok("Content-Length: 9223372036854775808\r\n", "hello"),
            Err("length_invalid"),
        ),
        (
            "length of 2^64",
            "GET",
            ok("Content-Length: 18446744073709551616\r\n", "hello"),
            Err("length_invalid"),
        ),
        ("length after a tab", "GET", ok("Content-Length:\t5\r\n", "hello"), Err("tab_around_value")),
        // Transfer codings and chunks.
        ("another coding", "GET", ok("Transfer-Encoding: gzip\r\n", "hello"), Err("transfer_encoding")),
        (
            "coding before chunks",
            "GET",
            ok("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
            Err("transfer_encoding"),
        ),
        ("identity", "GET", ok("Transfer-Encoding: identity\r\n", "hello"), Err("transfer_encoding")),
        (
            "chunks in 1.0",
            "GET",
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec(),
            Err("chunked_http10"),
        ),
        ("chunk size with 0x", "GET", chunked("0x5\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size before a space", "GET", chunked("5 \r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size before LF", "GET", chunked("5\nhello\r\n0\r\n\r\n"), Err("bare_lf")),
        ("extension before LF", "GET", chunked("5;a\nhello\r\n0\r\n\r\n"), Err("bare_lf")),
        ("chunk too long", "GET", chunked("5\r\nhello!\r\n0\r\n\r\n"), Err("chunk_end")),
        ("chunk before LF", "GET", chunked("5\r\nhello\n0\r\n\r\n"), Err("chunk_end")),
        // Lines.
        ("LF in a head", "GET", ok("A: b\nContent-Length: 5\r\n", "hello"), Err("bare_lf")),
        (
            "LF ends a head",
            "GET",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\nhello".to_vec(),
            Err("bare_lf"),
        ),
        ("CR in a value", "GET", ok("A: b\rC: d\r\nContent-Length: 5\r\n", "hello"), Err("bare_cr")),
        ("folded", "GET", ok("A: b\r\n c\r\nContent-Length: 5\r\n", "hello"), Err("obs_fold")),
        ("space before colon", "GET", ok("Content-Length : 5\r\n", "hello"), Err("space_before_colon")),
        ("NUL in a value", "GET", ok("A: \0\r\nContent-Length: 5\r\n", "hello"), Err("http_syntax")),
        // First lines.
        (
            "empty line before",
            "GET",
            [b"\r\n", &line("HTTP/1.1 200 OK")[..]].concat(),
            Err("leading_garbage"),
        ),
        ("0.9", "GET", b"hello".to_vec(), Err("leading_garbage")),
        ("2.0", "GET", line("HTTP/2.0 200 OK"), Err("leading_garbage")),
        ("1.2", "GET", line("HTTP/1.2 200 OK"), Err("http_version")),
        ("status of two digits", "GET", line("HTTP/1.1 20 OK"), Err("http_syntax")),
        ("status of four digits", "GET", line("HTTP/1.1 2000 OK"), Err("http_syntax")),
        ("two spaces", "GET", line("HTTP/1.1  200 OK"), Err("http_syntax")),
        (
            "101",
            "GET",
            format!("HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n{NEXT}").into_bytes(),
            Err("unsolicited_upgrade"),
        ),
    ]
}
