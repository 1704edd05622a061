//! Fast commits: changes since the last full commit as a list of tagged records, in an area of their own at the
//! journal's end. Little-endian, as ext4 and unlike the rest of the journal.
//!
//! ```text
//! block 0                              block 1                    block 2
//! | HEAD INODE ADD_RANGE CREAT ... PAD | INODE ... TAIL (to the end) | INODE ... TAIL |
//! ```
//!
//! A record is a tag, a length and a value, and never crosses a block. HEAD opens the area and names the
//! transaction; each fast commit ends with a TAIL that holds the CRC-32C (from 0) of all bytes since the last TAIL.
//! [`Scan`] reads an area block by block as the kernel's scan does and says which records count. Memory: constant.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum;
use crate::extent;
use crate::inode;
use crate::numbers::{Ino, LBlock, Tid};
use crate::site::{Corrupt, Site};
use crate::xattr;

const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREAT: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

const NAME_BYTES_MAX: usize = 255;
const INODE_BYTES_MIN: usize = 128;

/// What every record begins with (`struct ext4_fc_tl`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RecordHeader {
    pub(crate) fc_tag: U16,
    pub(crate) fc_len: U16,
}

/// The value of HEAD (`struct ext4_fc_head`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Head {
    pub(crate) fc_features: U32,
    pub(crate) fc_tid: U32,
}

/// The value of TAIL (`struct ext4_fc_tail`); zeros follow it to the block's end.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct FcTail {
    pub(crate) fc_tid: U32,
    pub(crate) fc_crc: U32,
}

/// The value of ADD_RANGE (`struct ext4_fc_add_range`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct AddRange {
    pub(crate) fc_ino: U32,
    pub(crate) fc_ex: [u8; 12],
}

/// The value of DEL_RANGE (`struct ext4_fc_del_range`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct DelRange {
    pub(crate) fc_ino: U32,
    pub(crate) fc_lblk: U32,
    pub(crate) fc_len: U32,
}

