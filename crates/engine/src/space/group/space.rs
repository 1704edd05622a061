//! How many blocks (or inodes) are available, exactly: the sum over all groups, from which an allocation takes its
//! share before it looks for bits, and what uncommitted frees will add.
//!
//! While the sum is large, each thread has a lease of it on a line of its own: shares are taken from the lease and
//! given back to it, and the shared word is written once for many of them. A lease is drawn only if it leaves at least
//! the highest floor, so a share from a lease never goes below its floor. When the sum becomes small, all leases are
//! drawn back, and the shared word alone counts: a share is refused only when nothing is left.
//!
//! Bits are clear before the sum counts them and set after it stopped counting them, so a thread with a share of n
//! finds n clear bits. Locks: a thread's own lane, for a few instructions; others take it only to draw leases back and
//! to read the sum. [`Rank::Scarcity`] is held by the thread that draws them back. Nothing of it is on disk.
//!
//! Interleavings: `under_any_schedule_nobody_is_refused_what_nobody_has`. The words live in the sum, and nothing is
//! reclaimed before it.

use sync::{Balance, CachePadded, Counter, Guarded, Lanes, Mutex, Rank, Statistic};

/// The most that a lease holds, unless single shares are large.
const LEASE: i64 = 1024;
/// A lease serves this many shares of the size for which it was drawn.
const SHARES: i64 = 64;
/// A lease is at most this part of what is there beyond the floors.
const PART: i64 = 16;
/// Leases begin again when the sum is this far above the floors.
const PLENTY: i64 = 4 * LEASE;

/// The sum; see the module.
pub(crate) struct ExactSum {
    /// Available, in no lease, and in no thread's share. Below 0 only if descriptors promised more than bitmaps hold.
    /// [atomic: exact]
    free: CachePadded<Balance>,
    /// Whether leases are suspended. [written under scarcity, read under a lane's lock]
    is_scarce: CachePadded<Guarded<bool>>,
    /// Held to draw leases back and to allow them again. [scarcity]
    scarcity: Mutex<()>,
    /// Of all that was freed by epochs, what is durable. [written by the committer]
    durable: CachePadded<Statistic>,
    /// Each thread's lease and counts; see its fields.
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
    /// Freed by epochs that were not durable then. [written by this thread]
    freed: Statistic,
    /// How often there was no share for this thread. [written by this thread]
    refused: Statistic,
}

impl Default for Lane {
    fn default() -> Lane {
        Lane {
            lease: Mutex::new(Rank::Leaf, 0),
            freed: Statistic::new(0),
            refused: Statistic::new(0),
        }
    }
}

impl ExactSum {
    /// A sum of `free`, of which no share must leave more than `floor`.
    pub(crate) fn new(free: u64, floor: u64) -> ExactSum {
        let (free, floor) = (bounded(free), bounded(floor));
        ExactSum {
            free: CachePadded::new(Balance::new(free)),
            is_scarce: CachePadded::new(Guarded::new(free.saturating_sub(floor) < PLENTY)),
            scarcity: Mutex::new(Rank::Scarcity, ()),
            durable: CachePadded::default(),
            lanes: Lanes::new(),
            floor,
            refills: Counter::new(),
            returns: Counter::new(),
        }
    }

    /// Takes a share of up to `want` that leaves at least `floor` for others; 0 if nothing is left.
    pub(crate) fn share(&self, want: u32, floor: u64) -> u32 {
        let floor = bounded(floor);
        if floor <= self.floor && self.share_of_lease(want.into()) {
            return want;
        }
        let is_scarce = self.is_scarce.get();
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
        let beyond = self.free.get().saturating_sub(self.floor);
        self.is_scarce.set(beyond < PLENTY);
        if share + rest == 0 {
            self.lanes.mine().refused.add(1);
        }
        share + rest
    }

    /// How often there was no share for the calling thread.
    pub(crate) fn refusals(&self) -> u64 {
        self.lanes.mine().refused.get()
    }

    /// Takes a share out of the thread's lease, which is drawn first if necessary; returns whether one was available.
    fn share_of_lease(&self, want: i64) -> bool {
        let mut lease = self.lanes.mine().lease.lock();
        // `end_leases` sets it and then waits for this lane.
        if self.is_scarce.get() {
            return false;
        }
        if *lease < want {
            let mut drawn = 0;
            let draw = |free: i64| {
                let part = (free - self.floor) / PART;
                drawn = (SHARES * want).max(LEASE).min(part);
                (drawn >= want).then_some(free - drawn)
            };
            let done = self.free.update(draw);
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
        let before = self.free.update(take);
        // At most `want`.
        before.map_or(0, |free| share(free) as u32)
    }

    /// All leases go back, and no new one is drawn. Scarcity is held.
    fn end_leases(&self) {
        // Lanes are locked after this, and a thread that draws a lease looks under its lane's lock.
        self.is_scarce.set(true);
        for lane in self.lanes.iter() {
            let lease = std::mem::take(&mut *lane.lease.lock());
            if lease != 0 {
                self.returns.add(1);
                self.free.add(lease);
            }
        }
    }

    /// A share, or a part of one, was not needed: its bits are clear.
    pub(crate) fn give_back(&self, count: u32) {
        let mut lease = self.lanes.mine().lease.lock();
        if !self.is_scarce.get() {
            *lease += i64::from(count);
            if *lease <= 2 * LEASE.max(SHARES * i64::from(count)) {
                return;
            }
            let lease = std::mem::take(&mut *lease);
            self.returns.add(1);
            self.free.add(lease);
            return;
        }
        drop(lease);
        self.add(count.into());
    }

    /// Corrects the sum by `count`, which may be negative.
    pub(crate) fn add(&self, count: i64) {
        let free = self.free.add(count) + count;
        let beyond = free.saturating_sub(self.floor);
        let is_scarce = self.is_scarce.get();
        if is_scarce && beyond >= PLENTY {
            let _still = self.scarcity.lock();
            // A lane that sees it late does without a lease.
            self.is_scarce.set(false);
        } else if !is_scarce && beyond < 0 {
            let _still = self.scarcity.lock();
            self.end_leases();
        }
    }

    /// Adds `count` to the sum. Takes no lock; leases begin again later.
    pub(crate) fn put(&self, count: u32) {
        self.free.add(count.into());
    }

    /// Counts `count` that were freed by an epoch that is not durable.
    pub(crate) fn freed(&self, count: u32) {
        let freed = &self.lanes.mine().freed;
        freed.add(count.into());
    }

    /// The epoch that freed them is durable, and their bits are clear.
    pub(crate) fn durable(&self, count: u64) {
        // Free first: in between they are counted twice, which is better than not at all.
        self.add(bounded(count));
        self.durable.add(count);
    }

    /// What was freed and is not durable.
    fn pending(&self) -> i64 {
        // Before the lanes are summed up, or it may seem that less was freed than is durable.
        let durable = self.durable.get();
        let freed = |lane: &Lane| lane.freed.get();
        let freed: u64 = self.lanes.iter().map(freed).sum();
        bounded(freed.saturating_sub(durable))
    }

    /// About what is available now: without what is in leases or freed and not durable. Reads one word.
    pub(crate) fn hint(&self) -> u64 {
        u64::try_from(self.free.get()).unwrap_or(0)
    }

    /// All that is available once what was freed is durable. Exact when nothing is under way.
    pub(crate) fn sum(&self) -> u64 {
        let pending = self.pending();
        let leases: i64 = self.lanes.iter().map(|lane| *lane.lease.lock()).sum();
        let free = self.free.get();
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
