//! Sets of rules, by their position in the policy.

/// One bit per rule. Sets of one policy have the same number of words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    words: Vec<u64>,
}

impl Scope {
    /// The empty set over so many rules.
    pub(super) fn with_rules(count: usize) -> Scope {
        Scope { words: vec![0; count.div_ceil(64)] }
    }

    pub(super) fn insert(&mut self, rule: usize) {
        self.words[rule / 64] |= 1 << (rule % 64);
    }

    pub(super) fn unite(&mut self, other: &Scope) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    pub(super) fn intersect(&mut self, other: &Scope) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    /// No rule is in it.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The rules in it, in policy order.
    pub(super) fn rules(&self) -> impl Iterator<Item = usize> {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros() as usize;
                left &= left.checked_sub(1)?;
                Some(index * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_in_order_and_sets_combine() {
        let set = |rules: &[usize]| {
            let mut set = Scope::with_rules(200);
            rules.iter().for_each(|rule| set.insert(*rule));
            set
        };
        let mut all = set(&[0, 63, 64, 199]);
        assert_eq!(all.rules().collect::<Vec<_>>(), [0, 63, 64, 199]);
        all.intersect(&set(&[63, 64, 65]));
        all.unite(&set(&[1]));
        assert_eq!(all, set(&[1, 63, 64]));
        assert!(!all.is_empty() && set(&[]).is_empty());
    }
}
