//! Agents that are pods: known by what the API server says of them, held from their first connection, also while the API
//! server or the daemon is away. The cgroups are laid out as the kubelet does.

use std::path::PathBuf;
use std::process::Command;

use agent_tests::api_server::{ApiServer, pod};
use agent_tests::app::interlock;
use agent_tests::raw_server::{RawServer, handshake};
use agent_tests::world::SERVER_V4;
use agent_tests::{Daemon, RawAgent, World, mcp, wait_for};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::NO_RULES;

const CONTAINER: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const AGENTS: &str = "{name: \"{namespace}/{pod}\", kubernetes: {namespaces: [agents], labels: {interlock.dev/agent: \"true\"}}}";

pub(crate) fn uid(n: u8) -> String {
    format!("5a1d0c1e-0000-4000-8000-0000000000{n:02x}")
}

pub(crate) fn agent_labels() -> Value {
    json!({"interlock.dev/agent": "true", "tier": "gold"})
}

/// The cgroup of a pod's only container.
fn cgroup(world: &World, uid: &str) -> PathBuf {
    world.make_cgroup(&format!("kubepods/besteffort/pod{uid}/{CONTAINER}"))
}

pub(crate) fn start(world: &World, agents: &str, rules: &str, unclassified: &str) -> Daemon {
    // As on a node with a kubelet, which makes this first of all.
    world.make_cgroup("kubepods/besteffort");
    let kubernetes = format!(
        "kubernetes: {{node: node-1, kubeconfig: {}, cgroup_root: {}, unclassified: {unclassified}}}\n",
        world.path("kubeconfig").display(),
        world.cgroup(),
    );
    Daemon::start_with_agents(world, rules, agents, &kubernetes)
}

/// Whoever runs in a pod.
pub(crate) fn enter(world: &World, uid: &str) -> RawAgent {
    RawAgent::of(world.start_in(&cgroup(world, uid), "pod", &RawAgent::command()))
}

pub(crate) fn server(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| {
        if handshake(request, reply)? { Ok(()) } else { reply.result(request, &json!({"content": []})) }
    })
}

/// What a call comes back with.
pub(crate) fn call(agent: &mut RawAgent, server: &RawServer) -> std::io::Result<String> {
    let mut conn = agent.open(server.address())?;
    agent.send(&conn, &mcp::legacy(&mcp::call(1, "echo", json!({}))))?;
    agent.message(&mut conn).map(|answer| answer.text().to_owned())
}

/// Until it passes: what is held back at first.
pub(crate) fn call_until_answered(agent: &mut RawAgent, server: &RawServer) -> String {
    wait_for("a call that is answered", || call(agent, server).ok())
}

fn agents(daemon: &Daemon) -> String {
    daemon.cli().run(&["agents"]).json.to_string()
}

/// Waits until the daemon has heard of pods, and a pod that it has not heard of is held from its first connect.
pub(crate) fn knows_and_holds(world: &World, daemon: &Daemon, pods: usize) {
    knows(daemon, pods);
    let mut unknown = enter(world, &uid(99));
    let nowhere = (SERVER_V4, 9).into();
    let is_held = |error: std::io::Error| error.raw_os_error() == Some(libc::EPERM);
    wait_for("the guard", || unknown.open(nowhere).err().is_some_and(is_held).then_some(()));
}

