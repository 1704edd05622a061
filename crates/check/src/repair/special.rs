//! The file system's own files under repair: journal, orphans, the resize inode, quota files, the multi-mount block.

use std::collections::BTreeSet;

use ondisk::jbd2::{BlockHeader, JournalSuperblock};
use ondisk::mmp::Mmp;
use ondisk::{Feature, FileType, Flags, FsBlock, Ino, Inode, Tid, extent, orphan_file};

use crate::map::Run;
use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::repair::{attributes, map};
use crate::run::Facts;

/// Sets right what the codes name.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts, codes: &BTreeSet<Code>) {
    let has = |wanted: &[Code]| wanted.iter().any(|code| codes.contains(code));
    if has(&[
        Code::OrphanHead,
        Code::OrphanLoop,
        Code::OrphanFile,
        Code::OrphanFlag,
        Code::OrphanCount,
    ]) {
        orphans(edit, facts);
    }
    if has(&[Code::JournalInode]) {
        journal_inode(edit, facts);
    } else if has(&[
        Code::JournalSuperblock,
        Code::JournalFirst,
        Code::JournalReplayFailed,
    ]) {
        reset_journal(edit, facts);
    }
    if has(&[Code::JournalRecoverWithout]) {
        remove_feature(edit, Feature::NEEDS_RECOVERY);
    }
    if has(&[Code::JournalNotReplayed]) {
        empty_journal(edit, facts);
    }
    if has(&[Code::JournalExtra]) {
        edit.sb.set_journal_ino(None);
        edit.set_superblock();
        edit.clear_inode(Ino::JOURNAL);
    }
    if has(&[Code::MmpBlock]) {
        mmp(edit);
    }
}

fn remove_feature(edit: &mut Edit<'_, '_>, feature: Feature) {
    let features = edit.sb.features().without(feature);
    edit.sb.set_features(features);
    edit.set_superblock();
}

/// Does for orphans what a mount does: those without links are deleted, the others are cut to their size.
fn orphans(edit: &mut Edit<'_, '_>, facts: &Facts) {
    for ino in facts.orphans.iter().copied().map(Ino) {
        orphan(edit, ino);
    }
    edit.sb.set_last_orphan(None);
    if edit.has(Feature::ORPHAN_FILE) {
        let is_emptied = edit
            .sb
            .orphan_file_ino()
            .and_then(|ino| empty_orphan_file(edit, ino));
        let mut features = edit.sb.features().without(Feature::ORPHAN_PRESENT);
        if is_emptied.is_none() {
            features = features.without(Feature::ORPHAN_FILE);
            if let Some(ino) = edit.sb.orphan_file_ino() {
                edit.clear_inode(ino);
            }
            edit.sb.set_orphan_file_ino(None);
        }
        edit.sb.set_features(features);
    }
    edit.set_superblock();
}

fn orphan(edit: &mut Edit<'_, '_>, ino: Ino) -> Option<()> {
    let slot = edit.slot(ino)?;
    let mut inode = Inode::parse(&slot).ok()?;
    if inode.links_count() == 0 {
        inode.set_dtime(edit.now);
        return edit.set_inode(ino, &inode);
    }
    inode.set_dtime(0);
    if inode.file_type() == Some(FileType::Regular) && map::is_mapped(&inode) {
        let end = edit.geometry.block_size().blocks_for(inode.size(true));
        let old = map::read(edit, ino, &inode)?;
        if old.end() > end {
            let mut runs = old.runs;
            runs.retain(|run| run.lblk < end);
            for run in &mut runs {
                run.len = run.len.min(end - run.lblk);
            }
            let new = map::write(edit, ino, &mut inode, runs)?;
            let sectors = attributes::sectors(edit, &inode, &slot);
            map::settle(edit, &mut inode, &new, sectors);
        }
    }
    edit.set_inode(ino, &inode)
}

