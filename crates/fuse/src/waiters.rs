//! Threads that wait for the disk in place of those that read requests (*readers*), so that a reader stays free for the
//! kernel's requests, and several fsyncs share a commit. Work is an fsync, fsyncdir, syncfs, fallocate or
//! copy_file_range.
//!
//! On `/dev/fuse` a reader does work itself, at the price of two atomic additions, if fewer than half of the readers do
//! so already; otherwise it hands the work over. With a single reader work is never handed over, so the mount does one
//! thing at a time. On io_uring all work is handed over, because each reader is the only one of its CPU's queue.
//!
//! The work is done by an idle waiter, or by one that is started for it. A waiter ends after it was idle for [`IDLE`].
//! If [`MOST`] waiters are busy, or the system gives no thread, on `/dev/fuse` the reader does the work itself, and
//! then all readers may wait for the disk. On io_uring the work is queued for the next waiter, at most one for each
//! entry of all queues; the reader does it only if no waiter runs. Work that panics drops the reply that it holds,
//! which then answers `EIO`; [`Waiters::end`] reports the panic.
//!
//! One lock, the waiters' list, of rank [`Rank::Queue`]: held for a push or a pop and while a thread is started, never
//! while a waiter works; a thread that takes it holds no other. The count of readers that work themselves is a hint
//! beside it, so no memory is reclaimed without the lock. Tested with threads:
//! `nothing_is_lost_while_waiters_come_and_go`. What a crash leaves: nothing of the waiters is on disk.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sync::clock::Duration;
use sync::{Arc, CachePadded, Condvar, Hint, Mutex, Rank, thread};

/// The most waiters at once.
const MOST: usize = 64;
/// How long one stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(5);

/// What is handed over.
type Work = Box<dyn FnOnce() + Send>;

/// The waiters of one mount.
pub(crate) struct Waiters {
    /// How many readers do work themselves. [atomic: Relaxed, hint]
    direct: CachePadded<Hint<usize>>,
    /// While `direct` is at this number or above, work is handed over. [const]
    direct_most: usize,
    /// How much work may wait for a waiter while all of them are busy. [const]
    queued_most: usize,
    shared: Arc<Shared>,
}

struct Shared {
    /// [queue]
    list: Mutex<List>,
    /// There is work, or the end has come.
    changed: Condvar,
    /// How long a waiter stays idle. [const]
    patience: Duration,
}

#[derive(Default)]
struct List {
    /// All that run, and those that ended since one was last started.
    threads: Vec<thread::JoinHandle<()>>,
    /// How many of these will look at `work` again before they end.
    running: usize,
    /// How many of these are idle, or were just started.
    idle: usize,
    /// Work that no waiter has taken yet: at most `idle`, and for io_uring's queues `queued_most` more.
    work: VecDeque<Work>,
    is_closed: bool,
    has_panicked: bool,
}

impl Waiters {
    /// Waiters for `readers` threads that read requests. None is started yet.
    pub(crate) fn new(readers: usize) -> Waiters {
        Waiters::with(readers, IDLE)
    }

    /// Waiters for io_uring's queues, where each reader is the only one of its queue: work that may wait for the disk
    /// is always handed over. `entries` is the number of requests that all queues hold at most.
    pub(crate) fn for_queues(entries: usize) -> Waiters {
        Waiters {
            direct_most: 0,
            queued_most: entries,
            ..Waiters::new(0)
        }
    }

    fn with(readers: usize, patience: Duration) -> Waiters {
        Waiters {
            direct: CachePadded::new(Hint::new(0)),
            // With one thread a mount does one thing at a time.
            direct_most: match readers {
                0 | 1 => usize::MAX,
                readers => readers / 2,
            },
            queued_most: 0,
            shared: Arc::new(Shared {
                list: Mutex::new(Rank::Queue, List::default()),
                changed: Condvar::new(),
                patience,
            }),
        }
    }

