//! Inodes without names that have no holder any more: a queue for the threads that delete them, and the deletions under
//! way.
//!
//! The thread that releases such an inode last puts its number here ([`Doomed::push`]), if threads serve the queue and
//! it has room; otherwise it deletes the inode itself, after it has dropped its locks ([`Doomed::begin`]). A thread
//! that may neither wait nor fail puts it here in any case ([`Doomed::leave`]). That adds at most the inodes that were
//! held at one moment, because each change deletes the inodes that wait here before it begins. A thread that takes a
//! number from here holds nothing. [`Doomed::wait_idle`] returns when all that was doomed is deleted.
//!
//! One lock ([`Rank::Leaf`]) around the queue. A thread that deletes inodes itself takes no lock and writes a count of
//! its own only; an unlink that asks whether the queue is full only reads. What a crash leaves: nothing of this; each
//! such inode is among the orphans.
//!
//! Why no thread sleeps for ever: a thread that ends a deletion lowers its count and then looks for waiters; a waiter
//! adds itself to `waiters` and then looks at the counts, with the lock held until it sleeps. All of these are SeqCst.
//! If the count is lowered first, the waiter sees that; if the waiter adds itself first, the other thread sees it, and
//! wakes it under the lock.
//!
//! Interleavings: `who_waits_is_woken_and_nothing_that_began_before_is_under_way` and
//! `what_is_pushed_is_taken_once_and_only_while_someone_serves`, below, under schedules. The counts are words of lanes,
//! freed with the whole; nothing is reclaimed before.

use std::collections::VecDeque;

use ondisk::Ino;
use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::{CachePadded, Condvar, Hint, Lanes, Mutex, Rank};

/// Numbers that wait at most, besides those of [`Doomed::leave`].
const MOST: usize = 1024;

/// The queue; see the module.
pub(crate) struct Doomed {
    /// [leaf]
    waiting: CachePadded<Mutex<VecDeque<Ino>>>,
    /// The queue grew, or is no longer served.
    arrived: Condvar,
    /// A deletion ended.
    ended: Condvar,
    /// How many wait. [leaf; read: any time, a hint]
    len: CachePadded<Hint<usize>>,
    /// Threads serve the queue. [leaf; read: any time, a hint]
    is_served: CachePadded<Hint<bool>>,
    /// For each thread, the deletions that it began and that are under way. [atomic: SeqCst]
    under_way: Lanes<AtomicU64>,
    /// Threads that wait until nothing is under way. [atomic: SeqCst]
    waiters: CachePadded<AtomicUsize>,
}

/// The deletion of an inode, while it is under way.
pub(crate) struct UnderWay<'a> {
    doomed: &'a Doomed,
    /// The count of the thread that began it.
    lane: &'a AtomicU64,
    ino: Ino,
}

impl UnderWay<'_> {
    /// Which inode.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // SeqCst: before the look at the waiters; pairs with the look at the counts in `wait_idle`. If this comes
        // first, the waiter sees the lowered count; if the waiter's add does, this thread sees the waiter and wakes it.
        self.lane.fetch_sub(1, Ordering::SeqCst);
        // SeqCst: after the count was lowered; pairs with the add in `wait_idle`.
        if self.doomed.waiters.load(Ordering::SeqCst) > 0 {
            let _asleep = self.doomed.waiting.lock();
            self.doomed.ended.notify_all();
        }
    }
}

impl Doomed {
    /// An empty queue that no thread serves.
    pub(crate) fn new() -> Doomed {
        Doomed {
            waiting: CachePadded::new(Mutex::new(Rank::Leaf, VecDeque::new())),
            arrived: Condvar::new(),
            ended: Condvar::new(),
            len: CachePadded::default(),
            is_served: CachePadded::default(),
            under_way: Lanes::new(),
            waiters: CachePadded::default(),
        }
    }

    /// Leaves an inode to the threads that serve the queue; `false` if the caller must delete it itself.
    pub(crate) fn push(&self, ino: Ino) -> bool {
        if !self.is_served() {
            return false;
        }
        let mut waiting = self.waiting.lock();
        if !self.is_served() || waiting.len() >= MOST {
            return false;
        }
        self.add(&mut waiting, ino);
        true
    }

    /// Those who serve the queue sleep only while it is empty, so one wake is enough for a batch.
    fn add(&self, waiting: &mut VecDeque<Ino>, ino: Ino) {
        waiting.push_back(ino);
        self.note_len(waiting);
        if waiting.len() == 1 {
            self.arrived.notify_one();
        }
    }

    /// Leaves an inode to the threads that serve the queue, or else to the next change.
    pub(crate) fn leave(&self, ino: Ino) {
        self.add(&mut self.waiting.lock(), ino);
    }

    /// Whether threads serve the queue. A hint.
    pub(crate) fn is_served(&self) -> bool {
        self.is_served.get()
    }

    fn note_len(&self, waiting: &VecDeque<Ino>) {
        self.len.set(waiting.len());
    }