/// What CREAT, LINK and UNLINK begin with; the name follows (`struct ext4_fc_dentry_info`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Dentry {
    pub(crate) fc_parent_ino: U32,
    pub(crate) fc_ino: U32,
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FcRecord<'a> {
    /// A file's blocks were mapped.
    AddRange {
        /// The file.
        ino: Ino,
        /// The extent as it stands in an extent tree's leaf.
        extent: [u8; 12],
    },
    /// A file's blocks were unmapped.
    DelRange {
        /// The file.
        ino: Ino,
        /// The first block.
        first: LBlock,
        /// How many blocks.
        blocks: u32,
    },
    /// A new inode got its first name.
    Creat(DentryInfo<'a>),
    /// An inode got another name.
    Link(DentryInfo<'a>),
    /// A name was removed.
    Unlink(DentryInfo<'a>),
    /// An inode changed.
    Inode {
        /// Its number.
        ino: Ino,
        /// The inode as on disk: its first 128 bytes at least, the whole at most.
        raw: &'a [u8],
    },
    /// Fills a block.
    Pad(&'a [u8]),
    /// Ends a fast commit.
    Tail {
        /// The transaction it belongs to.
        tid: Tid,
        /// CRC-32C of everything since the last tail.
        crc: u32,
        /// Zeros to the block's end.
        rest: &'a [u8],
    },
    /// Opens the area.
    Head {
        /// Must be 0: nothing else is known.
        features: u32,
        /// The transaction to which everything here belongs.
        tid: Tid,
    },
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DentryInfo<'a> {
    /// The directory.
    pub parent: Ino,
    /// What the name stands for.
    pub ino: Ino,
    /// The name: 1 to 255 bytes.
    pub name: &'a [u8],
}

impl<'a> DentryInfo<'a> {
    fn read(value: &'a [u8]) -> Option<DentryInfo<'a>> {
        let (dentry, name) = Dentry::read_from_prefix(value).ok()?;
        let named = DentryInfo {
            parent: Ino(dentry.fc_parent_ino.get()),
            ino: Ino(dentry.fc_ino.get()),
            name,
        };
        (1..=NAME_BYTES_MAX).contains(&name.len()).then_some(named)
    }
}

impl<'a> FcRecord<'a> {
    /// Reads the record at the beginning of `bytes` and returns how many bytes it has, for inodes of `inode_size`
    /// bytes.
    ///
    /// # Errors
    /// When the tag is unknown, the length is not one that the tag can have, or it passes the end of `bytes`.
    pub fn read(bytes: &'a [u8], inode_size: usize) -> Result<(FcRecord<'a>, usize), Corrupt> {
        let wrong = || Corrupt::at(Site::FastCommitRecord);
        let (header, rest) = RecordHeader::read_from_prefix(bytes).map_err(|_| wrong())?;
        let len = usize::from(header.fc_len.get());
        let value = rest.get(..len).ok_or_else(wrong)?;
        let record = FcRecord::from_value(header.fc_tag.get(), value, inode_size);
        Ok((record.ok_or_else(wrong)?, size_of::<RecordHeader>() + len))
    }

    fn from_value(tag: u16, value: &'a [u8], inode_size: usize) -> Option<FcRecord<'a>> {
        Some(match tag {
            ADD_RANGE => {
                let range = AddRange::read_from_bytes(value).ok()?;
                FcRecord::AddRange {
                    ino: Ino(range.fc_ino.get()),
                    extent: range.fc_ex,
                }
            }
            DEL_RANGE => {
                let range = DelRange::read_from_bytes(value).ok()?;
                FcRecord::DelRange {
                    ino: Ino(range.fc_ino.get()),
                    first: LBlock(range.fc_lblk.get()),
                    blocks: range.fc_len.get(),
                }
            }
            CREAT => FcRecord::Creat(DentryInfo::read(value)?),
            LINK => FcRecord::Link(DentryInfo::read(value)?),
            UNLINK => FcRecord::Unlink(DentryInfo::read(value)?),
            INODE => {
                let (ino, raw) = U32::read_from_prefix(value).ok()?;
                if raw.len() < INODE_BYTES_MIN || raw.len() > inode_size {
                    return None;
                }
                FcRecord::Inode {
                    ino: Ino(ino.get()),
                    raw,
                }
            }
            PAD => FcRecord::Pad(value),
            TAIL => {
                let (tail, rest) = FcTail::read_from_prefix(value).ok()?;
                FcRecord::Tail {
                    tid: Tid(tail.fc_tid.get()),
                    crc: tail.fc_crc.get(),
                    rest,
                }
            }
            HEAD => {
                let head = Head::read_from_bytes(value).ok()?;
                FcRecord::Head {
                    features: head.fc_features.get(),
                    tid: Tid(head.fc_tid.get()),
                }
            }
            _ => return None,
        })
    }

    fn tag(&self) -> u16 {
        match self {
            FcRecord::AddRange { .. } => ADD_RANGE,
            FcRecord::DelRange { .. } => DEL_RANGE,
            FcRecord::Creat(_) => CREAT,
            FcRecord::Link(_) => LINK,
            FcRecord::Unlink(_) => UNLINK,
            FcRecord::Inode { .. } => INODE,
            FcRecord::Pad(_) => PAD,
            FcRecord::Tail { .. } => TAIL,
            FcRecord::Head { .. } => HEAD,
        }
    }

    /// Appends the record's bytes to `out`. A value longer than 65535 bytes is cut; records fit a block.
    pub fn write(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&[0; size_of::<RecordHeader>()]);
        match *self {
            FcRecord::AddRange { ino, extent } => {
                let range = AddRange {
                    fc_ino: ino.0.into(),
                    fc_ex: extent,
                };
                out.extend_from_slice(range.as_bytes());
            }
            FcRecord::DelRange { ino, first, blocks } => {
                let range = DelRange {
                    fc_ino: ino.0.into(),
                    fc_lblk: first.0.into(),
                    fc_len: blocks.into(),
                };
                out.extend_from_slice(range.as_bytes());
            }
            FcRecord::Creat(named) | FcRecord::Link(named) | FcRecord::Unlink(named) => {
                let dentry = Dentry {
                    fc_parent_ino: named.parent.0.into(),
                    fc_ino: named.ino.0.into(),
                };
                out.extend_from_slice(dentry.as_bytes());
                out.extend_from_slice(named.name);
            }
            FcRecord::Inode { ino, raw } => {
                out.extend_from_slice(&ino.0.to_le_bytes());
                out.extend_from_slice(raw);
            }
            FcRecord::Pad(bytes) => out.extend_from_slice(bytes),
            FcRecord::Tail { tid, crc, rest } => {
                let tail = FcTail {
                    fc_tid: tid.0.into(),
                    fc_crc: crc.into(),
                };
                out.extend_from_slice(tail.as_bytes());
                out.extend_from_slice(rest);
            }
            FcRecord::Head { features, tid } => {
                let head = Head {
                    fc_features: features.into(),
                    fc_tid: tid.0.into(),
                };
                out.extend_from_slice(head.as_bytes());
            }
        }
        let end = at + size_of::<RecordHeader>();
        let len = u16::try_from(out.len() - end).unwrap_or(u16::MAX);
        out.truncate(end + usize::from(len));
        let header = RecordHeader {
            fc_tag: self.tag().into(),
            fc_len: len.into(),
        };
        out[at..end].copy_from_slice(header.as_bytes());
    }

    /// Whether the record describes a change; HEAD, PAD and TAIL are structure only.
    #[must_use]
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            FcRecord::Pad(_) | FcRecord::Tail { .. } | FcRecord::Head { .. }
        )
    }
}

/// Whether an INODE record with `extra_size` bytes of extra fields, for a file with extents, replaces all
/// of a slot's contents. Linux and e2fsck do not overwrite a block area that begins like a map, nor anything after the
/// extra fields.
#[must_use]
pub fn is_replaced_by_record(slot: &[u8], extra_size: usize) -> bool {
    let attributes = slot
        .get(inode::BASE_SIZE + extra_size..)
        .unwrap_or_default();
    inode::Inode::parse(slot).is_ok_and(|inode| extent::is_blank(inode.block_area()))
        && !xattr::is_area(attributes)
}

/// The records of one block, in order; ends after the first that can't be read.
pub fn records(
    block: &[u8],
    inode_size: usize,
) -> impl Iterator<Item = Result<FcRecord<'_>, Corrupt>> {
    let mut rest = block;
    std::iter::from_fn(move || {
        if rest.len() < size_of::<RecordHeader>() {
            return None;
        }
        match FcRecord::read(rest, inode_size) {
            Ok((record, len)) => {
                rest = &rest[len..];
                Some(Ok(record))
            }
            Err(corrupt) => {
                rest = &[];
                Some(Err(corrupt))
            }
        }
    })
}

/// What a scan of the area found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FcScan {
    /// Fast commits that are complete (their tail is there and its checksum fits) and say that something changed.
    pub commits: u32,
    /// Records that say what changed, in those commits.
    pub changes: u32,
    /// Blocks of the area that those commits fill.
    pub blocks: u32,
    /// What ended the scan early, when that means damage and not just the end: the kernel then gives up the mount.
    pub damage: Option<Corrupt>,
}

