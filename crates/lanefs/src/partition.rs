//! Partition tables: MBR with its extended partitions, and GPT with its backup.
//!
//! The tables are hostile input: every count, and the length of a chain of extended partitions, is bounded by a
//! constant below. If the disk's image was cut, a partition may begin or end beyond its end. It is listed, and read as
//! far as the disk goes, as in Linux.

use std::fmt;

use device::{BlockDevice, DeviceError};

/// The most entries of a GPT that are looked at (the usual number is 128).
const MAX_GPT_ENTRIES: u32 = 1024;
/// The most links of a chain of extended partitions that are followed.
const MAX_LOGICAL: u32 = 128;
/// The sector size of MBR, and of GPT on most disks.
const SECTOR: u64 = 512;

/// How a disk is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Scheme {
    /// A master boot record.
    Mbr,
    /// A GUID partition table.
    Gpt,
}

/// One partition of a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Partition {
    /// Its number, as Linux counts: from 1, logical ones of an MBR from 5.
    pub number: u32,
    /// The byte at which it begins.
    pub start: u64,
    /// Its length in bytes, by the table; it may reach beyond the disk's end.
    pub len: u64,
    /// What its table says it holds.
    pub kind: String,
    /// Its name, which only GPT has.
    pub name: String,
}

/// A disk's partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PartitionTable {
    /// How the disk is divided.
    pub scheme: Scheme,
    /// Its partitions, in the order of the table.
    pub partitions: Vec<Partition>,
    /// Whether the checksum of the partitions is wrong, and no copy of the table has a right one.
    pub is_damaged: bool,
}

impl Partition {
    /// How many of its bytes lie on a disk of `size` bytes.
    #[must_use]
    pub fn present(&self, size: u64) -> u64 {
        self.len.min(size.saturating_sub(self.start))
    }
}

impl PartitionTable {
    /// Reads the partition table of a disk; none if the disk has no table.
    ///
    /// # Errors
    /// When the device can't be read. A damaged table is not an error: entries that make no sense are left out.
    pub fn read(disk: &dyn BlockDevice) -> Result<Option<PartitionTable>, DeviceError> {
        if disk.size() < 2 * SECTOR {
            return Ok(None);
        }
        let mut boot = [0; SECTOR as usize];
        disk.read_at(0, &mut boot)?;
        if boot[510..] != [0x55, 0xAA] {
            // Of a GPT whose protective MBR was wiped, the rest may be there.
            return read_gpt(disk);
        }
        // What looks like a table but has other flags is code, as Linux sees it.
        if (0..4).any(|entry| boot[446 + 16 * entry] & 0x7F != 0) {
            return Ok(None);
        }
        let entries = mbr_entries(&boot);
        if entries.iter().any(|entry| entry.kind == 0xEE)
            && let Some(table) = read_gpt(disk)?
        {
            return Ok(Some(table));
        }
        read_mbr(disk, &entries)
    }

    /// The partition that these bytes lie in.
    #[must_use]
    pub fn holding(&self, bytes: std::ops::Range<u64>) -> Option<&Partition> {
        self.partitions.iter().find(|partition| {
            let end = partition.start.saturating_add(partition.len);
            partition.start <= bytes.start && bytes.end <= end
        })
    }

    /// The partition of this number.
    #[must_use]
    pub fn find(&self, number: u32) -> Option<&Partition> {
        self.partitions
            .iter()
            .find(|partition| partition.number == number)
    }
}

impl fmt::Display for PartitionTable {
    /// One line a partition, aligned.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, partition) in self.partitions.iter().enumerate() {
            let end = if index == 0 { "" } else { "\n" };
            let mib = partition.len.div_ceil(1 << 20);
            write!(
                f,
                "{end}{:>4}  {mib:>9} MiB  {}",
                partition.number, partition.kind
            )?;
            if !partition.name.is_empty() {
                write!(f, "  \"{}\"", partition.name)?;
            }
        }
        Ok(())
    }
}

