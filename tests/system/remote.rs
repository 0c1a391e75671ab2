//! Operators on other machines: who is let in, what they may do, and that no agent gets there with a stolen certificate.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_tests::certs::{Ca, Identity, Use};
use agent_tests::cli::{Answer, Cli};
use agent_tests::raw_server::RawServer;
use agent_tests::{DEADLINE, Daemon, RawAgent, World, wait_for};
use nix::sys::signal::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use serde_json::json;

use crate::NO_RULES;

/// The configuration of an endpoint, with certificates of these CAs.
pub(crate) fn endpoint(listen: &str, server: &Identity, client_ca: &Path) -> String {
    format!(
        "remote: {{listen: '{listen}', certificate: {}, key: {}, client_ca: {}}}\n",
        server.certificate.display(),
        server.key.display(),
        client_ca.display()
    )
}

/// Where a daemon serves remote operators.
pub(crate) fn port(daemon: &Daemon) -> u16 {
    let status = daemon.cli().run(&["status"]).json;
    let address: SocketAddr =
        status["remote_addr"].as_str().expect("an address").parse().expect("an address");
    address.port()
}

struct Site {
    ca: Ca,
    client_ca: Ca,
    server: Identity,
}

impl Site {
    fn new(world: &World) -> Self {
        let (ca, client_ca) = (Ca::new(&world.path("."), "site"), Ca::new(&world.path("."), "operators"));
        let server =
            ca.issue("gate", Use::Server(&["localhost", "127.0.0.1", "10.77.0.2", "fd77::2", "10.99.0.1"]));
        Self { ca, client_ca, server }
    }

    fn daemon(&self, world: &World) -> Daemon {
        Daemon::start_with(world, NO_RULES, &endpoint("0.0.0.0:0", &self.server, self.client_ca.file()))
    }

    fn cli(&self, url: &str, who: &Identity) -> Cli {
        Cli::remote(url, self.ca.file(), who)
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn remote_operator_stops_and_releases_under_its_own_name() {
    let world = World::new();
    let site = Site::new(&world);
    let daemon = site.daemon(&world);
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    let alice = site.client_ca.issue("alice", Use::Client);
    let cli = site.cli(&format!("https://localhost:{}", port(&daemon)), &alice);
    let mut agent = RawAgent::start(&world, "coder");
    agent.open(server.address()).expect("not stopped yet");

    let (id, answer) = cli.stop(&["agent=coder"], "isolate");
    let by = &answer.json["stop"]["by"];
    assert_eq!((&by["user"], &by["uid"], &by["pid"]), (&json!("alice"), &json!(null), &json!(null)), "{by}");
    let sha256 = by["certificate"]["sha256"].as_str().expect("which certificate it was");
    assert!(sha256.starts_with("sha256:") && sha256.len() == 71, "{by}");
    assert!(by["certificate"]["from"].as_str().is_some_and(|from| from.starts_with("127.0.0.1:")), "{by}");
    assert!(agent.open(server.address()).is_err(), "the stop is in force");
    let record = daemon.records().wait("stop", "this one", |record| record["stop"] == id.as_str());
    assert_eq!(&record["by"], by, "a third person can tell from the record too");

    let words = cli.words(&["stops"]);
    assert!(words.contains("alice") && words.contains(&sha256[..16]), "{words}");
    let variables = ["INTERLOCK_REMOTE", "INTERLOCK_CA", "INTERLOCK_CERT", "INTERLOCK_KEY"];
    let flags = cli.command(&["status"]);
    let values = flags[1..].chunks(2).map(|pair| pair.last().expect("a value"));
    let by_environment =
        Command::new(&flags[0]).arg("status").envs(variables.into_iter().zip(values)).output();
    assert!(by_environment.expect("run interlock").status.success());
    assert_eq!(cli.run(&["status"]).code, 0);
    assert!(cli.run(&["agents"]).json["agents"].to_string().contains("coder"));
    assert_eq!(cli.run(&["stops"]).json["stops"][0]["stop"]["id"], id.as_str());
    assert_eq!(cli.run(&["stops", "show", &id]).json["stop"]["by"]["user"], "alice");
    let further = cli.run(&["escalate", &id, "--level", "freeze", "--reason", "more"]);
    assert_eq!(further.json["stop"]["level"], "freeze", "{further:?}");
    for here in [&["exec", "--agent", "coder", "--", "true"][..], &["log"], &["doctor"], &["detach"]] {
        let answer = cli.run(here);
        let error = answer.json["error"].as_str().unwrap_or_default();
        assert!(answer.code == 1 && error.contains("own host"), "{answer:?}");
    }
    assert_eq!(cli.release(&id).code, 0);
    agent.open(server.address()).expect("released");
    let release = daemon.records().wait("release", "of it", |record| record["stop"] == id.as_str());
    assert_eq!(release["by"]["certificate"]["sha256"], sha256);
}

/// TLS with, or without, a certificate; whatever happens, what was read at the end.
fn talk(
    address: SocketAddr,
    site: &Site,
    who: Option<&Identity>,
    version: &'static SupportedProtocolVersion,
    request: &[u8],
) -> (Vec<u8>, Option<io::Error>) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(site.ca.file()).expect("PEM")).expect("a CA");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots);
    let config = match who {
        None => config.with_no_client_auth(),
        Some(who) => config
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_file(&who.certificate).expect("PEM")],
                PrivateKeyDer::from_pem_file(&who.key).expect("PEM"),
            )
            .expect("they belong together"),
    };
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().expect("a name"));
    let mut tls = StreamOwned::new(connection.expect("a connection"), stream);
    let mut got = Vec::new();
    let end = tls.write_all(request).and_then(|()| tls.read_to_end(&mut got).map(drop));
    (got, end.err())
}

