//! Room in the log: promised to handles before they begin, taken by transactions, given back by checkpoints.
//!
//! A credit is free log space, not a place in a transaction. `free` counts blocks that neither a transaction in the
//! log nor a promise holds; it is exact, and threads touch it only to refill their own lease or when leases are
//! recalled. What handles of an epoch used is counted per thread and parity, and trued up when the transaction is
//! written:
//!
//! capacity = free + leases + promised to open credits + used by unsealed and unwritten epochs + transactions in the
//! log.
//!
//! Who finds no room queues for the one place that makes some ([`crate::Journal::reserve`]); while it does, the room is
//! pressed: nobody else gets more than the lease that is left to it, so large wishes are not starved by small ones.
//!
//! No locks; every word is an atomic. After a crash nothing of this remains: it is counted anew from the log.

use sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use sync::{CachePadded, Lanes};

use crate::epoch::Epoch;
use crate::options::Statistics;

/// Blocks that a descriptor names at least: 1 KiB blocks, checksum v3 and 64-bit numbers.
const TAGS_A_BLOCK: u32 = 60;
/// Numbers that a revoke block holds at least.
const REVOKES_A_BLOCK: u32 = 120;
/// A thread's lease, where the journal is large enough: some dozens of small operations.
const LEASE_MOST: i64 = 256;

pub(crate) struct Space {
    /// [atomic: Relaxed, exact; only moved between places that sum up to the capacity]
    free: CachePadded<AtomicI64>,
    /// Leased since the last seal. [atomic: Relaxed, a bound on what the epoch may use]
    granted: CachePadded<AtomicI64>,
    /// Someone makes room, and gets what there is. [atomic: Relaxed, hint]
    pressed: CachePadded<AtomicBool>,
    /// Blocks that there are not, lent to the steps of one transaction. [atomic: Relaxed, changed while one thread uses
    /// the journal]
    lent: AtomicI64,
    lanes: Lanes<Lane>,
    /// [const]
    lease: i64,
    /// [const]
    transaction_most: u32,
}

/// What the handles of a sealed epoch did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sealed {
    /// Blocks of the log that they used.
    pub(crate) blocks: u64,
    /// Whether one of them mapped data.
    pub(crate) maps_data: bool,
}

#[derive(Default)]
struct Lane {
    /// Blocks the thread may promise without asking. [atomic: Relaxed; the thread and a recall]
    lease: AtomicI64,
    /// Blocks used by the thread's handles, by the epoch's parity. [atomic: Relaxed; the drain orders it]
    used: [AtomicU64; 2],
    /// Whether one of the thread's handles mapped data, by the epoch's parity. [atomic: Relaxed; the drain orders it]
    maps_data: [AtomicBool; 2],
}

fn parity(epoch: Epoch) -> usize {
    usize::from(epoch.0 & 1 == 1)
}

/// Log blocks that so many changed and revoked blocks may take, with descriptors and a commit record.
pub(crate) fn cost(blocks: u32, revokes: u32) -> u32 {
    if blocks == 0 && revokes == 0 {
        return 0;
    }
    let revoke_blocks = if revokes == 0 {
        0
    } else {
        revokes / REVOKES_A_BLOCK + 1
    };
    blocks
        .saturating_add(blocks / TAGS_A_BLOCK + 2)
        .saturating_add(revoke_blocks)
}

impl Space {
    /// An empty log with room for `capacity` blocks, whose transactions may have up to `most` blocks, but at most a
    /// quarter of the log.
    pub(crate) fn new(capacity: u32, most: u32) -> Space {
        let transaction_most = (capacity / 4).min(most);
        Space {
            free: CachePadded::new(AtomicI64::new(capacity.into())),
            granted: CachePadded::new(AtomicI64::new(0)),
            pressed: CachePadded::new(AtomicBool::new(false)),
            lent: AtomicI64::new(0),
            lanes: Lanes::new(),
            // All leases together take at most an eighth of the largest transaction for 16 threads, and no lease at
            // all (the exact counter) where that is not worth it.
            lease: LEASE_MOST.min(i64::from(transaction_most) / 8 / 16),
            transaction_most,
        }
    }

    /// Blocks of the largest transaction.
    pub(crate) fn transaction_most(&self) -> u32 {
        self.transaction_most
    }

