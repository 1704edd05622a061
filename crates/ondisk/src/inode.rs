//! Inodes: 128 bytes that every ext2, ext3 and ext4 file system has. Where the file system's inodes are larger,
//! `i_extra_isize` more bytes of fields follow, and then extended attributes up to the end of the inode's slot.
//!
//! ```text
//! 0      base         128   extra fields   128+extra   attributes ("ibody")      inode_size
//! ```
//!
//! An [`Inode`] is a copy of the base and of the known extra fields. The rest of the slot (attributes, and extra fields
//! that this crate does not know) is not copied, and [`Inode::write_to`] leaves it as it was. The checksum covers the
//! whole slot, so it is computed from the slot only.
//!
//! A field that `i_extra_isize` does not include does not exist: its getter returns what the kernel would use (zero, or
//! `None`).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum::crc32c;
use crate::inode_words::{FileType, Flags, Timestamp};
use crate::numbers::{BlockSize, FsBlock, Generation, Ino};
use crate::site::{Corrupt, Site};

/// Bytes of an inode that every revision has.
pub const BASE_SIZE: usize = 128;
/// Bytes of the area that holds block pointers, an extent tree's root, a short symlink or inline data.
pub const BLOCK_AREA: usize = 60;
/// Bytes of extra fields that this crate knows; new inodes get this extra size.
pub const EXTRA_SIZE: u16 = 32;

/// Bytes of the base and the known extra fields together.
const KNOWN_SIZE: usize = BASE_SIZE + EXTRA_SIZE as usize;
/// Words of 8 bytes in [`Inode::words`].
pub const RECORD_WORDS: usize = KNOWN_SIZE / 8;
/// The offsets of the two halves of the checksum.
const CHECKSUM_LO: usize = 0x7c;
const CHECKSUM_HI: usize = 0x82;
/// How large `i_extra_isize` must be for the inode to have each extra field.
const REACH_CHECKSUM_HI: u16 = 4;
const REACH_CTIME: u16 = 8;
const REACH_MTIME: u16 = 12;
const REACH_ATIME: u16 = 16;
const REACH_CRTIME_SECONDS: u16 = 20;
const REACH_CRTIME: u16 = 24;
const REACH_VERSION_HI: u16 = 28;
const REACH_PROJECT: u16 = 32;

/// The base of an inode and the extra fields known to us.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Inode {
    pub(crate) i_mode: U16,
    pub(crate) i_uid: U16,
    pub(crate) i_size_lo: U32,
    pub(crate) i_atime: U32,
    pub(crate) i_ctime: U32,
    pub(crate) i_mtime: U32,
    pub(crate) i_dtime: U32,
    pub(crate) i_gid: U16,
    pub(crate) i_links_count: U16,
    pub(crate) i_blocks_lo: U32,
    pub(crate) i_flags: U32,
    pub(crate) i_version: U32,
    pub(crate) i_block: [u8; BLOCK_AREA],
    pub(crate) i_generation: U32,
    pub(crate) i_file_acl_lo: U32,
    pub(crate) i_size_high: U32,
    pub(crate) i_obso_faddr: U32,
    pub(crate) i_blocks_high: U16,
    pub(crate) i_file_acl_high: U16,
    pub(crate) i_uid_high: U16,
    pub(crate) i_gid_high: U16,
    pub(crate) i_checksum_lo: U16,
    pub(crate) i_reserved: U16,
    pub(crate) i_extra_isize: U16,
    pub(crate) i_checksum_hi: U16,
    pub(crate) i_ctime_extra: U32,
    pub(crate) i_mtime_extra: U32,
    pub(crate) i_atime_extra: U32,
    pub(crate) i_crtime: U32,
    pub(crate) i_crtime_extra: U32,
    pub(crate) i_version_hi: U32,
    pub(crate) i_projid: U32,
}

impl Inode {
    accessors! {
        /// Type and permissions.
        mode, set_mode: u16 = i_mode;
        /// The owner.
        uid, set_uid: u32 = i_uid, i_uid_high;
        /// The owning group.
        gid, set_gid: u32 = i_gid, i_gid_high;
        /// The link count as stored; 1 on a directory can mean "more than fit" (`dir_nlink`).
        links_count, set_links_count: u16 = i_links_count;
        /// When the inode was deleted (seconds), or the next inode of the orphan list.
        dtime, set_dtime: u32 = i_dtime;
        /// The low word of the number of sectors, as stored; see [`Inode::sectors`].
        blocks_lo, set_blocks_lo: u32 = i_blocks_lo;
        /// Bytes of extra fields that follow the base; 0 in a zeroed inode.
        extra_size, set_extra_size: u16 = i_extra_isize;
        /// Both words of the size as stored, whatever the type of file; see [`Inode::size`].
        size_both_words, set_size: u64 = i_size_lo, i_size_high;
    }

