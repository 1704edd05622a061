//! Bitmaps of blocks (clusters with bigalloc) and inodes: bit n of a group is bit `n % 8` of byte `n / 8`,
//! and a set bit is in use. Bits beyond the bitmap's end read as in use, and setting them does nothing, so
//! that no number from disk can reach outside.

use core::ops::Range;

use crate::csum;
use crate::features::Feature;
use crate::geometry::Geometry;

fn mask(index: u32) -> u8 {
    1 << (index % 8)
}

/// Whether the bit is set.
#[must_use]
pub fn test(bits: &[u8], index: u32) -> bool {
    bits.get((index / 8) as usize)
        .is_none_or(|byte| byte & mask(index) != 0)
}

/// Sets the bit.
pub fn set(bits: &mut [u8], index: u32) {
    if let Some(byte) = bits.get_mut((index / 8) as usize) {
        *byte |= mask(index);
    }
}

/// Clears the bit.
pub fn clear(bits: &mut [u8], index: u32) {
    if let Some(byte) = bits.get_mut((index / 8) as usize) {
        *byte &= !mask(index);
    }
}

/// Sets every bit of the range.
pub fn set_range(bits: &mut [u8], range: Range<u32>) {
    let end = range.end.min(bit_len(bits));
    let mut at = range.start;
    while at < end {
        if at.is_multiple_of(8) && end - at >= 8 {
            let whole = (at / 8) as usize..(end / 8) as usize;
            bits[whole].fill(0xFF);
            at = end / 8 * 8;
        } else {
            set(bits, at);
            at += 1;
        }
    }
}

/// Clears every bit of the range.
pub fn clear_range(bits: &mut [u8], range: Range<u32>) {
    let end = range.end.min(bit_len(bits));
    let mut at = range.start;
    while at < end {
        if at.is_multiple_of(8) && end - at >= 8 {
            let whole = (at / 8) as usize..(end / 8) as usize;
            bits[whole].fill(0);
            at = end / 8 * 8;
        } else {
            clear(bits, at);
            at += 1;
        }
    }
}

fn bit_len(bits: &[u8]) -> u32 {
    u32::try_from(bits.len().saturating_mul(8)).unwrap_or(u32::MAX)
}

/// How many of the first `len` bits are set.
#[must_use]
pub fn count(bits: &[u8], len: u32) -> u32 {
    let whole = bits.iter().take((len / 8) as usize);
    let sum: u32 = whole.map(|byte| byte.count_ones()).sum();
    let rest = (len / 8 * 8..len)
        .filter(|index| test(bits, *index))
        .count();
    // At most seven.
    sum + rest as u32
}

/// The 64 bits from `64 * index` on, in ascending order; those beyond the end are set.
fn word(bits: &[u8], index: u32) -> u64 {
    let start = index as usize * 8;
    match bits.get(start..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => {
            let mut bytes = [0xFF; 8];
            let rest = bits.get(start..).unwrap_or_default();
            bytes[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(bytes)
        }
    }
}

/// The first bit at or after `from` and before `end` whose state is `wanted`.
#[must_use]
pub fn find(bits: &[u8], from: u32, end: u32, wanted: bool) -> Option<u32> {
    let flip = if wanted { 0 } else { u64::MAX };
    let mut at = from;
    while at < end {
        let rest = (word(bits, at / 64) ^ flip) >> (at % 64);
        if rest != 0 {
            return at
                .checked_add(rest.trailing_zeros())
                .filter(|found| *found < end);
        }
        at = (at / 64 + 1).checked_mul(64)?;
    }
    None
}

/// The last bit before `end` whose state is `wanted`.
#[must_use]
pub fn find_back(bits: &[u8], end: u32, wanted: bool) -> Option<u32> {
    let flip = if wanted { 0 } else { u64::MAX };
    let mut end = end;
    while let Some(last) = end.checked_sub(1) {
        let rest = (word(bits, last / 64) ^ flip) << (63 - last % 64);
        if rest != 0 {
            return Some(last - rest.leading_zeros());
        }
        end = last / 64 * 64;
    }
    None
}

/// The runs of equal bits among the first `len`: each range with whether its bits are set, in order.
pub fn runs(bits: &[u8], len: u32) -> impl Iterator<Item = (Range<u32>, bool)> {
    let mut at = 0;
    core::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let start = at;
        let is_set = test(bits, start);
        at = find(bits, start, len, !is_set).unwrap_or(len);
        Some((start..at, is_set))
    })
}

