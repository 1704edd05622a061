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
//! A thread that finds no room queues for the one place that makes some ([`crate::Journal::reserve`]); while it does,
//! the room is pressed: nobody else gets more than the lease that is left to it, so large wishes are not starved by
//! small ones.
//!
//! No locks; every word is an atomic. After a crash nothing of this remains: it is counted anew from the log.

use jbd2::cost;
use sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use sync::{CachePadded, Lanes};

use crate::epoch::Epoch;
use crate::options::JournalStatistics;

/// What a thread remembers to have counted blocks for.
const CHARGED: usize = 8;
/// A thread's lease, where the journal is large enough: hundreds of small operations.
const LEASE_MOST: i64 = 1024;

pub(crate) struct LogSpace {
    /// Blocks of the whole log.
    capacity: u32,
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
    /// Blocks that all threads' leases together may take. [const]
    leases_most: i64,
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
    /// Blocks changed and (upper half) blocks revoked by them, of which `used` is the cost, by the epoch's parity.
    /// [atomic: Relaxed, the thread's alone until the drain]
    did: [AtomicU64; 2],
    /// The epoch of `charged`. [atomic: Relaxed, the thread's alone]
    charged_in: AtomicU64,
    /// What the thread's handles counted blocks for in that epoch, the latest few.
    /// [atomic: Relaxed, the thread's alone]
    charged: [AtomicU64; CHARGED],
    /// Whether one of the thread's handles mapped data, by the epoch's parity. [atomic: Relaxed; the drain orders it]
    maps_data: [AtomicBool; 2],
}

fn parity(epoch: Epoch) -> usize {
    usize::from(epoch.0 & 1 == 1)
}

/// As [`cost`], of both counts in one word.
fn cost_of(did: u64) -> u32 {
    // The halves.
    cost(did as u32, (did >> 32) as u32)
}

impl LogSpace {
    /// An empty log with room for `capacity` blocks, whose transactions may have up to `most` blocks, but at most a
    /// quarter of the log.
    pub(crate) fn new(capacity: u32, most: u32) -> LogSpace {
        let transaction_most = (capacity / 4).min(most);
        LogSpace {
            capacity,
            free: CachePadded::new(AtomicI64::new(capacity.into())),
            granted: CachePadded::new(AtomicI64::new(0)),
            pressed: CachePadded::new(AtomicBool::new(false)),
            lent: AtomicI64::new(0),
            lanes: Lanes::new(),
            // Where that is too little to be worth it, there is the exact counter alone.
            leases_most: i64::from(transaction_most) / 8,
            transaction_most,
        }
    }

