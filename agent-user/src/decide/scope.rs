//! Which rules can fire at all for one agent talking to one server: the part of matching that does not change
//! from call to call.

/// One bit per rule of the policy it was made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    words: Vec<u64>,
}

impl Scope {
    pub(super) fn with_rules(count: usize) -> Scope {
        Scope { words: vec![0; count.div_ceil(64)] }
    }

    pub(super) fn insert(&mut self, rule: usize) {
        self.words[rule / 64] |= 1 << (rule % 64);
    }

    pub(super) fn contains(&self, rule: usize) -> bool {
        self.words.get(rule / 64).is_some_and(|word| word & (1 << (rule % 64)) != 0)
    }

    /// No rule can fire.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}