    /// An inode of all zeros.
    #[must_use]
    pub fn zeroed() -> Inode {
        Inode::read_from_bytes(&[0; KNOWN_SIZE]).unwrap_or_else(|_| unreachable!())
    }

    /// Copies the fields of the inode in `slot` (the inode's bytes in the inode table).
    ///
    /// # Errors
    /// When the slot is shorter than the base, or its extra fields would not fit into it.
    pub fn parse(slot: &[u8]) -> Result<Inode, Corrupt> {
        let extra = extra_size_of(slot).ok_or_else(|| Corrupt::at(Site::InodeExtraSize))?;
        let mut bytes = [0; KNOWN_SIZE];
        // The first word beyond the base is the extra size itself, which exists even in an inode with extra size 0.
        let known = (BASE_SIZE + extra.min(usize::from(EXTRA_SIZE))).min(slot.len());
        bytes[..known].copy_from_slice(&slot[..known]);
        Ok(Inode::read_from_bytes(&bytes).unwrap_or_else(|_| unreachable!()))
    }

    /// Writes the fields into `slot`; bytes that belong to attributes or to unknown fields stay.
    ///
    /// # Panics
    /// When the slot is shorter than the base and the known extra fields that the inode has.
    pub fn write_to(&self, slot: &mut [u8]) {
        let extra = usize::from(self.extra_size().min(EXTRA_SIZE));
        let len = BASE_SIZE + extra;
        slot[..len].copy_from_slice(&self.as_bytes()[..len]);
    }

    /// The fields as words of 8 bytes, for a caller that copies them word by word; see [`Inode::of_words`].
    #[must_use]
    pub fn words(&self) -> [u64; RECORD_WORDS] {
        zerocopy::transmute!(*self)
    }

    /// The inode whose fields [`Inode::words`] returned.
    #[must_use]
    pub fn of_words(words: [u64; RECORD_WORDS]) -> Inode {
        zerocopy::transmute!(words)
    }

    fn reaches(&self, extra: u16) -> bool {
        self.extra_size() >= extra
    }