/// An entry of an MBR or of an extended boot record, in sectors.
#[derive(Clone, Copy)]
struct MbrEntry {
    kind: u8,
    start: u64,
    sectors: u64,
}

impl MbrEntry {
    fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }

    /// The partition, if it is one; `base` is what its start counts from.
    fn partition(self, number: u32, base: u64) -> Option<Partition> {
        let start = base.checked_add(self.start)?.checked_mul(SECTOR)?;
        let len = self.sectors.checked_mul(SECTOR)?;
        let is_one = self.kind != 0 && len > 0 && start > 0;
        is_one.then(|| Partition {
            number,
            start,
            len,
            kind: mbr_kind(self.kind),
            name: String::new(),
        })
    }
}

fn mbr_entries(sector: &[u8; SECTOR as usize]) -> [MbrEntry; 4] {
    std::array::from_fn(|index| {
        let entry = &sector[446 + 16 * index..][..16];
        MbrEntry {
            kind: entry[4],
            start: u32_at(entry, 8).into(),
            sectors: u32_at(entry, 12).into(),
        }
    })
}

fn read_mbr(
    disk: &dyn BlockDevice,
    entries: &[MbrEntry; 4],
) -> Result<Option<PartitionTable>, DeviceError> {
    let mut partitions = Vec::new();
    for (number, entry) in (1..).zip(entries) {
        if !entry.is_extended() {
            partitions.extend(entry.partition(number, 0));
        }
    }
    for extended in entries.iter().filter(|entry| entry.is_extended()) {
        read_logical(disk, extended.start, &mut partitions)?;
    }
    let table = PartitionTable {
        scheme: Scheme::Mbr,
        partitions,
        is_damaged: false,
    };
    Ok((!table.partitions.is_empty()).then_some(table))
}

/// Follows the chain of extended boot records that begins at sector `first`.
fn read_logical(
    disk: &dyn BlockDevice,
    first: u64,
    partitions: &mut Vec<Partition>,
) -> Result<(), DeviceError> {
    let mut record = first;
    for number in (5..).take(MAX_LOGICAL as usize) {
        let Some(offset) = record.checked_mul(SECTOR) else {
            break;
        };
        if offset >= disk.size() || disk.size() - offset < SECTOR {
            break;
        }
        let mut sector = [0; SECTOR as usize];
        disk.read_at(offset, &mut sector)?;
        if sector[510..] != [0x55, 0xAA] {
            break;
        }
        let [logical, next, ..] = mbr_entries(&sector);
        partitions.extend(logical.partition(number, record));
        if !next.is_extended() || next.start == 0 {
            break;
        }
        record = first + next.start;
    }
    Ok(())
}

/// Reads a GPT, trying both sector sizes and the backup at the disk's end. Where none is whole, one whose header is
/// has to do.
fn read_gpt(disk: &dyn BlockDevice) -> Result<Option<PartitionTable>, DeviceError> {
    let mut damaged = None;
    for sector in [SECTOR, 4096] {
        let last = (disk.size() / sector).saturating_sub(1);
        for header in [1, last] {
            match read_gpt_at(disk, sector, header)? {
                Some(table) if table.is_damaged => damaged = damaged.or(Some(table)),
                Some(table) => return Ok(Some(table)),
                None => {}
            }
        }
    }
    Ok(damaged)
}

