//! What is kept of each group: hints, and its blocks in memory as long as they are needed and there is room.
//!
//! A group's bitmap is read without a lock and put in memory under the group's lock. While a thread reads it, others
//! may put the blocks in memory, change them and drop them again; the reader notices that by a count, and reads anew.
//! If more groups are in memory than allowed, those used least recently are dropped first, and only without outstanding
//! blocks ([`Bits::may_go`]): then the newest image is the same. The outstanding blocks are bounded by the journal's
//! largest transaction and by the blocks that files and threads keep aside.
//!
//! The image of a group's blocks does not change while they are not in memory, with one exception: an epoch with the
//! first inode in a group writes the bitmap that the group did not have before. No thread reads it before blocks of the
//! group are taken ([`Slot::is_initial`]).

use std::collections::VecDeque;

use ondisk::{Corrupt, Group};
use sync::{CachePadded, Counter, Hint, Mutex, MutexGuard, Rank};

use super::bits::Bits;
use super::scan::ScanPurpose;
use super::{DescriptorInodes, Groups, load_bits};
use crate::blocks::OpenVolume;
use crate::core::Error;

/// How many groups a thread looks at, to evict them, after it loaded one.
const LOOKS_A_LOAD: usize = 16;
/// How often the committer looks at all of them.
const ROUNDS: usize = 2;

/// What is kept of one group.
pub(super) struct Kept {
    /// Available blocks: as the descriptor says until the bitmap was read. [group]
    pub(super) free_blocks: Hint<u32>,
    /// A bound on runs of them. [group]
    longest: Hint<u32>,
    /// The order of the largest free chunk plus one; 0 without any. [group]
    largest: Hint<u32>,
    /// The order of the average run plus one; 0 without any. [group]
    average: Hint<u32>,
    /// Whether the blocks were used since a thread last looked for blocks to drop. [atomic: Relaxed, hint]
    is_used: Hint<bool>,
    /// [group]
    slot: Mutex<Slot>,
}

/// A group's blocks.
struct Slot {
    /// While they are in memory.
    bits: Option<Box<Bits>>,
    /// How often they were put in place.
    loads: u64,
    /// No epoch changed the group's bitmap since it was made; it may not be written, or be on its way: the first epoch
    /// with an inode in the group writes it, even if no thread has read it.
    is_initial: bool,
}

/// Groups whose blocks are in memory, and how much that is.
pub(super) struct Loaded {
    /// In the order in which they were loaded or looked at last. [leaf]
    queue: Mutex<VecDeque<Group>>,
    /// How many there are. [written under the queue]
    count: CachePadded<Hint<u32>>,
    /// Beyond this number, groups are evicted. [const]
    most: u32,
    pub(super) loads: Counter,
    pub(super) evictions: Counter,
}

impl Loaded {
    /// Room for the blocks of at most `most` groups.
    pub(super) fn new(most: u32) -> Loaded {
        Loaded {
            queue: Mutex::new(Rank::Leaf, VecDeque::new()),
            count: CachePadded::default(),
            most,
            loads: Counter::new(),
            evictions: Counter::new(),
        }
    }

    fn add(&self, group: Group) {
        self.loads.add(1);
        self.put(group);
    }

    fn put(&self, group: Group) {
        let mut queue = self.queue.lock();
        queue.push_back(group);
        self.say(&queue);
    }

    fn take(&self) -> Option<Group> {
        let mut queue = self.queue.lock();
        let group = queue.pop_front();
        self.say(&queue);
        group
    }

    fn say(&self, queue: &VecDeque<Group>) {
        // There are at most 2^20 groups.
        self.count.set(queue.len() as u32);
    }

    /// How many groups' blocks are in memory.
    pub(super) fn count(&self) -> u32 {
        self.count.get()
    }
}

/// An order as a byte, of a length that is not below 2^order.
fn order_byte(len: u32) -> u8 {
    // Below 33.
    len.checked_ilog2().map_or(0, |order| order as u8 + 1)
}

impl Kept {
    /// From a group's descriptor; nothing is known about how its free blocks lie.
    pub(super) fn new(said: &DescriptorInodes) -> Kept {
        let free = said.blocks;
        let order = u32::from(order_byte(free));
        Kept {
            free_blocks: Hint::new(free),
            longest: Hint::new(free),
            largest: Hint::new(order),
            average: Hint::new(order),
            is_used: Hint::new(false),
            slot: Mutex::new(
                Rank::Group,
                Slot {
                    bits: None,
                    loads: 0,
                    is_initial: said.is_initial,
                },
            ),
        }
    }

    /// What the order lists say before the group is loaded.
    pub(super) fn first_order(free: u32) -> u8 {
        order_byte(free)
    }

    fn get(of: &Hint<u32>) -> u32 {
        of.get()
    }

    fn set(of: &Hint<u32>, value: u32) {
        of.set(value);
    }
}

impl Groups {
    /// Works on a group's blocks under its lock; `None` if another thread has the lock and the form says to look
    /// elsewhere then. Reads the blocks first if they are not in memory. Not under another group's lock, and not with a
    /// handle open.
    ///
    /// # Errors
    /// When the bitmap can't be read or is broken.
    pub(crate) fn try_with_bits<R>(
        &self,
        volume: &OpenVolume,
        group: Group,
        work: impl FnOnce(&mut Bits) -> R,
    ) -> Result<Option<R>, Error> {
        let kept = &self.kept[group.0 as usize];
        match self.locks.lock(&kept.slot) {
            Some(slot) => self.work(volume, group, slot, work).map(Some),
            None => Ok(None),
        }
    }

