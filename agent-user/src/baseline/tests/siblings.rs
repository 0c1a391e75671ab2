//! What is trusted of a tool that a place shows for the first time, and is shown elsewhere.

use super::{World, whole};
use crate::baseline::Page;

/// One place shows `a=1`, which is trusted by first use or by approval, then another one something.
#[track_caller]
fn check(first: &str, other: &str, shows: &str, [by_use, by_approval]: [&str; 2]) {
    let mut world = World::new(true);
    world.show(first, "a=1");
    world.show(other, shows);
    assert_eq!(world.standing(other, "a"), by_use, "{first} then {other}");
    let mut world = World::new(false);
    world.show(first, "a=1");
    world.approve(first, "a");
    world.show(other, shows);
    assert_eq!(world.standing(other, "a"), by_approval, "{first} then {other}, approved");
}

const TRUSTED: [&str; 2] = ["trusted []"; 2];
const DRIFTED: [&str; 2] = ["drifted [definition]"; 2];
/// It is seen for the first time.
const FIRST: [&str; 2] = ["trusted []", "new []"];

#[test]
fn what_is_the_same_elsewhere_is_trusted() {
    for other in ["s#2026-07-28", "s!bob", "s@10.0.0.2", "t", "s@10.0.0.2#2026-07-28!bob"] {
        check("s", other, "a=1", TRUSTED);
    }
    check("s", "t@10.0.0.2", "a=1", FIRST);
}

#[test]
fn what_is_another_one_has_drifted_but_for_another_principal() {
    for other in ["s#2026-07-28", "s@10.0.0.2", "s@10.0.0.2#2026-07-28"] {
        check("s", other, "a=2", DRIFTED);
    }
    // Another user, or another server behind the same address.
    for other in ["s!bob", "s!bob#2026-07-28", "t", "s/b", "t!bob", "t@10.0.0.2"] {
        check("s", other, "a=2", FIRST);
    }
}

#[test]
fn what_a_revision_has_no_place_for_is_no_difference() {
    check("s", "s#2026-07-28", "a=1/Title", TRUSTED);
    check("s", "s@10.0.0.2", "a=1/Title", ["drifted [display]"; 2]);
}

#[test]
fn an_address_of_one_agent_is_nobody_elses() {
    check("l@127.0.0.1%ann", "l@127.0.0.1%bob", "a=1", FIRST);
    check("l@127.0.0.1%ann", "l@127.0.0.2%ann", "a=2", DRIFTED);
}

#[test]
fn what_is_for_everybody_is_the_same_for_everybody() {
    let mut world = World::new(true);
    world.page("s!ann", Page { public: true, ..whole("p") }, "a=1");
    world.show("s!bob", "a=2");
    assert_eq!(world.standing("s!bob", "a"), "drifted [definition]");
    world.page("s!cid", Page { public: true, ..whole("q") }, "b=1");
    assert_eq!(world.standing("s!cid", "b"), "trusted []");
}

#[test]
fn what_has_drifted_at_an_endpoint_has_for_whoever_comes_new() {
    let mut world = World::new(true);
    world.show("s", "a=1");
    world.show("s", "a=2");
    world.show("s!bob", "a=2");
    assert_eq!(world.standing("s!bob", "a"), "drifted [definition]");
    world.show("s!cid", "a=3");
    assert_eq!(world.standing("s!cid", "a"), "trusted []", "another definition, for another principal");
    for other in ["t", "s/b", "t/b!bob"] {
        world.show(other, "a=2");
        assert_eq!(world.standing(other, "a"), "drifted [definition]", "{other}");
    }
    world.show("u@10.0.0.2!bob", "a=2");
    assert_eq!(world.standing("u@10.0.0.2!bob", "a"), "trusted []", "no kin");
    // What an operator has approved once is not held against the next one.
    world.approve("s!bob", "a");
    world.show("s", "a=9");
    world.show("s!dan", "a=2");
    assert_eq!(world.standing("s!dan", "a"), "trusted []");
}

#[test]
fn the_drift_of_a_sibling_is_from_what_that_trusts() {
    let mut world = World::new(true);
    world.show("s", "a=1");
    world.show("s@10.0.0.2", "a=2");
    assert_eq!(world.show("s@10.0.0.2", "a=1"), "returned a trusted []");
    assert_eq!(world.show("s@10.0.0.2", "a=2"), "drifted a drifted [definition]");
}