    /// Does work that may wait for the disk: in this thread, or in a waiter, maybe after this has returned.
    pub(crate) fn run<T: Send + Sync + 'static>(
        &self,
        on: &Arc<T>,
        work: impl FnOnce(&T) + Send + 'static,
    ) {
        let direct = Direct::new(&self.direct);
        if direct.others < self.direct_most {
            return work(on);
        }
        self.hand_over(on, work);
    }

    /// Does work that waits for requests which other threads answer: in a waiter, maybe after this has returned. If all
    /// waiters are busy, this thread does it.
    pub(crate) fn hand_over<T: Send + Sync + 'static>(
        &self,
        on: &Arc<T>,
        work: impl FnOnce(&T) + Send + 'static,
    ) {
        let on = Arc::clone(on);
        let work: Work = Box::new(move || work(&on));
        if let Some(work) = self.shared.hand_over(work, self.queued_most) {
            work();
        }
    }

    /// Waits until all work that was handed over is done and all waiters have ended; later work is not handed over.
    /// Returns whether a waiter panicked.
    pub(crate) fn end(&self) -> bool {
        let threads = {
            let mut list = self.shared.list.lock();
            list.is_closed = true;
            mem::take(&mut list.threads)
        };
        self.shared.changed.notify_all();
        let mut list = List {
            threads,
            ..List::default()
        };
        list.join(|_| true);
        list.has_panicked || self.shared.list.lock().has_panicked
    }
}

/// Counts a reader while it does work itself.
struct Direct<'a> {
    all: &'a Hint<usize>,
    /// How many other readers did so when this one began.
    others: usize,
}

impl<'a> Direct<'a> {
    fn new(all: &'a Hint<usize>) -> Direct<'a> {
        Direct {
            all,
            others: all.add(1),
        }
    }
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.all.sub(1);
    }
}

impl Shared {
    /// Hands work to a waiter; returns it if no waiter is free for it and `queued_most` of the work is queued already.
    fn hand_over(self: &Arc<Shared>, work: Work, queued_most: usize) -> Option<Work> {
        let mut list = self.list.lock();
        if list.is_closed {
            return Some(work);
        }
        if list.work.len() >= list.idle && !self.start(&mut list) {
            let queued = list.work.len() - list.idle;
            if list.running == 0 || queued >= queued_most {
                return Some(work);
            }
        }
        list.work.push_back(work);
        drop(list);
        self.changed.notify_one();
        None
    }

    /// Starts one more waiter; false if [`MOST`] run, or the system gives no thread.
    fn start(self: &Arc<Shared>, list: &mut List) -> bool {
        list.join(thread::JoinHandle::is_finished);
        if list.threads.len() >= MOST {
            return false;
        }
        let shared = Arc::clone(self);
        let waiter = thread::Builder::new().name("lanefs-waiter".into());
        let Ok(waiter) = waiter.spawn(move || shared.wait()) else {
            return false;
        };
        list.threads.push(waiter);
        list.running += 1;
        list.idle += 1;
        true
    }

    /// The loop of a waiter, which counts as idle when it begins.
    fn wait(&self) {
        let mut list = self.list.lock();
        let mut is_late = false;
        loop {
            // Here this waiter is counted in `idle`.
            if let Some(work) = list.work.pop_front() {
                list.idle -= 1;
                drop(list);
                // A panic has dropped what the work holds. The waiter continues, because work may be queued for it.
                let has_panicked = catch_unwind(AssertUnwindSafe(work)).is_err();
                list = self.list.lock();
                list.has_panicked |= has_panicked;
                list.idle += 1;
                is_late = false;
            } else if list.is_closed || is_late {
                list.idle -= 1;
                list.running -= 1;
                return;
            } else {
                is_late = self.changed.wait_for(&mut list, self.patience);
            }
        }
    }
}

