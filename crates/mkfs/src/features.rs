//! Which features an image gets: a profile's defaults, the user's changes, a compatibility level, and the rules by
//! which features need or exclude each other. Pure values.
//!
//! A default gives way when an explicit wish excludes it (`-O meta_bg` drops resize_inode, `-O ^has_journal` drops
//! orphan_file); two explicit wishes that exclude each other are refused by name.

use ondisk::features::{Feature, Features};

use crate::{Compat, Error, FsType, Options};

type F = Feature;

/// Features of every profile.
const BASE: &[Feature] = &[
    F::SPARSE_SUPER,
    F::LARGE_FILE,
    F::FILETYPE,
    F::RESIZE_INODE,
    F::DIR_INDEX,
    F::EXT_ATTR,
];

/// What ext4 has beyond these.
const EXT4: &[Feature] = &[
    F::HAS_JOURNAL,
    F::EXTENT,
    F::HUGE_FILE,
    F::FLEX_BG,
    F::METADATA_CSUM,
    F::METADATA_CSUM_SEED,
    F::BIT64,
    F::DIR_NLINK,
    F::EXTRA_ISIZE,
    F::ORPHAN_FILE,
];

/// What can be asked for; the rest is refused by name.
const MAKEABLE: &[Feature] = &[
    F::HAS_JOURNAL,
    F::EXT_ATTR,
    F::RESIZE_INODE,
    F::DIR_INDEX,
    F::SPARSE_SUPER2,
    F::FAST_COMMIT,
    F::STABLE_INODES,
    F::ORPHAN_FILE,
    F::FILETYPE,
    F::META_BG,
    F::EXTENT,
    F::BIT64,
    F::MMP,
    F::FLEX_BG,
    F::EA_INODE,
    F::METADATA_CSUM_SEED,
    F::LARGE_DIR,
    F::INLINE_DATA,
    F::ENCRYPT,
    F::CASEFOLD,
    F::SPARSE_SUPER,
    F::LARGE_FILE,
    F::HUGE_FILE,
    F::UNINIT_BG,
    F::DIR_NLINK,
    F::EXTRA_ISIZE,
    F::BIGALLOC,
    F::METADATA_CSUM,
    F::PROJECT,
    F::VERITY,
];

/// `.0` can't be without `.1`.
const NEEDS: &[(Feature, Feature)] = &[
    (F::METADATA_CSUM_SEED, F::METADATA_CSUM),
    (F::BIT64, F::EXTENT),
    (F::BIGALLOC, F::EXTENT),
    (F::VERITY, F::EXTENT),
    (F::INLINE_DATA, F::EXT_ATTR),
    (F::EA_INODE, F::EXT_ATTR),
    (F::LARGE_DIR, F::DIR_INDEX),
    (F::FAST_COMMIT, F::HAS_JOURNAL),
    (F::ORPHAN_FILE, F::HAS_JOURNAL),
    (F::RESIZE_INODE, F::SPARSE_SUPER),
];

/// The two can't be together.
const EXCLUDES: &[(Feature, Feature)] = &[
    (F::META_BG, F::RESIZE_INODE),
    (F::METADATA_CSUM, F::UNINIT_BG),
];

