//! Names of a directory that were looked up not long ago: found again without a lock, and without reading its blocks.
//!
//! ```text
//! directory --> parts --> | version of the names | inode, length | name (up to 40 bytes) |    one line a name
//! ```
//!
//! An entry records that at this version of the directory's names ([`super::LiveInode::names_version`]) the name stood
//! for that inode. It is valid while the directory is at that version; every change of a name makes a new version, so
//! no entry is ever removed. Only existing names are kept, and only after repeated lookups without a change of a name
//! in between: creating and removing files costs nothing here.
//!
//! Entries are words that are copied without a lock ([`Latest`]). A lock of the directory's own ([`Rank::Leaf`]), which
//! is only tried, serialises the threads that add. The memory belongs to the directory's inode and is freed with it;
//! the amount in all is bounded. Interleavings: those of [`Latest`], and
//! `under_schedules_whoever_looks_a_name_up_finds_where_it_is`. What a crash leaves: nothing of this.

use ondisk::Ino;
use sync::{Arc, CachePadded, Guarded, Hint, Latest, Mutex, OnceLock, Rank};

/// Words of an entry: the version, the inode with the name's length, the name.
const WORDS: usize = 7;
/// Words of a name.
const NAME_WORDS: usize = WORDS - 2;
/// The longest name that is kept.
const NAME_BYTES: usize = 8 * NAME_WORDS;
/// Entries of a part: 8 KiB.
const PART: usize = 128;
/// Parts that a directory has at most.
const PARTS: usize = 64;
/// Parts of all directories together: 32 MiB.
const PARTS_OF_ALL: usize = 4096;
/// Lookups that must miss at one version of the names before any is kept.
const MISSES: u64 = 8;
/// Bits of the count of misses, beside the version.
const MISS_BITS: u32 = 4;
/// An odd number without a pattern.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

type Entry = Latest<WORDS>;
type Part = OnceLock<Box<[Entry]>>;

/// How many parts there are in one file system.
#[derive(Clone, Default)]
pub(super) struct Parts(Arc<CachePadded<Hint<usize>>>);

/// A directory's known names; see the module.
pub(super) struct KnownNames {
    /// [set once, by the first thread that keeps a name]
    known: OnceLock<Box<Known>>,
    /// The version at which lookups missed last, and how many. [atomic: Relaxed, hint]
    missed: Hint<u64>,
}

struct Known {
    parts: [Part; PARTS],
    /// Entries that are in use, a power of two: whole parts. [adding; read: any time, hint]
    entries: Hint<usize>,
    /// Held by a thread that adds; only tried. [leaf]
    adding: Mutex<()>,
    /// Parts that this directory has. [adding]
    taken: Guarded<usize>,
    all: Parts,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.all.0.sub(*self.taken.get_mut());
    }
}

/// A name as words, padded with zeros, which no name contains. `None` for one that is not kept.
fn words_of(name: &[u8]) -> Option<[u64; NAME_WORDS]> {
    let mut bytes = [0; NAME_BYTES];
    bytes.get_mut(..name.len())?.copy_from_slice(name);
    let (words, _) = bytes.as_chunks::<8>();
    let mut name = [0; NAME_WORDS];
    for (to, from) in name.iter_mut().zip(words) {
        *to = u64::from_le_bytes(*from);
    }
    Some(name)
}

fn hash(name: &[u64; NAME_WORDS]) -> usize {
    let mixed = name.iter().fold(0, |hash: u64, word| {
        let mixed = (hash ^ word).wrapping_mul(MIX);
        mixed ^ mixed >> 32
    });
    // The lowest bits are used.
    mixed as usize
}

fn second(ino: Ino, len: usize) -> u64 {
    (len as u64) << 32 | u64::from(ino.0)
}

impl Known {
    fn new(all: Parts) -> Known {
        Known {
            parts: [const { OnceLock::new() }; PARTS],
            entries: Hint::new(0),
            adding: Mutex::new(Rank::Leaf, ()),
            taken: Guarded::new(0),
            all,
        }
    }

    /// The two places of a name with this hash.
    fn places(&self, hash: usize) -> Option<[&Entry; 2]> {
        let entries = self.entries.get();
        let first = hash & entries.checked_sub(1)?;
        let part = self.parts[first / PART].get()?;
        Some([first, first ^ 1].map(|place| &part[place % PART]))
    }

    fn find(&self, version: u64, len: usize, name: &[u64; NAME_WORDS]) -> Option<Ino> {
        self.places(hash(name))?.into_iter().find_map(|place| {
            let words = place.copy()?;
            let is_it =
                words[0] == version && words[1] >> 32 == len as u64 && words[2..] == name[..];
            is_it.then_some(Ino(words[1] as u32))
        })
    }