impl List {
    /// Joins the threads for which `is_so` returns true.
    fn join(&mut self, is_so: impl Fn(&thread::JoinHandle<()>) -> bool) {
        for ended in self.threads.extract_if(.., |waiter| is_so(waiter)) {
            self.has_panicked |= ended.join().is_err();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sync::atomic::{AtomicU64, Ordering};
    use sync::clock;

    use super::*;

    /// Far longer than anything takes here.
    const LONG: Duration = Duration::from_secs(30);

    /// A disk whose flushes end when the test allows it.
    struct Disk {
        /// How many flushes have begun, and how many may end. [leaf]
        flushes: Mutex<(usize, usize)>,
        changed: Condvar,
    }

    impl Disk {
        fn new() -> Arc<Disk> {
            Arc::new(Disk {
                flushes: Mutex::new(Rank::Leaf, (0, 0)),
                changed: Condvar::new(),
            })
        }

        fn flush(&self) {
            let mut flushes = self.flushes.lock();
            flushes.0 += 1;
            self.changed.notify_all();
            let number = flushes.0;
            while flushes.1 < number {
                let is_late = self.changed.wait_for(&mut flushes, LONG);
                assert!(!is_late, "never let end");
            }
        }

        fn await_begun(&self, count: usize) {
            let mut flushes = self.flushes.lock();
            while flushes.0 < count {
                let is_late = self.changed.wait_for(&mut flushes, LONG);
                assert!(!is_late, "{} of {count} begun", flushes.0);
            }
        }

        fn let_end(&self, count: usize) {
            self.flushes.lock().1 += count;
            self.changed.notify_all();
        }
    }

    fn is_waiter() -> bool {
        std::thread::current().name() == Some("lanefs-waiter")
    }

    fn until(is_so: impl Fn() -> bool) {
        let begin = clock::now();
        while !is_so() {
            assert!(begin.elapsed() < LONG);
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn alone_a_request_is_answered_by_who_read_it() {
        let waiters = Waiters::new(4);
        let on = Arc::new(());
        for _ in 0..10 {
            waiters.run(&on, |()| assert!(!is_waiter()));
        }
        assert!(waiters.shared.list.lock().threads.is_empty());
        assert!(!waiters.end());
        let one = Waiters::new(1);
        let _full = (Direct::new(&one.direct), Direct::new(&one.direct));
        one.run(&on, |()| assert!(!is_waiter()));
    }

    #[test]
    fn a_queue_is_never_kept_waiting() {
        let waiters = Waiters::for_queues(MOST * 2);
        let (done, was_done) = mpsc::channel();
        waiters.run(&Arc::new(()), move |()| done.send(is_waiter()).unwrap());
        assert_eq!(was_done.recv_timeout(LONG), Ok(true));
        assert!(!waiters.end());
    }

    #[test]
    fn when_half_of_the_readers_wait_the_next_requests_are_handed_over() {
        let (waiters, disk) = (Waiters::new(4), Disk::new());
        let (answer, answers) = mpsc::channel();
        let request = || {
            let answer = answer.clone();
            move |disk: &Disk| {
                disk.flush();
                answer.send(is_waiter()).unwrap();
            }
        };
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| waiters.run(&disk, request()));
            }
            disk.await_begun(2);
            // Each of these returns, though no flush has ended.
            for _ in 0..5 {
                waiters.run(&disk, request());
            }
            disk.await_begun(7);
            disk.let_end(7);
        });
        let mut by_waiters: Vec<bool> = answers.iter().take(7).collect();
        by_waiters.sort_unstable();
        assert_eq!(by_waiters, [false, false, true, true, true, true, true]);
        // Half of the readers are free again, so a reader does this itself.
        waiters.run(&disk, |_| assert!(!is_waiter()));
        assert_eq!(waiters.shared.list.lock().threads.len(), 5);
        assert!(!waiters.end());
    }

