//! Writes that wait until a command has succeeded: a command that fails changes no byte of the device, not even those
//! that opening a file system changes.
//!
//! All requests are kept in their order, flushes included, and [`HeldDevice::release`] makes them in that order, so a
//! crash meanwhile leaves what it could have left without this device. Before that nothing is durable, although flushes
//! succeed. Written bytes wait in memory up to a bound, and beyond it in a [`SpoolFile`], so the bound limits memory
//! but never lets a request through early. [`HeldDevice::release`] first reserves room below for everything that waits:
//! if the host's disk is full, nothing is written.
//!
//! One lock ([`Rank::DeviceOrder`]) around the kept requests, held across requests to the device below. A crash before
//! the release leaves the device as it was, and no file.

use std::collections::BTreeMap;
use std::ops::Range;

use sync::atomic::{AtomicBool, Ordering};
use sync::{Arc, Rank, RwLock};

use crate::block_device::{BlockDevice, DeviceError, check_range};
use crate::spool::SpoolFile;

/// A request from the spool is made in parts of this size.
const PART_BYTES: usize = 1 << 20;

/// A device whose writes wait.
pub struct HeldDevice {
    below: Arc<dyn BlockDevice>,
    /// What was asked for. [device order]
    kept: RwLock<Kept>,
    /// Whether nothing waits any more. [atomic: set once, under `kept`]
    is_released: AtomicBool,
    /// Bytes that may wait in memory. [const]
    most: usize,
}

#[derive(Default)]
struct Kept {
    /// The requests in their order.
    requests: Vec<Request>,
    /// The device as it will be: by its first byte, each range that is written, and which request wrote it last.
    latest: BTreeMap<u64, Piece>,
    /// Bytes that wait in memory.
    in_memory: usize,
    spool: Option<SpoolFile>,
}

enum Request {
    Write(u64, Bytes),
    Discard(Range<u64>),
    Flush,
}

/// Where the bytes of a write wait.
enum Bytes {
    Memory(Box<[u8]>),
    Spooled { at: u64, len: u64 },
}

/// A range of the device that one request wrote last.
#[derive(Clone, Copy)]
struct Piece {
    len: u64,
    /// The request's index.
    request: usize,
    /// Bytes of the request before this range.
    skip: u64,
}

impl std::fmt::Debug for HeldDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl HeldDevice {
    /// Over `below`; about `most` bytes may wait in memory.
    #[must_use]
    pub fn new(below: Arc<dyn BlockDevice>, most: usize) -> HeldDevice {
        HeldDevice {
            below,
            kept: RwLock::new(Rank::DeviceOrder, Kept::default()),
            is_released: AtomicBool::new(false),
            most,
        }
    }

    /// Whether the device below is still as it was.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        // Acquire: pairs with the Release in `release`, so a thread that sees it set finds all that was written below.
        !self.is_released.load(Ordering::Acquire)
    }

    /// Reserves room below for all that waits, makes all requests, and lets all later ones through.
    ///
    /// # Errors
    /// Those of the device below. If it has no room, no request was made, and all still wait. After any other error the
    /// requests before the one that failed are made, as after a crash.
    pub fn release(&self) -> Result<(), DeviceError> {
        let mut kept = self.kept.write();
        self.below.reserve(&kept.ranges())?;
        let done = kept.make_all(&*self.below);
        *kept = Kept::default();
        // Release: pairs with the Acquire in `is_untouched`.
        self.is_released.store(true, Ordering::Release);
        done
    }

    /// The ranges that wait to be written, ascending; none touch.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.kept.read().ranges()
    }

    /// Makes all requests that wait on another device, which is as large; they still wait here.
    ///
    /// # Errors
    /// As that device.
    pub fn make_on(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        self.kept.read().make_all(device)
    }

    /// Keeps a request, while they are kept; `false` where it must be made.
    fn keep(
        &self,
        add: impl FnOnce(&mut Kept) -> Result<(), DeviceError>,
    ) -> Result<bool, DeviceError> {
        if !self.is_untouched() {
            return Ok(false);
        }
        let mut kept = self.kept.write();
        if !self.is_untouched() {
            return Ok(false);
        }
        add(&mut kept).map(|()| true)
    }
}

