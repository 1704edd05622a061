//! Decides which workers of the classic transport read requests: all of them, or for a while a single one, which polls.
//!
//! # Why
//!
//! A request that finds its reader asleep wakes it, which takes longer than most answers: some 8 us if the reader slept
//! on another core. A client that has its answer often sends its next request within a few microseconds. So the reader
//! looks for a request again and again during that time (it *polls*) before it sleeps in read(2), as KVM polls before
//! it halts a virtual CPU.
//!
//! A reader polls only while no other worker sleeps in read(2): the kernel wakes a sleeping reader for each request,
//! whether or not another reader polls.
//!
//! # States of a worker
//!
//! - *Reading*: the worker sleeps in read(2) until a request arrives; if it polls, it sleeps only after that.
//! - *Busy*: the worker has taken a request and answers it.
//! - *Parked*: another worker is the sole reader, so this one sleeps on a condition variable and takes no request.
//! - *Deputy*: a parked worker that wakes once a [`TICK`] and checks that the sole reader still takes requests. At most
//!   one worker is the deputy.
//!
//! # How one worker becomes the sole reader
//!
//! At first all workers may read, and none polls. This stays so while requests are rare. After [`STREAK`] requests in a
//! row that were each taken within [`GAP`] of the answer before, the worker that took the last of them becomes the
//! *sole reader*. A worker that then sleeps in read(2) stays there until it has taken one more request; a worker that
//! has answered its request parks. The first that parks is the deputy.
//!
//! # When all may read again
//!
//! - The sole reader has taken a request that will wait for the disk ([`Pace::Slow`]), or the last of [`QUEUED`]
//!   requests in a row that were waiting when it looked, because several clients are active. It wakes the deputy.
//! - The sole reader has used up its budget (below). The deputy notices at its next tick.
//! - The sole reader took no request between two ticks: nobody uses the mount, or the sole reader waits for something
//!   that was not foreseen, such as a lock. The deputy decides this.
//!
//! In each case the deputy reads from then on. Other parked workers stay parked until a reader wakes one of them.
//!
//! # Why each request finds a reader
//!
//! - A worker that takes a request while no other one reads and no deputy watches wakes a parked worker. The woken
//!   worker reads if all may read, and becomes the deputy otherwise. If no worker is parked, all are busy, which can
//!   happen without polling, too.
//! - While a deputy watches and no worker reads, a request waits for at most two ticks: then the deputy reads.
//! - A worker that ends lets all read and wakes all parked workers.
//!
//! The deputy stops watching after two ticks without a request, so a mount that nobody uses wakes no thread.
//!
//! # What it may cost
//!
//! The sole reader has a budget of processor time. Each request adds [`ALLOWANCE`], and a request that a poll found
//! adds [`SPARED`] as well, the time that sleeping and waking up would have taken. A poll is charged to the budget: it
//! ends when nothing is left, and all may read after the next request. So a mount takes at most [`ALLOWANCE`] more
//! processor time for each request than without polling, even if no core is idle and the client waits for the core of
//! the reader.
//!
//! # Locking
//!
//! A request takes no lock as long as no worker parks or is woken. It costs two additions to [`Readers::word`] and,
//! while all may read, two readings of the clock and two stores to [`Readers::rhythm`]; all workers share these two
//! cache lines. During a pause, for example while several clients are active, nothing is stored to the second. With
//! `poll=off` a request touches neither. The list of the parked ([`Rank::Leaf`]) is locked to park, to wake a parked
//! worker, and by the deputy at each tick.
//!
//! Interleavings: `readers/tests.rs`, under schedules. The words live in [`Readers`], and nothing is reclaimed before
//! it.

use std::io;

use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::clock::{self, Duration, Instant};
use sync::{Arc, CachePadded, Condvar, Hint, Mutex, Rank, thread};

#[cfg(test)]
mod tests;

use crate::messages::Messages;

