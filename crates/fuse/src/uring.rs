//! The io_uring transport: a queue for each possible CPU, answered by a thread that is pinned to that CPU.
//!
//! # Why
//!
//! The kernel puts a request into the queue of the CPU on which the request was made, and wakes the thread there. So a
//! request stays on its core, and one system call both answers a request and fetches the next.
//!
//! # How
//!
//! A queue has entries. Each entry has a buffer for headers and one for data: the kernel fills them with a request and
//! takes the answer from them. Only the queue's own thread submits to its ring, so an answer from another thread (an
//! fsync, which waits for the disk) is handed to that thread, with a [`Bell`]. FORGET and INTERRUPT do not come over
//! the ring but over `/dev/fuse`, which a queue's thread reads after every [`LOOK_EVERY`] requests, and after [`PAUSE`]
//! without one. Then the threads sleep, and the ring of one of them polls `/dev/fuse`.
//!
//! # Locking
//!
//! A queue belongs to its thread. Other threads touch only an entry's answer and the bell ([`Rank::Leaf`]).
//!
//! # Crash
//!
//! When the process ends, the kernel takes back all entries and fails their requests.
//!
//! # Requests that wait
//!
//! An entry is its request's until the answer. So a queue whose requests all wait for the disk answers nothing until
//! one of them returns: that takes as many fsyncs from one CPU as the queue has entries ([`DEPTH_MOST`], down to
//! [`DEPTH_LEAST`] on machines with hundreds of CPUs). The kernel lets no server return a request unanswered, so none
//! can be kept free.
//!
//! # Failures
//!
//! If the thread of a queue ends, no thread answers the requests of its CPU. So the end of one, whatever its cause,
//! ends all of them, and the connection. An entry that the kernel returns with an error is submitted again, up to
//! [`REFUSALS_MOST`] times in a row.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use sync::atomic::{AtomicBool, Ordering};
use sync::clock::Duration;
use sync::{Arc, Condvar, Mutex, Rank, thread};
use zerocopy::IntoBytes;

mod entry;
#[cfg(test)]
mod tests;

use self::entry::{Bell, Entry};
use crate::abi::{self, ring};
use crate::classic::{self, FuseDevice};
use crate::counted_channel::CountedChannel;
use crate::messages::Messages;
use crate::reply::Channel;
use crate::request;
use crate::session::Session;

/// Memory of all queues together, whatever the number of CPUs.
const RING_BYTES: usize = 64 << 20;
/// The most entries of a queue. More requests than this seldom wait for the disk at once.
const DEPTH_MOST: usize = 80;
/// The fewest entries of a queue; if memory is short, the data of an entry become smaller first.
const DEPTH_LEAST: usize = 4;
/// The most bytes of one read or write; fewer on machines with many CPUs.
const PAYLOAD_MOST: usize = 256 << 10;
/// The smallest data buffer that the kernel takes.
const PAYLOAD_LEAST: usize = abi::READ_BUFFER_MIN;
/// Entries of a ring that are not for requests: one reads the bell, one polls `/dev/fuse`.
const OTHERS: usize = 2;
/// After this number of requests a thread reads `/dev/fuse`.
const LOOK_EVERY: u32 = 32;
/// After this time without a request a thread reads `/dev/fuse` once more, then sleeps.
const PAUSE: Duration = Duration::from_millis(10);
/// How often in a row an entry is submitted again that the kernel returned with an error. Then it is given up.
const REFUSALS_MOST: u32 = 16;
/// The pause before an entry with an answer is submitted again, as the kernel may have been short of memory.
const REFUSAL_PAUSE: Duration = Duration::from_millis(1);
/// The user data of completions: these two, or the number of an entry.
const BELL: u64 = u64::MAX;
const DEVICE: u64 = u64::MAX - 1;

/// The number of queues, and the size of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueueSizes {
    pub(crate) queues: usize,
    depth: usize,
    /// Bytes of an entry's data buffer: the most that one read or write moves.
    pub(crate) payload: usize,
}