/// The blocks of a file of the file system itself.
fn file(edit: &Edit<'_, '_>, ino: Ino) -> Option<(Inode, Vec<u64>)> {
    let inode = edit.inode(ino)?;
    let is_file = inode.file_type() == Some(FileType::Regular) && inode.links_count() > 0;
    if !is_file || inode.flags().contains(Flags::INLINE_DATA) {
        return None;
    }
    let map = map::read(edit, ino, &inode)?;
    if map.is_damaged || map.runs.is_empty() {
        return None;
    }
    let mut blocks = Vec::new();
    for run in &map.runs {
        if run.lblk != blocks.len() as u64 {
            return None;
        }
        blocks.extend(run.pblk..run.pblk + run.len);
    }
    Some((inode, blocks))
}

fn empty_orphan_file(edit: &mut Edit<'_, '_>, ino: Ino) -> Option<()> {
    let (inode, blocks) = file(edit, ino)?;
    let seed = edit
        .geometry
        .has_metadata_csum()
        .then(|| edit.seed(ino, &inode));
    let size = edit.geometry.block_size();
    if blocks.len() as u64 > orphan_file::BLOCKS_MAX {
        return None;
    }
    for block in blocks {
        edit.set_block(block, orphan_file::empty_block(size, FsBlock(block), seed));
    }
    Some(())
}

/// The journal's inode as its copy in the superblock has it, else a file system without a journal.
fn journal_inode(edit: &mut Edit<'_, '_>, facts: &Facts) {
    if restore_journal(edit).is_some() {
        return;
    }
    if new_journal(edit).is_some() {
        return;
    }
    let ino = facts.sb.journal_ino();
    let features = edit.sb.features().without(Feature::HAS_JOURNAL);
    edit.sb
        .set_features(features.without(Feature::NEEDS_RECOVERY));
    edit.sb.set_journal_ino(None);
    edit.set_superblock();
    if ino == Some(Ino::JOURNAL) {
        edit.clear_inode(Ino::JOURNAL);
    }
}

fn restore_journal(edit: &mut Edit<'_, '_>) -> Option<()> {
    if edit.sb.journal_backup_type() != 1 {
        return None;
    }
    let words = edit.sb.journal_backup();
    let mut slot = edit.slot(Ino::JOURNAL)?;
    let mut inode = Inode::parse(&slot).unwrap_or_else(|_| Inode::zeroed());
    for (index, word) in words.iter().take(15).enumerate() {
        inode.set_block_word(index, *word);
    }
    inode.set_mode(FileType::Regular.mode_bits() | 0o600);
    inode.set_links_count(1);
    inode.set_dtime(0);
    inode.set_size(u64::from(words[15]) << 32 | u64::from(words[16]));
    let is_extents = inode.block_area().starts_with(&extent::MAGIC.to_le_bytes());
    inode.set_flags(if is_extents { Flags::EXTENTS } else { Flags(0) });
    let map = map::read(edit, Ino::JOURNAL, &inode)?;
    let first = edit.block(map.place(0)?)?;
    BlockHeader::of(&first)?;
    map::settle(edit, &mut inode, &map, 0);
    inode.set_size(u64::from(words[15]) << 32 | u64::from(words[16]));
    slot.fill(0);
    inode.write_to(&mut slot);
    edit.sb.set_journal_ino(Some(Ino::JOURNAL));
    edit.set_superblock()?;
    edit.set_slot(Ino::JOURNAL, slot)
}