    /// The type of file in the mode; `None` if the mode has no valid type.
    #[must_use]
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode())
    }

    /// The flags.
    #[must_use]
    pub fn flags(&self) -> Flags {
        Flags(self.i_flags.get())
    }

    /// Sets [`Self::flags`].
    pub fn set_flags(&mut self, flags: Flags) {
        self.i_flags.set(flags.0);
    }

    /// The size of the file in bytes. The high word counts only in regular files, and in directories if `large_dir` is
    /// on.
    #[must_use]
    pub fn size(&self, large_dir: bool) -> u64 {
        match self.file_type() {
            Some(FileType::Regular) => self.size_both_words(),
            Some(FileType::Directory) if large_dir => self.size_both_words(),
            _ => self.i_size_lo.get().into(),
        }
    }

    /// The space the file takes, in sectors of 512 bytes. `huge_file` says whether the feature is on.
    #[must_use]
    pub fn sectors(&self, huge_file: bool, block_size: BlockSize) -> u64 {
        let low = u64::from(self.i_blocks_lo.get());
        if !huge_file {
            return low;
        }
        let count = low | u64::from(self.i_blocks_high.get()) << 32;
        if self.flags().contains(Flags::HUGE_FILE) {
            count << (block_size.bits() - 9)
        } else {
            count
        }
    }

    /// Sets [`Self::sectors`] and chooses the unit; returns `false` if the count does not fit.
    #[must_use]
    pub fn set_sectors(&mut self, sectors: u64, huge_file: bool, block_size: BlockSize) -> bool {
        let in_blocks = sectors >> (block_size.bits() - 9);
        let flags = self.flags().without(Flags::HUGE_FILE);
        let (count, flags) = if sectors >> 32 == 0 || huge_file && sectors >> 48 == 0 {
            (sectors, flags)
        } else if huge_file && in_blocks >> 48 == 0 {
            (in_blocks, flags.with(Flags::HUGE_FILE))
        } else {
            return false;
        };
        self.set_flags(flags);
        self.i_blocks_lo.set((count & 0xffff_ffff) as u32);
        if huge_file {
            self.i_blocks_high.set((count >> 32) as u16);
        }
        true
    }

    /// Last access.
    #[must_use]
    pub fn atime(&self) -> Timestamp {
        self.time(self.i_atime, self.i_atime_extra, REACH_ATIME)
    }

    /// Last change of the inode.
    #[must_use]
    pub fn ctime(&self) -> Timestamp {
        self.time(self.i_ctime, self.i_ctime_extra, REACH_CTIME)
    }

    /// Last change of the contents.
    #[must_use]
    pub fn mtime(&self) -> Timestamp {
        self.time(self.i_mtime, self.i_mtime_extra, REACH_MTIME)
    }

    /// Birth; `None` where the inode has no room for it.
    #[must_use]
    pub fn crtime(&self) -> Option<Timestamp> {
        self.reaches(REACH_CRTIME_SECONDS)
            .then(|| self.time(self.i_crtime, self.i_crtime_extra, REACH_CRTIME))
    }

    /// Sets [`Self::atime`]; in an inode without extra fields, the part of the time that it can't hold is dropped.
    pub fn set_atime(&mut self, time: Timestamp) {
        let (low, extra) = self.encode_time(time, REACH_ATIME);
        (self.i_atime, self.i_atime_extra) = (low, extra);
    }

    /// Sets [`Self::ctime`]; in an inode without extra fields, the part of the time that it can't hold is dropped.
    pub fn set_ctime(&mut self, time: Timestamp) {
        let (low, extra) = self.encode_time(time, REACH_CTIME);
        (self.i_ctime, self.i_ctime_extra) = (low, extra);
    }

    /// Sets [`Self::mtime`]; in an inode without extra fields, the part of the time that it can't hold is dropped.
    pub fn set_mtime(&mut self, time: Timestamp) {
        let (low, extra) = self.encode_time(time, REACH_MTIME);
        (self.i_mtime, self.i_mtime_extra) = (low, extra);
    }

    /// Sets [`Self::crtime`], if the inode has room for it.
    pub fn set_crtime(&mut self, time: Timestamp) {
        if self.reaches(REACH_CRTIME_SECONDS) {
            let (low, extra) = self.encode_time(time, REACH_CRTIME);
            (self.i_crtime, self.i_crtime_extra) = (low, extra);
        }
    }

    fn time(&self, low: U32, extra: U32, reach: u16) -> Timestamp {
        if self.reaches(reach) {
            Timestamp::decode(low.get(), extra.get())
        } else {
            Timestamp::decode(low.get(), 0)
        }
    }

    fn encode_time(&self, time: Timestamp, reach: u16) -> (U32, U32) {
        if self.reaches(reach) {
            let (low, extra) = time.encode();
            (U32::new(low), U32::new(extra))
        } else {
            (U32::new(time.encode_seconds()), U32::ZERO)
        }
    }

    /// The generation, which distinguishes successive users of one inode number.
    #[must_use]
    pub fn generation(&self) -> Generation {
        Generation(self.i_generation.get())
    }

    /// Sets [`Self::generation`].
    pub fn set_generation(&mut self, generation: Generation) {
        self.i_generation.set(generation.0);
    }

    /// The block of extended attributes; 0 for none.
    #[must_use]
    pub fn xattr_block(&self) -> FsBlock {
        let high = u64::from(self.i_file_acl_high.get());
        FsBlock(u64::from(self.i_file_acl_lo.get()) | high << 32)
    }

    /// Sets [`Self::xattr_block`], of which 48 bits are stored.
    pub fn set_xattr_block(&mut self, block: FsBlock) {
        self.i_file_acl_lo.set((block.0 & 0xffff_ffff) as u32);
        self.i_file_acl_high.set((block.0 >> 32 & 0xffff) as u16);
    }

    /// The version counter (`i_version`), 64 bits where the inode has room.
    #[must_use]
    pub fn version(&self) -> u64 {
        let high = if self.reaches(REACH_VERSION_HI) {
            self.i_version_hi.get()
        } else {
            0
        };
        u64::from(high) << 32 | u64::from(self.i_version.get())
    }

    /// Sets [`Self::version`].
    pub fn set_version(&mut self, version: u64) {
        self.i_version.set((version & 0xffff_ffff) as u32);
        if self.reaches(REACH_VERSION_HI) {
            self.i_version_hi.set((version >> 32) as u32);
        }
    }

    /// Records a change of the inode at time `now`: sets its ctime and increments its version.
    pub fn stamp(&mut self, now: Timestamp) {
        self.set_ctime(now);
        self.set_version(self.version().wrapping_add(1));
    }

    /// The project; 0 where the inode has no room for it.
    #[must_use]
    pub fn project(&self) -> u32 {
        if self.reaches(REACH_PROJECT) {
            self.i_projid.get()
        } else {
            0
        }
    }

    /// Sets [`Self::project`], if the inode has room for it.
    pub fn set_project(&mut self, project: u32) {
        if self.reaches(REACH_PROJECT) {
            self.i_projid.set(project);
        }
    }

    /// For an inode that holds an attribute's value (`ea_inode`): the hash of the value.
    #[must_use]
    pub fn value_hash(&self) -> u32 {
        self.i_atime.get()
    }

    /// Sets [`Self::value_hash`].
    pub fn set_value_hash(&mut self, hash: u32) {
        self.i_atime.set(hash);
    }

    /// For an inode that holds an attribute's value (`ea_inode`): how many entries refer to it.
    #[must_use]
    pub fn value_references(&self) -> u64 {
        u64::from(self.i_ctime.get()) << 32 | u64::from(self.i_version.get())
    }

    /// Sets [`Self::value_references`].
    pub fn set_value_references(&mut self, references: u64) {
        self.i_ctime.set((references >> 32) as u32);
        self.i_version.set((references & 0xffff_ffff) as u32);
    }

    /// The seconds of `mtime` as stored; in old `ea_inode` files, the number of the inode whose attribute they hold.
    #[must_use]
    pub fn mtime_word(&self) -> u32 {
        self.i_mtime.get()
    }

    /// The 60 bytes of block pointers, extent root, short symlink or inline data.
    #[must_use]
    pub fn block_area(&self) -> &[u8; BLOCK_AREA] {
        &self.i_block
    }

    /// The 60 bytes of block pointers, extent root, short symlink or inline data, for writing.
    pub fn block_area_mut(&mut self) -> &mut [u8; BLOCK_AREA] {
        &mut self.i_block
    }

    /// One of the 15 words of the block area; 0 beyond them.
    #[must_use]
    pub fn block_word(&self, index: usize) -> u32 {
        let bytes = self.i_block.chunks_exact(4).nth(index);
        bytes.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Sets one of the 15 words of the block area.
    ///
    /// # Panics
    /// When `index` is 15 or more.
    pub fn set_block_word(&mut self, index: usize, word: u32) {
        self.i_block[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes());
    }

    /// The major and minor number of a device file.
    #[must_use]
    pub fn device_number(&self) -> (u32, u32) {
        let (old, new) = (self.block_word(0), self.block_word(1));
        match old {
            0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
            _ => (old >> 8 & 0xff, old & 0xff),
        }
    }

    /// Sets [`Self::device_number`]: 12 bits of major, 20 bits of minor; the old form where it is enough.
    pub fn set_device_number(&mut self, major: u32, minor: u32) {
        let (old, new) = if major < 256 && minor < 256 {
            (major << 8 | minor, 0)
        } else {
            (
                0,
                minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12,
            )
        };
        self.set_block_word(0, old);
        self.set_block_word(1, new);
    }

    /// The checksum as stored: 32 bits if the extra fields reach its high half, else 16.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        let high = if self.reaches(REACH_CHECKSUM_HI) {
            self.i_checksum_hi.get()
        } else {
            0
        };
        u32::from(high) << 16 | u32::from(self.i_checksum_lo.get())
    }
}

