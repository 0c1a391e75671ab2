//! Every coding, cut everywhere, and what is wrong with each.

use std::io::Write as _;

use brotli::CompressorWriter;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use super::chain::STEP;
use super::*;

const LIMITS: Limits = Limits { message: 1 << 20, event: 1 << 20, header: 1 << 16, name: 1 << 14, depth: 64 };

/// A way to code, and the token that names it.
#[derive(Clone, Copy, Debug)]
enum Way {
    Gzip,
    Zlib,
    Raw,
    Brotli,
    Zstd,
}

const WAYS: [Way; 5] = [Way::Gzip, Way::Zlib, Way::Raw, Way::Brotli, Way::Zstd];

impl Way {
    fn token(self) -> &'static str {
        match self {
            Way::Gzip => "gzip",
            Way::Zlib | Way::Raw => "deflate",
            Way::Brotli => "br",
            Way::Zstd => "zstd",
        }
    }

    /// Codes the parts, each flushed as servers flush their events; the coded length after each, and the end behind
    /// the last.
    fn code(self, parts: &[&[u8]]) -> (Vec<u8>, Vec<usize>) {
        macro_rules! flushing {
            ($writer:expr, $inner:ident, $finish:expr) => {{
                let mut writer = $writer;
                let ends = parts.iter().map(|part| {
                    writer.write_all(part).unwrap();
                    writer.flush().unwrap();
                    writer.$inner().len()
                });
                let ends = ends.collect();
                ($finish(writer), ends)
            }};
        }
        let level = Compression::default();
        match self {
            Way::Gzip => {
                flushing!(GzEncoder::new(Vec::new(), level), get_ref, |w: GzEncoder<_>| w.finish().unwrap())
            }
            Way::Zlib => flushing!(ZlibEncoder::new(Vec::new(), level), get_ref, |w: ZlibEncoder<_>| w
                .finish()
                .unwrap()),
            Way::Raw => flushing!(DeflateEncoder::new(Vec::new(), level), get_ref, |w: DeflateEncoder<_>| w
                .finish()
                .unwrap()),
            Way::Brotli => {
                flushing!(CompressorWriter::new(Vec::new(), 4096, 5, 22), get_ref, |w: CompressorWriter<
                    _,
                >| w
                    .into_inner())
            }
            Way::Zstd => zstd(parts, 20),
        }
    }

    fn whole(self, content: &[u8]) -> Vec<u8> {
        self.code(&[content]).0
    }
}

fn zstd(parts: &[&[u8]], window_log: u32) -> (Vec<u8>, Vec<usize>) {
    let mut context = CCtx::create();
    context.set_parameter(CParameter::WindowLog(window_log)).unwrap();
    context.set_parameter(CParameter::ChecksumFlag(true)).unwrap();
    let mut coded = vec![0; parts.iter().map(|part| part.len() + 1024).sum()];
    let mut out = OutBuffer::around(&mut coded[..]);
    let mut ends = Vec::new();
    for part in parts {
        let mut input = InBuffer::around(part);
        while input.pos() < part.len() {
            context.compress_stream(&mut out, &mut input).unwrap();
        }
        while context.flush_stream(&mut out).unwrap() > 0 {}
        ends.push(out.pos());
    }
    while context.end_stream(&mut out).unwrap() > 0 {}
    let length = out.pos();
    coded.truncate(length);
    (coded, ends)
}

fn codings(value: &str) -> Codings {
    let mut codings = Codings::default();
    codings.read(value.as_bytes());
    codings
}

/// Undoes what comes in pieces of that size.
fn pieces(value: &str, coded: &[u8], piece: usize) -> Result<Vec<u8>, Fault> {
    let mut decoder = Decoder::new(codings(value), LIMITS.message)?;
    let mut content = Vec::new();
    for piece in coded.chunks(piece) {
        decoder.push(piece);
        while decoder.has_more() {
            let before = content.len();
            decoder.step(&mut content)?;
            assert!(content.len() - before <= STEP);
        }
    }
    decoder.finish().map(|()| content)
}