impl Kept {
    fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (&start, piece) in &self.latest {
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end += piece.len,
                _ => ranges.push(start..start + piece.len),
            }
        }
        ranges
    }

    fn make_all(&self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        let mut part = Vec::new();
        for request in &self.requests {
            match request {
                Request::Write(offset, Bytes::Memory(bytes)) => device.write_at(*offset, bytes)?,
                Request::Write(offset, Bytes::Spooled { at, len }) => {
                    let mut done = 0;
                    while done < *len {
                        // At most a part.
                        part.resize((len - done).min(PART_BYTES as u64) as usize, 0);
                        self.read_spool(at + done, &mut part)?;
                        device.write_at(offset + done, &part)?;
                        done += part.len() as u64;
                    }
                }
                Request::Discard(range) => device.discard(range.clone())?,
                Request::Flush => device.flush()?,
            }
        }
        Ok(())
    }

    /// Keeps a write; beyond `most` bytes of memory in the spool.
    fn write(&mut self, offset: u64, bytes: &[u8], most: usize) -> Result<(), DeviceError> {
        let len = bytes.len() as u64;
        if self.spool.is_none() && self.in_memory.saturating_add(bytes.len()) <= most {
            self.in_memory += bytes.len() + size_of::<Request>();
            let bytes = Bytes::Memory(bytes.into());
            self.requests.push(Request::Write(offset, bytes));
            self.cover(offset, len, 0);
            return Ok(());
        }
        if self.spool.is_none() {
            self.spool = Some(SpoolFile::new()?);
        }
        let Some(spool) = &mut self.spool else {
            return Ok(());
        };
        let at = spool.append(bytes)?;
        // Data that follow one another, as of a large file, are one request.
        if let Some(Request::Write(
            first,
            Bytes::Spooled {
                at: begun,
                len: before,
            },
        )) = self.requests.last_mut()
            && *first + *before == offset
            && *begun + *before == at
        {
            let skip = *before;
            *before += len;
            self.cover(offset, len, skip);
            return Ok(());
        }
        let bytes = Bytes::Spooled { at, len };
        self.requests.push(Request::Write(offset, bytes));
        self.cover(offset, len, 0);
        Ok(())
    }

    /// Records that the last request wrote these bytes, `skip` bytes after its own first.
    fn cover(&mut self, start: u64, len: u64, skip: u64) {
        if len == 0 {
            return;
        }
        let end = start + len;
        let request = self.requests.len() - 1;
        self.cut(start);
        self.cut(end);
        let over: Vec<u64> = self.latest.range(start..end).map(|(at, _)| *at).collect();
        for at in over {
            self.latest.remove(&at);
        }
        if let Some((&before, piece)) = self.latest.range_mut(..start).next_back()
            && before + piece.len == start
            && piece.request == request
            && piece.skip + piece.len == skip
        {
            piece.len += len;
            return;
        }
        self.latest.insert(start, Piece { len, request, skip });
    }

    /// Makes a piece that holds the bytes before and after `at` two.
    fn cut(&mut self, at: u64) {
        let Some((&start, piece)) = self.latest.range_mut(..at).next_back() else {
            return;
        };
        if start + piece.len <= at {
            return;
        }
        let first = at - start;
        let second = Piece {
            len: piece.len - first,
            skip: piece.skip + first,
            ..*piece
        };
        piece.len = first;
        self.latest.insert(at, second);
    }

    /// Puts the bytes that wait in place of those of the device below.
    fn lay_over(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset + buf.len() as u64;
        let before = self.latest.range(..offset).next_back();
        let within = self.latest.range(offset..end);
        for (&start, piece) in before.into_iter().chain(within) {
            let (from, to) = (start.max(offset), (start + piece.len).min(end));
            if from >= to {
                continue;
            }
            // Within the request.
            let into = &mut buf[(from - offset) as usize..(to - offset) as usize];
            let skip = piece.skip + (from - start);
            match &self.requests[piece.request] {
                Request::Write(_, Bytes::Memory(bytes)) => {
                    // In memory, so it has a length that fits.
                    let skip = skip as usize;
                    into.copy_from_slice(&bytes[skip..skip + into.len()]);
                }
                Request::Write(_, Bytes::Spooled { at, .. }) => self.read_spool(at + skip, into)?,
                Request::Discard(_) | Request::Flush => {}
            }
        }
        Ok(())
    }

    fn read_spool(&self, at: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        match &self.spool {
            Some(spool) => spool.read(at, into),
            None => Ok(()),
        }
    }
}

