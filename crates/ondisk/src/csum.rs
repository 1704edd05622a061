//! The two checksums of ext4, in its own convention: the running value is passed in and returned raw, so that pieces
//! can be chained and every structure starts from a seed. Pure functions.

use crc_fast::{CrcAlgorithm, Digest};

/// The seed with which a chain begins that has no other.
pub const INITIAL: u32 = !0;

/// CRC-32C (Castagnoli) of `bytes`, continued from `seed`, neither inverted on the way in nor on the way out.
///
/// `crc32c(crc32c(seed, a), b)` equals `crc32c(seed, ab)`. Journal, directory, inode and group checksums
/// all use it (`crc32c_le`).
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(seed));
    digest.update(bytes);
    // The digest holds 32 bits in a wider word and inverts them at the end; ext4 does not.
    let [a, b, c, d, ..] = digest.finalize().to_le_bytes();
    !u32::from_le_bytes([a, b, c, d])
}

/// What one byte adds to a reflected CRC of at most 32 bits.
const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ polynomial
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

const TABLE_16: [u32; 256] = table(0xA001);

/// CRC-16 (polynomial 0x8005, reflected) of `bytes`, continued from `seed`; group descriptors of file systems
/// with `uninit_bg` but without `metadata_csum` use it, starting from all ones.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    let crc = bytes.iter().fold(u32::from(seed), |crc, byte| {
        TABLE_16[((crc ^ u32::from(*byte)) & 0xFF) as usize] ^ (crc >> 8)
    });
    // A CRC-16 never leaves its 16 bits: both the table and the shifted seed are below 2^16.
    (crc & 0xFFFF) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 131 + i / 7 + 3) as u8).collect()
    }

    #[test]
    fn crc32c_agrees_with_another_implementation_at_every_length() {
        for len in (0..700).chain([1023, 1024, 1025, 4096, 65536, 65537]) {
            let bytes = pattern(len);
            for seed in [0u32, !0, 0x1234_5678] {
                // The other crate inverts on the way in and out.
                let expected = !crc32c::crc32c_append(!seed, &bytes);
                assert_eq!(
                    crc32c(seed, &bytes),
                    expected,
                    "{len} bytes, seed {seed:#x}"
                );
            }
        }
    }

    #[test]
    fn crc32c_knows_the_check_value_of_its_standard() {
        assert_eq!(!crc32c(INITIAL, b"123456789"), 0xE306_9283);
    }

    #[test]
    fn pieces_chain_to_the_same_value_as_the_whole() {
        let bytes = pattern(5000);
        for cut in [0, 1, 31, 32, 33, 1000, 4999, 5000] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(crc32c(crc32c(7, a), b), crc32c(7, &bytes));
            assert_eq!(crc16(crc16(7, a), b), crc16(7, &bytes));
        }
    }

    #[test]
    fn crc16_knows_the_check_value_of_its_standard() {
        // CRC-16/ARC starts from 0, CRC-16/MODBUS from all ones.
        assert_eq!(crc16(0, b"123456789"), 0xBB3D);
        assert_eq!(crc16(!0, b"123456789"), 0x4B37);
    }
}
