//! Time: nothing of ours ends what is quiet or slow, what is slow grows no memory, and a peer that is gone without a word is
//! found on either side.

use std::io;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use agent_tests::agent::RawConn;
use agent_tests::raw_server::{RawServer, Reply, handshake};
use agent_tests::{Daemon, RawAgent, World, http, mcp, wait_for};
use serde_json::{Value, json};

use crate::NO_RULES;

/// A peer that is gone is found within 3 s, while nothing is on its way to it.
const SHORT: &str = "keepalive: {idle: 1s, every: 1s, probes: 2}\n";
/// And within this time if something is: 15 tries, a second or less apart.
const UNACKNOWLEDGED: Duration = Duration::from_secs(25);

/// Runs a command of iproute2 in a network namespace.
fn run_in(netns: &str, command: &[&str]) -> String {
    let output =
        Command::new("ip").args(["netns", "exec", netns]).args(command).output().expect("run ip (iproute2)");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Answers `echo` at once, `slow` after so many seconds, and all else never; of a GET it sends a stream with an event, and
/// another one after so many seconds.
fn patient(world: &World, seconds: u64) -> RawServer {
    let pause = move |reply: &Reply<'_>| {
        let until = Instant::now() + Duration::from_secs(seconds);
        reply.hold(|| Instant::now() >= until)
    };
    RawServer::start(world, move |request, reply| {
        if request.start.starts_with("GET") {
            let event = |text: &str| {
                let message = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": text}});
                http::chunk(format!("data: {message}\n\n").as_bytes())
            };
            reply.write(&[http::sse_head(), event("first")].concat())?;
            pause(reply)?;
            return reply.write(&event("second"));
        }
        if handshake(request, reply)? {
            return Ok(());
        }
        match request.json()["params"]["name"].as_str() {
            Some("echo") => {}
            Some("slow") => pause(reply)?,
            _ => return reply.hold(|| false),
        }
        reply.result(request, &json!({"content": [{"type": "text", "text": "done"}]}))
    })
}

fn open(agent: &mut RawAgent, server: &RawServer, request: &[u8]) -> RawConn {
    let conn = agent.open(server.address()).expect("a connection");
    agent.send(&conn, request).expect("send");
    conn
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_is_quiet_goes_on() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, SHORT);
    // Three times as long as it takes to find a peer that is gone.
    let server = patient(&world, 9);
    let mut agent = RawAgent::start(&world, "coder");
    let call = |tool: &str| mcp::legacy(&mcp::call(1, tool, json!({})));
    let mut stream = open(&mut agent, &server, &http::get(&[mcp::SESSION]));
    let mut slow = open(&mut agent, &server, &call("slow"));
    let mut idle = open(&mut agent, &server, &call("echo"));
    agent.message(&mut idle).expect("an answer");
    let whole = &call("echo");
    let (begun, rest) = whole.split_at(whole.len() - 5);
    let mut half = open(&mut agent, &server, begun);
    let mut silent = agent.open(server.address()).expect("a connection");
    agent.so_far(&mut stream, |message| message.text().contains("first")).expect("the first event");

    agent.so_far(&mut stream, |message| message.text().contains("second")).expect("the second event");
    assert!(agent.message(&mut slow).expect("its answer").text().contains("done"));
    agent.send(&half, rest).expect("send");
    assert!(agent.message(&mut half).expect("its answer").text().contains("done"));
    for conn in [&mut idle, &mut silent] {
        agent.send(conn, &call("echo")).expect("send");
        assert!(agent.message(conn).expect("its answer").text().contains("done"));
    }
    assert_eq!(daemon.records().of("connection"), Vec::<Value>::new(), "nothing has ended");
}

