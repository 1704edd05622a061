//! Directory entries: the records that name inodes.
//!
//! ```text
//! | inode 4 | rec_len 2 | name_len 1 | file_type 1 | name ... | (hash 4, minor hash 4) | slack to rec_len |
//! ```
//!
//! The records of a block follow each other without a gap; a record with inode 0 is free. With metadata_csum the last
//! twelve bytes look like a free record and hold the block's checksum. Without the filetype feature the file_type byte
//! is the upper half of a 16-bit name length, and always zero. In a directory that is both encrypted and casefolded
//! each name is followed by its hash, because the hash can't be computed without the plain name.
//!
//! Any bytes can be read safely: every length is checked, as the kernel checks it, before it is used. Each record is at
//! least twelve bytes long, so iteration ends.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum::crc32c;
use crate::dirhash::NameHash;
use crate::features::Feature;
use crate::geometry::Geometry;
use crate::inode_words::{FileType, Flags};
use crate::numbers::{BlockSize, Ino};
use crate::site::{Corrupt, Site};

mod edit;
mod walk;

pub use edit::{RecordRoom, insert, remove, retarget, room};
pub use walk::find;

/// The longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes before a record's name.
pub const HEADER_LEN: usize = 8;
/// Bytes of the shortest record: the header and a name of up to four bytes.
pub const RECORD_MIN: usize = 12;
/// Bytes at a block's end that hold its checksum.
pub const TAIL_LEN: usize = 12;
/// Bytes of the hash kept behind a name.
const HASH_LEN: usize = 8;
/// The file type that marks a checksum tail.
const TAIL_FILE_TYPE: u8 = 0xDE;

/// A record without its name (`ext4_dir_entry_2`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct Header {
    pub(crate) inode: U32,
    pub(crate) rec_len: U16,
    pub(crate) name_len: u8,
    pub(crate) file_type: u8,
}

/// The hash behind a name (`ext4_dir_entry_hash`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct StoredHash {
    pub(crate) hash: U32,
    pub(crate) minor_hash: U32,
}

/// The checksum at a block's end (`ext4_dir_entry_tail`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct DirentTail {
    pub(crate) det_reserved_zero1: U32,
    pub(crate) det_rec_len: U16,
    pub(crate) det_reserved_zero2: u8,
    pub(crate) det_reserved_ft: u8,
    pub(crate) det_checksum: U32,
}

/// The form of a directory's records, which follows from the superblock's features and the inode's flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirForm {
    /// The file system's block size, on which the encoding of record lengths depends.
    pub block_size: BlockSize,
    /// The filetype feature.
    pub filetype: bool,
    /// Whether blocks end in a checksum: the metadata_csum feature, except in inline directories.
    pub checksum: bool,
    /// Whether each name is followed by its hash: in directories that are both encrypted and casefolded.
    pub hashes: bool,
    /// The highest inode number of the file system.
    pub max_ino: Ino,
}

impl DirForm {
    /// The form of a directory with these flags.
    #[must_use]
    pub fn of(geometry: &Geometry, flags: Flags) -> DirForm {
        DirForm {
            block_size: geometry.block_size(),
            filetype: geometry.has(Feature::FILETYPE),
            checksum: geometry.has_metadata_csum(),
            hashes: flags.contains(Flags::ENCRYPT.with(Flags::CASEFOLD)),
            max_ino: Ino(geometry.inodes_count()),
        }
    }

    /// The same form, in which a record may have any inode number.
    #[must_use]
    pub fn with_any_ino(self) -> DirForm {
        DirForm {
            max_ino: Ino(u32::MAX),
            ..self
        }
    }

    /// The same form without a checksum at the end, as in inline directories and index blocks.
    #[must_use]
    pub fn without_checksum(self) -> DirForm {
        DirForm {
            checksum: false,
            ..self
        }
    }