/// An empty journal in new blocks, as large as the old one was, or as mke2fs makes it.
fn new_journal(edit: &mut Edit<'_, '_>) -> Option<()> {
    let size = edit.geometry.block_size();
    let words = edit.sb.journal_backup();
    let old = (u64::from(words[15]) << 32 | u64::from(words[16])) >> size.bits();
    let most = u64::from(edit.geometry.blocks_per_group());
    let least = u64::from(ondisk::jbd2::BLOCKS_MIN);
    let wanted = match edit.geometry.blocks_count() {
        0..32_768 => 1024,
        32_768..262_144 => 4096,
        262_144..524_288 => 8192,
        _ => 16_384,
    };
    let has_old = edit.sb.journal_backup_type() == 1 && (least..most).contains(&old);
    let count = u32::try_from(if has_old { old } else { wanted }).ok()?;
    let first = edit.space.allocate_run(count)?;
    let mut journal = JournalSuperblock::new(size, count, 1);
    journal.set_uuid(edit.sb.uuid());
    let mut inode = Inode::zeroed();
    inode.set_mode(FileType::Regular.mode_bits() | 0o600);
    inode.set_links_count(1);
    inode.set_size(u64::from(count) << size.bits());
    if edit.has(Feature::EXTENT) {
        inode.set_flags(Flags::EXTENTS);
    }
    let run = Run {
        lblk: 0,
        pblk: first.0,
        len: count.into(),
        unwritten: false,
    };
    let map = map::write(edit, Ino::JOURNAL, &mut inode, vec![run])?;
    map::settle(edit, &mut inode, &map, 0);
    let mut slot = vec![0; edit.geometry.inode_size()];
    inode.write_to(&mut slot);
    edit.set_slot(Ino::JOURNAL, slot)?;
    let mut backup = [0; 17];
    for (index, word) in backup.iter_mut().take(15).enumerate() {
        *word = inode.block_word(index);
    }
    backup[15] = (inode.size(true) >> 32) as u32;
    backup[16] = (inode.size(true) & 0xFFFF_FFFF) as u32;
    edit.set_block(first.0, vec![0; size.bytes()]);
    write_journal_superblock(edit, first.0, &mut journal)?;
    edit.sb.set_journal_backup(backup);
    edit.sb.set_journal_backup_type(1);
    edit.sb.set_journal_ino(Some(Ino::JOURNAL));
    let features = edit.sb.features().without(Feature::NEEDS_RECOVERY);
    edit.sb.set_features(features);
    edit.set_superblock()
}

/// A new journal superblock without features, whose next transaction has a number that no block of the log has.
fn reset_journal(edit: &mut Edit<'_, '_>, facts: &Facts) -> Option<()> {
    let (inode, blocks) = file(edit, facts.sb.journal_ino()?)?;
    let size = edit.geometry.block_size();
    let count = blocks.len().min((inode.size(true) >> size.bits()) as usize);
    let mut tid = Tid(1);
    for block in blocks.iter().skip(1).take(count) {
        let mut header = [0; BlockHeader::SIZE];
        let offset = FsBlock(*block).offset(size);
        device::BlockDevice::read_at(&*edit.image, offset, &mut header).ok()?;
        if let Some(header) = BlockHeader::of(&header)
            && header.tid().is_at_or_after(tid)
        {
            tid = header.tid().next();
        }
    }
    let mut journal = JournalSuperblock::new(size, u32::try_from(count).ok()?, 1);
    journal.set_uuid(edit.sb.uuid());
    journal.set_sequence(tid);
    write_journal_superblock(edit, blocks[0], &mut journal)?;
    remove_feature(edit, Feature::NEEDS_RECOVERY);
    Some(())
}

fn write_journal_superblock(
    edit: &mut Edit<'_, '_>,
    block: u64,
    journal: &mut JournalSuperblock,
) -> Option<()> {
    journal.seal();
    let mut bytes = edit.block(block)?;
    bytes[..JournalSuperblock::SIZE].copy_from_slice(journal.bytes());
    edit.set_block(block, bytes);
    Some(())
}

/// Marks a log empty that the superblock does not ask to replay, as a mount by Linux does.
fn empty_journal(edit: &mut Edit<'_, '_>, facts: &Facts) -> Option<()> {
    let (_, blocks) = file(edit, facts.sb.journal_ino()?)?;
    let mut journal = JournalSuperblock::read(&edit.block(*blocks.first()?)?)?;
    // A log has fewer transactions than blocks: the next number is one that none of them has.
    journal.set_sequence(Tid(journal
        .sequence()
        .0
        .wrapping_add(journal.blocks_count())));
    journal.set_start(0);
    write_journal_superblock(edit, blocks[0], &mut journal)
}