/// The bytes of extra fields in a slot; `None` if the slot or its extra size is impossible.
fn extra_size_of(slot: &[u8]) -> Option<usize> {
    match slot.len() {
        0..BASE_SIZE => None,
        BASE_SIZE => Some(0),
        len => {
            let extra = usize::from(u16::from_le_bytes([slot[128], slot[129]]));
            (extra <= len - BASE_SIZE && extra % 4 == 0).then_some(extra)
        }
    }
}

/// The part of a slot that holds the inode's fields, without attributes: the contents of a fast commit's INODE record.
///
/// `None` for a slot shorter than the base and for a bad extra size. Also `None` if the slot has room for extra fields
/// but the inode has none (as `tune2fs -I` leaves it): its record would have only the base, and e2fsck would read the
/// extra size from the next record.
#[must_use]
pub fn fields(slot: &[u8]) -> Option<&[u8]> {
    let extra = extra_size_of(slot).filter(|extra| *extra != 0 || slot.len() == BASE_SIZE)?;
    slot.get(..BASE_SIZE + extra)
}

/// The part of a slot that holds extended attributes, if it has one.
///
/// `None` for inodes of 128 bytes, for an extra size of 0 (the kernel never set one), and for a bad one.
#[must_use]
pub fn attribute_area(slot: &[u8]) -> Option<&[u8]> {
    let extra = extra_size_of(slot).filter(|extra| *extra != 0)?;
    slot.get(BASE_SIZE + extra..)
}

