//! Quota files under repair: the usage of each user, group and project is set to what the inodes add up to.
//!
//! A quota file (version 2, revision 1) is a tree of blocks of 1 KiB: block 1 is the root, four levels of 256 block
//! numbers lead to leaves, and a leaf has 14 records of 72 bytes behind a header of 16. Only records that exist are
//! changed; limits stay as they are.

use std::collections::{BTreeMap, BTreeSet};

use ondisk::{Feature, Ino};

use crate::map::word32;
use crate::repair::edit::Edit;
use crate::repair::map;
use crate::run::Facts;

/// Bytes of a block of the tree.
const BLOCK: u64 = 1024;
/// Levels of block numbers above the leaves.
const DEPTH: u32 = 4;
const HEADER: usize = 16;
const RECORD: usize = 72;
/// Where a record has the number of inodes and the bytes in use.
const INODES: usize = 24;
const SPACE: usize = 48;
/// What the file begins with, for users, groups and projects.
const MAGIC: [u32; 3] = [0xD9C0_1F11, 0xD9C0_1927, 0xD9C0_3F14];

/// Inodes and bytes in use.
type Usage = BTreeMap<u32, (u64, u64)>;

/// Sets the usage in all quota files right.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts) {
    if !edit.has(Feature::QUOTA) {
        return;
    }
    let usage = usage(edit, facts);
    let files = [
        edit.sb.user_quota_ino(),
        edit.sb.group_quota_ino(),
        edit.sb.project_quota_ino(),
    ];
    for ((ino, usage), magic) in files.into_iter().zip(&usage).zip(MAGIC) {
        if let Some(ino) = ino {
            file(edit, ino, usage, magic);
        }
    }
}

/// What the inodes of each user, group and project take.
fn usage(edit: &Edit<'_, '_>, facts: &Facts) -> [Usage; 3] {
    let mut sums = [Usage::new(), Usage::new(), Usage::new()];
    let geometry = edit.geometry;
    let special = [
        edit.sb.user_quota_ino(),
        edit.sb.group_quota_ino(),
        edit.sb.project_quota_ino(),
        edit.sb
            .orphan_file_ino()
            .filter(|_| edit.has(Feature::ORPHAN_FILE)),
    ];
    for group in geometry.all_groups() {
        for (index, state, _) in facts.inodes.in_group(group) {
            let ino = geometry.ino_of(group, index);
            // Files of the file system itself belong to nobody.
            let is_own = special.contains(&Some(ino));
            let counts = ino == Ino::ROOT || ino >= geometry.first_ino();
            if is_own || !counts || !state.is_used() {
                continue;
            }
            let Some(inode) = edit.inode(ino) else {
                continue;
            };
            let sectors = inode.sectors(edit.has(Feature::HUGE_FILE), geometry.block_size());
            let project = if edit.has(Feature::PROJECT) {
                inode.project()
            } else {
                0
            };
            for (sums, id) in sums.iter_mut().zip([inode.uid(), inode.gid(), project]) {
                let sum = sums.entry(id).or_default();
                sum.0 += 1;
                sum.1 += sectors * 512;
            }
        }
    }
    sums
}

fn file(edit: &mut Edit<'_, '_>, ino: Ino, usage: &Usage, magic: u32) -> Option<()> {
    let inode = edit.inode(ino)?;
    let map = map::read(edit, ino, &inode)?;
    let first = read(edit, &map, 0)?;
    if word32(&first, 0) != magic {
        return None;
    }
    let mut leaves = BTreeSet::new();
    let mut met = BTreeSet::new();
    let mut waiting = vec![(1_u32, DEPTH)];
    while let Some((number, levels)) = waiting.pop() {
        if !met.insert((number, levels)) {
            continue;
        }
        let Some(bytes) = read(edit, &map, number) else {
            continue;
        };
        edit.spend(1)?;
        for word in 0..BLOCK as usize / 4 {
            match word32(&bytes, 4 * word) {
                0 => {}
                below if levels == 1 => {
                    leaves.insert(below);
                }
                below => waiting.push((below, levels - 1)),
            }
        }
    }
    for leaf in leaves {
        let Some(old) = read(edit, &map, leaf) else {
            continue;
        };
        let mut bytes = old.clone();
        for record in bytes[HEADER..].chunks_exact_mut(RECORD) {
            let is_unused = record.iter().all(|byte| *byte == 0);
            if is_unused {
                continue;
            }
            let (inodes, space) = usage.get(&word32(record, 0)).copied().unwrap_or_default();
            record[INODES..INODES + 8].copy_from_slice(&inodes.to_le_bytes());
            record[SPACE..SPACE + 8].copy_from_slice(&space.to_le_bytes());
        }
        if bytes != old {
            write(edit, &map, leaf, &bytes)?;
        }
    }
    Some(())
}

/// The block of the device and the byte in it of a block of the tree.
fn place(edit: &Edit<'_, '_>, map: &map::FileMap, number: u32) -> Option<(u64, usize)> {
    let offset = u64::from(number) * BLOCK;
    let bits = edit.geometry.block_size().bits();
    let block = map.place(offset >> bits)?;
    Some((block, (offset & ((1 << bits) - 1)) as usize))
}

fn read(edit: &Edit<'_, '_>, map: &map::FileMap, number: u32) -> Option<Vec<u8>> {
    let (block, at) = place(edit, map, number)?;
    let bytes = edit.block(block)?;
    Some(bytes.get(at..at + BLOCK as usize)?.to_vec())
}

fn write(edit: &mut Edit<'_, '_>, map: &map::FileMap, number: u32, new: &[u8]) -> Option<()> {
    let (block, at) = place(edit, map, number)?;
    let mut bytes = edit.block(block)?;
    bytes.get_mut(at..at + new.len())?.copy_from_slice(new);
    edit.set_block(block, bytes);
    Some(())
}