    /// The caller deletes an inode itself.
    pub(crate) fn begin(&self, ino: Ino) -> UnderWay<'_> {
        self.begin_on(self.under_way.mine(), ino)
    }

    /// A thread's first look-up of its own count takes a lock, so it comes before the queue's.
    fn begin_on<'a>(&'a self, lane: &'a AtomicU64, ino: Ino) -> UnderWay<'a> {
        // SeqCst: pairs with the look at the counts in `wait_idle`.
        lane.fetch_add(1, Ordering::SeqCst);
        UnderWay {
            doomed: self,
            lane,
            ino,
        }
    }

    /// Takes an inode that waits.
    pub(crate) fn take(&self) -> Option<UnderWay<'_>> {
        if self.is_empty() {
            return None;
        }
        let lane = self.under_way.mine();
        self.pop(&mut self.waiting.lock(), lane)
    }

    /// Takes an inode off the queue; it is under way before the lock is released.
    fn pop<'a>(&'a self, waiting: &mut VecDeque<Ino>, lane: &'a AtomicU64) -> Option<UnderWay<'a>> {
        let ino = waiting.pop_front()?;
        self.note_len(waiting);
        Some(self.begin_on(lane, ino))
    }

    /// Waits until there is an inode to delete, which another may take first; false when the queue is no longer served.
    pub(crate) fn wait(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while self.is_served() && waiting.is_empty() {
            self.arrived.wait(&mut waiting);
        }
        self.is_served()
    }

    /// Sets whether threads serve the queue from now on.
    pub(crate) fn serve(&self, is_served: bool) {
        let _waiting = self.waiting.lock();
        self.is_served.set(is_served);
        self.arrived.notify_all();
    }

    /// Whether the queue is full, so that a thread that dooms more should help first.
    pub(crate) fn is_full(&self) -> bool {
        self.len.get() >= MOST
    }

    /// Whether nothing waits, as far as those know who pushed nothing.
    fn is_empty(&self) -> bool {
        self.len.get() == 0
    }

    /// Whether no deletion is under way that began before.
    fn is_quiet(&self) -> bool {
        self.under_way.iter().all(|lane| {
            // SeqCst: after the add to the waiters; pairs with `UnderWay`'s drop.
            lane.load(Ordering::SeqCst) == 0
        })
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.is_empty() && self.is_quiet()
    }

    /// Waits until nothing is under way that began before. The caller holds nothing and deletes nothing.
    pub(crate) fn wait_idle(&self) {
        // SeqCst: before the look at the counts; pairs with the load in `UnderWay`'s drop. If this add comes first,
        // that thread sees the waiter and wakes it; if the lowered count does, `is_quiet` sees it.
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut waiting = self.waiting.lock();
        while !self.is_quiet() {
            self.ended.wait(&mut waiting);
        }
        drop(waiting);
        // SeqCst: a thread that still sees the waiter wakes none; pairs with the load in `UnderWay`'s drop.
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use sync::schedule::{self, SchedulePlan};

    use super::*;

    /// Two threads delete inodes themselves, a third waits until they are done: it returns, and what had begun before
    /// is over then.
    #[test]
    fn who_waits_is_woken_and_nothing_that_began_before_is_under_way() {
        let mut waited = 0;
        for seed in 0..500 {
            let doomed = Doomed::new();
            let over = [const { AtomicU64::new(0) }; 2];
            let points = 100_000;
            let run = schedule::run(SchedulePlan { seed, points }, || {
                sync::thread::workers(3, |thread| match over.get(thread) {
                    Some(over) => {
                        for round in 0..3 {
                            let under_way = doomed.begin(Ino(11));
                            // Relaxed: the schedule is sequential; here and below.
                            over.store(2 * round + 1, Ordering::Relaxed);
                            // Relaxed: the schedule is sequential.
                            over.store(2 * round + 2, Ordering::Relaxed);
                            drop(under_way);
                        }
                    }
                    None => {
                        // Relaxed: the schedule is sequential.
                        let before = [0, 1].map(|thread| over[thread].load(Ordering::Relaxed));
                        doomed.wait_idle();
                        for (over, before) in over.iter().zip(before) {
                            // Relaxed: the schedule is sequential.
                            assert!(over.load(Ordering::Relaxed) >= before.next_multiple_of(2));
                        }
                    }
                });
                assert!(doomed.is_idle());
            });
            // Relaxed: the schedule is sequential.
            waited += usize::from(over[0].load(Ordering::Relaxed) == 6);
            run.unwrap();
        }
        assert_eq!(waited, 500);
    }

    #[test]
    fn what_is_pushed_is_taken_once_and_only_while_someone_serves() {
        for seed in 0..200 {
            let doomed = Doomed::new();
            assert!(!doomed.push(Ino(9)) && doomed.take().is_none());
            doomed.serve(true);
            let taken = Mutex::new(Rank::Leaf, Vec::new());
            let points = 100_000;
            let run = schedule::run(SchedulePlan { seed, points }, || {
                sync::thread::workers(3, |thread| match thread {
                    0 => {
                        for number in 0..4 {
                            assert!(doomed.push(Ino(20 + number)));
                        }
                        while let Some(mine) = doomed.take() {
                            taken.lock().push(mine.ino().0);
                        }
                        doomed.wait_idle();
                        assert_eq!(taken.lock().len(), 4);
                        doomed.serve(false);
                    }
                    _ => {
                        while doomed.wait() {
                            if let Some(mine) = doomed.take() {
                                taken.lock().push(mine.ino().0);
                            }
                        }
                    }
                });
            });
            run.unwrap();
            let mut taken = taken.into_inner();
            taken.sort_unstable();
            assert_eq!(taken, [20, 21, 22, 23]);
        }
    }

    #[test]
    fn a_full_queue_takes_no_more() {
        let doomed = Doomed::new();
        doomed.serve(true);
        for number in 0..MOST {
            assert!(!doomed.is_full() && doomed.push(Ino(number as u32)));
        }
        assert!(doomed.is_full() && !doomed.push(Ino(9)));
        doomed.leave(Ino(10));
        assert_eq!(doomed.take().unwrap().ino(), Ino(0));
        let first = doomed.take().unwrap();
        assert!(!doomed.is_full() && !doomed.is_idle());
        assert_eq!(first.ino(), Ino(1));
    }
}