/// After how many requests in a row, each within [`GAP`] of the answer before, one worker reads alone.
const STREAK: u64 = 32;
/// The longest time between an answer and the next request of a streak. It is longer than a poll, because both the
/// client and a reader wake up in it.
const GAP: Duration = Duration::from_micros(200);
/// How often the deputy checks that the sole reader takes requests.
const TICK: Duration = Duration::from_millis(2);
/// After how many requests in a row that were waiting when the sole reader looked all may read. A single client causes
/// two: a release, and the request that follows it.
const QUEUED: u32 = 4;
/// For how long no worker becomes the sole reader after several clients were active, or the sole reader waited.
const PAUSE: Duration = Duration::from_millis(100);
/// For how long no worker becomes the sole reader after the budget was used up.
const PAUSE_OF_SPENT: Duration = Duration::from_millis(10);
/// Processor time that polling may take for each request.
const ALLOWANCE: Duration = Duration::from_micros(2);
/// Processor time that a poll saves if it finds a request.
const SPARED: Duration = Duration::from_micros(6);
/// The most that the budget can hold.
const BUDGET_MOST: Duration = Duration::from_micros(100);
/// The shortest poll that is worth its system calls.
const POLL_LEAST: Duration = Duration::from_micros(4);
/// Pauses of the processor between two looks of a poll.
const SPINS: u32 = 8;

/// The bits of [`Readers::word`] that count the workers that read.
const READING: u64 = 0xffff;
/// The bit of [`Readers::word`] that is set while a deputy watches.
const WATCHED: u64 = 1 << 16;
/// One taken request in [`Readers::word`]: the upper half counts them.
const TAKEN: u64 = 1 << 32;
/// [`Readers::sole`] while all may read.
const ALL: usize = 0;

/// The channel that a worker reads requests from. Tests have one of their own: their workers run under schedules, which
/// a thread that sleeps in read(2) would stop.
pub(crate) trait RequestSource {
    /// Waits for a request; returns its length, or `None` at the end of the connection. Must not be called while reads
    /// return at once ([`RequestSource::set_waiting`]).
    fn wait(&self, buf: &mut [u8]) -> io::Result<Option<usize>>;
    /// Takes a request if one has arrived; returns its length, or `None` if none has, or at the end of the connection.
    /// Must be called only while reads return at once ([`RequestSource::set_waiting`]).
    fn look(&self, buf: &mut [u8]) -> io::Result<Option<usize>>;
    /// Makes reads wait for a request, or return at once. No other worker may read from this source.
    fn set_waiting(&self, waits: bool) -> io::Result<()>;
}

/// How a request affects its client and the worker that answers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// A client waits for the answer.
    Awaited,
    /// The client does not wait for the answer.
    Unawaited,
    /// Answering it will wait for the disk.
    Slow,
}

/// The readers of one connection; see the module.
pub(crate) struct Readers {
    /// The longest time of a poll; zero if workers never poll.
    window: Duration,
    /// [`READING`], [`WATCHED`] and [`TAKEN`]. [atomic: AcqRel]
    word: CachePadded<AtomicU64>,
    /// The number of the sole reader plus one, or [`ALL`]. [atomic: AcqRel]
    sole: CachePadded<AtomicUsize>,
    /// Used only while all may read.
    rhythm: CachePadded<Rhythm>,
    /// A copy of `parked.count` that is read without the lock.
    parked_hint: Hint<usize>,
    /// [leaf]
    parked: Mutex<Parked>,
    /// The deputy waits here; notified when all may read.
    all_may: Condvar,
    /// The other parked workers wait here; one is notified when all readers are busy.
    called: Condvar,
    messages: Arc<Messages>,
}

/// How fast requests follow answers while all workers may read. It only decides whether polling is worth a try, so a
/// lost update does no harm.
struct Rhythm {
    /// The moment that all times here are counted from.
    start: Instant,
    /// When the last request was answered, in nanoseconds.
    answered: Hint<u64>,
    /// Requests in a row that were taken within [`GAP`] of the answer before.
    streak: Hint<u64>,
    /// Until when no worker becomes the sole reader, in nanoseconds.
    paused: Hint<u64>,
}

/// The parked workers.
#[derive(Default)]
struct Parked {
    /// How many workers are parked, with the deputy.
    count: usize,
    /// Whether one of them is the deputy.
    has_deputy: bool,
}

