//! Buckets, and arrays of them. A bucket is a cache line with a lock and entries, and the lines chained to it.
//!
//! A bucket's entries are changed under its lock and read without it. A bucket owns the lines chained to it, not what
//! the entries point at: the table does.

use crate::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::turn::point;
use crate::{CachePadded, Mutex, Rank};

/// Entries in one line.
pub(super) const SLOTS: usize = 5;
/// In a line's tags: the entries are in the next array.
const MOVED: u64 = 1 << 63;
/// In an entry's pointer: a hand passed, and no reader found the entry since.
const MARK: usize = 1;

/// A pointer that is read without a lock. Every use is a point of a schedule.
pub(super) struct Link<T>(AtomicPtr<T>);

impl<T> Link<T> {
    pub(super) const fn null() -> Link<T> {
        Link(AtomicPtr::new(std::ptr::null_mut()))
    }

    pub(super) fn to(pointer: *mut T) -> Link<T> {
        Link(AtomicPtr::new(pointer))
    }

    #[inline]
    pub(super) fn load(&self) -> *mut T {
        point();
        // SeqCst: after the reader's guard was published, see `domain`; pairs with the store below.
        self.0.load(Ordering::SeqCst)
    }

    #[inline]
    pub(super) fn store(&self, pointer: *mut T) {
        point();
        // SeqCst: before the epoch is read in which what was here is given away; pairs with the load above.
        self.0.store(pointer, Ordering::SeqCst);
    }
}

/// Whether a hand marked an entry.
pub(super) fn is_marked<T>(entry: *mut T) -> bool {
    entry.addr() & MARK != 0
}

/// An entry with a hand's mark.
pub(super) fn marked<T>(entry: *mut T) -> *mut T {
    entry.map_addr(|addr| addr | MARK)
}

/// An entry without the mark.
pub(super) fn plain<T>(entry: *mut T) -> *mut T {
    entry.map_addr(|addr| addr & !MARK)
}

/// Seven bits of a key, and one that is set if the slot has an entry. Never 0.
pub(super) fn tag(key: u64) -> u8 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as u8 | 0x80
}

/// One line of entries; the first of a bucket has the lock.
#[repr(align(64))]
pub(super) struct Bucket<T> {
    /// Held by the thread that changes the bucket. [the rank given to the table]
    pub(super) lock: Mutex<()>,
    /// Counts removals. [bucket; read: any time, Acquire]
    version: AtomicU32,
    /// A byte for each entry in the line, 0 where it is empty; and [`MOVED`]. [bucket; read: any time, SeqCst]
    tags: AtomicU64,
    /// Entries. [bucket; read: rcu]
    slots: [Link<T>; SLOTS],
    /// The next line. [bucket; read: rcu; never changes once it is there]
    more: Link<Bucket<T>>,
}

impl<T> Bucket<T> {
    pub(super) fn new(rank: Rank) -> Bucket<T> {
        Bucket {
            lock: Mutex::new(rank, ()),
            version: AtomicU32::new(0),
            tags: AtomicU64::new(0),
            slots: [const { Link::null() }; SLOTS],
            more: Link::null(),
        }
    }

    /// How many entries were removed or replaced so far.
    pub(super) fn version(&self) -> u32 {
        // Acquire: pairs with the Release in `removed`: a thread that sees a removal sees what was done before it.
        self.version.load(Ordering::Acquire)
    }

    /// An entry was removed. The caller has the lock.
    pub(super) fn removed(&self) {
        // Release: pairs with the Acquire in `version`.
        self.version.fetch_add(1, Ordering::Release);
    }

    fn tags(&self) -> u64 {
        // SeqCst: as the loads of links, which come after it; pairs with the stores in `set_tag` and `set_moved`.
        self.tags.load(Ordering::SeqCst)
    }

    /// Whether the entries are in the next array.
    pub(super) fn is_moved(&self) -> bool {
        self.tags() & MOVED != 0
    }

    fn set_tag(&self, slot: usize, tag: u8) {
        let others = self.tags() & !(0xff << (8 * slot));
        // SeqCst: behind the entry that was stored; pairs with the load in `tags`. The lock keeps others away.
        self.tags
            .store(others | u64::from(tag) << (8 * slot), Ordering::SeqCst);
    }