impl QueueSizes {
    /// The queues of a machine with this number of possible CPUs; `None` if [`RING_BYTES`] are too little for them.
    pub(crate) fn new(cpus: usize) -> Option<QueueSizes> {
        let queues = cpus.max(1);
        let depth = |payload| {
            let entries = (RING_BYTES / queues).saturating_sub(device_buffers(payload));
            entries / entry::bytes(payload)
        };
        let mut payload = PAYLOAD_MOST;
        while depth(payload) < DEPTH_LEAST && payload > PAYLOAD_LEAST {
            payload /= 2;
        }
        let depth = depth(payload).min(DEPTH_MOST);
        (depth >= DEPTH_LEAST).then_some(QueueSizes {
            queues,
            depth,
            payload,
        })
    }

    /// How many requests all queues hold at most.
    pub(crate) fn entries(self) -> usize {
        self.queues * self.depth
    }
}

/// Bytes of a queue's buffers for one request from `/dev/fuse` and its answer.
fn device_buffers(payload: usize) -> usize {
    request_room(payload) + payload
}

/// Bytes of the first of these: the kernel fails a read into fewer.
fn request_room(payload: usize) -> usize {
    payload + abi::HEADER_ROOM
}

/// The number of CPUs that this machine may have: the kernel requires a queue for each.
pub(crate) fn possible_cpus() -> io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    counted(&list).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The number of CPUs in a list such as `0-3,8`.
fn counted(list: &str) -> Option<usize> {
    let mut count: usize = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Why a ring could not be made, and what to do.
const LOCKED_MEMORY: &str = "no memory for a ring: raise the limit of locked memory (ulimit -l)";

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A ring that belongs to the calling thread.
fn ring_of(entries: usize) -> io::Result<Ring> {
    let entries = u32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .build(entries);
    // The kernel counts a ring as locked memory of the user, unless the process has CAP_IPC_LOCK.
    ring.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NOMEM) => io::Error::new(io::ErrorKind::OutOfMemory, LOCKED_MEMORY),
        _ => error,
    })
}

/// Checks that this system supports rings as they are needed here.
///
/// # Errors
/// The reason why it does not.
pub(crate) fn is_there() -> io::Result<()> {
    ring_of(1).map(drop)
}

/// What the threads of all queues share: how many are registered, the order to serve, and whether a ring polls
/// `/dev/fuse`.
pub(crate) struct QueueGate {
    /// [leaf]
    state: Mutex<GateState>,
    changed: Condvar,
    /// Whether a ring polls `/dev/fuse`. [atomic: AcqRel]
    is_watched: AtomicBool,
    /// Whether a queue has ended; then all must end. [atomic: Release]
    is_over: AtomicBool,
}

#[derive(Default)]
struct GateState {
    /// The bells of the queues that are registered.
    ready: Vec<Arc<Bell>>,
    failures: Vec<RefusedQueue>,
    /// Once given: true to serve, false to end.
    order: Option<bool>,
}

/// Why a queue could not be registered.
pub(crate) struct RefusedQueue {
    pub(crate) error: io::Error,
    /// Whether `/dev/fuse` can't be used instead: once each queue has an entry that the kernel took, the kernel sends
    /// requests to the queues only.
    pub(crate) is_final: bool,
}

impl From<io::Error> for RefusedQueue {
    /// The failure of a queue before the kernel took one of its entries.
    fn from(error: io::Error) -> RefusedQueue {
        RefusedQueue {
            error,
            is_final: false,
        }
    }
}

impl QueueGate {
    pub(crate) fn new() -> QueueGate {
        QueueGate {
            state: Mutex::new(Rank::Leaf, GateState::default()),
            changed: Condvar::new(),
            is_watched: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }
    }

    /// Waits until each queue is registered or has failed.
    ///
    /// # Errors
    /// The error of a queue that was not registered.
    pub(crate) fn await_ready(&self, queues: usize) -> Result<(), RefusedQueue> {
        let mut state = self.state.lock();
        while state.ready.len() + state.failures.len() < queues {
            self.changed.wait(&mut state);
        }
        // While one queue has no entry, the kernel uses none of them.
        let is_final = state.failures.iter().all(|refused| refused.is_final);
        match state.failures.pop() {
            Some(RefusedQueue { error, .. }) => Err(RefusedQueue { error, is_final }),
            None => Ok(()),
        }
    }

    /// Lets all threads serve, or end.
    pub(crate) fn order(&self, to_serve: bool) {
        self.state.lock().order.get_or_insert(to_serve);
        self.changed.notify_all();
    }

