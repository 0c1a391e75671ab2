//! A stop stays where no disk takes it.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use agent_tests::cli::Answer;
use agent_tests::{Daemon, RawAgent, World, wait_for};
use serde_json::json;

use super::boot::reboot;
use super::{assert_isolated, bank, call, stops};
use crate::NO_RULES;

/// A small file system of its own, mounted on a folder of a world.
struct Disk(PathBuf);

impl Disk {
    fn mount(dir: PathBuf) -> Disk {
        fs::create_dir_all(&dir).expect("a folder");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(&dir).status();
        assert!(status.expect("run mount").success());
        Disk(dir)
    }

    fn fill(&self) {
        let error = fs::write(self.0.join("ballast"), vec![0; 1 << 20]).expect_err("it is small");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }

    fn free(&self) {
        fs::remove_file(self.0.join("ballast")).expect("remove");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn problems(answer: &Answer) -> String {
    answer.json["problems"].to_string()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_on_a_full_disk_holds_over_a_restart_and_is_saved_once_there_is_room() {
    let world = World::new();
    let disk = Disk::mount(world.path("state"));
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    disk.fill();
    let (id, answer) = daemon.cli().stop(&["agent=coder"], "isolate");
    assert_eq!((answer.code, &answer.json["durable"]), (3, &json!(false)), "{answer:?}");
    assert!(problems(&answer).contains("state.json"), "it says why: {answer:?}");
    assert_isolated(&mut agent, server.address(), "in force");
    assert_eq!(daemon.cli().run(&["status"]).json["state"]["saved"], false);

    daemon.crash();
    daemon.restart(&world);
    assert_isolated(&mut agent, server.address(), "after a restart");
    let found = stops(daemon.cli());
    let kept = found[0]["stop"]["id"].as_str().expect("an id");
    assert!(kept.starts_with("stp-held-") && kept != id, "nobody knows whose it was: {found:?}");
    assert_eq!(daemon.cli().release(kept).code, 1, "a release must be saved first");
    assert_isolated(&mut agent, server.address(), "so it holds");

    disk.free();
    wait_for("the state to be saved", || {
        (daemon.cli().run(&["status"]).json["state"]["saved"] == true).then_some(())
    });
    reboot(&world, &mut daemon);
    daemon.restart(&world);
    assert_isolated(&mut agent, server.address(), "even after a reboot");
    assert_eq!(daemon.cli().release(kept).code, 0);
    assert!(!call(&mut agent, server.address()).expect("runs again"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_on_a_full_disk_with_the_daemon_dead_holds() {
    let world = World::new();
    let disk = Disk::mount(world.path("state"));
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let (mut agent, mut sibling) = (RawAgent::start(&world, "coder"), RawAgent::start(&world, "sibling"));
    daemon.crash();
    disk.fill();
    let (_, answer) = daemon.cli().stop(&["--all"], "isolate");
    assert_eq!((answer.code, &answer.json["durable"]), (3, &json!(false)), "{answer:?}");
    assert!(problems(&answer).contains("not saved"), "{answer:?}");
    daemon.cli().stop(&["agent=sibling"], "freeze");
    daemon.restart(&world);
    assert_isolated(&mut agent, server.address(), "the next daemon finds it in the kernel");
    let found = stops(daemon.cli());
    let levels: Vec<_> = found.iter().map(|one| one["stop"]["level"].as_str().expect("a level")).collect();
    assert_eq!(levels, ["isolate", "freeze"], "{found:?}");
    disk.free();
    for stop in &found {
        let id = stop["stop"]["id"].as_str().expect("an id");
        assert_eq!(daemon.cli().release(id).code, 0);
    }
    assert!(!call(&mut agent, server.address()).expect("runs again"));
    assert!(!call(&mut sibling, server.address()).expect("is thawed, too"));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn stop_with_no_room_for_records_takes_force_and_what_is_lost_is_counted() {
    let world = World::new();
    let disk = Disk::mount(world.path("log"));
    std::os::unix::fs::symlink(world.path("log/records.jsonl"), world.path("records.jsonl")).expect("a link");
    let mut daemon = Daemon::start(&world, NO_RULES);
    let server = bank(&world);
    let mut agent = RawAgent::start(&world, "coder");
    disk.fill();
    // What is left of the last page of the file.
    for _ in 0..10 {
        let _ = call(&mut agent, server.address());
    }
    let (id, answer) = daemon.cli().stop(&["agent=coder"], "isolate");
    assert_eq!((answer.code, &answer.json["durable"]), (0, &json!(true)), "{answer:?}");
    assert_isolated(&mut agent, server.address(), "in force");
    daemon.metrics().wait("interlock_records_dropped_total", &[], 1.0);
    daemon.crash();
    daemon.restart(&world);
    assert_eq!(stops(daemon.cli())[0]["stop"]["id"], *id);
    assert_isolated(&mut agent, server.address(), "and after a restart");
}
