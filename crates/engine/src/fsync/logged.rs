//! An fsync through the log: the inode and all that must be on disk with it, as they are at one moment of the running
//! epoch, then the log commit that others share.
//!
//! The closure's inodes are locked together in ascending order, and its map is read, before the handle; under the
//! handle their records are put into the log tree, which is memory. Nothing is locked while the log is written. What
//! fast commits can't express, and what belongs to an epoch that they don't cover, is left to a full commit.
//!
//! # Files that are committed in full
//!
//! Linux and e2fsck must both replay a record, so a regular file is logged only if [`has_record`] finds all of these:
//!
//! - it has extents, and its contents are not stored in the inode;
//! - it has no block of attributes, because e2fsck's replay leaves that out of the inode's count of blocks;
//! - its map has at most one leaf, because the replay counts one block for each level of the map;
//! - the inode has extra fields, because e2fsck can't read a record without them where other inodes have them.
//!
//! Nor is it logged if the map takes blocks of its own and changed in this epoch ([`has_index`]): e2fsck makes the map
//! anew, in blocks which a later record may give to another file. Inodes of other types are committed in full, except
//! directories.
//!
//! An fsync of a directory logs its changed names and the inodes that belong to these, with the directory locked as
//! well. The directory's own record is not logged, so a directory of which anything but names has changed is committed
//! in full.

use std::collections::BTreeSet;

use journal::Epoch;
use journal::canary::{self, Canary};
use ondisk::extent::{ExtentEntries, ExtentNode};
use ondisk::{FileType, Flags, Ino, LBlock, extent, inode};
use sync::Arc;

use super::SyncScope;
use super::log::{self, Closure, FsyncLog, InodeState, Members, NameState};
use crate::core::Error;
use crate::core::sb::needs_large_file;
use crate::fsync::log::{Cost, FastLog, RunningLog};
use crate::inode::{Batch, BlockRanges, EpochChanges, NamePlace, UnloggedNames};
use crate::inode::{Exclusive, LiveInode, LoadedInode};
use crate::map::Mappings;
use crate::token::LiveFs;

/// How often the closure is collected again because other threads changed names meanwhile.
const TRIES: usize = 4;

/// What came of a try to put a closure into the log.
enum Tried {
    /// It is in this batch.
    Logged(RunningLog, Batch),
    /// Names changed between the look without locks and that with them.
    Again,
    /// It must be committed in full: no record can express it, or it needs too many.
    Unloggable,
    /// It must be committed in full: fast commits are not about its epoch now.
    NotNext,
    /// It must be committed in full: the log's replay would take too long.
    OverBudget,
}

/// Logs durably what an fsync of an inode that last changed in this epoch needs; returns whether that was possible. The
/// caller holds no lock.
///
/// # Errors
/// `Corrupt`, `Io`; `Aborted` when the device failed.
pub(super) fn log(
    mounted: &LiveFs,
    inode: &Arc<LiveInode>,
    what: SyncScope,
    changed: Epoch,
) -> Result<bool, Error> {
    let (Some((fast, changes)), Some(logging)) = (log_of(mounted, changed), inode.logging()) else {
        return Ok(false);
    };
    let journal = &mounted.writing().journal;
    let snapshot = inode.snapshot();
    if snapshot.links_count() == 0 {
        // Nothing of it is there after a crash.
        flush_data(mounted)?;
        return Ok(true);
    }
    let sync = |log: &FsyncLog, batch| {
        let synced = fast.sync(log, batch, journal);
        // A device that failed aborted the journal; all else is left to a full commit.
        journal.check()?;
        fast.ended.add(synced.is_err().into());
        Ok(synced.is_ok())
    };
    let logged = match what {
        SyncScope::All => logging.logged(changed),
        SyncScope::Data => logging.logged_data(changed),
    };
    if let (Some(batch), Some(log)) = (logged, fast.running(changed)) {
        let is_synced = sync(&log, batch)?;
        // Data written over others since then changed nothing else, and no flush of the log need have come after them.
        let is_flushed = inode.data.overwritten() <= journal.flushed_epoch()
            || canary::makes(Canary::OverwrittenUnflushed);
        if is_synced && !is_flushed {
            flush_data(mounted)?;
        }
        return Ok(is_synced);
    }
    let is_directory = snapshot.is(FileType::Directory);
    // Before what may have to be written for the log's sake.
    let has_new_index = has_index(&snapshot) && inode.data.stamp() == changed;
    let is_loggable = is_directory || has_record(&snapshot) && !has_new_index;
    if logging.is_unloggable(changed) || !is_loggable {
        fast.unloggable.add(1);
        return Ok(false);
    }
    if !journal.is_home() {
        if !fast.is_worth_a_checkpoint() {
            return Ok(false);
        }
        // Once after each full commit.
        journal.checkpoint()?;
    }
    for _ in 0..TRIES {
        let tried = if is_directory {
            try_names(mounted, fast, changes, inode, changed)?
        } else {
            try_log(mounted, fast, changes, inode, Vec::new(), changed)?
        };
        match tried {
            Tried::Logged(log, batch) => return sync(&log, batch),
            Tried::Again => {}
            Tried::Unloggable => break,
            Tried::NotNext => {
                fast.not_next.add(1);
                return Ok(false);
            }
            Tried::OverBudget => {
                fast.replay_budget.add(1);
                return Ok(false);
            }
        }
    }
    fast.unloggable.add(1);
    Ok(false)
}

