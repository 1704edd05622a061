//! The io_uring transport: a queue for each possible CPU, answered by a thread that is pinned to that CPU.
//!
//! # Why
//!
//! The kernel puts a request into the queue of the CPU on which it was made, and wakes the thread there. So nothing
//! crosses to another core, and one system call both answers a request and fetches the next.
//!
//! # How
//!
//! A queue has entries, each a buffer of headers and one of data that the kernel fills with a request and from which it
//! takes the answer. Only the queue's own thread submits to its ring, so an answer that another thread has (an fsync,
//! which waits for the disk) is handed to it, with a [`Bell`]. FORGET and INTERRUPT do not come by the ring but by
//! `/dev/fuse`: it is read once in [`LOOK_EVERY`] requests, and when nothing was asked for [`PAUSE`]. After that one
//! thread has its ring tell it when there is something to read, and all of them sleep until they are asked.
//!
//! # Locking
//!
//! A queue belongs to its thread. What others may touch: the answer of an entry, and the bell ([`Rank::Leaf`]).
//!
//! # Crash
//!
//! When the process ends, the kernel takes back all entries and fails their requests.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use sync::atomic::{AtomicBool, Ordering};
use sync::clock::Duration;
use sync::{Arc, Condvar, Mutex, Rank};
use zerocopy::IntoBytes;

mod entry;

use self::entry::{Bell, Entry};
use crate::abi::{self, ring};
use crate::classic::{self, Device};
use crate::messages::Counted;
use crate::reply::Channel;
use crate::request;
use crate::session::{Image, Session};

/// Memory of all entries together, whatever the number of CPUs.
const RING_BYTES: usize = 64 << 20;
/// The most entries of a queue: more requests than this seldom wait for the disk at once.
const DEPTH_MOST: usize = 80;
/// The fewest, for which data are moved in smaller pieces.
const DEPTH_LEAST: usize = 4;
/// Bytes of one read or write at most, if there is memory for that.
const PAYLOAD_MOST: usize = 256 << 10;
/// Bytes below which the kernel takes no buffer of data.
const PAYLOAD_LEAST: usize = abi::READ_BUFFER_MIN;
/// Entries of a ring for other things than requests: the bell and `/dev/fuse`.
const OTHERS: usize = 2;
/// After this number of requests a thread looks for what comes by `/dev/fuse`.
const LOOK_EVERY: u32 = 32;
/// A thread that was not asked for this long looks for the last time, and sleeps then.
const PAUSE: Duration = Duration::from_millis(10);
/// What completions are about, beside entries, which have their numbers.
const BELL: u64 = u64::MAX;
const DEVICE: u64 = u64::MAX - 1;

/// How many queues there are, and the size of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) queues: usize,
    depth: usize,
    /// Bytes of data that an entry takes: what the kernel may write or read at once.
    pub(crate) payload: usize,
}

impl Shape {
    /// The shape for this number of possible CPUs.
    pub(crate) fn new(cpus: usize) -> Shape {
        let queues = cpus.max(1);
        let depth = |payload| RING_BYTES / queues / (payload + entry::HEADERS);
        let mut payload = PAYLOAD_MOST;
        while depth(payload) < DEPTH_LEAST && payload > PAYLOAD_LEAST {
            payload /= 2;
        }
        Shape {
            queues,
            depth: depth(payload).clamp(1, DEPTH_MOST),
            payload,
        }
    }
}