/// Reads the GPT whose header is this sector, if the header's checksum is right.
fn read_gpt_at(
    disk: &dyn BlockDevice,
    sector: u64,
    at: u64,
) -> Result<Option<PartitionTable>, DeviceError> {
    let Some(mut header) = read_bounded(disk, at.saturating_mul(sector), SECTOR)? else {
        return Ok(None);
    };
    let header_size = u32_at(&header, 12) as usize;
    if &header[..8] != b"EFI PART" || !(92..=512).contains(&header_size) {
        return Ok(None);
    }
    let (header_crc, entries_crc) = (u32_at(&header, 16), u32_at(&header, 88));
    let (first, count, entry_size) = (
        u64_at(&header, 72),
        u32_at(&header, 80),
        u32_at(&header, 84),
    );
    header[16..20].fill(0);
    let sane = count <= MAX_GPT_ENTRIES && (128..=4096).contains(&entry_size);
    if crc32(&header[..header_size]) != header_crc || !sane {
        return Ok(None);
    }
    let len = u64::from(count) * u64::from(entry_size);
    let Some(entries) = read_bounded(disk, first.saturating_mul(sector), len)? else {
        return Ok(None);
    };
    let partitions = (1..)
        .zip(entries.chunks_exact(entry_size as usize))
        .filter_map(|(number, entry)| gpt_partition(number, entry, sector))
        .collect();
    Ok(Some(PartitionTable {
        scheme: Scheme::Gpt,
        partitions,
        is_damaged: crc32(&entries) != entries_crc,
    }))
}

fn gpt_partition(number: u32, entry: &[u8], sector: u64) -> Option<Partition> {
    if entry[..16] == [0; 16] {
        return None;
    }
    let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
    let start = first.checked_mul(sector)?;
    let len = last
        .checked_sub(first)?
        .checked_add(1)?
        .checked_mul(sector)?;
    let units: Vec<u16> = entry[56..128]
        .chunks_exact(2)
        .map(|unit| u16::from_le_bytes([unit[0], unit[1]]))
        .take_while(|unit| *unit != 0)
        .collect();
    let name = String::from_utf16_lossy(&units).replace(char::is_control, "?");
    Some(Partition {
        number,
        start,
        len,
        kind: gpt_kind(entry),
        name,
    })
}

fn mbr_kind(kind: u8) -> String {
    match kind {
        0x01 | 0x04 | 0x06 | 0x0B | 0x0C | 0x0E => "FAT",
        0x07 => "NTFS or exFAT",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x8E => "Linux LVM",
        0xEE => "GPT protective",
        0xEF => "EFI system",
        0xFD => "Linux RAID",
        _ => return format!("type {kind:#04x}"),
    }
    .to_owned()
}

fn gpt_kind(entry: &[u8]) -> String {
    let id = format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        u32_at(entry, 0),
        u16::from_le_bytes([entry[4], entry[5]]),
        u16::from_le_bytes([entry[6], entry[7]]),
        u16::from_be_bytes([entry[8], entry[9]]),
        entry[10..16]
            .iter()
            .fold(0_u64, |number, byte| number << 8 | u64::from(*byte)),
    );
    match id.as_str() {
        "0fc63daf-8483-4772-8e79-3d69d8477de4" => "Linux filesystem",
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709" => "Linux root (x86-64)",
        "b921b045-1df0-41c3-af44-4c6f280d3fae" => "Linux root (arm64)",
        "933ac7e1-2eb4-4f13-b844-0e14e2aef915" => "Linux home",
        "bc13c2ff-59e6-4262-a352-b275fd6f7172" => "Linux extended boot",
        "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f" => "Linux swap",
        "e6d6d379-f507-44c2-a23c-238f2a3df928" => "Linux LVM",
        "a19d880f-05fc-4d3b-a006-743f0f84911e" => "Linux RAID",
        "c12a7328-f81f-11d2-ba4b-00a0c93ec93b" => "EFI system",
        "21686148-6449-6e6f-744e-656564454649" => "BIOS boot",
        "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7" => "Microsoft basic data",
        _ => return format!("type {id}"),
    }
    .to_owned()
}

/// Reads this number of bytes, if the disk has them there. `len` comes from constants above or is bounded by them.
fn read_bounded(
    disk: &dyn BlockDevice,
    offset: u64,
    len: u64,
) -> Result<Option<Vec<u8>>, DeviceError> {
    if offset >= disk.size() || len > disk.size() - offset {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    disk.read_at(offset, &mut bytes)?;
    Ok(Some(bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// The CRC-32 of GPT (that of zip and Ethernet), a bit at a time: at most 4 MiB are ever summed.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let low = crc & 1;
            (crc >> 1) ^ (0xEDB8_8320 & low.wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_usual_crc_32() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
    }
}