impl Compat {
    /// The level of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Compat> {
        let named = Compat::ALL.iter().find(|(known, _)| *known == name);
        named.map(|(_, compat)| *compat)
    }

    /// As [`Compat::from_name`], with an error that lists the names.
    ///
    /// # Errors
    /// If no level has this name.
    pub fn parse(name: &str) -> Result<Compat, Error> {
        Compat::from_name(name).ok_or_else(|| {
            let names: Vec<&str> = Compat::ALL.iter().map(|(name, _)| *name).collect();
            Error::option(
                "--compat",
                format!("'{name}' is not one of {}", names.join(", ")),
            )
        })
    }

    /// Every level with its name.
    pub const ALL: &'static [(&'static str, Compat)] = &[
        ("debian12", Compat::Debian12),
        ("grub2", Compat::Grub2),
        ("mke2fs-1.46", Compat::Mke2fs146),
    ];

    /// The level's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Compat::ALL.iter().find(|(_, compat)| *compat == self);
        found.map_or("", |(name, _)| name)
    }

    /// Defaults that the level leaves out.
    #[must_use]
    pub fn drops(self) -> &'static [Feature] {
        // The same two for all: e2fsprogs 1.46 and GRUB 2.06 lack one of them each, and Debian 12 leaves both out so
        // that its own GRUB reads what it makes.
        &[F::METADATA_CSUM_SEED, F::ORPHAN_FILE]
    }

    /// Features that can't be asked for at this level, because the programs it stands for refuse them.
    #[must_use]
    pub fn refuses(self) -> &'static [Feature] {
        match self {
            Compat::Debian12 => &[],
            Compat::Grub2 => &[
                F::METADATA_CSUM_SEED,
                F::INLINE_DATA,
                F::EA_INODE,
                F::LARGE_DIR,
                F::CASEFOLD,
                F::ENCRYPT,
                F::JOURNAL_DEV,
            ],
            Compat::Mke2fs146 => &[F::ORPHAN_FILE],
        }
    }
}

fn defaults(options: &Options) -> Features {
    let base = Features::of(BASE);
    let set = match options.fs_type {
        FsType::Ext2 => base,
        FsType::Ext3 => base.with(F::HAS_JOURNAL),
        FsType::Ext4 => base.union(Features::of(EXT4)),
    };
    let dropped = options.compat.map_or(&[][..], Compat::drops);
    set.minus(Features::of(dropped))
}

/// The features these options ask for, before what only the size decides.
///
/// # Errors
/// A name that does not exist, a feature that can't be made, two wishes that exclude each other.
pub(crate) fn resolve(options: &Options) -> Result<Features, Error> {
    let unknown = |e: ondisk::features::UnknownFeature| {
        let reason = format!("{e}; `man ext4` lists the names");
        Error::option("-O", reason)
    };
    let defaults = defaults(options);
    let mut set = defaults.apply(&options.features).map_err(unknown)?;
    // What was added whatever the defaults.
    let mut wanted = Features::NONE.apply(&options.features).map_err(unknown)?;
    if let Some(feature) = wanted.minus(Features::of(MAKEABLE)).iter().next() {
        let reason = match feature {
            F::QUOTA => "quota files can't be made; `tune2fs -O quota` adds them",
            F::JOURNAL_DEV => "makes a journal device, which has no other features",
            _ => "can't be set when a file system is made: it is a state, or no program writes it",
        };
        return Err(Error::option(format!("-O {feature}"), reason));
    }
    for (option, feature) in implied(options) {
        if forbids(options, feature) {
            let reason = format!("contradicts -O ^{feature}; leave one of the two out");
            return Err(Error::option(option, reason));
        }
        set = set.with(feature);
        wanted = wanted.with(feature);
    }
    refuse_for_compat(options, set)?;
    for (feature, needed) in NEEDS {
        if set.has(*feature) && !set.has(*needed) {
            if wanted.has(*feature) {
                let reason = format!("needs {needed}; add it, or leave {feature} out");
                return Err(Error::option(asking(options, *feature), reason));
            }
            set = set.without(*feature);
        }
    }
    for (one, other) in EXCLUDES {
        if !(set.has(*one) && set.has(*other)) {
            continue;
        }
        match (wanted.has(*one), wanted.has(*other)) {
            (true, true) => {
                let reason = format!("excludes {other}; choose one of the two");
                return Err(Error::option(asking(options, *one), reason));
            }
            (false, true) => set = set.without(*one),
            (_, false) => set = set.without(*other),
        }
    }
    refuse_useless(options, set)?;
    Ok(set)
}

