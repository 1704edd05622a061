//! The blocks of directories are announced to the device before they are read, each once, and no other blocks are.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;

use device::{BlockDevice, DeviceError, MemoryDevice};
use sync::{Mutex, Rank};

use crate::check_device;
use crate::found::Made;

/// Bytes of a block.
const BLOCK: u64 = 1024;

/// A device that records which blocks are announced, which of these are read afterwards, and which are announced again.
struct Listener {
    inner: MemoryDevice,
    announced: Mutex<BTreeSet<u64>>,
    read: Mutex<BTreeSet<u64>>,
    again: Mutex<Vec<u64>>,
}

impl BlockDevice for Listener {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let blocks = offset / BLOCK..(offset + bytes.len() as u64).div_ceil(BLOCK);
        let announced: Vec<u64> = self.announced.lock().range(blocks).copied().collect();
        self.read.lock().extend(announced);
        self.inner.read_at(offset, bytes)
    }

    fn will_read(&self, range: Range<u64>) {
        for block in range.start / BLOCK..range.end / BLOCK {
            if !self.announced.lock().insert(block) {
                self.again.lock().push(block);
            }
        }
    }
}

#[test]
fn directories_are_announced_once_before_they_are_read() {
    // Several batches of directories, some of whose blocks are adjacent.
    let count = 300;
    let fill = |root: PathBuf| {
        for name in 0..count {
            let folder = root.join(format!("d{name}"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("f"), vec![1; 100 * (name % 30)]).unwrap();
        }
    };
    let Some(made) = Made::new("-N 1000", "16M", fill) else {
        return;
    };
    for threads in [1, 3] {
        let device = Listener {
            inner: MemoryDevice::from_bytes(&made.bytes()),
            announced: Mutex::new(Rank::Output, BTreeSet::new()),
            read: Mutex::new(Rank::Output, BTreeSet::new()),
            again: Mutex::new(Rank::Output, Vec::new()),
        };
        assert!(check_device(&device, threads).unwrap().is_clean());
        let announced = device.announced.into_inner();
        // The root has several blocks, lost+found too.
        assert!(announced.len() > count && announced.len() < count + 40);
        assert!(device.again.into_inner().is_empty());
        // With several threads a block may be read while it is announced.
        assert!(threads > 1 || device.read.into_inner() == announced);
    }
}
