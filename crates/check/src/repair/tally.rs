//! The last step of a repair: sets link counts, reference counts, bitmaps, and the counts of groups and superblock to
//! what the check found.

use std::collections::BTreeSet;

use ondisk::{Feature, FileType, Group, Ino, bitmap, group_desc, xattr};

use crate::problem::Code;
use crate::repair::attributes;
use crate::repair::edit::Edit;
use crate::report::{Problem, Totals};
use crate::run::Facts;

/// Corrects the counts of links and references that `problems` report.
pub fn links(edit: &mut Edit<'_, '_>, problems: &[Problem]) {
    for problem in problems {
        let Some(expected) = problem.expected else {
            continue;
        };
        match (problem.code, problem.ino, problem.block) {
            (Code::Links, Some(ino), _) => {
                set_links(edit, Ino(ino), expected);
            }
            (Code::XattrValueReferences, Some(ino), _) => {
                if let Some(mut inode) = edit.inode(Ino(ino)) {
                    inode.set_value_references(expected);
                    edit.set_inode(Ino(ino), &inode);
                }
            }
            (Code::XattrReferences, _, Some(block)) => {
                if let (Some(mut bytes), Ok(count)) = (edit.block(block), u32::try_from(expected)) {
                    xattr::set_references(&mut bytes, count);
                    attributes::reseal(edit, block, bytes);
                }
            }
            _ => {}
        }
    }
}

fn set_links(edit: &mut Edit<'_, '_>, ino: Ino, links: u64) -> Option<()> {
    let mut inode = edit.inode(ino)?;
    let is_directory = inode.file_type() == Some(FileType::Directory);
    let links = match u16::try_from(links) {
        Ok(links) if links <= 65_000 || !is_directory => links,
        _ if is_directory => {
            // With dir_nlink, a count of 1 means that the directory has more links than the count can hold.
            if !edit.has(Feature::DIR_NLINK) {
                let features = edit.sb.features().with(Feature::DIR_NLINK);
                edit.sb.set_features(features);
                edit.set_superblock()?;
            }
            1
        }
        _ => return None,
    };
    inode.set_links_count(links);
    edit.set_inode(ino, &inode)
}

/// Writes the bitmaps and counts of these groups.
pub fn groups(edit: &mut Edit<'_, '_>, facts: &Facts, groups: &BTreeSet<u32>) {
    for group in groups {
        if *group < edit.geometry.groups() {
            one_group(edit, facts, Group(*group));
        }
    }
}

fn one_group(edit: &mut Edit<'_, '_>, facts: &Facts, group: Group) -> Option<()> {
    let geometry = edit.geometry;
    let mut desc = edit.desc(group)?;
    let bits = 8 * geometry.block_size().bytes() as u32;
    let clusters = geometry.group_clusters(group);
    let claimed = facts.claims.claimed_in(group);
    let mut used = claimed.map_or_else(Vec::new, crate::bits::AtomicBits::to_bytes);
    used.resize(geometry.block_size().bytes(), 0);
    if facts.has_unread {
        add_bits(&mut used, &edit.block(desc.block_bitmap().0)?);
    }
    desc.set_free_clusters(clusters - bitmap::count(&used, clusters));
    bitmap::set_range(&mut used, clusters..bits);
    desc.seal_block_bitmap(&used, &geometry);
    write_bitmap(edit, desc.block_bitmap().0, used);
    let mut flags = desc.flags() & !group_desc::flags::BLOCK_UNINIT;
    let per_group = geometry.inodes_per_group();
    let mut used = vec![0; geometry.block_size().bytes()];
    let mut directories = 0;
    for index in 0..per_group {
        let ino = geometry.ino_of(group, index);
        let state = facts.inodes.state(ino);
        if state.is_used() || ino < geometry.first_ino() {
            bitmap::set(&mut used, index);
        }
        let is_directory = state.file_type() == Some(FileType::Directory);
        directories += u32::from(state.is_used() && is_directory);
    }
    if facts.has_unread {
        add_bits(&mut used, &edit.block(desc.inode_bitmap().0)?);
    } else {
        desc.set_used_dirs(directories);
    }
    let count = bitmap::count(&used, per_group);
    desc.set_free_inodes(per_group - count);
    if count > 0 || flags & group_desc::flags::INODE_UNINIT == 0 {
        flags &= !group_desc::flags::INODE_UNINIT;
        bitmap::set_range(&mut used, per_group..bits);
        desc.seal_inode_bitmap(&used, &geometry);
        write_bitmap(edit, desc.inode_bitmap().0, used);
    }
    desc.set_flags(flags);
    edit.set_desc(group, &desc)
}

/// Adds the bits that the disk's bitmap has set. Used if part of the inodes or maps can't be read, since those may use
/// what nothing else claims.
fn add_bits(used: &mut [u8], disk: &[u8]) {
    for (to, from) in used.iter_mut().zip(disk) {
        *to |= from;
    }
}

fn write_bitmap(edit: &mut Edit<'_, '_>, block: u64, bytes: Vec<u8>) {
    if edit.block(block).as_ref() != Some(&bytes) {
        edit.set_block(block, bytes);
    }
}

/// Sets the superblock's counts.
pub fn superblock(edit: &mut Edit<'_, '_>, totals: &Totals) {
    edit.sb
        .set_free_blocks_count(totals.blocks - totals.used_blocks);
    let free = totals.inodes.saturating_sub(totals.files);
    edit.sb
        .set_free_inodes_count(u32::try_from(free).unwrap_or(u32::MAX));
    edit.set_superblock();
}
