//! An inode as a row of 64-bit words, which threads copy without a latch: the record as it is on the disk, and one word
//! with what a reader of the copy needs besides.

use ondisk::inode::{self, Inode, RECORD_WORDS};

/// Number of words: those of the record, and one for [`Rest`].
pub(super) const WORDS: usize = RECORD_WORDS + 1;

/// What a reader of a copied record needs besides the record.
pub(super) struct Rest {
    /// The seed with which the checksums of this inode's own blocks begin: those of its map, directory and attributes.
    pub(super) seed: u32,
    /// Whether the inode's slot in the table holds anything behind the record: attributes, inline data, or fields that
    /// lanefs does not know.
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

/// Makes the words of an inode from its record and from its slot in the inode table.
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

/// Takes the words that [`words`] made apart again.
pub(super) fn split(words: &[u64; WORDS]) -> (Inode, Rest) {
    let mut record = [0; RECORD_WORDS];
    record.copy_from_slice(&words[..RECORD_WORDS]);
    (Inode::of_words(record), Rest::of_word(words[RECORD_WORDS]))
}