impl Rhythm {
    /// Nanoseconds since `start`.
    fn now(&self) -> u64 {
        let time = clock::now().saturating_duration_since(self.start);
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Records that a request was answered now, except during a pause.
    fn answered(&self) {
        let now = self.now();
        if !self.is_paused(now) {
            self.answered.set(now);
        }
    }

    /// Whether no worker becomes the sole reader now. Nothing is counted meanwhile, so that workers on several cores do
    /// not write the same cache line while several clients are active.
    fn is_paused(&self, now: u64) -> bool {
        now < self.paused.get()
    }

    /// Counts a request that was taken now; returns whether its worker should become the sole reader.
    fn is_steady(&self) -> bool {
        let now = self.now();
        if self.is_paused(now) {
            return false;
        }
        let gap = now.saturating_sub(self.answered.get());
        let streak = if u128::from(gap) <= GAP.as_nanos() {
            self.streak.get() + 1
        } else {
            0
        };
        self.streak.set(streak);
        streak >= STREAK
    }

    /// Keeps every worker from becoming the sole reader for this time.
    fn pause(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let until = self.now().saturating_add(time);
        self.paused.set(until);
    }
}

impl Readers {
    /// The readers of a connection whose workers poll for at most `window` at a time, and never if that is zero.
    pub(crate) fn new(window: Duration, messages: Arc<Messages>) -> Readers {
        Readers {
            window,
            word: CachePadded::new(AtomicU64::new(0)),
            sole: CachePadded::new(AtomicUsize::new(ALL)),
            rhythm: CachePadded::new(Rhythm {
                start: clock::now(),
                answered: Hint::new(0),
                streak: Hint::new(0),
                paused: Hint::new(0),
            }),
            parked_hint: Hint::new(0),
            parked: Mutex::new(Rank::Leaf, Parked::default()),
            all_may: Condvar::new(),
            called: Condvar::new(),
            messages,
        }
    }

    /// The place of the worker with this number, from 0. Each worker takes its place once.
    pub(crate) fn place(&self, worker: usize) -> ReaderPlace<'_> {
        ReaderPlace {
            readers: self,
            mark: worker + 1,
            waits: true,
            has_answered: false,
            is_sole: false,
            budget: Duration::ZERO,
            queued: 0,
            pace: Pace::Awaited,
        }
    }

    fn sole(&self) -> usize {
        // Acquire: pairs with the stores in `become_sole`, `watch` and `let_all_read`.
        self.sole.load(Ordering::Acquire)
    }

    /// Whether this worker may read now.
    fn may_read(&self, mark: usize) -> bool {
        let sole = self.sole();
        sole == ALL || sole == mark
    }

