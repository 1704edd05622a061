//! What changed since the last full commit and concerns the fsync log: names, and blocks of files. Plain data: the
//! chapters that change names and blocks append to it, and the fsync log is made from it.
//!
//! Handles of an epoch record their changes in that epoch's tables ([`EpochChanges`]), which are divided by inode into
//! shards ([`Rank::LogChanges`], held for one access). The committer clears an epoch's tables before it writes the
//! transaction. On file systems whose journal has no area for fast commits, nothing is recorded.
//!
//! CRASH: nothing of these tables remains; what the log leaves is described in `fsync/log.rs`.
//!
//! [`Rank::LogChanges`]: sync::Rank::LogChanges

use std::ops::Range;

use journal::{Epoch, Handle};
use ondisk::Ino;

mod epoch;
mod room;

pub(crate) use epoch::{BlockRanges, EpochChanges, UnloggedNames};
pub(crate) use room::Placed;

/// A log transaction: the fsyncs that share one log commit. Numbered from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Batch(pub u64);

/// A directory and a name in it.
pub(crate) type NamePlace = (Ino, Box<[u8]>);

/// The most names that one fsync logs; an fsync with more names makes a full commit.
pub(crate) const NAMES_MAX: usize = 256;

/// The changes of the running epoch, and of the sealed one until its transaction is written.
pub(crate) struct Changes {
    /// Indexed by the epoch's lowest bit.
    epochs: [EpochChanges; 2],
}

impl Changes {
    pub(super) fn new() -> Changes {
        Changes {
            epochs: [EpochChanges::new(), EpochChanges::new()],
        }
    }

    /// The changes of an epoch.
    pub(crate) fn of(&self, epoch: Epoch) -> &EpochChanges {
        &self.epochs[(epoch.0 & 1) as usize]
    }

    /// Records that from this handle on a name stands for another inode, or for none.
    pub(crate) fn note_name(
        &self,
        handle: &Handle<'_>,
        place: (Ino, &[u8]),
        before: Option<Ino>,
        now: Option<Ino>,
    ) {
        let changes = self.of(handle.epoch());
        if !changes.has_too_many() {
            changes.note_name((place.0, place.1.into()), before, now);
        }
    }

    /// Records that from this handle on names are put into a block of a directory; `before` is the block without them.
    /// Returns whether a replay of fast commits is certain to have room for them. Called before [`Changes::note_name`].
    pub(crate) fn note_placed(
        &self,
        handle: &Handle<'_>,
        directory: Ino,
        placed: &Placed,
        before: &[u8],
    ) -> bool {
        let changes = self.of(handle.epoch());
        changes.has_too_many() || changes.note_placed(directory, placed, before)
    }

    /// Records in the handle's epoch that a file of `bytes` bytes is truncated, because the cost of replaying its
    /// ranges includes the holes up to its largest size in the epoch. A crash forgets it.
    pub(crate) fn note_cut(&self, handle: &Handle<'_>, ino: Ino, bytes: u64) {
        let changes = self.of(handle.epoch());
        if !changes.has_too_many() {
            changes.note_cut(ino, bytes);
        }
    }

    /// Records that from this handle on these ranges of a file are mapped differently. `has_index` is whether the map
    /// has an index, or had one before this change.
    pub(crate) fn note_ranges(
        &self,
        handle: &Handle<'_>,
        ino: Ino,
        ranges: &[Range<u64>],
        has_index: bool,
    ) {
        let changes = self.of(handle.epoch());
        let is_change = !ranges.is_empty() || has_index;
        if is_change && !changes.has_too_many() {
            changes.note_ranges(ino, ranges, has_index);
        }
    }
}
