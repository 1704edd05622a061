//! The journal's superblock: where its log begins, which features it has, and the error it remembers.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BlockHeader, BlockKind, FAST_COMMIT_BLOCKS_DEFAULT, JournalChecksum, LogFormat};
use crate::csum;
use crate::numbers::{BlockSize, Tid};
use crate::site::{Corrupt, Site};

/// The journal's superblock, the first block of the journal (`journal_superblock_t`).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct JournalSuperblock {
    pub(crate) s_header: BlockHeader,
    pub(crate) s_blocksize: U32,
    pub(crate) s_maxlen: U32,
    pub(crate) s_first: U32,
    pub(crate) s_sequence: U32,
    pub(crate) s_start: U32,
    pub(crate) s_errno: U32,
    pub(crate) s_feature_compat: U32,
    pub(crate) s_feature_incompat: U32,
    pub(crate) s_feature_ro_compat: U32,
    pub(crate) s_uuid: [u8; 16],
    pub(crate) s_nr_users: U32,
    pub(crate) s_dynsuper: U32,
    pub(crate) s_max_transaction: U32,
    pub(crate) s_max_trans_data: U32,
    pub(crate) s_checksum_type: u8,
    pub(crate) s_padding2: [u8; 3],
    pub(crate) s_num_fc_blks: U32,
    pub(crate) s_head: U32,
    pub(crate) s_padding: [U32; 40],
    pub(crate) s_checksum: U32,
    pub(crate) s_users: [[u8; 16]; 48],
}

/// What a journal may have beyond the first format: the three words of features. The constants' names are debugfs's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalFeatures {
    /// What an older implementation may ignore.
    pub compat: u32,
    /// What an implementation must know to read the journal.
    pub incompat: u32,
    /// What an implementation must know to write the journal.
    pub ro_compat: u32,
}

impl JournalFeatures {
    /// Checksums of version 1 (compatible).
    pub const COMPAT_CHECKSUM: u32 = 0x1;
    /// Revoke blocks may be there.
    pub const INCOMPAT_REVOKE: u32 = 0x1;
    /// Block numbers have 64 bits.
    pub const INCOMPAT_64BIT: u32 = 0x2;
    /// The commit block is written together with the rest of its transaction.
    pub const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
    /// Checksums of version 2.
    pub const INCOMPAT_CSUM_V2: u32 = 0x8;
    /// Checksums of version 3.
    pub const INCOMPAT_CSUM_V3: u32 = 0x10;
    /// There is a fast-commit area.
    pub const INCOMPAT_FAST_COMMIT: u32 = 0x20;
    /// Every incompatible feature that is known here.
    pub const INCOMPAT_KNOWN: u32 = 0x3F;

    /// Whether all bits of `feature` are set among the incompatible ones.
    #[must_use]
    pub fn has_incompat(&self, feature: u32) -> bool {
        self.incompat & feature == feature
    }

    /// The bits that must be known to replay the journal, and are not: incompatible ones, then read-only ones.
    #[must_use]
    pub fn unknown(&self) -> Option<(u32, u32)> {
        let unknown = (self.incompat & !Self::INCOMPAT_KNOWN, self.ro_compat);
        (unknown != (0, 0)).then_some(unknown)
    }
}

impl JournalSuperblock {
    /// Bytes the structure takes.
    pub const SIZE: usize = size_of::<JournalSuperblock>();

    /// The kind of checksum that versions 2 and 3 use (`JBD2_CRC32C_CHKSUM`).
    pub const CHECKSUM_TYPE_CRC32C: u8 = 4;

    /// A superblock of the current format for a clean journal of `blocks_count` blocks whose log begins at block
    /// `first`; without features and not sealed.
    #[must_use]
    pub fn new(block_size: BlockSize, blocks_count: u32, first: u32) -> JournalSuperblock {
        let mut sb = JournalSuperblock {
            s_header: BlockHeader::new(BlockKind::SuperblockV2, Tid(0)),
            ..JournalSuperblock::new_zeroed()
        };
        // Bytes of a block are 64 KiB at most.
        #[allow(clippy::cast_possible_truncation)]
        sb.s_blocksize.set(block_size.bytes() as u32);
        sb.s_maxlen.set(blocks_count);
        sb.s_first.set(first);
        sb.s_sequence.set(1);
        sb
    }

