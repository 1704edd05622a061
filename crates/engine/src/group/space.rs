//! How many blocks (or inodes) can be had, exactly: the sum over all groups, from which an allocation takes its share
//! before it looks for bits, and what uncommitted frees will add.
//!
//! While there is plenty, each thread has a lease of the sum on a line of its own: shares come out of it and go back
//! into it, and the shared word is written once for many of them. Leases are drawn only while what they leave is at
//! least what anyone must leave to others, so a share from a lease never goes below its floor. When the sum gets low,
//! all leases are drawn back, and the shared word alone counts: a share is refused only when there is nothing.
//!
//! Bits are clear before the sum counts them and set after it stopped counting them, so that whoever has a share finds
//! as many clear bits. Locks: a thread's own lane, for a few instructions; others take it only to draw leases back and
//! to read the sum. [`Rank::Scarcity`] is held by who draws them back. Nothing of it is on disk.

use sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use sync::{CachePadded, Counter, Lanes, Mutex, Rank};

/// The most that a lease holds, unless single shares are large.
const LEASE: i64 = 1024;
/// A lease serves this many shares of the size for which it was drawn.
const SHARES: i64 = 64;
/// A lease is at most this part of what is there beyond the floors.
const PART: i64 = 16;
/// Leases begin again when so much more is there than the floors.
const PLENTY: i64 = 4 * LEASE;

/// The sum; see the module.
pub(crate) struct ExactSum {
    /// Free, in no lease, and nobody's share. Below 0 only where descriptors promised more than bitmaps hold. [atomic:
    /// Relaxed, exact]
    free: CachePadded<AtomicI64>,
    /// There are no leases. [atomic: Relaxed; written under scarcity, read under a lane's lock]
    is_scarce: CachePadded<AtomicBool>,
    /// Held to draw leases back and to let them begin again. [scarcity]
    scarcity: Mutex<()>,
    /// Of all that was freed by epochs, what is durable. [atomic: Relaxed, written by the committer]
    durable: CachePadded<AtomicU64>,
    lanes: Lanes<Lane>,
    /// What may be left to others, at most: leases are drawn from what is beyond. [const]
    floor: i64,
    refills: Counter,
    returns: Counter,
}

