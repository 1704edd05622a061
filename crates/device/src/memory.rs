//! A sparse device in memory: only what is written takes memory, even if the device has 64 TiB, and zeros written where
//! nothing was written take none.
//!
//! Bytes are kept in chunks of 4 KiB. 64 adjacent chunks are a row, and each row belongs to one of 64 shards, so
//! threads that write in different shards share nothing. A read holds one shard's lock ([`Rank::Device`]) for reading,
//! a write for writing, one chunk at a time. The places of a row's chunks are adjacent, so a thread that reads chunk
//! after chunk finds the next place in the same cache line. Chunks are allocated in slabs: one allocation for each
//! chunk would be a system call each, in which threads wait for each other. Nothing survives the process.

use std::collections::HashMap;
use std::ops::Range;

use sync::{CachePadded, Guarded, Rank, RwLock};

use crate::block_device::{BlockDevice, DeviceError, Resize, check_range};

const CHUNK_BYTES: usize = 4096;
const CHUNK: u64 = CHUNK_BYTES as u64;
const SHARDS: u64 = 64;
/// Chunks of a row, which are in one shard.
const ROW_CHUNKS: usize = 64;
const ROW: u64 = ROW_CHUNKS as u64;
/// Chunks of a shard's first slab, and of the largest: each is twice as long as the one before.
const SLAB_LEAST: usize = 4;
const SLAB_MOST: usize = 256;
static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// Where a chunk's bytes are: a slab, and the chunk in it.
#[derive(Clone, Copy, Debug)]
struct Place {
    slab: u32,
    index: u32,
}

/// Where the bytes of the chunks of a row are; without a place: zeros.
type Row = [Option<Place>; ROW_CHUNKS];

/// A chunk's row, and its number in it.
fn row_of(chunk: u64) -> (u64, usize) {
    // The remainder is below the chunks of a row, so it fits.
    #[allow(clippy::cast_possible_truncation)]
    (chunk / ROW, (chunk % ROW) as usize)
}

/// The chunks of a shard.
#[derive(Debug, Default)]
struct Shard {
    /// Rows that have a place. Their numbers are small and not chosen by an attacker: a fast hash is enough.
    rows: HashMap<u64, Box<Row>, foldhash::fast::FixedState>,
    slabs: Vec<Box<[u8]>>,
    /// Places that no chunk has, those of the last slab that were never used aside.
    free: Vec<Place>,
    /// Chunks of the last slab that were used.
    used: usize,
}

impl Shard {
    fn place(&self, chunk: u64) -> Option<Place> {
        let (row, index) = row_of(chunk);
        self.rows.get(&row).and_then(|row| row[index])
    }

    fn bytes(&self, place: Place) -> &[u8] {
        let at = place.index as usize * CHUNK_BYTES;
        &self.slabs[place.slab as usize][at..at + CHUNK_BYTES]
    }

    fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        let at = place.index as usize * CHUNK_BYTES;
        &mut self.slabs[place.slab as usize][at..at + CHUNK_BYTES]
    }

    fn get(&self, chunk: u64) -> Option<&[u8]> {
        self.place(chunk).map(|place| self.bytes(place))
    }

    fn get_mut(&mut self, chunk: u64) -> Option<&mut [u8]> {
        self.place(chunk).map(|place| self.bytes_mut(place))
    }

    /// The numbers of the chunks that have a place, row by row.
    fn chunks(&self) -> impl Iterator<Item = u64> {
        self.rows
            .iter()
            .flat_map(|(number, row)| (number * ROW..).zip(row.iter()))
            .filter_map(|(chunk, place)| place.map(|_| chunk))
    }

    /// A place for a chunk that has none; what is there is of no meaning.
    fn take_place(&mut self) -> Place {
        if let Some(place) = self.free.pop() {
            return place;
        }
        let len = self.slabs.last().map_or(0, |slab| slab.len() / CHUNK_BYTES);
        if self.used == len {
            let len = (2 * len).clamp(SLAB_LEAST, SLAB_MOST);
            self.slabs
                .push(vec![0; len * CHUNK_BYTES].into_boxed_slice());
            self.used = 0;
        }
        self.used += 1;
        // Slabs of a megabyte each: fewer than 2^32.
        #[allow(clippy::cast_possible_truncation)]
        Place {
            slab: self.slabs.len() as u32 - 1,
            index: self.used as u32 - 1,
        }
    }

    /// Adds a chunk that is not there: these bytes at `start`, zeros elsewhere.
    fn insert(&mut self, chunk: u64, start: usize, bytes: &[u8]) {
        let place = self.take_place();
        let target = self.bytes_mut(place);
        let end = start + bytes.len();
        target[..start].fill(0);
        target[start..end].copy_from_slice(bytes);
        target[end..].fill(0);
        let (row, index) = row_of(chunk);
        let row = self
            .rows
            .entry(row)
            .or_insert_with(|| Box::new([None; ROW_CHUNKS]));
        row[index] = Some(place);
    }

    /// Drops the chunks that are said to go; without any left, their memory too.
    fn retain(&mut self, mut stays: impl FnMut(u64) -> bool) {
        let free = &mut self.free;
        self.rows.retain(|number, row| {
            for (chunk, place) in (number * ROW..).zip(row.iter_mut()) {
                if !stays(chunk) {
                    free.extend(place.take());
                }
            }
            row.iter().any(Option::is_some)
        });
        if self.rows.is_empty() {
            *self = Shard::default();
        }
    }
}

