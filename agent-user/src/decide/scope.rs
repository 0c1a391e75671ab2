//! Sets of rules, by their position in the policy.

/// One bit per rule, and before them one for each part of those that has any: what is empty is not looked at. Sets of one
/// policy have the same number of words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    words: Vec<u64>,
    /// Where the bits of the rules begin.
    head: usize,
}

/// So many words are a part. They are looked at together.
const PART: usize = 8;

impl Scope {
    /// The empty set over so many rules.
    pub(super) fn with_rules(count: usize) -> Scope {
        let words = count.div_ceil(64).next_multiple_of(PART);
        let head = words.div_ceil(64 * PART);
        Scope { words: vec![0; head + words], head }
    }

    pub(super) fn insert(&mut self, rule: usize) {
        let (word, part) = (rule / 64, rule / 64 / PART);
        self.words[self.head + word] |= 1 << (rule % 64);
        self.words[part / 64] |= 1 << (part % 64);
    }

    pub(super) fn contains(&self, rule: usize) -> bool {
        self.words.get(self.head + rule / 64).is_some_and(|word| word & 1 << (rule % 64) != 0)
    }

    /// Both sets are of one policy.
    pub(super) fn intersect(&mut self, other: &Scope) {
        let (head, words) = self.words.split_at_mut(self.head);
        let (parts, _) = words.as_chunks_mut::<PART>();
        for (summary, (own, theirs)) in
            head.iter_mut().zip(parts.chunks_mut(64).zip(other.parts().chunks(64)))
        {
            *summary = 0;
            for (bit, (own, theirs)) in own.iter_mut().zip(theirs).enumerate() {
                *own = both(own, theirs);
                *summary |= u64::from(is_any(own)) << bit;
            }
        }
    }

    /// No rule is in it.
    pub fn is_empty(&self) -> bool {
        self.words[..self.head].iter().all(|word| *word == 0)
    }

    /// Some rule is in both.
    pub(super) fn meets(&self, other: &Scope) -> bool {
        self.shared(other).next().is_some()
    }

    /// Adds the rules that are in both, in policy order.
    pub(super) fn in_both(&self, other: &Scope, rules: &mut Vec<usize>) {
        for (part, words) in self.shared(other) {
            for (word, both) in (part * PART..).zip(words) {
                rules.extend(bits(both).map(|bit| word * 64 + bit));
            }
        }
    }

    /// The parts that have a rule that is in both, with their number.
    fn shared<'a>(&'a self, other: &'a Scope) -> impl Iterator<Item = (usize, [u64; PART])> {
        let heads = self.words[..self.head].iter().zip(&other.words[..other.head]);
        let parts = self.parts().chunks(64).zip(other.parts().chunks(64));
        heads.zip(parts).enumerate().flat_map(|(block, ((own, theirs), (own_parts, their_parts)))| {
            bits(own & theirs).filter_map(move |bit| {
                let both = both(&own_parts[bit], &their_parts[bit]);
                is_any(&both).then_some((block * 64 + bit, both))
            })
        })
    }

    fn parts(&self) -> &[[u64; PART]] {
        self.words[self.head..].as_chunks().0
    }
}

fn both(own: &[u64; PART], theirs: &[u64; PART]) -> [u64; PART] {
    std::array::from_fn(|word| own[word] & theirs[word])
}

/// Comparing it with nothing would be a call of `memcmp`.
fn is_any(part: &[u64; PART]) -> bool {
    part.iter().fold(0, |all, word| all | word) != 0
}

/// The bits that are set, lowest first.
fn bits(mut left: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = left.trailing_zeros() as usize;
        left &= left.checked_sub(1)?;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(rules: &[usize]) -> Scope {
        let mut set = Scope::with_rules(70_000);
        rules.iter().for_each(|rule| set.insert(*rule));
        set
    }

    #[test]
    fn rules_come_in_order() {
        let mut all = set(&[0, 63, 64, 199, 4096, 69_999]);
        let both = |other: &Scope| {
            let mut rules = Vec::new();
            all.in_both(other, &mut rules);
            rules
        };
        assert_eq!(both(&all), [0, 63, 64, 199, 4096, 69_999]);
        assert_eq!(both(&set(&[1, 63, 199, 4097, 69_999])), [63, 199, 69_999]);
        assert_eq!(both(&set(&[1, 65, 4097])), [0; 0]);
        assert_eq!(both(&Scope::default()), [0; 0]);
        for (other, meets) in [(&[64][..], true), (&[1, 69_999], true), (&[65, 69_998], false), (&[], false)]
        {
            assert_eq!(all.meets(&set(other)), meets);
        }
        all.intersect(&set(&[63, 64, 65, 69_999]));
        assert_eq!(all, set(&[63, 64, 69_999]));
        assert!(all.contains(64) && !all.contains(65) && !Scope::default().contains(0));
    }

    #[test]
    fn what_is_intersected_to_nothing_is_empty() {
        let mut all = set(&[5, 50_000]);
        all.intersect(&set(&[6, 50_001]));
        assert!(all.is_empty() && all == set(&[]));
        assert!(Scope::default().is_empty() && !set(&[69_999]).is_empty());
    }
}