/// Options that are useless without a feature, each with the feature that it turns on, as in mke2fs.
fn implied(options: &Options) -> impl Iterator<Item = (&'static str, Feature)> {
    let given = [
        (options.encoding.is_some(), "-E encoding", F::CASEFOLD),
        (options.resize.is_some(), "-E resize", F::RESIZE_INODE),
        (options.wants_journal, "-j or -J", F::HAS_JOURNAL),
        (
            options.backup_superblocks.is_some(),
            "-E num_backup_sb",
            F::SPARSE_SUPER2,
        ),
    ];
    let given = given.into_iter().filter(|(is_given, ..)| *is_given);
    given.map(|(_, option, feature)| (option, feature))
}

/// The option that asks for a feature, as it is given.
fn asking(options: &Options, feature: Feature) -> String {
    let by_name = Features::NONE.apply(&options.features);
    if by_name.is_ok_and(|set| set.has(feature)) {
        return format!("-O {feature}");
    }
    let mut implied = implied(options);
    let found = implied.find(|(_, implied)| *implied == feature);
    found.map_or_else(|| format!("-O {feature}"), |(option, _)| option.to_owned())
}

/// Takes a feature away because of the size, or adds one, where no option says otherwise.
///
/// # Errors
/// The option that does, with `reason`.
pub(crate) fn give_way(
    options: &Options,
    set: Features,
    without: Feature,
    with: Option<Feature>,
    reason: &str,
) -> Result<Features, Error> {
    let by_name = Features::NONE.apply(&options.features);
    let is_implied = implied(options).any(|(_, feature)| feature == without);
    if is_implied || by_name.is_ok_and(|wanted| wanted.has(without)) {
        return Err(Error::option(asking(options, without), reason));
    }
    match with {
        Some(with) if forbids(options, with) => Err(Error::option(format!("-O ^{with}"), reason)),
        Some(with) => Ok(set.without(without).with(with)),
        None => Ok(set.without(without)),
    }
}

/// Adds a feature without which the file system would be wrong, where no option forbids it.
///
/// # Errors
/// The option that does, with `reason`.
pub(crate) fn require(
    options: &Options,
    set: Features,
    feature: Feature,
    reason: &str,
) -> Result<Features, Error> {
    if forbids(options, feature) {
        Err(Error::option(format!("-O ^{feature}"), reason))
    } else {
        Ok(set.with(feature))
    }
}

/// Options that are refused where the feature that they are about is missing.
fn refuse_useless(options: &Options, set: Features) -> Result<(), Error> {
    let given = [
        (
            options.mmp_interval.is_some(),
            "-E mmp_update_interval",
            F::MMP,
        ),
        (options.strict_encoding, "-E encoding_flags", F::CASEFOLD),
        (
            options.packed_meta_blocks,
            "-E packed_meta_blocks",
            F::FLEX_BG,
        ),
    ];
    for (is_given, option, feature) in given {
        if is_given && !set.has(feature) {
            return Err(Error::option(option, format!("needs -O {feature}")));
        }
    }
    Ok(())
}

/// The option that asks for a journal, if there is one. The default of ext4 does not ask: a file system that is too
/// small for a journal is made without, as by mke2fs.
pub(crate) fn asks_for_journal(options: &Options) -> Option<&'static str> {
    let by_name = |feature| {
        let set = Features::NONE.apply(&options.features);
        set.is_ok_and(|set| set.has(feature))
    };
    let is_ext3 = options.fs_type == FsType::Ext3 && !forbids(options, F::HAS_JOURNAL);
    let asked = [
        (options.wants_journal, "-j or -J"),
        (by_name(F::HAS_JOURNAL), "-O has_journal"),
        (by_name(F::FAST_COMMIT), "-O fast_commit"),
        (by_name(F::ORPHAN_FILE), "-O orphan_file"),
        (options.orphan_file_size.is_some(), "-E orphan_file_size"),
        (is_ext3, "-t ext3"),
    ];
    let asked = asked.into_iter().find(|(is_asked, _)| *is_asked);
    asked.map(|(_, option)| option)
}