/// Whether the scan wants the next block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanStep {
    /// More may follow.
    Continue,
    /// The end was reached.
    Stop,
}

/// Reads the area block by block (`ext4_fc_replay_scan`).
#[derive(Clone, Debug)]
pub struct Scan {
    expected: Tid,
    inode_size: usize,
    blocks: u32,
    crc: u32,
    /// Changes since the last tail.
    changes: u32,
    /// Whether a complete fast commit was found, be it an empty one.
    is_valid: bool,
    /// Where the last fast commit that counts ends in its last block.
    end: usize,
    found: FcScan,
}

impl Scan {
    /// A scan for fast commits of transaction `expected` (the one after the last full commit), of a file system with
    /// inodes of `inode_size` bytes.
    #[must_use]
    pub fn new(expected: Tid, inode_size: usize) -> Scan {
        Scan {
            expected,
            inode_size,
            blocks: 0,
            crc: 0,
            changes: 0,
            is_valid: false,
            end: 0,
            found: FcScan::default(),
        }
    }

    /// Of the last block that what was found fills, the bytes that it fills.
    #[must_use]
    pub fn bytes_of_last_block(&self) -> usize {
        self.end
    }

    /// What was found so far.
    #[must_use]
    pub fn found(&self) -> FcScan {
        self.found
    }