/// Waits until the daemon has heard of pods.
fn knows(daemon: &Daemon, pods: usize) {
    wait_for("the daemon to know the pods", || {
        let status = daemon.cli().run(&["status"]).json;
        (status["kubernetes"]["pods"] == pods && status["kubernetes"]["complete"] == true).then_some(())
    });
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn pod_is_an_agent_by_its_labels_and_rules_and_records_know_all_of_it() {
    let world = World::new();
    let api = ApiServer::start(&world);
    let mut coder = pod(&uid(1), "agents", "coder-0", agent_labels());
    coder["metadata"]["annotations"] = json!({"team": "red"});
    coder["status"]["containerStatuses"] = json!([{
        "name": "main", "image": "registry/coder:1", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": format!("containerd://{CONTAINER}"),
    }]);
    api.set(&coder);
    api.set(&pod(&uid(2), "agents", "web", json!({})));
    let rules = r#"
version: 1
rules:
  - {id: by-pod, action: deny, match: {tool: echo}, when: 'agent.namespace == "agents" && agent.pod.startsWith("coder")
     && agent.service_account == "robot" && agent.container == "main" && agent.image.endsWith("coder:1")
     && agent.node == "node-1" && agent.annotations["team"] == "red" && agent.labels["tier"] == "gold"', reason: not so}
"#;
    let daemon = start(&world, AGENTS, rules, "hold");
    knows_and_holds(&world, &daemon, 2);
    let server = server(&world);
    let (mut coder, mut web) = (enter(&world, &uid(1)), enter(&world, &uid(2)));
    let answer = call_until_answered(&mut coder, &server);
    assert!(answer.contains("by-pod") && answer.contains("not so"), "{answer}");
    assert!(call_until_answered(&mut web, &server).contains("content"), "no agent is read");
    let record = daemon.records().decision("echo", "deny");
    assert_eq!(
        (&record["agent"], &record["labels"]["tier"]),
        (&json!("agents/coder-0"), &json!("gold")),
        "{record}"
    );
    let expect = json!({
        "namespace": "agents", "name": "coder-0", "uid": uid(1), "node": "node-1", "service_account": "robot",
        "container_id": CONTAINER, "container": "main", "image": "registry/coder:1", "annotations": {"team": "red"},
    });
    assert_eq!(record["pod"], expect);
    assert!(!agents(&daemon).contains("web"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn pod_that_is_not_known_yet_is_held_and_then_goes_on() {
    let world = World::new();
    let api = ApiServer::start(&world);
    api.set(&pod(&uid(9), "kube-system", "dns", json!({})));
    let daemon = start(&world, AGENTS, NO_RULES, "hold");
    knows_and_holds(&world, &daemon, 1);
    let server = server(&world);
    let (mut coder, mut web) = (enter(&world, &uid(1)), enter(&world, &uid(2)));
    wait_for("the guard", || coder.open(server.address()).is_err().then_some(()));
    assert_eq!(coder.open(server.address()).err().and_then(|error| error.raw_os_error()), Some(libc::EPERM));
    assert!(web.open(server.address()).is_err());
    daemon
        .records()
        .wait("kernel", "of a pod that is not known", |record| record["reason"] == "unclassified");

    api.set(&pod(&uid(1), "agents", "coder-0", agent_labels()));
    api.set(&pod(&uid(2), "web", "front", json!({})));
    call_until_answered(&mut coder, &server);
    call_until_answered(&mut web, &server);
    assert_eq!(daemon.records().decision("echo", "allow")["agent"], "agents/coder-0");
    assert!(!agents(&daemon).contains("front"), "nothing is held of who is no agent");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn api_server_and_daemon_may_be_away_and_no_pod_runs_free() {
    let world = World::new();
    let mut api = ApiServer::start(&world);
    api.set(&pod(&uid(1), "agents", "coder-0", agent_labels()));
    let mut daemon = start(&world, AGENTS, NO_RULES, "hold");
    knows_and_holds(&world, &daemon, 1);
    let server = server(&world);
    let mut coder = enter(&world, &uid(1));
    call_until_answered(&mut coder, &server);
    wait_for("the pods on disk", || world.path("state/pods.json").exists().then_some(()));
    api.go_away();
    daemon.crash();
    // A pod that comes meanwhile finds no way out either.
    let mut late = enter(&world, &uid(2));
    assert!(late.open(server.address()).is_err(), "nobody knows it");
    assert!(coder.open(server.address()).is_err(), "held while there is no daemon");

    daemon.restart(&world);
    call_until_answered(&mut coder, &server);
    assert!(late.open(server.address()).is_err(), "nobody could tell who it is");
    wait_for("the fault in the status", || {
        daemon.cli().run(&["status"]).json["kubernetes"]["fault"].is_string().then_some(())
    });
    api.set(&pod(&uid(2), "agents", "coder-1", agent_labels()));
    api.resume();
    call_until_answered(&mut late, &server);
    assert!(agents(&daemon).contains("agents/coder-1"));
    assert!(daemon.cli().run(&["status"]).json["kubernetes"]["fault"].is_null());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn daemon_that_knows_no_pod_any_more_lets_none_go() {
    let world = World::new();
    let mut api = ApiServer::start(&world);
    api.set(&pod(&uid(1), "agents", "coder-0", agent_labels()));
    api.set(&pod(&uid(2), "web", "front", json!({})));
    let mut daemon = start(&world, AGENTS, NO_RULES, "hold");
    knows_and_holds(&world, &daemon, 2);
    let server = server(&world);
    let (mut coder, mut web) = (enter(&world, &uid(1)), enter(&world, &uid(2)));
    call_until_answered(&mut coder, &server);
    call_until_answered(&mut web, &server);
    daemon.stop();
    api.go_away();
    std::fs::remove_file(world.path("state/pods.json")).expect("remove what it knew");
    daemon.restart(&world);
    assert!(call(&mut coder, &server).is_err(), "an agent that nobody can name gets nowhere");
    assert!(enter(&world, &uid(3)).open(server.address()).is_err(), "nor does who comes");
    call(&mut web, &server).expect("who was spared still is");
    api.resume();
    call_until_answered(&mut coder, &server);
}

/// The words of a command for the cluster of this API server.
pub(crate) fn for_cluster(world: &World, args: &[&str]) -> Vec<String> {
    let env = format!("KUBECONFIG={}", world.path("kubeconfig").display());
    [&["env", &env, &interlock()], args].concat().into_iter().map(str::to_owned).collect()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_stop_of_the_fleet_is_carried_out_answered_summed_up_and_released() {
    let world = World::new();
    let mut api = ApiServer::start(&world);
    api.set_nodes(1);
    api.set(&pod(&uid(1), "agents", "coder-0", agent_labels()));
    let mut daemon = start(&world, AGENTS, NO_RULES, "hold");
    knows_and_holds(&world, &daemon, 1);
    let server = server(&world);
    let mut coder = enter(&world, &uid(1));
    call_until_answered(&mut coder, &server);
    let _controller = world.start_operator("fleet", &for_cluster(&world, &["fleet"]));

    let order = [
        "stop",
        "--fleet",
        "--json",
        "label=tier=gold",
        "--level",
        "isolate",
        "--reason",
        "odd",
        "--wait",
        "30s",
    ];
    let order = for_cluster(&world, &order);
    let stop = Command::new(&order[0]).args(&order[1..]).output().expect("run interlock");
    assert!(stop.status.success(), "{stop:?}");
    let answer: Value = serde_json::from_slice(&stop.stdout).expect("JSON");
    assert_eq!(
        (&answer["status"]["inForce"], &answer["status"]["agents"]),
        (&json!("1/1"), &json!(1)),
        "{answer}"
    );
    assert!(coder.open(server.address()).is_err(), "isolated");
    let report = &api.reports()[0]["spec"];
    assert_eq!((&report["node"], &report["inForce"]), (&json!("node-1"), &json!(true)), "{report}");
    let record = daemon.records().wait("stop", "of the fleet", |_| true);
    let name = answer["name"].as_str().expect("a name");
    assert_eq!(record["by"]["user"], format!("agentstop:{name}"));
    let id = record["stop"].as_str().expect("an id").to_owned();
    let refused = daemon.cli().run(&["release", &id, "--reason", "x"]);
    assert!(
        refused.code != 0 && refused.json.to_string().contains("kubectl delete agentstop"),
        "{}",
        refused.json
    );

    // It holds as it was made, whatever becomes of the object but its end.
    api.edit_stop(name, json!({"scope": {"label": {"tier": "silver"}}, "level": "isolate", "reason": "odd"}));
    wait_for("the node to say so", || {
        api.reports()[0]["spec"]["problems"].to_string().contains("it can only go further").then_some(())
    });
    assert!(coder.open(server.address()).is_err(), "still isolated");

    // It holds while nobody is there, and its end is learned of afterwards.
    api.go_away();
    daemon.crash();
    daemon.restart(&world);
    assert!(coder.open(server.address()).is_err(), "still isolated");
    api.delete_stop(name);
    api.resume();
    call_until_answered(&mut coder, &server);
    daemon.records().wait("release", "of the fleet", |record| record["stop"] == id);
    assert!(api.stops().is_empty());
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn who_is_an_agent_stays_one_until_it_ends() {
    let world = World::new();
    let api = ApiServer::start(&world);
    api.set(&pod(&uid(1), "agents", "coder-0", json!({})));
    let daemon = start(&world, AGENTS, NO_RULES, "allow");
    knows(&daemon, 1);
    let server = server(&world);
    let mut coder = enter(&world, &uid(1));
    let old = coder.open(server.address()).expect("no agent yet");
    api.set(&pod(&uid(1), "agents", "coder-0", agent_labels()));
    wait_for("the agent", || agents(&daemon).contains("agents/coder-0").then_some(()));
    assert!(coder.send(&old, b"x").and_then(|()| coder.send(&old, b"x")).is_err(), "older than the agent");
    call_until_answered(&mut coder, &server);

    // A stop by labels follows them, over open connections too.
    let mut open = coder.open(server.address()).expect("a connection");
    let (id, _) = daemon.cli().stop(&["label=tier=gold"], "refuse");
    coder.send(&open, &mcp::legacy(&mcp::call(1, "echo", json!({})))).expect("send");
    assert!(coder.message(&mut open).expect("an answer").text().contains(&id));
    api.set(&pod(&uid(1), "agents", "coder-0", json!({"interlock.dev/agent": "true"})));
    wait_for("the stop to be for others", || {
        coder.send(&open, &mcp::legacy(&mcp::call(1, "echo", json!({})))).ok()?;
        coder.message(&mut open).ok().filter(|answer| !answer.text().contains(&id)).map(drop)
    });

    // Neither who takes its labels away nor who deletes it by force lets it go.
    api.set(&pod(&uid(1), "agents", "coder-0", json!({"tier": "lead"})));
    wait_for("the new labels in a record", || {
        call(&mut coder, &server).ok()?;
        let records = daemon.records().of("decision");
        records.iter().any(|record| record["labels"] == json!({"tier": "lead"})).then_some(())
    });
    api.delete("coder-0");
    api.set(&pod(&uid(2), "agents", "other", json!({})));
    wait_for("the other pod", || {
        (daemon.cli().run(&["status"]).json["kubernetes"]["pods"] == 2).then_some(())
    });
    assert_eq!(
        daemon.cli().run(&["stop", "agent=agents/coder-0", "--level", "isolate", "--reason", "x"]).code,
        0
    );
    assert!(coder.open(server.address()).is_err());
    coder.process().signal(Signal::SIGKILL);
    coder.process().wait();
    world.remove_cgroup(&format!("kubepods/besteffort/pod{}", uid(1)));
    wait_for("the pod to be forgotten", || {
        (daemon.cli().run(&["status"]).json["kubernetes"]["pods"] == 1).then_some(())
    });
}
