//! Streams in every framing, cut everywhere.

use std::io::Write as _;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::decode::{Method, parse_response};
use crate::forward::refuse::tests::call;

const LIMIT: usize = 1 << 20;

fn chunks(content: &[u8], size: usize) -> Vec<u8> {
    let chunks = content.chunks(size).flat_map(refuse::chunk);
    chunks.chain(refuse::LAST_CHUNK.iter().copied()).collect()
}

/// Takes all of the input. What leaves then.
fn turn(stream: &mut Stream, input: &[u8]) -> Vec<u8> {
    assert_eq!(stream.take(input), Ok(input.len()));
    decide(stream)
}

/// Decides each event by its data, once it is whole. What leaves then.
fn decide(stream: &mut Stream) -> Vec<u8> {
    while stream.has_event().unwrap() {
        assert!(stream.has_event().unwrap(), "until it is decided");
        match &*sse::fields(stream.event()).data {
            b"drop" => stream.withhold(),
            b"edit\nthis" => stream.replace(b"{\"edited\":true}"),
            _ => stream.pass(),
        }
    }
    sent(stream)
}

fn sent(stream: &mut Stream) -> Vec<u8> {
    let (bytes, left) = stream.leaving();
    let sent = bytes[*left..].to_vec();
    stream.sent();
    sent
}

/// The content in what the agent got.
fn content(framing: Framing, bytes: &[u8]) -> Vec<u8> {
    let mut stream = Stream::new(framing, false, LIMIT);
    assert_eq!(stream.take(bytes), Ok(bytes.len()));
    stream.pass_rest();
    sent(&mut stream)
}

/// A content relayed in every framing, every size of chunk and every size of write; what the agent gets of it.
#[track_caller]
fn check(from: &str, expect: &str) {
    let bytes = from.as_bytes();
    let mut servers =
        vec![(Framing::UntilClose, bytes.to_vec()), (Framing::Length(bytes.len() as u64), bytes.to_vec())];
    servers.extend((1..=bytes.len()).map(|size| (Framing::Chunked, chunks(bytes, size))));
    for (framing, server) in servers {
        for piece in 1..=server.len() {
            for chunked in [true, false] {
                let mut stream = Stream::new(framing, chunked, LIMIT);
                let mut got: Vec<u8> =
                    server.chunks(piece).flat_map(|piece| turn(&mut stream, piece)).collect();
                assert_eq!(stream.is_done(), framing != Framing::UntilClose);
                stream.finish();
                got.extend(sent(&mut stream));
                let agent = if chunked { Framing::Chunked } else { Framing::UntilClose };
                let got = String::from_utf8(content(agent, &got)).unwrap();
                assert_eq!(got, expect, "{framing:?} in writes of {piece}");
            }
        }
    }
}

#[test]
fn content_is_the_same_however_it_is_cut() {
    for stream in [
        "data: ü\r\n\r\nid: 1\r\ndata: b\r\n\r\n",
        ": ping\n: ping\n\ndata: a\n\n",
        "\u{feff}retry: 3\rdata:a\rdata: b\r\r: x\n",
        "",
    ] {
        check(stream, stream);
    }
    check("data: a\n\ndata: unfinished\n", "data: a\n\n");
}

#[test]
fn events_are_edited_however_they_are_cut() {
    check("data: drop\n\nid: 2\r\ndata: drop\r\n\r\n", "id: 2\r\ndata: \r\n\r\n");
    check("id: 3\ndata: edit\ndata: this\n\ndata: a\n\n", "id: 3\ndata: {\"edited\":true}\n\ndata: a\n\n");
}