    /// Reads the next block of the area.
    pub fn block(&mut self, block: &[u8]) -> ScanStep {
        let opens = U16::read_from_prefix(block).is_ok_and(|(tag, _)| tag.get() == HEAD);
        if self.blocks == 0 && !opens {
            return ScanStep::Stop;
        }
        self.blocks = self.blocks.saturating_add(1);
        let mut rest = block;
        while rest.len() >= size_of::<RecordHeader>() {
            let (record, len) = match FcRecord::read(rest, self.inode_size) {
                Ok(read) => read,
                Err(corrupt) => return self.stop(Some(corrupt)),
            };
            let (bytes, after) = rest.split_at(len);
            let before = self.found.commits;
            if self.record(&record, bytes) == ScanStep::Stop {
                return ScanStep::Stop;
            }
            if self.found.commits != before {
                self.end = block.len() - after.len();
            }
            rest = after;
        }
        ScanStep::Continue
    }

    /// Ends the scan. Anything unreadable after a complete fast commit is what an older one left behind.
    fn stop(&mut self, damage: Option<Corrupt>) -> ScanStep {
        if !self.is_valid {
            self.found.damage = damage;
        }
        ScanStep::Stop
    }

    fn record(&mut self, record: &FcRecord<'_>, bytes: &[u8]) -> ScanStep {
        match *record {
            FcRecord::Head { features, tid } => {
                if features != 0 {
                    return self.stop(Some(Corrupt::at(Site::FastCommitFeatures)));
                }
                if tid != self.expected {
                    // An area that an older transaction used: nothing new is here.
                    return ScanStep::Stop;
                }
                self.crc = csum::crc32c(self.crc, bytes);
            }
            FcRecord::Tail { tid, crc, .. } => {
                // All of it but the checksum itself and what follows.
                self.crc = csum::crc32c(self.crc, &bytes[..bytes.len().min(8)]);
                if tid != self.expected || crc != self.crc {
                    return self.stop(Some(Corrupt::at(Site::FastCommitTail)));
                }
                self.is_valid = true;
                if self.changes > 0 {
                    self.found.commits = self.found.commits.saturating_add(1);
                    self.found.changes = self.found.changes.saturating_add(self.changes);
                    self.found.blocks = self.blocks;
                }
                self.changes = 0;
                self.crc = 0;
            }
            _ => {
                self.crc = csum::crc32c(self.crc, bytes);
                if record.is_change() {
                    self.changes = self.changes.saturating_add(1);
                }
            }
        }
        ScanStep::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One fast commit of transaction 7 that fills one block: HEAD (unless a later one), a few records, TAIL.
    fn block(first: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        if first {
            let head = FcRecord::Head {
                features: 0,
                tid: Tid(7),
            };
            head.write(&mut bytes);
        }
        let named = DentryInfo {
            parent: Ino(2),
            ino: Ino(12),
            name: b"file",
        };
        FcRecord::Inode {
            ino: Ino(12),
            raw: &[1; 160],
        }
        .write(&mut bytes);
        FcRecord::Creat(named).write(&mut bytes);
        FcRecord::DelRange {
            ino: Ino(12),
            first: LBlock(1),
            blocks: 2,
        }
        .write(&mut bytes);
        let rest = [0; 1024];
        let at = bytes.len();
        let tail = |crc| FcRecord::Tail {
            tid: Tid(7),
            crc,
            rest: &rest[..1024 - at - 12],
        };
        tail(0).write(&mut bytes);
        let crc = csum::crc32c(0, &bytes[..at + 8]);
        bytes.truncate(at);
        tail(crc).write(&mut bytes);
        bytes
    }

    #[test]
    fn two_fast_commits_are_found_and_old_bytes_after_them_end_the_scan() {
        let mut scan = Scan::new(Tid(7), 256);
        assert_eq!(scan.block(&block(true)), ScanStep::Continue);
        assert_eq!(scan.block(&block(false)), ScanStep::Continue);
        let mut torn = block(false);
        torn[9] ^= 1;
        assert_eq!(scan.block(&torn), ScanStep::Stop);
        let expected = FcScan {
            commits: 2,
            changes: 6,
            blocks: 2,
            damage: None,
        };
        assert_eq!(scan.found(), expected);
    }

    #[test]
    fn a_torn_first_commit_is_damage_and_an_old_area_is_not() {
        let mut torn = block(true);
        torn[100] ^= 1;
        let mut scan = Scan::new(Tid(7), 256);
        assert_eq!(scan.block(&torn), ScanStep::Stop);
        let damage = scan.found().damage.unwrap();
        assert_eq!(damage.site(), Site::FastCommitTail);
        let mut scan = Scan::new(Tid(8), 256);
        assert_eq!(scan.block(&block(true)), ScanStep::Stop);
        assert_eq!(scan.found(), FcScan::default());
        let mut scan = Scan::new(Tid(8), 256);
        assert_eq!(scan.block(&[0; 1024]), ScanStep::Stop);
        assert_eq!(scan.found(), FcScan::default());
    }

    #[test]
    fn behind_an_empty_commit_a_torn_one_is_no_damage_and_what_counts_ends_at_its_tail() {
        let mut bytes = Vec::new();
        let (features, tid) = (0, Tid(7));
        FcRecord::Head { features, tid }.write(&mut bytes);
        let (at, crc, rest) = (bytes.len(), 0, &[][..]);
        FcRecord::Tail { tid, crc, rest }.write(&mut bytes);
        let crc = csum::crc32c(0, &bytes[..at + 8]);
        bytes.truncate(at);
        FcRecord::Tail { tid, crc, rest }.write(&mut bytes);
        let empty = bytes.len();
        bytes.extend_from_slice(&block(false)[..1024 - empty]);
        let mut scan = Scan::new(Tid(7), 256);
        assert_eq!(scan.block(&bytes), ScanStep::Stop);
        assert_eq!(scan.found(), FcScan::default());
        assert_eq!(scan.bytes_of_last_block(), 0);
        // A whole one whose tail is followed by the next one in the same block.
        bytes.truncate(empty);
        let deleted = FcRecord::DelRange {
            ino: Ino(12),
            first: LBlock(1),
            blocks: 2,
        };
        let at = bytes.len();
        deleted.write(&mut bytes);
        let tail = bytes.len();
        FcRecord::Tail { tid, crc, rest }.write(&mut bytes);
        let crc = csum::crc32c(0, &bytes[at..tail + 8]);
        bytes.truncate(tail);
        FcRecord::Tail { tid, crc, rest }.write(&mut bytes);
        let end = bytes.len();
        deleted.write(&mut bytes);
        bytes.resize(1024, 0);
        let mut scan = Scan::new(Tid(7), 256);
        assert_eq!(scan.block(&bytes), ScanStep::Stop);
        let expected = FcScan {
            commits: 1,
            changes: 1,
            blocks: 1,
            damage: None,
        };
        assert_eq!(scan.found(), expected);
        assert_eq!(scan.bytes_of_last_block(), end);
    }

    #[test]
    fn records_read_back_as_written() {
        let original = block(true);
        let mut written = Vec::new();
        for record in records(&original, 256) {
            record.unwrap().write(&mut written);
        }
        assert_eq!(written, original);
        // An inode longer than the file system's is refused.
        assert!(records(&original, 128).any(|record| record.is_err()));
    }
}