/// The part of a slot that holds extended attributes, for writing; see [`attribute_area`].
pub fn attribute_area_mut(slot: &mut [u8]) -> Option<&mut [u8]> {
    let extra = extra_size_of(slot).filter(|extra| *extra != 0)?;
    slot.get_mut(BASE_SIZE + extra..)
}

/// The checksum seed of everything that belongs to one inode: its slot, its extent blocks and its directory blocks.
#[must_use]
pub fn checksum_seed(fs_seed: u32, ino: Ino, generation: Generation) -> u32 {
    let seed = crc32c(fs_seed, &ino.0.to_le_bytes());
    crc32c(seed, &generation.0.to_le_bytes())
}

/// The checksum of a slot, and whether the slot stores all 32 bits of it. The slot has at least 128 bytes.
fn checksum_of(slot: &[u8], fs_seed: u32, ino: Ino) -> (u32, bool) {
    let generation = u32::from_le_bytes([slot[0x64], slot[0x65], slot[0x66], slot[0x67]]);
    let seed = checksum_seed(fs_seed, ino, Generation(generation));
    // As in Linux and e2fsck, the recorded size counts here even if the fields would not fit the slot.
    let extra = slot.get(BASE_SIZE..BASE_SIZE + 2);
    let wide = extra.is_some_and(|it| u16::from_le_bytes([it[0], it[1]]) >= REACH_CHECKSUM_HI);
    let crc = crc32c(seed, &slot[..CHECKSUM_LO]);
    let crc = crc32c(crc, &[0; 2]);
    if wide {
        let crc = crc32c(crc, &slot[CHECKSUM_LO + 2..CHECKSUM_HI]);
        let crc = crc32c(crc, &[0; 2]);
        (crc32c(crc, &slot[CHECKSUM_HI + 2..]), true)
    } else {
        (crc32c(crc, &slot[CHECKSUM_LO + 2..]) & 0xffff, false)
    }
}

/// Compares the checksum in a slot with its contents; for file systems with `metadata_csum`.
///
/// # Errors
/// When it differs, or the slot is shorter than 128 bytes.
pub fn verify_checksum(slot: &[u8], fs_seed: u32, ino: Ino) -> Result<(), Corrupt> {
    let matches = slot.len() >= BASE_SIZE && {
        let (computed, wide) = checksum_of(slot, fs_seed, ino);
        let low = u32::from(u16::from_le_bytes([
            slot[CHECKSUM_LO],
            slot[CHECKSUM_LO + 1],
        ]));
        let high = if wide {
            u32::from(u16::from_le_bytes([
                slot[CHECKSUM_HI],
                slot[CHECKSUM_HI + 1],
            ]))
        } else {
            0
        };
        computed == (high << 16 | low)
    };
    if matches {
        Ok(())
    } else {
        Err(Corrupt::at(Site::InodeChecksum).ino(ino))
    }
}

/// Writes the checksum of a slot's contents into it. The caller does this after all other changes of the slot.
///
/// # Panics
/// When the slot is shorter than 128 bytes.
pub fn set_checksum(slot: &mut [u8], fs_seed: u32, ino: Ino) {
    let (computed, wide) = checksum_of(slot, fs_seed, ino);
    let bytes = computed.to_le_bytes();
    slot[CHECKSUM_LO..CHECKSUM_LO + 2].copy_from_slice(&bytes[..2]);
    if wide {
        slot[CHECKSUM_HI..CHECKSUM_HI + 2].copy_from_slice(&bytes[2..]);
    }
}

#[cfg(test)]
mod tests;
