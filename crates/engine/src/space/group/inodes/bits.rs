//! One group's inode numbers: an atomic bit each, in words of 64, on cache lines of their own.
//!
//! A set bit is not available: its number is in use, or a thread took it and has not applied it yet, or an epoch freed
//! it that is not durable. Every change is one change of a word; no lock. Nothing of this is on disk.
//!
//! ```text
//! take:       set bits that are clear             (0 -> 1; the thread that changed the word has them)
//! give back:  clear bits that the thread has      (not applied after all, or the epoch that freed it is durable)
//! ```
//!
//! A second bit records whether the image has the number in use, as of the last epoch that was folded: the committer
//! alone changes it. So a thread that is about to free a number sees whether it is in use at all, and writes nothing
//! that others read.
//!
//! Only numbers below `written` are given out: their records hold what an inode left there, or zeros. Where the search
//! for a number begins is remembered, so that no search begins at bit 0. Interleavings: `group::inodes::bits::tests`.

use sync::atomic::{AtomicU64, Ordering};
use sync::{CachePadded, Hint, Stamp};

/// Words of a bitmap on one cache line.
const LINE: usize = 16;

/// Words of a bitmap, on lines that hold nothing else.
struct Words(Box<[CachePadded<[AtomicU64; LINE]>]>);

impl Words {
    /// Clear words of `len` bits.
    fn clear(len: u32) -> Words {
        let lines = (len as usize).div_ceil(64 * LINE);
        let line = |_| CachePadded::new([const { AtomicU64::new(0) }; LINE]);
        Words((0..lines).map(line).collect())
    }

    fn word(&self, word: u32) -> &AtomicU64 {
        &self.0[word as usize / LINE][word as usize % LINE]
    }
}

/// What all takers of a group write, on a line of its own.
struct Head {
    /// How many numbers are available. [atomic: Relaxed, hint; exact at rest]
    free: Hint<u32>,
    /// All numbers that were ever taken are below this. [atomic: Relaxed, hint; only raised]
    used_end: Hint<u32>,
    /// No word before the one in the lower half has a clear bit. The upper half counts bits that became clear, so that
    /// a thread that searched before a bit became clear can't raise the bound after. [atomic: Acquire, Release; a bound
    /// at rest]
    first: AtomicU64,
    /// The word in which a chunk was taken last. [atomic: Relaxed, hint]
    last: Hint<u32>,
    /// The size of a chunk in the lower half, and a count in the upper half: no chunk of that size was free below
    /// `used_end` when the upper half of `first` was this count. [atomic: Relaxed, hint]
    scarce: Hint<u64>,
}

/// Numbers of one word that were taken together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk {
    /// Which word.
    pub(crate) word: u32,
    /// Which of its bits; at least one.
    pub(crate) bits: u64,
}

impl Chunk {
    /// How many numbers.
    pub(crate) fn len(self) -> u32 {
        self.bits.count_ones()
    }

    /// The lowest number.
    pub(crate) fn first(self) -> u32 {
        self.word * 64 + self.bits.trailing_zeros()
    }

    /// Behind the highest number.
    pub(crate) fn end(self) -> u32 {
        self.word * 64 + 64 - self.bits.leading_zeros()
    }
}

/// One group's inode numbers.
pub(crate) struct InodeBits {
    head: CachePadded<Head>,
    /// Numbers that the group has. [const]
    len: u32,
    /// Records below this may be read by anyone. [atomic: Acquire, Release; written under the lock on inode tables]
    written: Stamp<u32>,
    /// A bit for each number, set if it is not available. [atomic: Acquire, Release]
    used: Words,
    /// A bit for each number, set if it is in use as of the last epoch that was folded. [the committer; read: any time]
    in_image: Words,
}

fn bit(index: u32) -> u64 {
    1 << (index % 64)
}

/// The `count` lowest bits that are set.
fn lowest(bits: u64, count: u32) -> u64 {
    let mut rest = bits;
    for _ in 0..count {
        rest &= rest.wrapping_sub(1);
    }
    bits & !rest
}

