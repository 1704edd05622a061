//! The record of an inode as words, which are copied without a latch, with what a copy needs in addition.

use ondisk::inode::{self, Inode, RECORD_WORDS};

/// The words of the record, and one for [`Rest`].
pub(super) const WORDS: usize = RECORD_WORDS + 1;

/// What a copy of the record needs in addition.
pub(super) struct Rest {
    /// The seed of checksums of blocks that belong to the inode.
    pub(super) seed: u32,
    /// Whether the slot has anything behind the record: attributes, inline data, fields that we do not know.
    pub(super) has_more: bool,
}

impl Rest {
    pub(super) fn word(self) -> u64 {
        u64::from(self.seed) << 32 | u64::from(self.has_more)
    }

    pub(super) fn of_word(word: u64) -> Rest {
        Rest {
            seed: (word >> 32) as u32,
            has_more: word & 1 != 0,
        }
    }
}

/// The words of a record and its slot.
pub(super) fn words(inode: &Inode, slot: &[u8], seed: u32) -> [u64; WORDS] {
    let known = inode::BASE_SIZE + usize::from(inode.extra_size().min(inode::EXTRA_SIZE));
    let behind = slot.get(known..).unwrap_or_default();
    // Sizes and extra sizes are multiples of 4.
    let (behind, tail) = behind.as_chunks::<4>();
    let bits = |bits, word: &[u8; 4]| bits | u32::from_ne_bytes(*word);
    let has_more = behind.iter().fold(0, bits) != 0 || tail.iter().any(|byte| *byte != 0);
    words_with(inode, Rest { seed, has_more })
}

pub(super) fn words_with(inode: &Inode, rest: Rest) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..RECORD_WORDS].copy_from_slice(&inode.words());
    words[RECORD_WORDS] = rest.word();
    words
}

/// The record and the rest from their words: the reverse of [`words`].
pub(super) fn split(words: &[u64; WORDS]) -> (Inode, Rest) {
    let mut record = [0; RECORD_WORDS];
    record.copy_from_slice(&words[..RECORD_WORDS]);
    (Inode::of_words(record), Rest::of_word(words[RECORD_WORDS]))
}
