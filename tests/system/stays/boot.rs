//! A stop stays through a reboot, and where its state cannot be read nobody runs.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use agent_tests::app::interlock;
use agent_tests::{Daemon, RawAgent, World};
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
