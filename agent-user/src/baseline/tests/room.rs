//! Bounds. D2 of the cases: tables stay bounded, and a mark is never forgotten to make room.

use jiff::Timestamp;

use super::super::observe::Sight;
use super::super::orders::Wish;
use super::super::room::Bounds;
use super::{World, order, part, place, say, shown, whole};

fn world(all: usize, list: usize) -> World {
    let mut world = World::new(true);
    world.known.bounds = Bounds { all, list };
    world
}

fn list(names: std::ops::Range<u32>) -> String {
    names.map(|name| format!("n{name}=1 ")).collect()
}

fn show_as(world: &mut World, agent: &str, at: &str, items: &str) {
    let (place, page) = (place(at), whole(items));
    let sight = Sight { place: &place, page: &page, witness: agent, now: Timestamp::UNIX_EPOCH };
    world.known.observe(sight, &shown(items));
}

#[test]
fn what_does_not_fit_into_a_list_is_not_kept_and_what_is_gone_makes_room() {
    let mut world = world(1_000, 4);
    world.show("s", &list(0..6));
    assert_eq!(
        (world.standing("s", "n3"), world.standing("s", "n4")),
        ("trusted []".into(), "new []".into())
    );
    assert_eq!(world.known.evicted, 0);
    world.show("s", "n0=1 n1=1 x=1");
    assert_eq!(world.standing("s", "x"), "new []", "the others were there until this was shown");
    world.show("s", "n0=1 n1=1 x=1");
    assert_eq!(world.standing("s", "x"), "new [added]");
    assert_eq!(world.known.evicted, 1);
    assert_eq!(world.known.lists.values().next().unwrap().items.len(), 4);
}

#[test]
fn whoever_has_the_most_gives_what_was_used_longest_ago() {
    let mut world = world(40, 100);
    show_as(&mut world, "ann", "ann@10.0.0.1", "a=1 b=1");
    for host in 2..9 {
        show_as(&mut world, "bob", &format!("bob{host}@10.0.0.{host}"), &list(0..5));
    }
    assert!(world.known.size <= 40, "{}", world.known.size);
    assert_eq!(world.standing("ann@10.0.0.1", "a"), "trusted []");
    assert_eq!(world.standing("bob2@10.0.0.2", "n0"), "new []", "it may come back as another one");
    assert_eq!(world.standing("bob8@10.0.0.8", "n4"), "trusted []");
    assert!(world.known.evicted > 0);
    let counted: usize = world.known.owners.values().sum();
    let there: usize = world.known.lists.values().map(|list| list.items.len() + 1).sum();
    assert_eq!((counted, world.known.size), (there, there));
    assert_eq!(world.known.kin.items(), there - world.known.lists.len(), "each item is found by its name");
}

#[test]
fn what_is_blocked_drifted_or_approved_is_never_forgotten() {
    let mut world = world(5, 100);
    world.show("s", "drifts=1 blocked=1 approved=1");
    world.show("s", "drifts=2 blocked=1 approved=1");
    world.block("s", "blocked");
    world.approve("s", "approved");
    for round in 0..20 {
        world.show(&format!("t{round}@10.0.1.{round}"), &list(0..10));
        assert!(world.known.size <= 5, "{}", world.known.size);
    }
    assert_eq!(world.standing("s", "drifts"), "drifted [definition]");
    assert_eq!(world.standing("s", "blocked"), "blocked []");
    assert_eq!(world.standing("s", "approved"), "trusted []");
    // Gone, they are kept as well.
    world.known.evicted = 0;
    world.show("s", "");
    world.show("u@10.0.2.1", &list(0..10));
    assert_eq!(world.standing("s", "drifts"), "removed [definition, removed]");
    assert_eq!(world.standing("s", "approved"), "removed [removed]");
}

#[test]
fn what_was_forgotten_is_not_trusted_by_first_use_again() {
    let mut world = world(8, 100);
    world.page("s", part("", "x", "a=1"), "a=1");
    for round in 0..3 {
        world.page("s", part("x", "x", &list(round * 6..round * 6 + 6)), &list(round * 6..round * 6 + 6));
    }
    assert_eq!(world.standing("s", "a"), "new []");
    world.page("s", part("", "x", "a=2"), "a=2");
    assert_eq!(world.standing("s", "a"), "new [added]");
}

#[test]
fn what_waits_for_a_full_disk_is_bounded() {
    let mut world = world(40, 100);
    for round in 0..200 {
        world.show(&format!("s{round}@10.0.1.{round}"), &list(round * 4..round * 4 + 4));
    }
    assert!(world.known.pending.len() <= 3 * 40, "{}", world.known.pending.len());
    let (_, batch) = world.known.batch(None);
    let (lists, items) = batch.keep.unwrap();
    assert_eq!(lists.len() + items.len(), world.known.size);
    for turn in 0..100 {
        world.show("t", &format!("a={turn}"));
    }
    let key =
        world.known.pending.items().map(|(key, _)| key.clone()).find(|(_, name)| &**name == "a").unwrap();
    assert_eq!(world.known.pending.events(&key).len(), 4);
}

#[test]
fn a_place_of_too_many_letters_is_not_kept() {
    let mut world = World::new(true);
    let long = "r".repeat(300);
    for at in [format!("s#{long}"), format!("s!{long}")] {
        assert_eq!(world.show(&at, "a=1"), "", "{at}");
    }
    assert_eq!(world.known.size, 0);
    // What agents choose freely is kept as a digest.
    for at in [format!("{long}@10.0.0.2"), format!("s/{long}@10.0.0.3"), format!("s%{long}@10.0.0.4")] {
        assert_eq!(world.show(&at, "a=1"), "first a trusted []", "{at}");
        assert_eq!(world.show(&at, "a=2"), "drifted a drifted [definition]", "{at}");
    }
}

#[test]
fn what_an_order_is_about_is_not_forgotten_before_it_is_done() {
    let mut world = world(5, 100);
    world.show("s", "a=1");
    let wish = Wish::Approve(world.id("s", "a"));
    let plan = world.known.plan(&wish, order("good")).unwrap();
    world.show("t@10.0.1.1", &list(0..10));
    assert_eq!(say(&world.known.carry_out(&plan)), "approved a trusted []");
    assert_eq!(world.standing("s", "a"), "trusted []");
}
