//! interlock as part of a cluster's life: it is there soon, it is replaced while agents work, and it is scraped.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use agent_tests::process::Process;
use agent_tests::{Era, Sdk, wait_for};
use serde_json::{Value, json};

use crate::captured::{BY_API, RULES, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::peers;

/// An agent that will not take no for an answer: until a line comes on stdin it makes one connection after the other, for
/// a call that a rule refuses and for one that none does; then it says how many of each had a result.
const HAMMER: &str = r#"
import http.client, json, select, sys
done = {"echo": 0, "wire_transfer": 0}
meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
print(json.dumps("started"), flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    for tool, arguments in (("wire_transfer", {"amount": 1}), ("echo", {"text": "x"})):
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream",
                   "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": tool}
        connection = http.client.HTTPConnection(sys.argv[1], timeout=2)
        try:
            connection.request("POST", "/mcp", body, headers)
            answer = connection.getresponse().read().decode()
            done[tool] += '"result"' in answer and '"isError":true' not in answer
        except OSError:
            pass
        finally:
            connection.close()
print(json.dumps(done), flush=True)
"#;

/// A server and an agent, both ready; answers the address of the server's Service.
fn agent_and_bank(cluster: &Cluster) -> std::net::IpAddr {
    cluster.apply(&peers::server("servers", "bank", Sdk::Py2));
    let labels = json!({"interlock.dev/agent": "true"});
    cluster.apply(&peers::agent("agents", "client", &labels, &json!({})));
    cluster.pod_ready("servers", "bank");
    cluster.pod_ready("agents", "client");
    cluster.service_ip("servers", "bank")
}

#[test]
fn from_apply_to_the_first_captured_call_is_less_than_a_minute() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let bank = agent_and_bank(&cluster);
    let started = Instant::now();
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let script = json!([{"op": "call", "tool": "wire_transfer", "args": {"amount": 5}}]);
    let agent = peers::start(&cluster, ("agents", "client"), (Sdk::Py2, Era::Auto), (bank, 80), &script);
    agent.connected();
    assert!(agent.step().is_error);
    deployment.records().decision("wire_transfer", "deny");
    let took = started.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    println!("from apply to the first captured call: {:.1} s", took.as_secs_f64());
}

#[test]
fn a_rollout_lets_nothing_slip_and_calls_go_on_after_it() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let bank = agent_and_bank(&cluster);
    let command = ["python3", "-c", HAMMER, &bank.to_string()].map(str::to_owned);
    let mut hammer = cluster.start("agents", "client", &command);
    assert_eq!(hammer.line(), "started");
    let echoes = || peers::calls(&cluster, "servers", "bank").iter().filter(|tool| *tool == "echo").count();
    wait_for("calls before the rollout", || (echoes() > 3).then_some(()));
    let pod = deployment.pod();
    deployment.roll_out();
    assert_ne!(deployment.pod(), pod);
    let before = echoes();
    wait_for("calls after the rollout", || (echoes() > before + 3).then_some(()));
    hammer.tell("enough");
    let done: Value = hammer.line();
    assert_eq!(done["wire_transfer"], 0, "{done}");
    let calls = peers::calls(&cluster, "servers", "bank");
    assert!(!calls.contains(&"wire_transfer".to_owned()), "one slipped among {} calls", calls.len());
}

#[test]
fn prometheus_scrapes_it() {
    let cluster = Cluster::join();
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let pod = cluster.object("interlock", &format!("pod/{}", deployment.pod()));
    let (address, annotations) = (pod["status"]["podIP"].as_str(), &pod["metadata"]["annotations"]);
    assert_eq!(annotations["prometheus.io/scrape"], "true");
    let port = annotations["prometheus.io/port"].as_str().expect("the pod says where its metrics are");
    let target = format!("{}:{port}", address.expect("a running pod has an address"));
    let config = cluster.dir().join("prometheus.yml");
    // Debian's Prometheus is built without discovery in clusters; this is the address it would find.
    let text = json!({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "interlock", "static_configs": [{"targets": [target]}]}],
    });
    fs::write(&config, text.to_string()).expect("write the configuration of Prometheus");
    let [config, data] = [config, cluster.dir().join("tsdb")].map(|path| path.display().to_string());
    let prometheus = cluster.enter(&[
        "prometheus",
        &format!("--config.file={config}"),
        &format!("--storage.tsdb.path={data}"),
        "--web.listen-address=127.0.0.1:9090",
    ]);
    let _prometheus = Process::spawn("prometheus", prometheus, cluster.dir());
    let answer = wait_for("a scrape", || {
        // A query takes a process; the scrape a second.
        thread::sleep(Duration::from_millis(200));
        let url = "http://127.0.0.1:9090/api/v1/query?query=interlock_kernel_attached";
        let output = cluster.enter(&["busybox", "wget", "-qO-", url]).output().expect("run wget");
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        answer["data"]["result"][0].is_object().then_some(answer)
    });
    let sample = &answer["data"]["result"][0];
    assert_eq!(
        (&sample["metric"]["instance"], &sample["value"][1]),
        (&json!(target), &json!("1")),
        "{answer}"
    );
}
