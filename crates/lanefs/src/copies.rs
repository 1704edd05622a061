//! Copies of superblocks that are left where a file system's start is wiped or damaged, and whether a device is blank.
//! Only looks; nothing is written or mended.
//!
//! Places where mke2fs puts copies by default are looked at first, for every block size. Where none of them holds one,
//! the first [`SCAN_BYTES`] of data are searched, so that file systems with other group sizes, and those in partitions
//! whose table is lost, are found too. Everything read is hostile: what a copy says is checked before it is used, and
//! every loop has a constant bound.

use device::{BlockDevice, DeviceError, Slice};
use ondisk::{BlockSize, Feature, FsBlock, Geometry, Group, GroupDesc, Superblock};
use sync::Arc;

use crate::{Fs, MountOptions};

/// Bytes of data that are searched, holes not counted.
const SCAN_BYTES: u64 = 512 << 20;
/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// Superblocks lie at multiples of this.
const STEP: usize = 1024;
/// The magic number's place in a superblock.
const MAGIC_AT: usize = 56;
/// Copies of one file system that are looked at.
const MAX_COPIES: usize = 16;
/// Blocks of descriptors that are verified behind a copy.
const MAX_DESC_BLOCKS: u32 = 1 << 14;

/// A copy of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Copy {
    /// The byte of the device at which the file system begins.
    pub start: u64,
    /// Bytes a block.
    pub block_size: u64,
    /// The block of the file system that holds the copy; 0 for a first superblock at another place than was expected.
    pub block: u64,
    /// Whether all group descriptors behind it verify.
    pub has_descriptors: bool,
    /// Whether the root directory can be read with it.
    pub has_root: bool,
}

impl Copy {
    /// The copy's place in units of 1 KiB, as mount's `sb=` and `lanefs --superblock` take it.
    #[must_use]
    pub fn kib(&self) -> u64 {
        self.block * (self.block_size / 1024)
    }
}

/// What a search found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// Copies of one file system; empty if there are none.
    pub copies: Vec<Copy>,
    /// Whether all of the device was looked at and holds only zeros.
    pub is_blank: bool,
}

impl Found {
    /// The first copy through which the file system can be read.
    #[must_use]
    pub fn readable(&self) -> Option<&Copy> {
        self.copies
            .iter()
            .find(|copy| copy.has_root && copy.has_descriptors)
            .or_else(|| self.copies.iter().find(|copy| copy.has_root))
    }
}

/// Searches a device whose start holds no file system.
///
/// # Errors
/// When the device can't be read.
pub fn search(device: &Arc<dyn BlockDevice>) -> Result<Found, DeviceError> {
    if let Some(copies) = at_default_places(device) {
        return Ok(Found {
            copies,
            is_blank: false,
        });
    }
    scan(device)
}

/// The copies of the file system that begins with the device, which has this superblock.
#[must_use]
pub fn of(device: &Arc<dyn BlockDevice>, superblock: &Superblock) -> Vec<Copy> {
    siblings(device, 0, superblock)
}

/// Whether a group descriptor of the first copy does not verify, although it is there.
#[must_use]
pub fn is_descriptor_damaged(device: &dyn BlockDevice, superblock: &Superblock) -> bool {
    let Ok(geometry) = Geometry::of(superblock) else {
        return false;
    };
    let verdict = verify_descriptors(device, &geometry, 0, geometry.primary_superblock());
    verdict == Verdict::Damaged
}

/// The copy in one of the groups that have one by default, and its siblings.
fn at_default_places(device: &Arc<dyn BlockDevice>) -> Option<Vec<Copy>> {
    (0..=6).filter_map(BlockSize::from_log).find_map(|size| {
        let per_group = 8 * size.bytes_u64();
        let first = u64::from(size == BlockSize::K1);
        let groups = (device.size() >> size.bits()) / per_group;
        let sparse2 = [groups, groups.saturating_sub(1)];
        let groups = sparse_groups().chain(sparse2).filter(|group| *group > 0);
        groups.into_iter().find_map(|group| {
            let block = first.checked_add(group.checked_mul(per_group)?)?;
            let superblock = read_copy(&**device, block.checked_mul(size.bytes_u64())?)?;
            let is_it = superblock.log_block_size() == size.log()
                && (superblock.revision() == 0
                    || u64::from(superblock.block_group_number()) == group);
            let copies = is_it.then(|| siblings(device, 0, &superblock))?;
            (!copies.is_empty()).then_some(copies)
        })
    })
}