#[test]
fn nothing_waits_for_what_comes_after_it() {
    let parts = [": ping\n", "data: a\n\n", "\n", ": x\r", "\n", "data: b\r\n\r", "\n", "data: c"];
    let whole = parts.concat();
    let ends: Vec<usize> = (1..parts.len()).map(|n| parts[..n].concat().len()).collect();
    let framed =
        [(Framing::UntilClose, whole.clone().into()), (Framing::Chunked, chunks(whole.as_bytes(), 1))];
    for (framing, server) in framed {
        let mut stream = Stream::new(framing, false, LIMIT);
        let mut got = 0;
        for byte in server {
            got += turn(&mut stream, &[byte]).len();
            let taken = got + stream.undecided();
            assert_eq!(Some(&got), ends.iter().rfind(|end| **end <= taken).or(Some(&0)), "of {taken}");
        }
    }
}

#[test]
fn what_comes_together_leaves_together() {
    let mut stream = Stream::new(Framing::Chunked, true, LIMIT);
    let chunk = refuse::chunk(b"data: a\n\n: b\n\ndata: c\n\n");
    assert_eq!(
        turn(&mut stream, &[b"3;x=y\r\ndat\r\n", &*refuse::chunk(b"a: 0\n\n")].concat()),
        b"9\r\ndata: 0\n\n\r\n"
    );
    assert_eq!(turn(&mut stream, &chunk), chunk);
    // And behind the head, if it is there.
    stream.send(b"head");
    assert_eq!(turn(&mut stream, &chunk), [b"head", &*chunk].concat());
}

#[test]
fn trailers_end_with_the_stream() {
    let mut stream = Stream::new(Framing::Chunked, true, LIMIT);
    let got = turn(&mut stream, &[&*refuse::chunk(b"data: a\n\n"), b"0\r\nX: y\r\n\r\n"].concat());
    assert_eq!(got, refuse::chunk(b"data: a\n\n"));
    assert!(stream.is_done());
    stream.finish();
    assert_eq!(sent(&mut stream), refuse::LAST_CHUNK);
}

#[test]
fn faults_come_after_what_was_before_them() {
    let mut stream = Stream::new(Framing::Chunked, false, LIMIT);
    let fault = stream.take(&[&*refuse::chunk(b"data: a\n\n"), b"x"].concat());
    assert_eq!(fault, Err(Broken::Framing(Malformed::ChunkSize)));
    assert_eq!(stream.has_event(), Ok(true));
    stream.pass();
    assert_eq!(sent(&mut stream), b"data: a\n\n");
}

#[test]
fn event_over_the_limit_passes_unread_and_only_that() {
    let mut stream = Stream::new(Framing::UntilClose, false, 10);
    assert_eq!(stream.take(b"data: a\n\ndata: too long"), Ok(23));
    assert_eq!(stream.has_event(), Ok(true));
    stream.pass();
    assert_eq!(stream.has_event(), Err(Oversized));
    stream.pass_unread();
    assert_eq!((stream.has_event(), stream.is_passing()), (Ok(false), true));
    assert_eq!(sent(&mut stream), b"data: a\n\ndata: too long");
    assert_eq!(stream.take(b"\n\ndata: x\n\ndata: too long again"), Ok(31));
    assert_eq!(
        (stream.has_event(), stream.event(), stream.is_passing()),
        (Ok(true), &b"data: x\n\n"[..], false)
    );
    stream.skip();
    assert_eq!(stream.has_event(), Err(Oversized));
    assert_eq!(sent(&mut stream), b"\n\n");
}

fn ending(stream: &mut Stream) -> String {
    let refusal = Refusal::Rule { id: Arc::from("r"), reason: Arc::from("because") };
    String::from_utf8(stream.ending(&[call("ping", Some("7"))], &refusal)).unwrap()
}

#[test]
fn a_stop_in_the_middle_of_an_event_ends_the_stream_before_it_and_reads_on_in_it() {
    let mut stream = Stream::new(Framing::Chunked, true, LIMIT);
    let before = turn(&mut stream, b"12\r\ndata: a\n\ndata: la");
    assert_eq!(before, b"9\r\ndata: a\n\n\r\n");
    let end = content(Framing::Chunked, &[&*before, ending(&mut stream).as_bytes()].concat());
    let end = String::from_utf8(end).unwrap();
    assert!(end.starts_with("data: a\n\nevent: message\ndata: {") && end.contains("\"id\":7"), "{end}");
    assert!(!end.contains("data: la"), "{end}");

    assert_eq!(stream.take(b"t\r\n4\r\ne\n\n:\r\n0\r\n\r\n"), Ok(17));
    assert_eq!((stream.has_event(), stream.event()), (Ok(true), &b"data: late\n\n"[..]));
    stream.skip();
    assert_eq!((stream.has_event(), stream.is_done()), (Ok(false), true));
}