#[track_caller]
fn check(value: &str, coded: &[u8], expect: Result<&[u8], Fault>) {
    let expect = expect.map(<[u8]>::to_vec);
    assert_eq!(undo(codings(value), coded, &LIMITS), expect, "{value}");
    for piece in [1, 3, 64, coded.len().max(1)] {
        assert_eq!(pieces(value, coded, piece), expect, "{value} in pieces of {piece}");
    }
}

/// Text that is neither all alike nor random.
fn text(length: usize) -> Vec<u8> {
    let lines = (0_u32..).map(|n| format!("{{\"n\":{n},\"square\":{}}}\n", n.wrapping_mul(n)));
    lines.flat_map(String::into_bytes).take(length).collect()
}

#[test]
fn every_coding_is_undone_wherever_it_is_cut() {
    for way in WAYS {
        for length in [0, 1, 2, 100, STEP - 1, STEP, STEP + 1, 3 * STEP] {
            let content = text(length);
            let coded = way.whole(&content);
            if matches!(way, Way::Raw) && coded.len() < 5 {
                continue;
            }
            check(way.token(), &coded, Ok(&content));
        }
        let (content, coded) = (text(200), way.whole(&text(200)));
        for cut in 0..=coded.len() {
            let mut decoder = Decoder::new(codings(way.token()), LIMITS.message).unwrap();
            let mut got = Vec::new();
            for part in [&coded[..cut], &coded[cut..]] {
                decoder.push(part);
                while decoder.has_more() {
                    decoder.step(&mut got).unwrap();
                }
            }
            assert_eq!((decoder.finish(), &got), (Ok(()), &content), "{way:?} cut at {cut}");
        }
    }
}

#[test]
fn codings_are_undone_in_the_opposite_order() {
    let content = text(5000);
    for (first, second) in WAYS.iter().flat_map(|first| WAYS.map(|second| (*first, second))) {
        let coded = second.whole(&first.whole(&content));
        check(&format!("{}, {}", first.token(), second.token()), &coded, Ok(&content));
        let third = Way::Zstd.whole(&coded);
        check(&format!("{},{},zstd", first.token(), second.token()), &third, Ok(&content));
    }
}

#[test]
fn what_a_server_flushes_is_there_at_once() {
    let events: Vec<Vec<u8>> = [10, 100, 2000, 20, STEP + 1, 1].map(text).to_vec();
    let parts: Vec<&[u8]> = events.iter().map(Vec::as_slice).collect();
    let whole = events.concat();
    for (way, outer) in
        WAYS.iter().flat_map(|way| [None, Some(Way::Gzip), Some(Way::Brotli)].map(|outer| (*way, outer)))
    {
        let (mut coded, mut ends) = way.code(&parts);
        let mut value = way.token().to_owned();
        if let Some(outer) = outer {
            let starts = [&[0], &ends[..]].concat();
            let inner: Vec<&[u8]> = starts.windows(2).map(|pair| &coded[pair[0]..pair[1]]).collect();
            let (both, both_ends) = outer.code(&inner);
            value = format!("{value}, {}", outer.token());
            (coded, ends) = (both, both_ends);
        }
        for piece in [1, 13, 1024, STEP] {
            let mut decoder = Decoder::new(codings(&value), LIMITS.message).unwrap();
            let (mut content, mut start, mut expect) = (Vec::new(), 0, 0);
            for (end, event) in ends.iter().zip(&events) {
                for piece in coded[start..*end].chunks(piece) {
                    decoder.push(piece);
                    while decoder.has_more() {
                        decoder.step(&mut content).unwrap();
                    }
                }
                (start, expect) = (*end, expect + event.len());
                assert_eq!(content.len(), expect, "{value} in pieces of {piece}");
            }
            assert_eq!(content, whole);
        }
    }
}