    #[test]
    fn the_end_comes_when_all_that_was_handed_over_is_done() {
        let (waiters, disk) = (Waiters::new(2), Disk::new());
        let done = Arc::new(AtomicU64::new(0));
        let _full = Direct::new(&waiters.direct);
        for _ in 0..8 {
            let done = Arc::clone(&done);
            waiters.run(&disk, move |disk| {
                disk.flush();
                // Relaxed: read after the join.
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        thread::scope(|scope| {
            let end = scope.spawn(|| waiters.end());
            until(|| waiters.shared.list.lock().is_closed);
            // Work that comes after the end began is done by its reader.
            waiters.run(&disk, |_| assert!(!is_waiter()));
            disk.await_begun(8);
            disk.let_end(7);
            assert!(!end.is_finished());
            disk.let_end(1);
            assert!(!end.join().unwrap());
        });
        // Relaxed: all waiters were joined.
        assert_eq!(done.load(Ordering::Relaxed), 8);
        assert_eq!(Arc::strong_count(&disk), 1);
    }

    #[test]
    fn what_is_more_than_there_may_be_waiters_is_done_by_who_read_it() {
        let (waiters, disk) = (Waiters::new(2), Disk::new());
        let _full = Direct::new(&waiters.direct);
        for _ in 0..MOST {
            waiters.run(&disk, Disk::flush);
        }
        let (done, was_done) = mpsc::channel();
        waiters.run(&disk, move |_| done.send(is_waiter()).unwrap());
        assert_eq!(was_done.try_recv(), Ok(false));
        assert!(waiters.shared.list.lock().work.len() <= MOST);
        disk.let_end(MOST);
        assert!(!waiters.end());
    }

    #[test]
    fn a_queue_is_not_kept_waiting_by_more_than_there_may_be_waiters() {
        const LINE: usize = 16;
        const MORE: usize = MOST + LINE;
        let (waiters, disk) = (Waiters::for_queues(LINE), Disk::new());
        let (answer, answers) = mpsc::channel();
        let run = |panics: bool| {
            let answer = answer.clone();
            waiters.run(&disk, move |disk| {
                disk.flush();
                assert!(!panics, "as this test wants it");
                answer.send(is_waiter()).unwrap();
            });
        };
        // Each call returns, though no flush has ended.
        (0..MORE).for_each(|number| run(number % 8 == 3));
        disk.await_begun(MOST);
        assert_eq!(waiters.shared.list.lock().work.len(), LINE);
        waiters.run(&disk, |_| assert!(!is_waiter()));
        disk.let_end(MORE);
        let done = answers.iter().take(MORE / 8 * 7);
        assert!(done.into_iter().all(|by_waiter| by_waiter));
        disk.await_begun(MORE);
        assert!(waiters.end());
        assert_eq!(Arc::strong_count(&disk), 1);
    }

    /// A reply that reports a failure when it is dropped without an answer, as the server's replies do.
    struct Reply(Option<mpsc::Sender<bool>>);

    impl Reply {
        fn ok(mut self) {
            self.0.take().unwrap().send(true).unwrap();
        }
    }

    impl Drop for Reply {
        fn drop(&mut self) {
            if let Some(answer) = self.0.take() {
                answer.send(false).unwrap();
            }
        }
    }

    #[test]
    fn a_panic_in_a_waiter_is_answered_and_told_at_the_end() {
        let waiters = Waiters::new(2);
        let on = Arc::new(());
        let _full = Direct::new(&waiters.direct);
        let (answer, answers) = mpsc::channel();
        for round in 0..6 {
            let reply = Reply(Some(answer.clone()));
            waiters.run(&on, move |()| match round {
                1 | 3 => panic!("as this test wants it ({})", reply.0.is_some()),
                _ => reply.ok(),
            });
            assert_eq!(answers.recv_timeout(LONG), Ok(round != 1 && round != 3));
        }
        assert!(waiters.end());
        assert_eq!(Arc::strong_count(&on), 1);
    }

    #[test]
    fn a_waiter_with_nothing_to_do_ends() {
        let waiters = Waiters::with(2, Duration::from_millis(5));
        let on = Arc::new(());
        let _full = Direct::new(&waiters.direct);
        for _ in 0..3 {
            waiters.run(&on, |()| assert!(is_waiter()));
            until(|| waiters.shared.list.lock().idle == 0);
        }
        until(|| {
            let list = waiters.shared.list.lock();
            list.threads.iter().all(thread::JoinHandle::is_finished)
        });
        waiters.run(&on, |()| ());
        assert_eq!(waiters.shared.list.lock().threads.len(), 1);
        assert!(!waiters.end());
    }

    #[test]
    fn nothing_is_lost_while_waiters_come_and_go() {
        const EACH: u64 = 3000;
        let waiters = Waiters::with(4, Duration::from_micros(20));
        let done = Arc::new(AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        waiters.run(&done, |done| {
                            thread::yield_now();
                            // Relaxed: read after the join.
                            done.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert!(!waiters.end());
        // Relaxed: all threads were joined.
        assert_eq!(done.load(Ordering::Relaxed), 8 * EACH);
        let list = waiters.shared.list.lock();
        assert_eq!((list.idle, list.work.len()), (0, 0));
    }
}
