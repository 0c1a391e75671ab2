//! One list against a model that says the same in the plainest way.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{World, part};

#[derive(Clone, Debug)]
enum Op {
    /// A whole list: for each name what it says.
    Whole(BTreeMap<u8, u8>),
    /// A first page after which no other one comes.
    Part(BTreeMap<u8, u8>),
    Approve(u8),
    Block(u8),
}

#[derive(Clone, Debug)]
struct Item {
    seen: u8,
    trusted: Option<u8>,
    present: bool,
    blocked: bool,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let list = || prop::collection::btree_map(0..4u8, 0..3u8, 0..4);
    let op = prop_oneof![
        4 => list().prop_map(Op::Whole),
        3 => list().prop_map(Op::Part),
        1 => (0..4u8).prop_map(Op::Approve),
        1 => (0..4u8).prop_map(Op::Block),
    ];
    prop::collection::vec(op, 1..24)
}

fn write(list: &BTreeMap<u8, u8>) -> String {
    list.iter().map(|(name, says)| format!("n{name}={says} ")).collect()
}

fn state(item: Option<&Item>) -> &'static str {
    match item {
        None => "-",
        Some(Item { blocked: true, .. }) => "blocked",
        Some(Item { present: false, .. }) => "removed",
        Some(Item { trusted: None, .. }) => "new",
        Some(Item { trusted: Some(trusted), seen, .. }) if trusted == seen => "trusted",
        Some(_) => "drifted",
    }
}

proptest! {
    #[test]
    fn a_list_is_what_the_model_says(trust_first_use: bool, ops in ops()) {
        let mut world = World::new(trust_first_use);
        let mut model = BTreeMap::<u8, Item>::new();
        for op in &ops {
            match op {
                Op::Whole(list) | Op::Part(list) => {
                    for (name, says) in list {
                        let first = (trust_first_use).then_some(*says);
                        let new = Item { seen: *says, trusted: first, present: true, blocked: false };
                        let item = model.entry(*name).or_insert(new);
                        (item.seen, item.present) = (*says, true);
                    }
                    if matches!(op, Op::Whole(_)) {
                        model.iter_mut().for_each(|(name, item)| item.present = list.contains_key(name));
                    }
                }
                Op::Approve(name) | Op::Block(name) => {
                    let Some(item) = model.get_mut(name) else { continue };
                    item.blocked = matches!(op, Op::Block(_));
                    if !item.blocked {
                        item.trusted = Some(item.seen);
                    }
                }
            }
            match op {
                Op::Whole(list) => drop(world.show("s", &write(list))),
                Op::Part(list) => drop(world.page("s", part("", "x", &write(list)), &write(list))),
                Op::Approve(name) => drop(world.approve("s", &format!("n{name}"))),
                Op::Block(name) => drop(world.block("s", &format!("n{name}"))),
            }
            for name in 0..4 {
                let said = world.standing("s", &format!("n{name}"));
                prop_assert_eq!(said.split(' ').next(), Some(state(model.get(&name))), "n{} after {:?}", name, op);
            }
        }
    }
}