/// The first run of `wanted` clear bits in a row at or after `from` among the first `len`.
#[must_use]
pub fn find_clear_run(bits: &[u8], from: u32, len: u32, wanted: u32) -> Option<Range<u32>> {
    let mut at = from;
    loop {
        let start = find(bits, at, len, false)?;
        let end = find(bits, start, len, true).unwrap_or(len);
        if end - start >= wanted {
            return Some(start..start + wanted);
        }
        at = end;
    }
}

/// The checksum of a group's block bitmap (a whole block), with `metadata_csum`.
#[must_use]
pub fn block_checksum(bits: &[u8], geometry: &Geometry) -> Option<u32> {
    checksum(bits, geometry.clusters_per_group(), geometry)
}

/// The checksum of a group's inode bitmap (a whole block), with `metadata_csum`.
#[must_use]
pub fn inode_checksum(bits: &[u8], geometry: &Geometry) -> Option<u32> {
    checksum(bits, geometry.inodes_per_group(), geometry)
}

fn checksum(bits: &[u8], len: u32, geometry: &Geometry) -> Option<u32> {
    if !geometry.features().has(Feature::METADATA_CSUM) {
        return None;
    }
    let bytes = (len / 8) as usize;
    let covered = bits.get(..bytes).unwrap_or(bits);
    Some(csum::crc32c(geometry.csum_seed(), covered))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that look random but are the same each time.
    fn noise(len: usize, mut state: u32) -> Vec<u8> {
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // A third of the bytes all set, a third all clear, so that long runs occur.
                match (state >> 16) % 3 {
                    0 => 0,
                    1 => 0xFF,
                    _ => (state >> 24) as u8,
                }
            })
            .collect()
    }

    #[test]
    fn runs_and_counts_agree_with_looking_at_every_bit() {
        for seed in 0..50 {
            let bits = noise(40, seed);
            let len = 8 * 40 - seed % 17;
            let naive: Vec<bool> = (0..len)
                .map(|i| bits[i as usize / 8] >> (i % 8) & 1 == 1)
                .collect();
            let mut rebuilt = Vec::new();
            let mut previous = None;
            for (range, is_set) in runs(&bits, len) {
                assert_ne!(previous, Some(is_set), "two runs of a kind in a row");
                previous = Some(is_set);
                rebuilt.extend(range.map(|_| is_set));
            }
            assert_eq!(rebuilt, naive);
            let ones = naive.iter().filter(|bit| **bit).count();
            assert_eq!(count(&bits, len) as usize, ones);
        }
    }

    #[test]
    fn bits_are_found_from_either_side_as_by_looking_at_each() {
        for seed in 0..6 {
            let bits = noise(19, seed);
            let is = |index: u32| test(&bits, index);
            for from in 0..170 {
                for (end, wanted) in [(152, true), (152, false), (from / 2 + 70, seed % 2 == 0)] {
                    let found = (from..end).find(|index| is(*index) == wanted);
                    assert_eq!(find(&bits, from, end, wanted), found, "{seed} {from} {end}");
                }
                let found = (0..from).rev().find(|index| is(*index) == (seed % 2 == 0));
                assert_eq!(
                    find_back(&bits, from, seed % 2 == 0),
                    found,
                    "{seed} {from}"
                );
            }
        }
    }

    #[test]
    fn a_clear_run_is_the_first_that_is_long_enough() {
        let mut bits = vec![0xFF; 8];
        for index in [3, 9, 10, 20, 21, 22, 23, 24, 25, 26, 27, 28, 63] {
            clear(&mut bits, index);
        }
        assert_eq!(find_clear_run(&bits, 0, 64, 1), Some(3..4));
        assert_eq!(find_clear_run(&bits, 0, 64, 2), Some(9..11));
        assert_eq!(find_clear_run(&bits, 10, 64, 9), Some(20..29));
        assert_eq!(find_clear_run(&bits, 0, 64, 10), None);
        assert_eq!(find_clear_run(&bits, 29, 64, 1), Some(63..64));
        assert_eq!(find_clear_run(&bits, 29, 63, 1), None);
    }

    #[test]
    fn ranges_set_exactly_their_bits() {
        for start in 0..20 {
            for end in start..40 {
                let mut bits = vec![0; 5];
                set_range(&mut bits, start..end);
                for index in 0..40 {
                    assert_eq!(test(&bits, index), (start..end).contains(&index));
                }
            }
        }
    }

    #[test]
    fn bits_beyond_the_end_are_in_use_and_stay_so() {
        let mut bits = vec![0; 2];
        assert!(test(&bits, 16) && test(&bits, u32::MAX));
        set(&mut bits, u32::MAX);
        clear(&mut bits, 16);
        set_range(&mut bits, 10..u32::MAX);
        assert_eq!(bits, [0, 0b1111_1100]);
        assert_eq!(find(&bits, 12, u32::MAX, false), None);
    }
}
