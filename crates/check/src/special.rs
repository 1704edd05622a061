//! Files of the file system itself: the journal, the resize inode, orphans, quota files, the multi-mount block.

use std::collections::BTreeSet;

use ondisk::jbd2::JournalSuperblock;
use ondisk::mmp::{Mmp, MmpUse};
use ondisk::{Feature, FileType, Flags, FsBlock, Ino, Inode, Site, orphan_file};

use crate::extents;
use crate::file_map;
use crate::map::{MapRun, Sink, word32};
use crate::problem::Code;
use crate::report::Problem;
use crate::table::State;
use crate::volume::Volume;

/// Whether the inode is one that features use: the journal, the resize inode, quota files, the orphan file.
pub fn is_special(volume: &Volume<'_>, ino: Ino) -> bool {
    volume.has(Feature::RESIZE_INODE) && ino == Ino::RESIZE
        // A journal that is named without the feature is noted; its blocks are in use nevertheless.
        || volume.sb.journal_ino() == Some(ino)
        || is_quota_or_orphan_file(volume, ino)
}

/// Whether the inode is one that features use without a name. e2fsck connects the quota file of users or groups to
/// `lost+found` if it is not in a reserved inode.
pub fn needs_no_name(volume: &Volume<'_>, ino: Ino) -> bool {
    let sb = &volume.sb;
    let named = [sb.user_quota_ino(), sb.group_quota_ino()];
    let others = [sb.project_quota_ino(), sb.orphan_file_ino()];
    let is_elsewhere = ino >= volume.geometry.first_ino()
        && named.contains(&Some(ino))
        && !others.contains(&Some(ino));
    is_special(volume, ino) && !is_elsewhere
}

/// Whether the inode is a quota file or the orphan file, as the superblock has it: no name may lead to one.
pub fn is_quota_or_orphan_file(volume: &Volume<'_>, ino: Ino) -> bool {
    let sb = &volume.sb;
    let is = |number: Option<Ino>| number == Some(ino);
    volume.has(Feature::QUOTA)
        && (is(sb.user_quota_ino()) || is(sb.group_quota_ino()) || is(sb.project_quota_ino()))
        || volume.has(Feature::ORPHAN_FILE) && is(sb.orphan_file_ino())
}

/// Reports files that the superblock names as quota files or as the orphan file although that feature is off. e2fsck
/// calls each name of such a file invalid, and clears the inode of an orphan file and of the projects' quota file.
pub fn named_without_feature(volume: &Volume<'_>) {
    let sb = &volume.sb;
    let first = volume.geometry.first_ino();
    let has_contents = |ino: Ino| {
        let inode = volume.slot(ino).and_then(|slot| Inode::parse(&slot).ok());
        inode.is_some_and(|inode| {
            inode.links_count() != 0 || inode.blocks_lo() != 0 || inode.block_word(0) != 0
        })
    };
    let has_names = |ino: Ino| {
        let state = volume.inodes.state(ino);
        (ino >= first || ino == Ino::ROOT) && state.is_used() && !state.has(State::ORPHAN)
    };
    let is_cleared = |ino: Ino| (ino >= first || ino == Ino::RESIZE) && has_contents(ino);
    let report = |code, ino: Option<Ino>, is_cleared: &dyn Fn(Ino) -> bool| {
        // Another feature's own file stays that.
        let ino = ino.filter(|ino| *ino == Ino::RESIZE || !is_special(volume, *ino));
        if let Some(ino) = ino.filter(|ino| is_cleared(*ino) || has_names(*ino)) {
            volume.inode_has(ino, code);
        }
    };
    if !volume.has(Feature::QUOTA) {
        report(Code::QuotaNamed, sb.user_quota_ino(), &|_| false);
        report(Code::QuotaNamed, sb.group_quota_ino(), &|_| false);
        report(Code::QuotaNamed, sb.project_quota_ino(), &is_cleared);
    }
    if !volume.has(Feature::ORPHAN_FILE) {
        report(Code::OrphanNamed, sb.orphan_file_ino(), &is_cleared);
    }
}

/// Collects the blocks of a file in order.
struct Blocks(Vec<MapRun>);

impl Sink for Blocks {
    fn run(&mut self, run: MapRun) {
        self.0.push(run);
    }

    fn node(&mut self, _block: u64) -> bool {
        self.0.len() < crate::limits::SHARED_RUNS
    }

