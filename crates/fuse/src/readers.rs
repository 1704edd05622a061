//! Which workers of the classic transport read requests: all of them, or for a while a single one, which polls.
//!
//! # Why
//!
//! A request that finds its reader asleep wakes it, which takes longer than most answers: some 8 us if the reader slept
//! on another core. A client that was answered often sends its next request within a few microseconds. So the reader
//! looks for a request during that time (*polls*) before it sleeps in read(2), as KVM does before it halts a virtual
//! CPU.
//!
//! A reader can poll only while no other one sleeps in read(2): the kernel wakes a sleeping reader for each request,
//! whether or not another reader is looking for one.
//!
//! # How
//!
//! - While requests are rare or several clients send them, all workers read, and none polls.
//! - After [`STREAK`] requests in a row that were taken within [`GAP`] of the answer before, the worker that read the
//!   last of them becomes the *sole* reader. The others leave after their next request and are parked.
//! - The first of those is the *deputy*: it looks once a [`TICK`] whether the sole reader still takes requests. If it
//!   does not, it sleeps or waits for something (the disk, a lock), and all may read again. So no request waits longer
//!   than two ticks for a reader, and a mount that nobody uses wakes no thread.
//! - The sole reader lets others read at once before a request that will wait for the disk, and after [`QUEUED`]
//!   requests in a row that it found waiting: then several clients are active.
//! - A parked worker that is not the deputy reads again when all readers are busy.
//!
//! # What it may cost
//!
//! The sole reader has a budget of processor time. Each request adds [`ALLOWANCE`], and one that a poll found also
//! [`SPARED`], the time that sleeping and waking up would have taken; polling takes from it. A poll ends at the latest
//! when the budget is used up, and all may read then. So a mount takes at most [`ALLOWANCE`] more for each request
//! than without polling, also if no core is idle and the client waits for that of the reader.
//!
//! # Locking
//!
//! In the steady state a request costs two additions to one word and no lock. The list of the parked ([`Rank::Leaf`])
//! is locked to park, to wake a parked worker, and by the deputy at each tick.

use std::io;

use sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sync::clock::{self, Duration, Instant};
use sync::{Arc, CachePadded, Condvar, Mutex, Rank, thread};

#[cfg(test)]
mod tests;

use crate::messages::Messages;

/// Requests in a row that must follow the answer before within [`GAP`], until one worker reads alone.
const STREAK: u64 = 32;
/// Longer than a poll, because in this time both the client and a reader wake up.
const GAP: Duration = Duration::from_micros(200);
/// How often the deputy looks.
const TICK: Duration = Duration::from_millis(2);
/// Requests in a row that were waiting when the sole reader looked: a single client causes two (a release, and what it
/// asks for next).
const QUEUED: u32 = 4;
/// For how long no worker reads alone after several clients were active, or the sole reader waited.
const PAUSE: Duration = Duration::from_millis(100);
/// The same after the budget was used up.
const PAUSE_OF_SPENT: Duration = Duration::from_millis(10);
/// Processor time that polling may take for each request.
const ALLOWANCE: Duration = Duration::from_micros(2);
/// Processor time that a poll saves which finds a request.
const SPARED: Duration = Duration::from_micros(6);
/// The most that the budget can hold.
const BUDGET_MOST: Duration = Duration::from_micros(100);
/// A poll that would be shorter than this is not worth its system calls.
const POLL_LEAST: Duration = Duration::from_micros(4);
/// Pauses of the processor between two looks.
const SPINS: u32 = 8;

/// Parts of [`Readers::word`]: how many workers read, whether there is a deputy, and from here on how many requests
/// were taken.
const READING: u64 = 0xffff;
const WATCHED: u64 = 1 << 16;
const TAKEN: u64 = 1 << 32;
/// [`Readers::sole`] while all may read.
const ALL: usize = 0;

/// Where a worker gets its requests from.
pub(crate) trait RequestSource {
    /// Waits for a request; returns its length, or `None` at the end of the connection. Not while
    /// [`RequestSource::set_waiting`] says that reads return at once.
    fn wait(&self, buf: &mut [u8]) -> io::Result<Option<usize>>;
    /// The length of a request that has come; `None` if none has, and at the end of the connection. Only while
    /// [`RequestSource::set_waiting`] says that reads return at once.
    fn look(&self, buf: &mut [u8]) -> io::Result<Option<usize>>;
    /// Chooses whether reads wait. Other workers must not read from this source.
    fn set_waiting(&self, waits: bool) -> io::Result<()>;
}

/// What a request means for the worker that has read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// A client waits for the answer.
    Awaited,
    /// The client goes on without an answer.
    Unawaited,
    /// Answering it will wait for the disk.
    Slow,
}

