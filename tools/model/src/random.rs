//! A small random generator (SplitMix64): the same seed gives the same numbers on every machine and version.

/// Numbers from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers follow from `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0. (The bias of the remainder is below one in 2^32 for small ends.)
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// An index into `len` items, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        // Below `len`, so it fits.
        self.below(len as u64) as usize
    }

    /// Fills `bytes` with bytes that can't be compressed.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            piece.copy_from_slice(&bits[..piece.len()]);
        }
    }

    /// How often in a row a coin falls on the same side, at most `most` times.
    pub fn doublings(&mut self, most: u32) -> u32 {
        self.bits().trailing_zeros().min(most)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which are not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_numbers_are_those_of_splitmix64() {
        // From the reference implementation of the algorithm with seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(random.bits(), 6_457_827_717_110_365_317);
        assert_eq!(random.bits(), 3_203_168_211_198_807_973);
    }
}
