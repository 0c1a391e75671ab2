//! Agents and servers as pods: the official SDKs in the image that xtask makes, which knows nothing of interlock.

use std::net::IpAddr;

use agent_tests::process::Process;
use agent_tests::{Agent, Era, Sdk};
use serde_json::{Value, json};

use crate::cluster::Cluster;

const IMAGE: &str = "localhost/sdk:1";

/// What a call at the server `sys.argv[1]` comes to, on a connection of its own; for the two programs below.
const CALL: &str = r#"
import http.client, json, select, sys, time
CALLS = (("wire_transfer", {"amount": 1}), ("echo", {"text": "x"}))
def call(tool, arguments):
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    params = {"name": tool, "arguments": arguments, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream",
               "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
    connection = http.client.HTTPConnection(sys.argv[1], timeout=2)
    try:
        connection.request("POST", "/mcp", body, headers)
        answer = connection.getresponse().read().decode()
        return "passed" if '"result"' in answer and '"isError":true' not in answer else "refused"
    except OSError:
        return "no connection"
    finally:
        connection.close()
"#;

/// An agent that will not take no for an answer: until a line comes on stdin it makes one connection after the other, for
/// a call that a rule refuses and for one that none does; then it says how many of each had a result.
const HAMMER: &str = r#"
done = {"echo": 0, "wire_transfer": 0}
print(json.dumps("started"), flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    for tool, arguments in CALLS:
        done[tool] += call(tool, arguments) == "passed"
print(json.dumps(done), flush=True)
"#;

/// One that makes the same calls from its first instruction on, and says of each what it comes to.
const TELLER: &str = r#"
while True:
    for tool, arguments in CALLS:
        print(json.dumps({"tool": tool, "came_to": call(tool, arguments)}), flush=True)
    time.sleep(0.2)
"#;

/// A pod that waits to be told what to run. `resources` decides on its class, and so on where its cgroup is.
pub(crate) fn agent(namespace: &str, name: &str, labels: &Value, resources: &Value) -> String {
    pod(namespace, name, labels, resources, &["sleep", "infinity"].map(str::to_owned), None)
}

/// Resources of a pod of the class Guaranteed, as no other pod of these tests is: its cgroup is right below `kubepods`.
pub(crate) fn guaranteed() -> Value {
    let all = json!({"cpu": "200m", "memory": "256Mi"});
    json!({"requests": all, "limits": all})
}

/// A pod with an MCP server at port 8000, and a Service of the same name at port 80.
pub(crate) fn server(namespace: &str, name: &str, sdk: Sdk) -> String {
    let mut command = program(sdk, "server");
    command.extend(["--host", "0.0.0.0", "--port", "8000", "--log", "/tmp/calls"].map(str::to_owned));
    if matches!(sdk, Sdk::Py1 | Sdk::Py2) {
        command.push("--callers".to_owned());
    }
    let labels = json!({"app": name});
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8000}]},
    });
    format!("{}---\n{service}\n", pod(namespace, name, &labels, &json!({}), &command, Some(8000)))
}

fn pod(
    namespace: &str,
    name: &str,
    labels: &Value,
    resources: &Value,
    command: &[String],
    port: Option<u16>,
) -> String {
    let mut container = json!({
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": command,
        "resources": resources,
    });
    if let Some(port) = port {
        container["readinessProbe"] = json!({"tcpSocket": {"port": port}, "periodSeconds": 1});
    }
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container]},
    });
    format!("{pod}\n")
}

/// Starts a client in an agent's pod, and hands it a script (see `tests/README.md`).
pub(crate) fn start(
    cluster: &Cluster,
    pod: (&str, &str),
    kind: (Sdk, Era),
    server: (IpAddr, u16),
    script: &Value,
) -> Agent {
    Agent::of(cluster.start(pod.0, pod.1, &client(kind, server, script)))
}

/// A pod that is such a client from its first instruction on, and then no more.
pub(crate) fn eager_agent(
    namespace: &str,
    name: &str,
    labels: &Value,
    kind: (Sdk, Era),
    server: (IpAddr, u16),
    script: &Value,
) -> String {
    pod(namespace, name, labels, &json!({}), &client(kind, server, script), None)
}

/// Starts such an agent in a pod.
pub(crate) fn hammer(cluster: &Cluster, pod: (&str, &str), server: IpAddr) -> Process {
    let hammer = cluster.start(pod.0, pod.1, &python(HAMMER, server));
    assert_eq!(hammer.line(), "started");
    hammer
}

/// A pod that calls from its first instruction on, and says in its log what each call comes to.
pub(crate) fn teller(namespace: &str, name: &str, labels: &Value, server: IpAddr) -> String {
    pod(namespace, name, labels, &json!({}), &python(TELLER, server), None)
}

fn python(program: &str, server: IpAddr) -> Vec<String> {
    vec!["python3".to_owned(), "-c".to_owned(), format!("{CALL}{program}"), server.to_string()]
}

fn client((sdk, era): (Sdk, Era), server: (IpAddr, u16), script: &Value) -> Vec<String> {
    let mut command = program(sdk, "client");
    if sdk.is_modern() {
        let mode = if era == Era::Auto { "auto" } else { "legacy" };
        command.extend(["--mode", mode].map(str::to_owned));
    }
    let url = format!("http://{}:{}/mcp", server.0, server.1);
    command.extend(["--url", &url, "--script", &script.to_string()].map(str::to_owned));
    command
}

/// The addresses from which a server in Python says it was called.
pub(crate) fn callers(cluster: &Cluster, namespace: &str, server: &str) -> Vec<String> {
    let logs = cluster.kubectl(&["--namespace", namespace, "logs", server]);
    let lines = logs.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter_map(|line| line["caller"].as_str().map(str::to_owned)).collect()
}

/// The calls that a server has received, by tool.
pub(crate) fn calls(cluster: &Cluster, namespace: &str, server: &str) -> Vec<String> {
    let output = cluster.exec(namespace, server, &["cat", "/tmp/calls"]); // no file: no call
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let started = lines.filter(|line| line["phase"] == "start");
    started.filter_map(|line| line["tool"].as_str().map(str::to_owned)).collect()
}

/// A program of the image.
fn program(sdk: Sdk, role: &str) -> Vec<String> {
    let name = sdk.name();
    match sdk {
        Sdk::Py1 | Sdk::Py2 => vec![format!("/sdk/{name}/bin/python"), format!("/sdk/{role}_{name}.py")],
        Sdk::Ts1 | Sdk::Ts2 => vec!["/sdk/node/node".to_owned(), format!("/sdk/node/{role}_{name}.mjs")],
        Sdk::Rmcp => panic!("the image has no peers in Rust"),
    }
}
