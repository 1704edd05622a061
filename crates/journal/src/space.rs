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
//! A thread that finds no room becomes the one that makes room, or queues for that ([`crate::Journal::reserve`]). While
//! a thread makes room, the room is *pressed*: other threads get no more than what is left of their leases, so small
//! wishes don't starve a large one.
//!
//! No locks; every word is an atomic. After a crash nothing of this remains: it is counted anew from the log.
//!
//! Tested with threads: `many_threads_on_the_smallest_journal_all_get_their_turn`; under schedules: the runs of
//! `tools/simulate`. Lanes are freed with the journal.

use jbd2::cost;
use sync::{Balance, CachePadded, Guarded, Hint, Lanes, OwnThread, Statistic};

use crate::epoch::Epoch;
use crate::options::JournalStatistics;

/// Blocks of the log for a step of 128 blocks and 256 revokes, with what they need around them.
pub(crate) const LARGEST_STEP: u32 = 160;
/// What a thread remembers to have counted blocks for.
const CHARGED: usize = 8;
/// A thread's lease, where the journal is large enough: hundreds of small operations.
const LEASE_MOST: i64 = 1024;

pub(crate) struct LogSpace {
    /// Blocks of the whole log.
    capacity: u32,
    /// [exact; only moved between places that sum up to the capacity]
    free: CachePadded<Balance>,
    /// Leased since the last seal. [a bound on what the epoch may use]
    granted: CachePadded<Statistic<i64>>,
    /// Whether a thread makes room; meanwhile no other thread refills its lease. [atomic: Relaxed, hint]
    pressed: CachePadded<Hint<bool>>,
    /// Blocks that the log does not have, lent to the steps of one transaction. [changed while one thread uses the
    /// journal]
    lent: Guarded<i64>,
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
    /// Blocks the thread may promise without asking. [the thread and a recall]
    lease: Balance,
    /// Blocks used by the thread's handles, by the epoch's parity. [the drain orders it]
    used: [Guarded<u64>; 2],
    /// Blocks changed and (upper half) blocks revoked by them, of which `used` is the cost, by the epoch's parity.
    /// [the thread's alone until the drain]
    did: [Guarded<u64>; 2],
    /// The epoch of `charged`. [the thread's alone]
    charged_in: OwnThread<u64>,
    /// What the thread's handles counted blocks for in that epoch, the latest few.
    /// [the thread's alone]
    charged: [OwnThread<u64>; CHARGED],
    /// Whether one of the thread's handles mapped data, by the epoch's parity. [the drain orders it]
    maps_data: [Guarded<bool>; 2],
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
            free: CachePadded::new(Balance::new(capacity.into())),
            granted: CachePadded::new(Statistic::new(0)),
            pressed: CachePadded::new(Hint::new(false)),
            lent: Guarded::new(0),
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
        self.granted.get() * 2 > i64::from(self.transaction_most)
    }

    /// Blocks free for promises, leases aside.
    pub(crate) fn free(&self) -> i64 {
        self.free.get()
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
        let before = self.lent.swap(blocks);
        self.free.add(blocks - before);
    }

    /// What a thread's lease is filled up to: half of what the others leave, so that the first threads leave something
    /// for later ones. Looks at all lanes: once a refill.
    fn lease(&self) -> i64 {
        let mine = self.lanes.mine();
        let others = self.lanes.iter().filter(|lane| !std::ptr::eq(*lane, mine));
        // Refills at the same moment may exceed the bound.
        let leased: i64 = others.map(|lane| lane.lease.get()).sum();
        let rest = self.leases_most.saturating_sub(leased).max(0);
        LEASE_MOST.min(rest / 2)
    }

    /// Promises `blocks`; false when only a commit or a checkpoint could make room, or when the room is pressed.
    pub(crate) fn take(&self, blocks: u32, statistics: &JournalStatistics) -> bool {
        let want = i64::from(blocks);
        // A thread that does not see the pressure yet takes one more lease.
        subtract(&self.lanes.mine().lease, want)
            || (!self.pressed.get() && self.refill(want, self.lease(), statistics))
    }

    /// Takes like [`LogSpace::take`], for the thread that presses.
    pub(crate) fn take_pressed(&self, blocks: u32, statistics: &JournalStatistics) -> bool {
        let want = i64::from(blocks);
        subtract(&self.lanes.mine().lease, want) || self.refill(want, 0, statistics)
    }

    /// Sets whether a thread makes room.
    pub(crate) fn press(&self, pressed: bool) {
        self.pressed.set(pressed);
    }

    /// Whether the running epoch used anything so far.
    pub(crate) fn is_used(&self, running: Epoch) -> bool {
        self.lanes
            .iter()
            .any(|lane| lane.used[parity(running)].get() > 0)
    }

    fn refill(&self, want: i64, lease: i64, statistics: &JournalStatistics) -> bool {
        // A transaction is a quarter of the log, so one more lease a thread does not overflow it.
        let granted = self.granted.get();
        let lent = self.lent.get();
        if granted + want > i64::from(self.transaction_most) + lent {
            return false;
        }
        let mine = &self.lanes.mine().lease;
        // Only a recall makes the lease smaller meanwhile; then it holds more afterwards than was meant.
        let with_lease = want + (lease - mine.get()).max(0);
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
        self.granted.add(given);
        mine.add(given - want);
        true
    }

    /// Takes all leases back, so that the sum is exact.
    fn recall(&self, statistics: &JournalStatistics) {
        statistics.lease_recalls.add(1);
        for lane in self.lanes.iter() {
            let leased = lane.lease.swap(0);
            self.free.add(leased);
        }
    }

    /// Gives an unused promise back to the thread's lease.
    pub(crate) fn give_back(&self, blocks: u32) {
        let lane = self.lanes.mine();
        let leased = lane.lease.add(i64::from(blocks)) + i64::from(blocks);
        let most = LEASE_MOST.min(self.leases_most / 2);
        if leased > 2 * most && subtract(&lane.lease, leased - most) {
            self.free.add(leased - most);
        }
    }

    /// Notes that the calling thread's handles count blocks for `what` (not 0) in this epoch; returns whether they do
    /// already.
    pub(crate) fn is_charged(&self, epoch: Epoch, what: u64) -> bool {
        let lane = self.lanes.mine();
        if lane.charged_in.get() != epoch.0 {
            lane.charged_in.set(epoch.0);
            for charged in &lane.charged {
                charged.set(0);
            }
        }
        let is = |charged: &OwnThread<u64>| charged.get() == what;
        if lane.charged.iter().any(is) {
            return true;
        }
        // The oldest goes: it is counted once more if it comes again.
        let mut before = what;
        for charged in &lane.charged {
            before = charged.swap(before);
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
            let before = counts.get();
            let after = before + (u64::from(did.1) << 32 | u64::from(did.0));
            counts.set(after);
            used = (cost_of(after) - cost_of(before)).min(asked);
            lane.used[parity(epoch)].add(used.into());
        }
        if maps_data {
            lane.maps_data[parity(epoch)].set(true);
        }
        self.give_back(asked - used);
    }

    /// What the handles of a sealed epoch did. For the committer, after the drain, once.
    pub(crate) fn seal(&self, sealed: Epoch) -> Sealed {
        self.granted.set(0);
        let mut did = Sealed {
            blocks: 0,
            maps_data: false,
        };
        for lane in self.lanes.iter() {
            did.blocks += lane.used[parity(sealed)].swap(0);
            lane.did[parity(sealed)].set(0);
            did.maps_data |= lane.maps_data[parity(sealed)].swap(false);
        }
        did
    }

    /// Blocks are free again: used less than promised, or left behind by the tail.
    pub(crate) fn release(&self, blocks: u64) {
        self.free.add(i64::try_from(blocks).unwrap_or(0));
    }
}

/// Subtracts if enough is there.
fn subtract(counter: &Balance, amount: i64) -> bool {
    counter
        .update(|have| (have >= amount).then_some(have - amount))
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
        // The next epoch of that parity begins again.
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
        let leased: i64 = space.lanes.iter().map(|lane| lane.lease.get()).sum();
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