    /// Counts this worker as reading.
    fn count_reader(&self) {
        // AcqRel: pairs with all other changes of the word.
        self.word.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until this worker may read, and counts it as reading.
    fn enter(&self, mark: usize) {
        if self.may_read(mark) {
            self.count_reader();
        } else {
            self.park(mark);
        }
    }

    /// Counts a taken request; its worker no longer counts as reading. Wakes a parked worker if no other worker reads
    /// and no deputy watches.
    fn taken(&self) {
        // AcqRel: pairs with the `fetch_sub` in `watch`. If that one is first, we see the `parked_hint` that was stored
        // before it; if ours is first, the deputy still watches, so no worker has to be woken.
        let before = self.word.fetch_add(TAKEN - 1, Ordering::AcqRel);
        if before & (READING | WATCHED) == 1 {
            self.call();
        }
    }

    /// Wakes a parked worker, if one exists.
    fn call(&self) {
        // Set under the lock; `taken` explains why it is new enough. A worker that parks later becomes the deputy
        // without being woken.
        if self.parked_hint.get() > 0 {
            // The lock makes sure that a worker that is about to park either waits already, or looks at `sole` and
            // `has_deputy` after this.
            let _parked = self.parked.lock();
            self.called.notify_one();
        }
    }

    /// Waits until this worker may read, as the deputy if no other worker is, and counts it as reading.
    fn park(&self, mark: usize) {
        let mut parked = self.parked.lock();
        parked.count += 1;
        self.parked_hint.set(parked.count);
        loop {
            if self.may_read(mark) {
                self.count_reader();
                break;
            }
            if !parked.has_deputy {
                parked.has_deputy = true;
                self.watch(&mut parked);
                parked.has_deputy = false;
                break;
            }
            self.called.wait(&mut parked);
        }
        parked.count -= 1;
        self.parked_hint.set(parked.count);
    }

    /// Watches the sole reader as the deputy until all may read, and counts this worker as reading.
    fn watch(&self, parked: &mut sync::MutexGuard<'_, Parked>) {
        // AcqRel: pairs with the change in `taken`.
        let mut before = self.word.fetch_or(WATCHED, Ordering::AcqRel);
        while self.sole() != ALL {
            if !self.all_may.wait_for(parked, TICK) {
                continue;
            }
            // Acquire: pairs with the changes in `count_reader` and `taken`.
            let word = self.word.load(Ordering::Acquire);
            if word / TAKEN == before / TAKEN {
                // No request was taken during this tick. If no worker reads, the sole reader waits for something;
                // otherwise nobody uses the mount.
                if word & READING == 0 {
                    self.rhythm.pause(PAUSE);
                }
                // Release: pairs with the load in `sole`.
                self.sole.store(ALL, Ordering::Release);
            }
            before = word;
        }
        // AcqRel: pairs with the change in `taken`. It is a single change, so this thread counts as reading as soon as
        // it no longer counts as the deputy.
        self.word.fetch_sub(WATCHED - 1, Ordering::AcqRel);
    }

    /// Makes this worker the sole reader, unless another worker is; returns whether it has become it.
    fn become_sole(&self, mark: usize) -> bool {
        self.rhythm.streak.set(0);
        // AcqRel: pairs with the load in `sole`, and with the stores of `ALL`.
        // Acquire: pairs with the store in `become_sole` of another worker.
        let exchanged = self
            .sole
            .compare_exchange(ALL, mark, Ordering::AcqRel, Ordering::Acquire);
        exchanged.is_ok()
    }

    /// Allows all workers to read. Wakes the deputy for it if `at_once`; otherwise the deputy sees it at its next tick.
    fn let_all_read(&self, at_once: bool) {
        // Release: pairs with the load in `sole`.
        self.sole.store(ALL, Ordering::Release);
        if at_once {
            // The lock makes sure that the deputy either waits already, or looks at `sole` after this.
            let _parked = self.parked.lock();
            self.all_may.notify_all();
        }
    }
}

/// A worker's place among the readers. Dropping it allows all other workers to read.
pub(crate) struct ReaderPlace<'r> {
    readers: &'r Readers,
    /// The worker's number plus one.
    mark: usize,
    /// Whether reads of the worker's source wait.
    waits: bool,
    /// Whether the worker has taken a request since it last entered.
    has_answered: bool,
    /// Whether the worker was the sole reader when it last checked.
    is_sole: bool,
    /// For how much processor time the worker may still poll.
    budget: Duration,
    /// Requests in a row that were waiting when the worker looked.
    queued: u32,
    /// The pace of the request before.
    pace: Pace,
}

/// How a worker found a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was waiting when the worker first looked.
    Queued,
    /// It arrived during a poll.
    Polled,
    /// A read that may sleep returned it.
    Slept,
}