fn get(path: &str, more: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n").into_bytes()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn whoever_has_no_believed_certificate_gets_nothing() {
    let world = World::new();
    let site = Site::new(&world);
    let daemon = site.daemon(&world);
    let address = SocketAddr::from(([127, 0, 0, 1], port(&daemon)));
    let alice = site.client_ca.issue("alice", Use::Client);
    let status = get("/v1/status", "");
    let foreign = Ca::new(&world.path("."), "foreign").issue("alice", Use::Client);
    let others = [
        ("none", None),
        ("of another CA", Some(foreign)),
        ("of the daemon's own CA", Some(site.ca.issue("alice", Use::Client))),
        ("expired", Some(site.client_ca.issue("alice", Use::Expired))),
        ("a server's", Some(site.client_ca.issue("alice", Use::Server(&["localhost"])))),
    ];
    for version in [&TLS13, &TLS12] {
        let (answer, _) = talk(address, &site, Some(&alice), version, &status);
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        for (what, who) in &others {
            let (answer, error) = talk(address, &site, who.as_ref(), version, &status);
            assert!(answer.is_empty(), "{what}: {}", String::from_utf8_lossy(&answer));
            let error = error.unwrap_or_else(|| panic!("{what}: no error")).to_string();
            assert!(error.contains("alert"), "{what}: the peer is told why: {error}");
        }
    }
    let mut plain = TcpStream::connect(address).expect("connect");
    plain.write_all(&status).expect("send");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer); // a reset is an end as well
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    let failures = 2.0 * others.len() as f64 + 1.0;
    daemon.metrics().wait("interlock_remote_failures_total", &[("reason", "tls")], failures);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_a_peer_can_hold_or_send_is_bounded() {
    let world = World::new();
    let site = Site::new(&world);
    let mut daemon = site.daemon(&world);
    let address = SocketAddr::from(([127, 0, 0, 1], port(&daemon)));
    let alice = site.client_ca.issue("alice", Use::Client);
    let talk = |request: &[u8]| {
        let (answer, _) = talk(address, &site, Some(&alice), &TLS13, request);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let head = talk(&get("/v1/status", &format!("x: {}\r\n", "x".repeat(20_000))));
    assert!(head.starts_with("HTTP/1.1 431"), "{head}");
    let body = "x".repeat(70_000);
    let long = format!("POST /v1/stops HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    assert!(talk(long.as_bytes()).starts_with("HTTP/1.1 413"));
    let exec = "POST /v1/exec HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{\"agent\":\"evil\"}";
    assert!(talk(exec.as_bytes()).starts_with("HTTP/1.1 404"), "exec is for this host");

    // A peer that says nothing is not waited for, one that says half of it neither; and no number of them is in the way
    // of an order, from the host or from another address.
    let started = Instant::now();
    let silent: Vec<TcpStream> = (0..100).map(|_| connect_from([127, 0, 0, 3], address)).collect();
    assert!(talk(&get("/v1/stops", "")).starts_with("HTTP/1.1 200"), "while they are there");
    let half = talk(b"POST /v1/stops HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{");
    assert!(half.is_empty() || half.starts_with("HTTP/1.1 408"), "{half}");
    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");
    daemon.metrics().wait("interlock_remote_failures_total", &[("reason", "busy")], 92.0);
    daemon.metrics().wait("interlock_remote_failures_total", &[("reason", "timeout")], 8.0);
    assert!(started.elapsed() < DEADLINE);
    drop(silent);
    assert!(talk(&get("/v1/stops", "")).contains(&id), "and afterwards operators are served again");
    let logged = daemon.process().stderr().matches("remote operator refused").count();
    assert!((1..=4).contains(&logged), "{logged} lines for 100 failures");
}

fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((source, 0)).into()).expect("bind");
    socket.connect(&address.into()).expect("connect");
    socket.into()
}