/// See the module.
pub(crate) struct Readers {
    /// The longest time of a poll; zero if no reader polls.
    window: Duration,
    /// [`READING`], [`WATCHED`] and [`TAKEN`]. [atomic: AcqRel]
    word: CachePadded<AtomicU64>,
    /// The number of the sole reader plus one, or [`ALL`]. [atomic: AcqRel]
    sole: CachePadded<AtomicUsize>,
    rhythm: CachePadded<Rhythm>,
    /// `parked.count`, to be read without the lock. [atomic: Relaxed]
    parked_hint: AtomicUsize,
    /// [leaf]
    parked: Mutex<Parked>,
    /// For the deputy: all may read.
    all_may: Condvar,
    /// For another parked worker: all readers are busy.
    called: Condvar,
    messages: Arc<Messages>,
}

/// How requests come while all workers read. Only guesses depend on it, so a lost update does no harm.
struct Rhythm {
    /// What the times count from.
    start: Instant,
    /// When the last request was answered, in nanoseconds. [atomic: Relaxed]
    answered: AtomicU64,
    /// Requests in a row that came within [`GAP`]. [atomic: Relaxed]
    streak: AtomicU64,
    /// Until when no worker reads alone, in nanoseconds. [atomic: Relaxed]
    paused: AtomicU64,
}

#[derive(Default)]
struct Parked {
    count: usize,
    /// Whether one of them is the deputy.
    has_deputy: bool,
}

impl Rhythm {
    fn now(&self) -> u64 {
        let time = clock::now().saturating_duration_since(self.start);
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
    }

    fn answered(&self) {
        // Relaxed: a guess; pairs with the load in `is_steady`.
        self.answered.store(self.now(), Ordering::Relaxed);
    }

    /// Counts a request that has come; returns whether enough of them came in a row.
    fn is_steady(&self) -> bool {
        let now = self.now();
        // Relaxed: a guess; pairs with the store in `answered`.
        let gap = now.saturating_sub(self.answered.load(Ordering::Relaxed));
        let streak = match u128::from(gap) <= GAP.as_nanos() {
            // Relaxed: a guess; pairs with the store below.
            true => self.streak.load(Ordering::Relaxed) + 1,
            false => 0,
        };
        // Relaxed: a guess; pairs with the load above.
        self.streak.store(streak, Ordering::Relaxed);
        // Relaxed: a guess; pairs with the store in `pause`.
        streak >= STREAK && now >= self.paused.load(Ordering::Relaxed)
    }

    fn pause(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let until = self.now().saturating_add(time);
        // Relaxed: a guess; pairs with the load in `is_steady`.
        self.paused.store(until, Ordering::Relaxed);
    }
}

impl Readers {
    /// For workers that poll no longer than `window` at a time; not at all if that is zero.
    pub(crate) fn new(window: Duration, messages: Arc<Messages>) -> Readers {
        Readers {
            window,
            word: CachePadded::new(AtomicU64::new(0)),
            sole: CachePadded::new(AtomicUsize::new(ALL)),
            rhythm: CachePadded::new(Rhythm {
                start: clock::now(),
                answered: AtomicU64::new(0),
                streak: AtomicU64::new(0),
                paused: AtomicU64::new(0),
            }),
            parked_hint: AtomicUsize::new(0),
            parked: Mutex::new(Rank::Leaf, Parked::default()),
            all_may: Condvar::new(),
            called: Condvar::new(),
            messages,
        }
    }

