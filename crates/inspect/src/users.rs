//! Which programs can use an image: from which release on Linux, e2fsprogs and GRUB know its features. Releases are
//! those of the projects themselves; distributions port features back, so an older release may know them, too.
//!
//! Sources: ext4(5), the release notes of e2fsprogs, the list of features in GRUB's `ext2` module.

use ondisk::features::{Feature, Features, Word};

/// Since when a program knows a feature.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Since {
    /// Since always, or the feature does not concern it.
    Always,
    /// From this release on.
    Release(u16, u16, u16),
    /// Never so far.
    Never,
}

const fn v(major: u16, minor: u16, patch: u16) -> Since {
    Since::Release(major, minor, patch)
}

use Since::{Always, Never};

/// Feature, since when in Linux, in e2fsprogs, and in GRUB (which reads only).
const TABLE: &[(Feature, Since, Since, Since)] = &[
    (Feature::FILETYPE, v(2, 2, 0), Always, Always),
    (Feature::SPARSE_SUPER, v(2, 2, 0), Always, Always),
    (Feature::LARGE_FILE, v(2, 2, 0), Always, Always),
    (Feature::NEEDS_RECOVERY, v(2, 4, 15), Always, Always),
    (Feature::META_BG, v(2, 6, 28), v(1, 30, 0), v(2, 2, 0)),
    (Feature::EXTENT, v(2, 6, 28), v(1, 41, 0), v(1, 97, 0)),
    (Feature::FLEX_BG, v(2, 6, 28), v(1, 41, 0), v(1, 97, 0)),
    (Feature::HUGE_FILE, v(2, 6, 28), v(1, 41, 0), Always),
    (Feature::UNINIT_BG, v(2, 6, 28), v(1, 41, 0), Always),
    (Feature::DIR_NLINK, v(2, 6, 28), v(1, 41, 0), Always),
    (Feature::EXTRA_ISIZE, v(2, 6, 28), v(1, 41, 0), Always),
    (Feature::BIT64, v(2, 6, 28), v(1, 42, 0), v(2, 0, 0)),
    (Feature::MMP, v(3, 0, 0), v(1, 42, 0), v(2, 2, 0)),
    (Feature::BIGALLOC, v(3, 2, 0), v(1, 42, 0), Always),
    (Feature::QUOTA, v(3, 6, 0), v(1, 42, 0), Always),
    (Feature::INLINE_DATA, v(3, 8, 0), v(1, 43, 0), Never),
    (Feature::SPARSE_SUPER2, v(3, 16, 0), v(1, 43, 0), Always),
    (Feature::METADATA_CSUM, v(3, 18, 0), v(1, 43, 0), Always),
    (Feature::READ_ONLY, v(4, 0, 0), v(1, 43, 0), Always),
    (Feature::ENCRYPT, v(4, 1, 0), v(1, 43, 0), v(2, 4, 0)),
    (
        Feature::METADATA_CSUM_SEED,
        v(4, 4, 0),
        v(1, 43, 0),
        v(2, 12, 0),
    ),
    (Feature::PROJECT, v(4, 5, 0), v(1, 43, 0), Always),
    (Feature::EA_INODE, v(4, 13, 0), v(1, 44, 0), Never),
    (Feature::LARGE_DIR, v(4, 13, 0), v(1, 44, 0), v(2, 12, 0)),
    (Feature::CASEFOLD, v(5, 2, 0), v(1, 45, 1), Never),
    (Feature::VERITY, v(5, 4, 0), v(1, 44, 4), Always),
    (Feature::SHARED_BLOCKS, Never, v(1, 44, 0), Always),
    (Feature::STABLE_INODES, v(5, 5, 0), v(1, 46, 0), Always),
    (Feature::FAST_COMMIT, v(5, 10, 0), v(1, 46, 0), Always),
    (Feature::ORPHAN_FILE, v(5, 15, 0), v(1, 47, 0), Always),
    (Feature::ORPHAN_PRESENT, v(5, 15, 0), v(1, 47, 0), Always),
];

/// Compatible features that every e2fsprogs knows.
const OLD_COMPAT: &[Feature] = &[
    Feature::DIR_PREALLOC,
    Feature::IMAGIC_INODES,
    Feature::HAS_JOURNAL,
    Feature::EXT_ATTR,
    Feature::RESIZE_INODE,
    Feature::DIR_INDEX,
    Feature::LAZY_BG,
];

/// From when on a program can do something, and which features decide it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Need {
    /// What for.
    pub purpose: Use,
    /// From when on.
    pub since: Since,
    /// The features that no older release knows (or no release at all); empty with [`Since::Always`].
    pub because: Vec<Feature>,
}

