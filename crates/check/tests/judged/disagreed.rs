//! Mutants that were once judged otherwise than by e2fsck. The mutants of `main` found them.

use corpus::{PatchedBytes, Structures};
use lanefs_check::problem::Code;
use lanefs_check::repair::RepairScope;
use ondisk::{Feature, Ino, Superblock};
use sync::Arc;

use crate::mended::{Damaged, mended, seed};
use crate::repair::{decide, files, kept};
use crate::{check, e2fsck, shown};

/// An image, the number of a mutant, and what was overlooked; `None` for a false alarm.
const MUTANTS: &[(&str, u64, Option<Code>)] = &[
    // Pointers of the resize inode with bigalloc.
    ("bigalloc", 3_000_452, Some(Code::InodeBlocks)),
    // Features without a name, and one that no kernel has.
    ("default-4k", 3_000_981, Some(Code::FeatureUnknown)),
    ("no-journal", 3_000_086, Some(Code::FeatureUnknown)),
    // A file as the quota file of a feature that is off.
    ("ext3-1k", 3_000_365, Some(Code::QuotaNamed)),
    // A file with names as the users' quota file of a feature that is off.
    ("no-journal", 3_100_086, Some(Code::QuotaNamed)),
    // More unused inodes than the group has, without checksums of descriptors.
    ("ext3-1k", 3_000_875, None),
    ("ext3-1k", 3_000_896, None),
    // A field of a quota file's inode.
    ("quota-verity", 3_000_861, None),
    // A log in use that the superblock does not ask to replay.
    ("casefold", 3_000_112, None),
    ("ext3-1k", 3_000_635, None),
    // A resize inode with a flag of extents, and one with a deletion time.
    ("bigalloc", 3_001_870, Some(Code::ExtentHeader)),
    ("ea-inode", 3_002_404, None),
    // An empty attribute of an inline directory, with an offset beyond the list.
    ("inline-data", 3_001_280, Some(Code::XattrOffset)),
    // One link of a directory with an index.
    ("bigalloc", 3_001_999, None),
    // A list of orphans that begins nowhere.
    ("no-journal", 3_001_337, None),
    // A journal's inode of a size that an int does not hold.
    ("quota-verity", 3_001_436, None),
];

fn mutant(name: &str, number: u64) -> Vec<u8> {
    let bytes = Arc::from(seed(name));
    let structures = Structures::of(&PatchedBytes::new(Arc::clone(&bytes)));
    corpus::mutant(&bytes, &structures, number).0.to_vec()
}

#[test]
fn mutants_that_were_judged_wrongly_once_are_judged_as_by_e2fsck() {
    for (name, number, code) in MUTANTS {
        let bytes = mutant(name, *number);
        let Some(verdict) = e2fsck(&bytes) else {
            return testkit::skip("e2fsck is missing");
        };
        let report = check(&bytes, 2).unwrap();
        let text = format!("{name} {number}: {}{}", shown(&report), verdict.text);
        assert_eq!(report.is_clean(), code.is_none(), "{text}");
        assert_eq!(report.is_clean(), !verdict.is_damage(), "{text}");
        assert!(
            code.is_none_or(|code| report.counts.contains_key(&code)),
            "{text}"
        );
    }
}

#[test]
fn a_file_that_is_named_as_a_quota_file_without_the_feature_is_kept() {
    let (name, number, _) = MUTANTS[3];
    let (whole, bytes) = (files(&seed(name)), mutant(name, number));
    let (after, _) = mended(&bytes, name);
    assert_eq!(kept(&whole, &after), kept(&whole, &seed(name)));
}

#[test]
fn a_file_that_the_superblock_names_without_the_feature_is_judged_as_by_e2fsck_and_kept() {
    type Name = fn(&mut Superblock, Option<Ino>);
    const NAMES: &[(&str, Feature, Name)] = &[
        ("users", Feature::QUOTA, Superblock::set_user_quota_ino),
        ("groups", Feature::QUOTA, Superblock::set_group_quota_ino),
        (
            "projects",
            Feature::QUOTA,
            Superblock::set_project_quota_ino,
        ),
        (
            "orphans",
            Feature::ORPHAN_FILE,
            Superblock::set_orphan_file_ino,
        ),
    ];
    for image in ["default-4k", "no-journal", "quota-verity"] {
        let whole = seed(image);
        let files = files(&whole);
        for (what, feature, name) in NAMES {
            // Root, reserved ones, lost+found, a file with two names, an inode that is not in use, and none.
            for ino in [2, 5, 7, 8, 11, 12, 100, 100_000] {
                let mut damaged = Damaged::new(whole.clone());
                if damaged.geometry.has(*feature) {
                    continue;
                }
                damaged.change_superblock(|sb| name(sb, Some(Ino(ino))));
                let Some(verdict) = e2fsck(&damaged.bytes) else {
                    return testkit::skip("e2fsck is missing");
                };
                let report = check(&damaged.bytes, 1).unwrap();
                let text = format!("{image} {what} {ino}: {}{}", shown(&report), verdict.text);
                assert_eq!(report.is_clean(), !verdict.is_damage(), "{text}");
                let (after, _) = mended(&damaged.bytes, &text);
                assert_eq!(kept(&files, &after), kept(&files, &whole), "{text}");
            }
        }
    }
}

#[test]
fn an_attribute_of_no_namespace_is_removed_from_its_block() {
    let bytes = mutant("encrypted", 930_018);
    assert!(
        check(&bytes, 1)
            .unwrap()
            .counts
            .contains_key(&Code::XattrBlockList)
    );
    mended(&bytes, "no namespace");
}

#[test]
fn a_file_system_with_unknown_features_is_left_alone() {
    for (name, number, _) in &MUTANTS[1..3] {
        let repaired = decide(&mutant(name, *number), RepairScope::All, 1).unwrap();
        assert!(repaired.writes.is_none(), "{name}");
        assert!(!repaired.after.is_clean(), "{name}");
    }
}
