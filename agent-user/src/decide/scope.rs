//! Sets of rules, by their position in the policy.

/// One bit per rule, and before them one for each word of those that has any: what is empty is not looked at. Sets of one
/// policy have the same number of words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    words: Vec<u64>,
    /// Where the bits of the rules begin.
    head: usize,
}

impl Scope {
    /// The empty set over so many rules.
    pub(super) fn with_rules(count: usize) -> Scope {
        let words = count.div_ceil(64).next_multiple_of(PART);
        let head = words.div_ceil(64);
        Scope { words: vec![0; head + words], head }
    }

    pub(super) fn insert(&mut self, rule: usize) {
        self.words[self.head + rule / 64] |= 1 << (rule % 64);
        self.words[rule / 4096] |= 1 << (rule / 64 % 64);
    }

    pub(super) fn contains(&self, rule: usize) -> bool {
        self.words.get(self.head + rule / 64).is_some_and(|word| word & 1 << (rule % 64) != 0)
    }

    /// Both sets are of one policy.
    pub(super) fn intersect(&mut self, other: &Scope) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
        let (head, words) = self.words.split_at_mut(self.head);
        for (summary, words) in head.iter_mut().zip(words.chunks(64)) {
            let bits = words.iter().enumerate().map(|(bit, word)| u64::from(*word != 0) << bit);
            *summary = bits.fold(0, |summary, bit| summary | bit);
        }
    }

    /// No rule is in it.
    pub fn is_empty(&self) -> bool {
        self.words[..self.head].iter().all(|word| *word == 0)
    }

    /// Adds the rules that are in it and in any of the others, in policy order.
    pub(super) fn in_any(&self, others: &[&Scope], rules: &mut Vec<usize>) {
        for block in 0..self.head {
            let theirs = |summary: u64, other: &&Scope| summary | other.word(block);
            if self.word(block) & others.iter().fold(0, theirs) == 0 {
                continue;
            }
            let own = self.parts(block);
            let mut hits = 0_u64;
            for other in others {
                for (part, (own, theirs)) in own.iter().zip(other.parts(block)).enumerate() {
                    let both = own.iter().zip(theirs).fold(0, |both, (own, other)| both | own & other);
                    hits |= u64::from(both != 0) << part;
                }
            }
            for part in bits(hits) {
                for (at, own) in own[part].iter().enumerate() {
                    let word = block * 64 + part * PART + at;
                    let theirs = |all: u64, other: &&Scope| all | other.word(other.head + word);
                    let both = own & others.iter().fold(0, theirs);
                    rules.extend(bits(both).map(|bit| word * 64 + bit));
                }
            }
        }
    }

    /// The words that one word before them tells of.
    fn parts(&self, block: usize) -> &[[u64; PART]] {
        let (parts, _) = self.words.get(self.head..).unwrap_or_default().as_chunks();
        let from = (block * (64 / PART)).min(parts.len());
        &parts[from..(from + 64 / PART).min(parts.len())]
    }

    fn word(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }
}

/// So many words are looked at together.
const PART: usize = 8;

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
        let mut set = Scope::with_rules(9000);
        rules.iter().for_each(|rule| set.insert(*rule));
        set
    }

    #[test]
    fn rules_come_in_order_and_sets_combine() {
        let mut all = set(&[0, 63, 64, 199, 4096, 8999]);
        let both = |all: &Scope, others: &[&Scope]| {
            let mut rules = Vec::new();
            all.in_any(others, &mut rules);
            rules
        };
        assert_eq!(both(&all, &[&all]), [0, 63, 64, 199, 4096, 8999]);
        let (some, others) = (set(&[1, 63, 199]), set(&[4096, 4097]));
        assert_eq!(both(&all, &[&some, &others]), [63, 199, 4096]);
        assert_eq!(both(&all, &[]), [0; 0]);
        assert_eq!(both(&all, &[&Scope::default()]), [0; 0]);
        all.intersect(&set(&[63, 64, 65, 8999]));
        assert_eq!(all, set(&[63, 64, 8999]));
        assert!(all.contains(64) && !all.contains(65) && !Scope::default().contains(0));
    }

    #[test]
    fn what_is_intersected_to_nothing_is_empty() {
        let mut all = set(&[5, 5000]);
        all.intersect(&set(&[6, 5001]));
        assert!(all.is_empty() && all == set(&[]));
        assert!(Scope::default().is_empty() && !set(&[8999]).is_empty());
    }
}