    /// Bytes of a block that records can use.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.block_size.bytes() - if self.checksum { TAIL_LEN } else { 0 }
    }

    /// Bytes that the record of a name takes if it has no slack.
    #[must_use]
    pub fn record_len(&self, name: &[u8]) -> usize {
        let hash_len = if self.hashes && !is_dots(name) {
            HASH_LEN
        } else {
            0
        };
        (HEADER_LEN + name.len())
            .next_multiple_of(4)
            .max(RECORD_MIN)
            + hash_len
    }

    /// The length of a record in bytes, from its stored form. In blocks of 64 KiB the length of the whole block does
    /// not fit 16 bits, and is stored as 0xFFFF (or 0).
    fn length_from_disk(&self, stored: u16) -> usize {
        match stored {
            0xFFFF | 0 if self.block_size == BlockSize::K64 => self.block_size.bytes(),
            len => usize::from(len),
        }
    }

    /// The inverse of `length_from_disk` for a multiple of four up to the block size.
    fn length_to_disk(len: usize) -> u16 {
        u16::try_from(len).unwrap_or(0xFFFF)
    }
}

/// Whether this is `.` or `..`, whose records never carry a hash.
#[must_use]
pub fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Whether a plain name is valid in a directory: 1 to 255 bytes, no slash, no NUL. Encrypted names may be any bytes.
#[must_use]
pub fn is_valid_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Checks a name that was found in a directory.
///
/// # Errors
/// [`Site::DirentName`] if it is not a valid name ([`is_valid_name`]).
pub fn verify_name(name: &[u8]) -> Result<(), Corrupt> {
    if is_valid_name(name) {
        Ok(())
    } else {
        Err(Corrupt::at(Site::DirentName))
    }
}

/// One record of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirRecord<'a> {
    /// The byte of the block at which the record begins.
    pub offset: usize,
    /// Bytes up to the next record.
    pub len: usize,
    /// The inode that it names; 0 for a free record.
    pub ino: Ino,
    /// The name, of 0 to 255 bytes, not otherwise checked.
    pub name: &'a [u8],
    /// The type of the file, if the record has one; always `None` without the filetype feature.
    pub file_type: Option<FileType>,
    /// The stored hash, in directories that have them.
    pub hash: Option<NameHash>,
}

impl DirRecord<'_> {
    /// Whether the record names something.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.ino != Ino(0)
    }
}

/// The records of `block` in order, including free ones but not the checksum tail. Iteration ends after an error.
///
/// `block` is a directory block, or the bytes of an inline directory (then without checksum).
#[must_use]
pub fn entries(block: &[u8], form: DirForm) -> DirRecords<'_> {
    entries_from(block, form, 0)
}

/// The records of `block`, as [`entries`] returns them, from byte `offset` on. An earlier record must end at `offset`.
#[must_use]
pub fn entries_from(block: &[u8], form: DirForm, offset: usize) -> DirRecords<'_> {
    let tail = if form.checksum { TAIL_LEN } else { 0 };
    DirRecords {
        bytes: &block[..block.len().saturating_sub(tail)],
        form,
        offset,
    }
}

/// Iterates over records: [`entries`].
#[derive(Clone, Debug)]
pub struct DirRecords<'a> {
    bytes: &'a [u8],
    form: DirForm,
    offset: usize,
}

impl<'a> Iterator for DirRecords<'a> {
    type Item = Result<DirRecord<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let entry = self.parse();
        self.offset = match &entry {
            Ok(entry) => self.offset + entry.len,
            Err(_) => self.bytes.len(),
        };
        Some(entry)
    }
}