/// A sparse device in memory.
#[derive(Debug)]
pub struct MemoryDevice {
    /// Bytes. [written by `set_size`, whose caller runs no other call on bytes that are cut off]
    size: Guarded<u64>,
    /// A missing chunk is all zeros. [shard]
    shards: Box<[CachePadded<RwLock<Shard>>]>,
}

/// The part of a range that lies in one chunk.
struct Piece {
    chunk: u64,
    in_chunk: Range<usize>,
    in_buffer: Range<usize>,
}

/// Cuts `len` bytes at `offset` at chunk boundaries. The range has been checked to fit 64 bits.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        // The remainder is below the chunk size, so it fits.
        #[allow(clippy::cast_possible_truncation)]
        let start = (at % CHUNK) as usize;
        let count = (len - done).min(CHUNK_BYTES - start);
        let piece = Piece {
            chunk: at / CHUNK,
            in_chunk: start..start + count,
            in_buffer: done..done + count,
        };
        done += count;
        Some(piece)
    })
}

impl MemoryDevice {
    /// A device of `size` bytes, all zeros.
    #[must_use]
    pub fn new(size: u64) -> MemoryDevice {
        MemoryDevice {
            size: Guarded::new(size),
            shards: (0..SHARDS)
                .map(|_| CachePadded::new(RwLock::new(Rank::Device, Shard::default())))
                .collect(),
        }
    }