/// The sockets of a namespace that `ss` lists with these words, with their timers.
fn sockets(netns: &str, words: &str) -> Vec<String> {
    let listed =
        run_in(netns, &["ss", "--tcp", "--numeric", "--options", "--no-header", "state", "established"]);
    listed.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn both_sides_of_a_connection_are_kept_alive() {
    let world = World::new();
    let _daemon = Daemon::start_with(&world, NO_RULES, "keepalive: {idle: 100s, every: 1s, probes: 1}\n");
    let server = patient(&world, 0);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = open(&mut agent, &server, &mcp::legacy(&mcp::call(1, "echo", json!({}))));
    agent.message(&mut conn).expect("an answer");
    // Both of the daemon's sockets are in the agents' namespace. The agent's own has none, nor has the server's.
    let kept = wait_for("both to be kept alive", || {
        let kept = sockets(world.agent_netns(), "timer:(keepalive,1min");
        (kept.len() == 2).then_some(kept)
    });
    let is_to_server = |line: &&String| line.contains(&format!(" {} ", server.address()));
    assert_eq!(kept.iter().filter(is_to_server).count(), 1, "{kept:?}");
}

/// The record of a connection that the network has ended.
fn lost(daemon: &Daemon, what: &str) -> Value {
    daemon.records().wait("connection", what, |record| record["cause"] == "network_error")
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_server_that_is_gone_is_found_and_its_agent_told() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, SHORT);
    let server = patient(&world, 0);
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = open(&mut agent, &server, &mcp::legacy(&mcp::call(1, "never", json!({}))));
    server.wait("the call", |request| request.text().contains("never"));
    // Its kernel drops without a word what comes for an address that it does not have.
    run_in(world.server_netns(), &["ip", "addr", "del", "10.77.0.2/24", "dev", "wire0"]);
    let gone = Instant::now();
    let end = agent.to_end(&mut conn).expect_err("a reset, which is no answer");
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset, "{end}");
    assert!(gone.elapsed() < Duration::from_secs(10), "found after {:?}", gone.elapsed());
    assert_ne!(lost(&daemon, "the end")["error"], Value::Null);
    let result = daemon.records().wait("result", "the call", |record| record["tool"] == "never");
    assert_eq!((&result["outcome"], &result["cause"]), (&json!("none"), &json!("network_error")));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_server_that_does_not_acknowledge_is_found() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, SHORT);
    let server = patient(&world, 0);
    let mut agent = RawAgent::start(&world, "coder");
    let call = mcp::legacy(&mcp::call(1, "echo", json!({})));
    let mut conn = open(&mut agent, &server, &call);
    agent.message(&mut conn).expect("an answer");
    run_in(world.server_netns(), &["ip", "addr", "del", "10.77.0.2/24", "dev", "wire0"]);
    let gone = Instant::now();
    agent.send(&conn, &call).expect("send");
    agent.patience(UNACKNOWLEDGED);
    let end = agent.to_end(&mut conn).expect_err("a reset, which is no answer");
    assert_eq!(end.kind(), io::ErrorKind::ConnectionReset, "{end} after {:?}", gone.elapsed());
    lost(&daemon, "the end");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn an_agent_that_is_gone_is_found_and_its_server_told() {
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, SHORT);
    let server = patient(&world, 0);
    let mut agent = RawAgent::start(&world, "coder");
    let _conn = open(&mut agent, &server, &mcp::legacy(&mcp::call(1, "never", json!({}))));
    server.wait("the call", |request| request.text().contains("never"));
    assert_eq!(sockets(world.server_netns(), &server.address().to_string()).len(), 1);
    run_in(world.agent_netns(), &["ip", "link", "set", "lo", "down"]);
    lost(&daemon, "the end");
    wait_for("the server's side to be closed", || {
        sockets(world.server_netns(), &server.address().to_string()).is_empty().then_some(())
    });
}

/// What the kernel may hold on the way, of both sides.
const IN_KERNEL: usize = 40 << 20;
/// What the daemon may need for one connection, and what a debug build's allocator rounds up.
const OWN_KIB: u64 = 8 << 10;

/// The daemon's memory does not grow while something slow goes on for a while.
fn does_not_grow(daemon: &mut Daemon, mut slowly: impl FnMut()) {
    daemon.process().reset_peak();
    let before = daemon.process().resident_kib();
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        slowly();
    }
    let peak = daemon.process().peak_kib();
    assert!(peak < before + OWN_KIB, "{before} KiB before, {peak} at most");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_slow_agent_does_not_grow_memory() {
    const ANSWER: usize = 200 << 20;
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::start(&world, |request, reply| {
        let event = http::chunk(&[&b"data: {\"text\":\""[..], &[b'x'; 32 * 1024], b"\"}\n\n"].concat());
        if request.start.starts_with("GET /mcp") {
            reply.write(&http::sse_head())?;
        } else {
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {ANSWER}\r\n\r\n");
            reply.write(head.as_bytes())?;
        }
        let mut left = ANSWER;
        while left > 0 {
            reply.write(&event)?;
            left = left.saturating_sub(event.len());
            reply.count(event.len());
        }
        Ok(())
    });
    let mut agent = RawAgent::start(&world, "coder");
    for request in [http::get(&[]), b"GET /file HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()] {
        let before = server.counted();
        let conn = open(&mut agent, &server, &request);
        wait_for("it to begin", || (server.counted() > before).then_some(()));
        does_not_grow(&mut daemon, || {
            agent.read_some(&conn, 1024).expect("some of it");
            thread::sleep(Duration::from_secs(1));
        });
        let sent = server.counted() - before;
        assert!(sent < IN_KERNEL, "the server is held up, not {sent} bytes ahead");
        agent.close(conn).expect("close");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_slow_server_does_not_grow_memory() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = RawServer::talks(&world, |reply| {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            reply.read_at_most(1024)?;
            reply.count(1024);
            let again = Instant::now() + Duration::from_secs(1);
            reply.hold(|| Instant::now() >= again)?;
        }
        Ok(())
    });
    let (ip, port) = (server.address().ip(), server.address().port());
    let script = format!(
        "exec 3<>/dev/tcp/{ip}/{port}
         printf 'POST /files HTTP/1.1\\r\\nhost: a\\r\\ncontent-type: application/octet-stream\\r\\ncontent-length: 200000000\\r\\n\\r\\n' >&3
         head -c 200000000 /dev/zero >&3 && echo '{{\"sent\":true}}'"
    );
    let uploads = world.start_agent("coder", &["bash".to_owned(), "-c".to_owned(), script]);
    wait_for("it to begin", || (server.counted() > 0).then_some(()));
    does_not_grow(&mut daemon, || thread::sleep(Duration::from_millis(100)));
    assert!(uploads.line_within(Duration::from_millis(10)).is_none(), "the agent is held up");
}