/// The set bits from the lowest on up to the first clear one.
fn first_run(bits: u64) -> u64 {
    let without = bits.wrapping_add(bits & bits.wrapping_neg());
    bits & !without
}

/// The lowest run of `size` set bits (a power of two, at most 64) that begins at a multiple of `size`.
fn lowest_chunk(bits: u64, size: u32) -> u64 {
    let mut starts = bits;
    let mut width = 1;
    while width < size {
        // A run of twice the width begins where two runs of the width follow each other.
        starts &= starts >> width;
        width *= 2;
    }
    // A bit at each multiple of the size.
    let aligned = match size {
        64 => 1,
        size => u64::MAX / ((1 << size) - 1),
    };
    let starts = starts & aligned;
    match starts {
        0 => 0,
        _ => (u64::MAX >> (64 - size)) << starts.trailing_zeros(),
    }
}

impl InodeBits {
    /// The bits of `len` numbers from an image's bitmap. Numbers up to `used_end` were in use at some time; records up
    /// to `written` can be read.
    pub(crate) fn new(image: &[u8], len: u32, used_end: u32, written: u32) -> InodeBits {
        let (used, in_image) = (Words::clear(len), Words::clear(len));
        let mut free = 0;
        let mut end = 0;
        for word in 0..len.div_ceil(64) {
            let bytes = image.get(word as usize * 8..word as usize * 8 + 8);
            let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
            // An image has room for all of its group's numbers, so only a short one ends before.
            let mut bits = bytes.map_or(u64::MAX, u64::from_le_bytes);
            let rest = len - word * 64;
            if rest < 64 {
                bits &= !(u64::MAX << rest);
            }
            if bits != 0 {
                end = word * 64 + 64 - bits.leading_zeros();
            }
            if rest < 64 {
                bits |= u64::MAX << rest;
            }
            free += bits.count_zeros();
            // Relaxed: no other thread has them yet; here and below.
            used.word(word).store(bits, Ordering::Relaxed);
            // Relaxed: no other thread has it yet.
            in_image.word(word).store(bits, Ordering::Relaxed);
        }
        let used_end = used_end.max(end).min(len);
        InodeBits {
            head: CachePadded::new(Head {
                free: Hint::new(free),
                used_end: Hint::new(used_end),
                first: AtomicU64::new(0),
                last: Hint::new(0),
                scarce: Hint::new(u64::MAX),
            }),
            len,
            written: Stamp::new(written.max(used_end).min(len)),
            used,
            in_image,
        }
    }

    /// How many numbers are available now.
    pub(crate) fn free(&self) -> u32 {
        self.head.free.get()
    }

    /// Numbers that the group has.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// All numbers that were ever taken are below this.
    pub(crate) fn used_end(&self) -> u32 {
        self.head.used_end.get()
    }

    /// Records below this can be read, so their numbers can be given out.
    pub(crate) fn written(&self) -> u32 {
        self.written.get()
    }

    /// More records can be read. Under the lock on inode tables.
    pub(crate) fn set_written(&self, written: u32) {
        self.written.set(written.min(self.len));
    }

    /// Words of the bitmap.
    fn words(&self) -> u32 {
        self.len.div_ceil(64)
    }

    /// The bits of a word whose records can be read.
    fn readable(&self, word: u32) -> u64 {
        match self.written().saturating_sub(word * 64) {
            0 => 0,
            rest => u64::MAX >> 64_u32.saturating_sub(rest).min(63),
        }
    }

    /// Takes those bits of a word that `choose` picks among the clear ones.
    fn take_of_word(&self, word: u32, choose: impl Fn(u64) -> u64) -> Option<Chunk> {
        let readable = self.readable(word);
        let used = self.used.word(word);
        // Acquire: a thread that takes a number comes after the one that gave it back; pairs with the Release in
        // `give_back`.
        let mut now = used.load(Ordering::Acquire);
        loop {
            let free = !now & readable;
            let bits = choose(free) & free;
            if bits == 0 {
                return None;
            }
            let next = now | bits;
            // Acquire: pairs with the same Release, on failure too.
            match used.compare_exchange_weak(now, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => break Some(self.took(Chunk { word, bits })),
                Err(other) => now = other,
            }
        }
    }

