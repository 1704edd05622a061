//! An inode as it is on the device, or was at one moment in memory. It does not change, so reading code works on it.

use std::ops::Deref;

use buffer::Block;
use ondisk::inode::{self, Inode};
use ondisk::xattr::{self, ListPlace, Value};
use ondisk::{Feature, FileType, Flags, Ino, Timestamp};
use sync::{Arc, OnceLock};

use crate::blocks::OpenVolume;
use crate::core::Error;

/// An inode that does not change.
#[derive(Clone)]
pub(crate) struct LoadedInode {
    ino: Ino,
    inode: Inode,
    seed: u32,
    slot: Slot,
}

/// Where the inode's whole slot is.
#[derive(Clone)]
enum Slot {
    /// In a block: the first byte, and the number of bytes.
    Block(Arc<Block>, usize, usize),
    /// The record only, with the slot's number of bytes: the slot, with zeros after the record, is made on first use.
    Record(usize, OnceLock<Box<[u8]>>),
}

impl Deref for LoadedInode {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl LoadedInode {
    /// The inode with this slot, which was verified before.
    pub(super) fn of_slot(ino: Ino, csum_seed: u32, slot: Arc<Block>) -> LoadedInode {
        // The record was parsed when it was loaded, and every change keeps its extra size.
        let inode = Inode::parse(&slot).expect("a live inode parses");
        let len = slot.len();
        LoadedInode {
            ino,
            inode,
            seed: inode::checksum_seed(csum_seed, ino, inode.generation()),
            slot: Slot::Block(slot, 0, len),
        }
    }

    /// The inode with this record, whose slot is in a block from byte `at` on.
    pub(super) fn of_block(
        ino: Ino,
        inode: Inode,
        seed: u32,
        (block, at, len): (Arc<Block>, usize, usize),
    ) -> LoadedInode {
        LoadedInode {
            ino,
            inode,
            seed,
            slot: Slot::Block(block, at, len),
        }
    }

    /// The inode with this record and no attributes, in a slot of `len` bytes.
    pub(super) fn of_record(ino: Ino, inode: Inode, seed: u32, len: usize) -> LoadedInode {
        LoadedInode {
            ino,
            inode,
            seed,
            slot: Slot::Record(len, OnceLock::new()),
        }
    }

    /// The same inode with another time of access.
    pub(super) fn with_atime(mut self, atime: Timestamp) -> LoadedInode {
        self.inode.set_atime(atime);
        self
    }

    /// The inode's number.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The seed of checksums of blocks that belong to the inode.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// The inode's slot in the inode table.
    pub(crate) fn slot(&self) -> &[u8] {
        match &self.slot {
            Slot::Block(block, at, len) => &block[*at..at + len],
            Slot::Record(len, slot) => slot.get_or_init(|| {
                let mut bytes = vec![0; *len].into_boxed_slice();
                self.inode.write_to(&mut bytes);
                bytes
            }),
        }
    }

    /// Bytes in the file.
    pub(crate) fn bytes(&self, volume: &OpenVolume) -> u64 {
        self.inode.size(volume.has(Feature::LARGE_DIR))
    }

    /// Whether the file is of this type.
    pub(crate) fn is(&self, file_type: FileType) -> bool {
        self.inode.file_type() == Some(file_type)
    }

    /// Whether contents are stored in the inode.
    pub(crate) fn is_inline(&self) -> bool {
        self.flags().contains(Flags::INLINE_DATA)
    }

    /// The two parts of inline contents: the block area, and the value of `system.data` (empty if the inode has none).
    pub(crate) fn inline_parts(&self) -> Result<(&[u8], &[u8]), Error> {
        let area = ListPlace::Inode(inode::attribute_area(self.slot()).unwrap_or_default());
        let entries = xattr::entries(area).map_err(|corrupt| corrupt.ino(self.ino))?;
        let mut rest = &[][..];
        for entry in entries {
            if (entry.index, entry.name) == (xattr::INDEX_SYSTEM, b"data")
                && let Value::Here(value) = entry.value
            {
                rest = value;
            }
        }
        Ok((self.inode.block_area(), rest))
    }
}
