//! What changed since the last full commit, as far as the fsync log needs it: names, and blocks of files. Plain data:
//! the chapters that change something append to it, and the fsync log is made from it.
//!
//! Handles of an epoch note what they change in that epoch's tables ([`EpochChanges`]), in shards by inode
//! ([`Rank::LogChanges`], held for one access); the committer clears an epoch's tables before it writes the
//! transaction. Nothing is kept on file systems whose journal has no area for fast commits.
//!
//! What a crash leaves: nothing of these tables; what the log left is described in `fsync/log.rs`.
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

/// The most names that one fsync logs; an fsync that brings more is a full commit.
pub(crate) const NAMES_MAX: usize = 256;

/// The changes of the running epoch, and of the sealed one until its transaction is written.
pub(crate) struct Changes {
    /// By the epoch's lowest bit.
    epochs: [EpochChanges; 2],
}

impl Changes {
    pub(super) fn new() -> Changes {
        Changes {
            epochs: [EpochChanges::new(), EpochChanges::new()],
        }
    }

    /// What changed in an epoch.
    pub(crate) fn of(&self, epoch: Epoch) -> &EpochChanges {
        &self.epochs[(epoch.0 & 1) as usize]
    }

    /// Records that a name stands for another inode, or for none, from this handle on.
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

    /// Records that names are put into a block of a directory from this handle on; `before` is the block without them.
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

    /// Records in the handle's epoch that a file of `bytes` bytes is truncated: the cost of replaying its ranges counts
    /// the holes up to its largest size in the epoch. A crash forgets it.
    pub(crate) fn note_cut(&self, handle: &Handle<'_>, ino: Ino, bytes: u64) {
        let changes = self.of(handle.epoch());
        if !changes.has_too_many() {
            changes.note_cut(ino, bytes);
        }
    }

    /// Records that these ranges of a file are mapped differently from this handle on. `has_index`: the map has an
    /// index, or had one before this change.
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
