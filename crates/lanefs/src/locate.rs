//! Finds the file system on a device: on the whole device, on a partition, or from an offset on. If the place holds
//! something else than ext2, ext3 or ext4, names that.

use std::fmt;

use device::{BlockDevice, DeviceError, Slice};
use sync::Arc;

use crate::partition::PartitionTable;
use crate::probe::{Content, probe};

/// Where the first superblock ends.
const FIRST_SUPERBLOCK_END: u64 = 2048;

/// Where on a device a file system lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Location {
    /// It takes the whole device.
    #[default]
    Whole,
    /// It is on a partition, which is numbered as in Linux.
    Partition(u32),
    /// It begins at this byte and ends at the end of the device.
    Offset(u64),
}

/// Why a place does not hold an ext2, ext3 or ext4 file system.
#[derive(Debug)]
#[non_exhaustive]
pub enum LocateError {
    /// The device can't be read.
    Device(DeviceError),
    /// A partition was given, but the device has no partition table.
    NoTable,
    /// The disk does not have the partition.
    NoSuchPartition {
        /// The number of the partition.
        number: u32,
        /// The partitions that the disk has.
        table: PartitionTable,
    },
    /// The partition begins beyond the end of the device.
    PartitionBeyondEnd {
        /// The number of the partition.
        number: u32,
        /// The byte at which it begins.
        start: u64,
        /// The device's size in bytes.
        size: u64,
    },
    /// The offset is beyond the end of the device.
    BeyondEnd {
        /// The offset in bytes.
        offset: u64,
        /// The device's size in bytes.
        size: u64,
    },
    /// The device ends within the superblock, after this number of bytes.
    CutSuperblock(u64),
    /// The device has no bytes.
    Empty,
    /// The device has this number of bytes, fewer than a superblock needs, and the bytes do not show what they are.
    TooShort(u64),
    /// The place holds something else; never [`Content::Ext`].
    NotExt(Content),
}

impl fmt::Display for LocateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocateError::Device(error) => error.fmt(f),
            LocateError::NoTable => f.write_str("the partition table is missing or empty"),
            LocateError::NoSuchPartition { number, table } if table.partitions.is_empty() => {
                write!(f, "no partition {number}: the partition table is empty")
            }
            LocateError::NoSuchPartition { number, table } => {
                write!(
                    f,
                    "no partition {number} among the {}",
                    table.partitions.len()
                )
            }
            LocateError::PartitionBeyondEnd {
                number,
                start,
                size,
            } => write!(
                f,
                "partition {number} is missing: it begins at byte {start}, and the image ends after {size} bytes"
            ),
            LocateError::CutSuperblock(size) => write!(
                f,
                "the image is truncated: it ends after {size} bytes, within the superblock, and can't be read"
            ),
            LocateError::Empty => f.write_str("it is empty"),
            LocateError::TooShort(1) => f.write_str("it has 1 byte, too few for a file system"),
            LocateError::TooShort(size) => {
                write!(f, "it has {size} bytes, too few for a file system")
            }
            LocateError::BeyondEnd { offset, size } => {
                write!(f, "offset {offset} lies beyond the end ({size} bytes)")
            }
            LocateError::NotExt(Content::Disk(table)) if table.partitions.is_empty() => {
                f.write_str("this is a whole disk whose partition table is empty")
            }
            LocateError::NotExt(Content::Disk(table)) => {
                let count = table.partitions.len();
                let s = if count == 1 { "" } else { "s" };
                write!(
                    f,
                    "this is a whole disk with {count} partition{s}, not a file system"
                )
            }
            LocateError::NotExt(Content::Foreign(foreign)) => {
                write!(
                    f,
                    "this is {foreign}, not an ext2, ext3 or ext4 file system"
                )
            }
            LocateError::NotExt(Content::Zeros) => {
                f.write_str("there are only zeros where a file system would begin")
            }
            LocateError::NotExt(Content::Ext | Content::Unknown) => f.write_str(
                "this is not an ext2, ext3 or ext4 file system (no magic number at byte 1080)",
            ),
        }
    }
}

