//! Which inode numbers are available: each group's bits ([`InodeBits`]), the exact sum over all groups, and the number
//! of directories in each group.
//!
//! No lock, except while a group's bitmap is put in memory ([`Rank::Group`]), and while records of an inode table that
//! was never written are made readable (see [`super::tables`]). The images of inode bitmaps belong to the committer
//! ([`super::fold`]), and a crash leaves those.
//!
//! The sum counts the available numbers that no thread has a share of. A thread that takes numbers first takes a share
//! of the sum, then sets bits; a thread that gives numbers back first clears bits. So a thread with a share of n finds
//! n clear bits. Numbers in windows ([`crate::space::ialloc`]) are set bits, counted apart: they become available when
//! the window is drawn back.
//!
//! Memory: two bits an inode for each group that was used: 16 MiB for 2^26 inodes, which is what mke2fs gives a file
//! system of 1 TiB.
//!
//! Interleavings: `no_number_has_two_owners_and_none_is_lost` and `no_number_is_given_twice_and_none_is_lost`. A
//! group's bits stay until the volume is dropped, so no reader needs a guard.

use std::collections::BTreeMap;

use ondisk::{Geometry, Group, Ino};
use sync::{Counter, Guarded, Hint, Lanes, Mutex, OnceLock, OwnThread, Rank};

use super::space::ExactSum;
use crate::core::Error;

mod bits;

pub(crate) use bits::{Chunk, InodeBits};

/// How many groups a thread counts new directories of, before it adds them to what all see.
const RECENT: usize = 4;

/// New directories that a thread made: the group, and 1, in the upper half, how many in the lower; 0 for none. [atomic:
/// Relaxed, hint; written by the lane's thread]
#[derive(Default)]
struct Recent([OwnThread<u64>; RECENT]);

/// What a group's descriptor says, read once.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DescriptorInodes {
    /// Free clusters.
    pub(crate) blocks: u32,
    /// Free inodes.
    pub(crate) inodes: u32,
    /// Directories.
    pub(crate) directories: u32,
    /// No bitmap of its blocks was ever written.
    pub(crate) is_initial: bool,
}

/// The part of all numbers that windows leave for others.
const FLOOR: u64 = 32;

/// What was counted.
#[derive(Default)]
pub(crate) struct InodeCounters {
    /// Words of bitmaps that were looked at.
    pub(crate) words_searched: Counter,
    /// Groups of which no inode was in use before.
    pub(crate) groups_initialised: Counter,
    /// Blocks of inode tables that were written to be readable.
    pub(crate) table_blocks_zeroed: Counter,
}

/// The inode numbers of all groups.
pub(crate) struct InodeNumbers {
    /// What each descriptor said is free, until its bitmap is there; 0 for a group whose bitmap can't be used. [atomic:
    /// Relaxed, hint; written under `loading`]
    said: Box<[Guarded<u32>]>,
    /// Bitmaps, once they were needed; they stay. [group]
    bits: Box<[OnceLock<Box<InodeBits>>]>,
    /// Directories of each group, except those in `recent`. [atomic: Relaxed, hint]
    directories: Box<[Hint<i32>]>,
    /// Directories that each thread made last. [that thread's; read by the thread that sums up]
    recent: Lanes<Recent>,
    /// Held while a group's bitmap is put in memory, or found unusable. [group]
    loading: Mutex<()>,
    /// Held while records are made readable. [inode table]
    pub(super) tables: Mutex<()>,
    /// The available numbers of all groups together, without those that a thread has a share of.
    space: ExactSum,
    /// How many numbers windows leave for others. [const]
    floor: u64,
    /// How many are in windows, modulo 2^64.
    windowed: Counter,
    pub(crate) counters: InodeCounters,
}

