//! Queues without FUSE: on a device that takes every entry and completes it at once (`/dev/null`), on one that takes
//! none (an eventfd), and on a socket in the place of `/dev/fuse`.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::FromBytes;

use super::*;
use crate::abi::opcode;
use crate::null::{Null, NullTree};
use crate::waiters::Waiters;

const FILE_BYTES: u64 = 10_000;
const SIZES: QueueSizes = QueueSizes {
    queues: 1,
    depth: 4,
    payload: 64 << 10,
};

fn has_rings() -> bool {
    let found = is_there();
    if let Err(error) = &found {
        testkit::skip(&format!("needs io_uring: {error}"));
    }
    found.is_ok()
}

fn queue(device: impl Into<OwnedFd>) -> Queue {
    let device = Arc::new(FuseDevice::new(device.into()));
    Queue::new(0, &device, SIZES, &Arc::default()).unwrap()
}

fn null_device() -> std::fs::File {
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null");
    device.unwrap()
}

/// A session of a directory `d0` with a file `f0`.
fn session() -> Arc<Session> {
    let tree = NullTree {
        directories: 1,
        files: 1,
        file_bytes: FILE_BYTES,
        stream_bytes: None,
    };
    let waiters = Waiters::for_queues(SIZES.entries());
    let patience = Duration::from_secs(1);
    let null = Null::planted(tree).unwrap();
    Arc::new(Session::new(Box::new(null), 1, waiters, patience, None))
}

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
fn queues_take_no_more_memory_however_many_cpus_there_are() {
    for cpus in [1, 2, 3, 8, 64, 100, 256, 500, 700] {
        let sizes = QueueSizes::new(cpus).unwrap();
        let device = Arc::new(FuseDevice::new(eventfd(0, EventfdFlags::empty()).unwrap()));
        if has_rings() {
            let queue = Queue::new(0, &device, sizes, &Arc::default()).unwrap();
            let buffers = queue.requested.len() + queue.answered.len();
            let entries = queue.entries.iter().map(Entry::bytes).sum::<usize>();
            assert!(cpus * (buffers + entries) <= RING_BYTES, "{sizes:?}");
        }
        assert_eq!(sizes.queues, cpus);
        assert!(sizes.depth >= DEPTH_LEAST, "{sizes:?}");
    }
    assert_eq!(QueueSizes::new(2).unwrap().depth, DEPTH_MOST);
    // No queue would have room for several requests that wait.
    for cpus in [1024, 4096, usize::MAX] {
        assert_eq!(QueueSizes::new(cpus), None);
    }
}

#[test]
fn only_an_end_of_the_connection_ends_a_queue() {
    let ends = [Errno::NOTCONN, Errno::CONNABORTED].map(|errno| -errno.raw_os_error());
    assert!(ends.into_iter().all(is_over));
    assert!(!is_over(0) && !is_over(-Errno::NOENT.raw_os_error()));
}

#[test]
fn a_cpu_whose_number_is_too_high_to_run_on_is_left_alone() {
    std::thread::spawn(|| [1 << 10, usize::MAX].into_iter().for_each(pin))
        .join()
        .unwrap();
}

#[test]
fn an_entry_that_the_kernel_returns_is_submitted_again_but_not_for_ever() {
    let again = |errno: Errno, refusals| {
        after_refusal(-errno.raw_os_error(), refusals, ring::COMMIT_AND_FETCH)
    };
    assert_eq!(
        again(Errno::NOMEM, 1),
        AfterRefusal::Submit(ring::COMMIT_AND_FETCH)
    );
    assert_eq!(again(Errno::NOENT, 1), AfterRefusal::Submit(ring::REGISTER));
    assert_eq!(again(Errno::NOENT, REFUSALS_MOST + 1), AfterRefusal::GiveUp);
}

#[test]
fn requests_that_come_while_a_queue_is_registered_are_kept() {
    if !has_rings() {
        return;
    }
    let Ok(queue) = queue(null_device()).register() else {
        return testkit::skip("needs a /dev/null that takes commands (Linux 6.2)");
    };
    let mut early = queue.early;
    early.sort_unstable();
    assert_eq!(early, [(0, 0), (1, 0), (2, 0), (3, 0)]);
}

#[test]
fn a_queue_of_which_the_kernel_took_nothing_is_refused_with_its_error() {
    if !has_rings() {
        return;
    }
    let refused = queue(eventfd(0, EventfdFlags::empty()).unwrap()).register();
    let refused = refused.err().unwrap();
    assert_eq!(Errno::from_io_error(&refused.error), Some(Errno::OPNOTSUPP));
    assert!(!refused.is_final);
    // One of several: the kernel uses none of them.
    let gate = QueueGate::new();
    gate.tell(Err(RefusedQueue {
        is_final: true,
        ..refused
    }));
    gate.tell(Err(io::Error::from(io::ErrorKind::OutOfMemory).into()));
    assert!(!gate.await_ready(2).err().unwrap().is_final);
}

#[test]
fn a_queue_that_fails_ends_the_others() {
    if !has_rings() {
        return;
    }
    let (gate, session) = (QueueGate::new(), session());
    let failing = |device: OwnedFd| {
        let mut queue = queue(device);
        gate.tell(Ok(Arc::clone(&queue.bell)));
        let _end = EndsAll(&gate);
        // None of its entries is taken.
        for index in 0..SIZES.depth {
            queue.submit_entry(index, ring::REGISTER).unwrap();
        }
        queue.serve(&session, &gate)
    };
    std::thread::scope(|scope| {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let other = scope.spawn(|| {
            let mut queue = queue(ours);
            gate.tell(Ok(Arc::clone(&queue.bell)));
            queue.serve(&session, &gate)
        });
        gate.await_ready(1).ok().unwrap();
        let ended = failing(eventfd(0, EventfdFlags::empty()).unwrap());
        let error = Errno::from_io_error(&ended.unwrap_err());
        assert_eq!(error, Some(Errno::OPNOTSUPP));
        assert!(other.join().unwrap().is_ok());
    });
}

#[test]
fn requests_from_the_device_are_answered_in_full_by_a_queue() {
    if !has_rings() {
        return;
    }
    let flags = SocketFlags::empty();
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, kernel) = pair.unwrap();
    let mut queue = queue(ours);
    queue.device.set_read_waits(false).unwrap();
    let session = session();
    let mut ask = |opcode, node, arguments: &[u8]| {
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + arguments.len()) as u32,
            opcode,
            unique: 7,
            node,
            ..abi::InHeader::default()
        };
        let request = [header.as_bytes(), arguments].concat();
        rustix::io::write(&kernel, &request).unwrap();
        queue.look(&session).unwrap();
        let mut answer = vec![0; SIZES.payload];
        let len = rustix::io::read(&kernel, &mut answer).unwrap();
        let (header, bytes) = abi::OutHeader::read_from_prefix(&answer[..len]).unwrap();
        assert_eq!((header.unique, header.error), (7, 0));
        bytes.to_vec()
    };
    let node = |entry: &[u8]| u64::from_ne_bytes(*entry.first_chunk().unwrap());
    let directory = node(&ask(opcode::LOOKUP, abi::ROOT, b"d0\0"));
    let file = node(&ask(opcode::LOOKUP, directory, b"f0\0"));
    let read = abi::ReadIn {
        size: 1 << 16,
        ..abi::ReadIn::default()
    };
    assert_eq!(
        ask(opcode::READ, file, read.as_bytes()).len() as u64,
        FILE_BYTES
    );
    let listed = ask(opcode::READDIR, directory, read.as_bytes());
    assert!(listed.windows(2).any(|name| name == b"f0"));
}