    /// Counts what was taken.
    fn took(&self, chunk: Chunk) -> Chunk {
        self.head.free.sub(chunk.len());
        let end = chunk.end();
        self.head.used_end.raise(end);
        chunk
    }

    /// Takes up to `count` of the lowest available numbers, all of one word. The second value is the number of words
    /// that were looked at.
    pub(crate) fn take_lowest(&self, count: u32) -> (Option<Chunk>, u32) {
        // Acquire: a thread that sees the count of a bit that became clear sees the clear bit; pairs with the Release
        // in `give_back`.
        let first = self.head.first.load(Ordering::Acquire);
        // The lower half.
        let begin = first as u32;
        let mut looked = 0;
        for step in 0..self.words() {
            let word = (begin + step) % self.words();
            looked += 1;
            let taken = self.take_of_word(word, |free| lowest(free, count));
            if taken.is_some() {
                self.remember(first, begin, word);
                return (taken, looked);
            }
        }
        (None, looked)
    }

    /// Remembers that there is nothing from `begin` to before `word`, unless bits became clear since `first` was read.
    fn remember(&self, first: u64, begin: u32, word: u32) {
        if word > begin {
            let now = first >> 32 << 32 | u64::from(word);
            // Relaxed: only a bound; it fails when the count in the upper half moved.
            let _fails =
                self.head
                    .first
                    .compare_exchange(first, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Takes one number, if it is available.
    pub(crate) fn take_exact(&self, index: u32) -> Option<Chunk> {
        if index < self.len {
            self.take_of_word(index / 64, |_| bit(index))
        } else {
            None
        }
    }

    /// Takes up to `count` numbers of the word that a number lies in: the next ones behind it in its block of the inode
    /// table (as large as that usually is), else of that block, else the lowest.
    pub(crate) fn take_beside(&self, index: u32, count: u32) -> Option<Chunk> {
        if index >= self.len {
            return None;
        }
        let block = 0xffff << (index % 64 / 16 * 16);
        self.take_of_word(index / 64, |free| {
            let near = free & block;
            match (near & u64::MAX << (index % 64), near) {
                (0, 0) => lowest(free, count),
                (0, near) => lowest(near, count),
                (behind, _) => lowest(first_run(behind), count),
            }
        })
    }

    /// Takes up to `count` of these numbers, the lowest first.
    pub(crate) fn take_among(&self, these: Chunk, count: u32) -> Option<Chunk> {
        if these.word < self.words() {
            self.take_of_word(these.word, |free| lowest(free & these.bits, count))
        } else {
            None
        }
    }

    /// Takes the chunk of `size` numbers (a power of two, at most 64) that begins at or after `index`, if all of it is
    /// available and it begins at or before the first chunk boundary after the numbers that were ever taken.
    pub(crate) fn take_behind(&self, index: u32, size: u32) -> Option<Chunk> {
        let start = index.checked_next_multiple_of(size)?;
        if start >= self.len || start > self.used_end().next_multiple_of(size) {
            return None;
        }
        let wanted = (u64::MAX >> (64 - size)) << (start % 64);
        self.take_of_word(
            start / 64,
            |free| if free & wanted == wanted { wanted } else { 0 },
        )
    }

    /// Takes a chunk of `size` numbers (a power of two, at most 64), or of half the size. A chunk of numbers that were
    /// never in use is taken only if neither is found below. The second value is the number of words that were looked
    /// at.
    pub(crate) fn take_chunk(&self, size: u32) -> (Option<Chunk>, u32) {
        let half = size.div_ceil(2);
        // Acquire: pairs with the Release in `give_back`, as in `take_lowest`.
        let first = self.head.first.load(Ordering::Acquire);
        let mut looked = 0;
        let scarce = self.head.scarce.get();
        // The lower halves.
        let is_scarce = scarce >> 32 == first >> 32 && scarce as u32 <= half;
        if !is_scarce {
            let (chunk, words) = self.search(first as u32, size, half);
            looked += words;
            if let Some(chunk) = chunk {
                self.head.last.set(chunk.word);
                return (Some(chunk), looked);
            }
            let now = first >> 32 << 32 | u64::from(half);
            self.head.scarce.set(now);
        }
        let (chunk, words) = self.take_fresh(size);
        looked += words;
        if chunk.is_some() {
            return (chunk, looked);
        }
        let (chunk, words) = self.take_lowest(size);
        (chunk, looked + words)
    }

    /// A chunk of `size` numbers behind all that were ever taken.
    fn take_fresh(&self, size: u32) -> (Option<Chunk>, u32) {
        // A thread that loses the race for one chunk tries the next.
        for looked in 1..=self.words() {
            let end = self.used_end();
            let start = end.next_multiple_of(size);
            if start.saturating_add(size) > self.written() {
                return (None, looked);
            }
            let chunk = self.take_behind(end, size);
            if chunk.is_some() {
                if start > end {
                    // There are smaller ones in between now.
                    self.head.scarce.set(u64::MAX);
                }
                return (chunk, looked);
            }
        }
        (None, self.words())
    }

    /// A chunk of `size` numbers among the words that were in use, from where one was taken last; else one of `half`.
    fn search(&self, first: u32, size: u32, half: u32) -> (Option<Chunk>, u32) {
        let end = self.used_end().div_ceil(64);
        let last = self.head.last.get().clamp(first, end.max(first));
        let mut looked = 0;
        let mut second = None;
        for word in (last..end).chain(first..last.min(end)) {
            looked += 1;
            // Relaxed: a guess; taking the number checks it again.
            let free = !self.used.word(word).load(Ordering::Relaxed) & self.readable(word);
            if lowest_chunk(free, size) != 0 {
                let chunk = self.take_of_word(word, |free| lowest_chunk(free, size));
                if chunk.is_some() {
                    return (chunk, looked);
                }
            }
            if second.is_none() && lowest_chunk(free, half) != 0 {
                second = Some(word);
            }
        }
        let chunk =
            second.and_then(|word| self.take_of_word(word, |free| lowest_chunk(free, half)));
        (chunk, looked)
    }

    /// Makes numbers available again that were taken.
    pub(crate) fn give_back(&self, chunk: Chunk) {
        // Release: pairs with the Acquire in `take_of_word`.
        self.used
            .word(chunk.word)
            .fetch_and(!chunk.bits, Ordering::Release);
        self.head.free.add(chunk.len());
        let noted = |first: u64| {
            // The lower half.
            let lowest = chunk.word.min(first as u32);
            Some((first >> 32).wrapping_add(1) << 32 | u64::from(lowest))
        };
        // Release: the bits are clear before the count moves; pairs with the Acquire in `take_lowest`. Relaxed on
        // failure: it is tried again.
        let _always = self
            .head
            .first
            .fetch_update(Ordering::Release, Ordering::Relaxed, noted);
    }

    /// Makes a number available again that was taken.
    pub(crate) fn give_back_one(&self, index: u32) {
        self.give_back(Chunk {
            word: index / 64,
            bits: bit(index),
        });
    }

    /// Whether a number is in use as of the last epoch that was folded.
    pub(crate) fn is_in_image(&self, index: u32) -> bool {
        let word = self.in_image.word(index / 64);
        // Acquire: pairs with the Release in `fold`.
        word.load(Ordering::Acquire) & bit(index) != 0
    }

    /// An epoch is folded: numbers that it put in use, and then those that it freed. By the committer.
    pub(crate) fn fold(&self, sets: &[u32], clears: &[u32]) {
        for index in sets {
            let word = self.in_image.word(index / 64);
            // Release: pairs with the Acquire in `is_in_image`.
            word.fetch_or(bit(*index), Ordering::Release);
        }
        for index in clears {
            let word = self.in_image.word(index / 64);
            // Release: pairs with the Acquire in `is_in_image`.
            word.fetch_and(!bit(*index), Ordering::Release);
        }
    }
}

#[cfg(test)]
#[path = "bits_tests.rs"]
mod tests;
