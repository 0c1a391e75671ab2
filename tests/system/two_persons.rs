//! `require_two`: a stop ends only when two different persons have ordered it.

use std::path::Path;

use agent_tests::certs::{Ca, Use};
use agent_tests::cli::{Answer, Cli};
use agent_tests::{Daemon, World};

use crate::NO_RULES;
use crate::remote::{endpoint, port};

const TWO: &str = "require_two: true\n";
/// Users who have logged in; the second has no name on this host.
const ROOT: u32 = 0;
const OTHER: u32 = 3_999_999_999;

/// Whether this kernel knows who has logged in (`CONFIG_AUDIT`).
fn keeps_logins() -> bool {
    let keeps = Path::new("/proc/self/loginuid").exists();
    if !keeps {
        eprintln!("this kernel does not keep logins");
    }
    keeps
}

fn error(answer: &Answer) -> &str {
    answer.json["error"].as_str().unwrap_or_default()
}

/// The first of two has asked, and the stop holds.
#[track_caller]
fn check_asked(answer: &Answer) {
    assert_eq!((answer.code, &answer.json["outcome"]), (3, &"needs_second".into()), "{answer:?}");
}

#[track_caller]
fn check_released(answer: &Answer) {
    assert_eq!((answer.code, &answer.json["outcome"]), (0, &"released".into()), "{answer:?}");
}

fn in_force(daemon: &Daemon) -> Vec<String> {
    let stops = daemon.cli().run(&["stops"]).json;
    let ids = stops["stops"].as_array().into_iter().flatten().map(|entry| entry["stop"]["id"].as_str());
    ids.flatten().map(str::to_owned).collect()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn two_logins_release_and_one_of_them_twice_does_not() {
    if !keeps_logins() {
        return;
    }
    let world = World::new();
    let daemon = Daemon::start_with(&world, NO_RULES, TWO);
    let first = daemon.cli().logged_in(Some(ROOT));
    let (id, _) = daemon.cli().stop(&["agent=coder"], "refuse");

    let nobody = daemon.cli().logged_in(None).release(&id);
    assert!(nobody.code == 1 && error(&nobody).contains("has no login uid"), "{nobody:?}");
    assert!(daemon.records().of("release").is_empty(), "nobody in particular has asked for nothing");

    check_asked(&first.release(&id));
    let record = daemon.records().wait("release", "the first ask", |record| record["stop"] == id.as_str());
    assert_eq!((&record["released"], &record["by"]["login"]), (&false.into(), &"root".into()), "{record}");
    let stops = daemon.cli().run(&["stops"]).json;
    let asked = &stops["stops"][0]["release_asked"];
    assert_eq!(
        (&asked["by"]["login"], &asked["reason"]),
        (&"root".into(), &"the test is over".into()),
        "{stops}"
    );
    let shown = daemon.cli().run(&["stops", "show", &id]).json;
    assert_eq!(&shown["release_asked"], asked, "{shown}");
    for words in [daemon.cli().words(&["stops"]), daemon.cli().words(&["stops", "show", &id])] {
        assert!(words.contains("by root: the test is over; it HOLDS"), "{words}");
    }

    let again = first.release(&id);
    assert!(again.code == 1 && error(&again).contains("root has asked"), "{again:?}");
    let nobody = daemon.cli().logged_in(None).release(&id);
    assert!(nobody.code == 1 && error(&nobody).contains("has no login uid"), "{nobody:?}");
    let (meanwhile, _) = first.stop(&["agent=coder"], "refuse");
    assert_eq!(in_force(&daemon), [&*id, &*meanwhile]);

    let second = daemon.cli().logged_in(Some(OTHER)).release(&id);
    check_released(&second);
    assert_eq!(second.json["by"]["login"], OTHER.to_string().as_str(), "{second:?}");
    assert_eq!(second.json["asked_by"]["login"], "root", "{second:?}");
    assert_eq!(in_force(&daemon), [&*meanwhile], "the stop made meanwhile is not touched");
    let record = daemon.records().wait("release", "the end", |record| record["released"] == true);
    assert_eq!(
        (&record["stop"], &record["asked_by"]["login"]),
        (&id.as_str().into(), &"root".into()),
        "{record}"
    );
    check_asked(&daemon.cli().logged_in(Some(OTHER)).release(&meanwhile));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn ask_is_void_once_the_stop_went_further_or_the_daemon_ended() {
    if !keeps_logins() {
        return;
    }
    let world = World::new();
    let mut daemon = Daemon::start_with(&world, NO_RULES, TWO);
    let (root, other) = (daemon.cli().logged_in(Some(ROOT)), daemon.cli().logged_in(Some(OTHER)));
    let (id, _) = root.stop(&["agent=coder"], "refuse");
    check_asked(&root.release(&id));
    let further = other.run(&["escalate", &id, "--level", "isolate", "--reason", "it goes on"]);
    assert_eq!(further.code, 0, "{further:?}");
    check_asked(&other.release(&id));
    daemon.crash();
    daemon.restart(&world);
    check_asked(&root.release(&id));
    assert_eq!(in_force(&daemon), [&*id]);
    check_released(&other.release(&id));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn two_certificates_are_two_persons_if_they_name_two() {
    let world = World::new();
    let ca = Ca::new(&world.path("."), "site");
    let server = ca.issue("gate", Use::Server(&["localhost"]));
    let more = format!("{TWO}{}", endpoint("127.0.0.1:0", &server, ca.file()));
    let daemon = Daemon::start_with(&world, NO_RULES, &more);
    let url = format!("https://localhost:{}", port(&daemon));
    let as_whom = |name: &str| Cli::remote(&url, ca.file(), &ca.issue(name, Use::Client));
    let (alice, bob) = (as_whom("alice"), as_whom("bob"));

    let (id, _) = alice.stop(&["agent=coder"], "refuse");
    check_asked(&alice.release(&id));
    let again = as_whom("Alice").release(&id);
    assert!(again.code == 1 && error(&again).contains("Alice has asked"), "another certificate, {again:?}");
    let released = bob.release(&id);
    check_released(&released);
    assert_eq!(
        (&released.json["asked_by"]["user"], &released.json["by"]["user"]),
        (&"alice".into(), &"bob".into())
    );
    assert_ne!(
        released.json["asked_by"]["certificate"]["sha256"],
        released.json["by"]["certificate"]["sha256"]
    );

    if !keeps_logins() {
        return;
    }
    let root = daemon.cli().logged_in(Some(ROOT));
    let (id, _) = root.stop(&["agent=coder"], "refuse");
    check_asked(&root.release(&id));
    let same = as_whom("root").release(&id);
    assert!(same.code == 1 && error(&same).contains("root has asked"), "{same:?}");
    check_released(&alice.release(&id));
}
