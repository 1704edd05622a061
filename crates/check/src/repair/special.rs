//! Repairs the journal, the record of orphans, the resize inode and the block of the multi-mount protection.

use std::collections::BTreeSet;

use ondisk::jbd2::{BlockHeader, JournalSuperblock};
use ondisk::mmp::Mmp;
use ondisk::{Feature, FileType, Flags, FsBlock, Ino, Inode, Superblock, Tid, extent, orphan_file};

use crate::map::MapRun;
use crate::metadata::MetadataRuns;
use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::repair::{attributes, map};
use crate::run::Facts;
use crate::{limits, runs};

/// Repairs what `codes` report. `shared` are the runs of blocks that are claimed more than once.
pub fn run(edit: &mut Edit<'_, '_>, facts: &Facts, codes: &BTreeSet<Code>, shared: &[(u64, u64)]) {
    let has = |wanted: &[Code]| wanted.iter().any(|code| codes.contains(code));
    if has(&[
        Code::OrphanHead,
        Code::OrphanLoop,
        Code::OrphanFile,
        Code::OrphanFlag,
        Code::OrphanCount,
    ]) {
        orphans(edit, facts, shared, has(&[Code::OrphanFile]));
    }
    if has(&[Code::OrphanNamed]) {
        edit.sb.set_orphan_file_ino(None);
        edit.set_superblock();
    }
    let is_inode_wrong = has(&[Code::JournalInode, Code::JournalInodeCopy]);
    // The caller gave up what the log holds. It is emptied, or a later replay would overwrite what is repaired now.
    let is_given_up = has(&[Code::JournalReplayFailed]);
    let is_reset =
        is_given_up || !is_inode_wrong && has(&[Code::JournalSuperblock, Code::JournalFirst]);
    // The block of a file must not become the journal's superblock.
    let is_lost = is_inode_wrong || is_reset && is_start_others(edit, facts, shared);
    let is_given = is_lost && journal_inode(edit, facts, shared);
    if is_reset {
        reset_journal(edit, facts, is_given);
    }
    if has(&[Code::JournalRecoverWithout]) {
        remove_feature(edit, Feature::NEEDS_RECOVERY);
    }
    if has(&[Code::JournalNotReplayed]) {
        empty_journal(edit, facts);
    }
    if has(&[Code::JournalErrno]) {
        clear_errno(edit, facts);
    }
    if has(&[Code::JournalExtra]) {
        edit.sb.set_journal_ino(None);
        edit.set_superblock();
        edit.clear_inode(Ino::JOURNAL);
    }
    if has(&[Code::MmpBlock]) {
        mmp(edit, shared);
    }
}

fn remove_feature(edit: &mut Edit<'_, '_>, feature: Feature) {
    let features = edit.sb.features().without(feature);
    edit.sb.set_features(features);
    edit.set_superblock();
}

/// Does what a mount does with orphans: those without links are deleted, the others are truncated to their size. The
/// orphan file is emptied; if it is broken and really another file, the superblock names none.
fn orphans(edit: &mut Edit<'_, '_>, facts: &Facts, shared: &[(u64, u64)], is_file_broken: bool) {
    for ino in facts.orphans.iter().copied().map(Ino) {
        orphan(edit, ino);
    }
    edit.sb.set_last_orphan(None);
    if edit.has(Feature::ORPHAN_FILE) {
        let named = edit.sb.orphan_file_ino();
        let own = named.filter(|ino| !is_file_broken || !is_other_file(edit, facts, *ino));
        let is_emptied = own.and_then(|ino| empty_orphan_file(edit, facts, ino, shared));
        let mut features = edit.sb.features().without(Feature::ORPHAN_PRESENT);
        if is_emptied.is_none() {
            features = features.without(Feature::ORPHAN_FILE);
            if let Some(ino) = own {
                edit.clear_inode(ino);
            }
            edit.sb.set_orphan_file_ino(None);
        }
        edit.sb.set_features(features);
    }
    edit.set_superblock();
}

/// Whether an inode that the superblock names as the orphan file is another file: a reserved one, a quota file, or one
/// that a directory names.
fn is_other_file(edit: &Edit<'_, '_>, facts: &Facts, ino: Ino) -> bool {
    let quota = [
        edit.sb.user_quota_ino(),
        edit.sb.group_quota_ino(),
        edit.sb.project_quota_ino(),
    ];
    ino < edit.geometry.first_ino()
        || edit.has(Feature::QUOTA) && quota.contains(&Some(ino))
        || has_names(edit, facts, ino)
}