#[test]
fn what_is_cut_short_is_truncated() {
    for way in WAYS {
        let coded = way.whole(&text(300));
        for cut in 0..coded.len() {
            assert_eq!(
                undo(codings(way.token()), &coded[..cut], &LIMITS),
                Err(Fault::Truncated),
                "{way:?} {cut}"
            );
        }
        let outer = Way::Gzip.whole(&coded[..coded.len() - 1]);
        check(&format!("{}, gzip", way.token()), &outer, Err(Fault::Truncated));
    }
}

#[test]
fn what_follows_the_end_is_seen() {
    for way in WAYS {
        for tail in [&b"\0"[..], b"x", b" ", b"\n"] {
            let coded = [&*way.whole(b"content"), tail].concat();
            check(way.token(), &coded, Err(Fault::Trailing));
        }
    }
    // Raw, and at its end within the bytes that tell so.
    check("deflate", b"\x03\x00abc", Err(Fault::Trailing));
}

#[test]
fn gzip_and_zstd_may_begin_again() {
    for way in [Way::Gzip, Way::Zstd] {
        let members = [way.whole(b"one"), way.whole(b""), way.whole(b" two")].concat();
        check(way.token(), &members, Ok(b"one two"));
        check(way.token(), &members[..members.len() - 1], Err(Fault::Truncated));
        check(way.token(), &[&*members, &members[..1]].concat(), Err(Fault::Truncated));
    }
    let skipped = [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &Way::Zstd.whole(b"one")].concat();
    check("zstd", &skipped, Ok(b"one"));
    let twice = Way::Brotli.whole(b"one").repeat(2);
    check("br", &twice, Err(Fault::Trailing));
}

#[test]
fn checksums_are_checked() {
    for (way, tail) in [(Way::Gzip, 8), (Way::Zlib, 4), (Way::Zstd, 4)] {
        let coded = way.whole(&text(300));
        for at in coded.len() - tail..coded.len() {
            let mut wrong = coded.clone();
            wrong[at] ^= 1;
            check(way.token(), &wrong, Err(Fault::Corrupt));
        }
    }
}

#[test]
fn what_is_no_such_coding_is_corrupt() {
    for way in WAYS {
        check(way.token(), b"\xff\xff\xff\xff\xff\xff\xff\xff", Err(Fault::Corrupt));
    }
    check("gzip", &Way::Zlib.whole(b"content"), Err(Fault::Corrupt));
    // With a dictionary that nobody has.
    check("deflate", b"\x78\x20\0\0\0\0\0\0", Err(Fault::Corrupt));
}

#[test]
fn windows_are_bounded() {
    // Of a size that is not known, it needs the window that it asks for.
    let content = text(100);
    let (allowed, _) = zstd(&[&content], 23);
    check("zstd", &allowed, Ok(&content));
    let (refused, _) = zstd(&[&content], 24);
    check("zstd", &refused, Err(Fault::Corrupt));
    // RFC 7932 ends at 24 bits; this is the header of a large window.
    check("br", b"\x11\x1e\x03", Err(Fault::Corrupt));
}

#[test]
fn bombs_stop_at_the_limit() {
    let zeros = vec![0; LIMITS.message + 1];
    for way in WAYS {
        check(way.token(), &way.whole(&zeros[1..]), Ok(&zeros[1..]));
        check(way.token(), &way.whole(&zeros), Err(Fault::Oversized));
        // What is small in the end, and large in between: a name in the header of gzip.
        let named =
            [&b"\x1f\x8b\x08\x08\0\0\0\0\0\0"[..], &[b'a'; 2 << 20], b"\0\x03\0\0\0\0\0\0\0\0\0"].concat();
        assert!(named.len() > LIMITS.message);
        check(&format!("gzip, {}", way.token()), &way.whole(&named), Err(Fault::Oversized));
    }
}

#[test]
fn a_bomb_holds_no_more_than_a_step_at_a_time() {
    for way in WAYS {
        let mut decoder = Decoder::new(codings(&format!("{}, gzip", way.token())), usize::MAX).unwrap();
        let mut bytes = 0;
        let coded = Way::Gzip.whole(&way.whole(&vec![0; 8 << 20]));
        decoder.push(&coded);
        let mut content = Vec::new();
        while decoder.has_more() {
            decoder.step(&mut content).unwrap();
            assert!(content.len() <= STEP);
            bytes += content.len();
            content.clear();
        }
        assert_eq!(bytes, 8 << 20);
    }
}

