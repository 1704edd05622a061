//! A device in memory that shares its base with thousands of others and owns only the pages that it changed.
//!
//! One lock ([`Rank::Device`]) around the changed pages, held for a copy of at most one request. A clone shares the
//! pages until either side writes to them; nothing survives the process.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::ops::{Deref, Range};

use device::{BlockDevice, DeviceError};
use sync::{Arc, Mutex, Rank};

const PAGE: usize = 4096;

type Pages = HashMap<usize, Arc<[u8]>, foldhash::fast::FixedState>;

/// Bytes that many devices share.
#[derive(Clone)]
pub struct Base(Arc<Vec<u8>>);

impl From<Vec<u8>> for Base {
    fn from(bytes: Vec<u8>) -> Base {
        Base(Arc::new(bytes))
    }
}

impl From<&[u8]> for Base {
    fn from(bytes: &[u8]) -> Base {
        testkit::copy_image(bytes).into()
    }
}

impl Deref for Base {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A copy-on-write device over bytes in memory.
pub struct CowDevice {
    base: Base,
    /// Page number to its bytes, where they differ from the base. [device]
    pages: Mutex<Pages>,
}

impl Clone for CowDevice {
    fn clone(&self) -> CowDevice {
        let pages = self.pages.lock().clone();
        CowDevice {
            base: self.base.clone(),
            pages: Mutex::new(Rank::Device, pages),
        }
    }
}

impl CowDevice {
    /// A device that holds these bytes.
    #[must_use]
    pub fn new(base: Base) -> CowDevice {
        CowDevice {
            base,
            pages: Mutex::new(Rank::Device, Pages::default()),
        }
    }

    /// All of its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = testkit::copy_image(&self.base);
        for (page, changed) in &*self.pages.lock() {
            let start = page * PAGE;
            bytes[start..start + changed.len()].copy_from_slice(changed);
        }
        bytes
    }

    /// The pages that differ from the base, ascending: for telling states apart without comparing whole devices.
    #[must_use]
    pub fn changed_pages(&self) -> Vec<(u64, Arc<[u8]>)> {
        let mut pages: Vec<_> = self
            .pages
            .lock()
            .iter()
            .map(|(page, bytes)| (*page as u64, bytes.clone()))
            .collect();
        pages.retain(|(page, bytes)| {
            let start = usize::try_from(*page).unwrap_or(0) * PAGE;
            self.base[start..start + bytes.len()] != bytes[..]
        });
        pages.sort_unstable_by_key(|(page, _)| *page);
        pages
    }

    /// A number that distinguishes the contents from others over the same base, except bytes within `blind`. Two states
    /// with the same number are the same, except by an accident of one in 2^64.
    #[must_use]
    pub fn digest(&self, blind: &[Range<u64>]) -> u64 {
        let mut digest = 0;
        for (page, bytes) in self.pages.lock().iter() {
            let start = page * PAGE;
            if self.base[start..start + bytes.len()] == bytes[..] || is_within(start as u64, blind)
            {
                continue;
            }
            let mut hasher = foldhash::quality::FixedState::default().build_hasher();
            hasher.write_usize(*page);
            hasher.write(bytes);
            digest ^= hasher.finish();
        }
        digest
    }

    fn range(
        &self,
        operation: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<Range<usize>, DeviceError> {
        let out_of_range = || DeviceError::OutOfRange {
            operation,
            offset,
            len: len as u64,
            size: self.base.len() as u64,
        };
        let start = usize::try_from(offset).map_err(|_| out_of_range())?;
        let end = start
            .checked_add(len)
            .filter(|end| *end <= self.base.len())
            .ok_or_else(out_of_range)?;
        Ok(start..end)
    }
}

/// Whether the page that begins at this byte lies within one of the ranges.
fn is_within(start: u64, ranges: &[Range<u64>]) -> bool {
    ranges
        .iter()
        .any(|range| range.start <= start && start + PAGE as u64 <= range.end)
}

/// The part of a page's bytes and of a request's bytes that belong together.
fn overlap(range: &Range<usize>, page: usize) -> (Range<usize>, Range<usize>) {
    let start = range.start.max(page * PAGE);
    let end = range.end.min((page + 1) * PAGE);
    (
        start - page * PAGE..end - page * PAGE,
        start - range.start..end - range.start,
    )
}

fn pages(range: &Range<usize>) -> Range<usize> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

impl BlockDevice for CowDevice {
    fn size(&self) -> u64 {
        self.base.len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = self.range("read", offset, buf.len())?;
        buf.copy_from_slice(&self.base[range.clone()]);
        let changed = self.pages.lock();
        for page in pages(&range) {
            if let Some(bytes) = changed.get(&page) {
                let (within, of_request) = overlap(&range, page);
                buf[of_request].copy_from_slice(&bytes[within]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let range = self.range("write", offset, bytes.len())?;
        let mut changed = self.pages.lock();
        for page in pages(&range) {
            let (within, of_request) = overlap(&range, page);
            let end = ((page + 1) * PAGE).min(self.base.len());
            let page = changed
                .entry(page)
                .or_insert_with(|| self.base[page * PAGE..end].into());
            Arc::make_mut(page)[within].copy_from_slice(&bytes[of_request]);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        self.range("discard", range.start, len).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_does_not_see_later_writes_and_the_base_stays() {
        let base: Base = vec![1; 10_000].into();
        let device = CowDevice::new(base.clone());
        device.write_at(4000, &[2; 200]).unwrap();
        let clone = device.clone();
        device.write_at(9_999, &[3]).unwrap();
        let mut buf = [0; 4];
        clone.read_at(4094, &mut buf).unwrap();
        assert_eq!(buf, [2; 4]);
        clone.read_at(9_996, &mut buf).unwrap();
        assert_eq!(buf, [1; 4]);
        assert_eq!(device.bytes()[9_998..], [1, 3]);
        assert_eq!(base[4000], 1);
        assert_eq!(clone.changed_pages().len(), 2);
        assert_ne!(clone.digest(&[]), device.digest(&[]));
        let last_page = std::slice::from_ref(&(8192..12_288));
        assert_eq!(clone.digest(last_page), device.digest(last_page));
        device.write_at(9_999, &[1]).unwrap();
        assert_eq!(clone.digest(&[]), device.digest(&[]));
    }

    #[test]
    fn requests_beyond_the_end_are_refused() {
        let device = CowDevice::new(vec![0; 100].into());
        assert!(matches!(
            device.write_at(99, &[0; 2]),
            Err(DeviceError::OutOfRange { .. })
        ));
        assert!(device.read_at(u64::MAX, &mut [0]).is_err());
    }
}
