//! One entry of a queue: the buffers that the kernel fills with a request and from which it takes the answer, and the
//! answer while it is on its way from another thread.
//!
//! # States
//!
//! | state | owner of the buffers | may give the answer |
//! |---|---|---|
//! | submitted | the kernel | no thread |
//! | `SERVING` | the queue's thread, which serves the request | any thread |
//! | `LEFT`: that thread serves other requests | no thread | any thread, which then rings the bell |
//! | `ANSWERED` | the queue's thread, once it sees this state | no thread: the answer was given |
//!
//! An answer is first stored beside the buffers, because the request in them may still be in use. Only data that were
//! read into the data buffer stay there.
//!
//! What a crash leaves: nothing of an entry is on disk.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use io_uring::squeue::Entry128;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sync::atomic::{AtomicU8, Ordering};
use sync::{Arc, Mutex, Rank};
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::{self, ring};
use crate::counted_channel::CountedChannel;
use crate::messages::Messages;
use crate::reply::Channel;

/// Bytes of the header buffer: a page.
pub(super) const HEADERS: usize = 4096;
/// Bytes of memory of an entry with a data buffer of `payload` bytes: its two buffers, and up to a page to align them.
pub(super) const fn bytes(payload: usize) -> usize {
    HEADERS + HEADERS + payload
}

/// The states of an entry that is not submitted; see the module.
const SERVING: u8 = 0;
const LEFT: u8 = 1;
const ANSWERED: u8 = 2;

/// The buffers of an entry while its request is served.
pub(super) struct Filled<'a> {
    pub(super) header: &'a [u8],
    pub(super) operation: &'a [u8],
    pub(super) input: &'a [u8],
    /// Where a read may put its data.
    pub(super) room: &'a mut [u8],
}

/// A buffer, as the kernel describes it (`struct iovec`).
#[repr(C)]
struct Segment {
    address: u64,
    len: u64,
}

/// An entry; see the module.
pub(super) struct Entry {
    buffers: EntryBuffers,
    /// Both buffers, for the kernel.
    segments: Box<[Segment; ring::SEGMENTS as usize]>,
    /// The kernel's number of the request.
    commit: u64,
    /// The last command that submitted the entry, and how often the kernel has returned it with an error since its last
    /// request.
    pub(super) command: u32,
    pub(super) refusals: u32,
    slot: Arc<Slot>,
    /// The slot as the channel that replies use.
    channel: Arc<dyn Channel>,
}

/// The header buffer and the data buffer, from a page boundary on.
struct EntryBuffers {
    memory: Vec<u8>,
    start: usize,
}

impl EntryBuffers {
    fn new(payload: usize) -> EntryBuffers {
        let mut memory = vec![0; bytes(payload)];
        let start = memory.as_ptr().align_offset(HEADERS);
        memory.truncate(start + HEADERS + payload);
        EntryBuffers { memory, start }
    }

    fn address(&self) -> usize {
        self.memory.as_ptr().addr() + self.start
    }

    /// The headers and the data.
    fn split(&mut self) -> (&mut [u8], &mut [u8]) {
        self.memory[self.start..].split_at_mut(HEADERS)
    }
}

impl Entry {
    pub(super) fn new(
        index: u64,
        payload: usize,
        bell: &Arc<Bell>,
        messages: &Arc<Messages>,
    ) -> Entry {
        let buffers = EntryBuffers::new(payload);
        let address = buffers.address();
        let data = address + HEADERS;
        let slot = Arc::new(Slot {
            index,
            data,
            room: payload,
            state: AtomicU8::new(SERVING),
            staged: Mutex::new(Rank::Leaf, Staged::default()),
            bell: Arc::clone(bell),
        });
        let counted = CountedChannel::new(Arc::clone(&slot), Arc::clone(messages));
        Entry {
            buffers,
            segments: Box::new([
                Segment {
                    address: address as u64,
                    len: ring::HEADER_BYTES as u64,
                },
                Segment {
                    address: data as u64,
                    len: payload as u64,
                },
            ]),
            commit: 0,
            command: ring::REGISTER,
            refusals: 0,
            slot,
            channel: Arc::new(counted),
        }
    }

