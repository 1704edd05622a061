//! What may be asked for: mke2fs's letters as typed fields. Pure values; [`crate::Layout::plan`] judges them.

use ondisk::BlockSize;

/// The family of defaults, as mke2fs's `-t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FsType {
    /// No journal, no extents.
    Ext2,
    /// A journal, no extents.
    Ext3,
    /// All that is default today.
    #[default]
    Ext4,
}

/// A profile of mke2fs.conf, as mke2fs's `-T`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UsageType {
    /// One inode for 16 KiB.
    Default,
    /// 1 KiB blocks and one inode for 8 KiB; chosen below 3 MiB.
    Floppy,
    /// 1 KiB blocks and one inode for 4 KiB; chosen below 512 MiB.
    Small,
    /// One inode for 32 KiB; chosen from 4 TiB.
    Big,
    /// One inode for 64 KiB; chosen from 16 TiB.
    Huge,
    /// One inode for 4 KiB.
    News,
    /// One inode for 1 MiB.
    LargeFile,
    /// One inode for 4 MiB.
    LargeFile4,
}

/// Which older programs must be able to read the image: what each leaves out is in docs/mkfs.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compat {
    /// Debian 12 as installed: kernel 6.1, e2fsprogs 1.47.0, GRUB 2.06.
    Debian12,
    /// GRUB from 2.02 on.
    Grub2,
    /// e2fsprogs 1.46.
    Mke2fs146,
}

/// The journal, as mke2fs's `-J`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JournalOptions {
    /// Size in MiB, without the fast-commit area; `None` by mke2fs's table.
    pub size_mib: Option<u64>,
    /// Size of the fast-commit area in KiB; `None` for a 64th of the journal.
    pub fast_commit_kib: Option<u64>,
    /// First block; `None` for the middle of the file system.
    pub location: Option<u64>,
    /// UUID of an external journal device instead of an inode; the caller that opens the device must also
    /// [`crate::JournalDevice::attach`] the file system.
    pub device: Option<[u8; 16]>,
    /// Where that device is, as given by `-J device=`. [`crate::format`] ignores this field.
    pub device_path: Option<String>,
}

/// A size as mke2fs takes it for `-E resize=` and `-E orphan_file_size=`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlocksOrBytes {
    /// Blocks, of whatever size they get.
    Blocks(u64),
    /// Bytes.
    Bytes(u64),
}

impl BlocksOrBytes {
    /// In whole blocks of this size.
    pub(crate) fn blocks(self, block_size: BlockSize) -> u64 {
        match self {
            BlocksOrBytes::Blocks(blocks) => blocks,
            BlocksOrBytes::Bytes(bytes) => bytes >> block_size.bits(),
        }
    }
}

