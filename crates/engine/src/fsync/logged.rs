//! An fsync through the log: the inode and all that must be on disk with it, as they are at one moment of the running
//! epoch, then the log commit that others share.
//!
//! The closure's inodes are locked together in ascending order, and its map is read, before the handle; under the
//! handle their records go into the log tree, which is memory. Nothing is locked while the log is written. What can't
//! be told by fast commits, and what is of no epoch that they count for, is left to a full commit.

use journal::Epoch;
use logtree::closure::{self, Changes, Members};
use logtree::{Closure, InodeState, NameState};
use ondisk::{FileType, Ino, LBlock, inode};
use sync::Arc;

use crate::error::Error;
use crate::extent::Mappings;
use crate::fast::{EpochChanges, FastLog, JournalArea, Ranges};
use crate::icache::{Exclusive, Icache, LiveInode};

/// How often the closure is looked for anew because others changed names meanwhile.
const TRIES: usize = 4;

/// What came of a try to put a closure into the log.
enum Tried {
    /// It is in this batch.
    Logged(Arc<logtree::FsyncLog>, logtree::Batch),
    /// Names changed between the look without locks and that with them.
    Again,
    /// It must be committed in full.
    Full,
}

/// Logs what an fsync of an inode that changed last in an epoch needs, durably; whether that was done. The caller holds
/// nothing.
///
/// # Errors
/// `Corrupt`, `Io`; `Aborted` when the device failed.
pub(super) fn log(icache: &Icache, inode: &Arc<LiveInode>, changed: Epoch) -> Result<bool, Error> {
    let (Some(fast), Some(logging)) = (icache.fast(), inode.logging()) else {
        return Ok(false);
    };
    let journal = &icache.volume().writing()?.journal;
    if inode.snapshot().links_count() == 0 {
        // Nothing of it is there after a crash.
        journal.flush_data()?;
        return Ok(true);
    }
    if let (Some(batch), Some(log)) = (logging.logged(changed), fast.running(changed)) {
        return Ok(log
            .sync(batch, &JournalArea(journal), &fast.statistics)
            .is_ok());
    }
    if !journal.is_home() {
        // Once after each full commit.
        journal.checkpoint()?;
    }
    for _ in 0..TRIES {
        match try_log(icache, fast, inode.ino(), changed)? {
            Tried::Logged(log, batch) => {
                let synced = log.sync(batch, &JournalArea(journal), &fast.statistics);
                // A device that failed aborted the journal; all else is left to a full commit.
                journal.check()?;
                return Ok(synced.is_ok());
            }
            Tried::Again => {}
            Tried::Full => break,
        }
    }
    fast.unloggable.add(1);
    Ok(false)
}

fn try_log(icache: &Icache, fast: &FastLog, ino: Ino, changed: Epoch) -> Result<Tried, Error> {
    let changes = fast.changes(changed);
    if changes.has_too_many() {
        return Ok(Tried::Full);
    }
    let Some(members) = closure::close(changes, [ino], []) else {
        return Ok(Tried::Full);
    };
    let found: Result<Vec<_>, Error> = (members.inodes.iter())
        .map(|ino| icache.get(*ino))
        .collect();
    let found = found?;
    let locked: Vec<Exclusive<'_>> = found.iter().map(LiveInode::write_lock).collect();
    let mut gathered = Gathered {
        icache,
        changes,
        epoch: changed,
        closure: Closure::default(),
    };
    for inode in &locked {
        if !gathered.inode(inode)? {
            return Ok(Tried::Full);
        }
    }
    let journal = &icache.volume().writing()?.journal;
    // It changes nothing, so it needs no room.
    let handle = icache.begin(icache.reserve(0, 0)?)?;
    if handle.epoch() != changed {
        fast.not_next.add(1);
        return Ok(Tried::Full);
    }
    let Some(log) = fast.log(&handle, journal, journal_block(icache)) else {
        fast.not_next.add(1);
        return Ok(Tried::Full);
    };
    if !gathered.names(&members) {
        return Ok(Tried::Again);
    }
    if !gathered.parents(&members)? {
        return Ok(Tried::Full);
    }
    let Ok(batch) = log.add(&gathered.closure, &fast.statistics) else {
        return Ok(Tried::Full);
    };
    for inode in &locked {
        let inode = inode.inode();
        changes.set_in_log(inode.ino());
        let size = inode.snapshot().bytes(icache.volume());
        if let Some(kept) = inode.logging() {
            kept.set_logged(changed, batch, size);
        }
    }
    Ok(Tried::Logged(log, batch))
}

fn journal_block(icache: &Icache) -> usize {
    icache.volume().geometry().block_size().bytes()
}

/// A closure while it is put together.
struct Gathered<'a> {
    icache: &'a Icache,
    changes: &'a EpochChanges,
    epoch: Epoch,
    closure: Closure,
}

impl Gathered<'_> {
    /// Takes a locked inode in; whether it can be logged.
    fn inode(&mut self, locked: &Exclusive<'_>) -> Result<bool, Error> {
        let live = locked.inode();
        let loaded = live.snapshot();
        let Some(kept) = live.logging() else {
            return Ok(false);
        };
        if kept.is_unloggable(self.epoch) {
            return Ok(false);
        }
        let size = Some(loaded.bytes(self.icache.volume()));
        if loaded.links_count() == 0 {
            // Its names tell all that is left of it.
            return Ok(true);
        }
        let is_file = loaded.file_type() == Some(FileType::Regular);
        if !is_file || !loaded.flags().contains(ondisk::Flags::EXTENTS) || loaded.is_inline() {
            return Ok(false);
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
        let ranges = self.mapped(&loaded, &ranges)?;
        self.closure.inodes.push(InodeState {
            ino: live.ino(),
            fields,
            is_new: live.is_born_in(self.epoch),
            is_known,
            ranges,
            // What was logged of this epoch showed its data then.
            shows_data: live.data_stamp() == self.epoch && kept.logged_size(self.epoch) != size,
        });
        Ok(true)
    }

    /// How ranges are mapped now.
    fn mapped(
        &self,
        inode: &crate::icache::LoadedInode,
        ranges: &Ranges,
    ) -> Result<Vec<logtree::Range>, Error> {
        let mut mapped = Vec::new();
        for range in ranges.iter() {
            for run in Mappings::new(self.icache.volume(), inode, range)? {
                let run = run?;
                // Within the 2^32 blocks that a map can name.
                mapped.push(logtree::Range {
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

    /// Whether the directories of all names were there before, and changed in nothing but names. They are in memory:
    /// they changed in this epoch.
    fn parents(&self, members: &Members) -> Result<bool, Error> {
        for (parent, _) in &members.names {
            let live = self.icache.get(*parent)?;
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