impl ReaderPlace<'_> {
    /// Waits until this worker may read, then for a request; returns its length, or `None` at the end of the
    /// connection. The request that the worker took before must be answered.
    ///
    /// # Errors
    /// When the source fails.
    pub(crate) fn next<S: RequestSource>(
        &mut self,
        source: &S,
        buf: &mut [u8],
    ) -> io::Result<Option<usize>> {
        if self.readers.window.is_zero() {
            return source.wait(buf);
        }
        if std::mem::take(&mut self.has_answered) && !self.is_sole {
            self.readers.rhythm.answered();
        }
        self.readers.enter(self.mark);
        let read = self.read(source, buf);
        self.readers.taken();
        let Some((len, found)) = read? else {
            return Ok(None);
        };
        self.has_answered = true;
        self.account(found);
        Ok(Some(len))
    }

    /// Sets the pace of the request that was just read. Must be called before the request is answered: all may read if
    /// the answer will wait for the disk.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        if pace == Pace::Slow && self.is_sole {
            self.end_sole(true);
        }
    }

    /// Reads a request. If this worker is the sole reader, and no other worker sleeps in read(2), it polls first.
    fn read<S: RequestSource>(
        &mut self,
        source: &S,
        buf: &mut [u8],
    ) -> io::Result<Option<(usize, Found)>> {
        self.is_sole = self.readers.sole() == self.mark;
        // Acquire: pairs with the changes in `count_reader` and `watch`, which precede a sleep in read(2).
        let is_alone = self.readers.word.load(Ordering::Acquire) & READING == 1;
        if self.is_sole && is_alone {
            self.set_waiting(source, false)?;
            if let Some(len) = source.look(buf)? {
                return Ok(Some((len, Found::Queued)));
            }
            if let Some(len) = self.poll(source, buf)? {
                return Ok(Some((len, Found::Polled)));
            }
        }
        self.set_waiting(source, true)?;
        let len = source.wait(buf)?;
        Ok(len.map(|len| (len, Found::Slept)))
    }

    /// Makes reads of the source wait or return at once, if they do not already.
    fn set_waiting<S: RequestSource>(&mut self, source: &S, waits: bool) -> io::Result<()> {
        if self.waits != waits {
            source.set_waiting(waits)?;
            self.waits = waits;
        }
        Ok(())
    }

    /// Looks for a request again and again as long as window and budget allow; returns its length.
    fn poll<S: RequestSource>(&mut self, source: &S, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let most = self.readers.window.min(self.budget);
        if most < POLL_LEAST {
            return Ok(None);
        }
        let begin = clock::now();
        loop {
            (0..SPINS).for_each(|_| thread::spin());
            let len = source.look(buf)?;
            let time = clock::now().saturating_duration_since(begin);
            if len.is_some() || time >= most {
                self.readers.messages.polled(len.is_some(), time);
                self.budget = self.budget.saturating_sub(time);
                return Ok(len);
            }
        }
    }

    /// Decides from how a request was found whether this worker becomes the sole reader, or remains it.
    fn account(&mut self, found: Found) {
        if !self.is_sole {
            let readers = self.readers;
            if readers.rhythm.is_steady() && readers.become_sole(self.mark) {
                self.is_sole = true;
                self.queued = 0;
                self.budget = BUDGET_MOST.min(ALLOWANCE * STREAK as u32);
            }
            return;
        }
        let earned = match found {
            Found::Polled => ALLOWANCE + SPARED,
            Found::Queued | Found::Slept => ALLOWANCE,
        };
        self.budget = BUDGET_MOST.min(self.budget + earned);
        self.queued = match (found, self.pace) {
            (Found::Queued, Pace::Awaited) => self.queued + 1,
            (Found::Queued, _) => self.queued,
            _ => 0,
        };
        if self.queued >= QUEUED {
            self.readers.rhythm.pause(PAUSE);
            self.end_sole(true);
        } else if self.budget < POLL_LEAST {
            self.readers.rhythm.pause(PAUSE_OF_SPENT);
            self.end_sole(false);
        }
    }

    /// Ends this worker's time as the sole reader; wakes the deputy if `at_once`.
    fn end_sole(&mut self, at_once: bool) {
        self.is_sole = false;
        self.readers.let_all_read(at_once);
    }
}

impl Drop for ReaderPlace<'_> {
    /// Allows all workers to read, and wakes all that are parked.
    ///
    /// A worker drops its place when the connection has ended or the worker has failed. In the first case, each woken
    /// worker finds the end of the connection when it reads; in the second, the others take all further requests.
    fn drop(&mut self) {
        self.readers.let_all_read(true);
        let _parked = self.readers.parked.lock();
        self.readers.called.notify_all();
    }
}
