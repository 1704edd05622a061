//! Bits that many threads set at once.

use sync::atomic::{AtomicU64, Ordering};

/// A fixed number of bits, all clear at first.
#[derive(Debug)]
pub struct AtomicBits(Box<[AtomicU64]>);

/// The bits of one word from `from` on, `count` of them (1 to 64).
fn mask(from: u32, count: u32) -> u64 {
    (u64::MAX >> (64 - count)) << from
}

impl AtomicBits {
    /// `len` clear bits.
    pub fn new(len: u32) -> AtomicBits {
        let words = len.div_ceil(64) as usize;
        AtomicBits((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Sets `count` bits from `first` on and reports runs of those that were set before.
    pub fn set(&self, first: u32, count: u32, mut met: impl FnMut(u32, u32)) {
        let mut at = first;
        let end = first.saturating_add(count);
        while at < end {
            let (word, bit) = ((at / 64) as usize, at % 64);
            let here = (64 - bit).min(end - at);
            let Some(bits) = self.0.get(word) else {
                break;
            };
            let wanted = mask(bit, here);
            // Relaxed: each bit is decided by this one operation; the pass that reads them starts after a join.
            let old = bits.fetch_or(wanted, Ordering::Relaxed) & wanted;
            let mut rest = old;
            while rest != 0 {
                let start = rest.trailing_zeros();
                let len = (rest >> start).trailing_ones();
                met(at - bit + start, len);
                rest &= !mask(start, len);
            }
            at += here;
        }
    }

    /// Whether a bit is set; false beyond the end.
    pub fn test(&self, bit: u32) -> bool {
        let word = self.0.get((bit / 64) as usize);
        // Relaxed: read after the threads that set bits were joined.
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (bit % 64) & 1 != 0)
    }

    /// The bits in a bitmap's form: bit n in byte n / 8.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 * self.0.len());
        for word in &self.0 {
            // Relaxed: read after the threads that set bits were joined.
            bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_were_set_before_are_reported_across_words() {
        let bits = AtomicBits::new(200);
        let mut met = Vec::new();
        bits.set(60, 10, |at, len| met.push((at, len)));
        assert_eq!(met, []);
        bits.set(0, 200, |at, len| met.push((at, len)));
        assert_eq!(met, [(60, 4), (64, 6)]);
        assert_eq!(bits.to_bytes()[24], 0xFF);
        assert!(bits.test(199) && !bits.test(256));
    }
}