impl InodeNumbers {
    /// From what the descriptors say; all groups together have `inodes` inodes.
    pub(crate) fn new(said: &[DescriptorInodes], inodes: u32) -> InodeNumbers {
        // At most 2^19 inodes a group.
        let directories = |said: &DescriptorInodes| Hint::new(said.directories as i32);
        InodeNumbers {
            space: ExactSum::new(
                said.iter().map(|said| u64::from(said.inodes)).sum(),
                floor_of(inodes),
            ),
            bits: said.iter().map(|_| OnceLock::new()).collect(),
            said: said.iter().map(|said| Guarded::new(said.inodes)).collect(),
            directories: said.iter().map(directories).collect(),
            recent: Lanes::new(),
            loading: Mutex::new(Rank::Group, ()),
            tables: Mutex::new(Rank::InodeTable, ()),
            floor: floor_of(inodes),
            windowed: Counter::new(),
            counters: InodeCounters::default(),
        }
    }

    /// A group's numbers, if its bitmap is in memory.
    pub(crate) fn loaded(&self, group: Group) -> Option<&InodeBits> {
        self.bits.get(group.0 as usize)?.get().map(Box::as_ref)
    }

    /// Puts a group's bitmap in memory as it was read, unless another thread was first: then that one is returned,
    /// because what was read may be older than what other threads made of it, or half of it, and so may be an error.
    /// The image does not change before the bitmap is in memory. The group must exist. The image counts, whatever the
    /// descriptor says.
    ///
    /// # Errors
    /// That of the reading, if no bitmap is there.
    pub(crate) fn insert(
        &self,
        group: Group,
        read: Result<InodeBits, Error>,
    ) -> Result<&InodeBits, Error> {
        let place = &self.bits[group.0 as usize];
        let _alone = self.loading.lock();
        if let Some(bits) = place.get() {
            return Ok(bits);
        }
        let bits = read?;
        let said = self.said[group.0 as usize].get();
        self.space.add(i64::from(bits.free()) - i64::from(said));
        Ok(place.get_or_init(|| Box::new(bits)))
    }

    /// The available numbers of a group. A hint.
    pub(crate) fn free(&self, group: Group) -> u32 {
        match self.loaded(group) {
            Some(bits) => bits.free(),
            None => self.said.get(group.0 as usize).map_or(0, |said| said.get()),
        }
    }

    /// One more directory is made in a group. Writes what others write only when the thread turns to another group.
    pub(crate) fn count_directory(&self, group: Group) {
        let recent = &self.recent.mine().0;
        let named = u64::from(group.0) + 1;
        let of = |slot: &OwnThread<u64>| slot.get();
        let same = recent.iter().find(|slot| of(slot) >> 32 == named);
        if let Some(slot) = same.or_else(|| recent.iter().find(|slot| of(slot) == 0)) {
            slot.set((named << 32) + (of(slot) as u32 as u64) + 1);
            return;
        }
        for slot in recent {
            let before = slot.swap(0);
            // Both halves fit.
            if let Some(group) = ((before >> 32) as u32).checked_sub(1) {
                self.count_directories(Group(group), before as u32 as i32);
            }
        }
        recent[0].set((named << 32) + 1);
    }

    /// The new directories that [`InodeNumbers::directories`] leaves out.
    pub(crate) fn recent_directories(&self) -> BTreeMap<Group, u32> {
        let mut recent = BTreeMap::new();
        for slot in self.recent.iter().flat_map(|lane| &lane.0) {
            let slot = slot.get();
            // Both halves fit.
            if let Some(group) = ((slot >> 32) as u32).checked_sub(1) {
                *recent.entry(Group(group)).or_insert(0) += slot as u32;
            }
        }
        recent
    }

    /// Directories of a group, except the newest ones. A hint.
    pub(crate) fn directories(&self, group: Group) -> u32 {
        let count = self.directories.get(group.0 as usize);
        let count = count.map_or(0, |count| count.get());
        u32::try_from(count).unwrap_or(0)
    }

    /// Counts `more` directories in a group, or fewer if it is negative.
    pub(crate) fn count_directories(&self, group: Group, more: i32) {
        if let Some(count) = self.directories.get(group.0 as usize) {
            count.add(more);
        }
    }

