//! Threads scheduled from a seed: one runs at a time, and at each point (a lock, a wait, an atomic, a handle that
//! begins) the seed decides which one goes on. The same seed and the same work give the same run, on every machine.
//!
//! The threads are the system's own, and pass a baton: the right to run. Every primitive of this crate hands it on
//! before it acts, tries its lock instead of waiting for it, and waits by giving the baton away until the lock is free.
//! So no thread ever waits in the system for a thread that does not have the baton. Time is a number that grows by a
//! microsecond with each point; when all threads wait, and one of them has a time limit, it jumps to that limit.
//!
//! The schedule detects by itself that all threads wait (a deadlock, reported with every thread's place) and that a run
//! has more points than [`SchedulePlan::points`] (a livelock). Then, and when a thread panics, all threads of the run
//! panic and unwind with the system's locks, and [`run`] reports the first cause.
//!
//! What is explored is sequentially consistent. A thread that is not part of the run must not hold a lock that the run
//! wants, and `OnceLock`s must not be initialised by code that gives the baton away. Lock: the state's own, held for a
//! decision; nothing else is taken under it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::gauge::{Gauge, Reading};

/// Nanoseconds that pass at each point.
const POINT_TIME: u64 = 1_000;
/// Nanoseconds that pass when a thread yields.
const YIELD_TIME: u64 = 50_000;

/// Turns that others get at most while a thread dwells.
const DWELL_TURNS: usize = 200;

/// How a run is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchedulePlan {
    /// Decides everything.
    pub seed: u64,
    /// More points than this are taken for a livelock.
    pub points: u64,
}

/// What a run did.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ScheduleReport {
    /// How often a thread could have lost its turn.
    pub points: u64,
    /// How often one did.
    pub switches: u64,
}

/// Runs `main`, and the workers that it starts with [`crate::thread::workers`], by the plan.
///
/// # Errors
/// The first cause when a thread panicked, or all waited, or there were too many points.
pub fn run<R>(plan: SchedulePlan, main: impl FnOnce() -> R) -> Result<(R, ScheduleReport), String> {
    let shared = Arc::new(Shared {
        state: Mutex::new(State::new(plan)),
    });
    shared.state.lock().tasks.push(Task::new());
    let outer = CURRENT.replace(Some(Me {
        shared: Arc::clone(&shared),
        number: 0,
    }));
    let result = catch_unwind(AssertUnwindSafe(main));
    CURRENT.set(outer);
    let mut state = shared.state.lock();
    match result {
        Ok(result) if state.failure.is_none() => Ok((result, state.report.clone())),
        Ok(_) => Err(state.failure.take().unwrap_or_default()),
        Err(cause) => Err(state.failure.take().unwrap_or_else(|| message(&*cause))),
    }
}

/// A handle of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handled {
    /// The thread's number in the run.
    pub thread: usize,
    /// When it began ([`Reading::at`]).
    pub begun: u64,
    /// When it ended.
    pub ended: u64,
}

/// The handles so far, in the order in which they began.
#[must_use]
pub fn handled() -> Vec<Handled> {
    me().map_or_else(Vec::new, |me| me.shared.state.lock().handled.clone())
}

/// Lets others run until two of them have a handle open, as long as there are others without one: for a device that is
/// about to carry out a request, so that cuts fall where much is under way. In some runs it does nothing.
pub fn dwell() {
    let Some(me) = me() else {
        return;
    };
    for _ in 0..DWELL_TURNS {
        let mut state = me.shared.state.lock();
        let open: u32 = state.tasks.iter().map(|task| task.handles).sum();
        let may = state.dwells_in_handles && state.undisturbed.is_none();
        if !may || open >= 2 || state.failure.is_some() {
            return me.check(state);
        }
        let can = |(number, task): (usize, &Task)| {
            number != me.number && task.status == Status::Ready && task.handles == 0
        };
        let others = (0..).zip(&state.tasks).filter(|(n, task)| can((*n, *task)));
        let others: Vec<usize> = others.map(|(number, _)| number).collect();
        if others.is_empty() {
            return;
        }
        let next = others[state.below(others.len())];
        me.hand_over(&mut state, next);
        me.check(state);
    }
}

