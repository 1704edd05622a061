//! Newtypes for every number that names a thing on disk, so that mixing two kinds does not compile; and ranges of
//! blocks.

use core::fmt;

macro_rules! number {
    ($(#[$m:meta])* $name:ident($inner:ty)) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// An inode number; the first inode is 1.
    Ino(u32)
);
number!(
    /// A block group's index.
    Group(u32)
);
number!(
    /// A block of the file system, counted from the start of its device.
    FsBlock(u64)
);
number!(
    /// A block of a file, counted from the file's start ("logical block").
    LBlock(u32)
);
number!(
    /// An inode's generation, which tells the users of a reused inode number apart.
    Generation(u32)
);

impl Ino {
    /// The inode that holds bad blocks.
    pub const BAD: Ino = Ino(1);
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// The user quota file.
    pub const USER_QUOTA: Ino = Ino(3);
    /// The group quota file.
    pub const GROUP_QUOTA: Ino = Ino(4);
    /// The inode that owns the descriptor blocks reserved for growth.
    pub const RESIZE: Ino = Ino(7);
    /// The journal.
    pub const JOURNAL: Ino = Ino(8);
    /// The first inode that is not reserved, unless the superblock says otherwise.
    pub const FIRST_UNRESERVED: Ino = Ino(11);
}

/// A transaction's number in the journal. It wraps, so two of them compare by distance only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[repr(transparent)]
pub struct Tid(pub u32);

impl Tid {
    /// The transaction after this one.
    #[must_use]
    pub fn next(self) -> Tid {
        Tid(self.0.wrapping_add(1))
    }

    /// Whether this transaction is `other` or came after it (`tid_geq`).
    #[must_use]
    pub fn is_at_or_after(self, other: Tid) -> bool {
        self.0.wrapping_sub(other.0) < 0x8000_0000
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The size of a block in bytes: a power of two from 1 KiB to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct BlockSize(u8);

impl BlockSize {
    /// 1 KiB.
    pub const K1: BlockSize = BlockSize(10);
    /// 4 KiB.
    pub const K4: BlockSize = BlockSize(12);
    /// 64 KiB.
    pub const K64: BlockSize = BlockSize(16);

    /// The block size of this number of bytes, if ext4 supports it.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Option<BlockSize> {
        (0..=6)
            .map(|log| BlockSize(10 + log))
            .find(|size| size.bytes_u64() == bytes)
    }

    /// The block size of `1024 << log` bytes, if ext4 supports it (`s_log_block_size`).
    #[must_use]
    pub fn from_log(log: u32) -> Option<BlockSize> {
        u8::try_from(log)
            .ok()
            .filter(|log| *log <= 6)
            .map(|log| BlockSize(10 + log))
    }

    /// Bytes a block.
    #[must_use]
    pub fn bytes(self) -> usize {
        1 << self.0
    }

    /// Bytes a block.
    #[must_use]
    pub fn bytes_u64(self) -> u64 {
        1 << self.0
    }

    /// The power of two that a block's bytes are.
    #[must_use]
    pub fn bits(self) -> u32 {
        u32::from(self.0)
    }

    /// The value of `s_log_block_size`.
    #[must_use]
    pub fn log(self) -> u32 {
        self.bits() - 10
    }

    /// How many whole or partial blocks hold `bytes`.
    #[must_use]
    pub fn blocks_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.bytes_u64())
    }
}

impl FsBlock {
    /// The byte at which this block begins.
    #[must_use]
    pub fn offset(self, size: BlockSize) -> u64 {
        self.0 << size.bits()
    }
}

/// Consecutive blocks of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The first one.
    pub start: FsBlock,
    /// How many.
    pub len: u64,
}

impl BlockRun {
    /// The block after the last one.
    #[must_use]
    pub fn end(self) -> FsBlock {
        FsBlock(self.start.0 + self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tids_compare_across_the_wrap() {
        assert!(Tid(1).is_at_or_after(Tid(u32::MAX)));
        assert!(!Tid(u32::MAX).is_at_or_after(Tid(1)));
        assert_eq!(Tid(u32::MAX).next(), Tid(0));
    }

    #[test]
    fn block_sizes_are_powers_of_two_from_1k_to_64k() {
        assert_eq!(BlockSize::from_bytes(4096), Some(BlockSize::K4));
        assert_eq!(BlockSize::from_bytes(512), None);
        assert_eq!(BlockSize::from_bytes(6000), None);
        assert_eq!(BlockSize::from_log(6), Some(BlockSize::K64));
        assert_eq!(BlockSize::from_log(7), None);
        assert_eq!(BlockSize::K1.blocks_for(1025), 2);
    }
}
