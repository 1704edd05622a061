//! A log that is not the same each time it is read is not given up: a second try may read it as it is.

use std::ops::Range;

use device::{BlockDevice, DeviceError, MemoryDevice};
use lanefs::repair::{RepairError, RepairScope, repair};
use ondisk::jbd2::{BlockHeader, BlockKind, JournalSuperblock};
use sync::Arc;
use sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::elsewhere::moved;
use crate::fast_commits::with_transactions;
use crate::forgotten::without_flag;
use crate::images::{
    FILES, KINDS, NOW, bytes_of, dirty, journal_at, kept, mend, options, try_to_mend,
};
use crate::lost::lost;

/// A device one block of which reads as zeros, except for the first reads of it.
struct Unstable {
    inner: Arc<MemoryDevice>,
    block: Range<u64>,
    /// How many more reads of the block find what it holds.
    sound: AtomicU32,
}

impl BlockDevice for Unstable {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, bytes)?;
        let end = offset + bytes.len() as u64;
        if offset > self.block.start || end < self.block.end {
            return Ok(());
        }
        // Relaxed: one thread reads.
        let left = self.sound.load(Ordering::Relaxed);
        if left == 0 {
            let at = (self.block.start - offset) as usize;
            bytes[at..][..(self.block.end - self.block.start) as usize].fill(0);
        }
        self.sound.store(left.saturating_sub(1), Ordering::Relaxed);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
}

/// The last commit block of a log whose superblock is at the byte `journal`. The log's numbers count from the byte
/// `base`.
fn last_commit(bytes: &[u8], journal: usize, base: usize, size: usize) -> Range<u64> {
    let sb = JournalSuperblock::read(&bytes[journal..]).unwrap();
    let first = base + sb.start() as usize * size;
    let mut tid = sb.sequence();
    let mut last = None;
    for at in (first..bytes.len()).step_by(size) {
        let header = BlockHeader::of(&bytes[at..]).filter(|header| header.tid() == tid);
        if header.and_then(|header| header.kind()) == Some(BlockKind::Commit) {
            last = Some(at as u64..(at + size) as u64);
            tid = tid.next();
        }
    }
    last.unwrap()
}

#[test]
fn a_log_that_changes_while_it_is_read_is_not_given_up() {
    let mut refused = [0; 2];
    // The log of the last kind holds fast commits alone, which are read once.
    for kind in &KINDS[..3] {
        let size = kind.block_size.bytes();
        let dirty = dirty(kind);
        for is_elsewhere in [false, true] {
            let (image, log) = if is_elsewhere {
                moved(&dirty)
            } else {
                (testkit::copy_image(&dirty), Vec::new())
            };
            let (whole, journal, base) = if is_elsewhere {
                // The superblock is in the block behind that of the ext4 superblock.
                (&log, if size == 1024 { 2048 } else { size }, 0)
            } else {
                let journal = journal_at(kind.block_size, &image);
                (&image, journal, journal)
            };
            let block = last_commit(whole, journal, base, size);
            for sound in 1..6 {
                let inner = Arc::new(MemoryDevice::from_bytes(whole));
                let unstable: Arc<dyn BlockDevice> = Arc::new(Unstable {
                    inner: Arc::clone(&inner),
                    block: block.clone(),
                    sound: AtomicU32::new(sound),
                });
                let (image_alone, journal) = if is_elsewhere {
                    (
                        Arc::new(MemoryDevice::from_bytes(&image)),
                        Some(Arc::clone(&unstable)),
                    )
                } else {
                    (Arc::clone(&inner), None)
                };
                let device = if is_elsewhere {
                    Arc::clone(&image_alone) as Arc<dyn BlockDevice>
                } else {
                    unstable
                };
                let cancelled = AtomicBool::new(false);
                let options = options(&cancelled, None);
                let outcome = repair(&device, journal, RepairScope::All, &options, NOW);
                let what = format!("{}, elsewhere: {is_elsewhere}, {sound}", kind.name);
                match outcome {
                    Ok(outcome) => {
                        let left = &outcome.repaired.after;
                        assert!(left.is_clean(), "{what}: {:?}", left.problems);
                        // Nothing of the log is read any more, so the block's contents don't matter.
                        assert_eq!(kept(&bytes_of(&*image_alone)), FILES, "{what}");
                    }
                    Err(error) => {
                        let is_refused =
                            matches!(error, RepairError::Replay(_) | RepairError::Changed { .. });
                        assert!(is_refused, "{what}: {error}");
                        assert!(bytes_of(&*image_alone) == image, "{what}: written to");
                        assert!(bytes_of(&*inner) == *whole, "{what}: written to");
                        refused[usize::from(is_elsewhere)] += 1;
                    }
                }
            }
        }
    }
    assert!(refused.iter().all(|refused| *refused > 0), "{refused:?}");
}

/// Neither the superblock that a repair writes before the replay nor what the log holds.
#[test]
fn nothing_is_written_before_a_log_that_changes_is_refused() {
    for kind in &KINDS {
        let mut dirty = dirty(kind);
        let mut images = Vec::new();
        if kind.name == "fast commits" {
            let damaged = with_transactions(&dirty, 200, true);
            images.push(("a damaged copy", damaged, None));
            dirty = with_transactions(&dirty, 200, false);
        }
        let journal = journal_at(kind.block_size, &dirty);
        let block = last_commit(&dirty, journal, journal, kind.block_size.bytes());
        images.push(("nothing lost", testkit::copy_image(&dirty), None));
        images.push(("no flag", without_flag(&dirty), None));
        let mut lost = lost(kind, &dirty);
        lost.retain(|(how, _, _)| ["zeros", "a named copy"].contains(how));
        images.append(&mut lost);
        for (how, bytes, copy) in images {
            let mut refused = 0;
            // One kind shows each reading, the others every third.
            let step = if kind.name == KINDS[0].name { 1 } else { 3 };
            for sound in (1..20).step_by(step) {
                let inner = Arc::new(MemoryDevice::from_bytes(&bytes));
                let unstable = Arc::new(Unstable {
                    inner: Arc::clone(&inner),
                    block: block.clone(),
                    sound: AtomicU32::new(sound),
                });
                let device = Arc::clone(&unstable) as Arc<dyn BlockDevice>;
                let what = format!("{}, {how}, {sound}", kind.name);
                match try_to_mend(&device, RepairScope::All, copy) {
                    Ok(outcome) => {
                        let left = &outcome.repaired.after;
                        assert!(left.is_clean(), "{what}: {:?}", left.problems);
                    }
                    Err(RepairError::Replay(_) | RepairError::Changed { .. }) => {
                        assert!(bytes_of(&*inner) == bytes, "{what}: written to");
                        refused += 1;
                        continue;
                    }
                    // It was noticed between two writes.
                    Err(RepairError::Device(_)) => {
                        let device = Arc::clone(&inner) as Arc<dyn BlockDevice>;
                        mend(&device, RepairScope::All, copy);
                    }
                    Err(error) => panic!("{what}: {error:?}"),
                }
                let files = kept(&bytes_of(&*inner));
                assert_eq!(files, FILES, "{what}");
                // Relaxed: one thread reads. More sound reads make no difference if some are left.
                if unstable.sound.load(Ordering::Relaxed) > 0 {
                    break;
                }
            }
            assert!(refused > 0, "{}, {how}", kind.name);
        }
    }
}
