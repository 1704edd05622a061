//! A log that can't be read, or that lanefs does not support, may hold what was synced: a repair fails, and writes
//! nothing.

use std::ops::Range;

use device::{BlockDevice, DeviceError};
use lanefs::repair::{RepairError, RepairScope};
use ondisk::jbd2::JournalSuperblock;
use sync::Arc;

use crate::images::{
    FILES, KINDS, Kind, bytes_of, check, copy_at, dirty, journal_at, kept, mend, on, try_to_mend,
};

/// A device that fails all reads of a range.
struct Unreadable {
    device: Arc<dyn BlockDevice>,
    range: Range<u64>,
}

impl BlockDevice for Unreadable {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        if offset < self.range.end && self.range.start < offset + buf.len() as u64 {
            return Err(DeviceError::Io {
                operation: "read",
                offset,
                len: buf.len() as u64,
                source: std::io::Error::other("a bad sector"),
            });
        }
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }
}

/// Where blocks lie that a replay reads: the journal's superblock, the first block of the log, the first one for fast
/// commits.
fn used_blocks(kind: &Kind, bytes: &[u8]) -> Vec<u64> {
    let size = kind.block_size.bytes();
    let journal = journal_at(kind.block_size, bytes);
    let sb = JournalSuperblock::read(&bytes[journal..]).unwrap();
    let mut blocks = vec![journal, journal + sb.start() as usize * size];
    if sb.fast_commit_blocks() > 0 {
        // The tag HEAD and its length.
        let head = [9, 0, 8, 0];
        let area = bytes
            .chunks(size)
            .position(|block| block.starts_with(&head));
        blocks.push(area.unwrap() * size);
    }
    blocks.iter().map(|at| *at as u64).collect()
}

/// The image, and the copy of the superblock that is named.
fn ways(kind: &Kind, bytes: &[u8]) -> Vec<(&'static str, Vec<u8>, Option<u64>)> {
    let mut zeroed = testkit::copy_image(bytes);
    zeroed[1024..2048].fill(0);
    vec![
        (
            "a named copy",
            testkit::copy_image(bytes),
            Some(copy_at(kind)),
        ),
        (
            "zeros and a named copy",
            zeroed.clone(),
            Some(copy_at(kind)),
        ),
        ("zeros", zeroed, None),
        ("nothing", testkit::copy_image(bytes), None),
    ]
}

#[test]
fn a_log_that_can_not_be_read_is_not_given_up() {
    for kind in &KINDS {
        let whole = dirty(kind);
        for (how, bytes, copy) in ways(kind, &whole) {
            for start in used_blocks(kind, &bytes) {
                let what = format!("{}, {how}, byte {start}", kind.name);
                let device = on(&bytes);
                let failing: Arc<dyn BlockDevice> = Arc::new(Unreadable {
                    device: Arc::clone(&device),
                    range: start..start + kind.block_size.bytes_u64(),
                });
                for scope in [RepairScope::Preen, RepairScope::All] {
                    let is_refused = try_to_mend(&failing, scope, copy)
                        .map_or(true, |outcome| !outcome.has_written());
                    assert!(is_refused, "{what}");
                    assert!(bytes_of(&*device) == bytes, "{what}: written to");
                }
                let error = try_to_mend(&failing, RepairScope::All, copy).unwrap_err();
                assert!(matches!(error, RepairError::Device(_)), "{what}: {error}");
                assert!(!check(&failing, copy).is_clean(), "{what}");
                // Once the disk reads again, all is there.
                mend(&device, RepairScope::All, copy);
                assert_eq!(kept(&bytes_of(&*device)), FILES, "{what}");
            }
        }
    }
}

/// Marks the journal with a feature that lanefs does not know.
fn with_unknown_feature(kind: &Kind, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = testkit::copy_image(bytes);
    let at = journal_at(kind.block_size, &bytes);
    let mut sb = JournalSuperblock::read(&bytes[at..]).unwrap();
    let mut features = sb.features();
    features.incompat |= 1 << 20;
    sb.set_features(features);
    sb.seal();
    bytes[at..at + JournalSuperblock::SIZE].copy_from_slice(sb.bytes());
    bytes
}

#[test]
fn a_log_with_unknown_features_is_not_given_up() {
    for kind in &KINDS {
        let whole = with_unknown_feature(kind, &dirty(kind));
        for (how, bytes, copy) in ways(kind, &whole) {
            let what = format!("{}, {how}", kind.name);
            let device = on(&bytes);
            for scope in [RepairScope::Preen, RepairScope::All] {
                let error = try_to_mend(&device, scope, copy).unwrap_err();
                assert!(matches!(error, RepairError::Replay(_)), "{what}: {error}");
                assert!(bytes_of(&*device) == bytes, "{what}: written to");
            }
        }
    }
}