    /// Bytes of memory that its buffers take, the room for aligning them included.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.buffers.memory.capacity()
    }

    pub(super) fn commit(&self) -> u64 {
        self.commit
    }

    /// The address of `segments`, for the kernel.
    pub(super) fn segments(&self) -> u64 {
        self.segments.as_ptr().addr() as u64
    }

    /// Begins to serve the request that the kernel put into the buffers.
    pub(super) fn begin(&mut self) {
        let (headers, _) = self.buffers.split();
        let found = abi::RingEntry::read_from_bytes(&headers[ring::ENTRY]);
        // `ENTRY` has the size of the structure, so this does not fail.
        self.commit = found.map_or(0, |found| found.commit);
        self.refusals = 0;
        // Relaxed: no other thread has this entry now.
        self.slot.state.store(SERVING, Ordering::Relaxed);
    }

    /// The channel for the answer, and the request. A request that brings data leaves no room for a read.
    pub(super) fn filled(&mut self) -> (&Arc<dyn Channel>, Filled<'_>) {
        let (headers, data) = self.buffers.split();
        let headers = &*headers;
        let size = abi::RingEntry::read_from_bytes(&headers[ring::ENTRY])
            .map_or(0, |entry| entry.payload_size as usize)
            .min(data.len());
        let header = &headers[..size_of::<abi::InHeader>()];
        let len = abi::InHeader::read_from_bytes(header).map_or(0, |header| header.len as usize);
        // The operation's structure has the bytes that are neither header nor data.
        let own = len
            .saturating_sub(header.len() + size)
            .min(ring::OPERATION.len());
        let (input, room) = match size {
            0 => (&[][..], data),
            size => (&data[..size], &mut [][..]),
        };
        let filled = Filled {
            header,
            operation: &headers[ring::OPERATION][..own],
            input,
            room,
        };
        (&self.channel, filled)
    }

    /// Lets the queue's thread go on; returns whether the request is answered. If not, its answer will ring the bell.
    pub(super) fn leave(&self) -> bool {
        // AcqRel: pairs with the swap in `Slot::answer`. If that one comes first, we see its answer. If ours does, the
        // other thread sees `LEFT` and rings.
        self.slot.state.swap(LEFT, Ordering::AcqRel) == ANSWERED
    }

    /// Copies the answer into the buffers, from which the kernel takes it.
    pub(super) fn put_answer(&mut self) {
        let mut staged = self.slot.staged.lock();
        let (headers, data) = self.buffers.split();
        let size = match staged.in_place {
            Some(len) => len,
            None => {
                data[..staged.bytes.len()].copy_from_slice(&staged.bytes);
                staged.bytes.len()
            }
        };
        staged.bytes.clear();
        // A buffer has at most 256 KiB.
        let payload_size = size as u32;
        let header = abi::OutHeader {
            len: payload_size + size_of::<abi::OutHeader>() as u32,
            error: staged.error,
            unique: staged.unique,
        };
        headers[..size_of::<abi::OutHeader>()].copy_from_slice(header.as_bytes());
        let entry = abi::RingEntry {
            commit: self.commit,
            payload_size,
            ..abi::RingEntry::default()
        };
        headers[ring::ENTRY].copy_from_slice(entry.as_bytes());
    }
}

/// The part of an entry that other threads share: where its answer is stored.
struct Slot {
    index: u64,
    /// Address and length of the data buffer. [const]
    data: usize,
    room: usize,
    /// [atomic: AcqRel]
    state: AtomicU8,
    /// [leaf]
    staged: Mutex<Staged>,
    bell: Arc<Bell>,
}

/// An answer that is not in the buffers yet.
#[derive(Default)]
struct Staged {
    unique: u64,
    error: i32,
    /// How many bytes of data are already in the data buffer, if the answer is there and not in `bytes`.
    in_place: Option<usize>,
    bytes: Vec<u8>,
}

impl Channel for Slot {
    fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut staged = self.staged.lock();
        staged.unique = unique;
        staged.error = if len <= self.room {
            error
        } else {
            -Errno::IO.raw_os_error()
        };
        staged.in_place = match parts {
            [part] if part.as_ptr().addr() == self.data => Some(len),
            _ => None,
        };
        staged.bytes.clear();
        if staged.in_place.is_none() && len <= self.room {
            parts
                .iter()
                .for_each(|part| staged.bytes.extend_from_slice(part));
        }
        drop(staged);
        // AcqRel: pairs with the swap in `Entry::leave`, where both orders are explained.
        if self.state.swap(ANSWERED, Ordering::AcqRel) == LEFT {
            self.bell.ring(self.index);
        }
    }
}

