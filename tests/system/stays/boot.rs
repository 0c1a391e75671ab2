//! A stop stays through a reboot, and where its state cannot be read nobody runs.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use agent_tests::app::interlock;
use agent_tests::process::Process;
use agent_tests::world::cgroup_root;
use agent_tests::{Daemon, RawAgent, World, wait_for};
use interlock::kernel::Kernel;
use serde_json::json;

use super::{assert_isolated, bank, call, stops};
use crate::NO_RULES;

/// As after a reboot: nothing is in the kernel, and what was in `/run` is gone.
pub(super) fn reboot(world: &World, daemon: &mut Daemon) {
    daemon.crash();
    Kernel::detach_all(&world.pin_dir()).expect("detach");
    fs::remove_dir_all(world.path("run")).expect("remove");
}

fn hold(world: &World, config: &Path) -> (bool, String) {
    let config = config.display().to_string();
    let mut hold =
        world.start_operator("hold", &[interlock(), "hold".to_owned(), "--config".to_owned(), config]);
    (hold.wait().success(), hold.stderr())
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn hold_at_boot_stops_an_agent_that_starts_before_the_daemon() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let (id, _) = daemon.cli().stop(&["agent=coder"], "isolate");
    daemon.crash();
    let (offline, _) = daemon.cli().stop(&["agent=sibling"], "isolate");
    daemon.restart(&world);
    reboot(&world, &mut daemon);
    let (held, said) = hold(&world, daemon.config());
    assert!(held, "{said}");
    let (mut agent, mut sibling) = (RawAgent::start(&world, "coder"), RawAgent::start(&world, "sibling"));
    let mut parked = RawAgent::start(&world, "parked");
    assert_isolated(&mut agent, server.address(), "before the daemon");
    assert_isolated(&mut sibling, server.address(), "before the daemon");
    let error = parked.open(server.address()).map(drop).expect_err("refused until the daemon is there");
    assert_ne!(error.kind(), ErrorKind::PermissionDenied, "though it is not stopped");

    daemon.restart(&world);
    assert_isolated(&mut agent, server.address(), "and after it");
    assert!(!call(&mut parked, server.address()).expect("works"));
    assert_eq!(stops(daemon.cli()).len(), 2);
    for id in [id, offline] {
        assert_eq!(daemon.cli().release(&id).code, 0);
    }
    assert!(!call(&mut agent, server.address()).expect("runs again"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn hold_makes_the_cgroups_that_are_named_and_takes_up_what_was_left() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    reboot(&world, &mut daemon);
    let text = fs::read_to_string(daemon.config()).expect("read");
    let named = world.path("named.yaml");
    fs::write(&named, text.replace("/agents/coder*", "/agents/fresh")).expect("write");
    let flags = ["stop", "--all", "--level", "isolate", "--reason", "x", "--config"];
    let order = daemon.cli().run(&[&flags[..], &[&named.display().to_string()]].concat());
    assert_eq!((order.code, &order.json["durable"]), (1, &json!(true)), "nothing is pinned: {order:?}");
    let (held, said) = hold(&world, &named);
    assert!(held, "{said}");
    assert_isolated(&mut RawAgent::start(&world, "fresh"), server.address(), "made and held");
    daemon.restart(&world);
    assert_eq!(stops(daemon.cli())[0]["stop"]["id"], order.json["stop"]["id"]);
}

/// Has an agent known that only a glob selects and that is stopped, and one that is not, and reboots: their cgroups are
/// gone, too. Nothing but the state knows of them.
fn reboot_of_agents_under_a_glob(world: &World, daemon: &mut Daemon) {
    let text = fs::read_to_string(daemon.config()).expect("read");
    let by_name = text.replace("{name: coder,", "{name: '{cgroup}',");
    assert_ne!(text, by_name, "each by its own name, so that one of two can be stopped");
    fs::write(daemon.config(), by_name).expect("write");
    daemon.stop();
    daemon.restart(world);
    daemon.cli().stop(&["agent=coder-1"], "isolate");
    for agent in ["coder-1", "coder-2"] {
        world.agent_cgroup(agent);
        daemon.holds(&format!("{}/agents/{agent}", world.cgroup()));
    }
    wait_for("both to be on disk", || {
        let state = fs::read_to_string(world.path("state/state.json")).expect("read");
        (state.contains("/coder-1\"") && state.contains("/coder-2\"")).then_some(())
    });
    reboot(world, daemon);
    for agent in ["coder-1", "coder-2"] {
        fs::remove_dir(world.agent_cgroup(agent)).expect("nobody is in it");
    }
}

fn is_there(world: &World, agent: &str) -> bool {
    cgroup_root().join(&world.cgroup()[1..]).join("agents").join(agent).exists()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn agents_under_a_glob_are_held_where_they_were_before_the_boot() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    reboot_of_agents_under_a_glob(&world, &mut daemon);
    let (held, said) = hold(&world, daemon.config());
    assert!(held, "{said}");
    let (mut stopped, mut other) = (RawAgent::start(&world, "coder-1"), RawAgent::start(&world, "coder-2"));
    assert_isolated(&mut stopped, server.address(), "before the daemon");
    let error = other.open(server.address()).map(drop).expect_err("refused until the daemon is there");
    assert_ne!(error.kind(), ErrorKind::PermissionDenied, "though it is not stopped");

    daemon.restart(&world);
    assert_isolated(&mut stopped, server.address(), "and after it");
    assert!(!call(&mut other, server.address()).expect("works"));
}

/// As a unit does before it starts anything of its own.
fn start_own_hold(world: &World, config: &Path, agent: &str) -> Process {
    let config = config.display().to_string();
    let command = [interlock(), "hold".to_owned(), "--own".to_owned(), "--config".to_owned(), config];
    world.start_agent(agent, &command)
}

fn hold_own(world: &World, config: &Path, agent: &str) -> (bool, String) {
    let mut hold = start_own_hold(world, config, agent);
    (hold.wait().success(), hold.stderr())
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn unit_never_seen_before_has_itself_held_without_a_daemon() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    daemon.cli().stop(&["agent=coder"], "kill");
    reboot(&world, &mut daemon);
    let (held, said) = hold_own(&world, daemon.config(), "coder-8");
    assert!(held, "{said}");
    assert_isolated(&mut RawAgent::start(&world, "coder-8"), server.address(), "stopped before it ever was");
    let others = ["sibling-1", "sibling-2", "sibling-3"];
    let mut at_once = others.map(|agent| start_own_hold(&world, daemon.config(), agent));
    for hold in &mut at_once {
        assert!(hold.wait().success(), "{}", hold.stderr());
    }
    for agent in others {
        let error = RawAgent::start(&world, agent).open(server.address()).map(drop).expect_err("no daemon");
        assert_ne!(error.kind(), ErrorKind::PermissionDenied, "though it is not stopped");
    }
    let (held, said) = hold_own(&world, daemon.config(), "nobody");
    assert!(!held && said.contains("no agent's"), "{said}");

    daemon.restart(&world);
    let (held, said) = hold_own(&world, daemon.config(), "sibling-4");
    assert!(held, "beside a daemon: {said}");
    assert!(!call(&mut RawAgent::start(&world, "sibling-4"), server.address()).expect("works"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn cgroup_that_nothing_selects_any_more_is_not_made_and_one_that_cannot_be_made_is_named() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    reboot_of_agents_under_a_glob(&world, &mut daemon);
    let text = fs::read_to_string(daemon.config()).expect("read");
    fs::write(daemon.config(), text.replace("/agents/coder*", "/agents/*-1")).expect("write");
    let agents = cgroup_root().join(&world.cgroup()[1..]).join("agents");
    fs::write(agents.join("cgroup.max.descendants"), "0").expect("no more cgroups there");
    let (held, said) = hold(&world, daemon.config());
    assert!(!held && said.contains("not held") && said.contains("/agents/coder-1"), "{said}");
    assert!(!said.contains("coder-2"), "{said}");
    let mut sibling = RawAgent::start(&world, "sibling");
    sibling.open(server.address()).map(drop).expect_err("the others are held all the same");
    fs::write(agents.join("cgroup.max.descendants"), "max").expect("write");
    assert!(hold(&world, daemon.config()).0);
    assert!(is_there(&world, "coder-1") && !is_there(&world, "coder-2"));
    assert_isolated(&mut RawAgent::start(&world, "coder-1"), server.address(), "made and held");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn unreadable_state_holds_everybody_at_boot_and_in_the_daemon() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut sibling = RawAgent::start(&world, "sibling");
    daemon.cli().stop(&["agent=coder"], "isolate");
    reboot(&world, &mut daemon);
    let state = world.path("state/state.json");
    let good = fs::read(&state).expect("read");
    fs::write(&state, "{").expect("write");
    let (held, said) = hold(&world, daemon.config());
    assert!(!held && said.contains("restore it"), "{said}");
    assert_isolated(&mut sibling, server.address(), "everybody, though only one was stopped");
    Kernel::detach_all(&world.pin_dir()).expect("detach");

    daemon.restart(&world);
    assert_isolated(&mut sibling, server.address(), "by the daemon alone, too");
    let status = daemon.cli().run(&["status"]).json;
    assert!(status["state"]["fault"].as_str().is_some_and(|fault| fault.contains("restore it")), "{status}");
    let known = stops(daemon.cli());
    let id = known[0]["stop"]["id"].as_str().expect("an id");
    let answer = daemon.cli().release(id);
    assert_eq!(answer.code, 1, "not while it cannot be read: {answer:?}");
    assert_eq!(fs::read(&state).expect("read"), b"{", "left for a person to look at");

    fs::write(&state, good).expect("repair it");
    daemon.stop();
    daemon.restart(&world);
    let found = stops(daemon.cli());
    assert_eq!(found.len(), 2, "what was known, and what is found in the kernel: {found:?}");
    let id = found[1]["stop"]["id"].as_str().expect("an id");
    assert_eq!(daemon.cli().release(id).code, 0);
    assert!(!call(&mut sibling, server.address()).expect("runs again"));
    assert_isolated(&mut RawAgent::start(&world, "coder"), server.address(), "whose stop is known again");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn hold_beside_a_daemon_is_refused_and_harms_nothing() {
    let world = World::new();
    let daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let (held, said) = hold(&world, daemon.config());
    assert!(!held && said.contains("another daemon"), "{said}");
    assert!(!call(&mut RawAgent::start(&world, "coder"), server.address()).expect("works"));
}