    /// The place of a worker, numbered from 0. Each worker takes one, once.
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
        // Acquire: pairs with the stores in `become_sole` and `let_all_read`.
        self.sole.load(Ordering::Acquire)
    }

    /// Counts a worker as reading, once it may read.
    fn enter(&self, mark: usize) {
        let sole = self.sole();
        if sole == ALL || sole == mark {
            // AcqRel: pairs with all other changes of the word.
            self.word.fetch_add(1, Ordering::AcqRel);
        } else {
            self.park(mark);
        }
    }

    /// A reader has taken a request, and reads no longer.
    fn taken(&self) {
        // AcqRel: pairs with the change in `watch`. If the deputy's comes first, `parked_hint` is at least what it was
        // when the deputy left; if this one does, the deputy still watches.
        let before = self.word.fetch_add(TAKEN - 1, Ordering::AcqRel);
        if before & (READING | WATCHED) == 1 {
            self.call();
        }
    }

    /// Wakes a parked worker, if there is one, because nobody reads and no deputy watches.
    fn call(&self) {
        // Relaxed: stored under the lock; see `taken` for why it is new enough.
        if self.parked_hint.load(Ordering::Relaxed) > 0 {
            // Under the lock, so that a worker which parks is either before its last look or waits already.
            let _parked = self.parked.lock();
            self.called.notify_one();
        }
    }

    /// Waits until this worker may read, and counts it as reading.
    fn park(&self, mark: usize) {
        let mut parked = self.parked.lock();
        parked.count += 1;
        // Relaxed: read by `call`, which says why that is enough.
        self.parked_hint.store(parked.count, Ordering::Relaxed);
        loop {
            let sole = self.sole();
            if sole == ALL || sole == mark {
                // AcqRel: pairs with all other changes of the word.
                self.word.fetch_add(1, Ordering::AcqRel);
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
        // Relaxed: read by `call`, which says why that is enough.
        self.parked_hint.store(parked.count, Ordering::Relaxed);
    }

    /// What the deputy does until all may read; it then counts as reading.
    fn watch(&self, parked: &mut sync::MutexGuard<'_, Parked>) {
        // AcqRel: pairs with the change in `taken`.
        let mut before = self.word.fetch_or(WATCHED, Ordering::AcqRel);
        while self.sole() != ALL {
            if !self.all_may.wait_for(parked, TICK) {
                continue;
            }
            // Acquire: pairs with the changes in `enter` and `taken`.
            let word = self.word.load(Ordering::Acquire);
            if word / TAKEN == before / TAKEN {
                if word & READING == 0 {
                    self.rhythm.pause(PAUSE);
                }
                // Release: pairs with the load in `sole`.
                self.sole.store(ALL, Ordering::Release);
            }
            before = word;
        }
        // AcqRel: pairs with the change in `taken`. It is one change, so that at any time this thread reads or watches.
        self.word.fetch_sub(WATCHED - 1, Ordering::AcqRel);
    }

    /// Has this worker read alone from now on, unless another one does; returns whether it does.
    fn become_sole(&self, mark: usize) -> bool {
        // Relaxed: a guess; pairs with the load in `is_steady`.
        self.rhythm.streak.store(0, Ordering::Relaxed);
        // AcqRel: pairs with the load in `sole`, and with the stores of `ALL`.
        // Acquire: pairs with the store in `become_sole` of another worker.
        let exchanged = self
            .sole
            .compare_exchange(ALL, mark, Ordering::AcqRel, Ordering::Acquire);
        exchanged.is_ok()
    }

    /// Lets all workers read again; the deputy learns of it at once, or at its next tick.
    fn let_all_read(&self, at_once: bool) {
        // Release: pairs with the load in `sole`.
        self.sole.store(ALL, Ordering::Release);
        if at_once {
            // Under the lock, so that the deputy is either before its look at `sole` or waits already.
            let _parked = self.parked.lock();
            self.all_may.notify_all();
        }
    }
}

/// A worker's place among the readers. When it is dropped, all others may read.
pub(crate) struct ReaderPlace<'r> {
    readers: &'r Readers,
    /// The worker's number plus one.
    mark: usize,
    /// Whether reads of its source wait.
    waits: bool,
    /// Whether it has taken a request and not come back since.
    has_answered: bool,
    /// Whether it was the sole reader when it last looked.
    is_sole: bool,
    /// Processor time that it may poll for.
    budget: Duration,
    /// Requests in a row that were there when it looked.
    queued: u32,
    /// Of the request before.
    pace: Pace,
}

/// How a request was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was there.
    Queued,
    /// By polling for this time.
    Polled(Duration),
    /// By waiting.
    Slept,
}

impl ReaderPlace<'_> {
    /// The length of the next request, once this worker may read; `None` at the end of the connection. The request
    /// before counts as answered.
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

    /// What the request just read means for this worker. To be called before it is answered.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
        if pace == Pace::Slow && self.is_sole {
            self.end_sole(true);
        }
    }

    fn read<S: RequestSource>(
        &mut self,
        source: &S,
        buf: &mut [u8],
    ) -> io::Result<Option<(usize, Found)>> {
        self.is_sole = self.readers.sole() == self.mark;
        // Acquire: pairs with the changes in `enter` and `watch`, which come before a worker sleeps in read(2).
        let is_alone = self.readers.word.load(Ordering::Acquire) & READING == 1;
        if self.is_sole && is_alone {
            self.set_waiting(source, false)?;
            if let Some(len) = source.look(buf)? {
                return Ok(Some((len, Found::Queued)));
            }
            if let Some((len, time)) = self.poll(source, buf)? {
                return Ok(Some((len, Found::Polled(time))));
            }
        }
        self.set_waiting(source, true)?;
        let len = source.wait(buf)?;
        Ok(len.map(|len| (len, Found::Slept)))
    }

    fn set_waiting<S: RequestSource>(&mut self, source: &S, waits: bool) -> io::Result<()> {
        if self.waits != waits {
            source.set_waiting(waits)?;
            self.waits = waits;
        }
        Ok(())
    }

    /// Looks for a request as long as window and budget allow; returns its length, and for how long it was polled.
    fn poll<S: RequestSource>(
        &mut self,
        source: &S,
        buf: &mut [u8],
    ) -> io::Result<Option<(usize, Duration)>> {
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
                return Ok(len.map(|len| (len, time)));
            }
        }
    }

    /// Draws the consequences from how a request was found.
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
            Found::Polled(_) => ALLOWANCE + SPARED,
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

    fn end_sole(&mut self, at_once: bool) {
        self.is_sole = false;
        self.readers.let_all_read(at_once);
    }
}

impl Drop for ReaderPlace<'_> {
    /// The connection has ended, or this worker fails: the parked workers read then, and see for themselves.
    fn drop(&mut self) {
        self.readers.let_all_read(true);
        let _parked = self.readers.parked.lock();
        self.readers.called.notify_all();
    }
}