    /// The superblock at the beginning of a block; `None` when the block is too short.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<JournalSuperblock> {
        block
            .first_chunk()
            .map(|bytes| JournalSuperblock::from_bytes(*bytes))
    }

    /// The superblock in these bytes; nothing is checked.
    #[must_use]
    pub fn from_bytes(bytes: [u8; JournalSuperblock::SIZE]) -> JournalSuperblock {
        zerocopy::transmute!(bytes)
    }

    /// The structure's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    accessors! {
        /// Bytes a block, as stored.
        block_size_raw, set_block_size_raw: u32 = s_blocksize;
        /// Blocks of the journal, superblock and fast-commit area included.
        blocks_count, set_blocks_count: u32 = s_maxlen;
        /// The first block of the log.
        first, set_first: u32 = s_first;
        /// The block where the oldest transaction that may need replay begins; 0 when the journal is clean.
        start, set_start: u32 = s_start;
        /// The error, as a negated errno, with which the journal was aborted; 0 when it was not.
        errno_raw, set_errno_raw: u32 = s_errno;
        /// How many file systems share an external journal.
        users_count, set_users_count: u32 = s_nr_users;
        /// Block of a dynamic superblock (never used).
        dynamic_superblock, set_dynamic_superblock: u32 = s_dynsuper;
        /// Blocks of a transaction at most (never used; 0).
        transaction_blocks_max, set_transaction_blocks_max: u32 = s_max_transaction;
        /// Data blocks of a transaction at most (never used; 0).
        transaction_data_max, set_transaction_data_max: u32 = s_max_trans_data;
        /// Blocks of the fast-commit area as stored; see [`JournalSuperblock::fast_commit_blocks`].
        fast_commit_blocks_raw, set_fast_commit_blocks_raw: u32 = s_num_fc_blks;
        /// Where the log of a clean journal ends; only kept while the file system is not mounted.
        head, set_head: u32 = s_head;
        /// The stored checksum of this superblock.
        checksum, set_checksum: u32 = s_checksum;
    }

    /// Which format the superblock has; `None` when it is not a journal superblock.
    #[must_use]
    pub fn kind(&self) -> Option<BlockKind> {
        BlockHeader::of(self.as_bytes())?
            .kind()
            .filter(|kind| matches!(kind, BlockKind::SuperblockV1 | BlockKind::SuperblockV2))
    }

    /// The transaction expected at [`JournalSuperblock::start`], or the next one of a clean journal.
    #[must_use]
    pub fn sequence(&self) -> Tid {
        Tid(self.s_sequence.get())
    }

    /// Sets [`JournalSuperblock::sequence`].
    pub fn set_sequence(&mut self, tid: Tid) {
        self.s_sequence.set(tid.0);
    }

    /// The journal's UUID: that of the file system, or the external journal's own.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.s_uuid
    }

    /// Sets [`JournalSuperblock::uuid`].
    pub fn set_uuid(&mut self, uuid: [u8; 16]) {
        self.s_uuid = uuid;
    }

    /// The kind of checksum (4 = CRC-32C), 0 without.
    #[must_use]
    pub fn checksum_type(&self) -> u8 {
        self.s_checksum_type
    }

    /// Sets [`JournalSuperblock::checksum_type`].
    pub fn set_checksum_type(&mut self, value: u8) {
        self.s_checksum_type = value;
    }

    /// The UUIDs of the file systems that share an external journal (48 at most).
    pub fn users(&self) -> impl Iterator<Item = [u8; 16]> + '_ {
        let count = usize::try_from(self.users_count()).unwrap_or(usize::MAX);
        self.s_users.iter().copied().take(count)
    }

    /// Sets the UUIDs of the file systems that share the journal; those beyond 48 are dropped.
    pub fn set_users(&mut self, users: &[[u8; 16]]) {
        let users = &users[..users.len().min(48)];
        self.s_users = [[0; 16]; 48];
        self.s_users[..users.len()].copy_from_slice(users);
        // At most 48.
        #[allow(clippy::cast_possible_truncation)]
        self.s_nr_users.set(users.len() as u32);
    }

    /// The features; the first format has none, whatever its bytes say.
    #[must_use]
    pub fn features(&self) -> JournalFeatures {
        if self.kind() != Some(BlockKind::SuperblockV2) {
            return JournalFeatures::default();
        }
        JournalFeatures {
            compat: self.s_feature_compat.get(),
            incompat: self.s_feature_incompat.get(),
            ro_compat: self.s_feature_ro_compat.get(),
        }
    }

    /// Sets the features.
    pub fn set_features(&mut self, features: JournalFeatures) {
        self.s_feature_compat.set(features.compat);
        self.s_feature_incompat.set(features.incompat);
        self.s_feature_ro_compat.set(features.ro_compat);
    }

    /// Blocks at the journal's end that belong to fast commits: 0 without the feature.
    #[must_use]
    pub fn fast_commit_blocks(&self) -> u32 {
        if !self
            .features()
            .has_incompat(JournalFeatures::INCOMPAT_FAST_COMMIT)
        {
            return 0;
        }
        match self.s_num_fc_blks.get() {
            0 => FAST_COMMIT_BLOCKS_DEFAULT,
            blocks => blocks,
        }
    }

    /// The block after the log's last: there it wraps to [`JournalSuperblock::first`].
    #[must_use]
    pub fn log_end(&self) -> u32 {
        self.blocks_count()
            .saturating_sub(self.fast_commit_blocks())
    }

    /// The first block that fast commits are written to: Linux leaves one block unused between log and area.
    #[must_use]
    pub fn fast_commit_first(&self) -> u32 {
        self.log_end().saturating_add(1)
    }

    /// What the checksum should be (`jbd2_superblock_csum`).
    #[must_use]
    pub fn computed_checksum(&self) -> u32 {
        let mut copy = *self;
        copy.s_checksum.set(0);
        csum::crc32c(csum::INITIAL, copy.as_bytes())
    }

    /// Writes the checksum, where the features call for one.
    pub fn seal(&mut self) {
        let v2_or_v3 = JournalFeatures::INCOMPAT_CSUM_V2 | JournalFeatures::INCOMPAT_CSUM_V3;
        if self.features().incompat & v2_or_v3 != 0 {
            self.s_checksum.set(self.computed_checksum());
        }
    }

    /// Checks magic, block size, bounds and checksum of a journal that has `available` blocks of `block_size`
    /// bytes. Features that are not known here are the caller's to refuse first.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn verify(&self, block_size: BlockSize, available: u64) -> Result<LogFormat, Corrupt> {
        if BlockHeader::of(self.as_bytes()).is_none() {
            return Err(Corrupt::at(Site::JournalMagic));
        }
        if self.kind().is_none() {
            return Err(Corrupt::at(Site::JournalSuperblockKind));
        }
        if u64::from(self.block_size_raw()) != block_size.bytes_u64() {
            return Err(Corrupt::at(Site::JournalBlockSize));
        }
        let format = self.log_format(block_size)?;
        if u64::from(self.blocks_count()) > available {
            return Err(Corrupt::at(Site::JournalLength));
        }
        if self.first() == 0 || self.first() >= self.log_end() {
            return Err(Corrupt::at(Site::JournalFirst));
        }
        let log = self.first()..self.log_end();
        if self.start() != 0 && !log.contains(&self.start()) {
            return Err(Corrupt::at(Site::JournalStart));
        }
        Ok(format)
    }

    /// Which checksums there are, after checking the superblock's own.
    fn log_format(&self, block_size: BlockSize) -> Result<LogFormat, Corrupt> {
        let features = self.features();
        let v1 = features.compat & JournalFeatures::COMPAT_CHECKSUM != 0;
        let v2 = features.has_incompat(JournalFeatures::INCOMPAT_CSUM_V2);
        let v3 = features.has_incompat(JournalFeatures::INCOMPAT_CSUM_V3);
        let checksum = match (v1, v2, v3) {
            (false, false, false) => JournalChecksum::None,
            (true, false, false) => JournalChecksum::V1,
            (false, true, false) => JournalChecksum::V2,
            (false, false, true) => JournalChecksum::V3,
            _ => return Err(Corrupt::at(Site::JournalChecksumVersions)),
        };
        if v2 || v3 {
            if self.s_checksum_type != Self::CHECKSUM_TYPE_CRC32C {
                return Err(Corrupt::at(Site::JournalChecksumType));
            }
            if self.checksum() != self.computed_checksum() {
                return Err(Corrupt::at(Site::JournalSuperblockChecksum));
            }
        }
        Ok(LogFormat {
            block_size,
            is_64bit: features.has_incompat(JournalFeatures::INCOMPAT_64BIT),
            checksum,
            csum_seed: csum::crc32c(csum::INITIAL, &self.s_uuid),
        })
    }
}