impl std::error::Error for LocateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LocateError::Device(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DeviceError> for LocateError {
    fn from(error: DeviceError) -> LocateError {
        LocateError::Device(error)
    }
}

/// The part of `device` at `location`, whatever it holds. A partition that reaches beyond the device's end ends there.
///
/// # Errors
/// When the place does not exist, or the partition table can't be read.
pub fn place(
    device: Arc<dyn BlockDevice>,
    location: Location,
) -> Result<Arc<dyn BlockDevice>, LocateError> {
    let (start, len) = match location {
        Location::Whole => return Ok(device),
        Location::Offset(offset) => {
            let size = device.size();
            if offset >= size {
                return Err(LocateError::BeyondEnd { offset, size });
            }
            (offset, size - offset)
        }
        Location::Partition(number) => {
            let table = PartitionTable::read(&*device)?.ok_or(LocateError::NoTable)?;
            match table.find(number) {
                Some(partition) => match partition.present(device.size()) {
                    0 => {
                        let (start, size) = (partition.start, device.size());
                        return Err(LocateError::PartitionBeyondEnd {
                            number,
                            start,
                            size,
                        });
                    }
                    present => (partition.start, present),
                },
                None => return Err(LocateError::NoSuchPartition { number, table }),
            }
        }
    };
    Ok(Arc::new(Slice::new(device, start, len)?))
}

/// The file system at `location`.
///
/// # Errors
/// As [`place`], and when the place does not hold ext2, ext3 or ext4.
pub fn locate(
    device: Arc<dyn BlockDevice>,
    location: Location,
) -> Result<Arc<dyn BlockDevice>, LocateError> {
    let device = place(device, location)?;
    match probe(&*device)? {
        Content::Ext if device.size() < FIRST_SUPERBLOCK_END => {
            Err(LocateError::CutSuperblock(device.size()))
        }
        Content::Ext => Ok(device),
        // Nothing else was recognised there, so it may be a file system that lost its superblock.
        Content::Unknown if is_rebuildable(&device) => Ok(device),
        Content::Zeros | Content::Unknown if device.size() == 0 => Err(LocateError::Empty),
        Content::Zeros | Content::Unknown if device.size() < FIRST_SUPERBLOCK_END => {
            Err(LocateError::TooShort(device.size()))
        }
        other => Err(LocateError::NotExt(other)),
    }
}

/// Whether a copy or the journal has the superblock. If that can't be read, opening the file system reports it.
fn is_rebuildable(device: &Arc<dyn BlockDevice>) -> bool {
    engine::is_rebuildable(device).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use device::MemoryDevice;

    use super::*;

    fn disk_with_linux_partition() -> MemoryDevice {
        let disk = MemoryDevice::new(8 << 20);
        let mut boot = [0_u8; 512];
        boot[446 + 4] = 0x83;
        boot[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
        boot[446 + 12..446 + 16].copy_from_slice(&4096_u32.to_le_bytes());
        boot[510..].copy_from_slice(&[0x55, 0xAA]);
        disk.write_at(0, &boot).unwrap();
        disk.write_at((1 << 20) + 1080, &[0x53, 0xEF]).unwrap();
        disk
    }

    #[test]
    fn a_partition_is_found_by_number_and_by_offset() {
        let disk: Arc<dyn BlockDevice> = Arc::new(disk_with_linux_partition());
        let found = locate(Arc::clone(&disk), Location::Partition(1)).unwrap();
        assert_eq!(found.size(), 2 << 20);
        let found = locate(Arc::clone(&disk), Location::Offset(1 << 20)).unwrap();
        assert_eq!(found.size(), 7 << 20);
        let error = locate(Arc::clone(&disk), Location::Whole).err().unwrap();
        assert!(
            error.to_string().contains("a whole disk with 1 partition,"),
            "{error}"
        );
        let error = locate(disk, Location::Partition(2)).err().unwrap();
        assert!(matches!(
            error,
            LocateError::NoSuchPartition { number: 2, .. }
        ));
    }

    #[test]
    fn a_chain_of_extended_partitions_that_loops_ends() {
        let disk = MemoryDevice::new(1 << 20);
        let mut record = [0_u8; 512];
        record[446 + 4] = 0x83;
        record[446 + 8..446 + 12].copy_from_slice(&1_u32.to_le_bytes());
        record[446 + 12..446 + 16].copy_from_slice(&1_u32.to_le_bytes());
        record[462 + 4] = 0x05;
        record[462 + 8..462 + 12].copy_from_slice(&2_u32.to_le_bytes());
        record[510..].copy_from_slice(&[0x55, 0xAA]);
        disk.write_at(0, &record).unwrap();
        disk.write_at(2 * 512, &record).unwrap();
        disk.write_at(4 * 512, &record).unwrap();
        let table = PartitionTable::read(&disk).unwrap().unwrap();
        assert!(table.partitions.len() <= 129);
        assert_eq!(table.partitions[1].number, 5);
    }

    #[test]
    fn what_is_no_ext4_is_named() {
        for (at, bytes, name) in [
            (0, &b"QFI\xfb"[..], "a qcow2 disk image"),
            (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
            (0, b"hsqs", "a squashfs file system"),
            (0, b"\x1f\x8b\x08", "a gzip file"),
        ] {
            let device = MemoryDevice::new(1 << 20);
            device.write_at(at, bytes).unwrap();
            let error = locate(Arc::new(device), Location::Whole).err().unwrap();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