    /// This line and those chained to it.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Bucket<T>> {
        std::iter::successors(Some(self), |line| line.next_line())
    }

    #[allow(unsafe_code)]
    fn next_line(&self) -> Option<&Bucket<T>> {
        // SAFETY: null, or a line from `Box::into_raw` that this one owns: it is freed when this one is dropped.
        unsafe { self.more.load().as_ref() }
    }

    /// Whether it has no entry, has not moved, and has no further line. Not a scheduling point, because it is for a
    /// table that no other thread can reach.
    pub(super) fn is_bare(&self) -> bool {
        // SeqCst: pairs with the store in `Link`, as the load in `Link::load` does.
        self.tags() == 0 && self.more.0.load(Ordering::SeqCst).is_null()
    }

    /// The first entry in this line that `is` accepts, of those with this tag; of all, if the tag is `None`.
    pub(super) fn find(
        &self,
        tag: Option<u8>,
        mut is: impl FnMut(*mut T) -> bool,
    ) -> Option<(usize, *mut T)> {
        let tags = self.tags();
        (0..SLOTS).find_map(|slot| {
            let there = (tags >> (8 * slot)) as u8;
            if there == 0 || tag.is_some_and(|tag| tag != there) {
                return None;
            }
            let entry = self.slots[slot].load();
            (!entry.is_null() && is(entry)).then_some((slot, entry))
        })
    }

    /// Adds an entry to the bucket, whose first line this is; returns the line, from 1 on, and the slot. The caller has
    /// the lock, or no other thread can reach the bucket.
    pub(super) fn add(&self, rank: Rank, tag: u8, entry: *mut T) -> (usize, usize) {
        let mut count = 1;
        let mut line = self;
        loop {
            let tags = line.tags();
            if let Some(slot) = (0..SLOTS).find(|slot| (tags >> (8 * slot)) as u8 == 0) {
                line.slots[slot].store(entry);
                line.set_tag(slot, tag);
                return (count, slot);
            }
            count += 1;
            line = match line.next_line() {
                Some(next) => next,
                None => line.chain(rank),
            };
        }
    }

    #[allow(unsafe_code)]
    fn chain(&self, rank: Rank) -> &Bucket<T> {
        let next = Box::into_raw(Box::new(Bucket::new(rank)));
        self.more.store(next);
        // SAFETY: just made; from now on as in `next_line`.
        unsafe { &*next }
    }

    /// What is in a slot of this line; null if nothing is. The caller has the lock.
    pub(super) fn entry(&self, slot: usize) -> *mut T {
        self.slots[slot].load()
    }

    /// Puts another entry with the same tag into a slot of this line. The caller has the lock.
    pub(super) fn put(&self, slot: usize, entry: *mut T) {
        self.slots[slot].store(entry);
    }

    /// Empties a slot of this line. The caller has the lock.
    pub(super) fn clear(&self, slot: usize) {
        self.set_tag(slot, 0);
        self.slots[slot].store(std::ptr::null_mut());
    }

    /// Records that all entries were added to the next array. Readers may still read them here. The caller has the
    /// lock.
    pub(super) fn set_moved(&self) {
        let tags = self.tags();
        // SeqCst: behind the entries in the next array; pairs with the load in `tags`.
        self.tags.store(tags | MOVED, Ordering::SeqCst);
    }

    /// Continues the count of removals from that of another bucket. No other thread can reach the bucket.
    pub(super) fn continue_version(&self, of: &Bucket<T>) {
        // Relaxed: published with the bucket.
        self.version.store(of.version(), Ordering::Relaxed);
    }
}

impl<T> Drop for Bucket<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let mut next = std::mem::replace(&mut self.more, Link::null())
            .0
            .into_inner();
        while !next.is_null() {
            // SAFETY: from `Box::into_raw` in `chain`; this line owned it, and is being dropped.
            let mut line = unsafe { Box::from_raw(next) };
            next = std::mem::replace(&mut line.more, Link::null())
                .0
                .into_inner();
        }
    }
}

/// An array of buckets, and how far it has moved into the next.
pub(super) struct Array<T> {
    pub(super) buckets: Box<[Bucket<T>]>,
    /// The array twice as long into which this one moves. [growth; read: rcu; never changes once it is there]
    pub(super) next: Link<Array<T>>,
    /// Buckets that somebody moves or moved. [atomic: Relaxed]
    pub(super) claimed: CachePadded<AtomicUsize>,
    /// Buckets that are moved. [atomic: AcqRel]
    pub(super) moved: CachePadded<AtomicUsize>,
}

impl<T> Array<T> {
    /// This number of empty buckets, a power of two.
    pub(super) fn new(rank: Rank, buckets: usize) -> Array<T> {
        Array {
            buckets: (0..buckets).map(|_| Bucket::new(rank)).collect(),
            next: Link::null(),
            claimed: CachePadded::new(AtomicUsize::new(0)),
            moved: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    /// The bucket of a key. Keys that follow one another are in buckets that do, so that threads that work on different
    /// ranges of keys meet in no bucket; ranges far apart are spread.
    pub(super) fn index(&self, key: u64) -> usize {
        let far = (key >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        // The length is a power of two, and fits.
        (far.wrapping_add(key & 0xfff) as usize) & (self.buckets.len() - 1)
    }
}
