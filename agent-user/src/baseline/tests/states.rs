//! What becomes of one tool.

use super::{World, part};

/// Shows lists in turn; expects what is told of each, and what is thought of `a` then. `approve` and `block` are orders.
#[track_caller]
fn check(trust_first_use: bool, steps: &[(&str, &str, &str)]) {
    let mut world = World::new(trust_first_use);
    for (step, told, standing) in steps {
        let said = match *step {
            "approve" => world.approve("s", "a"),
            "block" => world.block("s", "a"),
            items => world.show("s", items),
        };
        assert_eq!(said, *told, "at {step:?}");
        assert_eq!(world.standing("s", "a"), *standing, "at {step:?}");
    }
}

#[test]
fn first_use_is_trusted_and_a_change_is_drift_until_it_is_approved() {
    check(
        true,
        &[
            ("a=1", "first a trusted []", "trusted []"),
            ("a=1", "", "trusted []"),
            ("a=2", "drifted a drifted [definition]", "drifted [definition]"),
            ("a=3", "drifted a drifted [definition]", "drifted [definition]"),
            ("a=1", "returned a trusted []", "trusted []"),
            ("a=2", "drifted a drifted [definition]", "drifted [definition]"),
            ("approve", "approved a trusted []", "trusted []"),
            ("a=1", "drifted a drifted [definition]", "drifted [definition]"),
        ],
    );
}

#[test]
fn each_change_has_its_class() {
    check(
        true,
        &[
            ("a=1?", "first a trusted []", "trusted []"),
            ("a=1?/T", "drifted a drifted [display]", "drifted [display]"),
            ("a=1", "drifted a drifted [annotations_less_safe]", "drifted [annotations_less_safe]"),
            (
                "a=2",
                "drifted a drifted [definition, annotations_less_safe]",
                "drifted [definition, annotations_less_safe]",
            ),
        ],
    );
    check(
        true,
        &[
            ("a=1", "first a trusted []", "trusted []"),
            ("a=1?", "drifted a drifted [annotations_safer]", "drifted [annotations_safer]"),
        ],
    );
}

#[test]
fn nothing_is_trusted_by_first_use_where_that_is_not_wanted() {
    check(
        false,
        &[
            ("a=1", "first a new []", "new []"),
            ("a=2", "changed a new [definition]", "new []"),
            ("approve", "approved a trusted []", "trusted []"),
            ("a=1", "drifted a drifted [definition]", "drifted [definition]"),
        ],
    );
}

#[test]
fn what_is_gone_and_comes_again_is_what_it_was() {
    check(
        true,
        &[
            ("a=1 b=1", "first a trusted []; first b trusted []", "trusted []"),
            ("b=1", "removed a removed [removed]", "removed [removed]"),
            ("b=1", "", "removed [removed]"),
            ("a=1 b=1", "returned a trusted []", "trusted []"),
            ("b=1", "removed a removed [removed]", "removed [removed]"),
            ("a=2 b=1", "drifted a drifted [definition]", "drifted [definition]"),
            ("b=1", "removed a removed [removed]", "removed [definition, removed]"),
            ("a=2 b=1", "drifted a drifted [definition]", "drifted [definition]"),
        ],
    );
}

#[test]
fn what_comes_to_a_known_list_is_said_to_be_added_until_it_is_approved() {
    check(
        true,
        &[
            ("b=1", "first b trusted []", "-"),
            ("a=1 b=1", "added a trusted [added]", "trusted [added]"),
            ("a=2 b=1", "drifted a drifted [definition, added]", "drifted [definition, added]"),
            ("b=1", "removed a removed [removed]", "removed [definition, added, removed]"),
            ("a=1 b=1", "returned a trusted [added]", "trusted [added]"),
            ("approve", "approved a trusted []", "trusted []"),
        ],
    );
    check(
        false,
        &[
            ("b=1", "first b new []", "-"),
            ("a=1 b=1", "added a new [added]", "new [added]"),
            ("a=2 b=1", "changed a new [definition]", "new [added]"),
            ("b=1", "removed a removed [removed]", "removed [added, removed]"),
            ("a=2 b=1", "returned a new [added]", "new [added]"),
            ("approve", "approved a trusted []", "trusted []"),
        ],
    );
}

#[test]
fn what_is_blocked_stays_so_whatever_it_shows() {
    check(
        true,
        &[
            ("a=1 b=1", "first a trusted []; first b trusted []", "trusted []"),
            ("block", "blocked a blocked []", "blocked []"),
            ("a=2 b=1", "changed a blocked [definition]", "blocked [definition]"),
            ("b=1", "removed a blocked [removed]", "blocked [definition, removed]"),
            ("a=1 b=1", "returned a blocked [definition]", "blocked []"),
            ("approve", "approved a trusted []", "trusted []"),
        ],
    );
}

#[test]
fn a_name_that_comes_twice_is_both_whatever_their_order() {
    check(
        true,
        &[
            ("a=1 a=2 a=3", "first a trusted []", "trusted []"),
            ("a=3 a=1 a=2", "", "trusted []"),
            ("a=1", "drifted a drifted [definition]", "drifted [definition]"),
            ("a=1 a=1", "", "drifted [definition]"),
        ],
    );
}

#[test]
fn a_rename_is_pointed_out_and_no_reason_to_trust() {
    // The same but for its name; then a name that is hardly another one; then neither.
    check(
        true,
        &[
            ("mail=1 b=2", "first mail trusted []; first b trusted []", "-"),
            (
                "a=1 b=2",
                "added a trusted [added] was mail; removed mail removed [removed]",
                "trusted [added]",
            ),
            (
                "delete_all=9 b=2",
                "added delete_all trusted [added]; removed a removed [removed]",
                "removed [added, removed]",
            ),
            (
                "delete_ally=8 b=2",
                "added delete_ally trusted [added] was delete_all; removed delete_all removed [removed]",
                "removed [added, removed]",
            ),
        ],
    );
}

#[test]
fn whoever_was_shown_the_other_one_must_be_shown_the_trusted_one_again() {
    let mut world = World::new(true);
    world.show("s", "a=1");
    assert_eq!(world.show_to("bob", "s", "a=2"), "drifted a drifted [definition]");
    assert_eq!(world.show_to("cid", "s", "a=2"), "");
    for agent in ["ann", "bob"] {
        assert_eq!(world.show_to(agent, "s", "a=1"), "", "{agent}");
        assert_eq!(world.standing("s", "a"), "drifted [definition]", "cid goes by the other one");
    }
    assert_eq!(world.show_to("cid", "s", "a=1"), "returned a trusted []");
    for agent in 0..20 {
        world.show_to(&agent.to_string(), "s", "a=2");
    }
    for agent in 0..20 {
        world.show_to(&agent.to_string(), "s", "a=1");
    }
    assert_eq!(world.standing("s", "a"), "drifted [definition]", "more than are kept");
    world.approve("s", "a");
    assert_eq!(world.standing("s", "a"), "trusted []");
}

#[test]
fn what_nobody_has_asked_for_makes_nothing_good() {
    let mut world = World::new(true);
    world.show("s", "a=1 b=1");
    world.show("s", "a=2 b=1");
    assert_eq!(world.page("s", part("z", "", "a=1"), "a=1"), "");
    assert_eq!(world.standing("s", "a"), "drifted [definition]");
    assert_eq!(world.page("s", part("z", "", "b=2"), "b=2"), "drifted b drifted [definition]");
}
