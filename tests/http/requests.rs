//! Streams of requests: as agents send them, odd, and hostile.

use crate::Exception;

/// What follows a hostile one, for whoever takes it for shorter than it is.
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";

fn get(line: &str, lines: &str) -> Vec<u8> {
    format!("{line}\r\n{lines}\r\n{NEXT}").into_bytes()
}

fn post(lines: &str, body: &str) -> Vec<u8> {
    format!("POST /a HTTP/1.1\r\nHost: a\r\n{lines}\r\n{body}{NEXT}").into_bytes()
}

/// See [`crate::Sheet`].
pub(crate) const EXCEPTIONS: &[Exception] = &[
    // nginx refuses more than we do.
    ("length twice alike", "nginx", "it takes no header twice"),
    ("OPTIONS *", "nginx", "it has nothing to say of a server as a whole"),
    ("CONNECT", "nginx", "it is no proxy"),
    ("empty host", "nginx", "only what has no server may have one, and all it serves has one"),
    ("no host", "nginx", "HTTP/1.1 wants one; the address is the name for us then"),
    // It reads other things than we do, and is alone with that.
    ("absolute, query only", "nginx", "it adds no slash, as RFC 9112, section 3.2.1, wants it to"),
    // hyper and nginx agree on what we refuse, and others would not.
    ("chunk size before a space", "all", "strict readers have a space there only before an extension"),
    ("long chunk size", "all", "some count its digits"),
    ("long extension", "all", "it has a bound of its own here"),
    ("LF in a head", "all", "strict readers see no end of a line (RFC 9112, section 2.2, allows both)"),
    ("LF after the first line", "all", "the same"),
    ("LF ends a head", "all", "the same"),
    (
        "empty line before",
        "all",
        "strict readers see a first line there (RFC 9112, section 2.2, allows both)",
    ),
    ("empty line between", "all", "the same"),
    ("user in a host", "all", "readers differ in which part they take for the name"),
    ("escape in a host", "all", "what resolves it may undo it, and rules would not know the name"),
    ("odd address", "all", "what resolves it takes it for 127.0.0.1, and rules would not"),
    ("another host", "all", "both go by the target; others go by the host"),
];

type Expect = Result<usize, &'static str>;

