//! Quota files (format `vfsv1`): a header, then blocks of 1 KiB that form a radix tree from an id's four bytes to the
//! record of that id. Pure functions over blocks.
//!
//! ```text
//! block 0          header, then the tree's own counts
//! block 1          the root: 256 references, one for each value of the id's highest byte
//! three levels on  a data block: a header of 16 bytes, then 14 records
//! ```

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block of a quota file, whatever the file system's block size.
pub const BLOCK: usize = 1024;
/// The block that holds the root of the tree.
pub const ROOT: u32 = 1;
/// Blocks of references on the way from the root to a data block, the root included.
pub const DEPTH: usize = 4;
/// References in a block of the tree.
pub const REFERENCES: usize = BLOCK / 4;
/// Records in a data block.
pub const RECORDS: usize = (BLOCK - QuotaDataHeader::SIZE) / QuotaRecord::SIZE;
/// The version of the format with 64-bit counts.
pub const VERSION: u32 = 1;

/// Whose use a quota file counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order of the superblock's fields.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// The number that a quota file of this kind begins with.
    #[must_use]
    pub fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xD9C0_1F11,
            QuotaKind::Group => 0xD9C0_1927,
            QuotaKind::Project => 0xD9C0_3F14,
        }
    }

    /// The kind's name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        }
    }
}

/// The start of a quota file (`struct v2_disk_dqheader`, then `struct v2_disk_dqinfo`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct QuotaHeader {
    pub(crate) dqh_magic: U32,
    pub(crate) dqh_version: U32,
    pub(crate) dqi_bgrace: U32,
    pub(crate) dqi_igrace: U32,
    pub(crate) dqi_flags: U32,
    pub(crate) dqi_blocks: U32,
    pub(crate) dqi_free_blk: U32,
    pub(crate) dqi_free_entry: U32,
}

impl QuotaHeader {
    /// Bytes the header takes.
    pub const SIZE: usize = size_of::<QuotaHeader>();

    accessors! {
        /// The number that names the kind of file.
        magic, set_magic: u32 = dqh_magic;
        /// The version of the format.
        version, set_version: u32 = dqh_version;
        /// Seconds for which a use above the soft limit of blocks is allowed.
        block_grace, set_block_grace: u32 = dqi_bgrace;
        /// Seconds for which a use above the soft limit of inodes is allowed.
        inode_grace, set_inode_grace: u32 = dqi_igrace;
        /// Blocks of 1 KiB in the file.
        blocks, set_blocks: u32 = dqi_blocks;
        /// The first free block; 0 where the file has none.
        free_block, set_free_block: u32 = dqi_free_blk;
        /// The first data block with a free record; 0 where the file has none.
        free_entry, set_free_entry: u32 = dqi_free_entry;
    }

    /// The header of a file of this kind with no blocks yet, whose grace times are the kernel's defaults of a week.
    #[must_use]
    pub fn new(kind: QuotaKind) -> QuotaHeader {
        const WEEK: u32 = 7 * 24 * 60 * 60;
        let mut header = QuotaHeader::new_zeroed();
        header.set_magic(kind.magic());
        header.set_version(VERSION);
        header.set_block_grace(WEEK);
        header.set_inode_grace(WEEK);
        header
    }

    /// The header at the start of a quota file.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<QuotaHeader> {
        QuotaHeader::read_from_prefix(block).ok().map(|(it, _)| it)
    }

    /// Why the file can't be used as one of this kind with `bytes` bytes; `None` where it can.
    #[must_use]
    pub fn fault(&self, kind: QuotaKind, bytes: u64) -> Option<&'static str> {
        let held = bytes.div_ceil(BLOCK as u64);
        if self.magic() != kind.magic() {
            Some("it does not begin with the number of its kind")
        } else if self.version() != VERSION {
            Some("its version is not known")
        } else if bytes > 1 << 31 || u64::from(self.blocks()) > held {
            Some("it counts more blocks than it has")
        } else if self.free_block() >= self.blocks() || self.free_entry() >= self.blocks() {
            Some("its list of free blocks begins beyond its end")
        } else {
            None
        }
    }
}

/// The start of a data block (`struct qt_disk_dqdbheader`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct QuotaDataHeader {
    pub(crate) dqdh_next_free: U32,
    pub(crate) dqdh_prev_free: U32,
    pub(crate) dqdh_entries: U16,
    pub(crate) dqdh_pad1: U16,
    pub(crate) dqdh_pad2: U32,
}

impl QuotaDataHeader {
    /// Bytes the header takes.
    pub const SIZE: usize = size_of::<QuotaDataHeader>();
}

/// What one id uses and may use (`struct v2r1_disk_dqblk`).
#[derive(
    FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub struct QuotaRecord {
    pub(crate) dqb_id: U32,
    pub(crate) dqb_pad: U32,
    pub(crate) dqb_ihardlimit: U64,
    pub(crate) dqb_isoftlimit: U64,
    pub(crate) dqb_curinodes: U64,
    pub(crate) dqb_bhardlimit: U64,
    pub(crate) dqb_bsoftlimit: U64,
    pub(crate) dqb_curspace: U64,
    pub(crate) dqb_btime: U64,
    pub(crate) dqb_itime: U64,
}

impl QuotaRecord {
    /// Bytes a record takes.
    pub const SIZE: usize = size_of::<QuotaRecord>();

