//! Numbers that look random and are the same for the same seed: SplitMix64.

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 on, below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap_or(u64::MAX)).unwrap_or_default()
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Mostly small, seldom up to `most`.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        let most = if self.below(10) == 0 { most } else { most.min(4096) };
        self.below(most)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(length).collect()
    }

    pub(crate) fn text(&mut self, length: usize) -> String {
        self.bytes(length).into_iter().map(|byte| char::from(b'a' + byte % 26)).collect()
    }
}