    fn problem(&mut self, _problem: Problem) {}
}

/// A regular file in use with its blocks in order.
pub fn file(volume: &Volume<'_>, ino: Ino) -> Option<(Inode, Vec<MapRun>)> {
    let inode = Inode::parse(&volume.slot(ino)?).ok()?;
    let mut blocks = Blocks(Vec::new());
    if inode.file_type() != Some(FileType::Regular) || inode.links_count() == 0 {
        return None;
    }
    if inode.flags().contains(Flags::EXTENTS) && !extents::is_header(inode.block_area()) {
        return None;
    }
    file_map::walk(volume, ino, &inode, &mut blocks);
    Some((inode, blocks.0))
}

/// Checks the journal's inode and superblock.
pub fn journal(volume: &Volume<'_>) {
    let sb = &volume.sb;
    if !volume.has(Feature::HAS_JOURNAL) {
        if volume.has(Feature::NEEDS_RECOVERY) {
            volume.found(Problem::new(Code::JournalRecoverWithout));
        }
        if let Some(ino) = sb.journal_ino() {
            volume.found(Problem::new(Code::JournalExtra).found(ino.0));
        }
        return;
    }
    let Some(ino) = sb.journal_ino() else {
        // If mkfs got a file for the journal, the superblock has only the journal's UUID.
        let is_elsewhere = sb.journal_device() != 0 || sb.journal_uuid() != [0; 16];
        let problem = if is_elsewhere {
            Problem::new(Code::JournalExternal)
        } else {
            Problem::new(Code::JournalInode)
                .found(0_u64)
                .name("it is not named")
        };
        return volume.found(problem);
    };
    let bad = |why: &str| {
        volume.found(wrong_inode(volume).found(ino.0).name(why));
    };
    let Some((inode, runs)) = file(volume, ino) else {
        return bad("it is not a regular file in use");
    };
    let Some(at) = length_without_holes(&runs) else {
        return bad("its map has holes");
    };
    let size = volume.geometry.block_size();
    if inode.size(true) >> size.bits() < u64::from(ondisk::jbd2::BLOCKS_MIN) {
        return bad("it is too short");
    }
    if is_longer(&inode, at << size.bits()) {
        return bad("it is longer than its map");
    }
    let Some(first) = runs.first().and_then(|run| volume.block(run.pblk)) else {
        return bad("it has no blocks");
    };
    let Some(journal) = JournalSuperblock::read(&first) else {
        return bad("it is too short");
    };
    if let Some((incompat, ro_compat)) = journal.features().unknown() {
        let problem = Problem::new(Code::JournalFeatures);
        volume.found(problem.found(u64::from(incompat) | u64::from(ro_compat) << 32));
    }
    // A kernel that mounts without a replay clears the log, wherever it begins.
    let is_start_read = volume.has(Feature::NEEDS_RECOVERY);
    let verified = journal.verify(volume.geometry.block_size(), at);
    if let Err(corrupt) = verified
        && (corrupt.site() != Site::JournalStart || is_start_read)
    {
        let code = match corrupt.site() {
            Site::JournalFirst => Code::JournalFirst,
            _ => Code::JournalSuperblock,
        };
        volume.found(Problem::new(code).name(corrupt.to_string()));
    }
    if journal.users_count() > 1 {
        let problem = Problem::new(Code::JournalSuperblock);
        volume.found(problem.name(format!(
            "it names {} file systems as its users, an internal journal has one",
            journal.users_count()
        )));
    }
    if !is_start_read && !volume.findings.has(Code::JournalReplayed) {
        left_in_journal(volume, &journal, verified.is_ok());
    }
}

/// How many blocks are mapped, if these are the first ones of the file.
fn length_without_holes(runs: &[MapRun]) -> Option<u64> {
    runs.iter()
        .try_fold(0, |at, run| (run.lblk == at).then_some(at + run.len))
}

fn wrong_inode(volume: &Volume<'_>) -> Problem {
    Problem::new(if has_serving_copy(volume) {
        Code::JournalInodeCopy
    } else {
        Code::JournalInode
    })
}