#[test]
fn a_block_is_for_the_whole_endpoint_and_its_kin_and_for_whoever_comes() {
    let mut world = World::new(true);
    for at in ["s", "s#2026-07-28", "s!bob", "s@10.0.0.2", "t", "t@10.0.0.2"] {
        world.show(at, "a=1 b=1");
    }
    world.block("s", "a");
    for at in ["s", "s#2026-07-28", "s!bob", "s@10.0.0.2", "t"] {
        assert_eq!(world.standing(at, "a"), "blocked []", "{at}");
        assert_eq!(world.standing(at, "b"), "trusted []", "{at}");
    }
    assert_eq!(world.standing("t@10.0.0.2", "a"), "trusted []", "shares neither name nor address");
    for at in ["s!cid", "s@10.0.0.3", "u"] {
        world.show(at, "a=1");
        assert_eq!(world.standing(at, "a"), "blocked []", "{at}");
    }
    // One that is blocked because of another one blocks nobody else.
    world.show("u@10.0.0.9", "a=1");
    assert_eq!(world.standing("u@10.0.0.9", "a"), "trusted []");
    world.approve("s", "a");
    assert_eq!(world.standing("s!bob", "a"), "blocked []", "was not reviewed");
    world.show("s!dan", "a=1");
    assert_eq!(world.standing("s!dan", "a"), "trusted []");
}

#[test]
fn an_approval_is_for_all_of_the_endpoint_that_show_just_this() {
    let mut world = World::new(true);
    let places = ["s", "s!bob", "s!cid", "s@10.0.0.2"];
    for at in places {
        world.show(at, "a=1");
    }
    for at in ["s", "s!bob", "s@10.0.0.2"] {
        world.show(at, "a=2");
    }
    world.show("s!cid", "a=3");
    world.approve("s", "a");
    let standings = places.map(|at| world.standing(at, "a"));
    assert_eq!(standings, ["trusted []", "trusted []", "drifted [definition]", "drifted [definition]"]);
}

#[test]
fn with_more_kin_than_can_be_looked_at_nothing_is_trusted_by_first_use() {
    let mut world = World::new(true);
    for name in 0..257 {
        world.show(&format!("n{name}"), "z=1");
    }
    world.show("s", "a=1 z=1");
    assert_eq!(world.standing("s", "a"), "new []");
    assert_eq!(world.standing("s", "z"), "trusted []");
    world.show("s@10.0.0.2", "a=1");
    assert_eq!(world.standing("s@10.0.0.2", "a"), "trusted []");
}

#[test]
fn a_server_that_an_agent_makes_up_elsewhere_does_not_speak_for_others() {
    let mut world = World::new(true);
    world.show("s", "a=1");
    world.show_to("bob", "s@10.6.6.6", "a=6");
    assert_eq!(world.standing("s@10.6.6.6", "a"), "trusted []");
    world.show_to("bob", "s@10.6.6.6", "a=7");
    assert_eq!(world.standing("s", "a"), "trusted []");
    world.show("s@10.0.0.2", "b=1");
    world.show_to("bob", "s@10.6.6.6", "b=6");
    world.show("s@10.0.0.3", "b=1");
    assert_eq!(world.standing("s@10.0.0.3", "b"), "trusted []");
}

#[test]
fn what_was_the_same_at_one_address_has_drifted_under_every_name() {
    let mut world = World::new(true);
    for at in ["s", "t", "s/b", "u@10.0.0.2"] {
        world.show(at, "a=1");
    }
    world.show("s", "a=2");
    for at in ["t", "s/b"] {
        assert_eq!(world.standing(at, "a"), "drifted [definition]", "{at}");
    }
    assert_eq!(world.standing("u@10.0.0.2", "a"), "trusted []");
    // A harmless change here does not hide one that is not, there.
    world.show("t", "a=1/Title");
    assert_eq!(world.standing("t", "a"), "drifted [definition, display]");
    // Of what is not known the worst counts, in all classes.
    assert_eq!(world.standing("v", "a"), "drifted [definition, display]");
}
