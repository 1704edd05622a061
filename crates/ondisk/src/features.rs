//! The three feature words of the superblock, with mke2fs's names for the features. Pure values: [`crate::geometry`]
//! decides what a set of features means for reading an image, and the command line what it means for other programs.
//!
//! Each word determines what a program may do if it does not know one of the word's bits: `compat` allows it to read
//! and write, `ro_compat` only to read, `incompat` neither. Every function here keeps unknown bits.

use core::fmt;

/// Which of the three words a feature lives in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Word {
    /// Programs that do not know the feature may read and write.
    Compat,
    /// Programs that do not know the feature must not touch the file system.
    Incompat,
    /// Programs that do not know the feature may only read.
    RoCompat,
}

/// One feature: a bit of one of the words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Feature {
    word: Word,
    mask: u32,
}

macro_rules! features {
    ($( $(#[$m:meta])* $constant:ident = $word:ident $mask:literal $name:literal; )*) => {
        impl Feature {
            $( $(#[$m])* pub const $constant: Feature = Feature { word: Word::$word, mask: $mask }; )*

            /// Every feature that has a name, word by word in the order of their bits.
            pub const ALL: &'static [Feature] = &[ $( Feature::$constant, )* ];
        }

        const NAMES: &[(Feature, &str)] = &[ $( (Feature::$constant, $name), )* ];
    };
}

features! {
    /// Directories preallocate blocks (never used by Linux).
    DIR_PREALLOC = Compat 0x1 "dir_prealloc";
    /// Inodes of AFS servers (not used by Linux).
    IMAGIC_INODES = Compat 0x2 "imagic_inodes";
    /// A journal, as inode 8 or on another device.
    HAS_JOURNAL = Compat 0x4 "has_journal";
    /// Extended attributes.
    EXT_ATTR = Compat 0x8 "ext_attr";
    /// Descriptor blocks are reserved for growth, owned by inode 7.
    RESIZE_INODE = Compat 0x10 "resize_inode";
    /// Directories may be hashed trees.
    DIR_INDEX = Compat 0x20 "dir_index";
    /// Groups were initialised lazily, before `uninit_bg` (not used by Linux).
    LAZY_BG = Compat 0x40 "lazy_bg";
    /// Snapshots exclude an inode (never in Linux).
    EXCLUDE_INODE = Compat 0x80 "exclude_inode";
    /// Snapshots exclude blocks (never in Linux).
    EXCLUDE_BITMAP = Compat 0x100 "snapshot_bitmap";
    /// At most two groups hold backups of the superblock; the superblock says which.
    SPARSE_SUPER2 = Compat 0x200 "sparse_super2";
    /// The journal has an area for fast commits.
    FAST_COMMIT = Compat 0x400 "fast_commit";
    /// Inode numbers and UUID never change (needed by some encryption policies).
    STABLE_INODES = Compat 0x800 "stable_inodes";
    /// Orphans are kept in a file instead of a list.
    ORPHAN_FILE = Compat 0x1000 "orphan_file";

    /// Compressed files (never in Linux).
    COMPRESSION = Incompat 0x1 "compression";
    /// Directory entries hold the type of their inode.
    FILETYPE = Incompat 0x2 "filetype";
    /// The journal must be replayed before the image is consistent.
    NEEDS_RECOVERY = Incompat 0x4 "needs_recovery";
    /// The device is not a file system but the journal of one on another device.
    JOURNAL_DEV = Incompat 0x8 "journal_dev";
    /// Group descriptors lie in the groups they describe.
    META_BG = Incompat 0x10 "meta_bg";
    /// Files may be mapped by extents.
    EXTENT = Incompat 0x40 "extent";
    /// Block numbers have 64 bits, group descriptors 64 bytes or more.
    BIT64 = Incompat 0x80 "64bit";
    /// A block records whether another host has the file system mounted.
    MMP = Incompat 0x100 "mmp";
    /// Bitmaps and inode tables need not lie in their group.
    FLEX_BG = Incompat 0x200 "flex_bg";
    /// Large extended attributes live in inodes of their own.
    EA_INODE = Incompat 0x400 "ea_inode";
    /// Directory entries carry extra data (Lustre; never in Linux).
    DIRDATA = Incompat 0x1000 "dirdata";
    /// The superblock holds the checksums' seed, so that the UUID may change.
    METADATA_CSUM_SEED = Incompat 0x2000 "metadata_csum_seed";
    /// Directories may exceed 2 GiB, hashed trees may have three levels.
    LARGE_DIR = Incompat 0x4000 "large_dir";
    /// Small files and directories live in their inode.
    INLINE_DATA = Incompat 0x8000 "inline_data";
    /// Some files are encrypted.
    ENCRYPT = Incompat 0x1_0000 "encrypt";
    /// Some directories ignore case.
    CASEFOLD = Incompat 0x2_0000 "casefold";

    /// Only groups 0, 1 and powers of 3, 5 and 7 hold backups of the superblock.
    SPARSE_SUPER = RoCompat 0x1 "sparse_super";
    /// Some file exceeds 2 GiB.
    LARGE_FILE = RoCompat 0x2 "large_file";
    /// Sorted directories (never in Linux).
    BTREE_DIR = RoCompat 0x4 "btree_dir";
    /// Files may count their blocks in file-system blocks and exceed 2 TiB.
    HUGE_FILE = RoCompat 0x8 "huge_file";
    /// Group descriptors have a CRC-16, and groups may be uninitialised.
    UNINIT_BG = RoCompat 0x10 "uninit_bg";
    /// Directories may have more than 65,000 subdirectories.
    DIR_NLINK = RoCompat 0x20 "dir_nlink";
    /// Inodes have fields beyond their first 128 bytes; the superblock says how many bytes of them.
    EXTRA_ISIZE = RoCompat 0x40 "extra_isize";
    /// There is a snapshot (never in Linux).
    SNAPSHOT = RoCompat 0x80 "snapshot";
    /// Hidden quota files, kept by the file system itself.
    QUOTA = RoCompat 0x100 "quota";
    /// Blocks are allocated in clusters.
    BIGALLOC = RoCompat 0x200 "bigalloc";
    /// All metadata has CRC-32C checksums.
    METADATA_CSUM = RoCompat 0x400 "metadata_csum";
    /// Replicas (neither in Linux nor in e2fsprogs).
    REPLICA = RoCompat 0x800 "replica";
    /// The image must not be written.
    READ_ONLY = RoCompat 0x1000 "read-only";
    /// Inodes have project numbers, and quotas by them.
    PROJECT = RoCompat 0x2000 "project";
    /// Files may share blocks; Android makes such read-only images.
    SHARED_BLOCKS = RoCompat 0x4000 "shared_blocks";
    /// Some files are sealed by fs-verity.
    VERITY = RoCompat 0x8000 "verity";
    /// The orphan file may hold orphans.
    ORPHAN_PRESENT = RoCompat 0x1_0000 "orphan_present";
}

/// Names that are understood in addition to those that are printed, as by e2fsprogs.
const ALIASES: &[(&str, Feature)] = &[
    ("extents", Feature::EXTENT),
    ("uninit_groups", Feature::UNINIT_BG),
    ("gdt_csum", Feature::UNINIT_BG),
];

impl Feature {
    /// Which word it lives in.
    #[must_use]
    pub fn word(self) -> Word {
        self.word
    }

    /// Its bit, as a mask.
    #[must_use]
    pub fn mask(self) -> u32 {
        self.mask
    }

    /// The feature that mke2fs calls `name`; names such as `FEATURE_I31` stand for bits without a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Feature> {
        let lower = name.to_ascii_lowercase();
        let named = NAMES.iter().find(|(_, known)| *known == lower);
        let alias = ALIASES.iter().find(|(known, _)| *known == lower);
        named
            .map(|(feature, _)| *feature)
            .or_else(|| alias.map(|(_, feature)| *feature))
            .or_else(|| Feature::from_number(&lower))
    }

    fn from_number(lower: &str) -> Option<Feature> {
        let rest = lower.strip_prefix("feature_")?;
        let word = match rest.as_bytes().first()? {
            b'c' => Word::Compat,
            b'i' => Word::Incompat,
            b'r' => Word::RoCompat,
            _ => return None,
        };
        let bit: u32 = rest.get(1..)?.parse().ok()?;
        let mask = 1u32.checked_shl(bit)?;
        Some(Feature { word, mask })
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = NAMES.iter().find(|(feature, _)| feature == self) {
            return f.write_str(name);
        }
        let letter = match self.word {
            Word::Compat => 'C',
            Word::Incompat => 'I',
            Word::RoCompat => 'R',
        };
        write!(f, "FEATURE_{letter}{}", self.mask.trailing_zeros())
    }
}

/// A set of features: the three words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features {
    /// `s_feature_compat`
    pub compat: u32,
    /// `s_feature_incompat`
    pub incompat: u32,
    /// `s_feature_ro_compat`
    pub ro_compat: u32,
}

impl Features {
    /// No feature at all.
    pub const NONE: Features = Features {
        compat: 0,
        incompat: 0,
        ro_compat: 0,
    };

    /// The set of these features.
    #[must_use]
    pub fn of(list: &[Feature]) -> Features {
        list.iter().fold(Features::NONE, |set, one| set.with(*one))
    }

    /// Whether the feature is in the set.
    #[must_use]
    pub fn has(self, feature: Feature) -> bool {
        self.word(feature.word) & feature.mask != 0
    }

    /// The set with the feature.
    #[must_use]
    pub fn with(mut self, feature: Feature) -> Features {
        *self.word_mut(feature.word) |= feature.mask;
        self
    }

    /// The set without the feature.
    #[must_use]
    pub fn without(mut self, feature: Feature) -> Features {
        *self.word_mut(feature.word) &= !feature.mask;
        self
    }

    /// The features of this set that are not in `other`.
    #[must_use]
    pub fn minus(self, other: Features) -> Features {
        Features {
            compat: self.compat & !other.compat,
            incompat: self.incompat & !other.incompat,
            ro_compat: self.ro_compat & !other.ro_compat,
        }
    }

    /// The features that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Features) -> Features {
        self.minus(self.minus(other))
    }

    /// The features that are in either set.
    #[must_use]
    pub fn union(self, other: Features) -> Features {
        Features {
            compat: self.compat | other.compat,
            incompat: self.incompat | other.incompat,
            ro_compat: self.ro_compat | other.ro_compat,
        }
    }

    /// Whether the set has no feature.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self == Features::NONE
    }

    /// One of the words.
    #[must_use]
    pub fn word(self, word: Word) -> u32 {
        match word {
            Word::Compat => self.compat,
            Word::Incompat => self.incompat,
            Word::RoCompat => self.ro_compat,
        }
    }

    fn word_mut(&mut self, word: Word) -> &mut u32 {
        match word {
            Word::Compat => &mut self.compat,
            Word::Incompat => &mut self.incompat,
            Word::RoCompat => &mut self.ro_compat,
        }
    }

    /// Every feature of the set, bits without a name included: compat, then incompat, then ro_compat, each from its
    /// lowest bit on.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        [Word::Compat, Word::Incompat, Word::RoCompat]
            .into_iter()
            .flat_map(|word| {
                (0..32).map(move |bit| Feature {
                    word,
                    mask: 1 << bit,
                })
            })
            .filter(move |feature| self.has(*feature))
    }

    /// Applies a list in the form of mke2fs's `-O`, from left to right: `name` adds a feature, `^name` removes it, and
    /// `none` empties the set. Words are separated by commas or spaces.
    ///
    /// # Errors
    /// The first word that names no feature.
    pub fn apply(self, list: &str) -> Result<Features, UnknownFeature> {
        let words = list.split([',', ' ', '\t', '\n']).filter(|w| !w.is_empty());
        words.into_iter().try_fold(self, |set, word| {
            if word.eq_ignore_ascii_case("none") {
                return Ok(Features::NONE);
            }
            let (add, name) = match word.strip_prefix(['^', '-']) {
                Some(name) => (false, name),
                None => (true, word.strip_prefix('+').unwrap_or(word)),
            };
            let feature = Feature::from_name(name).ok_or_else(|| UnknownFeature(name.into()))?;
            Ok(if add {
                set.with(feature)
            } else {
                set.without(feature)
            })
        })
    }
}