/// Whether the superblock has a copy of the journal's inode that e2fsck uses in its place without a message. It reads
/// the copy's map as one without extents.
fn has_serving_copy(volume: &Volume<'_>) -> bool {
    let copy = crate::repair::backed_up_journal(&volume.sb, Inode::zeroed());
    let Some(inode) = copy.filter(|inode| !inode.flags().contains(Flags::EXTENTS)) else {
        return false;
    };
    let mut blocks = Blocks(Vec::new());
    file_map::walk(volume, Ino::JOURNAL, &inode, &mut blocks);
    let mapped = length_without_holes(&blocks.0).unwrap_or(0);
    mapped >= u64::from(ondisk::jbd2::BLOCKS_MIN)
        && !is_longer(&inode, mapped << volume.geometry.block_size().bits())
}

/// Whether the inode is longer than `mapped` bytes. e2fsck compares an int; the kernel reads the journal's length from
/// its superblock.
fn is_longer(inode: &Inode, mapped: u64) -> bool {
    i64::from(inode.size(true) as u32 as i32) > mapped as i64
}

/// What a replay takes over and clears, in a journal that does not ask for one.
fn left_in_journal(volume: &Volume<'_>, journal: &JournalSuperblock, is_sound: bool) {
    if journal.errno_raw() != 0 && is_sound {
        volume.found(Problem::new(Code::JournalErrno).found(journal.errno_raw()));
    }
    if journal.start() != 0 {
        volume.found(Problem::new(Code::JournalNotReplayed).found(journal.start()));
    }
}

/// Compares the resize inode with the geometry, and claims its one double-indirect block.
pub fn resize_inode(volume: &Volume<'_>, inode: &Inode) {
    let bad = |why: &str| {
        volume.found(Problem::new(Code::ResizeInode).ino(Ino::RESIZE).name(why));
    };
    let double = u64::from(inode.block_word(13));
    let others = (0..15).filter(|word| *word != 13);
    if inode.file_type() != Some(FileType::Regular) || inode.links_count() == 0 {
        return bad("it is not a regular file in use");
    }
    if inode.flags().contains(Flags::EXTENTS) && !extents::is_header(inode.block_area()) {
        return volume.inode_has(Ino::RESIZE, Code::ExtentHeader);
    }
    if others.into_iter().any(|word| inode.block_word(word) != 0) {
        return bad("it has blocks beside the double-indirect one");
    }
    if !volume.contains(double, 1) {
        return bad("its double-indirect block does not exist");
    }
    if !volume.claims.claim(FsBlock(double), 1) {
        let problem = Problem::new(Code::BlockShared).ino(Ino::RESIZE);
        volume.found(problem.block(double).found(1_u64));
    }
    let Some(bytes) = volume.block(double) else {
        return bad("its double-indirect block can't be read");
    };
    let reserved = volume.geometry.group_start(ondisk::Group(0)).reserved;
    let per_block = volume.geometry.block_size().bytes() / 4;
    let primary = volume.geometry.primary_superblock().0 + 1;
    // The descriptor block's place modulo the pointers of a block says which pointer names it.
    let is_named = |block: u64| {
        let index = (block - primary) as usize % per_block;
        u64::from(word32(&bytes, 4 * index)) == block
    };
    if !reserved.clone().all(is_named) {
        bad("it does not name all reserved descriptor blocks");
    }
    let Some(blocks) = reserved_blocks(volume, &bytes) else {
        return bad("a reserved descriptor block can't be read");
    };
    let found = inode.sectors(false, volume.geometry.block_size());
    let bits = volume.geometry.block_size().bits() - 9 + volume.geometry.cluster_ratio_bits();
    // With bigalloc each of its blocks counts as a cluster.
    let expected = (1 + blocks) << bits;
    if found != expected {
        let problem = Problem::new(Code::InodeBlocks).ino(Ino::RESIZE);
        volume.found(problem.found(found).expected(expected));
    }
}

/// Counts the blocks that the double-indirect block of the resize inode leads to. `None` if a reserved block can't be
/// read.
fn reserved_blocks(volume: &Volume<'_>, double: &[u8]) -> Option<u64> {
    let mut blocks = 0;
    for block in pointers(volume, double) {
        blocks += 1 + pointers(volume, &volume.block(block)?).len() as u64;
    }
    Some(blocks)
}