    /// Excludes a group whose bitmap can't be used: nothing is taken from it, and the sum does not count it. Returns
    /// whether that is new; false if a bitmap is in memory, which then counts.
    pub(super) fn exclude(&self, group: Group) -> bool {
        let _alone = self.loading.lock();
        if self.loaded(group).is_some() {
            return false;
        }
        // The thread that swaps the count out takes it off the sum.
        let said = self.said[group.0 as usize].swap(0);
        self.space.add(-i64::from(said));
        said > 0
    }

    /// Gives numbers of a window back: their bits are cleared, then the sum counts them, and they are in no window any
    /// more. Takes no lock, because it is called wherever an inode leaves memory.
    pub(crate) fn give_back_windowed(&self, group: Group, chunk: Chunk) {
        if let Some(bits) = self.loaded(group) {
            bits.give_back(chunk);
            self.space.put(chunk.len());
            self.leave_window(chunk.len());
        }
    }

    /// Counts `count` numbers, of which the caller has the share, that are now in a window.
    pub(crate) fn enter_window(&self, count: u32) {
        self.windowed.add(count.into());
    }

    /// Counts `count` numbers that are no longer in a window.
    pub(crate) fn leave_window(&self, count: u32) {
        self.windowed.add(u64::from(count).wrapping_neg());
    }

    /// Puts a number back that was taken and not applied.
    pub(crate) fn give_back(&self, geometry: &Geometry, ino: Ino) {
        if let Some((group, index)) = geometry.group_of_ino(ino)
            && let Some(bits) = self.loaded(group)
        {
            bits.give_back_one(index);
            self.space.give_back(1);
        }
    }

    /// Makes numbers available again that were freed by an epoch that is durable now.
    pub(super) fn committed(&self, geometry: &Geometry, freed: &[Ino]) {
        let mut count = 0;
        for ino in freed {
            if let Some((group, index)) = geometry.group_of_ino(*ino)
                && let Some(bits) = self.loaded(group)
            {
                bits.give_back_one(index);
                count += 1;
            }
        }
        self.space.durable(count);
    }

    /// Takes a share of one number; returns whether one was available.
    pub(crate) fn share_one(&self) -> bool {
        self.space.share(1, 0) == 1
    }

    /// Takes a share of up to `want` for a window; 0 if that would leave too few for others.
    pub(crate) fn share_for_window(&self, want: u32) -> u32 {
        self.space.share(want, self.floor)
    }

    /// About how many numbers are available now. Reads one word.
    pub(crate) fn hint(&self) -> u64 {
        self.space.hint()
    }

    /// Gives back a share of `count` for which no numbers were found.
    pub(crate) fn give_back_share(&self, count: u32) {
        if count > 0 {
            self.space.give_back(count);
        }
    }

    /// One number was freed by an epoch that is not durable.
    pub(crate) fn freed(&self) {
        self.space.freed(1);
    }

    /// All numbers that are available once what was freed is durable and windows are drawn back.
    pub(crate) fn sum(&self) -> u64 {
        // Below 0 only while others take and give back.
        let windowed = self.windowed.sum().cast_signed().max(0);
        self.space.sum().saturating_add(windowed.cast_unsigned())
    }

    /// How often there was no number for the calling thread.
    pub(crate) fn refusals(&self) -> u64 {
        self.space.refusals()
    }

    /// Whether a commit would free a number for a thread that found none.
    pub(crate) fn commit_helps(&self) -> bool {
        self.space.commit_helps(0)
    }

    /// What was counted so far.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 3] {
        let counters = &self.counters;
        [
            ("ialloc.words_searched", counters.words_searched.sum()),
            (
                "ialloc.groups_initialised",
                counters.groups_initialised.sum(),
            ),
            (
                "ialloc.table_blocks_zeroed",
                counters.table_blocks_zeroed.sum(),
            ),
        ]
    }
}

/// How many of `inodes` inodes windows leave for others.
fn floor_of(inodes: u32) -> u64 {
    (u64::from(inodes) / FLOOR).max(1)
}