/// The names, separated by spaces, in the order of [`Features::iter`]; `(none)` for the empty set.
impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("(none)");
        }
        for (index, feature) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{feature}")?;
        }
        Ok(())
    }
}

/// A word of a feature list that names no feature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownFeature(pub String);

impl fmt::Display for UnknownFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no ext4 feature is called '{}'", self.0)
    }
}

impl core::error::Error for UnknownFeature {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_found_by_the_name_it_prints() {
        for feature in Feature::ALL {
            assert_eq!(Feature::from_name(&feature.to_string()), Some(*feature));
            assert_eq!(feature.mask().count_ones(), 1);
        }
    }

    #[test]
    fn lists_apply_from_left_to_right() {
        let base = Features::of(&[Feature::HAS_JOURNAL, Feature::EXTENT]);
        let set = base.apply("^has_journal,64bit metadata_csum").unwrap();
        assert_eq!(set.to_string(), "extent 64bit metadata_csum");
        assert_eq!(base.apply("none,extents").unwrap().to_string(), "extent");
        assert_eq!(base.apply("").unwrap(), base);
        assert_eq!(base.apply("flexbg"), Err(UnknownFeature("flexbg".into())));
    }

    #[test]
    fn bits_without_a_name_are_printed_and_parsed_by_number() {
        let unknown = Feature::from_name("FEATURE_I31").unwrap();
        assert_eq!((unknown.word(), unknown.mask()), (Word::Incompat, 1 << 31));
        assert_eq!(unknown.to_string(), "FEATURE_I31");
        assert_eq!(Feature::from_name("FEATURE_I32"), None);
        assert_eq!(Feature::from_name("FEATURE_X3"), None);
        assert_eq!(Feature::from_name("FEATURE_"), None);
    }
}