/// The log, and what changed in this epoch; `None` on a file system without an area for fast commits.
fn log_of(mounted: &LiveFs, epoch: Epoch) -> Option<(&FastLog, &EpochChanges)> {
    Some((mounted.fast()?, mounted.changes()?.of(epoch)))
}

/// Makes data durable that were written before this call: with the next step of the log if one runs whose steps take
/// long enough for others to come meanwhile, else by a flush of their own.
///
/// # Errors
/// As [`journal::Journal::flush_data`].
pub(super) fn flush_data(mounted: &LiveFs) -> Result<(), Error> {
    let journal = &mounted.writing().journal;
    let running = (mounted.fast())
        .and_then(|fast| Some((fast, fast.running(journal.current_epoch())?)))
        .filter(|(_, log)| log.gathers());
    if let Some((fast, log)) = running {
        let batch = log.join();
        let flushed = fast.flush(&log, batch, journal);
        // A log that was closed has flushed nothing for the caller.
        journal.check()?;
        if flushed.is_ok() {
            return Ok(());
        }
    }
    Ok(journal.flush_data()?)
}

/// Puts a directory's changed names into the log, with all that they bring. Those that are there as they are, because a
/// file was fsynced, say, are left out.
fn try_names(
    mounted: &LiveFs,
    fast: &FastLog,
    changes: &EpochChanges,
    directory: &Arc<LiveInode>,
    changed: Epoch,
) -> Result<Tried, Error> {
    match changes.unlogged_in(directory.ino()) {
        UnloggedNames::Names(names) => {
            return try_log(mounted, fast, changes, directory, names, changed);
        }
        UnloggedNames::Unknown => return Ok(Tried::Unloggable),
        UnloggedNames::Nothing(_) => {}
    }
    let _locked = directory.write_lock();
    if changes.has_too_many() {
        return Ok(Tried::Unloggable);
    }
    let UnloggedNames::Nothing(batch) = changes.unlogged_in(directory.ino()) else {
        return Ok(Tried::Again);
    };
    // While it runs, what changed is what changed in its epoch.
    let Some(log) = fast.running(changed) else {
        return Ok(Tried::NotNext);
    };
    if let Some(kept) = directory.logging() {
        if kept.is_unloggable(changed) {
            return Ok(Tried::Unloggable);
        }
        kept.set_logged(changed, batch, 0);
    }
    Ok(Tried::Logged(log, batch))
}