    /// As [`Groups::try_with_bits`], but waits for the lock.
    ///
    /// # Errors
    /// As [`Groups::try_with_bits`].
    pub(crate) fn with_bits<R>(
        &self,
        volume: &OpenVolume,
        group: Group,
        work: impl FnOnce(&mut Bits) -> R,
    ) -> Result<R, Error> {
        let kept = &self.kept[group.0 as usize];
        self.work(volume, group, self.locks.wait(&kept.slot), work)
    }

    fn work<'a, R>(
        &'a self,
        volume: &OpenVolume,
        group: Group,
        mut slot: MutexGuard<'a, Slot>,
        work: impl FnOnce(&mut Bits) -> R,
    ) -> Result<R, Error> {
        let kept = &self.kept[group.0 as usize];
        let mut is_new = false;
        while slot.bits.is_none() {
            let (loads, is_initial) = (slot.loads, slot.is_initial);
            drop(slot);
            let loaded = load_bits(volume, group, is_initial);
            slot = self.locks.wait(&kept.slot);
            // Otherwise what was read may be older than what other threads made of it before it was evicted.
            if slot.bits.is_none() && slot.loads == loads {
                let mut bits = Box::new(loaded?);
                let free = bits.buddy().free();
                // The bitmap counts, whatever the descriptor records.
                self.blocks
                    .add(i64::from(free) - i64::from(Kept::get(&kept.free_blocks)));
                slot.bits = Some(bits);
                slot.loads += 1;
                is_new = true;
            }
        }
        // The loop above ends when they are there, and the lock is held since.
        let bits = slot.bits.as_mut().expect("a loaded group");
        let result = work(bits);
        self.say(group, bits);
        drop(slot);
        if is_new {
            self.loaded.add(group);
            self.let_go(LOOKS_A_LOAD);
        }
        Ok(result)
    }

    /// Works on blocks that are in memory; nothing is done to others.
    pub(crate) fn with_loaded(&self, group: Group, work: impl FnOnce(&mut Bits)) {
        let kept = &self.kept[group.0 as usize];
        if let Some(bits) = self.locks.wait(&kept.slot).bits.as_mut() {
            work(bits);
            self.say(group, bits);
        }
    }

    /// Publishes a group's counts. The caller has the group's lock.
    fn say(&self, group: Group, bits: &mut Bits) {
        let kept = &self.kept[group.0 as usize];
        let buddy = bits.buddy();
        let (free, longest) = (buddy.free(), buddy.longest());
        // Below 20.
        let largest = buddy.largest_order().map_or(0, |order| order as u8 + 1);
        let average = order_byte(buddy.average_run());
        Kept::set(&kept.free_blocks, free);
        Kept::set(&kept.longest, longest);
        self.say_orders(group, largest, average);
        kept.is_used.set_if_new(true);
    }

    fn say_orders(&self, group: Group, largest: u8, average: u8) {
        let kept = &self.kept[group.0 as usize];
        for (own, list, new) in [
            (&kept.largest, &self.largest, largest),
            (&kept.average, &self.average, average),
        ] {
            // A byte each.
            list.change(group, Kept::get(own) as u8, new);
            Kept::set(own, new.into());
        }
    }

    /// Whether a group may have what is wanted, by its own line. A hint.
    pub(super) fn may_have(&self, group: Group, wanted: ScanPurpose) -> bool {
        let kept = &self.kept[group.0 as usize];
        match wanted {
            ScanPurpose::Chunk(order) => Kept::get(&kept.largest) > order,
            ScanPurpose::Average(order) => Kept::get(&kept.average) > order,
            ScanPurpose::Run(want) => Kept::get(&kept.longest) >= want,
            ScanPurpose::Any => Kept::get(&kept.free_blocks) > 0,
        }
    }

    /// The available blocks of a group. A hint.
    pub(crate) fn free_blocks(&self, group: Group) -> u32 {
        let kept = self.kept.get(group.0 as usize);
        kept.map_or(0, |kept| Kept::get(&kept.free_blocks))
    }

    /// Excludes a group whose bitmap of blocks is broken: none is taken from it any more, and the sum does not count
    /// it.
    pub(crate) fn exclude(&self, group: Group, corrupt: Corrupt) {
        let kept = &self.kept[group.0 as usize];
        let slot = kept.slot.lock();
        let free = Kept::get(&kept.free_blocks);
        if slot.bits.is_some() || free == 0 {
            return;
        }
        Kept::set(&kept.free_blocks, 0);
        Kept::set(&kept.longest, 0);
        self.say_orders(group, 0, 0);
        drop(slot);
        self.blocks.add(-i64::from(free));
        self.note_broken(corrupt);
    }

    /// Evicts what is too much, after a commit ended what was outstanding.
    pub(super) fn keep_bound(&self) {
        self.let_go(ROUNDS * self.loaded.count() as usize);
    }

    /// Drops groups' blocks while more are in memory than are kept; looks at up to `looks` groups.
    fn let_go(&self, looks: usize) {
        for _ in 0..looks {
            if self.loaded.count() <= self.loaded.most {
                return;
            }
            let Some(group) = self.loaded.take() else {
                return;
            };
            if self.evict(group) {
                self.loaded.evictions.add(1)
            } else {
                self.loaded.put(group)
            }
        }
    }

    /// Evicts a group's blocks, unless they were used recently, or some of them are outstanding.
    fn evict(&self, group: Group) -> bool {
        let kept = &self.kept[group.0 as usize];
        if kept.is_used.swap(false) {
            return false;
        }
        let Some(mut slot) = kept.slot.try_lock() else {
            return false;
        };
        let may_go = slot.bits.as_ref().is_none_or(|bits| bits.may_go());
        if may_go && let Some(bits) = slot.bits.take() {
            slot.is_initial &= !bits.has_changed();
        }
        may_go
    }
}