/// How many CPUs this machine may have: the kernel wants a queue for each.
pub(crate) fn possible_cpus() -> io::Result<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    counted(&list).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// How many numbers a list like `0-3,8` has.
fn counted(list: &str) -> Option<usize> {
    let mut count: usize = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A ring that belongs to the calling thread.
fn ring_of(entries: usize) -> io::Result<Ring> {
    let entries = u32::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .build(entries)
}

/// Whether this system gives rings as they are needed here.
///
/// # Errors
/// Why not.
pub(crate) fn is_there() -> io::Result<()> {
    ring_of(1).map(drop)
}

/// What the threads of all queues share: how far they are, and whether one is told of FORGETs.
pub(crate) struct Gate {
    /// [leaf]
    state: Mutex<GateState>,
    changed: Condvar,
    /// Whether a ring tells its thread when `/dev/fuse` can be read. [atomic: AcqRel]
    is_watched: AtomicBool,
}

#[derive(Default)]
struct GateState {
    /// Threads whose queue the kernel has.
    ready: usize,
    failures: Vec<io::Error>,
    /// Whether to serve, or to end.
    order: Option<bool>,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            state: Mutex::new(Rank::Leaf, GateState::default()),
            changed: Condvar::new(),
            is_watched: AtomicBool::new(false),
        }
    }

    /// Waits until all queues are registered.
    ///
    /// # Errors
    /// Why one was not, once each has tried.
    pub(crate) fn await_ready(&self, queues: usize) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.ready + state.failures.len() < queues {
            self.changed.wait(&mut state);
        }
        state.failures.pop().map_or(Ok(()), Err)
    }

    /// Has all threads serve, or end.
    pub(crate) fn order(&self, to_serve: bool) {
        self.state.lock().order.get_or_insert(to_serve);
        self.changed.notify_all();
    }

    fn tell(&self, registered: io::Result<()>) {
        let mut state = self.state.lock();
        match registered {
            Ok(()) => state.ready += 1,
            Err(error) => state.failures.push(error),
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
}

/// What the thread of a queue does: registers it, waits for the gate's order, and answers requests until the connection
/// ends.
///
/// # Errors
/// When the ring fails.
pub(crate) fn work<I: Image>(
    session: &Arc<Session<I>>,
    number: usize,
    device: &Arc<Device>,
    shape: Shape,
    gate: &Gate,
) -> io::Result<()> {
    let mut cpu = CpuSet::new();
    cpu.set(number);
    // Where the host allows the thread another CPU only, or this one is not there, it runs elsewhere.
    let _ = sched_setaffinity(None, &cpu);
    let queue = Queue::register(number, device, shape, session);
    let mut queue = match queue {
        Ok(queue) => queue,
        Err(error) => {
            gate.tell(Err(error));
            return Ok(());
        }
    };
    gate.tell(Ok(()));
    match gate.await_order() {
        true => queue.serve(session, gate),
        false => Ok(()),
    }
}

/// A queue, in the hands of its thread.
struct Queue {
    number: u16,
    /// Before the entries: the kernel gives them back when this is dropped.
    ring: Ring,
    entries: Vec<Entry>,
    bell: Arc<Bell>,
    /// Where the ring puts how often the bell was rung.
    rung: Box<u64>,
    device: Arc<Device>,
    /// Where requests are answered that come by `/dev/fuse`.
    channel: Arc<dyn Channel>,
    /// Room for one of these.
    requested: Vec<u8>,
    /// Requests since the last look at `/dev/fuse`.
    since_look: u32,
    /// Whether the thread looks there before it sleeps.
    looks: bool,
}

impl Queue {
    /// Hands the kernel a queue with all of its entries.
    fn register<I: Image>(
        number: usize,
        device: &Arc<Device>,
        shape: Shape,
        session: &Arc<Session<I>>,
    ) -> io::Result<Queue> {
        let bell = Arc::new(Bell::new()?);
        let messages = session.messages();
        let entries =
            (0..shape.depth).map(|index| Entry::new(index as u64, shape.payload, &bell, messages));
        let counted = Counted::new(Arc::clone(device), Arc::clone(messages));
        let mut queue = Queue {
            number: u16::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?,
            ring: ring_of(shape.depth + OTHERS)?,
            entries: entries.collect(),
            bell,
            rung: Box::new(0),
            device: Arc::clone(device),
            channel: Arc::new(counted),
            requested: vec![0; shape.payload + abi::HEADER_ROOM],
            since_look: 0,
            looks: true,
        };
        for index in 0..queue.entries.len() {
            queue.submit_entry(index, ring::REGISTER)?;
        }
        queue.ring.submit()?;
        // What was taken is not completed before there is a request.
        let refused = queue.ring.completion().next();
        match refused.map(|refused| refused.result()) {
            Some(error) if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            _ => Ok(queue),
        }
    }

    /// Gives the kernel an entry, to be filled with the next request.
    fn submit_entry(&mut self, index: usize, command: u32) -> io::Result<()> {
        let entry = &self.entries[index];
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
            // SAFETY: what the entry points to lives as long as the ring, which is dropped before it, and no reference
            // to it exists while the kernel has the entry.
            let pushed = unsafe { self.ring.submission().push(&submitted) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Has the ring tell when the bell is rung.
    fn watch_bell(&mut self) -> io::Result<()> {
        let into = std::ptr::from_mut(&mut *self.rung).cast();
        let read = opcode::Read::new(Fd(self.bell.as_fd().as_raw_fd()), into, 8);
        self.push(read.build().user_data(BELL).into())
    }

    /// Answers requests until the connection ends.
    fn serve<I: Image>(&mut self, session: &Arc<Session<I>>, gate: &Gate) -> io::Result<()> {
        self.device.read_without_waiting()?;
        self.watch_bell()?;
        let mut events = Vec::with_capacity(self.entries.len() + OTHERS);
        loop {
            self.wait(session, gate)?;
            let completed = self.ring.completion();
            events.extend(completed.map(|event| (event.user_data(), event.result())));
            for (what, result) in events.drain(..) {
                match what {
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
                    // A request that was aborted meanwhile takes its entry with it.
                    _ if result < 0 => {}
                    index => self.answer(session, index as usize)?,
                }
            }
            if self.since_look >= LOOK_EVERY {
                self.look(session)?;
            }
        }
    }

    /// Hands over what is submitted and waits for a completion: first for a moment, after which the thread looks at
    /// `/dev/fuse`, and then for as long as it takes.
    fn wait<I: Image>(&mut self, session: &Arc<Session<I>>, gate: &Gate) -> io::Result<()> {
        let pause = Timespec::new().nsec(PAUSE.subsec_nanos());
        let pause = SubmitArgs::new().timespec(&pause);
        loop {
            let waited = match self.looks {
                true => self.ring.submitter().submit_with_args(1, &pause),
                false => self.ring.submit_and_wait(1),
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

    /// Nothing was asked for a while: looks once more, and sees to it that one thread is told of what comes later.
    fn sleep<I: Image>(&mut self, session: &Arc<Session<I>>, gate: &Gate) -> io::Result<()> {
        self.look(session)?;
        self.looks = false;
        // AcqRel: pairs with the swap in `serve`: the thread that cleared it looks until it comes here again, so that
        // at any time one is told or looks.
        if gate.is_watched.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // One of the low bits.
        let readable = PollFlags::IN.bits() as u32;
        let poll = opcode::PollAdd::new(Fd(self.device.as_fd().as_raw_fd()), readable);
        self.push(poll.build().user_data(DEVICE).into())
    }

    /// Answers what has come by `/dev/fuse`.
    fn look<I: Image>(&mut self, session: &Arc<Session<I>>) -> io::Result<()> {
        self.since_look = 0;
        let worker = usize::from(self.number);
        while let Some(bytes) = self.device.pending_request(&mut self.requested)? {
            let request = request::parse(bytes);
            classic::answer(session, worker, request, &self.channel, &mut []);
        }
        Ok(())
    }

    /// Answers the request that the kernel has put into an entry.
    fn answer<I: Image>(&mut self, session: &Arc<Session<I>>, index: usize) -> io::Result<()> {
        self.since_look += 1;
        self.looks = true;
        let worker = usize::from(self.number);
        let Some(entry) = self.entries.get_mut(index) else {
            return Ok(());
        };
        entry.begin();
        let served = catch_unwind(AssertUnwindSafe(|| {
            let (channel, filled) = entry.filled();
            let request = request::parse_parts(filled.header, filled.operation, filled.input);
            classic::answer(session, worker, request, channel, filled.room);
        }));
        if served.is_err() {
            // The reply was dropped, so the request is answered with an error.
            session.note_panic();
        }
        match self.entries[index].leave() {
            true => self.answered(index),
            // Another thread has the reply.
            false => Ok(()),
        }
    }

    /// Hands over an answer, in exchange for the next request.
    fn answered(&mut self, index: usize) -> io::Result<()> {
        self.entries[index].put_answer();
        self.submit_entry(index, ring::COMMIT_AND_FETCH)
    }
}

/// Whether a completion says that the connection has ended.
fn is_over(result: i32) -> bool {
    const ENDS: [Errno; 4] = [
        Errno::NOTCONN,
        Errno::CONNABORTED,
        Errno::NODEV,
        Errno::CANCELED,
    ];
    result < 0 && ENDS.contains(&Errno::from_raw_os_error(-result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        for (list, count) in [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(counted(list), Some(count));
        }
        for wrong in ["", "a", "3-1", "0-", "0-18446744073709551615"] {
            assert_eq!(counted(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn entries_take_no_more_memory_however_many_cpus_there_are() {
        for cpus in [1, 2, 3, 8, 64, 100, 256, 1024, 4096] {
            let shape = Shape::new(cpus);
            let bytes = shape.queues * shape.depth * (shape.payload + entry::HEADERS);
            assert_eq!(shape.queues, cpus);
            assert!(
                bytes <= RING_BYTES || shape.payload == PAYLOAD_LEAST,
                "{shape:?}"
            );
            assert!(shape.depth >= DEPTH_LEAST || cpus > 1024, "{shape:?}");
        }
        assert_eq!(Shape::new(2).depth, DEPTH_MOST);
    }

    #[test]
    fn only_an_end_of_the_connection_ends_a_queue() {
        let ends = [Errno::NOTCONN, Errno::CONNABORTED].map(|errno| -errno.raw_os_error());
        assert!(ends.into_iter().all(is_over));
        assert!(!is_over(0) && !is_over(-Errno::NOENT.raw_os_error()));
    }
}