/// Puts a file with its closure into the log, or these names of a directory with theirs.
fn try_log(
    mounted: &LiveFs,
    fast: &FastLog,
    changes: &EpochChanges,
    of: &Arc<LiveInode>,
    names: Vec<NamePlace>,
    changed: Epoch,
) -> Result<Tried, Error> {
    let (file, directory) = if names.is_empty() {
        (Some(of.ino()), None)
    } else {
        (None, Some(of.ino()))
    };
    let Some(members) = log::close(changes, file, names) else {
        return Ok(Tried::Unloggable);
    };
    let mut wanted = members.inodes.clone();
    wanted.extend(directory);
    let found: Result<Vec<_>, Error> = wanted.iter().map(|ino| mounted.get(*ino)).collect();
    let found = found?;
    let locked: Vec<Exclusive<'_>> = found.iter().map(LiveInode::write_lock).collect();
    let mut gathered = Gathered {
        mounted,
        changes,
        epoch: changed,
        closure: Closure::default(),
        cost: Cost::default(),
    };
    for inode in &locked {
        if Some(inode.inode().ino()) != directory && !gathered.inode(inode)? {
            return Ok(Tried::Unloggable);
        }
    }
    let journal = &mounted.writing().journal;
    // It changes nothing, so it needs no room.
    let handle = mounted.begin(mounted.reserve(0, 0)?)?;
    let block_bytes = mounted.volume().geometry().block_size().bytes();
    let is_next = handle.epoch() == changed || canary::makes(Canary::NextEpochInLog);
    let log = if is_next {
        fast.log(&handle, journal, block_bytes)
    } else {
        None
    };
    let Some(log) = log else {
        return Ok(Tried::NotNext);
    };
    if !gathered.names(&members)
        || !directory.is_none_or(|ino| changes.has_all_of(ino, &members.names))
    {
        return Ok(Tried::Again);
    }
    // With all locks: what changes from here on is not asked for.
    if changes.has_too_many() || !gathered.parents(&members)? {
        return Ok(Tried::Unloggable);
    }
    if canary::makes(Canary::UnlinkWithoutLink) {
        gathered.forget_moves();
    }
    if !fast.spend(changed, gathered.cost) {
        return Ok(Tried::OverBudget);
    }
    let Ok(batch) = log.add(&gathered.closure, &fast.statistics) else {
        return Ok(Tried::Unloggable);
    };
    gathered.set_logged(&locked, batch);
    Ok(Tried::Logged(log, batch))
}

/// Whether records tell an inode's state: a regular file's with extents, whose blocks e2fsck's replay counts right. It
/// leaves out a block of attributes (F12), and of each level of the map all blocks but one (F19). Nor can it read the
/// record of an inode without extra fields where others have them (F20).
fn has_record(inode: &LoadedInode) -> bool {
    let is_mapped = inode.flags().contains(Flags::EXTENTS) && !inode.is_inline();
    inode.is(FileType::Regular)
        && is_mapped
        && inode.xattr_block().0 == 0
        && !extent::has_many_leaves(inode.block_area())
        && inode::fields(inode.slot()).is_some()
}

/// Whether a file's map has blocks of its own. Its ranges can't be logged, because e2fsck builds the map again when it
/// replays them: it takes blocks for the map that are free so far, although a later record maps them as data of another
/// file (F15).
fn has_index(inode: &LoadedInode) -> bool {
    extent::depth(inode.block_area()) > 0
}

/// A closure while it is put together.
struct Gathered<'a> {
    mounted: &'a LiveFs,
    changes: &'a EpochChanges,
    epoch: Epoch,
    closure: Closure,
    /// What Linux's replay of it takes.
    cost: Cost,
}

