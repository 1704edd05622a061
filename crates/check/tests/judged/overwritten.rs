//! Repairs of maps where no block is free: over the map's own blocks, or not at all.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lanefs_check::repair::RepairScope;
use ondisk::Superblock;

use crate::found::Made;
use crate::mended::{Damaged, mended};
use crate::repair::{decide, files, written};
use crate::rescued::{EXTENT, POINTERS, into_pieces, set_word, take_all_blocks, word};

/// An image without a free block in which the map of a file is damaged.
struct Full {
    damaged: Damaged,
    /// The files before that.
    before: BTreeMap<u32, Vec<u8>>,
    ino: u32,
    /// The damaged block of the map.
    node: u64,
}

fn full_with_damaged_map(features: &str, size: &str) -> Option<Full> {
    let fill = |root: PathBuf| std::fs::write(root.join("a"), "a".repeat(700)).unwrap();
    let made = Made::new(&format!("-O ^resize_inode,^64bit,{features}"), size, fill)?;
    take_all_blocks(&made);
    let mut damaged = Damaged::new(made.bytes());
    let ino = *files(&damaged.bytes).keys().last().unwrap();
    if !features.contains("^extent") {
        into_pieces(&mut damaged, ino);
    }
    let before = files(&damaged.bytes);
    let node = if features.contains("^extent") {
        // A pointer in the first block of them.
        let node = word(&damaged.bytes[damaged.slot(ino)], POINTERS + 48);
        let at = damaged.at(node.into()) + 4 * 21;
        set_word(&mut damaged.bytes, at, 5000);
        node
    } else {
        // The checksum of the first leaf.
        let leaf = word(&damaged.bytes[damaged.slot(ino)], EXTENT - 4);
        let at = damaged.at(leaf.into()) + 1020;
        damaged.bytes[at] ^= 1;
        leaf
    };
    let free = Superblock::view(damaged.bytes[1024..].first_chunk().unwrap());
    assert_eq!(free.free_blocks_count(), 0);
    Some(Full {
        damaged,
        before,
        ino,
        node: node.into(),
    })
}

#[test]
fn a_damaged_map_is_mended_where_no_block_is_free() {
    for options in ["extent", "^extent"] {
        let Some(full) = full_with_damaged_map(options, "4M") else {
            return;
        };
        let Full {
            damaged,
            before,
            ino,
            ..
        } = full;
        let (new, repaired) = mended(&damaged.bytes, options);
        assert!(repaired.writes.unwrap().needs_journal);
        let after = files(&new);
        let pairs = before[&ino].chunks(1024).zip(after[&ino].chunks(1024));
        let lost = pairs.filter(|(before, after)| before != after).count();
        assert_eq!(lost, usize::from(options == "^extent"), "{options}");
        let others = before.iter().filter(|it| *it.0 != ino);
        for (other, bytes) in others {
            assert!(after[other] == *bytes, "{options}");
        }
    }
}

/// The image after a repair, which leaves this inode damaged.
fn left(damaged: &Damaged, ino: u32) -> Vec<u8> {
    let repaired = decide(&damaged.bytes, RepairScope::All, 1).unwrap();
    let problems = &repaired.after.problems;
    assert!(
        problems.iter().any(|it| it.ino == Some(ino)),
        "{problems:?}"
    );
    match &repaired.writes {
        Some(writes) => written(&damaged.bytes, writes),
        None => damaged.bytes.clone(),
    }
}

/// Written in stages, the new blocks of the map would come before the inode.
#[test]
fn a_map_is_not_mended_over_its_own_blocks_without_a_journal() {
    for options in ["extent", "^extent"] {
        let features = format!("^has_journal,{options}");
        let Some(full) = full_with_damaged_map(&features, "2M") else {
            return;
        };
        let (damaged, ino, node) = (full.damaged, full.ino, full.node);
        let new = left(&damaged, ino);
        let (slot, at) = (damaged.slot(ino), damaged.at(node));
        let parts = [slot, at..at + 2048];
        for part in parts {
            assert!(new[part.clone()] == damaged.bytes[part], "{options}");
        }
        assert!(files(&new) == files(&damaged.bytes), "{options}");
    }
}

/// Behind a block of a map that does not begin a cluster there is another cluster.
#[test]
fn blocks_of_a_map_that_do_not_begin_a_cluster_are_not_written_over() {
    let features = "bigalloc -C 4096";
    let Some(full) = full_with_damaged_map(features, "4M") else {
        return;
    };
    let (damaged, ino, node) = (full.damaged, full.ino, full.node);
    let new = left(&damaged, ino);
    let (slot, at) = (damaged.slot(ino), damaged.at(node));
    for part in [slot, at..at + (600 << 10)] {
        assert!(new[part.clone()] == damaged.bytes[part]);
    }
}