/// Name, bytes, and how many requests we read or why we refuse one.
pub(crate) fn corpus() -> Vec<(&'static str, Vec<u8>, Expect)> {
    let head = "Transfer-Encoding: chunked\r\n";
    let chunked = |body: &str| post(head, body);
    let host = |host: &str| get("GET /a HTTP/1.1", &format!("Host: {host}\r\n"));
    let target = |target: &str| get(&format!("GET {target} HTTP/1.1"), "Host: a\r\n");
    let long = "x".repeat(5000);
    vec![
        ("pipelined", get("GET /a?b=c HTTP/1.1", "Host: A.test:80\r\n"), Ok(2)),
        ("length", post("Content-Length: 5\r\n", "hello"), Ok(2)),
        ("length 0", post("Content-Length: 0\r\n", ""), Ok(2)),
        ("length, zeros", post("Content-Length: 0005\r\n", "hello"), Ok(2)),
        ("length, spaces", post("Content-Length:   5  \r\n", "hello"), Ok(2)),
        ("length, any case", post("CONTENT-length:5\r\n", "hello"), Ok(2)),
        ("length twice alike", post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"), Ok(2)),
        ("body of a GET", get("GET /a HTTP/1.1", "Host: a\r\nContent-Length: 31\r\n"), Ok(1)),
        ("chunked", chunked("5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"), Ok(2)),
        ("chunked, any case", post("transfer-ENCODING: CHUNKED\r\n", "1\r\na\r\n0\r\n\r\n"), Ok(2)),
        ("chunked, extensions", chunked("5;a=b;c=\"d\"\r\nhello\r\n0;x\r\n\r\n"), Ok(2)),
        ("chunked, space before extension", chunked("5 ;a\r\nhello\r\n0\r\n\r\n"), Ok(2)),
        ("chunked, trailers", chunked("5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n"), Ok(2)),
        ("chunked, zeros", chunked("0005\r\nhello\r\n000\r\n\r\n"), Ok(2)),
        ("chunked, hexadecimal", chunked("a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n"), Ok(2)),
        ("chunked, empty", chunked("0\r\n\r\n"), Ok(2)),
        ("expect", post("Content-Length: 5\r\nExpect: 100-continue\r\n", "hello"), Ok(2)),
        ("HEAD", get("HEAD /a HTTP/1.1", "Host: a\r\n"), Ok(2)),
        ("OPTIONS", get("OPTIONS /a HTTP/1.1", "Host: a\r\n"), Ok(2)),
        ("OPTIONS *", get("OPTIONS * HTTP/1.1", "Host: a\r\n"), Ok(2)),
        ("DELETE", get("DELETE /a HTTP/1.1", "Host: a\r\n"), Ok(2)),
        ("own method", get("QUERY /a HTTP/1.1", "Host: a\r\n"), Ok(2)),
        ("close", get("GET /a HTTP/1.1", "Host: a\r\nConnection: close\r\n"), Ok(1)),
        ("close among others", get("GET /a HTTP/1.1", "Host: a\r\nConnection: x, Close\r\n"), Ok(1)),
        ("1.0", get("GET /a HTTP/1.0", "Host: a\r\n"), Ok(1)),
        ("1.0, keep-alive", get("GET /a HTTP/1.0", "Host: a\r\nConnection: keep-alive\r\n"), Ok(2)),
        (
            "upgrade",
            get("GET /a HTTP/1.1", "Host: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"),
            Ok(2),
        ),
        ("absolute", get("GET http://A.test:80/b?c HTTP/1.1", "Host: a.test\r\n"), Ok(2)),
        ("absolute, no path", get("GET http://a.test HTTP/1.1", "Host: a.test\r\n"), Ok(2)),
        ("absolute, query only", get("GET http://a.test?b HTTP/1.1", "Host: a.test\r\n"), Ok(2)),
        ("two slashes", target("//b.test/c"), Ok(2)),
        ("path in path", target("/http://b.test/c"), Ok(2)),
        ("escapes", target("/%61%2f..%2f?x=%zz"), Ok(2)),
        ("address", host("10.0.0.1:8080"), Ok(2)),
        ("IPv6 address", host("[fd77::1]:8080"), Ok(2)),
        ("empty host", host(""), Ok(2)),
        ("no host", get("GET /a HTTP/1.1", ""), Ok(2)),
        ("CONNECT", get("CONNECT a.test:443 HTTP/1.1", "Host: a.test:443\r\n"), Ok(2)),
        ("header without value", get("GET /a HTTP/1.1", "Host: a\r\nX:\r\nY:  \r\n"), Ok(2)),
        ("value with tabs", get("GET /a HTTP/1.1", "Host: a\r\nX:\ta\tb\t\r\n"), Ok(2)),
        ("value past ASCII", get("GET /a HTTP/1.1", "Host: a\r\nX: \u{fc}\r\n"), Ok(2)),
        ("underscore", post("Content_Length: 3\r\nContent-Length: 5\r\n", "hello"), Ok(2)),
        ("cut in a head", b"GET /a HTTP/1.1\r\nHost: a\r\n".to_vec(), Ok(0)),
        ("cut in a body", b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhello".to_vec(), Ok(0)),
        (
            "cut in a chunk",
            [b"POST /a HTTP/1.1\r\nHost: a\r\n", head.as_bytes(), b"\r\n5\r\nhel"].concat(),
            Ok(0),
        ),
        // Lengths.
        (
            "length and chunked",
            post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            Err("length_and_chunked"),
        ),
        (
            "chunked and length",
            post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
            Err("length_and_chunked"),
        ),
        ("two lengths", post("Content-Length: 5\r\nContent-Length: 6\r\n", "hello"), Err("length_conflict")),
        ("list of lengths", post("Content-Length: 5, 5\r\n", "hello"), Err("length_list")),
        ("length with sign", post("Content-Length: +5\r\n", "hello"), Err("length_invalid")),
        ("negative length", post("Content-Length: -5\r\n", "hello"), Err("length_invalid")),
        ("hexadecimal length", post("Content-Length: 0x5\r\n", "hello"), Err("length_invalid")),
        ("length with a fraction", post("Content-Length: 5.0\r\n", "hello"), Err("length_invalid")),
        ("length of two words", post("Content-Length: 5 5\r\n", "hello"), Err("length_invalid")),
        ("no length", post("Content-Length:\r\n", ""), Err("length_invalid")),
        ("length of 2^63", post("Content-Length: 9223372036854775808\r\n", ""), Err("length_invalid")),
        ("length of 2^64", post("Content-Length: 18446744073709551616\r\n", ""), Err("length_invalid")),
        ("length after a tab", post("Content-Length:\t5\r\n", "hello"), Err("tab_around_value")),
        ("length before a tab", post("Content-Length: 5\t\r\n", "hello"), Err("tab_around_value")),
        // Transfer codings.
        ("another coding", post("Transfer-Encoding: gzip\r\n", ""), Err("transfer_encoding")),
        (
            "coding before chunked",
            post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
            Err("transfer_encoding"),
        ),
        (
            "coding after chunked",
            post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
            Err("transfer_encoding"),
        ),
        ("identity", post("Transfer-Encoding: identity\r\n", ""), Err("transfer_encoding")),
        ("almost chunked", post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"), Err("transfer_encoding")),
        (
            "chunked in quotes",
            post("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"),
            Err("transfer_encoding"),
        ),
        (
            "chunked twice",
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
            Err("transfer_encoding"),
        ),
        (
            "chunked in a list",
            post("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"),
            Err("transfer_encoding"),
        ),
        ("no coding", post("Transfer-Encoding:\r\n", ""), Err("transfer_encoding")),
        (
            "chunked after a tab",
            post("Transfer-Encoding:\tchunked\r\n", "0\r\n\r\n"),
            Err("tab_around_value"),
        ),
        (
            "chunked before a tab",
            post("Transfer-Encoding: chunked\t\r\n", "0\r\n\r\n"),
            Err("tab_around_value"),
        ),
        ("chunked after VT", post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"), Err("http_syntax")),
        (
            "chunked in 1.0",
            get("POST /a HTTP/1.0", "Host: a\r\nTransfer-Encoding: chunked\r\n"),
            Err("chunked_http10"),
        ),
        // Chunks.
        ("chunk size with 0x", chunked("0x5\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size with sign", chunked("+5\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size after a space", chunked(" 5\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size before a space", chunked("5 \r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("no chunk size", chunked("\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size of an extension", chunked(";5\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size of 2^63", chunked("8000000000000000\r\nhello"), Err("chunk_size")),
        ("chunk size of 2^64", chunked("10000000000000005\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("long chunk size", chunked("00000000000000005\r\nhello\r\n0\r\n\r\n"), Err("chunk_size")),
        ("chunk size before LF", chunked("5\nhello\r\n0\r\n\r\n"), Err("bare_lf")),
        ("chunk size before CR", chunked("5\rhello\r\n0\r\n\r\n"), Err("bare_cr")),
        ("extension before LF", chunked("5;a\nhello\r\n0\r\n\r\n"), Err("bare_lf")),
        ("extension with CR", chunked("5;a\rb\r\nhello\r\n0\r\n\r\n"), Err("bare_cr")),
        ("long extension", chunked(&format!("5;{long}\r\nhello\r\n0\r\n\r\n")), Err("chunk_extension")),
        ("chunk too long", chunked("5\r\nhello!\r\n0\r\n\r\n"), Err("chunk_end")),
        ("chunk too short", chunked("6\r\nhello\r\n0\r\n\r\n"), Err("chunk_end")),
        ("chunk before LF", chunked("5\r\nhello\n0\r\n\r\n"), Err("chunk_end")),
        ("last chunk before LF", chunked("5\r\nhello\r\n0\n\n"), Err("bare_lf")),
        ("end before LF", chunked("5\r\nhello\r\n0\r\n\n"), Err("bare_lf")),
        ("trailer before LF", chunked("0\r\nA: b\n\r\n"), Err("bare_lf")),
        ("folded trailer", chunked("0\r\nA: b\r\n c\r\n\r\n"), Err("obs_fold")),
        // Lines.
        ("LF in a head", get("GET /a HTTP/1.1", "Host: a\nX: y\r\n"), Err("bare_lf")),
        ("LF after the first line", b"GET /a HTTP/1.1\nHost: a\r\n\r\n".to_vec(), Err("bare_lf")),
        ("LF ends a head", format!("GET /a HTTP/1.1\r\nHost: a\r\n\n{NEXT}").into_bytes(), Err("bare_lf")),
        ("CR in a value", get("GET /a HTTP/1.1", "Host: a\r\nX: y\rZ: z\r\n"), Err("bare_cr")),
        ("folded", get("GET /a HTTP/1.1", "Host: a\r\nX: y\r\n z\r\n"), Err("obs_fold")),
        ("folded with a tab", get("GET /a HTTP/1.1", "Host: a\r\nX: y\r\n\tz\r\n"), Err("obs_fold")),
        ("folded length", post("Content-Length:\r\n 5\r\n", "hello"), Err("obs_fold")),
        ("space before the first header", get("GET /a HTTP/1.1", " Host: a\r\n"), Err("obs_fold")),
        ("space before colon", post("Content-Length : 5\r\n", "hello"), Err("space_before_colon")),
        ("tab before colon", post("Content-Length\t: 5\r\n", "hello"), Err("space_before_colon")),
        ("space in a name", get("GET /a HTTP/1.1", "Host: a\r\nX Y: z\r\n"), Err("http_syntax")),
        ("no colon", get("GET /a HTTP/1.1", "Host: a\r\nXY\r\n"), Err("http_syntax")),
        ("no name", get("GET /a HTTP/1.1", "Host: a\r\n: x\r\n"), Err("http_syntax")),
        ("NUL in a value", get("GET /a HTTP/1.1", "Host: a\r\nX: \0\r\n"), Err("http_syntax")),
        ("NUL in a name", post("Content-Length\0: 5\r\n", "hello"), Err("http_syntax")),
        ("empty line before", format!("\r\n{NEXT}").into_bytes(), Err("leading_garbage")),
        ("space before", format!(" {NEXT}").into_bytes(), Err("leading_garbage")),
        ("empty line between", format!("{NEXT}\r\n{NEXT}").into_bytes(), Err("leading_garbage")),
        ("bytes past a length", post("Content-Length: 4\r\n", "hellX"), Ok(2)),
        // First lines.
        ("0.9", b"GET /a\r\n".to_vec(), Ok(0)),
        ("0.9 and more", get("GET /a", ""), Err("http_syntax")),
        ("1.2", get("GET /a HTTP/1.2", "Host: a\r\n"), Err("http_version")),
        ("2.0", get("GET /a HTTP/2.0", "Host: a\r\n"), Err("http_version")),
        ("version in lower case", get("GET /a http/1.1", "Host: a\r\n"), Err("http_version")),
        ("two spaces", get("GET  /a HTTP/1.1", "Host: a\r\n"), Err("http_syntax")),
        ("space in a target", get("GET /a b HTTP/1.1", "Host: a\r\n"), Err("http_version")),
        ("space after the version", get("GET /a HTTP/1.1 ", "Host: a\r\n"), Err("http_syntax")),
        ("tab for a space", get("GET\t/a HTTP/1.1", "Host: a\r\n"), Err("http_syntax")),
        ("method with a colon", get("GE:T /a HTTP/1.1", "Host: a\r\n"), Err("http_syntax")),
        // Servers.
        ("two hosts", get("GET /a HTTP/1.1", "Host: a\r\nHost: b\r\n"), Err("repeated_host")),
        ("user in a host", host("b@a.test"), Err("host")),
        ("odd port", host("a.test:b"), Err("host")),
        ("list of hosts", host("a.test, b.test"), Err("host")),
        ("host with a path", host("a.test/b"), Err("host")),
        ("escape in a host", host("%61.test"), Err("host")),
        ("odd address", host("127.1"), Err("host")),
        ("host after a tab", host("\ta.test"), Err("tab_around_value")),
        ("another host", get("GET http://a.test/ HTTP/1.1", "Host: b.test\r\n"), Err("header_mismatch")),
        ("absolute without host", get("GET http://a.test/ HTTP/1.1", ""), Err("header_mismatch")),
        ("user in a target", get("GET http://b@a.test/ HTTP/1.1", "Host: a.test\r\n"), Err("request_target")),
        ("name for a target", target("a.test"), Err("request_target")),
        ("star", target("*"), Err("request_target")),
        ("fragment", target("/a#b"), Err("request_target")),
        ("scheme without slashes", target("http:a.test"), Err("request_target")),
        ("CONNECT to a path", get("CONNECT /a HTTP/1.1", "Host: a\r\n"), Err("request_target")),
        (
            "CONNECT with a body",
            get("CONNECT a.test:443 HTTP/1.1", "Host: a.test:443\r\nContent-Length: 3\r\n"),
            Err("tunnel_body"),
        ),
    ]
}