impl<'a> DirRecords<'a> {
    /// The record at the current offset, which is below the end.
    fn parse(&self) -> Result<DirRecord<'a>, Corrupt> {
        let rest = &self.bytes[self.offset..];
        let Ok((header, after)) = Header::ref_from_prefix(rest) else {
            return Err(Corrupt::at(Site::DirentTruncated));
        };
        let (ino, name_len) = (Ino(header.inode.get()), usize::from(header.name_len));
        let len = self.form.length_from_disk(header.rec_len.get());
        if len < RECORD_MIN {
            return Err(Corrupt::at(Site::DirentLengthSmall));
        }
        if !len.is_multiple_of(4) {
            return Err(Corrupt::at(Site::DirentLengthUnaligned));
        }
        let left = rest.len();
        if len > left {
            return Err(Corrupt::at(Site::DirentOverrun));
        }
        if left != len && left - len < RECORD_MIN {
            return Err(Corrupt::at(Site::DirentNearEnd));
        }
        let name = after
            .get(..name_len)
            .filter(|name| self.form.record_len(name) <= len);
        let Some(name) = name else {
            return Err(Corrupt::at(Site::DirentNameLong));
        };
        if ino > self.form.max_ino {
            return Err(Corrupt::at(Site::DirentIno));
        }
        Ok(DirRecord {
            offset: self.offset,
            len,
            ino,
            name,
            file_type: FileType::from_dirent_code(header.file_type).filter(|_| self.form.filetype),
            hash: self.stored_hash(after, name),
        })
    }

    fn stored_hash(&self, after: &[u8], name: &[u8]) -> Option<NameHash> {
        if !self.form.hashes || is_dots(name) {
            return None;
        }
        let place = after.get(name.len().next_multiple_of(4)..)?;
        let (stored, _) = StoredHash::ref_from_prefix(place).ok()?;
        Some(NameHash {
            major: stored.hash.get(),
            minor: stored.minor_hash.get(),
        })
    }
}

/// Writes one record into a block at its offset and length. The slack after the name is left as it is, except that the
/// bytes that round the name up to a multiple of four are cleared.
///
/// # Panics
/// When the record does not fit the block, its length is less than the name takes, or the name is longer than
/// [`NAME_MAX`]: the caller's mistake.
pub fn write(block: &mut [u8], form: DirForm, entry: &DirRecord<'_>) {
    assert!(entry.name.len() <= NAME_MAX && form.record_len(entry.name) <= entry.len);
    let record = &mut block[entry.offset..entry.offset + entry.len];
    let (header, rest) = record.split_at_mut(HEADER_LEN);
    let fields = Header {
        inode: entry.ino.0.into(),
        rec_len: DirForm::length_to_disk(entry.len).into(),
        // At most 255, asserted above.
        #[allow(clippy::cast_possible_truncation)]
        name_len: entry.name.len() as u8,
        file_type: entry
            .file_type
            .filter(|_| form.filetype)
            .map_or(0, FileType::dirent_code),
    };
    header.copy_from_slice(fields.as_bytes());
    let padded = entry.name.len().next_multiple_of(4);
    rest[..entry.name.len()].copy_from_slice(entry.name);
    rest[entry.name.len()..padded].fill(0);
    if let Some(hash) = entry.hash.filter(|_| form.hashes && !is_dots(entry.name)) {
        let stored = StoredHash {
            hash: hash.major.into(),
            minor_hash: hash.minor.into(),
        };
        rest[padded..padded + HASH_LEN].copy_from_slice(stored.as_bytes());
    }
}

/// Fills one zeroed block with records, from the front. [`DirBlockWriter::finish`] completes the block.
#[derive(Debug)]
pub struct DirBlockWriter<'a> {
    block: &'a mut [u8],
    form: DirForm,
    used: usize,
    last: usize,
}

