//! Agents known by the program they execute: found wherever they run, with what they have forked, and again by a daemon
//! that comes later.

use std::fs;

use agent_tests::process::Process;
use agent_tests::raw_server::RawServer;
use agent_tests::sdk::binary;
use agent_tests::world::World;
use agent_tests::{Daemon, RawAgent, mcp};
use serde_json::json;

use crate::NO_TRANSFERS;
use crate::agents::refused;

/// Copies a program to where the configuration looks for agents.
fn install(world: &World, program: &str, name: &str) -> String {
    let folder = world.path("opt");
    fs::create_dir_all(&folder).expect("make a folder");
    let path = folder.join(name);
    fs::copy(program, &path).expect("copy a program");
    path.display().to_string()
}

fn entry(world: &World) -> String {
    format!("{{name: \"{{executable}}\", executable: \"{}/agent-*\"}}", world.path("opt").display())
}

fn start_daemon(world: &World) -> Daemon {
    Daemon::start_with_agents(world, NO_TRANSFERS, &entry(world), "")
}

/// Starts a command in a cgroup that is nobody's agent.
fn start(world: &World, command: &[String]) -> Process {
    world.start_in(&world.make_cgroup("peers/shell"), "program", command)
}

fn is_held(daemon: &Daemon, name: &str) {
    daemon.records().wait("agent", name, |record| record["agent"] == name);
}

fn bank(world: &World) -> RawServer {
    RawServer::start(world, |request, reply| reply.result(request, &json!({"content": []})))
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn a_program_makes_an_agent_of_who_executes_it() {
    let world = World::new();
    // As in a pod, the daemon is in a network namespace of its own.
    let daemon = Daemon::start_with_servers_for(&world, NO_TRANSFERS, &entry(&world));
    let server = bank(&world);
    let program = install(&world, &binary("raw-agent"), "agent-7");
    let mut agent = RawAgent::of(start(&world, &[program]));
    is_held(&daemon, "agent-7");
    assert_eq!(refused(&mut agent, server.address(), "wire_transfer"), Some(true));
    assert_eq!(daemon.records().decision("wire_transfer", "deny")["agent"], "agent-7");

    // The same program from elsewhere, in the same cgroup.
    let mut other = RawAgent::of(start(&world, &RawAgent::command()));
    assert_eq!(refused(&mut other, server.address(), "wire_transfer"), Some(false));

    // Its cgroup goes with it.
    let cgroups = || {
        let left = fs::read_dir(world.make_cgroup("peers/shell")).expect("the cgroup is there");
        left.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count()
    };
    assert_eq!(cgroups(), 1);
    drop(agent);
    agent_tests::wait_for("the cgroup to be removed", || (cgroups() == 0).then_some(()));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn what_it_has_forked_belongs_to_it_and_old_connections_are_cut() {
    let world = World::new();
    let server = bank(&world);
    let shell = install(&world, "/bin/sh", "agent-sh");
    // The shell waits for the child that is to be found.
    let script = format!("{} <&3 3<&- & wait", binary("raw-agent"));
    let command = ["sh", "-c", "exec 3<&0; exec \"$0\" -c \"$1\"", &shell, &script].map(str::to_owned);
    let mut child = RawAgent::of(start(&world, &command));
    let mut conn = child.open(server.address()).expect("nobody holds it yet");
    let call = mcp::legacy(&mcp::call(1, "wire_transfer", json!({})));
    child.send(&conn, &call).expect("send");
    child.message(&mut conn).expect("an answer, past everybody");

    let daemon = start_daemon(&world);
    let held = daemon.records().wait("agent", "the shell", |record| record["agent"] == "agent-sh");
    assert!(held["sockets_cut"].as_u64() >= Some(1), "{held}");
    let again = child.send(&conn, &call).and_then(|()| child.message(&mut conn));
    assert!(again.is_err(), "the old connection is gone");
    assert_eq!(refused(&mut child, server.address(), "wire_transfer"), Some(true), "and a new one is held");
    assert_eq!(daemon.records().decision("wire_transfer", "deny")["agent"], "agent-sh");
}

/// What is left may execute something else by then.
#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn the_next_daemon_knows_it_again() {
    let world = World::new();
    let server = bank(&world);
    let mut daemon = start_daemon(&world);
    let shell = install(&world, "/bin/sh", "agent-sh");
    let command = [shell, "-c".to_owned(), "read go; exec \"$0\"".to_owned(), binary("raw-agent")];
    let mut process = start(&world, &command);
    is_held(&daemon, "agent-sh");
    process.tell("go");
    let mut agent = RawAgent::of(process);
    assert_eq!(refused(&mut agent, server.address(), "wire_transfer"), Some(true));
    daemon.crash();
    daemon.restart(&world);
    assert_eq!(refused(&mut agent, server.address(), "wire_transfer"), Some(true));
    let denied: Vec<_> = daemon
        .records()
        .of("decision")
        .into_iter()
        .filter(|decision| decision["verdict"] == "deny")
        .collect();
    assert_eq!(denied.len(), 2);
    assert!(denied.iter().all(|decision| decision["agent"] == "agent-sh"), "{denied:?}");
}