/// Runs `work` without losing the turn at points; only where it must wait, others go on. Does not nest.
pub fn undisturbed<R>(work: impl FnOnce() -> R) -> R {
    let Some(me) = me() else {
        return work();
    };
    me.shared.state.lock().undisturbed = Some(me.number);
    let result = work();
    me.shared.state.lock().undisturbed = None;
    result
}

thread_local!(static CURRENT: RefCell<Option<Me>> = const { RefCell::new(None) });

/// The calling thread's part in a run.
#[derive(Clone)]
struct Me {
    shared: Arc<Shared>,
    number: usize,
}

fn me() -> Option<Me> {
    CURRENT.try_with(|me| me.borrow().clone()).ok().flatten()
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    tasks: Vec<Task>,
    /// The thread that has the baton.
    running: usize,
    random: u64,
    /// Nanoseconds since the run began.
    now: u64,
    report: ScheduleReport,
    points_most: u64,
    /// A thread loses its turn once in this number of points.
    switch_one_in: u64,
    /// Whether threads with open handles mostly wait for those without.
    dwells_in_handles: bool,
    failure: Option<String>,
    seals: u32,
    handled: Vec<Handled>,
    /// The thread that keeps the baton at points.
    undisturbed: Option<usize>,
}

struct Task {
    status: Status,
    handles: u32,
    turn: Arc<Condvar>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Ready,
    /// Until what lies at this address changes, or that time comes.
    Waiting {
        on: usize,
        until: Option<u64>,
        site: &'static Location<'static>,
    },
    Done,
}

impl Task {
    fn new() -> Task {
        Task {
            status: Status::Ready,
            handles: 0,
            turn: Arc::new(Condvar::new()),
        }
    }
}

impl State {
    fn new(plan: SchedulePlan) -> State {
        let mut state = State {
            tasks: Vec::new(),
            running: 0,
            random: plan.seed ^ 0x5ced_u64.rotate_left(47),
            now: 0,
            report: ScheduleReport::default(),
            points_most: plan.points,
            switch_one_in: 1,
            dwells_in_handles: false,
            failure: None,
            seals: 0,
            handled: Vec::new(),
            undisturbed: None,
        };
        state.switch_one_in = [3, 10, 30, 100][state.below(4)];
        state.dwells_in_handles = state.below(16) != 0;
        state
    }