/// What to make. [`Options::default`] is ext4 as `lanefs mkfs` makes it; `None` always means mke2fs's default.
#[derive(Clone, Debug)]
pub struct Options {
    /// `-t`.
    pub fs_type: FsType,
    /// `-T`; empty: chosen by size.
    pub usage_types: Vec<UsageType>,
    /// `-O`: names in mke2fs's form (`^has_journal,fast_commit`), applied to the defaults in order.
    pub features: String,
    /// `--compat`.
    pub compat: Option<Compat>,
    /// `-b`: bytes.
    pub block_size: Option<BlockSize>,
    /// `-b -BYTES`: the least block size to choose where `block_size` is `None`.
    pub least_block_size: Option<BlockSize>,
    /// `-C`: bytes a cluster (needs bigalloc).
    pub cluster_size: Option<u64>,
    /// `-i`: bytes an inode.
    pub inode_ratio: Option<u64>,
    /// `-I`: bytes of an inode's record.
    pub inode_size: Option<u16>,
    /// `-N`: inodes, rounded up to fill the inode tables.
    pub inodes: Option<u64>,
    /// `-L`: at most 16 bytes.
    pub label: Vec<u8>,
    /// `-M`: at most 64 bytes.
    pub last_mounted: Vec<u8>,
    /// `-U`; `None` for a random one.
    pub uuid: Option<[u8; 16]>,
    /// `-U random`: not even a wish for the same bytes decides it otherwise.
    pub random_uuid: bool,
    /// `-E hash_seed=`; `None` for a random one.
    pub hash_seed: Option<[u8; 16]>,
    /// Seconds since 1970 for every time stamp; `None` for the clock's.
    pub time: Option<i64>,
    /// `-m`: percent of the blocks that only root may use.
    pub reserved_percent: f64,
    /// `-g`: blocks a group.
    pub blocks_per_group: Option<u64>,
    /// `-G`: groups a flex group, a power of two.
    pub groups_per_flex: Option<u32>,
    /// `-e`: 1 continue, 2 remount read-only, 3 panic.
    pub errors: u16,
    /// `-o`: the creator's number (0 Linux).
    pub creator_os: u32,
    /// `-j`, or any `-J`: a journal also where the defaults have none.
    pub wants_journal: bool,
    /// `-J`.
    pub journal: JournalOptions,
    /// `-E stride=`: blocks.
    pub stride: Option<u16>,
    /// `-E stripe_width=`: blocks.
    pub stripe_width: Option<u32>,
    /// `-E resize=`: what the file system must be able to grow to online.
    pub resize: Option<BlocksOrBytes>,
    /// What data was streamed around, if it was: the layout then has this geometry.
    pub stream: Option<crate::StreamGeometry>,
    /// `-E lazy_itable_init=`: leave inode tables that aren't used for the kernel to clear.
    pub lazy_itable_init: bool,
    /// `-E lazy_journal_init=`: don't clear the journal.
    pub lazy_journal_init: bool,
    /// `-E packed_meta_blocks=`: all bitmaps, inode tables and the journal at the beginning.
    pub packed_meta_blocks: bool,
    /// `-E num_backup_sb=`: 0 to 2 (needs sparse_super2).
    pub backup_superblocks: Option<u8>,
    /// `-E root_owner=`: user and group of the root directory; `None` for 0 and 0, or for the source's.
    pub root_owner: Option<(u32, u32)>,
    /// `-E orphan_file_size=`: 1 to 512 blocks.
    pub orphan_file_size: Option<BlocksOrBytes>,
    /// `-E mmp_update_interval=`: seconds.
    pub mmp_interval: Option<u16>,
    /// `-E desc_size=`: bytes of a group descriptor.
    pub desc_size: Option<u16>,
    /// `-E encoding=` (only `utf8`, `utf8-12.1`).
    pub encoding: Option<String>,
    /// `-E encoding_flags=strict`.
    pub strict_encoding: bool,
    /// `-E test_fs`: marked as made for tests.
    pub test_fs: bool,
    /// `-E discard`: the caller that opens the device first discards all of it. [`crate::format`] ignores this field.
    pub discard: bool,
    /// `-E offset=`: bytes before the file system on the device. [`crate::format`] ignores this field.
    pub offset: u64,
    /// Whether there is a lost+found.
    pub lost_found: bool,
    /// Whether the device reads as zeros wherever the caller has not written (a file made just now): what must be
    /// zero is then not written.
    pub device_is_zero: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fs_type: FsType::Ext4,
            usage_types: Vec::new(),
            features: String::new(),
            compat: None,
            block_size: None,
            least_block_size: None,
            cluster_size: None,
            inode_ratio: None,
            inode_size: None,
            inodes: None,
            label: Vec::new(),
            last_mounted: Vec::new(),
            uuid: None,
            random_uuid: false,
            hash_seed: None,
            time: None,
            reserved_percent: 5.0,
            blocks_per_group: None,
            groups_per_flex: None,
            errors: 1,
            creator_os: 0,
            wants_journal: false,
            journal: JournalOptions::default(),
            stride: None,
            stripe_width: None,
            resize: None,
            stream: None,
            lazy_itable_init: true,
            lazy_journal_init: false,
            packed_meta_blocks: false,
            backup_superblocks: None,
            root_owner: None,
            orphan_file_size: None,
            mmp_interval: None,
            desc_size: None,
            encoding: None,
            strict_encoding: false,
            test_fs: false,
            discard: true,
            offset: 0,
            lost_found: true,
            device_is_zero: false,
        }
    }
}

impl Options {
    /// Whether these options, defaults included, ask for a feature; what the size then decides otherwise is not seen.
    #[must_use]
    pub fn has_feature(&self, feature: ondisk::Feature) -> bool {
        crate::features::resolve(self).is_ok_and(|set| set.has(feature))
    }

    /// Whether a feature may be added that these options do not ask for: neither `-O ^feature` nor `--compat` is
    /// against it.
    #[must_use]
    pub fn may_have_feature(&self, feature: ondisk::Feature) -> bool {
        let is_refused = |compat: Compat| compat.refuses().contains(&feature);
        !crate::features::forbids(self, feature) && !self.compat.is_some_and(is_refused)
    }

    /// Asks for no number of inodes. Where one is asked for, bytes an inode count for nothing.
    pub fn forget_inodes(&mut self) {
        if self.inodes.take().is_some() {
            self.inode_ratio = None;
        }
    }

    /// Bytes an inode: as asked for, else as the profile says, or 16 KiB where none is chosen yet.
    #[must_use]
    pub fn inode_ratio_or_default(&self) -> u64 {
        let by_profile = || crate::tables::inode_ratio(&self.usage_types);
        self.inode_ratio.unwrap_or_else(by_profile)
    }

    /// The block size asked for, else the usual one where that is not less than asked for.
    #[must_use]
    pub fn block_size_or(&self, usual: BlockSize) -> BlockSize {
        let least = self.least_block_size.unwrap_or(usual);
        self.block_size.unwrap_or(usual.max(least))
    }
}