/// The pointers of a block of the resize inode that are not zero; reports those to no block.
fn pointers(volume: &Volume<'_>, bytes: &[u8]) -> Vec<u64> {
    let words = (0..bytes.len() / 4).map(|word| u64::from(word32(bytes, 4 * word)));
    let (found, illegal): (Vec<u64>, Vec<u64>) =
        (words.filter(|block| *block != 0)).partition(|block| volume.contains(*block, 1));
    for block in illegal {
        let problem = Problem::new(Code::IllegalBlock).ino(Ino::RESIZE);
        volume.found(problem.lblk(0).found(block));
    }
    found
}

/// The inodes that wait to be removed: the list in the superblock and inodes, and the orphan file. Sorted.
pub fn orphans(volume: &Volume<'_>) -> Vec<u32> {
    let mut all = BTreeSet::new();
    let mut next = volume.sb.last_orphan();
    while let Some(ino) = next {
        let inode = volume.slot(ino).and_then(|slot| Inode::parse(&slot).ok());
        let is_possible = ino >= volume.geometry.first_ino();
        let Some(inode) = inode.filter(|_| is_possible) else {
            volume.found(Problem::new(Code::OrphanHead).found(ino.0));
            break;
        };
        if !all.insert(ino.0) {
            volume.found(Problem::new(Code::OrphanLoop).found(ino.0));
            break;
        }
        next = Some(Ino(inode.dtime())).filter(|ino| ino.0 != 0);
    }
    if volume.has(Feature::ORPHAN_FILE) {
        orphan_slots(volume, &mut all);
    }
    if !all.is_empty() {
        volume.found(Problem::new(Code::OrphanCount).found(all.len() as u64));
    }
    all.into_iter().collect()
}

fn orphan_slots(volume: &Volume<'_>, all: &mut BTreeSet<u32>) {
    let bad = |why: &str| volume.found(Problem::new(Code::OrphanFile).name(why));
    let Some(ino) = volume.sb.orphan_file_ino() else {
        return bad("it is not named");
    };
    let Some((inode, runs)) = file(volume, ino) else {
        return bad("it is not a regular file in use");
    };
    let (size, bits) = (inode.size(true), volume.geometry.block_size().bits());
    if !size.is_multiple_of(1 << bits) {
        bad("its size is not a multiple of the block size");
    }
    if length_without_holes(&runs).is_none_or(|mapped| mapped < size >> bits) {
        bad("its map has holes");
    }
    let seed = volume
        .geometry
        .has_metadata_csum()
        .then(|| volume.seed(ino, &inode));
    let mut has_any = false;
    let blocks = runs.iter().flat_map(|run| run.pblk..run.pblk + run.len);
    for block in blocks.take(orphan_file::BLOCKS_MAX as usize) {
        let Some(bytes) = volume.block(block) else {
            return bad("a block can't be read");
        };
        if let Err(corrupt) = orphan_file::verify(&bytes, FsBlock(block), seed) {
            bad(&corrupt.to_string());
            continue;
        }
        for ino in orphan_file::slots(&bytes).flatten() {
            has_any = true;
            if ino < volume.geometry.first_ino() || ino.0 > volume.geometry.inodes_count() {
                volume.found(Problem::new(Code::OrphanHead).found(ino.0));
            } else {
                all.insert(ino.0);
            }
        }
    }
    if has_any && !volume.has(Feature::ORPHAN_PRESENT) {
        volume.found(Problem::new(Code::OrphanFlag));
    }
}

/// Checks the multi-mount block.
pub fn mmp(volume: &Volume<'_>) {
    if !volume.has(Feature::MMP) {
        return;
    }
    let block = volume.sb.mmp_block().0;
    let problem = Problem::new(Code::MmpBlock).block(block);
    let seed = volume
        .geometry
        .has_metadata_csum()
        .then(|| volume.geometry.csum_seed());
    let bytes = volume
        .contains(block, 1)
        .then(|| volume.block(block))
        .flatten();
    match bytes.as_deref().and_then(Mmp::read) {
        None => volume.found(problem.name("it does not exist or can't be read")),
        Some(mmp) => {
            let why = match (mmp.verify(seed), mmp.used_by()) {
                (Err(corrupt), _) => corrupt.to_string(),
                (Ok(()), MmpUse::Check) => {
                    "e2fsck works on the file system, or was interrupted".into()
                }
                (Ok(()), MmpUse::Unknown(number)) => format!("its sequence number is {number:#x}"),
                (Ok(()), MmpUse::Clean | MmpUse::Mounted(_)) => return,
            };
            volume.found(problem.name(why));
        }
    }
}
