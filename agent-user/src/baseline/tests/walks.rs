//! Lists of more than one page, and lists that are in doubt.

use super::{World, part, place, whole};
use crate::baseline::Page;
use crate::fingerprint::Surface;

fn by(walker: u64, page: Page) -> Page {
    Page { walker, ..page }
}

#[test]
fn only_a_walk_from_the_first_page_to_the_last_misses_anything() {
    let mut world = World::new(true);
    assert_eq!(world.page("s", part("", "x", "a=1"), "a=1"), "first a trusted []");
    assert_eq!(world.page("s", part("x", "", "b=1"), "b=1"), "first b trusted []");
    // A first page alone, a last page alone, and pages that do not follow each other.
    assert_eq!(world.page("s", part("", "x", "c=1"), "c=1"), "added c trusted [added]");
    assert_eq!(world.page("s", part("y", "", "d=1"), "d=1"), "added d trusted [added]");
    for name in ["a", "b"] {
        assert_eq!(world.standing("s", name), "trusted []");
    }
    assert_eq!(
        world.page("s", part("x", "", "b=1 d=1"), "b=1 d=1"),
        "removed a removed [removed]",
        "the walk that showed c"
    );
}

#[test]
fn before_the_first_whole_walk_everything_is_seen_for_the_first_time() {
    let mut world = World::new(true);
    for (asked, next, item) in [("", "x", "a=1"), ("", "x", "b=1"), ("x", "y", "c=1")] {
        assert!(world.page("s", part(asked, next, item), item).starts_with("first"), "{item}");
    }
    assert_eq!(
        world.page("s", part("y", "", "d=1"), "d=1"),
        "first d trusted []; removed a removed [removed]"
    );
    assert_eq!(world.show("s", "b=1 c=1 d=1 e=1"), "added e trusted [added]");
}

#[test]
fn two_walk_at_the_same_time() {
    let mut world = World::new(true);
    world.show("s", "a=1 b=1 c=1");
    assert_eq!(world.page("s", by(1, part("", "x", "a=1")), "a=1"), "");
    assert_eq!(world.page("s", by(2, part("", "x", "b=1")), "b=1"), "");
    assert_eq!(world.page("s", by(1, part("x", "", "b=1 c=1")), "b=1 c=1"), "");
    assert_eq!(world.page("s", by(2, part("x", "", "c=1")), "c=1"), "removed a removed [removed]");
}

#[test]
fn of_many_walks_the_one_that_stands_still_longest_is_given_up() {
    let mut world = World::new(true);
    world.show("s", "a=1 b=1");
    for walker in 0..17 {
        world.page("s", by(walker, part("", "x", "a=1")), "a=1");
    }
    assert_eq!(world.page("s", by(0, part("x", "", "")), ""), "", "given up");
    assert_eq!(world.page("s", by(1, part("x", "", "")), ""), "removed b removed [removed]");
}

#[test]
fn the_same_pages_again_are_a_walk_too() {
    let mut world = World::new(true);
    for _ in 0..3 {
        world.page("s", part("", "x", "a=1"), "a=1");
        world.page("s", part("x", "", "b=1"), "b=1");
    }
    world.page("s", part("", "x", "a=1"), "a=1");
    assert_eq!(
        world.page("s", part("x", "", "c=2"), "c=2"),
        "added c trusted [added]; removed b removed [removed]"
    );
    // `a` is on a page that was not looked at again, and is not gone.
    assert_eq!(world.standing("s", "a"), "trusted []");
}

#[test]
fn a_page_that_is_the_same_is_not_looked_at() {
    let mut world = World::new(true);
    let page = whole("one text");
    world.page("s", page, "a=1");
    assert_eq!(world.page("s", page, "a=2"), "", "its digest is the same, so nobody looks");
    world.page("s", Page { digest: whole("other text").digest, ..page }, "a=2");
    assert_eq!(world.page("s", page, "a=1"), "returned a trusted []", "another one came between");
    world.block("s", "a");
    assert_eq!(world.page("s", page, "a=2"), "changed a blocked [definition]", "an order came between");
}

#[test]
fn another_order_is_told_once_until_it_stays() {
    let mut world = World::new(true);
    world.show("s", "a=1 b=1 c=1");
    assert_eq!(world.show("s", "b=1 a=1 c=1"), "reordered  trusted [order]");
    assert_eq!(world.show("s", "c=1 a=1 b=1"), "");
    assert_eq!(world.show("s", "c=1 b=1 a=1"), "");
    assert_eq!(world.page("s", part("", "", "stays"), "c=1 b=1 a=1"), "");
    assert_eq!(world.show("s", "a=1 b=1 c=1"), "reordered  trusted [order]");
    // Something else has changed: the order is another one for that.
    assert_eq!(world.show("s", "b=1 a=1"), "removed c removed [removed]");
}

#[test]
fn a_list_in_doubt_is_unsure_until_it_was_seen_whole() {
    let mut world = World::new(true);
    world.page("s", part("", "x", "a=1"), "a=1");
    world.page("s", part("x", "", "b=1"), "b=1");
    world.page("s", part("", "x", "a=1"), "a=1");
    world.known.doubt(&place("s").endpoint, Surface::Prompt);
    assert_eq!(world.standing("s", "a"), "trusted []", "another list");
    world.known.doubt(&place("s").endpoint, Surface::Tool);
    assert_eq!(world.standing("s", "a"), "trusted? []");
    assert_eq!(world.page("s", part("x", "", ""), ""), "", "the walk began before, and misses nothing");
    assert_eq!(world.standing("s", "a"), "trusted? []");
    world.page("s", part("", "x", "a=1"), "a=1");
    assert_eq!(world.standing("s", "a"), "trusted? []");
    world.page("s", part("x", "", "b=1"), "b=1");
    assert_eq!(world.standing("s", "a"), "trusted []");
    world.known.doubt(&place("s").endpoint, Surface::Tool);
    world.show("s", "a=1 b=1");
    assert_eq!(world.standing("s", "a"), "trusted []");
}

#[test]
fn a_doubt_is_about_every_revision_and_principal_of_the_endpoint() {
    let mut world = World::new(true);
    let places = ["s", "s#2026-07-28", "s!bob", "s@10.0.0.2"];
    for at in places {
        world.show(at, "a=1");
    }
    world.known.doubt(&place("s").endpoint, Surface::Tool);
    let standings = places.map(|place| world.standing(place, "a"));
    assert_eq!(standings, ["trusted? []", "trusted? []", "trusted? []", "trusted []"]);
}

#[test]
fn a_definition_that_drifts_within_a_walk_is_not_made_good_by_the_next_page() {
    let mut world = World::new(true);
    world.show("s", "a=1");
    world.page("s", part("", "x", "a=2"), "a=2");
    assert_eq!(world.page("s", part("x", "", "a=1"), "a=1"), "");
    assert_eq!(world.standing("s", "a"), "drifted [definition]");
    assert_eq!(world.show("s", "a=1"), "returned a trusted []");
}