    fn tell(&self, registered: Result<Arc<Bell>, RefusedQueue>) {
        let mut state = self.state.lock();
        match registered {
            Ok(bell) => state.ready.push(bell),
            Err(refused) => state.failures.push(refused),
        }
        drop(state);
        self.changed.notify_all();
    }

    fn await_order(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            match state.order {
                Some(to_serve) => return to_serve,
                None => self.changed.wait(&mut state),
            }
        }
    }

    fn is_over(&self) -> bool {
        // Acquire: pairs with the store in `end_all`, which comes before its bell is rung.
        self.is_over.load(Ordering::Acquire)
    }

    /// Makes the threads of all queues end.
    fn end_all(&self) {
        // Release: pairs with the load in `is_over`.
        self.is_over.store(true, Ordering::Release);
        for bell in &self.state.lock().ready {
            bell.wake();
        }
    }
}

/// Makes the threads of all queues end when it is dropped, which the thread of each does at its end.
struct EndsAll<'a>(&'a QueueGate);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        self.0.end_all();
    }
}

/// Pins the calling thread to a CPU. If the CPU is offline or the process may not use it, the thread runs on another
/// one.
fn pin(number: usize) {
    if number < CpuSet::MAX_CPU {
        let mut cpu = CpuSet::new();
        cpu.set(number);
        let _ = sched_setaffinity(None, &cpu);
    }
}

/// The thread of a queue: registers it, waits for the gate's order, and answers requests until the connection ends.
///
/// # Errors
/// When the ring fails.
pub(crate) fn work(
    session: &Arc<Session>,
    number: usize,
    device: &Arc<FuseDevice>,
    sizes: QueueSizes,
    gate: &QueueGate,
) -> io::Result<()> {
    pin(number);
    let queue = Queue::new(number, device, sizes, session.messages());
    let queue = queue.map_err(RefusedQueue::from).and_then(Queue::register);
    let mut queue = match queue {
        Ok(queue) => queue,
        Err(refused) => {
            gate.tell(Err(refused));
            return Ok(());
        }
    };
    gate.tell(Ok(Arc::clone(&queue.bell)));
    if !gate.await_order() {
        return Ok(());
    }
    let _end = EndsAll(gate);
    queue.serve(session, gate)
}

/// A queue, which only its thread uses.
struct Queue {
    number: u16,
    /// Declared before the entries, so that it is dropped first: the kernel then returns them.
    ring: Ring,
    entries: Vec<Entry>,
    bell: Arc<Bell>,
    /// Receives the count of the bell's eventfd.
    rung: Box<u64>,
    device: Arc<FuseDevice>,
    /// The channel for answers to requests from `/dev/fuse`.
    channel: Arc<dyn Channel>,
    /// The buffers for one of these requests, and for the data of its answer.
    requested: Vec<u8>,
    answered: Vec<u8>,
    /// User data and results of completions that came while the queue was registered.
    early: Vec<(u64, i32)>,
    /// How many entries were given up.
    lost: usize,
    /// Requests since `/dev/fuse` was last read.
    since_look: u32,
    /// Whether the thread must read `/dev/fuse` before it sleeps.
    looks: bool,
}

impl Queue {
    /// A queue that is not registered yet.
    fn new(
        number: usize,
        device: &Arc<FuseDevice>,
        sizes: QueueSizes,
        messages: &Arc<Messages>,
    ) -> io::Result<Queue> {
        let bell = Arc::new(Bell::new()?);
        let entries =
            (0..sizes.depth).map(|index| Entry::new(index as u64, sizes.payload, &bell, messages));
        let counted = CountedChannel::new(Arc::clone(device), Arc::clone(messages));
        Ok(Queue {
            number: u16::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?,
            ring: ring_of(sizes.depth + OTHERS)?,
            entries: entries.collect(),
            bell,
            rung: Box::new(0),
            device: Arc::clone(device),
            channel: Arc::new(counted),
            requested: vec![0; request_room(sizes.payload)],
            answered: vec![0; sizes.payload],
            early: Vec::new(),
            lost: 0,
            since_look: 0,
            looks: true,
        })
    }

