//! An implementation of a device: bytes in memory, stored inverted (yours may encrypt them), and a count of flushes.
//! `cargo run -p lanefs --example device`

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

use lanefs::{BlockDevice, DeviceError, Fs};

struct Inverted {
    bytes: RwLock<Vec<u8>>,
    flushes: AtomicU64,
}

impl Inverted {
    fn new(size: usize) -> Inverted {
        Inverted {
            // A reader finds zeros.
            bytes: RwLock::new(vec![!0; size]),
            flushes: AtomicU64::new(0),
        }
    }

    /// The range of a request in memory.
    fn range(
        &self,
        operation: &'static str,
        offset: u64,
        len: usize,
    ) -> Result<Range<usize>, DeviceError> {
        let size = self.size();
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        range
            .filter(|range| range.end as u64 <= size)
            .ok_or(DeviceError::OutOfRange {
                operation,
                offset,
                len: len as u64,
                size,
            })
    }
}

impl BlockDevice for Inverted {
    fn size(&self) -> u64 {
        self.bytes.read().unwrap().len() as u64
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = self.range("read", offset, buf.len())?;
        let bytes = self.bytes.read().unwrap();
        for (to, from) in buf.iter_mut().zip(&bytes[range]) {
            *to = !from;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let range = self.range("write", offset, from.len())?;
        let mut bytes = self.bytes.write().unwrap();
        for (to, from) in bytes[range].iter_mut().zip(from) {
            *to = !from;
        }
        Ok(())
    }

    /// When this returns, what was written before must survive a power cut.
    fn flush(&self) -> Result<(), DeviceError> {
        // Relaxed: a count.
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A hint that the bytes are not needed any more; later reads may return anything.
    fn discard(&self, _range: Range<u64>) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Runs the example; a test does so too.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Arc::new(Inverted::new(16 << 20));
    let fs = Fs::builder().make_on(Arc::clone(&device) as Arc<dyn BlockDevice>)?;
    fs.write("/motd", "welcome\n")?;
    let file = fs.file("/motd")?;
    file.sync_all()?;
    drop(file);
    fs.close()?;
    // Relaxed: no other thread uses the device.
    println!("flushed {} times", device.flushes.load(Ordering::Relaxed));

    let stored = device.bytes.read().unwrap().clone();
    assert!(!stored.windows(7).any(|bytes| bytes == b"welcome"));
    let fs = Fs::builder().open_device(device)?;
    assert_eq!(fs.read("/motd")?, b"welcome\n");
    Ok(())
}