#[test]
fn a_limit_that_is_renewed_holds_for_what_follows() {
    let coded = Way::Gzip.whole(&text(100_000));
    let mut decoder = Decoder::new(codings("gzip"), 2 * STEP).unwrap();
    decoder.push(&coded);
    let mut content = Vec::new();
    for _ in 0..3 {
        decoder.step(&mut content).unwrap();
        decoder.renew();
    }
    decoder.step(&mut content).unwrap();
    decoder.step(&mut content).unwrap();
    assert_eq!(decoder.step(&mut content), Err(Fault::Oversized));
}

#[test]
fn what_is_json_as_it_stands_is_ambiguous() {
    let stands =
        [&br#"{"jsonrpc":"2.0","method":"a"}"#[..], b" [1]", b"\r\n{}", b"[\"\xff\"]", b"\xef\xbb\xbf{}"];
    for coded in stands {
        for value in ["gzip", "deflate", "br", "zstd", "br, gzip"] {
            assert_eq!(undo(codings(value), coded, &LIMITS), Err(Fault::Ambiguous), "{value}");
        }
    }
    // So do contents of a certain size begin in brotli.
    let content = text(100_000);
    let mut coded = Vec::new();
    let mut writer = CompressorWriter::new(&mut coded, 1 << 20, 9, 22);
    writer.write_all(&content).unwrap();
    drop(writer);
    assert_eq!(coded[0], b'[');
    check("br", &coded, Ok(&content));
}

#[test]
fn headers_are_one_list() {
    let read = |values: &[&str]| {
        let mut codings = Codings::default();
        values.iter().for_each(|value| codings.read(value.as_bytes()));
        codings
    };
    assert_eq!(read(&["gzip , BR", "X-Gzip"]), codings("gzip,br,gzip"));
    assert_ne!(codings("gzip, br"), codings("br, gzip"));
    for identity in [&[""][..], &["identity", "Identity, ,"], &[]] {
        assert!(read(identity).is_identity(), "{identity:?}");
    }
    assert_eq!(codings("identity, zstd"), codings("zstd"));
    for unknown in ["compress", "gzip;q=1", "gzip br", "br, dcb", "gzip, gzip, gzip, gzip", "utf-8"] {
        assert!(!codings(unknown).is_identity());
        assert_eq!(Decoder::new(codings(unknown), 1).err(), Some(Fault::Unknown), "{unknown}");
    }
    assert_eq!(Decoder::new(codings("gzip, gzip, gzip"), 1).err(), None);
}

#[test]
fn who_wants_no_identity_says_so() {
    let check = |values: &[&str], expect| {
        let refuses = refuses_identity(values.iter().map(|value| value.as_bytes()));
        assert_eq!(refuses, expect, "{values:?}");
    };
    for takes in
        ["", "gzip", "gzip, *", "identity;q=0.001", "*;q=0, identity", "identity;q=1.0, *;q=0", "gzip;q=0"]
    {
        check(&[takes], false);
    }
    for refuses in ["identity;q=0", "gzip, Identity ; Q=0.000", "gzip, *;q=0", "*, identity;q=0.0"] {
        check(&[refuses], true);
    }
    check(&["gzip", "*;q=0"], true);
    check(&["*;q=0", "identity"], false);
    check(&[], false);
}

#[test]
fn whatever_is_changed_nothing_panics_and_no_limit_is_passed() {
    let content = text(600);
    for way in WAYS {
        let coded = way.whole(&content);
        for (at, bit) in (0..coded.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut changed = coded.clone();
            changed[at] ^= 1 << bit;
            if let Ok(content) = undo(codings(way.token()), &changed, &LIMITS) {
                assert!(content.len() <= LIMITS.message);
            }
        }
    }
}