/// A thread's part.
struct Lane {
    /// Free, and this thread's to give. [leaf]
    lease: Mutex<i64>,
    /// Freed by epochs that were not durable then. [atomic: Relaxed, written by this thread]
    freed: AtomicU64,
    /// How often there was no share for this thread. [atomic: Relaxed, written by this thread]
    refused: AtomicU64,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane {
            lease: Mutex::new(Rank::Leaf, 0),
            freed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl ExactSum {
    /// With so many free, of which nobody must leave more than `floor`.
    pub(crate) fn new(free: u64, floor: u64) -> ExactSum {
        let (free, floor) = (bounded(free), bounded(floor));
        ExactSum {
            free: CachePadded::new(AtomicI64::new(free)),
            is_scarce: CachePadded::new(AtomicBool::new(free.saturating_sub(floor) < PLENTY)),
            scarcity: Mutex::new(Rank::Scarcity, ()),
            durable: CachePadded::default(),
            lanes: Lanes::new(),
            floor,
            refills: Counter::new(),
            returns: Counter::new(),
        }
    }

    /// Takes a share of up to `want` that leaves at least `floor` for others; 0 if there is none.
    pub(crate) fn share(&self, want: u32, floor: u64) -> u32 {
        let floor = bounded(floor);
        if floor <= self.floor && self.share_of_lease(want.into()) {
            return want;
        }
        // Relaxed: looked at again under the lock.
        let is_scarce = self.is_scarce.load(Ordering::Relaxed);
        // Below the floor of all, there must be no leases.
        let least = if is_scarce {
            floor
        } else {
            floor.max(self.floor)
        };
        let share = self.share_of_sum(want, least);
        if share == want {
            return share;
        }
        let _still = self.scarcity.lock();
        self.end_leases();
        let rest = self.share_of_sum(want - share, floor);
        // Relaxed: as in `share_of_lease`.
        let beyond = self.free.load(Ordering::Relaxed).saturating_sub(self.floor);
        // Relaxed: as in `add`.
        self.is_scarce.store(beyond < PLENTY, Ordering::Relaxed);
        if share + rest == 0 {
            // Relaxed: the thread's own number.
            self.lanes.mine().refused.fetch_add(1, Ordering::Relaxed);
        }
        share + rest
    }

    /// How often there was no share for the calling thread.
    pub(crate) fn refusals(&self) -> u64 {
        // Relaxed: the thread's own number.
        self.lanes.mine().refused.load(Ordering::Relaxed)
    }

    /// Takes a share out of the thread's lease, which is drawn first if need be; whether there was one.
    fn share_of_lease(&self, want: i64) -> bool {
        let mut lease = self.lanes.mine().lease.lock();
        // Relaxed: pairs with the store in `end_leases`, which then waits for this lane.
        if self.is_scarce.load(Ordering::Relaxed) {
            return false;
        }
        if *lease < want {
            let mut drawn = 0;
            let draw = |free: i64| {
                let part = (free - self.floor) / PART;
                drawn = (SHARES * want).max(LEASE).min(part);
                (drawn >= want).then_some(free - drawn)
            };
            // Relaxed: the number is all that matters; bits have their group's lock.
            let done = self
                .free
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, draw);
            if done.is_err() {
                return false;
            }
            self.refills.add(1);
            *lease += drawn;
        }
        *lease -= want;
        true
    }

    /// Takes a share out of the shared word.
    fn share_of_sum(&self, want: u32, floor: i64) -> u32 {
        let share = |free: i64| i64::from(want).min(free.saturating_sub(floor)).max(0);
        let take = |free| Some(free - share(free)).filter(|left| *left < free);
        // Relaxed: as in `share_of_lease`.
        let before = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        // At most `want`.
        before.map_or(0, |free| share(free) as u32)
    }

    /// All leases go back, and no new one is drawn. Scarcity is held.
    fn end_leases(&self) {
        // Relaxed: lanes are locked after this, and who draws a lease looks under its lane's lock.
        self.is_scarce.store(true, Ordering::Relaxed);
        for lane in self.lanes.iter() {
            let lease = std::mem::take(&mut *lane.lease.lock());
            if lease != 0 {
                self.returns.add(1);
                // Relaxed: as in `share_of_lease`.
                self.free.fetch_add(lease, Ordering::Relaxed);
            }
        }
    }

    /// A share, or a part of one, was not needed: its bits are clear.
    pub(crate) fn give_back(&self, count: u32) {
        let mut lease = self.lanes.mine().lease.lock();
        // Relaxed: as in `share_of_lease`.
        if !self.is_scarce.load(Ordering::Relaxed) {
            *lease += i64::from(count);
            if *lease <= 2 * LEASE.max(SHARES * i64::from(count)) {
                return;
            }
            let lease = std::mem::take(&mut *lease);
            self.returns.add(1);
            // Relaxed: as in `share_of_lease`.
            self.free.fetch_add(lease, Ordering::Relaxed);
            return;
        }
        drop(lease);
        self.add(count.into());
    }

    /// So many more are free, or (negative) fewer than was said.
    pub(crate) fn add(&self, count: i64) {
        // Relaxed: as in `share_of_lease`.
        let free = self.free.fetch_add(count, Ordering::Relaxed) + count;
        let beyond = free.saturating_sub(self.floor);
        // Relaxed: looked at again under the lock.
        let is_scarce = self.is_scarce.load(Ordering::Relaxed);
        if is_scarce && beyond >= PLENTY {
            let _still = self.scarcity.lock();
            // Relaxed: a lane that sees it late does without a lease.
            self.is_scarce.store(false, Ordering::Relaxed);
        } else if !is_scarce && beyond < 0 {
            let _still = self.scarcity.lock();
            self.end_leases();
        }
    }

    /// So many more are free. Takes no lock; leases begin again later.
    pub(crate) fn put(&self, count: u32) {
        // Relaxed: as in `share_of_lease`.
        self.free.fetch_add(count.into(), Ordering::Relaxed);
    }

    /// So many were freed by an epoch that is not durable.
    pub(crate) fn freed(&self, count: u32) {
        let freed = &self.lanes.mine().freed;
        // Relaxed: the thread's own number; pairs with the sum in `pending`.
        freed.fetch_add(count.into(), Ordering::Relaxed);
    }

    /// The epoch that freed them is durable, and their bits are clear.
    pub(crate) fn durable(&self, count: u64) {
        // Free first: in between they are counted twice, which is better than not at all.
        self.add(bounded(count));
        // Relaxed: as in `freed`.
        self.durable.fetch_add(count, Ordering::Relaxed);
    }

    /// What was freed and is not durable.
    fn pending(&self) -> i64 {
        // Relaxed: as in `freed`; before what was freed, or it may seem that less was.
        let durable = self.durable.load(Ordering::Relaxed);
        // Relaxed: as above.
        let freed = |lane: &Lane| lane.freed.load(Ordering::Relaxed);
        let freed: u64 = self.lanes.iter().map(freed).sum();
        bounded(freed.saturating_sub(durable))
    }

    /// About what can be had now: without what is in leases or freed and not durable. Reads one word.
    pub(crate) fn hint(&self) -> u64 {
        // Relaxed: a hint.
        u64::try_from(self.free.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// All that can be had, once what was freed is durable. Exact when nothing is under way.
    pub(crate) fn sum(&self) -> u64 {
        let pending = self.pending();
        let leases: i64 = self.lanes.iter().map(|lane| *lane.lease.lock()).sum();
        // Relaxed: as in `share_of_lease`.
        let free = self.free.load(Ordering::Relaxed);
        let sum = free.saturating_add(leases).saturating_add(pending);
        u64::try_from(sum).unwrap_or(0)
    }

    /// Whether a commit would give something to a request that must leave `floor`.
    pub(crate) fn commit_helps(&self, floor: u64) -> bool {
        self.pending() > 0 && self.sum() > floor
    }

    /// How often leases were drawn, and how often given or drawn back.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.refills.sum(), self.returns.sum())
    }
}

fn bounded(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
