//! Blocks of attributes by the hash of their contents, so that inodes with equal attributes share one.
//!
//! A hint, and bounded: the blocks here are pinned and can be compared without I/O; other blocks are not found.
//! Protected by [`sync::Rank::XattrBlock`], like the reference counts of such blocks. A block's contents change only
//! while one inode uses it and it is not here, so that no thread finds a block that is about to change. A crash leaves
//! nothing of it.

use std::collections::VecDeque;

use hashbrown::HashMap;
use ondisk::FsBlock;

use crate::blocks::Pin;
use crate::core::limits;

/// The blocks; see the module.
#[derive(Default)]
pub(crate) struct AttributeBlocks {
    by_hash: HashMap<u32, Vec<(FsBlock, Pin)>>,
    hashes: HashMap<u64, u32>,
    /// Blocks in the order in which they came; some may be gone by now.
    order: VecDeque<FsBlock>,
}

impl AttributeBlocks {
    /// Adds a block whose contents have this hash; the oldest is removed if there are too many.
    pub(crate) fn insert(&mut self, block: FsBlock, hash: u32, pin: Pin) {
        // A block with a hash of 0 is not to be shared.
        if hash == 0 || self.hashes.contains_key(&block.0) {
            return;
        }
        let most = (limits::SHARED_XATTR_BYTES / pin.bytes().len()).max(1);
        while self.hashes.len() >= most {
            match self.order.pop_front() {
                Some(oldest) => self.remove(oldest),
                None => return,
            }
        }
        self.hashes.insert(block.0, hash);
        self.order.push_back(block);
        self.by_hash.entry(hash).or_default().push((block, pin));
        if self.order.len() > 2 * most {
            let hashes = &self.hashes;
            self.order.retain(|block| hashes.contains_key(&block.0));
        }
    }

    /// Takes a block out, before its contents change or when it is freed.
    pub(crate) fn remove(&mut self, block: FsBlock) {
        let Some(hash) = self.hashes.remove(&block.0) else {
            return;
        };
        if let Some(known) = self.by_hash.get_mut(&hash) {
            known.retain(|(known, _)| *known != block);
            if known.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }

    /// A block with this hash whose contents `fits` accepts.
    pub(crate) fn find(&self, hash: u32, fits: impl Fn(&[u8]) -> bool) -> Option<(FsBlock, Pin)> {
        let known = self.by_hash.get(&hash)?;
        let found = known.iter().find(|(_, pin)| fits(&pin.bytes()))?;
        Some(found.clone())
    }
}