fn mmp(edit: &mut Edit<'_, '_>) -> Option<()> {
    let seed = edit
        .geometry
        .has_metadata_csum()
        .then(|| edit.geometry.csum_seed());
    let mut block = edit.sb.mmp_block().0;
    let first = u64::from(edit.sb.first_data_block());
    if block <= first || !edit.contains(block, 1) {
        block = edit.new_block()?;
        edit.sb.set_mmp_block(FsBlock(block));
        edit.set_superblock()?;
    }
    let interval = edit.sb.mmp_interval().max(5);
    let mut mmp = Mmp::clean(interval, seed);
    mmp.seal(seed);
    let mut bytes = vec![0; edit.block_bytes()];
    bytes[..Mmp::SIZE].copy_from_slice(mmp.bytes());
    edit.set_block(block, bytes);
    Some(())
}

/// Builds the resize inode anew: a double-indirect block that names the reserved descriptor blocks, each of which names
/// its copies.
pub fn resize_inode(edit: &mut Edit<'_, '_>) -> Option<()> {
    let geometry = edit.geometry;
    if !edit.has(Feature::RESIZE_INODE) {
        return edit.set_slot(Ino::RESIZE, vec![0; geometry.inode_size()]);
    }
    let size = geometry.block_size();
    let per_block = size.bytes() / 4;
    let primary = geometry.primary_superblock().0 + 1;
    let reserved = geometry.group_start(ondisk::Group(0)).reserved;
    let copies: Vec<u64> = geometry
        .all_groups()
        .skip(1)
        .filter(|group| geometry.has_super(*group))
        .map(|group| {
            geometry.group_first_block(group).0 - geometry.group_first_block(ondisk::Group(0)).0
        })
        .collect();
    let double = edit.new_block()?;
    let mut top = vec![0; size.bytes()];
    let mut blocks = 1;
    for block in reserved {
        let mut bytes = vec![0; size.bytes()];
        for (index, distance) in copies.iter().take(per_block).enumerate() {
            let copy = u32::try_from(block + distance).ok()?;
            bytes[4 * index..4 * index + 4].copy_from_slice(&copy.to_le_bytes());
        }
        blocks += 1 + copies.len().min(per_block) as u64;
        let at = 4 * ((block - primary) as usize % per_block);
        let number = u32::try_from(block).ok()?;
        top[at..at + 4].copy_from_slice(&number.to_le_bytes());
        edit.set_block(block, bytes);
    }
    edit.set_block(double, top);
    let mut inode = Inode::zeroed();
    inode.set_mode(FileType::Regular.mode_bits() | 0o600);
    inode.set_links_count(1);
    inode.set_block_word(13, u32::try_from(double).ok()?);
    let span = 12 + per_block as u64 + (per_block * per_block) as u64;
    inode.set_size(span << size.bits());
    let time = ondisk::Timestamp::decode(edit.now, 0);
    inode.set_ctime(time);
    inode.set_mtime(time);
    inode.set_atime(time);
    // With bigalloc each of its blocks counts as a cluster.
    let sectors = blocks << (size.bits() - 9) << geometry.cluster_ratio_bits();
    let _ = inode.set_sectors(sectors, false, size);
    let mut slot = vec![0; geometry.inode_size()];
    inode.write_to(&mut slot);
    edit.set_slot(Ino::RESIZE, slot)
}

/// A quota file that can't be used is given up.
pub fn quota_inode(edit: &mut Edit<'_, '_>, ino: Ino) {
    for (named, is_named) in [
        (0, edit.sb.user_quota_ino() == Some(ino)),
        (1, edit.sb.group_quota_ino() == Some(ino)),
        (2, edit.sb.project_quota_ino() == Some(ino)),
    ] {
        match (is_named, named) {
            (true, 0) => edit.sb.set_user_quota_ino(None),
            (true, 1) => edit.sb.set_group_quota_ino(None),
            (true, _) => edit.sb.set_project_quota_ino(None),
            _ => {}
        }
    }
    edit.set_superblock();
    edit.clear_inode(ino);
}
