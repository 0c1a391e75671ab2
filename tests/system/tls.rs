//! Connections that are encrypted: known by the server they name in their hello, which rules and stops go by. Python's own TLS
//! (OpenSSL) on both sides.

use std::net::SocketAddr;

use agent_tests::certs::{Ca, Use};
use agent_tests::process::Process;
use agent_tests::{Daemon, World};
use serde_json::{Value, json};

use crate::NO_RULES;

/// Says everything back, to many at once.
const SERVER: &str = r#"
import json, socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server((sys.argv[3], 0))
print(json.dumps({"listening": listener.getsockname()[1]}), flush=True)
def serve(raw):
    try:
        with context.wrap_socket(raw, server_side=True) as conn:
            while said := conn.recv(4096):
                conn.sendall(said)
    except OSError:
        pass
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Connects for each name it is told, or says more on the connection of that name.
const CLIENT: &str = r#"
import json, socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
address, open = (sys.argv[2], int(sys.argv[3])), {}
for name in map(str.strip, sys.stdin):
    try:
        if name not in open:
            raw = socket.create_connection(address, timeout=10)
            open[name] = context.wrap_socket(raw, server_hostname=name)
        open[name].sendall(b"hello")
        said = open[name].recv(4096)
        if not said:
            raise OSError("closed")
        print(json.dumps({"said": said.decode()}), flush=True)
    except OSError as error:
        open.pop(name, None)
        print(json.dumps({"error": str(error)}), flush=True)
"#;

struct Peers {
    address: SocketAddr,
    _server: Process,
    client: Process,
}

impl Peers {
    fn start(world: &World) -> Self {
        let ca = Ca::new(&world.path("."), "authority");
        let names = &["bank.test", "pay.bank.test", "news.test"];
        let identity = ca.issue("servers", Use::Server(names));
        let python = |script: &str, arguments: &[String]| {
            [&["python3".to_owned(), "-c".to_owned(), script.to_owned()], arguments].concat()
        };
        let file = |path: &std::path::Path| path.display().to_string();
        let host = "10.77.0.2".to_owned();
        let server = [file(&identity.certificate), file(&identity.key), host.clone()];
        let server = world.start_server("tls", &python(SERVER, &server));
        let port = server.line()["listening"].as_u64().expect("a port");
        let client = [file(ca.file()), host.clone(), port.to_string()];
        let client = world.start_agent("coder", &python(CLIENT, &client));
        let address = format!("{host}:{port}").parse().expect("an address");
        Peers { address, _server: server, client }
    }

    /// What the server of that name says back, or why it does not.
    fn ask(&mut self, name: &str) -> Result<String, String> {
        self.client.tell(name);
        let line = self.client.line();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if line["error"].is_null() { Ok(text(&line["said"])) } else { Err(text(&line["error"])) }
    }
}

/// The record of the decision on the connection to that server.
fn refusal(daemon: &Daemon, server: &str) -> Value {
    daemon.records().wait("decision", server, |record| record["server"] == server)
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn rules_know_the_server_that_a_client_names() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        r#"
version: 1
rules:
  - {id: bank, action: deny, match: {server: "*.bank.test"}, reason: the bank is closed}
  - {id: news, action: deny, when: 'server.host == "news.test"', mode: observe}
"#,
    );
    let mut peers = Peers::start(&world);
    assert_eq!(peers.ask("bank.test").as_deref(), Ok("hello"));
    assert!(peers.ask("pay.bank.test").is_err());
    assert_eq!(peers.ask("news.test").as_deref(), Ok("hello"), "TLS itself is untouched");
    let named = format!("pay.bank.test:{}", peers.address.port());
    let denied = refusal(&daemon, &named);
    assert_eq!(
        (&denied["verdict"], &denied["rules"], &denied["method"]),
        (&json!("deny"), &json!(["bank"]), &json!("tls"))
    );
    assert_eq!(denied["destination"], peers.address.to_string());
    let watched = refusal(&daemon, &format!("news.test:{}", peers.address.port()));
    assert_eq!((&watched["verdict"], &watched["rules"]), (&json!("would_deny"), &json!(["news"])));
    drop(peers.client);
    for (name, class, cause) in
        [("bank.test", "tls", "agent_closed"), ("pay.bank.test", "refused", "refused")]
    {
        let ended = daemon.records().wait("connection", name, |record| record["tls_name"] == name);
        assert_eq!((&ended["class"], &ended["cause"]), (&json!(class), &json!(cause)));
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn only_named_servers_where_a_rule_says_so() {
    let world = World::new();
    let daemon = Daemon::start(
        &world,
        r#"
version: 1
rules:
  - {id: ours, action: allow_only, match: {server: ["bank.test", "news.test:1"]}, reason: not a server of ours}
"#,
    );
    let mut peers = Peers::start(&world);
    assert!(peers.ask("pay.bank.test").is_err());
    assert!(peers.ask("news.test").is_err(), "at another port");
    assert!(peers.ask("10.77.0.2").is_err(), "an address is no name");
    assert_eq!(refusal(&daemon, &peers.address.to_string())["rules"], json!(["ours"]));
    assert_eq!(peers.ask("bank.test").as_deref(), Ok("hello"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_of_a_server_cuts_what_has_named_it_and_nothing_else() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let mut peers = Peers::start(&world);
    for name in ["bank.test", "news.test"] {
        assert_eq!(peers.ask(name).as_deref(), Ok("hello"));
    }
    let (id, _) = daemon.cli().stop(&["server=bank.test"], "refuse");
    assert!(peers.ask("bank.test").is_err(), "cut");
    assert_eq!(peers.ask("news.test").as_deref(), Ok("hello"), "the same connection goes on");
    let cut = daemon.records().wait("connection", "cut", |record| record["tls_name"] == "bank.test");
    assert_eq!(cut["cause"], "operator_stop");
    assert!(peers.ask("bank.test").is_err(), "the next one");
    let refused = refusal(&daemon, &format!("bank.test:{}", peers.address.port()));
    assert_eq!((&refused["verdict"], &refused["stop"]), (&json!("deny"), &json!(id)));
    assert_eq!(peers.ask("pay.bank.test").as_deref(), Ok("hello"));
}