    /// A record of an id that uses nothing and has no limits.
    #[must_use]
    pub fn zeroed() -> QuotaRecord {
        QuotaRecord::new_zeroed()
    }

    accessors! {
        /// The id of the user, group or project.
        id, set_id: u32 = dqb_id;
        /// Inodes in use.
        inodes, set_inodes: u64 = dqb_curinodes;
        /// Bytes in use.
        space, set_space: u64 = dqb_curspace;
    }
}

/// The record in the bytes of one.
pub fn record_mut(slot: &mut [u8]) -> Option<&mut QuotaRecord> {
    QuotaRecord::mut_from_bytes(slot).ok()
}

/// A whole file of this kind with these records. `old` is the header whose grace times it keeps.
#[must_use]
pub fn file(kind: QuotaKind, old: Option<QuotaHeader>, records: &[QuotaRecord]) -> Vec<u8> {
    let mut header = QuotaHeader::new(kind);
    if let Some(old) = old {
        header.set_block_grace(old.block_grace());
        header.set_inode_grace(old.inode_grace());
    }
    // The header's block and the root.
    let mut file = vec![0; 2 * BLOCK];
    let mut blocks: u32 = 2;
    let mut add_block = |file: &mut Vec<u8>| {
        file.resize(file.len() + BLOCK, 0);
        blocks += 1;
        blocks - 1
    };
    for records in records.chunks(RECORDS) {
        let data = add_block(&mut file);
        let at = data as usize * BLOCK;
        let mut start = QuotaDataHeader::new_zeroed();
        start.dqdh_entries.set(records.len() as u16);
        file[at..at + QuotaDataHeader::SIZE].copy_from_slice(start.as_bytes());
        if records.len() < RECORDS {
            header.set_free_entry(data);
        }
        for (index, record) in records.iter().enumerate() {
            let at = at + QuotaDataHeader::SIZE + index * QuotaRecord::SIZE;
            file[at..at + QuotaRecord::SIZE].copy_from_slice(record.as_bytes());
            let mut node = ROOT;
            for (level, byte) in record.id().to_be_bytes().into_iter().enumerate() {
                let at = node as usize * BLOCK + 4 * usize::from(byte);
                let mut below = references(&file[at..at + 4]).next().unwrap_or(0);
                if level + 1 == DEPTH {
                    below = data;
                } else if below == 0 {
                    below = add_block(&mut file);
                }
                file[at..at + 4].copy_from_slice(&below.to_le_bytes());
                node = below;
            }
        }
    }
    header.set_blocks(blocks);
    file[..QuotaHeader::SIZE].copy_from_slice(header.as_bytes());
    file
}

/// The references in a block of the tree.
pub fn references(block: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let words = block.chunks_exact(4).take(REFERENCES);
    words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The records in use in a data block.
pub fn records(block: &[u8]) -> impl Iterator<Item = QuotaRecord> + '_ {
    let bytes = block.get(QuotaDataHeader::SIZE..).unwrap_or_default();
    let slots = bytes.chunks_exact(QuotaRecord::SIZE).take(RECORDS);
    slots
        .filter(|slot| slot.iter().any(|byte| *byte != 0))
        .filter_map(|slot| QuotaRecord::read_from_bytes(slot).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_where_any_byte_is_set() {
        let mut block = vec![0; BLOCK];
        let mut record = QuotaRecord::zeroed();
        record.set_space(4096);
        record.set_id(7);
        let at = QuotaDataHeader::SIZE + 3 * QuotaRecord::SIZE;
        block[at..at + QuotaRecord::SIZE].copy_from_slice(record.as_bytes());
        assert_eq!(records(&block).collect::<Vec<_>>(), [record]);
        assert_eq!(RECORDS, 14);
    }

    #[test]
    fn a_new_file_leads_to_each_record() {
        let ids = [0, 1, 255, 256, 65_536, 1_000_000, u32::MAX];
        let ids = ids.into_iter().chain(5000..5040);
        let written: Vec<QuotaRecord> = ids
            .map(|id| {
                let mut record = QuotaRecord::zeroed();
                record.set_id(id);
                record.set_space(4096);
                record
            })
            .collect();
        let file = file(QuotaKind::Group, None, &written);
        let header = QuotaHeader::read(&file).unwrap();
        assert_eq!(header.fault(QuotaKind::Group, file.len() as u64), None);
        for record in &written {
            let mut node = ROOT as usize;
            for byte in record.id().to_be_bytes() {
                let block = &file[node * BLOCK..(node + 1) * BLOCK];
                node = references(block).nth(byte.into()).unwrap() as usize;
            }
            let data = &file[node * BLOCK..(node + 1) * BLOCK];
            assert!(records(data).any(|it| it == *record), "{}", record.id());
        }
    }

    #[test]
    fn a_header_of_another_kind_or_with_lists_beyond_its_end_is_a_fault() {
        let mut header = QuotaHeader::new_zeroed();
        header.set_magic(QuotaKind::Group.magic());
        header.set_version(VERSION);
        header.set_blocks(6);
        assert_eq!(header.fault(QuotaKind::Group, 6 * 1024), None);
        assert!(header.fault(QuotaKind::User, 6 * 1024).is_some());
        assert!(header.fault(QuotaKind::Group, 4 * 1024).is_some());
        header.set_free_entry(6);
        assert!(header.fault(QuotaKind::Group, 6 * 1024).is_some());
    }
}