impl<'a> DirBlockWriter<'a> {
    /// Begins a block, which must be of the form's block size, and clears it.
    ///
    /// # Panics
    /// When it has another size.
    #[must_use]
    pub fn new(block: &'a mut [u8], form: DirForm) -> DirBlockWriter<'a> {
        assert_eq!(block.len(), form.block_size.bytes());
        block.fill(0);
        DirBlockWriter {
            block,
            form,
            used: 0,
            last: 0,
        }
    }

    /// Appends a record with no slack; returns false, and writes nothing, if it does not fit.
    ///
    /// # Panics
    /// When the name is longer than [`NAME_MAX`].
    #[must_use]
    pub fn push(
        &mut self,
        ino: Ino,
        name: &[u8],
        file_type: Option<FileType>,
        hash: Option<NameHash>,
    ) -> bool {
        let len = self.form.record_len(name);
        if len > self.form.usable() - self.used {
            return false;
        }
        let entry = DirRecord {
            offset: self.used,
            len,
            ino,
            name,
            file_type,
            hash,
        };
        write(self.block, self.form, &entry);
        self.last = self.used;
        self.used += len;
        true
    }

    /// Appends `.` and `..`, the first records of a directory. They always fit at the beginning of a block.
    pub fn push_dots(&mut self, own: Ino, parent: Ino) {
        for (name, ino) in [(&b"."[..], own), (b"..", parent)] {
            let fits = self.push(ino, name, Some(FileType::Directory), None);
            debug_assert!(fits, "a block begins with its dots");
        }
    }

    /// Gives the rest of the block to the last record (or to a free one if the block has no record) and prepares the
    /// tail. With checksums, the caller then calls [`seal`].
    pub fn finish(self) {
        let end = self.form.usable();
        let len = DirForm::length_to_disk(end - self.last);
        let (header, _) = self.block[self.last..].split_at_mut(HEADER_LEN);
        header[4..6].copy_from_slice(&len.to_le_bytes());
        if self.form.checksum {
            write_tail(self.block);
        }
    }
}

/// Makes the last twelve bytes of a directory block an empty checksum tail; [`seal`] fills it.
///
/// # Panics
/// When the block is shorter than that.
pub fn write_tail(block: &mut [u8]) {
    let tail = DirentTail {
        det_reserved_zero1: 0.into(),
        det_rec_len: (TAIL_LEN as u16).into(),
        det_reserved_zero2: 0,
        det_reserved_ft: TAIL_FILE_TYPE,
        det_checksum: 0.into(),
    };
    let at = block.len() - TAIL_LEN;
    block[at..].copy_from_slice(tail.as_bytes());
}

/// Sets the checksum in a block's tail. `seed` is the directory inode's seed, made of its number and generation.
///
/// # Panics
/// When the block is shorter than a tail.
pub fn seal(block: &mut [u8], seed: u32) {
    let at = block.len() - TAIL_LEN;
    let sum = crc32c(seed, &block[..at]);
    block[at + 8..].copy_from_slice(&sum.to_le_bytes());
}

/// Checks that a block ends in a checksum tail, and that the checksum is right.
///
/// # Errors
/// [`Site::DirentTail`] when the tail is missing, [`Site::DirentChecksum`] when the checksum is wrong.
pub fn verify_checksum(block: &[u8], seed: u32) -> Result<(), Corrupt> {
    let Some(tail) = tail(block) else {
        return Err(Corrupt::at(Site::DirentTail));
    };
    if tail.det_checksum.get() == crc32c(seed, &block[..block.len() - TAIL_LEN]) {
        Ok(())
    } else {
        Err(Corrupt::at(Site::DirentChecksum))
    }
}

/// The checksum that a block's tail holds, if it has a tail.
#[must_use]
pub fn stored_checksum(block: &[u8]) -> Option<u32> {
    tail(block).map(|tail| tail.det_checksum.get())
}

fn tail(block: &[u8]) -> Option<&DirentTail> {
    let (_, tail) = DirentTail::ref_from_suffix(block).ok()?;
    let is_tail = tail.det_reserved_zero1.get() == 0
        && usize::from(tail.det_rec_len.get()) == TAIL_LEN
        && tail.det_reserved_zero2 == 0
        && tail.det_reserved_ft == TAIL_FILE_TYPE;
    is_tail.then_some(tail)
}

#[cfg(test)]
mod tests;