    /// A device that holds exactly these bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> MemoryDevice {
        let device = MemoryDevice::new(bytes.len() as u64);
        for piece in pieces(0, bytes.len()) {
            device.write_piece(&piece, &bytes[piece.in_buffer.clone()]);
        }
        device
    }

    /// Bytes of memory that hold content (whole chunks).
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        let chunks: usize = self
            .shards
            .iter()
            .map(|shard| shard.read().chunks().count())
            .sum();
        chunks as u64 * CHUNK
    }

    /// Writes the content to a device of at least this size that is all zeros, in ascending order, skipping what was
    /// never written.
    ///
    /// # Errors
    /// Those of the target's `write_at`.
    pub fn copy_to(&self, target: &dyn BlockDevice) -> Result<(), DeviceError> {
        let mut chunks: Vec<u64> = Vec::new();
        for shard in &self.shards {
            chunks.extend(shard.read().chunks());
        }
        chunks.sort_unstable();
        let mut buf = vec![0; CHUNK_BYTES];
        for chunk in chunks {
            let start = chunk * CHUNK;
            let len = self.size().saturating_sub(start).min(CHUNK);
            let Ok(len) = usize::try_from(len) else {
                continue;
            };
            self.read_at(start, &mut buf[..len])?;
            target.write_at(start, &buf[..len])?;
        }
        Ok(())
    }

    fn shard(&self, chunk: u64) -> &RwLock<Shard> {
        // The remainder is below the number of shards, so it fits.
        #[allow(clippy::cast_possible_truncation)]
        &self.shards[(chunk / ROW % SHARDS) as usize]
    }

    fn write_piece(&self, piece: &Piece, bytes: &[u8]) {
        let mut shard = self.shard(piece.chunk).write();
        if let Some(chunk) = shard.get_mut(piece.chunk) {
            chunk[piece.in_chunk.clone()].copy_from_slice(bytes);
        } else if bytes != &ZEROS[..bytes.len()] {
            shard.insert(piece.chunk, piece.in_chunk.start, bytes);
        }
    }

    /// Zeroes a range, giving back the memory of whole chunks.
    fn clear(&self, range: Range<u64>) {
        let whole = range.start.div_ceil(CHUNK)..range.end / CHUNK;
        if whole.is_empty() {
            return self.clear_parts(range);
        }
        self.clear_parts(range.start..whole.start * CHUNK);
        self.clear_parts(whole.end * CHUNK..range.end);
        for shard in &self.shards {
            // By what is there, not by the range: that may span terabytes.
            shard.write().retain(|chunk| !whole.contains(&chunk));
        }
    }

    /// Zeroes a range that holds no whole chunk.
    fn clear_parts(&self, range: Range<u64>) {
        let len = range.end.saturating_sub(range.start);
        // Parts of two chunks at most, so the length fits.
        #[allow(clippy::cast_possible_truncation)]
        for piece in pieces(range.start, len as usize) {
            let mut shard = self.shard(piece.chunk).write();
            if let Some(chunk) = shard.get_mut(piece.chunk) {
                chunk[piece.in_chunk].fill(0);
            }
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.size.get()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range("read", offset, buf.len() as u64, self.size())?;
        for piece in pieces(offset, buf.len()) {
            let target = &mut buf[piece.in_buffer];
            match self.shard(piece.chunk).read().get(piece.chunk) {
                Some(chunk) => target.copy_from_slice(&chunk[piece.in_chunk]),
                None => target.fill(0),
            }
        }
        Ok(())
    }

    fn laid_over_from(&self, _: u64) -> Option<Range<u64>> {
        None
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range("write", offset, bytes.len() as u64, self.size())?;
        for piece in pieces(offset, bytes.len()) {
            self.write_piece(&piece, &bytes[piece.in_buffer.clone()]);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let len = range.end.saturating_sub(range.start);
        check_range("discard", range.start, len, self.size())?;
        if len > 0 {
            self.clear(range);
        }
        Ok(())
    }
}

impl Resize for MemoryDevice {
    fn set_size(&self, size: u64) -> Result<(), DeviceError> {
        let old = self.size();
        if size < old {
            self.clear(size..old);
        }
        self.size.set(size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arc_of_a_volatile_device_is_volatile() {
        let device = sync::Arc::new(MemoryDevice::new(4096));
        assert!(device.as_ref().is_volatile());
        assert!(BlockDevice::is_volatile(&device));
    }

    #[test]
    fn sixty_four_tebibytes_cost_only_what_is_written() {
        let device = MemoryDevice::new(64 << 40);
        device.write_at((64 << 40) - 3, b"end").unwrap();
        device.write_at(1 << 40, &vec![0; 1 << 20]).unwrap();
        assert_eq!(device.allocated_bytes(), CHUNK);
        let mut buf = [9; 5];
        device.read_at((64 << 40) - 5, &mut buf).unwrap();
        assert_eq!(&buf, b"\0\0end");
        assert!(device.read_at((64 << 40) - 4, &mut buf).is_err());
        assert!(device.write_at(u64::MAX, &buf).is_err());
        device.discard(0..64 << 40).unwrap();
        assert_eq!(device.allocated_bytes(), 0);
    }

    #[test]
    fn it_reads_back_as_an_ordinary_array_would() {
        let size = 5 * CHUNK_BYTES / 2;
        let device = MemoryDevice::new(size as u64);
        let mut model = vec![0_u8; size];
        let mut numbers = testkit::Random::new(1);
        let mut random = |below: usize| numbers.index(below);
        for round in 0..500 {
            let start = random(size);
            let len = random(size - start + 1).min(random(3 * CHUNK_BYTES));
            let range = start as u64..(start + len) as u64;
            if round % 5 == 0 {
                device.discard(range).unwrap();
                model[start..start + len].fill(0);
            } else {
                let byte = u8::try_from(round % 3).unwrap();
                device.write_at(range.start, &vec![byte; len]).unwrap();
                model[start..start + len].fill(byte);
            }
        }
        let mut all = vec![1; size];
        device.read_at(0, &mut all).unwrap();
        assert!(all == model);
        let copy = MemoryDevice::new(size as u64);
        device.copy_to(&copy).unwrap();
        copy.read_at(0, &mut all).unwrap();
        assert!(all == model);
    }

    #[test]
    fn what_is_cut_off_reads_as_zeros_after_growing_again() {
        let device = MemoryDevice::from_bytes(&vec![5; 3 * CHUNK_BYTES]);
        device.set_size(100).unwrap();
        device.set_size(CHUNK * 3).unwrap();
        let mut all = vec![1; 3 * CHUNK_BYTES];
        device.read_at(0, &mut all).unwrap();
        assert!(all[..100].iter().all(|byte| *byte == 5));
        assert!(all[100..].iter().all(|byte| *byte == 0));
    }
}