/// Whether the last check found the inode to be in use. It asks no other inode who owns its blocks, so what an old map
/// leads to may be another file's.
pub fn is_in_use(facts: &Facts, ino: Ino) -> bool {
    facts.inodes.state(ino).is_used()
}

/// Whether a directory names the inode.
pub fn has_names(edit: &Edit<'_, '_>, facts: &Facts, ino: Ino) -> bool {
    let links = edit.inode(ino).map_or(0, |inode| inode.links_count());
    is_in_use(facts, ino) && facts.inodes.balance(ino) + i64::from(links) > 0
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
            let sectors = attributes::sectors(edit, ino, &inode, &slot);
            map::settle(edit, &mut inode, &new, sectors);
        }
    }
    edit.set_inode(ino, &inode)
}

/// The inode and the blocks of one of the file system's own files. `None` if it is not in use, or if its map is damaged
/// or has a hole.
fn file(edit: &Edit<'_, '_>, facts: &Facts, ino: Ino) -> Option<(Inode, Vec<u64>)> {
    is_in_use(facts, ino).then(|| blocks_of(edit, ino))?
}

/// The same of a file that is known to be in use.
fn blocks_of(edit: &Edit<'_, '_>, ino: Ino) -> Option<(Inode, Vec<u64>)> {
    let inode = edit.inode(ino)?;
    let is_file = inode.file_type() == Some(FileType::Regular) && inode.links_count() > 0;
    if !is_file || inode.flags().contains(Flags::INLINE_DATA) {
        return None;
    }
    let map = map::read(edit, ino, &inode)?;
    if map.is_damaged || map.runs.is_empty() || map.end() > limits::OWN_FILE_BLOCKS {
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

/// Empties the orphan file. Blocks that it shares with others are replaced by new ones.
fn empty_orphan_file(
    edit: &mut Edit<'_, '_>,
    facts: &Facts,
    ino: Ino,
    shared: &[(u64, u64)],
) -> Option<()> {
    let (mut inode, mut blocks) = file(edit, facts, ino)?;
    let seed = edit
        .geometry
        .has_metadata_csum()
        .then(|| edit.seed(ino, &inode));
    let size = edit.geometry.block_size();
    if blocks.len() as u64 > orphan_file::BLOCKS_MAX {
        return None;
    }
    let is_shared = blocks.iter().any(|block| runs::overlap(shared, *block, 1));
    let is_changed = is_shared || inode.size(true) != (blocks.len() as u64) << size.bits();
    if is_shared {
        if edit.geometry.cluster_ratio() > 1 {
            return None;
        }
        for block in &mut blocks {
            if runs::overlap(shared, *block, 1) {
                *block = edit.new_block()?;
            }
        }
        let map = map::write(edit, ino, &mut inode, one_by_one(&blocks))?;
        map::settle(edit, &mut inode, &map, 0);
    }
    if is_changed {
        inode.set_size((blocks.len() as u64) << size.bits());
        edit.set_inode(ino, &inode)?;
    }
    for block in blocks {
        edit.set_block(block, orphan_file::empty_block(size, FsBlock(block), seed));
    }
    Some(())
}

/// The runs of a file with these blocks.
fn one_by_one(blocks: &[u64]) -> Vec<MapRun> {
    let run = |(lblk, pblk): (u64, &u64)| MapRun {
        lblk,
        pblk: *pblk,
        len: 1,
        unwritten: false,
    };
    (0..).zip(blocks).map(run).collect()
}

/// Whether the journal's first block may be another file's: something else claims it, the inode is not in use, or a
/// directory names it.
fn is_start_others(edit: &Edit<'_, '_>, facts: &Facts, shared: &[(u64, u64)]) -> bool {
    let ino = facts.sb.journal_ino();
    let is_users = |ino: Ino| ino != Ino::JOURNAL && has_names(edit, facts, ino);
    if ino.is_some_and(|ino| !is_in_use(facts, ino) || is_users(ino)) {
        return true;
    }
    let found = ino.and_then(|ino| file(edit, facts, ino));
    found.is_some_and(|(_, blocks)| runs::overlap(shared, blocks[0], 1))
}

/// Gives the file system a journal: restores the inode from its copy in the superblock, or else makes a new journal, or
/// else, without space for one, removes the feature. Returns whether it has a journal now.
fn journal_inode(edit: &mut Edit<'_, '_>, facts: &Facts, shared: &[(u64, u64)]) -> bool {
    if edit.slot(Ino::JOURNAL).is_none() {
        // An inode that the device can't read may be right.
        return false;
    }
    let own = JournalBlocks::of(edit, facts, shared);
    if restore_journal(edit, &own).is_some() || new_journal(edit, &own).is_some() {
        return true;
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
    false
}

/// Decides which blocks a journal may use: those that nothing claims, and those that only the present journal claims.
struct JournalBlocks<'a> {
    facts: &'a Facts,
    /// Runs that are claimed more than once.
    shared: &'a [(u64, u64)],
    /// The runs that the present journal's inode maps, as far as its map can be read; merged.
    now: Vec<(u64, u64)>,
}

impl<'a> JournalBlocks<'a> {
    fn of(edit: &Edit<'_, '_>, facts: &'a Facts, shared: &'a [(u64, u64)]) -> JournalBlocks<'a> {
        let ino = facts.sb.journal_ino().unwrap_or(Ino::JOURNAL);
        let map = edit
            .inode(ino)
            .filter(|_| ino == Ino::JOURNAL && is_in_use(facts, ino))
            .and_then(|inode| map::read(edit, ino, &inode));
        let runs = map.map_or_else(Vec::new, |map| map.runs);
        JournalBlocks {
            facts,
            shared,
            now: runs::merged(runs.iter().map(|run| (run.pblk, run.len)).collect()),
        }
    }

    /// Whether nothing but the journal claims the block.
    fn may_have(&self, block: u64) -> bool {
        if runs::overlap(self.shared, block, 1) {
            return false;
        }
        let bit = self.facts.geometry.bit_of_block(FsBlock(block));
        let is_claimed = bit.is_some_and(|(group, bit)| {
            let claimed = self.facts.claims.claimed_in(group);
            claimed.is_some_and(|bits| bits.test(bit))
        });
        !is_claimed || runs::overlap(&self.now, block, 1)
    }
}

/// Returns `inode` with the map and the size of the journal that the superblock backs up, or `None` if it has no such
/// backup.
pub fn backed_up_journal(sb: &Superblock, mut inode: Inode) -> Option<Inode> {
    if sb.journal_backup_type() != 1 {
        return None;
    }
    let words = sb.journal_backup();
    for (index, word) in words.iter().take(15).enumerate() {
        inode.set_block_word(index, *word);
    }
    inode.set_mode(FileType::Regular.mode_bits() | 0o600);
    inode.set_links_count(1);
    inode.set_dtime(0);
    inode.set_size(u64::from(words[15]) << 32 | u64::from(words[16]));
    let is_extents = inode.block_area().starts_with(&extent::MAGIC.to_le_bytes());
    inode.set_flags(if is_extents { Flags::EXTENTS } else { Flags(0) });
    Some(inode)
}

fn restore_journal(edit: &mut Edit<'_, '_>, own: &JournalBlocks<'_>) -> Option<()> {
    let mut slot = edit.slot(Ino::JOURNAL)?;
    let now = Inode::parse(&slot).unwrap_or_else(|_| Inode::zeroed());
    let mut inode = backed_up_journal(&edit.sb, now)?;
    let size = inode.size(true);
    let map = map::read(edit, Ino::JOURNAL, &inode)?;
    if map.end() > limits::OWN_FILE_BLOCKS {
        return None;
    }
    let first = edit.block(map.place(0)?)?;
    BlockHeader::of(&first)?;
    let is_right = |(run, next): (&MapRun, u64)| {
        run.lblk == next
            && !run.unwritten
            && (run.pblk..run.pblk + run.len).all(|block| own.may_have(block))
    };
    let ends = map.runs.iter().scan(0, |end, run| {
        let next = *end;
        *end = run.lblk + run.len;
        Some(next)
    });
    if map.is_damaged
        || !map.runs.iter().zip(ends).all(is_right)
        || map.end() << edit.geometry.block_size().bits() < size
        || !map.nodes.iter().all(|block| own.may_have(*block))
    {
        return None;
    }
    map::settle(edit, &mut inode, &map, 0);
    inode.set_size(size);
    slot.fill(0);
    inode.write_to(&mut slot);
    edit.sb.set_journal_ino(Some(Ino::JOURNAL));
    edit.set_superblock()?;
    edit.set_slot(Ino::JOURNAL, slot)
}

/// Finds blocks for a new journal: first those that only the old journal claims, then free ones. The log begins empty,
/// so their order does not matter.
fn journal_places(
    edit: &mut Edit<'_, '_>,
    own: &JournalBlocks<'_>,
    count: u32,
) -> Option<Vec<u64>> {
    let mut places = Vec::new();
    if edit.geometry.cluster_ratio() == 1 {
        let now = own.now.iter().flat_map(|(first, len)| *first..first + len);
        let usable = now.take(limits::OWN_FILE_BLOCKS as usize);
        let usable = usable.filter(|block| own.may_have(*block));
        places.extend(usable.take(count as usize));
    }
    if places.is_empty() {
        if let Some(first) = edit.space.allocate_run(count) {
            return Some((first.0..first.0 + u64::from(count)).collect());
        }
        if edit.geometry.cluster_ratio() > 1 {
            return None;
        }
    }
    while places.len() < count as usize
        && let Some(block) = edit.space.allocate()
    {
        places.push(block.0);
    }
    (places.len() >= ondisk::jbd2::BLOCKS_MIN as usize).then_some(places)
}

/// Makes an empty journal, of the old one's size if that is known, else of the size that mke2fs chooses.
fn new_journal(edit: &mut Edit<'_, '_>, own: &JournalBlocks<'_>) -> Option<()> {
    let size = edit.geometry.block_size();
    let words = edit.sb.journal_backup();
    let old = (u64::from(words[15]) << 32 | u64::from(words[16])) >> size.bits();
    let most = edit.geometry.blocks_count() / 2;
    let least = u64::from(ondisk::jbd2::BLOCKS_MIN);
    let wanted = match edit.geometry.blocks_count() {
        0..32_768 => 1024,
        32_768..262_144 => 4096,
        262_144..524_288 => 8192,
        _ => 16_384,
    };
    let has_old = edit.sb.journal_backup_type() == 1 && (least..most).contains(&old);
    let count = u32::try_from(if has_old { old } else { wanted }).ok()?;
    let places = journal_places(edit, own, count)?;
    let first = *places.first()?;
    let mut journal = JournalSuperblock::new(size, places.len() as u32, 1);
    journal.set_uuid(edit.sb.uuid());
    journal.set_sequence(next_tid(edit, &places)?);
    let mut inode = Inode::zeroed();
    inode.set_mode(FileType::Regular.mode_bits() | 0o600);
    inode.set_links_count(1);
    inode.set_size((places.len() as u64) << size.bits());
    if edit.has(Feature::EXTENT) {
        inode.set_flags(Flags::EXTENTS);
    }
    let map = map::write(edit, Ino::JOURNAL, &mut inode, one_by_one(&places))?;
    map::settle(edit, &mut inode, &map, 0);
    let mut slot = vec![0; edit.geometry.inode_size()];
    inode.write_to(&mut slot);
    edit.set_slot(Ino::JOURNAL, slot)?;
    edit.set_block(first, vec![0; size.bytes()]);
    write_journal_superblock(edit, first, &mut journal)?;
    name_journal(edit, &inode)
}

/// Records in the superblock which inode is the journal, and a copy of that inode's map and size.
fn name_journal(edit: &mut Edit<'_, '_>, inode: &Inode) -> Option<()> {
    let mut backup = [0; 17];
    for (index, word) in backup.iter_mut().take(15).enumerate() {
        *word = inode.block_word(index);
    }
    backup[15] = (inode.size(true) >> 32) as u32;
    backup[16] = (inode.size(true) & 0xFFFF_FFFF) as u32;
    edit.sb.set_journal_backup(backup);
    edit.sb.set_journal_backup_type(1);
    edit.sb.set_journal_ino(Some(Ino::JOURNAL));
    let features = edit.sb.features().without(Feature::NEEDS_RECOVERY);
    edit.sb.set_features(features);
    edit.set_superblock()
}

/// A transaction number that is later than any in these blocks of a log. The first block, which holds the journal's
/// superblock, is left out.
fn next_tid(edit: &Edit<'_, '_>, blocks: &[u64]) -> Option<Tid> {
    let mut tid = Tid(1);
    for block in blocks.iter().skip(1) {
        let mut header = [0; BlockHeader::SIZE];
        let offset = FsBlock(*block).offset(edit.geometry.block_size());
        device::BlockDevice::read_at(&*edit.image, offset, &mut header).ok()?;
        if let Some(header) = BlockHeader::of(&header)
            && header.tid().is_at_or_after(tid)
        {
            tid = header.tid().next();
        }
    }
    Some(tid)
}

/// Empties a journal by a new superblock without features. Its next transaction gets a number that no block of the log
/// has, so that none of them is ever replayed. With `is_given`, the file system got the journal after the last check.
fn reset_journal(edit: &mut Edit<'_, '_>, facts: &Facts, is_given: bool) -> Option<()> {
    let ino = edit.sb.journal_ino()?;
    let (inode, blocks) = if is_given {
        blocks_of(edit, ino)
    } else {
        file(edit, facts, ino)
    }?;
    let size = edit.geometry.block_size();
    let count = blocks.len().min((inode.size(true) >> size.bits()) as usize);
    let mut journal = JournalSuperblock::new(size, u32::try_from(count).ok()?, 1);
    journal.set_uuid(edit.sb.uuid());
    journal.set_sequence(next_tid(edit, &blocks[..count])?);
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

/// Marks the log as empty, as e2fsck does: the file system's superblock does not ask for a replay, and the log can't be
/// replayed. A log with unknown features may be sound, and is left as it is.
fn empty_journal(edit: &mut Edit<'_, '_>, facts: &Facts) -> Option<()> {
    let (_, blocks) = file(edit, facts, edit.sb.journal_ino()?)?;
    let mut journal = JournalSuperblock::read(&edit.block(*blocks.first()?)?)?;
    if journal.features().unknown().is_some() {
        return None;
    }
    // A log has fewer transactions than blocks, so none of them has the number that is reached by adding the blocks.
    journal.set_sequence(Tid(journal
        .sequence()
        .0
        .wrapping_add(journal.blocks_count())));
    journal.set_start(0);
    write_journal_superblock(edit, blocks[0], &mut journal)
}

/// Clears the error number that the journal's superblock records.
fn clear_errno(edit: &mut Edit<'_, '_>, facts: &Facts) -> Option<()> {
    let (_, blocks) = file(edit, facts, edit.sb.journal_ino()?)?;
    let mut journal = JournalSuperblock::read(&edit.block(*blocks.first()?)?)?;
    journal.set_errno_raw(0);
    write_journal_superblock(edit, blocks[0], &mut journal)
}

fn mmp(edit: &mut Edit<'_, '_>, shared: &[(u64, u64)]) -> Option<()> {
    let seed = edit
        .geometry
        .has_metadata_csum()
        .then(|| edit.geometry.csum_seed());
    let mut block = edit.sb.mmp_block().0;
    let now = edit.contains(block, 1).then(|| edit.block(block)).flatten();
    // A valid block is kept: it may belong to a check that runs on another host.
    if now.is_some_and(|bytes| Mmp::read(&bytes).is_some_and(|mmp| mmp.verify(seed).is_ok())) {
        return None;
    }
    let first = u64::from(edit.sb.first_data_block());
    let others = MetadataRuns::of(&edit.geometry, edit.descs(), None);
    let is_others = others.contains(block) || runs::overlap(shared, block, 1);
    if block <= first || !edit.contains(block, 1) || is_others {
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

/// Rebuilds the resize inode: its double-indirect block points to the reserved descriptor blocks, and each of those
/// points to its copies in other groups. Without the feature, the inode is cleared.
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
    // With bigalloc, each block of the resize inode counts as a cluster.
    let sectors = blocks << (size.bits() - 9) << geometry.cluster_ratio_bits();
    let _ = inode.set_sectors(sectors, false, size);
    let mut slot = vec![0; geometry.inode_size()];
    inode.write_to(&mut slot);
    edit.set_slot(Ino::RESIZE, slot)
}
