//! Tests only: recorded bytes, changed at random from a fixed seed. No decoder panics, loses bytes, or takes for JSON
//! what is none.

use std::collections::VecDeque;

use super::replay::{CAPTURES, Replay};
use super::*;

/// Bytes that a hostile peer might make of recorded ones: flipped, cut, repeated, put elsewhere.
struct Mutations {
    state: u64,
}

impl Mutations {
    fn below(&mut self, bound: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state >> 33).unwrap() % bound.max(1)
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + self.below(12)).min(bytes.len());
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 => bytes.insert(at, SPECIAL[self.below(SPECIAL.len())]),
                2 => bytes.truncate(at),
                3 => drop(bytes.drain(at..end)),
                4 => {
                    let part = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, part);
                }
                _ if at < bytes.len() => bytes[at] = SPECIAL[self.below(SPECIAL.len())],
                _ => {}
            }
        }
    }
}

#[test]
fn mutated_connections_never_panic() {
    let mut random = Mutations { state: 0x9e37_79b9_7f4a_7c15 };
    let agents = CAPTURES.iter().map(|(_, agent, _)| (*agent, None));
    let servers = CAPTURES.iter().map(|(_, _, server)| (*server, Some(VecDeque::new())));
    for (whole, answers) in agents.chain(servers) {
        for _ in 0..300 {
            let mut bytes = whole.to_vec();
            random.mutate(&mut bytes);
            let mut replay = Replay::new(answers.clone());
            let size = 1 + random.below(bytes.len());
            let refused = bytes.chunks(size).any(|piece| replay.write(piece).is_err());
            assert!(refused || replay.consumed + replay.pending.len() == bytes.len());
            sniff(&bytes);
        }
    }
}

#[test]
fn mutated_messages_are_json_exactly_when_serde_says_so() {
    let mut random = Mutations { state: 0x2545_f491_4f6c_dd1d };
    let seeds = [
        r#"{"jsonrpc":"2.0","id":"c-17","method":"tools/call","params":{"name":"a","arguments":{"x":[1,-2.5e3]}}}"#,
        r#"[{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[{"text":"\ud83d\ude00 \\ é"}]}},null]"#,
    ];
    for round in 0..40_000 {
        let mut bytes = seeds[round % seeds.len()].as_bytes().to_vec();
        random.mutate(&mut bytes);
        let ours = decode(&bytes, &Limits::default());
        let text = bytes.escape_ascii();
        match serde_json::from_slice::<serde_json::Value>(&bytes) {
            Ok(_) => {
                let syntax = matches!(ours, Err(Undecodable::Json | Undecodable::Utf8 | Undecodable::Empty));
                assert!(!syntax, "{ours:?} for {text}");
            }
            // What only serde refuses: half a surrogate pair in a result, numbers past f64, several documents.
            Err(error) => {
                let text_of = error.to_string();
                let tolerated = ["surrogate", "hex escape", "out of range", "trailing"];
                let tolerated = tolerated.iter().any(|part| text_of.contains(part));
                assert!(ours.is_err() || tolerated, "{text_of}: {ours:?} for {text}");
            }
        }
    }
}

#[test]
fn mutated_members_are_found_as_serde_finds_them() {
    let mut random = Mutations { state: 0x1405_7b7e_f767_814f };
    let seed = r#"{"k":"é\"}","a":[{"k":1},"],"] , "\u006bk" : {"k":{}},"n":-2.5e3,"d":7}"#;
    for _ in 0..20_000 {
        let mut bytes = seed.as_bytes().to_vec();
        random.mutate(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let parsed = serde_json::from_str::<serde_json::Value>(&text).ok();
        for name in ["k", "a", "kk", "n", "d"] {
            let found = find::member(&text, name);
            let (Some(parsed), Ok(found)) = (&parsed, found) else { continue };
            let expect = parsed.get(name).filter(|value| !value.is_null());
            let found: Option<serde_json::Value> = found.map(|value| serde_json::from_str(value).unwrap());
            assert_eq!(found.as_ref(), expect, "{name} in {text}");
        }
    }
}

#[test]
fn mutated_traces_never_panic() {
    let mut random = Mutations { state: 0x853c_49e6_748f_ea9b };
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let baggage = "user=a%20b;x=1, flow=%C3%BC;y,z=";
    for _ in 0..20_000 {
        let (mut first, mut second) = (trace.as_bytes().to_vec(), baggage.as_bytes().to_vec());
        random.mutate(&mut first);
        random.mutate(&mut second);
        assert!(trace::trace_id(&first).is_none_or(|id| id.len() == 32));
        trace::baggage([&*second, b"a=1"].into_iter(), "flow");
    }
}

const SPECIAL: &[u8] = b"\r\n\0\x1f :;,\"\\{}[]0u\xef\xbb\xbf\xff";
