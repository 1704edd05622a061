//! Printers, over what mke2fs wrote.

use lanefs_ondisk::text::{GroupText, SuperblockText};
use lanefs_ondisk::{Geometry, Group};

use crate::superblock::{PROFILES, descriptors, geometry, superblock};

fn has_line(text: &str, name: &str, value: &str) -> bool {
    text.lines()
        .filter_map(|line| line.split_once(": "))
        .any(|(n, v)| n == name && v.trim() == value)
}

#[test]
fn the_superblock_says_what_mke2fs_was_asked_for() {
    let text = SuperblockText(&superblock("bigalloc4k")).to_string();
    for (name, value) in [
        ("label", "bigalloc4k"),
        ("UUID", "6c616e65-6673-4000-8000-676f6c64656e"),
        ("block size", "4.00 KiB"),
        ("cluster size", "64.0 KiB"),
        ("blocks", "16777216"),
        ("made", "2023-11-14 22:13:20"),
        ("directory hash", "half_md4"),
        ("hash seed", "6c616e65-6673-4000-8000-686173686573"),
        ("journal inode", "8"),
        ("state", "0x1 (clean)"),
    ] {
        assert!(has_line(&text, name, value), "{name}: {value}\n{text}");
    }
    assert!(!text.contains("WRONG"));
}

#[test]
fn every_profile_prints_without_a_wrong_checksum() {
    for profile in PROFILES {
        let geometry: Geometry = geometry(profile);
        for (group, raw) in descriptors(profile) {
            let text = GroupText {
                raw: &raw,
                geometry: &geometry,
                group,
            }
            .to_string();
            assert!(!text.contains("WRONG"), "{text}");
        }
        let text = GroupText {
            raw: &[0xFF; 32],
            geometry: &geometry,
            group: Group(0),
        }
        .to_string();
        assert!(text.contains("0xffff"), "{text}");
    }
}