#[test]
fn a_stop_completes_what_is_decided_and_was_leaving() {
    let mut stream = Stream::new(Framing::UntilClose, true, LIMIT);
    stream.send(b"HEAD");
    assert_eq!(stream.take(b"data: a\n\ndata: b\n\n"), Ok(18));
    assert_eq!(stream.has_event(), Ok(true));
    stream.pass();
    let (_, left) = stream.leaving();
    *left = 2;
    // Decided in the middle of a turn, and not framed yet; the last one is whole and not decided.
    assert_eq!(stream.take(b"data: c\n\n"), Ok(9));
    assert_eq!(stream.has_event(), Ok(true));
    stream.pass();
    assert_eq!(stream.has_event(), Ok(true));
    let end = ending(&mut stream);
    assert!(end.starts_with("AD9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n"), "{end:?}");
    assert!(
        end.contains("\"id\":7") && end.ends_with("\r\n0\r\n\r\n") && !end.contains("data: c"),
        "{end:?}"
    );
    assert_eq!((stream.has_event(), stream.event()), (Ok(true), &b"data: c\n\n"[..]));
}

#[test]
fn nothing_follows_the_end() {
    let mut stream = Stream::new(Framing::Length(9), true, LIMIT);
    turn(&mut stream, b"data: a\n\n");
    stream.finish();
    let (_, left) = stream.leaving();
    *left = 1;
    assert_eq!(ending(&mut stream), "\r\n\r\n");
}

#[test]
fn what_a_server_says_goes_on_in_a_stream_of_ours() {
    let mut stream = Stream::open(LIMIT);
    stream.send(b"3\r\n:a\n\r\n");
    assert!(stream.is_waiting() && stream.is_chunked());
    // Half of it has left.
    let (_, left) = stream.leaving();
    *left = 4;
    stream.go_on(Framing::Length(10));
    assert!(!stream.is_waiting());
    assert_eq!(turn(&mut stream, b"data: 1\n\n\n"), b"a\n\r\na\r\ndata: 1\n\n\n\r\n");
    assert!(stream.is_done());
    assert_eq!((stream.next_progress(), stream.next_progress()), (1, 2));
}

/// A stream of that coding, in a framing of its own.
fn coded(framing: Framing, coding: &str, limit: usize) -> Stream {
    let mut stream = Stream::new(framing, false, limit);
    stream.decode_with(decoder(coding, limit).unwrap());
    stream
}

fn decoder(coding: &str, limit: usize) -> Result<Option<Decoder>, Fault> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\n\r\n");
    let head = parse_response(head.as_bytes(), 4096, Method::Post).unwrap().unwrap();
    Stream::decoder(head.codings, limit)
}

/// Each part in gzip, flushed, and the end.
fn gzip(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::default());
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for part in parts {
        writer.write_all(part).unwrap();
        writer.flush().unwrap();
        pieces.push(std::mem::take(writer.get_mut()));
    }
    pieces.push(writer.finish().unwrap());
    pieces
}

/// Takes all of it and decides each event, until nothing more comes of it.
fn turns(stream: &mut Stream, input: &[u8]) -> Result<Vec<u8>, Broken> {
    let (mut at, mut got) = (0, Vec::new());
    while at < input.len() || stream.has_more() {
        at += stream.take(&input[at..])?;
        got.extend(decide(stream));
    }
    Ok(got)
}

