//! Recorded connections of real SDKs, said again through the daemon in pieces of every kind: what the server gets is
//! byte for byte what the agent has sent, and what the agent gets says what the server has.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use agent_tests::http::{self, Message};
use agent_tests::raw_server::RawServer;
use agent_tests::{Daemon, RawAgent, World};

use crate::NO_RULES;

/// Cuts of each direction, beside those in small pieces.
const CUTS: usize = 12;

/// Each recording: its name, and what agent and server said.
fn recordings() -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/captures");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .expect("recordings")
        .filter_map(|file| Some(file.ok()?.file_name().to_str()?.strip_suffix(".c2s.txt")?.to_owned()))
        .collect();
    names.sort();
    let read =
        |name: &str, side: &str| fs::read(folder.join(format!("{name}.{side}.txt"))).expect("a recording");
    names.into_iter().map(|name| (name.clone(), read(&name, "c2s"), read(&name, "s2c"))).collect()
}

/// The messages in it, each with its bytes.
fn messages(bytes: &[u8]) -> Vec<(Message, Vec<u8>)> {
    let (mut rest, mut found) = (bytes.to_vec(), Vec::new());
    while !rest.is_empty() {
        let before = rest.clone();
        let Some(message) = Message::take(&mut rest, true) else { break };
        found.push((message, before[..before.len() - rest.len()].to_vec()));
    }
    found
}

/// What must be the same of an answer. Streams of events have a framing of our own.
fn said(message: &Message) -> (String, Vec<(String, String)>, String) {
    let is_stream = message.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
    let frames = |name: &str| matches!(name, "content-length" | "transfer-encoding" | "connection");
    let headers = message.headers.iter().filter(|(name, _)| !is_stream || !frames(name));
    (message.start.clone(), headers.cloned().collect(), message.text())
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn recorded_connections_pass_as_they_were_however_they_are_cut() {
    let world = World::new();
    let _daemon = Daemon::start(&world, NO_RULES);
    // What the server answers next, and in pieces of which size.
    let script: Arc<Mutex<(Vec<Vec<u8>>, usize)>> = Arc::default();
    let server = RawServer::start(&world, {
        let script = script.clone();
        move |_, reply| {
            let (answer, piece) = {
                let mut script = script.lock().unwrap_or_else(PoisonError::into_inner);
                (script.0.remove(0), script.1)
            };
            reply.write_in(piece, &answer)
        }
    });
    let mut agent = RawAgent::start(&world, "coder");
    let mut passed = 0;
    for (name, asked, mut answered) in recordings() {
        let requests = messages(&asked);
        if messages(&answered).len() < requests.len() {
            // Its client had its answer, and left before the last chunk.
            answered.extend(http::chunk(b""));
        }
        let answers = messages(&answered);
        assert_eq!(requests.len(), answers.len(), "{name}: one answer to each");
        let pieces = (0..=CUTS).map(|cut| 1 + cut * asked.len().max(answered.len()) / CUTS);
        for piece in pieces.chain([3, 7, 100]) {
            let before = server.bytes().len();
            let answers_raw = answers.iter().map(|(_, raw)| raw.clone()).collect();
            *script.lock().unwrap_or_else(PoisonError::into_inner) = (answers_raw, piece);
            let mut conn = agent.open(server.address()).expect("a connection");
            for ((_, request), (answer, _)) in requests.iter().zip(&answers) {
                agent.send_in(piece, &conn, request).expect("send");
                let got = agent.message(&mut conn).unwrap_or_else(|error| panic!("{name}, {piece}: {error}"));
                assert_eq!(said(&got), said(answer), "{name} in pieces of {piece}");
                passed += 1;
            }
            agent.close(conn).expect("close");
            assert_eq!(server.bytes()[before..], asked, "{name} in pieces of {piece}");
        }
    }
    assert!(passed > 300, "only {passed}");
}