    /// Whether the running epoch may soon be as large as a transaction gets.
    pub(crate) fn is_commit_due(&self) -> bool {
        // Relaxed: a hint.
        self.granted.load(Ordering::Relaxed) * 2 > i64::from(self.transaction_most)
    }

    /// Blocks free for promises, leases aside.
    pub(crate) fn free(&self) -> i64 {
        // Relaxed: a hint for whoever decides about a checkpoint.
        self.free.load(Ordering::Relaxed)
    }

    /// As [`Space::free`], with all leases taken back.
    pub(crate) fn free_without_leases(&self, statistics: &Statistics) -> u64 {
        self.recall(statistics);
        u64::try_from(self.free()).unwrap_or(0)
    }

    /// Lends so many blocks that there are not, until the next call: to one transaction, which is measured before it is
    /// written.
    pub(crate) fn lend(&self, blocks: u64) {
        let blocks = i64::try_from(blocks).unwrap_or(i64::MAX / 2);
        // Relaxed: one thread uses the journal; pairs with the load in `refill`.
        let before = self.lent.swap(blocks, Ordering::Relaxed);
        // Relaxed: as in `recall`.
        self.free.fetch_add(blocks - before, Ordering::Relaxed);
    }

    /// Promises `blocks`; false when there is no room until a commit or a checkpoint, or when the room is pressed.
    pub(crate) fn take(&self, blocks: u32, statistics: &Statistics) -> bool {
        let want = i64::from(blocks);
        // Relaxed: a hint; who comes too early takes a lease more.
        subtract(&self.lanes.mine().lease, want)
            || (!self.pressed.load(Ordering::Relaxed) && self.refill(want, self.lease, statistics))
    }

    /// As [`Space::take`], for the one who presses.
    pub(crate) fn take_pressed(&self, blocks: u32, statistics: &Statistics) -> bool {
        let want = i64::from(blocks);
        subtract(&self.lanes.mine().lease, want) || self.refill(want, 0, statistics)
    }

    /// Says that someone makes room, or no longer does.
    pub(crate) fn press(&self, pressed: bool) {
        // Relaxed: as in `take`.
        self.pressed.store(pressed, Ordering::Relaxed);
    }

    /// Whether the running epoch used anything so far.
    pub(crate) fn is_used(&self, running: Epoch) -> bool {
        // Relaxed: a hint for whether a commit would make room.
        self.lanes
            .iter()
            .any(|lane| lane.used[parity(running)].load(Ordering::Relaxed) > 0)
    }

    fn refill(&self, want: i64, lease: i64, statistics: &Statistics) -> bool {
        // Relaxed: a bound; the transaction is a quarter of the log, so one more lease a thread does not overflow it.
        let granted = self.granted.load(Ordering::Relaxed);
        // Relaxed: changed while one thread uses the journal; pairs with the swap in `lend`.
        let lent = self.lent.load(Ordering::Relaxed);
        if granted + want > i64::from(self.transaction_most) + lent {
            return false;
        }
        let with_lease = want + lease;
        let given = if subtract(&self.free, with_lease) {
            with_lease
        } else if subtract(&self.free, want) {
            want
        } else {
            self.recall(statistics);
            if !subtract(&self.free, want) {
                return false;
            }
            want
        };
        // Relaxed: as above.
        self.granted.fetch_add(given, Ordering::Relaxed);
        // Relaxed: the promise itself synchronises nothing.
        self.lanes
            .mine()
            .lease
            .fetch_add(given - want, Ordering::Relaxed);
        true
    }

    /// Takes all leases back, so that the sum is exact.
    fn recall(&self, statistics: &Statistics) {
        statistics.lease_recalls.add(1);
        for lane in self.lanes.iter() {
            // Relaxed: blocks move from one counter to another; each is in exactly one of them.
            let leased = lane.lease.swap(0, Ordering::Relaxed);
            // Relaxed: as above.
            self.free.fetch_add(leased, Ordering::Relaxed);
        }
    }

    /// Gives an unused promise back to the thread's lease.
    pub(crate) fn give_back(&self, blocks: u32) {
        let lane = self.lanes.mine();
        // Relaxed: as in `recall`.
        let leased = lane.lease.fetch_add(i64::from(blocks), Ordering::Relaxed) + i64::from(blocks);
        if leased > 2 * self.lease && subtract(&lane.lease, leased - self.lease) {
            // Relaxed: as in `recall`.
            self.free.fetch_add(leased - self.lease, Ordering::Relaxed);
        }
    }