impl Need {
    /// The release, as people write it; GRUB has two digits after the point.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        match self.since {
            Since::Release(major, minor, 0) if self.purpose == Use::Grub => {
                Some(format!("{major}.{minor:02}"))
            }
            Since::Release(major, minor, 0) => Some(format!("{major}.{minor}")),
            Since::Release(major, minor, patch) => Some(format!("{major}.{minor}.{patch}")),
            _ => None,
        }
    }
}

/// What a program must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Linux mounts it read-only.
    LinuxRead,
    /// Linux mounts it read-write.
    LinuxWrite,
    /// e2fsck checks it, tune2fs changes it.
    E2fsprogs,
    /// GRUB boots from it.
    Grub,
}

/// What `purpose` needs with these features.
#[must_use]
pub fn need(features: Features, purpose: Use) -> Need {
    let mut need = Need {
        purpose,
        since: Always,
        because: Vec::new(),
    };
    for feature in features.iter() {
        let since = since(feature, purpose);
        if since == Always || since < need.since {
            continue;
        }
        if since > need.since {
            need.because.clear();
            need.since = since;
        }
        need.because.push(feature);
    }
    need
}

fn since(feature: Feature, purpose: Use) -> Since {
    let must_know = match purpose {
        // Readers ignore what only writers must know.
        Use::LinuxRead | Use::Grub => feature.word() == Word::Incompat,
        Use::LinuxWrite => feature.word() != Word::Compat,
        Use::E2fsprogs => true,
    };
    if !must_know || (purpose == Use::E2fsprogs && OLD_COMPAT.contains(&feature)) {
        return Always;
    }
    // Images that say `read-only` are never mounted to be written.
    if purpose == Use::LinuxWrite && feature == Feature::READ_ONLY {
        return Never;
    }
    let row = TABLE.iter().find(|(known, ..)| *known == feature);
    row.map_or(Never, |(_, linux, e2fsprogs, grub)| match purpose {
        Use::LinuxRead | Use::LinuxWrite => *linux,
        Use::E2fsprogs => *e2fsprogs,
        Use::Grub => *grub,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(list: &str) -> Features {
        Features::NONE.apply(list).unwrap()
    }

    fn decided(list: &str, purpose: Use) -> (Option<String>, String) {
        let need = need(features(list), purpose);
        let names: Vec<String> = need.because.iter().map(Feature::to_string).collect();
        (need.version(), names.join(" "))
    }

    const DEFAULT: &str = "sparse_super large_file filetype resize_inode dir_index ext_attr has_journal extent \
        huge_file flex_bg metadata_csum metadata_csum_seed 64bit dir_nlink extra_isize orphan_file";

    #[test]
    fn the_youngest_feature_decides() {
        let is = |version: &str, names: &str| (Some(version.into()), names.into());
        assert_eq!(
            decided(DEFAULT, Use::LinuxRead),
            is("4.4", "metadata_csum_seed")
        );
        assert_eq!(
            decided(DEFAULT, Use::LinuxWrite),
            is("4.4", "metadata_csum_seed")
        );
        assert_eq!(decided(DEFAULT, Use::E2fsprogs), is("1.47", "orphan_file"));
        assert_eq!(
            decided(DEFAULT, Use::Grub),
            is("2.12", "metadata_csum_seed")
        );
        assert_eq!(decided("mmp", Use::Grub), is("2.02", "mmp"));
        assert_eq!(
            decided("bigalloc filetype", Use::LinuxRead),
            is("2.2", "filetype")
        );
        assert_eq!(
            decided("bigalloc filetype", Use::LinuxWrite),
            is("3.2", "bigalloc")
        );
    }

    #[test]
    fn what_nobody_knows_is_never_usable() {
        assert_eq!(need(features("FEATURE_I30"), Use::LinuxRead).since, Never);
        assert_eq!(need(features("FEATURE_R30"), Use::LinuxRead).since, Always);
        assert_eq!(need(features("FEATURE_R30"), Use::LinuxWrite).since, Never);
        assert_eq!(need(features("FEATURE_C30"), Use::LinuxWrite).since, Always);
        assert_eq!(need(features("FEATURE_C30"), Use::E2fsprogs).since, Never);
        assert_eq!(need(features("read-only"), Use::LinuxWrite).since, Never);
        assert_eq!(need(features("casefold"), Use::Grub).since, Never);
        assert_eq!(need(Features::NONE, Use::Grub).since, Always);
    }
}
