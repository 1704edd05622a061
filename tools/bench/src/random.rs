//! Numbers that look random and follow from a seed (splitmix64).

/// A source of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// What another source follows from.
    pub(crate) fn seed(&mut self) -> u64 {
        self.bits()
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// Bytes that no file system finds shorter.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            let bits = self.bits().to_le_bytes();
            piece.copy_from_slice(&bits[..piece.len()]);
        }
    }

    /// How often a coin falls on the same side: at most `most`.
    pub(crate) fn doublings(&mut self, most: u32) -> u32 {
        self.bits().trailing_zeros().min(most)
    }
}