    /// Registers the queue with all of its entries.
    fn register(mut self) -> Result<Queue, RefusedQueue> {
        for index in 0..self.entries.len() {
            self.submit_entry(index, ring::REGISTER)?;
        }
        self.ring.submit()?;
        // An entry that the kernel took is completed when there is a request, which may be now.
        let completed = self.ring.completion();
        let completed = completed.map(|event| (event.user_data(), event.result()));
        self.early = completed.collect();
        let refused = self.early.iter().filter(|(_, result)| *result < 0);
        let Some(error) = refused.clone().map(|(_, result)| -result).next() else {
            return Ok(self);
        };
        Err(RefusedQueue {
            error: io::Error::from_raw_os_error(error),
            is_final: refused.count() < self.entries.len(),
        })
    }

    /// Submits an entry, which the kernel fills with the next request.
    fn submit_entry(&mut self, index: usize, command: u32) -> io::Result<()> {
        let entry = &mut self.entries[index];
        entry.command = command;
        let request = abi::RingCommand {
            commit: entry.commit(),
            queue: self.number,
            ..abi::RingCommand::default()
        };
        let mut bytes = [0; 80];
        bytes[..size_of::<abi::RingCommand>()].copy_from_slice(request.as_bytes());
        let submitted = opcode::UringCmd80::new(Fd(self.device.as_fd().as_raw_fd()), command)
            .cmd(bytes)
            .addr(Some(entry.segments()))
            .build()
            .user_data(index as u64);
        self.push(entry::with_segments(submitted))
    }

