//! Images with a single fault that e2fsck names: `check` finds it, and after a repair both find nothing.

use lanefs_check::problem::Code;
use ondisk::{FileType, Flags, Inode};

use crate::mended::{Damaged, mended, seed};
use crate::{check, e2fsck, shown};

/// Asserts that both checkers find the fault, with these numbers, and that a repair mends it. An old e2fsck that does
/// not know the fault may find nothing.
fn assert_found_and_mended(damaged: &Damaged, code: Code, number: u32, what: &str) {
    let report = check(&damaged.bytes, 1).unwrap();
    assert!(
        report.counts.contains_key(&code) && !report.is_clean(),
        "{what}: {}",
        shown(&report)
    );
    if let Some(verdict) = e2fsck(&damaged.bytes) {
        assert!(
            verdict.numbers.contains(&number) || verdict.numbers.is_empty(),
            "{what}: {}",
            verdict.text
        );
    }
    mended(&damaged.bytes, what);
}

/// The numbers of the inodes in use for which `is_wanted` returns true.
fn inodes(image: &Damaged, is_wanted: impl Fn(&Inode) -> bool) -> Vec<u32> {
    let all = 11..=image.geometry.inodes_count();
    let parsed = all.filter_map(|ino| {
        let inode = Inode::parse(&image.bytes[image.slot(ino)]).ok()?;
        (inode.links_count() > 0 && is_wanted(&inode)).then_some(ino)
    });
    parsed.collect()
}

#[test]
fn a_word_of_an_index_that_must_be_zero_is_found_and_mended() {
    let mut damaged = Damaged::new(seed("ext3-1k"));
    let ino = inodes(&damaged, |inode| inode.flags().contains(Flags::INDEX))[0];
    let inode = Inode::parse(&damaged.bytes[damaged.slot(ino)]).unwrap();
    let root = damaged.at(inode.block_word(0).into());
    damaged.bytes[root + 24] = 0x42;
    assert_found_and_mended(&damaged, Code::HtreeRoot, 0x01_0049, "reserved word");
}

#[test]
fn a_value_inode_of_another_size_is_found_and_mended() {
    let mut damaged = Damaged::new(seed("ea-inode"));
    let is_value = |inode: &Inode| inode.flags().contains(Flags::EA_INODE);
    let ino = inodes(&damaged, is_value)[0];
    damaged.change_inode(ino, |slot| slot[4] ^= 1);
    assert_found_and_mended(&damaged, Code::XattrValueSize, 0x01_0053, "value's size");
}

#[test]
fn a_value_in_lustres_form_does_not_count_as_its_owners_blocks() {
    let mut damaged = Damaged::new(seed("ea-inode"));
    let whole = check(&damaged.bytes, 1).unwrap();
    assert!(whole.is_clean());
    let is_value = |inode: &Inode| inode.flags().contains(Flags::EA_INODE);
    let values = inodes(&damaged, is_value);
    let has_values = |inode: &Inode| {
        let blocks = inode
            .size(true)
            .div_ceil(damaged.geometry.block_size().bytes_u64());
        let sectors = inode.sectors(true, damaged.geometry.block_size());
        !is_value(inode) && sectors > (blocks + 1) << (damaged.geometry.block_size().bits() - 9)
    };
    let owner = inodes(&damaged, has_values)[0];
    let generation = Inode::parse(&damaged.bytes[damaged.slot(owner)])
        .unwrap()
        .generation();
    for value in values {
        damaged.change_inode(value, |slot| {
            // A wrong hash of the value, and the owner where Lustre stores it.
            slot[0x08] ^= 1;
            slot[0x10..0x14].copy_from_slice(&owner.to_le_bytes());
            slot[0x64..0x68].copy_from_slice(&generation.0.to_le_bytes());
        });
    }
    assert_found_and_mended(&damaged, Code::InodeBlocks, 0x01_000D, "Lustre");
}

#[test]
fn a_cluster_of_a_file_in_two_clusters_is_found_and_mended() {
    let mut damaged = Damaged::new(seed("bigalloc"));
    let size = damaged.geometry.block_size();
    let ratio = u64::from(damaged.geometry.cluster_ratio());
    // One extent from block 0 on, of `least` to 255 blocks.
    let has_run_of = |inode: &Inode, least: u8| {
        let area = inode.block_area();
        inode.flags().contains(Flags::EXTENTS)
            && area[2..8] == [1, 0, 4, 0, 0, 0]
            && area[12..16] == [0; 4]
            && area[16] >= least
            && area[17] == 0
    };
    let first = inodes(&damaged, |inode| has_run_of(inode, 2))[0];
    let others = inodes(&damaged, |inode| has_run_of(inode, 1));
    let second = *others.iter().find(|ino| **ino != first).unwrap();
    let start = |ino: u32| {
        let slot = &damaged.bytes[damaged.slot(ino)];
        u32::from_le_bytes([slot[0x3C], slot[0x3D], slot[0x3E], slot[0x3F]])
    };
    // The second block of the first file becomes the second block of the other file's cluster.
    let other = start(second) + 1;
    assert!(u64::from(other) % ratio == 1 && size.bytes() < 1 << 16);
    let len = u64::from(damaged.bytes[damaged.slot(first)][0x38]);
    damaged.change_inode(first, |slot| {
        slot[0x2A] = 2;
        slot[0x38] = 1;
        slot[0x40..0x44].copy_from_slice(&1_u32.to_le_bytes());
        slot[0x44..0x46].copy_from_slice(&(len as u16 - 1).min(1).to_le_bytes());
        slot[0x46..0x48].fill(0);
        slot[0x48..0x4C].copy_from_slice(&other.to_le_bytes());
    });
    assert_found_and_mended(
        &damaged,
        Code::MisalignedCluster,
        0x01_0074,
        "split cluster",
    );
}

#[test]
fn junk_in_place_of_a_deleted_inode_has_a_checksum_as_e2fsck_reckons_it() {
    for name in ["default-1k", "default-4k"] {
        let mut damaged = Damaged::new(seed(name));
        let ino = inodes(&damaged, |inode| {
            inode.file_type() == Some(FileType::Regular)
        })[1];
        let slot = damaged.slot(ino);
        // The extra size is far larger than the slot.
        damaged.bytes[slot.clone()].fill(0xE1);
        damaged.bytes[slot.start + 0x1A..slot.start + 0x1C].fill(0);
        assert_found_and_mended(&damaged, Code::InodeChecksum, 0x01_0068, name);
    }
}