/// The groups that have a copy with `sparse_super`, and so without it: 1 and the powers of 3, 5 and 7.
fn sparse_groups() -> impl Iterator<Item = u64> {
    let powers = |base: u64| (1..12).map(move |exponent| base.pow(exponent));
    std::iter::once(1)
        .chain(powers(3))
        .chain(powers(5))
        .chain(powers(7))
}

/// Reads data up to the bound: whether there is any, and whose superblocks are in it.
fn scan(device: &Arc<dyn BlockDevice>) -> Result<Found, DeviceError> {
    let zeros = vec![0; CHUNK];
    let mut chunk = vec![0; CHUNK];
    let (mut at, mut left, mut is_blank) = (0, SCAN_BYTES, true);
    while let Some(found) = device.data_from(at) {
        if left == 0 {
            is_blank = false;
            break;
        }
        // Superblocks lie at multiples of 1 KiB; where data begins need not be one.
        at = found - found % STEP as u64;
        let len = (device.size() - at).min(CHUNK as u64);
        let bytes = &mut chunk[..len as usize];
        device.read_at(at, bytes)?;
        if bytes != &zeros[..bytes.len()] {
            is_blank = false;
            if let Some(copies) = in_chunk(device, at, bytes) {
                return Ok(Found {
                    copies,
                    is_blank: false,
                });
            }
        }
        left = left.saturating_sub(len);
        at += len;
    }
    Ok(Found {
        copies: Vec::new(),
        is_blank,
    })
}

/// The copies of a file system of which a superblock lies in these bytes of the device.
fn in_chunk(device: &Arc<dyn BlockDevice>, at: u64, bytes: &[u8]) -> Option<Vec<Copy>> {
    let magic = ondisk::superblock::MAGIC.to_le_bytes();
    let mut places = (0..bytes.len()).step_by(STEP);
    places.find_map(|place| {
        let found = bytes.get(place + MAGIC_AT..place + MAGIC_AT + 2)?;
        if found != magic {
            return None;
        }
        let place = at + place as u64;
        let superblock = read_copy(&**device, place)?;
        let geometry = Geometry::of(&superblock).ok()?;
        let group = Group(superblock.block_group_number().into());
        let from_start = match group.0 {
            0 => Superblock::OFFSET,
            _ => geometry
                .group_first_block(group)
                .offset(geometry.block_size()),
        };
        let start = place.checked_sub(from_start)?;
        let copies = siblings(device, start, &superblock);
        (!copies.is_empty()).then_some(copies)
    })
}

/// A superblock that verifies at a byte of a device.
fn read_copy(device: &dyn BlockDevice, offset: u64) -> Option<Superblock> {
    if offset.checked_add(Superblock::SIZE as u64)? > device.size() {
        return None;
    }
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(offset, &mut bytes).ok()?;
    let superblock = *Superblock::view(&bytes);
    superblock.verify().ok()?;
    let is_journal = superblock.features().has(Feature::JOURNAL_DEV);
    (!is_journal && Geometry::of(&superblock).is_ok()).then_some(superblock)
}

/// The copies that a file system has and that are there, as `superblock` describes it. Where it begins elsewhere than
/// the device, its first superblock counts as one.
fn siblings(device: &Arc<dyn BlockDevice>, start: u64, superblock: &Superblock) -> Vec<Copy> {
    let Ok(geometry) = Geometry::of(superblock) else {
        return Vec::new();
    };
    let first = usize::from(start == 0);
    // With `sparse_super`, few of these groups have one; the bound on the groups looked at is the same.
    let groups = geometry
        .all_groups()
        .take(1 << 20)
        .skip(first)
        .filter(|group| geometry.has_super(*group))
        .take(4 * MAX_COPIES);
    let mut copies: Vec<Copy> = Vec::new();
    for group in groups {
        let block = match group.0 {
            0 => geometry.primary_superblock(),
            _ => geometry.group_first_block(group),
        };
        let offset = match group.0 {
            0 => Superblock::OFFSET,
            _ => block.offset(geometry.block_size()),
        };
        let found = start
            .checked_add(offset)
            .and_then(|at| read_copy(&**device, at));
        if found.is_none_or(|found| found.uuid() != superblock.uuid()) {
            continue;
        }
        // One readable copy is enough.
        let is_known = copies
            .iter()
            .any(|copy| copy.has_descriptors && copy.has_root);
        copies.push(Copy {
            start,
            block_size: geometry.block_size().bytes_u64(),
            block: if group.0 == 0 { 0 } else { block.0 },
            has_descriptors: is_known
                || verify_descriptors(&**device, &geometry, start, block) == Verdict::Whole,
            has_root: is_known || has_root(device, start, group.0, block, &geometry),
        });
        if copies.len() >= MAX_COPIES {
            break;
        }
    }
    copies
}

