//! The checksum of an inode's slot.
//!
//! It covers the inode's number, its generation and the slot without the checksum's own fields. A check lays these side
//! by side and computes one sum; [`ondisk::inode::verify_checksum`] computes one for each of the seven parts, which
//! takes four times as long.

use ondisk::{Ino, csum};

/// The usual size of a slot.
const SLOT: usize = 256;
/// The number and the generation come first.
const PREFIX: usize = 8;
/// Where a slot has the generation, the size of its extra fields, and the two halves of the checksum.
const GENERATION: usize = 0x64;
const EXTRA: usize = 0x80;
const LOW: usize = 0x7C;
const HIGH: usize = 0x82;
/// The size of the extra fields from which on the slot has the high half.
const HAS_HIGH: u16 = 4;

/// Whether the checksum in a slot of a file system with `metadata_csum` is right.
pub fn is_right(slot: &[u8], fs_seed: u32, ino: Ino) -> bool {
    let Some(slot) = slot.first_chunk::<SLOT>().filter(|_| slot.len() == SLOT) else {
        return ondisk::inode::verify_checksum(slot, fs_seed, ino).is_ok();
    };
    let half = |at: usize| u16::from_le_bytes([slot[at], slot[at + 1]]);
    let mut bytes = [0; PREFIX + SLOT];
    bytes[..4].copy_from_slice(&ino.0.to_le_bytes());
    bytes[4..PREFIX].copy_from_slice(&slot[GENERATION..GENERATION + 4]);
    bytes[PREFIX..].copy_from_slice(slot);
    bytes[PREFIX + LOW..PREFIX + LOW + 2].fill(0);
    // As in Linux and e2fsck, the recorded size counts even if the fields would not fit the slot.
    if half(EXTRA) < HAS_HIGH {
        return csum::crc32c(fs_seed, &bytes) & 0xFFFF == u32::from(half(LOW));
    }
    bytes[PREFIX + HIGH..PREFIX + HIGH + 2].fill(0);
    csum::crc32c(fs_seed, &bytes) == u32::from(half(HIGH)) << 16 | u32::from(half(LOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_all_parts_is_that_of_ondisk() {
        for len in [128, 256, 512] {
            for extra in [0, 3, 4, 32, 0xFFFF_u16] {
                let mut slot: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
                if len > EXTRA {
                    slot[EXTRA..EXTRA + 2].copy_from_slice(&extra.to_le_bytes());
                }
                let (seed, ino) = (0x1234_5678, Ino(77));
                assert!(!is_right(&slot, seed, ino));
                ondisk::inode::set_checksum(&mut slot, seed, ino);
                assert!(is_right(&slot, seed, ino), "{len} {extra}");
                assert!(!is_right(&slot, seed, Ino(78)));
                for at in 0..len {
                    slot[at] ^= 1;
                    let theirs = ondisk::inode::verify_checksum(&slot, seed, ino).is_ok();
                    assert_eq!(is_right(&slot, seed, ino), theirs, "{len} {extra} {at}");
                    slot[at] ^= 1;
                }
            }
        }
    }
}