    fn below(&mut self, end: usize) -> usize {
        // SplitMix64, as everywhere in the simulation.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The remainder is below `end`.
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// The thread that continues, other than `not`; none when all others wait or are done.
    fn another(&mut self, not: usize) -> Option<usize> {
        let ready = |tasks: &[Task], calm: bool| -> Vec<usize> {
            let can = |(number, task): &(usize, &Task)| {
                *number != not && task.status == Status::Ready && (!calm || task.handles == 0)
            };
            let found = tasks.iter().enumerate().filter(can);
            found.map(|(number, _)| number).collect()
        };
        let mut candidates = Vec::new();
        if self.dwells_in_handles && self.below(32) != 0 {
            candidates = ready(&self.tasks, true);
        }
        if candidates.is_empty() {
            candidates = ready(&self.tasks, false);
        }
        match candidates.len() {
            0 => None,
            len => Some(candidates[self.below(len)]),
        }
    }

    /// Wakes the threads that wait with a time limit, at the earliest one.
    fn pass_time(&mut self) -> bool {
        let limits = self.tasks.iter().filter_map(|task| match task.status {
            Status::Waiting { until, .. } => until,
            _ => None,
        });
        let Some(earliest) = limits.min() else {
            return false;
        };
        self.now = self.now.max(earliest);
        for task in &mut self.tasks {
            if matches!(task.status, Status::Waiting { until: Some(until), .. } if until <= earliest)
            {
                task.status = Status::Ready;
            }
        }
        true
    }

    fn fail(&mut self, cause: impl FnOnce(&State) -> String) {
        if self.failure.is_none() {
            self.failure = Some(cause(self));
        }
        self.tasks.iter().for_each(|task| {
            task.turn.notify_all();
        });
    }

    fn waits(&self) -> String {
        let tasks = self.tasks.iter().enumerate();
        let lines = tasks.filter_map(|(number, task)| match task.status {
            Status::Waiting { site, .. } => Some(format!("thread {number} waits at {site}")),
            _ => None,
        });
        lines.collect::<Vec<_>>().join("; ")
    }

    fn wake(&mut self, address: usize, all: bool) {
        let waits =
            |task: &Task| matches!(task.status, Status::Waiting { on, .. } if on == address);
        let mut waiting: Vec<usize> = (0..self.tasks.len())
            .filter(|number| waits(&self.tasks[*number]))
            .collect();
        if !all && waiting.len() > 1 {
            let lucky = self.below(waiting.len());
            waiting = vec![waiting[lucky]];
        }
        for number in waiting {
            self.tasks[number].status = Status::Ready;
        }
    }
}

/// The message of a panic.
fn message(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

impl Me {
    /// Hands the baton to `next` and waits for it to come back.
    fn hand_over(&self, state: &mut MutexGuard<'_, State>, next: usize) {
        state.report.switches += 1;
        state.running = next;
        state.tasks[next].turn.notify_one();
        self.wait_for_turn(state);
    }

    fn wait_for_turn(&self, state: &mut MutexGuard<'_, State>) {
        let turn = Arc::clone(&state.tasks[self.number].turn);
        while state.running != self.number && state.failure.is_none() {
            turn.wait(state);
        }
    }

    /// Panics when the run has failed, unless this thread is unwinding already.
    fn check(&self, state: MutexGuard<'_, State>) {
        let failure = state.failure.clone();
        drop(state);
        if let Some(failure) = failure
            && !std::thread::panicking()
        {
            resume_unwind(Box::new(failure));
        }
    }

    fn point(&self, time: u64, must_switch: bool) {
        let mut state = self.shared.state.lock();
        if state.failure.is_none() {
            state.now += time;
            state.report.points += 1;
            if state.report.points > state.points_most {
                let most = state.points_most;
                state.fail(|state| format!("a livelock: {most} points; {}", state.waits()));
            } else {
                let dwells = state.dwells_in_handles && state.tasks[self.number].handles > 0;
                let one_in = if dwells {
                    2
                } else {
                    state.switch_one_in as usize
                };
                let may_switch = state.undisturbed != Some(self.number);
                if (must_switch || may_switch && state.below(one_in) == 0)
                    && let Some(next) = state.another(self.number)
                {
                    self.hand_over(&mut state, next);
                }
            }
        }
        self.check(state);
    }

    /// Waits until `on` changes or the time is up. False when the run has failed.
    fn wait(&self, on: usize, time: Option<u64>, site: &'static Location<'static>) -> bool {
        let mut state = self.shared.state.lock();
        if state.failure.is_none() {
            let until = time.map(|time| state.now + time);
            state.tasks[self.number].status = Status::Waiting { on, until, site };
            self.give_away(&mut state);
        }
        let goes_on = state.failure.is_none();
        self.check(state);
        goes_on
    }

    /// Gives the baton to any thread that can go on, possibly to the caller once its time is up.
    fn give_away(&self, state: &mut MutexGuard<'_, State>) {
        loop {
            if let Some(next) = state.another(self.number) {
                if state.tasks[self.number].status == Status::Done {
                    state.running = next;
                    state.tasks[next].turn.notify_one();
                } else {
                    self.hand_over(state, next);
                }
                return;
            }
            if state.tasks[self.number].status == Status::Ready {
                return;
            }
            if state.tasks.iter().all(|task| task.status == Status::Done) {
                return;
            }
            if !state.pass_time() {
                state.fail(|state| format!("a deadlock: {}", state.waits()));
                return;
            }
        }
    }

    /// The thread's work is over, with the cause of its panic if it panicked.
    fn finish(&self, panicked: Option<String>) {
        let mut state = self.shared.state.lock();
        if let Some(cause) = panicked {
            state.fail(|_| cause);
        }
        state.tasks[self.number].status = Status::Done;
        let place = joined(&self.shared, self.number);
        state.wake(place, true);
        if state.failure.is_none() {
            self.give_away(&mut state);
        }
    }
}

/// What a thread that waits for another's end waits on: an address that no lock has.
fn joined(shared: &Arc<Shared>, number: usize) -> usize {
    // Within the state, whose fields are no locks of others.
    Arc::as_ptr(shared).addr() + 1 + number
}

/// The primitives' questions.
pub(crate) mod turn {
    use super::{
        AssertUnwindSafe, CURRENT, Gauge, Handled, Location, Me, POINT_TIME, Reading, Task,
        YIELD_TIME, catch_unwind, joined, me, message, resume_unwind,
    };
    use crate::clock::{Duration, Instant};
    use std::sync::{Arc, OnceLock};

    /// How long a thread of a failed run waits for another to unwind and free its locks.
    const UNWIND_TIME: Duration = Duration::from_secs(5);

    /// Tells the schedule that a lock is free again.
    #[derive(Debug)]
    pub(crate) struct Released(usize);

    impl Released {
        #[inline]
        pub(crate) fn of<T: ?Sized>(lock: &T) -> Released {
            Released(std::ptr::from_ref(lock).addr())
        }
    }

    impl Drop for Released {
        fn drop(&mut self) {
            if let Some(me) = me() {
                me.shared.state.lock().wake(self.0, true);
            }
        }
    }

    #[inline]
    pub(crate) fn point() {
        if let Some(me) = me() {
            me.point(POINT_TIME, false);
        }
    }

    #[track_caller]
    pub(crate) fn acquire<L: ?Sized, G>(
        lock: &L,
        attempt: impl Fn() -> Option<G>,
        wait: impl FnOnce() -> G,
    ) -> G {
        let Some(me) = me() else {
            return wait();
        };
        me.point(POINT_TIME, false);
        let address = std::ptr::from_ref(lock).addr();
        let site = Location::caller();
        loop {
            if let Some(guard) = attempt() {
                return guard;
            }
            if !me.wait(address, None, site) {
                return acquire_late(attempt);
            }
        }
    }

    /// The run has failed and this thread is unwinding: its destructors still want their locks.
    fn acquire_late<G>(attempt: impl Fn() -> Option<G>) -> G {
        let start = Instant::now();
        loop {
            if let Some(guard) = attempt() {
                return guard;
            }
            if start.elapsed() > UNWIND_TIME {
                // A panic while unwinding would end the process without a word.
                std::process::abort();
            }
            std::thread::yield_now();
        }
    }

    #[track_caller]
    pub(crate) fn wait<C, T: ?Sized>(
        condvar: &C,
        guard: &mut parking_lot::MutexGuard<'_, T>,
        released: &Released,
        time: Option<Duration>,
    ) -> Option<bool> {
        let me = me()?;
        let site = Location::caller();
        let limit = time.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let mutex = parking_lot::MutexGuard::mutex(guard);
        let begun = now(&me);
        parking_lot::MutexGuard::unlocked(guard, || {
            me.shared.state.lock().wake(released.0, true);
            me.wait(std::ptr::from_ref(condvar).addr(), limit, site);
            // Nobody else runs between the last look and the lock.
            while mutex.is_locked() {
                if !me.wait(released.0, None, site) {
                    drop(acquire_late(|| mutex.try_lock()));
                }
            }
        });
        Some(limit.is_some_and(|limit| now(&me) >= begun.saturating_add(limit)))
    }

    fn now(me: &Me) -> u64 {
        me.shared.state.lock().now
    }

    pub(crate) fn notify<C>(condvar: &C, all: bool) {
        if let Some(me) = me() {
            let mut state = me.shared.state.lock();
            state.wake(std::ptr::from_ref(condvar).addr(), all);
        }
    }

    pub(crate) fn yield_now() -> bool {
        let Some(me) = me() else {
            return false;
        };
        me.point(YIELD_TIME, true);
        true
    }

    #[track_caller]
    pub(crate) fn sleep(time: Duration) -> bool {
        let Some(me) = me() else {
            return false;
        };
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        me.wait(0, Some(time), Location::caller());
        true
    }

    #[track_caller]
    pub(crate) fn workers(count: usize, work: &(impl Fn(usize) + Sync)) -> bool {
        let Some(me) = me() else {
            return false;
        };
        let site = Location::caller();
        std::thread::scope(|scope| {
            let mut others = Vec::new();
            for number in 1..count {
                let other = Me {
                    shared: Arc::clone(&me.shared),
                    number: {
                        let mut state = me.shared.state.lock();
                        state.tasks.push(Task::new());
                        state.tasks.len() - 1
                    },
                };
                others.push(other.number);
                scope.spawn(move || run_worker(&other, || work(number)));
            }
            let mine = catch_unwind(AssertUnwindSafe(|| work(0)));
            if let Err(cause) = mine {
                me.shared.state.lock().fail(|_| message(&*cause));
                resume_unwind(cause);
            }
            for other in others {
                let is_done = || me.shared.state.lock().tasks[other].status == super::Status::Done;
                while !is_done() && me.wait(joined(&me.shared, other), None, site) {}
            }
        });
        let state = me.shared.state.lock();
        me.check(state);
        true
    }

    fn run_worker(me: &Me, work: impl FnOnce()) {
        CURRENT.set(Some(me.clone()));
        me.wait_for_turn(&mut me.shared.state.lock());
        let has_failed = me.shared.state.lock().failure.is_some();
        let result = if has_failed {
            Ok(())
        } else {
            catch_unwind(AssertUnwindSafe(work))
        };
        me.finish(result.err().map(|cause| message(&*cause)));
        CURRENT.set(None);
    }

    pub(crate) fn instant() -> Option<Instant> {
        static BASE: OnceLock<Instant> = OnceLock::new();
        let passed = Duration::from_nanos(now(&me()?));
        Some(*BASE.get_or_init(Instant::now) + passed)
    }

    pub(crate) fn wall() -> Option<(i64, u32)> {
        let passed = Duration::from_nanos(now(&me()?));
        let seconds = i64::try_from(passed.as_secs()).unwrap_or(0);
        Some((1_700_000_000 + seconds, passed.subsec_nanos()))
    }

    pub(crate) fn index() -> Option<usize> {
        me().map(|me| me.number)
    }

    pub(crate) fn count(gauge: Gauge, begins: bool) {
        let Some(me) = me() else {
            return;
        };
        {
            let mut state = me.shared.state.lock();
            let change = |count: u32| {
                if begins {
                    count + 1
                } else {
                    count.saturating_sub(1)
                }
            };
            match gauge {
                Gauge::Seal => state.seals = change(state.seals),
                Gauge::Handle => {
                    let task = &mut state.tasks[me.number];
                    task.handles = change(task.handles);
                    state.report.points += 1;
                    let at = state.report.points;
                    if begins {
                        state.handled.push(Handled {
                            thread: me.number,
                            begun: at,
                            ended: u64::MAX,
                        });
                    } else {
                        let mut mine = state.handled.iter_mut().rev();
                        if let Some(handled) = mine.find(|handled| handled.thread == me.number) {
                            handled.ended = at;
                        }
                    }
                }
            }
        }
        if begins {
            me.point(POINT_TIME, false);
        }
    }

    pub(crate) fn reading() -> Reading {
        let Some(me) = me() else {
            return Reading::default();
        };
        let mut state = me.shared.state.lock();
        state.report.points += 1;
        Reading {
            handles: state.tasks.iter().map(|task| task.handles).sum(),
            seals: state.seals,
            at: state.report.points,
        }
    }
}

#[cfg(test)]
mod tests;