/// Whether `-O ^feature` stands last: what stays away even from all features.
pub(crate) fn forbids(options: &Options, feature: Feature) -> bool {
    let all = Features::NONE.with(feature).apply(&options.features);
    all.is_ok_and(|set| !set.has(feature))
}

fn refuse_for_compat(options: &Options, set: Features) -> Result<(), Error> {
    let Some(compat) = options.compat else {
        return Ok(());
    };
    let refused = set.intersection(Features::of(compat.refuses()));
    match refused.iter().next() {
        None => Ok(()),
        Some(feature) => Err(Error::option(
            format!("-O {feature}"),
            format!(
                "can't be read by the programs that --compat {} stands for",
                compat.name()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(features: &str) -> Result<Features, Error> {
        resolve(&Options {
            features: features.into(),
            ..Options::default()
        })
    }

    #[test]
    fn the_defaults_are_spelled_out() {
        assert_eq!(
            resolved("").unwrap().to_string(),
            "has_journal ext_attr resize_inode dir_index orphan_file filetype extent 64bit flex_bg \
             metadata_csum_seed sparse_super large_file huge_file dir_nlink extra_isize metadata_csum"
        );
    }

    #[test]
    fn defaults_give_way_to_wishes() {
        let set = resolved("meta_bg,^has_journal,^metadata_csum").unwrap();
        assert_eq!(
            set.to_string(),
            "ext_attr dir_index filetype meta_bg extent 64bit flex_bg sparse_super large_file huge_file dir_nlink \
             extra_isize"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (features, word) in [
            ("needs_recovery", "needs_recovery"),
            ("meta_bg,resize_inode", "resize_inode"),
            ("bigalloc,^extent", "extent"),
            ("^has_journal,fast_commit", "has_journal"),
            ("flexbg", "flexbg"),
            ("compression", "compression"),
        ] {
            let message = resolved(features).unwrap_err().to_string();
            assert!(message.contains(word), "{features}: {message}");
        }
    }

    #[test]
    fn options_without_their_feature_are_refused_by_name() {
        for (letters, word) in [
            (&[('J', "size=4"), ('O', "^has_journal")][..], "-J"),
            (
                &[('E', "resize=1000000"), ('O', "^resize_inode")],
                "-E resize",
            ),
            (
                &[('E', "num_backup_sb=1"), ('O', "^sparse_super2")],
                "num_backup_sb",
            ),
            (&[('E', "encoding=utf8"), ('O', "^casefold")], "-E encoding"),
            (&[('E', "mmp_update_interval=5")], "mmp_update_interval"),
            (&[('E', "encoding_flags=strict")], "encoding_flags"),
            (
                &[('E', "packed_meta_blocks=1"), ('O', "^flex_bg")],
                "packed_meta_blocks",
            ),
        ] {
            let mut options = Options::default();
            for (letter, value) in letters {
                options.set(*letter, value).unwrap();
            }
            let message = resolve(&options).unwrap_err().to_string();
            assert!(message.contains(word), "{letters:?}: {message}");
        }
    }

    #[test]
    fn every_level_leaves_out_what_its_programs_cannot_read() {
        for (name, compat) in Compat::ALL {
            let options = Options {
                compat: Some(*compat),
                ..Options::default()
            };
            let set = resolve(&options).unwrap();
            assert_eq!(Compat::from_name(name), Some(*compat));
            assert!(!set.has(F::ORPHAN_FILE) && !set.has(F::METADATA_CSUM_SEED));
            for feature in compat.refuses() {
                let options = Options {
                    features: feature.to_string(),
                    ..options.clone()
                };
                assert!(resolve(&options).is_err(), "{name} {feature}");
            }
        }
    }
}
