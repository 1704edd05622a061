//! Repairs where blocks are lost, bad or all in use: both judges find nothing afterwards, and other files are as they
//! were.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lanefs_check::problem::Code;
use ondisk::extent::{self, Extent, ExtentEntries, ExtentIndex, ExtentNode};
use ondisk::jbd2::JournalSuperblock;
use ondisk::{FsBlock, Ino, LBlock, Superblock, inode};

use crate::found::Made;
use crate::mended::{Damaged, contents, mended, seed};
use crate::{check, e2fsck, shown};

pub fn set_word(slot: &mut [u8], at: usize, value: u32) {
    slot[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub fn word(slot: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(slot[at..at + 4].try_into().unwrap())
}

/// Where an inode has its first pointer, and where it has its first extent's block.
pub const POINTERS: usize = 0x28;
pub const EXTENT: usize = 0x3C;

#[test]
fn a_first_meta_group_behind_the_descriptors_is_mended() {
    let fill = |root: PathBuf| std::fs::write(root.join("file"), "text").unwrap();
    let Some(made) = Made::new("-O meta_bg,^resize_inode", "4M", fill) else {
        return;
    };
    let mut damaged = Damaged::new(made.bytes());
    let before = contents(&damaged.bytes);
    damaged.change_superblock(|sb| sb.set_first_meta_bg(9));
    let (new, repaired) = mended(&damaged.bytes, "first meta group");
    let counts = &repaired.before.counts;
    assert!(counts.contains_key(&Code::FirstMetaGroup), "{counts:?}");
    assert!(contents(&new) == before);
}

#[test]
fn a_map_whose_block_lies_in_a_table_loses_that_block_alone() {
    let whole = Damaged::new(seed("ext3-1k"));
    let before = contents(&whole.bytes);
    let has_pointers = |ino: &&u32| word(&whole.bytes[whole.slot(**ino)], POINTERS + 48) != 0;
    let ino = *before.keys().find(has_pointers).unwrap();
    let table = whole.desc(0).inode_table().0 as u32;
    let mut damaged = Damaged::new(whole.bytes.clone());
    damaged.change_inode(ino, |slot| set_word(slot, POINTERS + 48, table + 1));
    let (new, _) = mended(&damaged.bytes, "pointers in a table");
    let after = contents(&new);
    let direct = before[&ino].len().min(12 * 1024);
    assert_eq!(after[&ino][..direct], before[&ino][..direct]);
    let others = |all: &std::collections::BTreeMap<u32, Vec<u8>>| {
        let mut all = all.clone();
        all.remove(&ino);
        all
    };
    assert!(others(&after) == others(&before));
}

#[test]
fn the_list_of_bad_blocks_gives_up_metadata_and_files_give_up_bad_blocks() {
    for name in ["default-1k", "ext3-1k"] {
        let mut damaged = Damaged::new(seed(name));
        let before = contents(&damaged.bytes);
        let has_extent = |ino: &&u32| {
            let slot = &damaged.bytes[damaged.slot(**ino)];
            slot[0x28..0x2C] == [0x0A, 0xF3, 1, 0] && slot[0x2E] == 0
        };
        let block = match before.keys().find(has_extent) {
            Some(ino) => word(&damaged.bytes[damaged.slot(*ino)], EXTENT),
            None => {
                let ino = before.iter().find(|(_, it)| !it.is_empty()).unwrap().0;
                word(&damaged.bytes[damaged.slot(*ino)], POINTERS)
            }
        };
        let desc = damaged.desc(0);
        let table = desc.inode_table().0 as u32;
        let bad = [1, 2, desc.block_bitmap().0 as u32, table, table + 1, block];
        damaged.change_inode(1, |slot| {
            for (index, block) in bad.into_iter().enumerate() {
                set_word(slot, POINTERS + 4 * index, block);
            }
            set_word(slot, 0x1C, 2 * bad.len() as u32);
        });
        let (new, _) = mended(&damaged.bytes, name);
        assert!(contents(&new) == before, "{name}");
        let new = Damaged::new(new);
        let slot = &new.bytes[new.slot(1)];
        let left: Vec<u32> = (0..15)
            .map(|index| word(slot, POINTERS + 4 * index))
            .collect();
        assert_eq!(
            left.iter().filter(|it| **it != 0).collect::<Vec<_>>(),
            [&block],
            "{name}"
        );
    }
}

/// Makes many pieces of the longest extent of a file without a tree, as many as two leaves have room for, which are
/// written over its first two blocks, or the last blocks of its first two clusters. Every second piece is unwritten.
/// Returns the first blocks of the pieces.
pub fn into_pieces(damaged: &mut Damaged, ino: u32) -> Vec<u64> {
    let slot = damaged.bytes[damaged.slot(ino)].to_vec();
    let inode = ondisk::Inode::parse(&slot).unwrap();
    let ExtentEntries::Extents(extents) = ExtentNode::view(inode.block_area()) else {
        panic!("the file has a tree");
    };
    let mut extents = extents.to_vec();
    let room = usize::from(extent::block_entries(1024));
    let longest = (0..extents.len()).max_by_key(|index| extents[*index].len());
    let longest = longest.unwrap();
    let (leaves, long) = (
        extents[longest].start().0,
        u32::from(extents[longest].len()),
    );
    let base = extents[longest].block();
    let pieces = (2 * room - extents.len()) as u32;
    let ratio = damaged.geometry.cluster_ratio();
    let piece = |index: u32, len: u32| {
        let block = FsBlock(leaves + u64::from(2 * ratio + 4 * index));
        Extent::new(
            LBlock(base + 2 * ratio + 4 * index),
            len as u16,
            block,
            index % 2 == 1,
        )
    };
    extents[longest] = piece(pieces, long - 2 * ratio - 4 * pieces);
    extents.splice(longest..longest, (0..pieces).map(|index| piece(index, 4)));
    let seed = inode::checksum_seed(damaged.geometry.csum_seed(), Ino(ino), inode.generation());
    let mut indices = Vec::new();
    let last = leaves + u64::from(ratio - 1);
    for (chunk, block) in (extents.chunks(room)).zip((last..).step_by(ratio as usize)) {
        let at = damaged.at(block);
        let bytes = &mut damaged.bytes[at..at + 1024];
        extent::encode(bytes, 0, ExtentEntries::Extents(chunk));
        extent::set_tail(bytes, seed);
        indices.push(ExtentIndex::new(LBlock(chunk[0].block()), FsBlock(block)));
    }
    damaged.change_inode(ino, |slot| {
        let area = &mut slot[POINTERS..POINTERS + inode::BLOCK_AREA];
        extent::encode(area, 1, ExtentEntries::Indices(&indices));
    });
    (0..pieces).map(|index| piece(index, 4).start().0).collect()
}

/// Leaves no block of an image of at most 4 MiB free.
pub fn take_all_blocks(made: &Made) {
    // What is written takes all free blocks before it fails.
    let folder = tempfile::tempdir().unwrap();
    let all = folder.path().join("all");
    std::fs::write(&all, vec![7; 4 << 20]).unwrap();
    made.debugfs(&[&format!("write {} all", all.display())]);
}

#[test]
fn a_tree_that_needs_more_blocks_than_there_are_loses_its_shortest_extents() {
    let fill = |root: PathBuf| {
        for name in ["a", "b"] {
            std::fs::write(root.join(name), name.repeat(700)).unwrap();
        }
    };
    let Some(made) = Made::new("-O ^has_journal,^resize_inode", "2M", fill) else {
        return;
    };
    take_all_blocks(&made);
    let mut damaged = Damaged::new(made.bytes());
    let files = contents(&damaged.bytes);
    let (small, large) = (*files.keys().next().unwrap(), *files.keys().last().unwrap());
    let pieces = into_pieces(&mut damaged, large);
    let before = contents(&damaged.bytes).remove(&large).unwrap();
    // The small file claims a block within each of four extents, and the block that it had is bad.
    let old = word(&damaged.bytes[damaged.slot(small)], EXTENT);
    let claimed: Vec<Extent> = (0..4)
        .map(|index| {
            let block = FsBlock(pieces[20 * index as usize] + 1);
            Extent::new(LBlock(index), 1, block, false)
        })
        .collect();
    damaged.change_inode(small, |slot| {
        let area = &mut slot[POINTERS..POINTERS + inode::BLOCK_AREA];
        extent::encode(area, 0, ExtentEntries::Extents(&claimed));
        set_word(slot, 4, 4096);
        set_word(slot, 0x1C, 8);
    });
    damaged.change_inode(1, |slot| {
        set_word(slot, POINTERS, old);
        set_word(slot, 0x1C, 2);
    });
    let (new, _) = mended(&damaged.bytes, "a tree that needs a third leaf");
    let after = contents(&new);
    assert_eq!(after[&small], [7; 4096]);
    let pairs = before.chunks(1024).zip(after[&large].chunks(1024));
    let lost = pairs.filter(|(before, after)| before != after);
    // Four blocks are the small file's, and with the third leaf the four extents before them would have been kept.
    assert_eq!(lost.count(), 8);
}

#[test]
fn a_tree_of_shifted_entries_costs_other_files_nothing() {
    let whole = Damaged::new(seed("default-1k"));
    let before = contents(&whole.bytes);
    let has_tree = |ino: &&u32| {
        let slot = &whole.bytes[whole.slot(**ino)];
        slot[POINTERS..POINTERS + 2] == [0x0A, 0xF3] && slot[POINTERS + 6] == 2
    };
    let ino = *before.keys().find(has_tree).unwrap();
    let slot = &whole.bytes[whole.slot(ino)];
    let generation = ondisk::Inode::parse(slot).unwrap().generation();
    let seed = inode::checksum_seed(whole.geometry.csum_seed(), Ino(ino), generation);
    let node = whole.at(word(slot, POINTERS + 16).into());
    let leaves = u16::from_le_bytes([whole.bytes[node + 2], whole.bytes[node + 3]]);
    for leaf in 0..usize::from(leaves) {
        let leaf = whole.at(word(&whole.bytes[node + 12 * (leaf + 1)..], 4).into());
        for shift in [4, 8] {
            let mut damaged = Damaged::new(whole.bytes.clone());
            // The start of one entry becomes the logical block of another, whose length is a logical block.
            let bytes = &mut damaged.bytes[leaf..leaf + 1024];
            bytes.copy_within(12 + shift..1020, 12);
            ondisk::extent::set_tail(bytes, seed);
            let (new, _) = mended(&damaged.bytes, &format!("leaf at {leaf}, {shift} bytes"));
            let mut after = contents(&new);
            after.remove(&ino);
            let mut others = before.clone();
            others.remove(&ino);
            assert!(after == others, "leaf at {leaf}, {shift} bytes");
        }
    }
}

/// The map of the largest file in place of that of one of the file system's own files.
fn with_map_of_largest(bytes: Vec<u8>, ino: u32) -> Damaged {
    let mut damaged = Damaged::new(bytes);
    let files = contents(&damaged.bytes);
    let (large, _) = files.iter().max_by_key(|it| it.1.len()).unwrap();
    let slot = damaged.bytes[damaged.slot(*large)].to_vec();
    damaged.change_inode(ino, |own| {
        own[POINTERS..POINTERS + inode::BLOCK_AREA]
            .copy_from_slice(&slot[POINTERS..POINTERS + inode::BLOCK_AREA]);
        for at in [4, 0x1C, 0x6C] {
            set_word(own, at, word(&slot, at));
        }
    });
    damaged
}

#[test]
fn what_the_file_systems_own_files_share_with_others_is_not_written_to() {
    // One is too short for a journal.
    for len in [100, 1500] {
        let fill = |root: PathBuf| {
            std::fs::write(root.join("large"), vec![7; len << 10]).unwrap();
        };
        let Some(made) = Made::new("-b 1024 -O orphan_file", "16M", fill) else {
            return;
        };
        let whole = made.bytes();
        let before = contents(&whole);
        let sb = *Superblock::view(whole[1024..].first_chunk().unwrap());
        for ino in [sb.journal_ino(), sb.orphan_file_ino()] {
            let ino = ino.unwrap().0;
            let damaged = with_map_of_largest(whole.clone(), ino);
            let what = format!("{len} KiB, inode {ino}");
            let (new, _) = mended(&damaged.bytes, &what);
            assert!(contents(&new) == before, "{what}");
            let features = Damaged::new(new).geometry;
            assert!(features.has(ondisk::Feature::HAS_JOURNAL), "{what}");
        }
    }
}

#[test]
fn a_block_of_a_file_or_a_table_does_not_become_the_block_of_the_multi_mount_protection() {
    let fill = |root: PathBuf| {
        for name in ["a", "b"] {
            std::fs::write(root.join(name), name.repeat(30_000)).unwrap();
        }
    };
    let Some(made) = Made::new("-b 1024 -O mmp,^has_journal", "8M", fill) else {
        return;
    };
    let mut damaged = Damaged::new(made.bytes());
    let before = contents(&damaged.bytes);
    let ino = *before.keys().next_back().unwrap();
    let block = u64::from(word(&damaged.bytes[damaged.slot(ino)], EXTENT));
    let table = damaged.desc(0).inode_table().0;
    let first = u64::from(ino - 1) / 4;
    // The table's block with the files' inodes, and one with inodes that are not in use.
    for block in [block + 4, table + first, table + 4] {
        let what = format!("block {block}, table at {table}");
        damaged.change_superblock(|sb| sb.set_mmp_block(FsBlock(block)));
        let (new, _) = mended(&damaged.bytes, &what);
        assert!(contents(&new) == before, "{what}");
        let is_in_table = |at: u64| (table..table + 16).contains(&at);
        let mmp = Superblock::view(new[1024..].first_chunk().unwrap()).mmp_block();
        assert!(!is_in_table(mmp.0), "{what}: {mmp:?}");
    }
}

/// Takes all entries out of a node of a tree, which map `blocks`, and these out of the inode's count.
fn emptied(whole: &Damaged, ino: u32, node: Option<usize>, blocks: u32) -> Damaged {
    let mut damaged = Damaged::new(whole.bytes.clone());
    let slot = &whole.bytes[whole.slot(ino)];
    let generation = ondisk::Inode::parse(slot).unwrap().generation();
    let seed = inode::checksum_seed(whole.geometry.csum_seed(), Ino(ino), generation);
    if let Some(node) = node {
        let bytes = &mut damaged.bytes[node..node + 1024];
        bytes[2..4].fill(0);
        ondisk::extent::set_tail(bytes, seed);
    }
    let sectors = word(slot, 0x1C) - 2 * blocks;
    damaged.change_inode(ino, |slot| {
        set_word(slot, 0x1C, sectors);
        if node.is_none() {
            slot[POINTERS + 2..POINTERS + 4].fill(0);
        }
    });
    damaged
}

/// Neither the kernel nor e2fsck reads on from there.
#[test]
fn a_node_without_entries_is_damage_and_costs_what_it_mapped() {
    let whole = Damaged::new(seed("default-1k"));
    let before = contents(&whole.bytes);
    let slot_of = |ino: u32| &whole.bytes[whole.slot(ino)];
    let has_tree = |ino: &&u32| {
        slot_of(**ino)[POINTERS..POINTERS + 2] == [0x0A, 0xF3] && slot_of(**ino)[POINTERS + 6] == 2
    };
    let ino = *before.keys().find(has_tree).unwrap();
    let top = whole.at(word(slot_of(ino), POINTERS + 16).into());
    let entries = |node: usize| u32::from(whole.bytes[node + 2]);
    let leaf = |index: u32| {
        let entry = &whole.bytes[top + 12 * (index as usize + 1)..];
        whole.at(word(entry, 4).into())
    };
    let leaves: Vec<usize> = (0..entries(top)).map(leaf).collect();
    // Each extent has one block.
    let all: u32 = leaves.iter().map(|leaf| entries(*leaf)).sum();
    assert!(leaves.len() > 2);
    let mut nodes: Vec<_> = leaves
        .iter()
        .map(|leaf| (Some(*leaf), entries(*leaf)))
        .collect();
    let all = all + leaves.len() as u32;
    nodes.extend([(Some(top), all), (None, all + 1)]);
    for (node, blocks) in nodes {
        let damaged = emptied(&whole, ino, node, blocks);
        let what = format!("node at {node:?}");
        let report = check(&damaged.bytes, 1).unwrap();
        // The kernel refuses such a root, too; e2fsck does not look for it.
        let code = match node {
            Some(_) => Code::ExtentHeader,
            None => Code::ExtentRootEmpty,
        };
        let is_found = report.counts.contains_key(&code);
        assert!(is_found, "{what}: {}", shown(&report));
        if let Some(verdict) = e2fsck(&damaged.bytes) {
            let is_theirs = verdict.text.contains("Failed to iterate extents in inode");
            assert_eq!(is_theirs, !code.is_beyond_e2fsck(), "{}", verdict.text);
        }
        let (new, _) = mended(&damaged.bytes, &what);
        let after = contents(&new);
        let left = |files: &BTreeMap<u32, Vec<u8>>| {
            let pieces = files[&ino].chunks(1024);
            pieces.filter(|it| it.iter().any(|byte| *byte != 0)).count()
        };
        let lost = left(&before) - left(&after);
        assert!(lost <= blocks as usize, "{what}: {lost}");
        assert!(
            before
                .iter()
                .all(|(other, bytes)| *other == ino || after[other] == *bytes),
            "{what}"
        );
    }
}

#[test]
fn a_block_that_two_files_claim_stays_with_the_first_where_none_is_free() {
    let fill = |root: PathBuf| {
        for name in ["a", "b", "c"] {
            std::fs::write(root.join(name), name.repeat(700)).unwrap();
        }
    };
    let Some(made) = Made::new("-O ^has_journal,^resize_inode", "2M", fill) else {
        return;
    };
    take_all_blocks(&made);
    let mut damaged = Damaged::new(made.bytes());
    let before = contents(&damaged.bytes);
    let small: Vec<u32> = before
        .iter()
        .filter(|it| it.1.len() == 700)
        .map(|it| *it.0)
        .collect();
    let [first, second] = small[..] else {
        panic!("{small:?}");
    };
    let block = word(&damaged.bytes[damaged.slot(first)], EXTENT);
    damaged.change_inode(second, |slot| set_word(slot, EXTENT, block));
    let taken = Superblock::view(damaged.bytes[1024..].first_chunk().unwrap()).free_blocks_count();
    assert_eq!(taken, 0);
    // The block that the second file had is free now: no file has it.
    let (new, _) = mended(&damaged.bytes, "one block is free");
    assert!(contents(&new)[&first] == before[&first]);
    let other = word(
        &Damaged::new(made.bytes()).bytes[damaged.slot(second)],
        EXTENT,
    );
    damaged.change_inode(1, |slot| {
        set_word(slot, POINTERS, other);
        set_word(slot, 0x1C, 2);
    });
    let (new, _) = mended(&damaged.bytes, "no block is free");
    let after = contents(&new);
    assert!(after[&first] == before[&first]);
    assert_eq!(after[&second], [0; 700]);
}

/// Too few blocks are free for copies of all.
#[test]
fn of_two_files_with_the_same_map_the_one_whose_checksums_are_right_keeps_its_blocks() {
    let mut damaged = Damaged::new(seed("default-2k"));
    let before = contents(&damaged.bytes);
    let holes = damaged.bytes[damaged.slot(15)].to_vec();
    damaged.change_inode(12, |slot| slot.copy_from_slice(&holes));
    let (new, _) = mended(&damaged.bytes, "the map of 15 in 12");
    assert!(contents(&new)[&15] == before[&15]);
}

#[test]
fn the_value_of_an_attribute_that_is_gone_becomes_a_file() {
    let fill = |root: PathBuf| {
        for name in ["one", "two"] {
            std::fs::write(root.join(name), name.repeat(1000)).unwrap();
        }
    };
    let Some(made) = Made::new("-O ea_inode", "4M", fill) else {
        return;
    };
    let gone = ["one", "two"].map(|name| {
        let flags = format!("set_inode_field {name} flags 0x280000");
        [flags, format!("unlink {name}")]
    });
    let commands: Vec<&str> = gone.iter().flatten().map(String::as_str).collect();
    made.debugfs(&commands);
    let damaged = Damaged::new(made.bytes());
    let (new, _) = mended(&damaged.bytes, "value");
    assert!(contents(&new).values().any(|it| it.len() == 3000));
}

#[test]
fn a_bitmap_whose_place_is_lost_does_not_take_the_block_of_a_file() {
    let mut damaged = Damaged::new(seed("default-1k"));
    let before = contents(&damaged.bytes);
    let mut desc = damaged.desc(0);
    desc.set_block_bitmap(FsBlock(1 << 40));
    damaged.set_desc(0, &desc);
    let (new, repaired) = mended(&damaged.bytes, "block bitmap");
    assert!(contents(&new) == before);
    let writes = repaired.writes.unwrap();
    assert!(writes.copies.is_empty(), "a file was moved");
    let descriptors = damaged.geometry.desc_block(0).0;
    assert_eq!(writes.first[&descriptors], writes.blocks[&descriptors]);
}

#[test]
fn copies_of_table_blocks_in_the_log_are_not_taken_for_the_inode_table() {
    // The log precedes the table and holds copies of the root's block. Without checksums of inodes, a place that begins
    // in the log and ends in the table seems to hold more inodes than the table.
    for name in ["inode-128", "uninit-bg"] {
        for backup in [1, 0] {
            let mut damaged = Damaged::new(seed(name));
            let before = contents(&damaged.bytes);
            damaged.change_superblock(|sb| sb.set_journal_backup_type(backup));
            let mut desc = damaged.desc(0);
            desc.set_inode_table(FsBlock(1 << 40));
            damaged.set_desc(0, &desc);
            let what = format!("{name}, backup of the journal's map: {backup}");
            let (new, _) = mended(&damaged.bytes, &what);
            assert!(contents(&new) == before, "{what}");
        }
    }
}

#[test]
fn a_lost_inode_table_is_found_though_the_root_in_it_is_broken() {
    for (name, whole_root) in [
        ("default-1k", false),
        ("default-1k", true),
        ("default-4k", false),
        ("default-4k", true),
        ("inode-128", true),
    ] {
        let mut damaged = Damaged::new(seed(name));
        let before = contents(&damaged.bytes);
        let slot = damaged.slot(2);
        if whole_root {
            damaged.bytes[slot].fill(0);
        } else {
            // Another owner: the checksum is wrong.
            damaged.bytes[slot.start + 2] ^= 1;
        }
        let mut desc = damaged.desc(0);
        desc.set_inode_table(FsBlock(1 << 40));
        damaged.set_desc(0, &desc);
        let what = format!("{name}, all of the root: {whole_root}");
        let (new, _) = mended(&damaged.bytes, &what);
        assert!(contents(&new) == before, "{what}");
    }
}

#[test]
fn a_wrong_number_of_inodes_in_a_group_costs_nothing() {
    for (name, factor, divisor) in [
        ("ext3-1k", 3, 1),
        ("ext3-1k", 1, 2),
        ("meta-bg", 3, 1),
        ("meta-bg", 1, 2),
    ] {
        let mut damaged = Damaged::new(seed(name));
        let before = contents(&damaged.bytes);
        damaged.change_superblock(|sb| {
            sb.set_inodes_per_group(sb.inodes_per_group() * factor / divisor);
        });
        let what = format!("{name}, times {factor}/{divisor}");
        let (new, repaired) = mended(&damaged.bytes, &what);
        let counts = &repaired.before.counts;
        assert!(counts.contains_key(&Code::InodesPerGroup), "{what}");
        assert!(contents(&new) == before, "{what}");
    }
}

#[test]
fn an_error_on_record_in_the_journal_is_reported_and_cleared() {
    let mut damaged = Damaged::new(seed("default-1k"));
    let slot = &damaged.bytes[damaged.slot(8)];
    let first = damaged.at(word(slot, EXTENT).into());
    let mut journal = JournalSuperblock::read(&damaged.bytes[first..]).unwrap();
    journal.set_errno_raw(5);
    journal.seal();
    damaged.bytes[first..first + JournalSuperblock::SIZE].copy_from_slice(journal.bytes());
    let (new, repaired) = mended(&damaged.bytes, "errno");
    let codes: Vec<Code> = repaired.before.counts.keys().copied().collect();
    assert_eq!(codes, [Code::JournalErrno]);
    let journal = JournalSuperblock::read(&new[first..]).unwrap();
    assert_eq!(journal.errno_raw(), 0);
}