    /// Makes the part for a name with this hash. The caller has `adding`.
    fn make(&self, hash: usize, blocks: u64) {
        let wanted = blocks.clamp(1, PARTS as u64).next_power_of_two() as usize * PART;
        let entries = self.entries.get().max(wanted);
        self.entries.set(entries);
        let part = &self.parts[(hash & (entries - 1)) / PART];
        if part.get().is_none() && self.all.0.get() < PARTS_OF_ALL {
            self.all.0.add(1);
            self.taken.add(1);
            part.get_or_init(|| (0..PART).map(|_| Latest::new([0; WORDS])).collect());
        }
    }

    fn add(&self, version: u64, name: (usize, [u64; NAME_WORDS]), ino: Ino, blocks: u64) {
        let Some(_adding) = self.adding.try_lock() else {
            return;
        };
        let hash = hash(&name.1);
        self.make(hash, blocks);
        let Some(places) = self.places(hash) else {
            return;
        };
        let is_old = |place: &&Entry| place.copy().is_none_or(|words| words[0] != version);
        // If both are of this version, another bit of the hash decides which one is replaced.
        let place = places
            .into_iter()
            .find(is_old)
            .unwrap_or(places[hash >> 31 & 1]);
        let mut words = [0; WORDS];
        (words[0], words[1]) = (version, second(ino, name.0));
        words[2..].copy_from_slice(&name.1);
        place.replace(&words);
    }
}

impl KnownNames {
    pub(super) fn new() -> KnownNames {
        KnownNames {
            known: OnceLock::new(),
            missed: Hint::new(0),
        }
    }

    /// What a name stood for at this version of the directory's names.
    pub(super) fn find(&self, version: u64, name: &[u8]) -> Option<Ino> {
        let known = self.known.get()?;
        known.find(version, name.len(), &words_of(name)?)
    }

    /// Keeps what a name stands for at this version, in a directory of `blocks` blocks, if lookups at that version are
    /// repeated.
    pub(super) fn add(&self, version: u64, name: &[u8], ino: Ino, blocks: u64, all: &Parts) {
        let here = version << MISS_BITS;
        // Not written once there were enough.
        let missed = self.missed.get();
        if missed < here || missed > here + MISSES {
            self.missed.set(here + 1);
            return;
        }
        if missed < here + MISSES {
            self.missed.set(missed + 1);
            return;
        }
        if let Some(words) = words_of(name) {
            let known = self.known.get_or_init(|| Box::new(Known::new(all.clone())));
            known.add(version, (name.len(), words), ino, blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warm(names: &KnownNames, version: u64, all: &Parts) {
        for _ in 0..MISSES {
            names.add(version, b"any", Ino(9), 1, all);
            assert_eq!(names.find(version, b"any"), None);
        }
    }

    #[test]
    fn a_name_is_known_at_its_version_only_and_forgotten_by_none() {
        let (names, all) = (KnownNames::new(), Parts::default());
        warm(&names, 4, &all);
        names.add(4, b"name", Ino(7), 1, &all);
        names.add(4, b"name\x01", Ino(8), 1, &all);
        assert_eq!(names.find(4, b"name"), Some(Ino(7)));
        assert_eq!(names.find(4, b"name\x01"), Some(Ino(8)));
        assert_eq!(names.find(6, b"name"), None);
        assert_eq!(names.find(4, b"nam"), None);
        // A change of names: none is kept until lookups came again.
        warm(&names, 6, &all);
        names.add(6, b"name", Ino(5), 1, &all);
        assert_eq!(names.find(6, b"name"), Some(Ino(5)));
        assert_eq!(names.find(4, b"name"), None);
    }

    #[test]
    fn names_too_long_are_not_kept_and_the_longest_are_whole() {
        let (names, all) = (KnownNames::new(), Parts::default());
        warm(&names, 2, &all);
        let longest = [b'x'; NAME_BYTES];
        names.add(2, &longest, Ino(7), 1, &all);
        names.add(2, &[b'x'; NAME_BYTES + 1], Ino(8), 1, &all);
        assert_eq!(names.find(2, &longest), Some(Ino(7)));
        assert_eq!(names.find(2, &[b'x'; NAME_BYTES + 1]), None);
        assert_eq!(names.find(2, &longest[1..]), None);
    }

    #[test]
    fn most_names_of_a_directory_are_kept_and_the_memory_is_bounded_and_given_back() {
        let all = Parts::default();
        let count = || all.0.get();
        let directories: Vec<KnownNames> = (0..100).map(|_| KnownNames::new()).collect();
        for names in &directories {
            warm(names, 2, &all);
            let name = |number: u32| format!("file-{number:05}");
            for number in 0..5000 {
                names.add(2, name(number).as_bytes(), Ino(number), 60, &all);
            }
            let known = |number: &u32| {
                let found = names.find(2, name(*number).as_bytes());
                assert!(found.is_none_or(|ino| ino == Ino(*number)));
                found.is_some()
            };
            let known = (0..5000).filter(known).count();
            assert!(known > 4000 || count() == PARTS_OF_ALL, "{known}");
        }
        assert_eq!(count(), PARTS_OF_ALL);
        drop(directories);
        assert_eq!(count(), 0);
    }
}