    fn push(&mut self, submitted: squeue::Entry128) -> io::Result<()> {
        loop {
            #[allow(unsafe_code)]
            // SAFETY: the buffers that the entry points to outlive the ring, which is dropped before them, and no
            // reference to them exists while the kernel has the entry.
            let pushed = unsafe { self.ring.submission().push(&submitted) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Submits a read of the bell, which completes when the bell is rung.
    fn watch_bell(&mut self) -> io::Result<()> {
        let into = std::ptr::from_mut(&mut *self.rung).cast();
        let read = opcode::Read::new(Fd(self.bell.as_fd().as_raw_fd()), into, 8);
        self.push(read.build().user_data(BELL).into())
    }

    /// Answers requests until the connection ends.
    fn serve(&mut self, session: &Arc<Session>, gate: &QueueGate) -> io::Result<()> {
        self.device.set_read_waits(false)?;
        self.watch_bell()?;
        let mut events = std::mem::take(&mut self.early);
        events.reserve(self.entries.len() + OTHERS);
        loop {
            for (what, result) in events.drain(..) {
                match what {
                    BELL if gate.is_over() => return Ok(()),
                    BELL => {
                        for index in self.bell.take() {
                            self.answered(index)?;
                        }
                        self.watch_bell()?;
                    }
                    DEVICE => {
                        // AcqRel: pairs with the swap in `sleep`.
                        gate.is_watched.swap(false, Ordering::AcqRel);
                        self.looks = true;
                        self.look(session)?;
                    }
                    _ if is_over(result) => return Ok(()),
                    index if result < 0 => self.refused(index as usize, result)?,
                    index => self.answer(session, index as usize)?,
                }
            }
            if self.since_look >= LOOK_EVERY {
                self.look(session)?;
            }
            self.wait(session, gate)?;
            let completed = self.ring.completion();
            events.extend(completed.map(|event| (event.user_data(), event.result())));
        }
    }

    /// Submits an entry again that the kernel returned with an error, or gives it up.
    ///
    /// # Errors
    /// When the last entry of the queue is given up.
    fn refused(&mut self, index: usize, result: i32) -> io::Result<()> {
        let Some(entry) = self.entries.get_mut(index) else {
            return Ok(());
        };
        entry.refusals += 1;
        let (refusals, command) = (entry.refusals, entry.command);
        match after_refusal(result, refusals, command) {
            AfterRefusal::GiveUp => {
                self.lost += 1;
                if self.lost < self.entries.len() {
                    return Ok(());
                }
                Err(io::Error::from_raw_os_error(-result))
            }
            AfterRefusal::Submit(command) => {
                if command != ring::REGISTER {
                    thread::sleep(REFUSAL_PAUSE);
                }
                self.submit_entry(index, command)
            }
        }
    }

    /// Submits what was pushed, and waits for a completion: up to [`PAUSE`], after which the thread reads `/dev/fuse`,
    /// and then without a limit.
    fn wait(&mut self, session: &Arc<Session>, gate: &QueueGate) -> io::Result<()> {
        let pause = Timespec::new().nsec(PAUSE.subsec_nanos());
        let pause = SubmitArgs::new().timespec(&pause);
        loop {
            let waited = if self.looks {
                self.ring.submitter().submit_with_args(1, &pause)
            } else {
                self.ring.submit_and_wait(1)
            };
            let error = match waited {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match Errno::from_io_error(&error) {
                Some(Errno::TIME) => self.sleep(session, gate)?,
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                _ => return Err(error),
            }
        }
    }

    /// Prepares for a long wait: reads `/dev/fuse` once more, and lets this ring poll it if no other does.
    fn sleep(&mut self, session: &Arc<Session>, gate: &QueueGate) -> io::Result<()> {
        self.look(session)?;
        self.looks = false;
        // AcqRel: pairs with the swap in `serve`. The thread that cleared the flag reads `/dev/fuse` until it is here
        // again, so at any time a ring polls it or a thread reads it.
        if gate.is_watched.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // `IN` is one of the low bits.
        let readable = PollFlags::IN.bits() as u32;
        let poll = opcode::PollAdd::new(Fd(self.device.as_fd().as_raw_fd()), readable);
        self.push(poll.build().user_data(DEVICE).into())
    }

    /// Answers the requests that have come over `/dev/fuse`.
    fn look(&mut self, session: &Arc<Session>) -> io::Result<()> {
        self.since_look = 0;
        let worker = usize::from(self.number);
        while let Some(bytes) = self.device.pending_request(&mut self.requested)? {
            let request = request::parse(bytes);
            // Not only FORGET and INTERRUPT: until all queues were registered, every request came this way.
            classic::answer(session, worker, request, &self.channel, &mut self.answered);
        }
        Ok(())
    }

    /// Answers the request that the kernel has put into an entry.
    fn answer(&mut self, session: &Arc<Session>, index: usize) -> io::Result<()> {
        self.since_look += 1;
        self.looks = true;
        let worker = usize::from(self.number);
        let Some(entry) = self.entries.get_mut(index) else {
            return Ok(());
        };
        entry.begin();
        let (channel, filled) = entry.filled();
        let request = request::parse_parts(filled.header, filled.operation, filled.input);
        classic::answer(session, worker, request, channel, filled.room);
        if self.entries[index].leave() {
            self.answered(index)
        } else {
            // Another thread has the reply, and rings the bell when it has answered.
            Ok(())
        }
    }

    /// Submits an entry with its answer; it comes back with the next request.
    fn answered(&mut self, index: usize) -> io::Result<()> {
        self.entries[index].put_answer();
        self.submit_entry(index, ring::COMMIT_AND_FETCH)
    }
}

/// Whether a completion means that the connection has ended.
fn is_over(result: i32) -> bool {
    const ENDS: [Errno; 4] = [
        Errno::NOTCONN,
        Errno::CONNABORTED,
        Errno::NODEV,
        Errno::CANCELED,
    ];
    result < 0 && ENDS.contains(&Errno::from_raw_os_error(-result))
}

/// What is done with an entry that the kernel returned with an error.
#[derive(PartialEq, Eq, Debug)]
enum AfterRefusal {
    /// It is submitted with this command.
    Submit(u32),
    /// It is not used any more.
    GiveUp,
}

/// Decides what is done with an entry that was submitted with `command` and returned with the error `result`, for the
/// `refusals`th time in a row.
fn after_refusal(result: i32, refusals: u32, command: u32) -> AfterRefusal {
    const TEMPORARY: [Errno; 4] = [Errno::AGAIN, Errno::NOMEM, Errno::INTR, Errno::BUSY];
    if refusals > REFUSALS_MOST {
        AfterRefusal::GiveUp
    } else if TEMPORARY.contains(&Errno::from_raw_os_error(-result)) {
        // An answer is still in the buffers.
        AfterRefusal::Submit(command)
    } else {
        // The kernel does not know the request any more, so there is nothing to answer.
        AfterRefusal::Submit(ring::REGISTER)
    }
}