#[test]
fn events_leave_a_coding_as_they_are_flushed() {
    let events =
        [&b"data: a\n\n"[..], b"id: 1\ndata: drop\n\n", b"data: edit\ndata: this\n\n", b"data: half"];
    let expect = ["data: a\n\n", "id: 1\ndata: \n\n", "data: {\"edited\":true}\n\n", "", ""];
    let pieces = gzip(&events);
    for (framing, size) in [(Framing::UntilClose, 1), (Framing::Chunked, 1), (Framing::Chunked, 1000)] {
        let mut stream = coded(framing, "gzip", LIMIT);
        for (piece, expect) in pieces.iter().zip(expect) {
            let input = match framing {
                Framing::Chunked => piece.chunks(size).flat_map(refuse::chunk).collect(),
                _ => piece.clone(),
            };
            let mut got = Vec::new();
            for byte in input.chunks(size) {
                got.extend(turns(&mut stream, byte).unwrap());
            }
            assert_eq!(String::from_utf8_lossy(&got), expect, "{framing:?} {size}");
        }
        assert_eq!(stream.undecided(), 10);
    }
}

#[test]
fn a_coding_gives_no_more_than_a_step_at_a_time_and_none_for_one_event_than_an_event_has() {
    let event = [b"data: ", &*vec![b'x'; 99_000], b"\n\n"].concat();
    let whole = gzip(&[&event.repeat(30)]).concat();
    let mut stream = coded(Framing::Length(whole.len() as u64), "gzip", 100_000);
    assert_eq!(stream.take(&whole), Ok(whole.len()));
    assert!(stream.undecided() <= STEP && stream.has_more() && !stream.is_done());
    assert_eq!(turns(&mut stream, b"").map(|got| got.len()), Ok(30 * event.len()));
    assert!(stream.is_done());

    let bomb = gzip(&[&vec![b'x'; 1 << 20]]).concat();
    let mut stream = coded(Framing::UntilClose, "gzip", 100_000);
    let mut input = &*bomb;
    while stream.has_event() == Ok(false) {
        input = &input[stream.take(input).unwrap()..];
    }
    assert_eq!(stream.has_event(), Err(Oversized));
    assert!(stream.undecided() <= 100_000 + STEP);

    let twice = gzip(&[&[&b"\x1f\x8b\x08\x08\0\0\0\0\0\0"[..], &[b'a'; 1 << 20]].concat()]).concat();
    let mut stream = coded(Framing::UntilClose, "gzip, gzip", 100_000);
    assert_eq!(turns(&mut stream, &twice), Err(Broken::Coding(Fault::Oversized)));
}

#[test]
fn a_coding_that_breaks_gives_what_was_before() {
    let pieces = gzip(&[b"data: a\n\n"]);
    let mut stream = coded(Framing::UntilClose, "gzip", LIMIT);
    assert_eq!(turns(&mut stream, &pieces[0]).unwrap(), b"data: a\n\n");
    assert_eq!(turns(&mut stream, b"\xff\xff"), Err(Broken::Coding(Fault::Corrupt)));
    let mut stream = coded(Framing::UntilClose, "gzip", LIMIT);
    turns(&mut stream, &pieces.concat()).unwrap();
    assert_eq!(stream.take(b"data: b\n\n"), Err(Broken::Coding(Fault::Trailing)));
    assert_eq!(decoder("x", LIMIT).err(), Some(Fault::Unknown));
    assert!(decoder("identity", LIMIT).unwrap().is_none());
}

#[test]
fn a_stop_reads_on_in_the_middle_of_a_coding() {
    let pieces = gzip(&[b"data: a\n\ndata: la", b"te\n\n"]);
    let mut stream = coded(Framing::UntilClose, "gzip", LIMIT);
    assert_eq!(turns(&mut stream, &pieces[0]).unwrap(), b"data: a\n\n");
    assert!(!ending(&mut stream).contains("data: la"));
    stream.take(&pieces[1]).unwrap();
    assert_eq!((stream.has_event(), stream.event()), (Ok(true), &b"data: late\n\n"[..]));
}