impl BlockDevice for HeldDevice {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if !self.is_untouched() {
            return self.below.read_at(offset, buf);
        }
        let kept = self.kept.read();
        self.below.read_at(offset, buf)?;
        kept.lay_over(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_range("write", offset, bytes.len() as u64, self.size())?;
        if self.keep(|kept| kept.write(offset, bytes, self.most))? {
            Ok(())
        } else {
            self.below.write_at(offset, bytes)
        }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let add = |kept: &mut Kept| {
            kept.requests.push(Request::Flush);
            Ok(())
        };
        if self.keep(add)? {
            Ok(())
        } else {
            self.below.flush()
        }
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let len = range.end.saturating_sub(range.start);
        check_range("discard", range.start, len, self.size())?;
        let add = |kept: &mut Kept| {
            kept.requests.push(Request::Discard(range.clone()));
            Ok(())
        };
        if self.keep(add)? {
            Ok(())
        } else {
            self.below.discard(range)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CountedDevice, MemoryDevice};

    fn read(device: &dyn BlockDevice, offset: u64) -> [u8; 4] {
        let mut bytes = [0; 4];
        device.read_at(offset, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_held_is_read_and_reaches_the_device_only_when_it_is_released() {
        let below = Arc::new(CountedDevice::new(MemoryDevice::from_bytes(&[1; 10_000])));
        let held = HeldDevice::new(below.clone(), 1 << 20);
        held.write_at(4094, &[2; 4]).unwrap();
        held.flush().unwrap();
        held.write_at(4096, &[3; 4]).unwrap();
        assert!(held.write_at(9_999, &[1; 2]).is_err());
        assert_eq!(
            (read(&held, 4094), read(&*below, 4094)),
            ([2, 2, 3, 3], [1; 4])
        );
        assert!(held.is_untouched());
        let counts = below.counts();
        assert_eq!((counts.writes, counts.flushes), (0, 0));
        held.release().unwrap();
        let counts = below.counts();
        assert_eq!(
            (counts.writes, counts.flushes, held.is_untouched()),
            (2, 1, false)
        );
        assert_eq!(
            (read(&held, 4094), read(&*below, 4096)),
            ([2, 2, 3, 3], [3; 4])
        );
        held.write_at(0, &[4; 4]).unwrap();
        assert_eq!((read(&held, 0), read(&*below, 0)), ([4; 4], [4; 4]));
    }

    /// Random writes of all lengths, beside the same ones in memory, with bounds that spool none, some or all.
    #[test]
    fn what_is_spooled_is_read_and_released_like_what_is_in_memory() {
        const SIZE: usize = 50_000;
        for most in [0, 20_000, usize::MAX] {
            let below = Arc::new(MemoryDevice::from_bytes(&[1; SIZE]));
            let held = HeldDevice::new(below.clone(), most);
            let mut expected = vec![1; SIZE];
            let mut numbers = testkit::Random::new(1);
            let mut random = |limit: usize| numbers.index(limit);
            let mut next = 0;
            for step in 0..600 {
                let start = if step % 3 == 0 { next } else { random(SIZE) };
                let len = random(900).min(SIZE - start);
                let bytes: Vec<u8> = (0..len).map(|at| (at + step) as u8).collect();
                held.write_at(start as u64, &bytes).unwrap();
                expected[start..start + len].copy_from_slice(&bytes);
                next = (start + len) % SIZE;
                let from = random(SIZE - 1000);
                let mut seen = vec![0; 1000];
                held.read_at(from as u64, &mut seen).unwrap();
                assert!(seen == expected[from..from + 1000], "{most} {step}");
            }
            let mut seen = vec![0; SIZE];
            below.read_at(0, &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte == 1) && held.is_untouched());
            let ranges = held.ranges();
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            held.release().unwrap();
            below.read_at(0, &mut seen).unwrap();
            assert!(seen == expected, "{most}");
        }
    }

    /// A device without room.
    struct Full(MemoryDevice);

    impl BlockDevice for Full {
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn is_read_only(&self) -> bool {
            false
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
            self.0.read_at(offset, buf)
        }
        fn reserve(&self, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
            assert_eq!(ranges, [3..7, 9..10]);
            Err(DeviceError::ReadOnly)
        }
        fn write_at(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
            panic!("written to");
        }
        fn flush(&self) -> Result<(), DeviceError> {
            panic!("flushed");
        }
        fn discard(&self, _: Range<u64>) -> Result<(), DeviceError> {
            panic!("discarded");
        }
    }

    #[test]
    fn nothing_is_written_where_not_all_of_it_has_room() {
        let held = HeldDevice::new(Arc::new(Full(MemoryDevice::from_bytes(&[1; 20]))), 100);
        held.write_at(3, &[2; 2]).unwrap();
        held.write_at(9, &[3]).unwrap();
        held.flush().unwrap();
        held.write_at(5, &[4; 2]).unwrap();
        assert!(held.release().is_err());
        assert!(held.is_untouched());
        assert_eq!(read(&held, 3), [2, 2, 4, 4]);
    }
}