/// Whether a copy leads to the root directory.
fn has_root(
    device: &Arc<dyn BlockDevice>,
    start: u64,
    group: u32,
    block: FsBlock,
    geometry: &Geometry,
) -> bool {
    let read = || {
        let len = device.size().checked_sub(start)?;
        let place = Slice::new(Arc::clone(device), start, len).ok()?;
        let kib = block.offset(geometry.block_size()) / 1024;
        let options = MountOptions {
            superblock: (group > 0).then_some(kib),
            ..MountOptions::default()
        };
        let fs = Fs::open_with(Arc::new(place), &options).ok()?;
        fs.read_dir("/")
            .ok()?
            .all(|entry| entry.is_ok())
            .then_some(())
    };
    read().is_some()
}

/// Whether the device holds the whole file system, and the descriptors that are in use verify, as far as they are
/// looked at.
#[cfg(feature = "check")]
pub(crate) fn can_trust_descriptors(device: &dyn BlockDevice, superblock: &Superblock) -> bool {
    Geometry::new(superblock, device.size()).is_ok_and(|geometry| {
        match verify_descriptors(device, &geometry, 0, geometry.primary_superblock()) {
            Verdict::Whole | Verdict::TooMany => true,
            Verdict::Damaged | Verdict::Unreadable => false,
        }
    })
}

/// What descriptors are like.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Whole,
    Damaged,
    /// The device can't read them all.
    Unreadable,
    /// There are more than are looked at, and those verify.
    TooMany,
}

/// Verifies the descriptors that belong to the copy of the superblock at `block`.
fn verify_descriptors(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    start: u64,
    block: FsBlock,
) -> Verdict {
    let size = geometry.block_size();
    let mut bytes = vec![0; size.bytes()];
    let mut groups = geometry.all_groups();
    for index in 0..geometry.desc_blocks() {
        let place = geometry.desc_block_of_copy(block, index).offset(size);
        let offset = start.saturating_add(place);
        if index >= MAX_DESC_BLOCKS {
            return Verdict::TooMany;
        }
        if device.read_at(offset, &mut bytes).is_err() {
            return Verdict::Unreadable;
        }
        let raws = bytes.chunks_exact(geometry.desc_size());
        let mut pairs = groups
            .by_ref()
            .take(geometry.descs_per_block() as usize)
            .zip(raws);
        if pairs.any(|(group, raw)| GroupDesc::verify(raw, geometry, group).is_err()) {
            return Verdict::Damaged;
        }
    }
    Verdict::Whole
}

#[cfg(test)]
mod tests {
    use device::MemoryDevice;

    use super::*;

    /// A device that can't read one block of 1 KiB.
    struct Worn(MemoryDevice, u64);

    impl BlockDevice for Worn {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
            let (first, end) = (offset >> 10, (offset + buf.len() as u64).div_ceil(1024));
            if (first..end).contains(&self.1) {
                Err(DeviceError::OutOfRange {
                    operation: "read",
                    offset,
                    len: buf.len() as u64,
                    size: self.size(),
                })
            } else {
                self.0.read_at(offset, buf)
            }
        }
    }

    #[test]
    fn descriptors_that_cant_be_read_are_not_trusted() {
        let bytes = corpus::seed("default-1k").bytes;
        let sb = *Superblock::view(bytes[1024..].first_chunk().unwrap());
        let descriptors = Geometry::of(&sb).unwrap().desc_block(0).0;
        for (block, is_trusted) in [
            (u64::MAX, true),
            (descriptors + 1, true),
            (descriptors, false),
        ] {
            let device = Worn(MemoryDevice::from_bytes(&bytes), block);
            assert_eq!(can_trust_descriptors(&device, &sb), is_trusted, "{block}");
            assert!(!is_descriptor_damaged(&device, &sb), "{block}");
        }
    }
}