#[track_caller]
fn check_error(answer: &Answer, code: i32, expect: &[&str]) {
    let error = answer.json["error"].as_str().unwrap_or_default();
    assert!(answer.code == code && expect.iter().all(|part| error.contains(part)), "{answer:?}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn failures_name_the_file_at_fault_and_the_remedy() {
    let world = World::new();
    let site = Site::new(&world);
    let daemon = site.daemon(&world);
    let url = format!("https://localhost:{}", port(&daemon));
    let alice = site.client_ca.issue("alice", Use::Client);
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    let foreign = Ca::new(&world.path("."), "foreign");

    let status = |url: &str, ca: &Path, who: &Identity| Cli::remote(url, ca, who).run(&["status"]);
    check_error(
        &status(&url, foreign.file(), &alice),
        1,
        &["localhost", "another CA", "foreign.pem", "--ca"],
    );
    let stranger = foreign.issue("alice", Use::Client);
    check_error(&status(&url, site.ca.file(), &stranger), 1, &[&name(&stranger.certificate), "client_ca"]);
    let expired = site.client_ca.issue("alice", Use::Expired);
    check_error(&status(&url, site.ca.file(), &expired), 1, &[&name(&expired.certificate), "expired"]);
    let other_name = url.replace("localhost", "127.0.0.2");
    check_error(&status(&other_name, site.ca.file(), &alice), 1, &["not for 127.0.0.2", "localhost"]);
    let unnamed = site.client_ca.issue("alice\u{200b}", Use::Client);
    check_error(&status(&url, site.ca.file(), &unnamed), 1, &["printable", "issue one"]);
    let mixed = Identity { key: stranger.key.clone(), ..alice.clone() };
    check_error(&status(&url, site.ca.file(), &mixed), 1, &[&name(&mixed.certificate), "belong together"]);
    let lost = Identity { key: world.path("lost.key"), ..alice.clone() };
    check_error(&status(&url, site.ca.file(), &lost), 1, &["--key", "lost.key"]);
    check_error(&status("https://localhost:1", site.ca.file(), &alice), 1, &["localhost port 1", "remote"]);
    check_error(&status("localhost:9465", site.ca.file(), &alice), 64, &["https://HOST"]);
    daemon.metrics().wait("interlock_remote_failures_total", &[("reason", "name")], 1.0);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn hangup_takes_up_new_certificates_and_keeps_the_old_ones_when_they_are_bad() {
    let world = World::new();
    let site = Site::new(&world);
    let mut daemon = site.daemon(&world);
    let url = format!("https://localhost:{}", port(&daemon));
    let (alice, next) = (site.client_ca.issue("alice", Use::Client), Ca::new(&world.path("."), "next"));
    let bob = next.issue("bob", Use::Client);
    let code = |who: &Identity| site.cli(&url, who).run(&["status"]).code;
    assert_eq!((code(&alice), code(&bob)), (0, 1));

    let good = fs::read(next.file()).expect("read");
    fs::write(site.client_ca.file(), "no certificate").expect("write");
    daemon.process().signal(Signal::SIGHUP);
    wait_for("the mistake to be told", || daemon.process().stderr().contains("not reloaded").then_some(()));
    assert_eq!((code(&alice), code(&bob)), (0, 1));

    fs::set_permissions(&site.server.key, fs::Permissions::from_mode(0o640)).expect("chmod");
    fs::write(site.client_ca.file(), good).expect("write");
    daemon.process().signal(Signal::SIGHUP);
    wait_for("the new CA", || (code(&bob) == 0).then_some(()));
    assert!(daemon.process().stderr().contains("chmod 600"), "others may read the key now");
    assert_eq!(code(&alice), 1, "and whoever had a certificate of the old one is out");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_with_a_stolen_certificate_is_refused_and_recorded() {
    let world = World::new();
    let site = Site::new(&world);
    let more = endpoint("[::]:0", &site.server, site.client_ca.file());
    let daemon = Daemon::start_with_servers(&world, NO_RULES, &more);
    let port = port(&daemon);
    let stolen = site.client_ca.issue("alice", Use::Client);
    let (id, _) = daemon.cli().stop(&["agent=sibling"], "refuse");
    let release = |host: &str| {
        let cli = site.cli(&format!("https://{host}:{port}"), &stolen);
        cli.command(&["release", &id, "--reason", "let my sibling go"])
    };

    for host in ["10.77.0.2", "[fd77::2]"] {
        let mut inside = world.start_agent("coder", &release(host));
        assert!(!inside.wait().success(), "over the wire to {host}");
    }
    for host in ["127.0.0.1", "10.77.0.2", "[::1]", "[fd77::2]"] {
        let mut inside = world.start_agent_with_servers("coder", &release(host));
        assert!(!inside.wait().success(), "from the daemon's own namespace to {host}");
    }
    assert!(daemon.cli().run(&["stops"]).json.to_string().contains(&id), "the stop holds");

    let mut raw = RawAgent::of(world.start_agent_with_servers("coder", &RawAgent::command()));
    for host in ["[::ffff:127.0.0.1]", "[::ffff:10.77.0.2]", "0.0.0.0", "[::]", "127.9.9.9"] {
        let address = format!("{host}:{port}").parse().expect("an address");
        let end = raw.open(address).and_then(|mut conn| raw.to_end(&mut conn));
        assert!(end.as_ref().map_or(true, Vec::is_empty), "{host}: {end:?}");
    }
    let seen = wait_for("every attempt on record", || {
        Some(daemon.records().of("intrusion")).filter(|seen| seen.len() >= 2 + 4 + 5)
    });
    for record in &seen {
        assert_eq!((&record["agent"], &record["by"]["uid"]), (&json!("coder"), &json!(0)), "{record}");
        assert!(record["order"].as_str().is_some_and(|order| order.starts_with("connect ")), "{record}");
    }
    assert!(seen.iter().any(|record| record["order"] == format!("connect 10.77.0.2:{port}").as_str()));
    assert!(
        seen.iter().any(|record| record["cgroup"] == format!("{}/agents/coder", world.cgroup()).as_str())
    );

    // An address that no interface has, but a route leads to.
    world.route_to_servers("10.99.0.0/16");
    let mut inside = world.start_agent("coder", &release("10.99.0.1"));
    assert!(!inside.wait().success(), "by a route");
    let order = format!("connect 10.99.0.1:{port}");
    daemon.records().wait("intrusion", "by a route", |record| record["order"] == order.as_str());
    assert!(daemon.cli().run(&["stops"]).json.to_string().contains(&id), "the stop holds");

    // The way was open: whoever is no agent gets through from the same place.
    let mut outside = world.start_operator_there("operator", &release("10.99.0.1"));
    assert!(outside.wait().success(), "{}", outside.stderr());
    assert!(!daemon.cli().run(&["stops"]).json.to_string().contains(&id));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agent_may_use_the_same_port_elsewhere() {
    let world = World::new();
    let site = Site::new(&world);
    let server = RawServer::start(&world, |request, reply| reply.result(request, &json!({"content": []})));
    // The daemon is on the host, where nobody has the servers' address.
    let listen = format!("127.0.0.1:{}", server.address().port());
    let daemon =
        Daemon::start_with(&world, NO_RULES, &endpoint(&listen, &site.server, site.client_ca.file()));
    let mut agent = RawAgent::start(&world, "coder");
    let mut conn = agent.open(server.address()).expect("a connection");
    let call = agent_tests::mcp::legacy(&agent_tests::mcp::call(1, "echo", json!({})));
    agent.send(&conn, &call).expect("send");
    assert_eq!(agent.message(&mut conn).expect("an answer").status(), 200);
    std::thread::sleep(Duration::from_millis(200)); // records may lag 100 ms
    assert!(daemon.records().of("intrusion").is_empty());
}