    /// Blocks in use or promised, and all.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let all = u64::from(self.capacity);
        // What is lent to one transaction does not exist.
        let free = u64::try_from(self.free()).unwrap_or(0).min(all);
        (all - free, all)
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
        // Relaxed: a hint for the thread that decides about a checkpoint.
        self.free.load(Ordering::Relaxed)
    }

    /// As [`LogSpace::free`], with all leases taken back.
    pub(crate) fn free_without_leases(&self, statistics: &JournalStatistics) -> u64 {
        self.recall(statistics);
        u64::try_from(self.free()).unwrap_or(0)
    }

    /// Lends this number of blocks that do not exist, until the next call: to one transaction, which is measured
    /// before it is written.
    pub(crate) fn lend(&self, blocks: u64) {
        let blocks = i64::try_from(blocks).unwrap_or(i64::MAX / 2);
        // Relaxed: one thread uses the journal; pairs with the load in `refill`.
        let before = self.lent.swap(blocks, Ordering::Relaxed);
        // Relaxed: as in `recall`.
        self.free.fetch_add(blocks - before, Ordering::Relaxed);
    }

    /// What a thread's lease is filled up to: half of what the others leave, so that the first threads leave something
    /// for those who come later. Looks at all lanes: once a refill.
    fn lease(&self) -> i64 {
        let mine = self.lanes.mine();
        let others = self.lanes.iter().filter(|lane| !std::ptr::eq(*lane, mine));
        // Relaxed: a bound, met but for refills at the same moment.
        let leased: i64 = others.map(|lane| lane.lease.load(Ordering::Relaxed)).sum();
        let rest = self.leases_most.saturating_sub(leased).max(0);
        LEASE_MOST.min(rest / 2)
    }

    /// Promises `blocks`; false when only a commit or a checkpoint could make room, or when the room is pressed.
    pub(crate) fn take(&self, blocks: u32, statistics: &JournalStatistics) -> bool {
        let want = i64::from(blocks);
        // Relaxed: a hint; a thread that comes too early takes one more lease.
        subtract(&self.lanes.mine().lease, want)
            || (!self.pressed.load(Ordering::Relaxed)
                && self.refill(want, self.lease(), statistics))
    }

    /// As [`LogSpace::take`], for the one who presses.
    pub(crate) fn take_pressed(&self, blocks: u32, statistics: &JournalStatistics) -> bool {
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

    fn refill(&self, want: i64, lease: i64, statistics: &JournalStatistics) -> bool {
        // Relaxed: a bound; the transaction is a quarter of the log, so one more lease a thread does not overflow it.
        let granted = self.granted.load(Ordering::Relaxed);
        // Relaxed: changed while one thread uses the journal; pairs with the swap in `lend`.
        let lent = self.lent.load(Ordering::Relaxed);
        if granted + want > i64::from(self.transaction_most) + lent {
            return false;
        }
        let mine = &self.lanes.mine().lease;
        // Relaxed: only a recall makes it less meanwhile; then there is more in it than was meant.
        let with_lease = want + (lease - mine.load(Ordering::Relaxed)).max(0);
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
        mine.fetch_add(given - want, Ordering::Relaxed);
        true
    }

    /// Takes all leases back, so that the sum is exact.
    fn recall(&self, statistics: &JournalStatistics) {
        statistics.lease_recalls.add(1);
        for lane in self.lanes.iter() {
            // Relaxed: blocks move from one counter to another; each is in exactly one of them.
            let leased = lane.lease.swap(0, Ordering::Relaxed);
            // Relaxed: blocks move from one counter to another; each is in exactly one of them.
            self.free.fetch_add(leased, Ordering::Relaxed);
        }
    }

    /// Gives an unused promise back to the thread's lease.
    pub(crate) fn give_back(&self, blocks: u32) {
        let lane = self.lanes.mine();
        // Relaxed: as in `recall`.
        let leased = lane.lease.fetch_add(i64::from(blocks), Ordering::Relaxed) + i64::from(blocks);
        let most = LEASE_MOST.min(self.leases_most / 2);
        if leased > 2 * most && subtract(&lane.lease, leased - most) {
            // Relaxed: as in `recall`.
            self.free.fetch_add(leased - most, Ordering::Relaxed);
        }
    }

    /// Notes that the calling thread's handles count blocks for `what` (not 0) in this epoch; whether they do already.
    pub(crate) fn is_charged(&self, epoch: Epoch, what: u64) -> bool {
        let lane = self.lanes.mine();
        // Relaxed: this thread's own words.
        if lane.charged_in.load(Ordering::Relaxed) != epoch.0 {
            // Relaxed: this thread's own words.
            lane.charged_in.store(epoch.0, Ordering::Relaxed);
            for charged in &lane.charged {
                // Relaxed: this thread's own words.
                charged.store(0, Ordering::Relaxed);
            }
        }
        // Relaxed: this thread's own words.
        let is = |charged: &AtomicU64| charged.load(Ordering::Relaxed) == what;
        if lane.charged.iter().any(is) {
            return true;
        }
        // The oldest goes: it is counted once more if it comes again.
        let mut before = what;
        for charged in &lane.charged {
            // Relaxed: this thread's own words.
            before = charged.swap(before, Ordering::Relaxed);
        }
        false
    }

    /// A handle ends that was promised the cost of `asked` changed and revoked blocks, and did `did`; and whether it
    /// mapped data. What it used is what it adds to the cost of all that the thread did in the epoch: descriptors and
    /// a commit record are counted once a thread, not once a handle.
    pub(crate) fn end(&self, epoch: Epoch, asked: (u32, u32), did: (u32, u32), maps_data: bool) {
        let asked = cost(asked.0, asked.1);
        let lane = self.lanes.mine();
        let mut used = 0;
        if did != (0, 0) {
            let counts = &lane.did[parity(epoch)];
            // Relaxed: this thread alone changes it while its handle keeps the epoch from being drained.
            let before = counts.load(Ordering::Relaxed);
            let after = before + (u64::from(did.1) << 32 | u64::from(did.0));
            // Relaxed: as above.
            counts.store(after, Ordering::Relaxed);
            used = (cost_of(after) - cost_of(before)).min(asked);
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
            lane.did[parity(sealed)].store(0, Ordering::Relaxed);
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
        let (space, statistics) = (LogSpace::new(4000, 4000), JournalStatistics::default());
        assert!(space.take(cost(45, 0), &statistics));
        assert!(!space.is_used(Epoch(1)));
        space.end(Epoch(1), (45, 0), (10, 0), true);
        assert!(space.is_used(Epoch(1)) && !space.is_used(Epoch(2)));
        let did = space.seal(Epoch(1));
        assert_eq!(did.blocks, u64::from(cost(10, 0)));
        assert!(did.maps_data && !space.seal(Epoch(3)).maps_data);
        space.release(did.blocks);
        space.recall(&statistics);
        assert_eq!(space.free(), 4000);
    }

    #[test]
    fn what_many_small_handles_use_covers_what_their_transaction_takes() {
        let (space, statistics) = (LogSpace::new(40_000, 10_000), JournalStatistics::default());
        for _ in 0..500 {
            assert!(space.take(cost(8, 2), &statistics));
            space.end(Epoch(1), (8, 2), (3, 1), false);
        }
        let did = space.seal(Epoch(1));
        assert_eq!(did.blocks, u64::from(cost(1500, 500)));
        // The next epoch of that parity begins anew.
        assert!(space.take(cost(8, 2), &statistics));
        space.end(Epoch(3), (8, 2), (3, 1), false);
        assert_eq!(space.seal(Epoch(3)).blocks, u64::from(cost(3, 1)));
    }

    #[test]
    fn what_is_changed_again_and_again_is_charged_once_an_epoch() {
        let space = LogSpace::new(4000, 4000);
        for epoch in [Epoch(1), Epoch(2)] {
            assert!((1..=CHARGED as u64).all(|what| !space.is_charged(epoch, what)));
            assert!((1..=CHARGED as u64).all(|what| space.is_charged(epoch, what)));
            // One more drives out the oldest.
            assert!(!space.is_charged(epoch, 100));
            assert!(!space.is_charged(epoch, 1) && space.is_charged(epoch, 100));
        }
    }

    #[test]
    fn all_leases_together_take_an_eighth_of_a_transaction() {
        let space = &LogSpace::new(4000, 4000);
        let barrier = &sync::Barrier::new(20);
        sync::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(move || {
                    for _ in 0..3 {
                        barrier.wait();
                        // One after another would do: refills at the same moment may lease more.
                        let _turn = space.take(1, &JournalStatistics::default());
                    }
                    barrier.wait();
                });
            }
        });
        let leased: i64 = space
            .lanes
            .iter()
            // Relaxed: the threads have ended.
            .map(|lane| lane.lease.load(Ordering::Relaxed))
            .sum();
        assert!(leased <= 2 * space.leases_most, "{leased}");
    }

    #[test]
    fn no_more_is_promised_than_there_is_and_leases_come_back_when_needed() {
        let (space, statistics) = (LogSpace::new(4000, 4000), JournalStatistics::default());
        assert!(subtract(&space.free, 3500));
        let mut taken = 0;
        sync::thread::scope(|scope| {
            // Another thread leaves a lease behind.
            let space = &space;
            scope.spawn(move || {
                assert!(space.take(10, &JournalStatistics::default()));
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
        let (space, statistics) = (LogSpace::new(4000, 4000), JournalStatistics::default());
        while space.take(10, &statistics) {}
        let granted = 4000 - space.free();
        assert!((900..=1100).contains(&granted), "{granted}");
        assert!(space.is_commit_due());
        space.seal(Epoch(1));
        assert!(space.take(10, &statistics));
    }

    #[test]
    fn while_room_is_made_others_get_what_was_leased_to_them_only() {
        let (space, statistics) = (LogSpace::new(4000, 4000), JournalStatistics::default());
        assert!(space.take(1, &statistics));
        space.press(true);
        let mut leased = 0;
        while space.take(1, &statistics) {
            leased += 1;
        }
        assert_eq!(leased, space.leases_most / 2);
        assert!(space.take_pressed(100, &statistics));
        assert!(!space.take(1, &statistics));
        space.press(false);
        assert!(space.take(1, &statistics));
    }

    #[test]
    fn a_transaction_is_no_larger_than_asked_for() {
        assert_eq!(LogSpace::new(4000, 300).transaction_most(), 300);
        assert_eq!(LogSpace::new(4000, 3000).transaction_most(), 1000);
    }
}