/// Wakes a queue's thread when other threads have answered its entries.
pub(super) struct Bell {
    /// Their numbers. [leaf]
    answered: Mutex<Vec<u64>>,
    event: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        Ok(Bell {
            answered: Mutex::new(Rank::Leaf, Vec::new()),
            event: eventfd(0, EventfdFlags::CLOEXEC)?,
        })
    }

    fn ring(&self, index: u64) {
        let mut answered = self.answered.lock();
        answered.push(index);
        let is_first = answered.len() == 1;
        drop(answered);
        if is_first {
            self.wake();
        }
    }

    /// Wakes the thread from its wait for the ring.
    pub(super) fn wake(&self) {
        // Fails only if the counter would exceed 2^64; the thread resets it each time.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Takes the entries that were answered since the last call.
    pub(super) fn take(&self) -> Vec<usize> {
        let answered = std::mem::take(&mut *self.answered.lock());
        // Each is the number of an entry, which is far below 2^32.
        answered.into_iter().map(|index| index as usize).collect()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A command with the number of its buffers, for which the crate `io-uring` has no setter.
pub(super) fn with_segments(mut command: Entry128) -> Entry128 {
    /// The offset of `len` in `struct io_uring_sqe`.
    const LEN: usize = 24;
    const { assert!(size_of::<Entry128>() == 128) };
    #[allow(unsafe_code)]
    // SAFETY: an `Entry128` is the kernel's structure of 128 bytes, whose `len` is a u32 at this offset.
    unsafe {
        std::ptr::from_mut(&mut command)
            .cast::<u8>()
            .add(LEN)
            .cast::<u32>()
            .write(ring::SEGMENTS);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(payload: usize) -> (Entry, Arc<Bell>) {
        let bell = Arc::new(Bell::new().unwrap());
        let entry = Entry::new(3, payload, &bell, &Arc::default());
        (entry, bell)
    }

    /// Puts a request into the buffers, as the kernel does.
    fn fill(entry: &mut Entry, operation: &[u8], input: &[u8]) {
        let (headers, data) = entry.buffers.split();
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + operation.len() + input.len()) as u32,
            unique: 8,
            ..abi::InHeader::default()
        };
        headers[..size_of::<abi::InHeader>()].copy_from_slice(header.as_bytes());
        headers[ring::OPERATION][..operation.len()].copy_from_slice(operation);
        data[..input.len()].copy_from_slice(input);
        let filled = abi::RingEntry {
            commit: 8,
            payload_size: input.len() as u32,
            ..abi::RingEntry::default()
        };
        headers[ring::ENTRY].copy_from_slice(filled.as_bytes());
        entry.begin();
    }

    fn answer_of(entry: &mut Entry) -> (u64, i32, Vec<u8>) {
        entry.put_answer();
        let (headers, data) = entry.buffers.split();
        let header = abi::OutHeader::read_from_bytes(&headers[..16]).unwrap();
        let ring = abi::RingEntry::read_from_bytes(&headers[ring::ENTRY]).unwrap();
        assert_eq!((ring.commit, header.len), (8, 16 + ring.payload_size));
        let bytes = data[..ring.payload_size as usize].to_vec();
        (header.unique, header.error, bytes)
    }

    #[test]
    fn a_request_is_split_as_the_kernel_put_it_there() {
        let (mut entry, _bell) = entry(64);
        fill(&mut entry, b"own12345", b"name\0");
        let (_, filled) = entry.filled();
        assert_eq!(
            (filled.operation, filled.input),
            (&b"own12345"[..], &b"name\0"[..])
        );
        assert!(filled.room.is_empty());
        fill(&mut entry, b"own12345", b"");
        let (_, filled) = entry.filled();
        assert_eq!((filled.input.len(), filled.room.len()), (0, 64));
    }

    #[test]
    fn lengths_that_contradict_the_buffers_are_cut() {
        let (mut entry, _bell) = entry(64);
        fill(&mut entry, b"", b"");
        let (headers, _) = entry.buffers.split();
        headers[..4].fill(0xff);
        headers[ring::ENTRY].fill(0xff);
        let (_, filled) = entry.filled();
        assert_eq!((filled.operation.len(), filled.input.len()), (128, 64));
    }

    #[test]
    fn an_answer_is_put_where_the_kernel_takes_it_from() {
        let (mut entry, bell) = entry(64);
        fill(&mut entry, b"", b"name\0");
        entry.slot.answer(8, 0, &[b"ab", b"c"]);
        assert!(entry.leave() && bell.take().is_empty());
        assert_eq!(answer_of(&mut entry), (8, 0, b"abc".to_vec()));
        // Data that were read into the data buffer are not copied.
        fill(&mut entry, b"", b"");
        let slot = Arc::clone(&entry.slot);
        let (_, filled) = entry.filled();
        filled.room[..2].copy_from_slice(b"xy");
        slot.answer(8, 0, &[&filled.room[..2]]);
        assert!(entry.leave());
        assert_eq!(answer_of(&mut entry), (8, 0, b"xy".to_vec()));
        // An answer that does not fit becomes an error.
        fill(&mut entry, b"", b"");
        slot.answer(8, 0, &[&[0; 65]]);
        assert!(entry.leave());
        assert_eq!(answer_of(&mut entry), (8, -5, vec![]));
    }

    #[test]
    fn an_answer_that_another_thread_has_rings_the_bell() {
        let (mut entry, bell) = entry(64);
        fill(&mut entry, b"", b"");
        assert!(!entry.leave());
        let slot = Arc::clone(&entry.slot);
        sync::thread::spawn(move || slot.answer(8, -2, &[]))
            .join()
            .unwrap();
        assert_eq!(bell.take(), [3]);
        let mut count = [0; 8];
        rustix::io::read(&bell.event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        assert_eq!(answer_of(&mut entry), (8, -2, vec![]));
    }
}
