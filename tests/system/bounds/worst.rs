//! Agents and servers that do their worst on some 200 connections: the daemon's memory stays within what the configuration
//! says, and an honest agent beside them is served all along.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{DEADLINE, Daemon, RawAgent, World, http, mcp, wait_for};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::NO_RULES;

/// Bytes of messages that the daemon of this test may hold.
const MEMORY_KIB: u64 = 160 << 10;
/// What each connection has beside that: 32 KiB for each side, a head, and what it is.
const EACH_KIB: u64 = 160;
/// What the allocator keeps of what was given back, and what is in the hands of the threads at a time: a message of each, out of
/// its codings.
const SLACK_KIB: u64 = 64 << 10;
/// Connections of each kind, of each of the two agents.
const EACH: usize = 9;
const KINDS: usize = 12;
const FOR: Duration = Duration::from_secs(20);

/// The end of what `reply` writes is the end of the connection.
fn for_ever(reply: &mut Reply<'_>, bytes: &[u8]) -> io::Result<()> {
    loop {
        reply.write(bytes)?;
    }
}

/// 64 MiB of an event's data, in 64 KiB.
fn bomb() -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::default());
    writer.write_all(b"data: ").expect("to memory");
    writer.write_all(&vec![b'z'; 64 << 20]).expect("to memory");
    writer.finish().expect("to memory")
}

fn hostile_server(world: &World) -> RawServer {
    let bomb = bomb();
    RawServer::start(world, move |request, reply| {
        if handshake(request, reply)? {
            return Ok(());
        }
        match request.json()["params"]["name"].as_str().unwrap_or_default() {
            "head_without_end" => {
                reply.write(b"HTTP/1.1 200 OK\r\n")?;
                for_ever(reply, b"x-long: zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz\r\n")
            }
            "event_without_end" => {
                reply.write(&[http::sse_head(), http::chunk(b"data: ")].concat())?;
                for_ever(reply, &http::chunk(&[b'z'; 16 * 1024]))
            }
            "interim_without_end" => {
                for_ever(reply, &b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(100))
            }
            "bomb_of_events" => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
                reply.write(format!("{head}content-length: {}\r\n\r\n", bomb.len()).as_bytes())?;
                reply.write(&bomb)?;
                reply.hold(|| false)
            }
            "large" => {
                reply.result(request, &json!({"content": [{"type": "text", "text": "z".repeat(1 << 20)}]}))
            }
            "echo" => reply.result(request, &json!({"content": [{"type": "text", "text": "honest"}]})),
            _ => reply.hold(|| false),
        }
    })
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn memory_stays_within_its_bound_and_an_honest_agent_is_served() {
    let world = World::new();
    let memory = MEMORY_KIB * 1024;
    let limits = format!("limits: {{memory: {memory}, memory_per_agent: {}}}\n", memory / 2);
    let mut daemon = Daemon::start_with(&world, NO_RULES, &limits);
    let server = hostile_server(&world);
    let mut honest = RawAgent::start(&world, "coder");
    let mut conn = honest.open(server.address()).expect("a connection");
    let mut call = |id: u32| {
        let begun = Instant::now();
        honest.send(&conn, &mcp::legacy(&mcp::call(id, "echo", json!({})))).expect("send");
        let answer = honest.message(&mut conn).expect("the honest agent is served");
        assert!(answer.text().contains("honest"), "{}", answer.text());
        begun.elapsed()
    };
    call(1);
    let before = daemon.process().resident_kib();
    daemon.process().reset_peak();

    let (address, each) = (server.address().to_string(), EACH.to_string());
    let command =
        [agent_tests::sdk::binary("hostile-agent"), "--addr".to_owned(), address, "--each".to_owned(), each];
    let hostile = ["sibling", "parked"].map(|name| world.start_agent(name, &command));
    for agent in &hostile {
        assert_eq!(agent.line()["open"], KINDS * EACH);
    }
    let (until, mut slowest, mut calls) = (Instant::now() + FOR, Duration::ZERO, 1);
    while Instant::now() < until {
        calls += 1;
        slowest = slowest.max(call(calls));
    }
    let (after, peak) = (daemon.process().resident_kib(), daemon.process().peak_kib());
    let connections = u64::try_from(2 * EACH * KINDS + 1).expect("a small number");
    let bound = before + MEMORY_KIB + connections * EACH_KIB + SLACK_KIB;
    println!(
        "{connections} connections: {before} KiB before, {after} after, {peak} at most, of {bound}; {calls} honest calls, the slowest took {slowest:?}"
    );
    assert!(
        peak > before + MEMORY_KIB / 2,
        "they do not do their worst: {peak} KiB at most, {before} before"
    );
    assert!(peak < bound, "{peak} KiB at most, of {bound}");
    assert!(calls > 5 && slowest < DEADLINE / 2, "{calls} honest calls, the slowest took {slowest:?}");

    drop(hostile);
    wait_for("all of it to be given back", || {
        (daemon.metrics().value("interlock_held_bytes", &[]) == 0.0).then_some(())
    });
    let reasons: Vec<String> = daemon.records().all().iter().filter_map(reason).collect();
    for expect in ["hold the limit", "larger than the limit of", "too_deep", "head_too_long"] {
        assert!(reasons.iter().any(|reason| reason.contains(expect)), "{expect} is on record");
    }
    call(calls + 1);
}

fn reason(record: &Value) -> Option<String> {
    [&record["reason"], &record["error"]].into_iter().find_map(Value::as_str).map(str::to_owned)
}