    /// A handle ends that was promised `asked` blocks, of which it used so many; and whether it mapped data.
    pub(crate) fn end(&self, epoch: Epoch, asked: u32, used: u32, maps_data: bool) {
        let used = used.min(asked);
        let lane = self.lanes.mine();
        if used > 0 {
            // Relaxed: read after the drain, which orders it.
            lane.used[parity(epoch)].fetch_add(used.into(), Ordering::Relaxed);
        }
        if maps_data {
            // Relaxed: as above.
            lane.maps_data[parity(epoch)].store(true, Ordering::Relaxed);
        }
        self.give_back(asked - used);
    }

    /// What the handles of a sealed epoch did. For the committer, after the drain, once.
    pub(crate) fn seal(&self, sealed: Epoch) -> Sealed {
        // Relaxed: a bound for the next epoch.
        self.granted.store(0, Ordering::Relaxed);
        let mut did = Sealed {
            blocks: 0,
            maps_data: false,
        };
        for lane in self.lanes.iter() {
            // Relaxed: the drain ordered the additions before this.
            did.blocks += lane.used[parity(sealed)].swap(0, Ordering::Relaxed);
            // Relaxed: as above.
            did.maps_data |= lane.maps_data[parity(sealed)].swap(false, Ordering::Relaxed);
        }
        did
    }

    /// Blocks are free again: used less than promised, or left behind by the tail.
    pub(crate) fn release(&self, blocks: u64) {
        // Relaxed: as in `recall`.
        self.free
            .fetch_add(i64::try_from(blocks).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Subtracts if enough is there.
fn subtract(counter: &AtomicI64, amount: i64) -> bool {
    // Relaxed: the number itself is all that matters.
    counter
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |have| {
            (have >= amount).then_some(have - amount)
        })
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_used_and_released_adds_up() {
        let (space, statistics) = (Space::new(4000, 4000), Statistics::default());
        assert!(space.take(50, &statistics));
        assert!(!space.is_used(Epoch(1)));
        space.end(Epoch(1), 50, cost(10, 0), true);
        assert!(space.is_used(Epoch(1)) && !space.is_used(Epoch(2)));
        let did = space.seal(Epoch(1));
        assert_eq!(did.blocks, u64::from(cost(10, 0)));
        assert!(did.maps_data && !space.seal(Epoch(3)).maps_data);
        space.release(did.blocks);
        space.recall(&statistics);
        assert_eq!(space.free(), 4000);
    }

    #[test]
    fn no_more_is_promised_than_there_is_and_leases_come_back_when_needed() {
        let (space, statistics) = (Space::new(4000, 4000), Statistics::default());
        assert!(subtract(&space.free, 3500));
        let mut taken = 0;
        sync::thread::scope(|scope| {
            // Another thread leaves a lease behind.
            let space = &space;
            scope.spawn(move || {
                assert!(space.take(10, &Statistics::default()));
                space.give_back(10);
            });
        });
        while space.take(10, &statistics) {
            taken += 10;
        }
        assert_eq!(taken, 500);
        assert!(statistics.lease_recalls.sum() >= 1);
    }

    #[test]
    fn an_epoch_gets_no_more_than_a_transaction_holds() {
        let (space, statistics) = (Space::new(4000, 4000), Statistics::default());
        while space.take(10, &statistics) {}
        let granted = 4000 - space.free();
        assert!((900..=1100).contains(&granted), "{granted}");
        assert!(space.is_commit_due());
        space.seal(Epoch(1));
        assert!(space.take(10, &statistics));
    }

    #[test]
    fn while_room_is_made_others_get_what_was_leased_to_them_only() {
        let (space, statistics) = (Space::new(4000, 4000), Statistics::default());
        assert!(space.take(1, &statistics));
        space.press(true);
        let mut leased = 0;
        while space.take(1, &statistics) {
            leased += 1;
        }
        assert_eq!(leased, space.lease);
        assert!(space.take_pressed(100, &statistics));
        assert!(!space.take(1, &statistics));
        space.press(false);
        assert!(space.take(1, &statistics));
    }

    #[test]
    fn a_transaction_is_no_larger_than_asked_for() {
        assert_eq!(Space::new(4000, 300).transaction_most(), 300);
        assert_eq!(Space::new(4000, 3000).transaction_most(), 1000);
    }
}
