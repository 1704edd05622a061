//! Names that stand twice in a directory: in one block, and in two.
//!
//! A name becomes a key of 48 bits, from a hash that is different in every run. Keys that are equal only say where to
//! look: the names themselves are compared. A block's keys are sorted; of a directory with several blocks they are kept
//! for the comparison across blocks, at most [`limits::NAME_KEYS`] at once. Where there are more, the directory is read
//! again for another part of the keys.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use ondisk::casefold;

use crate::limits;

/// Bits of a key that say which of a block's entries it is; a block has fewer.
const ENTRY_BITS: u32 = 16;

/// How the names of a file system are made into keys.
pub struct Keys(u64);

impl Keys {
    pub fn new() -> Keys {
        Keys(RandomState::new().hash_one(0_u64) | 1)
    }

    fn mix(&self, hash: u64, word: u64) -> u64 {
        let product = u128::from(hash ^ word) * u128::from(self.0 ^ 0x9E37_79B9_7F4A_7C15);
        // Both halves of the product.
        (product as u64) ^ (product >> 64) as u64
    }

    /// The key of a name, as the directory compares it.
    pub fn of(&self, name: &[u8], is_folded: bool) -> u64 {
        let folded = if is_folded {
            casefold::fold(name)
        } else {
            None
        };
        let name = folded.as_deref().unwrap_or(name);
        let mut hash = self.mix(self.0, name.len() as u64);
        for chunk in name.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = self.mix(hash, u64::from_le_bytes(word));
        }
        self.mix(hash, self.0.rotate_left(32)) & !((1 << ENTRY_BITS) - 1)
    }
}

/// The keys of one block, by a thread that reads many.
#[derive(Default)]
pub struct BlockNames {
    keys: Vec<u64>,
    /// Where each name begins in the block, and its length.
    places: Vec<(u32, u8)>,
}

impl BlockNames {
    pub fn clear(&mut self) {
        self.keys.clear();
        self.places.clear();
    }

    /// Adds the name at a byte of the block.
    pub fn push(&mut self, key: u64, at: u32, len: u8) {
        self.keys.push(key | self.places.len() as u64);
        self.places.push((at, len));
    }

    /// Calls `met` with a name and earlier ones that have its key, until it returns that the two are one name.
    pub fn pairs<'a>(&mut self, block: &'a [u8], mut met: impl FnMut(&'a [u8], &'a [u8]) -> bool) {
        self.keys.sort_unstable();
        let name = |key: u64| {
            let (at, len) = self.places[(key & ((1 << ENTRY_BITS) - 1)) as usize];
            block.get(at as usize..at as usize + usize::from(len))
        };
        for (index, pair) in self.keys.windows(2).enumerate() {
            let is_equal = |key: u64| key >> ENTRY_BITS == pair[1] >> ENTRY_BITS;
            if !is_equal(pair[0]) {
                continue;
            }
            let earlier = self.keys[..=index].iter().rev();
            for key in earlier.take_while(|key| is_equal(**key)) {
                if let (Some(first), Some(second)) = (name(*key), name(pair[1]))
                    && met(first, second)
                {
                    break;
                }
            }
        }
    }

    /// The keys, without the entries' numbers.
    pub fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.keys.iter().map(|key| key & !((1 << ENTRY_BITS) - 1))
    }
}

/// The part of the keys of one directory that is kept.
pub struct DirectoryKeys {
    keys: Vec<u64>,
    part: u64,
    /// A power of two; a key is in the part that its bits above the entry's number name.
    parts: u64,
}

impl DirectoryKeys {
    /// The first part, which is the whole until there are too many keys.
    pub fn first() -> DirectoryKeys {
        DirectoryKeys {
            keys: Vec::new(),
            part: 0,
            parts: 1,
        }
    }

    fn has(&self, key: u64) -> bool {
        (key >> ENTRY_BITS) & (self.parts - 1) == self.part
    }

    /// Adds keys, if they are in this part. Only the first part becomes smaller when there are too many.
    pub fn extend(&mut self, keys: impl Iterator<Item = u64>) {
        for key in keys {
            if !self.has(key) {
                continue;
            }
            self.keys.push(key);
            while self.part == 0 && self.keys.len() > limits::NAME_KEYS {
                self.parts *= 2;
                let parts = self.parts;
                self.keys
                    .retain(|key| (key >> ENTRY_BITS) & (parts - 1) == 0);
                if self.parts >= 1 << 32 {
                    // All keys are one: the rest is in no part.
                    break;
                }
            }
        }
    }

    /// The keys that are there more than once.
    pub fn repeated(&mut self) -> HashSet<u64> {
        self.keys.sort_unstable();
        let pairs = self.keys.windows(2).filter(|pair| pair[0] == pair[1]);
        pairs.map(|pair| pair[0]).collect()
    }

    /// The part after this one; none after the last.
    pub fn next(&self) -> Option<DirectoryKeys> {
        let part = self.part + 1;
        (part < self.parts).then_some(DirectoryKeys {
            keys: Vec::new(),
            part,
            parts: self.parts,
        })
    }
}

/// Names whose keys are repeated, with the first block of each.
pub struct Repeated {
    keys: HashSet<u64>,
    first: HashMap<Box<[u8]>, u64>,
}

impl Repeated {
    pub fn new(keys: HashSet<u64>) -> Repeated {
        Repeated {
            keys,
            first: HashMap::new(),
        }
    }

    /// Takes a name in. Returns the block that has it already, if that is another one.
    pub fn meet(&mut self, key: u64, name: &[u8], is_folded: bool, lblk: u64) -> Option<u64> {
        if !self.keys.contains(&key) {
            return None;
        }
        let folded = if is_folded {
            casefold::fold(name)
        } else {
            None
        };
        let name = folded.unwrap_or_else(|| name.to_vec());
        let first = *self.first.entry(name.into()).or_insert(lblk);
        (first != lblk).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_have_equal_keys_and_pairs_are_found() {
        let keys = Keys::new();
        assert_eq!(keys.of(b"Name", true), keys.of(b"nAME", true));
        assert_ne!(keys.of(b"Name", false), keys.of(b"nAME", false));
        let block = b"one two one";
        let mut names = BlockNames::default();
        for at in [0_u32, 4, 8] {
            let name = &block[at as usize..at as usize + 3];
            names.push(keys.of(name, false), at, 3);
        }
        let mut met = Vec::new();
        names.pairs(block, |first, second| {
            met.push((first, second));
            first == second
        });
        assert_eq!(met, [(&b"one"[..], &b"one"[..])]);
    }

    #[test]
    fn a_directory_with_too_many_keys_is_read_in_parts() {
        let count = 3 * limits::NAME_KEYS as u64;
        let keys = || (0..count).chain([7]).map(|number| number << ENTRY_BITS);
        let mut part = DirectoryKeys::first();
        let mut repeated = HashSet::new();
        let mut parts = 0;
        loop {
            part.extend(keys());
            repeated.extend(part.repeated());
            parts += 1;
            match part.next() {
                Some(next) => part = next,
                None => break,
            }
        }
        assert_eq!(parts, 4);
        assert_eq!(repeated, HashSet::from([7 << ENTRY_BITS]));
    }
}