impl Gathered<'_> {
    /// Adds a locked inode to the closure; returns whether it can be logged.
    fn inode(&mut self, locked: &Exclusive<'_>) -> Result<bool, Error> {
        let live = locked.inode();
        let loaded = live.snapshot();
        let Some(kept) = live.logging() else {
            return Ok(false);
        };
        if loaded.links_count() == 0 && !canary::makes(Canary::InodeWithoutLinks) {
            // An inode that was made and deleted meanwhile leaves nothing to log. That a file lost its last name can't
            // be logged, because e2fsck removes the name and leaves the file without one.
            let has_come = live.life.is_born_in(self.epoch) && !self.changes.is_in_log(live.ino());
            return Ok(has_come);
        }
        if kept.is_unloggable(self.epoch) {
            return Ok(false);
        }
        let bytes = loaded.bytes(self.mounted.volume());
        let large_file = &self.mounted.writing().large_file;
        let lacks_feature = needs_large_file(bytes) && !large_file.was_on_before(self.epoch);
        if !has_record(&loaded) || lacks_feature {
            return Ok(false);
        }
        // Later its own record is there.
        if live.life.is_born_in(self.epoch) && kept.is_place_unseen() {
            if !self.mounted.is_place_blank(live, loaded.extra_size())? {
                kept.set_unloggable(self.epoch);
                return Ok(false);
            }
            kept.set_place_unseen(false);
        }
        let Some((ranges, is_known)) = self.changes.ranges(live.ino()) else {
            return Ok(false);
        };
        let Some(fields) = inode::fields(loaded.slot()) else {
            return Ok(false);
        };
        let mut fields: Box<[u8]> = fields.into();
        // A time of access that waits for a change is in the snapshot, not in its bytes.
        loaded.write_to(&mut fields);
        let ranges = if canary::makes(Canary::RangesLeftOut) {
            Vec::new()
        } else {
            self.mapped(&loaded, &ranges)?
        };
        self.cost = self.cost.and(self.replayed(&loaded, &ranges));
        self.closure.inodes.push(InodeState {
            ino: live.ino(),
            fields,
            is_new: live.life.is_born_in(self.epoch),
            is_known,
            ranges,
            // What was logged of this epoch showed its data then.
            shows_data: live.data.stamp() == self.epoch
                && kept.logged_size(self.epoch) != Some(bytes),
        });
        Ok(true)
    }

    /// What Linux's replay of an inode with these ranges takes at most. A map that has ranges to tell is in the inode,
    /// and was there since the last full commit; what did not change of it is mapped whatever was replayed so far.
    fn replayed(&self, inode: &LoadedInode, ranges: &[log::Range]) -> Cost {
        let block_size = self.mounted.volume().geometry().block_size();
        let root = inode.block_area();
        // With names, its record is there twice.
        let records = 1 + u64::from(self.changes.has_names(inode.ino()));
        let extents = match extent::depth(root) {
            0 => extent::ROOT_ENTRIES,
            _ => extent::block_entries(block_size.bytes()),
        };
        let (touched, largest) = self.changes.reach(inode.ino());
        let bytes = inode.bytes(self.mounted.volume()).max(largest);
        let blocks = bytes.div_ceil(block_size.bytes_u64());
        let mapped: u64 = match ExtentNode::view(root) {
            ExtentEntries::Extents(extents) => (extents.iter())
                .map(|extent| {
                    extent
                        .end()
                        .min(blocks)
                        .saturating_sub(extent.block().into())
                })
                .sum(),
            ExtentEntries::Indices(_) => 0,
        };
        let holes = blocks.saturating_sub(mapped.saturating_sub(touched));
        let told: u64 = ranges.iter().map(log::Range::records).sum();
        Cost {
            holes: told.saturating_mul(holes),
            extents: records * u64::from(extents),
        }
    }

    /// How ranges are mapped now.
    fn mapped(&self, inode: &LoadedInode, ranges: &BlockRanges) -> Result<Vec<log::Range>, Error> {
        let mut mapped = Vec::new();
        for range in ranges.iter() {
            for run in Mappings::new(self.mounted.volume(), inode, range)? {
                let run = run?;
                // Within the 2^32 blocks that a map can name.
                mapped.push(log::Range {
                    first: LBlock(run.logical as u32),
                    len: run.len as u32,
                    at: run.physical.map(|at| (at, run.unwritten)),
                });
            }
        }
        Ok(mapped)
    }

    /// Takes the names in, if they and what they stood for are still the closure's.
    fn names(&mut self, members: &Members) -> bool {
        for ino in &members.inodes {
            let names = self.changes.names_of(*ino);
            if !names.iter().all(|place| members.names.contains(place)) {
                return false;
            }
        }
        for place in &members.names {
            let inodes = self.changes.inodes_of(place);
            if !inodes.iter().all(|ino| members.inodes.contains(ino)) {
                return false;
            }
            let Some((base, now)) = self.changes.name(place) else {
                return false;
            };
            self.closure.names.push(NameState {
                parent: place.0,
                name: place.1.clone(),
                base,
                now,
            });
        }
        true
    }

    /// All of it is in this batch as it is now, with the inodes locked.
    fn set_logged(&self, locked: &[Exclusive<'_>], batch: Batch) {
        for locked in locked {
            let inode = locked.inode();
            let now = inode.snapshot();
            self.changes.set_names_in_log(inode.ino());
            if now.is(FileType::Regular) && now.links_count() > 0 {
                self.changes.set_in_log(inode.ino());
            }
            if let Some(kept) = inode.logging() {
                kept.set_logged(self.epoch, batch, now.bytes(self.mounted.volume()));
            }
        }
        for name in &self.closure.names {
            let place = (name.parent, name.name.clone());
            self.changes.set_name_in_log(&place, name.now, batch);
        }
    }

    /// A mistake: of a moved file, only the old name is logged.
    fn forget_moves(&mut self) {
        let names = &mut self.closure.names;
        let moved: BTreeSet<Ino> = (names.iter())
            .filter(|name| name.now != name.base)
            .filter_map(|name| name.base)
            .collect();
        names.retain(|name| name.now.is_none_or(|now| !moved.contains(&now)));
    }

    /// Whether the directories of all names were there before, and changed in nothing but names. They are in memory:
    /// they changed in this epoch.
    fn parents(&self, members: &Members) -> Result<bool, Error> {
        for (parent, _) in &members.names {
            let live = self.mounted.get(*parent)?;
            let changed = live
                .logging()
                .is_none_or(|kept| kept.is_unloggable(self.epoch));
            if changed {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
